"""Probes on demand: trains there and back, the hosts that get an answer, and how often a link is probed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import msgspec
import pytest
from playbook import ANY, Playbook
from run_ids import R, fired, run_of

from thalweg.middleware.core.measuring.prober import (
    BEFORE_RUNS,
    EMPTIES,
    LAST,
    LEAD,
    LEAD_BYTES,
    MOST,
    PIECES,
    STAGE_PAYLOADS,
)
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import PROBE_PATIENCE_S, CoreConfig, MonitorConfig
from thalweg.middleware.protocol.run_id import NO_RUN

Took = Callable[[str, str, m.Probe, int], float | None]  # (from, to, probe, size) -> seconds, None: it is lost
LATENCY_S = 0.5


def peer_of(host: str) -> m.Peer:
    return m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2")


def at_rates(rates: dict[tuple[str, str], float]) -> Took:
    """A network that follows the rules: only the head of a train waits for the latency."""

    def took(source: str, target: str, probe: m.Probe, size: int) -> float:
        return size * 8 / rates[source, target] + (0.0 if probe.stage > LEAD else LATENCY_S)

    return took


class Wire:
    """Wire that carries messages between cores at once. Transfers of probes last as ``took`` says."""

    def __init__(self, books: dict[str, Playbook], took: Took) -> None:
        self.books = books
        self.took = took
        self.lost: set[type[m.ProbeResult | m.ProbeRequest]] = set()
        self.trains: Counter[tuple[str, str]] = Counter()
        self.told: list[tuple[str, str, m.Estimate]] = []  # (from, to, what)
        self.reports: list[tuple[str, str, str]] = []  # (at, source, target)
        self.records: list[str] = []
        self._todo: deque[tuple[str, e.Event]] = deque()

    def give(self, host: str, event: e.Event, now: float) -> Wire:
        self._todo.append((host, event))
        while self._todo:
            at, event = self._todo.popleft()
            book = self.books[at].at(now)
            book << event >> ANY
            for command in book.commands:
                if isinstance(command, e.Report):
                    self.reports.append((at, command.source, command.target))
                elif isinstance(command, e.Record):
                    link = command.fields["detail"]
                    self.records.append(f"{at} {command.kind} {link['src']}>{link['dst']} {link['how']}")
                elif isinstance(command, e.Send):
                    self._carry(at, command)
        return self

    def _carry(self, at: str, send: e.Send) -> None:
        if isinstance(send.message, m.Probe):
            assert len(send.payload) == send.size_bytes
            self.trains[at, send.to] += send.message.stage == 0
            took = self.took(at, send.to, send.message, send.size_bytes)
            if took is None:
                self._todo.append((at, e.TransferFailed(send.to, send.message)))
                return
            self._todo.append((send.to, e.MessageReceived(at, send.message, send.payload, send.size_bytes)))
            self._todo.append((at, e.TransferMeasured(send.to, send.message, send.size_bytes, took)))
        elif type(send.message) not in self.lost:
            if isinstance(send.message, m.ProbeResult):
                self.told.append((at, send.to, send.message.estimate))
            self._todo.append((send.to, e.MessageReceived(at, send.message)))

    def rate(self, host: str, source: str, target: str) -> float | None:
        """Return the host's estimate of a link's rate."""
        book = self.books[host]
        known = book.core.links.monitor.estimate((source, target), book.now)
        return None if known is None else known.rate_bps


HOSTS = ("client", "other", "h1", "h2", "h3")
RATES = {(a, b): 10_000.0 * (1 + HOSTS.index(a)) + 1000.0 * HOSTS.index(b) for a in HOSTS for b in HOSTS}


@pytest.fixture
def wire(make_book: Callable[..., Playbook]) -> Wire:
    return Wire({host: make_book(host) for host in HOSTS}, at_rates(RATES))


def ask(source: str, *targets: str, requester: str = "client") -> e.ProbesRequested:
    return e.ProbesRequested(BEFORE_RUNS, peer_of(source), tuple(map(peer_of, targets)), peer_of(requester))


def test_a_probe_measures_both_directions_for_both_ends_and_for_the_requester(wire: Wire) -> None:
    wire.give("client", ask("h1", "h2"), 1.0)
    for host in ("client", "h1", "h2"):
        for link in (("h1", "h2"), ("h2", "h1")):
            assert wire.rate(host, *link) == pytest.approx(RATES[link], rel=1e-4)
    assert set(wire.reports) >= {("client", "h1", "h2"), ("client", "h2", "h1")}
    assert wire.trains == {("h1", "h2"): 1, ("h2", "h1"): 1}


def test_a_host_can_request_a_probe_from_the_own_prober(wire: Wire) -> None:
    wire.give("client", ask("client", "h1", "client"), 1.0)
    assert {("client", "client", "h1"), ("client", "h1", "client")} <= set(wire.reports)
    assert wire.trains == {("client", "h1"): 1, ("h1", "client"): 1}


def test_a_train_has_empty_messages_and_16_kb_pieces_behind_a_lead_without_waiting(
    make_book: Callable[..., Playbook],
) -> None:
    book = make_book("h1")
    book << e.MessageReceived("client", m.ProbeRequest(BEFORE_RUNS, (peer_of("h2"),), peer_of("client"))) >> ANY
    train = []
    for took_s in (0.2, 3.0, 0.5, 0.7):  # the first opens the connection, whatever that takes
        (empty,) = book.only(e.Send)
        train.append(empty)
        book << e.TransferMeasured("h2", empty.message, 0, took_s) >> ANY
    train += book.only(e.Send)
    assert [send.size_bytes for send in train] == [0] * EMPTIES + [LEAD_BYTES] + [m.PROBE_BYTES] * PIECES
    assert [send.message.stage for send in train] == list(range(LAST + 1))
    assert [len(payload) for payload in STAGE_PAYLOADS] == [send.size_bytes for send in train]
    assert all(send.bulk for send in train)
    assert book.core.links.prober.busy_s(Link("h1", "h2"), 5.0) == 4.5
    assert book.core.links.prober.busy_s(Link("h1", "h2"), 0.6) == 0.3, "at most half is taken off"
    assert book.core.links.prober.busy_s(Link("h1", "h3"), 5.0) == 5.0


@pytest.mark.parametrize(
    ("lead_s", "pieces_s", "busy_s"),
    [
        (1.0 + 0.5, (2.0, 2.0, 2.0), 2.0),
        (0.2 + 0.5, (2.0, 2.0, 2.0), 2.0),  # the link let most of the lead pass at once
        (2.5 + 0.5, (0.5, 2.0, 2.0), 2.0),  # the receiver saw the lead late, and the first piece right after it
        (1.0 + 0.5, (2.0, 5.0, 0.0), 2.0),  # late to see the second piece
        (1.0 + 0.5, (2.0, 2.0, 9.0), 2.0),  # late to see the last
        (7.0 + 0.5, (0.0, 0.0, 0.0), 2.0),  # saw nothing before all of it was there
    ],
)
def test_a_delayed_receiver_does_not_change_the_measured_rate_of_the_link(
    wire: Wire, lead_s: float, pieces_s: tuple[float, ...], busy_s: float
) -> None:
    took = dict.fromkeys(range(EMPTIES), LATENCY_S) | dict(enumerate((lead_s, *pieces_s), LEAD))
    wire.took = lambda source, target, probe, size: took[probe.stage]
    wire.give("client", ask("h1", "h2"), 1.0)
    assert wire.rate("client", "h1", "h2") == pytest.approx(m.PROBE_BYTES * 8 / busy_s, rel=1e-4)


def test_a_probe_without_a_train_is_a_message_there_and_a_message_back(make_book: Callable[..., Playbook]) -> None:
    config = CoreConfig(monitor=MonitorConfig(probe_train=False))
    wire = Wire({host: make_book(host, config) for host in HOSTS}, at_rates(RATES))
    sizes: list[tuple[str, str, int]] = []

    def took(source: str, target: str, probe: m.Probe, size: int) -> float:
        sizes.append((source, target, size))
        return 0.05 + size * 8 / RATES[source, target]

    wire.took = took
    wire.give("client", ask("h1", "h2"), 1.0)
    assert sizes == [("h1", "h2", m.PROBE_BYTES), ("h2", "h1", m.PROBE_BYTES)]
    for link in (("h1", "h2"), ("h2", "h1")):  # what it takes to begin a message is in it, as in the paper
        rate_bps = m.PROBE_BYTES * 8 / (0.05 + m.PROBE_BYTES * 8 / RATES[link])
        assert [wire.rate(host, *link) for host in ("client", "h1", "h2")] == pytest.approx([rate_bps] * 3, rel=1e-4)
    wire.give("client", ask("h2", "h1"), 5.0)  # which h1 has begun to measure 4 s ago
    assert len(sizes) == 2
    wire.give("client", ask("h1", "h2", "h3"), 17.0)
    assert len(sizes) == 6
    assert wire.books["h1"].core.links.prober.under_way is None


def test_a_probe_is_recorded_by_the_measuring_host(wire: Wire) -> None:
    wire.give("client", ask("h1", "h2"), 1.0)
    assert sorted(wire.records) == ["h1 estimate h1>h2 probe", "h2 estimate h2>h1 probe"]


# --- who is answered, and how often a link is probed ------------------------------------------------


def test_links_without_a_common_interface_are_measured_at_once_and_one_way(make_book: Callable[..., Playbook]) -> None:
    targets, client = tuple(map(peer_of, HOSTS[3:])), peer_of("client")
    for quantity, begun in (("bandwidth", ["h2"]), ("bandwidths", ["h2", "h3"])):
        book = make_book("h1")
        book << e.MessageReceived("client", m.ProbeRequest(BEFORE_RUNS, targets, client, quantity)) >> ANY
        probes = [sent for sent in book.commands if isinstance(sent, e.Send) and isinstance(sent.message, m.Probe)]
        assert [sent.to for sent in probes] == begun
        assert {sent.message.echo for sent in probes if isinstance(sent.message, m.Probe)} == {quantity == "bandwidth"}


def test_every_direction_that_is_measured_at_once_is_reported_to_the_requester(wire: Wire) -> None:
    for source, target in (("h1", "h2"), ("h2", "h1")):
        wire.give("client", msgspec.structs.replace(ask(source, target), quantity="bandwidths"), 1.0)
    assert {report for report in wire.reports if report[0] == "client"} == {
        ("client", "h1", "h2"), ("client", "h2", "h1"),
    }  # fmt: skip
    assert not wire.books["h1"].core.links.prober.waiting
    assert not wire.books["h2"].core.links.prober.waiting


def test_a_single_probe_answers_all_requests_that_arrive_while_queued_or_under_way(
    make_book: Callable[..., Playbook],
) -> None:
    book = make_book("h1")

    def request(requester: str) -> e.MessageReceived:
        return e.MessageReceived(
            requester, m.ProbeRequest(BEFORE_RUNS, (peer_of("h2"), peer_of("h3")), peer_of(requester))
        )

    book << request("client") >> ANY
    (empty,) = book.only(e.Send)
    book << request("other") >> ANY
    assert book.only(e.Send) == []
    for stage in range(EMPTIES):
        book << e.TransferMeasured("h2", m.Probe(BEFORE_RUNS, 1, peer_of("h1"), True, stage), 0, 0.0) >> ANY
    *before, last = book.only(e.Send)
    for send in before:
        book << e.TransferMeasured("h2", send.message, send.size_bytes, send.size_bytes / 8192) >> []
    book << e.TransferMeasured("h2", last.message, m.PROBE_BYTES, 2.0) >> ANY
    estimate = m.Estimate("h1", "h2", 65_536, 0, 1, 0)
    answers = {send.to: send.message for send in book.only(e.Send) if isinstance(send.message, m.ProbeResult)}
    assert answers == {to: m.ProbeResult(BEFORE_RUNS, estimate) for to in ("h2", "client", "other")}
    (following,) = [send for send in book.only(e.Send) if isinstance(send.message, m.Probe)]
    assert (following.to, following.message.stage) == ("h3", 0)
    back = m.Estimate("h2", "h1", 32_768, 0, 1, 0)
    book << e.MessageReceived("h2", m.ProbeResult(BEFORE_RUNS, back)) >> ANY
    assert {send.to for send in book.only(e.Send)} == {"client", "other"}
    assert empty.to == "h2"
    assert set(book.core.links.prober.waiting) == {Link("h1", "h3")}


def test_a_request_for_a_fresh_estimate_is_answered_at_once(wire: Wire) -> None:
    wire.give("client", ask("h1", "h2"), 1.0)
    before = len(wire.told)
    wire.give("other", ask("h1", "h2", requester="other"), 8.0)
    assert sum(wire.trains.values()) == 2
    assert [(at, to) for at, to, _ in wire.told[before:]] == [("h1", "other")] * 2
    assert [estimate.age_ms for _, _, estimate in wire.told[before:]] == [7000, 7000]
    wire.give("other", ask("h2", "h1", requester="other"), 9.0)  # the other end knows as well
    assert sum(wire.trains.values()) == 2
    wire.give("other", ask("h1", "h2", requester="other"), 12.0)
    assert sum(wire.trains.values()) == 4


def test_a_link_is_probed_at_most_once_per_interval_for_all_requesters(wire: Wire) -> None:
    wire.took = lambda source, target, probe, size: None if probe.stage == LAST else LATENCY_S
    begun = []
    for tenth in range(200):
        wire.give("client", ask("h1", "h2", requester=HOSTS[tenth % 2]), tenth / 10)
        begun.append(wire.trains["h1", "h2"])
    assert begun[-1] == 4  # at 0, 5, 10 and 15 s
    assert begun[49] == 1


def test_a_second_request_recovers_a_lost_answer(wire: Wire) -> None:
    wire.lost = {m.ProbeResult}
    wire.give("client", ask("h1", "h2"), 1.0)
    assert wire.rate("client", "h1", "h2") is None
    wire.lost = set()
    wire.give("client", ask("h1", "h2"), 7.0)  # h1 has never heard of the way back
    assert {("client", "h1", "h2"), ("client", "h2", "h1")} <= set(wire.reports)


def test_a_lost_echo_delays_no_other_probe(wire: Wire) -> None:
    honest = wire.took
    wire.took = lambda source, target, probe, size: honest(source, target, probe, size) if probe.echo else None
    wire.give("client", ask("h1", "h2", "h3"), 1.0)
    assert wire.rate("client", "h1", "h2") is not None
    assert wire.rate("client", "h1", "h3") is not None
    assert wire.rate("client", "h2", "h1") is None
    wire.took = honest
    wire.give("client", ask("h1", "h2", "h3"), 7.0)
    assert wire.rate("client", "h2", "h1") is not None
    assert wire.rate("client", "h3", "h1") is not None


@pytest.mark.parametrize("stage", [0, 1, LEAD, LEAD + 1, LAST])
def test_a_failed_probe_makes_room_for_the_next_probe_at_every_stage(wire: Wire, stage: int) -> None:
    honest = wire.took
    wire.took = lambda source, target, probe, size: (
        None if (target, probe.stage) == ("h2", stage) else honest(source, target, probe, size)
    )
    wire.give("client", ask("h1", "h2", "h3"), 1.0)
    assert wire.rate("client", "h1", "h2") is None
    assert wire.rate("client", "h1", "h3") == pytest.approx(RATES["h1", "h3"], rel=1e-4)
    assert wire.books["h1"].core.links.prober.under_way is None
    wire.took = honest
    wire.give("client", ask("h1", "h2"), 7.0)
    assert wire.rate("client", "h1", "h2") is not None


def test_a_lost_train_does_not_block_later_probes(make_book: Callable[..., Playbook]) -> None:
    book = make_book("h1")

    def request(target: str) -> e.MessageReceived:
        return e.MessageReceived("client", m.ProbeRequest(BEFORE_RUNS, (peer_of(target),), peer_of("client")))

    book << request("h2") >> ANY
    book << request("h3") >> ANY
    assert book.only(e.Send) == []
    book.at(PROBE_PATIENCE_S) << fired("probe") >> ANY
    assert [send.to for send in book.only(e.Send)] == ["h3"]


def test_a_link_that_the_peer_is_probing_is_not_probed(make_book: Callable[..., Playbook]) -> None:
    book = make_book("h2")
    book << e.MessageReceived("h1", m.Probe(BEFORE_RUNS, 1, peer_of("h1"), True, 0), b"", 0) >> ANY
    book << e.MessageReceived("client", m.ProbeRequest(BEFORE_RUNS, (peer_of("h1"),), peer_of("client"))) >> ANY
    assert book.only(e.Send) == []


def test_probes_of_an_ended_or_unknown_run_are_ignored(make_book: Callable[..., Playbook], install: m.Install) -> None:
    book = make_book("h2")
    book << e.MessageReceived("client", install) >> ANY
    train = [m.Probe(R, 1, peer_of("h1"), True, stage) for stage in range(LAST + 1)]
    request = m.ProbeRequest(R, (peer_of("h3"),), peer_of("client"))
    book << e.MessageReceived("h1", train[0], b"", 0) >> []
    book << e.MessageReceived("h1", train[LAST], bytes(m.PROBE_BYTES), m.PROBE_BYTES) >> ANY
    assert [send.to for send in book.only(e.Send)] == ["h1"]
    book << e.MessageReceived("client", request) >> ANY
    assert [send.to for send in book.only(e.Send)] == ["h3"]
    book << e.MessageReceived("client", m.Remove(R)) >> ANY
    for run in (R, run_of("never heard of"), NO_RUN):
        for probe in train:
            late = msgspec.structs.replace(probe, run=run)
            book << e.MessageReceived("h1", late, bytes(m.PROBE_BYTES), m.PROBE_BYTES) >> []
        book << e.MessageReceived("client", msgspec.structs.replace(request, run=run or "s")) >> []
    assert book.core.links.prober.waiting.keys() == {Link("h2", "h3")}  # from when there was a run


def test_a_request_to_probe_the_own_host_is_ignored(wire: Wire) -> None:
    wire.give("client", ask("h1", "h1"), 1.0)
    assert not wire.trains
    assert wire.books["h1"].core.links.prober.waiting == {}


def test_only_hosts_of_the_run_are_probed_and_probes_under_false_names_are_ignored(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book = make_book("h2")
    book << e.MessageReceived("client", install) >> ANY
    elsewhere = m.Peer("h1", "tcp://evil:1", "tcp://evil:2")
    last = bytes(m.PROBE_BYTES)
    for run in (R, BEFORE_RUNS):
        book << e.MessageReceived("x", m.ProbeRequest(run, (elsewhere,), peer_of("client"))) >> []
        book << e.MessageReceived("x", m.Probe(run, 1, peer_of("h1"), True, LAST), last, m.PROBE_BYTES) >> []
    book << e.MessageReceived("x", m.Probe(R, 1, peer_of("x"), True, LAST), last, m.PROBE_BYTES) >> []
    book << e.MessageReceived("h1", m.ProbeRequest(R, (peer_of("x"), elsewhere), peer_of("h1"))) >> ANY
    assert [send.to for send in book.only(e.Send)] == ["h1"]
    assert book.only(e.Meet) == []  # it is probed where the run has it


def test_the_probes_and_requests_before_runs_are_bounded(make_book: Callable[..., Playbook]) -> None:
    book = make_book("h2")
    for first in range(0, 3 * MOST, MOST):
        targets = tuple(peer_of(f"x{number}") for number in range(first, first + MOST))
        book << e.MessageReceived("client", m.ProbeRequest(BEFORE_RUNS, targets, peer_of("client"))) >> ANY
    for number in range(MOST + 10):
        (
            book
            << e.MessageReceived(f"y{number}", m.Probe(BEFORE_RUNS, 1, peer_of(f"y{number}"), True, 0), b"", 0)
            >> ANY
        )
    prober = book.core.links.prober
    assert max(map(len, (prober.waiting, prober.queue, prober._begun_s))) <= MOST


def test_the_measured_times_of_trains_to_false_names_are_bounded(make_book: Callable[..., Playbook]) -> None:
    """Before runs, a host that probes under false names causes trains to those names, which may never end."""
    book = make_book("h1")
    prober = book.core.links.prober

    def took(name: str, number: int, stage: int) -> None:
        probe = m.Probe(BEFORE_RUNS, number, peer_of("h1"), False, stage)
        book << e.TransferMeasured(name, probe, m.PROBE_BYTES, 0.5) >> ANY

    for number in range(MOST + 10):
        for stage in (1, LEAD):
            took(f"x{number}", number, stage)
    assert len(prober.empty_s) == len(prober._took_s) == MOST
    assert Link("h1", f"x{MOST + 9}") in prober.empty_s
    for _ in range(100):  # the same train again and again, and none of them ends
        took("y", 1, LEAD)
    assert max(map(len, prober._took_s.values())) <= 1 + PIECES
