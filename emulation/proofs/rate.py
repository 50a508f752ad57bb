"""Proof of the rates that links really deliver: links are filled on purpose, and compared with the rates asked.

Before a flow, every link is filled with UDP datagrams for a fraction of a second, and the kernel's receive time stamps
are compared. Many links are measured at a time. A host then sends on at most one link and receives on at most one link.
The groups are the rounds of a round-robin tournament (a 1-factorisation of the complete graph), each pair in both
directions. Links with delay, loss and the like are then measured for these figures, all at once
(``thalweg.emulation.proofs.delay``).

Source of the rounds: the circle method, Kirkman (1847); of the time stamps: socket(7), SO_TIMESTAMPNS.
"""

from __future__ import annotations

import itertools
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import msgspec

from thalweg.emulation.kernel import netem
from thalweg.emulation.kernel.htb import queue_kind
from thalweg.emulation.kernel.world import World
from thalweg.emulation.links.shape import PACKET_BYTES, LinkShape, burst_bytes
from thalweg.emulation.proofs import delay, kinds, tcp
from thalweg.emulation.proofs.delay import HEADERS_BYTES
from thalweg.emulation.proofs.proof import DATAGRAMS_BPS, LinkProof
from thalweg.emulation.proofs.stalls import Pace, steady
from thalweg.middleware.network.view import NET, Link

SO_NO_CHECK, SO_SNDBUFFORCE = 11, 32  # asm-generic/socket.h
FILL_PORT = 47_808  # any port: the namespaces are ours
DATAGRAM_BYTES = (64, 1400)
PACKETS_WANTED = 40  # in a measurement: slow links get smaller datagrams rather than fewer …
LEAST_PACKETS = 20  # … and, after the burst, longer measurements rather than fewer packets than this
SLOW_BPS, SLOW_LINKS = 2e5, 100  # links below this rate, which take longer, are measured together, up to this number
SEND_BYTES = 1 << 24  # buffer of a sender's socket: no limit
FILL_DATAGRAMS = 256  # at a time, so that other links and the receivers have their turns
TOGETHER_BPS = 6e8  # rates measured at once: about half of what one core sends and receives with 1400-byte datagrams
SLOW_DATAGRAM_S = 25e-6  # a kernel that takes longer for a datagram (User-Mode Linux) has late timers too …
SLOW_TOGETHER_BPS = 15e6  # … and carries this rate with links still right
PROOF_S, PROOF_ROUND_S = 3.0, (0.12, 0.35)  # aim for all links together, and bounds of a round
TRUST = 0.03  # a greater error is measured again, longer: another process may have had the processor …
# … with this share of the rates at once, for these seconds: with more packets, the rest of a stall weighs less
AGAIN = (0.3, 0.35), (0.1, 0.35), (0.0, 0.35), (0.0, 0.7), (0.0, 1.4)
TRUST_STALLED, STALLED_TRIES = 0.1, 2  # a link stalled for a greater share is measured again, up to this often
AHEAD_S = 0.05  # time of full rate that is sent at once, besides the bytes that fill the queue …
AHEAD_FACTOR = 1.25  # … and factor of the rate from then on, which shows a link that is too fast by up to this
QUEUED_DATAGRAMS = 50  # that a queue holds, if they can be so small: its length is measured in whole datagrams
LIMITED_BURSTS = 3  # that may pass at first if an interface is limited: its own, and borrowed bursts
FAST_BPS, AHEAD_FACTOR_FAST = 1e8, 1.05  # factor from this rate on: a process cannot send faster
QUEUE_SPARE, LONGEST_QUEUE_S = 1.05, 1.0  # factor of the bytes that fill a queue; a longer queue is not measured …
BOUNDED = ("fifo", "packets")  # … and only these disciplines are as long as asked: managed queues stay short
CLOCK_S = 0.001  # longest time between readings of the clock

_HEAD = struct.Struct("=II")  # numbers of stream and datagram
_numbers = itertools.count()


