"""Control connections that are made anew where bytes of them do not get through.

TCP doubles the time before each of its attempts. After a cut of 15 s it tries again 12 s beyond the end of the cut, and
no message passes before. Whatever was queued is dropped: cores repeat what matters (R1 of ``sockets``). Rules:

- R1: A connection is made anew when it has been idle (``stalls``) for ``REDIAL_S``, or for twice its round trip where
  that is longer, and again after as long, or a quarter of the time that has passed.
- R2: When bytes get through again, the connections for bulk to that host are made anew where they stand still. The core
  hears of it, and repeats its demands.
"""

from __future__ import annotations

from typing import NamedTuple

from thalweg.middleware.shell.sockets import Sockets
from thalweg.middleware.shell.stalls import End, Stalls

REDIAL_S = 3.0
SHARE = 1 / 4


class _Redialled(NamedTuple):
    """When a connection was made anew last, counted from when it became idle, and the round trip before."""

    idle_s: float
    rtt_s: float


class Redialling:
    """The control connections of one host; called by its thread on duty alone."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._stalls = Stalls(sockets.outflow, greeting_bytes=1)
        self._redialled: dict[End, _Redialled] = {}

    def check(self, now: float) -> list[str]:
        """Make connections anew (R1). Return the hosts to which bytes get through again (R2)."""
        sockets, back = self._sockets, list[str]()
        idle = self._stalls.check(sockets.control_ends(), now)
        for end, idle_s in idle.items():
            if not idle_s:
                self._redialled.pop(end, None)
                back.append(end[1])
                continue
            before = self._redialled.get(end)
            if before is None:
                flow = sockets.outflow(end)
                before = _Redialled(0.0, 0.0 if flow is None else flow.rtt_s)
            if idle_s - before.idle_s >= max(REDIAL_S, 2 * before.rtt_s, SHARE * before.idle_s):
                self._redialled[end] = _Redialled(idle_s, before.rtt_s)
                sockets.redial(end)
        self._redialled = {end: redialled for end, redialled in self._redialled.items() if end in idle}
        return back
