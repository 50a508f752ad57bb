"""The fault matrix (``test_fault_matrix``) of a change of the tree's shape.

``o`` and its consumer ``r`` are free, and one operator ``n`` on ``target`` replaces both. A cell says that the tree is
``reshaped`` or has ``stayed``. When h3 has only nodes of the old tree that are done, it may die. The outcomes are the
same if ``o`` and ``r`` have states, which ``n`` inherits. ``heir`` is the host that waits for these states. If a cell
has two outcomes with a slash between them, the second holds for a state that travels as bulk. ``no way``: the run ends
with one line that says so.
"""

from __future__ import annotations

import re

import pytest
from adversary import (
    BEGINS_S,
    CLIENT,
    FREE,
    FREE_DATAFLOW,
    MERGING,
    MERGING_DATAFLOW,
    PADDING,
    Scripted,
    another_tree,
    right,
)
from matrix import FAULTS, SHAPE_STEPS, When, cells, check, losing, rows
from run_ids import R

from thalweg.middleware.core.reshaping.inheritance import Inheritance
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

pytestmark = pytest.mark.matrix

SMALL = 8000  # bytes of a state that is sent inline

SHAPE_DEATHS = """
| step               | h3       | h3 sent  | target  | missed  | h2      | client  | h1      | h5       | h6       |
|--------------------|----------|----------|---------|---------|---------|---------|---------|----------|----------|
| change: proposed   | lost h3  | lost h3  | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| change: committed  | lost h3  | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| change: retiring   | reshaped | reshaped | lost h4 | lost h4 | lost h2 | dropped | lost h1 | reshaped | reshaped |
| target: preparing  | lost h3  | lost h3  | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| source: voted      | lost h3  | lost h3  | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| target: voted      | lost h3  | lost h3  | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| old: voted         | lost h3  | lost h3  | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| source: both trees | lost h3  | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| target: both trees | lost h3  | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| old: both trees    | lost h3  | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5  | reshaped |
| source: free again | reshaped | reshaped | lost h4 | lost h4 | lost h2 | dropped | lost h1 | reshaped | reshaped |
| target: free again | reshaped | reshaped | lost h4 | lost h4 | lost h2 | dropped | lost h1 | reshaped | reshaped |
| old: free again    | reshaped | reshaped | lost h4 | lost h4 | lost h2 | dropped | lost h1 | reshaped | reshaped |
"""

SHAPE_WORDS = """
| step               | another hand-over | more shapes | strangers | all twice | all late |
|--------------------|-------------------|-------------|-----------|-----------|----------|
| change: proposed   | to h6             | to h6       | reshaped  | reshaped  | reshaped |
| change: committed  | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| change: retiring   | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| target: preparing  | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| source: voted      | to h6             | to h6       | reshaped  | reshaped  | reshaped |
| target: voted      | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| old: voted         | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| source: both trees | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| target: both trees | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| old: both trees    | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| source: free again | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| target: free again | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
| old: free again    | reshaped          | to h6       | reshaped  | reshaped  | reshaped |
"""

# The same where states are to be merged: when a host waits for them, or has sent them.
STATE_DEATHS = """
| step            | h3      | h3 sent  | target  | missed  | h2      | client  | h1      | h5      | h6       |
|-----------------|---------|----------|---------|---------|---------|---------|---------|---------|----------|
| heir: waiting   | lost h3 | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | reshaped |
| heir: one state | lost h3 | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | reshaped |
| old: state sent | lost h3 | lost h3  | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | reshaped |
"""

STATE_WORDS = """
| step            | another hand-over | more shapes | strangers | all twice | all late | no bulk         |
|-----------------|-------------------|-------------|-----------|-----------|----------|-----------------|
| heir: waiting   | reshaped          | to h6       | reshaped  | reshaped  | reshaped | reshaped/no way |
| heir: one state | reshaped          | to h6       | reshaped  | reshaped  | reshaped | reshaped        |
| old: state sent | reshaped          | to h6       | reshaped  | reshaped  | reshaped | reshaped        |
"""

SHAPE_REFUSALS = """
| step               | no room  | no operator | not free |
|--------------------|----------|-------------|----------|
| before             | stayed   | stayed      | stayed   |
| change: proposed   | stayed   | stayed      | stayed   |
| source: voted      | stayed   | stayed      | stayed   |
| target: preparing  | reshaped | reshaped    | reshaped |
| target: voted      | reshaped | reshaped    | reshaped |
| change: committed  | reshaped | reshaped    | reshaped |
"""

# (The way of a demand is the new tree's, which cannot be without it.)
SHAPE_LOSSES = """
| message | from   | once     | for ever  |
|---------|--------|----------|-----------|
| Propose | client | reshaped | lost h1   |
| Vote    | h1     | reshaped | lost h1   |
| Vote    | target | reshaped | stayed    |
| Commit  | client | reshaped | lost h1   |
| Done    | h3     | reshaped | lost h3   |
| Done    | target | reshaped | lost h4   |
| Retire  | client | reshaped | lost h1   |
| Demand  | target | reshaped | cut h4 h2 |
"""

