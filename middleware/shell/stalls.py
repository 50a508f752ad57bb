"""Detection of connections on which nothing gets through although bytes are to be sent.

The sender decides, by the bytes that the other machine's kernel has acknowledged. A slow link shows activity every few
seconds: at 8 kbit/s a packet takes 1.5 s, and a chunk of 256 KiB more than four minutes. Rules:

- R1: A connection is *idle* while bytes are under way and none arrives, or while it cannot be made. A packet that
  arrives after a lost packet counts: on a slow link with a long queue, the lost packet is sent again a minute later. If
  all sent bytes have arrived, the other host is slow, and the route works. Its kernel acknowledges even if its
  processes are starved.
- R2: Time in which this process did not run does not count. At most ``2 * LOOK_S`` count between two checks.
- R3: A new connection for bulk is idle until ``GREETING_BYTES`` have arrived, or a credit. Greetings are small, and
  pass even if large packets do not.
- R4: The idle time begins ``ROUND_TRIPS`` round trips late, as an acknowledgement takes one. A round trip counts as
  ``LONGEST_RTT_S`` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

LOOK_S = 1.0  # between two checks while bytes are to be sent
REPORTED_S = 3.0  # shorter idle times are not reported
GREETING_BYTES = 2048
ROUND_TRIPS, LONGEST_RTT_S = 2.0, 30.0
End = tuple[str, str]  # an endpoint and its host: with keys, a dealer connects to this host alone


class Outflow(NamedTuple):
    """State of the bytes sent on a connection that this host has dialled, as the kernel reports it.

    - ``acked_bytes``: bytes that have reached the other machine.
    - ``waits``: whether further bytes are under way.
    - ``rtt_s``: round trip, with four times its deviation.
    - ``delivered``: packets that have reached the other machine, including packets behind a lost packet.
    """

    acked_bytes: int
    waits: bool
    rtt_s: float = 0.0
    delivered: int = 0


class Stalls:
    """Idle time of each connection.

    ``outflow`` reads the state of a connection from the kernel, and returns None without a connection.
    """

    def __init__(self, outflow: Callable[[End], Outflow | None], greeting_bytes: int = GREETING_BYTES) -> None:
        self._outflow, self._greeting_bytes = outflow, greeting_bytes
        self._flows: dict[End, Outflow] = {}  # as of the last check
        self._rtt_s: dict[End, float] = {}  # of the last connection that carried more than greetings
        self._idle_s: dict[End, float] = {}
        self._reported: set[End] = set()
        self._moved: set[End] = set()
        self._looked_s = 0.0

    def check(self, busy: Collection[End], now: float) -> dict[End, float]:
        """Check the connections with bytes to send. Return the idle time of each idle connection, in seconds.

        If bytes get through again, the connection is returned once more, with 0.
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
            if present.acked_bytes < before.acked_bytes:  # a new connection
                before = Outflow(0, waits=False)
            moves = present.acked_bytes > before.acked_bytes or present.delivered > before.delivered
            greets = present.acked_bytes < self._greeting_bytes
            self._rtt_s[end] = rtt.get(end, 0.0) if greets else present.rtt_s
            greets = greets and idle_s > 0  # R3: only a renewed connection; the first connection may be unused
            if moves and not greets:
                self._moved.add(end)
            elif end in flows and (flow is None or flow.waits or greets):  # R1: bytes are to be sent
                waits = (flow is None or flow.waits) and not moves
                self._idle_s[end] = idle_s = idle_s + (passed_s if waits else 0.0)
                beyond_s = idle_s - ROUND_TRIPS * min(self._rtt_s[end], LONGEST_RTT_S)  # R4: acknowledgements take time
                if beyond_s >= REPORTED_S:
                    self._reported.add(end)
                    idle[end] = beyond_s
                continue
            if end in reported:
                idle[end] = 0.0
        return idle

    def moves(self, end: End) -> bool:
        """Return whether bytes have got through to an end between the last two checks."""
        return end in self._moved

    def came(self, end: End) -> bool:
        """Note that a credit has arrived from an end. Return whether the connection had been reported as idle."""
        self._idle_s.pop(end, None)
        reported = end in self._reported
        self._reported.discard(end)
        return reported
