"""What a link's shape becomes in the kernel: an htb class, a queue, a filter, as netlink messages.

On each host's interface stands one htb root with one class for the interface; every destination has a class of its own
below that, with the link's rate. What no filter matches passes unshaped. No input or output.

A link's class has two bands below it, classes that borrow all they send from it (in a testbed of very many hosts it has
none, ``world.BANDED_HOSTS``): what is urgent goes before all other traffic of the link. Each has a leaf of its own (a
fifo, or netem when there is a delay, jitter, loss …). u32 filters look at the destination, and at the IP header's type
of service: ``URGENT`` is expedited forwarding.

The interface's class is as good as unlimited, and every link has its full rate assured, so no link borrows from
another. When the interface gets a rate, the links have only a share of it assured each and borrow the rest, up
to their own rates. What a host receives in all is limited in the same way by one class with two bands at the other end
of its cable.

A link that is cut gets the blackhole discipline for its leaves: what waits in a queue or is under way in netem is lost,
and so is what is sent from then on, without a word to the sender (a full fifo would tell TCP, which
then does not back off as it does over a broken path). The class and its rate stay.

A message states what shall be, whether it stands already or not: a class or a queue that is there is changed in place,
and keeps what waits in it; only a queue of another kind takes its place. Roots and filters are made once.

Layer 3 (IP bytes) is counted by a size table on the root, which takes the Ethernet header off every packet before htb
sees it, and adds to one of several TCP segments the headers that these will have. Layer 2 counts the frame; there
the kernel adds the headers itself.

Source: tc-htb(8), tc-netem(8), tc-stab(8), net/sched/sch_htb.c, sch_blackhole.c, sch_api.c (__qdisc_calculate_pkt_len),
linux/pkt_sched.h, linux/pkt_cls.h; RFC 3246 of expedited forwarding.
"""

from __future__ import annotations

import array
import math
import socket
import struct
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from thalweg.emulation.kernel import netem
from thalweg.emulation.kernel.netem import TICK_NS
from thalweg.emulation.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
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
from thalweg.emulation.links.shape import FRAME_BYTES, MAX_SEGMENTS, PACKET_BYTES, LinkShape, burst_bytes

PORT_QUEUE_BPS = 2e9  # for an interface that is not limited, a queue as for this rate
QUANTUM_BYTES = FRAME_BYTES  # what a link borrows at a time where its interface is limited
UNLIMITED_BPS = 400e9  # an interface without a rate of its own: more than a core moves
UNLIMITED_SEGMENTS = 65_535  # as an interface has it at first
ETHERNET_HEADER_BYTES = 14
SEGMENT_HEADER_BYTES = 52  # IPv4 and TCP with time stamps
URGENT = 0xB8  # the type of service of expedited forwarding
ROOT = 0x0001_0000
INTERFACE_MINOR, PORT_MINOR = 0x1000, 1  # the interface's class (links have the numbers of hosts, at most 1023)
BULK, CONTROL = 0x400, 0x800  # a link's bands, added to its number
INTERFACE = ROOT | INTERFACE_MINOR

TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8
TCA_STATS_BASIC, TCA_STATS_QUEUE = 1, 3
TC_H_ROOT = 0xFFFF_FFFF
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
TCA_U32_CLASSID, TCA_U32_SEL = 1, 5
TCA_STAB_BASE, TCA_STAB_DATA = 1, 2
IFLA_GSO_MAX_SEGS = 40
RTA_DST = 1
LINKLAYER_ETHERNET = 1  # tells htb to compute transmission times itself, so that no rate table is needed
ETH_P_IP = 0x0800

_TCMSG = struct.Struct("=BxxxiIII")
_IFINFOMSG = struct.Struct("=BxHiII")
_RTMSG = struct.Struct("=BBBBBBBBI")

Leaf = Literal["fifo", "packets", "netem", "cut"]
_LEAVES: dict[Leaf, tuple[int, str]] = {
    "fifo": (0x1000, "bfifo"),
    "cut": (0x2000, "blackhole"),
    "packets": (0x3000, "pfifo"),
    "netem": (0x4000, "netem"),
}


