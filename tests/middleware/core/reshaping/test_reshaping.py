"""Change of the tree while partitions flow: messages between hosts, and end to end on sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from adversary import BEGINS_S, CLIENT, FREE, FREE_DATAFLOW, MERGING, Scripted, another_tree, content
from playbook import ANY, HandOver, Playbook, got
from run_ids import R, alarm, fired
from runtime_codes import ALLOW

from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.barrier.proposal import MemberState
from thalweg.middleware.dataflow import Code, Dataflow, Node, star_tree
from thalweg.middleware.errors import DataflowError, PlacementError
from thalweg.middleware.planning import PlanResult, Task
from thalweg.middleware.planning.registry import RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.operators.reference import digest, reference_run

Book = Callable[..., Playbook]

# --- conversations: s on h1 -> o on h2 -> t on the client; n on h3 is to take the place of o -----------

GRAFTS = (m.Graft("n~1", ("s",), "h3", "o"), m.Graft("t", ("n~1",), CLIENT))
SHAPE = m.Shape(GRAFTS, (m.Location("o", "h2", 1),))
PROPOSE = m.Propose(R, 1, (), SHAPE)
NODE = Node("n~1", "operator", ("s",), FREE)


def commit(iteration: int) -> m.Commit:
    return m.Commit(R, 1, iteration, (), "a test", SHAPE)


def demand(producer: str, consumer: str, index: int, **more: Any) -> m.Demand:
    return m.Demand(R, producer, consumer, index, 0, 1, **more)


@pytest.fixture
def install(install: m.Install) -> m.Install:
    nodes = [msgspec.structs.replace(n, code=FREE) if n.kind == "operator" else n for n in install.dataflow.nodes]
    return msgspec.structs.replace(install, dataflow=Dataflow(tuple(nodes)))


@pytest.fixture
def host(make_book: Book, install: m.Install) -> Callable[[str], Playbook]:
    def make(name: str) -> Playbook:
        book = make_book(name)
        book << got(CLIENT, install) >> ANY
        return book

    return make


def done(host: str, *, retired: bool = False) -> m.Done:
    return m.Done(R, 1, host, (), retired)


def test_an_ended_source_waits_for_no_consumer_during_and_after_a_change_over(
    host: Callable[[str], Playbook],
) -> None:
    """Another source continues. Then hosts are lost, for which a node may wait."""
    book = host("h1")
    book << got("h2", demand("s", "o", 0)) >> ANY
    book << e.OperatorFinished(R, "s", 0, None, 0, True) >> ANY
    book << got(CLIENT, PROPOSE) >> ANY
    book << got(CLIENT, commit(1)) >> ANY
    flow = book.core.runs[R].flow
    assert flow.nodes["s"].window.consumers.keys() == {"o", "n~1"}
    assert list(book.core.lagging()) == [], "a node that is to turn waits for nobody"
    book << got(CLIENT, m.Retire(R, 1)) >> ANY
    assert flow.nodes["s"].window.consumers.keys() == {"n~1"}
    assert list(book.core.lagging()) == []
    for name in ("h3", "h2"):
        book << e.CertificateExpired(name, "it expired") >> ANY
        assert not [message for message in book.sent(CLIENT) if isinstance(message, m.Failed)]


def test_a_source_keeps_the_last_output_for_the_old_consumer_beside_the_new_outputs(
    host: Callable[[str], Playbook],
) -> None:
    book = host("h1")
    book << got("h2", demand("s", "o", 0)) >> [e.RunOperator(R, "s", 0)]
    book << e.OperatorFinished(R, "s", 0, b"s0", 2) >> ANY
    assert [part.consumer for part in book.sent("h2")] == ["o"]
    book << got(CLIENT, PROPOSE) >> [e.Send(R, CLIENT, m.Vote(R, 1, "h1", 0))]
    book << e.OperatorFinished(R, "s", 1, b"s1", 2) >> []
    book << got("h3", demand("s", "n~1", 1)) >> []  # of a tree it does not know
    book << got(CLIENT, commit(0)) >> [e.Send(R, CLIENT, done("h1"))]
    book << got("h2", demand("s", "o", 1)) >> []  # it is the new consumer's
    book << got("h3", demand("s", "n~1", 1)) >> ANY
    (send,) = book.only(e.Send)
    assert (send.to, send.payload, send.message.consumer) == ("h3", b"s1", "n~1")
    book << e.OperatorFinished(R, "s", 2, b"s2", 2) >> []
    book << got("h3", demand("s", "n~1", 2)) >> ANY  # the old consumer has still to get partition 0
    assert [send.payload for send in book.only(e.Send)] == [b"s2"]
    book << e.TransferFailed("h2", m.Partition(R, "s", "o", 0)) >> []
    book << got("h2", demand("s", "o", 0, again=True)) >> ANY
    assert [(send.to, send.payload) for send in book.only(e.Send)] == [("h2", b"s0")]
    assert book.core.runs[R].flow.tails.left.keys() == {"s"}
    book << got(CLIENT, m.Retire(R, 1)) >> [e.Send(R, CLIENT, done("h1", retired=True))]
    assert book.core.runs[R].flow.tails.left == {}
    book << got("h2", demand("s", "o", 0, again=True)) >> []
    book << got(CLIENT, m.Retire(R, 1)) >> [e.Send(R, CLIENT, done("h1", retired=True))]
    book << got(CLIENT, commit(0)) >> [e.Send(R, CLIENT, done("h1", retired=True))]


def test_the_commit_is_piggybacked_on_the_first_partition_of_an_edge_in_both_trees(
    host: Callable[[str], Playbook],
) -> None:
    """From partition 1 on, t gets o's partitions through n. h2 lacks the commit, and t has demanded partition 1."""
    shape = m.Shape((m.Graft("n~1", ("o",), "h3", "o"), m.Graft("t", ("n~1",), CLIENT)), SHAPE.present)
    propose, commit_message = m.Propose(R, 1, (), shape), m.Commit(R, 1, 0, (), "a test", shape)
    source, consumer = host("h1"), host("h2")
    source << got("h2", demand("s", "o", 0)) >> ANY
    source << e.OperatorFinished(R, "s", 0, b"s0", 2) >> ANY
    source << e.OperatorFinished(R, "s", 1, b"s1", 2) >> []
    source << got(CLIENT, propose) >> ANY
    source << got("h2", demand("s", "o", 1)) >> []
    source << got(CLIENT, commit_message) >> ANY
    (first,) = [send for send in source.only(e.Send) if send.bulk]
    assert (first.to, first.message.index, first.message.commit) == ("h2", 1, commit_message)

    consumer << got(CLIENT, demand("o", "t", 0)) >> ANY
    consumer << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> ANY
    consumer << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    consumer << got(CLIENT, propose) >> ANY
    consumer << got(CLIENT, demand("o", "t", 1)) >> []
    consumer << got("h1", first.message, b"s1", 2) >> ANY
    assert consumer.sent(CLIENT) == [done("h2")]
    consumer << e.OperatorFinished(R, "o", 1, b"o1", 2) >> []
    consumer << got("h3", demand("o", "n~1", 1)) >> ANY
    assert [(send.to, send.payload) for send in consumer.only(e.Send) if send.bulk] == [("h3", b"o1")]


