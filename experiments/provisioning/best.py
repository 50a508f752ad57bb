"""The cheapest machines that are found, and what none can beat: heuristics, annealing, the program, at any time.

- B1: the cover bound says of which numbers of machines any may be cheaper than what is known; where of none, that is
  the optimum already.
- B2: the program is solved number by number, the lowest bound first. Numbers beyond the first few are one program.
- B3: what a heuristic finds is an answer, so there is one wherever any of them has one, whenever time ends.
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

NUMBERS = 8  # of machines that are looked at one by one


class ProvisioningLimits(SearchLimits, frozen=True):
    """What the solver may take. ``steps``: of an annealing run for each unit, of ``runs``, whose chance is ``seed``."""

    time_limit_s: float = 60.0
    seed: int = 0
    steps: int = STEPS
    runs: int = RUNS


class Rented(msgspec.Struct, frozen=True):
    """An answer, what it costs, what none can cost less than, and the way it was found: a heuristic's name, or so.

    ``cover``: the cover bound alone.
    """

    answer: Answer
    cost: float
    bound: float
    cover: float
    way: str

    @property
    def gap(self) -> float:
        """How far the bound is below the cost, as a share of it."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > 0 else 0.0

    @property
    def proven(self) -> bool:
        """Whether it is the optimum."""
        return self.gap <= 2 * PROVEN


def best(instance: ProvisioningInstance, effort: ProvisioningLimits | None = None) -> Rented:
    """The cheapest answer that is found in time; PlannerError where there is none, or none was found."""
    effort = effort or ProvisioningLimits()
    parts = parts_of(instance)
    cheapest: tuple[float, Answer, str] | None = None
    if not parts.kinds:
        raise NoSolutionError("there are no machines: the limit of every class is below 1")
    for name in sorted(HEURISTICS, key=lambda name: name == "random"):  # B3; of equals one that has a reason
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
        raise PlannerError("no machines were found in time, and it is not proven that there are none")
    return Rented(cheapest[1], cheapest[0], min(cheapest[0], ranges.bound), min(cheapest[0], covered), cheapest[2])


class Ranges:
    """Of so many machines what they cost at least, and which numbers are to be looked at (B1, B2)."""

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
        """Numbers of machines of which some answer may be cheaper."""
        return [number for number in self._open if self._bounds[number] < self.below * (1 - max(self._gap, PROVEN))]

    @property
    def bound(self) -> float:
        """What no answer costs less than."""
        return min([self.below, *(self._bounds[number] for number in self._bounds)])

    def next(self) -> tuple[int, int, float] | None:
        """The least and the largest of numbers to be looked at, and their bound; None: there are none."""
        if not self.left:
            return None
        machines = min(self.left, key=lambda number: self._bounds[number])
        return machines, self._most[machines], self._bounds[machines]

    def record(self, machines: int, bound: float) -> None:
        """What was proven of so many, which were looked at."""
        self._bounds[machines] = max(self._bounds[machines], bound)
        self._open.discard(machines)
