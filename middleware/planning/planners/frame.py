"""Frame of a search for trees: hosts as numbers, the work of the hosts, and the loads of other trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from thalweg.middleware.arithmetic import plain_sum, power
from thalweg.middleware.planning.costs.expected_period import LARGEST_PLAIN_SHAPE, ExpectedPeriod
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.problem.loads import Floats, Interface
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.shapes.host_tree import Freedom, HostTree, host_tree
from thalweg.middleware.planning.shapes.mixture import MIXED_SHAPE
from thalweg.middleware.planning.shapes.search import Busy, LoadedTree, TreeLoads, idle


class Frame:
    """Fixed inputs of a search for trees, and the conversion between trees of host numbers and of host names.

    ``names``: hosts of the trees, the sink's host first. ``shape``: shape of the norm, at least ``MIXED_SHAPE`` if a
    stream goes over several trees.
    """

    def __init__(self, free: Freedom, task: Task, model: Period | ExpectedPeriod, shape: float) -> None:
        self.free, self.task, self.hints, self.costs = free, task, task.hints, task.costs
        self.names = [free.root, *(host for host in free.sources if host != free.root)]
        self.interface: Interface = "independent"
        self.shape = shape
        if isinstance(model, ExpectedPeriod):
            self.shape = min(model.shape, LARGEST_PLAIN_SHAPE)
        else:
            self.interface = model.interface
        if task.beside:
            self.shape = max(self.shape, MIXED_SHAPE)

    @property
    def looks(self) -> int:
        """Number of trees to evaluate in a search: enough for 60 steps at 9 hosts, and for 300 steps from 33 hosts on.

        One step evaluates every host below every possible parent. A step takes 0.3 to 0.6 ms at these numbers of hosts
        (on a 2-core virtual machine).
        """
        hosts = len(self.names)
        return min(10 * max(hosts - 3, 1), 300) * hosts**2

    def loads(self, transfer_s: Callable[[float], Floats]) -> TreeLoads:
        """Return the loads of hosts and links for a tree with the task's share, beside the task's other trees."""
        free, hints, costs, names = self.free, self.hints, self.costs, self.names
        factors = [costs.compute_factor * self.task.compute_factor(host) / self.task.cores(host) for host in names]

        sources = [free.sources.get(host, ()) for host in names]
        read = [plain_sum(hints.disk_bytes.get(name, hints.output_bytes[name]) for name in own) for own in sources]

        @cache
        def seconds(inputs: tuple[float, ...]) -> float:
            return free.answers.compute_s(inputs) if len(inputs) > 1 else 0.0

        alone = TreeLoads(
            transfer_s,
            [[hints.output_bytes[name] for name in own] for own in sources],
            free.answers.output_size_bytes,
            lambda host, inputs: factors[host] * seconds(tuple(inputs)),
            np.array(read) / costs.disk_bytes_per_s,
            interface=self.interface,
            shape=self.shape,
            joint=self.interface == "single",
        )
        return replace(alone, share=self.task.share, beside=self._others(alone)) if self.task.beside else alone

    def _others(self, alone: TreeLoads) -> Busy:
        """Return the loads of the task's other trees, except trees that do not join the same hosts at present."""
        busy = idle(alone.count, alone.interface)
        for other in self.task.beside:
            parent = self.parents(host_tree(other.dataflow, other.placement))
            if parent is not None:
                busy = busy.plus(LoadedTree(replace(alone, share=other.share), parent).busy)
        return busy

    def seconds(self, cost: float) -> float:
        """Return the norm that is minimised, from the cost of a tree."""
        return power(cost, 1 / self.shape)

    def judged(self, present: float, cost: float) -> tuple[float, float]:
        """Return the costs before and after a change of a tree, as seconds between the tree's own partitions.

        The arguments are the norms of all trees together. The whole gain of the stream is counted for the changed tree.
        This tree carries its share of partitions, and is interrupted by the change.
        """
        share = self.task.share
        if share == 1 or math.isinf(present):
            return present, cost
        if cost >= present:
            return present / share, cost / share
        return present / share, cost * present / (share * cost + present - cost)

    def parents(self, tree: HostTree | None) -> list[int] | None:
        """Return the parent of each host for a tree over the same hosts. None: the tree has other hosts."""
        if tree is None or tree.root != self.names[0] or tree.parent.keys() != set(self.names[1:]):
            return None
        number = {name: host for host, name in enumerate(self.names)}
        return [0, *(number[tree.parent[name]] for name in self.names[1:])]

    def tree(self, parent: Sequence[int]) -> HostTree:
        """Return the tree over hosts for a list of parents."""
        up = {self.names[host]: self.names[to] for host, to in enumerate(parent) if host}
        return HostTree(self.names[0], up)
