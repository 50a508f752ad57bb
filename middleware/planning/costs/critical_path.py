"""Cost model of the critical path: the time of one partition through an idle dataflow.

Source: Ranganathan, Acharya, Saltz (1998), sections 2 and 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.problem.problem import Nanoseconds, Problem, Where


class CriticalPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost model of the longest path from a source to the sink: the paper's cost (section 2).

    The length of a path is a sum. It has the disk read of the source, start-up + size / rate for every edge (0 on one
    host), and the compute time of every node. The cost is the time of one partition through an idle tree.

    ``serialised``: the inputs of a node arrive in sequence through the single interface of its host, in the order in
    which they become ready. This option is a refinement of ours. In the paper's cost the inputs arrive at the same
    time.
    """

    name: ClassVar[str] = "critical-path"
    serialised: bool = False

    def at(self, problem: Problem, where: Where) -> Position:
        return _SerialPosition(self, problem, where) if self.serialised else _PathPosition(self, problem, where)

    def costs_of(self, problem: Problem, where: Where) -> Nanoseconds:
        """Return the cost of every row of ``where``, (rows,)."""
        edges = problem.edges_ns(where[:, problem.producer], where[:, problem.consumer]).T
        ready: list[Nanoseconds] = []
        for i, producers in enumerate(problem.producers):
            start = np.full(len(where), problem.disk_ns[i])
            if producers and self.serialised:
                start = _last_arrival([ready[producer] for producer in producers], edges[[*problem.arriving[i]]])
            elif producers:
                start = np.maximum.reduce([ready[producer] + edges[e] for producer, e in problem.inputs[i]])
            ready.append(start + problem.compute_ns[i, where[:, i]])
        latest: Nanoseconds = np.maximum.reduce([ready[sink] for sink in problem.sinks])
        return latest


class SerialisedCriticalPath(CriticalPath, frozen=True, forbid_unknown_fields=True):
    """Critical path with a node's inputs in sequence, as a cost model with its own name."""

    name: ClassVar[str] = "serialised-critical-path"
    serialised: bool = True


class _PathPosition(Position):
    """Placement with the longest path from a source to the output of every node *i* (``ready[i]``).

    In a tree, a move of node *i* changes only the path through *i*. ``rest[i]`` is the longest path from the inputs of
    *i* to the end. ``beside[i]`` is the longest path that does not pass through *i*. In other graphs, moves are
    evaluated one by one.
    """

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        count = len(problem.names)
        edge = problem.edge_ns(where).tolist()
        compute = problem.compute_ns[np.arange(count), where].tolist()
        ready = problem.disk_ns.tolist()
        self._last = last = [-1] * count  # the input that arrives last, in a tie the first
        for i in range(count):
            arrival = ready[i]
            for producer, e in problem.inputs[i]:
                at = ready[producer] + edge[e]
                if at > arrival or last[i] < 0:
                    arrival, last[i] = at, producer
            ready[i] = arrival + compute[i]
        self._end = max(problem.sinks, key=ready.__getitem__)
        self.lower_ns = float(ready[self._end])
        if not problem.tree:
            return
        rest = [0.0] * count
        beside = [0.0] * count
        rest[-1] = compute[-1]
        for i in range(count - 1, -1, -1):
            first = second = beside[i]
            best = -1
            for producer, e in problem.inputs[i]:
                onward = edge[e] + rest[i]
                length = ready[producer] + onward
                rest[producer] = compute[producer] + onward
                if length > first:
                    first, second, best = length, first, producer
                elif length > second:
                    second = length
            for producer, _ in problem.inputs[i]:
                beside[producer] = second if producer == best else first
        self._ready, self._rest, self._beside = ready, rest, beside

    def critical(self) -> tuple[int, ...]:
        path = [self._end]
        while self._last[path[-1]] >= 0:
            path.append(self._last[path[-1]])
        return tuple(reversed(path))

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        if not self.problem.tree:
            return super().moves_of(nodes)
        return np.array([self._moves(node) for node in nodes]).reshape(len(nodes), len(self.problem.hosts))

    def _moves(self, node: int) -> Nanoseconds:
        problem = self.problem
        arrival: Nanoseconds | None = None
        for producer, e in problem.inputs[node]:
            at = problem.edge_from_ns(e, int(self.where[producer])) + self._ready[producer]
            arrival = at if arrival is None else np.maximum(arrival, at)
        start = problem.disk_ns[node] if arrival is None else arrival
        (leaving,) = problem.leaving[node]
        consumer = int(problem.consumer[leaving])
        out = problem.edge_to_ns(leaving, int(self.where[consumer])) + self._rest[consumer]
        through: Nanoseconds = start + problem.compute_ns[node] + out
        return np.maximum(through, self._beside[node])