def test_a_new_operator_is_opened_before_the_vote_and_demands_inputs_at_the_commit(
    host: Callable[[str], Playbook],
) -> None:
    book = host("h3")
    book << got(CLIENT, PROPOSE) >> [e.OpenNode(R, NODE, fresh=True)]
    book << got(CLIENT, PROPOSE) >> []
    book << e.NodeOpened(R, "n~1") >> [e.Send(R, CLIENT, m.Vote(R, 1, "h3", -1))]
    book << got(CLIENT, commit(4)) >> ANY
    (asked,) = book.sent("h1")
    assert (asked.producer, asked.consumer, asked.index, asked.commit) == ("s", "n~1", 5, commit(4))
    assert book.sent(CLIENT) == [done("h3")]
    book.at(0.5) << fired("retry") >> ANY
    assert [(message.index, message.again, message.commit) for message in book.sent("h1")] == [(5, True, None)]
    book << got("h1", m.Partition(R, "s", "n~1", 5), b"s5", 2) >> [e.RunOperator(R, "n~1", 5, (b"s5",))]


def test_a_commit_piggybacked_on_a_demand_is_accepted(host: Callable[[str], Playbook]) -> None:
    book = host("h1")
    book << got(CLIENT, PROPOSE) >> ANY
    book << got("h9", demand("s", "n~1", 0, commit=commit(-1))) >> []  # of no part in the run
    book << got("h3", demand("s", "n~1", 0, commit=commit(-1))) >> ANY
    assert book.sent(CLIENT) == [done("h1")]
    assert book.only(e.RunOperator) == [e.RunOperator(R, "s", 0)]


