"""The supervisor's replay: schedules of rates and changes of shapes, set when they are due.

Times are ``time.monotonic()``, one clock for all processes of a machine.
"""

from __future__ import annotations

import heapq
import math
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING

from thalweg.emulation.links.effects import NEUTRAL, Effect
from thalweg.emulation.links.shape import MAX_RATE_BPS, LinkShape
from thalweg.emulation.supervisor.requests import MIN_STEP_S
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Cable, Link

if TYPE_CHECKING:  # Linux alone has what that imports
    from thalweg.emulation.kernel.world import World

AHEAD_S = 0.002
"""What is due this soon is applied now: one wake-up for changes that lie closer than a timer can tell apart."""


class Schedule:
    """One link's rates over one period, in wall time: ``rates_bps[k]`` from ``times_s[k]`` on; then over again.

    A period of 0 means a constant.
    """

    __slots__ = ("link", "period_s", "rates_bps", "times_s")

    def __init__(self, link: tuple[str, ...], times_s: bytes, rates_bps: bytes, period_s: float) -> None:
        self.link, self.period_s = Link(*link), period_s
        self.times_s, self.rates_bps = array("d", times_s), array("d", rates_bps)
        if wrong := self._objection():
            raise UsageError(f"the schedule of link {self.link.text}: {wrong}")

    def _objection(self) -> str:
        """Return what no schedule can have; empty if there is nothing."""
        times, rates, period_s = self.times_s, self.rates_bps, self.period_s
        if not times or len(times) != len(rates):
            return f"it has {len(times)} times and {len(rates)} rates; it needs as many of both, at least 1"
        if times[0] != 0 or not all(earlier < later < math.inf for earlier, later in pairwise(times)):
            return "its times do not begin with 0, or do not increase"
        if not all(0 <= rate <= MAX_RATE_BPS for rate in rates):
            return f"a rate is outside 0 to {MAX_RATE_BPS:g} bit/s"
        if period_s and not max(times[-1], MIN_STEP_S * len(times)) <= period_s < math.inf:
            return f"its period is {period_s:g} s for {len(times)} steps; it takes {MIN_STEP_S:g} s a step at least"
        return ""

    def due_s(self, step: int) -> float:
        """When step number ``step`` (counted over all laps) is due, seconds after the start."""
        laps, k = divmod(step, len(self.times_s))
        return laps * self.period_s + self.times_s[k]

    def rate_bps(self, step: int) -> float:
        return self.rates_bps[step % len(self.rates_bps)]


def read_changes(rows: bytes, effects: Sequence[Effect]) -> list[tuple[float, int, Effect]]:
    """Changes from rows of float64: when (seconds after a start), the schedule's and the effect's number."""
    found = []
    for at_s, which, effect in struct.iter_unpack("=3d", rows):
        if not 0 <= at_s < math.inf:
            raise UsageError(f"links are to be changed from {at_s:g} s on; it must be at least 0")
        if not 0 <= effect < len(effects):
            raise ValueError(f"there is no effect {effect:g}")
        found.append((at_s, int(which), effects[int(effect)]))
    return found


class Lags:
    """How late things were, in a histogram of fixed size: what it tells is exact for the largest, else to 2.5 %.

    Up to 1 µs counts as nothing.
    """

    LEAST_S, RATIO, BINS = 1e-6, 1.05, 600  # up to 5e6 s, two months

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * self.BINS))
        self._total, self.max_s = 0, 0.0

    def add(self, lag_s: float) -> None:
        number = 0
        if lag_s > self.LEAST_S:
            number = min(1 + int(math.log(lag_s / self.LEAST_S, self.RATIO)), self.BINS - 1)
        self._counts[number] += 1
        self._total += 1
        self.max_s = max(self.max_s, lag_s)

    def at(self, share: float) -> float:
        """Seconds that this share of the lags (0 to 1) stays below; 0 of none."""
        rank, passed = min(int(self._total * share), self._total - 1), 0
        for number, count in enumerate(self._counts):
            passed += count
            if passed > rank:
                return min(self.max_s, self.LEAST_S * self.RATIO ** (number - 0.5)) if number else 0.0
        return 0.0