def leaf_kind(shape: LinkShape, *, had_netem: bool = False) -> Leaf:
    """The kind of queue that a shape takes; ``had_netem``: on a link that keeps netem once it has it."""
    if not shape.passes:
        return "cut"
    if shape.needs_netem or had_netem:
        return "netem"
    return "packets" if shape.queue is not None and shape.queue.unit == "packets" else "fifo"


def limit(shape: LinkShape, kind: Leaf) -> int:
    """The limit of a queue: a fifo's bytes, or packets; netem's are what the delay holds (twice, for small packets)
    and a queue.
    """
    if kind == "fifo" or kind == "cut":
        return shape.queue_bytes
    waiting = shape.queue_bytes / FRAME_BYTES
    if kind == "netem":
        waiting += 2 * shape.set_bps / 8 * (shape.delay_s + shape.jitter_s) / PACKET_BYTES
    return math.ceil(waiting)


def _tc(index: int, handle: int, parent: int, info: int, *parts: bytes) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info) + b"".join(parts)


def root(index: int, layer: int, default_minor: int = 0) -> bytes:
    """The htb root of an interface. ``layer``: what rates count, 2 or 3.

    Packets that no filter classifies go to the class ``default_minor``, or pass unshaped when it is 0.
    """
    options = attribute(TCA_HTB_INIT, struct.pack("=IIIII", 3, 10, default_minor, 0, 0))
    parts = [text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, options)]
    if layer == 3:
        parts.append(_size_table())
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


@cache
def _size_table() -> bytes:
    """What a frame of so many bytes counts as at layer 3, to the byte for up to ``MAX_SEGMENTS`` of TCP in one."""
    payload = PACKET_BYTES - SEGMENT_HEADER_BYTES
    sizes = range(MAX_SEGMENTS * payload + SEGMENT_HEADER_BYTES + 1)  # of IP
    counted = array.array("H", bytes(2 * ETHERNET_HEADER_BYTES))
    counted.extend(
        size + SEGMENT_HEADER_BYTES * max(0, math.ceil((size - SEGMENT_HEADER_BYTES) / payload) - 1) for size in sizes
    )
    base = struct.pack("=BBhiIIII", 0, 0, 0, 0, LINKLAYER_ETHERNET, 0, 0, len(counted))
    return attribute(TCA_STAB, attribute(TCA_STAB_BASE, base) + attribute(TCA_STAB_DATA, counted.tobytes()))


def segments(index: int, most: int) -> Iterator[bytes]:
    """Let TCP hand down at most so many segments as one packet, which it does whatever the interface's offloads say.

    Connections keep the limit that they began with until their route is looked up again, which a change of any route
    has them do: so a route that nobody uses comes, and goes.
    """
    limit = number(IFLA_GSO_MAX_SEGS, most)
    yield message(RTM_NEWLINK, 0, _IFINFOMSG.pack(0, 0, index, 0, 0) + limit)
    unused = _RTMSG.pack(socket.AF_INET, 32, 0, 0, 77, 4, 0, 6, 0)  # a table of its own, static, universe, blackhole
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
    """A class with its rate; its queue is kept.

    ``burst``: bytes that may pass at once, None for the default; ``assured_bps``: what of the rate need not be borrowed
    from the parent, None for all of it. ``rank``: of those that borrow, the lower goes first.
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
    """The class above all links of an interface, with the rate of all together; None: as good as unlimited."""
    rate_bps = UNLIMITED_BPS if rate_bps is None else rate_bps
    return htb_class(index, INTERFACE_MINOR, rate_bps, parent=ROOT)


def port(index: int, rate_bps: float | None) -> Iterator[bytes]:
    """Limit all that leaves through an interface, the host's end of the cable being the other one; None lifts it.

    Below a root whose packets go to ``PORT_MINOR``.
    """
    rate_bps = UNLIMITED_BPS if rate_bps is None else rate_bps
    yield htb_class(index, PORT_MINOR, rate_bps, parent=ROOT)
    yield from bands(index, PORT_MINOR)
    yield leaf(index, PORT_MINOR | BULK, LinkShape(min(rate_bps, PORT_QUEUE_BPS)), "fifo")
    yield to_class(index, 1, PORT_MINOR | CONTROL, urgent=True)


def bands(index: int, minor: int) -> Iterator[bytes]:
    """The two classes below a link's; they have no rate of their own, and are made once."""
    for rank, band in enumerate((CONTROL, BULK)):
        yield htb_class(index, minor | band, UNLIMITED_BPS, assured_bps=8.0, parent=ROOT | minor, rank=rank)


