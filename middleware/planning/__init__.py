"""Where the operators go: cost models, planners, and planning with knowledge fetched on demand."""

from __future__ import annotations

from thalweg.middleware.planning.asking import ProbedPlan, plan_probing, plan_with_probes
from thalweg.middleware.planning.bound import bound_period_s
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.costs.expected_period import ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel, Position, evaluate
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.planners.download_all import DownloadAll
from thalweg.middleware.planning.planners.exhaustive import Exhaustive
from thalweg.middleware.planning.planners.local import Local
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import Planner, ask_planner, plan_at
from thalweg.middleware.planning.planners.thalweg import Thalweg
from thalweg.middleware.planning.problem.hints import Answers, CostParameters, Hints, SupportsHints, propagate_hints
from thalweg.middleware.planning.problem.loads import Interface, LoadModel, Resource
from thalweg.middleware.planning.problem.plan import Plan, PlanResult, Step
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
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
    "Answers",
    "CostModel",
    "CostParameters",
    "CriticalPath",
    "DownloadAll",
    "Exhaustive",
    "ExpectedPeriod",
    "Hints",
    "HostTree",
    "Interface",
    "LoadModel",
    "Local",
    "OneShot",
    "Period",
    "Plan",
    "PlanResult",
    "Planner",
    "Position",
    "ProbedPlan",
    "Problem",
    "Resource",
    "Step",
    "Strategy",
    "SupportsHints",
    "Task",
    "Thalweg",
    "ask_planner",
    "bound_period_s",
    "evaluate",
    "get_cost_model",
    "get_planner",
    "get_strategy",
    "plan_at",
    "plan_probing",
    "plan_with_probes",
    "propagate_hints",
]