STEP, CHANGE, CARRIER = 0, 1, 2


class Player:
    """Applies schedules and changes to a world, one batch a host and wake-up. Restartable.

    A link's shape is its own, as others have given it, at the rate of its schedule's last step, under the effect of
    its last change. Raises KeyError for a schedule whose link is not shaped.
    """

    def __init__(self, world: World, schedules: list[Schedule]) -> None:
        self._world, self._schedules = world, schedules
        self._changes: list[list[tuple[float, Effect]]] = [[] for _ in schedules]  # seconds after the start
        self._queue: list[tuple[float, int, int, int]] = []  # (due, schedule, STEP or CHANGE, its number)
        self._step = [0] * len(schedules)
        self._effect = [NEUTRAL] * len(schedules)
        self._carriers: list[tuple[float, Cable, bool]] = []  # sorted: seconds after the start, and whether it is up
        self._befalls: set[tuple[int, Effect]] = set()  # what ever befalls a schedule's link
        for one in schedules:
            world.links[one.link]
        self._highest_bps = [max(one.rates_bps) for one in schedules]
        self._lags = Lags()
        self._t0_s = 0.0
        self.steps = 0
        self.events: set[Link] = set()
        """The links that the last changes concerned, as opposed to steps of schedules alone."""

    @property
    def running(self) -> bool:
        return bool(self._queue)

    @property
    def delays(self) -> bool:
        """Whether a change gives a link a delay."""
        return any(effect.delay_s for _, effect in self._befalls)

    def shapes(self, changes: Iterable[tuple[float, int, Effect]] = ()) -> list[tuple[Link, LinkShape]]:
        """All that the links may come to be, at their schedules' highest rates, with these changes added."""
        added = {(which, id(effect)): (which, effect) for _, which, effect in changes}  # few of them differ
        found = []
        for which, effect in self._befalls | set(added.values()) | {(i, NEUTRAL) for i in range(len(self._schedules))}:
            link = self._schedules[which].link
            found.append((link, effect.shape(self._world.links[link].base, self._highest_bps[which])))
        return found

    def change(self, changes: Iterable[tuple[float, int, Effect]]) -> None:
        """From so many seconds after every later start on, a schedule's link has an effect, until its next change.

        Of two changes of a link at one time the one given later holds. Raises ValueError, and changes nothing, for a
        schedule that there is not.
        """
        added = list(changes)
        if wrong := [which for _, which, _ in added if not 0 <= which < len(self._schedules)]:
            raise ValueError(f"there is no schedule {wrong[0]}")
        for from_s, which, effect in added:
            self._changes[which].append((from_s, effect))
        self._befalls |= set({(which, id(effect)): (which, effect) for _, which, effect in added}.values())
        for which in {which for _, which, _ in added}:
            self._changes[which].sort(key=lambda change: change[0])

    def change_carriers(self, changes: Iterable[tuple[float, Cable, bool]]) -> None:
        """From so many seconds after every later start on, ends have a carrier or none, until their next change."""
        added = list(changes)
        if wrong := next((at_s for at_s, _, _ in added if not 0 <= at_s < math.inf), None):
            raise UsageError(f"a carrier is to change from {wrong:g} s on; it must be at least 0")
        self._carriers = sorted([*self._carriers, *added], key=lambda change: change[0])

    def start(self) -> float:
        """Set every link to what it has at 0 and begin; returns the start on the shared clock."""
        self._queue = []
        self._lags, self.steps = Lags(), 0
        self._step = [0] * len(self._schedules)
        passed = [bisect_right(one, 0.0, key=lambda change: change[0]) for one in self._changes]
        self._effect = [one[n - 1][1] if n else NEUTRAL for one, n in zip(self._changes, passed, strict=True)]
        self._meet(i for i, effect in enumerate(self._effect) if effect != NEUTRAL)
        self._apply(range(len(self._schedules)))
        self._t0_s = t0_s = time.monotonic()
        moving = (i for i, s in enumerate(self._schedules) if s.period_s > 0 and len(s.times_s) > 1)
        self._queue = [(t0_s + self._schedules[i].due_s(1), i, STEP, 1) for i in moving]
        ahead = ((i, n) for i, n in enumerate(passed) if n < len(self._changes[i]))
        self._queue += [(t0_s + self._changes[i][n][0], i, CHANGE, n) for i, n in ahead]
        if self._carriers:
            begun = {cable: up for at_s, cable, up in self._carriers if at_s <= 0}
            self._world.set_carrier({cable: begun.get(cable, True) for _, cable, _ in self._carriers})
        self._queue += [(t0_s + at_s, n, CARRIER, n) for n, (at_s, _, _) in enumerate(self._carriers) if at_s > 0]
        heapq.heapify(self._queue)
        return t0_s

    def stop(self) -> None:
        """Leave every link as it is now."""
        self._queue = []

    def lift(self) -> None:
        """Stop, and undo what changes have made of the links: each has its own shape at its schedule's rate."""
        self.stop()
        if self._carriers:
            self._world.set_carrier({cable: True for _, cable, _ in self._carriers})
        links = self._world.links
        affected = [
            i
            for i, one in enumerate(self._schedules)
            if self._effect[i] != NEUTRAL and links[one.link].shape != links[one.link].base
        ]
        self._effect = [NEUTRAL] * len(self._schedules)
        self._apply(affected)

    @property
    def links(self) -> Set[Link]:
        """Those that have a schedule."""
        return {one.link for one in self._schedules}

    def again(self, links: Set[Link]) -> None:
        """Links whose own shapes others have changed: they come under their schedules and effects again."""
        self._apply([which for which, one in enumerate(self._schedules) if one.link in links])

    def next_due_s(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def advance(self) -> None:
        """Apply everything due by now; a link that is several steps behind jumps to its latest."""
        horizon = time.monotonic() + AHEAD_S
        due_s: dict[int, float] = {}  # by schedule: when the last that befalls it now was due
        carriers: dict[Cable, bool] = {}
        changed = set[int]()
        while self._queue and self._queue[0][0] <= horizon:
            due, which, kind, number = self._queue[0]
            if kind == CARRIER:
                _, cable, up = self._carriers[number]
                carriers[cable] = up
                heapq.heappop(self._queue)
                continue
            due_s[which] = due
            if kind == STEP:
                self._step[which] = number
                after = self._t0_s + self._schedules[which].due_s(number + 1)
            else:
                changes = self._changes[which]
                changed.add(which)
                self._effect[which] = changes[number][1]
                if number + 1 == len(changes):
                    heapq.heappop(self._queue)
                    continue
                after = self._t0_s + changes[number + 1][0]
            heapq.heapreplace(self._queue, (after, which, kind, number + 1))
        if carriers:
            self._world.set_carrier(carriers)
        if not due_s:
            return
        self._meet(changed)
        self._apply(due_s)
        now = time.monotonic()
        for due in due_s.values():
            self._lags.add(now - due)
        self.steps += len(due_s)

    def _meet(self, changed: Iterable[int]) -> None:
        self.events.clear()
        self.events.update(self._schedules[which].link for which in changed)

    def _apply(self, chosen: Iterable[int]) -> None:
        links, found = self._world.links, []
        for which in chosen:
            schedule = self._schedules[which]
            base, rate_bps = links[schedule.link].base, schedule.rate_bps(self._step[which])
            found.append((schedule.link, self._effect[which].shape(base, rate_bps)))
        self._world.shape(found, replayed=True)

    def statistics(self) -> dict[str, float]:
        return {
            "t0_s": self._t0_s,
            "steps": self.steps,
            "lag_p50_s": self._lags.at(0.5),
            "lag_p99_s": self._lags.at(0.99),
            "lag_max_s": self._lags.max_s,
        }
