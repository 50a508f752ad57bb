"""Exhaustive search: the best of all placements."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import numpy as np

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LinksNeeded
from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Nanoseconds, Problem, Where
from thalweg.middleware.planning.problem.task import Task

LIMIT = 9**7  # the operators of eight servers on these and a client; some seconds
ROWS = 1 << 14  # placements that are looked at together


class Exhaustive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best of all placements, for small problems; in a tie the first in the order of hosts, or download-all.

    Needs every link. Raises UsageError for more than ``limit`` placements.
    """

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
        initial = model.at(problem, problem.at_sink())
        problem.read[:] = True
        costs_of = getattr(model, "costs_of", None)
        best = initial
        if free and costs_of is not None:
            best = _together(model, costs_of, problem, free, initial)
        elif free:
            best = _one_by_one(model, problem, free, initial)
        return plan_at(best, initial_ns=initial.lower_ns, evaluated=count)


def _together(
    model: CostModel,
    costs_of: Callable[[Problem, Where], Nanoseconds],
    problem: Problem,
    free: list[int],
    best: Position,
) -> Position:
    """Many placements at once, for cost models that can."""
    start, hosts = best.where, len(problem.hosts)
    count = hosts ** len(free)
    for first in range(0, count, ROWS):
        numbers = np.arange(first, min(first + ROWS, count))
        where = np.repeat(start[np.newaxis], len(numbers), axis=0)
        where[:, free] = np.stack(np.unravel_index(numbers, (hosts,) * len(free)), axis=1)
        costs_ns = costs_of(problem, where)
        row = int(costs_ns.argmin())
        if costs_ns[row] < best.lower_ns:
            found = model.at(problem, where[row])
            best = found if found.lower_ns < best.lower_ns else best
    return best


def _one_by_one(model: CostModel, problem: Problem, free: list[int], best: Position) -> Position:
    """One placement after the other, but for the last operator's moves, which are one look."""
    start = best.where
    for choice in itertools.product(range(len(problem.hosts)), repeat=len(free) - 1):
        where = start.copy()
        where[free[:-1]] = choice
        costs_ns = model.at(problem, where).moves_of(free[-1:])[0]
        host = int(costs_ns.argmin())
        if costs_ns[host] < best.lower_ns:
            where[free[-1]] = host
            best = model.at(problem, where)
    return best
