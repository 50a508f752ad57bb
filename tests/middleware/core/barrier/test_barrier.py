"""The barrier: both state tables, and the messages between the client and the hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from adversary import BEGINS_S, CLIENT, Scripted, content, missed, reshaped, traced
from playbook import ANY, Playbook, got
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.barrier.proposal import (
    MEMBER,
    PROPOSAL,
    MemberEvent,
    MemberState,
    Proposal,
    ProposalEvent,
    ProposalState,
)
from thalweg.middleware.core.context.machine import InvalidTransition
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

Book = Callable[..., Playbook]
Scene = Callable[[], Scripted]

# --- the tables -------------------------------------------------------------------------------------


def at(part: MemberState, host: str, then: Callable[[Scripted], None] | None = None) -> Scripted:
    """Propose to move ``o`` from h3 to h4 (see ``Scripted``). Call ``then`` when ``host`` reaches state ``part``."""

    def reached(world: Scripted) -> bool:
        run = world.run_at(host)
        return run is not None and (run.parts.get(Member).number, run.parts.get(Member).state) == (1, part)

    return Scripted(reached, then).at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"o": "h4"}, "a test"))


def plain() -> Scripted:
    return at(MemberState.SWITCHING, "h3")


def unable() -> Scripted:
    world = at(MemberState.PREPARING, "h4")
    world.errors[e.OpenNode] = ("h4", "it cannot")
    return world


def silent() -> Scripted:
    world = at(MemberState.PREPARING, "h4")
    world.loses = lambda host, send: isinstance(send.message, m.Vote) and host == "h4"
    return world


def gone() -> Scripted:
    return at(MemberState.PREPARING, "h4", missed)


def called_off() -> Scripted:
    return at(MemberState.PREPARING, "h4", lambda world: world.tell("h4", CLIENT, m.Abort(R, 1)))


CHANGE_SCENES: dict[tuple[ProposalState, ProposalEvent], tuple[Scene, str]] = {
    (ProposalState.PROPOSED, ProposalEvent.AGREED): (plain, ""),
    (ProposalState.PROPOSED, ProposalEvent.REFUSED): (unable, "host 'h4': 'o' cannot run there: it cannot"),
    (ProposalState.PROPOSED, ProposalEvent.EXPIRED): (silent, "no vote of h4 in 2 s"),
    (ProposalState.PROPOSED, ProposalEvent.LOST): (gone, "host 'h4' went away"),
    (ProposalState.COMMITTED, ProposalEvent.DONE): (plain, ""),
    (ProposalState.COMMITTED, ProposalEvent.DRAINED): (reshaped, ""),
    (ProposalState.RETIRING, ProposalEvent.DONE): (reshaped, ""),
    (ProposalState.ABORTED, ProposalEvent.DONE): (unable, "host 'h4': 'o' cannot run there: it cannot"),
}

MEMBER_SCENES: dict[tuple[MemberState, MemberEvent], Scene] = {
    (MemberState.FREE, MemberEvent.PROPOSED): plain,
    (MemberState.FREE, MemberEvent.COMMITTED): plain,  # h6 holds nothing: nobody passes the proposal on to it
    (MemberState.PREPARING, MemberEvent.READY): plain,
    (MemberState.PREPARING, MemberEvent.UNABLE): unable,
    (MemberState.PREPARING, MemberEvent.ABORTED): called_off,
    (MemberState.VOTED, MemberEvent.COMMITTED): plain,
    (MemberState.VOTED, MemberEvent.ABORTED): unable,
    (MemberState.SWITCHING, MemberEvent.SETTLED): plain,
    (MemberState.FREE, MemberEvent.RESHAPED): reshaped,
    (MemberState.VOTED, MemberEvent.RESHAPED): reshaped,
    (MemberState.BOTH, MemberEvent.RETIRED): reshaped,
}


@pytest.mark.parametrize("entry", PROPOSAL, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_every_transition_of_a_proposal_occurs_in_a_scene(entry: tuple[ProposalState, ProposalEvent]) -> None:
    assert entry in CHANGE_SCENES, "a transition nobody tests; add a scene that uses it"
    scene, why = CHANGE_SCENES[entry]
    with traced(Proposal) as used:
        world = scene()
        world.run()
    assert entry in used
    assert world.failed is None
    assert world.delivered == [content(world.dataflow, "t", i)[3] for i in range(len(world.delivered))]
    if scene is reshaped:
        (row,) = world.reshaped
        assert (row["number"], row["outcome"], row["why"], row["reason"]) == (1, "reshaped", "", "a test")
        return
    (proposal,) = world.proposals
    assert proposal == {
        "number": 1,
        "moves": [["o", "h3", "h4"]],
        "outcome": "aborted" if why else "committed",
        "why": why,
        "reason": "a test",
    }


@pytest.mark.parametrize("late", [(), ((m.Vote, "h4"),), ((m.Done, "h3"),), ((m.Vote, "h4"), (m.Done, "h3"))], ids=str)
def test_the_recorded_pause_is_the_gap_between_the_partitions_of_the_two_trees(
    late: tuple[tuple[type, str], ...],
) -> None:
    """The old tree's last partition may come before all votes, and the next partition before all hosts are done."""
    world, lost = reshaped(), set[tuple[type, str]]()

    def loses(host: str, send: e.Send) -> bool:
        message = type(send.message), host
        if message not in late or message in lost:
            return False
        lost.add(message)
        return True

    world.loses = loses
    world.run()
    (row,) = world.reshaped
    assert (lost, row["outcome"]) == ({*late}, "reshaped")
    last_s, next_s = world.delivered_s[row["index"] - 1 : row["index"] + 1]
    assert row["duration_s"] == pytest.approx(next_s - last_s)


