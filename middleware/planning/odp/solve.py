"""The optimum by whichever way proves it first: those by structure where their conditions hold, then the program."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from thalweg.middleware.errors import PlannerError, UsageError
from thalweg.middleware.planning.odp.frontier import WIDTHS, Frontier
from thalweg.middleware.planning.odp.heuristics import HEURISTICS
from thalweg.middleware.planning.odp.hubs import through_hubs
from thalweg.middleware.planning.odp.instance import SLACK, Indices, OdpInstance
from thalweg.middleware.planning.odp.objective import Extremes, Goal, Metric, Objective, only, worst_of
from thalweg.middleware.planning.odp.program import General, shortage
from thalweg.middleware.planning.odp.solved import Solved
from thalweg.middleware.planning.odp.walks import walk
from thalweg.middleware.planning.solver.program import NoSolutionError, SearchLimits

ROWS = 20_000_000  # states that the frontier's search may look at, about
STARTS = ("local-search", "first-fit")  # heuristics that the program begins with, if nothing better is known


class OdpLimits(SearchLimits, frozen=True):
    """What the program (HiGHS) may take. ``structure``: whether the ways by structure are tried first."""

    time_limit_s: float = 300.0
    structure: bool = True


def solve(goal: Goal, effort: OdpLimits | None = None, start: Indices | None = None) -> Solved:
    """The optimum, or the best placement that was found, with its bound.

    ``start``: a placement that is known; one that breaks a constraint is of no use. Raises UsageError, naming the
    constraint and how much is short, where there is no placement; PlannerError where none was found in time.
    """
    instance, effort = goal.instance, effort or OdpLimits()
    try:
        return _solve(goal, effort, start)
    except NoSolutionError:
        reason = shortage(instance) or "the solver finds that no placement keeps all constraints"
        raise UsageError(f"the problem cannot be solved: {reason}") from None


def _solve(goal: Goal, effort: OdpLimits, start: Indices | None) -> Solved:
    instance = goal.instance
    start = None if start is None or instance.shortfall(start) else start
    if instance.demand.sum() > instance.capacity.sum() * (1 + SLACK):
        raise NoSolutionError("the hosts have too little room")
    # what is best of all placements, and keeps (17), is best of those that do
    wide = msgspec.structs.replace(instance, bandwidth=np.full_like(instance.bandwidth, math.inf))
    relaxed = msgspec.structs.replace(goal, instance=wide) if instance.limited else goal
    bound, best, looked_at = -math.inf, start, 0
    for solved in _by_structure(relaxed, None if instance.limited else start) if effort.structure else ():
        if solved is None:
            continue
        bound, looked_at = max(bound, solved.bound), looked_at + solved.looked_at
        if not instance.shortfall(solved.where):
            if best is None or goal.cost(solved.where) <= goal.cost(best):
                best = solved.where
            if solved.gap <= effort.gap or solved.proven:
                return msgspec.structs.replace(solved, looked_at=looked_at)
    if best is None:
        best = _begin(goal)
    general = General(goal, best, gap=effort.gap, time_limit_s=effort.time_limit_s)
    answer = general.solve()
    return msgspec.structs.replace(answer, bound=min(answer.cost, max(bound, answer.bound)), looked_at=looked_at)


def _by_structure(goal: Goal, start: Indices | None) -> Iterator[Solved | None]:
    yield walk(goal)
    yield through_hubs(goal)
    frontier = Frontier(goal)
    if frontier.fits:
        most = ROWS // (goal.instance.count * len(goal.instance.hosts))
        yield frontier.solve(start, [width for width in WIDTHS if width <= most] or [most])


def _begin(goal: Goal) -> Indices | None:
    for name in STARTS:
        try:
            if name in HEURISTICS:
                return HEURISTICS[name](goal, 0)
        except PlannerError:
            continue
    return None


def normalised(instance: OdpInstance, objective: Objective, effort: OdpLimits | None = None) -> Goal:
    """The goal with the extremes of what has a weight: the best by each metric alone, and the worst of all."""
    ends = {metric: extremes_of(instance, metric, objective, effort) for metric in objective.weights}
    return Goal(instance, objective, ends)


def extremes_of(
    instance: OdpInstance, metric: Metric, objective: Objective, effort: OdpLimits | None = None
) -> Extremes:
    """The best and the worst of one metric; errors as ``solve``."""
    counted = objective.availability_of
    solved = solve(Goal(instance, only(metric, availability_of=counted, ties=False)), effort)
    return Extremes(solved.cost if solved.proven else solved.bound, worst_of(instance, metric, counted), solved.proven)
