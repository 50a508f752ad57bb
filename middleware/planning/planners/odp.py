"""odp: the placement that is proven to be the best by response time, availability and network metrics, or its gap."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.odp.instance import sampled
from thalweg.middleware.planning.odp.objective import Goal
from thalweg.middleware.planning.odp.program import General
from thalweg.middleware.planning.odp.solve import Effort, normalised, solve
from thalweg.middleware.planning.odp.solved import Solved
from thalweg.middleware.planning.odp.tasks import instance_of, objective_of
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import Need


class Odp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The optimal placement (Cardellini et al., 2016), once.

    - ``objective``: a metric, or weights by metric that sum to 1; None: the task's, by default the response time
    - ``availability``: ``operators`` or ``hosts``, what counts; None: as the task says
    - ``ties``: among equals the least response time is taken, and then the least usage
    - ``time_limit_s``, ``gap``, ``structure``: see :class:`Effort`
    - ``candidates``: so large a share of each operator's candidates is drawn by ``seed``; the optimum is that of these

    The cost model does not matter to it.
    """

    needs: ClassVar[Collection[Need]] = ("latency", "work")

    objective: str | dict[str, float] | None = None
    availability: str | None = None
    ties: bool = True
    time_limit_s: float = 300.0
    gap: float = 0.0
    structure: bool = True
    candidates: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.effort
        if self.objective is not None:
            objective_of(self.objective, self.availability or "operators")
        if not 0 < self.candidates <= 1:
            raise UsageError(
                f"candidates is {self.candidates}; give the share of them that is drawn, above 0, at most 1"
            )

    @property
    def effort(self) -> Effort:
        """How long it looks for a proof."""
        return Effort(self.time_limit_s, self.gap, self.structure)

    def goal(self, task: Task) -> Goal:
        """The task as it is solved, with the extremes of its metrics."""
        instance = instance_of(Problem(task))
        if self.candidates < 1:
            instance = sampled(instance, self.candidates, np.random.default_rng(self.seed))
        quality = task.quality
        given = (quality.objective or "response") if self.objective is None else self.objective
        objective = objective_of(given, self.availability or quality.counted, ties=self.ties)
        return normalised(instance, objective, self.effort)

    def solve(self, goal: Goal, task: Task) -> Solved:
        """The best placement; UsageError where there is none, PlannerError where none was found in time."""
        start = None
        if task.current is not None:
            present = goal.instance.where([task.current[name] for name in goal.instance.names])
            start = None if goal.instance.shortfall(present) else present
        return solve(goal, self.effort, start)

    def write(self, goal: Goal, path: str) -> None:
        """Write the program to a file, as ``.mps``."""
        General(goal).write(path)

    def plan(self, task: Task, model: CostModel) -> Plan:
        goal = self.goal(task)
        solved, names, hosts = self.solve(goal, task), goal.instance.names, task.hosts
        return Plan(
            placement={name: hosts[host] for name, host in zip(names, solved.where.tolist(), strict=True)},
            dataflow=task.dataflow,
            cost_s=solved.cost,
            evaluated=solved.looked_at,
        )
