"""Hosts that were away and come back into a run that continued without them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from playbook import ANY, Playbook, got
from run_ids import R, fired, run_of

from thalweg.middleware.core.failover.recovery import resumed
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

H2, H3, H4 = (m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2") for name in ("h2", "h3", "h4"))


def test_a_loss_report_older_than_the_return_of_the_host_is_ignored(make_book: Any, make_install: Any) -> None:
    book = make_book("h1")
    book << got("client", make_install(others=("h3",))) >> ANY
    hosts, before = {"client", "h1", "h2"}, m.Lost(R, "h3", ())
    book << got("client", before) >> ANY
    assert book.core.runs[R].directory.hosts == hosts
    book << got("client", m.AddMember(R, 1, H3, host=True)) >> ANY  # the same instance: it was only away
    book << got("client", before) >> []
    assert book.core.runs[R].directory.hosts == hosts | {"h3"}
    book << got("client", replace(before, number=1)) >> ANY
    assert book.core.runs[R].directory.hosts == hosts


def test_a_joining_host_ignores_older_membership_messages(make_book: Any, make_install: Any) -> None:
    book = make_book("h1")
    book << got("client", replace(make_install(others=("h3",)), number=2)) >> ANY
    for late in (m.Lost(R, "h3", (), 1), m.AddMember(R, 1, H4, host=True)):
        book << got("client", late) >> ANY
    assert book.core.runs[R].directory.hosts == {"client", "h1", "h2", "h3"}


def test_a_loss_report_carries_the_number_of_the_last_join(make_book: Any, make_install: Any) -> None:
    book, numbers = make_book("client"), []
    book << e.RunRequested(make_install(others=("h3",)), None) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    for number in range(2):
        book << e.PeerLost(R, "h3", "went away") >> ANY
        numbers += [message.number for message in book.sent("h1") if isinstance(message, m.Lost)]
        book << e.PeerJoined(R, H3) >> ANY
        assert [message.number for message in book.sent("h3") if isinstance(message, m.Install)] == [number + 1]
        for host in ("h1", "h2"):
            book << got(host, m.Detached(R, number + 1)) >> ANY
        book << got("h3", m.Installed(R, "h3")) >> []  # late
        assert "joined" not in book.recorded()
        book << got("h3", m.Installed(R, "h3", number=number + 1)) >> ANY
        assert "joined" in book.recorded()
    assert numbers == [0, 1]


def test_a_host_takes_part_while_the_stand_in_of_a_source_is_away(make_book: Any, make_install: Any) -> None:
    """This holds in a run that continues, and in a run that another client resumes."""
    plain = make_install({"o": "h3"}, others=("h2", "h4"))
    nodes = [replace(node, stand_ins=("h4",) if node.kind == "source" else ()) for node in plain.dataflow.nodes]
    client = make_book("client")
    install = replace(replace(plain, dataflow=Dataflow(tuple(nodes))), failover=m.Failover())
    client << e.RunRequested(install, None, journaled=True) >> ANY
    (resumable,) = [keep.kept for keep in client.only(e.Keep)]
    for host in ("h1", "h2", "h3", "h4"):
        client << got(host, m.Installed(R, host)) >> ANY
    client << e.PeerLost(R, "h4", "is gone") >> ANY
    client << e.PeerLost(R, "h2", "is gone") >> ANY
    client << e.PeerJoined(R, H2) >> ANY
    peers = {peer.name: peer for peer in install.peers if peer.name != "h4"}
    again = resumed(resumable, {"t": 5}, peers, "client")
    assert {peer.name for peer in again.peers} == {"client", "h1", "h2", "h3", "h4"}
    (joins,) = [message for message in client.sent("h2") if isinstance(message, m.Install)]
    for asked in (joins, again):
        book = make_book("h2")
        book << got("client", asked) >> ANY
        assert [message.error for message in book.sent("client") if isinstance(message, m.Installed)] == [""]


def test_a_recovery_includes_a_joining_host_with_the_new_instance(make_book: Any, make_install: Any) -> None:
    """A second host is lost before the joining host has answered. The joining host is invited as its new instance."""
    install = replace(make_install(others=("h3",)), failover=m.Failover())
    book, again = make_book("client"), replace(H3, instance="again")
    book << e.RunRequested(install, None) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << e.PeerLost(R, "h3", "went away") >> ANY
    book << e.PeerJoined(R, again) >> ANY
    book << e.PeerLost(R, "h1", "went away") >> ANY
    (asked,) = [message for message in book.sent("h3") if isinstance(message, m.Install)]
    assert asked.run == run_of("r~1")
    assert again in asked.peers
    assert len({peer.name for peer in asked.peers}) == len(asked.peers)


@pytest.mark.parametrize("holds", [False, True])
def test_a_returned_host_without_nodes_learns_of_hosts_that_joined_meanwhile(
    make_book: Any, make_install: Any, holds: bool
) -> None:
    host, install = "h2" if holds else "h3", make_install(others=("h3",))
    book = make_book(host)
    book << got("client", install) >> ANY
    again = replace(install, peers=(*install.peers, H4), number=2)
    book << got("client", again) >> ANY
    (answer,) = book.sent("client")
    assert (type(answer), bool(answer.error)) == (m.Installed, holds)  # nothing that is there is dropped
    assert ("h4" in book.core.runs[R].directory.hosts) is not holds
    book << got("client", install) >> ANY  # late
    assert book.sent("client") == [m.Installed(R, host)]
    assert ("h4" in book.core.runs[R].directory.hosts) is not holds


def test_a_host_lost_while_joining_is_not_awaited(make_book: Any, make_install: Any) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install(), None) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << e.PeerJoined(R, H3) >> ANY
    assert "h3" in book.core.runs[R].directory.hosts
    book << e.PeerLost(R, "h3", "ended") >> ANY
    assert "h3" not in book.core.runs[R].directory.hosts
    for host in ("h1", "h2"):
        book << got(host, m.Detached(R, 1)) >> ANY
    book << e.PeerJoined(R, H4) >> ANY  # nobody waits for the other one any more
    assert [message.peer.name for message in book.sent("h1") if isinstance(message, m.AddMember)] == ["h4"]


def test_a_returned_host_refuses_an_invalid_install_message(make_book: Any, make_install: Any) -> None:
    book, install = make_book("h3"), make_install(others=("h3",))
    book << got("client", install) >> ANY
    book << got("client", replace(install, locations=(), number=1)) >> ANY
    (answer,) = book.sent("client")
    assert "has no location" in answer.error
    assert book.core.runs[R].install is install


def test_a_query_waits_for_a_joining_host_only_once_despite_repeated_joins(make_book: Any, make_install: Any) -> None:
    book, install = make_book("client"), make_install(others=("h3",))
    book << e.RunRequested(install, None) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    for _ in range(3):
        book << e.PeerJoined(R, H4) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Detached(R, 1)) >> ANY
    query = Dataflow((install.dataflow.by_name["s"], Node("u", "sink", ("s",), None, "client")))
    book << e.AttachRequested(R, 1, query, {"s": "h1", "u": "client"}) >> ANY
    book << e.PeerLost(R, "h4", "went away") >> ANY
    assert [message.number for message in book.sent("h1") if isinstance(message, m.Propose)] == [1]
    assert not [message for message in book.sent("h4") if isinstance(message, m.Install)]


def _away(make_book: Any, make_install: Any) -> Playbook:
    """Return the client of a run with failover, which two hosts without nodes have left."""
    book: Playbook = make_book("client")
    install = make_install(others=("h3", "h4"))
    book << e.RunRequested(replace(install, failover=m.Failover()), None) >> ANY
    for host in ("h1", "h2", "h3", "h4"):
        book << got(host, m.Installed(R, host)) >> ANY
    for host in ("h3", "h4"):
        book << e.PeerLost(R, host, "went away") >> ANY
    return book


def _wait_in_vain(book: Playbook) -> list[Any]:
    """Let time pass until the join of a host has failed. Return the messages to h1 meanwhile."""
    limits = book.core.config
    messages = []
    for host in ("client", "h1", "h2"):
        book << got(host, m.Detached(R, book.core.runs[R].directory.number)) >> ANY
    until_s = book.now + limits.patience * limits.liveness_s + limits.ping_s
    while book.now < until_s:
        book.at(book.now + limits.ping_s)
        for host in ("h1", "h2"):
            book << got(host, m.Pong(R)) >> ANY
        book << fired("leave r") >> ANY
        messages += book.sent("h1")
    return messages


def _says_hello(book: Playbook, peer: m.Peer, instance: str = "") -> list[m.Peer]:
    """Have an absent host answer. Return the hosts that h1 is notified of."""
    limit = peer.max_partition_bytes
    book << got(peer.name, m.Welcome(peer.name, peer.control, peer.bulk, (), instance, limit)) >> ANY
    return [message.peer for message in book.sent("h1") if isinstance(message, m.AddMember)]


@pytest.mark.parametrize("what", ["query", "placement"])
def test_hosts_that_fail_to_join_delay_a_change_for_a_single_join_at_most(
    make_book: Any, make_install: Any, what: str
) -> None:
    """Each host says hello again and again, but only small messages reach it."""
    book = _away(make_book, make_install)
    flow = book.core.runs[R].tree.dataflow
    query = Dataflow((flow.by_name["s"], Node("u", "sink", ("s",), None, "client")))
    assert _says_hello(book, H3) == [H3]
    assert _says_hello(book, H4) == []
    if what == "query":
        book << e.AttachRequested(R, 1, query, {"s": "h1", "u": "client"}) >> ANY
    else:
        book << e.PlacementProposed(R, {"o": "h1"}, "asked for") >> ANY
    messages = _wait_in_vain(book)
    assert [type(message) for message in messages if isinstance(message, m.Propose | m.AddMember)] == [m.Propose]


def test_invitations_of_a_host_that_fails_to_join_become_rarer_until_a_restart(
    make_book: Any, make_install: Any
) -> None:
    book = _away(make_book, make_install)
    within_s = book.core.config.patience * book.core.config.liveness_s
    for rest in (1, 2, 4):
        assert _says_hello(book, H3) == [H3]
        _wait_in_vain(book)
        failed_s = book.now
        assert _says_hello(book, H3) == []
        book.at(failed_s + rest * within_s - 2 * book.core.config.ping_s)
        assert _says_hello(book, H3) == []
        book.at(failed_s + rest * within_s + 0.01)
    assert _says_hello(book, H3) == [H3]
    _wait_in_vain(book)
    assert _says_hello(book, H3) == []
    assert _says_hello(book, H3, "again") == [replace(H3, instance="again")]


def test_a_returned_host_that_refuses_a_run_is_asked_again_only_later(make_book: Any, make_install: Any) -> None:
    book = _away(make_book, make_install)
    assert _says_hello(book, H3) == [H3]
    for host in ("client", "h1", "h2"):
        book << got(host, m.Detached(R, 1)) >> ANY
    book << got("h3", m.Installed(R, "h3", "it takes part in 64 runs", 1)) >> ANY
    assert "fault" in book.recorded()
    assert _says_hello(book, H3) == []
    book.at(book.now + book.core.config.patience * book.core.config.liveness_s)
    assert _says_hello(book, H3) == [H3]


@pytest.mark.parametrize("what", ["query", "host", "refusal"])
@pytest.mark.parametrize("lasting", [True, False], ids=["failover", "plain"])
def test_a_host_that_answers_pings_but_no_announcements_is_lost(
    make_book: Any, make_install: Any, what: str, lasting: bool
) -> None:
    book, install = make_book("client"), make_install(others=("h3",))
    book << e.RunRequested(replace(install, failover=m.Failover()) if lasting else install, None) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Installed(R, host)) >> ANY
    query = Dataflow((install.dataflow.by_name["s"], Node("u", "sink", ("s",), None, "client")))
    if what == "host":
        book << e.PeerJoined(R, H4) >> ANY
        book << got("h4", m.Installed(R, "h4", number=1)) >> ANY
        answer: Any = m.Detached(R, 1)
    else:
        book << e.AttachRequested(R, 1, query, {"s": "h1", "u": "client"}) >> ANY
        for host in ("client", "h1"):
            why = "no room" if what == "refusal" and host == "h1" else ""
            book << got(host, m.Vote(R, 1, host, 0, why)) >> ANY
        answer = m.Done(R, 1, "h1")
    for host in ("h1", "h2", "client"):
        book << got(host, answer) >> ANY
    book << e.AttachRequested(R, 2, query, {"s": "h1", "u": "client"}) >> ANY
    asked, faults, silent_s = [], list[str](), book.core.config.patience * book.core.config.liveness_s
    while book.now < silent_s + 2.0:
        book.at(book.now + 0.5)
        for host in sorted(book.core.runs[R].directory.hosts - {"client"}):
            book << got(host, m.Pong(R)) >> ANY
        for timer in ("barrier r", "leave r"):
            book << fired(timer) >> ANY
            asked += [message for message in book.sent("h1") if isinstance(message, m.Propose)]
            faults += [record.fields["detail"]["what"] for record in book.only(e.Record) if record.kind == "fault"]
            assert not asked or book.now > silent_s
    assert faults == [
        f"has not answered for {silent_s:g} s to a message that all hosts get; the run goes on without it"
    ]
    assert asked


def test_a_client_that_was_suspended_gives_no_host_up(make_book: Any, make_install: Any) -> None:
    book = _away(make_book, make_install)
    silent_s = book.core.config.patience * book.core.config.liveness_s
    assert _says_hello(book, H3) == [H3]
    book.at(10 * silent_s) << e.Woke(10 * silent_s - 1.0) >> ANY
    book << fired("leave r") >> ANY
    assert [record for record in book.only(e.Record) if record.kind == "fault"] == []
    assert "h3" in book.core.runs[R].directory.hosts
    for host in ("client", "h1", "h2"):
        book << got(host, m.Detached(R, 1)) >> ANY
    book << got("h3", m.Installed(R, "h3", number=1)) >> ANY
    assert "joined" in book.recorded()


@pytest.mark.parametrize("lasting", [True, False], ids=["failover", "plain"])
def test_an_operator_on_a_host_that_fails_to_join_is_recovered_or_fails_the_run(
    make_book: Any, make_install: Any, lasting: bool
) -> None:
    """All other hosts know that ``h3`` has joined, so ``o`` moves there before ``h3`` answers the client."""
    book, install = make_book("client"), make_install()
    book << e.RunRequested(replace(install, failover=m.Failover()) if lasting else install, None) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << e.PeerJoined(R, H3) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Detached(R, 1)) >> ANY
    book << got("h2", m.Relocated(R, "o", True, m.Location("o", "h3", 2), "")) >> ANY
    assert book.core.runs[R].directory.locations["o"].host == "h3"
    book.at(book.core.config.patience * book.core.config.liveness_s + 0.1) << fired("leave r") >> ANY
    if lasting:
        (run,) = book.core.runs.values()
        assert (run.id, run.directory.locations["o"].host) == (run_of("r~1"), "h1")
    else:
        why = "host 'h3', which holds o, has not joined the run within 15 s"
        assert [failure.reason for failure in book.only(e.Fail)] == [why]
