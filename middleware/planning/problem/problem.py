"""Compiled form of a task: index arrays, made once for each call of a planner.

Times are kept as *whole nanoseconds in float64*. Sums below 104 days are exact in every order. So a cost that is found
by re-evaluating one move equals the cost that is found from scratch, and a tie is a tie. An unusable link costs
``inf``.
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
    """Return the sum of ``weights`` for every value of ``index``, (count,)."""
    return np.bincount(index, weights, count).astype(np.float64, copy=False)


class Problem:
    """Compiled task: the graph of nodes as arrays, and the time of every transfer, computation and disk read.

    - Nodes are numbered in ``names``, producers before consumers. Hosts are numbered in ``hosts``, whose order breaks
      ties.
    - Edges are numbered in the order of their producers. Edge *e* goes from node ``producer[e]`` to node
      ``consumer[e]``. In a ``tree``, edge *i* leaves node *i*.
    - ``arriving[i]``: edges into node *i*, in the order of the node's inputs. ``leaving[i]``: edges out of node *i*.
      Nodes in ``sinks`` have none.
    - ``producers[i]``: producers of node *i*. ``inputs[i]``: pairs of a producer of node *i* and the edge from there.
    - ``movable[i]``: true for an operator without a pin.

    Raises DataflowError, and UsageError for hosts, hints or nodes that do not fit together.
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
        self._sizes, self._size = np.unique(np.array(sizes, dtype=np.float64), return_inverse=True)  # by edge
        self.everyone: Where = np.arange(len(nodes))
        self._loads: dict[Interface, LoadModel] = {}

    def _connect(self, nodes: Sequence[Node]) -> None:
        """Number the edges in the order of their producers, and set the arrays of the graph."""
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
        self._alike: Where = np.array(alike, dtype=np.intp).reshape(-1, 2).T  # two edges of one node: later, earlier
        self.sinks = tuple(i for i, leaving in enumerate(self.leaving) if not leaving)
        self.tree = len(self.sinks) == 1 and len(edges) == len(nodes) - 1

    @cached_property
    def _rates_bps(self) -> npt.NDArray[np.float64]:
        """Rates of links in bit/s, (hosts, hosts); nan if unknown.

        They are computed when first needed. A planner that uses latencies alone never reads a million links.
        """
        return np.array(self.task.view.rates_bps(self.hosts), dtype=np.float64)

    @cached_property
    def unknown(self) -> npt.NDArray[np.bool_]:
        """Links with an unknown rate, (hosts, hosts)."""
        return np.isnan(self._rates_bps)

    @cached_property
    def _transfer(self) -> Nanoseconds:
        """Nanoseconds of every transfer, (sizes, hosts, hosts); inf over a link that is unusable or unknown."""
        best = np.where(self.unknown, np.inf, self._rates_bps)
        transfer_ns: Nanoseconds = np.rint(transfer_s(self._sizes, best, self.task.costs.startup_s) * NS_PER_S)
        everywhere = np.arange(len(self.hosts))
        transfer_ns[:, everywhere, everywhere] = 0.0
        return transfer_ns

    @cached_property
    def read(self) -> npt.NDArray[np.bool_]:
        """Links whose estimate an evaluation has used, (hosts, hosts)."""
        return np.zeros_like(self.unknown)

    def loads(self, interface: Interface) -> LoadModel:
        """Return the resources of the hosts for this kind of interface."""
        model = self._loads.get(interface)
        if model is None:
            model = self._loads[interface] = LoadModel(
                self.hosts, interface, [self.task.cores(host) for host in self.hosts]
            )
        return model

    # --- placements -----------------------------------------------------------------------------

    def where(self, placement: Mapping[str, str]) -> Where:
        """Return a placement as indices of hosts. Raise PlacementError for a placement that does not fit."""
        full = check_placement(self.dataflow, placement, self.host_index)
        return np.array([self.host_index[full[name]] for name in self.names], dtype=np.intp)

    def placement(self, where: Where) -> Placement:
        """Return indices of hosts as a placement, in the dataflow's order of declaration."""
        at = {name: self.hosts[host] for name, host in zip(self.names, where.tolist(), strict=True)}
        return {node.name: at[node.name] for node in self.dataflow.nodes}

    def at_sink(self) -> Where:
        """Return the placement of download-all: every node without a pin at the host of its sink.

        A node with several consumers goes to the host of the first one. Raises PlacementError if the host of a sink is
        not given.
        """
        dataflow, at = self.dataflow, dict[str, str]()
        for name in reversed(self.names):
            takers = dataflow.consumers[name]
            at[name] = at[takers[0]] if takers else self.task.root(name)
        return self.where({**at, **{node.name: node.pinned for node in dataflow.nodes if node.pinned}})

    # --- links ----------------------------------------------------------------------------------

    def edge_ns(self, where: Where) -> Nanoseconds:
        """Return the nanoseconds of every edge, (edges,): start-up + size / rate, or 0 on one host.

        An unknown link counts as infinitely fast, so the sum is a lower bound.
        """
        return self.edges_ns(where[self.producer], where[self.consumer])

    def edges_ns(self, sources: Where, targets: Where) -> Nanoseconds:
        """Return the nanoseconds of every edge for many placements, (rows, edges), from the hosts of both ends."""
        edges: Nanoseconds = self._transfer[self._size, sources, targets]
        return edges

    def once(self, edges: Nanoseconds, targets: Where) -> Nanoseconds:
        """Return the work of transfers, (…, edges), with one transfer to consumers of a node that share a host.

        The first edge to that host keeps the work. The work of the later edges is 0.
        """
        later, earlier = self._alike
        rides = np.nonzero(targets[..., later] == targets[..., earlier])
        if not rides[0].size:
            return edges
        work = edges.copy()
        work[(*rides[:-1], later[rides[-1]])] = 0.0
        return work

    def transfers_of(self, node: int, where: Where, but: int = -1) -> dict[int, int]:
        """Return one edge out of a node for every host with a consumer. Edge ``but`` is not counted."""
        return {int(where[self.consumer[edge]]): edge for edge in self.leaving[node] if edge != but}

    def edge_from_ns(self, edge: int, host: int) -> Nanoseconds:
        """Return the nanoseconds of ``edge`` from ``host`` to every host, (hosts,)."""
        row: Nanoseconds = self._transfer[self._size[edge], host]
        return row

    def edge_to_ns(self, edge: int, host: int) -> Nanoseconds:
        """Return the nanoseconds of ``edge`` from every host to ``host``, (hosts,)."""
        column: Nanoseconds = self._transfer[self._size[edge], :, host]
        return column

    def missing(self, where: Where) -> frozenset[Link]:
        """Return the unknown links that this placement uses."""
        sources, targets = where[self.producer], where[self.consumer]
        self.read[sources, targets] = True
        wanted = self.unknown[sources, targets]
        return self._links(zip(sources[wanted].tolist(), targets[wanted].tolist(), strict=True))

    def require(self, where: Where) -> None:
        """Raise LinksNeeded with the unknown links that this placement uses, if there are any."""
        if links := self.missing(where):
            raise LinksNeeded(links)

    def unknown_moves(self, where: Where, nodes: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return whether each of ``nodes``, moved alone to each host, would use an unknown link, (nodes, hosts).

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
        """Return the unknown links that ``node`` would use on ``host``."""
        pairs = {(int(where[self.producer[edge]]), host) for edge in self.arriving[node]}
        pairs |= {(host, int(where[self.consumer[edge]])) for edge in self.leaving[node]}
        return self._links((a, b) for a, b in pairs if self.unknown[a, b])

    def links_read(self) -> frozenset[Link]:
        """Return the known links whose estimate an evaluation has used so far."""
        seen = self.read & ~self.unknown & ~np.eye(len(self.hosts), dtype=bool)
        return self._links(np.argwhere(seen).tolist())

    def all_unknown(self) -> frozenset[Link]:
        """Return every unknown link between two hosts."""
        return self._links(np.argwhere(self.unknown).tolist())

    def _links(self, pairs: Iterable[Sequence[int]]) -> frozenset[Link]:
        return frozenset(Link(self.hosts[a], self.hosts[b]) for a, b in pairs)

    def names_of(self, nodes: Collection[int]) -> tuple[str, ...]:
        return tuple(self.names[node] for node in nodes)
