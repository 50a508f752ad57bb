"""Replay of the supervisor: schedules of rates and changes of shapes, set when due.

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

if TYPE_CHECKING:  # the module imports parts that only Linux has
    from thalweg.emulation.kernel.world import World

AHEAD_S = 0.002
"""Changes that are due this soon are applied now. Changes too close for a timer then need only one wake-up."""


class Schedule:
    """Rates of one link over one period, in wall time: ``rates_bps[k]`` from ``times_s[k]`` on. The period repeats.

    A period of 0 means a constant rate.
    """

    __slots__ = ("link", "period_s", "rates_bps", "times_s")

    def __init__(self, link: tuple[str, ...], times_s: bytes, rates_bps: bytes, period_s: float) -> None:
        self.link, self.period_s = Link(*link), period_s
        self.times_s, self.rates_bps = array("d", times_s), array("d", rates_bps)
        if wrong := self._objection():
            raise UsageError(f"the schedule of link {self.link.text}: {wrong}")

    def _objection(self) -> str:
        """Return why the schedule is invalid. Empty: it is valid."""
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
        """Return when step number ``step``, counted over all laps, is due, in seconds after the start."""
        laps, k = divmod(step, len(self.times_s))
        return laps * self.period_s + self.times_s[k]

    def rate_bps(self, step: int) -> float:
        return self.rates_bps[step % len(self.rates_bps)]


def read_changes(rows: bytes, effects: Sequence[Effect]) -> list[tuple[float, int, Effect]]:
    """Return the changes in rows of float64: seconds after a start, number of the schedule, number of the effect.

    Raises UsageError for an invalid time, ValueError for an unknown effect.
    """
    changes = []
    for at_s, schedule, effect in struct.iter_unpack("=3d", rows):
        if not 0 <= at_s < math.inf:
            raise UsageError(f"links are to be changed from {at_s:g} s on; it must be at least 0")
        if not 0 <= effect < len(effects):
            raise ValueError(f"there is no effect {effect:g}")
        changes.append((at_s, int(schedule), effects[int(effect)]))
    return changes


class Lags:
    """Histogram of the lags of steps behind their due times, of fixed size.

    The largest lag is exact, the remaining lags are exact to 2.5 %. A lag of up to 1 µs counts as 0.
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
        """Return the seconds that a share of the lags (0 to 1) stays below. Without lags the result is 0."""
        rank, passed = min(int(self._total * share), self._total - 1), 0
        for number, count in enumerate(self._counts):
            passed += count
            if passed > rank:
                return min(self.max_s, self.LEAST_S * self.RATIO ** (number - 0.5)) if number else 0.0
        return 0.0


STEP, CHANGE, CARRIER = 0, 1, 2


