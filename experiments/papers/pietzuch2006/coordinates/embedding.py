"""Trial of coordinates that hosts find among themselves, against latencies (Pietzuch et al., 2006, section 3.1.1).

Hosts are from a latency matrix. Each host measures 64 random neighbours, one per round, and keeps them. A measurement
is the matrix' latency (*medians*). A *scattered* measurement multiplies the latency by a round trip of a measured link
over the link's 20th percentile, in time order. Each link of the matrix follows a random link of the series. A
*filtered* measurement is the 20th percentile of the last ten scattered ones.
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
LAST = 32  # rounds at the end, over which the movement of hosts is averaged
SERIES = "seattle16_rtt_ms"
SAMPLES = ("medians", "scattered", "filtered")
SPACES = {"plain": False, "heights": True}


class Embedding(Trial, frozen=True, kw_only=True):
    """Coordinates of the hosts of the matrix ``pool`` after ``rounds``. ``pool_seed`` draws the hosts' neighbours."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.coordinates.embedding:embed"

    pool: str = "planetlab490_median"
    space: str = "plain"
    samples: str = "medians"
    rounds: int = 1600
    dimensions: int = 3


class Embedded(Outcome, frozen=True, kw_only=True):
    """Accuracy of the coordinates. ``error``: the median over pairs of the relative difference of distance and latency.
    ``moved_s``: the movement of a host in a round, in the mean of the last rounds.
    """

    error: float | None = None
    moved_s: float | None = None


Embedding.outcome = Embedded


@lru_cache(maxsize=2)
def matrix(pool: str) -> Floats:
    """Return round trips in seconds, (n, n). Pairs without a measurement, and the diagonal, are nan."""
    round_trips_s: Floats = read_grid(find_set(pool, "latency", Path()), "latency").values
    return np.where(np.eye(len(round_trips_s), dtype=bool) | (round_trips_s <= 0), np.nan, round_trips_s)


@lru_cache(maxsize=1)
def scatter() -> Floats:
    """Return the round trips of every link of the series over the link's 20th percentile, (links, slices)."""
    series = read_series(find_set(f"series/{SERIES}", "latency", Path())).round_trip_s
    links = series[:, *np.triu_indices(series.shape[1], 1)]
    times: Floats = (links / baseline(links)).T
    return times


def embed(trial: Embedding) -> Embedded:
    """Run the rounds. Raise UsageError for an unknown space or unknown samples."""
    for field, value, known in (("space", trial.space, SPACES), ("samples", trial.samples, SAMPLES)):
        if value not in known:
            raise UsageError(f"{field} is {value!r}; {nearest(value, known)}")
    latency_s = matrix(trial.pool)
    hosts, own = len(latency_s), np.arange(len(latency_s))
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    neighbours = np.array([random.permutation(np.delete(own, host))[:NEIGHBOURS] for host in own])
    like = random.integers(len(scatter()), size=neighbours.shape)  # link of the series that each link follows
    slices = random.integers(scatter().shape[1], size=neighbours.shape)
    last = np.full((KEPT, *neighbours.shape), np.inf)
    coordinates = Coordinates.first(hosts, random, dimensions=trial.dimensions, heights=SPACES[trial.space])
    moved = []
    for number in range(trial.rounds):
        chosen = random.integers(neighbours.shape[1], size=hosts)
        peer = neighbours[own, chosen]
        sample = latency_s[own, peer]
        if trial.samples != "medians":
            slices[own, chosen] = (slices[own, chosen] + 1) % scatter().shape[1]
            sample = sample * scatter()[like[own, chosen], slices[own, chosen]]
        if trial.samples == "filtered":
            last[:, own, chosen] = np.concatenate([last[1:, own, chosen], sample[None]])
            sample = baseline(last[:, own, chosen])
        before, coordinates = coordinates, coordinates.measured(coordinates.of(peer), sample)
        if number >= trial.rounds - LAST:
            moved.append(np.sqrt(((coordinates.places - before.places) ** 2).sum(axis=1)).mean())
    pairs = np.triu_indices(hosts, 1)
    off = np.abs(coordinates.distances_s(slice(None), slice(None)) - latency_s)[pairs] / latency_s[pairs]
    return Embedded(error=float(np.nanmedian(off)), moved_s=float(np.mean(moved)))
