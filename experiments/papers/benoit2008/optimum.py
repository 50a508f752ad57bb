"""Every way to rent machines beside the optimum, on problems as section 7.2 draws them.

The paper compares with the optimum to N = 20, where it is one machine each time. Here a problem is *settled* if the
cover bound proves the cheapest heuristic's answer; ratios are told of the others, of which more than one machine is
needed or one that is dearer than all that is asked together.
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
    """One problem: the costs and processor seconds of every way that found machines, and the optimum.

    ``best`` is None where no machines were found; ``none``: where it is proven that there are none.
    """

    costs: dict[str, float]
    took_s: dict[str, float]
    best: Rented | None
    none: bool

    @property
    def settled(self) -> bool:
        """Whether the cover bound proves the cheapest heuristic's answer."""
        return self.best is not None and self.costs.get(SEVEN, math.inf) <= self.best.cover * (1 + TIED)


class Scored(msgspec.Struct, frozen=True):
    """How a way did: of all problems with machines it ``found`` so many, and ``optimal`` ones.

    Of those that are not settled: by what ``ratio`` its answers cost more than the optimum in the mean, and at worst;
    ``cheapest``: on how many of ``unsettled`` none of the heuristics is cheaper. ``median_s`` and ``longest_s``:
    processor seconds for one of these.
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
    """So many problems of a drawing, from a seed, each solved in every way."""
    found = []
    for number in range(count):
        tell(number)
        found.append(one(drawn(drawing, np.random.default_rng([seed, number])), effort))
    return found


def one(instance: ProvisioningInstance, effort: ProvisioningLimits) -> Drawn:
    """A problem solved in every way."""
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
        found = anneal(parts_of(instance), effort.seed, steps=effort.steps, runs=effort.runs)
        return math.inf if found is None else found[0]

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
    """How every way did, on the problems whose optimum is proven."""
    proven = [each for each in found if each.best is not None and each.best.proven]
    return [_scored(way, proven) for way in (*HEURISTICS, SEVEN, ANNEALING, BEST)]


def _scored(way: str, proven: Sequence[Drawn]) -> Scored:
    ratios = [(each, each.costs[way] / each.costs[BEST]) for each in proven if way in each.costs]
    open_ones = [(each, ratio) for each, ratio in ratios if not each.settled]
    values = [ratio for _, ratio in open_ones] or [math.nan]
    times = [each.took_s[way] for each in proven if not each.settled and way in each.took_s] or [math.nan]
    return Scored(
        way,
        found=len(ratios),
        optimal=sum(ratio <= 1 + 1e-6 for _, ratio in ratios),
        unsettled=sum(not each.settled for each in proven),
        cheapest=sum(each.costs[way] <= each.costs.get(SEVEN, math.inf) * (1 + TIED) for each, _ in open_ones),
        ratio=fmean(values),
        worst=max(values),
        median_s=median(times),
        longest_s=max(times),
    )
