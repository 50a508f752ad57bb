"""The supervisor's timed work: replaying schedules of rates, and sampling what the links carry.

Standard library only. Times are ``time.monotonic()``, one clock for all processes of a machine.
"""

from __future__ import annotations

import heapq
import math
import os
import time
from array import array
from collections.abc import Collection
from typing import Any, NamedTuple

from thalweg.emulation.netns_world import World

AHEAD_S = 0.002
"""What is due this soon is applied now: one wake-up for changes that lie closer than a timer can tell apart."""


class Schedule:
    """One link's rates over one period, in wall time: ``rates_bps[k]`` from ``times_s[k]`` on; then over again.

    A period of 0 means a constant.
    """

    __slots__ = ("link", "period_s", "rates_bps", "times_s")

    def __init__(self, link: tuple[str, str], times_s: array[float], rates_bps: array[float], period_s: float) -> None:
        self.link, self.times_s, self.rates_bps, self.period_s = link, times_s, rates_bps, period_s

    def due_s(self, step: int) -> float:
        """When step number ``step`` (counted over all laps) is due, seconds after the start."""
        laps, k = divmod(step, len(self.times_s))
        return laps * self.period_s + self.times_s[k]

    def rate_bps(self, step: int) -> float:
        return self.rates_bps[step % len(self.rates_bps)]


def read_schedules(descriptor: int, heads: list[dict[str, Any]]) -> list[Schedule]:
    """Schedules from a file of float64: for each head its times, then its rates. Closes the descriptor."""
    with open(descriptor, "rb") as file:
        file.seek(0, os.SEEK_SET)
        schedules = []
        for head in heads:
            times, rates = array("d"), array("d")
            times.fromfile(file, head["steps"])
            rates.fromfile(file, head["steps"])
            schedules.append(Schedule((head["source"], head["target"]), times, rates, head["period_s"]))
    return schedules


class Scaling(NamedTuple):
    """A link has ``factor`` times its schedule's rate, but not less than ``floor_bps`` where its schedule has more."""

    factor: float
    floor_bps: float

    def of(self, rate_bps: float) -> float:
        return max(rate_bps * self.factor, min(rate_bps, self.floor_bps))


UNSCALED = Scaling(1.0, 0.0)


