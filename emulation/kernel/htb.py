"""Netlink messages for the shape of a link: an htb class, a queue and filters.

Links are shaped at the bridge's port towards the receiver, where every frame for a host leaves the bridge. (On the
sender's own interface Linux's TCP small queues keep the queue empty.) Every port has one htb root with one class for
the interface. Below that, every source has a class with the rate of its link. The source's hardware address chooses the
class, whatever the protocol: IPv4, IPv6, ARP, multicast, a tagged frame. Frames of a source whose link has no shape go
to ``OPEN``, which has only the interface's limit. In a network where some hosts are not joined, these frames go to
``CLOSED``, which swallows them. Frames of an address that no host has go to ``STRANGERS``, which swallows and counts
frames.

Filters are u32's. The first filter takes the last byte of the source address and leads to one of 256 lists. Each list
has the addresses with this last byte.

A link's class may have two bands below it: classes that borrow their whole rate from the link's class
(``world.World.bands``). Urgent packets go before the remaining traffic of the link. Each band has a leaf of its own (a
fifo, or netem for delay, jitter, loss …). Urgent packets have the type of service (IPv4) or traffic class (IPv6) of
expedited forwarding.

Without a rate of its own, the interface's class is practically unlimited. Every link has its full rate assured, so no
link borrows from a second link. If the interface gets a rate, every link has only a share assured. The link borrows the
rest, up to its own rate. The total that a host sends is limited behind the host's port, where frames enter the bridge.
These frames pass through an ifb device with one class (``uplink``).

A link that is cut gets the blackhole discipline for its leaves. Packets in a queue or in netem are lost, and so are
packets sent later, without a sign to the sender. The class and its rate stay.

netem delays packets. Delayed packets then wait in a queue below netem, which has the link's limit. So the queue of a
link is the same with and without a delay.

A message states the wanted result, whether the class or queue exists already or not. An existing class or queue is
changed in place and keeps its packets. Only a queue of a different kind is replaced. A root is made once. A filter of a
source is replaced if the class for the source changes.

Layer 3 (IP bytes) is counted by a size table on the root. The table subtracts the Ethernet header of every packet
before htb sees the packet. For a packet of several TCP segments, the table adds the headers that the segments will
have. Layer 2 counts the frame, and the kernel adds these headers itself.

Source: tc-htb(8), tc-netem(8), tc-stab(8), tc-u32(8), tc-mirred(8), linux/pkt_sched.h, linux/pkt_cls.h. In net/sched:
sch_htb.c, cls_u32.c, sch_blackhole.c, sch_api.c (__qdisc_calculate_pkt_len). Expedited forwarding: RFC 3246.
"""

from __future__ import annotations

import array
import math
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from thalweg.emulation.kernel import netem, queues
from thalweg.emulation.kernel.netem import TICK_NS
from thalweg.emulation.kernel.netlink import (
    LINK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    ROUTE,
    RTM_DELQDISC,
    RTM_DELROUTE,
    RTM_NEWLINK,
    RTM_NEWQDISC,
    RTM_NEWROUTE,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
    attribute,
    attributes,
    message,
    number,
    text,
)
from thalweg.emulation.links.shape import (
    FRAME_BYTES,
    MAX_SEGMENTS,
    PACKET_BYTES,
    QUEUE,
    LinkShape,
    Queue,
    burst_bytes,
)
from thalweg.emulation.links.units import Managed

QUANTUM_BYTES = FRAME_BYTES  # bytes that a link of a limited interface borrows at a time
UNLIMITED_BPS = 400e9  # of an interface without a rate: more than a core moves
BORROWED_BPS = 8.0  # assured to a class that borrows its whole rate: the least that htb accepts
UNLIMITED_SEGMENTS = 65_535  # default of an interface
UPLINK_QUEUE_BPS = 2e9  # an unlimited uplink has the queue of this rate
ETHERNET_HEADER_BYTES = 14
SEGMENT_HEADER_BYTES = 52  # IPv4 and TCP with time stamps
URGENT = 0xB8  # the type of service of expedited forwarding
ROOT = 0x0001_0000
BULK, CONTROL = 0x400, 0x800  # bands, added to a link's number, which is its source's (at most 1023)
INTERFACE_MINOR, OPEN, STRANGERS, CLOSED = (
    0xC00,
    0xC01,
    0xC02,
    0xC03,
)  # above the numbers of links and bands, and below 0x1000: see ``_LEAVES``
INTERFACE = ROOT | INTERFACE_MINOR
UPLINK = 1  # the only class of an ifb device
INGRESS_HANDLE, INGRESS_PARENT = 0xFFFF_0000, 0xFFFF_FFF1
SOURCES = 0x0010_0000  # the hash table of the sources' filters
BUCKETS = 256
SOURCES_PREFERENCE = 2  # of the filters that lead to classes. The filter of ``mtu`` comes first
URGENT_6, ANY = 0x400, 0x800  # added to a source's number for a filter's number: lower numbers are tried first

TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8
TCA_STATS_BASIC, TCA_STATS_QUEUE = 1, 3
TC_H_ROOT = 0xFFFF_FFFF
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
TCA_U32_CLASSID, TCA_U32_HASH, TCA_U32_LINK, TCA_U32_DIVISOR, TCA_U32_SEL, TCA_U32_ACT = 1, 2, 3, 4, 5, 7
TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_MIRRED_PARMS = 1, 2, 2
TC_ACT_STOLEN, TCA_EGRESS_REDIR, TC_U32_TERMINAL = 4, 1, 1
TCA_STAB_BASE, TCA_STAB_DATA = 1, 2
IFLA_GSO_MAX_SEGS = 40
RTA_DST = 1
LINKLAYER_ETHERNET = 1  # htb computes transmission times itself, and needs no rate table
ETH_P_ALL = 0x0003
ETHERTYPES = {4: 0x0800, 6: 0x86DD}
NETEM_SPARE, NETEM_LEAST = 4, 1000
SOURCE_MAC = -8  # position in a frame, from the network layer's header on

_TCMSG = struct.Struct("=BxxxiIII")

Leaf = Literal["fifo", "packets", "fq_codel", "codel", "pie", "red", "netem", "cut"]
# number of a queue: the first number here plus the number of its class, which is below 0x1000
_LEAVES: dict[Leaf, tuple[int, str]] = {
    "fifo": (0x1000, "bfifo"),
    "cut": (0x2000, "blackhole"),
    "packets": (0x3000, "pfifo"),
    "netem": (0x4000, "netem"),
    "fq_codel": (0x5000, "fq_codel"),
    "codel": (0x6000, "codel"),
    "pie": (0x7000, "pie"),
    "red": (0x8000, "red"),
}
_UNDER_NETEM: dict[Leaf, int] = {"fifo": 0x9000, "packets": 0xA000, "fq_codel": 0xB000, "codel": 0xC000, "pie": 0xD000,
                                 "red": 0xE000}  # fmt: skip


def leaf_kind(shape: LinkShape, *, had_netem: bool = False) -> Leaf:
    """Return the kind of queue that a shape needs. ``had_netem``: the link has had netem, and so keeps it."""
    if not shape.passes:
        return "cut"
    return "netem" if shape.needs_netem or had_netem else queue_kind(shape)


def queue_kind(shape: LinkShape) -> Leaf:
    """Return the kind of queue in which packets wait for the link's rate."""
    queue = shape.queue
    if queue is not None and queue.discipline != "fifo":
        return queue.discipline
    return "packets" if queue is not None and queue.unit == "packets" else "fifo"


def netem_limit(shape: LinkShape) -> int:
    """Return the number of packets that netem may hold, several times the number under way at the link's rate.

    Packets may be small, and senders faster than the link. Packets that wait for the rate are in the queue below netem.
    The limit is a power of two, so that few changes of the rate change it. A change of netem restarts netem's model of
    losses.
    """
    under_way = shape.set_bps / 8 * (shape.delay_s + shape.jitter_s) / PACKET_BYTES
    least = math.ceil(NETEM_SPARE * under_way + shape.queue_bytes / FRAME_BYTES) + NETEM_LEAST
    return 1 << (least - 1).bit_length()


def _tc(index: int, handle: int, parent: int, info: int, *parts: bytes) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info) + b"".join(parts)


def root(index: int, layer: int, default_minor: int) -> bytes:
    """Return a message that creates the htb root of an interface. ``layer``: layer at which rates count, 2 or 3.

    Packets that no filter classifies go to the class ``default_minor``.
    """
    options = attribute(TCA_HTB_INIT, struct.pack("=IIIII", 3, 10, default_minor, 0, 0))
    parts = [text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, options)]
    if layer == 3:
        parts.append(_size_table())
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


def no_root(index: int) -> bytes:
    """Return a message that removes the htb root of an interface, with everything below it."""
    return message(RTM_DELQDISC, 0, _tc(index, ROOT, TC_H_ROOT, 0))


