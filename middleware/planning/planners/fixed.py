"""Planner ``fixed``: every operator on the host that the user gives."""

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
    """Planner that returns a given placement. Needs no link. The cost is nan if a link is unknown.

    ``placement``: host of every node that has no pin. By default, it is the present placement of the task.
    """

    compared: ClassVar[bool] = True

    placement: Placement = {}

    def plan(self, task: Task, model: CostModel) -> Plan:
        """Return the given placement as a plan. Raise PlacementError if a node is missing, or a name is unknown."""
        placement = self.placement or task.current
        if placement is None:
            raise PlacementError("planner fixed has no placement; give one (option placement), or name a plan file")
        at = check_placement(task.dataflow, placement, task.hosts)
        problem = Problem(task)
        where = problem.where(at)
        if problem.missing(where):
            return Plan(at, task.dataflow)
        position = model.at(problem, where)
        return plan_at(position, initial_ns=position.lower_ns, evaluated=1)
