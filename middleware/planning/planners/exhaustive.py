"""Planner ``exhaustive``: the best of all placements."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LinksNeeded
from thalweg.middleware.planning.costs.model import CostModel, costs_of
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task

LIMIT = 9**7  # the operators of eight servers, on nine hosts with the client; some seconds
ROWS = 1 << 14  # placements that are evaluated together


class Exhaustive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner that tries every placement, for small problems.

    In a tie, download-all wins, or the first placement in the order of hosts. Needs every link. Raises UsageError for
    more than ``limit`` placements.
    """

    compared: ClassVar[bool] = True

    limit: int = LIMIT

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, hosts = Problem(task), task.hosts
        free = [node for node in range(len(problem.names)) if problem.movable[node]]
        count = len(hosts) ** len(free)
        if count > self.limit:
            raise UsageError(
                f"exhaustive search would look at {len(hosts)}^{len(free)} placements of {len(free)} operators;"
                f" use one-shot, or raise its limit of {self.limit} placements"
            )
        if links := problem.all_unknown():
            raise LinksNeeded(links)
        initial = best = model.at(problem, problem.at_sink())
        problem.read[:] = True
        for first in range(0, count if free else 0, ROWS):
            numbers = np.arange(first, min(first + ROWS, count))
            where = np.repeat(initial.where[np.newaxis], len(numbers), axis=0)
            where[:, free] = np.stack(np.unravel_index(numbers, (len(hosts),) * len(free)), axis=1)
            costs_ns = costs_of(model, problem, where)
            row = int(costs_ns.argmin())
            if costs_ns[row] < best.lower_ns:
                position = model.at(problem, where[row])
                best = position if position.lower_ns < best.lower_ns else best
        return plan_at(best, initial_ns=initial.lower_ns, evaluated=count)
