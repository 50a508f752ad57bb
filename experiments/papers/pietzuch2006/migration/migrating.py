"""Trial of one query of Pietzuch et al. (2006), section 4.2.1, whose operator stays or may move while latencies change.

The query has two producers, an operator whose output is a quarter of its inputs, and a consumer. The hosts are drawn
from a measured series. In every slice each host measures the latency to every other host. The 20th percentile of a
link's last ten measurements updates the coordinates. Once in ``every`` slices the operator's host looks for a better
host.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.emulation.scenarios.data_sets import find_set
from thalweg.emulation.traces.latencies import Floats, read_series
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.coordinates import Coordinates, baseline
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import at_rest
from thalweg.middleware.planning.usage.search import optimal
from thalweg.middleware.planning.usage.streams import Query, QueryStream

RATE, SELECTIVITY = 1_000.0, 1 / 4  # bytes/s of a producer; the query keeps a tuple in four
KEPT = 10  # measurements of a link, whose 20th percentile is its latency: section 3.1.1
SETTLED, TRIED = 60, 0.5  # slices until coordinates are used; the share of the series on which constants were chosen
NODES = ("producer", "producer", "operator", "consumer")
OPERATOR = 2


class Migrating(Trial, frozen=True, kw_only=True):
    """Query (``configuration`` of the draw ``pool_seed``) on the series ``pool``, which is placed and may move.

    ``every``: slices between two searches for a host. ``displacement_s``: the movement of the operator's place in the
    cost space that starts a search. ``saving``: the least share of the estimated usage that a move saves. The latter
    two were chosen on the series' first half. Results are of the second half.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.migration.migrating:migrate"

    pool: str = "seattle16_rtt_ms"
    placement: str = "relaxation"
    moves: bool = True
    every: int = 5
    displacement_s: float = 0.02
    saving: float = 0.2
    tried: bool = False  # run on the first half instead


class Migrated(Outcome, frozen=True, kw_only=True):
    """Means over the slices. ``oscillations``: moves back to the host that was left at the previous search."""

    usage_bytes: float | None = None
    delay_s: float | None = None
    relocations: int = 0
    oscillations: int = 0


Migrating.outcome = Migrated


class Known(msgspec.Struct, frozen=True):
    """Values of every slice: one-way latencies, the hosts' estimates of them (``held_s``), and the hosts' places."""

    latency_s: Floats
    held_s: Floats
    places: Floats


@lru_cache(maxsize=2)
def known(pool: str) -> Known:
    """Return the values of a series by its name, computed once per process."""
    latency_s = read_series(find_set(f"series/{pool}", "latency", Path())).round_trip_s / 2
    hosts = latency_s.shape[1]
    own, random = np.arange(hosts), np.random.default_rng(1)
    held_s, places = np.empty_like(latency_s), np.empty((len(latency_s), hosts, 3))
    coordinates = Coordinates.first(hosts, random)
    for at in range(len(latency_s)):
        held_s[at] = baseline(latency_s[max(0, at + 1 - KEPT) : at + 1])
        for step in random.permutation(hosts - 1) + 1:
            peers = (own + step) % hosts
            coordinates = coordinates.measured(coordinates.of(peers), held_s[at][own, peers])
        places[at] = coordinates.places
    return Known(latency_s, held_s, places)


class _Relaxation:
    """The paper's local optimiser. The query is relaxed, and mapped to a host if the operator's place has moved.
    Distances of coordinates decide about a move.
    """

    def __init__(self, query: Query, trial: Migrating) -> None:
        self._query, self._trial = query, trial
        self._place: Floats | None = None

    def look(self, now: Known, at: int) -> tuple[int | None, Floats]:
        """Return the host for the operator, None for the present one, and the estimated latencies."""
        places = now.places[at]
        place = at_rest(self._query, {node: places[host] for node, host in self._query.pinned.items()})[OPERATOR]
        held = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2))
        if self._place is not None and np.sqrt(((place - self._place) ** 2).sum()) <= self._trial.displacement_s:
            return None, held
        self._place = place
        return Mapper(places).host(place), held


class _CostSpace:
    """Our optimiser, which takes the host of the least usage by the measured latencies."""

    def __init__(self, query: Query, trial: Migrating) -> None:
        self._query = query

    def look(self, now: Known, at: int) -> tuple[int | None, Floats]:
        return optimal(self._query, now.held_s[at])[OPERATOR], now.held_s[at]


OPTIMISERS: dict[str, type[_Relaxation | _CostSpace]] = {"relaxation": _Relaxation, "cost-space": _CostSpace}


def migrate(trial: Migrating) -> Migrated:
    """Run one query over half of the series. Raise UsageError for an unknown placement."""
    if trial.placement not in OPTIMISERS:
        raise UsageError(f"{trial.placement!r} is no placement of this study; {nearest(trial.placement, OPTIMISERS)}")
    now = known(trial.pool)
    half = SETTLED + int((len(now.latency_s) - SETTLED) * TRIED)
    slices = range(SETTLED, half) if trial.tried else range(half, len(now.latency_s))
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    ends = random.choice(now.latency_s.shape[1], len(NODES) - 1, replace=False).tolist()
    streams = QueryStream(0, 2, RATE), QueryStream(1, 2, RATE), QueryStream(2, 3, 2 * RATE * SELECTIVITY)
    query = Query(streams, {0: ends[0], 1: ends[1], 3: ends[2]}).check()
    optimiser = OPTIMISERS[trial.placement](query, trial)
    first, _ = optimiser.look(now, slices[0])
    assert first is not None
    on, left, usage, delay = first, -1, 0.0, 0.0
    moved = back = 0
    for at in slices:
        if trial.moves and at > slices[0] and (at - slices[0]) % trial.every == 0:
            host, held = optimiser.look(now, at)
            stay, go = (query.usage(_hosts(query, candidate), held) for candidate in (on, on if host is None else host))
            if host is not None and go < stay * (1 - trial.saving):
                moved, back = moved + 1, back + (host == left)
                on, left = host, on
            else:
                left = -1
        usage += query.usage(_hosts(query, on), now.latency_s[at])
        delay += query.delay_s(_hosts(query, on), now.latency_s[at])
    return Migrated(usage_bytes=usage / len(slices), delay_s=delay / len(slices), relocations=moved, oscillations=back)


def _hosts(query: Query, operator: int) -> list[int]:
    return [query.pinned.get(node, operator) for node in range(query.nodes)]
