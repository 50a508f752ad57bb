"""The fault matrix of queries: every step of a query that begins or leaves, and every fault at that step.

The run, the hosts, the faults and the names of columns are those of ``test_fault_matrix``. The query shares ``o`` and
its sources with the run, and adds operator ``x``, on ``target``, and a sink. A cell gives the outcome:

- ``begun``: both queries get all partitions once and in order, also after the fault
- ``refused``: the query has not begun, which is its error, and the run continues
- ``failed``: the query had begun and has ended, with its own error, and the run continues
- ``left``: no host has anything of the query, and the run continues
- ``alone``: the run's first query has ended with an error of its own, and the second query continues
- ``lost h3``, ``cut h4 h1``, ``dropped``: as in ``test_fault_matrix``

Losses, and queries during a hand-over, are tried in a run in which ``o`` has two consumers. A share of the other cells,
from every row and every column, is tried again in this run.
"""

from __future__ import annotations

import pytest
from adversary import BEGINS_S, CLIENT, GRAPH_DATAFLOW, SCRIPTED_DATAFLOW, Scripted, content, right
from matrix import FAULTS, STEPS, When, cells, check, coming, leaving, losing, member, rows
from playbook import HandOver

from thalweg.middleware.core.barrier.proposal import MemberState
from thalweg.middleware.core.moving.handover import COMING, LEAVING
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e

pytestmark = pytest.mark.matrix

LEAVES_S = BEGINS_S + 2.0
X, SINK = "x~1", "u~1"  # as they are called in the run

# --- the tables -------------------------------------------------------------------------------------

ATTACH_DEATHS = """
| step              | h3      | h3 sent | target  | missed  | h2      | client  | h1      | h5    | h6    |
|-------------------|---------|---------|---------|---------|---------|---------|---------|-------|-------|
| change: proposed  | lost h3 | lost h3 | refused | refused | lost h2 | dropped | lost h1 | alone | begun |
| change: committed | lost h3 | lost h3 | failed  | failed  | lost h2 | dropped | lost h1 | alone | begun |
| target: preparing | lost h3 | lost h3 | refused | refused | lost h2 | dropped | lost h1 | alone | begun |
| source: voted     | lost h3 | lost h3 | refused | refused | lost h2 | dropped | lost h1 | alone | begun |
| target: voted     | lost h3 | lost h3 | refused | refused | lost h2 | dropped | lost h1 | alone | begun |
| source: begun     | lost h3 | lost h3 | failed  | failed  | lost h2 | dropped | lost h1 | alone | begun |
| target: begun     | lost h3 | lost h3 | failed  | failed  | lost h2 | dropped | lost h1 | alone | begun |
"""

DETACH_DEATHS = """
| step            | h3      | h3 sent | target | missed | h2      | client  | h1      | h5      | h6   |
|-----------------|---------|---------|--------|--------|---------|---------|---------|---------|------|
| client: telling | lost h3 | lost h3 | left   | left   | lost h2 | dropped | lost h1 | lost h5 | left |
| source: cut     | lost h3 | lost h3 | left   | left   | lost h2 | dropped | lost h1 | lost h5 | left |
| target: cut     | lost h3 | lost h3 | left   | left   | lost h2 | dropped | lost h1 | lost h5 | left |
"""

WORDS = """
| step              | another hand-over | more proposals | strangers | all twice | all late |
|-------------------|-------------------|----------------|-----------|-----------|----------|
| change: proposed  | begun             | begun          | begun     | begun     | begun    |
| change: committed | begun             | begun          | begun     | begun     | begun    |
| target: preparing | begun             | begun          | begun     | begun     | begun    |
| source: voted     | begun             | begun          | begun     | begun     | begun    |
| target: voted     | begun             | begun          | begun     | begun     | begun    |
| source: begun     | begun             | begun          | begun     | begun     | begun    |
| target: begun     | begun             | begun          | begun     | begun     | begun    |
| client: telling   | left              | left           | left      | left      | left     |
| source: cut       | left              | left           | left      | left      | left     |
| target: cut       | left              | left           | left      | left      | left     |
"""