def test_a_removed_operator_ends_and_is_forgotten_at_the_retirement_of_the_tree(
    host: Callable[[str], Playbook],
) -> None:
    book = host("h2")
    book << got(CLIENT, demand("o", "t", 0)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> [e.RunOperator(R, "o", 0, (b"s0",))]
    book << got(CLIENT, PROPOSE) >> ANY
    book << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert [message.index for message in book.sent("h1") if isinstance(message, m.Demand)] == [1]
    book << got(CLIENT, commit(0)) >> [e.Send(R, CLIENT, done("h2"))]
    assert book.core.runs[R].flow.demands.pending == {}  # it demands no more
    book << e.TransferFailed(CLIENT, m.Partition(R, "o", "t", 0)) >> []
    book << got(CLIENT, demand("o", "t", 0, again=True)) >> ANY
    assert [send.payload for send in book.only(e.Send)] == [b"o0"]
    book << got(CLIENT, m.Retire(R, 1)) >> [e.CloseNode(R, "o"), e.Send(R, CLIENT, done("h2", retired=True))]
    assert book.core.runs[R].flow.nodes == {}


def test_a_demand_of_the_new_tree_does_not_acknowledge_the_tail_for_the_old_consumer(
    host: Callable[[str], Playbook],
) -> None:
    """o moves from h2 to h3, and partition 0 is lost. Then a new consumer's demand for partition 3 comes to h2."""
    book = host("h2")
    book << got(CLIENT, demand("o", "t", 0)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> ANY
    book << HandOver("o", "h3") >> ANY
    book << got("h3", m.Accept(R, "o", 1)) >> []
    book << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    book << e.StateTaken(R, "o", 1, b"", "digest") >> ANY
    book << got("h3", m.Restored(R, "o", 1)) >> ANY
    book << got("h3", m.Resumed(R, "o", 1)) >> ANY
    book << e.TransferFailed(CLIENT, m.Partition(R, "o", "t", 0)) >> []
    assert book.core.runs[R].flow.tails.left.keys() == {"o"}
    shape = m.Shape((m.Graft("n~1", ("o",), "h1", "o"), m.Graft("t", ("n~1",), CLIENT)), (m.Location("o", "h3", 2),))
    book << got(CLIENT, m.Propose(R, 1, (), shape)) >> [e.Send(R, CLIENT, m.Vote(R, 1, "h2", -1))]
    book << got(CLIENT, m.Commit(R, 1, 2, (), "a test", shape)) >> ANY
    book << got("h1", demand("o", "n~1", 3)) >> ANY  # who takes o to be here still
    assert [message.index for message in book.sent("h3")] == [3]
    book << got(CLIENT, demand("o", "t", 0, again=True)) >> ANY
    assert [(send.to, send.payload) for send in book.only(e.Send)] == [(CLIENT, b"o0")]
    book << e.TransferFailed(CLIENT, m.Partition(R, "o", "t", 0)) >> []
    book << got(CLIENT, demand("o", "t", 1)) >> ANY  # which does
    assert book.core.runs[R].flow.tails.left == {}


def test_a_host_without_a_vote_accepts_the_commit_and_ignores_stray_retirements(
    host: Callable[[str], Playbook],
) -> None:
    book = host("h2")
    book << got(CLIENT, m.Retire(R, 1)) >> []
    book << got("h3", m.Retire(R, 0)) >> []
    book << got(CLIENT, commit(-1)) >> [e.Send(R, CLIENT, done("h2"))]
    assert book.core.runs[R].parts.get(Member).state is MemberState.BOTH
    book << got("h3", m.Retire(R, 1)) >> []  # it is no client
    assert book.core.runs[R].parts.get(Member).state is MemberState.BOTH


def test_an_unprepared_host_of_a_new_operator_rejects_the_commit(host: Callable[[str], Playbook]) -> None:
    book = host("h3")
    book << got(CLIENT, commit(3)) >> []
    assert book.recorded() == ["unexpected"]
    assert book.core.runs[R].parts.get(Member).state is MemberState.FREE


@pytest.mark.parametrize("number", [1, 2])
def test_a_commit_that_differs_from_the_voted_proposal_is_rejected(
    host: Callable[[str], Playbook], number: int
) -> None:
    book = host("h3")
    book << got(CLIENT, PROPOSE) >> ANY
    book << e.NodeOpened(R, "n~1") >> ANY
    book << got(CLIENT, m.Commit(R, number, 1, ())) >> []
    assert book.recorded() == ["unexpected"]
    assert book.core.runs[R].parts.get(Member).state is MemberState.VOTED


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (m.Shape((m.Graft("t", ("x",), CLIENT),), ()), "node 'x' is an input, and the tree does not have it"),
        (m.Shape(GRAFTS, (m.Location("o", "h2", 0),)), "'o' has moved to host 'h2' meanwhile"),
        (m.Shape(GRAFTS, (m.Location("q", "h2", 1),)), "there is no node 'q'"),
        (m.Shape(GRAFTS, (m.Location("o", "h1", 1),)), "'o' is not on host 'h1'"),
        (
            m.Shape((m.Graft("n~1", ("s",), "h9", "o"), GRAFTS[1]), SHAPE.present),
            "host 'h9' has no part in the run",
        ),
    ],
)
def test_an_invalid_shape_is_voted_down(host: Callable[[str], Playbook], shape: m.Shape, why: str) -> None:
    book = host("h1")
    book << got(CLIENT, m.Propose(R, 1, (), shape)) >> [e.Send(R, CLIENT, m.Vote(R, 1, "h1", -1, why))]
    assert not book.core.runs[R].flow.nodes["s"].suspended


