"""Trace of a link: rates, delays and losses over time. Delays and losses become effects on the link.

R1. All figures of a trace hold from a row until the next, and start over together when the trace ends.
R2. A loss of 1 is an outage: the link is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from thalweg.emulation.links.effects import Effect
from thalweg.emulation.traces.columns import DELAY, LOSS, RATE
from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray, default_duration_s


class Course(NamedTuple):
    """Effects on a link in a repeated period. Each holds from its time on, the first from 0. Seconds are emulated."""

    name: str
    times_s: tuple[float, ...]
    effects: tuple[Effect, ...]
    period_s: float

    def until(self, horizon_s: float) -> Iterator[tuple[float, Effect]]:
        """Yield begin and effect until ``horizon_s``. A single effect is yielded once."""
        lap = 0
        while (start_s := lap * self.period_s) < horizon_s or lap == 0:
            for time_s, effect in zip(self.times_s, self.effects, strict=True):
                if start_s + time_s < horizon_s or lap == 0:
                    yield start_s + time_s, effect
            if len(self.effects) == 1:
                return
            lap += 1

    def many(self, horizon_s: float) -> float:
        """Return about how many effects ``until`` yields."""
        return len(self.effects) * max(1.0, horizon_s / self.period_s) if len(self.effects) > 1 else 1.0

    def rates_only(self) -> Course:
        """Return the course without figures that need netem. Outages stay."""
        return self._replace(effects=tuple(effect.rates_only() for effect in self.effects))


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """Trace of one link. ``figures``: by names of ``columns.FIGURES``, each of shape (rows,), in SI units.

    ``times_s``: start at 0 and rise strictly. ``duration_s``: the period, by default the last time plus the median
    step.
    """

    name: str
    times_s: FloatArray
    figures: Mapping[str, FloatArray]
    duration_s: float = cast(float, None)

    def __post_init__(self) -> None:
        if self.duration_s is None:
            object.__setattr__(self, "duration_s", default_duration_s(self.times_s))

    @classmethod
    def of_rates(cls, trace: BandwidthTrace) -> LinkTrace:
        return cls(trace.name, trace.times_s, {RATE: trace.rates_bps}, trace.duration_s)

    @property
    def rate(self) -> BandwidthTrace | None:
        """Rates of the trace. None: it has no rates."""
        rates = self.figures.get(RATE)
        return None if rates is None else BandwidthTrace(self.name, self.times_s, rates, self.duration_s)

    def mean(self, field: str) -> float:
        """Return the time-weighted mean of a figure."""
        return float(np.average(self.figures[field], weights=np.diff(self.times_s, append=self.duration_s)))

    def course(self, fields: Collection[str], gap_s: float) -> Course:
        """Return the course of delays and losses on a link. ``fields``: figures to be included.

        Rows closer than ``gap_s`` become one, with their means over time.
        """
        chosen = [field for field in (DELAY, LOSS) if field in fields and field in self.figures]
        held = np.diff(self.times_s, append=self.duration_s)
        starts = np.flatnonzero(np.diff(np.floor(self.times_s / gap_s + 1e-9), prepend=-1.0))
        weights = np.add.reduceat(held, starts)
        means = {field: np.add.reduceat(self.figures[field] * held, starts) / weights for field in chosen}
        changed = np.zeros(len(starts), dtype=bool)
        changed[0] = True
        for values in means.values():
            values[:] = np.round(values, 6)  # a microsecond, a packet in a million
            changed[1:] |= values[1:] != values[:-1]
        known: dict[tuple[float, ...], Effect] = {}
        effects = []
        for row in zip(*(values[changed].tolist() for values in means.values()), strict=True):
            if row not in known:
                known[row] = _effect(dict(zip(chosen, row, strict=True)))
            effects.append(known[row])
        return Course(self.name, tuple(self.times_s[starts][changed].tolist()), tuple(effects), float(self.duration_s))


def _effect(row: Mapping[str, float]) -> Effect:
    loss = row.get(LOSS)
    if loss == 1.0:  # R2: an outage cuts the link
        return Effect(cut=True, delay_s=row.get(DELAY))
    return Effect(delay_s=row.get(DELAY), loss=loss)
