"""Placements seen by their loads: what costs have in common that are reductions of what resources are kept busy for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.problem.loads import Interface, Moved
from thalweg.middleware.planning.problem.problem import Nanoseconds, Problem, Where


class LoadedPosition(Position):
    """``loads`` (resources,): nanoseconds of work on each of ``resources``; unusable links are not among the work.

    ``edge`` (edges,), ``compute`` (nodes,): what transfers and computations take; ``unusable``: edges that take for
    ever, counted apart, as a load of inf could not be taken off again. ``carried``: the resources that every edge's
    transfer keeps busy.
    """

    def __init__(self, model: CostModel, interface: Interface, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        self.resources = problem.loads(interface)
        self.edge = problem.edge_ns(where)
        self.unusable: npt.NDArray[np.bool_] = np.isinf(self.edge)
        self._finite = np.where(self.unusable, 0.0, self.edge) if self.unusable.any() else self.edge
        self.compute = problem.compute_ns[problem.everyone, where]
        self.carried = self.resources.of_transfers(where[problem.producer], where[problem.consumer])
        self.loads = self.resources.add_up(self.carried, self._finite, where, self.compute, problem.disk_ns)

    def critical(self) -> tuple[int, ...]:
        """Every node: each resource in use counts, unless the reduction says otherwise."""
        return tuple(range(len(self.where)))

    def moved(self, nodes: Sequence[int]) -> Moved:
        """What moving each of ``nodes`` alone does to the loads; those of unusable links elsewhere gain inf."""
        problem, resources, where = self.problem, self.resources, self.where
        own = [[*problem.arriving[node], *problem.leaving[node]] for node in nodes]
        rows = np.repeat(np.arange(len(nodes)), [len(edges) for edges in own])
        edges = np.array([edge for edges in own for edge in edges], dtype=np.intp)
        without = np.repeat(self.loads[np.newaxis], len(nodes), axis=0)
        for places in self.carried:
            np.subtract.at(without, (rows, places[edges]), self._finite[edges])
        chosen = np.array(nodes, dtype=np.intp)
        without[np.arange(len(nodes)), resources.processors + where[chosen]] -= self.compute[chosen]

        slots = []
        for node in nodes:
            arriving: dict[int, Nanoseconds] = {}  # by the host of producers, and then of consumers
            leaving: dict[int, Nanoseconds] = {}
            for producer, edge in problem.inputs[node]:
                host = int(where[producer])
                work = problem.edge_from_ns(edge, host)
                arriving[host] = arriving[host] + work if host in arriving else work
            for edge in problem.leaving[node]:
                host = int(where[problem.consumer[edge]])
                work = problem.edge_to_ns(edge, host)
                leaving[host] = leaving[host] + work if host in leaving else work
            slots.append(resources.slots(arriving, leaving))
        count = len(problem.hosts)
        processors = resources.processors + np.arange(count)
        size = len(nodes), 1 + max(map(len, slots), default=0), count
        places, gains = np.broadcast_to(processors, size).copy(), np.zeros(size)
        gains[:, 0] = problem.compute_ns[chosen]
        for number, of_node in enumerate(slots):
            for slot, (place, work) in enumerate(of_node, 1):
                places[number, slot], gains[number, slot] = place, work
        if self.unusable.any():
            elsewhere = [self.unusable.sum() > self.unusable[edges].sum() for edges in own]
            gains[elsewhere, 0] = np.inf
        return Moved(without, places, gains)
