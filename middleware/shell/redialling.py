"""Renewal of control connections on which bytes do not get through.

TCP doubles the time before each new attempt. After a cut of 15 s, TCP tries again 12 s after the end of the cut, and no
message passes before. Queued messages are dropped, as cores repeat important messages (R1 of ``sockets``). Rules:

- R1: If a connection has been idle (``stalls``) for ``REDIAL_S`` and for twice its round trip, it is renewed. The next
  renewal follows after the same time, or after a quarter of the time that has passed if longer.
- R2: When bytes get through again, bulk connections to the host that stand still are renewed. The core is notified, and
  repeats its demands.
"""

from __future__ import annotations

from typing import NamedTuple

from thalweg.middleware.shell.sockets import Sockets
from thalweg.middleware.shell.stalls import End, Stalls

REDIAL_S = 3.0
SHARE = 1 / 4


class _Redialled(NamedTuple):
    """Idle time of a connection at its last renewal, and its round trip before."""

    idle_s: float
    rtt_s: float


class Redialling:
    """Control connections of one host. Only the host's thread on duty calls it."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._stalls = Stalls(sockets.outflow, greeting_bytes=1)
        self._redialled: dict[End, _Redialled] = {}

    def check(self, now: float) -> list[str]:
        """Renew idle connections (R1). Return the hosts that bytes reach again (R2)."""
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
