"""Detection of routes between two hosts that carry no messages, or no partitions, while both hosts reach the client.

The waiting host detects the fault and notifies the client. The client ends the run, or begins the next generation.

Rules:

R1. A host waits for a second host if it has to repeat a demand or a claim, or if a transfer to the second host has
    failed. If the awaited host has not answered a ``Ping`` for ``liveness_s``, the host is pinged every ``ping_s``,
    once for the stripes of a stream together. Only its ``Pong`` shows that both directions work.
R2. The suspicion ends with the ``Pong``, or if no node waits for the host any longer, as after a move.
R3. If the suspicion lasts for ``liveness_s`` times ``patience``, the client is notified with every further ping
    (``Failed``). The client ends the run and names both hosts. A host that does not reach the client itself is given up
    sooner.
R4. A route that carries control messages may carry no partitions. If no byte of a transfer gets through, the other host
    is pinged as well. After its answer, the connection for bulk is made anew. If nothing gets through for ``stall_s``
    times ``patience`` although the host answers, the route has failed for bulk. A slow answer extends this time by
    ``ANSWERS_LONG`` times the answer time, or by ``ANSWERS_LONG`` times the first limit if that is less. The reason is
    a full queue before a slow link, which delays both. A host with several routes is reached over the remaining routes.
    If every route has failed, the client is notified.
R5. In a run that outlives its hosts, the fault is noticed within ``detect_s``. If answers take long or vary
    (``response_times``), it is noticed later, and not before twice the longest of the last response times. Awaited
    hosts are checked ``PINGS`` times in this time, not with each repetition. A host is pinged once as soon as a node
    waits for it, so that its response time is known. A ping from the run's client names the run, because a restarted
    host answers as well, but does not know the run.
R6. If the local host is late with its checks, suspected hosts get as much time again. If it did not run for a longer
    time (``Woke``), the period of R3 begins anew.
"""

from __future__ import annotations

import enum
import math

import msgspec

from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.measuring.response_times import ResponseTimes
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

PINGS = 3  # to a silent host, within its maximum silence
STALLED_KNOWN = 4096  # maximum number of routes in memory
ANSWERS_LONG = 3.0
BLOCKED_LONG = 3.0  # times ``stall_s`` and ``patience``: by then every other route to the host has been tried


class StallAction(enum.Enum):
    """Reaction to a transfer that does not get through (R4)."""

    WAIT = "wait"
    REDIAL = "redial"
    BLOCKED = "blocked"


class _Stalled(msgspec.Struct):
    """Route for bulk on which nothing gets through (R4).

    ``asked_s``: time of the ping to the host. ``took_s``: duration until its answer. ``redialled_s``: time at which the
    connection was made anew. ``blocked_s``: time at which the route was reported as failed.
    """

    asked_s: float
    took_s: float = math.inf
    redialled_s: float = math.inf
    blocked_s: float = -math.inf


class _Suspicion(msgspec.Struct):
    """Suspicion of an awaited host. ``since_s``: beginning of its silence. ``lasts``: the run outlives its hosts."""

    since_s: float
    lasts: bool