def leaf(index: int, minor: int, shape: LinkShape, kind: Leaf | None = None) -> bytes:
    """The queue below a class; it takes the place of one of another kind, with all that waits in that.

    ``kind``: netem also for a shape that does not need it; None for what the shape needs.
    """
    kind = leaf_kind(shape) if kind is None else kind
    major, name = _LEAVES[kind]
    parts = [text(TCA_KIND, name)]
    if kind == "netem":
        parts.append(attribute(TCA_OPTIONS, netem.options(shape, limit(shape, kind))))
    elif kind != "cut":
        parts.append(attribute(TCA_OPTIONS, struct.pack("=I", limit(shape, kind))))
    body = _tc(index, (major + minor) << 16, ROOT | minor, 0, *parts)
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, body)


def netem_alone(index: int) -> bytes:
    """netem as an interface's own queue: to find out whether the kernel has it."""
    options = netem.options(LinkShape(0.0), 1000)
    parts = (text(TCA_KIND, "netem"), attribute(TCA_OPTIONS, options))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


def two_netems(index: int) -> Iterator[bytes]:
    """Two links below an interface that has nothing yet, one of which duplicates: to find out whether that may be."""
    yield root(index, 2)
    for minor, duplicate in ((1, 0.0), (2, 0.5)):
        yield htb_class(index, minor, 1e6, parent=ROOT)
        yield leaf(index, minor, LinkShape(1e6, duplicate=duplicate), "netem")


def to_class(index: int, node: int, minor: int, ip: bytes | None = None, *, urgent: bool = False) -> bytes:
    """Send packets for the IPv4 address ``ip`` (four bytes; None for any) to a class.

    The filter is an interface's ``node``-th (from 1), and takes that one's place; lower ones are looked at first.
    ``urgent``: only packets with this type of service.
    """
    keys = [struct.pack("=4s4sii", b"\xff" * 4, ip, 16, 0)] if ip else []  # at byte 16 of an IPv4 header
    if urgent:
        keys.insert(0, struct.pack("=4s4sii", b"\0\xfc\0\0", bytes((0, URGENT, 0, 0)), 0, 0))
    selector = struct.pack("=BBBxHHhh4x", 1, 0, len(keys), 0, 0, 0, 0) + b"".join(keys)
    options = number(TCA_U32_CLASSID, ROOT | minor) + attribute(TCA_U32_SEL, selector)
    info = (1 << 16) | socket.htons(ETH_P_IP)  # first and only preference
    parts = (text(TCA_KIND, "u32"), attribute(TCA_OPTIONS, options))
    handle = 0x8000_0000 | node
    return message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, handle, ROOT, info, *parts))


class ClassCounters(NamedTuple):
    """What a class has let through, and what waits in its queue now (bytes at the testbed's layer)."""

    minor: int
    sent_bytes: int
    backlog_bytes: int


def class_dump(index: int) -> bytes:
    """Body of a request for all classes of an interface."""
    return _tc(index, 0, 0, 0)


def class_counters(answer: bytes) -> ClassCounters | None:
    """A class of a link, or of a band (where what waits is told), in a dump; None for anything else."""
    _, _, handle, _, _ = _TCMSG.unpack_from(answer)
    statistics = attributes(attributes(answer[_TCMSG.size :]).get(TCA_STATS2, b""))
    basic, queue = statistics.get(TCA_STATS_BASIC, b""), statistics.get(TCA_STATS_QUEUE, b"")
    if handle & 0xFFFF_0000 != ROOT or handle == INTERFACE or len(basic) < 8 or len(queue) < 8:
        return None
    return ClassCounters(handle & 0xFFFF, struct.unpack_from("=Q", basic)[0], struct.unpack_from("=II", queue)[1])
