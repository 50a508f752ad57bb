"""A stream over several trees, some of whose operators have state: these stay at the client, the trees are planned."""

from __future__ import annotations

from typing import Literal

import msgspec

from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.planner import Planner, is_compared, needs_of
from thalweg.middleware.planning.planners.striping import REPAYS
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import Need
from thalweg.middleware.protocol.split_graph import PlacedGraph, SplitGraph, resting, whole


class Below(msgspec.Struct, frozen=True):
    """``planner`` for what of a graph is below (``protocol.split_graph``): its plans have all else at the client.

    ``stripes``: how many trees there are to be; the same tree so many times where the planner plans one. ``auto``: one
    tree of the whole graph, where several do not save a tenth of its time.
    """

    planner: Planner
    parts: SplitGraph
    stripes: int | Literal["auto"]

    @property
    def needs(self) -> tuple[Need, ...]:
        """Those of the planner."""
        return needs_of(self.planner)

    @property
    def compared(self) -> bool:
        """That of the planner."""
        return is_compared(self.planner)

    def plan(self, task: Task, model: CostModel) -> Plan:
        below = self.parts.lower
        plan = self.planner.plan(task.but(dataflows=(below,), hints=task.hints.of(below)), model)
        plans = (plan, *plan.beside)
        if self.stripes == "auto":
            alone = self._alone.plan(task, model)
            if len(plans) == 1 or not plan.cost_s < (1 - REPAYS) * alone.cost_s:
                return alone
        elif len(plans) == 1:
            plans = (msgspec.structs.replace(plan, share=1 / self.stripes),) * self.stripes
        first, *beside = [self._whole(stripe) for stripe in plans]
        return msgspec.structs.replace(first, beside=tuple(beside))

    @property
    def _alone(self) -> Planner:
        """What plans one tree."""
        assert isinstance(self.planner, msgspec.Struct)
        return msgspec.structs.replace(self.planner, stripes=1)

    def _whole(self, plan: Plan) -> Plan:
        above = self.parts.upper
        assert above is not None
        (sink,) = self.parts.lower.sinks
        over = PlacedGraph(above, resting(above, plan.placement[sink]))
        dataflow, placement = whole(PlacedGraph(plan.dataflow, plan.placement), over)
        return msgspec.structs.replace(plan, dataflow=dataflow, placement=placement, beside=())