@pytest.mark.parametrize("entry", MEMBER, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_every_transition_of_a_member_occurs_in_a_scene(entry: tuple[MemberState, MemberEvent]) -> None:
    assert entry in MEMBER_SCENES, "a transition nobody tests; add a scene that uses it"
    with traced(Member) as used:
        world = MEMBER_SCENES[entry]()
        world.run()
    assert entry in used
    assert world.failed is None
    assert world.delivered == [content(world.dataflow, "t", i)[3] for i in range(len(world.delivered))]


@pytest.mark.parametrize(
    ("phase", "news"), [(a, b) for a in ProposalState for b in ProposalEvent if (a, b) not in PROPOSAL]
)
def test_a_proposal_rejects_every_transition_outside_the_table(phase: ProposalState, news: ProposalEvent) -> None:
    change = Proposal(3, (), set(), "a test", 0.0)
    change.state = phase
    with pytest.raises(InvalidTransition, match=f"^proposal 3, {phase}: {news}$"):
        change.to(news)
    assert change.state is phase


@pytest.mark.parametrize(("part", "word"), [(a, b) for a in MemberState for b in MemberEvent if (a, b) not in MEMBER])
def test_a_member_rejects_every_transition_outside_the_table(part: MemberState, word: MemberEvent) -> None:
    member = Member.__new__(Member)  # of no run
    member.state, member.number = part, 0
    with pytest.raises(InvalidTransition, match=f"^proposal 0, {part}: {word}$"):
        member.to(word)
    assert member.state is part


# --- conversations ----------------------------------------------------------------------------------

MOVE = m.Move("o", "h2", "h3", 1)
PROPOSE = m.Propose(R, 1, (MOVE,))
COMMIT = m.Commit(R, 1, 4, (MOVE,), "a test")
ABORT = m.Abort(R, 1)


def vote(host: str, iteration: int = -1, error: str = "") -> m.Vote:
    return m.Vote(R, 1, host, iteration, error)


@pytest.fixture
def host(make_book: Book, install: m.Install) -> Callable[[str], Playbook]:
    def make(name: str) -> Playbook:
        book = make_book(name, CoreConfig(barrier_s=2.0))
        book << got(CLIENT, install) >> ANY
        return book

    return make


@pytest.fixture
def client(make_book: Book, install: m.Install) -> Playbook:
    """The client, which has proposed that ``o`` goes from h2 to h3."""
    book = make_book(CLIENT, CoreConfig(barrier_s=2.0))
    book << e.RunRequested(install) >> ANY
    book.at(1.0) << e.PlacementProposed(R, {"o": "h3", "s": "h1"}, "a test") >> ANY
    assert {(send.to, send.message) for send in book.only(e.Send)} == {(name, PROPOSE) for name in ("h1", "h2", "h3")}
    assert book.only(e.SetTimer) == [alarm("barrier r", 1.5)]
    return book


def test_the_client_commits_after_the_last_voted_iteration_and_waits_for_every_host(client: Playbook) -> None:
    client << got("h2", vote("h2")) >> []
    client << got("h1", vote("h1", 4)) >> []
    client << got("h1", vote("h1", 4)) >> []  # repeated
    client << got("h3", vote("h3")) >> ANY
    assert {(send.to, send.message) for send in client.only(e.Send)} == {(h, COMMIT) for h in ("h1", "h2", "h3")}
    client.at(1.5) << fired("barrier r") >> ANY
    assert {send.to for send in client.only(e.Send)} == {"h1", "h2", "h3"}
    client << got("h1", m.Done(R, 1, "h1")) >> []
    client << got("h3", m.Done(R, 1, "h3")) >> []
    client << got("h2", m.Done(R, 1, "h2", (m.Location("o", "h3", 2),))) >> [e.OperatorMoved(R, "o", "h3")]
    assert client.recorded() == ["proposal"]
    client.at(2.0) << fired("barrier r") >> []


def test_a_negative_vote_aborts_the_proposal(client: Playbook) -> None:
    client << got("h3", vote("h3", error="no room")) >> ANY
    assert set(client.sent()) == {ABORT}
    client << got("h1", vote("h1", 4)) >> [e.Send(R, "h1", ABORT)]  # it has not heard
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Done(R, 1, name)) >> ANY
    assert client.recorded() == ["proposal"]
    client << got("h1", vote("h1", 4)) >> [e.Send(R, "h1", ABORT)]  # long over
    client << got("h1", m.Done(R, 1, "h1")) >> []


