"""The link proof: what links really deliver, measured against what was asked.

Active: before a flow, every link is filled with UDP datagrams for a fraction of a second and the kernel's receive
time stamps are compared. Links are measured many at a time, arranged so that a host sends on at most one link and
receives on at most one: the rounds of a round-robin tournament (a 1-factorisation of the complete graph), each pair
in both directions. Standard library only, because the supervisor imports it.

Source of the rounds: the circle method, Kirkman (1847); of the time stamps: socket(7), SO_TIMESTAMPNS.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from thalweg.emulation import shaping
from thalweg.emulation.netns_world import World

Link = tuple[str, str]

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
SO_RCVBUFFORCE = 33
SIOCOUTQ = 0x5411  # linux/sockios.h: bytes that have not left
SOL_UDP_PORT = 47_808  # any: the namespaces are ours
DATAGRAM_BYTES = (64, 1400)
PACKETS_WANTED = 40  # in a measurement: smaller datagrams on slow links rather than few of them
HEADERS_BYTES = {3: 28, 2: 42}  # IPv4 and UDP, and Ethernet
SENDER_QUEUE_S = 0.09  # kept in each sender's socket against late wake-ups; the link's own queue holds 0.1 s
FILL_DATAGRAMS = 256  # at a time: a link faster than this process would never push back
TOGETHER_BPS = 6e8  # rates measured at once: about half of what one core sends and receives with 1400-byte datagrams
TRUST = 0.03  # an error above this is measured again, longer: another process may have taken the processor
ATTEMPTS = 3  # after the first; a link that is wrong stays wrong


class Measured(NamedTuple):
    """One link's measurement; ``asked_bps`` and ``delivered_bps`` count bytes of the testbed's layer."""

    source: str
    target: str
    asked_bps: float
    delivered_bps: float
    seconds: float
    size_bytes: int


def tournament(players: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds of disjoint pairs in which everybody meets everybody once: n - 1 rounds, or n when n is odd."""
    seats: list[str | None] = [*players] if len(players) % 2 == 0 else [*players, None]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def link_rounds(rates_bps: Mapping[Link, float], together_bps: float = TOGETHER_BPS) -> list[list[Link]]:
    """The links in groups to be measured at once: in a group no host sends twice or receives twice.

    A group's rates add up to at most ``together_bps`` unless it is a single link.
    """
    hosts = list(dict.fromkeys(host for link in rates_bps for host in link))
    groups: list[list[Link]] = []
    for pairs in tournament(hosts) if len(hosts) > 1 else []:
        links = [link for a, b in pairs for link in ((a, b), (b, a)) if link in rates_bps]
        total, group = 0.0, list[Link]()
        for link in links:
            if group and total + rates_bps[link] > together_bps:
                groups.append(group)
                total, group = 0.0, []
            group.append(link)
            total += rates_bps[link]
        if group:
            groups.append(group)
    return groups


def datagram_bytes(rate_bps: float, seconds: float) -> int:
    """The payload that gives enough packets in a measurement of ``seconds``."""
    smallest, largest = DATAGRAM_BYTES
    return int(min(largest, max(smallest, rate_bps / 8 * seconds / PACKETS_WANTED - HEADERS_BYTES[3])))


