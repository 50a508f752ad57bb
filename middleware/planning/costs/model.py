"""Cost models: what a placement costs, and which nodes are to blame.

One interface for all (:class:`CostModel`, :class:`Position`). A model looks at a placement once
(``at``) and then answers quickly what it would cost with any one of some operators elsewhere (``moves_of``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound, and is exact
as soon as all links of the placement are known. A placement whose lower bound exceeds the best cost known is
given up, and its unknown links are never asked for. Of the others *all* the unknown links are
asked for at once: an unknown link may be arbitrarily slow, so a maximum over paths or resources is
not known before the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from thalweg.middleware.dataflow import Placement
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where


class Position:
    """One placement seen by one cost model. Subclasses set ``lower_ns`` and say what is critical.

    ``lower_ns``: the cost with unknown links taken as infinitely fast, whole nanoseconds.
    """

    lower_ns: float

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        self.model, self.problem, self.where = model, problem, where

    def critical(self) -> tuple[int, ...]:
        """The nodes that determine the cost, producers first: moving any other cannot lower it."""
        raise NotImplementedError

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """(nodes, hosts) the lower bound of the cost with each of ``nodes`` alone moved to each host.

        This general way looks at every placement anew; a model that can do better overrides it.
        """
        costs = np.empty((len(nodes), len(self.problem.hosts)))
        for (row, host), _ in np.ndenumerate(costs):
            where = self.where.copy()
            where[nodes[row]] = host
            costs[row, host] = self.model.at(self.problem, where).lower_ns
        return costs


class CostModel(Protocol):
    """A cost model: a name, and a way to look at a placement."""

    @property
    def name(self) -> str: ...

    def at(self, problem: Problem, where: Where) -> Position:
        """Look at a placement; never raises for unknown links (see :meth:`Position.lower_ns`)."""


def evaluate(model: CostModel, problem: Problem, placement: Placement) -> float:
    """Seconds that a placement costs.

    Raises LinksNeeded with all the links that are still needed, PlacementError for a bad placement.
    """
    where = problem.where(placement)
    problem.require(where)
    return model.at(problem, where).lower_ns / NS_PER_S
