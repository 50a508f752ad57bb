"""Cost models: what a placement costs, and which nodes are to blame.

One interface for all (:class:`CostModel`, :class:`Position`). A model looks at a placement once
(``at``) and then answers quickly what it would cost with a single operator elsewhere (``moves``, for several operators
``moves_of``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound, and is exact
as soon as all links of the placement are known. A placement whose lower bound exceeds the best cost known is
given up, and its unknown links are never asked for. Of the others *all* the unknown links are
asked for at once: an unknown link may be arbitrarily slow, so a maximum over paths or resources is
not known before the last of them.

Sources: Ranganathan, Acharya, Saltz (1998), sections 2 and 2.1 (critical path).
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


class CriticalPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The length of the longest path from a source to the sink: the paper's cost (section 2).

    A path's length: the source's disk read, for every edge start-up + size / rate (nothing on one host), and
    the compute time of every node on it. It is what one partition takes through an idle tree.

    ``serialised``: the inputs of a node arrive one after the other through its host's single interface, in
    the order in which they become ready (a refinement of ours: the paper's cost lets them arrive at once).
    """

    serialised: bool = False

    @property
    def name(self) -> str:
        return "critical-path"

    def at(self, problem: Problem, where: Where) -> Position:
        return _SerialPosition(self, problem, where) if self.serialised else _PathPosition(self, problem, where)


class SerialisedCriticalPath(CriticalPath, frozen=True, forbid_unknown_fields=True):
    """The critical path with a node's inputs one after the other, under a name of its own."""

    serialised: bool = True

    @property
    def name(self) -> str:
        return "serialised-critical-path"


class _PathPosition(Position):
    """``ready[i]``: longest way from a source to node i's output; ``rest[i]``: from i's inputs to the end;
    ``beside[i]``: longest path that does not pass through i. A move of i changes only the way through i.
    """

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        count = len(problem.names)
        inputs = problem.inputs
        edge = problem.edge_ns(where).tolist()
        compute = problem.compute_ns[np.arange(count), where].tolist()
        ready = problem.disk_ns.tolist()
        self._last = last = [-1] * count  # the input that arrives last; the first of those in a tie
        for i in range(count):
            arrival = ready[i]
            for producer in inputs[i]:
                at = ready[producer] + edge[producer]
                if at > arrival or last[i] < 0:
                    arrival, last[i] = at, producer
            ready[i] = arrival + compute[i]
        rest = [0.0] * count
        beside = [0.0] * count
        rest[-1] = compute[-1]
        for i in range(count - 1, -1, -1):
            first = second = beside[i]
            best = -1
            for producer in inputs[i]:
                length = ready[producer] + edge[producer] + rest[i]
                rest[producer] = compute[producer] + edge[producer] + rest[i]
                if length > first:
                    first, second, best = length, first, producer
                elif length > second:
                    second = length
            for producer in inputs[i]:
                beside[producer] = second if producer == best else first
        self._ready, self._rest, self._beside = ready, rest, beside
        self.lower_ns = float(ready[-1])

    def critical(self) -> tuple[int, ...]:
        path = [len(self.problem.names) - 1]
        while self._last[path[-1]] >= 0:
            path.append(self._last[path[-1]])
        return tuple(reversed(path))

    def moves(self, node: int) -> Nanoseconds:
        problem = self.problem
        consumer = int(problem.consumer[node])
        arrival: Nanoseconds | None = None
        for producer in problem.inputs[node]:
            at = problem.edge_from_ns(producer, int(self.where[producer])) + self._ready[producer]
            arrival = at if arrival is None else np.maximum(arrival, at)
        start = problem.disk_ns[node] if arrival is None else arrival
        out = problem.edge_to_ns(node, int(self.where[consumer])) + self._rest[consumer]
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
        for i, producers in enumerate(problem.inputs):
            free, arrival = 0.0, ready[i]
            chain: tuple[int, ...] = ()
            waits: tuple[int, ...] = ()
            for producer in sorted(producers, key=ready.__getitem__):
                if edge[producer] == 0.0:  # on the same host: no transfer
                    at = ready[producer]
                    reason: tuple[int, ...] = (producer,)
                else:
                    chain = (*chain, producer) if free > ready[producer] else (producer,)
                    free = max(free, ready[producer]) + edge[producer]
                    at, reason = free, chain
                if at > arrival or not waits:
                    arrival, waits = at, reason
            ready[i] = arrival + compute[i]
            self._waits.append(waits)
        self.lower_ns = float(ready[-1])

    def critical(self) -> tuple[int, ...]:
        """The path that ends last, and the inputs that the interface carried before it meanwhile."""
        nodes: set[int] = set()
        queue = [len(self.problem.names) - 1]
        while queue:
            node = queue.pop()
            nodes.add(node)
            queue.extend(self._waits[node])
        return tuple(sorted(nodes))

    def moves(self, node: int) -> Nanoseconds:
        costs: Nanoseconds = self.moves_of((node,))[0]
        return costs

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """All moves at once as columns, and up the tree node by node; only above a moving node do columns differ."""
        problem, hosts = self.problem, len(self.problem.hosts)
        columns = len(nodes) * hosts
        where = np.repeat(self.where[:, np.newaxis], columns, axis=1)  # (nodes, columns)
        moved = {node: slice(number * hosts, (number + 1) * hosts) for number, node in enumerate(nodes)}
        for node, own in moved.items():
            where[node, own] = np.arange(hosts)
        edges = problem.edges_ns(where[:-1].T, where[problem.consumer[:-1]].T).T.copy()
        ready: list[Nanoseconds | float] = list(self._ready)
        changed = set(nodes)
        for i, producers in enumerate(problem.inputs):
            if i not in changed and changed.isdisjoint(producers):
                continue
            changed.add(i)
            start = np.full(columns, problem.disk_ns[i])
            if producers:
                start = _last_arrival([ready[producer] for producer in producers], edges[list(producers)])
            compute = np.full(columns, self._compute[i])
            if i in moved:
                compute[moved[i]] = problem.compute_ns[i]
            ready[i] = start + compute
        return np.broadcast_to(ready[-1], columns).reshape(len(nodes), hosts).copy()


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
    starts = np.array([np.broadcast_to(each, edges.shape[1]) for each in ready])
    order = starts.argsort(axis=0)
    free = np.zeros(edges.shape[1])
    for start, edge in zip(np.take_along_axis(starts, order, 0), np.take_along_axis(edges, order, 0), strict=True):
        free = np.maximum(free, start) + edge
    return free
