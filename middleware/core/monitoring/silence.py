"""A way between two hosts that is dead though both hear the client: who waits finds it out, and the run ends.

Rules:

R1. A host waits for another where it repeats a demand or a claim, or where a transfer to it has failed. One that has
    not answered a ``Ping`` for ``liveness_s`` is then pinged every ``ping_s``, once for all stripes of a stream.
    Only its ``Pong`` shows that both directions work.
R2. The suspicion is over when that comes, or when nothing is waited for there any more, as after a move.
R3. When it has lasted for ``lease_s`` times ``patience`` the client is told (``Failed``, as often as the other is
    pinged), and ends the run with both names. A host that the client itself does not hear, it gives up sooner.
R4. A route that carries control messages may carry no partitions. Where no byte of a transfer gets through, the other
    host is pinged as well. Once it has answered, the connection for bulk is made anew. If nothing has got through for
    ``stall_s`` times ``patience`` although it answers, the route has failed for bulk. Where answers take long, it is
    given ``ANSWERS_LONG`` times as long as one of them besides: a full queue before a slow link delays both. A host to
    which there are several routes is reached by the others. When all of them have failed, the client is told.
R5. If this host did not run itself (``Woke``), the period of R3 begins anew.
"""

from __future__ import annotations

import enum
import math

from thalweg.middleware.core.outbox import Outbox, Timer
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.stripes import asked_as

STALLED_KNOWN = 4096  # routes
ANSWERS_LONG = 3.0
BLOCKED_LONG = 3.0  # times ``stall_s``: by then every other route there has been tried


class Step(enum.Enum):
    """What to do about a transfer that does not get through (R4)."""

    WAIT = "wait"
    REDIAL = "redial"
    BLOCKED = "blocked"


class _Stalled:
    """A route for bulk on which nothing gets through: when its host was asked, and how long its answer took."""

    __slots__ = ("asked_s", "blocked_s", "redialled_s", "took_s")

    def __init__(self, asked_s: float) -> None:
        self.asked_s, self.blocked_s = asked_s, -math.inf
        self.took_s = self.redialled_s = math.inf


class Suspicions:
    """The hosts that this one waits for in vain, of all runs."""

    def __init__(self, out: Outbox, limits: CoreConfig) -> None:
        self._out, self._limits = out, limits
        self.since_s: dict[tuple[str, str], float] = {}  # (run, host) -> when it was pinged first
        self._stalled: dict[tuple[str, str, str], _Stalled] = {}  # by run, host and network
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

    def on_stalled(self, run: str, host: str, via: str, idle_s: float) -> Step:
        """R4: nothing of a transfer has got through for so long; 0: something does again."""
        key = run, host, via
        if not idle_s:
            self._stalled.pop(key, None)
            return Step.WAIT
        stalled = self._stalled.get(key)
        if stalled is None:
            if len(self._stalled) >= STALLED_KNOWN:
                self._stalled.pop(next(iter(self._stalled)))
            stalled = self._stalled[key] = _Stalled(self._out.now)
        now, answered_s = self._out.now, self._answered_s.get(host, -math.inf)
        if answered_s <= stalled.asked_s:
            self._ping(run, host)
            return Step.WAIT
        if stalled.took_s == math.inf:
            stalled.took_s = answered_s - stalled.asked_s
        spare_s = ANSWERS_LONG * stalled.took_s
        if idle_s < spare_s:
            return Step.WAIT
        if stalled.redialled_s == math.inf:
            stalled.redialled_s = now
            return Step.REDIAL
        stall_s = self._limits.patience * self._limits.stall_s
        if idle_s < stall_s + spare_s or now - stalled.redialled_s < stall_s / 2 + spare_s:
            return Step.WAIT
        stalled.asked_s = stalled.blocked_s = now  # it has to answer once more before that is said again
        return Step.BLOCKED

    def is_blocked(self, run: str, host: str, via: str) -> bool:
        """Whether a route has failed for bulk lately (R4), and nothing has got through since."""
        stalled = self._stalled.get((run, host, via))
        lately_s = self._out.now - BLOCKED_LONG * self._limits.patience * self._limits.stall_s
        return stalled is not None and stalled.blocked_s >= lately_s

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
        """Give all that are suspected a fresh period, as this host did not run (R5)."""
        self.since_s = dict.fromkeys(self.since_s, self._out.now)

    def go_on(self) -> None:
        """All have been checked."""
        if self.since_s:
            self._wake()
        else:
            lately_s = self._out.now - self._limits.liveness_s
            asked = {host for _, host, _ in self._stalled}
            self._answered_s = {
                host: at_s for host, at_s in self._answered_s.items() if at_s > lately_s or host in asked
            }
            self._asked_s.clear()

    def _wake(self) -> None:
        self._out.wake(Timer.SILENCE, self._out.now + self._limits.ping_s)

    def _ping(self, run: str, host: str) -> None:
        self._answered_s.setdefault(host, -math.inf)
        key = asked_as(run), host
        if self._out.now >= self._asked_s.get(key, -math.inf) + self._limits.ping_s:
            self._asked_s[key] = self._out.now
            self._out.of(run).send(host, m.Ping(""))
