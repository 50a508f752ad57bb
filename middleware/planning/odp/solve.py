"""Optimum by the first method that proves an optimum: methods for graphs of a special structure, then the program."""

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

ROWS = 20_000_000  # approximate limit of the states that the frontier's search evaluates
STARTS = ("local-search", "first-fit")  # heuristics for the program's first placement, if no placement is known


class OdpLimits(SearchLimits, frozen=True):
    """Limits of the program (HiGHS). ``structure``: whether the methods for special structures are tried first."""

    time_limit_s: float = 300.0
    structure: bool = True


def solve(goal: Goal, effort: OdpLimits | None = None, start: Indices | None = None) -> Solved:
    """Return the optimum, or the best placement that was found, with a bound.

    ``start``: a known placement, which is ignored if the placement breaks a constraint. Raises UsageError if there is
    no placement, naming the constraint and the shortage. Raises PlannerError if no placement was found in time.
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
    # if the optimum without (17) keeps (17), it is also the optimum with (17)
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
    """Return the goal with the extremes of every metric that has a weight.

    The extremes are the best value by the metric alone, and the worst value (see ``worst_of``).
    """
    ends = {metric: extremes_of(instance, metric, objective, effort) for metric in objective.weights}
    return Goal(instance, objective, ends)


def extremes_of(
    instance: OdpInstance, metric: Metric, objective: Objective, effort: OdpLimits | None = None
) -> Extremes:
    """Return the best and the worst value of one metric. Errors are as in ``solve``.

    If the best value is not proven, the bound takes its place.
    """
    counted = objective.availability_of
    solved = solve(Goal(instance, only(metric, availability_of=counted, ties=False)), effort)
    return Extremes(solved.cost if solved.proven else solved.bound, worst_of(instance, metric, counted), solved.proven)
