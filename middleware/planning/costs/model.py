"""Cost models: what a placement costs, and which nodes are to blame.

One interface for all (:class:`CostModel`, :class:`Position`). A model looks at a placement once
(``at``) and then answers quickly what it would cost with a single operator elsewhere (``moves``, for several operators
``moves_of``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound, and is exact
as soon as all links of the placement are known. A placement whose lower bound exceeds the best cost known is
given up, and its unknown links are never asked for. Of the others *all* the unknown links are
asked for at once: an unknown link may be arbitrarily slow, so a maximum over paths or resources is
not known before the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
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

    def moves(self, node: int) -> Nanoseconds:
        """(hosts,) the lower bound of the cost with ``node`` alone moved to each host.

        This general way looks at every placement anew; a model that can do better overrides it.
        """
        costs = np.empty(len(self.problem.hosts))
        where = self.where.copy()
        for host in range(len(self.problem.hosts)):
            where[node] = host
            costs[host] = self.model.at(self.problem, where.copy()).lower_ns
        return costs

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """(nodes, hosts) :meth:`moves` of each of ``nodes``; a model that is faster for all together overrides it."""
        return np.array([self.moves(node) for node in nodes]).reshape(len(nodes), len(self.problem.hosts))


class CostModel(Protocol):
    """A cost model: a name, and a way to look at a placement."""

    @property
    def name(self) -> str: ...

    def at(self, problem: Problem, where: Where) -> Position:
        """Look at a placement; never raises for unknown links (see :meth:`Position.lower_ns`)."""


class Evaluation(msgspec.Struct, frozen=True):
    """What a placement costs in seconds; when ``pruned``, only that it is at least ``cost_s``.

    ``critical``: the names of the nodes that determine it, producers first.
    """

    cost_s: float
    pruned: bool
    critical: tuple[str, ...]


def evaluate(model: CostModel, problem: Problem, placement: Placement, bound_s: float = float("inf")) -> Evaluation:
    """The cost of a placement, given up as soon as it is certain to exceed ``bound_s``.

    Raises LinksNeeded with all the links that are still needed, PlacementError for a bad placement.
    """
    where = problem.where(placement)
    position = model.at(problem, where)
    pruned = position.lower_ns / NS_PER_S > bound_s
    if not pruned:
        problem.require(where)
    return Evaluation(position.lower_ns / NS_PER_S, pruned, problem.names_of(position.critical()))
