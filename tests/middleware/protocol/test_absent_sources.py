"""Runs that go on without a source: their results are those of a single process with the graph of that time."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, Fault, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.graphs import ALLOW, Timed, coded, draw_graph
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import DataflowError, OperatorError
from thalweg.middleware.network.view import Link
from thalweg.middleware.parcels import NOTHING, is_nothing
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.absent_sources import (
    Gap,
    above,
    back,
    follows,
    gap_at,
    gaps_of,
    is_absent,
    is_right,
    may_miss,
    without_source,
)
from thalweg.middleware.protocol.messages import Failover
from thalweg.operators import reference_run
from thalweg.operators.intermittent import Intermittent

MEGABITS = BandwidthTrace.constant("20 Mbit/s", 2e7)
HOSTS = ("h1", "h2", "h3", "h4", "client")
SOURCE = Node("s", "source", (), Code("scenes", {"site": 1}), "h1", stand_ins=("h2",))
SCENES = {"use": "scenes", "params": {"site": 0, "sites": 1, "seed": 1, "mean_bytes": 3000}}


# --- what is said in the graph --------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_the_gaps_of_a_source_are_the_indices_that_stayed_missing(changes: list[tuple[int, int]]) -> None:
    node, missing = SOURCE, set[int]()
    for first, until in changes:
        node = without_source(node, first, "client")
        missing = {index for index in missing if index < first} | {*range(first, 30)}
        assert (is_absent(node), node.pinned, node.stand_ins) == (True, "client", ("h1", "h2"))
        node = back(node, max(first, until), "h1")
        missing -= {*range(max(first, until), 30)}
        assert (is_absent(node), node.pinned, node.stand_ins) == (False, "h1", ("h2",))
        assert {i for a, b in gaps_of(node) for i in range(a, b or 0)} == missing
        ends = [end for gap in gaps_of(node) for end in gap]
        assert ends == sorted({*ends}), "gaps touch, or are empty"
    assert missing or node == SOURCE


@pytest.mark.parametrize(("first", "second", "alone", "may"), [(1, 1, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 1, 0)])
def test_a_source_may_be_missing_if_all_consumers_allow_a_missing_source(
    first: bool, second: bool, alone: bool, may: bool
) -> None:
    flow = Dataflow()
    one, other = (flow.source(Code("scenes"), at=f"h{n}", name=f"s{n}") for n in (1, 2))
    left = flow.operator(Code("running"), one, other, missing="nothing" if first else "wait")
    right = flow.operator(Code("running"), one, missing="nothing" if second else "wait")
    flow.sink("t", left, *(() if alone else (right,)))
    if alone:  # nothing would come out of the other
        flow.sink("u", right)
    assert may_miss(flow, one) is bool(may)
    assert above(flow, [other]) == {left, "t"}


@pytest.mark.parametrize("what", ["no", None, 1])
def test_only_operators_may_set_missing_and_only_to_a_known_value(what: Any) -> None:
    flow = Dataflow()
    flow.sink("t", flow.operator(Code("running"), flow.source(Code("scenes"), at="h1"), name="o", missing=what))
    with pytest.raises(DataflowError, match=r"operator 'o' has missing=.*; use wait or nothing"):
        flow.validate()
    nodes = [replace(node, missing="nothing" if node.kind == "sink" else "wait") for node in flow.nodes]
    with pytest.raises(DataflowError, match="only operators go on without"):
        Dataflow(tuple(nodes)).validate()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=5), st.data())
def test_only_replicas_of_the_same_history_are_right(cuts: list[tuple[int, int]], data: st.DataObject) -> None:
    """The function is compared with the rule: a later cut undoes all indices after it."""
    known, said, now = None, list[tuple[int, int]](), 0
    for index, later in cuts:
        now += later
        said.append((now, index))
        known = follows(known, "o", index, now)
    at, index = data.draw(st.integers(0, now + 1)), data.draw(st.integers(0, 12))
    right = all(index <= limit for when, limit in said if when > at)
    found = is_right(known, index, at)
    assert right or not found
    if at >= known.before:  # a replica that has missed at most one cut loses nothing
        assert found == right


def test_a_cut_is_the_latest_index_at_which_all_operators_can_restart() -> None:
    assert gap_at(9, {}, {}) == 9
    assert gap_at(9, {"a": [4, 8], "b": [4, 6]}, {"a": 0, "b": 0}) == 4
    assert gap_at(9, {"a": [4, 8], "b": [6]}, {"a": 0, "b": 0}) == 0
    assert gap_at(9, {"a": [4, 8, 12], "b": []}, {"a": 0, "b": 8}) == 8


# --- the source -----------------------------------------------------------------------------------------


def test_an_intermittent_source_produces_values_outside_the_gaps() -> None:
    code, own = Intermittent(SCENES, [[1, 3], [4, 5]]), Intermittent(SCENES, [[99, 100]])
    for index in range(6):
        if index in (1, 2, 4):
            assert code.produce(index) is NOTHING
            assert code.partition_bytes(index) == 0
        else:
            assert (code.produce(index) == own.produce(index)).all()
            assert code.partition_bytes(index) == own.partition_bytes(index)
    assert (code.length, code.size_bytes()) == (own.length, own.size_bytes())
    absent = Intermittent({"use": "nowhere:Nobody", "params": {}}, [[2, None]])
    assert absent.produce(2) is NOTHING
    with pytest.raises(OperatorError, match="nowhere"):
        absent.produce(1)


@pytest.mark.parametrize("gaps", [[], [[3, 1]], [[1, None], [2, 3]], [[-1, 2]], [["1", 2]], [[1]]])
def test_invalid_gaps_are_refused(gaps: Any) -> None:
    with pytest.raises(OperatorError, match="intermittent"):
        Intermittent(SCENES, gaps)


# --- runs -----------------------------------------------------------------------------------------------


class Watched(FaultyWorld):
    """World that keeps the partitions of each sink, with the graph of that time."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.graph: Dataflow | None = None
        self.got: defaultdict[str, list[tuple[Dataflow, int, Any]]] = defaultdict(list)
        self.missing: list[dict[str, tuple[Gap, ...]]] = []

    def _rare(self, host: Any, command: e.Command) -> None:
        if isinstance(command, e.TreeChanged):
            self.graph = command.dataflow
            self.missing.append({node.name: gaps for node in self.graph.nodes if (gaps := gaps_of(node))})
        if isinstance(command, e.Deliver) and not command.end:
            assert self.graph is not None
            given = command.value if type(command.value) is tuple else (command.value,)
            value = tuple([NOTHING if is_nothing(each) else each for each in given])
            self.got[command.sink].append((self.graph, command.index, value if len(value) > 1 else value[0]))
        super()._rare(host, command)