class Player:
    """Restartable replay of schedules and changes on a world, with one batch per host and wake-up.

    A link has its own shape, set by other requests, at the rate of its schedule's last step, under the effect of its
    last change. Raises KeyError for a schedule whose link has no shape.
    """

    def __init__(self, world: World, schedules: list[Schedule]) -> None:
        self._world, self._schedules = world, schedules
        self._changes: list[list[tuple[float, Effect]]] = [[] for _ in schedules]  # seconds after the start
        self._queue: list[tuple[float, int, int, int]] = []  # (due, schedule, kind, number of step or change)
        self._step = [0] * len(schedules)
        self._effect = [NEUTRAL] * len(schedules)
        self._carriers: list[tuple[float, Cable, bool]] = []  # sorted: seconds after the start, cable, whether it is up
        self._befalls: set[tuple[int, Effect]] = set()  # every effect of a change, with the number of its schedule
        for schedule in schedules:
            world.links[schedule.link]
        self._highest_bps = [max(schedule.rates_bps) for schedule in schedules]
        self._lags = Lags()
        self._t0_s = 0.0
        self.steps = 0
        self.events: set[Link] = set()
        """Links of the last changes. Steps of schedules do not count."""

    @property
    def running(self) -> bool:
        return bool(self._queue)

    @property
    def delays(self) -> bool:
        """Return whether some change gives a link a delay."""
        return any(effect.delay_s for _, effect in self._befalls)

    def shapes(self, changes: Iterable[tuple[float, int, Effect]] = ()) -> list[tuple[Link, LinkShape]]:
        """Return every shape that a link may get, at its schedule's highest rate, with ``changes`` added."""
        # by identity: few effects differ
        added = {(number, id(effect)): (number, effect) for _, number, effect in changes}
        shapes = []
        for number, effect in self._befalls | set(added.values()) | {(i, NEUTRAL) for i in range(len(self._schedules))}:
            link = self._schedules[number].link
            shapes.append((link, effect.shape(self._world.links[link].base, self._highest_bps[number])))
        return shapes

    def change(self, changes: Iterable[tuple[float, int, Effect]]) -> None:
        """Add effects of links: seconds after every later start, schedule, effect. Each holds until the link's next.

        Of two changes of a link at one time, the change added later holds. Raises ValueError for an unknown schedule,
        and changes nothing.
        """
        added = list(changes)
        if wrong := [number for _, number, _ in added if not 0 <= number < len(self._schedules)]:
            raise ValueError(f"there is no schedule {wrong[0]}")
        for from_s, number, effect in added:
            self._changes[number].append((from_s, effect))
        self._befalls |= set({(number, id(effect)): (number, effect) for _, number, effect in added}.values())
        for number in {number for _, number, _ in added}:
            self._changes[number].sort(key=lambda change: change[0])

    def change_carriers(self, changes: Iterable[tuple[float, Cable, bool]]) -> None:
        """Add changes of carriers: seconds after every later start, end, and whether the end has a carrier afterwards.

        Raises UsageError for an invalid time.
        """
        added = list(changes)
        if wrong := next((at_s for at_s, _, _ in added if not 0 <= at_s < math.inf), None):
            raise UsageError(f"a carrier is to change from {wrong:g} s on; it must be at least 0")
        self._carriers = sorted([*self._carriers, *added], key=lambda change: change[0])

    def start(self) -> float:
        """Set every link to its shape at time 0 and start the replay. Return the start on the shared clock."""
        self._queue = []
        self._lags, self.steps = Lags(), 0
        self._step = [0] * len(self._schedules)
        passed = [bisect_right(changes, 0.0, key=lambda change: change[0]) for changes in self._changes]
        self._effect = [changes[n - 1][1] if n else NEUTRAL for changes, n in zip(self._changes, passed, strict=True)]
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
        """Stop the replay. Every link keeps its present shape."""
        self._queue = []

    def lift(self) -> None:
        """Stop the replay and undo its changes. Every link has its own shape at its schedule's rate, and a carrier."""
        self.stop()
        if self._carriers:
            self._world.set_carrier({cable: True for _, cable, _ in self._carriers})
        links = self._world.links
        affected = [
            i
            for i, schedule in enumerate(self._schedules)
            if self._effect[i] != NEUTRAL and links[schedule.link].shape != links[schedule.link].base
        ]
        self._effect = [NEUTRAL] * len(self._schedules)
        self._apply(affected)

    @property
    def links(self) -> Set[Link]:
        """Links that have a schedule."""
        return {schedule.link for schedule in self._schedules}

    def again(self, links: Set[Link]) -> None:
        """Apply schedules and effects again to links whose own shapes other requests have changed."""
        self._apply([number for number, schedule in enumerate(self._schedules) if schedule.link in links])

    def next_due_s(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def advance(self) -> None:
        """Apply everything due by now. A link that is several steps behind goes to its latest step."""
        horizon = time.monotonic() + AHEAD_S
        due_s: dict[int, float] = {}  # by schedule: the due time of the last step or change that is applied now
        carriers: dict[Cable, bool] = {}
        changed = set[int]()
        while self._queue and self._queue[0][0] <= horizon:
            due, index, kind, number = self._queue[0]
            if kind == CARRIER:
                _, cable, up = self._carriers[number]
                carriers[cable] = up
                heapq.heappop(self._queue)
                continue
            due_s[index] = due
            if kind == STEP:
                self._step[index] = number
                after = self._t0_s + self._schedules[index].due_s(number + 1)
            else:
                changes = self._changes[index]
                changed.add(index)
                self._effect[index] = changes[number][1]
                if number + 1 == len(changes):
                    heapq.heappop(self._queue)
                    continue
                after = self._t0_s + changes[number + 1][0]
            heapq.heapreplace(self._queue, (after, index, kind, number + 1))
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
        self.events.update(self._schedules[number].link for number in changed)

    def _apply(self, chosen: Iterable[int]) -> None:
        links, shapes = self._world.links, []
        for number in chosen:
            schedule = self._schedules[number]
            base, rate_bps = links[schedule.link].base, schedule.rate_bps(self._step[number])
            shapes.append((schedule.link, self._effect[number].shape(base, rate_bps)))
        self._world.shape(shapes, replayed=True)

    def statistics(self) -> dict[str, float]:
        return {
            "t0_s": self._t0_s,
            "steps": self.steps,
            "lag_p50_s": self._lags.at(0.5),
            "lag_p99_s": self._lags.at(0.99),
            "lag_max_s": self._lags.max_s,
        }
