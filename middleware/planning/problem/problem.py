"""A placement problem as index arrays, made once per call of a planner.

Times are kept as *whole nanoseconds in float64*: sums below 104 days are exact whatever their order, so
that a cost found by re-evaluating one move equals the one found from scratch, and a tie is a tie.
An unusable link costs ``inf``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Dataflow, Placement, check_placement
from thalweg.middleware.errors import PlacementError, UsageError
from thalweg.middleware.network.view import Link, LinksNeeded, NetworkView
from thalweg.middleware.planning.problem.hints import CostParameters, Hints

Where = npt.NDArray[np.intp]  # (nodes,) the index of the host of every node
Nanoseconds = npt.NDArray[np.float64]

NS_PER_S = 1e9


def sum_by(index: Where, weights: Nanoseconds, count: int) -> Nanoseconds:
    """(count,) the sum of ``weights`` for every value of ``index``."""
    return np.bincount(index, weights, count).astype(np.float64, copy=False)


class Problem:
    """Dataflow, hosts, hints, costs and network view, compiled.

    Nodes are numbered in ``names`` with producers before consumers and the sink last; hosts in
    ``hosts``, whose order breaks ties. ``inputs[i]`` and ``consumer[i]`` (-1 for the sink) are the edges;
    the edge out of node *i* is called edge *i*. ``movable[i]``: an operator without a pin.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        hints: Hints,
        costs: CostParameters,
    ) -> None:
        if len(set(hosts)) != len(hosts) or not hosts:
            raise UsageError(f"the hosts must be named once each, and be at least one: {list(hosts)}")
        dataflow.validate(hosts)
        hints.check(dataflow)
        self.dataflow, self.hosts, self.view, self.hints, self.costs = dataflow, tuple(hosts), view, hints, costs
        self.host_index = {host: i for i, host in enumerate(hosts)}
        self.names = dataflow.upward
        self.index = {name: i for i, name in enumerate(self.names)}
        nodes = [dataflow.by_name[name] for name in self.names]
        self.inputs = tuple(tuple(self.index[name] for name in node.inputs) for node in nodes)
        self.consumer = np.full(len(nodes), -1, dtype=np.intp)
        for i, producers in enumerate(self.inputs):
            self.consumer[list(producers)] = i
        self.movable = tuple(node.kind == "operator" and node.pinned is None for node in nodes)

        factors = np.array([costs.host_compute_factor.get(host, 1.0) for host in hosts])
        compute = np.array([hints.compute_s.get(name, 0.0) for name in self.names]) * costs.compute_factor
        self.compute_ns: Nanoseconds = np.rint(np.outer(compute, factors) * NS_PER_S)  # (nodes, hosts)
        read = [hints.disk_bytes.get(n.name, hints.output_bytes[n.name]) if n.kind == "source" else 0 for n in nodes]
        self.disk_ns: Nanoseconds = np.rint(np.array(read) / costs.disk_bytes_per_s * NS_PER_S)  # (nodes,)

        rates = [[view.rate_bps(a, b) for b in hosts] for a in hosts]
        self.unknown: npt.NDArray[np.bool_] = np.array([[rate is None for rate in row] for row in rates])
        best = np.array([[np.inf if rate is None else rate for rate in row] for row in rates], dtype=np.float64)
        sizes = [hints.output_bytes[name] for name in self.names[:-1]]
        distinct = sorted(set(sizes))
        self._size = np.array([distinct.index(size) for size in sizes], dtype=np.intp)
        self._transfer = np.empty((len(distinct), len(hosts), len(hosts)))
        usable = best > 0
        for number, size in enumerate(distinct):
            seconds = np.full(best.shape, np.inf)
            np.divide(size * 8, best, out=seconds, where=usable)
            self._transfer[number] = np.rint((seconds + costs.startup_s) * NS_PER_S)
            np.fill_diagonal(self._transfer[number], 0.0)
        self._edges = np.arange(len(nodes) - 1)
        self.read: npt.NDArray[np.bool_] = np.zeros_like(self.unknown)  # links whose estimate was looked at

    # --- placements -----------------------------------------------------------------------------

    def where(self, placement: Mapping[str, str]) -> Where:
        """The placement as indices; raises PlacementError for one that does not fit."""
        full = check_placement(self.dataflow, placement, self.host_index)
        return np.array([self.host_index[full[name]] for name in self.names], dtype=np.intp)

    def placement(self, where: Where) -> Placement:
        """The indices as a placement, in the dataflow's order of declaration."""
        at = {name: self.hosts[host] for name, host in zip(self.names, where.tolist(), strict=True)}
        return {node.name: at[node.name] for node in self.dataflow.nodes}

    def at_sink(self, current: Mapping[str, str] | None) -> Where:
        """All operators without a pin at the sink's host (download-all).

        Raises PlacementError when neither a pin nor ``current`` says where the sink is.
        """
        sink = self.dataflow.by_name[self.dataflow.sink]
        host = sink.pinned or (current or {}).get(sink.name)
        if host is None:
            raise PlacementError(f"nobody says where sink {sink.name!r} is; pin it or place it")
        pins = {node.name: node.pinned or host for node in self.dataflow.nodes}
        return self.where(pins)

    # --- links ----------------------------------------------------------------------------------

    def edge_ns(self, where: Where) -> Nanoseconds:
        """(nodes - 1,) what every edge takes: start-up + size / rate, 0 on one host.

        An unknown link counts as infinitely fast: the sum is a lower bound.
        """
        edge: Nanoseconds = self._transfer[self._size, where[:-1], where[self.consumer[:-1]]]
        return edge

    def edges_ns(self, sources: Where, targets: Where) -> Nanoseconds:
        """(rows, nodes - 1) the same for many placements at once: hosts of every edge's two ends."""
        edges: Nanoseconds = self._transfer[self._size, sources, targets]
        return edges

    def edge_from_ns(self, node: int, host: int) -> Nanoseconds:
        """(hosts,) what edge ``node`` takes from ``host`` to every host."""
        row: Nanoseconds = self._transfer[self._size[node], host]
        return row

    def edge_to_ns(self, node: int, host: int) -> Nanoseconds:
        """(hosts,) what edge ``node`` takes from every host to ``host``."""
        column: Nanoseconds = self._transfer[self._size[node], :, host]
        return column

    def missing(self, where: Where) -> frozenset[Link]:
        """All links that this placement uses and nobody knows."""
        sources, targets = where[:-1], where[self.consumer[:-1]]
        self.read[sources, targets] = True
        wanted = self.unknown[sources, targets]
        return frozenset(
            Link(self.hosts[a], self.hosts[b])
            for a, b in zip(sources[wanted].tolist(), targets[wanted].tolist(), strict=True)
        )

    def require(self, where: Where) -> None:
        """Raise LinksNeeded with all the unknown links of this placement, if there are any."""
        if links := self.missing(where):
            raise LinksNeeded(links)

    def unknown_moves(self, where: Where, node: int) -> npt.NDArray[np.bool_]:
        """(hosts,) whether ``node``, moved to each host, would use an unknown link.

        All other edges of ``where`` must be known.
        """
        target = int(where[self.consumer[node]])
        sources = where[list(self.inputs[node])]
        self.read[:, target] = True
        self.read[sources, :] = True
        unknown: npt.NDArray[np.bool_] = self.unknown[:, target] | self.unknown[sources, :].any(axis=0)
        return unknown

    def links_of_move(self, where: Where, node: int, host: int) -> frozenset[Link]:
        """The unknown links that ``node`` would use on ``host``."""
        pairs = {(int(where[producer]), host) for producer in self.inputs[node]}
        pairs.add((host, int(where[self.consumer[node]])))
        return frozenset(Link(self.hosts[a], self.hosts[b]) for a, b in pairs if self.unknown[a, b])

    def links_read(self) -> frozenset[Link]:
        """All known links whose estimate any evaluation looked at so far."""
        seen = self.read & ~self.unknown & ~np.eye(len(self.hosts), dtype=bool)
        return frozenset(Link(self.hosts[a], self.hosts[b]) for a, b in np.argwhere(seen).tolist())

    def all_unknown(self) -> frozenset[Link]:
        """Every unknown link between any two hosts."""
        return frozenset(Link(self.hosts[a], self.hosts[b]) for a, b in np.argwhere(self.unknown).tolist())

    def names_of(self, nodes: Collection[int]) -> tuple[str, ...]:
        return tuple(self.names[node] for node in nodes)
