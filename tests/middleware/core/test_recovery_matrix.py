"""The fault matrix of a run with failover: every step of a replica and of a recovery, and every fault at that step.

Operator ``o`` is on h3, its consumer ``r`` on h4, sources ``s1`` and ``s2`` on h5 and h6, and h1 and h2 hold nothing.
Both operators have states. The *keeper* is the first other host that has a replica of ``o``. In the second table h3
dies first, and ``o`` is to be on *heir*, which is the keeper. In the row ``claimed`` the run has a planner, which
chooses h2, so that h2 has to request the replica from the keeper. When a host is first seen in the step of a row, the
fault of the column happens. A cell gives the outcome:

- ``on``: all partitions are delivered once and in order, also those after the fault
- ``lost h5``: the run ends with one line that says that h5, which holds a source, is not back
- ``dropped``: the client is dead, and every host forgets the run

In the third table the operators continue without a lost source (``missing="nothing"``), and remember all inputs.
``less``: all partitions are delivered, and ``s1`` gives nothing after the loss. At least one source must be there, so
of two lost sources one is awaited. ``h5 again``: h5 is back, a second later gone again, and back.

``both``: two hosts die at a time. ``back``: the process is started again a second later. ``woken``: the process stops
for long, and then continues. ``no bulk``: no more states come from the keeper. ``damaged``: the states of the keeper
are damaged. In the last table a stream goes over two or four trees of free operators. In one tree ``o`` is on h3 and
``r`` on h4, and the other way round in the next, so that h3 has a part in every tree. The cells of the first two tables
are also tried with a stream over two trees of the sources, with both operators above.

In every cell the invariants of every core hold after every event, and no node of a generation is on two hosts. When the
run is over, no living host has anything left of the run or of its replicas.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from adversary import BEGINS_S, CLIENT, FREE, PADDING, SCRIPTED_DATAFLOW, Paced, Scripted, right
from matrix import Then, When, cells, repeat, rows
from msgspec import UNSET, UnsetType
from run_ids import R

from thalweg.emulation.virtual.faults import Crash, Stop
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.world import VirtualHost
from thalweg.experiments.faults.trial_code import MERGING, content
from thalweg.middleware.core.failover.checkpoints import Checkpoints
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.core.states.awaited_states import AwaitedStates
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import gaps_of, is_absent
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.split_graph import PlacedGraph, parted, split_graph
from thalweg.middleware.protocol.stripes import WINDOW
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

pytestmark = pytest.mark.matrix

REPLICAS = """
| step    | h3 | keeper | both | h4 | h2 | h5      | h5 back | h3 back | h3 woken | client  | all twice | all late | no bulk | damaged |
|---------|----|--------|------|----|----|---------|---------|---------|----------|---------|-----------|----------|---------|---------|
| taken   | on | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| sent    | on | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| there   | on | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| known   | on | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| settled | on | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
"""  # noqa: E501

GENERATIONS = """
| step      | heir | keeper | both | h4 | h2 | h5      | h5 back | h3 back | h3 woken | client  | all twice | all late | no bulk | damaged |
|-----------|------|--------|------|----|----|---------|---------|---------|----------|---------|-----------|----------|---------|---------|
| silent    | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| decided   | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| begun     | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| claimed   | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| restoring | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| ready     | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
| going     | on   | on     | on   | on | on | lost h5 | on      | on      | on       | dropped | on        | on       | on      | on      |
"""  # noqa: E501

MISSING = """
| step    | h5        | h5 back | h5 and h3 | h5 and keeper | h5 and h6 | h5 again | h3 woken | client  | all twice | damaged |
|---------|-----------|---------|-----------|---------------|-----------|----------|----------|---------|-----------|---------|
| taken   | less      | on      | less      | less          | lost h6   | on       | on       | dropped | on        | on      |
| sent    | less      | on      | less      | less          | lost h6   | on       | on       | dropped | on        | on      |
| there   | less      | on      | less      | less          | lost h6   | on       | on       | dropped | on        | on      |
| known   | less      | on      | less      | less          | lost h6   | on       | on       | dropped | on        | on      |
| settled | less      | on      | less      | less          | lost h6   | on       | on       | dropped | on        | on      |
"""  # noqa: E501


STRIPED = """
| step      | h4 | both | h2 | h5      | h5 back | h3 back | h3 woken | client  | all twice | all late |
|-----------|----|------|----|---------|---------|---------|----------|---------|-----------|----------|
| flowing   | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
| silent    | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
| decided   | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
| begun     | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
| ready     | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
| going     | on | on   | on | lost h5 | on      | on      | on       | dropped | on        | on       |
"""

ABOVE = int(os.environ.get("THALWEG_ABOVE", "3"))  # every third cell of the first two tables; 1: all of them
KILLED_S = 3.0
NEVER_S = 30.0  # a step that has not been reached by then never is
CLAIMS = "h2"  # where a planner puts ``o``: the keeper is h1
PLACEMENT = {"s1": "h5", "s2": "h6", "o": "h3", "r": "h4", "t": CLIENT}


class Lasting(Scripted):
    """A run with failover, whose states travel as bulk."""

    def __init__(self, when: When | None = None, then: Then | None = None) -> None:
        nodes = [msgspec.structs.replace(node, pinned=PLACEMENT[node.name] if node.pinned else None)
                 for node in SCRIPTED_DATAFLOW.nodes]  # fmt: skip
        super().__init__(when, then, last_s=12.0, dataflow=Dataflow(tuple(nodes)), placement=PLACEMENT)
        self.padding, self.pace_s = PADDING, 0.4

    def _install(self) -> m.Install:
        return msgspec.structs.replace(super()._install(), failover=m.Failover(every=2, wait_s=3.0))

    def right(self) -> list[Any]:
        """Return the values that should have been delivered."""
        return right(self.dataflow, len(self.delivered))

    def _until(self, over: Callable[[], bool]) -> None:
        super()._until(lambda: over() or (self.reached_s is None and self.now > NEVER_S))


class LastingStripes(Lasting):
    """A stream over several trees, each with failover."""

    def __init__(self, stripes: int, when: When | None = None, then: Then | None = None) -> None:
        super().__init__(when, then)
        free = [msgspec.structs.replace(node, code=FREE) if node.kind == "operator" else node
                for node in self.dataflow.nodes]  # fmt: skip
        self.dataflow = Dataflow(tuple(free))
        ways = PLACEMENT, {**PLACEMENT, "o": "h4", "r": "h3"}
        self.trees = {number: (self.dataflow, dict(ways[number % 2])) for number in range(stripes)}

    def run(self) -> list[Any]:
        requests = []
        for number, (dataflow, where) in self.trees.items():
            if number is None:
                continue
            locations = tuple(m.Location(node, host, 1) for node, host in where.items())
            install = msgspec.structs.replace(
                self._install(), run=R.of_stripe(number), dataflow=dataflow, locations=locations, partitions=None
            )
            requests.append(e.RunRequested(install))
        shares = (1 / len(requests),) * len(requests)
        self.open, self._sinks = {0}, {0: {*self.dataflow.sinks}}
        most, above = WINDOW * len(requests), self._above()
        asks = e.StripesRequested(R, tuple(requests), shares, most, self.partitions, above=above)
        self.at(0.0, CLIENT, asks)
        self._until(lambda: False)
        assert not self.stalled, f"no end after {self.events} events: delivered {len(self.delivered)}"
        return self.delivered

    def _above(self) -> e.RunRequested | UnsetType:
        """Return the request for the upper graph."""
        return UNSET

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        if isinstance(command, e.Forgotten) and command.run != R:
            FaultyWorld._rare(self, host, command)
        else:
            super()._rare(host, command)


class LastingAbove(LastingStripes):
    """The stateful operators are in the upper graph. Only the sources' partitions go over the trees."""

    def __init__(self, stripes: int, when: When | None = None, then: Then | None = None) -> None:
        super().__init__(stripes, when, then)
        self.dataflow = SCRIPTED_DATAFLOW
        self.failover = m.Failover()  # h3 has no node of a tree, whose run goes on without it, until it is back
        parts = split_graph(self.dataflow, ("o", "r"), CLIENT)
        below, above = parted(PlacedGraph(self.dataflow, PLACEMENT), parts, CLIENT)
        self.trees = {**dict.fromkeys(range(stripes), (*below,)), None: (*above,)}

    def _above(self) -> e.RunRequested | UnsetType:
        dataflow, where = self.trees[None]
        locations = tuple(m.Location(node, host, 1) for node, host in where.items())
        return e.RunRequested(msgspec.structs.replace(self._install(), dataflow=dataflow, locations=locations))


