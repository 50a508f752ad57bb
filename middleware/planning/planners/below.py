"""Planner of a stream over several trees if some operators have state. These operators stay at the client."""

from __future__ import annotations

from typing import Literal

import msgspec

from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.mixtures.choice import REPAYS
from thalweg.middleware.planning.planners.planner import Planner, is_compared, needs_of
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import Need
from thalweg.middleware.protocol.split_graph import PlacedGraph, SplitGraph, resting, whole


class Below(msgspec.Struct, frozen=True):
    """Planner for the lower part of a split graph (``protocol.split_graph``).

    The upper part of every plan is at the client. ``planner``: the planner of the lower part. ``stripes``: number of
    trees. If the planner plans one tree, the tree is repeated. With ``auto``, one tree of the whole graph is planned if
    several trees save less than a tenth of its time.
    """

    planner: Planner
    parts: SplitGraph
    stripes: int | Literal["auto"]

    @property
    def needs(self) -> tuple[Need, ...]:
        """Measurements that the wrapped planner needs."""
        return needs_of(self.planner)

    @property
    def compared(self) -> bool:
        """Return whether the wrapped planner asks for the comparison of its plans with the present placement."""
        return is_compared(self.planner)

    def plan(self, task: Task, model: CostModel) -> Plan:
        below = self.parts.lower
        plan = self.planner.plan(task.but(dataflows=(below,), hints=task.hints.of(below)), model)
        plans = (plan, *plan.beside)
        if self.stripes == "auto":
            alone = self._alone.plan(task, model)
            if len(plans) == 1 or plan.cost_s >= (1 - REPAYS) * alone.cost_s:  # false without a cost
                return alone
        elif len(plans) == 1:
            plans = (msgspec.structs.replace(plan, share=1 / self.stripes),) * self.stripes
        first, *beside = [self._whole(stripe) for stripe in plans]
        return msgspec.structs.replace(first, beside=tuple(beside))

    @property
    def _alone(self) -> Planner:
        """Planner of a single tree, with the options of the wrapped planner."""
        assert isinstance(self.planner, msgspec.Struct)
        return msgspec.structs.replace(self.planner, stripes=1)

    def _whole(self, plan: Plan) -> Plan:
        above = self.parts.upper
        assert above is not None
        (sink,) = self.parts.lower.sinks
        over = PlacedGraph(above, resting(above, plan.placement[sink]))
        dataflow, placement = whole(PlacedGraph(plan.dataflow, plan.placement), over)
        return msgspec.structs.replace(plan, dataflow=dataflow, placement=placement, beside=())
