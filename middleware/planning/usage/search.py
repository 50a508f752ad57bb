"""Search for the hosts of a query's operators with the least network usage, among all hosts or among candidates.

The usage itself is minimised: the sum of rate · latency. For a tree of operators the search is exact, by dynamic
programming over the hosts. A node passes to every neighbour the least cost of its side of the query, for every host of
the neighbour. With measured latencies the result is the optimum. With distances of coordinates, the result is an
estimate for every host, and only the best few hosts are worth measuring. For graphs that are no trees, the search is a
coordinate descent.
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
Between = Callable[[Rows, Rows], Floats]  # latencies in seconds between two lists of hosts, (ones, others)
Burden = Callable[[int, Hosts], Floats | float]  # further cost of an operator on each of some hosts

MEASURED = 10  # candidates of every operator
TIE = 1e-9  # relative difference of usages that counts as rounding


def free(_: int, __: Hosts) -> float:
    """Return 0: operators have no burden on a host."""
    return 0.0


def optimal(query: Query, latency_s: Floats, burden: Burden = free) -> list[int]:
    """Return the host of every node in a placement with the least usage. ``latency_s``: (n, n).

    Raises UsageError for a query that is no tree, a pin that names no host, and a latency that is negative or no
    number. Raises PlacementError if two hosts that need a path have none.
    """
    everywhere = dict.fromkeys(query.operators, np.arange(len(latency_s)))
    _check_ends(query, len(latency_s))
    return _connected(query, best(query, everywhere, between_all(latency_s), burden), between_all(latency_s))


def between_all(latency_s: Floats) -> Between:
    """Return the function that looks latencies up in a matrix, (n, n)."""
    return lambda sources, targets: latency_s[np.ix_(sources, targets)]


def _check_ends(query: Query, hosts: int) -> None:
    for node, host in query.pinned.items():
        if not 0 <= host < hosts:
            raise UsageError(f"node {node} is pinned to host {host}; there are {hosts} hosts, from 0")


def _connected(query: Query, hosts: list[int], between: Between) -> list[int]:
    """Return a placement. Raise PlacementError that names two hosts if a stream has an infinite latency."""
    for stream in query.streams:
        ends = hosts[stream.producer], hosts[stream.consumer]
        if math.isinf(between([ends[0]], [ends[1]])[0, 0]):
            raise PlacementError(
                f"there is no placement: no route leads from host {ends[0]} to {ends[1]}, directly or over other hosts"
            )
    return hosts


def by_coordinates(
    query: Query, coordinates: Coordinates, latency_s: Between | None = None, *, measured: int = MEASURED
) -> list[int]:
    """Return the host of every node, by the usage that coordinates predict and then by latencies.

    ``latency_s``: latencies between hosts, which are asked for only between the ``measured`` best hosts of every
    operator. None: the coordinates alone decide.
    """
    everywhere = dict.fromkeys(query.operators, np.arange(len(coordinates)))
    _check_ends(query, len(coordinates))
    if latency_s is None:
        return best(query, everywhere, coordinates.distances_s)
    expected = usages(query, everywhere, coordinates.distances_s)
    few = {node: np.argsort(expected[node], kind="stable")[:measured] for node in query.operators}
    return _connected(query, best(query, few, latency_s), latency_s)


def best(query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden = free) -> list[int]:
    """Return the host of every node in the placement with the least sum of usage and burden.

    Each operator is on one of its candidates. Raises UsageError for a query that is no tree.
    """
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
    """Return the host of every node by coordinate descent over all hosts, for any graph. ``latency_s``: (n, n)."""
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
    """Return the host of every node by coordinate descent among candidates, for graphs of any form.

    From each start, the operators move in turn to the candidate with the least usage while the others stay. The descent
    ends when no operator moves. The best result of all starts is returned, in a tie the earliest. ``ahead`` is called
    with each placement before its latencies are needed.
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
    """Return the usage of an operator's streams for the operator on each of ``there``, while its neighbours stay."""
    usage = np.zeros(len(there))
    for other, rate in query.beside[node]:
        usage = usage + rate * between([hosts[other]], there)[0]
    return usage


def cost(query: Query, hosts: Sequence[int], between: Between, burden: Burden = free) -> float:
    """Return the sum of usage and burden of a placement."""
    used = plain_sum(
        stream.rate * between([hosts[stream.producer]], [hosts[stream.consumer]])[0, 0] for stream in query.streams
    )
    return float(used + plain_sum(np.sum(burden(node, np.array([hosts[node]]))) for node in query.operators))


def usages(query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden = free) -> dict[int, Floats]:
    """Return the least sum of usage and burden for every operator on every candidate."""
    program = _Told(query, candidates, between, burden)
    return {node: program.below(node, None) for node in query.operators}


class _Told:
    """Least usages of the two sides of every stream of a query, by host. Each value is computed once.

    The values are the messages that nodes pass to neighbours in the dynamic programming.
    """

    def __init__(self, query: Query, candidates: Mapping[int, Hosts], between: Between, burden: Burden) -> None:
        self.hosts = {node: np.array([host]) for node, host in query.pinned.items()} | dict(candidates)
        self.order = _from_leaves(query)
        self._query, self._between, self._burden = query, between, burden
        self._links: dict[tuple[int, int], Floats] = {}
        self._said: dict[tuple[int, int], Floats] = {}

    def link(self, node: int, other: int) -> Floats:
        """Return the usage of the stream between two nodes, (hosts of node, hosts of other)."""
        pair = min(node, other), max(node, other)
        if pair not in self._links:
            rate = next(rate for beside, rate in self._query.beside[pair[0]] if beside == pair[1])
            left, right = self.hosts[pair[0]], self.hosts[pair[1]]
            ways = self._between(left, right)
            if ways.size and not ways.min() >= 0:  # also for a latency that is no number
                a, b = np.argwhere(~(ways >= 0))[0].tolist()
                fault = f"the latency between hosts {left[a]} and {right[b]} is {ways[a, b]} s; it must be at least 0"
                raise UsageError(fault)
            self._links[pair] = rate * ways
        return self._links[pair] if node < other else self._links[pair].T

    def below(self, node: int, above: int | None) -> Floats:
        """Return the least usage of everything that is joined to a node except by ``above``, by the node's host."""
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
    """Return the nodes, leaves first, with their neighbours on the path to the last node (None for the last node).

    A node comes after all nodes behind it. Raises UsageError for a query that is no tree.
    """
    order: list[tuple[int, int | None]] = []
    if query.tree:
        follow: list[tuple[int, int | None]] = [(query.nodes - 1, None)]
        while follow:
            node, above = follow.pop()
            order.append((node, above))
            follow += [(other, node) for other, _ in query.beside[node] if other != above]
    if len(order) != query.nodes:
        raise UsageError("the streams of the query are no tree; only a tree is placed by dynamic programming")
    return order[::-1]
