"""Common parts of the fault matrices: the steps at which a fault happens, the faults, and the expected results.

``test_fault_matrix`` explains the words for moves and shapes, and ``test_query_matrix`` the words for queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from adversary import (
    BEGINS_S,
    CLIENT,
    FREE,
    FREE_DATAFLOW,
    MERGING,
    MERGING_DATAFLOW,
    MESSAGE_S,
    SCRIPTED_DATAFLOW,
    Scripted,
    another_tree,
    right,
)
from playbook import HandOver
from run_ids import R, run_of

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.barrier.proposal import PROPOSAL, MemberState, ProposalState
from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.moving.arrivals import Arrivals
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.moving.handover import COMING, LEAVING, ArrivalState, DepartureState
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

When = Callable[[Scripted], bool]
Then = Callable[[Scripted], None]

# --- steps ---


def leaving(step: DepartureState, node: str = "o", host: str = "h3") -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(host)
        return (
            run is not None
            and node in run.parts.get(Departures).leaving
            and run.parts.get(Departures).leaving[node].state is step
        )

    return reached


def coming(stage: ArrivalState, node: str = "o") -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(world.target)
        return (
            run is not None
            and node in run.parts.get(Arrivals).coming
            and run.parts.get(Arrivals).coming[node].state is stage
        )

    return reached


def changing(phase: ProposalState) -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(CLIENT)
        return (
            run is not None
            and run.parts.get(Proposer).proposal is not None
            and run.parts.get(Proposer).proposal.state is phase
        )

    return reached


def member(who: str, part: MemberState) -> When:
    def reached(world: Scripted) -> bool:
        run = world.run_at(world.target if who == "target" else who)
        return run is not None and run.parts.get(Member).number == 1 and run.parts.get(Member).state is part

    return reached


STEPS: dict[str, When] = {
    **{f"leaving: {step}": leaving(step) for step, _ in LEAVING},
    **{f"coming: {stage}": coming(stage) for stage, _ in COMING},
    **{f"change: {phase}": changing(phase) for phase, _ in PROPOSAL if phase is not ProposalState.RETIRING},
    "target: preparing": member("target", MemberState.PREPARING),
    "source: voted": member("h1", MemberState.VOTED),
    "target: voted": member("target", MemberState.VOTED),
    "leaver: switching": member("h3", MemberState.SWITCHING),
    "source: free again": member("h1", MemberState.FREE),
    "leaver: free again": member("h3", MemberState.FREE),
}

# --- faults -----------------------------------------------------------------------------------------


def strangers(world: Scripted) -> None:
    """Send messages of another run's coordinator, of hosts without a part in the run, and about past moves."""
    move = m.Move("o", "h3", "h6", 1)
    for host in world.names:
        for run in (R, run_of("old")):
            for sender in ("h9", "h6" if host != "h6" else "h4"):
                if sender == "h9" or run != R:  # a host of the run may pass a proposal on
                    world.tell(host, sender, m.Propose(run, 99, (move,)))
                for number in (0, 1, 99):
                    world.tell(host, sender, m.Commit(run, number, 3, (move,)))
                    world.tell(host, sender, m.Abort(run, number))
                world.tell(host, sender, m.Propose(run, 0, (move,)))
                world.tell(host, sender, m.Lost(run, "h3", ()))
                for version in (0, 1):
                    for kind in (m.Accept, m.Restored, m.Withdraw, m.Resumed):
                        world.tell(host, sender, kind(run, "o", version))
                    world.tell(host, sender, m.Refuse(run, "o", version, "no"))


def another_hand_over(world: Scripted) -> None:
    """Begin a second hand-over of the same operator, to h6, while the first is under way."""
    world.ahead("h3", HandOver("o", "h6", "meanwhile"))


def more_proposals(world: Scripted) -> None:
    """Make two more proposals. If the first of them has to wait, only the second counts."""
    for i, hosts in enumerate(({"o": "h1"}, {"o": world.target, "r": "h6"})):
        world.at(world.now + i * MESSAGE_S / 10, CLIENT, e.PlacementProposed(R, hosts, "meanwhile"))


def more_shapes(world: Scripted) -> None:
    """Propose two more trees. If the first of them has to wait, only the second counts."""
    code = world.dataflow.by_name["o"].code
    for i, (name, host) in enumerate((("p", "h1"), ("q", "h6"))):
        wish = e.PlacementProposed(R, {name: host}, "meanwhile", another_tree(name, code), (FREE, MERGING))
        world.at(world.now + i * MESSAGE_S / 10, CLIENT, wish)


def missed(world: Scripted) -> None:
    world.kill(world.target)
    world.at(world.now + 0.05, CLIENT, e.PeerLost(R, world.target))


def no_bulk(world: Scripted) -> None:
    world.loses = lambda host, send: send.bulk and (host, send.to) == ("h3", world.target)


def repeat(after_s: float) -> Then:
    def begin(world: Scripted) -> None:
        world.again_s = (after_s,)

    return begin


