"""Planners ``one-shot`` and ``global``: the paper's local search, one operator of the critical path at a time.

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
    """Planner by the paper's algorithm (section 2.1): move one operator of the critical path at a time.

    From the initial placement, the algorithm repeats one step. For each operator of the critical path in turn, from the
    source's end to the sink's end, all other hosts are considered. The cheapest single move is made if it is strictly
    cheaper. Of equally cheap moves, the printed algorithm keeps the move of the last operator (``C_min <= C'``), here
    to the first host.

    ``start``: ``"client"`` puts all operators at the sink's host first (one-shot). ``"current"`` starts from the given
    placement, which makes the search a step of the global algorithm (section 2.2).

    ``batch``: approximate limit of the unknown links that are requested at once. The moves with the lowest bounds come
    first. The default is half the number of hosts, at least 8. This number of probes can be under way without sharing a
    host. A smaller batch needs fewer links in all, a larger batch needs fewer rounds. The plan is the same. Measured on
    random links with the critical path: 8 servers need 3 to 4 rounds and 21 to 26 of 36 pairs, 32 servers need 9 to 19
    rounds and 150 to 254 of 528 pairs.
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
        """Return the best single move as operator and host. None: no move is strictly cheaper than staying.

        Raises LinksNeeded if unknown links decide.
        """
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
        best = len(candidates) - 1 - int(cheapest[::-1].argmin())  # in a tie the last operator
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
        """Return unknown links of the moves with the lowest bounds, up to ``batch`` links."""
        batch = max(8, len(problem.hosts) // 2) if self.batch is None else self.batch
        moves = sorted((lower[row, host], row, host) for row, host in np.argwhere(open_moves).tolist())
        links: frozenset[Link] = frozenset()
        for _, row, host in moves:
            more = links | problem.links_of_move(where, candidates[row], host)
            if links and len(more) > batch:
                break
            links = more
        return links
