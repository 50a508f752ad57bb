"""What ways to solve a problem return."""

from __future__ import annotations

import msgspec

from thalweg.middleware.planning.odp.instance import Indices

PROVEN = 1e-6  # a relative gap so small is none: what decides ties, and rounding, is within it


class Solved(msgspec.Struct, frozen=True):
    """The best placement that a way found.

    - ``where``: the host of every operator
    - ``cost``: what it costs by the goal, without what decides ties; ``bound``: what none can beat
    - ``way``: who found it; ``looked_at``: how many placements, or parts of some, it looked at
    """

    where: Indices
    cost: float
    bound: float
    way: str
    looked_at: int = 0

    @property
    def gap(self) -> float:
        """How far the bound is below the cost, as a share of it."""
        return max(0.0, self.cost - self.bound) / max(abs(self.cost), 1e-12)

    @property
    def proven(self) -> bool:
        """Whether it is the optimum."""
        return self.gap <= PROVEN