def test_a_missing_vote_aborts_the_proposal_after_the_time_limit(client: Playbook) -> None:
    client << got("h1", vote("h1", 4)) >> []
    client.at(1.5) << fired("barrier r") >> ANY
    assert {(send.to, send.message) for send in client.only(e.Send)} == {("h2", PROPOSE), ("h3", PROPOSE)}
    client.at(3.0) << fired("barrier r") >> ANY
    assert set(client.sent()) == {ABORT}


def test_a_later_proposal_supersedes_a_waiting_proposal(client: Playbook) -> None:
    client << e.PlacementProposed(R, {"o": "client"}, "second") >> []
    client << e.PlacementProposed(R, {"o": "h1"}, "third") >> ANY
    (superseded,) = (record.fields["detail"] for record in client.only(e.Record))
    assert (superseded["outcome"], superseded["reason"]) == ("superseded", "second")
    client << got("h3", vote("h3", error="no room")) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Done(R, 1, name)) >> ANY
    assert set(client.sent()) == {m.Propose(R, 2, (m.Move("o", "h2", "h1", 1),))}


def test_every_move_request_is_answered_once_whether_proposed_or_not(client: Playbook) -> None:
    """The proposal under way has no request number. Two requests wait, one after the other, until the run is over."""
    client << e.PlacementProposed(R, {"o": "client"}, "second", number=2) >> []
    client << e.PlacementProposed(R, {"o": "h1"}, "third", number=3) >> ANY
    assert list(client.only(e.MoveEnded)) == [e.MoveEnded(R, 2, why="a later proposal took its place")]
    client << e.RunAbandoned(R) >> ANY
    assert list(client.only(e.MoveEnded)) == [e.MoveEnded(R, 3, why="the run ended before")]
    client << e.PlacementProposed(R, {"o": "h3"}, "fourth", number=4) >> [e.MoveEnded(R, 4, why="the run is over")]