@cache
def _size_table() -> bytes:
    """Return the table from a frame's bytes to its bytes at layer 3, exact for up to ``MAX_SEGMENTS`` of TCP in it."""
    payload = PACKET_BYTES - SEGMENT_HEADER_BYTES
    counted = array.array("H", bytes(2 * ETHERNET_HEADER_BYTES))
    counted.extend(range(SEGMENT_HEADER_BYTES + payload + 1))  # one segment of IP, or none
    for more in range(1, MAX_SEGMENTS):
        headers = SEGMENT_HEADER_BYTES * (1 + more)
        counted.extend(range(headers + more * payload + 1, headers + (more + 1) * payload + 1))
    base = struct.pack("=BBhiIIII", 0, 0, 0, 0, LINKLAYER_ETHERNET, 0, 0, len(counted))
    return attribute(TCA_STAB, attribute(TCA_STAB_BASE, base) + attribute(TCA_STAB_DATA, counted.tobytes()))


def segments(index: int, most: int) -> Iterator[bytes]:
    """Return messages that limit the segments in one packet of TCP to ``most``.

    Whatever the interface's offloads say, TCP hands down several segments as one packet. A connection keeps its old
    limit until its route is looked up again, and a change of any route causes this. So an unused route is added and
    removed.
    """
    limit = number(IFLA_GSO_MAX_SEGS, most)
    yield message(RTM_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + limit)
    unused = ROUTE.pack(socket.AF_INET, 32, 0, 0, 77, 4, 0, 6, 0)  # a table of its own, static, universe, blackhole
    unused += attribute(RTA_DST, bytes((192, 0, 2, 1)))  # RFC 5737: for documentation
    yield message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, unused)
    yield message(RTM_DELROUTE, 0, unused)


def htb_class(
    index: int,
    minor: int,
    rate_bps: float,
    *,
    burst: int | None = None,
    assured_bps: float | None = None,
    parent: int = INTERFACE,
    rank: int = 0,
) -> bytes:
    """Return a message that creates or changes a class with its rate. The class keeps its queue.

    ``burst``: bytes that may pass at once, None for the default. ``assured_bps``: part of the rate that is not borrowed
    from the parent, None for the whole rate. ``rank``: of classes that borrow, the lower rank goes first.
    """
    burst = burst_bytes(rate_bps) if burst is None else burst
    ceiling, assured = (max(1, round(bps / 8)) for bps in (rate_bps, rate_bps if assured_bps is None else assured_bps))
    specs = b"".join(
        struct.pack("=BBHhHI", 0, LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFF_FFFF)) for rate in (assured, ceiling)
    )
    ticks = (min(math.ceil(burst / rate * 1e9 / TICK_NS), 0xFFFF_FFFF) for rate in (assured, ceiling))
    parameters = attribute(TCA_HTB_PARMS, specs + struct.pack("=IIIII", *ticks, QUANTUM_BYTES, 0, rank))
    for kind, rate in ((TCA_HTB_RATE64, assured), (TCA_HTB_CEIL64, ceiling)):
        if rate > 0xFFFF_FFFF:
            parameters += attribute(kind, struct.pack("=Q", rate))
    body = _tc(index, ROOT | minor, parent, 0, text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, parameters))
    return message(RTM_NEWTCLASS, NLM_F_CREATE, body)


def interface_class(index: int, rate_bps: float | None) -> bytes:
    """Return a message for the class above an interface's links, with their total rate. None: practically unlimited."""
    rate_bps = UNLIMITED_BPS if rate_bps is None else rate_bps
    return htb_class(index, INTERFACE_MINOR, rate_bps, parent=ROOT)


def port(index: int, *, joins_all: bool = True) -> Iterator[bytes]:
    """Return messages that create a port's own classes and the table of its filters, below a root.

    ``joins_all``: every host of the network has links, so the class ``CLOSED`` is not needed.
    """
    yield interface_class(index, None)
    yield htb_class(index, OPEN, UNLIMITED_BPS, assured_bps=BORROWED_BPS)
    if not joins_all:
        yield htb_class(index, CLOSED, UNLIMITED_BPS, parent=ROOT)
        yield from leaf(index, CLOSED, LinkShape(0.0))
    yield htb_class(index, STRANGERS, UNLIMITED_BPS, parent=ROOT)
    yield from leaf(index, STRANGERS, LinkShape(0.0))
    yield _filter(index, SOURCES, number(TCA_U32_DIVISOR, BUCKETS))
    by_last_byte = struct.pack("=BBBxHHhh4s", 0, 0, 0, 0, 0, 0, SOURCE_MAC + 2, b"\0\0\0\xff")
    yield _filter(index, 0x8000_0001, number(TCA_U32_LINK, SOURCES) + attribute(TCA_U32_SEL, by_last_byte))


