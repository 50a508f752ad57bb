"""Bandwidth traces become schedules of rate changes for the supervisor, in wall time, and events change them.

A schedule covers one period and then starts over, as the trace does, so that a replay lasts as long as it is let.
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
"""Changes closer than this (wall) become one, at the mean rate of the time they cover: a class passes bursts of 10 ms,
and a transfer of a partition takes longer than this on most links."""
SHARE = 0.01  # changes smaller than this are left out: a fifth of what the link proof tolerates


class LinkSchedule(msgspec.Struct, frozen=True):
    """A link's rates over one period in wall time; ``times_s`` starts with 0. Period 0: a constant."""

    times_s: npt.NDArray[np.float64]
    rates_bps: npt.NDArray[np.float64]
    period_s: float


def schedule(
    trace: BandwidthTrace, time_scale: float = 1.0, gap_s: float = GAP_S, share: float = SHARE
) -> LinkSchedule:
    """The changes of one period of ``trace``, times divided and rates multiplied by ``time_scale``.

    Changes closer than ``gap_s`` (wall seconds) are averaged, those below ``share`` of the rate left out. A rate of 0
    is an outage. Raises UsageError for a time scale that is not above 0.
    """
    if not 0 < time_scale < float("inf"):
        raise UsageError(f"the time scale is {time_scale:g}; it must be above 0")
    period_s = trace.duration_s / time_scale
    steps = [(time_s / time_scale, rate_bps * time_scale) for time_s, rate_bps in trace.steps()]
    spaced = all(later - earlier >= gap_s for (earlier, _), (later, _) in pairwise(steps))
    merged = steps if spaced else list(_spaced(steps, period_s, gap_s))
    kept: list[tuple[float, float]] = []
    for time_s, rate_bps in merged:
        if not kept or abs(rate_bps - kept[-1][1]) > share * kept[-1][1]:
            kept.append((time_s, rate_bps))
    times, rates = (np.array(column) for column in zip(*kept, strict=True))
    return LinkSchedule(times, rates, period_s if len(kept) > 1 else 0.0)


def _spaced(steps: Iterable[tuple[float, float]], period_s: float, gap_s: float) -> Iterator[tuple[float, float]]:
    """Steps at least ``gap_s`` apart that carry the same bits as those given."""
    given = [*steps, (period_s, 0.0)]
    at, k = 0.0, 0
    while at < period_s:
        while given[k + 1][0] <= at:
            k += 1
        if given[k + 1][0] - at >= gap_s or given[k + 1][0] >= period_s:
            yield at, given[k][1]
            at = given[k + 1][0]
            continue
        stop, bits = min(at + gap_s, period_s), 0.0
        start = at
        while start < stop:
            until = min(given[k + 1][0], stop)
            bits += given[k][1] * (until - start)
            start = until
            if given[k + 1][0] <= start and start < stop:
                k += 1
        yield at, bits / (stop - at)
        at = stop


class ReplayStatistics(msgspec.Struct, frozen=True):
    """How a replay kept time: when it started (``time.monotonic()``), steps applied, their lag in wall seconds."""

    t0_s: float
    steps: int
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float


class ReplayHandle:
    """A replay loaded into a testbed. ``start`` may be called again: every link goes back to its trace's start."""

    def __init__(
        self,
        client: SupervisorClient,
        schedules: Mapping[Link, LinkSchedule],
        time_scale: float,
    ) -> None:
        self._client, self._time_scale = client, time_scale
        self._schedules = {as_link(link): one for link, one in schedules.items()}
        self.delays = False
        """Whether a change gives a link a delay."""
        steps = [
            Steps(link, one.times_s.tobytes(), one.rates_bps.tobytes(), one.period_s) for link, one in schedules.items()
        ]
        for part in parts.replays(steps):
            client.call(part)

    def emulated(self) -> dict[Link, BandwidthTrace]:
        """What every link is really set to, as a trace in emulated seconds and bit/s, before any ``change``.

        It differs from the trace that was given where changes were averaged, left out, or below the floor.
        """

        def is_set(rates_bps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.where(rates_bps > 0, np.maximum(rates_bps, RATE_FLOOR_BPS), 0.0) / self._time_scale

        return {
            link: BandwidthTrace(
                link.text,
                one.times_s * self._time_scale,
                is_set(one.rates_bps),
                one.period_s * self._time_scale if one.period_s > 0 else SINGLE_ROW_DURATION_S,
            )
            for link, one in self._schedules.items()
        }

    def change(self, changes: Iterable[LinkChange]) -> None:
        """What befalls the links after every later ``start``; added to what has been asked before.

        Raises UsageError for a link that is not replayed and for what no link can be set to, CapabilityError for a
        delay, jitter or loss on a kernel without netem; nothing is added then.
        """
        numbers = {link: i for i, link in enumerate(self._schedules)}
        effects: dict[Effect, float] = {}
        seen: dict[int, float] = {}  # by identity: few effects, many changes
        rows, given = array("d"), list(changes)
        for one in given:
            if one.link not in numbers:
                raise UsageError(f"link {as_link(one.link).text} is not replayed; it cannot be changed")
            if id(one.effect) not in seen:
                _refuse(one.effect)
                seen[id(one.effect)] = effects.setdefault(one.effect, len(effects))
            if not 0 <= one.at_s < math.inf:
                raise UsageError(f"links are to be changed from {one.at_s:g} s on; it must be at least 0")
            rows.extend((one.at_s / self._time_scale, numbers[one.link], seen[id(one.effect)]))
        told = [effect.dilated(self._time_scale) for effect in effects]
        for part in parts.changes(told, rows.tobytes()):
            self._client.call(part)
        self.delays = self.delays or any(effect.delay_s for effect in effects)

    def change_carriers(self, changes: Iterable[CarrierChange]) -> None:
        """Let hosts lose their carrier, and get it back, after every later ``start``."""
        rows = [(one.at_s / self._time_scale, one.host, one.via, one.up) for one in changes]
        self._client.call(requests.ReplayCarriers(rows))

    def start(self) -> float:
        """Begin now; returns the start as ``time.monotonic()``, which all processes of this machine share."""
        return float(self._client.call(requests.ReplayStart())["t0_s"])

    def stop(self) -> None:
        """Leave every link at the rate it has. Idempotent."""
        with suppress(TestbedError):  # a testbed that is gone replays nothing
            self._client.call(requests.ReplayStop())

    def statistics(self) -> ReplayStatistics:
        return msgspec.convert(self._client.call(requests.ReplayStatistics()), ReplayStatistics)


def check_changes(
    changes: Iterable[LinkChange],
    shapes: Mapping[Link, LinkShape],
    traces: Mapping[Link, BandwidthTrace],
    time_scale: float,
) -> None:
    """Raise UsageError for a change that makes of a link what none can be set to; a replay's links are as in ``apply``.

    ``shapes``: the links' own, in wall time. ``traces``: of the links that follow one, emulated.
    """
    highest: dict[int, float] = {}  # by identity: links may share a trace
    dilated: dict[int, Effect] = {}
    for link, effect in {(one.link, id(one.effect)): (one.link, one.effect) for one in changes}.values():
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
