"""The optimum of graphs that are narrow: operators are placed one after the other, and what is alike is kept once.

Producers come before consumers. Of the operators placed so far those matter that have consumers still to be placed, the
*frontier*: where they are and when they are done, with the room that is left on hosts and the cost so far. All states
after as many operators are kept together, as arrays, and the next operator is put on each of its candidates.

R1. What the operators to come cost at least is known of every state: by additive figures the least with every capacity
    ignored, for all hosts of the frontier (a table, by dynamic programming backwards); by R the longest way on, each
    consumer where it is nearest. A state whose cost so far and this are above the best placement known is dropped.
R2. Of states with the same frontier on the same hosts and the same room only those stay that no other is as good as in
    the cost so far and in all arrival times. Room above what is still needed is no room.
R3. Operators that are alike (same needs, same producers, same consumers, same rates) are put on hosts in their order.
R4. At most so many states are kept, the most promising, first few and then more: of those left out the least bound is
    remembered, so that the answer is proven, or its gap known. Where none is left out that could be better, it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg.middleware.planning.odp.instance import SLACK, Floats, Indices, OdpInstance
from thalweg.middleware.planning.odp.objective import Form, Goal
from thalweg.middleware.planning.odp.solved import Solved

WIDTHS = (200, 4_000, 60_000, 400_000)  # states that are kept
TABLE = 1 << 21  # entries of the largest table
ROUNDING = 1e-12  # of a cost


class OperatorTurn(NamedTuple):
    """One operator's turn. ``before``, ``after``: the frontier; ``inputs``: its producers' places there, with their
    streams; ``kept``: which of the frontier, and the operator itself as the last, are in ``after``; ``twin``: the place
    of one that is alike and comes before it.
    """

    node: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    twin: int | None


class States(NamedTuple):
    """(rows, …) hosts of the frontier, when these are done, the room on hosts, hosts in use, R of what is complete, and
    the cost so far without R.
    """

    hosts: Indices
    done: Floats
    room: Floats
    used: npt.NDArray[np.bool_]
    over: Floats
    cost: Floats

    def only(self, rows: Indices) -> States:
        """Those of these rows."""
        return States(
            self.hosts[rows], self.done[rows], self.room[rows], self.used[rows], self.over[rows], self.cost[rows]
        )


def steps_of(instance: OdpInstance, form: Form) -> tuple[OperatorTurn, ...]:
    """An order in which the frontier stays narrow: of operators that are next the one after which it is least wide."""
    placed: list[int] = []
    steps: list[OperatorTurn] = []
    frontier: tuple[int, ...] = ()
    while len(placed) < instance.count:
        options = []
        for node in range(instance.count):
            if node in placed or any(producer not in placed for producer, _ in instance.inputs[node]):
                continue
            seen = {*placed, node}
            after = tuple(
                operator
                for operator in (*frontier, node)
                if any(other not in seen for other, _ in instance.outputs[operator])
            )
            options.append((len(after), node, after))
        _, node, after = min(options)
        places = {operator: place for place, operator in enumerate((*frontier, node))}
        twins = [place for place, operator in enumerate(frontier) if _alike(instance, form, operator, node)]
        steps.append(
            OperatorTurn(
                node,
                frontier,
                after,
                tuple((places[producer], stream) for producer, stream in instance.inputs[node]),
                tuple(places[operator] for operator in after),
                twins[-1] if twins else None,
            )
        )
        placed.append(node)
        frontier = after
    return tuple(steps)


def _alike(instance: OdpInstance, form: Form, one: int, other: int) -> bool:
    """Whether two operators could change places without any difference."""

    def beside(node: int) -> list[list[tuple[int, float]]]:
        return [
            sorted((end, float(instance.rate[stream])) for end, stream in ends)
            for ends in (instance.inputs[node], instance.outputs[node])
        ]

    return bool(
        instance.demand[one] == instance.demand[other]
        and instance.execution_s[one] == instance.execution_s[other]
        and np.array_equal(instance.candidates[one], instance.candidates[other])
        and np.array_equal(form.node[one], form.node[other])
        and beside(one) == beside(other)
    )


class Frontier:
    """The search, made for one goal. ``fits``: whether the graph is narrow enough for the tables."""

    def __init__(self, goal: Goal) -> None:
        self.goal, self.instance, self.form = goal, goal.instance, goal.form
        instance = self.instance
        self.steps = steps_of(instance, self.form)
        self.node: Floats = np.where(instance.candidates, self.form.node, np.inf)
        widest = max(len({*step.before, step.node}) for step in self.steps)
        self.fits = len(instance.hosts) ** widest <= TABLE
        demands = np.array([instance.demand[step.node] for step in self.steps])
        self.still = np.cumsum(demands[::-1])[::-1] - demands  # what is needed after each step
        self._random = np.random.default_rng(0).integers(1, 2**63, 2 * len(instance.hosts) + widest + 1, np.uint64)

    @cached_property
    def tables(self) -> list[Floats]:
        """After each step, for all hosts of the frontier: the least that operators to come cost (R1)."""
        hosts = len(self.instance.hosts)
        tables: list[Floats] = [np.zeros(())]
        for step in reversed(self.steps):
            axes = {operator: place for place, operator in enumerate((*step.before, step.node))}

            def spread(values: Floats, nodes: Sequence[int], axes: dict[int, int] = axes) -> Floats:
                shape = [1] * len(axes)
                for node in nodes:
                    shape[axes[node]] = hosts
                return values.transpose(np.argsort([axes[node] for node in nodes])).reshape(shape)

            total = spread(self.node[step.node], [step.node]) + spread(tables[-1], step.after)
            for place, stream in step.inputs:
                total = total + spread(self.form.edge[stream], [step.before[place], step.node])
            tables.append(np.broadcast_to(total.min(axis=-1), (hosts,) * len(step.before)))
        return tables[-2::-1]

    @cached_property
    def ahead(self) -> Floats:
        """(n, h) the longest way on from an operator that is done on a host, each consumer where it is nearest (R1)."""
        instance = self.instance
        longest = np.zeros((instance.count, len(instance.hosts)))
        took = np.where(instance.candidates, instance.execution_s[:, None] / instance.speed, np.inf)
        for node in reversed(range(instance.count)):
            for other, _ in instance.outputs[node]:
                np.maximum(
                    longest[node], (instance.ways_s + (took[other] + longest[other])).min(axis=1), out=longest[node]
                )
        return longest

    def solve(self, best: Indices | None = None, widths: Sequence[int] = WIDTHS) -> Solved | None:
        """The optimum, or the best with so many states (R4); None where it found no placement.

        ``best``: a placement that is known.
        """
        where, cost, bound, looked_at = best, math.inf, -math.inf, 0
        if where is not None:
            cost = float(self.goal.costs(where[None])[0])
        for width in widths:
            placement, left_out, rows = self._pass(width, cost)
            looked_at += rows
            if placement is not None:
                value = float(self.goal.costs(placement[None])[0])
                if value < cost:
                    where, cost = placement, value
            bound = max(bound, min(left_out, cost))
            if bound >= cost * (1 - ROUNDING) or left_out > cost:
                break
        if where is None:
            return None
        main = self.goal.cost(where)
        # what decides ties is in the bound as well, and no more than a tie of the cost
        return Solved(where, main, min(main, bound - (cost - main)), "frontier", looked_at)

    def _pass(self, width: int, limit: float) -> tuple[Indices | None, float, int]:
        """The best placement below ``limit`` with at most so many states, the least bound of one left out, states."""
        instance, form = self.instance, self.form
        hosts = len(instance.hosts)
        states = States(
            np.zeros((1, 0), dtype=np.intp),
            np.zeros((1, 0)),
            instance.capacity[None] * (1 + SLACK),
            np.zeros((1, hosts if form.host.any() else 0), dtype=bool),
            np.zeros(1),
            np.zeros(1),
        )
        came: list[tuple[Indices, Indices]] = []
        left_out, looked_at = math.inf, 0
        for number, step in enumerate(self.steps):
            rows, chosen, states, bounds = self._expand(number, step, states, limit)
            looked_at += len(rows)
            if not len(rows):
                return None, left_out, looked_at
            keep = self._best_of_alike(states)
            if len(keep) > width:
                order = np.argpartition(bounds[keep], width)
                left_out = min(left_out, float(bounds[keep[order[width:]]].min()))
                keep = keep[order[:width]]
            states = states.only(keep)
            came.append((rows[keep], chosen[keep]))
        row = int((states.cost + form.response * states.over).argmin())
        where = np.zeros(instance.count, dtype=np.intp)
        for step, (rows, chosen) in zip(reversed(self.steps), reversed(came), strict=True):
            where[step.node] = chosen[row]
            row = int(rows[row])
        return where, left_out, looked_at

    def _expand(
        self, number: int, step: OperatorTurn, states: States, limit: float
    ) -> tuple[Indices, Indices, States, Floats]:
        """Every state with the operator on every candidate where there is room and the bound is below ``limit``: the
        row it came from, the host, the state, the bound.
        """
        instance, form, node = self.instance, self.form, step.node
        options = np.flatnonzero(instance.candidates[node])
        fits = states.room[:, options] >= instance.demand[node]
        if step.twin is not None:  # R3: of operators that are alike, a later one is on no earlier host
            fits &= options >= states.hosts[:, step.twin, None]
        rows, chosen = np.nonzero(fits)
        chosen = options[chosen]
        at = states.hosts[rows]
        cost = states.cost[rows] + form.node[node, chosen]
        for place, stream in step.inputs:
            cost += form.edge[stream][at[:, place], chosen]
        used = states.used[rows]
        if form.host.any():
            cost += np.where(used[np.arange(len(rows)), chosen], 0.0, form.host[chosen])
        every = np.concatenate((at, chosen[:, None]), axis=1)
        after = every[:, step.kept]
        bound = cost + self.tables[number][tuple(after.T)]
        done, over = states.done[rows], states.over[rows]
        if form.response:
            ready = np.zeros(len(rows))
            for place, _ in step.inputs:
                np.maximum(ready, done[:, place] + instance.ways_s[at[:, place], chosen], out=ready)
            now = ready + instance.execution_s[node] / instance.speed[chosen]
            if not instance.outputs[node]:
                over = np.maximum(over, now)
            done = np.concatenate((done, now[:, None]), axis=1)[:, step.kept]
            least = over.copy()
            for place, operator in enumerate(step.after):
                np.maximum(least, done[:, place] + self.ahead[operator][after[:, place]], out=least)
            bound += form.response * least
        else:
            done = np.zeros((len(rows), 0))
        good = np.flatnonzero(bound < limit)
        rows, chosen, after = rows[good], chosen[good], after[good]
        room, used = states.room[rows], used[good]
        index = np.arange(len(rows))
        room[index, chosen] -= instance.demand[node]
        if form.host.any():
            used[index, chosen] = True
        # R2: states that differ only in room that nothing needs have the same room
        np.minimum(room, self.still[number] * (1 + SLACK), out=room)
        return rows, chosen, States(after, done[good], room, used, over[good], cost[good]), bound[good]

    def _best_of_alike(self, states: States) -> Indices:
        """The rows that no other is as good as (R2)."""
        keys = np.concatenate((states.hosts, states.room, states.used), axis=1)
        random = self._random[: keys.shape[1]]
        marks = (np.ascontiguousarray(keys, dtype=np.float64).view(np.uint64) * random).sum(axis=1, dtype=np.uint64)
        value = states.cost + self.form.response * np.maximum(states.over, states.done.max(axis=1, initial=0.0))
        order = np.lexsort((value, marks))
        sorted_marks = marks[order]
        first = np.r_[True, sorted_marks[1:] != sorted_marks[:-1]]
        leader = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        worse = states.cost[order] >= states.cost[leader]
        if self.form.response:
            worse &= states.over[order] >= states.over[leader]
            worse &= (states.done[order] >= states.done[leader]).all(axis=1)
        worse &= (keys[order] == keys[leader]).all(axis=1)  # marks may be equal by chance
        undominated: Indices = order[first | ~worse]
        return undominated