def tournament(players: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return rounds of disjoint pairs in which every player meets every player once.

    There are n - 1 rounds, or n when n is odd.
    """
    seats: list[str | None] = [*players] if len(players) % 2 == 0 else [*players, None]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def link_rounds(
    rates_bps: Mapping[Link, float], together_bps: float = TOGETHER_BPS, order: Iterable[str] = ()
) -> list[list[Link]]:
    """Return the links in groups to be measured at once: in a group no host sends twice or receives twice.

    A group's rates add up to at most ``together_bps`` unless it is a single link. ``order``: order of the hosts in the
    tournament, by default the order in the links.
    """
    networks = {link.via for link in rates_bps}
    if len(networks) > 1:
        apart = [{link: bps for link, bps in rates_bps.items() if link.via == via} for via in sorted(networks)]
        return [group for some in apart for group in link_rounds(some, together_bps, order)]
    via = next(iter(networks), NET)
    named = dict.fromkeys(host for link in rates_bps for host in link[:2])
    hosts = list(dict.fromkeys((*(host for host in order if host in named), *named)))
    groups: list[list[Link]] = []
    for pairs in tournament(hosts) if len(hosts) > 1 else []:
        links = [link for a, b in pairs for link in (Link(a, b, via), Link(b, a, via)) if link in rates_bps]
        groups += _within({link: rates_bps[link] for link in links}, together_bps)
    return groups


def _within(rates_bps: Mapping[Link, float], together_bps: float) -> Iterator[list[Link]]:
    """Yield links in groups whose rates add up to at most ``together_bps``, or that are a single link."""
    total, group = 0.0, list[Link]()
    for link, rate_bps in rates_bps.items():
        if group and total + rate_bps > together_bps:
            yield group
            total, group = 0.0, []
        group.append(link)
        total += rate_bps
    if group:
        yield group


def datagram_bytes(rate_bps: float, seconds: float, mtu: int = PACKET_BYTES) -> int:
    """Return the payload that gives enough packets in a measurement of ``seconds``, each in one packet."""
    smallest, largest = DATAGRAM_BYTES
    largest = min(largest, mtu - HEADERS_BYTES[3])
    return int(min(largest, max(smallest, rate_bps / 8 * seconds / PACKETS_WANTED - HEADERS_BYTES[3])))


class _Filling(NamedTuple):
    """Span of time in which the link always had datagrams to send: its start, and the number of the first datagram."""

    start_s: float
    first: int


class _Asked(NamedTuple):
    """Link to be filled, with its shape, the rate to expect, and the layer at which rates count.

    ``queue_told``: whether the wait of a datagram shows the length of the link's queue.
    """

    link: Link
    shape: LinkShape
    rate_bps: float
    layer: int
    queue_told: bool


class _Stream:
    """Filling of one link: a sending socket in one namespace, and the arrivals in the other, with time stamps.

    Datagrams are numbered. If the link runs dry because another process had the processor, the link is not at fault.
    The following datagrams then count as a filling of their own, with its own burst.

    The link's queue is at the receiver's side, and does not tell the sender when it is full. So the stream sends by the
    clock, at more than the link's rate.
    """

    def __init__(self, number: int, asked: _Asked, seconds: float, sender: socket.socket) -> None:
        link, shape, rate_bps, layer, queue_told = asked
        self.number, self.link, self.shape, self.rate_bps, self.sender = number, link, shape, rate_bps, sender
        self._pace_bps = rate_bps or shape.set_bps
        self._burst_s = shape.burst * 8 / self._pace_bps
        self._factor = AHEAD_FACTOR if self._pace_bps < FAST_BPS else AHEAD_FACTOR_FAST
        # most packets come at most this much before or after the delay
        around = (netem.quantile(shape.distribution, share) * shape.jitter_s for share in (0.005, 0.995))
        early_s, late_s = around if shape.jitter_s else (0.0, 0.0)
        self._first_s = 0.0 if shape.reorder else max(0.0, shape.delay_s + early_s)
        self._last_s = shape.delay_s + late_s
        payload = datagram_bytes(rate_bps, seconds, PACKET_BYTES if shape.mtu is None else shape.mtu.bytes)
        if queue_told and queue_kind(shape) != "packets":
            fitting = shape.queue_bytes // QUEUED_DATAGRAMS - HEADERS_BYTES[layer]
            payload = max(DATAGRAM_BYTES[0], min(payload, fitting))
        self._payload = bytearray(payload)
        self._bits = 8 * (len(self._payload) + HEADERS_BYTES[layer])
        bursts = 1 if rate_bps >= shape.set_bps else LIMITED_BURSTS
        least_s = bursts * self._burst_s + LEAST_PACKETS * self._bits / self._pace_bps if shape.passes else 0.0
        self.seconds = max(seconds, least_s) + self._last_s - self._first_s
        self.queue_s = waiting_s(shape, self._pace_bps, self._bits)
        bounded = shape.passes and queue_kind(shape) in BOUNDED and not shape.reorder  # else packets bypass the queue
        self._queue_told = bounded and self.queue_s <= LONGEST_QUEUE_S and queue_told
        self._ahead_s = self.queue_s * QUEUE_SPARE + AHEAD_S if self._queue_told else AHEAD_S
        self._filled_s, self._waiting_s = 0.0, 0.0
        self._sent_ns: list[int] = []  # sending times, by number
        self._fillings: list[_Filling] = []
        self._brimful: list[tuple[int, int]] = []  # ranges of datagrams that found the queue full, or nearly full
        self.arrivals: list[tuple[int, int]] = []  # number, nanoseconds
        if shape.corrupt:  # a corrupted datagram counts as carried
            sender.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        with suppress(PermissionError):
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BYTES)

    @property
    def tail_s(self) -> float:
        """Return the time after the stream's end in which packets that matter can arrive and the queue is not empty."""
        queued_s = self._ahead_s + self._burst_s + (self._factor - 1) * self.seconds
        return self._last_s + min(queued_s, self.queue_s + self._burst_s)

    def fill(self) -> bool:
        """Send the datagrams that are due, up to ``FILL_DATAGRAMS``. Return whether no more datagrams were due."""
        now_s = time.time()
        self._waiting_s -= now_s - self._filled_s
        if not self._fillings or self._waiting_s < 0:  # the link has run dry
            self._fillings.append(_Filling(now_s, len(self._sent_ns)))
            self._waiting_s = -self._burst_s
        start_s, first = self._fillings[-1]
        packet_s = self._bits / self._pace_bps / self._passing
        due_s = self._burst_s + self._ahead_s + self._factor * (now_s - start_s)
        count = math.ceil(due_s / packet_s) + 1 - (len(self._sent_ns) - first)
        before = len(self._sent_ns)
        with suppress(BlockingIOError):
            for _ in range(min(count, FILL_DATAGRAMS)):
                _HEAD.pack_into(self._payload, 0, self.number, len(self._sent_ns))
                at_ns = time.time_ns()
                self.sender.send(self._payload)
                self._sent_ns.append(at_ns)
                self._waiting_s += self._bits / self._pace_bps * self._passing
        if self._waiting_s >= self.queue_s:
            self._waiting_s = max(self.queue_s, self._bits / self._pace_bps)
            self._brimful.append((before, len(self._sent_ns)))
        self._filled_s = now_s
        return count <= FILL_DATAGRAMS

    @property
    def _passing(self) -> float:
        return 1 - self.shape.loss

    def result(self) -> LinkProof:
        """Return the proof: packets after each filling's initial burst over the time between their arrivals.

        For a link that is cut, every arrival counts.
        """
        size = self._bits // 8
        if not self.shape.passes:
            return self._proof(0.0, len(self.arrivals) * self._bits / self.seconds, self.seconds, 0)
        pace = self._pace(size)
        counted, elapsed_ns, stalled_ns, span_ns = 0, 0, 0, 0
        ends = [*((span.start_s, span.first) for span in self._fillings[1:]), (self._filled_s, len(self._sent_ns))]
        for (start_s, first), (end_s, last) in zip(self._fillings, ends, strict=True):
            times = sorted(at for number, at in self.arrivals if first <= number < last)
            # while the first datagrams are missing and the last datagrams trickle in, the link is not full
            begin_ns, end_ns = (start_s + self._last_s) * 1e9, (end_s + self._first_s) * 1e9
            times = [at for at in times if begin_ns <= at <= end_ns]
            steps, full_ns, still_ns = steady(times, pace)
            counted += size * steps
            elapsed_ns += full_ns
            stalled_ns += still_ns
            span_ns += times[-1] - times[0] if times else 0
        rate_bps = counted * 8e9 / elapsed_ns if counted else 0.0
        stalled = stalled_ns / span_ns if stalled_ns else 0.0
        proof = self._proof(self.rate_bps, rate_bps, elapsed_ns / 1e9, counted, stalled)
        return proof if (found_s := self._found_queue_s()) is None else msgspec.structs.replace(
            proof, asked_queue_s=self.queue_s, delivered_queue_s=found_s, queue_step_s=self._bits / self._pace_bps
        )  # fmt: skip

    def _found_queue_s(self) -> float | None:
        """Return the median wait of the datagrams that found the queue full. Return None if too few did."""
        if not self._queue_told:
            return None
        full = {number for first, end in self._brimful[1:] for number in range(first, end)}  # the first range fills it
        waited = sorted(at - self._sent_ns[number] for number, at in self.arrivals if number in full)
        if len(waited) < LEAST_PACKETS // 2:
            return None
        return max(0.0, waited[len(waited) // 2] / 1e9 - delay.median_delay_s(self.shape))

    def _proof(
        self, asked_bps: float, delivered_bps: float, seconds: float, size_bytes: int, stalled: float = 0.0
    ) -> LinkProof:
        error = delivered_bps / asked_bps - 1 if asked_bps else math.inf if delivered_bps else 0.0
        ends, via = self.link[:2], msgspec.UNSET if self.link.via == NET else self.link.via
        return LinkProof(*ends, asked_bps, delivered_bps, error, seconds, size_bytes, "udp", stalled=stalled, via=via)

    def _pace(self, size: int) -> Pace:
        """Return the pace to expect of packets of ``size`` bytes if the link is as asked."""
        bursts, bucket_s, slack_s = 1, self._burst_s, self._last_s - self._first_s
        if self.rate_bps < self.shape.set_bps:  # the link borrows from an interface's bucket
            bursts, slack_s = LIMITED_BURSTS, slack_s + self._burst_s
            bucket_s = burst_bytes(self.rate_bps) * 8 / self.rate_bps
        packet_ns, bucket_ns, slack_ns = (round(s * 1e9) for s in (self._bits / self.rate_bps, bucket_s, slack_s))
        return Pace(packet_ns, bucket_ns, bursts * self.shape.burst // size + 1, slack_ns)


def waiting_s(shape: LinkShape, rate_bps: float, packet_bits: int) -> float:
    """Return the seconds that a packet of ``packet_bits`` waits in a link's full queue."""
    if shape.queue is not None and queue_kind(shape) == "packets":
        return math.ceil(shape.queue.size) * packet_bits / rate_bps
    return shape.queue_bytes * 8 / rate_bps


def measure(
    world: World,
    links: Iterable[Link],
    seconds: float | None,
    go_on: Callable[[], None],
    *,
    flows: bool = False,
    every_kind: bool = False,
) -> list[LinkProof]:
    """Fill the links in rounds of ``seconds`` each. Return the proofs in no particular order.

    ``seconds``: None for a length with which all rounds take ``PROOF_S``. Wrong links are measured again, longer and
    with fewer links at once, in the end each link alone. Stalled links are measured again at most twice. The last
    measurement counts. Links with delay, loss and the like are measured for these figures afterwards. With ``flows``,
    the remaining links are measured by a flow of TCP. With ``every_kind``, frames of every kind are sent, also through
    cuts. ``go_on`` is called continually. Its exception ends the measurement.
    """
    with ExitStack() as stack:
        filler = _Filler(world, links, go_on, stack)
        delayed = [link for link, shape in filler.shapes.items() if shape.needs_netem and shape.passes]
        carried_bps = {link: shape.set_bps for link, shape in filler.shapes.items()}
        together_bps = _together_bps()
        proofs = _measure_rates(filler, world, carried_bps, together_bps, seconds, flows=flows)
        if delayed:
            latest_s = max(delay.latest_s(filler.shapes[link]) for link in delayed)
            filler.drain(time.monotonic() + latest_s + delay.SETTLE_S)
    if delayed:
        slow = together_bps < TOGETHER_BPS
        proofs |= delay.measure(world, {link: proofs[link] for link in delayed}, go_on, slow=slow)
    if flows:
        for link, tcp_bps in tcp.measure(world, proofs, go_on, together_bps).items():
            proofs[link] = msgspec.structs.replace(proofs[link], tcp_bps=tcp_bps)
    if every_kind:
        proofs |= kinds.measure(world, proofs, go_on)
    return list(proofs.values())


def _measure_rates(
    filler: _Filler,
    world: World,
    carried_bps: Mapping[Link, float],
    together_bps: float,
    seconds: float | None,
    *,
    flows: bool,
) -> dict[Link, LinkProof]:
    """Return the proofs of the filler's links by rate. Wrong and stalled links are measured again, see ``measure``."""
    proofs: dict[Link, LinkProof] = {}
    groups = _groups(carried_bps, together_bps, world)
    if seconds is None:
        seconds = min(max(PROOF_S / len(groups), PROOF_ROUND_S[0]), PROOF_ROUND_S[1])
    more = iter(AGAIN)
    for tries in itertools.count():
        for proof in filler.fill(groups, seconds):
            proofs[proof.link] = proof
        stalled = TRUST_STALLED if tries < STALLED_TRIES else math.inf
        wrong = {
            link: carried_bps[link]
            for link, proof in proofs.items()
            if (_wrong(proof) or proof.stalled > stalled) and not (flows and carried_bps[link] > DATAGRAMS_BPS)
        }
        again = next(more, None)
        if not wrong or again is None:
            break
        share, again_s = again
        groups, seconds = _groups(wrong, share * together_bps, world), max(seconds, again_s)
    return proofs


def _groups(rates_bps: Mapping[Link, float], together_bps: float, world: World) -> list[list[Link]]:
    """Return the rounds to measure. Slow links are measured together, unless links share an interface."""
    slow = [link for link, rate_bps in rates_bps.items() if rate_bps < SLOW_BPS and not world.limited]
    faster = {link: rate_bps for link, rate_bps in rates_bps.items() if link not in slow}
    rounds = link_rounds(faster, together_bps, world.hosts)
    return rounds + [slow[i : i + SLOW_LINKS] for i in range(0, len(slow), SLOW_LINKS)]


def _together_bps() -> float:
    """Return the total rate that can be measured at once without measuring the emulator instead."""
    payload, buffer, cost_s = bytes(DATAGRAM_BYTES[1]), bytearray(8), math.inf
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        for _ in range(30):  # the fastest counts: other processes are at work too
            began_s = time.perf_counter()
            for _ in range(10):
                sender.send(payload)
                receiver.recvmsg_into([buffer])
            cost_s = min(cost_s, (time.perf_counter() - began_s) / 10)
    return TOGETHER_BPS if cost_s < SLOW_DATAGRAM_S else SLOW_TOGETHER_BPS


def _wrong(one: LinkProof) -> bool:
    return abs(one.delivered_bps - one.asked_bps) > TRUST * one.asked_bps or not one.queue_ok


class _Filler:
    """Streams that fill links, and the sockets that receive at the ends of the links."""

    def __init__(self, world: World, links: Iterable[Link], go_on: Callable[[], None], stack: ExitStack) -> None:
        self._world, self._go_on = world, go_on
        self.shapes = {link: world.links[link].shape for link in links}
        cables = dict.fromkeys(link.ends[1] for link in self.shapes)
        self._receivers = [delay.open_receiver(world, cable, FILL_PORT, stack) for cable in cables]
        self._streams: dict[int, _Stream] = {}

    def fill(self, groups: Iterable[Iterable[Link]], seconds: float) -> list[LinkProof]:
        """Fill one group after another, and return the proofs.

        Datagrams that are still under way when a group's time is over arrive during the next group. At the end the
        queues are empty, as far as links are as asked.
        """
        self._streams = {}
        until_s = 0.0
        for group in groups:
            with ExitStack() as stack:
                filled: dict[int, _Stream] = {}
                for link in group:
                    stream = self._stream(link, seconds, stack)
                    filled[stream.number] = self._streams[stream.number] = stream
                stop_s = time.monotonic() + max(stream.seconds for stream in filled.values())
                while time.monotonic() < stop_s:
                    all_sent = [stream.fill() for stream in filled.values()]
                    self._receive()
                    if all(all_sent):
                        time.sleep(CLOCK_S)  # until more is due: streams go by the clock
                until_s = max(until_s, stop_s + max(stream.tail_s for stream in filled.values()))
            if self._world.limited:  # else the queues of other links do not matter
                self.drain(until_s)
        self.drain(until_s)
        return [stream.result() for stream in self._streams.values()]

    def _stream(self, link: Link, seconds: float, stack: ExitStack) -> _Stream:
        sender = delay.open_sender(self._world, link.source, stack)
        sender.connect((self._world.ends[link.ends[1]].ip, FILL_PORT))
        shape = self.shapes[link]
        expected_bps = min(shape.set_bps, self._world.limit_bps(link)) if shape.passes else 0.0
        queue_told = shape.passes and link.ends[0] not in self._world.up_bps  # else an uplink's queue comes first
        asked = _Asked(link, shape, expected_bps, self._world.layer, queue_told)
        return _Stream(next(_numbers), asked, seconds, sender)

    def drain(self, until_s: float) -> None:
        """Receive the datagrams that arrive before ``until_s``."""
        while (left_s := until_s - time.monotonic()) > 0:
            select.select(self._receivers, [], [], min(left_s, 0.05))
            self._receive()

    def _receive(self) -> None:
        self._go_on()
        buffer = bytearray(_HEAD.size)
        for receiver in self._receivers:
            while (stamp_ns := delay.receive(receiver, buffer)) is not None:
                stream, number = _HEAD.unpack(buffer)
                if stream in self._streams:  # else late from an earlier stream, or corrupted
                    self._streams[stream].arrivals.append((number, stamp_ns))
