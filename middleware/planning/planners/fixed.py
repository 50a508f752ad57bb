"""Fixed: every operator where it is said to be."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from thalweg.middleware.dataflow import Placement, check_placement
from thalweg.middleware.errors import PlacementError
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``placement``: the host of every node that has no pin; by default the task's present one.

    Never needs a link; its cost is nan when one is unknown.
    """

    compared: ClassVar[bool] = True

    placement: Placement = {}

    def plan(self, task: Task, model: CostModel) -> Plan:
        """PlacementError for a placement that leaves out a node, or names what is not there."""
        placement = self.placement or task.current
        if placement is None:
            raise PlacementError("fixed is told no placement; give one (option placement), or name a plan file")
        at = check_placement(task.dataflow, placement, task.hosts)
        problem = Problem(task)
        where = problem.where(at)
        if problem.missing(where):
            return Plan(at, task.dataflow)
        position = model.at(problem, where)
        return plan_at(position, initial_ns=position.lower_ns, evaluated=1)
