"""Proof that links carry, and cuts stop, frames of every kind.

Frames are made by hand and sent from a packet socket at the source's end. The kinds are IPv4, IPv6, multicast,
broadcast, an address that the target does not have, and a VLAN tag. Packet sockets at the targets count arrivals. The
link's class counts the packets that it has let through. An arrival that the class has not counted was not shaped. Then
the links are cut for a moment, and the same frames are sent again.

Source: packet(7), socket.htons(ETH_P_ALL); RFC 791, 768, 8200, 1112 (section 6.4); IEEE 802.1Q.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import msgspec

from thalweg.emulation.kernel.host_space import HostSpace
from thalweg.emulation.kernel.htb import queue_kind
from thalweg.emulation.kernel.world import World
from thalweg.emulation.links.shape import PACKET_BYTES, LinkShape
from thalweg.emulation.proofs import delay
from thalweg.emulation.proofs.proof import KindProof, LinkProof
from thalweg.middleware.network.view import Cable, Link

KINDS = ("IPv4", "IPv6", "multicast", "broadcast", "a second address", "VLAN")
FITTING, LONGER = "as long as the MTU", "longer than the MTU"  # IPv4, of links with an MTU
EVERY = (*KINDS, FITTING, LONGER)
FLOODED = ("multicast", "broadcast")
MOST, FRAMES = 25, 30_000  # frames of a kind on a link, and in total
SHARE_S = 0.4  # of a link's time at its rate, for all frames
LOOK_S = 0.01
SETTLE_S, CUT_S = 0.3, 0.1  # wait for frames without a delay, and for frames that should not come
PORT = 47_810  # any port: the namespaces are ours
FRAME_BYTES = 96  # of the longest frame of ``KINDS``
MAGIC = b"thalweg\x01"
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6, ETH_P_8021Q = 0x0003, 0x0800, 0x86DD, 0x8100
PACKET_OUTGOING, SO_RCVBUFFORCE = 4, 33
RECEIVE_BYTES = 1 << 24
GROUP, ALL_HOSTS, SECOND = "239.255.77.7", "255.255.255.255", 2  # SECOND: counted from the end of a block of 256
VLAN = 77

_MARK = struct.Struct("=8sBHBH")  # magic, round, source, kind, number of the frame


def measure(world: World, proofs: Mapping[Link, LinkProof], go_on: Callable[[], None]) -> dict[Link, LinkProof]:
    """Return the proofs with the arrivals of frames of every kind, over each link and through a cut of the link.

    Every link is cut for a moment, and then gets its shape back. ``go_on`` is called continually. Its exception ends
    the measurement.
    """
    shapes = {link: world.links[link].shape for link in proofs if world.links[link].shape.passes}
    if not shapes:
        return {}
    slowest_bps = min(world.shares_bps(shapes).values())
    long_bytes = 2 * PACKET_BYTES * any(shape.path_mtu for shape in shapes.values())
    fitting = min(_fitting_bytes(world, shapes), slowest_bps * SHARE_S / 8) / (FRAME_BYTES * len(KINDS) + long_bytes)
    through_cut = max(1, min(MOST, FRAMES // (len(KINDS) * len(shapes))))
    count = max(1, min(through_cut, int(fitting)))
    with ExitStack() as stack:
        lot = _Lot(world, shapes, stack)
        _drain(world, shapes, slowest_bps, go_on)
        before = _passed(world, shapes)
        lot.send(0, count)
        latest_s = max(delay.latest_s(shape) for shape in shapes.values())
        lossless = [link for link, shape in shapes.items() if not (shape.loss or shape.corrupt)]
        patience_s = latest_s + SETTLE_S + count * 8 * (len(KINDS) * FRAME_BYTES + long_bytes) / slowest_bps
        lot.hear(
            patience_s,
            go_on,
            {(0, link, kind): count for link in lossless for kind in kinds_of(shapes[link]) if kind != LONGER},
        )
        counted = _passed(world, shapes)
        try:
            world.shape([(link, shape._replace(cut=True)) for link, shape in shapes.items()], replayed=True)
            lot.send(1, through_cut)
            lot.hear(CUT_S, go_on)
        finally:
            world.shape(shapes.items(), replayed=True)
    results = {}
    for link in shapes:
        came = {kind: lot.came[0, link, kind] for kind in kinds_of(shapes[link])}
        longer = came.pop(LONGER, 0)
        unshaped = max(0, sum(came.values()) - (counted[link] - before[link]))
        wanted = count if link in lossless else 0
        rows = tuple(KindProof(kind, count, wanted, came[kind], through_cut, lot.came[1, link, kind]) for kind in came)
        results[link] = msgspec.structs.replace(proofs[link], kinds=rows, unshaped=unshaped, longer=longer)
    return results


def _drain(world: World, shapes: Mapping[Link, LinkShape], slowest_bps: float, go_on: Callable[[], None]) -> None:
    """Wait until the queues of these links and their sources are empty. An earlier flow may have filled the queues."""
    fullest = max(shape.queue_bytes for shape in shapes.values())
    uplinks = max(world.uplink_bytes().values(), default=0)
    stop_s = time.monotonic() + (fullest + uplinks) * 8 / slowest_bps + SETTLE_S
    while world.holds_packets(shapes) and time.monotonic() < stop_s:
        go_on()
        time.sleep(LOOK_S)  # the kernel does not report that a queue becomes empty


def _fitting_bytes(world: World, shapes: Mapping[Link, LinkShape]) -> float:
    """Return the bytes that may be sent over every link at once without filling a queue."""
    waiting = []
    for shape in shapes.values():
        small = FRAME_BYTES / PACKET_BYTES if queue_kind(shape) == "packets" else 1.0
        waiting.append(shape.queue_bytes * small)
    leaving = Counter(link.ends[0] for link in shapes)
    waiting += [size / leaving[end] for end, size in world.uplink_bytes().items() if end in leaving]
    return min(waiting)


def _passed(world: World, links: Iterable[Link]) -> dict[Link, int]:
    """Return the packets that every link's class has let through so far."""
    by_target: dict[Cable, list[Link]] = {}
    for link in links:
        by_target.setdefault(link.ends[1], []).append(link)
    passed: dict[Link, int] = {}
    for target, some in by_target.items():
        counters = world.counters(target)
        passed |= {link: counters[link.source].sent_packets for link in some}
    return passed