class Suspicions:
    """Hosts from which the local host awaits an answer in vain, in every run."""

    def __init__(self, out: Outbox, limits: CoreConfig) -> None:
        self._out, self._limits = out, limits
        self.of: dict[tuple[RunId, str], _Suspicion] = {}  # by run and host
        self._stalled: dict[tuple[RunId, str, str], _Stalled] = {}  # by run, host and network
        self._answered_s: dict[str, float] = {}
        self._answers: dict[str, ResponseTimes] = {}  # by host that is awaited in a run that outlives its hosts
        self._asked_s: dict[tuple[RunId, str], float] = {}  # last ping, by stream (or run) and host
        self._due_s = math.inf
        self.watching = False  # R5: a run that outlives its hosts awaits a host
        silent_s = limits.patience * limits.liveness_s
        self._least_s = min(silent_s, limits.patience * limits.detect_s)
        self._pace_s = min(limits.ping_s, self._least_s / PINGS)

    def watch(self) -> None:
        """Begin regular checks of awaited hosts. They go on while a run that outlives its hosts waits (R5)."""
        self.watching = True
        self._wake(self._pace_s)

    def greet(self, run: RunId, host: str, *, leads: bool = False) -> None:
        """Ping an awaited host once, to measure its response time (R5).

        ``leads``: the local host is the run's client.
        """
        if host not in self._answers and host != self._out.host:
            self._answers[host] = ResponseTimes()
            self._ping(run, host, self._pace_s, leads=leads)

    def on_waiting(self, run: RunId, host: str, since_s: float, *, lasts: bool = False, leads: bool = False) -> None:
        """Suspect and ping a host of a run, if it has been silent for too long since an answer was due (R1).

        ``since_s``: time at which the answer became due. ``lasts``: the run outlives its hosts. ``leads``: the local
        host is the run's client.
        """
        now, after_s = self._out.now, self._pace_s if lasts else self._limits.liveness_s
        key = run, host
        if key in self.of or host == self._out.host:
            return
        if now - max(since_s, self._answered_s.get(host, since_s)) < after_s:
            return
        every_s = self._pace_s if lasts else self._limits.ping_s
        if not (self.of or self.watching):
            self._due_s = math.inf  # the check was due for hosts that have answered
        self.of[key] = _Suspicion(now - self._pace_s if lasts else now, lasts)  # as if silent for one check
        self._wake(every_s)
        self._ping(run, host, every_s, leads=lasts and leads)  # R1: only the answer shows that both directions work

    def on_stalled(self, run: RunId, host: str, via: str, idle_s: float) -> StallAction:
        """Return what to do about a transfer without progress for ``idle_s`` (R4).

        ``idle_s`` is 0 if the transfer makes progress again.
        """
        key = run, host, via
        if not idle_s:
            self._stalled.pop(key, None)
            return StallAction.WAIT
        stalled = self._stalled.get(key)
        if stalled is None:
            if len(self._stalled) >= STALLED_KNOWN:
                self._stalled.pop(next(iter(self._stalled)))
            stalled = self._stalled[key] = _Stalled(self._out.now)
        now, answered_s = self._out.now, self._answered_s.get(host, -math.inf)
        if answered_s <= stalled.asked_s:
            self._ping(run, host, self._limits.ping_s)
            return StallAction.WAIT
        if stalled.took_s == math.inf:
            stalled.took_s = answered_s - stalled.asked_s
        stall_s = self._limits.patience * self._limits.stall_s
        # R4: no queue delays an answer for longer than this, so earlier answers were lost
        spare_s = ANSWERS_LONG * min(stalled.took_s, stall_s)
        if idle_s < spare_s:
            return StallAction.WAIT
        if stalled.redialled_s == math.inf:
            stalled.redialled_s = now
            return StallAction.REDIAL
        if idle_s < stall_s + spare_s or now - stalled.redialled_s < stall_s / 2 + spare_s:
            return StallAction.WAIT
        stalled.asked_s = stalled.blocked_s = now  # the host has to answer again before the next report
        return StallAction.BLOCKED

    def is_blocked(self, run: RunId, host: str, via: str) -> bool:
        """Return whether a route has failed for bulk lately (R4), without any progress since then."""
        stalled = self._stalled.get((run, host, via))
        lately_s = self._out.now - BLOCKED_LONG * self._limits.patience * self._limits.stall_s
        return stalled is not None and stalled.blocked_s >= lately_s

    def was_pinged(self, host: str) -> bool:
        """Return whether a host was pinged lately."""
        return host in self._answered_s

    def on_pong(self, sender: str) -> None:
        """Record an answer of ``sender``, which shows that both directions work. End suspicions of the host (R2)."""
        self._answered_s[sender] = self._out.now
        if sender in self._answers:
            self._answers[sender].came(self._out.now)
        for key in [key for key in self.of if key[1] == sender]:
            del self.of[key]  # R2: the host has answered

    def begin_checks(self) -> None:
        """Begin a round of checks. If the round is late, extend the time of every suspected host (R6)."""
        late_s, self._due_s = self._out.now - self._due_s, math.inf
        if late_s > self._pace_s:  # R6: this host was late itself
            for suspicion in self.of.values():
                suspicion.since_s += late_s

    def check(self, run: RunId, host: str, client: str, waits: tuple[str, str] | None) -> None:
        """Ping a suspected host again, and notify the client when the host's time is over (R3).

        ``waits``: a local node that still needs the route to the host, and the purpose. None: there is no such node, so
        the suspicion ends (R2).
        """
        suspicion = self.of[run, host]
        if waits is None:
            del self.of[run, host]  # R2: no node waits for the host any more
            return
        leads = suspicion.lasts and client == self._out.host
        self._ping(run, host, self._pace_s if suspicion.lasts else self._limits.ping_s, leads=leads)
        within_s, waited_s = self._within_s(host, lasts=suspicion.lasts), self._out.now - suspicion.since_s
        if waited_s >= within_s:  # R3: notify the client
            node, purpose = waits
            why = f"host {host!r}, {purpose}, has not answered it for {in_seconds(within_s)}; is a way cut?"
            self._out.of(run).send(client, m.Failed(run, node, why, lost=host))

    def refresh(self) -> None:
        """Give every suspected host a fresh period, because the local host did not run (R6)."""
        for suspicion in self.of.values():
            suspicion.since_s = self._out.now
        self._due_s = max(self._due_s, self._out.now)  # a check that the sleep has delayed is not late
        for answers in self._answers.values():
            answers.forget_asked()

    def _within_s(self, host: str, *, lasts: bool) -> float:
        """Return the maximum time without an answer of a host (R3, R5)."""
        silent_s = self._limits.patience * self._limits.liveness_s
        answers = self._answers.get(host)
        if not lasts or answers is None:
            return silent_s
        within_s = answers.silence_s(self._pace_s, self._least_s, silent_s)
        return max(within_s, min(silent_s, self._pace_s + 2 * answers.longest_s))  # few answers predict little

    def go_on(self, *, waiting: bool) -> None:
        """Set the time of the next check at the end of a round of checks.

        ``waiting``: a run that outlives its hosts still waits for a host.
        """
        self.watching = waiting
        if self.of:
            self._wake(self._pace_s if any(suspicion.lasts for suspicion in self.of.values()) else self._limits.ping_s)
        else:
            lately_s = self._out.now - self._limits.liveness_s
            asked = {host for _, host, _ in self._stalled} | self._answers.keys()
            self._answered_s = {
                host: at_s for host, at_s in self._answered_s.items() if at_s > lately_s or host in asked
            }
            self._asked_s.clear()
        if waiting:
            self._wake(self._pace_s)
        else:
            self._answers.clear()

    def _wake(self, after_s: float) -> None:
        at_s = self._out.now + after_s
        if at_s < self._due_s:
            self._due_s = at_s
            self._out.wake(Timer.SILENCE, at_s)

    def _ping(self, run: RunId, host: str, every_s: float, *, leads: bool = False) -> None:
        self._answered_s.setdefault(host, -math.inf)
        key = run.asked_as, host
        if self._out.now >= self._asked_s.get(key, -math.inf) + every_s:
            self._asked_s[key] = self._out.now
            if host in self._answers:
                self._answers[host].pinged(self._out.now)
            self._out.of(run).send(host, m.Ping(run if leads else None))