FAULTS: dict[str, tuple[str, Then]] = {  # with the target
    "h3": ("h4", lambda world: world.kill("h3")),
    "h3 sent": ("h4", lambda world: world.kill("h3", last_words=True)),
    "target": ("h4", lambda world: world.kill("h4")),
    "missed": ("h4", missed),
    "h2": ("h2", lambda world: world.kill("h2")),
    "client": ("h4", lambda world: world.kill(CLIENT)),
    "h1": ("h2", lambda world: world.kill("h1")),
    "h5": ("h2", lambda world: world.kill("h5")),
    "h6": ("h2", lambda world: world.kill("h6")),
    "another hand-over": ("h4", another_hand_over),
    "more proposals": ("h4", more_proposals),
    "more shapes": ("h4", more_shapes),
    "strangers": ("h4", strangers),
    "all twice": ("h2", repeat(0.0)),
    "all late": ("h4", repeat(5.0)),
    "no bulk": ("h4", no_bulk),
}


# --- cells ---


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table, each by the heads of the columns."""
    head, _, *lines = table.strip().splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return [dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines]


def cells(table: str) -> list[tuple[str, str, str]]:
    return [(row["step"], fault, row[fault]) for row in rows(table) for fault in row if fault != "step"]


def begin(world: Scripted, protocol: str, target: str) -> Scripted:
    """Have ``o`` handed over to ``target`` by a protocol. ``aborted`` stands for ``barrier``, too."""
    world.target = target
    if protocol == "epoch":
        return world.at(BEGINS_S, "h3", HandOver("o", target))
    return world.at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"o": target}, "a test"))


def check(world: Scripted, expected: str) -> None:
    """Run the world to the end, and check that the result is as expected."""
    if expected.startswith("cut"):
        world.last_s = 30.0
    world.run()
    assert world.reached_s is not None, "the step was never reached"
    assert world.now < 60.0, f"it took {world.now} s"
    assert world.delivered == right(world.dataflow, len(world.delivered))
    for name in set(world.names) - world.down:
        assert world.cores[name].runs == {}, f"{name} still has the run"
        assert world.cores[name].coordinator.led == {}
        assert not any(host == name for host, _ in world.combined), f"{name} still has code: {world.combined}"
    if expected.startswith("lost"):
        host = expected.removeprefix("lost ")
        assert re.fullmatch(
            rf"host '{host}', which holds [a-z0-9~, ]+, (went away|has been silent for 3 s|"
            "has not answered for 3 s to a message that all hosts get)",  # the three times are nearly the same
            world.failed or "",
        ), world.failed
    elif expected.startswith("cut"):
        waits, silent = expected.split()[1:]
        text = rf"node '[a-z0-9~]+' on host '{waits}': host '{silent}', which holds '[a-z0-9~]+', has not answered it"
        assert re.match(text, world.failed or ""), world.failed
    elif expected == "dropped":
        assert world.faults.count("client silent, run dropped") == 6
    else:
        assert world.failed is None
        assert world.delivered_s[-1] >= world.reached_s + world.last_s - 0.5, "the flow stands still"
        assert len(world.delivered) > 20
        places = {"h3": "stayed", world.target: "moved"}
        assert places.get(world.placement["o"], f"to {world.placement['o']}") == expected
        assert world.on("o") == {world.placement["o"]}, "the client says otherwise"
        asked = [request for request in world.asked if request.reason == "a test"]
        if asked and len(world.asked) == 1 and expected in ("stayed", "moved"):  # else later requests move the operator
            (answer,) = world.answers
            text = "moved" if answer.moved == {"o": world.target} else "stayed"
            assert text == expected and bool(answer.why or answer.stayed) == (expected == "stayed"), answer
        settled = [record["detail"]["outcome"] for record in world.settled if record["node"] == "o"]
        assert not settled or settled[-1] == ("stayed" if expected == "stayed" else "moved")


def losing(message: str, sender: str, *, for_ever: bool, dataflow: Dataflow = SCRIPTED_DATAFLOW) -> Scripted:
    """Return a world that loses the first such message of ``sender``. ``for_ever``: the world cuts its link, too."""
    lost: list[e.Send] = []
    shape = dataflow in (FREE_DATAFLOW, MERGING_DATAFLOW)

    def loses(host: str, send: e.Send) -> bool:
        if lost or type(send.message).__name__ != message or host != (world.target if sender == "target" else sender):
            return False
        if isinstance(send.message, m.Demand) and (send.message.forwards or (shape and send.message.commit is None)):
            return False  # only the operator's first own demand counts; with a new shape, the first in the new tree
        lost.append(send)
        if for_ever:
            world.cut.add((host, send.to))
        return True

    world = Scripted(lambda world: bool(lost), dataflow=dataflow)
    world.loses = loses
    return world


SHAPE_STEPS: dict[str, When] = {
    **{
        f"change: {phase}": changing(phase)
        for phase in (ProposalState.PROPOSED, ProposalState.COMMITTED, ProposalState.RETIRING)
    },
    "target: preparing": member("target", MemberState.PREPARING),
    **{
        f"{role}: {name}": member(host, part)
        for role, host in (("source", "h1"), ("target", "target"), ("old", "h3"))
        for name, part in (
            ("voted", MemberState.VOTED),
            ("both trees", MemberState.BOTH),
            ("free again", MemberState.FREE),
        )
    },
}
