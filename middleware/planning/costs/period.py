"""Cost model of the period: the bound of the rate of a saturated, demand-driven pipeline.

Partition i+1 is on its way while partition i is combined further down. So the sink receives one partition per *period*,
not per critical path. The period is the largest of:

- **every host's interface**: all transfers in and out, start-up included. ``problem.loads`` says what ``single``,
  ``duplex`` and ``independent`` interfaces carry at once.
- **every host's processor** (``cores`` computations at once) and **disk**.
- **every node's cycle**. A node holds one output, and demands its next inputs only after the dispatch of that output.
  So its own transfers in, computation (or disk read) and transfers out never overlap. Their sum bounds the rate even if
  every resource has time left. Inputs arrive one after the other, and outputs leave one after the other, except with
  independent links.

Longer cycles are not needed. Let x_v(i) be the end of the transfer of v's i-th output. The transfer starts after two
events: v has computed (after x_c(i) of its inputs c), and its consumer p has demanded (after x_p(i-1)). In the event
graph, every tree edge goes up with no partition of delay, and back down with one. So the elementary cycles are in +
compute + out of one node (and disk + out of a source), with one partition each. Without contention the period *is* the
largest of these cycles. Contention adds the resources. The maximum over cycles and resources is a lower bound of the
period. A schedule of the transfers may miss this bound. The delay of the demands themselves is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.planning.costs.model import LoadedPosition, Position, loads_of
from thalweg.middleware.planning.problem.loads import Interface
from thalweg.middleware.planning.problem.problem import Nanoseconds, Problem, Where, sum_by


class Period(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost model of the time per partition of a saturated pipeline: its busiest resource or node (see the module).

    ``interface``: capacity of a host to send and receive at once. ``node_cycles=False`` leaves the cycles out, for
    nodes that demand their next inputs before their output is sent.
    """

    name: ClassVar[str] = "period"
    interface: Interface = "single"
    node_cycles: bool = True

    def at(self, problem: Problem, where: Where) -> Position:
        return _PeriodPosition(self, problem, where)

    def costs_of(self, problem: Problem, where: Where) -> Nanoseconds:
        """Return the cost of every row of ``where``, (rows,)."""
        loads, edge, compute = loads_of(problem, self.interface, where)
        resources = problem.loads(self.interface)
        cost: Nanoseconds = (loads / resources.capacity).max(axis=1)
        if self.node_cycles:
            add = np.maximum if resources.of_links else np.add
            work = problem.once(edge, where[:, problem.consumer])
            for node, (arriving, leaving) in enumerate(zip(problem.arriving, problem.leaving, strict=True)):
                cycle = problem.disk_ns[node] + compute[:, node]
                for edges, takes in ((arriving, edge), (leaving, work)):
                    if edges:
                        cycle = cycle + reduce(add, (takes[:, e] for e in edges))
                np.maximum(cost, cycle, out=cost)
        return cost


class _PeriodPosition(LoadedPosition):
    """Placement with its largest load or cycle. ``cycle`` (nodes,) is ``inner`` (in + disk + compute) + ``out``."""

    def __init__(self, options: Period, problem: Problem, where: Where) -> None:
        super().__init__(options, options.interface, problem, where)
        self._cycles = options.node_cycles
        self._busy = self.loads / self.resources.capacity
        if self.unusable.any():
            for places in self.carried:
                self._busy[places[self.unusable]] = np.inf
        self.lower_ns = float(self._busy.max())
        if self._cycles:
            self._inner = self._of_nodes(problem.consumer, self.edge) + problem.disk_ns + self.compute
            self._out = self._of_nodes(problem.producer, problem.once(self.edge, where[problem.consumer]))
            self._cycle = self._inner + self._out
            self.lower_ns = max(self.lower_ns, float(self._cycle.max()))

    def _of_nodes(self, ends: Where, edge: Nanoseconds) -> Nanoseconds:
        """Return the time of the transfers at every node, (nodes,). ``ends``: the node at this end of every edge.

        The transfers go one after the other. With independent links they overlap, so the longest counts.
        """
        if not self.resources.of_links:
            return sum_by(ends, edge, len(self.where))
        latest = np.zeros(len(self.where))
        np.maximum.at(latest, ends, edge)
        return latest

    def critical(self) -> tuple[int, ...]:
        """Return the nodes of the bottlenecks, and of all bottlenecks in a tie.

        These are the nodes at both ends of a bottleneck interface's transfers, and the nodes on a bottleneck processor.
        For a bottleneck cycle, they are its node and the neighbours of the node.
        """
        problem, worst = self.problem, self._busy == self.lower_ns
        carried = np.any([worst[places] for places in self.carried], axis=0) & (self.edge > 0)
        nodes = {*problem.producer[carried].tolist(), *problem.consumer[carried].tolist()}
        computing = worst[self.where + self.resources.processors] & (self.compute > 0)
        nodes.update(np.flatnonzero(computing).tolist())
        if self._cycles:
            for i in np.flatnonzero(self._cycle == self.lower_ns).tolist():
                nodes.update((i, *problem.producers[i]))
                nodes.update(int(problem.consumer[e]) for e in problem.leaving[i])
        return tuple(sorted(nodes))

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """Return the cost of every move, (nodes, hosts).

        Only the loads on which the node's work falls grow. Of the remaining loads, the largest without the node's work
        counts.
        """
        without, places, gains = self.moved(nodes)
        rows, capacity = np.arange(len(nodes))[:, np.newaxis, np.newaxis], self.resources.capacity
        cost: Nanoseconds = ((without[rows, places] + gains) / capacity[places]).max(axis=1)
        np.maximum(cost, (without / capacity).max(axis=1)[:, np.newaxis], out=cost)
        if self._cycles:
            for row, node in zip(cost, nodes, strict=True):
                np.maximum(row, self._cycles_with(node), out=row)
        return cost

    def _cycles_with(self, node: int) -> Nanoseconds:
        """Return the longest cycle in the graph with ``node`` on each host, (hosts,).

        It is the cycle of the node, of a neighbour, or of a node that the move does not change.
        """
        problem, where, edge = self.problem, self.where, self.edge
        add = np.maximum if self.resources.of_links else np.add
        arriving = [problem.edge_from_ns(e, int(where[producer])) for producer, e in problem.inputs[node]]
        leaving = [problem.edge_to_ns(e, int(where[problem.consumer[e]])) for e in problem.leaving[node]]
        sent = [problem.edge_to_ns(e, host) for host, e in problem.transfers_of(node, where).items()]
        cost: Nanoseconds = (
            problem.disk_ns[node] + problem.compute_ns[node] + (reduce(add, arriving) if arriving else 0.0)
        )
        cost += reduce(add, sent) if sent else 0.0
        untouched = self._cycle.copy()
        untouched[node] = 0.0
        for producer, e in problem.inputs[node]:
            transfers = [edge[other] for other in problem.transfers_of(producer, where, e).values()]
            np.maximum(cost, self._inner[producer] + reduce(add, transfers, self.beside(producer, e)), out=cost)
            untouched[producer] = 0.0
        for e, transfer in zip(problem.leaving[node], leaving, strict=True):
            consumer = problem.consumer[e]
            transfers = [edge[other] for other in problem.arriving[consumer] if other != e]
            after = problem.disk_ns[consumer] + self.compute[consumer] + self._out[consumer]
            np.maximum(cost, reduce(add, transfers, transfer) + after, out=cost)
            untouched[consumer] = 0.0
        np.maximum(cost, untouched.max(), out=cost)
        return cost