class _Lot:
    """Sockets at the ends of links, and the count of frames that have come, by round, link and kind."""

    def __init__(self, world: World, links: Iterable[Link], stack: ExitStack) -> None:
        self._world, self._links = world, dict.fromkeys(links)
        self.came: Counter[tuple[int, Link, str]] = Counter()
        self._sources = [*dict.fromkeys(link.ends[0] for link in self._links)]
        self._senders = {cable: self._open(cable, 0, stack) for cable in self._sources}
        targets = [*dict.fromkeys(link.ends[1] for link in self._links)]
        self._receivers = {self._open(cable, ETH_P_ALL, stack): cable for cable in targets}
        for cable in targets:  # else hosts would answer that the port is closed
            with world.inside(world.ends[cable].name), suppress(OSError):
                bound = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                bound.bind(("::", PORT))

    def _open(self, cable: Cable, protocol: int, stack: ExitStack) -> socket.socket:
        end = self._world.ends[cable]
        with self._world.inside(end.name):
            opened = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            with suppress(PermissionError):
                opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
            opened.bind((socket.if_indextoname(end.interface), protocol))
        opened.setblocking(False)
        return opened

    def send(self, number: int, count: int) -> None:
        """Send ``count`` frames of every kind over every link, as round ``number``."""
        by_source: dict[Cable, list[Link]] = {}
        for link in self._links:
            by_source.setdefault(link.ends[0], []).append(link)
        self._count()  # removes an earlier flow's frames from the buffers, which are small for an ordinary user
        for k in range(count):
            for i, source in enumerate(self._sources):
                sender, end = self._senders[source], self._world.ends[source]
                for frame in self._frames(end, by_source[source], (number, i, k)):
                    with suppress(BlockingIOError):
                        sender.send(frame)
                self._count()

    def _frames(self, source: HostSpace, links: Sequence[Link], which: tuple[int, int, int]) -> Iterator[bytes]:
        number, i, k = which
        for kind in FLOODED:
            yield frame(kind, source, source, _MARK.pack(MAGIC, number, i, EVERY.index(kind), k))
        for link in links:
            target = self._world.ends[link.ends[1]]
            for kind in kinds_of(self._world.links[link].shape):
                if kind not in FLOODED:
                    mark = _MARK.pack(MAGIC, number, i, EVERY.index(kind), k)
                    yield frame(kind, source, target, mark.ljust(_payload_bytes(kind, self._world.links[link].shape)))

    def hear(
        self, patience_s: float, go_on: Callable[[], None], awaited: Mapping[tuple[int, Link, str], int] | None = None
    ) -> None:
        """Count arrivals until all ``awaited`` frames have come, or the time is over and no more frames come.

        A busy machine may suspend this process for longer than the time. So the frames of this pause are counted in any
        case.
        """
        stop_s = time.monotonic() + patience_s
        missing = {key for key, count in (awaited or {}).items() if self.came[key] < count}
        while missing or awaited is None:
            go_on()
            left_s = stop_s - time.monotonic()
            came = self._count(min(max(0.0, left_s), 0.05))
            if missing & came:
                stop_s = max(stop_s, time.monotonic() + SETTLE_S)
            missing -= {key for key in missing & came if self.came[key] >= (awaited or {})[key]}
            if left_s <= 0 and not came:
                return

    def _count(self, wait_s: float = 0.0) -> set[tuple[int, Link, str]]:
        """Wait up to ``wait_s`` for a frame, count all that have come, and return the (round, link, kind) of each."""
        keys = set()
        for receiver in select.select([*self._receivers], [], [], wait_s)[0]:
            target = self._world.ends[self._receivers[receiver]]
            with suppress(BlockingIOError):
                while True:
                    data, (_, _, direction, *_) = receiver.recvfrom(256)
                    at = data.find(MAGIC)
                    if direction == PACKET_OUTGOING or at < 0 or len(data) < at + _MARK.size:
                        continue
                    _, number, i, kind, _ = _MARK.unpack_from(data, at)
                    if i >= len(self._sources) or kind >= len(EVERY):  # a corrupted frame may have any number
                        continue
                    source = self._world.ends[self._sources[i]]
                    link = Link(source.name, target.name, target.via)
                    if link in self._links:
                        keys.add(key := (number, link, EVERY[kind]))
                        self.came[key] += 1
        return keys


