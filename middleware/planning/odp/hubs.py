"""Optimum of fat graphs: every operator in the middle takes from one source and feeds one sink.

The source and the sink are the hubs. If the hosts of both hubs are fixed, the placement of the operators in the middle
is an assignment to hosts. The cost of a middle operator on a host, and the length of the path through the operator,
then do not depend on the remaining operators. Operators only compete for room: every operator takes one place.

If the operators are alike, sorting gives the least sum of costs for all hosts of the hubs at once. Sorting also gives
the least threshold, which is the least longest path. The total of both bounds the cost (R1). Pairs of hub hosts are
tried in the order of their bounds, until no further pair can be better. For one pair, thresholds are tried from the
least on. The least sum over the hosts within a threshold (R2) is found by sorting, or as an assignment if operators
differ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from thalweg.middleware.planning.odp.instance import SLACK, Floats, Indices
from thalweg.middleware.planning.odp.objective import Goal
from thalweg.middleware.planning.odp.solved import Solved

ROUNDING = 1e-12


class _Fat(NamedTuple):
    """Goal whose graph is fat, with the numbers of the operators and of the streams into and out of the middle.

    ``alike``: whether the operators in the middle are alike.
    """

    goal: Goal
    source: int
    middle: Indices
    sink: int
    into: Indices
    out: Indices
    alike: bool

    def sums(self, number: int, a: Indices, b: Indices) -> Floats:
        """Return the cost of middle operator ``number`` on every host, (pairs, h), with the hubs on ``a`` and ``b``.

        inf: the host is no candidate.
        """
        form, node = self.goal.form, self.middle[number]
        allowed = np.where(self.goal.instance.candidates[node], form.node[node], np.inf)
        return np.asarray(form.edge[self.into[number]][a] + form.edge[self.out[number]].T[b] + allowed)

    def ways_s(self, number: int, a: Indices, b: Indices) -> Floats:
        """Return the seconds from the source's host through middle operator ``number`` to the sink's host.

        The result is (pairs, h), for the operator on every host. inf: the host is no candidate.
        """
        instance, node = self.goal.instance, self.middle[number]
        took = np.where(instance.candidates[node], instance.execution_s[node] / instance.speed, np.inf)
        return np.asarray(instance.ways_s[a] + instance.ways_s.T[b] + took)


def through_hubs(goal: Goal) -> Solved | None:
    """Return the optimum. None: the method does not apply to the problem, or no placement fits."""
    fat = _fat(goal)
    if fat is None:
        return None
    instance, form = goal.instance, goal.form
    hubs = fat.source, fat.sink
    a, b = (grid.ravel() for grid in np.meshgrid(*(np.flatnonzero(instance.candidates[hub]) for hub in hubs)))
    left = np.repeat(instance.capacity[None] * (1 + SLACK), len(a), axis=0)
    pairs, count = np.arange(len(a)), len(fat.middle)
    for hub, hosts in zip(hubs, (a, b), strict=True):
        left[pairs, hosts] -= instance.demand[hub]
    demand = instance.demand[fat.middle[0]]
    places = np.minimum(np.floor(left / demand), count) if demand else np.full(left.shape, float(count))
    fixed = form.node[fat.source][a] + form.node[fat.sink][b]
    took = sum(instance.execution_s[hub] / instance.speed[hosts] for hub, hosts in zip(hubs, (a, b), strict=True))
    least_sum, least_way = _least(fat, a, b, places)
    fits = (left >= 0).all(axis=1) & np.isfinite(least_sum) & np.isfinite(least_way)
    bounds = np.where(fits, fixed + least_sum + form.response * (took + np.where(fits, least_way, 0.0)), np.inf)
    cost, where, looked_at = math.inf, None, 0
    for pair in np.argsort(bounds, kind="stable").tolist():
        if not bounds[pair] < cost * (1 - ROUNDING):
            break
        looked_at += 1
        base = float(fixed[pair] + form.response * took[pair])
        value, middle = _assign(fat, a[pair], b[pair], places[pair], cost - base)
        if middle is not None and base + value < cost:
            cost, where = base + value, np.zeros(instance.count, dtype=np.intp)
            where[fat.source], where[fat.sink], where[fat.middle] = a[pair], b[pair], middle
    if where is None:
        return None
    main = goal.cost(where)
    return Solved(where, main, main, "hubs", looked_at)


def _fat(goal: Goal) -> _Fat | None:
    instance, form, count = goal.instance, goal.form, goal.instance.count
    source, sink = 0, count - 1
    middle = np.arange(1, count - 1)
    streams = {(a, b): number for number, (a, b) in enumerate(instance.edges.tolist())}
    wanted = {(source, node) for node in middle.tolist()} | {(node, sink) for node in middle.tolist()}
    demands = instance.demand[middle]
    if (
        not len(middle)
        or streams.keys() != wanted
        or len(streams) != len(instance.edges)
        or instance.limited
        or form.host.any()
        or not (demands == demands[0]).all()
    ):
        return None
    into, out = (np.array([streams[pair] for pair in pairs], dtype=np.intp) for pairs in (
        [(source, node) for node in middle.tolist()], [(node, sink) for node in middle.tolist()]))  # fmt: skip
    alike = all(
        (values == values[:1]).all()
        for values in (
            form.node[middle],
            form.edge[into],
            form.edge[out],
            instance.execution_s[middle],
            instance.candidates[middle],
        )
    )
    return _Fat(goal, source, middle, sink, into, out, alike)


def _least(fat: _Fat, a: Indices, b: Indices, places: Floats) -> tuple[Floats, Floats]:
    """Return bounds (pairs,) on the sum of costs in the middle, and on the longest path (R1).

    If the operators are alike, each bound alone is exact.
    """
    count, pairs = len(fat.middle), np.arange(len(a))[:, None]
    if fat.alike:
        sums, ways = fat.sums(0, a, b), fat.ways_s(0, a, b)
    else:
        sums, ways = np.full(places.shape, np.inf), np.full(places.shape, np.inf)
        total, longest = np.zeros(len(a)), np.zeros(len(a))
        for number in range(count):
            own, way = (np.where(places > 0, measure(number, a, b), np.inf) for measure in (fat.sums, fat.ways_s))
            total, longest = total + own.min(axis=1), np.maximum(longest, way.min(axis=1))
            np.minimum(sums, own, out=sums)
            np.minimum(ways, way, out=ways)
    order = np.argsort(ways, axis=1)
    enough = np.cumsum(places[pairs, order], axis=1) >= count
    least_way = np.where(enough[:, -1], ways[pairs[:, 0], order[pairs[:, 0], enough.argmax(axis=1)]], np.inf)
    order = np.argsort(sums, axis=1)
    room = places[pairs, order]
    assigned = np.clip(count - (np.cumsum(room, axis=1) - room), 0, room)
    least_sum = np.where(assigned > 0, sums[pairs, order], 0.0)
    least_sum = (least_sum * assigned).sum(axis=1)
    if not fat.alike:
        least_sum, least_way = np.maximum(least_sum, total), np.maximum(least_way, longest)
    return least_sum, least_way


def _assign(fat: _Fat, a: int, b: int, places: Floats, limit: float) -> tuple[float, Indices | None]:
    """Return the least sum of the costs and the longest path (R2), and the hosts of the middle.

    If no assignment is below ``limit``, the result is the limit and None.
    """
    pair, response = (np.array([a]), np.array([b])), fat.goal.form.response
    if fat.alike:
        ways = fat.ways_s(0, *pair)
        sums = fat.sums(0, *pair)
    else:
        numbers = range(len(fat.middle))
        ways, sums = (
            np.concatenate([measure(number, *pair) for number in numbers]) for measure in (fat.ways_s, fat.sums)
        )
    least, middle = limit, None
    thresholds = np.unique(ways[np.isfinite(ways)]) if response else np.array([np.inf])
    low, high = 0, len(thresholds)  # bisection to the first threshold within which every operator has a place
    while low < high:
        half = (low + high) // 2
        if _filled(fat, np.where(ways <= thresholds[half], 0.0, np.inf), places) is None:
            low = half + 1
        else:
            high = half
    free = _filled(fat, sums, places)
    if free is None or low == len(thresholds):
        return limit, None
    rest, _ = free
    for threshold in thresholds[low:]:
        longest = response * float(threshold) if response else 0.0
        if longest + rest >= least:
            break
        assignment = _filled(fat, np.where(ways <= threshold, sums, np.inf), places)
        if assignment is not None and longest + assignment[0] < least:
            least, middle = longest + assignment[0], assignment[1]
    return least, middle


def _filled(fat: _Fat, sums: Floats, places: Floats) -> tuple[float, Indices] | None:
    """Return the least sum of costs with every operator of the middle on a host, and the hosts.

    None: not every operator has room.
    """
    count = len(fat.middle)
    if fat.alike:
        order = np.argsort(sums[0], kind="stable")
        hosts = np.repeat(order, places[order].clip(0).astype(np.intp))[:count]
        total = float(sums[0, hosts].sum())
        return (total, hosts) if len(hosts) == count and math.isfinite(total) else None
    from scipy.optimize import linear_sum_assignment

    slots = np.repeat(np.arange(len(places)), places.clip(0).astype(np.intp))
    try:
        rows, columns = linear_sum_assignment(sums[:, slots])
    except ValueError:  # scipy found no feasible assignment
        return None
    if len(rows) < count:
        return None
    return float(sums[rows, slots[columns]].sum()), slots[columns]
