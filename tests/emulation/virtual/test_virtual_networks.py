"""Runs over a public and a dedicated network in virtual time: edges change networks as links do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.world import World, WorldConfig
from thalweg.middleware.client.replanning import Search, first_ways
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import NET, Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import Hints, Task, get_cost_model
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import Made, NodeCode

HOSTS = ("h1", "h2", "client")
PLACEMENT = {"s": "h1", "o": "h2", "t": "client"}
FLOW = Dataflow(
    (
        Node("s", "source", (), Code("s"), "h1"),
        Node("o", "operator", ("s",), Code("o"), "h2"),
        Node("t", "sink", ("o",), None, "client"),
    )
)
BYTES, PERIOD_S, COUNT = 125_000, 20.0, 250
OUTAGE_S = 60.0, 140.0
MEGABIT = BandwidthTrace.constant("steady", 1e6)
FALLS = BandwidthTrace("falls", np.array([0.0, *OUTAGE_S]), np.array([1e6, 5e3, 1e6]), 10_000.0)
NETWORKS = {
    NET: Network(TARIFFS["public"]),
    "fast": Network(Tariff("dedicated", per_gb=0.2), {("h2", "client"): 1.2e6, ("client", "h2"): 1.2e6}),
}


class Sized(NodeCode):
    def make(self, index: int, inputs: tuple[Any, ...]) -> Made:
        return Made(index, BYTES, 0.0)


class Recorded(World):
    """By which network each partition came, and when."""

    def __init__(self, public: BandwidthTrace, fast: BandwidthTrace, horizon_s: float | None) -> None:
        links = {Link(a, b): MEGABIT for a, b in itertools.permutations(HOSTS, 2)} | {Link("h2", "client"): public}
        links |= {Link("h2", "client", "fast"): fast, Link("client", "h2", "fast"): fast}
        super().__init__(HOSTS, links, lambda node: Sized(), WorldConfig("independent", 0.01, validate=True))
        self.came: list[tuple[float, str]] = []
        self.values: list[Any] = []
        self.on_delivered = lambda partition, now: self.values.append(partition.value)
        known = {link: LinkEstimate(rates.rate_at(0.0)) for link, rates in links.items()}
        task = Task((FLOW,), HOSTS, NetworkView(known), Hints({"s": BYTES, "o": BYTES}), networks=NETWORKS)
        moves = GlobalMoves(period_s=PERIOD_S, horizon_s=horizon_s)
        self.answer = Search(task, get_cost_model("period"), moves, AGAIN).answer
        self.ways, _ = first_ways(task, PLACEMENT, lambda links: {})
        self.run(FLOW, PLACEMENT, COUNT, moves)

    def _handle(self, host: Any, event: e.Event) -> None:
        match event:
            case e.MessageReceived(message=m.Partition(producer="o", end=False, index=index), via=via):
                if index == len(self.came):  # what was stuck comes late, and again
                    self.came.append((self.now, via if isinstance(via, str) else NET))
        super()._handle(host, event)

    def over(self, from_s: float, until_s: float) -> set[str]:
        return {via for at_s, via in self.came if from_s <= at_s < until_s}


@pytest.mark.parametrize("horizon_s", [None, 1000.0])
def test_a_public_outage_moves_an_edge_to_a_dedicated_link_within_a_period_and_back(horizon_s: float | None) -> None:
    world = Recorded(FALLS, BandwidthTrace.constant("agreed", 1e6), horizon_s)
    assert world.failed is None and world.values == list(range(COUNT))
    assert world.relocations == 0  # nothing moves for it
    begun_s, over_s = OUTAGE_S
    assert world.over(5.0, begun_s) == {NET}  # as fast, and cheaper
    assert world.over(begun_s + PERIOD_S, over_s) == {"fast"}
    assert world.over(over_s + 3 * PERIOD_S, world.now) == {NET}
    kept = [at_s for at_s, _ in world.came]
    assert max(b - a for a, b in itertools.pairwise(kept)) < PERIOD_S


@pytest.mark.parametrize("horizon_s", [None, 1000.0])
@pytest.mark.parametrize("rate_bps", [0.0, 2e3])
def test_a_dedicated_link_that_dies_is_left_for_the_public_one_and_taken_again(
    rate_bps: float, horizon_s: float | None
) -> None:
    slow = BandwidthTrace.constant("slow", 0.3e6)
    dies = BandwidthTrace("dies", np.array([0.0, 60.0, 140.0]), np.array([1.2e6, rate_bps, 1.2e6]), 10_000.0)
    world = Recorded(slow, dies, horizon_s)
    assert world.failed is None and world.values == list(range(COUNT))
    assert world.over(5.0, 60.0) == {"fast"}
    assert world.over(60.0 + PERIOD_S, 140.0) == {NET}
    assert world.over(140.0 + 3 * PERIOD_S, world.now) == {"fast"}
