"""Subscribers of a run, from the view of its client and of the subscribers. Fault plans have more of them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, fired

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves

GUEST = m.Peer("g", "tcp://g:1", "tcp://g:2", "1")
AGAIN = msgspec.structs.replace(GUEST, instance="2")
OWNER = m.Peer("client", "tcp://client:1", "tcp://client:2", "1")


@pytest.fixture
def client(make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]) -> Playbook:
    """The client of a run that continues and lets ``g`` subscribe. Nothing is demanded."""
    book = make_book("client")
    book << e.RunRequested(make_install()) >> ANY
    for name in ("h1", "h2"):
        book << got(name, m.Installed(R, name)) >> ANY
    book << e.SubscribersAllowed(R, 0, frozenset({"g"})) >> []
    return book


def subscribed(book: Playbook, number: int = 7, peer: m.Peer = GUEST) -> list[m.Message]:
    book << got("g", m.Subscribe(R, number, "s", peer)) >> ANY
    return book.sent()


def test_a_guest_that_fails_during_admission_ends_only_the_subscription(client: Playbook) -> None:
    admit = next(word for word in subscribed(client) if isinstance(word, m.AddMember))
    client << got("g", m.Failed(R, "", "it broke")) >> []
    assert client.core.runs[R].parts.get(Queries).why == {-1: "it broke"}
    for host in ("client", "h1", "h2"):
        client << got(host, m.Detached(R, admit.number)) >> ANY
    assert m.SubscriptionEnded(R, 7, "it broke") in client.sent("g")


def test_a_guest_with_an_ended_process_leaves_at_once_also_during_admission(client: Playbook) -> None:
    admit = next(word for word in subscribed(client) if isinstance(word, m.AddMember))
    assert client.only(e.Watch) == [e.Watch(R, "g")]
    client << e.PeerLost(R, "g", "has closed its connections") >> ANY
    for host in ("client", "h1", "h2"):
        client << got(host, m.Detached(R, admit.number)) >> ANY
    assert m.SubscriptionEnded(R, 7, "it has closed its connections") in client.sent("g")
    assert client.only(e.Unwatch) == [e.Unwatch(R, "g")]


def test_a_restarted_guest_ends_only_the_subscriptions_of_the_earlier_process(client: Playbook) -> None:
    admit = next(word for word in subscribed(client) if isinstance(word, m.AddMember))
    for _ in range(3):
        subscribed(client, 8, AGAIN)
    subscribed(client, 9, AGAIN)
    assert client.only(e.Meet) == [e.Meet(R, (AGAIN,))], "what it is told before it is let in reaches it"
    for host in ("h1", "h2"):
        client << got(host, m.Detached(R, admit.number)) >> ANY
    assert [word.number for word in client.sent("g") if isinstance(word, m.SubscriptionEnded)] == [7]
    assert [guest.peer for guest in client.core.runs[R].parts.get(Queries).subscribers.values()] == [AGAIN, AGAIN]


def test_a_subscription_that_ended_without_a_reason_stays_ended(client: Playbook) -> None:
    admit = next(word for word in subscribed(client) if isinstance(word, m.AddMember))
    client << got("g", m.Failed(R, "", "")) >> ANY
    for host in ("h1", "h2"):
        client << got(host, m.Detached(R, admit.number)) >> ANY
    assert [type(word) for word in subscribed(client)] == [m.SubscriptionEnded]


@pytest.mark.parametrize("odd", [{"moves": LocalMoves()}, {"news": ("latency",)}, {"news": True}, {"afresh": True}])
def test_a_guest_refuses_an_invitation_that_asks_for_decisions(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install], odd: dict[str, object]
) -> None:
    book = make_book("g")
    book << e.SubscribeRequested(R, 7, "s", OWNER) >> ANY
    install = msgspec.structs.replace(make_install(), news=False)
    book << got("client", m.InstallSubscriber(R, 7, "s@g~1", msgspec.structs.replace(install, **odd))) >> ANY
    (answer,) = book.sent("client")
    assert "measurements and decisions of hosts" in answer.error
    assert not book.core.runs
    book << got("client", m.InstallSubscriber(R, 7, "s@g~1", install)) >> ANY
    assert m.Installed(R, "g") in book.sent("client")


@pytest.mark.parametrize(("kind", "taken"), [("sink", True), ("operator", False)])
def test_a_guest_joins_while_a_sink_of_an_ended_subscription_is_in_the_graph(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install], kind: str, taken: bool
) -> None:
    """The guest has ended one subscription and requested another, before the client had removed the first."""
    book, before = make_book("g"), msgspec.structs.replace(make_install(), news=False)
    book << e.SubscribeRequested(R, 8, "s", OWNER) >> ANY
    code = None if kind == "sink" else before.dataflow.by_name["o"].code
    nodes = [Node("o@g~1", kind, ("s",), code, "g")]
    if not taken:
        nodes.append(Node("t2", "sink", ("o@g~1",), None, "client"))
    flow = Dataflow((*before.dataflow.nodes, *nodes))
    where = (*before.locations, *[m.Location(node.name, node.pinned or "", 1) for node in nodes])
    install = msgspec.structs.replace(before, dataflow=flow, locations=where, number=1)
    book << got("client", m.InstallSubscriber(R, 8, "s@g~2", install)) >> ANY
    assert [bool(answer.error) for answer in book.sent("client")] == [not taken]
    if taken:
        book << got("client", m.Detach(R, 4, ("o@g~1",))) >> ANY
        assert not book.core.runs[R].flow.nodes


@pytest.mark.parametrize("silent", [m.Commit, m.Detach])
def test_a_guest_that_answers_only_pings_does_not_delay_other_guests_for_ever(
    client: Playbook, silent: type[m.Message]
) -> None:
    """The guest answers pings, but does not confirm a query that begins or a query that has left."""
    answers: dict[type[m.Message], Callable[[str, int], m.Message]] = {
        m.Ping: lambda _, __: m.Pong(R),
        m.AddMember: lambda _, number: m.Detached(R, number),
        m.Detach: lambda _, number: m.Detached(R, number),
        m.InstallSubscriber: lambda to, _: m.Installed(R, to),
        m.Propose: lambda to, number: m.Vote(R, number, to, -1),
        m.Commit: lambda to, number: m.Done(R, number, to),
    }
    k = m.Peer("k", "tcp://k:1", "tcp://k:2", "1")
    begun = []

    def tell(*told: e.Event) -> None:
        """Handle the events, and the answers to the messages that follow."""
        waiting = deque(told)
        while waiting:
            client << waiting.popleft() >> ANY
            begun.extend(started.query for started in client.only(e.QueryStarted))
            for send in client.only(e.Send):
                if type(send.message) in answers and (send.to, type(send.message)) != ("g", silent):
                    answer = answers[type(send.message)](send.to, getattr(send.message, "number", 0))
                    waiting.append(got(send.to, answer))

    tell(e.SubscribersAllowed(R, 0, frozenset({"g", "k"})))
    for name, number, peer in (("g", 7, GUEST), ("k", 1, k), ("k", 2, k)):
        tell(got(name, m.Subscribe(R, number, "s", peer)))
    tell(got("k", m.Unsubscribe(R, 1)))
    for second in range(60):
        client.at(float(second))
        tell(*[fired(f"{timer} r") for timer in ("barrier", "leave", "ping")])
    tell(got("k", m.Subscribe(R, 3, "s", k)))
    assert begun == [-1, -2, -3, -4]
    assert {guest.peer.name for guest in client.core.runs[R].parts.get(Queries).subscribers.values()} == {"k"}
    client << e.PlacementProposed(R, {"o": "h1"}, "asked for") >> ANY
    assert client.core.runs[R].parts.get(Proposer).proposal is not None


def test_a_readmitted_guest_takes_the_current_graph(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    """The client had lost the guest, and a query has begun meanwhile. A copy of the first invitation comes late."""
    book, before = make_book("g"), msgspec.structs.replace(make_install(), news=False)
    for number, node in ((7, "s"), (8, "o2")):
        book << e.SubscribeRequested(R, number, node, OWNER) >> ANY
    first = m.InstallSubscriber(R, 7, "s@g~1", before)
    book << got("client", first) >> ANY
    book << got("client", m.SubscriptionEnded(R, 7, "it was given up")) >> ANY
    more = Node("o2", "operator", ("s",), before.dataflow.by_name["o"].code)
    flow = Dataflow((*before.dataflow.nodes, more, Node("t2", "sink", ("o2",), None, "client")))
    where = (*before.locations, m.Location("o2", "h2", 1), m.Location("t2", "client", 1))
    now = msgspec.structs.replace(before, dataflow=flow, locations=where, number=1)
    for _ in range(2):
        book << got("client", m.InstallSubscriber(R, 8, "o2@g~2", now)) >> ANY
        assert book.sent("client") == [m.Installed(R, "g")]
        book << got("client", first) >> ANY
    end = Node("o2@g~2", "sink", ("o2",), None, "g")
    sink = m.Graft(end.name, end.inputs, "g", end)
    book << got("client", m.Propose(R, 3, (), m.Shape((sink,), ()))) >> ANY
    assert [message.error for message in book.sent("client") if isinstance(message, m.Vote)] == [""]
    book << got("client", m.Commit(R, 3, 4, (), "a query", m.Shape((sink,), ()))) >> ANY
    assert [(started.query, started.first_index) for started in book.only(e.QueryStarted)] == [(8, 5)]
    later = msgspec.structs.replace(now, dataflow=Dataflow((*flow.nodes, end)), number=2)
    book << got("client", m.InstallSubscriber(R, 8, "o2@g~2", later)) >> ANY
    assert "o2@g~2" in book.core.runs[R].flow.nodes, "what has begun stays"


def test_a_started_sink_stays_when_a_late_invitation_arrives(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    """The client mistook an earlier answer for the answer to this invitation, whose graph lacks the sink."""
    book, before = make_book("g"), msgspec.structs.replace(make_install(), news=False)
    for number in (7, 8):
        book << e.SubscribeRequested(R, number, "s", OWNER) >> ANY
    book << got("client", m.InstallSubscriber(R, 7, "s@g~1", before)) >> ANY
    book << got("client", m.SubscriptionEnded(R, 7, "it was given up")) >> ANY
    end = Node("s@g~2", "sink", ("s",), None, "g")
    shape = m.Shape((m.Graft(end.name, end.inputs, "g", end),), ())
    book << got("client", m.Propose(R, 3, (), shape)) >> ANY
    book << got("client", m.Commit(R, 3, 4, (), "a query", shape)) >> ANY
    late = m.InstallSubscriber(R, 8, "s@g~2", msgspec.structs.replace(before, number=1))
    for _ in range(2):
        book << got("client", late) >> ANY
        assert book.sent("client") == [m.Installed(R, "g")]
        assert [*book.core.runs[R].flow.nodes] == ["s@g~2"]


def test_a_readmitted_guest_is_sent_a_later_graph(client: Playbook) -> None:
    invitations = [word for word in subscribed(client) if isinstance(word, m.InstallSubscriber)]
    client << e.PeerLost(R, "g", "is gone") >> ANY
    subscribed(client, 8)
    for number, host in itertools.product((1, 2), ("h1", "h2")):
        client << got(host, m.Detached(R, number)) >> ANY
        invitations += [word for word in client.sent("g") if isinstance(word, m.InstallSubscriber)]
    first, second = (word.install.number for word in invitations)
    assert first < second


def test_the_error_of_a_guest_names_the_client_that_has_ended_the_run(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install]
) -> None:
    book = make_book("g")
    book << e.SubscribeRequested(R, 7, "s", OWNER) >> ANY
    (
        book
        << got("client", m.InstallSubscriber(R, 7, "s@g~1", msgspec.structs.replace(make_install(), news=False)))
        >> ANY
    )
    book << got("client", m.Remove(R)) >> ANY
    why = "subscription to 's' of run r: client 'client' has ended the run"
    assert [failure.reason for failure in book.only(e.Fail)] == [why]
