"""The period when links vary: the expected load of the busiest link, disk or processor.

What a plan rests on was measured a moment ago, and every link then goes its own way. Let the load of resource *i*
(seconds of work a partition brings it) be *l_i* times a random factor, the factors independent and Fréchet-distributed
with shape *a*. Then the expected maximum over the resources is, up to a constant, the *a*-norm of the loads,

    E[max l_i X_i] = Γ(1 - 1/a) (Σ l_i^a)^(1/a),

because the maximum of Fréchet variables is one again. With *a* growing this is the period itself, the largest load. A
finite *a* also counts the loads next to the largest, so a plan does not rest on one lucky measurement, and a search
that moves one operator at a time sees progress where the maximum alone stays on a plateau.

A move changes few of the loads, so only their terms are exchanged in the sum of a placement without the operator. Sums
are carried in two floats (the second holds what the first rounds away; Knuth, TAOCP 2, 4.2.2, theorem B), so that they
come out as if every term had been added anew, in any order: the same move costs the same from wherever it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware import arithmetic
from thalweg.middleware.arrays import power
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs.model import LoadedPosition, Position, loads_of
from thalweg.middleware.planning.problem.loads import Floats, Interface
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where

LARGEST_PLAIN_SHAPE = 32.0  # up to here a load in seconds, from a nanosecond to a year, keeps its power a float
INTERFACE: Interface = "independent"


class ExpectedPeriod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected time per partition of a saturated pipeline over independent links (see the module).

    ``shape``: of the links' variation; lower is wilder. The default lies between what single minutes of inter-cloud
    links vary by and what their means do. The constant Γ(1 - 1/a) is left out, as it is the same for all plans.
    """

    name: ClassVar[str] = "expected-period"
    shape: float = 4.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > 1):
            raise UsageError(f"the shape of expected-period is {self.shape}; it must be above 1")

    def at(self, problem: Problem, where: Where) -> Position:
        kind = _SummedPosition if self.shape <= LARGEST_PLAIN_SHAPE else _ScaledPosition
        return kind(self, problem, where)

    def costs_of(self, problem: Problem, where: Where) -> Nanoseconds:
        """(rows,) the cost of every row of ``where``, up to what sums in another order round otherwise."""
        loads, _, _ = loads_of(problem, INTERFACE, where)
        busy = loads / problem.loads(INTERFACE).capacity
        scale = busy.max(axis=1)
        share = np.divide(busy, scale[:, None], out=np.zeros_like(busy), where=(scale > 0)[:, None] & np.isfinite(busy))
        norms = power(power(share, self.shape).sum(axis=1), 1 / self.shape)
        cost: Nanoseconds = np.rint(scale * np.maximum(norms, 1.0))
        return cost


class _SummedPosition(LoadedPosition):
    """The sum of the powers of all loads, kept for placements that differ in one node."""

    def __init__(self, options: ExpectedPeriod, problem: Problem, where: Where) -> None:
        super().__init__(options, INTERFACE, problem, where)
        self._shape = options.shape
        used = np.flatnonzero(self.loads)
        total = math.fsum(self._terms(self.loads[used], self.resources.capacity[used]).tolist())
        self.lower_ns = math.inf if self.unusable.any() else float(self._norms(np.array([total]))[0])

    def _terms(self, loads: Nanoseconds, capacity: Floats) -> Floats:
        return power(loads / (capacity * NS_PER_S), self._shape)

    def _norms(self, sums: Floats) -> Nanoseconds:
        norms: Nanoseconds = np.rint(power(sums, 1 / self._shape) * NS_PER_S)
        return norms

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """Take each node's work off the loads, then lay it on those of every host; only these terms change."""
        without, places, gains = self.moved(nodes)
        capacity, used = self.resources.capacity, np.flatnonzero(self.loads)
        remaining = self._terms(without[:, used], capacity[used]).tolist()
        sums = [math.fsum(terms) for terms in remaining]
        rests = [math.fsum([*terms, -total]) for terms, total in zip(remaining, sums, strict=True)]
        high, low = np.array(sums).reshape(-1, 1), np.array(rests).reshape(-1, 1)

        before = without[np.arange(len(nodes))[:, np.newaxis, np.newaxis], places]
        unusable = np.isinf(gains)
        after = before + np.where(unusable, 0.0, gains)
        off, on = -self._terms(before, capacity[places]), self._terms(after, capacity[places])
        for slot in range(places.shape[1]):
            for change in (off[:, slot], on[:, slot]):
                total = high + change
                added = total - high
                low = low + ((high - (total - added)) + (change - added))
                high = total
        return np.where(unusable.any(axis=1), np.inf, self._norms(high + low))


class _ScaledPosition(LoadedPosition):
    """The general way, for any shape: loads relative to the largest of them, and every placement anew."""

    moves_of = Position.moves_of

    def __init__(self, options: ExpectedPeriod, problem: Problem, where: Where) -> None:
        super().__init__(options, INTERFACE, problem, where)
        busy = self.loads / self.resources.capacity
        scale = float(busy.max()) or 1.0
        norm = scale * arithmetic.power(float(power(busy / scale, options.shape).sum()), 1 / options.shape)
        self.lower_ns = math.inf if self.unusable.any() else float(np.rint(norm))
