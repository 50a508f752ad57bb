"""Cost models: what a placement costs, and which nodes are to blame.

One interface for all (``CostModel``, ``Position``). A model looks at a placement once
(``at``) and then answers quickly what it would cost with any one of some operators elsewhere (``moves_of``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound, and is exact
as soon as all links of the placement are known. A placement whose lower bound exceeds the best cost known is
given up, and its unknown links are never asked for. Of the others *all* the unknown links are
asked for at once: an unknown link may be arbitrarily slow, so a maximum over paths or resources is
not known before the last of them.

Costs that are reductions of what resources are kept busy for share ``LoadedPosition``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Placement
from thalweg.middleware.planning.problem.loads import Interface, MoveEffects
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where


class Position(ABC):
    """One placement seen by one cost model. Subclasses set ``lower_ns`` and say what is critical.

    ``lower_ns``: the cost with unknown links taken as infinitely fast, whole nanoseconds.
    """

    lower_ns: float

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        self.model, self.problem, self.where = model, problem, where

    @abstractmethod
    def critical(self) -> tuple[int, ...]:
        """The nodes that determine the cost, producers first: moving any other cannot lower it."""

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


class LoadedPosition(Position):
    """``loads`` (resources,): nanoseconds of work on each of ``resources``; unusable links are not among the work.

    ``edge`` (edges,), ``compute`` (nodes,): what transfers and computations take; ``unusable``: edges that take for
    ever, counted apart, as a load of inf could not be taken off again. ``work`` (edges,): the same without what rides
    along with the transfer of another edge. ``carried``: the resources that every edge's transfer keeps busy.
    """

    def __init__(self, model: CostModel, interface: Interface, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        self.resources = problem.loads(interface)
        self.edge = problem.edge_ns(where)
        self.unusable: npt.NDArray[np.bool_] = np.isinf(self.edge)
        self._finite = np.where(self.unusable, 0.0, self.edge) if self.unusable.any() else self.edge
        self.work = problem.once(self._finite, where[problem.consumer])
        self.compute = problem.compute_ns[problem.everyone, where]
        self.carried = self.resources.of_transfers(where[problem.producer], where[problem.consumer])
        self.loads = self.resources.add_up(self.carried, self.work, where, self.compute, problem.disk_ns)

    def critical(self) -> tuple[int, ...]:
        """Every node: each resource in use counts, unless the reduction says otherwise."""
        return tuple(range(len(self.where)))

    def beside(self, producer: int, edge: int) -> Nanoseconds:
        """(hosts,) the work of a transfer to the consumer on each host: none where another one gets the same."""
        work = self.problem.edge_from_ns(edge, int(self.where[producer]))
        if transfers := self.problem.transfers_of(producer, self.where, edge):
            work = work.copy()
            work[[*transfers]] = 0.0
        return work

    def _own(self, node: int) -> Nanoseconds:
        """What goes with a node, for the edges into it and out of it: not what others on its host are sent as well."""
        problem, here = self.problem, int(self.where[node])
        alone = [
            here not in problem.transfers_of(producer, self.where, edge) for producer, edge in problem.inputs[node]
        ]
        arriving = self._finite[[*problem.arriving[node]]] * np.array(alone, dtype=np.float64)
        return np.concatenate((arriving, self.work[[*problem.leaving[node]]]))

    def moved(self, nodes: Sequence[int]) -> MoveEffects:
        """What moving each of ``nodes`` alone does to the loads; those of unusable links elsewhere gain inf."""
        problem, resources, where = self.problem, self.resources, self.where
        own = [[*problem.arriving[node], *problem.leaving[node]] for node in nodes]
        rows = np.repeat(np.arange(len(nodes)), [len(edges) for edges in own])
        edges = np.array([edge for edges in own for edge in edges], dtype=np.intp)
        work = np.concatenate([self._own(node) for node in nodes]) if nodes else np.zeros(0)
        without = np.repeat(self.loads[np.newaxis], len(nodes), axis=0)
        for places in self.carried:
            np.subtract.at(without, (rows, places[edges]), work)
        chosen = np.array(nodes, dtype=np.intp)
        without[np.arange(len(nodes)), resources.processors + where[chosen]] -= self.compute[chosen]

        slots = []
        for node in nodes:
            arriving: dict[int, Nanoseconds] = {}  # by the host of producers, and then of consumers
            leaving: dict[int, Nanoseconds] = {}
            for producer, edge in problem.inputs[node]:
                host = int(where[producer])
                more = self.beside(producer, edge)
                arriving[host] = arriving[host] + more if host in arriving else more
            for host, edge in problem.transfers_of(node, where).items():
                leaving[host] = problem.edge_to_ns(edge, host)
            slots.append(resources.slots(arriving, leaving))
        count = len(problem.hosts)
        processors = resources.processors + np.arange(count)
        size = len(nodes), 1 + max(map(len, slots), default=0), count
        places, gains = np.broadcast_to(processors, size).copy(), np.zeros(size)
        gains[:, 0] = problem.compute_ns[chosen]
        for number, of_node in enumerate(slots):
            for slot, (place, gain) in enumerate(of_node, 1):
                places[number, slot], gains[number, slot] = place, gain
        if self.unusable.any():
            elsewhere = [self.unusable.sum() > self.unusable[edges].sum() for edges in own]
            gains[elsewhere, 0] = np.inf
        return MoveEffects(without, places, gains)


def loads_of(problem: Problem, interface: Interface, where: Where) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
    """Of many placements (rows, nodes) what resources, edges and nodes are busy for: (rows, resources), (rows, edges),
    (rows, nodes), with inf on the first resource of a row that uses an unusable link.
    """
    resources = problem.loads(interface)
    sources, targets = where[:, problem.producer], where[:, problem.consumer]
    edge = problem.edges_ns(sources, targets)
    compute = problem.compute_ns[problem.everyone, where]
    unusable = np.isinf(edge)
    finite = problem.once(np.where(unusable, 0.0, edge), targets)
    loads = resources.add_up_many(resources.of_transfers(sources, targets), finite, where, compute, problem.disk_ns)
    loads[unusable.any(axis=1), 0] = np.inf
    return loads, edge, compute


class CostModel(Protocol):
    """A cost model: a name, and a way to look at a placement.

    One that can look at many at once has ``costs_of(problem, where)`` as well, for the function of that name.
    """

    @property
    def name(self) -> str: ...

    def at(self, problem: Problem, where: Where) -> Position:
        """Look at a placement; never raises for unknown links (see ``Position.lower_ns``)."""


def costs_of(model: CostModel, problem: Problem, where: Where) -> Nanoseconds:
    """(rows,) what each of many placements (rows, nodes) costs in nanoseconds, all links known."""
    together = getattr(model, "costs_of", None)
    if together is None:
        return np.array([model.at(problem, row).lower_ns for row in where])
    costs: Nanoseconds = together(problem, where)
    return costs


def evaluate(model: CostModel, problem: Problem, placement: Placement) -> float:
    """Seconds that a placement costs.

    Raises LinksNeeded with all the links that are still needed, PlacementError for a bad placement.
    """
    where = problem.where(placement)
    problem.require(where)
    return model.at(problem, where).lower_ns / NS_PER_S