def test_no_operator_is_handed_over_while_two_trees_exist(host: Callable[[str], Playbook]) -> None:
    book = host("h2")
    book << got(CLIENT, PROPOSE) >> ANY
    book << got(CLIENT, commit(3)) >> ANY
    assert book.core.runs[R].parts.get(Member).busy
    book << HandOver("o", "h3") >> []
    book << got("h3", m.Offer(R, "n~1", 1)) >> []  # it asks again


# --- states: o on h2, n on h3 as above; what o remembers goes to n ---------------------------------------

HEIR_SHAPE = m.Shape((m.Graft("n~1", ("s",), "h3", "o", ("o",)), GRAFTS[1]), SHAPE.present)
HEIR = Node("n~1", "operator", ("s",), MERGING)


def told(iteration: int) -> m.Commit:
    return m.Commit(R, 1, iteration, (), "a test", HEIR_SHAPE)


def state(payload: bytes, **more: Any) -> m.InheritedState:
    """Return the state of o after partition 0, as h2 sends it."""
    inline = payload if len(payload) <= m.INLINE_STATE_BYTES else None
    return m.InheritedState(R, "o", 1, 1, 1, len(payload), "digest", inline, heir="n~1", **more)


@pytest.fixture
def merging_host(make_book: Book, install: m.Install) -> Callable[[str], Playbook]:
    nodes = [msgspec.structs.replace(n, code=MERGING) if n.name == "o" else n for n in install.dataflow.nodes]
    merging = msgspec.structs.replace(install, dataflow=Dataflow(tuple(nodes)))

    def make(name: str) -> Playbook:
        book = make_book(name)
        book << got(CLIENT, merging) >> ANY
        book << got(CLIENT, m.Propose(R, 1, (), HEIR_SHAPE)) >> ANY
        return book

    return make


