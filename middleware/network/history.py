"""History of the measurements of links during a run, thinned out so that it stays small. Pure.

Rules:

- A link has up to ``KEPT`` samples. A sample is the mean of the logarithms of rates that were measured at about the
  same time. If a link would have more, the two neighbours with the least distance in relation to their age are merged.
  So recent samples stay apart, and old samples become coarse.
- Samples of a link are added in the order of their times. A sample older than the last one is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.arithmetic import log
from thalweg.middleware.network.view import Link, LinkEstimate

KEPT = 12
SLOT_S = 5.0  # measurements within this time are one sample
SAME_S = 0.5  # an estimate within this time of the last one is no news


class Sample(NamedTuple):
    """Mean of the natural logarithms of ``number`` rates in bit/s, measured around ``at_s`` (seconds)."""

    at_s: float
    log_rate: float
    number: int


Samples = Mapping[Link, tuple[Sample, ...]]
FIRST = (3, 1, 1)  # where a search in the grid of ``network.outlook`` begins without an earlier result


class Variability(msgspec.Struct, frozen=True):
    """Variability of links: mean and variances of the logarithm of a rate in bit/s (see ``network.outlook``).

    ``place``: the position in the grid where the variability was found, and where the next search begins.
    """

    mean: float
    permanent: float
    wandering: float
    passing: float
    correlation_s: float
    place: tuple[int, int, int] = FIRST

    @property
    def variance(self) -> float:
        return self.permanent + self.wandering + self.passing


class PlanningHistory(msgspec.Struct, frozen=True):
    """History that a planner receives: samples up to ``now_s``, and the links that this replanning has asked for.

    ``rounds``: the number of rounds of asking so far. ``latest``: the last measurement of each link, which the samples
    contain as part of a mean.
    """

    samples: dict[Link, tuple[Sample, ...]]
    now_s: float
    asked: frozenset[Link] = frozenset()
    rounds: int = 0
    variability: Variability | None = None
    latest: dict[Link, LinkEstimate] = {}


class History:
    """Samples of at most ``most`` links. ``known``: estimates from before.

    Measurements before ``since_s`` are ignored.
    """

    def __init__(
        self,
        known: Mapping[Link, LinkEstimate] = {},
        *,
        kept: int = KEPT,
        most: int = 16_384,
        since_s: float = -math.inf,
    ) -> None:
        self._kept, self._most, self._since_s = kept, most, since_s
        self._samples: dict[tuple[str, ...], list[Sample]] = {}
        self._latest: dict[tuple[str, ...], LinkEstimate] = {}
        for link, estimate in known.items():
            self.add(link, estimate)

    def add(self, link: tuple[str, ...], estimate: LinkEstimate) -> None:
        """Add an estimate. An estimate without samples, with an unusable rate, or without news is ignored."""
        at_s = estimate.measured_at_s
        if at_s < self._since_s:
            return
        if estimate.count < 1 or not estimate.rate_bps > 0 or at_s <= self.latest_s(link) + SAME_S:
            return
        samples = self._samples.get(link)
        if samples is None:
            if len(self._samples) >= self._most:
                return
            samples = self._samples[link] = []
        self._latest[link] = estimate
        new = Sample(at_s, log(estimate.rate_bps), 1)
        if samples and at_s - samples[-1].at_s < SLOT_S:
            samples[-1] = _merged(samples[-1], new)
            return
        samples.append(new)
        if len(samples) > self._kept:
            closest = min(
                range(len(samples) - 1),
                key=lambda i: (samples[i + 1].at_s - samples[i].at_s) / (at_s - samples[i].at_s + 1.0),
            )
            samples[closest : closest + 2] = [_merged(samples[closest], samples[closest + 1])]

    def latest_s(self, link: tuple[str, ...]) -> float:
        """Return the time of a link's last measurement, or -inf without a measurement."""
        return self._latest[link].measured_at_s if link in self._latest else -math.inf

    def latest(self) -> dict[Link, LinkEstimate]:
        """Return the last measurement of each link."""
        return {Link(*link): estimate for link, estimate in self._latest.items()}

    def samples(self) -> dict[Link, tuple[Sample, ...]]:
        """Return the samples of each link, oldest first."""
        return {Link(*link): tuple(samples) for link, samples in self._samples.items()}


def _merged(one: Sample, other: Sample) -> Sample:
    number = one.number + other.number
    part = other.number / number
    return Sample(
        one.at_s + part * (other.at_s - one.at_s), one.log_rate + part * (other.log_rate - one.log_rate), number
    )
