"""Connections on which nothing gets through, though something is to be sent.

The sender judges, by what the other machine's kernel has acknowledged. A slow link shows every few seconds that it is
alive: at 8 kbit/s a packet takes 1.5 s, and a chunk of 256 KiB more than four minutes. Rules:

- R1: A connection is *idle* while bytes of it are on their way and none arrives, or while it cannot be made. A packet
  that arrives after a lost one counts: on a slow link with a long queue the lost one comes again a minute later. If all
  that was sent has arrived, the other host is slow and the route is not at fault: its processes may be starved, and its
  kernel acknowledges nevertheless.
- R2: Time in which this process did not run itself does not count. Between two looks ``2 * LOOK_S`` count at most.
- R3: A new connection for bulk is idle until ``GREETING_BYTES`` have arrived, or a credit: greetings are small, and
  pass also where large packets do not.
- R4: The idle time begins ``ROUND_TRIPS`` round trips late, as an acknowledgement takes one. A round trip counts as
  ``LONGEST_RTT_S`` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

LOOK_S = 1.0  # between two looks while something is to be sent
REPORTED_S = 3.0  # shorter idle times are not reported
GREETING_BYTES = 2048
ROUND_TRIPS, LONGEST_RTT_S = 2.0, 30.0
End = tuple[str, str]  # an endpoint, and the host that is to be there: with keys, a dealer goes to it alone


class Outflow(NamedTuple):
    """What the kernel knows of the bytes sent on one connection that this host has dialled.

    ``acked_bytes`` have reached the other machine. If ``waits``, others are on their way. ``rtt_s`` is the round trip,
    with four times its deviation. ``delivered`` counts the packets that have reached it, also those that it keeps until
    a lost one before them has come again.
    """

    acked_bytes: int
    waits: bool
    rtt_s: float = 0.0
    delivered: int = 0


class Stalls:
    """How long each connection has been idle. ``outflow`` asks the kernel, and returns None without a connection."""

    def __init__(self, outflow: Callable[[End], Outflow | None], greeting_bytes: int = GREETING_BYTES) -> None:
        self._outflow, self._greeting_bytes = outflow, greeting_bytes
        self._flows: dict[End, Outflow] = {}  # as they were at the last look
        self._rtt_s: dict[End, float] = {}  # of the last connection to there that carried more than greetings
        self._idle_s: dict[End, float] = {}
        self._reported: set[End] = set()
        self._moved: set[End] = set()
        self._looked_s = 0.0

    def check(self, busy: Collection[End], now: float) -> dict[End, float]:
        """Look at the connections that something is to be sent on. Return how long the idle ones have been idle.

        A connection on which bytes get through again is returned once, with 0.
        """
        passed_s, self._looked_s = min(now - self._looked_s, 2 * LOOK_S), now  # R2: this process may not have run
        idle_before, self._idle_s = self._idle_s, {}
        flows, self._flows = self._flows, {}
        rtt, self._rtt_s = self._rtt_s, {}
        reported, self._reported, self._moved = self._reported, set(), set()
        idle: dict[End, float] = {}
        for end in busy:
            flow, idle_s = self._outflow(end), idle_before.get(end, 0.0)
            present = self._flows[end] = flow or Outflow(0, waits=False)
            before = flows.get(end, present)
            if present.acked_bytes < before.acked_bytes:  # another connection
                before = Outflow(0, waits=False)
            moves = present.acked_bytes > before.acked_bytes or present.delivered > before.delivered
            greets = present.acked_bytes < self._greeting_bytes
            self._rtt_s[end] = rtt.get(end, 0.0) if greets else present.rtt_s
            greets = greets and idle_s > 0  # R3: a connection that was made anew; the first one may be unused
            if moves and not greets:
                self._moved.add(end)
            elif end in flows and (flow is None or flow.waits or greets):  # R1: something is to get there
                waits = (flow is None or flow.waits) and not moves
                self._idle_s[end] = idle_s = idle_s + (passed_s if waits else 0.0)
                beyond_s = idle_s - ROUND_TRIPS * min(self._rtt_s[end], LONGEST_RTT_S)  # R4: acknowledgements take one
                if beyond_s >= REPORTED_S:
                    self._reported.add(end)
                    idle[end] = beyond_s
                continue
            if end in reported:
                idle[end] = 0.0
        return idle

    def moves(self, end: End) -> bool:
        """Return whether bytes have got through to an end between the last two looks."""
        return end in self._moved

    def came(self, end: End) -> bool:
        """Note that a credit has come from an end. Return whether its connection had been reported as idle."""
        self._idle_s.pop(end, None)
        reported = end in self._reported
        self._reported.discard(end)
        return reported
