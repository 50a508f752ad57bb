"""What a link's shape becomes in the kernel: an htb class, a queue, a filter, as netlink messages.

On each host's interface stands one htb root; every destination has a class of its own directly below it (so no
link borrows from another), a leaf (a byte-limited fifo, or netem when there is a delay, jitter or loss) and a u32
filter on the destination address. What no filter matches passes unshaped. Standard library only, because
the supervisor imports it; no input or output.

Layer 3 (IP bytes) is counted by a size table of -14 bytes on the root, which takes the Ethernet header off
every packet before htb sees it; layer 2 counts the frame.

Source: tc-htb(8), tc-netem(8), tc-stab(8), net/sched/sch_htb.c, linux/pkt_sched.h, linux/pkt_cls.h.
"""

from __future__ import annotations

import math
import socket
import struct
from typing import NamedTuple

from thalweg.emulation.netns_netlink import (
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

RATE_FLOOR_BPS = 64_000.0
"""The lowest rate a link is set to; a trace's outage becomes this. htb cannot be set to 0, and a class that has just
sent a full packet at a low rate stays blocked for that packet's time when the rate rises (0.19 s here)."""

BURST_S = 0.001
"""Worth of rate that may pass at once after idling. Small, so that neither a probe of 16 KB nor the head of a partition
passes unshaped on a time-dilated link; htb's timers are of high resolution and need no more."""
BURST_FLOOR_BYTES = 2 * 1514  # two full frames: htb needs one to send at all
QUEUE_S = 0.1
QUEUE_FLOOR_BYTES = 2 * 65_536  # two of TCP's largest writes
PACKET_BYTES = 1500
QUANTUM_BYTES = 1514  # only shares borrowed rate, of which there is none; set so that the kernel does not warn
ETHERNET_HEADER_BYTES = 14
TICK_NS = 64  # the kernel's packet scheduler counts in 64 ns (PSCHED_SHIFT)
ROOT = 0x0001_0000
FIFO_MAJOR, NETEM_MAJOR = 0x1000, 0x4000

TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8
TCA_STATS_BASIC, TCA_STATS_QUEUE = 1, 3
TC_H_ROOT = 0xFFFF_FFFF
TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64, TCA_HTB_CEIL64 = 1, 2, 6, 7
TCA_U32_CLASSID, TCA_U32_SEL = 1, 5
TCA_STAB_BASE = 1
LINKLAYER_ETHERNET = 1  # tells htb to compute transmission times itself, so that no rate table is needed
ETH_P_IP = 0x0800

_TCMSG = struct.Struct("=BxxxiIII")


class Shape(NamedTuple):
    """A link's shape with the floor applied: bits per second, seconds, seconds, share of packets lost."""

    rate_bps: float
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    @property
    def needs_netem(self) -> bool:
        return bool(self.delay_s or self.jitter_s or self.loss)


def floored(rate_bps: float) -> float:
    """The rate a link is really set to when ``rate_bps`` is asked."""
    return max(rate_bps, RATE_FLOOR_BPS)


def burst_bytes(rate_bps: float) -> int:
    """Bytes that may pass at once after the link was idle."""
    return max(BURST_FLOOR_BYTES, math.ceil(rate_bps / 8 * BURST_S))


def queue_bytes(rate_bps: float) -> int:
    """The fifo's limit: 100 ms worth, at least two large writes, rounded up to a power of two.

    Rounded so that most changes of rate leave it alone. TCP itself keeps far less than this in the queue.
    """
    wanted = max(QUEUE_FLOOR_BYTES, math.ceil(rate_bps / 8 * QUEUE_S))
    return 1 << (wanted - 1).bit_length()


def netem_packets(shape: Shape) -> int:
    """netem's limit in packets: what the delay holds (twice, for small packets), and a queue."""
    held = shape.rate_bps / 8 * (shape.delay_s + shape.jitter_s)
    return math.ceil((2 * held + queue_bytes(shape.rate_bps)) / PACKET_BYTES)


def _tc(index: int, handle: int, parent: int, info: int, *parts: bytes) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, info) + b"".join(parts)


