"""The netem discipline as netlink sees it: delay with jitter from a table, loss, duplicates, reordering, corruption.

Losses in bursts are a Gilbert model. netem's own correlation of losses, which tc-netem(8) calls deprecated, is not
used: with it the share that is lost is not the one asked.

A message states the whole discipline, at a change too: the kernel keeps whatever attribute a change leaves out
(``netem_change``), so a link would keep the corruption, the reordering or the delay's distribution it had before.
Without a table the kernel draws uniformly, but a table once given cannot be taken back; so wherever there is
jitter, a table goes along, a straight line for uniform. No input or output.

Jitter reorders: netem sends every packet when its own delay is over, as the kernel does it and real parallel paths do,
but a single queue does not. The order of packets holds where the jitter is below the time between them.

Source: tc-netem(8), net/sched/sch_netem.c, linux/pkt_sched.h; the tables as iproute2's netem/normal.c, pareto.c and
paretonormal.c make them (scale 8192, 4096 entries), computed from the distributions' quantiles.
"""

from __future__ import annotations

import array
import math
import struct
from functools import cache

from thalweg.emulation.kernel.netlink import attribute
from thalweg.emulation.links.shape import DISTRIBUTIONS, SHARES, LinkShape

TABLE_ENTRIES = 4096
TABLE_SCALE = 8192  # NETEM_DIST_SCALE: an entry of this adds one jitter to the delay
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

    found: float = NormalDist().inv_cdf((4 * entry + 0.5) / (4 * TABLE_ENTRIES))
    return found


def _pareto(entry: int) -> float:
    """Pareto of shape 3, moved and scaled to mean 0 and (but for the tail that is cut) about 1 of spread."""
    share = 1 - entry / TABLE_ENTRIES
    return min((math.pow(share, -1 / PARETO_SHAPE) - 1.5) * 4 / 3, TABLE_LARGEST / TABLE_SCALE)


@cache
def table(distribution: str) -> tuple[int, ...]:
    """What is added to the delay, in jitters of ``TABLE_SCALE``; each entry is as likely as every other. Raises
    ValueError for an unknown distribution."""
    entries = range(TABLE_ENTRIES)
    if distribution == "uniform":
        return tuple(4 * i + 2 - TABLE_SCALE for i in entries)
    if distribution == "pareto":
        return tuple(round(_pareto(i) * TABLE_SCALE) for i in entries)
    normal = [round(_normal(i) * TABLE_SCALE) for i in entries]
    if distribution == "normal":
        found = normal
    elif distribution == "paretonormal":  # one quarter normal, three quarters Pareto, quantile by quantile
        pareto = table("pareto")
        found = [math.trunc((normal[i] + 3 * pareto[i]) / 4) for i in entries]
    else:
        raise ValueError(f"there is no distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    return tuple(max(-TABLE_LARGEST - 1, min(TABLE_LARGEST, value)) for value in found)


@cache
def _packed_table(distribution: str) -> bytes:
    return attribute(TCA_NETEM_DELAY_DIST, array.array("h", table(distribution)).tobytes())


def quantile(distribution: str, share: float) -> float:
    """The jitters that a packet's delay differs by from the one asked, at most, with probability ``share``."""
    entries = table(distribution)  # rises from end to end
    return entries[min(len(entries) - 1, max(0, math.floor(share * len(entries))))] / TABLE_SCALE


def options(shape: LinkShape, limit_packets: int) -> bytes:
    """The payload of netem's TCA_OPTIONS for a link's shape, and how many packets it may hold.

    Both forms of delay and jitter stand in it: ticks of 64 ns for kernels before Linux 4.15, nanoseconds for others.
    """
    delay_ns, jitter_ns = round(shape.delay_s * 1e9), round(shape.jitter_s * 1e9)
    delay_ticks, jitter_ticks = (min(round(ns / TICK_NS), WHOLE) for ns in (delay_ns, jitter_ns))
    lost, doubled, reordered, corrupted = (round(getattr(shape, share) * WHOLE) for share in SHARES)
    if in_bursts := shape.loss > 0 and shape.loss_burst > 0:
        lost = 0
    # a gap of 1 lets every packet be drawn for reordering; 0 none
    parts = [
        _QOPT.pack(delay_ticks, min(limit_packets, WHOLE), lost, 1 if shape.reorder else 0, doubled, jitter_ticks),
        _NO_CORRELATION,
        attribute(TCA_NETEM_REORDER, struct.pack("=II", reordered, 0)),
        attribute(TCA_NETEM_CORRUPT, struct.pack("=II", corrupted, 0)),
        attribute(TCA_NETEM_LATENCY64, struct.pack("=q", delay_ns)),
        attribute(TCA_NETEM_JITTER64, struct.pack("=q", jitter_ns)),
    ]
    if in_bursts:  # all packets of a burst are lost, and none between
        begins, ends = (round(chance * WHOLE) for chance in shape.gilbert)
        model = attribute(NETEM_LOSS_GE, struct.pack("=IIII", begins, ends, 0, 0))
        parts.append(attribute(TCA_NETEM_LOSS, model))
    if jitter_ns:
        parts.append(_packed_table(shape.distribution))
    return b"".join(parts)