def opened(book: Playbook) -> Playbook:
    assert book.only(e.OpenNode) == [e.OpenNode(R, HEIR, fresh=True, merging=True)]
    book << e.NodeOpened(R, "n~1") >> [e.Send(R, CLIENT, m.Vote(R, 1, "h3", -1))]
    return book


def test_an_heir_runs_only_after_the_states_are_merged(merging_host: Callable[[str], Playbook]) -> None:
    book = opened(merging_host("h3"))
    book << got(CLIENT, told(0)) >> ANY
    assert [type(message) for message in book.sent("h1")] == [m.Demand]  # it gathers at once
    assert book.sent(CLIENT) == []  # and is not through
    book << got("h1", m.Partition(R, "s", "n~1", 1), b"s1", 2) >> []
    book << got(CLIENT, told(0)) >> []
    book << got("h1", state(b"not h2's")) >> []
    book << got("h2", state(b"seen")) >> [e.MergeStates(R, "n~1", 1, (e.Inherited(b"seen", "digest", 1),))]
    book << got("h2", state(b"seen")) >> []  # again
    book << e.StateRestored(R, "n~1", 1) >> ANY
    assert book.sent(CLIENT) == [done("h3")]
    assert book.only(e.RunOperator) == [e.RunOperator(R, "n~1", 1, (b"s1",))]
    assert book.recorded() == ["merged"]
    book << got("h2", state(b"seen")) >> []
    book << fired("states r") >> []


def test_a_state_may_arrive_before_the_commit(merging_host: Callable[[str], Playbook]) -> None:
    book = opened(merging_host("h3"))
    large = bytes(m.INLINE_STATE_BYTES + 1)
    assert book.core.wants("h3", state(large))
    assert not book.core.wants("h3", state(bytes(65 * 1024 * 1024)))
    book << got("h2", state(large), large, len(large)) >> []
    assert not book.core.wants("h3", state(large))
    book << got(CLIENT, told(0)) >> ANY
    assert book.only(e.MergeStates) == [e.MergeStates(R, "n~1", 1, (e.Inherited(large, "digest", 1),))]


def test_a_missing_state_is_requested_again_until_the_state_arrives(merging_host: Callable[[str], Playbook]) -> None:
    book = opened(merging_host("h3"))
    book << got(CLIENT, told(0)) >> ANY
    claim = e.Send(R, "h2", m.StateRequest(R, "o", "n~1"))
    book.at(0.5) << fired("states r") >> [claim, alarm("states r", 1.5)]
    book.at(1.5) << fired("states r") >> [claim, alarm("states r", 3.5)]
    book << got("h2", state(b"seen")) >> ANY
    cause = m.Cause(None, "ValueError", "where")
    failed = m.Failed(R, "n~1", "the states of o cannot be merged: two of them", cause)
    book << e.StateRestored(R, "n~1", 1, "two of them", cause) >> [e.Send(R, CLIENT, failed)]
    book.at(3.5) << fired("states r") >> []
    book << got(CLIENT, demand("n~1", "t", 1)) >> ANY
    assert failed in book.sent(CLIENT), "the message may have been lost"


def test_a_state_larger_than_the_limit_of_the_host_of_the_heir_ends_the_run(
    merging_host: Callable[[str], Playbook],
) -> None:
    book = opened(merging_host("h3"))
    book << got(CLIENT, told(0)) >> ANY
    size = 64 * 1024 * 1024
    failed = m.Failed(R, "n~1", f"the state of 'o' has {size + 1} bytes; this host takes up to {size}")
    book << got("h2", msgspec.structs.replace(state(b"seen"), inline=None, size_bytes=size + 1)) >> ANY
    assert book.sent(CLIENT) == [failed]


