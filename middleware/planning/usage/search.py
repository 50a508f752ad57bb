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

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlacementError, UsageError
from thalweg.middleware.network.coordinates import Coordinates, Rows
from thalweg.middleware.planning.usage.streams import Query

Floats = npt.NDArray[np.float64]
Hosts = npt.NDArray[np.int64]
Between = Callable[[Rows, Rows], Floats]  # hosts, other hosts: (ones, others), the latencies between them in seconds
Burden = Callable[[int, Hosts], Floats | float]  # of an operator, on each of some hosts: what it costs besides

MEASURED = 10  # candidates of every operator
TIE = 1e-9  # of a usage: rounding is no difference


def free(_: int, __: Hosts) -> float:
    """No burden."""
    return 0.0


def optimal(query: Query, latency_s: Floats, burden: Burden = free) -> list[int]:
    """The host of every node with the least usage there is; ``latency_s``: (n, n).

    Raises UsageError for a host that is none and a latency that is negative or no number, PlacementError where there is
    no way between hosts that need one.
    """
    everywhere = dict.fromkeys(query.operators, np.arange(len(latency_s)))
    _check_ends(query, len(latency_s))
    return _connected(query, best(query, everywhere, between_all(latency_s), burden), between_all(latency_s))


def between_all(latency_s: Floats) -> Between:
    """The latencies of a matrix, (n, n)."""
    return lambda sources, targets: latency_s[np.ix_(sources, targets)]


def _check_ends(query: Query, hosts: int) -> None:
    for node, host in query.pinned.items():
        if not 0 <= host < hosts:
            raise UsageError(f"node {node} is pinned to host {host}; there are {hosts} hosts, from 0")


def _connected(query: Query, hosts: list[int], between: Between) -> list[int]:
    """A placement, if its streams have a way; PlacementError that names two hosts without."""
    for stream in query.streams:
        ends = hosts[stream.producer], hosts[stream.consumer]
        if math.isinf(between([ends[0]], [ends[1]])[0, 0]):
            raise PlacementError(f"no placement: there is no way between hosts {ends[0]} and {ends[1]}, nor by others")
    return hosts


def by_coordinates(
    query: Query, coordinates: Coordinates, latency_s: Between | None = None, *, measured: int = MEASURED
) -> list[int]:
    """The host of every node: by the usage that coordinates let expect, and then, of the ``measured`` best hosts of
    every operator, by the latencies between these, which are asked for; ``latency_s``: None asks for none.
    """
    everywhere = dict.fromkeys(query.operators, np.arange(len(coordinates)))
    _check_ends(query, len(coordinates))
    if latency_s is None:
        return best(query, everywhere, coordinates.distances_s)
    expected = usages(query, everywhere, coordinates.distances_s)
    few = {node: np.argsort(expected[node], kind="stable")[:measured] for node in query.operators}
    return _connected(query, best(query, few, latency_s), latency_s)


def best(query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden = free) -> list[int]:
    """The host of every node with the least usage, and burden, where each operator is on one of its candidates."""
    program = _Told(query, candidates, between, burden)
    hosts: list[int] = [0] * query.nodes
    chosen: dict[int, int] = {}
    for node, above in reversed(program.order):
        costs = program.below(node, above)
        if above is not None:
            costs = costs + program.link(node, above)[:, chosen[above]]
        chosen[node] = int(np.argmin(costs))
        hosts[node] = int(program.hosts[node][chosen[node]])
    return hosts


def descended(query: Query, latency_s: Floats, starts: Iterable[Sequence[int]], burden: Burden = free) -> list[int]:
    """The host of every node by coordinate descent, for graphs of any form, over all hosts; ``latency_s``: (n, n)."""
    everywhere = dict.fromkeys(query.operators, np.arange(len(latency_s)))
    return descended_among(query, everywhere, between_all(latency_s), starts, burden)