def kinds_of(shape: LinkShape) -> tuple[str, ...]:
    """Return the kinds of frames that are sent over a link of this shape."""
    return KINDS if shape.path_mtu is None else EVERY


def _payload_bytes(kind: str, shape: LinkShape) -> int:
    """Return the least payload of a datagram of a kind. Datagrams that try the MTU are filled up."""
    if shape.path_mtu is None or kind not in (FITTING, LONGER):
        return 0
    return shape.path_mtu.bytes - delay.HEADERS_BYTES[3] + (kind == LONGER)


def frame(kind: str, source: HostSpace, target: HostSpace, payload: bytes) -> bytes:
    """Return an Ethernet frame of a kind, from one host to another. Kinds that try the MTU are IPv4."""
    to, ip = target.mac_bytes, target.ip
    if kind == "multicast":
        to, ip = bytes((0x01, 0x00, 0x5E)) + (int(IPv4Address(GROUP)) & 0x7F_FFFF).to_bytes(3, "big"), GROUP
    elif kind == "broadcast":
        to, ip = b"\xff" * 6, ALL_HOSTS
    elif kind == "a second address":
        ip = str(IPv4Address(int(IPv4Address(source.ip)) | 0xFF) - SECOND)
    head = to + source.mac_bytes + (struct.pack(">HH", ETH_P_8021Q, VLAN) if kind == "VLAN" else b"")
    datagram = struct.pack(">HHHH", PORT, PORT, 8 + len(payload), 0) + payload
    if kind == "IPv6":
        ends = b"".join(socket.inet_pton(socket.AF_INET6, end.ip6 or f"fe80::{end.number}") for end in (source, target))
        return (
            head + struct.pack(">HIHBB", ETH_P_IPV6, 6 << 28, len(datagram), socket.IPPROTO_UDP, 64) + ends + datagram
        )
    header = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), 0, 0, 1 if kind in FLOODED else 64, socket.IPPROTO_UDP, 0,
        socket.inet_aton(source.ip), socket.inet_aton(ip),
    )  # fmt: skip
    header = header[:10] + _checksum(header) + header[12:]
    return head + struct.pack(">H", ETH_P_IP) + header + datagram


def _checksum(header: bytes) -> bytes:
    """Return the checksum of an IPv4 header (RFC 1071)."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF)
