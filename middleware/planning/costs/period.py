"""The period: what bounds the rate of a saturated, demand-driven pipeline.

Partition i+1 is on its way while partition i is combined further down, so the sink receives one partition
per *period*, not per critical path. The period is the largest of:

- **every host's interface**: all transfers in and out of it, start-up included. ``single`` (the paper's
  assumption 2) carries one message at a time in either direction; ``duplex`` one in each direction;
  ``independent`` gives every directed link its own capacity;
- **every host's processor** (``cores`` computations at once) and **disk**;
- **every node's cycle**. A node holds one output and demands its next inputs only after it has dispatched that output,
  so its own transfer in, computation (or disk read) and transfer out never overlap. Their sum bounds the rate even
  where every resource has time left. Inputs arrive one after the other, except with independent links.

Why no longer cycles: let x_v(i) be the end of the transfer of v's i-th output. It starts when v has computed
(after x_c(i) of its inputs c) and its consumer p has demanded (after x_p(i-1)). Taken as an event graph, every tree
edge goes up with no partition of delay and back down with one, so the elementary cycles are
in + compute + out of one node (and disk + out of a source), with one partition each: without contention the
period *is* the largest of them. Contention adds the resources. The maximum of all is a lower bound of the
period, which a schedule of the transfers may miss; the delay of the demands themselves is not counted.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.problem.problem import Nanoseconds, Problem, Where, sum_by

Interface = Literal["single", "duplex", "independent"]


class Period(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time per partition of a saturated pipeline: its busiest resource or node (see the module).

    ``interface``: what a host sends and receives at once; ``node_cycles=False`` leaves the cycles out, for
    nodes that demand their next inputs before their output has gone.
    """

    interface: Interface = "single"
    node_cycles: bool = True

    @property
    def name(self) -> str:
        return "period"

    def at(self, problem: Problem, where: Where) -> Position:
        return _PeriodPosition(self, self, problem, where)