class _SerialPosition(Position):
    """Placement with the longest path when a node's remote inputs arrive in sequence, the earliest ready first."""

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        edge = problem.edge_ns(where).tolist()
        compute = problem.compute_ns[np.arange(len(problem.names)), where].tolist()
        self._ready = ready = problem.disk_ns.tolist()  # time at which each node's output is ready
        self._compute = compute
        self._waits: list[tuple[int, ...]] = []  # inputs whose transfers delayed the start of the node
        for i, inputs in enumerate(problem.inputs):
            free, arrival = 0.0, ready[i]
            chain: tuple[int, ...] = ()
            waits: tuple[int, ...] = ()
            for producer, e in sorted(inputs, key=lambda pair: ready[pair[0]]):
                if edge[e] == 0.0:  # on the same host: no transfer
                    at = ready[producer]
                    reason: tuple[int, ...] = (producer,)
                else:
                    chain = (*chain, producer) if free > ready[producer] else (producer,)
                    free = max(free, ready[producer]) + edge[e]
                    at, reason = free, chain
                if at > arrival or not waits:
                    arrival, waits = at, reason
            ready[i] = arrival + compute[i]
            self._waits.append(waits)
        self._end = max(problem.sinks, key=ready.__getitem__)
        self.lower_ns = float(ready[self._end])

    def critical(self) -> tuple[int, ...]:
        """Return the nodes of the path that ends last, and the inputs that the interface carried before this path."""
        nodes: set[int] = set()
        queue = [self._end]
        while queue:
            node = queue.pop()
            nodes.add(node)
            queue.extend(self._waits[node])
        return tuple(sorted(nodes))

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """Return the cost of every move, (nodes, hosts), with all moves as columns of one pass up the tree.

        Columns differ only at and above a moving node, so only these nodes are computed anew.
        """
        problem, hosts = self.problem, len(self.problem.hosts)
        columns = len(nodes) * hosts
        where = np.repeat(self.where[:, np.newaxis], columns, axis=1)  # (nodes, columns)
        moved = {node: slice(number * hosts, (number + 1) * hosts) for number, node in enumerate(nodes)}
        for node, own in moved.items():
            where[node, own] = np.arange(hosts)
        edges = problem.edges_ns(where[problem.producer].T, where[problem.consumer].T).T.copy()
        ready: list[Nanoseconds | float] = list(self._ready)
        changed = set(nodes)
        for i, producers in enumerate(problem.producers):
            if i not in changed and changed.isdisjoint(producers):
                continue
            changed.add(i)
            start = np.full(columns, problem.disk_ns[i])
            if producers:
                start = _last_arrival([ready[producer] for producer in producers], edges[[*problem.arriving[i]]])
            compute = np.full(columns, self._compute[i])
            if i in moved:
                compute[moved[i]] = problem.compute_ns[i]
            ready[i] = start + compute
        costs = [np.broadcast_to(ready[sink], columns) for sink in problem.sinks]
        largest: Nanoseconds = np.maximum.reduce(costs)
        return largest.reshape(len(nodes), hosts)


def _last_arrival(ready: Sequence[Nanoseconds | float], edges: Nanoseconds) -> Nanoseconds:
    """Return the time at which the last input has arrived, (columns,).

    ``ready``: the time at which each input is ready. ``edges``: (inputs, columns) the durations of the transfers. The
    earliest ready input goes first. A transfer that takes no time delays no input, as the inputs after it are ready
    later.
    """
    if len(ready) == 2:
        second_first = np.less(ready[1], ready[0])
        early = np.minimum(ready[0], ready[1]) + np.where(second_first, edges[1], edges[0])
        free: Nanoseconds = np.maximum(early, np.maximum(ready[0], ready[1]))
        free += np.where(second_first, edges[0], edges[1])
        return free
    starts = np.array([np.broadcast_to(ready_ns, edges.shape[1]) for ready_ns in ready])
    order = starts.argsort(axis=0)
    free = np.zeros(edges.shape[1])
    for start, edge in zip(np.take_along_axis(starts, order, 0), np.take_along_axis(edges, order, 0), strict=True):
        free = np.maximum(free, start) + edge
    return free
