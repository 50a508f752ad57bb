"""Runs over a public and a dedicated network in virtual time: edges change networks as links do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.world import World
from thalweg.middleware.client.steering.replanning import Replanner, first_ways
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import NET, Link, LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning import CostModel, Hints, Plan, Task, get_cost_model
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

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
    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, BYTES, 0.0)


class Recorded(World):
    """World that keeps the network and the time of every partition of the operator."""

    def __init__(self, public: BandwidthTrace, fast: BandwidthTrace, horizon_s: float | None) -> None:
        links = {Link(a, b): MEGABIT for a, b in itertools.permutations(HOSTS, 2)} | {Link("h2", "client"): public}
        links |= {Link("h2", "client", "fast"): fast, Link("client", "h2", "fast"): fast}
        super().__init__(HOSTS, links, lambda node: Sized(), WorldConfig("independent", 0.01, validate=True))
        self.came: list[tuple[float, str]] = []
        self.proposed: set[int] = set()
        self.values: list[Any] = []
        self.on_delivered = lambda partition, now: self.values.append(partition.value)
        known = {link: LinkEstimate(rates.rate_at(0.0)) for link, rates in links.items()}
        task = Task((FLOW,), HOSTS, NetworkView(known), Hints({"s": BYTES, "o": BYTES}), networks=NETWORKS)
        moves = GlobalMoves(period_s=PERIOD_S, horizon_s=horizon_s)
        self.answer = Replanner(task, get_cost_model("period"), moves, AGAIN).answer
        self.ways, _ = first_ways(task, PLACEMENT, lambda links: {})
        self.run(FLOW, PLACEMENT, COUNT, moves)

    def _handle(self, host: Any, event: e.Event) -> None:
        match event:
            case e.MessageReceived(message=m.Partition(producer="o", end=False, index=index), via=via):
                if index == len(self.came):  # what was stuck comes late, and again
                    self.came.append((self.now, via if isinstance(via, str) else NET))
            case e.MessageReceived(message=m.Propose(number=number)):
                self.proposed.add(number)
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
    times_s = [at_s for at_s, _ in world.came]
    assert max(b - a for a, b in itertools.pairwise(times_s)) < PERIOD_S


@pytest.mark.parametrize("horizon_s", [None, 1000.0])
@pytest.mark.parametrize("rate_bps", [0.0, 2e3])
def test_a_dead_dedicated_link_is_replaced_by_the_public_link_until_recovery(
    rate_bps: float, horizon_s: float | None
) -> None:
    slow = BandwidthTrace.constant("slow", 0.3e6)
    dies = BandwidthTrace("dies", np.array([0.0, 60.0, 140.0]), np.array([1.2e6, rate_bps, 1.2e6]), 10_000.0)
    world = Recorded(slow, dies, horizon_s)
    assert world.failed is None and world.values == list(range(COUNT))
    assert world.over(5.0, 60.0) == {"fast"}
    assert world.over(60.0 + PERIOD_S, 140.0) == {NET}
    assert world.over(140.0 + 3 * PERIOD_S, world.now) == {"fast"}


def test_small_changes_of_rates_cause_no_change_of_networks() -> None:
    """A change of networks pauses sources for a round trip. The rates of links differ at every check."""
    times = np.arange(0.0, 400.0, 7.0)
    varies = BandwidthTrace("varies", times, 1e6 * (1 + 0.03 * np.sin(times)), 10_000.0)
    world = Recorded(varies, BandwidthTrace.constant("agreed", 1e6), None)
    assert world.failed is None and world.plans > 5
    assert world.proposed == {1} and world.over(5.0, world.now) == {NET}


# --- states of operators that move -----------------------------------------------------------------------

STATE_BYTES, MOVED_S = 500_000, 30.0
ALL = ("h1", "h2", "h3", "client")
FREE = Dataflow((FLOW.nodes[0], Node("o", "operator", ("s",), Code("o")), FLOW.nodes[2]))
BEYOND = {NET: Network(), "fast": Network(TARIFFS["dedicated"], {("h2", "h3"): 1.2e6, ("h3", "h2"): 1.2e6})}


class Remembers(Sized):
    def snapshot(self) -> bytes:
        return bytes(STATE_BYTES)

    def restore(self, state: bytes) -> None:
        assert len(state) == STATE_BYTES


class Moves:
    """Planner that moves the operator to h3 as soon as both links to h3 are measured."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        assert task.current is not None
        if unknown := {Link("h2", "h3"), Link("h2", "h3", "fast")} - task.view.estimates.keys():
            raise LinksNeeded(unknown)
        return Plan({**task.current, "o": "h3"}, task.dataflow, 1.0, 1.0, judged=(2.0, 1.0))


class Carried(World):
    """World that keeps the time and the network of every state that arrives."""

    def __init__(self, fast: BandwidthTrace) -> None:
        slow = BandwidthTrace.constant("slow", 0.25e6)
        links = {Link(a, b): MEGABIT for a, b in itertools.permutations(ALL, 2)} | {Link("h2", "h3"): slow}
        links |= {Link(*pair, "fast"): fast for pair in BEYOND["fast"].links or {}}
        super().__init__(ALL, links, lambda node: Remembers(), WorldConfig("independent", 0.01, validate=True),
                         on_record=self._record)  # fmt: skip
        self.came: list[tuple[float, str]] = []
        self.faults: list[Any] = []
        self.values: list[Any] = []
        self.on_delivered = lambda partition, now: self.values.append(partition.value)
        task = Task((FREE,), ALL, NetworkView({}), Hints({"s": BYTES, "o": BYTES}), networks=BEYOND)
        moves = GlobalMoves(period_s=MOVED_S)
        self.answer = Replanner(task, get_cost_model("period"), moves, Moves()).answer
        self.run(FREE, PLACEMENT, 120, moves)

    def _record(self, host: str, now: float, record: e.Record) -> None:
        if record.kind == "fault":
            self.faults.append(record.fields["detail"])

    def _handle(self, host: Any, event: e.Event) -> None:
        if isinstance(event, e.MessageReceived) and isinstance(event.message, m.State):
            self.came.append((self.now, event.via if isinstance(event.via, str) else NET))
        super()._handle(host, event)


def test_the_state_of_an_operator_goes_over_the_network_that_carries_most() -> None:
    world = Carried(BandwidthTrace.constant("agreed", 1.2e6))
    assert world.failed is None and world.values == list(range(120)) and world.relocations == 1
    assert [via for _, via in world.came] == ["fast"] and not world.faults


@pytest.mark.parametrize("rate_bps", [0.0, 2e3])
def test_a_state_that_is_stuck_on_a_link_goes_over_the_other_network(rate_bps: float) -> None:
    """The link dies after its measurement. A state that arrives late belongs to a past hand-over."""
    dies = BandwidthTrace("dies", np.array([0.0, MOVED_S + 2.0, 140.0]), np.array([1.2e6, rate_bps, 1.2e6]), 10_000.0)
    world = Carried(dies)
    assert world.failed is None and world.values == list(range(120)) and world.relocations == 1
    assert world.faults == [{"what": "nothing comes through", "via": "fast", "state": "o"}]
    assert world.came[0][1] == NET and world.came[0][0] < 140.0
