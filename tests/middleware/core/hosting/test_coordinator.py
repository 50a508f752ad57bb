"""The client's part of the core: installing, watching and removing a run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from playbook import ANY, Playbook, got
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.core.hosting.coordinator import MOST_REPEATED, REMOVE_TRIES
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]

CONFIG = CoreConfig(retry_s=0.5, retry_max_s=8.0, ping_s=2.0, liveness_s=5.0)


def lost(host: str, why: str) -> e.Fail:
    return e.Fail(R, why, host=host, lost=True)


def pings(*hosts: str) -> list[e.Command]:
    return [e.Send(R, host, m.Ping(R)) for host in hosts]


@pytest.fixture
def asked(make_book: Book, make_install: Make) -> Playbook:
    """A client that has asked h1 and h2 to install the chain."""
    install = make_install()
    book = make_book("client", CONFIG)
    (
        book
        << e.RunRequested(install)
        >> [
            e.Meet(R, install.peers),
            e.OpenRun(install, ("t",)),
            e.Send(R, "h1", install),
            e.Send(R, "h2", install),
            alarm("install r", 0.5),
            alarm("ping r", 2.0),
        ]
    )
    return book


@pytest.fixture
def ready(asked: Playbook) -> Playbook:
    """The same client after both hosts have installed the run."""
    asked << got("h1", m.Installed(R, "h1")) >> []
    asked << got("h2", m.Installed(R, "h2")) >> [e.Ready(R)]
    return asked


def test_a_run_on_the_client_alone_is_ready_at_once(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install({"s": "client", "o": "client"})) >> ANY
    assert book.only(e.Ready) == [e.Ready(R)]
    book << e.RunAbandoned(R) >> [e.CloseRun(R), e.Forgotten(R)]


def test_the_install_message_is_repeated_to_hosts_that_have_not_answered(asked: Playbook, make_install: Make) -> None:
    install = make_install()
    (
        asked.at(0.5)
        << fired("install r")
        >> [
            e.Send(R, "h1", install),
            e.Send(R, "h2", install),
            alarm("install r", 2.5),
        ]
    )
    asked << got("h2", m.Installed(R, "h2")) >> []
    (asked.at(2.5) << fired("install r") >> [e.Send(R, "h1", install), alarm("install r", 4.5)])
    asked << got("h2", m.Installed(R, "h2")) >> []  # repeated
    asked << got("h9", m.Installed(R, "h9")) >> []  # a stranger
    asked << got("h1", m.Installed(R, "h1")) >> [e.Ready(R)]
    asked << got("h1", m.Installed(R, "h1")) >> []
    asked.at(4.5) << fired("install r") >> []


def test_a_host_that_cannot_take_part_ends_the_run(asked: Playbook) -> None:
    refusal = m.Installed(R, "h2", "node 'o' has no location")
    why = "host 'h2', which holds o, cannot take part: node 'o' has no location"
    asked << got("h2", refusal) >> [e.Fail(R, why, host="h2")]
    asked << got("h1", m.Installed(R, "h1")) >> []
    asked << got("h2", refusal) >> []  # one failure is enough


def test_a_host_that_answers_but_never_installs_ends_the_run(asked: Playbook) -> None:
    asked << got("h1", m.Installed(R, "h1")) >> []
    for now in (2.0, 4.0):
        asked.at(now) << fired("ping r") >> [*pings("h1"), alarm("ping r", now + 2)]
        asked << got("h1", m.Pong(R)) >> []
        asked << got("h2", m.Welcome("h2", "tcp://h2:1", "tcp://h2:2")) >> []
    reason = "host 'h2', which holds o, did not install the run within 5 s"
    asked.at(6.0) << fired("ping r") >> [*pings("h1"), lost("h2", reason)]


def test_a_silent_host_ends_the_run_and_the_error_names_the_held_nodes(ready: Playbook) -> None:
    for now in (2.0, 4.0):
        (ready.at(now) << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", now + 2)])
        ready << got("h2", m.Pong(R)) >> []
    (ready.at(6.0) << fired("ping r") >> [lost("h1", "host 'h1', which holds s, has been silent for 5 s")])
    ready.at(8.0) << fired("ping r") >> []


def test_patience_lengthens_the_time_that_a_host_may_be_silent(make_book: Book, make_install: Make) -> None:
    book = make_book("client", msgspec.structs.replace(CONFIG, patience=2.0))
    book << e.RunRequested(make_install()) >> ANY
    for now in (2.0, 4.0, 6.0, 8.0, 10.0):
        book.at(now) << fired("ping r") >> [alarm("ping r", now + 2)]
    reason = "host 'h1', which holds s, did not install the run within 10 s"
    book.at(11.0) << fired("ping r") >> [lost("h1", reason)]


def test_every_message_is_a_sign_of_life(ready: Playbook) -> None:
    ready.at(4.0) << got("h1", m.Demand(run_of("another"), "a", "b", 0)) >> []
    ready << got("h2", m.Pong(R)) >> []
    ready.at(8.0) << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", 10.0)]


def test_a_client_that_was_suspended_grants_hosts_a_fresh_period_once(ready: Playbook) -> None:
    ready.at(22.0) << e.Woke(21.0) >> []
    ready << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", 24.0)]
    ready.at(24.0) << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", 26.0)]
    ready.at(26.0) << e.Woke(1.0) >> []  # so soon again: the period of 5 s goes on
    ready << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", 28.0)]
    reason = "host 'h1', which holds s, has been silent for 5 s"
    ready.at(28.0) << fired("ping r") >> [lost("h1", reason)]


def test_a_late_first_ping_counts_against_no_host(ready: Playbook) -> None:
    ready.at(22.0) << fired("ping r") >> [*pings("h1", "h2"), alarm("ping r", 24.0)]


def test_an_error_after_a_short_sleep_of_the_client_names_both_possible_reasons(ready: Playbook) -> None:
    ready.at(20.0) << e.Woke(19.0) >> []
    why = "was its process restarted, or did its lease_s end, as this client did not run for 19 s?"
    reason = f"host 'h2', which holds o, no longer knows the run; {why}"
    ready << got("h2", m.Pong(R, False)) >> [lost("h2", reason)]


def test_an_error_after_a_sleep_longer_than_the_lease_names_the_sleep(ready: Playbook) -> None:
    ready.at(70.0) << e.Woke(69.0) >> []
    slept = "this client did not run for 69 s, and a host waits for 60 s (lease_s)"
    reason = f"host 'h2', which holds o, has dropped the run, as {slept}"
    ready << got("h2", m.Pong(R, False)) >> [lost("h2", reason)]


def test_a_host_that_no_longer_knows_the_run_ends_the_run(ready: Playbook) -> None:
    ready << got("h9", m.Pong(R, False)) >> []
    reason = "host 'h2', which holds o, no longer knows the run; was its process restarted?"
    ready << got("h2", m.Pong(R, False)) >> [lost("h2", reason)]


def welcome(host: str, instance: str) -> m.Welcome:
    return m.Welcome(host, f"tcp://{host}:1", f"tcp://{host}:2", (), instance)


def test_a_host_restarted_before_the_installation_is_asked_again(asked: Playbook, make_install: Make) -> None:
    install = make_install()
    now = tuple(msgspec.structs.replace(p, instance="again") if p.name == "h2" else p for p in install.peers)
    renewed = msgspec.structs.replace(install, peers=now)
    asked << got("h2", welcome("h2", "again")) >> [e.Send(R, "h2", renewed)]
    asked << got("h2", welcome("h2", "again")) >> []  # it has been asked already
    asked << got("h9", welcome("h9", "again")) >> []
    asked << got("h2", m.Installed(R, "h2")) >> []
    asked << got("h1", m.Installed(R, "h1")) >> [e.Ready(R)]


def test_a_lower_limit_of_a_restarted_host_is_announced_to_all_hosts(asked: Playbook, make_install: Make) -> None:
    """Hosts that had answered and the client itself are notified too, before the first demand."""
    install = make_install()
    changed = {"instance": "again", "max_partition_bytes": 1000}
    now = tuple(msgspec.structs.replace(p, **changed) if p.name == "h2" else p for p in install.peers)
    renewed = msgspec.structs.replace(install, peers=now)
    asked << got("h1", m.Installed(R, "h1")) >> []
    answer = msgspec.structs.replace(welcome("h2", "again"), max_partition_bytes=1000)
    sends = [e.Send(R, host, renewed) for host in ("h1", "h2")]
    asked << got("h2", answer) >> [*sends, e.Meet(R, install.peers)]
    asked << got("h2", m.Installed(R, "h2")) >> []
    asked << got("h1", m.Installed(R, "h1")) >> [e.Ready(R)]


def test_a_partition_larger_than_the_lowered_limit_of_a_peer_fails(make_book: Book, make_install: Make) -> None:
    install, book = make_install(), make_book("h1")
    less = tuple(msgspec.structs.replace(peer, max_partition_bytes=1000) for peer in install.peers)
    for message in (install, msgspec.structs.replace(install, peers=less), install):  # the last one comes late
        book << got("client", message) >> ANY
    book << got("h2", m.Demand(R, "s", "o", 0)) >> [e.RunOperator(R, "s", 0)]
    book << e.OperatorFinished(R, "s", 0, bytes(1001), 1001) >> ANY
    (failed,) = book.sent("client")
    assert "1001 bytes; host 'client' takes at most 1000 (its limit max_partition_bytes)" in failed.reason


def test_a_host_restarted_after_the_installation_is_lost(ready: Playbook) -> None:
    ready << got("h2", welcome("h2", "")) >> []
    ready << got("h2", welcome("h2", "again")) >> [lost("h2", "host 'h2', which holds o, was restarted")]


def test_an_unknown_run_is_no_failure_before_its_installation_or_after_its_removal(asked: Playbook) -> None:
    asked << got("h1", m.Installed(R, "h1")) >> []
    asked << got("h2", m.Pong(R, False)) >> []
    asked << got("h2", m.Installed(R, "h2")) >> [e.Ready(R)]
    asked << e.RunAbandoned(R) >> ANY
    asked << got("h2", m.Pong(R, False)) >> []


def test_a_lost_peer_ends_the_run_at_once(ready: Playbook) -> None:
    ready << e.PeerLost(R, "h9") >> []
    ready << e.PeerLost(R, "h2") >> [lost("h2", "host 'h2', which holds o, went away")]
    ready << e.PeerLost(R, "h1") >> []


def test_the_error_of_failing_code_names_the_node_and_the_host(make_book: Book, make_install: Make) -> None:
    client, host = make_book("client"), make_book("h2")
    client << e.RunRequested(make_install()) >> ANY
    host << got("client", make_install()) >> ANY
    host << got("client", m.Demand(R, "o", "t", 0)) >> ANY
    cause = m.Cause(3, "ValueError", "Traceback …")
    failed = m.Failed(R, "o", "ValueError at partition 3: no", cause)
    host << e.OperatorFailed(R, "o", "ValueError at partition 3: no", cause) >> [e.Send(R, "client", failed)]
    reason = "node 'o' on host 'h2': ValueError at partition 3: no"
    again = m.Demand(R, "o", "t", 0, again=True)
    host << got("client", again) >> [e.Send(R, "client", failed)]  # the first was lost
    client << got("h2", failed) >> [e.Fail(R, reason, "o", "h2", cause=cause)]
    client << got("h2", failed) >> []


def test_a_loss_reported_by_a_peer_is_attributed_to_the_lost_host(ready: Playbook) -> None:
    why = "node 'o' on host 'h2': host 'h1', which holds s, has not answered it for 60 s; is a way cut?"
    report = m.Failed(R, "o", why.partition(": ")[2], lost="h1")
    ready << got("h2", report) >> [e.Fail(R, why, "o", "h1", lost=True)]


def test_failing_code_on_the_client_ends_the_run(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install({"o": "client"})) >> ANY
    book << e.OperatorFailed(R, "o", "no") >> [e.Fail(R, "node 'o' on host 'client': no", "o", "client")]


def test_a_long_reason_is_cut_to_the_size_of_a_message(make_book: Book, make_install: Make) -> None:
    host = make_book("h2")
    host << got("client", make_install()) >> ANY
    host << e.OperatorFailed(R, "o", "é" * 10_000) >> ANY
    (failed,) = host.sent("client")
    assert frames.decode_control(frames.encode(failed)) == failed


def test_the_remove_message_is_repeated_until_all_hosts_have_answered(ready: Playbook) -> None:
    remove = m.Remove(R)
    (
        ready
        << e.RunAbandoned(R)
        >> [
            e.CloseRun(R),
            e.Send(R, "h1", remove),
            e.Send(R, "h2", remove),
            alarm("remove r", 0.5),
        ]
    )
    ready << e.RunAbandoned(R) >> []
    ready << got("h1", m.Removed(R, "h1")) >> []
    (ready.at(0.5) << fired("remove r") >> [e.Send(R, "h2", remove), alarm("remove r", 1.0)])
    ready << fired("ping r") >> []
    ready << got("h2", m.Removed(R, "h2")) >> [e.Forgotten(R)]
    ready << got("h2", m.Removed(R, "h2")) >> []
    ready.at(1.0) << fired("remove r") >> []


def test_the_removal_is_given_up_after_the_maximum_number_of_tries(ready: Playbook) -> None:
    ready << e.RunAbandoned(R) >> ANY
    tries = 1
    while e.Forgotten(R) not in ready.commands:
        ready.at(ready.now + 0.5) << fired("remove r") >> ANY
        tries += len(ready.sent("h1"))
    assert tries == REMOVE_TRIES


def test_a_run_closed_during_the_installation_is_removed(asked: Playbook) -> None:
    asked << e.RunAbandoned(R) >> ANY
    assert asked.sent() == [m.Remove(R), m.Remove(R)]
    asked << got("h1", m.Installed(R, "h1")) >> []
    asked << got("h2", m.Installed(R, "h2", "too late")) >> []
    asked.at(0.5) << fired("install r") >> []


@pytest.fixture
def spare(make_book: Book, make_install: Make) -> Playbook:
    """A client whose run is ready, with h1 and h2, which hold nodes, and h3, which does not."""
    install = make_install()
    install = msgspec.structs.replace(install, peers=(*install.peers, m.Peer("h3", "tcp://h3:1", "tcp://h3:2")))
    book = make_book("client", CONFIG)
    book << e.RunRequested(install) >> ANY
    assert len(book.sent("h3")) == 1
    book << got("h1", m.Installed(R, "h1")) >> []
    book << got("h2", m.Installed(R, "h2")) >> [e.Ready(R)]  # h3 is not waited for
    return book


def test_a_lost_host_that_holds_nothing_does_not_end_the_run(spare: Playbook) -> None:
    spare << got("h3", m.Installed(R, "h3")) >> []
    lost = m.Lost(R, "h3", ())
    spare << got("h3", m.Pong(R, False)) >> [e.Send(R, "h1", lost), e.Send(R, "h2", lost)]
    assert spare.recorded() == ["fault"]
    assert spare.core.runs[R].directory.hosts == {"client", "h1", "h2"}
    spare << e.PeerLost(R, "h3") >> []
    spare.at(2.0) << fired("ping r") >> ANY  # again: it may have been lost, and has no answer
    assert spare.sent("h1") == [m.Ping(R), lost]
    assert spare.sent("h3") == []


def test_a_host_that_cannot_take_part_and_holds_nothing_is_left_out(spare: Playbook) -> None:
    spare << got("h3", m.Installed(R, "h3", "no disk")) >> ANY
    assert spare.core.runs[R].directory.hosts == {"client", "h1", "h2"}
    spare.at(0.5) << fired("install r") >> []


def test_an_operator_found_later_on_a_lost_host_ends_the_run(spare: Playbook) -> None:
    spare << e.PeerLost(R, "h3") >> ANY
    commit = m.Located(R, (m.Location("o", "h3", 2),))
    reason = "host 'h3', which holds o, went away"
    spare << got("h2", commit) >> [e.OperatorMoved(R, "o", "h3"), lost("h3", reason)]
    spare << got("h2", commit) >> []


def test_a_host_reports_newer_locations_on_a_lost_host(make_book: Book, make_install: Make) -> None:
    book = make_book("h1")
    book << got("client", make_install(others=("h3",))) >> ANY
    book << got("h2", m.Located(R, (m.Location("o", "h3", 2),))) >> []
    report = e.Send(R, "client", m.Located(R, (m.Location("o", "h3", 2),)))
    for _ in range(2):
        book << got("client", m.Lost(R, "h3", ())) >> [report]
    book << got("h9", m.Lost(R, "h2", ())) >> []  # only the client's word counts
    book << got("client", m.Lost(R, "h3", (m.Location("o", "h2", 3),))) >> []


@pytest.mark.parametrize(
    "event",
    [
        e.PeerLost(R, "h2"),
        got("h2", m.Pong(R, False)),
        got("h2", m.Welcome("h2", "tcp://h2:1", "tcp://h2:2", (), "another")),
    ],
    ids=lambda event: type(getattr(event, "message", event)).__name__,
)
def test_a_stranger_of_the_clients_name_cannot_end_the_client(
    make_book: Book, make_install: Make, event: e.Event
) -> None:
    """The stranger removes the run at the client. The client watches the hosts, and removes the run from them later."""
    book = make_book("client", CONFIG)
    peers = make_install().peers  # h2 holds nothing
    install = msgspec.structs.replace(make_install({"o": "h1"}), peers=peers)
    book << e.RunRequested(install) >> ANY
    for host in ("h1", "h2"):
        book << got(host, m.Installed(R, host)) >> ANY
    book << got("client", m.Remove(R)) >> ANY
    book << event >> ANY
    assert not book.only(e.Fail)
    book.at(2.0) << fired("ping r") >> ANY
    assert m.Ping(R) in book.sent("h1")
    book << e.RunAbandoned(R) >> [e.Send(R, "h1", m.Remove(R)), alarm("remove r", 2.5)]


# --- stripes of a stream ------------------------------------------------------------------------------

FOUR = tuple(map(R.of_stripe, range(4)))
TOGETHER = m.Ping(run_of("r/0"), (run_of("r/1"), run_of("r/2"), run_of("r/3")))


@pytest.fixture
def striped(make_book: Book, make_install: Make) -> Playbook:
    """A client whose stream goes over four times the same chain, which all hosts have installed."""
    book = make_book("client", CONFIG)
    requests = tuple(e.RunRequested(msgspec.structs.replace(make_install(), run=run)) for run in FOUR)
    book << e.StripesRequested(R, requests, (0.25,) * 4, 8, 10) >> ANY
    for run in FOUR:
        book << got("h1", m.Installed(run, "h1")) >> ANY
        book << got("h2", m.Installed(run, "h2")) >> ANY
    return book


def test_the_stripes_of_a_stream_share_a_ping(striped: Playbook) -> None:
    """The number of messages does not grow with the number of stripes. The answer counts for all stripes."""
    for now in (2.0, 4.0, 6.0, 8.0):
        striped.at(now) << fired("ping r") >> ANY
        assert striped.only(e.Send) == [e.Send(run_of("r/0"), host, TOGETHER) for host in ("h1", "h2")]
        assert alarm("ping r", now + 2) in striped.commands
        for host in ("h1", "h2"):
            striped << got(host, m.Pong(run_of("r/0"))) >> []
    assert striped.core.coordinator.goes_on(run_of("r/3"))


def test_a_host_that_is_silent_is_lost_to_every_stripe(striped: Playbook) -> None:
    for now in (2.0, 4.0):
        striped.at(now) << fired("ping r") >> ANY
        striped << got("h2", m.Pong(run_of("r/0"))) >> []
    striped.at(6.0) << fired("ping r") >> ANY
    (failed,) = striped.only(e.Fail)
    assert (failed.run, failed.host, failed.lost) == (R, "h1", True)


def test_a_stripe_unknown_to_a_host_fails_alone(striped: Playbook) -> None:
    striped << got("h2", m.Pong(run_of("r/1"), False)) >> ANY
    assert not striped.only(e.Fail), "the others carry what it had"
    striped.at(2.0) << fired("ping r") >> ANY
    pings = [send.message for send in striped.only(e.Send) if isinstance(send.message, m.Ping)]
    assert pings == [m.Ping(run_of("r/0"), (run_of("r/2"), run_of("r/3")))] * 2


def test_a_host_answers_a_shared_ping_for_all_stripes_and_renews_the_leases(
    make_book: Book, make_install: Make
) -> None:
    book = make_book("h1", msgspec.structs.replace(CONFIG, lease_s=6.0))
    for run in FOUR:
        book << got("client", msgspec.structs.replace(make_install(), run=run)) >> ANY
    for now in (3.0, 6.0, 9.0):
        book.at(now) << got("client", TOGETHER) >> [e.Send(run_of("r/0"), "client", m.Pong(run_of("r/0")))]
        book << fired("lease") >> ANY
    assert sorted(book.core.runs, key=str) == list(FOUR)
    book << got("client", m.Remove(run_of("r/0"))) >> ANY
    no, yes = (e.Send(run, "client", m.Pong(run, known)) for run, known in ((FOUR[0], False), (FOUR[1], True)))
    book << got("client", TOGETHER) >> [no, yes]
    book.at(16.0) << fired("lease") >> ANY
    assert not book.core.runs


def test_a_shared_ping_names_the_hosts_lost_to_continuing_stripes(make_book: Book, make_install: Make) -> None:
    book = make_book("client", CONFIG)
    install = make_install(others=("h3",))
    requests = tuple(e.RunRequested(msgspec.structs.replace(install, run=run)) for run in FOUR)
    book << e.StripesRequested(R, requests, (0.25,) * 4, 8, 10) >> ANY
    for run in FOUR:
        for host in ("h1", "h2", "h3"):
            book << got(host, m.Installed(run, host)) >> ANY
        book << got("h3", m.Pong(run, False)) >> ANY
    book.at(2.0) << fired("ping r") >> ANY
    assert [send.to for send in book.only(e.Send)] == ["h1", "h2"]
    ping = book.only(e.Send)[0].message
    assert [(loss.run, loss.host) for loss in ping.lost] == [(run, "h3") for run in FOUR]
    peer = make_book("h1")
    for run in FOUR:
        peer << got("client", msgspec.structs.replace(install, run=run)) >> ANY
    peer << got("client", ping) >> ANY
    assert all("h3" in run.directory.lost for run in peer.core.runs.values())


# --- many stripes at once -----------------------------------------------------------------------------

SIX = tuple(map(R.of_stripe, range(6)))


@pytest.fixture
def offered(make_book: Book, make_install: Make) -> Playbook:
    """A client whose stream goes over six times the same chain, as it asks the hosts to install the stripes."""
    book = make_book("client", CONFIG)
    requests = tuple(e.RunRequested(msgspec.structs.replace(make_install(), run=run)) for run in SIX)
    book << e.StripesRequested(R, requests, (1 / 6,) * 6, 8, 10) >> ANY
    return book


def installs(book: Playbook, host: str) -> list[RunId]:
    """Return the runs that the client just asked a host to install."""
    return [message.run for message in book.sent(host) if isinstance(message, m.Install)]


def test_only_the_first_unanswered_stripes_are_repeated_to_a_host(offered: Playbook) -> None:
    def repeated(now: float) -> list[list[RunId]]:
        sent: dict[str, list[RunId]] = {"h1": [], "h2": []}
        offered.at(now)
        for run in SIX:
            offered << fired(f"install {run}") >> ANY
            for host, runs in sent.items():
                runs += installs(offered, host)
        return [*sent.values()]

    for host in ("h1", "h2"):
        assert installs(offered, host) == [*SIX], "each is sent once in any case"
    assert repeated(0.5) == [[*SIX[:MOST_REPEATED]]] * 2
    for run in SIX[:3]:
        offered << got("h2", m.Installed(run, "h2")) >> ANY
    assert repeated(2.5) == [[*SIX[:MOST_REPEATED]], [*SIX[3:]]]
    offered << e.PeerReached("h1") >> ANY
    assert installs(offered, "h1") == [*SIX], "messages get through again"
    for run in SIX:
        for host in ("h1", "h2"):
            offered << got(host, m.Installed(run, host)) >> ANY
    assert repeated(4.5) == [[], []]


def test_a_host_has_the_time_of_an_install_for_each_stripe_in_turn(offered: Playbook) -> None:
    """A host on a slow link is not lost while it installs one stripe after the other."""
    for place, run in enumerate(SIX):
        now = 3.0 * place
        offered.at(now) << fired("ping r") >> ANY
        assert not offered.only(e.Fail)
        for host in ("h1", "h2"):
            for earlier in SIX[:place]:
                offered << got(host, m.Pong(earlier)) >> ANY
            offered << got(host, m.Installed(run, host)) >> ANY
    assert offered.now > 2 * CONFIG.liveness_s
    assert not any(offered.core.coordinator.led[run].installing for run in SIX)


def test_a_host_that_installs_no_stripe_is_lost_to_all_at_once(offered: Playbook) -> None:
    for run in SIX:
        offered << got("h1", m.Installed(run, "h1")) >> ANY
    for now in (2.0, 4.0):
        offered.at(now) << fired("ping r") >> ANY
        offered << got("h1", m.Pong(SIX[0])) >> ANY
    offered.at(6.0) << fired("ping r") >> ANY
    (failed,) = offered.only(e.Fail)
    assert (failed.run, failed.reason) == (R, "host 'h2', which holds o, did not install the run within 5 s")
