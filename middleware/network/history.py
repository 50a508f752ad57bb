"""What was measured of links in the course of a run, thinned out so that it stays small, and what is made of it. Pure.

Rules:

- A link has up to ``KEPT`` samples, each the mean of the logarithms of rates that were measured about then. Where there
  would be more, the two neighbours are merged that lie closest together for how long ago they were: what was just
  measured is kept apart, what is old only roughly.
- Samples of a link come in the order of their times; one older than the last is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from thalweg.middleware.arithmetic import log
from thalweg.middleware.network.view import Link, LinkEstimate

KEPT = 12
SLOT_S = 5.0  # what is measured within this time is one sample
SAME_S = 0.5  # news of a link that are as old as the last are the last again


class Sample(NamedTuple):
    """``number`` measurements around ``at_s`` (seconds): the mean of the natural logarithms of their rates in bit/s."""

    at_s: float
    log_rate: float
    number: int


Samples = Mapping[Link, tuple[Sample, ...]]
FIRST = (3, 1, 1)  # the place in the grid of ``network.outlook`` where a search begins that nothing is known for


class Variability(msgspec.Struct, frozen=True):
    """How links vary: mean and variances of the logarithm of a rate (bit/s), see ``network.outlook``.

    ``place`` says where in the grid it was found, and where the next search begins.
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
    """What a planner is told of before: samples up to ``now_s``, and what this look has asked for in so many rounds.

    ``latest``: what was last measured of each link, which is in the samples as part of a mean.
    """

    samples: dict[Link, tuple[Sample, ...]]
    now_s: float
    asked: frozenset[Link] = frozenset()
    rounds: int = 0
    variability: Variability | None = None
    latest: dict[Link, LinkEstimate] = {}


class History:
    """The samples of every link, of at most ``most`` links; ``known`` is what was known before.

    What was measured before ``since_s`` does not count.
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
        """Take in an estimate; one of no samples, of an unusable link, or that is not news does not count."""
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
        """When a link was last measured; -inf if it never was."""
        return self._latest[link].measured_at_s if link in self._latest else -math.inf

    def latest(self) -> dict[Link, LinkEstimate]:
        """What was last measured of each link."""
        return {Link(*link): estimate for link, estimate in self._latest.items()}

    def samples(self) -> dict[Link, tuple[Sample, ...]]:
        """All of them, oldest first."""
        return {Link(*link): tuple(samples) for link, samples in self._samples.items()}


def _merged(one: Sample, other: Sample) -> Sample:
    number = one.number + other.number
    part = other.number / number
    return Sample(
        one.at_s + part * (other.at_s - one.at_s), one.log_rate + part * (other.log_rate - one.log_rate), number
    )