STATE_LOSSES = """
| message        | from   | once     | for ever  |
|----------------|--------|----------|-----------|
| InheritedState | h3     | reshaped | cut h4 h3 |
| StateRequest   | target | reshaped | cut h4 h3 |
| Done           | target | reshaped | lost h4   |
| Retire         | client | reshaped | lost h1   |
"""


def waiting(states: int) -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(world.target)
        heir = run.parts.get(Inheritance).heirs.get("n~1") if run is not None else None
        return heir is not None and heir.appeared and len(heir.states) == states

    return reached


def state_taken(world: Scripted) -> bool:
    run = world.run_at("h3")
    return (
        run is not None
        and "o" in run.parts.get(Inheritance).legacies
        and run.parts.get(Inheritance).legacies["o"].message is not None
    )


STATE_STEPS: dict[str, When] = {
    "heir: waiting": waiting(0),
    "heir: one state": waiting(1),
    "old: state sent": state_taken,
}


# --- cells ---------------------------------------------------------------------------------------------


def begin_shape(world: Scripted, target: str) -> Scripted:
    """Replace ``o`` and ``r`` by ``n`` on ``target``."""
    world.target = target
    tree = another_tree("n", world.dataflow.by_name["o"].code)
    return world.at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"n": target}, "a test", tree, (FREE, MERGING)))


def check_shape(world: Scripted, expected: str) -> None:
    """Run the world to the end. Assert the expected outcome and a single tree on all hosts."""
    if expected.startswith(("lost", "cut")) or expected == "dropped":
        check(world, expected)
        return
    world.run()
    assert world.reached_s is not None, "the step was never reached"
    assert world.failed is None
    assert world.delivered == right(world.dataflow, len(world.delivered))
    assert world.delivered_s[-1] >= world.reached_s + world.last_s - 0.5, "the flow stands still"
    assert not any(host not in world.down for host, _ in world.combined)
    operators = {name: world.on(name) for name in ("o", "r", *(f"{n}~{i}" for n in "npq" for i in (1, 2)))}
    placed = {name: hosts for name, hosts in operators.items() if hosts}
    outcomes = [row["outcome"] for row in world.reshaped]
    if expected == "reshaped":
        assert (placed, outcomes[:1]) == ({"n~1": {world.target}}, ["reshaped"])
    elif expected == "stayed":
        assert (placed, outcomes[-1:]) == ({"o": {"h3"}, "r": {"h5"}}, ["stayed"])
    else:  # o went to h6 before, or another shape came after
        assert placed in ({"o": {"h6"}, "r": {"h5"}}, {"q~2": {"h6"}})


@pytest.mark.parametrize("dataflow", [FREE_DATAFLOW, MERGING_DATAFLOW], ids=["plain", "merging"])
@pytest.mark.parametrize(("step", "fault", "expected"), cells(SHAPE_DEATHS) + cells(SHAPE_WORDS))
def test_a_fault_at_a_step_of_a_reshaping_has_the_expected_outcome(
    step: str, fault: str, expected: str, dataflow: Dataflow
) -> None:
    target, happens = FAULTS[fault]
    check_shape(begin_shape(Scripted(SHAPE_STEPS[step], happens, dataflow=dataflow), target), expected)


@pytest.mark.parametrize(("step", "fault", "expected"), (cells(SHAPE_DEATHS) + cells(SHAPE_WORDS))[::5])
def test_a_fault_has_the_expected_outcome_with_several_partitions_under_way(
    step: str, fault: str, expected: str
) -> None:
    target, happens = FAULTS[fault]
    world = begin_shape(Scripted(SHAPE_STEPS[step], happens, dataflow=MERGING_DATAFLOW), target)
    world.depth = 3
    check_shape(world, expected)


def check_states(world: Scripted, expected: str) -> None:
    if expected != "no way":
        check_shape(world, expected)
        return
    world.last_s = 30.0
    world.run()
    assert world.failed == "node 'o' on host 'h3': its state has not got to host 'h4' for 6 s"
    assert world.delivered == right(world.dataflow, len(world.delivered))
    assert all(core.runs == {} for core in world.cores.values())


@pytest.mark.parametrize("padding", [1, PADDING], ids=["inline", "bulk"])
@pytest.mark.parametrize(("step", "fault", "expected"), cells(STATE_DEATHS) + cells(STATE_WORDS))
def test_a_fault_during_the_merging_of_states_has_the_expected_outcome(
    step: str, fault: str, expected: str, padding: int
) -> None:
    target, happens = FAULTS[fault]
    world = Scripted(STATE_STEPS[step], happens, dataflow=MERGING_DATAFLOW)
    world.padding = padding
    expected = expected.split("/")[-1 if padding == PADDING else 0]
    check_states(begin_shape(world, target), expected)
    if expected == "reshaped":
        (merged,) = world.merged
        assert (merged["node"], sorted(merged["detail"]["of"])) == ("n~1", ["o", "r"])


