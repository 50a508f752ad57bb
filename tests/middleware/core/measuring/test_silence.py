"""Detection of a dead route between two hosts that both reach the client, without false alarms."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import msgspec
import pytest
from adversary import CLIENT, SCRIPTED, SCRIPTED_PLACEMENT, Scripted
from playbook import ANY, Playbook, got
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]

CONFIG = CoreConfig(liveness_s=4.0, lease_s=6.0, ping_s=1.0)
PING = e.Send(R, "h1", m.Ping(None))


@pytest.fixture
def waiting(make_book: Book, make_install: Make) -> Playbook:
    """h2, whose operator waits for its input from h1; demands are repeated until 3.5 s."""
    book = make_book("h2", CONFIG)
    book << got(CLIENT, make_install()) >> ANY
    book << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1)) >> ANY
    for at_s in (0.5, 1.5, 3.5):
        book.at(at_s) << fired("retry") >> ANY
        assert PING not in book.commands
    return book


def test_a_host_awaited_in_vain_is_pinged_and_then_reported_to_the_client(waiting: Playbook) -> None:
    waiting.at(7.5) << fired("retry") >> ANY
    assert waiting.only(e.SetTimer)[0] == alarm("silence", 8.5)
    assert PING in waiting.commands
    for at_s in (8.5, 9.5, 10.5):
        waiting.at(at_s) << fired("silence") >> [PING, alarm("silence", at_s + 1.0)]
    why = "host 'h1', which holds 's', has not answered it for 4 s; is a way cut?"
    report = e.Send(R, CLIENT, m.Failed(R, "o", why, lost="h1"))
    for at_s in (11.5, 12.5):  # as long as it is so: a word of it may be lost
        (waiting.at(at_s) << fired("silence") >> [PING, report, alarm("silence", at_s + 1.0)])


def test_a_host_that_was_suspended_restarts_the_suspicion_of_peers(waiting: Playbook) -> None:
    waiting.at(7.5) << fired("retry") >> ANY
    waiting.at(30.0) << e.Woke(22.0) >> ANY
    for at_s in (30.5, 31.5, 32.5, 33.5):
        waiting.at(at_s) << fired("silence") >> ANY
        assert not [message for message in waiting.sent(CLIENT) if isinstance(message, m.Failed)]
    waiting.at(34.5) << fired("silence") >> ANY
    assert [message.lost for message in waiting.sent(CLIENT)] == ["h1"]


def test_a_pong_ends_a_suspicion_and_other_messages_do_not(waiting: Playbook) -> None:
    """Messages from h1 do not show that the route to h1 works."""
    waiting.at(7.5) << fired("retry") >> ANY
    waiting << got("h1", m.Ping(None)) >> [e.Send(R, "h1", m.Pong(None, True))]
    waiting.at(8.5) << fired("silence") >> [PING, alarm("silence", 9.5)]
    waiting << got("h1", m.Pong(None, True)) >> []
    waiting.at(9.5) << fired("silence") >> []
    (
        waiting
        << got("a host of no run here", m.Ping(None))
        >> [e.Send(NO_RUN, "a host of no run here", m.Pong(None, True))]
    )
    waiting.at(11.5) << fired("retry") >> ANY
    assert PING not in waiting.commands  # it has answered lately
    waiting.at(19.5) << fired("retry") >> ANY
    assert PING in waiting.commands


def test_pings_stop_when_the_awaited_partition_arrives(waiting: Playbook) -> None:
    waiting.at(7.5) << fired("retry") >> ANY
    waiting << e.MessageReceived("h1", m.Partition(R, "s", "o", 0), b"", 0) >> ANY
    waiting.at(8.5) << fired("silence") >> []


def test_pings_stop_when_the_run_is_removed(waiting: Playbook) -> None:
    waiting.at(7.5) << fired("retry") >> ANY
    waiting << got(CLIENT, m.Remove(R)) >> ANY
    waiting.at(8.5) << fired("silence") >> []


def test_a_producer_with_failing_transfers_reports_the_silent_host_of_the_consumer(
    make_book: Book, make_install: Make
) -> None:
    """The consumer's demands may come through another host, to which an operator has moved."""
    book = make_book("h1", CONFIG)
    book << got(CLIENT, make_install()) >> ANY
    book << got("h2", m.Demand(R, "s", "o", 0, 0, 1)) >> ANY
    book << e.OperatorFinished(R, "s", 0, b"", 0) >> ANY
    failed, ping = e.TransferFailed("h2", m.Partition(R, "s", "o", 0)), e.Send(R, "h2", m.Ping(None))
    book.at(3.0) << failed >> []
    book.at(5.0) << failed >> [alarm("silence", 6.0), ping]
    for at_s in (6.0, 7.0, 8.0, 9.0):
        book.at(at_s) << fired("silence") >> ANY
    why = "host 'h2', which holds 'o', has not answered it for 4 s; is a way cut?"
    assert book.sent(CLIENT) == [m.Failed(R, "s", why, lost="h2")]


