"""The fault matrix: every step of both protocols, and everything that can go wrong just then, one cell a case.

Operator ``o`` is on h3 and is to go to h4, which holds nothing, or to h2, which holds source ``s2``; ``s1`` is on h1,
``o``'s consumer on h5, and h6 holds nothing either. When a host is first seen in the step of a row, the fault of the
column happens. A cell says what becomes of it:

- ``moved``, ``stayed`` (or ``to h6``): all partitions are delivered once and in order, also those after the fault
- ``lost h3``: the run ends with one line that says what host h3 holds and that it is silent
- ``dropped``: the client is dead, and every host forgets the run

A refusal is what a host cannot do from then on: the target has no room, or not the code, or takes no state of that
size, or finds it damaged; h3 cannot tell the state, or sends none of that size. ``no bulk``: from then on nothing comes
from h3 to the target as bulk, but for what is on its way, though all that is control does.

The columns of the deaths name the host that dies: its messages on the way are lost with it, but for ``h3 sent``;
``target`` is h4 and found out by its silence, ``missed`` at once, and ``h2`` is the target as well.

Another shape: ``o`` and its consumer ``r`` are free, and one operator ``n`` takes the place of both, on ``target``. A
cell says then that the tree is ``reshaped`` or has ``stayed``; when h3 has only what is gone, it may die. All of that
is the same where ``o`` and ``r`` have states, which ``n`` takes over; ``heir`` is its host, which waits for them. Of
two outcomes with a slash between them the second is that of a state which travels as bulk; ``no way``: the run ends
with one line that says so.

Where the run outlives its hosts, some deaths of both protocols are tried once more: it goes on, or ends for a source's
host that is waited for.

Some cells of every row of both protocols, of all columns in turn, are tried once more where ``o`` has two consumers,
``r`` and ``q``; only trees change their shape.

In every cell no node is on two hosts at any time (``World``), the invariants of every core hold after every event, and
when the run is over no host that lives has anything left of it.
"""

from __future__ import annotations

import re

import pytest
from adversary import (
    BEGINS_S,
    CLIENT,
    FREE,
    FREE_DATAFLOW,
    GRAPH_DATAFLOW,
    MERGING,
    MERGING_DATAFLOW,
    PADDING,
    SCRIPTED_DATAFLOW,
    Scripted,
    another_tree,
    right,
)
from matrix import (
    FAULTS,
    STEPS,
    Then,
    When,
    begin,
    cells,
    changing,
    check,
    losing,
    member,
    rows,
)

from thalweg.middleware.core.relocation.handover import COMING, LEAVING
from thalweg.middleware.core.relocation.proposal import MEMBER, PROPOSAL, MemberState, ProposalState
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

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
| message | from   | once     | for ever         |
|---------|--------|----------|------------------|
| State   | h3     | reshaped | cut h4 h3/no way |
| Claim   | target | reshaped | cut h4 h3        |
| Done    | target | reshaped | lost h4          |
| Retire  | client | reshaped | lost h1          |
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


SHAPE_STEPS: dict[str, When] = {
    **{
        f"change: {phase}": changing(phase)
        for phase in (ProposalState.PROPOSED, ProposalState.COMMITTED, ProposalState.RETIRING)
    },
    "target: preparing": member("target", MemberState.PREPARING),
    **{
        f"{who}: {name}": member(host, part)
        for who, host in (("source", "h1"), ("target", "target"), ("old", "h3"))
        for name, part in (
            ("voted", MemberState.VOTED),
            ("both trees", MemberState.BOTH),
            ("free again", MemberState.FREE),
        )
    },
}


def waiting(states: int) -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(world.target)
        heir = run.inheritance.heirs.get("n~1") if run is not None else None
        return heir is not None and heir.appeared and len(heir.states) == states

    return reached


def state_taken(world: Scripted) -> bool:
    run = world.run_at("h3")
    return run is not None and "o" in run.inheritance.legacies and run.inheritance.legacies["o"].taken is not None


STATE_STEPS: dict[str, When] = {
    "heir: waiting": waiting(0),
    "heir: one state": waiting(1),
    "old: state sent": state_taken,
}


def refuse(refusal: str) -> Then:
    """From then on a host cannot do that."""

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


def check_cell(protocol: str, step: str, fault: str, expected: str, dataflow: Dataflow) -> None:
    target, happens = FAULTS[fault]
    world = begin(Scripted(STEPS[step], happens, dataflow=dataflow), protocol, target)
    world.padding = PADDING if fault == "no bulk" else 1
    if step == "change: aborted":
        world.errors[e.OpenNode] = (target, "no such operator")
    check(world, expected)


EPOCH, BARRIER = cells(EPOCH_DEATHS) + cells(EPOCH_WORDS), cells(BARRIER_DEATHS) + cells(BARRIER_WORDS)
SOME = 5  # of so many cells one is tried with two consumers: some of every row, and all columns in turn