class _Stream:
    """One link being filled: a sending socket in one namespace, what its receiver saw, with time stamps.

    Datagrams are numbered. When the sender comes back to an empty queue (another process had the processor), the link
    has been idle through no fault of its own: what follows counts as a filling of its own, with its own burst.
    """

    def __init__(self, link: Link, rate_bps: float, seconds: float, sender: socket.socket, source_ip: str) -> None:
        self.link, self.rate_bps, self.sender, self.source_ip = link, rate_bps, sender, source_ip
        self._payload = bytearray(datagram_bytes(rate_bps, seconds))
        self._sent = 0
        self._fillings = [0]  # the number of each filling's first datagram
        self._arrivals: list[tuple[int, int]] = []  # number, nanoseconds
        truesize = 256 + (1 << (len(self._payload) + 447).bit_length())  # sk_buff and its data, as the kernel counts
        packets = rate_bps / 8 * SENDER_QUEUE_S / (len(self._payload) + 28)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, int(max(2.0, packets) * truesize / 2))

    def fill(self) -> None:
        if self._sent and not struct.unpack("=i", fcntl.ioctl(self.sender, SIOCOUTQ, b"\0\0\0\0"))[0]:
            self._fillings.append(self._sent)
        with suppress(BlockingIOError):
            for _ in range(FILL_DATAGRAMS):
                struct.pack_into("=Q", self._payload, 0, self._sent)
                self.sender.send(self._payload)
                self._sent += 1

    def drain(self, receiver: socket.socket) -> None:
        buffer = bytearray(8)
        with suppress(BlockingIOError):
            while True:
                _, ancillary, _, sender = receiver.recvmsg_into([buffer], 64, socket.MSG_DONTWAIT)
                if ancillary and sender[0] == self.source_ip:
                    seconds, nanoseconds = struct.unpack("@ll", ancillary[0][2])
                    number = struct.unpack("=Q", buffer)[0]
                    self._arrivals.append((number, seconds * 1_000_000_000 + nanoseconds))

    def result(self, layer: int) -> Measured:
        """Packets after each filling's initial burst over the time between their arrivals."""
        size = len(self._payload) + HEADERS_BYTES[layer]
        skip = shaping.burst_bytes(self.rate_bps) // size + 1
        counted, elapsed_ns = 0, 0
        for first, last in zip(self._fillings, [*self._fillings[1:], self._sent], strict=True):
            times = [at for number, at in self._arrivals if first + skip <= number < last]
            if len(times) > 1:
                counted += size * (len(times) - 1)
                elapsed_ns += times[-1] - times[0]
        seconds = elapsed_ns / 1e9
        return Measured(*self.link, self.rate_bps, counted * 8 / seconds if counted else 0.0, seconds, counted)


def measure(world: World, links: Iterable[Link], seconds: float) -> Iterator[Measured]:
    """Fill the links in rounds of ``seconds`` each and say what they delivered, in no particular order.

    A link found wrong is measured again on its own for twice as long, up to three times; the last one counts.
    """
    rates = {link: world.links[link].shape.rate_bps for link in links}
    with ExitStack() as stack:
        receivers: dict[str, socket.socket] = {}
        for host in dict.fromkeys(target for _, target in rates):
            with world.inside(host):
                receivers[host] = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            _prepare(receivers[host], world.hosts[host].ip)
        again: list[Link] = []
        for group in link_rounds(rates):
            for one in _measure_group(world, {link: rates[link] for link in group}, receivers, seconds):
                if _wrong(one):
                    again.append((one.source, one.target))
                else:
                    yield one
        for link in again:
            for _ in range(ATTEMPTS):
                (one,) = _measure_group(world, {link: rates[link]}, receivers, 2 * seconds)
                if not _wrong(one):
                    break
            yield one


def _wrong(one: Measured) -> bool:
    return abs(one.delivered_bps / one.asked_bps - 1) > TRUST


def _prepare(receiver: socket.socket, ip: str) -> None:
    receiver.bind((ip, SOL_UDP_PORT))
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)  # the kernel cuts it to what it allows
    with suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)


def _measure_group(
    world: World, rates: Mapping[Link, float], receivers: Mapping[str, socket.socket], seconds: float
) -> list[Measured]:
    with ExitStack() as stack:
        streams: dict[int, _Stream] = {}
        poller = select.poll()
        for (source, target), rate_bps in rates.items():
            with world.inside(source):
                sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sender.setblocking(False)
            sender.connect((world.hosts[target].ip, SOL_UDP_PORT))
            stream = _Stream((source, target), rate_bps, seconds, sender, world.hosts[source].ip)
            streams[sender.fileno()] = stream
            poller.register(sender, select.POLLOUT)
        start = time.monotonic()
        stop = start + seconds
        while time.monotonic() < stop:
            for descriptor, _ in poller.poll(5):
                streams[descriptor].fill()
            for stream in streams.values():
                stream.drain(receivers[stream.link[1]])
        return [stream.result(world.layer) for stream in streams.values()]
