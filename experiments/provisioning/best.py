"""Search for the cheapest machines, with a lower bound of the cost at any time: heuristics, annealing, the program.

- B1: The cover bound tells which numbers of machines may be cheaper than the best known answer. If there are none, the
  best known answer is the optimum.
- B2: The program is solved for one number of machines after another, the lowest bound first. Numbers beyond the first
  few are one program.
- B3: The result of a heuristic is an answer. So if a heuristic has an answer, the search has one at any time limit.
"""

from __future__ import annotations

import math

import msgspec

from thalweg.experiments.provisioning.annealing import RUNS, STEPS, anneal
from thalweg.experiments.provisioning.answer import Answer, cost
from thalweg.experiments.provisioning.cover import cover
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.parts import ProblemUnits, parts_of
from thalweg.experiments.provisioning.program import PROVEN, Counted
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.solver.program import NoSolutionError, SearchLimits

NUMBERS = 8  # programs at most: the last has all further numbers of machines


class ProvisioningLimits(SearchLimits, frozen=True):
    """Limits of the search. ``steps``: of an annealing run, for every unit. ``runs``: of annealing.

    ``seed``: of heuristics and annealing.
    """

    time_limit_s: float = 60.0
    seed: int = 0
    steps: int = STEPS
    runs: int = RUNS


class Rented(msgspec.Struct, frozen=True):
    """Cheapest answer of a search, its cost, and a lower bound of the cost of all answers.

    ``cover``: the cover bound alone. ``way``: the name of a heuristic, ``annealing`` or ``program``.
    """

    answer: Answer
    cost: float
    bound: float
    cover: float
    way: str

    @property
    def gap(self) -> float:
        """Distance of the bound from the cost, as a share of the cost."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > 0 else 0.0

    @property
    def proven(self) -> bool:
        """Return whether the answer is the optimum."""
        return self.gap <= 2 * PROVEN


def best(instance: ProvisioningInstance, effort: ProvisioningLimits | None = None) -> Rented:
    """Return the cheapest answer that is found in time. Raise PlannerError if there is none or none is found."""
    effort = effort or ProvisioningLimits()
    parts = parts_of(instance)
    cheapest: tuple[float, Answer, str] | None = None
    if not parts.kinds:
        raise NoSolutionError("there are no machines: the limit of every class is below 1")
    for name in sorted(HEURISTICS, key=lambda name: name == "random"):  # B3: random is last, and loses ties
        try:
            answer = rented(instance, name, effort.seed)
        except PlannerError:
            continue
        if cheapest is None or cost(instance, answer) < cheapest[0]:
            cheapest = cost(instance, answer), answer, name
    ranges = Ranges(parts, cheapest[0] if cheapest else math.inf, effort.gap)
    covered = ranges.bound
    if ranges.left:
        starts = [cheapest[1]] if cheapest else []
        annealed = anneal(parts, effort.seed, starts, steps=effort.steps, runs=effort.runs)
        if annealed is not None and (cheapest is None or annealed[0] < cheapest[0]):
            cheapest = *annealed, "annealing"
            ranges.below = cheapest[0]
    took_s = 0.0
    while (numbers := ranges.next()) is not None:
        least, most, bound = numbers
        program = Counted(parts, least, most, bound, ranges.below, effort.gap)
        solved = program.solve(effort.time_limit_s - took_s)
        took_s += solved.took_s
        if solved.best is not None and (cheapest is None or solved.best[0] < cheapest[0]):
            cheapest = *solved.best, "program"
            ranges.below = cheapest[0]
        ranges.record(least, solved.bound)
        if not solved.proven:
            break
    if cheapest is None:
        if math.isinf(ranges.bound):
            raise NoSolutionError("no machines sustain the throughput")
        raise PlannerError("the search found no machines in time, but some may exist")
    return Rented(cheapest[1], cheapest[0], min(cheapest[0], ranges.bound), min(cheapest[0], covered), cheapest[2])


class Ranges:
    """Lower bounds of the cost by number of machines, and the numbers that are still to be solved (B1, B2)."""

    def __init__(self, parts: ProblemUnits, below: float, gap: float) -> None:
        self.below, self._gap = below, gap
        self._bounds: dict[int, float] = {}
        self._most: dict[int, int] = {}
        cheapest = min(min(map(min, kind.prices)) for kind in parts.kinds)
        largest = int(min(parts.count, plain_sum(kind.limit for kind in parts.kinds)))
        self._open: set[int] = set()
        for machines in range(1, largest + 1):
            if machines * cheapest >= below:
                break
            bound = cover(parts, machines)
            self._bounds[machines], self._most[machines] = bound, machines
            if math.isfinite(bound):
                self._open.add(machines)
            if len(self._open) == NUMBERS:
                self._most[machines] = largest
                self._bounds[machines] = machines * cheapest
                break

    @property
    def left(self) -> list[int]:
        """Open numbers of machines for which a cheaper answer is possible."""
        return [number for number in self._open if self._bounds[number] < self.below * (1 - max(self._gap, PROVEN))]

    @property
    def bound(self) -> float:
        """Lower bound of the cost of all answers."""
        return min([self.below, *(self._bounds[number] for number in self._bounds)])

    def next(self) -> tuple[int, int, float] | None:
        """Return the least and the largest number of machines to solve next, and their bound, or None."""
        if not self.left:
            return None
        machines = min(self.left, key=lambda number: self._bounds[number])
        return machines, self._most[machines], self._bounds[machines]

    def record(self, machines: int, bound: float) -> None:
        """Record the proven bound of a number of machines, which is then solved."""
        self._bounds[machines] = max(self._bounds[machines], bound)
        self._open.discard(machines)
