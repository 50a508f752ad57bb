"""Arm *given tree, same search*: ``thalweg`` without changes of the tree, to show what these changes bring.

The planner keeps the given tree and places its operators by the criteria of ``thalweg``. These are the norm of the busy
times of resources, forecasts, and probes by the value of knowing. The search is a descent from several starts with as
many evaluations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware import arithmetic
from thalweg.middleware.arrays import exp, power
from thalweg.middleware.network.outlook import Outlook
from thalweg.middleware.network.view import LinksNeeded
from thalweg.middleware.planning import CostModel, CriticalPath, OneShot, Plan, Problem, Task, Thalweg
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.planners.thalweg import AGAIN_SHARE
from thalweg.middleware.planning.problem.loads import Interface
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Where
from thalweg.middleware.planning.shapes.search import ENOUGH, NORMAL, UNKNOWN_S
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.messages import PROBE_BYTES

LOOKS_PER_HOST = 60  # as many placements as ``thalweg`` evaluates trees: at 9 hosts 60 times 81


class KeepsTree(msgspec.Struct, frozen=True):
    """Base of planners that keep the given tree, and that plan again as often as ``like``."""

    like: Thalweg
    compared: ClassVar[bool] = True
    reshapes: ClassVar[bool] = False

    @property
    def adaptation(self) -> GlobalMoves | None:
        return self.like.adaptation


class GivenTree(KeepsTree, frozen=True):
    """Planner that places the operators of the given tree by the criteria by which ``like`` chooses a tree."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, goes_by = Problem(task), self.like.goes_by(model)
        if links := problem.all_unknown():
            raise LinksNeeded(links)
        problem.read[:] = True
        costs, view, like = _Norm(problem, self.like, goes_by), task.view, self.like
        first = problem.where(OneShot().plan(task, CriticalPath()).placement)
        starts, looks = [problem.at_sink(), first], LOOKS_PER_HOST * len(problem.hosts) ** 2
        judged = None
        if task.current is not None:
            here, looks = problem.where(task.current), looks // AGAIN_SHARE
            starts = [here, *starts]
        where = costs.search(starts, looks, like.seed)
        if task.current is not None:
            judged = costs.seconds(here), costs.seconds(where)
            if isinstance(view, Outlook):
                self._ask(costs, view, here, where)
        initial_ns = goes_by.at(problem, problem.at_sink() if task.current is None else here).lower_ns
        plan = plan_at(goes_by.at(problem, where), initial_ns=initial_ns, evaluated=looks)
        return msgspec.structs.replace(plan, judged=judged)

    def _ask(self, costs: _Norm, view: Outlook, here: Where, where: Where) -> None:
        """Raise LinksNeeded for links whose measurement may change the choice, as ``like`` does."""
        like, problem, hosts = self.like, costs.problem, costs.problem.hosts
        if like.probes_left(view, hosts) > 0:
            changes = costs.seconds(where) < costs.seconds(here) * (1 - like.gain)
            new = _links(problem, where) - _links(problem, here) if changes else set()
            worth = costs.value_of_knowing(where, view)
            like.request_links(
                view, hosts, {pair: (share, _probing_s(view, hosts, pair)) for pair, share in worth.items()}, new
            )


def _links(problem: Problem, where: Where) -> set[tuple[int, int]]:
    """Return the pairs of hosts between which a placement's transfers go."""
    used = zip(where[problem.producer].tolist(), where[problem.consumer].tolist(), strict=True)
    return {(a, b) for a, b in used if a != b}


def _probing_s(view: Outlook, hosts: Sequence[str], pair: tuple[int, int]) -> float:
    """Return the seconds of a probe between two hosts, in both directions."""
    rates = [view.rate_bps(hosts[a], hosts[b]) or 0.0 for a, b in (pair, pair[::-1])]
    return sum(8 * PROBE_BYTES / rate if rate else math.inf for rate in rates)