# --- who is meant -----------------------------------------------------------------------------------


def newest(world: Scripted, host: str) -> RunCore | None:
    """Return the run's newest generation on the host, for a stream the one of the upper graph if there is any."""
    runs = world.cores[host].runs.values()
    above = isinstance(world, LastingAbove)
    return next((run for run in runs if not above or run.id.stripe is None), None)


def keeper(world: Scripted) -> str:
    """Return the first host except h3 with a replica of ``o``, or h1 before there is any."""
    keepers = [host for host in sorted(world.names) if host not in ("h3", CLIENT) and replicas(world, host)]
    return keepers[0] if keepers else "h1"


def replicas(world: Scripted, host: str, node: str = "o") -> set[int]:
    run = newest(world, host)
    return set() if run is None else {*run.parts.get(Checkpoints).replicas.get(node, ())}


def heir(world: Scripted) -> str:
    """Return the host on which ``o`` is to be."""
    run = newest(world, CLIENT)
    assert run is not None
    host = run.directory.locations["o"].host
    return host if host != "h3" else keeper(world)


# --- steps ------------------------------------------------------------------------------------------


def taken(world: Scripted) -> bool:
    run = newest(world, "h3")
    since = None if run is None else run.parts.get(Checkpoints)._since.get("o")
    return since is not None and since.index is not None


