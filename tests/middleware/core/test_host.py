"""One host's core: installing, local and remote edges, repeating, forwarding, measuring."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from flows import chain
from hypothesis import given
from hypothesis import strategies as st
from playbook import ANY, Playbook, got
from run_ids import R, alarm, fired, run_of

from thalweg.middleware.core.flow.demands import Demands
from thalweg.middleware.core.flow.directory import merge_locations
from thalweg.middleware.core.flow.forwards import MAX_FORWARDS
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.frames import SPEAKS
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN

Make = Callable[..., m.Install]
Book = Callable[..., Playbook]


def demand(
    producer: str, consumer: str, index: int, forwards: int = 0, version: int = 0, *, again: bool = False
) -> m.Demand:
    """Return a demand: as a host forwards it, or with ``version`` as the host of the consumer sends it."""
    return m.Demand(R, producer, consumer, index, forwards, version, again=again)


def partition(producer: str, consumer: str, index: int, *, end: bool = False, forwards: int = 0) -> m.Partition:
    return m.Partition(R, producer, consumer, index, end, forwards)


def installed(make_book: Book, install: m.Install, host: str, config: CoreConfig | None = None) -> Playbook:
    book = make_book(host, config)
    book << got("client", install) >> ANY
    return book


# --- installing -------------------------------------------------------------------------------------


def test_a_host_answers_hello_with_a_welcome(make_book: Book) -> None:
    welcome = m.Welcome("h1", "tcp://h1:1", "tcp://h1:2", ("composite",), speaks=SPEAKS)
    make_book("h1") << got("hello", m.Hello()) >> [e.Send(NO_RUN, "hello", welcome)]


def test_an_install_message_opens_the_run_once_and_is_answered_every_time(make_book: Book, make_install: Make) -> None:
    install = make_install({"o": "h1"})
    answer = e.Send(R, "client", m.Installed(R, "h1"))
    book = make_book("h1")
    (
        book
        << got("client", install)
        >> [
            e.Meet(R, install.peers),
            e.OpenRun(install, ("s", "o")),
            alarm("lease", 30.0),
            answer,
        ]
    )
    nodes = book.core.runs[R].flow.nodes
    book << got("client", install) >> [e.Meet(R, install.peers), answer]
    assert book.core.runs[R].flow.nodes is nodes


def test_an_installation_for_an_earlier_instance_of_the_host_opens_nothing(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", instance="second")
    install = make_install({"o": "h1"})

    def for_instance(instance: str) -> m.Install:
        peers = [msgspec.structs.replace(peer, instance=instance) for peer in install.peers]
        return msgspec.structs.replace(install, peers=tuple(peers))

    welcome = m.Welcome("h1", "tcp://h1:1", "tcp://h1:2", ("composite",), "second", speaks=SPEAKS)
    stale = for_instance("first")
    book << got("client", stale) >> [e.Send(NO_RUN, "client", welcome)]
    assert not book.core.runs
    book << got("client", for_instance("second")) >> ANY
    assert R in book.core.runs


def test_a_host_without_nodes_takes_part_too(make_book: Book, make_install: Make) -> None:
    install = make_install(others=("h9",))
    (
        make_book("h9")
        << got("client", install)
        >> [
            e.Meet(R, install.peers),
            e.OpenRun(install, ()),
            alarm("lease", 30.0),
            e.Send(R, "client", m.Installed(R, "h9")),
        ]
    )


def test_an_invalid_installation_is_refused_with_the_reason(make_book: Book, make_install: Make) -> None:
    book = make_book("h1")
    cycle = Dataflow(
        (
            Node("a", "operator", ("b",), Code("x")),
            Node("b", "operator", ("a",), Code("x")),
            Node("t", "sink", ("a",)),
        )
    )
    book << got("client", make_install(dataflow=cycle)) >> ANY
    (answer,) = book.sent("client")
    assert answer.host == "h1"
    assert "'a'" in answer.error
    lost = msgspec.structs.replace(make_install(), locations=(m.Location("s", "h1", 1), m.Location("t", "client", 1)))
    refusal = m.Installed(R, "h1", "node 'o' has no location")
    book << got("client", lost) >> [e.Send(R, "client", refusal)]
    install = make_install()
    ghost = msgspec.structs.replace(install, locations=(*install.locations, m.Location("ghost", "h1", 1)))
    refusal = m.Installed(R, "h1", "there is a location for 'ghost', which is no node")
    book << got("client", ghost) >> [e.Send(R, "client", refusal)]
    assert book.core.runs == {}


def test_a_remove_message_is_answered_every_time(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(), "h1")
    answer = e.Send(R, "client", m.Removed(R, "h1"))
    book << got("client", m.Remove(R)) >> [answer, e.CloseRun(R)]
    book << got("client", m.Remove(R)) >> [answer]
    book << got("client", make_install()) >> []  # it comes late, again
    assert book.core.runs == {}


def test_a_remove_message_of_an_unknown_run_is_answered_every_time(make_book: Book) -> None:
    book = make_book("h1")
    for _ in range(2):
        book << got("client", m.Remove(R)) >> [e.Send(R, "client", m.Removed(R, "h1"))]


def test_only_the_client_of_a_run_can_remove_the_run(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(), "h1")
    book << got("h2", m.Remove(R)) >> []
    assert book.recorded() == ["unexpected"]
    assert R in book.core.runs


def test_messages_of_unknown_runs_and_nodes_change_nothing(make_book: Book, make_install: Make) -> None:
    book = make_book("h1")
    book << got("h2", demand("s", "o", 0)) >> []
    book << got("h2", partition("s", "o", 0), b"x", 1) >> []
    book << got("h2", m.Located(R, (m.Location("s", "h2", 9),))) >> []
    book << e.OperatorFinished(R, "s", 0, b"x", 1) >> []
    book << e.OperatorFailed(R, "s", "no") >> []
    book << e.TransferMeasured("h2", partition("s", "o", 0), 8, 1.0) >> []
    book << e.TransferFailed("h2", partition("s", "o", 0)) >> []
    book << e.PeerLost(R, "h2") >> []
    book << e.NextRequested(R) >> []
    book << e.RunAbandoned(R) >> []
    book << fired("ping r") >> []
    book << got("client", make_install()) >> ANY
    book << got("h2", demand("nobody", "o", 0)) >> []
    assert book.recorded() == ["unexpected"]
    book << got("h2", demand("s", "t", 0)) >> []  # t does not consume s
    assert book.recorded() == ["unexpected"]
    book << got("h2", partition("o", "nobody", 0), b"x", 1) >> []
    assert book.recorded() == ["undeliverable"]
    book << e.NextRequested(R) >> []  # the sink is on another host
    book << e.OperatorFinished(R, "o", 0, b"x", 1) >> []


def test_a_broken_run_is_dropped_and_every_ping_of_the_client_gets_the_failure(
    make_book: Book, make_install: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = installed(make_book, make_install({"o": "h1"}, run=run_of("a")), "h1")
    book << got("client", make_install({"o": "h1"}, run=run_of("b"))) >> ANY
    due = fired("retry")  # of all runs
    broken, retry = book.core.runs[run_of("a")].flow.demands, Demands.retry

    def defect(demands: Demands) -> float | None:
        if demands is broken:
            raise KeyError("a defect")
        return retry(demands)

    monkeypatch.setattr(Demands, "retry", defect)
    with pytest.raises(KeyError):
        book.core.handle(due, book.now)
    assert book.core.at_fault(due) == run_of("a")
    failed = e.Send(run_of("a"), "client", m.Failed(run_of("a"), "", "why"))
    book << e.RunBroken(run_of("a"), "why") >> [failed, e.CloseRun(run_of("a"))]
    assert book.core.runs.keys() == {run_of("b")}
    book << due >> []
    book << got("client", make_install(run=run_of("a"))) >> []  # R1: late
    book << got("client", m.Ping(run_of("a"))) >> [failed]
    book << got("client", m.Ping(run_of("b"))) >> [e.Send(run_of("b"), "client", m.Pong(run_of("b"), True))]


def test_a_defect_on_the_client_fails_and_removes_the_run(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    install = make_install()
    book << e.RunRequested(install) >> ANY
    book << e.RunBroken(R, "why") >> [e.Fail(R, "why", host="client"), e.CloseRun(R)]
    book << e.RunAbandoned(R) >> ANY
    assert [book.core.coordinator.led[run].removing for run in book.core.coordinator.led] == [{"h1", "h2"}]
    book << e.RunBroken(R, "why") >> [e.CloseRun(R), e.Forgotten(R)]  # over its removal
    assert not book.core.coordinator.led
    answer = e.Send(run_of("x"), "h2", m.Installed(run_of("x"), "client", "why"))
    book << e.RunBroken(run_of("x"), "why", "h2") >> [answer, e.CloseRun(run_of("x"))]  # over its Install


def test_a_host_that_was_suspended_gives_clients_a_fresh_period(make_book: Book, make_install: Make) -> None:
    book = make_book("h1", CoreConfig(lease_s=10))
    book << got("client", make_install()) >> ANY
    (
        book.at(60)
        << e.Woke(59)
        >> [
            e.Record(
                R,
                "fault",
                {"peer": "h1", "detail": {"about": "itself", "what": "did not run for 59 s"}, "duration_s": 59},
            )
        ]
    )
    book << fired("lease") >> [alarm("lease", 65.0)]
    book.at(70) << fired("lease") >> [alarm("lease", 75.0)]
    book.at(75) << fired("lease") >> [e.CloseRun(R)]


def test_the_lease_of_a_silent_client_ends_and_the_run_is_dropped(make_book: Book, make_install: Make) -> None:
    config = CoreConfig(lease_s=10)
    book = installed(make_book, make_install(), "h1", config)
    book.at(4) << got("client", m.Ping(R)) >> [e.Send(R, "client", m.Pong(R, True))]
    book.at(5) << fired("lease") >> [alarm("lease", 10.0)]
    book.at(10) << fired("lease") >> [alarm("lease", 15.0)]
    book.at(15) << fired("lease") >> [e.CloseRun(R)]
    assert "fault" in book.recorded()
    book << got("client", m.Ping(R)) >> [e.Send(R, "client", m.Pong(R, False))]
    book << got("client", msgspec.structs.replace(make_install(), run=run_of("q"))) >> ANY  # a lease is watched again
    assert alarm("lease", 20.0) in book.commands


# --- edges ------------------------------------------------------------------------------------------


def test_a_remote_edge_demands_and_repeats_with_back_off(make_book: Book, make_install: Make) -> None:
    config = CoreConfig(retry_s=0.5, retry_max_s=2.0)
    book = installed(make_book, make_install(), "h2", config)
    ask = e.Send(R, "h1", demand("s", "o", 0, version=1))
    again = e.Send(R, "h1", demand("s", "o", 0, version=1, again=True))
    book.at(1.0) << got("client", demand("o", "t", 0)) >> [ask, alarm("retry", 1.5)]
    book.at(1.5) << fired("retry") >> [again, alarm("retry", 2.5)]
    book.at(2.5) << fired("retry") >> [again, alarm("retry", 4.5)]
    book.at(4.5) << fired("retry") >> [again, alarm("retry", 6.5)]  # 2 s is the most
    book << got("h1", partition("s", "o", 0), b"s0", 2) >> [e.RunOperator(R, "o", 0, (b"s0",))]
    book.at(6.5) << fired("retry") >> []
    # with nothing left to repeat, no timer runs until the next demand
    (
        book.at(7.0)
        << e.OperatorFinished(R, "o", 0, b"o0", 2)
        >> [
            e.Send(R, "client", partition("o", "t", 0), b"o0", 2, bulk=True),
            e.Send(R, "h1", demand("s", "o", 1, version=1)),
            alarm("retry", 9.0),  # the last answer took 3.5 s, twice which is more than the most
        ]
    )


@pytest.mark.parametrize(("answer_s", "patience_s"), [(0.1, 0.5), (0.4, 0.8), (1.5, 3.0), (5.0, 4.0)])
def test_a_demand_is_not_repeated_before_twice_the_time_of_the_last_answer(
    make_book: Book, make_install: Make, answer_s: float, patience_s: float
) -> None:
    book = installed(make_book, make_install(), "h2", CoreConfig(retry_s=0.5, retry_max_s=4.0))
    book << got("client", demand("o", "t", 0)) >> ANY
    (timer,) = book.only(e.SetTimer)
    while timer.at_s < answer_s:
        book.at(timer.at_s) << fired("retry") >> ANY  # the answer counts from the first demand on
        (timer,) = book.only(e.SetTimer)
    book.at(answer_s) << got("h1", partition("s", "o", 0), b"s0", 2) >> ANY
    book.at(timer.at_s) << fired("retry") >> []  # nothing is left to repeat
    book.at(9.0) << e.OperatorFinished(R, "o", 0, b"o0", 2) >> ANY
    assert [timer.at_s for timer in book.only(e.SetTimer)][-1] == 9.0 + patience_s
    book.at(9.0 + patience_s) << fired("retry") >> ANY
    assert book.sent("h1") == [demand("s", "o", 1, version=1, again=True)]
    assert book.only(e.SetTimer) == [alarm("retry", 9.0 + patience_s + min(2 * patience_s, 4.0))]


def test_a_repeated_demand_from_before_the_arrival_does_not_resend_a_partition(
    make_book: Book, make_install: Make
) -> None:
    book = installed(make_book, make_install(), "h1")
    book << got("h2", demand("s", "o", 0)) >> [e.RunOperator(R, "s", 0)]
    first = e.Send(R, "h2", partition("s", "o", 0), b"s0", 20_000, bulk=True)
    book << e.OperatorFinished(R, "s", 0, b"s0", 20_000) >> [first, e.RunOperator(R, "s", 1)]
    book.at(1.0) << got("h2", demand("s", "o", 0, again=True)) >> []  # it is under way
    book.at(2.0) << e.TransferMeasured("h2", first.message, 20_000, 2.0) >> ANY
    book.at(2.1) << got("h2", demand("s", "o", 0, again=True)) >> []
    assert book.recorded() == []
    book.at(4.0) << got("h2", demand("s", "o", 0, again=True)) >> ANY
    (again,) = book.only(e.Send)
    assert msgspec.structs.replace(again.message, news=None) == first.message
    assert book.recorded() == ["repeated"]
    book.at(5.0) << e.TransferFailed("h2", again.message) >> ANY
    book.at(5.1) << got("h2", demand("s", "o", 0, again=True)) >> ANY
    assert len(book.only(e.Send)) == 1  # nobody knows what became of it


def test_a_new_demand_is_repeated_soon_though_older_demands_have_backed_off(
    make_book: Book, make_install: Make
) -> None:
    book = make_book("h2", CoreConfig(retry_s=0.5, retry_max_s=8.0))
    for run in (R, run_of("q")):
        book << got("client", make_install(run=run)) >> ANY
    book << got("client", demand("o", "t", 0)) >> ANY
    for now in (0.5, 1.5, 3.5):
        book.at(now) << fired("retry") >> ANY
    assert book.only(e.SetTimer) == [alarm("retry", 7.5)]
    ask = e.Send(run_of("q"), "h1", m.Demand(run_of("q"), "s", "o", 0, version=1))
    again = e.Send(run_of("q"), "h1", m.Demand(run_of("q"), "s", "o", 0, version=1, again=True))
    book.at(4.0) << got("client", m.Demand(run_of("q"), "o", "t", 0)) >> [ask, alarm("retry", 4.5)]
    book.at(4.5) << fired("retry") >> [again, alarm("retry", 5.5)]


def test_local_edges_need_no_messages(make_book: Book, make_install: Make) -> None:
    everything = make_install({"s": "client", "o": "client"})
    book = make_book("client")
    book << e.RunRequested(everything) >> ANY
    assert e.Ready(R) in book.commands
    book << e.NextRequested(R) >> [e.RunOperator(R, "s", 0)]
    (
        book
        << e.OperatorFinished(R, "s", 0, "s0", 2)
        >> [
            e.RunOperator(R, "s", 1),
            e.RunOperator(R, "o", 0, ("s0",)),
        ]
    )
    book << e.OperatorFinished(R, "s", 1, "s1", 2) >> []
    (
        book
        << e.OperatorFinished(R, "o", 0, "o0", 2)
        >> [
            e.Deliver(R, 0, "o0", 2, sink="t"),
            e.RunOperator(R, "s", 2),
            e.RunOperator(R, "o", 1, ("s1",)),
        ]
    )


def test_partitions_for_the_sink_are_delivered_and_repeats_only_recorded(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install(partitions=1)) >> ANY
    book << e.NextRequested(R) >> [e.Send(R, "h2", demand("o", "t", 0, version=1)), alarm("retry", 0.5)]
    book << e.NextRequested(R) >> []  # an impatient application
    book << got("h2", partition("o", "t", 1), b"early", 5) >> []
    book << got("h2", partition("o", "t", 0), b"o0", 2) >> [e.Deliver(R, 0, b"o0", 2, sink="t")]
    book << got("h2", partition("o", "t", 0), b"o0", 2) >> []
    assert book.recorded() == ["duplicate"]
    book << e.NextRequested(R) >> [e.Deliver(R, 1, end=True, sink="t")]
    book << e.NextRequested(R) >> []


def test_the_end_of_a_stream_travels_as_a_control_message(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(), "h1")
    book << got("h2", demand("s", "o", 0)) >> [e.RunOperator(R, "s", 0)]
    end = e.Send(R, "h2", partition("s", "o", 0, end=True))
    book << e.OperatorFinished(R, "s", 0, end=True) >> [end]
    book << got("h2", demand("s", "o", 0)) >> [end]
    assert book.recorded() == ["repeated"]
    consumer = installed(make_book, make_install(), "h2")
    consumer << got("client", demand("o", "t", 0)) >> ANY
    onward = e.Send(R, "client", partition("o", "t", 0, end=True))
    consumer << got("h1", partition("s", "o", 0, end=True)) >> [onward]


def test_an_output_is_sent_again_only_after_the_end_of_the_transfer(make_book: Book, make_install: Make) -> None:
    for over in (
        e.TransferFailed("h2", partition("s", "o", 0)),
        e.TransferMeasured("h2", partition("s", "o", 0), 2, 0.0),
    ):
        book = installed(make_book, make_install(), "h1")
        send = e.Send(R, "h2", partition("s", "o", 0), b"s0", 2, bulk=True)
        book << got("h2", demand("s", "o", 0)) >> ANY
        book << e.OperatorFinished(R, "s", 0, b"s0", 2) >> [send, e.RunOperator(R, "s", 1)]
        book << got("h2", demand("s", "o", 0)) >> []
        book << over >> []
        book << got("h2", demand("s", "o", 0)) >> [send]
        book << got("h2", demand("s", "o", 0)) >> []
        book << got("h2", demand("s", "o", 1)) >> []
        book << got("h2", demand("s", "o", 0)) >> []  # acknowledged meanwhile


def test_a_measured_transfer_is_recorded_with_the_rate(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(), "h1")
    (
        book
        << e.TransferMeasured("h2", partition("s", "o", 3), 1000, 0.5)
        >> [
            e.Record(
                R,
                "transfer",
                {"peer": "h2", "node": "s", "index": 3, "size_bytes": 1000, "duration_s": 0.5, "value": 16000.0},
            )
        ]
    )


@pytest.mark.parametrize(("graph", "seconds", "known"), [(True, 1.0, True), (True, 0.9, False), (False, 9.0, False)])
def test_a_small_transfer_is_a_sample_only_in_a_graph_and_only_if_slow(
    graph: bool, seconds: float, known: bool, make_book: Book, make_install: Make
) -> None:
    flow = chain(Code("s"), Code("o"), client="client")
    flow = Dataflow((*flow.nodes, Node("u", "sink", ("s",), None, "client"))).validate() if graph else flow
    book = installed(make_book, make_install({"u": "client"} if graph else {}, dataflow=flow), "h1")
    book << e.TransferMeasured("h2", partition("s", "o", 0), 1000, seconds) >> ANY
    assert (book.core.links.monitor.estimate(("h1", "h2"), book.core.context.now) is not None) == known


def test_memory_is_used_only_for_demanded_partitions(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(), "h2")

    def wants(part: m.Partition, sender: str = "h1") -> bool:
        return book.core.wants(sender, part)

    assert not wants(partition("s", "o", 0))
    book << got("client", demand("o", "t", 0)) >> ANY
    assert wants(partition("s", "o", 0))
    assert not wants(partition("s", "o", 0), "h9")  # of no part in the run
    assert not wants(partition("s", "o", 1))
    assert not wants(partition("o", "o", 0))
    assert wants(partition("o", "t", 0))  # to be forwarded
    assert not wants(partition("o", "nobody", 0))
    assert not wants(m.Partition(run_of("another"), "s", "o", 0))


# --- forwarding and locations -----------------------------------------------------------------------


def test_a_message_for_a_node_elsewhere_is_forwarded_and_the_sender_is_notified(
    make_book: Book, make_install: Make
) -> None:
    book = installed(make_book, make_install({"s": "h1", "o": "h2"}, others=("h3", "h9")), "h3")
    notice = e.Send(R, "h9", m.Located(R, (m.Location("s", "h1", 1),)))
    book << got("h9", demand("s", "o", 4)) >> [e.Send(R, "h1", demand("s", "o", 4, forwards=1)), notice]
    assert book.recorded() == ["forwarded"]
    notice = e.Send(R, "h9", m.Located(R, (m.Location("o", "h2", 1),)))
    onward = e.Send(R, "h2", partition("s", "o", 4, forwards=3), b"xyz", 3, bulk=True)
    book << got("h9", partition("s", "o", 4, forwards=2), b"xyz", 3) >> [onward, notice]
    end = e.Send(R, "h2", partition("s", "o", 5, end=True, forwards=1))
    book << got("h1", partition("s", "o", 5, end=True)) >> [end, e.Send(R, "h1", notice.message)]


def test_forwarding_ends_after_a_limited_number_of_hops(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install(others=("h3", "h9")), "h3")
    book << got("h9", demand("s", "o", 0, forwards=MAX_FORWARDS - 1)) >> ANY
    assert len(book.sent("h1")) == 1
    book << got("h9", demand("s", "o", 0, forwards=MAX_FORWARDS)) >> []
    assert book.recorded() == ["undeliverable"]


def test_a_reported_location_is_used_for_the_repeated_demand(make_book: Book, make_install: Make) -> None:
    book = make_book("client")
    book << e.RunRequested(make_install({"o": "h7"}, others=("h2", "h8"))) >> ANY
    book << e.NextRequested(R) >> ANY
    (
        book
        << got("h7", m.Located(R, (m.Location("o", "h2", 2), m.Location("stranger", "h2", 9))))
        >> [e.OperatorMoved(R, "o", "h2")]
    )
    for not_newer in (1, 2):
        book << got("h7", m.Located(R, (m.Location("o", "h8", not_newer),))) >> []
    book.at(0.5) << fired("retry") >> ANY
    (again,) = book.sent("h2")
    assert msgspec.structs.replace(again, news=None) == demand("o", "t", 0, version=1, again=True)
    assert "stranger" not in book.core.runs[R].directory.locations


# Every version of a node's location was given out once, for one host: that is what makes merging order-free.
locations = st.builds(
    lambda node, version: m.Location(node, f"h{version * 7 % 5}", version), st.sampled_from("abc"), st.integers(0, 9)
)
updates = st.lists(locations, max_size=6).map(tuple)


@given(st.lists(updates, max_size=5), st.randoms(use_true_random=False))
def test_merging_locations_is_commutative_idempotent_and_the_higher_version_wins(news: list, random) -> None:  # type: ignore[type-arg,no-untyped-def]
    start = {node: m.Location(node, "h0", 0) for node in "ab"}
    table = dict(start)
    for update in news:
        merge_locations(table, update)
    again = dict(start)
    shuffled = [*news, *news]
    random.shuffle(shuffled)
    for update in shuffled:
        merge_locations(again, tuple(reversed(update)))
    assert again == table
    for node in "ab":
        seen = [entry.version for update in news for entry in update if entry.node == node]
        assert table[node].version == max([0, *seen])
    assert table.keys() == start.keys()


def test_a_false_location_does_not_put_an_operator_on_the_receiving_host(make_book: Book, make_install: Make) -> None:
    book = installed(make_book, make_install({"o": "h2"}, others=("h3",)), "h1")
    book << got("h2", demand("s", "o", 0)) >> [e.RunOperator(R, "s", 0, ())]
    book << got("h3", m.Located(R, (m.Location("o", "h1", 2),))) >> []
    book << e.OperatorFinished(R, "s", 0, b"v", 1) >> ANY
    assert [(send.to, send.payload) for send in book.only(e.Send)] == [("h2", b"v")]


def test_a_host_is_notified_once_of_a_changed_location(make_book: Book, make_install: Make) -> None:
    directory = installed(make_book, make_install(), "h1").core.runs[R].directory
    assert directory.piggyback("h2", upward=True) is None
    moved = m.Location("o", "client", 2)
    directory.merge((moved,))
    news = [directory.piggyback(host, upward=True) for host in ("h2", "h2", "client")]
    assert news == [m.Piggyback((moved,)), None, m.Piggyback((moved,))]


def test_a_host_refutes_a_false_location_of_an_own_operator(make_book: Book, make_install: Make) -> None:
    """The operator's host answers with a version newer than the false one."""
    book = installed(make_book, make_install({"o": "h2"}, others=("h3",)), "h2")
    book << got("h3", m.Located(R, (m.Location("o", "h3", 7),))) >> ANY
    here = m.Located(R, (m.Location("o", "h2", 8),))
    assert {send.to for send in book.only(e.Send) if send.message == here} == {"h3", "client", "h1"}
    believer = installed(make_book, make_install({"o": "h2"}, others=("h3",)), "h1")
    for entry in (m.Location("o", "h3", 7), m.Location("o", "h2", 8)):
        believer << got("h3", m.Located(R, (entry,))) >> []
    assert believer.core.runs[R].directory.locations["o"] == here.locations[0]


