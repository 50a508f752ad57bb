"""The fault matrix: every step of both protocols, and every fault at that step, one cell a case.

Operator ``o`` is on h3 and is to move to h4, which holds nothing, or to h2, which holds source ``s2``. ``s1`` is on h1,
``o``'s consumer on h5, and h6 holds nothing. When a host is first seen in the step of a row, the fault of the column
happens. A cell gives the outcome:

- ``moved``, ``stayed`` (or ``to h6``): all partitions are delivered once and in order, also those after the fault
- ``lost h3``: the run ends with one line that says what host h3 holds and that it is silent
- ``dropped``: the client is dead, and every host forgets the run

After a refusal, a host cannot do a step any more. The target has no room or no code, accepts no state of that size, or
finds the state damaged. Or h3 cannot give the state, or sends none of that size. ``no bulk``: from the step on, no bulk
gets from h3 to the target except the bulk on its way, although control messages do.

The columns of the deaths name the host that dies. Its messages on the way are lost with it, except for ``h3 sent``.
``target`` is h4, whose loss is detected by its silence. In ``missed`` the loss is detected at once. ``h2`` is both the
target and a source's host.

Some deaths of both protocols are tried again in a run with failover. This run continues, or ends for the lost host of a
source.

A share of the cells of both protocols, from every row and every column, is tried again in a run in which ``o`` has two
consumers, ``r`` and ``q``. ``test_shape_matrix`` tries changes of the tree's shape.

In every cell no node is on two hosts at any time (``World``), the invariants of every core hold after every event, and
when the run is over no host that lives has anything left of it.
"""

from __future__ import annotations

import re

import msgspec
import pytest
from adversary import (
    GRAPH_DATAFLOW,
    PADDING,
    SCRIPTED_DATAFLOW,
    Scripted,
    right,
)
from matrix import (
    FAULTS,
    SHAPE_STEPS,
    STEPS,
    Then,
    begin,
    cells,
    check,
    losing,
    rows,
)

from thalweg.middleware.core.barrier.proposal import MEMBER, PROPOSAL
from thalweg.middleware.core.moving.handover import COMING, LEAVING
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

pytestmark = pytest.mark.matrix

SMALL = 8000  # bytes of a state that is sent inline

# --- the tables -------------------------------------------------------------------------------------

EPOCH_DEATHS = """
| step               | h3      | h3 sent | target  | missed  | h2      | client  | h1      | h5      | h6    |
|--------------------|---------|---------|---------|---------|---------|---------|---------|---------|-------|
| leaving: offered   | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| leaving: agreed    | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| leaving: suspended | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| leaving: sent      | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| leaving: committed | lost h3 | moved   | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | moved |
| coming: preparing  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| coming: prepared   | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| coming: restoring  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
| coming: restored   | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved |
"""

EPOCH_WORDS = """
| step               | another hand-over | more proposals | strangers | all twice | all late | no bulk |
|--------------------|-------------------|----------------|-----------|-----------|----------|---------|
| leaving: offered   | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaving: agreed    | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaving: suspended | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaving: sent      | moved             | moved          | moved     | moved     | moved    | moved   |
| leaving: committed | moved             | moved          | moved     | moved     | moved    | moved   |
| coming: preparing  | moved             | moved          | moved     | moved     | moved    | stayed  |
| coming: prepared   | moved             | moved          | moved     | moved     | moved    | stayed  |
| coming: restoring  | moved             | moved          | moved     | moved     | moved    | moved   |
| coming: restored   | moved             | moved          | moved     | moved     | moved    | moved   |
"""

BARRIER_DEATHS = """
| step               | h3      | h3 sent | target  | missed  | h2      | client  | h1      | h5      | h6     |
|--------------------|---------|---------|---------|---------|---------|---------|---------|---------|--------|
| change: proposed   | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| change: committed  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| change: aborted    | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | stayed |
| target: preparing  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| source: voted      | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| target: voted      | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| leaver: switching  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| source: free again | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| leaver: free again | moved   | moved   | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | moved  |
| leaving: suspended | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| leaving: sent      | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| leaving: committed | lost h3 | moved   | lost h4 | lost h4 | lost h2 | dropped | lost h1 | lost h5 | moved  |
| coming: restoring  | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
| coming: restored   | lost h3 | lost h3 | stayed  | stayed  | lost h2 | dropped | lost h1 | lost h5 | moved  |
"""

