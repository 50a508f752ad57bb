"""Where the operators go: cost models, planners, and planning with knowledge fetched on demand."""

from __future__ import annotations

from thalweg.middleware.planning.asking import ProbedPlan, plan_probing, plan_with_probes
from thalweg.middleware.planning.bound import bound_period_s
from thalweg.middleware.planning.costs.expected_period import ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel, CriticalPath, Evaluation, Position, evaluate
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.planners.local import Local
from thalweg.middleware.planning.planners.planner import (
    DownloadAll,
    Exhaustive,
    OneShot,
    Planner,
    PlanResult,
    Step,
    plan_result,
)
from thalweg.middleware.planning.planners.thalweg import Thalweg
from thalweg.middleware.planning.problem.hints import CostParameters, Hints, SupportsHints, propagate_hints
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.registry import (
    COST_MODELS,
    PLANNERS,
    Strategy,
    get_cost_model,
    get_planner,
    get_strategy,
)
from thalweg.middleware.planning.shapes.host_tree import HostTree

__all__ = [
    "COST_MODELS",
    "PLANNERS",
    "CostModel",
    "CostParameters",
    "CriticalPath",
    "DownloadAll",
    "Evaluation",
    "Exhaustive",
    "ExpectedPeriod",
    "Hints",
    "HostTree",
    "Local",
    "OneShot",
    "Period",
    "PlanResult",
    "Planner",
    "Position",
    "ProbedPlan",
    "Problem",
    "Step",
    "Strategy",
    "SupportsHints",
    "Thalweg",
    "bound_period_s",
    "evaluate",
    "get_cost_model",
    "get_planner",
    "get_strategy",
    "plan_probing",
    "plan_result",
    "plan_with_probes",
    "propagate_hints",
]
