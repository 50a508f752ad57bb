"""A way between two hosts that is dead though both hear the client: who waits finds it out, and the run ends.

Rules:

R1. A host waits for another where it repeats a demand or a claim, or where a transfer to it has failed. One that has
    not answered a ``Ping`` for ``liveness_s`` is then pinged every ``ping_s``, once for all stripes of a stream.
    Only its ``Pong`` shows that both directions work.
R2. The suspicion is over when that comes, or when nothing is waited for there any more, as after a move.
R3. When it has lasted for ``lease_s`` times ``patience`` the client is told (``Failed``, as often as the other is
    pinged), and ends the run with both names. A host that the client itself does not hear, it gives up sooner.
R4. If this host did not run itself (``Woke``), the period of R3 begins anew.
"""

from __future__ import annotations

import math

from thalweg.middleware.core.outbox import Outbox, Timer
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.stripes import asked_as


class Suspicions:
    """The hosts that this one waits for in vain, of all runs."""

    def __init__(self, out: Outbox, limits: CoreConfig) -> None:
        self._out, self._limits = out, limits
        self.since_s: dict[tuple[str, str], float] = {}  # (run, host) -> when it was pinged first
        self._answered_s: dict[str, float] = {}
        self._asked_s: dict[tuple[str, str], float] = {}  # by stream, or run, and host

    def on_waiting(self, run: str, host: str, since_s: float) -> None:
        """Something has been expected of ``host``, which has a part in ``run``, or been meant for it, since then."""
        now, liveness_s = self._out.now, self._limits.liveness_s
        key = run, host
        if key in self.since_s or host == self._out.host:
            return
        if now - max(since_s, self._answered_s.get(host, since_s)) < liveness_s:
            return
        if not self.since_s:
            self._wake()
        self.since_s[key] = now
        self._ping(run, host)  # R1

    def asked(self, host: str) -> bool:
        """Whether it was pinged, lately."""
        return host in self._answered_s

    def on_pong(self, sender: str) -> None:
        """Both directions to ``sender`` work."""
        self._answered_s[sender] = self._out.now
        for key in [key for key in self.since_s if key[1] == sender]:
            del self.since_s[key]  # R2

    def check(self, run: str, host: str, client: str, waits: tuple[str, str] | None) -> None:
        """``waits``: a node here that still needs the way to ``host``, and what for."""
        if waits is None:
            del self.since_s[run, host]  # R2
            return
        self._ping(run, host)
        lease_s = self._limits.patience * self._limits.lease_s
        if self._out.now - self.since_s[run, host] >= lease_s:  # R3
            node, what = waits
            why = f"host {host!r}, {what}, has not answered it for {lease_s:g} s; is a way cut?"
            self._out.of(run).send(client, m.Failed(run, node, why, lost=host))

    def refresh(self) -> None:
        """Give all that are suspected a fresh period, as this host did not run (R4)."""
        self.since_s = dict.fromkeys(self.since_s, self._out.now)

    def go_on(self) -> None:
        """All have been checked."""
        if self.since_s:
            self._wake()
        else:
            lately_s = self._out.now - self._limits.liveness_s
            self._answered_s = {host: at_s for host, at_s in self._answered_s.items() if at_s > lately_s}
            self._asked_s.clear()

    def _wake(self) -> None:
        self._out.wake(Timer.SILENCE, self._out.now + self._limits.ping_s)

    def _ping(self, run: str, host: str) -> None:
        self._answered_s.setdefault(host, -math.inf)
        key = asked_as(run), host
        if self._out.now >= self._asked_s.get(key, -math.inf) + self._limits.ping_s:
            self._asked_s[key] = self._out.now
            self._out.of(run).send(host, m.Ping(""))