def test_a_state_is_saved_after_the_last_partition_and_kept_until_the_retirement(
    merging_host: Callable[[str], Playbook],
) -> None:
    """At the commit, partition 0 of o is not demanded yet."""
    book = merging_host("h2")
    book << got(CLIENT, told(0)) >> [e.Send(R, CLIENT, done("h2"))]
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> []  # there is none yet
    book << got(CLIENT, demand("o", "t", 0)) >> ANY
    book << got("h1", m.Partition(R, "s", "o", 0), b"s0", 2) >> [e.RunOperator(R, "o", 0, (b"s0",))]
    book << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert book.only(e.TakeState) == [e.TakeState(R, "o", 1)]
    large = bytes(m.INLINE_STATE_BYTES + 1)
    send = e.Send(R, "h3", state(large), large, len(large), bulk=True)
    book << e.StateTaken(R, "o", 1, large, "digest", 1) >> [send]
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> []  # it is on its way
    book << e.TransferMeasured("h3", state(large), len(large), 0.1) >> []
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> []  # it had not arrived then
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> [send]
    book << e.TransferFailed("h3", state(large)) >> []
    book << got("h1", m.StateRequest(R, "o", "n~1")) >> []
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> [send]
    book << got(CLIENT, m.Retire(R, 1)) >> [e.CloseNode(R, "o"), e.Send(R, CLIENT, done("h2", retired=True))]
    book << got("h3", m.StateRequest(R, "o", "n~1")) >> []
    book << e.TransferFailed("h3", state(large)) >> []


def test_a_late_failure_of_a_replaced_transfer_does_not_end_the_run(merging_host: Callable[[str], Playbook]) -> None:
    """A second transfer of the state is under way on another network, and nothing else has failed for long."""
    book, large = merging_host("h2"), bytes(m.INLINE_STATE_BYTES + 1)
    book << got(CLIENT, told(-1)) >> ANY
    book << e.StateTaken(R, "o", 1, large, "digest", 1) >> ANY
    (message,) = book.sent("h3")
    for at_s in (1000.0, 2000.0):
        book.at(at_s) << e.TransferFailed("h3", message, "replaced") >> ANY
        assert not book.sent(CLIENT)
    book.at(3000.0) << e.TransferFailed("h3", message) >> ANY
    assert not book.sent(CLIENT), "it has failed for no time yet"


def test_a_state_is_saved_at_once_if_the_last_partition_is_made_already(
    merging_host: Callable[[str], Playbook],
) -> None:
    book = merging_host("h2")
    book << got(CLIENT, told(-1)) >> [e.TakeState(R, "o", 1), e.Send(R, CLIENT, done("h2"))]
    book << e.StateTaken(R, "o", 1, b"", "digest", 1) >> ANY
    (sent,) = book.sent("h3")
    assert (sent.inline, sent.index, sent.heir) == (b"", 0, "n~1")


def test_the_record_of_a_reshaping_contains_both_trees_and_the_phases() -> None:
    world = Scripted(lambda world: bool(world.reshaped), dataflow=FREE_DATAFLOW)
    world.at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"n": "h4"}, "a test", another_tree(), (FREE,)))
    world.run()
    (row,) = world.reshaped
    assert row["before"] == [["o", ["s1", "s2"], "h3"], ["r", ["o"], "h5"], ["t", ["r"], CLIENT]]
    assert row["after"] == [["n~1", ["s2", "s1"], "h4"], ["t", ["n~1"], CLIENT]]
    phases = ["proposed", "committed", "switched", "retiring", "first"]
    assert set(row["ago"]) == set(phases)
    assert row["ago"]["proposed"] > row["ago"]["committed"] > row["ago"]["switched"] > 0
    assert 0 < row["duration_s"] < 1
    assert row["index"] > 0
    assert world.delivered == [content(FREE_DATAFLOW, "t", i)[3] for i in range(len(world.delivered))]


def test_a_tree_that_would_give_different_bytes_is_not_proposed() -> None:
    world = Scripted(lambda world: bool(world.proposals), dataflow=FREE_DATAFLOW)
    world.at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"n": "h4"}, "a test", another_tree(), (Code("other"),)))
    world.run()
    (row,) = world.proposals
    assert (row["outcome"], row["why"]) == ("aborted", "operator 'o' is left out, and its code is not reorderable")
    assert world.on("o") == {"h3"}


# --- on sockets ---------------------------------------------------------------------------------------

