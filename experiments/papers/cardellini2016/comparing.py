"""Every heuristic beside the optimum, on one problem or on random ones: ``thalweg place --compare``.

A ratio is what a placement costs by what the optimum costs: the metric, or with several weights the sum of what each
counts by its range. A placement that breaks a constraint is not accepted.
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
    """One placement: what it costs, by the optimum's, and seconds to find it; ``said``: why there is none."""

    name: str
    planning_s: float
    cost: float | None = None
    ratio: float | None = None
    placement: dict[str, str] = {}
    said: str = ""


class Ratios(msgspec.Struct, frozen=True):
    """One heuristic on many problems: ``found`` of how many it placed, its ratios, on which share it has the optimum,
    and the median of its time."""

    name: str
    problems: int
    found: int
    median: float
    percentile_95: float
    worst: float
    optimal: float
    planning_ms: float


def scored(goal: Goal, optimum: Solved, name: str, way: Way) -> Scored:
    """What comes of one way."""
    begun = time.perf_counter()
    try:
        where = way()
        if said := goal.instance.shortfall(where):
            raise PlannerError(said)
    except ThalwegError as error:
        return Scored(name, time.perf_counter() - begun, said=one_line(error))
    took_s, cost = time.perf_counter() - begun, goal.cost(where)
    hosts = (goal.instance.hosts[host] for host in where.tolist())
    placement = dict(zip(goal.instance.names, hosts, strict=True))
    return Scored(name, took_s, cost, ratio(cost, optimum.cost), placement)


def ratio(cost: float, least: float) -> float:
    """What a placement costs by the optimum's; where that is nothing 1 or inf."""
    if abs(least) > PROVEN**2:
        return cost / least
    return 1.0 if abs(cost) <= PROVEN else math.inf


def compared(goal: Goal, optimum: Solved, seed: int, others: Mapping[str, Way] | None = None) -> list[Scored]:
    """All heuristics on one problem, and other ways beside them, the best first."""
    ways: dict[str, Way] = {name: partial(of, goal, seed) for name, of in HEURISTICS.items()}
    made = [scored(goal, optimum, name, way) for name, way in (ways | dict(others or {})).items()]
    return sorted(made, key=lambda one: (one.ratio is None, one.ratio))


def mixed(random: np.random.Generator) -> Objective:
    """Weights at random of response time, availability and one network metric."""
    response, availability, _ = random.dirichlet((1, 1, 1)).tolist()
    network = max(0.0, 1.0 - response - availability)
    return Objective(response, availability, network, NETWORK[int(random.integers(len(NETWORK)))])


def at_random(count: int, seed: int, tell: Callable[[int], None] = lambda done: None) -> list[Ratios]:
    """All heuristics on so many random problems with mixed weights; those whose optimum is not proven are left out."""
    found: dict[str, list[Scored]] = {name: [] for name in HEURISTICS}
    for number in range(count):
        random = np.random.default_rng((seed, number))
        instance = drawn(random)
        goal = normalised(instance, mixed(random), RANDOM)
        optimum = solve(goal, RANDOM)
        if optimum.proven:
            for one in compared(goal, optimum, seed):
                found[one.name].append(one)
        tell(number + 1)
    return [_ratios(name, of) for name, of in found.items()]


def _ratios(name: str, scores: Iterable[Scored]) -> Ratios:
    of = list(scores)
    ratios = np.array([one.ratio for one in of if one.ratio is not None])
    few = ratios if len(ratios) else np.array([math.nan])
    return Ratios(
        name=name,
        problems=len(of),
        found=len(ratios),
        median=float(np.median(few)),
        percentile_95=float(np.quantile(few, 0.95)),
        worst=float(few.max()),
        optimal=float((few <= 1 + PROVEN).mean()),
        planning_ms=float(np.median([1e3 * one.planning_s for one in of] or [math.nan])),
    )