@pytest.mark.parametrize("padding", [1, PADDING], ids=["inline", "bulk"])
@pytest.mark.parametrize(
    ("message", "sender", "how", "expected"),
    [(row["message"], row["from"], how, row[how]) for row in rows(STATE_LOSSES) for how in ("once", "for ever")],
)
def test_a_lost_message_about_states_has_the_expected_outcome(
    message: str, sender: str, how: str, expected: str, padding: int
) -> None:
    world = losing(message, sender, for_ever=how == "for ever", dataflow=MERGING_DATAFLOW)
    world.padding = padding
    if message == "StateRequest":  # there is one where a state is lost
        loses, lost = world.loses, []

        def loses_both(host: str, send: e.Send) -> bool:
            if not lost and isinstance(send.message, m.InheritedState) and host == "h3":
                lost.append(send)
                return True
            return loses is not None and loses(host, send)

        world.loses = loses_both
    check_states(begin_shape(world, "h4"), expected.split("/")[-1 if padding == PADDING else 0])


@pytest.mark.parametrize("padding", [1, SMALL, PADDING], ids=["tiny", "inline", "bulk"])
@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("no snapshot", "node 'o' on host 'h3': ValueError in snapshot"),
        ("too large", "node 'o' on host 'h3': its state has {size} bytes; this host sends up to 100"),
        ("no merge", "node 'n~1' on host 'h4': the states of r, o cannot be merged: ValueError in merge"),
    ],
)
def test_a_state_that_cannot_be_inherited_ends_the_run(what: str, line: str, padding: int) -> None:
    """The run ends although the first reports of the failure are lost."""
    world = Scripted(lambda world: world.failed is not None, dataflow=MERGING_DATAFLOW)
    words: list[str] = []

    def loses(host: str, send: e.Send) -> bool:
        words.extend(["Failed"] * isinstance(send.message, m.Failed))
        return isinstance(send.message, m.Failed) and len(words) < 3

    world.loses, world.padding = loses, max(padding, 101) if what == "too large" else padding
    match what:
        case "no snapshot":
            world.errors[e.TakeState] = ("h3", "ValueError in snapshot")
        case "too large":
            world.limit("h3", max_state_bytes=100)
        case "no merge":
            world.errors[e.MergeStates] = ("h4", "ValueError in merge")
    begin_shape(world, "h4").run()
    assert world.failed is not None
    assert re.fullmatch(re.escape(line).replace(re.escape("{size}"), "[0-9]+"), world.failed), world.failed
    assert world.delivered == right(world.dataflow, len(world.delivered))
    assert all(core.runs == {} for core in world.cores.values())


@pytest.mark.parametrize("target", ["h4", "h2"])
@pytest.mark.parametrize(("step", "refusal", "expected"), cells(SHAPE_REFUSALS))
def test_a_refused_reshaping_has_the_expected_outcome_at_every_step(
    step: str, refusal: str, expected: str, target: str
) -> None:
    whys = {
        "no room": "it has room for 0 operators, 0 are there or on their way, and 1 more would be",
        "no operator": "'n~1' cannot run there: composite is not known",
        "not free": "'n~1' cannot run there: 'free' is not reorderable",
    }

    def happens(world: Scripted) -> None:
        if refusal == "no room":
            world.limit(target, max_operators=0)
        else:
            world.errors[e.OpenNode] = (target, whys[refusal].partition(": ")[2])

    if step == "before":
        world = Scripted(lambda world: bool(world.reshaped), dataflow=FREE_DATAFLOW)
        happens(world)
    else:
        world = Scripted(SHAPE_STEPS[step], happens, dataflow=FREE_DATAFLOW)
    check_shape(begin_shape(world, target), expected)
    assert [row["why"] for row in world.reshaped] == [f"host {target!r}: {whys[refusal]}" * (expected == "stayed")]


@pytest.mark.parametrize(
    ("message", "sender", "how", "expected"),
    [(row["message"], row["from"], how, row[how]) for row in rows(SHAPE_LOSSES) for how in ("once", "for ever")],
)
def test_a_lost_message_of_a_reshaping_has_the_expected_outcome(
    message: str, sender: str, how: str, expected: str
) -> None:
    world = losing(message, sender, for_ever=how == "for ever", dataflow=FREE_DATAFLOW)
    check_shape(begin_shape(world, "h4"), expected)


def test_every_step_has_a_row() -> None:
    assert {row["step"] for row in rows(SHAPE_DEATHS)} == {*SHAPE_STEPS} == {row["step"] for row in rows(SHAPE_WORDS)}
    assert set(STATE_STEPS) == {row["step"] for row in rows(STATE_DEATHS)} == {row["step"] for row in rows(STATE_WORDS)}