class _PeriodPosition(Position):
    def __init__(self, model: CostModel, options: Period, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        self._options = options
        self._hosts = len(problem.hosts)
        self._edge = edge = problem.edge_ns(where)
        self._producers, self._targets = where[:-1], where[problem.consumer[:-1]]
        self._compute = problem.compute_ns[np.arange(len(where)), where]
        self._processor = sum_by(where, self._compute, self._hosts) / problem.costs.cores
        self._disk = sum_by(where, problem.disk_ns, self._hosts)
        self._loads = self._interfaces(edge)
        # a cycle = inner (in + disk + compute) + out
        self._inner = self._arrivals(edge) + problem.disk_ns + self._compute
        self._cycle = self._inner.copy()
        self._cycle[:-1] += edge
        highest = [float(load.max()) for load in (*self._loads, self._processor, self._disk)]
        if options.node_cycles:
            highest.append(float(self._cycle.max()))
        self.lower_ns = max(highest)

    def _interfaces(self, edge: Nanoseconds) -> tuple[Nanoseconds, ...]:
        """Transfer time per interface: one array (hosts,), two (out, in), or one (hosts * hosts,) per link."""
        if self._options.interface == "independent":
            pair = self._producers * self._hosts + self._targets
            return (sum_by(pair, edge, self._hosts * self._hosts),)
        out = sum_by(self._producers, edge, self._hosts)
        into = sum_by(self._targets, edge, self._hosts)
        return (out, into) if self._options.interface == "duplex" else (out + into,)

    def _arrivals(self, edge: Nanoseconds) -> Nanoseconds:
        """(nodes,) how long each node's inputs take to arrive."""
        consumer = self.problem.consumer[:-1]
        if self._options.interface != "independent":
            return sum_by(consumer, edge, len(self.where))
        latest = np.zeros(len(self.where))
        np.maximum.at(latest, consumer, edge)
        return latest

    def critical(self) -> tuple[int, ...]:
        """The nodes at the ends of the bottleneck interface's transfers, on the bottleneck processor, or in and
        next to the bottleneck cycle; those of all bottlenecks in a tie."""
        worst = self.lower_ns
        nodes: set[int] = set()
        busy = self._edge > 0
        consumer = self.problem.consumer

        def blame(edges: npt.NDArray[np.bool_]) -> None:
            for i in np.flatnonzero(edges & busy).tolist():
                nodes.update((i, int(consumer[i])))

        if self._options.interface == "independent":
            pair = self._producers * self._hosts + self._targets
            blame(np.isin(pair, np.flatnonzero(self._loads[0] == worst)))
        elif self._options.interface == "duplex":
            blame(np.isin(self._producers, np.flatnonzero(self._loads[0] == worst)))
            blame(np.isin(self._targets, np.flatnonzero(self._loads[1] == worst)))
        else:
            hosts = np.flatnonzero(self._loads[0] == worst)
            blame(np.isin(self._producers, hosts) | np.isin(self._targets, hosts))
        overloaded = np.isin(self.where, np.flatnonzero(self._processor == worst)) & (self._compute > 0)
        nodes.update(np.flatnonzero(overloaded).tolist())
        if self._options.node_cycles:
            for i in np.flatnonzero(self._cycle == worst).tolist():
                nodes.update((i, *self.problem.inputs[i], *([int(consumer[i])] if consumer[i] >= 0 else [])))
        return tuple(sorted(nodes))

    def moves(self, node: int) -> Nanoseconds:
        problem, where, hosts = self.problem, self.where, self._hosts
        producers = problem.inputs[node]
        consumer = int(problem.consumer[node])
        target = int(where[consumer])
        others = self._edge.copy()
        others[[*producers, node]] = 0.0
        loads = self._interfaces(others)
        arriving = [problem.edge_from_ns(c, int(where[c])) for c in producers]
        leaving = problem.edge_to_ns(node, target)
        into = np.sum(arriving, axis=0)

        cost = self._interface_moves(loads, producers, arriving, into, leaving, target)
        compute = self._compute.copy()
        compute[node] = 0.0
        processor = sum_by(where, compute, hosts)
        own = (processor + problem.compute_ns[node]) / problem.costs.cores
        np.maximum(cost, np.maximum(own, processor.max() / problem.costs.cores), out=cost)
        np.maximum(cost, self._disk.max(), out=cost)
        if not self._options.node_cycles:
            return cost

        untouched = self._cycle.copy()
        untouched[[node, consumer, *producers]] = 0.0
        np.maximum(cost, untouched.max(), out=cost)
        independent = self._options.interface == "independent"
        wait = np.max(arriving, axis=0) if independent else into
        np.maximum(cost, wait + problem.compute_ns[node] + leaving, out=cost)
        for c, transfer in zip(producers, arriving, strict=True):
            np.maximum(cost, self._inner[c] + transfer, out=cost)
        rest = [float(self._edge[c]) for c in problem.inputs[consumer] if c != node]
        wait = np.maximum(max(rest, default=0.0), leaving) if independent else sum(rest) + leaving
        after = float(self._edge[consumer]) if consumer < len(self._edge) else 0.0
        np.maximum(cost, wait + self._compute[consumer] + after, out=cost)
        return cost

    def _interface_moves(
        self,
        loads: tuple[Nanoseconds, ...],
        producers: tuple[int, ...],
        arriving: list[Nanoseconds],
        into: Nanoseconds,
        leaving: Nanoseconds,
        target: int,
    ) -> Nanoseconds:
        """(hosts,) the busiest interface or link with the moving node on each host; ``loads`` without it."""
        hosts, where = self._hosts, self.where
        diagonal = np.arange(hosts)
        if self._options.interface == "independent":
            link = loads[0].reshape(hosts, hosts).copy()
            highest = np.maximum(link.max(), link[:, target] + leaving)
            for c, transfer in zip(producers, arriving, strict=True):
                link[where[c], :] += transfer
            return np.maximum(highest, link.max(axis=0))  # type: ignore[no-any-return]
        if self._options.interface == "duplex":
            out = np.repeat(loads[0][None, :], hosts, axis=0)  # row: where the node is; column: whose load
            inward = np.repeat(loads[1][None, :], hosts, axis=0)
        else:
            out = inward = np.repeat(loads[0][None, :], hosts, axis=0)
        for c, transfer in zip(producers, arriving, strict=True):
            out[:, where[c]] += transfer
        inward[diagonal, diagonal] += into
        out[diagonal, diagonal] += leaving
        inward[:, target] += leaving
        return np.maximum(out.max(axis=1), inward.max(axis=1))  # type: ignore[no-any-return]