class Player:
    """Applies schedules to a world, one batch of changes a host and wake-up. Restartable."""

    def __init__(self, world: World, schedules: list[Schedule]) -> None:
        self._world, self._schedules = world, schedules
        self._queue: list[tuple[float, int, int]] = []  # (due, schedule, step; or -1 - the number of a scaling)
        self._applied: list[tuple[int, Scaling]] = [(0, UNSCALED)] * len(schedules)
        self._scalings: list[tuple[float, int, Scaling]] = []  # (seconds after the start, schedule, scaling)
        self._lags_s = array("d")
        self._t0_s = 0.0
        self.steps = 0

    @property
    def running(self) -> bool:
        return bool(self._queue)

    def scale(self, links: Collection[tuple[str, str]], scaling: Scaling, from_s: float) -> None:
        """Scale the rates of ``links`` from ``from_s`` seconds after every later start on.

        It holds until the next scaling of the link. Raises ValueError, and changes nothing, for a link without a
        schedule.
        """
        numbers = {one.link: i for i, one in enumerate(self._schedules)}
        if missing := set(links) - numbers.keys():
            raise ValueError(f"links {sorted(missing)} are not replayed")
        self._scalings += [(from_s, numbers[link], scaling) for link in links]

    def start(self) -> float:
        """Set every link to the start of its trace and begin; returns the start on the shared clock."""
        self._lags_s, self.steps = array("d"), 0
        self._applied = [(0, UNSCALED)] * len(self._schedules)
        links = self._world.links
        first = ((s.link, links[s.link].shape._replace(rate_bps=s.rates_bps[0])) for s in self._schedules)
        self._world.shape((*link, shape) for link, shape in first)
        self._t0_s = time.monotonic()
        moving = (i for i, s in enumerate(self._schedules) if s.period_s > 0 and len(s.times_s) > 1)
        self._queue = [(self._t0_s + self._schedules[i].due_s(1), i, 1) for i in moving]
        self._queue += [(self._t0_s + from_s, i, -1 - n) for n, (from_s, i, _) in enumerate(self._scalings)]
        heapq.heapify(self._queue)
        return self._t0_s

    def stop(self) -> None:
        """Leave every link at the rate it has now."""
        self._queue = []

    def next_due_s(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def advance(self) -> None:
        """Apply everything due by now; a link that is several steps behind jumps to its latest."""
        horizon = time.monotonic() + AHEAD_S
        changes: dict[int, float] = {}  # schedule: when the last of its changes was due
        while self._queue and self._queue[0][0] <= horizon:
            due, which, step = self._queue[0]
            changes[which] = due
            if step < 0:
                heapq.heappop(self._queue)
                self._applied[which] = (self._applied[which][0], self._scalings[-1 - step][2])
                continue
            self._applied[which] = (step, self._applied[which][1])
            schedule = self._schedules[which]
            heapq.heapreplace(self._queue, (self._t0_s + schedule.due_s(step + 1), which, step + 1))
        if not changes:
            return
        links, found = self._world.links, []
        for which in changes:
            schedule, (step, scaling) = self._schedules[which], self._applied[which]
            shape = links[schedule.link].shape._replace(rate_bps=scaling.of(schedule.rate_bps(step)))
            found.append((*schedule.link, shape))
        self._world.shape(found)
        now = time.monotonic()
        self._lags_s.extend(max(0.0, now - due) for due in changes.values())
        self.steps += len(changes)

    def statistics(self) -> dict[str, float]:
        lags = sorted(self._lags_s) or [0.0]
        return {
            "t0_s": self._t0_s,
            "steps": self.steps,
            "lag_p50_s": lags[len(lags) // 2],
            "lag_p99_s": lags[min(len(lags) - 1, len(lags) * 99 // 100)],
            "lag_max_s": lags[-1],
        }


class Sampler:
    """Reads every link's counters periodically and keeps a row for each link that was not idle."""

    COLUMNS = 6  # end, source's number, target's number, asked, delivered, backlogged

    def __init__(self, world: World, interval_s: float) -> None:
        self._world, self.interval_s = world, interval_s
        self._sources = sorted({source for source, _ in world.links})
        self._last: dict[tuple[str, str], tuple[float, int, int, float]] = {}
        self._rows = array("d")
        self.next_s = time.monotonic()

    def sample(self) -> None:
        """Take one sample of all links; rows cover the time since the sample before."""
        for source in self._sources:
            for target, counted in self._world.counters(source).items():
                link = self._world.links[source, target]
                now_s = time.monotonic()
                asked_bits = link.asked_bits(now_s)
                before = self._last.get((source, target))
                self._last[source, target] = (now_s, counted.sent_bytes, counted.backlog_bytes, asked_bits)
                if before is None or now_s <= before[0]:
                    continue
                seconds, sent = now_s - before[0], counted.sent_bytes - before[1]
                if not sent and not counted.backlog_bytes:
                    continue
                self._rows.extend(
                    (
                        now_s,
                        link.source.number,
                        link.target.number,
                        (asked_bits - before[3]) / seconds,
                        sent * 8 / seconds,
                        float(before[2] > 0 and counted.backlog_bytes > 0),
                    )
                )
        self.next_s = max(self.next_s + self.interval_s, time.monotonic())

    def take(self) -> bytes:
        """The rows since the last call, as float64, COLUMNS to a row."""
        rows, self._rows = self._rows, array("d")
        return rows.tobytes()


def due_in_s(*moments: float | None) -> float | None:
    """Seconds until the first of the moments; None when there is none."""
    known = [moment for moment in moments if moment is not None and moment < math.inf]
    return max(0.0, min(known) - time.monotonic()) if known else None