def descended_among(
    query: Query,
    candidates: Mapping[int, Hosts],
    between: Between,
    starts: Iterable[Sequence[int]],
    burden: Burden = free,
    ahead: Callable[[Sequence[int]], None] = lambda _: None,
) -> list[int]:
    """The host of every node by coordinate descent: from each start the operators in turn go to the candidate where the
    usage is least while the others stay, until none does. The best of all; in a tie the earliest. ``ahead`` is told of
    each placement before its latencies are asked for.
    """
    cheapest: list[int] = []
    least = math.inf
    for start in starts:
        hosts = [query.pinned.get(node, start[node]) for node in range(query.nodes)]
        moved = True
        ahead(hosts)
        while moved:
            moved = False
            for node in query.operators:
                options = np.append(candidates[node], hosts[node])
                costs = alone(query, node, hosts, options, between) + burden(node, options)
                nearest = int(np.argmin(costs[:-1]))
                if costs[nearest] < costs[-1] * (1 - TIE):
                    hosts[node], moved = int(options[nearest]), True
                    ahead(hosts)
        usage = cost(query, hosts, between, burden)
        if not cheapest or usage < least * (1 - TIE):
            cheapest, least = hosts, usage
    return cheapest


def alone(query: Query, node: int, hosts: Sequence[int], there: Hosts, between: Between) -> Floats:
    """What the streams of an operator use with it on each of some hosts, where all others are."""
    usage = np.zeros(len(there))
    for other, rate in query.beside[node]:
        usage = usage + rate * between([hosts[other]], there)[0]
    return usage


def cost(query: Query, hosts: Sequence[int], between: Between, burden: Burden = free) -> float:
    """What a placement uses, and its burden."""
    used = plain_sum(
        stream.rate * between([hosts[stream.producer]], [hosts[stream.consumer]])[0, 0] for stream in query.streams
    )
    return float(used + plain_sum(np.sum(burden(node, np.array([hosts[node]]))) for node in query.operators))


def usages(query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden = free) -> dict[int, Floats]:
    """Of every operator, for each of its candidates, the least usage, and burden, with the operator there."""
    program = _Told(query, candidates, between, burden)
    return {node: program.below(node, None) for node in query.operators}


class _Told:
    """What nodes have told each other about the least usage of their sides of a query; each thing once."""

    def __init__(self, query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden) -> None:
        self.hosts = {node: np.array([host]) for node, host in query.pinned.items()} | dict(candidates)
        self.order = _from_leaves(query)
        self._query, self._between, self._burden = query, between, burden
        self._links: dict[tuple[int, int], Floats] = {}
        self._said: dict[tuple[int, int], Floats] = {}

    def link(self, node: int, other: int) -> Floats:
        """What the stream between two nodes uses, (hosts of node, hosts of other)."""
        pair = min(node, other), max(node, other)
        if pair not in self._links:
            rate = next(rate for beside, rate in self._query.beside[pair[0]] if beside == pair[1])
            left, right = self.hosts[pair[0]], self.hosts[pair[1]]
            ways = self._between(left, right)
            if ways.size and not ways.min() >= 0:  # also where one is no number
                a, b = np.argwhere(~(ways >= 0))[0].tolist()
                fault = f"the latency between hosts {left[a]} and {right[b]} is {ways[a, b]} s; it must be at least 0"
                raise UsageError(fault)
            self._links[pair] = rate * ways
        return self._links[pair] if node < other else self._links[pair].T

    def below(self, node: int, above: int | None) -> Floats:
        """What all that is joined to a node, but for ``above``, uses at least, by the node's host."""
        total = np.zeros(len(self.hosts[node]))
        if node not in self._query.pinned:
            total = total + self._burden(node, self.hosts[node])
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
    order: list[tuple[int, int | None]] = []
    if query.tree:
        follow: list[tuple[int, int | None]] = [(query.nodes - 1, None)]
        while follow:
            node, above = follow.pop()
            order.append((node, above))
            follow += [(other, node) for other, _ in query.beside[node] if other != above]
    if len(order) != query.nodes:
        raise UsageError("the streams of the query are no tree; only those of a tree are placed by dynamic programming")
    return order[::-1]
