"""Coordinates that hosts find among themselves, beside measured latencies (Pietzuch et al., 2006, section 3.1.1).

Hosts are those of a latency matrix. Each measures 64 others at random, one a round, and keeps to them. What it measures
is the matrix' latency (*medians*); or that times how a measured link's round trips scatter above their 20th percentile,
one after the other, each link of the matrix like another link of the series (*scattered*); or the 20th percentile of
the last ten of those (*filtered*).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from thalweg.emulation.scenarios.data_sets import find_set, read_grid
from thalweg.emulation.traces.latencies import Floats, read_series
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.coordinates import Coordinates, baseline

NEIGHBOURS = 64
KEPT = 10  # measurements of a link
LAST = 32  # rounds over which it is told how far hosts still move
SERIES = "seattle16_rtt_ms"
SAMPLES = ("medians", "scattered", "filtered")
SPACES = {"plain": False, "heights": True}


class Embedding(Trial, frozen=True, kw_only=True):
    """Coordinates of the hosts of the matrix ``pool`` after ``rounds``; ``pool_seed`` draws who measures whom."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.coordinates.embedding:embed"

    pool: str = "planetlab490_median"
    space: str = "plain"
    samples: str = "medians"
    rounds: int = 1600
    dimensions: int = 3


class Embedded(Outcome, frozen=True, kw_only=True):
    """``error``: the median over pairs of how far the distance is from the latency, of it. ``moved_s``: how far a host
    moves in a round, the mean of the last ones."""

    error: float | None = None
    moved_s: float | None = None


Embedding.outcome = Embedded


@lru_cache(maxsize=2)
def matrix(pool: str) -> Floats:
    """Round trips in seconds, (n, n); nan where nothing was measured, and from a host to itself."""
    found: Floats = read_grid(find_set(pool, "latency", Path()), "latency").values
    return np.where(np.eye(len(found), dtype=bool) | (found <= 0), np.nan, found)


@lru_cache(maxsize=1)
def scatter() -> Floats:
    """How many times a link's 20th percentile its round trips are, (links, slices)."""
    series = read_series(find_set(f"series/{SERIES}", "latency", Path())).round_trip_s
    links = series[:, *np.triu_indices(series.shape[1], 1)]
    times: Floats = (links / baseline(links)).T
    return times


def embed(trial: Embedding) -> Embedded:
    """Run the rounds; UsageError for a space or samples that are none."""
    for what, given, known in (("space", trial.space, SPACES), ("samples", trial.samples, SAMPLES)):
        if given not in known:
            raise UsageError(f"{what} is {given!r}; {nearest(given, known)}")
    latency_s = matrix(trial.pool)
    hosts, own = len(latency_s), np.arange(len(latency_s))
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    others = np.array([random.permutation(np.delete(own, host))[:NEIGHBOURS] for host in own])
    like = random.integers(len(scatter()), size=others.shape)  # which link of the series each is like, and since when
    slices = random.integers(scatter().shape[1], size=others.shape)
    last = np.full((KEPT, *others.shape), np.inf)
    found = Coordinates.first(hosts, random, dimensions=trial.dimensions, heights=SPACES[trial.space])
    moved = []
    for number in range(trial.rounds):
        chosen = random.integers(others.shape[1], size=hosts)
        other = others[own, chosen]
        sample = latency_s[own, other]
        if trial.samples != "medians":
            slices[own, chosen] = (slices[own, chosen] + 1) % scatter().shape[1]
            sample = sample * scatter()[like[own, chosen], slices[own, chosen]]
        if trial.samples == "filtered":
            last[:, own, chosen] = np.concatenate([last[1:, own, chosen], sample[None]])
            sample = baseline(last[:, own, chosen])
        before, found = found, found.measured(found.of(other), sample)
        if number >= trial.rounds - LAST:
            moved.append(np.sqrt(((found.places - before.places) ** 2).sum(axis=1)).mean())
    pairs = np.triu_indices(hosts, 1)
    off = np.abs(found.distances_s(slice(None), slice(None)) - latency_s)[pairs] / latency_s[pairs]
    return Embedded(error=float(np.nanmedian(off)), moved_s=float(np.mean(moved)))