class _Norm:
    """Cost of placements: the sum of powers of the busy times of resources, as in ``shapes.search``."""

    def __init__(self, problem: Problem, like: Thalweg, goes_by: CostModel) -> None:
        self.problem, self.shape = problem, like.shape
        self.interface: Interface = goes_by.interface if isinstance(goes_by, Period) else "independent"
        self.resources = problem.loads(self.interface)
        self.startup_s = problem.task.costs.startup_s
        self.free = [node for node in range(len(problem.names)) if problem.movable[node]]

    def of(self, where: Where, link: tuple[Where, Where, Nanoseconds] | None = None) -> Nanoseconds:
        """Return the costs of many placements, (rows,).

        ``link``: for each row, a link and the factor on its transfer times.
        """
        problem, resources = self.problem, self.resources
        sources, targets = where[:, problem.producer], where[:, problem.consumer]
        edge = np.minimum(problem.edges_ns(sources, targets) / NS_PER_S, UNKNOWN_S)
        if link is not None:
            other = (sources == link[0][:, None]) & (targets == link[1][:, None])
            edge = np.where(other, self.startup_s + (edge - self.startup_s) * link[2][:, None], edge)
        compute = problem.compute_ns[problem.everyone, where] / NS_PER_S
        carried = resources.of_transfers(sources, targets)
        loads = resources.add_up_many(carried, edge, where, compute, problem.disk_ns / NS_PER_S)
        if self.interface == "single":  # a host's computing and reading delay its transfers
            count = len(problem.hosts)
            loads = loads[:, :count] + loads[:, count : 2 * count] + loads[:, 2 * count :]
        costs: Nanoseconds = power(loads, self.shape).sum(axis=1)
        return costs

    def seconds(self, where: Where) -> float:
        return arithmetic.power(float(self.of(where[None])[0]), 1 / self.shape)

    def moves(self, where: Where) -> Where:
        """Return the placements after one move or none, (rows, nodes)."""
        hosts = len(self.problem.hosts)
        placements = np.repeat(where[None], len(self.free) * hosts, axis=0)
        placements[np.arange(len(placements)), np.repeat(self.free, hosts)] = np.tile(np.arange(hosts), len(self.free))
        return placements

    def search(self, starts: Sequence[Where], looks: int, seed: int) -> Where:
        """Return the best of ``looks`` or more evaluated placements: descents from ``starts``, then from near the
        best.
        """
        chance, hosts, spent = random.Random(seed), len(self.problem.hosts), 0
        best, best_cost = starts[0], math.inf
        waiting = list(starts)
        while self.free and (waiting or spent < looks):
            if waiting:
                where = waiting.pop(0)
            else:
                where = best.copy()
                for _ in range(chance.randint(1, 3)):
                    where[chance.choice(self.free)] = chance.randrange(hosts)
            cost = float(self.of(where[None])[0])
            while True:
                near = self.moves(where)
                costs = self.of(near)
                spent += len(near)
                row = int(costs.argmin())
                if not costs[row] < cost * (1 - ENOUGH):
                    break
                where, cost = near[row], float(costs[row])
            if cost < best_cost * (1 - ENOUGH):
                best, best_cost = where, cost
        return best

    def value_of_knowing(self, where: Where, view: Outlook) -> dict[tuple[int, int], float]:
        """Return, by pair of hosts, the expected share of the cost that measuring the pair's links saves."""
        hosts, cost = self.problem.hosts, float(self.of(where[None])[0])
        near = self.moves(where)
        rows, ends = [], []
        for row, node in enumerate(np.repeat(self.free, len(hosts)).tolist()):
            for edge in (*self.problem.arriving[node], *self.problem.leaving[node]):
                a, b = int(near[row, self.problem.producer[edge]]), int(near[row, self.problem.consumer[edge]])
                if a != b:
                    rows.append(row)
                    ends.append((a, b))
        if not rows:
            return {}
        source, target = np.array(ends).T
        doubt = np.array([view.doubt[hosts[a], hosts[b]] for a, b in ends])
        saved = np.zeros(len(rows))
        for deviation, weight in zip(*NORMAL, strict=True):
            costs = self.of(near[rows], (source, target, exp(-doubt * deviation)))
            saved += weight * np.maximum(cost - costs, 0.0)
        worth: dict[tuple[int, int], float] = {}
        for (a, b), share in zip(ends, (saved / (self.shape * cost)).tolist(), strict=True):
            pair = max(a, b), min(a, b)
            worth[pair] = max(worth.get(pair, 0.0), share)
        return worth