def test_a_move_request_is_answered_from_the_reports_of_the_hosts(client: Playbook) -> None:
    client << got("h3", vote("h3", error="no room")) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Done(R, 1, name)) >> ANY
    client << e.PlacementProposed(R, {"o": "h2"}, "there", number=1) >> [e.MoveEnded(R, 1)]
    client << e.PlacementProposed(R, {"o": "h9"}, "nowhere", number=2) >> ANY
    assert list(client.only(e.MoveEnded)) == [e.MoveEnded(R, 2, why="host 'h9' has no part in the run")]
    client << e.PlacementProposed(R, {"o": "h3"}, "asked for", number=3) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Vote(R, 2, name, 4)) >> ANY
    here = m.Location("o", "h2", 2)
    client << got("h2", m.Relocated(R, "o", False, here, "too large")) >> ANY
    for name in ("h1", "h3", "client", "h2"):
        client << got(name, m.Done(R, 2, name, (here,) if name == "h2" else ())) >> ANY
    stayed = {"o": "it stays on host 'h2': too large"}
    assert list(client.only(e.MoveEnded)) == [e.MoveEnded(R, 3, 5, {}, stayed)]


@pytest.mark.parametrize("heard", [True, False])
def test_a_move_request_is_answered_from_known_locations_if_the_run_ends_early(client: Playbook, heard: bool) -> None:
    client << got("h3", vote("h3", error="no room")) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Done(R, 1, name)) >> ANY
    client << e.PlacementProposed(R, {"o": "h3"}, "asked for", number=1) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Vote(R, 2, name, 4)) >> ANY
    location = m.Location("o", "h3", 2)
    if heard:
        client << got("h3", m.Done(R, 2, "h3", (location,))) >> ANY
    client << e.RunAbandoned(R) >> ANY
    moved, stayed = ({"o": "h3"}, {}) if heard else ({}, {"o": "the run ended before"})
    assert list(client.only(e.MoveEnded)) == [e.MoveEnded(R, 1, 5, moved, stayed)]


def test_a_placement_that_moves_nothing_is_not_proposed(client: Playbook) -> None:
    client << e.PlacementProposed(R, {"o": "h2"}, "as it is") >> []
    client << got("h3", vote("h3", error="no room")) >> ANY
    for name in ("h1", "h2", "h3"):
        client << got(name, m.Done(R, 1, name)) >> ANY
    assert client.sent() == []


def test_a_source_suspends_votes_and_resumes_with_the_commit(host: Callable[[str], Playbook]) -> None:
    book = host("h1")
    book << got("h2", m.Demand(R, "s", "o", 0, 0, 1)) >> [e.RunOperator(R, "s", 0)]
    output = e.Send(R, "h2", m.Partition(R, "s", "o", 0), b"s0", 2, bulk=True)
    book << e.OperatorFinished(R, "s", 0, b"s0", 2) >> [output, e.RunOperator(R, "s", 1)]
    book << got(CLIENT, PROPOSE) >> [e.Send(R, CLIENT, vote("h1", 0))]
    book << got("h2", PROPOSE) >> [e.Send(R, CLIENT, vote("h1", 0))]  # again: the first may have been lost
    book << e.OperatorFinished(R, "s", 1, b"s1", 2) >> []
    book << got("h2", m.Demand(R, "s", "o", 1, 0, 1)) >> []  # suspended
    commit = m.Commit(R, 1, 0, (MOVE,))
    book << got(CLIENT, commit) >> ANY
    (part,) = book.sent("h3")  # the first after the change-over, to the new place, with the word that it is that
    assert (part.index, part.commit) == (1, commit)
    assert book.sent(CLIENT) == [m.Done(R, 1, "h1")]
    book << got(CLIENT, commit) >> [e.Send(R, CLIENT, m.Done(R, 1, "h1"))]
    book << got(CLIENT, ABORT) >> [e.Send(R, CLIENT, m.Done(R, 1, "h1"))]
    book << got("h2", PROPOSE) >> []
    book << got(CLIENT, PROPOSE) >> []  # late


