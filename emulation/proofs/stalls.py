"""Pace of a link from the arrival times of packets, without the stalls of the machine that emulates the link.

If the machine comes too late to send, a token bucket loses the tokens that the bucket cannot hold. A link of 40 Mbit/s
with a burst of 1 ms loses 4 ms for every 5 ms for which a shared machine is away. This is no fault of the link's shape,
and a different link would do no better.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

PART_PACKETS = 5  # fewer packets, between two idle times or stalls, prove nothing


class Pace(NamedTuple):
    """Distances of packets on a link that is as asked: ``packet_ns``, once the link's burst is through.

    A bucket holds the traffic of ``burst_ns`` at the link's rate, and lets ``burst_packets`` through at once.
    ``slack_ns``: further time that the link may pause by itself, because of jitter or after a loan to a second bucket.
    """

    packet_ns: int
    burst_ns: int
    burst_packets: int
    slack_ns: int = 0

    @property
    def pause_ns(self) -> int:
        """Return the longest pause of a link with a backlog, unless the machine keeps the link waiting."""
        return self.packet_ns + self.burst_ns + self.slack_ns


def steady(times_ns: Sequence[int], pace: Pace) -> tuple[int, int, int]:
    """Return how many packets followed a packet while the link was full, in how many nanoseconds, and the stalls.

    A machine that comes too late takes from a link the time that the burst does not make up, and lets the burst through
    at once. So the packets between such pauses are counted, each time after the burst. The pauses' time beyond the
    burst is not counted, and is the third result. If less than a third of the packets would be left, the link is slow,
    and all packets count.
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
