"""What a link's shape becomes in the kernel: an htb class, a queue, a filter, as netlink messages.

On each host's interface stands one htb root with one class for the interface; every destination has a class of its own
below that, a leaf (a byte-limited fifo, or netem when there is a delay, jitter, loss …) and a u32 filter on the
destination address. What no filter matches passes unshaped. No input or output.

The interface's class is as good as unlimited, and every link has its full rate assured, so no link borrows from
another. When the interface gets a rate, the links have only a share of it assured each and borrow the rest, up
to their own rates. What a host receives in all is limited in the same way by one class at the other end of its cable.

A link that is cut gets the blackhole discipline for a leaf: what waits in the queue or is under way in netem is lost,
and so is what is sent from then on, without a word to the sender (a full fifo would tell TCP, which
then does not back off as it does over a broken path). The class and its rate stay.

A message states what shall be, whether it stands already or not: a class or a queue that is there is changed in place,
and keeps what waits in it; only a queue of another kind takes its place. Roots and filters are made once.

Layer 3 (IP bytes) is counted by a size table of -14 bytes on the root, which takes the Ethernet header off
every packet before htb sees it; layer 2 counts the frame.

Source: tc-htb(8), tc-netem(8), tc-stab(8), net/sched/sch_htb.c, sch_blackhole.c, linux/pkt_sched.h, linux/pkt_cls.h.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

from thalweg.emulation.kernel import netem
from thalweg.emulation.kernel.netem import TICK_NS
from thalweg.emulation.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_NEWQDISC,
    RTM_NEWTCLASS,
    RTM_NEWTFILTER,
    attribute,
    attributes,
    message,
    number,
    text,
)
from thalweg.emulation.links.shape import FRAME_BYTES, PACKET_BYTES, LinkShape, burst_bytes

QUEUE_S = 0.1
QUEUE_FLOOR_BYTES = 2 * 65_536  # two of TCP's largest writes
PORT_QUEUE_BPS = 2e9  # for an interface that is not limited, a queue as for this rate
QUANTUM_BYTES = FRAME_BYTES  # what a link borrows at a time where its interface is limited
UNLIMITED_BPS = 400e9  # an interface without a rate of its own: more than a core moves
ETHERNET_HEADER_BYTES = 14
ROOT = 0x0001_0000
INTERFACE_MINOR, PORT_MINOR = 0x1000, 1  # the interface's class (links have the numbers of hosts, at most 1023)
INTERFACE = ROOT | INTERFACE_MINOR
FIFO_MAJOR, CUT_MAJOR, NETEM_MAJOR = 0x1000, 0x2000, 0x4000

TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8
TCA_STATS_BASIC, TCA_STATS_QUEUE = 1, 3
TC_H_ROOT = 0xFFFF_FFFF
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
TCA_U32_CLASSID, TCA_U32_SEL = 1, 5
TCA_STAB_BASE = 1
LINKLAYER_ETHERNET = 1  # tells htb to compute transmission times itself, so that no rate table is needed
ETH_P_IP = 0x0800

_TCMSG = struct.Struct("=BxxxiIII")

Leaf = Literal["fifo", "netem", "cut"]
_LEAVES: dict[Leaf, tuple[int, str]] = {
    "fifo": (FIFO_MAJOR, "bfifo"),
    "netem": (NETEM_MAJOR, "netem"),
    "cut": (CUT_MAJOR, "blackhole"),
}


def queue_bytes(rate_bps: float) -> int:
    """The fifo's limit: 100 ms worth, at least two large writes, rounded up to a power of two.

    Rounded so that most changes of rate leave it alone. TCP itself keeps far less than this in the queue.
    """
    wanted = max(QUEUE_FLOOR_BYTES, math.ceil(rate_bps / 8 * QUEUE_S))
    return 1 << (wanted - 1).bit_length()


def netem_packets(shape: LinkShape) -> int:
    """netem's limit in packets: what the delay holds (twice, for small packets), and a queue; a power of two.

    Rounded so that most changes of rate leave it alone.
    """
    held = shape.rate_bps / 8 * (shape.delay_s + shape.jitter_s)
    wanted = math.ceil((2 * held + queue_bytes(shape.rate_bps)) / PACKET_BYTES)
    return 1 << (wanted - 1).bit_length()


def _tc(index: int, handle: int, parent: int, info: int, *parts: bytes) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info) + b"".join(parts)


def root(index: int, layer: int, default_minor: int = 0) -> bytes:
    """The htb root of an interface. ``layer``: what rates count, 2 or 3.

    Packets that no filter classifies go to the class ``default_minor``, or pass unshaped when it is 0.
    """
    options = attribute(TCA_HTB_INIT, struct.pack("=IIIII", 3, 10, default_minor, 0, 0))
    parts = [text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, options)]
    if layer == 3:
        base = struct.pack("=BBhiIIII", 0, 0, 0, -ETHERNET_HEADER_BYTES, LINKLAYER_ETHERNET, 0, 0, 0)
        parts.append(attribute(TCA_STAB, attribute(TCA_STAB_BASE, base)))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


def htb_class(
    index: int,
    minor: int,
    rate_bps: float,
    *,
    burst: int | None = None,
    assured_bps: float | None = None,
    parent: int = INTERFACE,
) -> bytes:
    """A class with its rate; its queue is kept.

    ``burst``: bytes that may pass at once, None for the default; ``assured_bps``: what of the rate need not be borrowed
    from the parent, None for all of it.
    """
    burst = burst_bytes(rate_bps) if burst is None else burst
    ceiling, assured = (max(1, round(bps / 8)) for bps in (rate_bps, rate_bps if assured_bps is None else assured_bps))
    specs = b"".join(
        struct.pack("=BBHhHI", 0, LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFF_FFFF)) for rate in (assured, ceiling)
    )
    ticks = (min(math.ceil(burst / rate * 1e9 / TICK_NS), 0xFFFF_FFFF) for rate in (assured, ceiling))
    parameters = attribute(TCA_HTB_PARMS, specs + struct.pack("=IIIII", *ticks, QUANTUM_BYTES, 0, 0))
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
    yield leaf(index, PORT_MINOR, LinkShape(min(rate_bps, PORT_QUEUE_BPS)), "fifo")


def leaf(index: int, minor: int, shape: LinkShape, kind: Leaf | None = None) -> bytes:
    """The queue below a class; it takes the place of one of another kind, with all that waits in that.

    ``kind``: netem also for a shape that does not need it; None for what the shape needs.
    """
    if kind is None:
        kind = "cut" if shape.cut else "netem" if shape.needs_netem else "fifo"
    major, name = _LEAVES[kind]
    parts = [text(TCA_KIND, name)]
    if kind == "netem":
        parts.append(attribute(TCA_OPTIONS, netem.options(shape, netem_packets(shape))))
    elif kind == "fifo":
        parts.append(attribute(TCA_OPTIONS, struct.pack("=I", queue_bytes(shape.rate_bps))))
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


def to_class(index: int, minor: int, ip: bytes) -> bytes:
    """A filter that sends packets for the IPv4 address ``ip`` (four bytes) to the class."""
    key = struct.pack("=4s4sii", b"\xff" * 4, ip, 16, 0)  # the destination stands at byte 16 of an IPv4 header
    selector = struct.pack("=BBBxHHhh4x", 1, 0, 1, 0, 0, 0, 0) + key
    options = number(TCA_U32_CLASSID, ROOT | minor) + attribute(TCA_U32_SEL, selector)
    info = (1 << 16) | socket.htons(ETH_P_IP)  # first and only preference
    parts = (text(TCA_KIND, "u32"), attribute(TCA_OPTIONS, options))
    return message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, _tc(index, 0, ROOT, info, *parts))


class ClassCounters(NamedTuple):
    """What a class has let through, and what waits in its queue now (bytes at the testbed's layer)."""

    minor: int
    sent_bytes: int
    backlog_bytes: int


def class_dump(index: int) -> bytes:
    """Body of a request for all classes of an interface."""
    return _tc(index, 0, 0, 0)


def class_counters(answer: bytes) -> ClassCounters | None:
    """A link's class in a dump; None for anything else."""
    _, _, handle, _, _ = _TCMSG.unpack_from(answer)
    statistics = attributes(attributes(answer[_TCMSG.size :]).get(TCA_STATS2, b""))
    basic, queue = statistics.get(TCA_STATS_BASIC, b""), statistics.get(TCA_STATS_QUEUE, b"")
    if handle & 0xFFFF_0000 != ROOT or handle == INTERFACE or len(basic) < 8 or len(queue) < 8:
        return None
    return ClassCounters(handle & 0xFFFF, struct.unpack_from("=Q", basic)[0], struct.unpack_from("=II", queue)[1])
