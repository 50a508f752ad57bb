"""One-shot and global: the paper's local search, one operator of the critical path at a time.

Source: Ranganathan, Acharya, Saltz (1998), sections 2.1 (one-shot) and 2.2 (global).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, LinksNeeded
from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan, Step
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where
from thalweg.middleware.planning.problem.task import Task


class OneShot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paper's algorithm (section 2.1): move one operator of the critical path at a time.

    From the initial placement, repeat: for each operator of the critical path in turn, from the source's end to the
    sink's, consider all other hosts; the cheapest single move is made if it is strictly cheaper. Of equally
    cheap moves the printed algorithm keeps the last operator's (``C_min <= C'``), here on the first host.

    ``start``: ``"client"`` puts all operators at the sink's host first (one-shot); ``"current"`` starts from the
    placement given, which makes it a step of the global algorithm (section 2.2). ``batch``: at most about so
    many unknown links are asked for at once, those of the moves with the lowest bounds first; default: half as many as
    there are hosts (so many probes can be on their way without sharing a host), at least 8. Fewer need fewer links
    in all, more need fewer rounds; the plan is the same. Measured on random links with the critical path: 8
    servers 3 to 4 rounds and 21 to 26 of 36 pairs, 32 servers 9 to 19 rounds and 150 to 254 of 528 pairs.
    """

    compared: ClassVar[bool] = True

    start: Literal["client", "current"] = "client"
    batch: int | None = None

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, hosts = Problem(task), task.hosts
        if self.start == "current":
            if task.current is None:
                raise UsageError("one-shot with start='current' needs the current placement; give it")
            where = problem.where(task.current)
        else:
            where = problem.at_sink()
        problem.require(where)
        position = model.at(problem, where)
        initial_ns = position.lower_ns
        evaluated = 1
        steps: list[Step] = []
        while True:
            candidates = [node for node in position.critical() if problem.movable[node]]
            if not candidates:
                break
            move = self._cheapest(position, candidates)
            evaluated += len(candidates) * (len(hosts) - 1)
            if move is None:
                break
            node, host = move
            before = hosts[position.where[node]]
            where = position.where.copy()
            where[node] = host
            position = model.at(problem, where)
            steps.append(Step(problem.names[node], before, hosts[host], position.lower_ns / NS_PER_S))
        return plan_at(position, initial_ns=initial_ns, evaluated=evaluated, steps=steps)

    def _cheapest(self, position: Position, candidates: Sequence[int]) -> tuple[int, int] | None:
        """The best single move, if it is strictly cheaper than staying; LinksNeeded when that is open."""
        problem, where = position.problem, position.where
        rows = np.arange(len(candidates))
        lower = position.moves_of(candidates)  # (candidates, hosts)
        unknown = problem.unknown_moves(where, candidates)
        stay = where[list(candidates)]
        lower[rows, stay] = np.inf
        unknown[rows, stay] = False

        known = np.where(unknown, np.inf, lower)
        first_host = known.argmin(axis=1)
        cheapest = known[rows, first_host]
        best = len(candidates) - 1 - int(cheapest[::-1].argmin())  # the last operator of those in a tie
        bound = min(float(cheapest[best]), position.lower_ns)
        open_moves = unknown & (lower <= bound) & (lower < position.lower_ns)
        if cheapest[best] < position.lower_ns:  # in a tie the operator, then the host, decides
            open_moves[:best] &= lower[:best] < bound
            open_moves[best, first_host[best] :] &= lower[best, first_host[best] :] < bound
        if open_moves.any():
            raise LinksNeeded(self._most_promising(problem, where, candidates, lower, open_moves))
        if not cheapest[best] < position.lower_ns:
            return None
        return candidates[best], int(first_host[best])

    def _most_promising(
        self,
        problem: Problem,
        where: Where,
        candidates: Sequence[int],
        lower: Nanoseconds,
        open_moves: npt.NDArray[np.bool_],
    ) -> frozenset[Link]:
        """The unknown links of the moves with the lowest bounds, up to ``batch`` of them."""
        batch = max(8, len(problem.hosts) // 2) if self.batch is None else self.batch
        moves = sorted((lower[row, host], row, host) for row, host in np.argwhere(open_moves).tolist())
        links: frozenset[Link] = frozenset()
        for _, row, host in moves:
            more = links | problem.links_of_move(where, candidates[row], host)
            if links and len(more) > batch:
                break
            links = more
        return links
