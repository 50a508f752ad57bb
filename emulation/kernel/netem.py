"""Netlink options of the netem discipline: delay with jitter from a table, loss, duplicates, reordering, corruption.

Losses in bursts are a Gilbert model. netem's own correlation of losses, deprecated in tc-netem(8), is not used, because
it changes the share of lost packets.

A message states the whole discipline, also at a change. The kernel keeps every attribute that a change leaves out
(``netem_change``). A link would then keep its old corruption, reordering or distribution of the delay. Without a table
the kernel draws uniformly, but a table cannot be removed. So every message with jitter has a table, a straight line for
uniform. No input or output.

Jitter reorders packets: netem sends a packet when the packet's own delay is over. Real parallel paths do the same, but
a single queue does not. The order of packets holds if the jitter is below the time between packets.

Source: tc-netem(8), net/sched/sch_netem.c, linux/pkt_sched.h. The tables are made as in iproute2's netem/normal.c,
pareto.c and paretonormal.c (scale 8192, 4096 entries), from the quantiles of the distributions.
"""

from __future__ import annotations

import array
import math
import struct
from functools import cache

from thalweg.emulation.kernel.netlink import attribute
from thalweg.emulation.links.shape import DISTRIBUTIONS, SHARES, LinkShape

TABLE_ENTRIES = 4096
TABLE_SCALE = 8192  # NETEM_DIST_SCALE: an entry of this size adds one jitter to the delay
TABLE_LARGEST = 32_767
PARETO_SHAPE = 3.0
TICK_NS = 64  # the kernel's packet scheduler counts in 64 ns (PSCHED_SHIFT)
WHOLE = 0xFFFF_FFFF

TCA_NETEM_CORR, TCA_NETEM_DELAY_DIST, TCA_NETEM_REORDER, TCA_NETEM_CORRUPT, TCA_NETEM_LOSS = 1, 2, 3, 4, 5
NETEM_LOSS_GE = 2
TCA_NETEM_LATENCY64, TCA_NETEM_JITTER64 = 10, 11

_QOPT = struct.Struct("=IIIIII")  # latency, limit, loss, gap, duplicate, jitter
_NO_CORRELATION = attribute(TCA_NETEM_CORR, struct.pack("=III", 0, 0, 0))


def _normal(entry: int) -> float:
    from statistics import NormalDist  # slow to import, and seldom needed

    deviate: float = NormalDist().inv_cdf((4 * entry + 0.5) / (4 * TABLE_ENTRIES))
    return deviate


def _pareto(entry: int) -> float:
    """Return a quantile of Pareto with shape 3, moved to mean 0 and scaled to a spread of about 1. The tail is cut."""
    share = 1 - entry / TABLE_ENTRIES
    return min((math.pow(share, -1 / PARETO_SHAPE) - 1.5) * 4 / 3, TABLE_LARGEST / TABLE_SCALE)


@cache
def table(distribution: str) -> tuple[int, ...]:
    """Return the additions to the delay, in units of one jitter / ``TABLE_SCALE``. All entries are equally likely.

    Raise ValueError for an unknown distribution.
    """
    entries = range(TABLE_ENTRIES)
    if distribution == "uniform":
        return tuple(4 * i + 2 - TABLE_SCALE for i in entries)
    if distribution == "pareto":
        return tuple(round(_pareto(i) * TABLE_SCALE) for i in entries)
    normal = [round(_normal(i) * TABLE_SCALE) for i in entries]
    if distribution == "normal":
        offsets = normal
    elif distribution == "paretonormal":  # one quarter normal, three quarters Pareto, quantile by quantile
        pareto = table("pareto")
        offsets = [math.trunc((normal[i] + 3 * pareto[i]) / 4) for i in entries]
    else:
        raise ValueError(f"there is no distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    return tuple(max(-TABLE_LARGEST - 1, min(TABLE_LARGEST, value)) for value in offsets)


@cache
def _packed_table(distribution: str) -> bytes:
    return attribute(TCA_NETEM_DELAY_DIST, array.array("h", table(distribution)).tobytes())


def quantile(distribution: str, share: float) -> float:
    """Return the ``share`` quantile of a packet's delay minus the delay asked, in jitters."""
    entries = table(distribution)  # rises from end to end
    return entries[min(len(entries) - 1, max(0, math.floor(share * len(entries))))] / TABLE_SCALE


def options(shape: LinkShape, limit_packets: int) -> bytes:
    """Return the payload of netem's TCA_OPTIONS for a link's shape, with the number of packets that netem may hold.

    Delay and jitter are given twice: in ticks of 64 ns for kernels before Linux 4.15, in nanoseconds for later kernels.
    """
    delay_ns, jitter_ns = round(shape.delay_s * 1e9), round(shape.jitter_s * 1e9)
    delay_ticks, jitter_ticks = (min(round(ns / TICK_NS), WHOLE) for ns in (delay_ns, jitter_ns))
    lost, doubled, reordered, corrupted = (round(getattr(shape, share) * WHOLE) for share in SHARES)
    if in_bursts := shape.loss > 0 and shape.loss_burst > 0:
        lost = 0
    # with a gap of 1 every packet may be reordered, with 0 none
    parts = [
        _QOPT.pack(delay_ticks, min(limit_packets, WHOLE), lost, 1 if shape.reorder else 0, doubled, jitter_ticks),
        _NO_CORRELATION,
        attribute(TCA_NETEM_REORDER, struct.pack("=II", reordered, 0)),
        attribute(TCA_NETEM_CORRUPT, struct.pack("=II", corrupted, 0)),
        attribute(TCA_NETEM_LATENCY64, struct.pack("=q", delay_ns)),
        attribute(TCA_NETEM_JITTER64, struct.pack("=q", jitter_ns)),
    ]
    if in_bursts:  # all packets of a burst are lost, and none between bursts
        begins, ends = (round(chance * WHOLE) for chance in shape.gilbert)
        model = attribute(NETEM_LOSS_GE, struct.pack("=IIII", begins, ends, 0, 0))
        parts.append(attribute(TCA_NETEM_LOSS, model))
    if jitter_ns:
        parts.append(_packed_table(shape.distribution))
    return b"".join(parts)