@pytest.mark.parametrize(("step", "fault", "expected"), EPOCH)
def test_epoch(step: str, fault: str, expected: str) -> None:
    check_cell("epoch", step, fault, expected, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize(("step", "fault", "expected"), BARRIER)
def test_barrier(step: str, fault: str, expected: str) -> None:
    check_cell("barrier", step, fault, expected, SCRIPTED_DATAFLOW)


class Lasting(Scripted):
    """The run outlives its hosts."""

    def _install(self) -> m.Install:
        return m.Lasting.of(super()._install(), m.Failover(every=2, wait_s=2.0))


LASTING = [("epoch", *cell) for cell in cells(EPOCH_DEATHS)] + [("barrier", *cell) for cell in cells(BARRIER_DEATHS)]


@pytest.mark.parametrize(("protocol", "step", "fault"), [cell[:3] for cell in LASTING[::SOME] if cell[3] != "dropped"])
def test_a_run_that_outlives_its_hosts_ends_only_for_a_source(protocol: str, step: str, fault: str) -> None:
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
        said = rf"host '{fault}', which holds [a-z0-9~, ]+, did not install the run within 3 s"
        assert re.fullmatch(said, world.failed or ""), world.failed
    else:
        assert world.failed is None
        assert world.delivered_s[-1] >= world.reached_s + world.last_s - 0.5, "the flow stands still"


@pytest.mark.parametrize(
    ("protocol", "step", "fault", "expected"),
    [("epoch", *cell) for cell in EPOCH[::SOME]] + [("barrier", *cell) for cell in BARRIER[::SOME]],
)
def test_two_consumers(protocol: str, step: str, fault: str, expected: str) -> None:
    check_cell(protocol, step, fault, expected, GRAPH_DATAFLOW)


def check_refusal(world: Scripted, refusal: str, expected: str, protocol: str) -> None:
    """A refusal is recorded once: in the proposal if it comes before the commit, else with the hand-over."""
    check(world, expected)
    whys = [each["why"] for each in world.proposals if each["outcome"] == "aborted"]
    whys += [each["detail"]["why"] for each in world.settled if each["detail"]["outcome"] == "stayed"]
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
def test_refusals_from_a_step_on(
    protocol: str, step: str, refusal: str, expected: str, target: str, dataflow: Dataflow
) -> None:
    world = Scripted(STEPS[step], refuse(refusal), dataflow=dataflow)
    world.padding = SMALL
    check_refusal(begin(world, protocol, target), refusal, expected, protocol)


@pytest.mark.parametrize("padding", [1, PADDING], ids=["inline", "bulk"])
@pytest.mark.parametrize("target", ["h4", "h2"])
@pytest.mark.parametrize("protocol", ["epoch", "barrier"])
@pytest.mark.parametrize("refusal", [name for name in REFUSALS if not name.startswith("too large")])
def test_refusals_from_the_beginning(refusal: str, protocol: str, target: str, padding: int) -> None:
    world = Scripted(lambda world: bool(world.settled or world.proposals))
    world.padding = padding
    begin(world, protocol, target)
    refuse(refusal)(world)
    check_refusal(world, refusal, "stayed", protocol)


@pytest.mark.parametrize("protocol", ["epoch", "barrier"])
def test_a_large_state_that_the_target_does_not_let_in_stays(protocol: str) -> None:
    """It takes no memory for it, and h3 gives up in time."""
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
def test_losses(row: dict[str, str], how: str, padding: int) -> None:
    check_loss(row, how, padding, SCRIPTED_DATAFLOW)


@pytest.mark.parametrize("how", ["once", "for ever"])
@LOST
def test_losses_with_two_consumers(row: dict[str, str], how: str) -> None:
    check_loss(row, how, 1, GRAPH_DATAFLOW)


def check_loss(row: dict[str, str], how: str, padding: int, dataflow: Dataflow) -> None:
    world = losing(row["message"], row["from"], for_ever=how == "for ever", dataflow=dataflow)
    world.padding = padding
    if row["message"] == "Withdraw":
        world.errors[e.TakeState] = ("h3", "no")
    elif row["protocol"] == "aborted":
        world.errors[e.OpenNode] = ("h4", "no such operator")
    check(begin(world, row["protocol"], "h4"), row[how])


def test_the_last_output_may_die_with_the_host_an_operator_has_left() -> None:
    """It was lost on its way, h3 kept it, and the consumer's demand for it finds h3 gone."""

    def leave(world: Scripted) -> None:
        world.kill("h3", last_words=True)

    world = Scripted(STEPS["leaving: committed"], leave)
    world.loses = lambda host, send: host == "h3" and isinstance(send.message, m.Partition) and send.message.index > 8
    begin(world, "epoch", "h4").run()
    assert world.failed is not None
    assert re.fullmatch(r"node 'o' on host 'h4': its partition 9 was on host 'h3', which went away", world.failed)
    assert len(world.delivered) == 9


# --- another shape ------------------------------------------------------------------------------------


def begin_shape(world: Scripted, target: str) -> Scripted:
    """Have ``n`` on ``target`` take the place of ``o`` and ``r``."""
    world.target = target
    tree = another_tree("n", world.dataflow.by_name["o"].code)
    return world.at(BEGINS_S, CLIENT, e.PlacementProposed("r", {"n": target}, "a test", tree, (FREE, MERGING)))


def check_shape(world: Scripted, expected: str) -> None:
    """Run the world to its end, which has to be as expected, with one tree on all hosts."""
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
    there = {name: hosts for name, hosts in operators.items() if hosts}
    outcomes = [each["outcome"] for each in world.reshaped]
    if expected == "reshaped":
        assert (there, outcomes[:1]) == ({"n~1": {world.target}}, ["reshaped"])
    elif expected == "stayed":
        assert (there, outcomes[-1:]) == ({"o": {"h3"}, "r": {"h5"}}, ["stayed"])
    else:  # o went to h6 before, or another shape came after
        assert there in ({"o": {"h6"}, "r": {"h5"}}, {"q~2": {"h6"}})


@pytest.mark.parametrize("dataflow", [FREE_DATAFLOW, MERGING_DATAFLOW], ids=["plain", "merging"])
@pytest.mark.parametrize(("step", "fault", "expected"), cells(SHAPE_DEATHS) + cells(SHAPE_WORDS))
def test_shape(step: str, fault: str, expected: str, dataflow: Dataflow) -> None:
    target, happens = FAULTS[fault]
    check_shape(begin_shape(Scripted(SHAPE_STEPS[step], happens, dataflow=dataflow), target), expected)


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
def test_states(step: str, fault: str, expected: str, padding: int) -> None:
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
def test_state_losses(message: str, sender: str, how: str, expected: str, padding: int) -> None:
    world = losing(message, sender, for_ever=how == "for ever", dataflow=MERGING_DATAFLOW)
    world.padding = padding
    if message == "Claim":  # there is one where a state is lost
        loses, lost = world.loses, []

        def loses_both(host: str, send: e.Send) -> bool:
            if not lost and isinstance(send.message, m.State) and host == "h3":
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
def test_a_state_that_cannot_be_taken_over_ends_the_run(what: str, line: str, padding: int) -> None:
    """However often the word that it cannot is lost."""
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
def test_shape_refusals(step: str, refusal: str, expected: str, target: str) -> None:
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
    assert [each["why"] for each in world.reshaped] == [f"host {target!r}: {whys[refusal]}" * (expected == "stayed")]


@pytest.mark.parametrize(
    ("message", "sender", "how", "expected"),
    [(row["message"], row["from"], how, row[how]) for row in rows(SHAPE_LOSSES) for how in ("once", "for ever")],
)
def test_shape_losses(message: str, sender: str, how: str, expected: str) -> None:
    world = losing(message, sender, for_ever=how == "for ever", dataflow=FREE_DATAFLOW)
    check_shape(begin_shape(world, "h4"), expected)


def test_every_step_before_the_end_of_every_table_has_its_row() -> None:
    """``MemberState.FREE`` is before and after; ``change: proposed`` is before."""
    epoch, barrier = ({row["step"] for row in rows(table)} for table in (EPOCH_DEATHS, BARRIER_DEATHS))
    assert epoch == {f"leaving: {step}" for step, _ in LEAVING} | {f"coming: {stage}" for stage, _ in COMING}
    shape = {row["step"] for row in rows(SHAPE_DEATHS)}
    assert {f"change: {phase}" for phase, _ in PROPOSAL} <= barrier | shape
    steps_of_members = {step.split(": ")[1].removesuffix(" again") for step in barrier | shape}
    assert steps_of_members >= {part.value for part, _ in MEMBER}
    assert shape == set(SHAPE_STEPS) == {row["step"] for row in rows(SHAPE_WORDS)}
    assert set(STATE_STEPS) == {row["step"] for row in rows(STATE_DEATHS)} == {row["step"] for row in rows(STATE_WORDS)}
    for deaths, words, refusals in (
        (EPOCH_DEATHS, EPOCH_WORDS, EPOCH_REFUSALS),
        (BARRIER_DEATHS, BARRIER_WORDS, BARRIER_REFUSALS),
    ):
        assert [row["step"] for row in rows(deaths)] == [row["step"] for row in rows(words)]
        assert {name for table in (deaths, words) for name in rows(table)[0]} == {"step", *FAULTS} - {"more shapes"}
        assert set(rows(refusals)[0]) == {"step", *REFUSALS}
        steps = [row["step"] for row in rows(deaths) if row["step"] != "change: aborted"]  # which a refusal has made
        assert [row["step"] for row in rows(refusals)] == steps
        for some in (cells(deaths) + cells(words), cells(refusals)):  # with two consumers
            assert {cell[0] for cell in some[::SOME]} == {cell[0] for cell in some}
            assert {cell[1] for cell in some[::SOME]} == {cell[1] for cell in some}