def opened(node: Node) -> Timed:
    """Return the code of a node. The earlier partitions of an absent source are lost."""
    if is_absent(node):
        assert node.code is not None
        params = {**node.code.params, "code": {"use": "lost", "params": {}}}
        node = replace(node, code=replace(node.code, params=params))
    return Timed(node, 20_000, 0.01, 0.05)


def drawn(seed: int) -> Dataflow:
    """Return a random graph whose operators all go on without sources."""
    dice = Random(seed)
    flow = draw_graph(dice, HOSTS, "client")
    flow = coded(flow, seed, {name: dice.choice((1, 18_000)) for name in flow.operators}, {})
    more: dict[str, dict[str, Any]] = {"operator": {"missing": "nothing", "rate": None}, "source": {"rate": 4.0}}
    return Dataflow(tuple([replace(node, **more.get(node.kind, {})) for node in flow.nodes]))


def run(seed: int, partitions: int, *faults: Fault, every: int) -> Watched:
    """Run a random graph under these faults, and compare the partitions with the reference."""
    flow, dice = drawn(seed), Random(seed)
    where = {node.name: node.pinned or dice.choice(HOSTS) for node in flow.nodes}
    links = {Link(a, b): MEGABITS for a in HOSTS for b in HOSTS if a != b}
    limits = replace(LIMITS, ping_s=0.5, liveness_s=4.0, detect_s=2.0)
    config = WorldConfig("independent", 0.005, core=limits, validate=True)
    world = Watched(HOSTS, links, opened, FaultPlan(seed, faults), config)
    world.graph, world.failover = flow, Failover(every=every, wait_s=20.0)
    world.run(flow, where, partitions)
    for sink, got in world.got.items():
        assert [index for _, index, _ in got] == list(range(len(got))), sink
        for graph in {id(graph): graph for graph, _, _ in got}.values():
            mine = [(index, value) for each, index, value in got if each is graph]
            right = list(reference_run(graph, mine[-1][0] + 1, ALLOW, sink=sink))
            assert [(index, right[index]) for index, _ in mine] == mine, (sink, world.missing)
    return world


@pytest.mark.parametrize("seed", [0, 9, 12, 15, 23])
def test_results_equal_a_single_process_with_the_graph_of_that_time(seed: int) -> None:
    """Sources are lost, some at the same time, and come back or not. Operators that remember them are lost, too."""
    dice, hosts = Random(seed), HOSTS[:-1]
    crashes = [
        Crash(host, dice.uniform(2.0, 14.0), dice.choice([None, 2.0, 14.0])) for host in hosts if dice.random() < 0.6
    ]
    world = run(seed, 60, *crashes, every=2)
    assert (world.failed, {len(got) for got in world.got.values()}) == (None, {60})
    assert any(world.missing), "no source was missing"


def test_a_run_without_a_source_waits_and_then_fails() -> None:
    world = run(39, 60, Crash("h4", 5.0), Crash("h1", 5.0), every=2)
    assert world.failed is not None
    assert "did not install the run within 20 s" in world.failed
