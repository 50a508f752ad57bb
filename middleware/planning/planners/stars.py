"""Planner ``stars``: a tree for every host, with all operators at this host.

The planner knows nothing of links. A partition goes over the tree that asks next, so fast trees get many partitions. On
links that do not hinder one another, the trees use every link between two hosts. This is the simplest use of several
trees, and a baseline for planned trees.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from thalweg.middleware.dataflow import check_placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.stripes import MOST_STRIPES


class Stars(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner that makes a tree for every host, with all operators without a pin at this host.

    Needs no link. Costs are nan, and shares are equal. The tree of the sink's host is first. ``stripes``: number of
    trees. ``auto``: one for each host, at most 64. Raises UsageError for stripes below 1 or above 64.
    """

    stripes: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.stripes != "auto" and not 1 <= self.stripes <= MOST_STRIPES:
            raise UsageError(f"stripes of stars is {self.stripes}; give 1 to {MOST_STRIPES} trees, or auto")

    def plan(self, task: Task, model: CostModel) -> Plan:
        dataflow = task.dataflow
        root = task.root(dataflow.sinks[0])
        hosts = [root, *(host for host in task.hosts if host != root)]
        hosts = hosts[: MOST_STRIPES if self.stripes == "auto" else self.stripes]
        free = [node.name for node in dataflow.nodes if node.kind == "operator" and node.pinned is None]
        sinks = {name: task.root(name) for name in dataflow.sinks}
        plans = []
        for host in hosts:
            placement = check_placement(dataflow, {**sinks, **dict.fromkeys(free, host)}, (*task.hosts, root))
            plans.append(Plan(placement, dataflow, share=1 / len(hosts)))
        return msgspec.structs.replace(plans[0], beside=tuple(plans[1:]))