HOSTS = ("h1", "h2", "h3", "h4")
LARGEST = Code("runtime_codes:Largest")
SOURCES = {host: Code("runtime_codes:Blocks", {"site": i, "sizes": [600]}) for i, host in enumerate(HOSTS)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(HOSTS, allow=ALLOW) as started:
        yield started
        assert started.poll() == {}, "a host ended during the tests"


RUNNING = Code("running", {"fit": "nested"})


def crowded(top: str = "", code: Code = LARGEST) -> Dataflow:
    """Two sources on every host, all combined by one operator. ``top`` is the code of a stateful operator above."""
    nodes = [
        Node(f"s{i}{host}", "source", (), Code("runtime_codes:Blocks", {"site": i * 10 + j, "sizes": [600]}), host)
        for i in range(2)
        for j, host in enumerate(HOSTS)
    ]
    nodes.append(Node("o", "operator", tuple(node.name for node in nodes), code))
    if top:
        nodes.append(Node("p", "operator", ("o",), Code(top)))
    return Dataflow((*nodes, Node("t", "sink", (nodes[-1].name,), None))).validate()


def rows_of(path: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def check_bytes(flow: Dataflow, values: list[Any]) -> None:
    expected = [digest(value) for value in reference_run(flow, len(values), ALLOW)]
    assert [digest(value) for value in values] == expected


@pytest.mark.parametrize(
    ("top", "moves", "code"),
    [
        pytest.param("", 0, LARGEST, marks=pytest.mark.long),
        pytest.param("running", 100, LARGEST, marks=pytest.mark.long),
        ("", 100, RUNNING),
    ],
    ids=["plain", "stateful", "merging"],
)
def test_random_shapes_on_sockets_lose_and_duplicate_no_partition(
    cluster: LocalCluster, tmp_path: Path, top: str, moves: int, code: Code
) -> None:
    flow, path, count = crowded(top, code), tmp_path / "client.jsonl", 150 if moves else 500
    placement = dict.fromkeys(flow.operators, "h1")
    values: list[Any] = []
    with (
        Client(cluster, allow=ALLOW, records=path) as client,
        client.run(flow, placement) as run,
    ):
        mover = RandomMover(RandomReshapes(count, moves, seed=3), run, client.hosts, [code])
        for delivered in run:
            mover.on_delivered()
            assert delivered.index == len(values)
            values.append(delivered.value)
            if not mover.left and len(values) % 50 == 0:
                break
            assert len(values) < 500 * count, f"{mover.left} moves and changes are missing"
    check_bytes(flow, values)
    outcomes = [row["detail"]["outcome"] for row in rows_of(path, "reshaped")]
    assert outcomes.count("reshaped") >= count  # one that was asked for anew may have come twice before it was seen


def test_stateful_operators_appear_on_the_hosts_that_the_application_names(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The states are images of 48 KB, which are bulk."""
    sources = {
        host: Code("runtime_codes:Pictures", {"site": i, "sizes": [[160, 200], [200, 240]]})
        for i, host in enumerate(HOSTS)
    }
    flow, path = star_tree(sources, RUNNING), tmp_path / "client.jsonl"
    names, sink = flow.sources, flow.by_name[flow.sinks[0]]
    shapes = [
        Dataflow(
            (
                *(flow.by_name[name] for name in names),
                Node("x", "operator", below, RUNNING),
                Node("y", "operator", ("x", *(name for name in names if name not in below)), RUNNING),
                msgspec.structs.replace(sink, inputs=("y",)),
            )
        )
        for below in ((names[0], names[3]), (names[2], names[1]))
    ]
    values: list[Any] = []
    with (
        Client(cluster, allow=ALLOW, records=path) as client,
        client.run(flow, dict.fromkeys(flow.operators, "h1")) as run,
    ):
        for delivered in run:
            values.append(delivered.value)
            if len(values) in (40, 80):
                run.reshape(shapes[len(values) == 80], {"x": "h2", "y": "h3" if len(values) == 40 else "client"})
            if len(values) >= 120 and run.placement[run.dataflow.by_name[sink.name].inputs[0]] == "client":
                break
            assert len(values) < 5000
    check_bytes(flow, values)
    rows = rows_of(path, "reshaped")
    assert [row["detail"]["outcome"] for row in rows] == ["reshaped"] * 2
    (merged,) = rows_of(path, "merged")  # the second; h3 has the record of the first
    assert merged["size_bytes"] > 2 * 200 * 240
    assert len(merged["detail"]["of"]) == 2


def test_an_application_can_change_the_tree_of_a_run(cluster: LocalCluster, tmp_path: Path) -> None:
    flow, path = crowded("running"), tmp_path / "client.jsonl"
    names = flow.sources
    new = Dataflow(
        (
            *(flow.by_name[name] for name in names),
            Node("x", "operator", names[:3], LARGEST),
            Node("y", "operator", names[3:], LARGEST),
            Node("z", "operator", ("x", "y"), LARGEST),
            Node("p", "operator", ("z",), Code("running")),
            Node("t", "sink", ("p",), None),
        )
    )
    values: list[Any] = []
    with (
        Client(cluster, allow=ALLOW, records=path) as client,
        client.run(flow, {"o": "h1", "p": "h1"}) as run,
    ):
        for delivered in run:
            values.append(delivered.value)
            if len(values) == 20:
                run.reshape(new, {"x": "h2", "y": "h3", "z": "client", "p": "h4"})
            if run.placement["p"] == "h4":  # it moves when the tree has changed
                break
            assert len(values) < 5000
        assert {
            name.partition("~")[0]: host for name, host in run.placement.items() if name in run.dataflow.operators
        } == {
            "x": "h2",
            "y": "h3",
            "z": "client",
            "p": "h4",
        }
        mixed = msgspec.structs.replace(new.by_name["p"], inputs=("x",))
        wrong = Dataflow(
            (*new.nodes[: len(names)], Node("x", "operator", names, Code("runtime_codes:Mix")), mixed, new.nodes[-1])
        )
        with pytest.raises(DataflowError, match="operator 'x' cannot appear: its code is not reorderable"):
            run.reshape(wrong, {"x": "h1", "p": "h4"})
        with pytest.raises(PlacementError, match="the placement leaves out operator 'x'"):
            run.reshape(new, {})
    check_bytes(flow, values)
    (row,) = rows_of(path, "reshaped")
    assert row["detail"]["outcome"] == "reshaped"
    assert row["duration_s"] > 0


class Alternates:
    """A user's planner, which changes the shape at every call."""

    name = "alternates"

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def plan(self, task: Task, model: Any) -> PlanResult:
        dataflow, current = task.dataflow, task.current
        assert current is not None
        self.asked.append(dataflow.operators)
        assert set(current) == set(dataflow.by_name)
        sources = {dataflow.by_name[name].pinned: name for name in dataflow.sources}
        nodes = [dataflow.by_name[name] for name in dataflow.sources]
        order = sorted(sources.values(), reverse=len(self.asked) % 2 == 0)
        nodes += [
            Node("a", "operator", tuple(order[:2]), LARGEST),
            Node("b", "operator", ("a", *order[2:]), LARGEST),
            Node("sink", "sink", ("b",), None, "client"),
        ]
        flow = Dataflow(tuple(nodes))
        where = {name: flow.by_name[name].pinned or "h2" for name in flow.by_name}
        return PlanResult(where, flow, cost_s=1.0 / len(self.asked), initial_cost_s=2.0)


def test_a_planner_can_change_the_tree_of_a_run(cluster: LocalCluster, tmp_path: Path) -> None:
    flow, planner = star_tree(SOURCES, LARGEST), Alternates()
    values: list[Any] = []
    with (
        Client(cluster, allow=ALLOW, records=tmp_path / "client.jsonl") as client,
        client.run(flow, {"op0": "h1"}, adaptation=GlobalMoves(0.05), planning=Planning(planner=planner)) as run,
    ):
        for delivered in run:
            values.append(delivered.value)
            if len(set(planner.asked)) >= 4:
                break
            assert len(values) < 20_000, planner.asked
    check_bytes(flow, values)
    rows = rows_of(tmp_path / "client.jsonl", "reshaped")
    assert [row["detail"]["outcome"] for row in rows][:2] == ["reshaped", "reshaped"]
    assert {row["detail"]["decision"] for row in rows_of(tmp_path / "client.jsonl", "plan")} == {"propose"}
