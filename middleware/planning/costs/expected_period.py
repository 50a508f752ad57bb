"""Cost model of the period when links vary: the expected load of the busiest link, disk or processor.

A plan rests on measurements of the past, and every link then varies on its own. Let the load of resource *i* (seconds
of work that a partition brings) be *l_i* times a random factor. The factors are independent and Fréchet-distributed
with shape *a*. Then the expected maximum over the resources is, up to a constant, the *a*-norm of the loads:

    E[max l_i X_i] = Γ(1 - 1/a) (Σ l_i^a)^(1/a).

The reason is that the maximum of Fréchet variables is a Fréchet variable. With growing *a* the norm approaches the
period itself, the largest load. A finite *a* also counts the loads next to the largest, so a plan does not rest on one
lucky measurement. A search that moves one operator at a time then sees progress where the maximum stays on a plateau.

A move changes few loads, so only their terms are exchanged in the sum of a placement without the operator. A sum is
held in two floats. The second holds what the first rounds away (Knuth, TAOCP 2, 4.2.2, theorem B). So the sum is the
same as if every term had been added anew, in any order. The same move costs the same from every start.
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

LARGEST_PLAIN_SHAPE = 32.0  # up to this shape the powers of loads from a nanosecond to a year, in seconds, fit a float
INTERFACE: Interface = "independent"


class ExpectedPeriod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost model of the expected time per partition of a saturated pipeline over independent links (see the module).

    ``shape``: shape of the links' variation. A lower value means more variation. The default lies between the variation
    of single minutes of inter-cloud links and the variation of their means. The constant Γ(1 - 1/a) is left out, as it
    is the same for all plans.
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
        """Return the cost of every row of ``where``, (rows,).

        The last digits may differ from the cost of a position, as sums in a different order round differently.
        """
        loads, _, _ = loads_of(problem, INTERFACE, where)
        busy = loads / problem.loads(INTERFACE).capacity
        scale = busy.max(axis=1)
        share = np.divide(busy, scale[:, None], out=np.zeros_like(busy), where=(scale > 0)[:, None] & np.isfinite(busy))
        norms = power(power(share, self.shape).sum(axis=1), 1 / self.shape)
        cost: Nanoseconds = np.rint(scale * np.maximum(norms, 1.0))
        return cost


class _SummedPosition(LoadedPosition):
    """Placement with the sum of the powers of all loads, for quick costs of placements that differ in one node."""

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
        """Return the cost of every move, (nodes, hosts).

        The work of each node is removed from the loads, and then added to the loads of every host. Only these terms
        change.
        """
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
    """Placement for a shape of any size: loads are relative to the largest load, and every move is computed anew."""

    moves_of = Position.moves_of

    def __init__(self, options: ExpectedPeriod, problem: Problem, where: Where) -> None:
        super().__init__(options, INTERFACE, problem, where)
        busy = self.loads / self.resources.capacity
        scale = float(busy.max()) or 1.0
        norm = scale * arithmetic.power(float(power(busy / scale, options.shape).sum()), 1 / options.shape)
        self.lower_ns = math.inf if self.unusable.any() else float(np.rint(norm))
