"""Comparison of every heuristic with the optimum, on one problem or on random problems: ``thalweg place --compare``.

A ratio is the cost of a placement over the optimum's. The cost is the metric, or with several weights the weighted sum
of metrics over their ranges. A placement that breaks a constraint is rejected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec
import numpy as np

from thalweg.experiments.papers.cardellini2016.instances import drawn
from thalweg.middleware.errors import PlannerError, ThalwegError, one_line
from thalweg.middleware.planning.odp.heuristics import HEURISTICS
from thalweg.middleware.planning.odp.instance import Indices
from thalweg.middleware.planning.odp.objective import NETWORK, Goal, Objective
from thalweg.middleware.planning.odp.solve import OdpLimits, normalised, solve
from thalweg.middleware.planning.odp.solved import PROVEN, Solved

RANDOM = OdpLimits(time_limit_s=30.0)  # on one random problem
Way = Callable[[], Indices]


class Scored(msgspec.Struct, frozen=True):
    """Placement with its cost, its ratio to the optimum, and the seconds to find it. ``said``: why there is none."""

    name: str
    planning_s: float
    cost: float | None = None
    ratio: float | None = None
    placement: dict[str, str] = {}
    said: str = ""


class Ratios(msgspec.Struct, frozen=True):
    """Results of one heuristic on many problems: the number ``found``, its ratios, the share that is ``optimal``, and
    the median time.
    """

    name: str
    problems: int
    found: int
    median: float
    percentile_95: float
    worst: float
    optimal: float
    planning_ms: float


def scored(goal: Goal, optimum: Solved, name: str, way: Way) -> Scored:
    """Return the scores of one way."""
    begun = time.perf_counter()
    try:
        where = way()
        if shortfall := goal.instance.shortfall(where):
            raise PlannerError(shortfall)
    except ThalwegError as error:
        return Scored(name, time.perf_counter() - begun, said=one_line(error))
    took_s, cost = time.perf_counter() - begun, goal.cost(where)
    hosts = (goal.instance.hosts[host] for host in where.tolist())
    placement = dict(zip(goal.instance.names, hosts, strict=True))
    return Scored(name, took_s, cost, ratio(cost, optimum.cost), placement)


def ratio(cost: float, least: float) -> float:
    """Return a placement's cost over the optimum's. If the optimum is 0, the ratio is 1 or inf."""
    if abs(least) > PROVEN**2:
        return cost / least
    return 1.0 if abs(cost) <= PROVEN else math.inf


def compared(goal: Goal, optimum: Solved, seed: int, others: Mapping[str, Way] | None = None) -> list[Scored]:
    """Return the scores of heuristics and further ways on one problem, the best first."""
    ways: dict[str, Way] = {name: partial(of, goal, seed) for name, of in HEURISTICS.items()}
    scores = [scored(goal, optimum, name, way) for name, way in (ways | dict(others or {})).items()]
    return sorted(scores, key=lambda one: (one.ratio is None, one.ratio))


def mixed(random: np.random.Generator) -> Objective:
    """Return random weights of response time, availability and one network metric."""
    response, availability, _ = random.dirichlet((1, 1, 1)).tolist()
    network = max(0.0, 1.0 - response - availability)
    return Objective(response, availability, network, NETWORK[int(random.integers(len(NETWORK)))])


def at_random(count: int, seed: int, tell: Callable[[int], None] = lambda done: None) -> list[Ratios]:
    """Return the ratios of the heuristics on ``count`` random problems with mixed weights. Problems without a proven
    optimum are left out.
    """
    scores: dict[str, list[Scored]] = {name: [] for name in HEURISTICS}
    for number in range(count):
        random = np.random.default_rng((seed, number))
        instance = drawn(random)
        goal = normalised(instance, mixed(random), RANDOM)
        optimum = solve(goal, RANDOM)
        if optimum.proven:
            for score in compared(goal, optimum, seed):
                scores[score.name].append(score)
        tell(number + 1)
    return [_ratios(name, of) for name, of in scores.items()]


def _ratios(name: str, scores: Iterable[Scored]) -> Ratios:
    listed = list(scores)
    ratios = np.array([score.ratio for score in listed if score.ratio is not None])
    few = ratios if len(ratios) else np.array([math.nan])
    return Ratios(
        name=name,
        problems=len(listed),
        found=len(ratios),
        median=float(np.median(few)),
        percentile_95=float(np.quantile(few, 0.95)),
        worst=float(few.max()),
        optimal=float((few <= 1 + PROVEN).mean()),
        planning_ms=float(np.median([1e3 * score.planning_s for score in listed] or [math.nan])),
    )
