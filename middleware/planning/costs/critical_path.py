"""The critical path: how long one partition takes through an idle dataflow.

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
    """The length of the longest path from a source to the sink: the paper's cost (section 2).

    A path's length: the source's disk read, for every edge start-up + size / rate (nothing on one host), and
    the compute time of every node on it. It is what one partition takes through an idle tree.

    ``serialised``: the inputs of a node arrive one after the other through its host's single interface, in
    the order in which they become ready (a refinement of ours: the paper's cost lets them arrive at once).
    """

    name: ClassVar[str] = "critical-path"
    serialised: bool = False

    def at(self, problem: Problem, where: Where) -> Position:
        return _SerialPosition(self, problem, where) if self.serialised else _PathPosition(self, problem, where)

    def costs_of(self, problem: Problem, where: Where) -> Nanoseconds:
        """(rows,) the cost of every row of ``where``."""
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
    """The critical path with a node's inputs one after the other, under a name of its own."""

    name: ClassVar[str] = "serialised-critical-path"
    serialised: bool = True


class _PathPosition(Position):
    """``ready[i]``: longest way from a source to node i's output.

    In a tree a move of node i changes only the way through i: ``rest[i]`` is the longest from its inputs to the end,
    ``beside[i]`` the longest path that does not pass through i. In other graphs moves are looked at one by one.
    """

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        count = len(problem.names)
        edge = problem.edge_ns(where).tolist()
        compute = problem.compute_ns[np.arange(count), where].tolist()
        ready = problem.disk_ns.tolist()
        self._last = last = [-1] * count  # the input that arrives last; the first of those in a tie
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
    """The longest path when a node's remote inputs arrive one after the other, the earliest ready first."""

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        edge = problem.edge_ns(where).tolist()
        compute = problem.compute_ns[np.arange(len(problem.names)), where].tolist()
        self._ready = ready = problem.disk_ns.tolist()  # when each node's output is
        self._compute = compute
        self._waits: list[tuple[int, ...]] = []  # the inputs whose transfers the node's start waited for
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
        """The path that ends last, and the inputs that the interface carried before it meanwhile."""
        nodes: set[int] = set()
        queue = [self._end]
        while queue:
            node = queue.pop()
            nodes.add(node)
            queue.extend(self._waits[node])
        return tuple(sorted(nodes))

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """All moves at once as columns, and up the tree node by node; only above a moving node do columns differ."""
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
    """(columns,) when the last input is there: ``ready`` of every input, ``edges`` (inputs, columns) its transfer.

    The earliest ready goes first. One whose transfer takes nothing holds up none, as those after it are ready later.
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
