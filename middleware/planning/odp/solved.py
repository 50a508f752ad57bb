"""Result of a method that solves a placement problem: a placement, with its cost and a bound."""

from __future__ import annotations

import msgspec

from thalweg.middleware.planning.odp.instance import Indices

PROVEN = 1e-6  # a relative gap up to this size is no gap: the terms that decide ties, and rounding, are smaller


class Solved(msgspec.Struct, frozen=True):
    """Best placement that a method found.

    - ``where``: host of every operator.
    - ``cost``: cost of the placement by the goal, without the terms that decide ties.
    - ``bound``: cost below which no placement lies.
    - ``way``: name of the method.
    - ``looked_at``: number of placements, or of parts of placements, that the method evaluated.
    """

    where: Indices
    cost: float
    bound: float
    way: str
    looked_at: int = 0

    @property
    def gap(self) -> float:
        """Distance from the bound to the cost, as a share of the cost."""
        return max(0.0, self.cost - self.bound) / max(abs(self.cost), 1e-12)

    @property
    def proven(self) -> bool:
        """Return whether the placement is proven to be the optimum."""
        return self.gap <= PROVEN