BARRIER_WORDS = """
| step               | another hand-over | more proposals | strangers | all twice | all late | no bulk |
|--------------------|-------------------|----------------|-----------|-----------|----------|---------|
| change: proposed   | to h6            | moved          | moved     | moved     | moved    | stayed  |
| change: committed  | moved             | moved          | moved     | moved     | moved    | stayed  |
| change: aborted    | stayed            | stayed         | stayed    | stayed    | stayed   | stayed  |
| target: preparing  | moved             | moved          | moved     | moved     | moved    | stayed  |
| source: voted      | to h6            | moved          | moved     | moved     | moved    | stayed  |
| target: voted      | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaver: switching  | moved             | moved          | moved     | moved     | moved    | stayed  |
| source: free again | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaver: free again | moved             | moved          | moved     | moved     | moved    | moved   |
| leaving: suspended | moved             | moved          | moved     | moved     | moved    | stayed  |
| leaving: sent      | moved             | moved          | moved     | moved     | moved    | moved   |
| leaving: committed | moved             | moved          | moved     | moved     | moved    | moved   |
| coming: restoring  | moved             | moved          | moved     | moved     | moved    | moved   |
| coming: restored   | moved             | moved          | moved     | moved     | moved    | moved   |
"""

# What a host cannot do any more from the step on, and why ``o`` stays if that is asked of it later.
EPOCH_REFUSALS = """
| step               | no room | no operator | no snapshot | too large | too large there | bad digest |
|--------------------|---------|-------------|-------------|-----------|-----------------|------------|
| leaving: offered   | stayed  | stayed      | stayed      | stayed    | stayed          | stayed     |
| leaving: agreed    | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| leaving: suspended | moved   | moved       | moved       | stayed    | stayed          | stayed     |
| leaving: sent      | moved   | moved       | moved       | moved     | stayed          | stayed     |
| leaving: committed | moved   | moved       | moved       | moved     | moved           | moved      |
| coming: preparing  | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| coming: prepared   | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| coming: restoring  | moved   | moved       | moved       | moved     | moved           | moved      |
| coming: restored   | moved   | moved       | moved       | moved     | moved           | moved      |
"""

BARRIER_REFUSALS = """
| step               | no room | no operator | no snapshot | too large | too large there | bad digest |
|--------------------|---------|-------------|-------------|-----------|-----------------|------------|
| change: proposed   | stayed  | stayed      | stayed      | stayed    | stayed          | stayed     |
| change: committed  | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| target: preparing  | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| source: voted      | stayed  | stayed      | stayed      | stayed    | stayed          | stayed     |
| target: voted      | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| leaver: switching  | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| source: free again | moved   | moved       | stayed      | stayed    | stayed          | stayed     |
| leaver: free again | moved   | moved       | moved       | moved     | moved           | moved      |
| leaving: suspended | moved   | moved       | moved       | stayed    | stayed          | stayed     |
| leaving: sent      | moved   | moved       | moved       | moved     | stayed          | stayed     |
| leaving: committed | moved   | moved       | moved       | moved     | moved           | moved      |
| coming: restoring  | moved   | moved       | moved       | moved     | moved           | moved      |
| coming: restored   | moved   | moved       | moved       | moved     | moved           | moved      |
"""

REFUSALS = {
    "no room": "it has room for 0 operators, and 0 are there or on their way",
    "no operator": "composite is not known",
    "no snapshot": "ValueError in snapshot",
    "too large": "its state has 8000 bytes; this host sends up to 7999",
    "too large there": "its state has 8000 bytes; host '{target}' takes up to 7999",
    "bad digest": "the state is damaged",
}