def sent(world: Scripted) -> bool:
    remote = {index for host in world.names if host != "h3" for index in replicas(world, host)}
    return world.now > BEGINS_S and bool(replicas(world, "h3") - remote)


def there(world: Scripted) -> bool:
    client = newest(world, CLIENT)
    known = {} if client is None else client.parts.get(Recovery).known.get("o", {})
    remote = {index for host in world.names if host != "h3" for index in replicas(world, host)}
    return world.now > BEGINS_S and bool(remote - known.keys())


def known(world: Scripted) -> bool:
    client = newest(world, CLIENT)
    return world.now > BEGINS_S and client is not None and len(client.parts.get(Recovery).known.get("o", {})) > 1


def settled(world: Scripted) -> bool:
    return world.now > BEGINS_S and min(replicas(world, "h3"), default=0) > 1


STEPS: dict[str, When] = {"taken": taken, "sent": sent, "there": there, "known": known, "settled": settled}


def generation(world: Scripted, host: str) -> int:
    run = newest(world, host)
    return -1 if run is None else run.id.generation


def silent(world: Scripted) -> bool:
    return "h3" in world.down


def decided(world: Scripted) -> bool:
    return generation(world, CLIENT) == 1


def begun(world: Scripted) -> bool:
    return any(generation(world, host) == 1 for host in world.names if host != CLIENT)


def claimed(world: Scripted) -> bool:
    run = newest(world, CLAIMS)
    return run is not None and any(map(run.parts.get(AwaitedStates).missing, run.parts.get(Checkpoints).awaited))


def restoring(world: Scripted) -> bool:
    parts = [run.parts for run in (newest(world, host) for host in world.names) if run is not None]
    return any(not of.get(AwaitedStates).missing(name) for of in parts for name in of.get(Checkpoints).awaited)


def ready(world: Scripted) -> bool:
    run = newest(world, CLIENT)
    return run is not None and "ready" in run.parts.get(Recovery)._phases_s


def going(world: Scripted) -> bool:
    run = newest(world, CLIENT)
    return run is not None and "first" in run.parts.get(Recovery)._phases_s


