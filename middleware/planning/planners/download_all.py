"""Planner ``download-all``: every operator at the host of the sink.

Source: Ranganathan, Acharya, Saltz (1998), section 4.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task


class DownloadAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner that puts every operator without a pin at the sink's host.

    Needs no link. The cost is nan if a link is unknown.
    """

    compared: ClassVar[bool] = True

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem = Problem(task)
        where = problem.at_sink()
        if problem.missing(where):
            return Plan(problem.placement(where), task.dataflow)
        position = model.at(problem, where)
        return plan_at(position, initial_ns=position.lower_ns, evaluated=1)