# A hand-over of ``o``, which both use, or of the query's own operator: what becomes of a query that begins, or leaves.
MOVES = """
| step               | attach o | detach o | detach x |
|--------------------|----------|----------|----------|
| leaving: offered   | begun    | left     | left     |
| leaving: agreed    | begun    | left     | left     |
| leaving: suspended | begun    | left     | left     |
| leaving: sent      | begun    | left     | left     |
| leaving: committed | begun    | left     | left     |
| coming: preparing  | begun    | left     | left     |
| coming: prepared   | begun    | left     | left     |
| coming: restoring  | begun    | left     | left     |
| coming: restored   | begun    | left     | left     |
"""

LOSSES = """
| message  | from   | once  | for ever |
|----------|--------|-------|----------|
| Propose  | client | begun | lost h1  |
| Vote     | h1     | begun | lost h1  |
| Vote     | target | begun | refused  |
| Commit   | client | begun | lost h1  |
| Done     | h1     | begun | lost h1  |
| Done     | target | begun | failed   |
| Detach   | client | left  | lost h1  |
| Detached | h1     | left  | lost h1  |
| Detached | target | left  | left     |
"""

# --- steps ------------------------------------------------------------------------------------------


def telling(world: Scripted) -> bool:
    run = world.run_at(CLIENT)
    return run is not None and 1 in world.attached and run.parts.get(Queries).busy


def cut(who: str) -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(world.target if who == "target" else who)
        return run is not None and 1 in world.attached and 1 not in world.open and X not in run.tree.dataflow.by_name

    return reached


ATTACH_STEPS: dict[str, When] = {
    **{step: STEPS[step] for step in ("change: proposed", "change: committed", "target: preparing")},
    **{step: STEPS[step] for step in ("source: voted", "target: voted")},
    "source: begun": member("h1", MemberState.FREE),
    "target: begun": member("target", MemberState.FREE),
}
DETACH_STEPS: dict[str, When] = {"client: telling": telling, "source: cut": cut("h1"), "target: cut": cut("target")}

# --- cells ------------------------------------------------------------------------------------------


def query() -> Dataflow:
    shared = SCRIPTED_DATAFLOW.nodes[:3]
    own = Node("x", "operator", ("o",), Code("x")), Node("u", "sink", ("x",), None, CLIENT)
    return Dataflow((*shared, *own)).validate()


def attach(world: Scripted, host: str = "h4") -> None:
    where = {node.name: node.pinned or "h3" for node in query().nodes}
    world.attach(1, query(), {**where, "x": host})


def detach(world: Scripted) -> None:
    world.detach(1)


def begin(world: Scripted, target: str, *, leaves: bool = False) -> Scripted:
    """Attach the query, and detach it later if ``leaves`` is true."""
    world.target = target
    world._schedule(BEGINS_S, lambda _: attach(world, target), None)
    if leaves:
        world._schedule(LEAVES_S, detach, world)
    return world


def check_query(world: Scripted, expected: str) -> None:
    """Run the world to the end, and assert the expected outcome."""
    over = expected.startswith(("lost", "cut")) or expected == "dropped"
    if over:
        check(world, expected)
    else:
        world.run()
        assert world.failed is None
    assert world.reached_s is not None, "the step was never reached"
    assert world.now < 60.0, f"it took {world.now} s"
    assert world.delivered == right(world.dataflow, len(world.delivered))
    got = world.others[SINK]
    first = world.attached[1].first_index if 1 in world.attached else 0
    for place, (_, index, value) in enumerate(got):
        expected_value = (X, first + place, place, content(world.dataflow, "o", first + place))
        assert (index, value) == (first + place, expected_value)
    for name in set(world.names) - world.down:
        assert world.cores[name].runs == {}, f"{name} still has the run"
        assert not any(host == name for host, _ in world.combined), f"{name} still has code: {world.combined}"
    if over:
        return
    late_s = world.reached_s + world.last_s - 0.5
    assert (world.delivered_s[-1] >= late_s) == (expected != "alone")
    assert (bool(got) and got[-1][0] >= late_s) == (expected in ("begun", "alone"))
    assert (1 in world.attached) == (expected != "refused")
    assert world.queries_failed.keys() == {"refused": {1}, "failed": {1}, "alone": {0}}.get(expected, set())
    if expected == "left":
        assert got
        assert world.on(X) == set()
        assert X not in world.tree[0].by_name