def test_an_aborted_proposal_changes_nothing(host: Callable[[str], Playbook], install: m.Install) -> None:
    source, target = host("h1"), host("h3")
    source << got("h2", m.Demand(R, "s", "o", 0, 0, 1)) >> ANY
    source << got(CLIENT, PROPOSE) >> ANY
    source << e.OperatorFinished(R, "s", 0, b"s0", 2) >> []
    source << got(CLIENT, ABORT) >> ANY
    assert [type(message) for message in source.sent("h2")] == [m.Partition]
    opened = e.OpenNode(R, install.dataflow.by_name["o"])
    target << got(CLIENT, PROPOSE) >> [alarm("move r", 8.0), opened]  # no vote before it has it
    target << e.NodeOpened(R, "o") >> [e.Send(R, CLIENT, vote("h3"))]
    target << got(CLIENT, ABORT) >> [e.CloseNode(R, "o"), e.Send(R, CLIENT, m.Done(R, 1, "h3"))]
    target << got("h2", PROPOSE) >> []  # late
    target << got(CLIENT, PROPOSE) >> []
    target << got(CLIENT, COMMIT) >> [e.Send(R, CLIENT, m.Done(R, 1, "h3"))]  # cannot be, and changes nothing
    assert target.core.runs[R].directory.switch is None


def test_a_proposal_that_arrives_after_the_abort_is_ignored(host: Callable[[str], Playbook]) -> None:
    book = host("h1")
    book << got(CLIENT, ABORT) >> [e.Send(R, CLIENT, m.Done(R, 1, "h1"))]
    book << got(CLIENT, PROPOSE) >> []


def test_the_operator_leaves_after_the_change_over_iteration(host: Callable[[str], Playbook]) -> None:
    book = host("h2")
    book << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1)) >> ANY
    book << got(CLIENT, PROPOSE) >> ANY
    assert {(send.to, send.message) for send in book.only(e.Send)} == {(CLIENT, vote("h2")), ("h1", PROPOSE)}
    book << got(CLIENT, m.Commit(R, 1, 0, (MOVE,), "a test")) >> []
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> [e.RunOperator(R, "o", 0, (b"s0",))]
    book << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert book.only(e.TakeState) == [e.TakeState(R, "o", 1)]
    assert book.sent("h1") == []  # its next inputs are not demanded here
    book << e.StateTaken(R, "o", 1, b"one", "sha") >> ANY
    book << got("h3", m.Restored(R, "o", 1)) >> ANY
    book << got("h3", m.Resumed(R, "o", 1)) >> ANY
    assert m.Done(R, 1, "h2", (m.Location("o", "h3", 2),)) in book.sent(CLIENT)


def test_a_host_without_the_commit_sends_no_withdrawal_to_the_new_host(host: Callable[[str], Playbook]) -> None:
    """A Withdraw could arrive after the operator's state. Then the operator would be on no host."""
    book = host("h2")
    book << got(CLIENT, PROPOSE) >> ANY
    book << got("h3", m.Accept(R, "o", 1)) >> []
    book << got(CLIENT, ABORT) >> ANY
    book << got("h3", m.Accept(R, "o", 1)) >> []  # it is told of the end by the client


def test_inputs_may_arrive_before_the_moved_operator(host: Callable[[str], Playbook]) -> None:
    book = host("h3")
    book << got(CLIENT, PROPOSE) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    commit = m.Commit(R, 1, 0, (MOVE,))
    part = m.Partition(R, "s", "o", 1, commit=commit)
    book << got("h1", part, b"s1", 2) >> [e.Send(R, CLIENT, m.Done(R, 1, "h3"))]  # its commit is the first it hears
    book << got("h2", m.State(R, "o", 1, 1, 1, 3, "sha", b"one", (m.ConsumerDemand("t", 0),), "h2")) >> ANY
    book << e.StateRestored(R, "o", 1) >> ANY
    book << got("h2", m.Located(R, (m.Location("o", "h3", 2),))) >> ANY
    assert book.only(e.RunOperator) == [e.RunOperator(R, "o", 1, (b"s1",))]


