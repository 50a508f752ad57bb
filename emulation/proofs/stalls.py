"""What the times at which packets came say of the link, and what of the machine that emulates it.

A token bucket whose machine comes too late to send gives away what the bucket cannot hold: a link of 40 Mbit/s with a
burst of 1 ms loses 4 ms for every 5 for which a shared machine is away. That is no fault of how the link is shaped, and
no other link would do better.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

PART_PACKETS = 5  # fewer, between two idle times or stalls, say nothing


class Pace(NamedTuple):
    """How packets of a link that is as asked follow each other: ``packet_ns`` apart, once its burst is through.

    A bucket holds what passes in ``burst_ns`` at the link's rate, and lets ``burst_packets`` through at once.
    ``slack_ns``: how much longer than that it may pause by itself, for jitter's sake or having lent to another bucket.
    """

    packet_ns: int
    burst_ns: int
    burst_packets: int
    slack_ns: int = 0

    @property
    def pause_ns(self) -> int:
        """A link with a backlog has sent again by then, unless the machine kept it waiting."""
        return self.packet_ns + self.burst_ns + self.slack_ns


def steady(times_ns: Sequence[int], pace: Pace) -> tuple[int, int, int]:
    """Of packets' arrivals while a link was full: how many followed another, in how many nanoseconds; and the stalls.

    A machine that comes too late to send takes from a link what its burst does not make up, and lets the burst through
    at once. So what lies between such pauses is counted, each time after the burst, and not the pauses: their time
    beyond the burst comes third. Where less than a third of the packets would be left, it is the link that is slow, and
    all of them count.
    """
    whole = times_ns[pace.burst_packets :]
    pauses = [i + 1 for i, (a, b) in enumerate(itertools.pairwise(times_ns)) if b - a > pace.pause_ns]
    steps, full_ns, stalled_ns = 0, 0, 0
    for first, end in itertools.pairwise((0, *pauses, len(times_ns))):
        part = times_ns[first + pace.burst_packets : end]
        if len(part) >= PART_PACKETS:
            steps += len(part) - 1
            full_ns += part[-1] - part[0]
        if first:
            stalled_ns += times_ns[first] - times_ns[first - 1] - pace.packet_ns - pace.burst_ns
    if len(whole) < PART_PACKETS:
        return 0, 0, 0
    whole_ns = whole[-1] - whole[0]
    return (steps, full_ns, stalled_ns) if 3 * steps > len(whole) else (len(whole) - 1, whole_ns, 0)