# What becomes of it when a message is lost the first time; and when, from then on, nothing gets through on that way.
LOSSES = """
| protocol | message   | from   | once   | for ever  |
|----------|-----------|--------|--------|-----------|
| epoch    | Offer     | h3     | moved  | stayed    |
| epoch    | Accept    | target | moved  | stayed    |
| epoch    | State     | h3     | moved  | stayed    |
| epoch    | Restored  | target | moved  | stayed    |
| epoch    | Located   | h3     | moved  | moved     |
| epoch    | Resumed   | target | moved  | moved     |
| epoch    | Demand    | target | moved  | cut h4 h1 |
| epoch    | Relocated | h3     | moved  | moved     |
| barrier  | Propose   | client | moved  | lost h1   |
| barrier  | Vote      | h1     | moved  | lost h1   |
| barrier  | Vote      | target | moved  | stayed    |
| barrier  | Commit    | client | moved  | lost h1   |
| barrier  | State     | h3     | moved  | stayed    |
| barrier  | Restored  | target | moved  | stayed    |
| barrier  | Located   | h3     | moved  | moved     |
| barrier  | Resumed   | target | moved  | moved     |
| barrier  | Demand    | target | moved  | cut h4 h1 |
| barrier  | Done      | h3     | moved  | moved     |
| aborted  | Abort     | client | stayed | lost h1   |
| aborted  | Done      | h1     | stayed | lost h1   |
| aborted  | Withdraw  | h3     | stayed | stayed    |
"""

# --- steps ------------------------------------------------------------------------------------------


def refuse(refusal: str) -> Then:
    """Return a fault after which a host refuses as ``refusal`` says."""

    def happens(world: Scripted) -> None:
        target, why = world.target, REFUSALS[refusal]
        match refusal:
            case "no room":
                world.limit(target, max_operators=0)
            case "too large":
                world.limit("h3", max_state_bytes=SMALL - 1)
            case "too large there":
                world.limit(target, max_state_bytes=SMALL - 1)
            case "no operator":
                world.errors[e.OpenNode] = (target, why)
            case "no snapshot":
                world.errors[e.TakeState] = ("h3", why)
            case "bad digest":
                world.errors[e.RestoreState] = (target, why)

    return happens


# --- cells ------------------------------------------------------------------------------------------


def check_cell(protocol: str, step: str, fault: str, expected: str, dataflow: Dataflow, depth: int = 1) -> None:
    target, happens = FAULTS[fault]
    world = begin(Scripted(STEPS[step], happens, dataflow=dataflow), protocol, target)
    world.depth = depth
    world.padding = PADDING if fault == "no bulk" else 1
    if step == "change: aborted":
        world.errors[e.OpenNode] = (target, "no such operator")
    check(world, expected)


EPOCH, BARRIER = cells(EPOCH_DEATHS) + cells(EPOCH_WORDS), cells(BARRIER_DEATHS) + cells(BARRIER_WORDS)
SOME = 5  # of so many cells one is tried with two consumers: some of every row, and all columns in turn