def root(index: int, layer: int) -> bytes:
    """The htb root of an interface; unclassified packets pass unshaped. ``layer``: what rates count, 2 or 3."""
    options = attribute(TCA_HTB_INIT, struct.pack("=IIIII", 3, 10, 0, 0, 0))
    parts = [text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, options)]
    if layer == 3:
        base = struct.pack("=BBhiIIII", 0, 0, 0, -ETHERNET_HEADER_BYTES, LINKLAYER_ETHERNET, 0, 0, 0)
        parts.append(attribute(TCA_STAB, attribute(TCA_STAB_BASE, base)))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


def htb_class(index: int, minor: int, rate_bps: float, *, create: bool = False) -> bytes:
    """Create a destination's class, or change its rate where it stands (its queue is kept)."""
    rate = max(1, round(rate_bps / 8))
    ticks = min(math.ceil(burst_bytes(rate_bps) / rate * 1e9 / TICK_NS), 0xFFFF_FFFF)
    spec = struct.pack("=BBHhHI", 0, LINKLAYER_ETHERNET, 0, 0, 0, min(rate, 0xFFFF_FFFF))
    parameters = attribute(TCA_HTB_PARMS, spec + spec + struct.pack("=IIIII", ticks, ticks, QUANTUM_BYTES, 0, 0))
    if rate > 0xFFFF_FFFF:
        wide = struct.pack("=Q", rate)
        parameters += attribute(TCA_HTB_RATE64, wide) + attribute(TCA_HTB_CEIL64, wide)
    flags = NLM_F_CREATE | NLM_F_EXCL if create else 0
    body = _tc(index, ROOT | minor, ROOT, 0, text(TCA_KIND, "htb"), attribute(TCA_OPTIONS, parameters))
    return message(RTM_NEWTCLASS, flags, body)


def leaf(index: int, minor: int, shape: Shape, *, create: bool = False) -> bytes:
    """The queue below a class: fifo or netem. ``create`` also replaces one of the other kind."""
    if shape.needs_netem:
        kind, major = "netem", NETEM_MAJOR
        delay, jitter = (min(round(s * 1e9 / TICK_NS), 0xFFFF_FFFF) for s in (shape.delay_s, shape.jitter_s))
        loss = round(shape.loss * 0xFFFF_FFFF)
        options = struct.pack("=IIIIII", delay, netem_packets(shape), loss, 0, 0, jitter)
    else:
        kind, major = "bfifo", FIFO_MAJOR
        options = struct.pack("=I", queue_bytes(shape.rate_bps))
    flags = NLM_F_CREATE | NLM_F_REPLACE if create else 0
    parts = (text(TCA_KIND, kind), attribute(TCA_OPTIONS, options))
    return message(RTM_NEWQDISC, flags, _tc(index, (major + minor) << 16, ROOT | minor, 0, *parts))


def netem_alone(index: int) -> bytes:
    """netem as an interface's own queue: to find out whether the kernel has it."""
    parts = (text(TCA_KIND, "netem"), attribute(TCA_OPTIONS, struct.pack("=IIIIII", 0, 1000, 0, 0, 0, 0)))
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, _tc(index, ROOT, TC_H_ROOT, 0, *parts))


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
    """One class of a dump; None for anything else."""
    _, _, handle, _, _ = _TCMSG.unpack_from(answer)
    statistics = attributes(attributes(answer[_TCMSG.size :]).get(TCA_STATS2, b""))
    basic, queue = statistics.get(TCA_STATS_BASIC, b""), statistics.get(TCA_STATS_QUEUE, b"")
    if handle & 0xFFFF_0000 != ROOT or len(basic) < 8 or len(queue) < 8:
        return None
    return ClassCounters(handle & 0xFFFF, struct.unpack_from("=Q", basic)[0], struct.unpack_from("=II", queue)[1])