def check_step(step: str, fault: str, expected: str, dataflow: Dataflow) -> None:
    target, happens = FAULTS[fault]
    when = {**ATTACH_STEPS, **DETACH_STEPS}[step]
    check_query(begin(Scripted(when, happens, dataflow=dataflow), target, leaves=step in DETACH_STEPS), expected)


CELLS = cells(ATTACH_DEATHS) + cells(DETACH_DEATHS) + cells(WORDS)
SOME = 4  # of so many cells one is tried with two consumers


@pytest.mark.parametrize(("step", "fault", "expected"), CELLS)
def test_a_fault_at_a_step_of_a_query_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    check_step(step, fault, expected, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize(("step", "fault", "expected"), CELLS[::SOME])
def test_a_fault_at_a_step_of_a_query_beside_two_consumers_has_the_expected_outcome(
    step: str, fault: str, expected: str
) -> None:
    check_step(step, fault, expected, GRAPH_DATAFLOW)


@pytest.mark.parametrize(("step", "what", "expected"), cells(MOVES))
def test_a_query_begins_or_leaves_while_an_operator_moves(step: str, what: str, expected: str) -> None:
    happens, name = {"attach": attach, "detach": detach}[what.split()[0]], what.split()[1]
    node, source, target = (X, "h4", "h6") if name == "x" else ("o", "h3", "h4")
    kind, _, phase = step.partition(": ")
    states = [state for state, _ in (LEAVING if kind == "leaving" else COMING) if state == phase]
    when = leaving(states[0], node, source) if kind == "leaving" else coming(states[0], node)
    world = Scripted(when, happens, dataflow=GRAPH_DATAFLOW)
    if happens is detach:
        begin(world, "h4")
    world.target = target
    world.at(LEAVES_S, source, HandOver(node, target))
    check_query(world, expected)
    assert name == "x" or world.on("o") == {"h4"}


@pytest.mark.parametrize("how", ["once", "for ever"])
@pytest.mark.parametrize("row", rows(LOSSES), ids=lambda row: f"{row['message']}-{row['from']}")
def test_a_lost_message_about_a_query_has_the_expected_outcome(row: dict[str, str], how: str) -> None:
    world = losing(row["message"], row["from"], for_ever=how == "for ever", dataflow=GRAPH_DATAFLOW)
    check_query(begin(world, "h4", leaves=row["message"].startswith("Detach")), row[how])


def test_a_query_behind_a_refused_query_begins_though_the_first_query_has_left() -> None:
    """The run's first query leaves while two queries are to begin, and stays until one of them has begun."""

    def ask(world: Scripted) -> None:
        attach(world)
        where = {**{node.name: node.pinned or "h3" for node in query().nodes}, "x": "h6"}
        world.attach(2, query(), where)
        world.detach(0)

    world = Scripted(lambda world: 2 in world.attached)
    world.errors[e.OpenNode] = ("h4", "no such code")
    world._schedule(BEGINS_S, ask, world)
    world.run()
    assert world.queries_failed[1] == "the query cannot begin: host 'h4': 'x~1' cannot run there: no such code"
    assert (world.failed, world.stalled, world.on("r")) == (None, False, set())
    assert len(world.others["u~2"]) > 20


def test_every_step_and_every_fault_has_a_cell() -> None:
    tables = ATTACH_DEATHS, DETACH_DEATHS, WORDS, MOVES
    attached, detached, all_of_them, moved = ({row["step"] for row in rows(table)} for table in tables)
    assert (attached, detached) == (ATTACH_STEPS.keys(), DETACH_STEPS.keys())
    assert all_of_them == attached | detached
    assert moved == {f"leaving: {step}" for step, _ in LEAVING} | {f"coming: {stage}" for stage, _ in COMING}
    for table in (ATTACH_DEATHS, DETACH_DEATHS):
        assert {*rows(table)[0], *rows(WORDS)[0]} == {"step", *FAULTS} - {"more shapes", "no bulk"}
    assert {cell[0] for cell in CELLS[::SOME]} == {cell[0] for cell in CELLS}
    assert {cell[1] for cell in CELLS[::SOME]} == {cell[1] for cell in CELLS}