ANEW: dict[str, When] = {
    "silent": silent, "decided": decided, "begun": begun, "claimed": claimed, "restoring": restoring, "ready": ready,
    "going": going,
}  # fmt: skip
STATES = ("claimed", "restoring")  # that are steps of operators with states alone


def flowing(world: Scripted) -> bool:
    return world.now > BEGINS_S and len(world.delivered) > 3


def of_stripes(step: When) -> When:
    """Return the step of whichever stripe reaches it first."""

    def reached(world: Scripted) -> bool:
        for core in world.cores.values():
            for run in [*core.runs]:
                core.runs[run] = core.runs.pop(run)  # so that each is the newest in turn
                if step(world):
                    return True
        return False

    return reached


# --- faults -----------------------------------------------------------------------------------------

Who = Callable[[Scripted], str]


def dies(*who: str | Who) -> Then:
    def happens(world: Scripted) -> None:
        for host in {target if isinstance(target, str) else target(world) for target in who}:
            if host != CLIENT or who == (CLIENT,):  # where it is the heir
                world.kill(host)

    return happens


def back(host: str) -> Then:
    """Return a fault that ends the host's process, unless it has ended, and starts it again."""

    def happens(world: Scripted) -> None:
        if host in world.down:
            world._schedule(world.now + 1.0, world._restart, host)
        else:
            world._crash(Crash(host, world.now, 1.0))

    return happens


def woken(world: Scripted) -> None:
    if "h3" in world.down:
        return back("h3")(world)
    return world._stop(Stop("h3", world.now, 6.0))


def no_bulk(world: Scripted) -> None:
    """Lose every later bulk message from the keeper."""
    source = keeper(world)
    world.loses = lambda host, send: send.bulk and host == source and isinstance(send.message, m.AnyState)


def damaged(world: Scripted) -> None:
    """Damage all states that the keeper has."""
    for by_run in world.cores[keeper(world)].hosted.failover_runs.replicas.values():
        for states in by_run.values():
            for index, state in states.items():
                states[index] = msgspec.structs.replace(state, inline=bytes(state.size_bytes))


FAULTS: dict[str, Then] = {
    "h3": dies("h3"), "heir": dies(heir), "keeper": dies(keeper), "both": dies("h4", keeper), "h4": dies("h4"),
    "h2": dies("h2"), "h5": dies("h5"), "h5 back": back("h5"), "h3 back": back("h3"), "h3 woken": woken,
    "client": dies(CLIENT), "all twice": repeat(0.0), "all late": repeat(5.0), "no bulk": no_bulk, "damaged": damaged,
}  # fmt: skip


def check(world: Lasting, expected: str) -> None:
    """Run the world to the end, and assert the expected outcome."""
    world.run()
    assert world.reached_s is not None, "the step was never reached"
    assert world.now < 90.0, f"it took {world.now} s"
    assert world.delivered == world.right()
    for name in set(world.names) - world.down:
        core = world.cores[name]
        assert not (core.runs or core.coordinator.led or core.hosted.failover_runs.replicas), (
            f"{name} still has the run"
        )
        assert not world.hosts[name].code, f"{name} still has code: {world.combined}"
    if expected.startswith("lost"):
        host = expected.removeprefix("lost ")
        pattern = (
            rf"host '{host}', which holds [a-z0-9~, ]+, (did not install the run within 3 s|has been silent for 3 s)"
        )
        assert re.fullmatch(pattern, world.failed or ""), world.failed
    elif expected == "dropped":
        assert world.faults.count("client silent, run dropped") >= 5
    else:
        assert world.failed is None, world.failed
        assert world.delivered_s[-1] >= world.reached_s + world.last_s - 0.5, "the flow stands still"


@pytest.mark.parametrize(("step", "fault", "expected"), cells(REPLICAS))
def test_a_fault_at_a_step_of_a_replica_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    check(Lasting(STEPS[step], FAULTS[fault]), expected)


@pytest.mark.parametrize(("step", "fault", "expected"), cells(REPLICAS)[::5])
def test_a_fault_has_the_expected_outcome_with_several_partitions_under_way(
    step: str, fault: str, expected: str
) -> None:
    world = Lasting(STEPS[step], FAULTS[fault])
    world.depth = 3
    check(world, expected)


