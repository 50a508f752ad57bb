"""Planner ``odp``: the proven best placement by response time, availability and network metrics, or its gap."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.odp.instance import Indices, sampled
from thalweg.middleware.planning.odp.objective import Goal
from thalweg.middleware.planning.odp.program import General
from thalweg.middleware.planning.odp.sharing import costs_as_sent, solve_as_sent
from thalweg.middleware.planning.odp.solve import OdpLimits, normalised, solve
from thalweg.middleware.planning.odp.solved import Solved
from thalweg.middleware.planning.odp.tasks import instance_of, objective_of, present_of, with_changes
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import GlobalMoves, Need

SAVING = 0.05  # least share of the cost that a change saves, as measured rates and latencies vary
LEAST_S = 1e-3  # shorter latencies count as equal: delays of a machine say nothing of the network
PERIOD_S = 100.0  # S-ODP solves again with measured rates after this time; section 7.2


class Odp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner of the optimal placement (Cardellini et al., 2016), again after ``period_s`` seconds (None: not again).

    - ``objective``: a metric, or weights by metric that sum to 1. None: the task's objective, by default the response
      time.
    - ``availability``: ``operators`` or ``hosts`` are counted. None: as the task says.
    - ``ties``: among equal placements, the least response time is taken, and then the least usage.
    - ``time_limit_s``, ``gap``, ``structure``: see ``OdpLimits``.
    - ``change``, ``horizon_s``: within the horizon, a change has to repay the seconds that operators are down, times
      ``change`` (see ``with_changes``). ``saving``: least share of the cost that a change saves.
    - ``looks``: number of replannings, one every ``period_s``. None: as long as the run goes on.
    - ``least_s``: shorter delays count as this delay. While data flows it is 1 ms by default, as measured delays vary.
    - ``shared``: if several consumers on one host take the output of a producer, it is sent there once, as while data
      flows. A run is always planned so. The bound is then that of a problem with no higher cost.
    - ``candidates``: share of each operator's candidates that is drawn by ``seed``. The optimum is that of the drawn
      candidates.

    A run begins with the placement that is best by availability alone, as rates are not known yet. It goes on by the
    objective, by default the usage (S-ODP, section 7.2). The cost model is not used.
    """

    compared: ClassVar[bool] = True
    needs: ClassVar[Collection[Need]] = ("latency", "work")

    objective: str | dict[str, float] | None = None
    availability: str | None = None
    ties: bool = True
    time_limit_s: float = 300.0
    gap: float = 0.0
    structure: bool = True
    change: float = 1.0
    horizon_s: float = 600.0
    saving: float = SAVING
    period_s: float | None = PERIOD_S
    looks: int | None = 1
    least_s: float = 0.0
    shared: bool = False
    candidates: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.effort, self.adaptation
        if not (math.isfinite(self.change) and self.change >= 0):
            raise UsageError(f"change is {self.change}; it must be finite and at least 0 (0: changes cost nothing)")
        if not (math.isfinite(self.least_s) and self.least_s >= 0):
            raise UsageError(f"least_s is {self.least_s}; give seconds, at least 0")
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise UsageError(f"horizon_s is {self.horizon_s}; give seconds above 0")
        if self.objective is not None:
            objective_of(self.objective, self.availability or "operators")
        if not 0 < self.candidates <= 1:
            raise UsageError(
                f"candidates is {self.candidates}; give the share of the candidates that is drawn, above 0, at most 1"
            )

    @property
    def adaptation(self) -> GlobalMoves | None:
        """Options of replanning while data flows. None: operators do not move."""
        period_s = PERIOD_S if self.period_s is None else self.period_s
        moves = GlobalMoves(period_s, gain=self.saving, looks=msgspec.UNSET if self.looks is None else self.looks)
        return None if self.period_s is None else moves

    @property
    def initially(self) -> Odp:
        """Planner for the start of a run: by availability alone."""
        return msgspec.structs.replace(self, objective="availability", least_s=self.least_s or LEAST_S, shared=True)

    @property
    def meanwhile(self) -> Odp:
        """Planner while data flows: by the objective, or by the network usage if no objective is given."""
        return msgspec.structs.replace(
            self, objective=self.objective or "usage", least_s=self.least_s or LEAST_S, shared=True
        )

    @property
    def effort(self) -> OdpLimits:
        """Limits of the search for a proof."""
        return OdpLimits(self.time_limit_s, self.gap, self.structure)

    def goal(self, task: Task) -> Goal:
        """Return the compiled problem of a task, with the extremes of its metrics and the cost of changes."""
        instance = instance_of(Problem(task))
        instance = msgspec.structs.replace(instance, delay_s=np.maximum(instance.delay_s, self.least_s))
        if self.candidates < 1:
            instance = sampled(instance, self.candidates, np.random.default_rng(self.seed))
        quality = task.quality
        choice = (quality.objective or "response") if self.objective is None else self.objective
        objective = objective_of(choice, self.availability or quality.counted, ties=self.ties)
        goal = normalised(instance, objective, self.effort)
        return with_changes(goal, task, weight=self.change, horizon_s=self.horizon_s)

    def solve(self, goal: Goal, task: Task) -> Solved:
        """Return the best placement that is found, with its bound.

        Raises UsageError if no placement exists, PlannerError if none was found in time.
        """
        way = solve_as_sent if self.shared else solve
        return way(goal, self.effort, present_of(goal.instance, task))

    def write(self, goal: Goal, path: str) -> None:
        """Write the program of a problem to an ``.mps`` file."""
        General(goal).write(path)

    def _cost(self, goal: Goal, where: Indices) -> float:
        return float(costs_as_sent(goal, where[None], goal.main)[0]) if self.shared else goal.cost(where)

    def plan(self, task: Task, model: CostModel) -> Plan:
        goal = self.goal(task)
        solved, names, hosts = self.solve(goal, task), goal.instance.names, task.hosts
        present = present_of(goal.instance, task)
        was = solved.cost if present is None else self._cost(goal, present)
        if present is not None and goal.instance.shortfall(present):
            was = math.inf
        return Plan(
            placement={name: hosts[host] for name, host in zip(names, solved.where.tolist(), strict=True)},
            dataflow=task.dataflow,
            cost_s=solved.cost,
            initial_cost_s=was,
            evaluated=solved.looked_at,
        )