WAYS = [(a, b) for a, b in itertools.permutations(("h1", "h3", "h5"), 2) if {a, b} != {"h1", "h5"}]


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_the_error_names_both_hosts_when_a_needed_route_is_cut_for_good(source: str, target: str) -> None:
    world = Scripted(lambda world: len(world.delivered) == 5, lambda world: world.cut.add((source, target)), last_s=1e6)
    world.run()
    assert world.failed is not None
    match = re.fullmatch(
        r"node '\w+' on host '(h\d)': host '(h\d)', which holds '\w+', has not answered it for 3 s; is a way cut\?",
        world.failed,
    )
    assert match is not None, world.failed
    assert set(match.groups()) == {source, target}
    assert world.now > 2 * SCRIPTED.liveness_s


@pytest.mark.parametrize(("source", "target"), [("h1", "h2"), ("h4", "h3"), ("h5", "h6"), ("h1", "h5")])
def test_a_cut_of_an_unused_route_does_not_end_the_run(source: str, target: str) -> None:
    world = Scripted(
        lambda world: len(world.delivered) == 5, lambda world: world.cut.add((source, target)), last_s=30.0
    )
    world.run()
    assert {SCRIPTED_PLACEMENT[name] for name in ("s1", "o", "r")} == {"h1", "h3", "h5"}
    assert world.failed is None
    assert world.delivered_s[-1] > 30.0


PART = m.Partition(R, "s", "o", 0)
TO_H2 = e.Send(R, "h2", m.Ping(None))


def stalled(idle_s: float, via: str = NET) -> e.TransferStalled:
    return e.TransferStalled("h2", PART, idle_s, via)


@pytest.fixture
def sending(make_book: Book, make_install: Make) -> Playbook:
    """h1, whose source's partition does not get through to h2."""
    book = make_book("h1", msgspec.structs.replace(CONFIG, stall_s=12.0))
    book << got(CLIENT, make_install()) >> ANY
    book << got("h2", m.Demand(R, "s", "o", 0, 0, 1)) >> ANY
    return book


def test_a_route_that_carries_only_control_messages_is_redialled_and_then_reported(
    sending: Playbook,
) -> None:
    sending.at(3.0) << stalled(3.0) >> [TO_H2]
    sending.at(3.1) << got("h2", m.Pong(None, True)) >> []
    sending.at(4.0) << stalled(4.0) >> [e.Redial(R, "h2")]
    for at_s in range(5, 13):
        sending.at(at_s) << stalled(at_s) >> []
    sending.at(13.0) << stalled(13.0) >> ANY
    why = (
        "nothing has got through to host 'h2' for 12 s: control messages pass, partitions do not;"
        " is port 2 open? is the path MTU smaller?"
    )
    assert sending.only(e.Send) == [e.Send(R, CLIENT, m.Failed(R, "s", why, lost="h2"))]


def test_a_route_that_carries_nothing_is_neither_redialled_nor_reported(sending: Playbook) -> None:
    for at_s in range(3, 40):
        sending.at(at_s) << stalled(at_s) >> ANY
        assert not sending.only(e.Redial)
        assert not sending.sent(CLIENT)


def test_a_resumed_transfer_resets_the_stall_time(sending: Playbook) -> None:
    """An outage of 10 s in each quarter of an hour does not make a route dead."""
    for begun_s in (0.0, 900.0, 1800.0):
        for idle_s in range(3, 11):
            sending.at(begun_s + idle_s) << stalled(idle_s) >> ANY
            sending.at(begun_s + idle_s + 0.1) << got("h2", m.Pong(None, True)) >> []
            assert not sending.sent(CLIENT)
        sending.at(begun_s + 11) << stalled(0.0) >> []


def played(book: Playbook, answer_s: Callable[[float], float], until_s: int) -> tuple[float, float]:
    """Return the times of the redial and of the client's notification, if pings are answered after ``answer_s``."""
    redialled_s = told_s = math.inf
    due_s: list[float] = []
    for at_s in range(3, until_s):
        book.at(at_s) << stalled(at_s) >> ANY
        redialled_s = min(redialled_s, at_s) if book.only(e.Redial) else redialled_s
        told_s = min(told_s, at_s) if book.sent(CLIENT) else told_s
        due_s += [at_s + answer_s(at_s)] * any(isinstance(message, m.Ping) for message in book.sent("h2"))
        for _ in [at for at in due_s if at <= at_s]:
            book.at(at_s + 0.5) << got("h2", m.Pong(None, True)) >> ANY
        due_s = [at for at in due_s if at > at_s]
    return redialled_s, told_s


def test_slow_answers_lengthen_the_tolerated_stall(sending: Playbook) -> None:
    """A queue of 10 s before a link delays the answers as it does the first bytes of a new connection."""
    redialled_s, told_s = played(sending, lambda _: 10.0, 120)
    assert 30 <= redialled_s < told_s
    assert 66 <= told_s < 90