def test_partitions_of_foreign_producers_and_later_indices_are_not_kept_for_an_arrival(
    host: Callable[[str], Playbook],
) -> None:
    book = host("h3")
    book << got(CLIENT, PROPOSE) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    book << got(CLIENT, m.Commit(R, 1, 0, (MOVE,))) >> ANY
    for producer in ("t", "o", "stranger"):
        book << got("h1", m.Partition(R, producer, "o", 1), b"x", 1) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 2), b"s2", 2) >> ANY  # not what it begins with
    assert book.core.runs[R].flow.expected["o"].early == {}
    book << got("h1", m.Partition(R, "s", "o", 1), b"s1", 2) >> []
    assert book.core.runs[R].flow.expected["o"].early.keys() == {1}
    assert set(book.core.runs[R].flow.expected["o"].early[1]) == {"s"}


def test_a_forwarded_proposal_counts_only_with_the_next_number(host: Callable[[str], Playbook]) -> None:
    book = host("h1")
    member = book.core.runs[R].parts.get(Member)
    for number in (2, 99):
        book << got("h2", m.Propose(R, number, (MOVE,))) >> []
    assert (member.number, member.state) == (0, MemberState.FREE)
    book << got("h2", PROPOSE) >> [e.Send(R, CLIENT, vote("h1"))]
    book << got(CLIENT, ABORT) >> ANY
    second = m.Propose(R, 3, (MOVE,))
    book << got("h2", second) >> []
    book << got(CLIENT, second) >> [e.Send(R, CLIENT, m.Vote(R, 3, "h1", -1))]  # the client may have made one more


def test_a_forged_proposal_number_does_not_block_the_proposals_of_the_client() -> None:
    world = Scripted(lambda world: bool(world.proposals))
    world.at(BEGINS_S - 0.2, "h1", e.MessageReceived("h6", m.Propose(R, 99, ())))
    world.at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"o": "h4"}, "a test"))
    world.run()
    assert [row["outcome"] for row in world.proposals] == ["committed"]
    assert world.on("o") == {"h4"}


def test_a_run_that_ends_during_a_proposal_records_the_proposal_as_aborted(client: Playbook) -> None:
    client.at(1.25) << e.RunAbandoned(R) >> ANY
    (row,) = [record.fields for record in client.only(e.Record) if record.kind == "proposal"]
    assert row == {
        "index": None,
        "duration_s": 0.25,
        "detail": {
            "number": 1,
            "moves": [["o", "h2", "h3"]],
            "outcome": "aborted",
            "why": "the run ended before",
            "reason": "a test",
        },
    }


@pytest.mark.parametrize(
    ("votes", "index", "outcome", "why"),
    [
        ([vote("h1", 4), vote("h2"), vote("h3")], 4, "committed", ""),
        ([vote("h3", error="no room")], None, "aborted", "host 'h3': no room"),
    ],
    ids=["committed", "aborted"],
)
def test_a_run_that_ends_before_all_hosts_are_done_records_the_decision(
    client: Playbook, votes: list[m.Vote], index: int | None, outcome: str, why: str
) -> None:
    for ballot in votes:
        client << got(ballot.host, ballot) >> ANY
    client.at(1.25) << e.RunAbandoned(R) >> ANY
    (row,) = [record.fields for record in client.only(e.Record) if record.kind == "proposal"]
    assert (row["index"], row["detail"]["outcome"], row["detail"]["why"]) == (index, outcome, why)


@pytest.mark.parametrize("sender", ["h2", "h9"])
def test_only_the_client_can_commit_or_abort_a_proposal(host: Callable[[str], Playbook], sender: str) -> None:
    book = host("h1")
    book << got(CLIENT, PROPOSE) >> ANY
    book << got(sender, ABORT) >> []
    book << got(sender, COMMIT) >> []
    book << got(CLIENT, m.Commit(run_of("old"), 1, 4, (MOVE,))) >> []
    book << got("h9", m.Propose(R, 9, (MOVE,))) >> []  # of no part in the run
    assert book.core.runs[R].parts.get(Member).state is MemberState.VOTED


def test_a_proposal_older_than_a_move_is_voted_down(host: Callable[[str], Playbook]) -> None:
    book = host("h1")
    book << got("h2", m.Located(R, (m.Location("o", "h3", 2),))) >> []
    book << got(CLIENT, PROPOSE) >> ANY
    assert book.sent(CLIENT) == [vote("h1", -1, "'o' has moved to host 'h3' meanwhile")]
    assert not book.core.runs[R].flow.nodes["s"].suspended
