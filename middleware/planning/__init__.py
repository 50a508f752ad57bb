"""Placement of operators on hosts: cost models, planners, and planning with measurements on demand."""

from __future__ import annotations

from thalweg.middleware.planning.asking import ProbedPlan as ProbedPlan
from thalweg.middleware.planning.asking import plan_probing as plan_probing
from thalweg.middleware.planning.asking import plan_with_probes as plan_with_probes
from thalweg.middleware.planning.bound import bound_period_s as bound_period_s
from thalweg.middleware.planning.costs.critical_path import CriticalPath as CriticalPath
from thalweg.middleware.planning.costs.expected_period import ExpectedPeriod as ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel as CostModel
from thalweg.middleware.planning.costs.model import Position as Position
from thalweg.middleware.planning.costs.model import evaluate as evaluate
from thalweg.middleware.planning.costs.period import Period as Period
from thalweg.middleware.planning.planners.download_all import DownloadAll as DownloadAll
from thalweg.middleware.planning.planners.exhaustive import Exhaustive as Exhaustive
from thalweg.middleware.planning.planners.local import Local as Local
from thalweg.middleware.planning.planners.odp import Odp as Odp
from thalweg.middleware.planning.planners.one_shot import OneShot as OneShot
from thalweg.middleware.planning.planners.planner import Planner as Planner
from thalweg.middleware.planning.planners.planner import ask_planner as ask_planner
from thalweg.middleware.planning.planners.planner import plan_at as plan_at
from thalweg.middleware.planning.planners.thalweg import Thalweg as Thalweg
from thalweg.middleware.planning.problem.hints import Answers as Answers
from thalweg.middleware.planning.problem.hints import CostParameters as CostParameters
from thalweg.middleware.planning.problem.hints import Hints as Hints
from thalweg.middleware.planning.problem.hints import SupportsHints as SupportsHints
from thalweg.middleware.planning.problem.hints import propagate_hints as propagate_hints
from thalweg.middleware.planning.problem.loads import Interface as Interface
from thalweg.middleware.planning.problem.loads import LoadModel as LoadModel
from thalweg.middleware.planning.problem.loads import Resource as Resource
from thalweg.middleware.planning.problem.plan import Plan as Plan
from thalweg.middleware.planning.problem.plan import PlanResult as PlanResult
from thalweg.middleware.planning.problem.plan import Step as Step
from thalweg.middleware.planning.problem.problem import Problem as Problem
from thalweg.middleware.planning.problem.quality import Quality as Quality
from thalweg.middleware.planning.problem.task import Stripe as Stripe
from thalweg.middleware.planning.problem.task import Task as Task
from thalweg.middleware.planning.registry import COST_MODELS as COST_MODELS
from thalweg.middleware.planning.registry import PLANNERS as PLANNERS
from thalweg.middleware.planning.registry import Strategy as Strategy
from thalweg.middleware.planning.registry import get_cost_model as get_cost_model
from thalweg.middleware.planning.registry import get_planner as get_planner
from thalweg.middleware.planning.registry import get_strategy as get_strategy
from thalweg.middleware.planning.shapes.host_tree import HostTree as HostTree
