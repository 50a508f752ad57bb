"""Cost models: the cost of a placement, and the nodes that determine the cost.

All models share one interface (``CostModel``, ``Position``). A model analyses a placement once (``at``). Then it
quickly returns the costs of placements with any one of some operators moved (``moves_of``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound. The figure is exact as
soon as all links of the placement are known. If the lower bound of a placement exceeds the best known cost, the
placement is dropped, and its unknown links are never measured. For a remaining placement, *all* unknown links are
requested at once. An unknown link may be arbitrarily slow, so a maximum over paths or resources is not known before the
last of them.

Costs that are reductions of loads share ``LoadedPosition``.
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
    """One placement analysed by one cost model. Subclasses set ``lower_ns`` and implement ``critical``.

    ``lower_ns``: cost in whole nanoseconds, with unknown links taken as infinitely fast.
    """

    lower_ns: float

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        self.model, self.problem, self.where = model, problem, where

    @abstractmethod
    def critical(self) -> tuple[int, ...]:
        """Return the nodes that determine the cost, producers first. A move of a different node cannot lower it."""

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """Return the lower bound of the cost with each of ``nodes`` alone moved to each host, (nodes, hosts).

        This general method analyses every placement anew. A model with a faster method overrides it.
        """
        costs = np.empty((len(nodes), len(self.problem.hosts)))
        for (row, host), _ in np.ndenumerate(costs):
            where = self.where.copy()
            where[nodes[row]] = host
            costs[row, host] = self.model.at(self.problem, where).lower_ns
        return costs


class LoadedPosition(Position):
    """Placement with the nanoseconds of work on each of ``resources``: ``loads``, (resources,).

    - ``edge`` (edges,), ``compute`` (nodes,): durations of transfers and computations.
    - ``unusable``: edges of infinite duration. They are not part of the loads, as an infinite load could not be
      subtracted again.
    - ``work`` (edges,): durations of transfers, with 0 for an edge that shares the transfer of a different edge.
    - ``carried``: resources that the transfer of every edge keeps busy.
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
        """Return every node: each resource in use counts, unless a subclass says otherwise."""
        return tuple(range(len(self.where)))

    def beside(self, producer: int, edge: int) -> Nanoseconds:
        """Return the work of a transfer to the consumer on each host, (hosts,).

        The work is 0 on a host where a different consumer of the producer gets the same partition.
        """
        work = self.problem.edge_from_ns(edge, int(self.where[producer]))
        if transfers := self.problem.transfers_of(producer, self.where, edge):
            work = work.copy()
            work[[*transfers]] = 0.0
        return work

    def _own(self, node: int) -> Nanoseconds:
        """Return the work that leaves the loads together with a node, for the edges into the node and then out of it.

        A transfer that further consumers on the node's host need as well stays.
        """
        problem, here = self.problem, int(self.where[node])
        alone = [
            here not in problem.transfers_of(producer, self.where, edge) for producer, edge in problem.inputs[node]
        ]
        arriving = self._finite[[*problem.arriving[node]]] * np.array(alone, dtype=np.float64)
        return np.concatenate((arriving, self.work[[*problem.leaving[node]]]))

    def moved(self, nodes: Sequence[int]) -> MoveEffects:
        """Return the effects on the loads of moving each of ``nodes`` alone.

        If an unusable link remains after the move of a node, the node's gain on every processor is inf.
        """
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
            arriving: dict[int, Nanoseconds] = {}  # by host of producers; ``leaving`` by host of consumers
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
    """Return the loads of many placements (rows, nodes).

    The result has the work of resources (rows, resources), of edges (rows, edges) and of nodes (rows, nodes), in
    nanoseconds. In a row that uses an unusable link, the first resource is inf.
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
    """Interface of a cost model: a name, and the analysis of a placement.

    A model that can evaluate many placements at once also has a method ``costs_of(problem, where)``, for the function
    of that name.
    """

    @property
    def name(self) -> str: ...

    def at(self, problem: Problem, where: Where) -> Position:
        """Analyse a placement. Never raises for unknown links (see ``Position.lower_ns``)."""


def costs_of(model: CostModel, problem: Problem, where: Where) -> Nanoseconds:
    """Return the costs of many placements (rows, nodes) in nanoseconds, (rows,). Every link must be known."""
    together = getattr(model, "costs_of", None)
    if together is None:
        return np.array([model.at(problem, row).lower_ns for row in where])
    costs: Nanoseconds = together(problem, where)
    return costs


def evaluate(model: CostModel, problem: Problem, placement: Placement) -> float:
    """Return the cost of a placement in seconds.

    Raises LinksNeeded with all the links that are unknown, PlacementError for a bad placement.
    """
    where = problem.where(placement)
    problem.require(where)
    return model.at(problem, where).lower_ns / NS_PER_S
