"""A task as index arrays, made once per call of a planner.

Times are kept as *whole nanoseconds in float64*: sums below 104 days are exact whatever their order, so
that a cost found by re-evaluating one move equals the one found from scratch, and a tie is a tie.
An unusable link costs ``inf``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Node, Placement, check_placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, LinksNeeded
from thalweg.middleware.planning.problem.loads import Interface, LoadModel, transfer_s
from thalweg.middleware.planning.problem.task import Task

Where = npt.NDArray[np.intp]  # (nodes,) the index of the host of every node
Nanoseconds = npt.NDArray[np.float64]

NS_PER_S = 1e9


def sum_by(index: Where, weights: Nanoseconds, count: int) -> Nanoseconds:
    """(count,) the sum of ``weights`` for every value of ``index``."""
    return np.bincount(index, weights, count).astype(np.float64, copy=False)


class Problem:
    """A task compiled: its graph of nodes, and what every transfer, computation and read takes.

    Nodes are numbered in ``names`` with producers before consumers, hosts in ``hosts``, whose order breaks ties.
    Edges are numbered in the order of their producers: edge *e* goes from node ``producer[e]`` to ``consumer[e]``, and
    in a ``tree`` edge *i* is the one out of node *i*. ``arriving[i]`` and ``leaving[i]`` are the edges into node *i*
    (in the order of its inputs) and out of it (none out of those in ``sinks``); ``producers[i]`` are those of its
    inputs, and ``inputs[i]`` has each with the edge from there. ``movable[i]``: an operator without a pin.

    Raises DataflowError, UsageError for hosts, hints or nodes that do not go together.
    """

    def __init__(self, task: Task) -> None:
        hosts, hints, costs = task.hosts, task.hints, task.costs
        if len(set(hosts)) != len(hosts) or not hosts:
            raise UsageError(f"the hosts must be named once each, and be at least one: {list(hosts)}")
        self.task, self.dataflow, self.hosts = task, task.dataflow, tuple(hosts)
        dataflow = self.dataflow.validate(hosts, connected=False)
        hints.check(dataflow)
        self.host_index = {host: i for i, host in enumerate(hosts)}
        self.names = dataflow.upward
        self.index = {name: i for i, name in enumerate(self.names)}
        nodes = [dataflow.by_name[name] for name in self.names]
        self.movable = tuple(node.kind == "operator" and node.pinned is None for node in nodes)
        self._connect(nodes)

        factors = np.array([task.compute_factor(host) for host in hosts])
        compute = np.array([hints.compute_s.get(name, 0.0) for name in self.names]) * costs.compute_factor
        self.compute_ns: Nanoseconds = np.rint(np.outer(compute, factors) * NS_PER_S)  # (nodes, hosts)
        read = [hints.disk_bytes.get(n.name, hints.output_bytes[n.name]) if n.kind == "source" else 0 for n in nodes]
        self.disk_ns: Nanoseconds = np.rint(np.array(read) / costs.disk_bytes_per_s * NS_PER_S)  # (nodes,)

        sizes = [hints.output_bytes[self.names[i]] for i in self.producer.tolist()]
        self._sizes, self._size = np.unique(np.array(sizes, dtype=np.float64), return_inverse=True)  # of every edge
        self.everyone: Where = np.arange(len(nodes))
        self._loads: dict[Interface, LoadModel] = {}

    def _connect(self, nodes: Sequence[Node]) -> None:
        """Number the edges, from producers in their order."""
        dataflow, index = self.dataflow, self.index
        edges = [(i, index[taker]) for i, name in enumerate(self.names) for taker in dataflow.consumers[name]]
        number = {edge: e for e, edge in enumerate(edges)}
        self.producer, self.consumer = (np.array([edge[end] for edge in edges], dtype=np.intp) for end in (0, 1))
        self.arriving = tuple(tuple(number[index[name], i] for name in node.inputs) for i, node in enumerate(nodes))
        self.leaving = tuple(
            tuple(number[i, index[taker]] for taker in dataflow.consumers[name]) for i, name in enumerate(self.names)
        )
        self.producers = tuple(tuple(index[name] for name in node.inputs) for node in nodes)
        self.inputs = tuple(
            tuple(zip(*inputs, strict=True)) for inputs in zip(self.producers, self.arriving, strict=True)
        )
        alike = [(b, a) for leaving in self.leaving for a, b in itertools.combinations(leaving, 2)]
        self._alike: Where = np.array(alike, dtype=np.intp).reshape(-1, 2).T  # edges of one node: a later, an earlier
        self.sinks = tuple(i for i, leaving in enumerate(self.leaving) if not leaving)
        self.tree = len(self.sinks) == 1 and len(edges) == len(nodes) - 1

    @cached_property
    def _rates_bps(self) -> npt.NDArray[np.float64]:
        """(hosts, hosts), nan where nobody knows; a planner that goes by latencies looks at none of a million links."""
        return np.array(self.task.view.rates_bps(self.hosts), dtype=np.float64)

    @cached_property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """(hosts, hosts) links whose rate nobody knows."""
        return np.isnan(self._rates_bps)

    @cached_property
    def _transfer(self) -> Nanoseconds:
        """(sizes, hosts, hosts)"""
        best = np.where(self.unknown, np.inf, self._rates_bps)
        transfer_ns: Nanoseconds = np.rint(transfer_s(self._sizes, best, self.task.costs.startup_s) * NS_PER_S)
        everywhere = np.arange(len(self.hosts))
        transfer_ns[:, everywhere, everywhere] = 0.0
        return transfer_ns

    @cached_property
    def read(self) -> npt.NDArray[np.bool_]:
        """(hosts, hosts) links whose estimate was looked at."""
        return np.zeros_like(self.unknown)

    def loads(self, interface: Interface) -> LoadModel:
        """The resources of the hosts with such interfaces."""
        model = self._loads.get(interface)
        if model is None:
            model = self._loads[interface] = LoadModel(
                self.hosts, interface, [self.task.cores(host) for host in self.hosts]
            )
        return model

    # --- placements -----------------------------------------------------------------------------

    def where(self, placement: Mapping[str, str]) -> Where:
        """The placement as indices; raises PlacementError for one that does not fit."""
        full = check_placement(self.dataflow, placement, self.host_index)
        return np.array([self.host_index[full[name]] for name in self.names], dtype=np.intp)

    def placement(self, where: Where) -> Placement:
        """The indices as a placement, in the dataflow's order of declaration."""
        at = {name: self.hosts[host] for name, host in zip(self.names, where.tolist(), strict=True)}
        return {node.name: at[node.name] for node in self.dataflow.nodes}

    def at_sink(self) -> Where:
        """All nodes without a pin at their sink's host (download-all), where there are several at the first one's.

        Raises PlacementError when nobody says where a sink is.
        """
        dataflow, at = self.dataflow, dict[str, str]()
        for name in reversed(self.names):
            takers = dataflow.consumers[name]
            at[name] = at[takers[0]] if takers else self.task.root(name)
        return self.where({**at, **{node.name: node.pinned for node in dataflow.nodes if node.pinned}})

    # --- links ----------------------------------------------------------------------------------

    def edge_ns(self, where: Where) -> Nanoseconds:
        """(edges,) what every edge takes: start-up + size / rate, 0 on one host.

        An unknown link counts as infinitely fast: the sum is a lower bound.
        """
        return self.edges_ns(where[self.producer], where[self.consumer])

    def edges_ns(self, sources: Where, targets: Where) -> Nanoseconds:
        """(rows, edges) the same for many placements at once: hosts of every edge's two ends."""
        edges: Nanoseconds = self._transfer[self._size, sources, targets]
        return edges

    def once(self, edges: Nanoseconds, targets: Where) -> Nanoseconds:
        """(…, edges) the work of transfers: consumers of a node on one host are sent one, which is the first edge's."""
        later, earlier = self._alike
        rides = np.nonzero(targets[..., later] == targets[..., earlier])
        if not rides[0].size:
            return edges
        work = edges.copy()
        work[(*rides[:-1], later[rides[-1]])] = 0.0
        return work

    def transfers_of(self, node: int, where: Where, but: int = -1) -> dict[int, int]:
        """By host, one of the edges out of a node to consumers there, ``but`` not counted."""
        return {int(where[self.consumer[edge]]): edge for edge in self.leaving[node] if edge != but}

    def edge_from_ns(self, edge: int, host: int) -> Nanoseconds:
        """(hosts,) what ``edge`` takes from ``host`` to every host."""
        row: Nanoseconds = self._transfer[self._size[edge], host]
        return row

    def edge_to_ns(self, edge: int, host: int) -> Nanoseconds:
        """(hosts,) what ``edge`` takes from every host to ``host``."""
        column: Nanoseconds = self._transfer[self._size[edge], :, host]
        return column

    def missing(self, where: Where) -> frozenset[Link]:
        """All links that this placement uses and nobody knows."""
        sources, targets = where[self.producer], where[self.consumer]
        self.read[sources, targets] = True
        wanted = self.unknown[sources, targets]
        return self._links(zip(sources[wanted].tolist(), targets[wanted].tolist(), strict=True))

    def require(self, where: Where) -> None:
        """Raise LinksNeeded with all the unknown links of this placement, if there are any."""
        if links := self.missing(where):
            raise LinksNeeded(links)

    def unknown_moves(self, where: Where, nodes: Sequence[int]) -> npt.NDArray[np.bool_]:
        """(nodes, hosts) whether each of ``nodes``, moved alone to each host, would use an unknown link.

        All other edges of ``where`` must be known.
        """
        sources = where[self.producer[[edge for node in nodes for edge in self.arriving[node]]]]
        targets = where[self.consumer[[edge for node in nodes for edge in self.leaving[node]]]]
        self.read[sources] = True
        self.read[:, targets] = True
        unknown = np.zeros((len(nodes), len(self.hosts)), dtype=bool)
        if self.unknown.any():
            for row, node in zip(unknown, nodes, strict=True):
                for producer, _ in self.inputs[node]:
                    row |= self.unknown[where[producer]]
                for edge in self.leaving[node]:
                    row |= self.unknown[:, where[self.consumer[edge]]]
        return unknown

    def links_of_move(self, where: Where, node: int, host: int) -> frozenset[Link]:
        """The unknown links that ``node`` would use on ``host``."""
        pairs = {(int(where[self.producer[edge]]), host) for edge in self.arriving[node]}
        pairs |= {(host, int(where[self.consumer[edge]])) for edge in self.leaving[node]}
        return self._links((a, b) for a, b in pairs if self.unknown[a, b])

    def links_read(self) -> frozenset[Link]:
        """All known links whose estimate any evaluation looked at so far."""
        seen = self.read & ~self.unknown & ~np.eye(len(self.hosts), dtype=bool)
        return self._links(np.argwhere(seen).tolist())

    def all_unknown(self) -> frozenset[Link]:
        """Every unknown link between any two hosts."""
        return self._links(np.argwhere(self.unknown).tolist())

    def _links(self, pairs: Iterable[Sequence[int]]) -> frozenset[Link]:
        return frozenset(Link(self.hosts[a], self.hosts[b]) for a, b in pairs)

    def names_of(self, nodes: Collection[int]) -> tuple[str, ...]:
        return tuple(self.names[node] for node in nodes)
