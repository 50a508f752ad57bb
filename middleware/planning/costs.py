"""Cost models: what a placement costs, and which nodes are to blame.

One interface for all (:class:`CostModel`, :class:`Position`). A model looks at a placement once
(``at``) and then answers quickly what it would cost with a single operator elsewhere (``moves``).

Branch and bound: an unknown link counts as infinitely fast, so every figure is a lower bound, and is exact
as soon as all links of the placement are known. A placement whose lower bound exceeds the best cost known is
given up, and its unknown links are never asked for. Of the others *all* the unknown links are
asked for at once: an unknown link may be arbitrarily slow, so a maximum over paths or resources is
not known before the last of them.

Sources: Ranganathan, Acharya, Saltz (1998), sections 2 and 2.1 (critical path).
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from thalweg.middleware.dataflow import Placement
from thalweg.middleware.planning.problem import NS_PER_S, Nanoseconds, Problem, Where


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
        ready = problem.disk_ns.tolist()
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