@pytest.mark.parametrize(("step", "fault", "expected"), EPOCH)
def test_a_fault_at_a_step_of_an_epoch_move_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    check_cell("epoch", step, fault, expected, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize(("step", "fault", "expected"), BARRIER)
def test_a_fault_at_a_step_of_a_barrier_has_the_expected_outcome(step: str, fault: str, expected: str) -> None:
    check_cell("barrier", step, fault, expected, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize(
    ("protocol", "step", "fault", "expected"),
    [*(("epoch", *cell) for cell in EPOCH[::SOME]), *(("barrier", *cell) for cell in BARRIER[::SOME])],
)
def test_a_fault_has_the_expected_outcome_with_several_partitions_under_way(
    protocol: str, step: str, fault: str, expected: str
) -> None:
    check_cell(protocol, step, fault, expected, SCRIPTED_DATAFLOW, depth=3)


class Lasting(Scripted):
    """A run with failover."""

    def _install(self) -> m.Install:
        return msgspec.structs.replace(super()._install(), failover=m.Failover(every=2, wait_s=2.0))


LASTING = [("epoch", *cell) for cell in cells(EPOCH_DEATHS)] + [("barrier", *cell) for cell in cells(BARRIER_DEATHS)]


@pytest.mark.parametrize(("protocol", "step", "fault"), [cell[:3] for cell in LASTING[::SOME] if cell[3] != "dropped"])
def test_a_run_with_failover_ends_only_for_the_loss_of_a_source(protocol: str, step: str, fault: str) -> None:
    target, happens = FAULTS[fault]
    world = begin(Lasting(STEPS[step], happens, last_s=10.0), protocol, target)
    if step == "change: aborted":
        world.errors[e.OpenNode] = (target, "no such operator")
    world.run()
    assert world.reached_s is not None, "the step was never reached"
    assert world.delivered == right(world.dataflow, len(world.delivered))
    for name in set(world.names) - world.down:
        assert not (world.cores[name].runs or world.cores[name].coordinator.led or world.hosts[name].code), name
    if fault in ("h1", "h2"):
        pattern = rf"host '{fault}', which holds [a-z0-9~, ]+, did not install the run within 3 s"
        assert re.fullmatch(pattern, world.failed or ""), world.failed
    else:
        assert world.failed is None
        assert world.delivered_s[-1] >= world.reached_s + world.last_s - 0.5, "the flow stands still"


@pytest.mark.parametrize(
    ("protocol", "step", "fault", "expected"),
    [("epoch", *cell) for cell in EPOCH[::SOME]] + [("barrier", *cell) for cell in BARRIER[::SOME]],
)
def test_a_fault_has_the_expected_outcome_with_two_consumers(
    protocol: str, step: str, fault: str, expected: str
) -> None:
    check_cell(protocol, step, fault, expected, GRAPH_DATAFLOW)


def check_refusal(world: Scripted, refusal: str, expected: str, protocol: str) -> None:
    """Check that a refusal is recorded once: with the proposal before the commit, else with the hand-over."""
    check(world, expected)
    whys = [row["why"] for row in world.proposals if row["outcome"] == "aborted"]
    whys += [row["detail"]["why"] for row in world.settled if row["detail"]["outcome"] == "stayed"]
    assert len(whys) == (expected == "stayed")
    assert all(REFUSALS[refusal].format(target=world.target) in why for why in whys)
    assert len(world.proposals) == (protocol == "barrier")
    if expected == "stayed" and refusal in ("no room", "no operator") and protocol == "barrier":
        assert world.settled == []
    else:
        assert len(world.settled) == 1


REFUSED = [("epoch", *cell) for cell in cells(EPOCH_REFUSALS)]
REFUSED += [("barrier", *cell) for cell in cells(BARRIER_REFUSALS)]


@pytest.mark.parametrize(
    ("protocol", "step", "refusal", "expected", "target", "dataflow"),
    [(*cell, target, SCRIPTED_DATAFLOW) for cell in REFUSED for target in ("h4", "h2")]
    + [(*cell, "h4", GRAPH_DATAFLOW) for cell in REFUSED[::SOME]],
)
def test_a_refusal_from_a_step_on_has_the_expected_outcome_and_record(
    protocol: str, step: str, refusal: str, expected: str, target: str, dataflow: Dataflow
) -> None:
    world = Scripted(STEPS[step], refuse(refusal), dataflow=dataflow)
    world.padding = SMALL
    check_refusal(begin(world, protocol, target), refusal, expected, protocol)


@pytest.mark.parametrize("padding", [1, PADDING], ids=["inline", "bulk"])
@pytest.mark.parametrize("target", ["h4", "h2"])
@pytest.mark.parametrize("protocol", ["epoch", "barrier"])
@pytest.mark.parametrize("refusal", [name for name in REFUSALS if not name.startswith("too large")])
def test_a_refusal_from_the_beginning_leaves_the_operator_in_place(
    refusal: str, protocol: str, target: str, padding: int
) -> None:
    world = Scripted(lambda world: bool(world.settled or world.proposals))
    world.padding = padding
    begin(world, protocol, target)
    refuse(refusal)(world)
    check_refusal(world, refusal, "stayed", protocol)


@pytest.mark.parametrize("protocol", ["epoch", "barrier"])
def test_an_operator_stays_if_the_target_does_not_accept_the_large_state(protocol: str) -> None:
    """The target uses no memory for the state, and h3 gives up in time."""
    world = Scripted(lambda world: bool(world.settled))
    world.padding = PADDING
    world.limit("h4", max_state_bytes=PADDING - 1)
    check(begin(world, protocol, "h4"), "stayed")
    (settled,) = world.settled
    assert (settled["size_bytes"], settled["detail"]["why"]) == (PADDING, "host 'h4' did not answer in 2 s")


LOST = pytest.mark.parametrize("row", rows(LOSSES), ids=lambda row: f"{row['protocol']}-{row['message']}-{row['from']}")


@pytest.mark.parametrize("padding", [1, PADDING], ids=["inline", "bulk"])
@pytest.mark.parametrize("how", ["once", "for ever"])
@LOST
def test_a_lost_message_has_the_expected_outcome(row: dict[str, str], how: str, padding: int) -> None:
    check_loss(row, how, padding, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize("how", ["once", "for ever"])
@LOST
def test_a_lost_message_has_the_expected_outcome_with_two_consumers(row: dict[str, str], how: str) -> None:
    check_loss(row, how, 1, GRAPH_DATAFLOW)


def check_loss(row: dict[str, str], how: str, padding: int, dataflow: Dataflow) -> None:
    world = losing(row["message"], row["from"], for_ever=how == "for ever", dataflow=dataflow)
    world.padding = padding
    if row["message"] == "Withdraw":
        world.errors[e.TakeState] = ("h3", "no")
    elif row["protocol"] == "aborted":
        world.errors[e.OpenNode] = ("h4", "no such operator")
    check(begin(world, row["protocol"], "h4"), row[how])


def test_a_run_ends_if_an_undelivered_tail_is_lost_with_the_old_host() -> None:
    """The last output was lost on the way and kept on h3. The consumer's demand for it finds h3 gone."""

    def leave(world: Scripted) -> None:
        world.kill("h3", last_words=True)

    world = Scripted(STEPS["leaving: committed"], leave)
    world.loses = lambda host, send: host == "h3" and isinstance(send.message, m.Partition) and send.message.index > 8
    begin(world, "epoch", "h4").run()
    assert world.failed is not None
    assert re.fullmatch(r"node 'o' on host 'h4': its partition 9 was on host 'h3', which went away", world.failed)
    assert len(world.delivered) == 9


def test_every_step_before_the_end_of_every_table_has_a_row() -> None:
    """``MemberState.FREE`` occurs before and after a proposal. ``change: proposed`` occurs before the commit."""
    epoch, barrier = ({row["step"] for row in rows(table)} for table in (EPOCH_DEATHS, BARRIER_DEATHS))
    assert epoch == {f"leaving: {step}" for step, _ in LEAVING} | {f"coming: {stage}" for stage, _ in COMING}
    every = barrier | SHAPE_STEPS.keys()
    assert {f"change: {phase}" for phase, _ in PROPOSAL} <= every
    assert {step.split(": ")[1].removesuffix(" again") for step in every} >= {part.value for part, _ in MEMBER}
    for deaths, words, refusals in (
        (EPOCH_DEATHS, EPOCH_WORDS, EPOCH_REFUSALS),
        (BARRIER_DEATHS, BARRIER_WORDS, BARRIER_REFUSALS),
    ):
        assert [row["step"] for row in rows(deaths)] == [row["step"] for row in rows(words)]
        assert {name for table in (deaths, words) for name in rows(table)[0]} == {"step", *FAULTS} - {"more shapes"}
        assert set(rows(refusals)[0]) == {"step", *REFUSALS}
        steps = [row["step"] for row in rows(deaths) if row["step"] != "change: aborted"]  # which a refusal has made
        assert [row["step"] for row in rows(refusals)] == steps
        for table_cells in (cells(deaths) + cells(words), cells(refusals)):  # with two consumers
            assert {cell[0] for cell in table_cells[::SOME]} == {cell[0] for cell in table_cells}
            assert {cell[1] for cell in table_cells[::SOME]} == {cell[1] for cell in table_cells}