def uplink(index: int, rate_bps: float | None, queue: Queue | None = None) -> Iterator[bytes]:
    """Return messages for the class of an ifb device that limits the total sent by a host. None: practically unlimited.

    ``queue``: limit of the packets that wait there, None for the usual queue.
    """
    rate_bps = UNLIMITED_BPS if rate_bps is None else rate_bps
    yield htb_class(index, UPLINK, rate_bps, parent=ROOT)
    yield from leaf(index, UPLINK, LinkShape(min(rate_bps, UPLINK_QUEUE_BPS), queue=queue))


def through(index: int, device: int) -> Iterator[bytes]:
    """Return messages that redirect every frame that enters by an interface to an ifb device."""
    parts = (text(TCA_KIND, "ingress"), attribute(TCA_OPTIONS, b""))
    yield message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _tc(index, INGRESS_HANDLE, INGRESS_PARENT, 0, *parts))
    mirred = struct.pack("=IIiiiiI", 0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, device)
    action = text(TCA_ACT_KIND, "mirred") + attribute(TCA_ACT_OPTIONS, attribute(TCA_MIRRED_PARMS, mirred))
    options = attribute(TCA_U32_SEL, _selector([])) + attribute(TCA_U32_ACT, attribute(1, action))
    yield _filter(index, 0x8000_0001, options, INGRESS_HANDLE)


def bands(index: int, minor: int) -> Iterator[bytes]:
    """Return messages that create the two bands below a link's class. Bands have no own rate, and are made once."""
    for rank, band in enumerate((CONTROL, BULK)):
        yield htb_class(index, minor | band, UNLIMITED_BPS, assured_bps=BORROWED_BPS, parent=ROOT | minor, rank=rank)


def not_through(index: int) -> bytes:
    """Return a message that undoes ``through``."""
    return message(RTM_DELQDISC, 0, _tc(index, INGRESS_HANDLE, INGRESS_PARENT, 0))


def leaf(index: int, minor: int, shape: LinkShape, kind: Leaf | None = None) -> Iterator[bytes]:
    """Return messages for the queue below a class. A queue of a different kind is replaced, and loses its packets.

    ``kind``: may be netem even if the shape does not need it. None: the kind that the shape needs.
    """
    kind = leaf_kind(shape) if kind is None else kind
    major, _ = _LEAVES[kind]
    if kind != "netem":
        yield _queue(index, (major + minor) << 16, ROOT | minor, kind, shape)
        return
    handle, waiting = (major + minor) << 16, queue_kind(shape)
    parts = (text(TCA_KIND, "netem"), attribute(TCA_OPTIONS, netem.options(shape, netem_limit(shape))))
    yield message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, handle, ROOT | minor, 0, *parts))
    yield _queue(index, (_UNDER_NETEM[waiting] + minor) << 16, handle | 1, waiting, shape)


def _queue(index: int, handle: int, parent: int, kind: Leaf, shape: LinkShape) -> bytes:
    parts = [text(TCA_KIND, _LEAVES[kind][1])]
    if kind != "cut":
        parts.append(attribute(TCA_OPTIONS, queues.options(shape)))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, handle, parent, 0, *parts))


def netem_alone(index: int) -> bytes:
    """Return a message that makes netem an interface's own queue, to test whether the kernel has netem."""
    options = netem.options(LinkShape(0.0), 1000)
    parts = (text(TCA_KIND, "netem"), attribute(TCA_OPTIONS, options))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


def managed(index: int, discipline: Managed) -> Iterator[bytes]:
    """Return messages for a managed queue on an unused interface, to test whether the kernel has the discipline."""
    yield root(index, 2, 0)
    yield htb_class(index, 1, 1e6, parent=ROOT)
    yield from leaf(index, 1, LinkShape(1e6, queue=QUEUE._replace(discipline=discipline)))


def two_netems(index: int) -> Iterator[bytes]:
    """Return messages for two links on an unused interface, one with duplicates, to test if the kernel allows it."""
    yield root(index, 2, 0)
    for minor, duplicate in ((1, 0.0), (2, 0.5)):
        yield htb_class(index, minor, 1e6, parent=ROOT)
        yield from leaf(index, minor, LinkShape(1e6, duplicate=duplicate), "netem")


def to_class(index: int, source: int, mac: bytes, minor: int) -> bytes:
    """Return a message that sends frames from a hardware address (six bytes) to a class.

    ``source`` numbers the address, from 1 to 1023. The filter replaces the old filter of the address.
    """
    keys = [struct.pack("=4s4sii", b"\xff" * 4, mac[:4], SOURCE_MAC, 0)]
    keys.append(struct.pack("=4s4sii", b"\xff\xff\0\0", mac[4:] + b"\0\0", SOURCE_MAC + 4, 0))
    return _of_source(index, source | ANY, mac, minor, keys)


