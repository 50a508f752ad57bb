"""Optimum of narrow graphs: operators are placed one after the other, and equal states are kept once.

Producers come before consumers. The *frontier* consists of the placed operators that have consumers still to be placed.
A state holds the hosts of the frontier's operators, the times at which these operators are done, the room left on
hosts, and the cost so far. The states after the same number of operators are kept together, as arrays. In every state
the next operator is put on each of its candidates.

R1. For every state a lower bound of the cost of the operators to come is known. For additive figures, the bound is the
    least cost without capacities, for all hosts of the frontier: a table, made by dynamic programming backwards. For R,
    the bound is the longest path onwards, with each consumer on the nearest host. A state is dropped if the cost so far
    and the bound are not below the cost of the best known placement.
R2. States are alike if they have the same frontier on the same hosts, and the same room. A state is dropped if the best
    of the states alike is as good in the cost so far and in every arrival time. Room above the remaining demand is no
    room.
R3. Of operators that are alike (same needs, same producers, same consumers, same rates), a later one is on no earlier
    host.
R4. At most a given number of states is kept, the most promising: first few, and then more. The least bound of the
    omitted states is remembered, so the answer is proven, or the gap is known. If no omitted state could be better, the
    answer is the optimum.
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

WIDTHS = (200, 4_000, 60_000, 400_000)  # numbers of states that are kept, one pass each
TABLE = 1 << 21  # entries of the largest table
ROUNDING = 1e-12  # share of a cost


class OperatorTurn(NamedTuple):
    """Turn of one operator in the search.

    - ``before``, ``after``: the frontier before and after the turn.
    - ``inputs``: places of the operator's producers in ``before``, with the numbers of the streams.
    - ``kept``: places of the operators of ``after``. The operator itself has the place behind ``before``.
    - ``twin``: place of the last operator of ``before`` that is alike. None: no operator is alike.
    """

    node: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    twin: int | None


class States(NamedTuple):
    """States of the search, as arrays with a row for every state.

    - ``hosts``: hosts of the frontier's operators.
    - ``done``: times at which these operators are done.
    - ``room``: room left on hosts.
    - ``used``: hosts in use.
    - ``over``: R of the paths that are complete.
    - ``cost``: cost so far without R.
    """

    hosts: Indices
    done: Floats
    room: Floats
    used: npt.NDArray[np.bool_]
    over: Floats
    cost: Floats

    def only(self, rows: Indices) -> States:
        """Return the states of these rows."""
        return States(
            self.hosts[rows], self.done[rows], self.room[rows], self.used[rows], self.over[rows], self.cost[rows]
        )


def steps_of(instance: OdpInstance, form: Form) -> tuple[OperatorTurn, ...]:
    """Return the turns of all operators, in an order in which the frontier stays narrow.

    Among the operators that may come next, the search takes the operator after which the frontier is narrowest.
    """
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
    """Return whether two operators could change places without a difference."""

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
    """Search for the optimum of one goal. ``fits``: whether the graph is narrow enough for the tables."""

    def __init__(self, goal: Goal) -> None:
        self.goal, self.instance, self.form = goal, goal.instance, goal.form
        instance = self.instance
        self.steps = steps_of(instance, self.form)
        self.node: Floats = np.where(instance.candidates, self.form.node, np.inf)
        widest = max(len({*step.before, step.node}) for step in self.steps)
        self.fits = len(instance.hosts) ** widest <= TABLE
        demands = np.array([instance.demand[step.node] for step in self.steps])
        self.still = np.cumsum(demands[::-1])[::-1] - demands  # demand of the operators after each step
        self._random = np.random.default_rng(0).integers(1, 2**63, 2 * len(instance.hosts) + widest + 1, np.uint64)

    @cached_property
    def tables(self) -> list[Floats]:
        """Least costs of the operators to come, after each step, for all hosts of the frontier (R1)."""
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
        """(n, h) longest paths onwards from an operator done on a host, with consumers on the nearest hosts (R1)."""
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
        """Return the optimum, or the best placement with these numbers of states (R4). None: no placement was found.

        ``best``: a placement that is known. ``widths``: the numbers of states, one pass each.
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
        # the bound includes the terms that decide ties, which are no more than a tie of the cost
        return Solved(where, main, min(main, bound - (cost - main)), "frontier", looked_at)

    def _pass(self, width: int, limit: float) -> tuple[Indices | None, float, int]:
        """Return the best placement below ``limit``, the least bound of an omitted state, and the number of new states.

        At most ``width`` states are kept after each step. The placement is None if no state is left.
        """
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
        """Put the operator in every state on every candidate that has room, and drop states not below ``limit``.

        Return for every new state the row of the state before, the host, the state and its bound.
        """
        instance, form, node = self.instance, self.form, step.node
        options = np.flatnonzero(instance.candidates[node])
        fits = states.room[:, options] >= instance.demand[node]
        if step.twin is not None:  # R3: of two operators that are alike, the later is on no earlier host
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
        # R2: room that no operator needs makes no difference between states
        np.minimum(room, self.still[number] * (1 + SLACK), out=room)
        return rows, chosen, States(after, done[good], room, used, over[good], cost[good]), bound[good]

    def _best_of_alike(self, states: States) -> Indices:
        """Return the rows of the states that stay (R2): of states alike the best, and states better in some figure."""
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
        worse &= (keys[order] == keys[leader]).all(axis=1)  # marks may be equal by chance: compare the states
        undominated: Indices = order[first | ~worse]
        return undominated
