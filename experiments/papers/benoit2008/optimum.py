"""Comparison of every way to rent machines with the optimum, on problems as section 7.2 draws them.

The paper compares with the optimum up to N = 20, where it is always one machine. Here a problem is *settled* if the
cover bound proves the cheapest heuristic's answer. Ratios are over unsettled problems, which need several machines, or
a dearer one than the sum of the requirements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median

import msgspec
import numpy as np

from thalweg.experiments.papers.benoit2008.instances import Drawing, drawn
from thalweg.experiments.provisioning.annealing import anneal
from thalweg.experiments.provisioning.answer import cost
from thalweg.experiments.provisioning.best import ProvisioningLimits, Rented, best
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.parts import parts_of
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.solver.program import NoSolutionError

SEVEN, ANNEALING, BEST = "best of the seven", "annealing", "best"
TIED = 1e-9


class Drawn(msgspec.Struct, frozen=True):
    """One problem: costs and processor seconds of every way that found machines, and the optimum.

    ``best``: None if no machines were found. ``none``: it is proven that no machines exist.
    """

    costs: dict[str, float]
    took_s: dict[str, float]
    best: Rented | None
    none: bool

    @property
    def settled(self) -> bool:
        """Return whether the cover bound proves the cheapest heuristic's answer."""
        return self.best is not None and self.costs.get(SEVEN, math.inf) <= self.best.cover * (1 + TIED)


class Scored(msgspec.Struct, frozen=True):
    """Scores of one way: the number of problems with machines (``found``), and the number of ``optimal`` answers.

    The remaining fields are over unsettled problems. ``ratio``, ``worst``: the cost over the optimum, in the mean and
    at worst. ``cheapest``: on how many of ``unsettled`` no heuristic is cheaper. ``median_s``, ``longest_s``: processor
    seconds for one problem.
    """

    way: str
    found: int
    optimal: int
    unsettled: int
    cheapest: int
    ratio: float
    worst: float
    median_s: float
    longest_s: float


def compared(
    drawing: Drawing, count: int, seed: int, effort: ProvisioningLimits, tell: Callable[[int], None]
) -> list[Drawn]:
    """Return ``count`` problems of a drawing, from a seed, each solved in every way."""
    problems = []
    for number in range(count):
        tell(number)
        problems.append(one(drawn(drawing, np.random.default_rng([seed, number])), effort))
    return problems


def one(instance: ProvisioningInstance, effort: ProvisioningLimits) -> Drawn:
    """Return a problem with its solutions in every way."""
    costs, took_s = dict[str, float](), dict[str, float]()

    def timed(way: str, solve: Callable[[], float]) -> None:
        begun = time.process_time()
        try:
            value = solve()
        except PlannerError:
            value = math.inf
        took_s[way] = time.process_time() - begun
        if math.isfinite(value):
            costs[way] = value

    def annealed() -> float:
        plan = anneal(parts_of(instance), effort.seed, steps=effort.steps, runs=effort.runs)
        return math.inf if plan is None else plan[0]

    def heuristic(name: str) -> Callable[[], float]:
        return lambda: cost(instance, rented(instance, name, effort.seed))

    for name in HEURISTICS:
        timed(name, heuristic(name))
    if costs:
        costs[SEVEN], took_s[SEVEN] = min(costs.values()), sum(took_s.values())
    timed(ANNEALING, annealed)
    begun, answer, none = time.process_time(), None, False
    try:
        answer = best(instance, effort)
        costs[BEST] = answer.cost
    except NoSolutionError:
        none = True
    except PlannerError:
        pass
    took_s[BEST] = time.process_time() - begun
    return Drawn(costs, took_s, answer, none)


def scores(found: Sequence[Drawn]) -> list[Scored]:
    """Return the scores of every way on the problems whose optimum is proven."""
    proven = [problem for problem in found if problem.best is not None and problem.best.proven]
    return [_scored(way, proven) for way in (*HEURISTICS, SEVEN, ANNEALING, BEST)]


def _scored(way: str, proven: Sequence[Drawn]) -> Scored:
    ratios = [(problem, problem.costs[way] / problem.costs[BEST]) for problem in proven if way in problem.costs]
    unsettled = [(problem, ratio) for problem, ratio in ratios if not problem.settled]
    values = [ratio for _, ratio in unsettled] or [math.nan]
    times = [problem.took_s[way] for problem in proven if not problem.settled and way in problem.took_s] or [math.nan]
    return Scored(
        way,
        found=len(ratios),
        optimal=sum(ratio <= 1 + 1e-6 for _, ratio in ratios),
        unsettled=sum(not problem.settled for problem in proven),
        cheapest=sum(problem.costs[way] <= problem.costs.get(SEVEN, math.inf) * (1 + TIED) for problem, _ in unsettled),
        ratio=fmean(values),
        worst=max(values),
        median_s=median(times),
        longest_s=max(times),
    )
