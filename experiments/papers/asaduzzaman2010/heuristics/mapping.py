"""Trial of one task that one heuristic maps on one network: Figure 7 (section 4.2).

Hosts have only dedicated links, drawn by preference (Barabási and Albert). A host joins with two links, the default of
the paper's topology generator. The rates follow a bounded power law. The values that the paper does not state are drawn
here. A link costs its length in a plane, capacities are lognormal, and a need's deviation is a quarter of its mean. A
task without a map is drawn again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from thalweg.experiments.papers.asaduzzaman2010.exchange import FOREVER_S, Exchange, undisturbed
from thalweg.experiments.papers.asaduzzaman2010.heuristics.optimum import bound, optimum
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Dedicated, MappingTask, Platform, Server
from thalweg.experiments.papers.asaduzzaman2010.platforms import COMPONENTS, preferential
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import PlannerError, UsageError, nearest

RATES_BPS, SHAPE = (10e6, 1e9), 1.2  # bounds of the power law, and its shape, as the generator has it
SPREAD = 1.0  # of capacities: the deviation of their logarithm
MEAN, DEVIATION, LEAST = (
    0.5,
    0.25,
    0.1,
)  # of needs: the mean as a share of the average host or link, and two shares of that mean
DELAYS_S = (0.001, 0.010)
DRAWS = 1000  # at most, until a draw has a map
EMPTY = 4  # hosts of an edge that only pass data on
HEURISTICS: Mapping[str, Rules] = {
    "least-cost": Rules(cost="links", ordered=False),
    "annealed": Rules(cost="links", ordered=False, pruning="annealed"),
    "random-neighbor": Rules(cost="links", ordered=False, pruning="random-neighbor"),
    "ordered": Rules(cost="links", ordered=True),
}
OPTIMUM = "optimum"


class Heuristic(Trial, frozen=True, kw_only=True):
    """Network with a task (``pool_seed``, ``configuration``), and the heuristic. ``extend``: of annealed.
    ``neighbours``: of random-neighbor.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.asaduzzaman2010.heuristics.mapping:map_one"

    heuristic: str = "least-cost"
    nodes: int = 30
    extend: float = 0.5
    neighbours: int = 1

    @property
    def kind(self) -> tuple[object, ...]:
        return self.heuristic, self.nodes


class Mapped(Outcome, frozen=True, kw_only=True):
    """Result of a mapping. ``ratio``: the cost of the map over the bound, None without a map. ``messages``: maps sent.
    ``mapping_ms``: processor time. ``proven``: whether the optimum is proven.
    """

    ratio: float | None = None
    messages: int | None = None
    mapping_ms: float = 0.0
    proven: bool | None = None


Heuristic.outcome = Mapped


def network(nodes: int, random: np.random.Generator) -> tuple[Platform, MappingTask]:
    """Return a drawn network and a task."""
    places = random.random((nodes, 2))
    pairs = preferential(nodes, 2 * nodes, random, joined=2)
    low, high = RATES_BPS
    even = random.random(len(pairs))
    rates = low * (1 - even * (1 - (low / high) ** SHAPE)) ** (-1 / SHAPE)
    capacity = random.lognormal(0.0, SPREAD, nodes)
    services = frozenset(range(COMPONENTS))
    links = tuple(
        Dedicated(a, b, float(rate), float(random.uniform(*DELAYS_S)), float(np.hypot(*(places[a] - places[b]))))
        for (a, b), rate in zip(pairs, rates, strict=True)
    )
    needs = np.maximum(random.normal(1, DEVIATION, COMPONENTS), LEAST) * MEAN * capacity.mean()
    asked = np.maximum(random.normal(1, DEVIATION, COMPONENTS + 1), LEAST) * MEAN * rates.mean()
    source, sink = random.choice(nodes, 2, replace=False).tolist()
    task = MappingTask(
        0, source, sink, tuple(range(COMPONENTS)), tuple(map(float, needs)), tuple(map(float, asked)), EMPTY
    )
    platform = Platform(tuple(Server(float(amount), services) for amount in capacity), links)
    return platform.check(task), task


class _Drawn(NamedTuple):
    """Network and task for which a map exists, the cost of the best map, the bound, and the time to find both."""

    platform: Platform
    task: MappingTask
    best: float
    proven: bool
    bound: float
    took_s: float


@lru_cache(maxsize=8)
def _drawn(pool_seed: int, configuration: int, nodes: int) -> _Drawn:
    """Return the first draw that has a map."""
    for attempt in range(DRAWS):
        platform, task = network(nodes, np.random.default_rng((pool_seed, configuration, nodes, attempt)))
        begun = time.process_time()
        best = optimum(platform, task)
        if best is not None:
            took_s = time.process_time() - begun
            return _Drawn(platform, task, *best, bound(platform, task), took_s)
    raise PlannerError(f"none of {DRAWS} draws with {nodes} nodes has a map")


def map_one(trial: Heuristic) -> Mapped:
    """Run one trial. Raise UsageError for an unknown heuristic."""
    known = (*HEURISTICS, OPTIMUM)
    if trial.heuristic not in known:
        raise UsageError(f"{trial.heuristic!r} is no heuristic of this study; {nearest(trial.heuristic, known)}")
    drawn = _drawn(trial.pool_seed, trial.configuration, trial.nodes)
    if trial.heuristic == OPTIMUM:
        return Mapped(ratio=drawn.best / drawn.bound, mapping_ms=1e3 * drawn.took_s, proven=drawn.proven)
    own = {"extend": trial.extend, "neighbours": trial.neighbours}
    rules = undisturbed(msgspec.structs.replace(HEURISTICS[trial.heuristic], **own))
    begun = time.process_time()
    exchange = Exchange(drawn.platform, rules, trial.configuration)
    exchange.begin(drawn.task)
    ratio = None
    while notes := exchange.run(FOREVER_S):
        for _, note in notes:
            if note.state == "running" and note.found is not None:
                ratio = note.found.cost / drawn.bound
    return Mapped(ratio=ratio, messages=exchange.sent, mapping_ms=1e3 * (time.process_time() - begun))
