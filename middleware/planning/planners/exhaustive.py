"""Exhaustive search: the best of all placements."""

from __future__ import annotations

import itertools

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LinksNeeded
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task


class Exhaustive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best of all placements, for small problems; in a tie the first in the order of hosts, or download-all.

    Needs every link. Raises UsageError for more than ``limit`` placements.
    """

    limit: int = 100_000

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, hosts = Problem(task), task.hosts
        free = [node for node in range(len(problem.names)) if problem.movable[node]]
        count = len(hosts) ** max(len(free) - 1, 0)  # the last operator's moves are one look
        if count > self.limit:
            raise UsageError(
                f"exhaustive search would look at {len(hosts)}^{len(free)} placements of {len(free)} operators;"
                f" use one-shot, or raise its limit of {self.limit} looks"
            )
        if links := problem.all_unknown():
            raise LinksNeeded(links)
        where = problem.at_sink()
        initial = best = model.at(problem, where)
        problem.read[:] = True
        for choice in itertools.product(range(len(hosts)), repeat=max(len(free) - 1, 0)):
            if not free:
                break
            where = best.where.copy()
            where[free[:-1]] = choice
            costs_ns = model.at(problem, where).moves_of(free[-1:])[0]
            host = int(costs_ns.argmin())
            if costs_ns[host] < best.lower_ns:
                where[free[-1]] = host
                best = model.at(problem, where)
        evaluated = len(hosts) ** len(free)
        return plan_at(best, initial_ns=initial.lower_ns, evaluated=evaluated)
