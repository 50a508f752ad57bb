"""Netlink options of a link's queue: a fifo, CoDel, FQ-CoDel, PIE or RED.

The managed disciplines keep their queue short by themselves. They mark packets of connections that understand ECN, and
drop others. CoDel's target is 5 ms, the kernel's default. On slow links the target is the time of one packet and a
half, as no queue can be shorter. No input or output.

Source: tc-codel(8), tc-fq_codel(8), tc-pie(8), tc-red(8), linux/pkt_sched.h; RFC 8289, section 4.4, of targets on slow
links; iproute2's tc_red.c of RED's averages.
"""

from __future__ import annotations

import math
import struct

from thalweg.emulation.kernel.netlink import attribute, number
from thalweg.emulation.links.shape import FRAME_BYTES, QUEUE, LinkShape

TARGET_S, INTERVAL_S = 0.005, 0.1
LIMIT_PACKETS = 1000  # of a managed discipline, which keeps its queue shorter
RED_PROBABILITY = 0.02  # of a mark at the highest average
RED_ECN = 1


def options(shape: LinkShape) -> bytes:
    """Return the payload of TCA_OPTIONS for a link's queue."""
    queue = shape.queue or QUEUE
    if queue.discipline != "fifo":
        return _MANAGED[queue.discipline](shape)
    size = math.ceil(shape.queue_bytes / FRAME_BYTES) if queue.unit == "packets" else shape.queue_bytes
    return struct.pack("=I", size)


def target_s(shape: LinkShape) -> float:
    """Return the target of a managed queue: the longest standing delay of packets, in seconds."""
    return max(TARGET_S, 1.5 * FRAME_BYTES * 8 / shape.set_bps)


def _times_us(shape: LinkShape) -> tuple[int, int]:
    target = target_s(shape)
    return round(target * 1e6), round(max(INTERVAL_S, 20 * target) * 1e6)


def _codel(shape: LinkShape) -> bytes:
    target_us, interval_us = _times_us(shape)
    return number(1, target_us) + number(2, LIMIT_PACKETS) + number(3, interval_us) + number(4, 1)


def _pie(shape: LinkShape) -> bytes:
    target_us = max(15_000, round(target_s(shape) * 1e6))  # RFC 8033, section 4.2
    return number(1, target_us) + number(2, LIMIT_PACKETS) + number(6, 1)


def _red(shape: LinkShape) -> bytes:
    """Return RED's options: marks from a third of the usual queue to all of it, and drops beyond four times that."""
    most = shape._replace(queue=None).queue_bytes
    least, limit, packet = most // 3, 4 * most, FRAME_BYTES
    burst = (2 * least + most) / (3 * packet)
    w_log = min(_ewma(least, burst, packet), 31 - most.bit_length())  # red_check_params of the kernel
    p_log = max(0, min(31, round(math.log2((most - least) / RED_PROBABILITY))))
    table, cell_log = _idle(w_log, packet, shape.set_bps / 8)
    parameters = struct.pack("=IIIBBBB", limit, least, most, w_log, p_log, cell_log, RED_ECN)
    return attribute(1, parameters) + attribute(2, table) + number(3, round(RED_PROBABILITY * (2**32 - 1)))


def _ewma(least: int, burst: float, packet: int) -> int:
    """Return the logarithm of the weight of RED's average with which a burst of ``burst`` packets passes unmarked."""
    weight, a = 0.5, burst + 1 - least / packet
    for w_log in range(1, 32):
        if a <= (1 - (1 - weight) ** burst) / weight:
            return w_log
        weight /= 2
    return 31


def _idle(w_log: int, packet: int, bytes_per_s: float) -> tuple[bytes, int]:
    """Return the table of the average's fall during idle times, and the logarithm of the table's time step."""
    per_packet_us = packet / bytes_per_s * 1e6
    log_w = math.log(1 - 2.0**-w_log) / per_packet_us
    longest = 31 / abs(log_w)
    cell_log = next((k for k in range(32) if longest / 2**k < 512), 31)
    table = [0] + [min(255, max(0, round(-((i << cell_log) * log_w) / math.log(2)))) for i in range(1, 255)] + [31]
    return bytes(min(31, entry) for entry in table), cell_log


_MANAGED = {"fq_codel": _codel, "codel": _codel, "pie": _pie, "red": _red}
