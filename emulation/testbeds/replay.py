"""Replay of bandwidth traces: schedules of rate changes in wall time for the supervisor, and events that change them.

A schedule covers one period and then repeats, as the trace does. A replay lasts until it is stopped.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.emulation.links.effects import CarrierChange, Effect, LinkChange
from thalweg.emulation.links.shape import RATE_FLOOR_BPS, LinkShape
from thalweg.emulation.supervisor import parts, requests
from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.emulation.supervisor.requests import Steps
from thalweg.emulation.traces.trace import SINGLE_ROW_DURATION_S, BandwidthTrace
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.network.view import Link, as_link

GAP_S = 0.1
"""Changes closer than this (wall) become one, at the mean rate of their time. A class passes bursts of 10 ms, and a
transfer of a partition takes longer than this on most links."""
SHARE = 0.01  # smaller changes are left out. It is a fifth of the tolerance of the link proof


class LinkSchedule(msgspec.Struct, frozen=True):
    """Rates of a link over one period in wall time. ``times_s`` starts with 0. Period 0: the rate is constant."""

    times_s: npt.NDArray[np.float64]
    rates_bps: npt.NDArray[np.float64]
    period_s: float


def schedule(
    trace: BandwidthTrace, time_scale: float = 1.0, gap_s: float = GAP_S, share: float = SHARE
) -> LinkSchedule:
    """Return the changes of one period of ``trace``, with times divided and rates multiplied by ``time_scale``.

    Changes closer than ``gap_s`` (wall seconds) are averaged. Changes below ``share`` of the rate are left out. A rate
    of 0 is an outage. Raises UsageError for a time scale that is not above 0.
    """
    if not 0 < time_scale < float("inf"):
        raise UsageError(f"the time scale is {time_scale:g}; it must be above 0")
    period_s = trace.duration_s / time_scale
    steps = [(time_s / time_scale, rate_bps * time_scale) for time_s, rate_bps in trace.steps()]
    spaced = all(later - earlier >= gap_s for (earlier, _), (later, _) in pairwise(steps))
    merged = steps if spaced else list(_spaced(steps, period_s, gap_s))
    distinct: list[tuple[float, float]] = []
    for time_s, rate_bps in merged:
        if not distinct or abs(rate_bps - distinct[-1][1]) > share * distinct[-1][1]:
            distinct.append((time_s, rate_bps))
    times, rates = (np.array(column) for column in zip(*distinct, strict=True))
    return LinkSchedule(times, rates, period_s if len(distinct) > 1 else 0.0)


def _spaced(steps: Iterable[tuple[float, float]], period_s: float, gap_s: float) -> Iterator[tuple[float, float]]:
    """Yield steps at least ``gap_s`` apart that carry the same bits as ``steps``."""
    bounded = [*steps, (period_s, 0.0)]
    at, k = 0.0, 0
    while at < period_s:
        while bounded[k + 1][0] <= at:
            k += 1
        if bounded[k + 1][0] - at >= gap_s or bounded[k + 1][0] >= period_s:
            yield at, bounded[k][1]
            at = bounded[k + 1][0]
            continue
        stop, bits = min(at + gap_s, period_s), 0.0
        start = at
        while start < stop:
            until = min(bounded[k + 1][0], stop)
            bits += bounded[k][1] * (until - start)
            start = until
            if bounded[k + 1][0] <= start and start < stop:
                k += 1
        yield at, bits / (stop - at)
        at = stop


class ReplayStatistics(msgspec.Struct, frozen=True):
    """Start of a replay (``time.monotonic()``), number of applied steps, and their lags in wall seconds."""

    t0_s: float
    steps: int
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float


class ReplayHandle:
    """Replay loaded into a testbed. ``start`` may be called again, and every link restarts its trace."""

    def __init__(
        self,
        client: SupervisorClient,
        schedules: Mapping[Link, LinkSchedule],
        time_scale: float,
    ) -> None:
        self._client, self._time_scale = client, time_scale
        self._schedules = {as_link(link): link_schedule for link, link_schedule in schedules.items()}
        self.delays = False
        """Whether some change gives a link a delay."""
        steps = [
            Steps(link, link_schedule.times_s.tobytes(), link_schedule.rates_bps.tobytes(), link_schedule.period_s)
            for link, link_schedule in schedules.items()
        ]
        for part in parts.replays(steps):
            client.call(part)

    def emulated(self) -> dict[Link, BandwidthTrace]:
        """Return the rates that every link is really set to, as traces in emulated seconds and bit/s.

        Effects of ``change`` are not included. A result differs from the original trace if rates were averaged, left
        out, or below the floor.
        """

        def is_set(rates_bps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.where(rates_bps > 0, np.maximum(rates_bps, RATE_FLOOR_BPS), 0.0) / self._time_scale

        return {
            link: BandwidthTrace(
                link.text,
                link_schedule.times_s * self._time_scale,
                is_set(link_schedule.rates_bps),
                link_schedule.period_s * self._time_scale if link_schedule.period_s > 0 else SINGLE_ROW_DURATION_S,
            )
            for link, link_schedule in self._schedules.items()
        }

    def change(self, changes: Iterable[LinkChange]) -> None:
        """Add changes of links, which apply after every later ``start``.

        Raises UsageError for a link that is not replayed or an impossible effect. Raises CapabilityError for a delay,
        jitter or loss on a kernel without netem. After an error nothing is added.
        """
        numbers = {link: i for i, link in enumerate(self._schedules)}
        effects: dict[Effect, float] = {}
        seen: dict[int, float] = {}  # by identity: few effects, many changes
        rows, added = array("d"), list(changes)
        for change in added:
            if change.link not in numbers:
                raise UsageError(f"link {as_link(change.link).text} is not replayed; it cannot be changed")
            if id(change.effect) not in seen:
                _refuse(change.effect)
                seen[id(change.effect)] = effects.setdefault(change.effect, len(effects))
            if not 0 <= change.at_s < math.inf:
                raise UsageError(f"links are to be changed from {change.at_s:g} s on; it must be at least 0")
            rows.extend((change.at_s / self._time_scale, numbers[change.link], seen[id(change.effect)]))
        dilated = [effect.dilated(self._time_scale) for effect in effects]
        for part in parts.changes(dilated, rows.tobytes()):
            self._client.call(part)
        self.delays = self.delays or any(effect.delay_s for effect in effects)

    def change_carriers(self, changes: Iterable[CarrierChange]) -> None:
        """Remove and restore the carriers of hosts after every later ``start``."""
        rows = [(change.at_s / self._time_scale, change.host, change.via, change.up) for change in changes]
        self._client.call(requests.ReplayCarriers(rows))

    def start(self) -> float:
        """Start the replay now. Return the start as ``time.monotonic()``, which all processes of this machine share."""
        return float(self._client.call(requests.ReplayStart())["t0_s"])

    def stop(self) -> None:
        """Stop the replay. Every link keeps its present rate. Idempotent."""
        with suppress(TestbedError):  # a testbed that has ended replays nothing
            self._client.call(requests.ReplayStop())

    def statistics(self) -> ReplayStatistics:
        return msgspec.convert(self._client.call(requests.ReplayStatistics()), ReplayStatistics)


def check_changes(
    changes: Iterable[LinkChange],
    shapes: Mapping[Link, LinkShape],
    traces: Mapping[Link, BandwidthTrace],
    time_scale: float,
) -> None:
    """Raise UsageError for a change that sets a link to an impossible shape. ``scenarios.timeline.apply`` uses it.

    ``shapes``: the links' own shapes, in wall time. ``traces``: the emulated traces of links that follow one.
    """
    highest: dict[int, float] = {}  # by identity: links may share a trace
    dilated: dict[int, Effect] = {}
    for link, effect in {(change.link, id(change.effect)): (change.link, change.effect) for change in changes}.values():
        if id(effect) not in dilated:
            _refuse(effect)
            dilated[id(effect)] = effect.dilated(time_scale)
        rate_bps, trace = shapes[link].rate_bps, traces.get(link)
        if trace is not None:
            if id(trace) not in highest:
                highest[id(trace)] = float(schedule(trace, time_scale).rates_bps.max())
            rate_bps = highest[id(trace)]
        if wrong := dilated[id(effect)].shape(shapes[link], rate_bps).objection():
            raise UsageError(f"link {as_link(link).text}, as an event changes it: {wrong}")


def _refuse(effect: Effect) -> None:
    if wrong := effect.objection():
        raise UsageError(wrong)
