"""The hosts of a query's operators for which its network usage is least, of all hosts or of some candidates.

What is minimised is the usage itself, the sum of rate · latency. Of a tree of operators it is exact, by dynamic
programming over the hosts: a node tells each of its neighbours what its side of the query costs at least, for every
host that the neighbour might be on. With the latencies themselves that is the optimum; with distances of coordinates it
is an estimate for every host, of which the best few are worth measuring. Of other graphs it is a descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.coordinates import Coordinates, Rows
from thalweg.middleware.planning.usage.streams import Query

Floats = npt.NDArray[np.float64]
Between = Callable[[Rows, Rows], Floats]  # hosts, other hosts: (ones, others), the latencies between them in seconds

MEASURED = 10  # candidates of every operator
TIE = 1e-9  # of a usage: rounding is no difference


def optimal(query: Query, latency_s: Floats) -> list[int]:
    """The host of every node with the least usage there is; ``latency_s``: (n, n)."""
    everywhere = dict.fromkeys(query.operators, np.arange(len(latency_s)))
    return best(query, everywhere, lambda ones, others: latency_s[np.ix_(ones, others)])


def by_coordinates(
    query: Query, coordinates: Coordinates, latency_s: Between | None = None, *, measured: int = MEASURED
) -> list[int]:
    """The host of every node: by the usage that coordinates let expect, and then, of the ``measured`` best hosts of
    every operator, by the latencies between these, which are asked for; ``latency_s``: None asks for none.
    """
    everywhere = dict.fromkeys(query.operators, np.arange(len(coordinates)))
    if latency_s is None:
        return best(query, everywhere, coordinates.distances_s)
    expected = usages(query, everywhere, coordinates.distances_s)
    few = {node: np.argsort(expected[node], kind="stable")[:measured] for node in query.operators}
    return best(query, few, latency_s)


def best(query: Query, candidates: Mapping[int, npt.NDArray[np.int64]], between: Between) -> list[int]:
    """The host of every node with the least usage where each operator is on one of its candidates."""
    told = _Told(query, candidates, between)
    hosts: list[int] = [0] * query.nodes
    chosen: dict[int, int] = {}
    for node, above in reversed(told.order):
        costs = told.below(node, above)
        if above is not None:
            costs = costs + told.link(node, above)[:, chosen[above]]
        chosen[node] = int(np.argmin(costs))
        hosts[node] = int(told.hosts[node][chosen[node]])
    return hosts


def descended(query: Query, latency_s: Floats, starts: Iterable[Sequence[int]]) -> list[int]:
    """The host of every node by coordinate descent, for graphs of any form: from each start the operators in turn go
    where the usage is least while the others stay, until none does. The best of all; in a tie the earliest.
    """
    found: list[int] = []
    least = math.inf
    for start in starts:
        hosts = [query.pinned.get(node, start[node]) for node in range(query.nodes)]
        moved = True
        while moved:
            moved = False
            for node in query.operators:
                costs = sum(
                    (rate * latency_s[hosts[other]] for other, rate in query.beside[node]), np.zeros(len(latency_s))
                )
                nearest = int(np.argmin(costs))
                if costs[nearest] < costs[hosts[node]] * (1 - TIE):
                    hosts[node], moved = nearest, True
        usage = query.usage(hosts, latency_s)
        if not found or usage < least * (1 - TIE):
            found, least = hosts, usage
    return found


def usages(query: Query, candidates: Mapping[int, npt.NDArray[np.int64]], between: Between) -> dict[int, Floats]:
    """Of every operator, for each of its candidates, the least usage with the operator there."""
    told = _Told(query, candidates, between)
    return {node: told.below(node, None) for node in query.operators}


class _Told:
    """What nodes have told each other about the least usage of their sides of a query; each thing once."""

    def __init__(self, query: Query, candidates: Mapping[int, npt.NDArray[np.int64]], between: Between) -> None:
        self.hosts = {node: np.array([host]) for node, host in query.pinned.items()} | dict(candidates)
        self.order = _from_leaves(query)
        self._query, self._between = query, between
        self._links: dict[tuple[int, int], Floats] = {}
        self._said: dict[tuple[int, int], Floats] = {}

    def link(self, node: int, other: int) -> Floats:
        """What the stream between two nodes uses, (hosts of node, hosts of other)."""
        pair = min(node, other), max(node, other)
        if pair not in self._links:
            rate = next(rate for beside, rate in self._query.beside[pair[0]] if beside == pair[1])
            self._links[pair] = rate * self._between(self.hosts[pair[0]], self.hosts[pair[1]])
        return self._links[pair] if node < other else self._links[pair].T

    def below(self, node: int, above: int | None) -> Floats:
        """What all that is joined to a node, but for ``above``, uses at least, by the node's host."""
        total = np.zeros(len(self.hosts[node]))
        for other, _ in self._query.beside[node]:
            if other != above:
                total = total + self._from(other, node)
        return total

    def _from(self, node: int, to: int) -> Floats:
        if (node, to) not in self._said:
            self._said[node, to] = (self.below(node, to)[:, None] + self.link(node, to)).min(axis=0)
        return self._said[node, to]


def _from_leaves(query: Query) -> list[tuple[int, int | None]]:
    """Every node after all that is behind it, each with the one it is joined to on the way to the last.

    Raises UsageError for a query that is no tree.
    """
    found: list[tuple[int, int | None]] = []
    if query.tree:
        follow: list[tuple[int, int | None]] = [(query.nodes - 1, None)]
        while follow:
            node, above = follow.pop()
            found.append((node, above))
            follow += [(other, node) for other, _ in query.beside[node] if other != above]
    if len(found) != query.nodes:
        raise UsageError("the streams of the query are no tree; only those of a tree are placed by dynamic programming")
    return found[::-1]