def urgent_to_class(index: int, source: int, mac: bytes, minor: int, family: int) -> bytes:
    """Return a message that sends urgent packets from a hardware address to a class.

    ``family``: 4 for IPv4 or 6 for IPv6. The filter goes before the filter of ``to_class``.
    """
    keys = [struct.pack("=4s4sii", b"\xff" * 4, mac[:4], SOURCE_MAC, 0)]
    kind = mac[4:] + struct.pack(">H", ETHERTYPES[family])
    keys.append(struct.pack("=4s4sii", b"\xff" * 4, kind, SOURCE_MAC + 4, 0))
    shift = 16 if family == 4 else 20  # of the type of service or traffic class in the header's first four bytes
    mask, value = (struct.pack(">I", bits << shift) for bits in (0xFC, URGENT))
    keys.append(struct.pack("=4s4sii", mask, value, 0, 0))
    return _of_source(index, source if family == 4 else source | URGENT_6, mac, minor, keys)


def _of_source(index: int, node: int, mac: bytes, minor: int, keys: Sequence[bytes]) -> bytes:
    bucket = SOURCES | mac[5] << 12
    options = number(TCA_U32_CLASSID, ROOT | minor) + number(TCA_U32_HASH, bucket)
    return _filter(index, bucket | node, options + attribute(TCA_U32_SEL, _selector(keys)))


def _selector(keys: Sequence[bytes]) -> bytes:
    return struct.pack("=BBBxHHhh4x", TC_U32_TERMINAL, 0, len(keys), 0, 0, 0, 0) + b"".join(keys)


def _filter(index: int, handle: int, options: bytes, parent: int = ROOT) -> bytes:
    body = filter_body(index, handle, parent, SOURCES_PREFERENCE, "u32", options)
    return message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, body)


def filter_body(index: int, handle: int, parent: int, preference: int, kind: str, options: bytes) -> bytes:
    """Return the body of a message about a filter for every protocol. Filters of lower preference are tried first."""
    parts = (text(TCA_KIND, kind), attribute(TCA_OPTIONS, options))
    return _tc(index, handle, parent, preference << 16 | socket.htons(ETH_P_ALL), *parts)


class ClassCounters(NamedTuple):
    """Counters of a class: bytes that have passed and bytes that wait now, at the testbed's layer.

    ``drops``: packets that the queue has refused.
    """

    minor: int
    sent_bytes: int
    backlog_bytes: int
    sent_packets: int = 0
    drops: int = 0


def class_dump(index: int) -> bytes:
    """Return the body of a request for every class of an interface."""
    return _tc(index, 0, 0, 0)


def class_body(index: int, minor: int) -> bytes:
    """Return the body of a request for one class of an interface."""
    return _tc(index, ROOT | minor, 0, 0)


def root_body(index: int) -> bytes:
    """Return the body of a request for the htb root of an interface."""
    return _tc(index, ROOT, 0, 0)


def root_counters(answers: Iterable[bytes]) -> tuple[int, ...]:
    """Return bytes sent, packets dropped and packets waiting of a root. Return zeros if there is no root."""
    for answer in answers:
        statistics = attributes(attributes(answer[_TCMSG.size :]).get(TCA_STATS2, b""))
        basic, queue = statistics.get(TCA_STATS_BASIC, b""), statistics.get(TCA_STATS_QUEUE, b"")
        if len(basic) >= 12 and len(queue) >= 12:
            waiting, _, drops = struct.unpack_from("=III", queue)
            return struct.unpack_from("=Q", basic)[0], drops, waiting
    return 0, 0, 0


def class_counters(answer: bytes) -> ClassCounters | None:
    """Return the counters of a class in a dump. None: the answer is no class, or is the interface's class."""
    _, _, handle, _, _ = _TCMSG.unpack_from(answer)
    statistics = attributes(attributes(answer[_TCMSG.size :]).get(TCA_STATS2, b""))
    basic, queue = statistics.get(TCA_STATS_BASIC, b""), statistics.get(TCA_STATS_QUEUE, b"")
    if handle & 0xFFFF_0000 != ROOT or handle == INTERFACE or len(basic) < 12 or len(queue) < 12:
        return None
    sent_bytes, packets = struct.unpack_from("=QI", basic)
    _, backlog_bytes, drops = struct.unpack_from("=III", queue)
    return ClassCounters(handle & 0xFFFF, sent_bytes, backlog_bytes, packets, drops)