def test_lost_answers_delay_the_report_only_briefly(sending: Playbook) -> None:
    """The return route is cut as well for 60 s. Afterwards the route for bulk stays dead."""
    redialled_s, told_s = played(sending, lambda at_s: math.inf if at_s < 60 else 0.0, 240)
    assert 60 <= redialled_s < told_s < 60 + 4 * 12


def test_a_stalled_state_transfer_is_given_up_without_a_report_to_the_client(sending: Playbook) -> None:
    state = m.State(R, "o", 1, 0, 0, 10_000_000, "")
    for idle_s in range(3, 13):
        sending.at(idle_s) << e.TransferStalled("h2", state, idle_s) >> ANY
        sending.at(idle_s + 0.1) << got("h2", m.Pong(None, True)) >> []
    sending.at(13.0) << e.TransferStalled("h2", state, 13.0) >> [e.Redial(R, "h2", NET, again=False)]
    assert not sending.sent(CLIENT)


def test_a_stalled_transfer_to_a_host_of_no_local_run_is_ignored(sending: Playbook) -> None:
    for idle_s in range(3, 30):
        sending.at(idle_s) << e.TransferStalled("h9", msgspec.structs.replace(PART, run=run_of("q")), idle_s) >> []


# --- runs that outlive their hosts --------------------------------------------------------------------

LASTING = CoreConfig(retry_s=0.5, ping_s=2.0, liveness_s=15.0, detect_s=3.0)
TO_H1 = e.Send(R, "h1", m.Ping(None))


def lasting_book(make_book: Book, make_install: Make, **limits: float) -> Playbook:
    """h2, whose operator demands its input from h1 at 0 s and has not waited before."""
    book = make_book("h2", msgspec.structs.replace(LASTING, **limits))
    book << got(CLIENT, msgspec.structs.replace(make_install(), failover=m.Failover())) >> ANY
    book << got(CLIENT, m.Demand(R, "o", "t", 0, 0, 1)) >> ANY
    assert alarm("silence", 1.0) in book.commands
    assert TO_H1 in book.commands  # how long does an answer take?
    return book


@pytest.mark.parametrize("lease_s", [20.0, 60.0, 600.0])
def test_a_run_with_failover_reports_a_cut_route_within_detect_s_independent_of_the_lease(
    make_book: Book, make_install: Make, lease_s: float
) -> None:
    book = lasting_book(make_book, make_install, lease_s=lease_s)
    book.at(0.1) << got("h1", m.Pong(None, True)) >> []
    book.at(1.0) << fired("silence") >> [alarm("silence", 2.0)]
    told_s = next(at_s for at_s in range(2, 12) if fires(book, float(at_s)))
    why = "host 'h1', which holds 's', has not answered it for 3 s; is a way cut?"
    assert book.sent(CLIENT) == [m.Failed(R, "o", why, lost="h1")]
    assert told_s <= 5  # 3 s after its last sign of life, looked after once a second


def fires(book: Playbook, at_s: float) -> bool:
    """Return whether the check at ``at_s`` reports a lost host."""
    book.at(at_s) << fired("silence") >> ANY
    return bool(book.sent(CLIENT))


def test_a_host_with_slow_answers_gets_more_time(make_book: Book, make_install: Make) -> None:
    book = lasting_book(make_book, make_install)
    asked_s = 0.0
    for round_trip_s in (4.0, 6.0, 5.0, 7.0):
        for at_s in range(int(asked_s), int(asked_s + round_trip_s)):
            assert not fires(book, float(at_s))
        book.at(asked_s + round_trip_s) << got("h1", m.Pong(None, True)) >> ANY
        asked_s += round_trip_s + 1.0
    assert not any(fires(book, asked_s + after_s) for after_s in range(7))


def test_a_host_that_was_suspended_reports_no_peer(make_book: Book, make_install: Make) -> None:
    book = lasting_book(make_book, make_install)
    book.at(1.0) << fired("silence") >> ANY
    book.at(1.1) << got("h1", m.Pong(None, True)) >> ANY
    assert not fires(book, 3.0)
    assert not fires(book, 40.0)  # it was stopped meanwhile
    book.at(40.1) << got("h1", m.Pong(None, True)) >> ANY
    assert not fires(book, 41.0)


def test_a_demand_is_repeated_at_once_when_the_peer_is_reachable_again(sending: Playbook, waiting: Playbook) -> None:
    waiting.at(7.5) << fired("retry") >> ANY  # the next one would be at 15.5 s
    waiting.at(9.0) << e.PeerReached("h1") >> [alarm("retry", 9.0)]
    waiting << fired("retry") >> ANY
    assert [type(sent) for sent in waiting.sent("h1")] == [m.Demand]
    waiting.at(9.1) << e.PeerReached("h3") >> []
