"""Planners: pure functions of dataflow, hosts, network view and current placement.

A planner never waits and never measures: where the decision hangs on a link that nobody knows it raises
LinksNeeded with the links, and is called again when they are known (``probing`` does that). It is deterministic:
ties go to the host that stands first in ``hosts``.

Sources: Ranganathan, Acharya, Saltz (1998), section 2.1 (one-shot), 2.2 (global), 4 (download-all).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.errors import PlannerError, ThalwegError, UsageError, one_line
from thalweg.middleware.network.view import Link, LinksNeeded, NetworkView
from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.problem.hints import CostParameters, Hints
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where


class Step(msgspec.Struct, frozen=True):
    """One accepted move, and the cost in seconds after it."""

    node: str
    source: str
    target: str
    cost_s: float


class PlanResult(msgspec.Struct, frozen=True):
    """What a planner decided.

    ``placement`` is complete (sources and sink included) and belongs to ``dataflow``, the tree that was given or, from
    a planner that changes shapes, another. ``cost_s`` and ``initial_cost_s`` are the model's figures for it and for
    where the search started (nan where the planner did not look for them; inf over an unusable link).
    ``critical``: the nodes that determine the cost, producers first. ``evaluated``: placements looked at.
    ``links_used``: the known links whose estimates the decision rests on. ``hints``: those of ``dataflow``, where it
    is not the tree that was given. ``judged``: the costs before and after that tell whether a change is worth it, where
    the planner goes by others than those two (None).
    """

    placement: Placement
    dataflow: Dataflow
    cost_s: float = math.nan
    initial_cost_s: float = math.nan
    critical: tuple[str, ...] = ()
    evaluated: int = 1
    links_used: frozenset[Link] = frozenset()
    steps: tuple[Step, ...] = ()
    hints: Hints | None = None
    judged: tuple[float, float] | None = None


class Planner(Protocol):
    """What ``plan`` must be. Raises LinksNeeded for unknown links, UsageError for what cannot be planned."""

    def plan(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult: ...


def ask_planner(
    planner: Planner,
    dataflow: Dataflow,
    hosts: Sequence[str],
    view: NetworkView,
    current: Placement | None,
    *,
    hints: Hints,
    costs: CostParameters,
    model: CostModel,
) -> PlanResult:
    """``planner.plan``, which may be a user's own: what else it raises or returns is a PlannerError that names it."""
    try:
        result: object = planner.plan(dataflow, hosts, view, current, hints=hints, costs=costs, model=model)
    except (LinksNeeded, ThalwegError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        raise PlannerError(f"planner {_name(planner)} failed: {text}") from error
    if not isinstance(result, PlanResult):
        raise PlannerError(f"planner {_name(planner)} returned {type(result).__name__}; return a PlanResult")
    return result


def _name(planner: Planner) -> str:
    kind = type(planner)
    return f"{kind.__module__}:{kind.__qualname__}"


def plan_result(
    problem: Problem,
    position: Position,
    *,
    initial_ns: float,
    evaluated: int,
    steps: Sequence[Step] = (),
) -> PlanResult:
    """The result of a search that ended at ``position``; all its links must be known."""
    return PlanResult(
        problem.placement(position.where),
        problem.dataflow,
        position.lower_ns / NS_PER_S,
        initial_ns / NS_PER_S,
        problem.names_of(position.critical()),
        evaluated,
        problem.links_read(),
        tuple(steps),
    )


class DownloadAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All operators without a pin at the sink's host. Never needs a link; its cost is nan when one is unknown."""

    def plan(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult:
        problem = Problem(dataflow, hosts, view, hints, costs)
        where = problem.at_sink(current)
        if problem.missing(where):
            placement = problem.placement(where)
            return PlanResult(placement, dataflow, math.nan, math.nan, (), 1, frozenset())
        position = model.at(problem, where)
        return plan_result(problem, position, initial_ns=position.lower_ns, evaluated=1)


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

    start: Literal["client", "current"] = "client"
    batch: int | None = None

    def plan(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult:
        problem = Problem(dataflow, hosts, view, hints, costs)
        if self.start == "current":
            if current is None:
                raise UsageError("one-shot with start='current' needs the current placement; give it")
            where = problem.where(current)
        else:
            where = problem.at_sink(current)
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
        return plan_result(problem, position, initial_ns=initial_ns, evaluated=evaluated, steps=steps)

    def _cheapest(self, position: Position, candidates: Sequence[int]) -> tuple[int, int] | None:
        """The best single move, if it is strictly cheaper than staying; LinksNeeded when that is open."""
        problem, where = position.problem, position.where
        rows = np.arange(len(candidates))
        lower = position.moves_of(candidates)  # (candidates, hosts)
        unknown = np.array([problem.unknown_moves(where, node) for node in candidates])
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


class Exhaustive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best of all placements, for small problems; in a tie the first in the order of hosts, or download-all.

    Needs every link. Raises UsageError for more than ``limit`` placements.
    """

    limit: int = 100_000

    def plan(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult:
        problem = Problem(dataflow, hosts, view, hints, costs)
        free = [node for node in range(len(problem.names)) if problem.movable[node]]
        count = len(hosts) ** max(len(free) - 1, 0)  # the last operator's moves are one look
        if count > self.limit:
            raise UsageError(
                f"exhaustive search would look at {len(hosts)}^{len(free)} placements of {len(free)} operators;"
                f" use one-shot, or raise its limit of {self.limit} looks"
            )
        if links := problem.all_unknown():
            raise LinksNeeded(links)
        where = problem.at_sink(current)
        initial = best = model.at(problem, where)
        problem.read[:] = True
        for choice in itertools.product(range(len(hosts)), repeat=max(len(free) - 1, 0)):
            if not free:
                break
            where = best.where.copy()
            where[free[:-1]] = choice
            costs_ns = model.at(problem, where).moves(free[-1])
            host = int(costs_ns.argmin())
            if costs_ns[host] < best.lower_ns:
                where[free[-1]] = host
                best = model.at(problem, where)
        evaluated = len(hosts) ** len(free)
        return plan_result(problem, best, initial_ns=initial.lower_ns, evaluated=evaluated)