@pytest.mark.parametrize(
    "lie", [m.Location("o", "h9", 2), m.Location("s", "h2", 2), m.Location("o", "h3", 2**53 - 1)], ids=str
)
def test_an_impossible_location_is_ignored(make_book: Book, make_install: Make, lie: m.Location) -> None:
    book = installed(make_book, make_install({"o": "h2"}, others=("h3",)), "h1")
    known = dict(book.core.runs[R].directory.locations)
    book << got("h3", m.Located(R, (lie,))) >> []
    book << got("h3", m.Demand(R, "s", "o", 0, news=m.Piggyback((lie,)))) >> ANY
    assert book.core.runs[R].directory.locations == known


def test_a_host_sends_no_news_to_itself(make_book: Book, make_install: Make) -> None:
    """The host demands and gets a partition of its own node ``o``. Its demand to h1 has the news."""
    flow = chain(Code("x"), Code("x"), Code("x"), Code("x"), client="client").validate()
    book = installed(make_book, make_install({"o": "h2", "p": "h2", "q": "h3"}, dataflow=flow, others=("h4",)), "h2")
    moved = m.Location("q", "h4", 2)
    book << got("h3", m.Located(R, (moved,))) >> ANY
    book << got("h4", demand("p", "q", 0)) >> ANY
    assert [message.news for message in book.sent("h1")] == [m.Piggyback((moved,))]
    book << got("h1", partition("s", "o", 0), b"x", 1) >> ANY
    book << e.OperatorFinished(R, "o", 0, b"x", 1) >> ANY
    assert [call.node for call in book.only(e.RunOperator)] == ["p"]
    assert book.core.runs[R].directory.piggyback("h2", upward=True) == m.Piggyback((moved,))  # not sent so far


def test_a_partition_under_way_to_a_lost_host_is_resent_to_the_moved_consumer(
    make_book: Book, make_install: Make
) -> None:
    """The source does not wait until the transfer has failed, which takes a minute."""
    book = installed(make_book, make_install(others=("h3",)), "h1")
    book << got("h2", demand("s", "o", 0, version=1)) >> ANY
    book << e.OperatorFinished(R, "s", 0, b"x", 1) >> ANY
    assert [type(message) for message in book.sent("h2")] == [m.Partition]
    book << got("h3", m.Located(R, (m.Location("o", "h3", 2),))) >> ANY
    again = demand("s", "o", 0, version=2, again=True)
    book << got("h3", again) >> []  # it may have come, and been passed on
    book << got("client", m.Lost(R, "h2", ())) >> ANY
    book << got("h3", again) >> ANY
    assert [type(message) for message in book.sent("h3")] == [m.Partition]