# --- without a source -------------------------------------------------------------------------------


class Lessened(Paced):
    """A source that marks the partitions for which it is missing."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        result = super().make(index, inputs)
        return msgspec.structs.replace(result, value=lessened(self.node, index) or result.value)


def lessened(node: Node, index: int) -> Any:
    """Return the value of a partition for which the source is missing, else None."""
    missing = any(first <= index < (LAST if until is None else until) for first, until in gaps_of(node))
    return (node.name, index, "missing") if missing else None


class Lacking(Lasting):
    """A run whose operators continue without a source. ``pieces``: the graph of each delivered partition."""

    def __init__(self, when: When, then: Then) -> None:
        super().__init__(when, then)
        more: dict[str, dict[str, Any]] = {"operator": {"code": MERGING, "missing": "nothing"}}
        nodes = [msgspec.structs.replace(node, **more.get(node.kind, {})) for node in self.dataflow.nodes]
        self.dataflow = Dataflow(tuple(nodes)).validate()
        self.trees = {None: (self.dataflow, self.placement)}
        self.of = self.dataflow
        self.pieces = [(self.of, 0)]  # and from which partition on

    def _paced(self, node: Node) -> NodeCode:
        return Lessened(self, node) if node.kind == "source" else Paced(self, node)

    def _rare(self, host: Any, command: e.Command) -> None:
        if isinstance(command, e.TreeChanged):
            self.of = command.dataflow
        super()._rare(host, command)

    def _delivered(self, host: Any, command: e.Deliver) -> None:
        if self.of is not self.pieces[-1][0]:
            self.pieces.append((self.of, command.index))
        super()._delivered(host, command)

    def right(self) -> list[Any]:
        """Return the values that one machine computes with the graph of each partition."""
        values: list[Any] = []
        ends = [first for _, first in self.pieces[1:]] + [len(self.delivered)]
        for (flow, first), until in zip(self.pieces, ends, strict=True):
            sources = [flow.by_name[name] for name in flow.sources]
            less = {(node.name, i): value for node in sources for i in range(until) if (value := lessened(node, i))}
            values += [content(self.dataflow, flow.sinks[0], i, less)[3] for i in range(first, until)]
        return values


def again(world: Scripted) -> None:
    for after_s in (0.0, 2.0):
        world._schedule(world.now + after_s, world._crash, Crash("h5", world.now + after_s, 1.0))


WITHOUT: dict[str, Then] = {
    **{each: FAULTS[each] for each in ("h5", "h5 back", "h3 woken", "client", "all twice", "damaged")},
    "h5 and h3": dies("h5", "h3"), "h5 and keeper": dies("h5", keeper), "h5 and h6": dies("h5", "h6"),
    "h5 again": again,
}  # fmt: skip


@pytest.mark.parametrize(("step", "fault", "expected"), cells(MISSING))
def test_a_fault_in_a_run_that_may_lack_sources_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    world = Lacking(STEPS[step], WITHOUT[fault])
    check(world, "on" if expected == "less" else expected)
    absent = [node.name for node in world.of.nodes if is_absent(node)]
    assert absent == (["s1"] if expected == "less" or expected.startswith("lost") else [])


@pytest.mark.parametrize(
    ("stripes", "step", "fault", "expected"),
    [*((2, *cell) for cell in cells(STRIPED)), *((4, *cell) for cell in cells(STRIPED)[::4])],
)
def test_a_fault_in_a_recovery_of_stripes_has_the_expected_outcome(
    stripes: int, step: str, fault: str, expected: str
) -> None:
    when = flowing if step == "flowing" else of_stripes(ANEW[step])
    world = LastingStripes(stripes, when, FAULTS[fault])
    if step != "flowing":
        stops = fault == "h3 woken" and step != "silent"
        begins = (lambda _: world._stop(Stop("h3", KILLED_S, 6.0))) if stops else (lambda _: world.kill("h3"))
        world._schedule(KILLED_S, begins, None)
    check(world, expected)


@pytest.mark.parametrize(("step", "fault", "expected"), cells(REPLICAS)[::ABOVE])
def test_a_fault_at_a_step_of_a_replica_in_the_upper_graph_has_the_expected_outcome(
    step: str, fault: str, expected: str
) -> None:
    check(LastingAbove(2, STEPS[step], FAULTS[fault]), expected)


@pytest.mark.parametrize(
    ("step", "fault", "expected"), [cell for cell in cells(GENERATIONS) if cell[0] != "claimed"][::ABOVE]
)
def test_a_fault_in_a_recovery_of_the_upper_graph_has_the_expected_outcome(
    step: str, fault: str, expected: str
) -> None:
    world = LastingAbove(2, ANEW[step], FAULTS[fault])
    host = Stop("h3", KILLED_S, 6.0) if fault == "h3 woken" and step != "silent" else None
    world._schedule(KILLED_S, (lambda _: world._stop(host)) if host else (lambda _: world.kill("h3")), None)
    check(world, expected)


@pytest.mark.parametrize(("step", "fault", "expected"), cells(GENERATIONS))
def test_a_fault_at_a_step_of_a_recovery_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    world = Lasting(ANEW[step], FAULTS[fault])
    if step == "claimed":
        world.adaptation = GlobalMoves(period_s=50.0)  # it plans for lost hosts only
        world.answer = lambda command: e.RecoveryPlanReady(command.run, {"o": CLAIMS})
    host = Stop("h3", KILLED_S, 6.0) if fault == "h3 woken" and step != "silent" else None
    begins = (lambda _: world._stop(host)) if host else (lambda _: world.kill("h3"))
    world._schedule(KILLED_S, begins, None)
    check(world, expected)


# --- how such a run ends ------------------------------------------------------------------------------


class Ending(Lasting):
    """A run that ends after ``partitions`` partitions."""

    def run_to_its_end(self) -> None:
        self.run()
        for name in set(self.names) - self.down:
            core = self.cores[name]
            assert not (core.runs or core.coordinator.led or core.hosted.failover_runs.replicas), (
                f"{name} still has the run"
            )
            assert not self.hosts[name].code, f"{name} still has code: {self.combined}"
        assert self.delivered == self.right()


def ending(partitions: int) -> Ending:
    world = Ending()
    world.partitions, world.pace_s = partitions, 0.1
    return world


@pytest.mark.parametrize("fails", [None, "h3"])
def test_no_host_keeps_a_completed_run(fails: str | None) -> None:
    world = ending(60)
    if fails:
        world._schedule(KILLED_S, lambda _: world.kill(fails), None)
    world.run_to_its_end()
    assert (world.failed, len(world.delivered)) == (None, 60)


@pytest.mark.parametrize("host", ["h3", "h4"])
def test_no_host_keeps_a_run_that_has_failed(host: str) -> None:
    world = ending(10**6)
    failed = e.OperatorFailed(R, "o" if host == "h3" else "r", "ValueError: it is odd")
    world._schedule(KILLED_S, lambda _: world.ahead(host, failed), None)
    world.run_to_its_end()
    assert "it is odd" in (world.failed or "")


def test_a_run_without_surviving_replicas_restarts_and_completes() -> None:
    world = ending(60)

    def falls(_: None) -> None:
        for host in ("h1", "h2", "h3", "h4"):
            world.kill(host)

    world._schedule(KILLED_S, falls, None)
    world.run_to_its_end()
    assert (world.failed, len(world.delivered)) == (None, 60)


def test_every_step_and_every_fault_has_cells() -> None:
    assert [row["step"] for row in rows(REPLICAS)] == list(STEPS)
    assert [row["step"] for row in rows(GENERATIONS)] == list(ANEW)
    assert [row["step"] for row in rows(MISSING)] == list(STEPS)
    assert {*rows(MISSING)[0]} == {"step", *WITHOUT}
    assert [row["step"] for row in rows(STRIPED)] == ["flowing", *(step for step in ANEW if step not in STATES)]
    assert {*rows(STRIPED)[0]} <= {"step", *FAULTS}
    assert {*rows(REPLICAS)[0], *rows(GENERATIONS)[0]} == {"step", *FAULTS}
