"""Routes between two hosts that carry no messages, or no partitions, though both hosts hear the client.

The host that waits for the other finds it out and tells the client. The client ends the run, or begins it anew.

Rules:

R1. A host waits for another where it repeats a demand or a claim, or where a transfer to it has failed. One that has
    not answered a ``Ping`` for ``liveness_s`` is then pinged every ``ping_s``, once for all stripes of a stream.
    Only its ``Pong`` shows that both directions work.
R2. The suspicion is over when that comes, or when nothing is waited for there any more, as after a move.
R3. When it has lasted for ``liveness_s`` times ``patience`` the client is told (``Failed``, as often as the other is
    pinged), and ends the run with both names. A host that the client itself does not hear, it gives up sooner.
R4. A route that carries control messages may carry no partitions. Where no byte of a transfer gets through, the other
    host is pinged as well. Once it has answered, the connection for bulk is made anew. If nothing has got through for
    ``stall_s`` times ``patience`` although it answers, the route has failed for bulk. Where answers take long, it is
    given ``ANSWERS_LONG`` times as long as one of them besides, or as ``stall_s`` if that is shorter: a full queue
    before a slow link delays both. A host to which there are several routes is reached by the others. When all of them
    have failed, the client is told.
R5. In a run that outlives its hosts, which begins anew, that is noticed within ``detect_s``. Where answers take long
    or vary (``response_times``), it is noticed later, and not before twice the longest of the last ones. Who waits is
    looked after ``PINGS`` times in that time, not with each repetition. A host is asked once as soon as it is waited
    for, so that it is known how long its answers take. The run's client asks for its part in the run: one that was
    started again answers as well.
R6. If this host was late itself, all others are given as much time again. If it did not run for longer (``Woke``), the
    period of R3 begins anew.
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

PINGS = 3  # while a host does not answer
STALLED_KNOWN = 4096  # routes
ANSWERS_LONG = 3.0
BLOCKED_LONG = 3.0  # times ``stall_s``: by then every other route there has been tried


class StallAction(enum.Enum):
    """What to do about a transfer that does not get through (R4)."""

    WAIT = "wait"
    REDIAL = "redial"
    BLOCKED = "blocked"


class _Stalled(msgspec.Struct):
    """A route for bulk on which nothing gets through (R4).

    ``asked_s``: when its host was asked; ``took_s``: how long the answer took; ``redialled_s``: when its connection was
    made anew; ``blocked_s``: when it was said to have failed.
    """

    asked_s: float
    took_s: float = math.inf
    redialled_s: float = math.inf
    blocked_s: float = -math.inf


class _Suspicion(msgspec.Struct):
    """A host that is waited for: since when it is pinged, and whether the run outlives it."""

    since_s: float
    lasts: bool


class Suspicions:
    """The hosts that this one waits for in vain, of all runs."""

    def __init__(self, out: Outbox, limits: CoreConfig) -> None:
        self._out, self._limits = out, limits
        self.of: dict[tuple[RunId, str], _Suspicion] = {}  # by run and host
        self._stalled: dict[tuple[RunId, str, str], _Stalled] = {}  # by run, host and network
        self._answered_s: dict[str, float] = {}
        self._answers: dict[str, ResponseTimes] = {}  # of hosts that are waited for in runs that outlive them
        self._asked_s: dict[tuple[RunId, str], float] = {}  # by stream, or run, and host
        self._due_s = math.inf
        self.watching = False  # R5: a host is waited for in a run that outlives its hosts
        silent_s = limits.patience * limits.liveness_s
        self._least_s = min(silent_s, limits.patience * limits.detect_s)
        self._pace_s = min(limits.ping_s, self._least_s / PINGS)

    def watch(self) -> None:
        """R5: look after what is waited for, from now on, while there is something."""
        self.watching = True
        self._wake(self._pace_s)

    def greet(self, run: RunId, host: str, *, leads: bool = False) -> None:
        """R5: ask a host once, as it is waited for. ``leads``: this host is the run's client."""
        if host not in self._answers and host != self._out.host:
            self._answers[host] = ResponseTimes()
            self._ping(run, host, self._pace_s, leads=leads)

    def on_waiting(self, run: RunId, host: str, since_s: float, *, lasts: bool = False, leads: bool = False) -> None:
        """Ask a host of a run, if it has not answered since something was expected of it, or sent to it (R1).

        ``since_s``: when that was. ``lasts``: the run outlives its hosts. ``leads``: this host is the run's client.
        """
        now, after_s = self._out.now, self._pace_s if lasts else self._limits.liveness_s
        key = run, host
        if key in self.of or host == self._out.host:
            return
        if now - max(since_s, self._answered_s.get(host, since_s)) < after_s:
            return
        every_s = self._pace_s if lasts else self._limits.ping_s
        if not (self.of or self.watching):
            self._due_s = math.inf  # which was to look after others, that have answered
        self.of[key] = _Suspicion(now - self._pace_s if lasts else now, lasts)  # as if it had answered just before
        self._wake(every_s)
        self._ping(run, host, every_s, leads=lasts and leads)  # R1: only the answer shows that both directions work

    def on_stalled(self, run: RunId, host: str, via: str, idle_s: float) -> StallAction:
        """Return what to do about a transfer of which nothing has got through for ``idle_s`` (R4).

        ``idle_s`` is 0 if something gets through again.
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
        # R4: no queue delays an answer for longer, so earlier answers were lost
        spare_s = ANSWERS_LONG * min(stalled.took_s, stall_s)
        if idle_s < spare_s:
            return StallAction.WAIT
        if stalled.redialled_s == math.inf:
            stalled.redialled_s = now
            return StallAction.REDIAL
        if idle_s < stall_s + spare_s or now - stalled.redialled_s < stall_s / 2 + spare_s:
            return StallAction.WAIT
        stalled.asked_s = stalled.blocked_s = now  # it has to answer once more before that is said again
        return StallAction.BLOCKED

    def is_blocked(self, run: RunId, host: str, via: str) -> bool:
        """Return whether a route has failed for bulk lately (R4), and nothing has got through since."""
        stalled = self._stalled.get((run, host, via))
        lately_s = self._out.now - BLOCKED_LONG * self._limits.patience * self._limits.stall_s
        return stalled is not None and stalled.blocked_s >= lately_s

    def was_pinged(self, host: str) -> bool:
        """Return whether a host was pinged lately."""
        return host in self._answered_s

    def on_pong(self, sender: str) -> None:
        """Note that both directions to ``sender`` work."""
        self._answered_s[sender] = self._out.now
        if sender in self._answers:
            self._answers[sender].came(self._out.now)
        for key in [key for key in self.of if key[1] == sender]:
            del self.of[key]  # R2: the host has answered

    def begin_checks(self) -> None:
        """Begin to look after the hosts that are waited for, as it is time."""
        late_s, self._due_s = self._out.now - self._due_s, math.inf
        if late_s > self._pace_s:  # R6: this host was late itself
            for suspicion in self.of.values():
                suspicion.since_s += late_s

    def check(self, run: RunId, host: str, client: str, waits: tuple[str, str] | None) -> None:
        """Ask a suspected host again, and notify the client when its time is over.

        ``waits``: a node here that still needs the route to the host, and what for; None if there is none.
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
        """Give all that are suspected a fresh period, as this host did not run (R6)."""
        for suspicion in self.of.values():
            suspicion.since_s = self._out.now
        self._due_s = max(self._due_s, self._out.now)  # the look that is late by the sleep is not late besides
        for answers in self._answers.values():
            answers.forget_asked()

    def _within_s(self, host: str, *, lasts: bool) -> float:
        """Return for how long a host may not answer (R3, R5)."""
        silent_s = self._limits.patience * self._limits.liveness_s
        answers = self._answers.get(host)
        if not lasts or answers is None:
            return silent_s
        within_s = answers.silence_s(self._pace_s, self._least_s, silent_s)
        return max(within_s, min(silent_s, self._pace_s + 2 * answers.longest_s))  # few answers say little of the next

    def go_on(self, *, waiting: bool) -> None:
        """Set the time of the next look, as all hosts have been checked. ``waiting``: as ``watching``."""
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
