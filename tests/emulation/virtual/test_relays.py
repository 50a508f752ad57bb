"""Runs in virtual time whose partitions go over relays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from run_ids import run_of

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import Transfer
from thalweg.emulation.virtual.world import World
from thalweg.middleware.client.steering.replanning import Replanner, first_ways
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import NET, Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import Hints, Task, get_cost_model
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "r1", "r2", "client")
PLACEMENT = {"s": "h1", "t": "client"}
FLOW = Dataflow((Node("s", "source", (), Code("s"), "h1"), Node("t", "sink", ("s",), None, "client")))
BYTES, PERIOD_S = 1_250_000, 20.0
WAY = Link("h1", "r1", "fast"), Link("r1", "r2", "fast"), Link("r2", "client", "fast")


def steady(bps: float) -> BandwidthTrace:
    return BandwidthTrace.constant("steady", bps)


class Sized(NodeCode):
    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, BYTES, 0.0)


class Relayed(World):
    """World that keeps the route of every partition that was sent, and the deliveries with their times."""

    def __init__(
        self, count: int, hops: int = 3, model: str = "independent", *, drops: bool = False, **rates: BandwidthTrace
    ) -> None:
        self.drops = drops
        links: dict[Link, BandwidthTrace] = {Link(a, b): steady(0.5e6) for a, b in itertools.permutations(HOSTS, 2)}
        for link in WAY:
            rate = rates.get(f"{link.source}_{link.target}", steady(5e6))
            links |= {link: rate, Link(link.target, link.source, "fast"): steady(5e6)}
        rented = {link.hosts: 5e6 for link in links if link.via == "fast"}
        networks = {NET: Network(TARIFFS["public"]), "fast": Network(TARIFFS["dedicated"], rented)}
        self.records: list[tuple[str, float, e.Record]] = []
        super().__init__(
            HOSTS, links, lambda node: Sized(), WorldConfig(model, 0.01, validate=True),
            on_record=lambda *row: self.records.append(row),
        )  # fmt: skip
        self.sent: list[tuple[float, int, m.Via]] = []
        self.values: list[Any] = []
        self.came_s: list[float] = []
        self.on_delivered = self._take
        known = {link: LinkEstimate(rate.rate_at(0.0)) for link, rate in links.items()}
        task = Task((FLOW,), HOSTS, NetworkView(known), Hints({"s": BYTES}), networks=networks, hops=hops)
        moves = GlobalMoves(period_s=PERIOD_S)
        self.answer = Replanner(task, get_cost_model("period"), moves, AGAIN).answer
        self.ways, _ = first_ways(task, PLACEMENT, lambda links: {})
        self.run(FLOW, PLACEMENT, count, moves)

    def _take(self, partition: e.Deliver, now: float) -> None:
        self.values.append(partition.value)
        self.came_s.append(now)

    def _send(self, host: Any, send: e.Send) -> None:
        if isinstance(send.message, m.Partition) and not send.message.end:
            self.sent.append((self.now, send.message.index, send.via))
        super()._send(host, send)

    def _arrived(self, transfer: Transfer) -> None:
        send = transfer.item
        if self.drops and isinstance(send, e.Send) and not isinstance(send.via, str):
            self._handle(self.hosts[transfer.source], self._measured(transfer))  # whatever the relay has done with it
        else:
            super()._arrived(transfer)

    def over(self, from_s: float, until_s: float) -> set[m.Via]:
        return {via for at_s, _, via in self.sent if from_s <= at_s < until_s}


HOPS = m.LinkEnd("r1", "fast"), m.LinkEnd("r2", "fast"), m.LinkEnd("client", "fast")


@pytest.mark.parametrize("model", ["independent", "single", "shared"])
def test_partitions_go_over_relays_at_the_rate_of_the_slowest_link(model: str) -> None:
    world = Relayed(20, model=model)
    assert world.failed is None and world.values == list(range(20))
    assert world.over(5.0, world.now) == {HOPS}
    assert {world.hosts[name].core.runs.get(run_of("run")) for name in ("r1", "r2")} == {None}
    period_s = (world.came_s[-1] - world.came_s[4]) / 15
    link_s = BYTES * 8 / 5e6
    # 5 pieces: the last one takes two hops more than a link of its own would; one interface sends or receives
    assert period_s == pytest.approx(link_s * (2 if model == "single" else 1) * (1 + 2 / 5), rel=0.35)
    pairs = [(host, record.fields["peer"]) for host, _, record in world.records if record.kind == "relayed"]
    assert {*pairs} == {("r1", "r2"), ("r2", "client")} and len(pairs) >= 2 * 15
    sent = [
        record.fields["detail"]
        for host, _, record in world.records
        if record.kind == "transfer" and "detail" in record.fields
    ]
    assert sent[-1] == {"via": "fast", "relays": ["r1", "r2"]}


def test_partitions_use_no_route_with_more_hops_than_allowed() -> None:
    world = Relayed(10, hops=2)
    assert world.values == list(range(10)) and world.over(0.0, world.now) == {NET}


@pytest.mark.parametrize("at", range(3))
def test_a_dead_link_of_a_relayed_route_is_left_and_used_again_after_recovery(at: int) -> None:
    dies = BandwidthTrace("dies", np.array([0.0, 60.0, 160.0]), np.array([5e6, 0.0, 5e6]), 10_000.0)
    world = Relayed(150, **{f"{WAY[at].source}_{WAY[at].target}": dies})
    assert world.failed is None and world.values == list(range(150))
    assert world.over(5.0, 60.0) == {HOPS}
    assert NET in world.over(60.0, 80.0)  # no plan was waited for
    gaps_s = [b - a for a, b in itertools.pairwise(world.came_s)]
    assert max(gaps_s) < 2 * PERIOD_S + 20.0  # over the public link one takes 20 s
    assert world.over(160.0 + 3 * PERIOD_S, world.now) == {HOPS}


def test_a_relay_that_drops_confirmed_partitions_is_left_for_longer_and_longer_times() -> None:
    """The links of the relay have good estimates, so the client would use the relay again at every check."""
    world = Relayed(40, drops=True)
    assert world.failed is None and world.values == list(range(40))
    lost = [at_s for at_s, _, via in world.sent if via == HOPS]
    apart_s = [b - a for a, b in itertools.pairwise(lost[1::2])]  # two and two are sent until it is left
    assert len(lost) <= 12 and apart_s == sorted(apart_s) and apart_s[-1] > 10 * PERIOD_S
    faults = [row.fields for _, _, row in world.records if row.kind == "fault"]
    left = [fault["duration_s"] for fault in faults if fault["detail"]["what"] == "route left"]
    assert left[:2] == [2 * PERIOD_S, 4 * PERIOD_S] and left == sorted(left)
