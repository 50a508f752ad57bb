"""Optimum of a chain of equal operators on equal hosts: the cheapest walk over enough hosts.

If at most c operators fit on a host, a chain of n operators is placed by a walk over the hosts. The walk has at least
⌈n/c⌉ different hosts, at most n visits, and at most c visits to each host. Every visit has an operator, and the
remaining operators go wherever there is room. If links break the triangle inequality, the cheapest walk may return to a
host, or use more hosts than needed.

If every link is replaced by the cheapest connection between its ends, a cheapest walk is a path over exactly ⌈n/c⌉
different hosts. The reason is that leaving out repeated hosts, and hosts beyond this number, costs nothing. So no walk
costs less than the cheapest such path (R1). If this path, written out, has no more visits than allowed, it is the
optimum. Otherwise the method claims nothing.

The path is searched host by host. Among paths over the same hosts with the same end, the cheapest stays. The bound of
the rest (R2) is the cheapest walk with as many links, in which every visit additionally costs the price of the host.
The prices of the hosts that were not visited are subtracted. This is Lagrange's relaxation of *no host twice*. Prices
are found by subgradient steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from thalweg.middleware.planning.odp.instance import SLACK, Floats, Indices
from thalweg.middleware.planning.odp.objective import Goal
from thalweg.middleware.planning.odp.solved import Solved

WIDTHS = (100, 2_000, 50_000, 1_500_000)  # numbers of paths that are kept, one pass each
STEPS = 150  # subgradient steps of the prices
ROUNDING = 1e-12


def walk(goal: Goal, widths: Sequence[int] = WIDTHS) -> Solved | None:
    """Return the optimum, or the best placement with these numbers of paths and a bound.

    None: the method does not apply to the problem.
    """
    instance, form = goal.instance, goal.form
    order = _chain(goal)
    if order is None:
        return None
    count, hosts = instance.count, len(instance.hosts)
    demand = instance.demand[0]
    fitting = int(min(instance.capacity[0] * (1 + SLACK) / demand, count)) if demand else count
    if not fitting or hosts * fitting < count:
        return None
    links = form.edge[0] + form.response * instance.ways_s if count > 1 else np.zeros((hosts, hosts))
    direct = fitting == 1  # every visit is on a new host, so connections over a third host are out
    ways, over = (links, np.zeros_like(links, dtype=np.intp) - 1) if direct else _cheapest_ways(links)
    path, cost, bound, looked_at = _search(ways, math.ceil(count / fitting), widths)
    visits = _written_out(path, over)
    times = np.bincount(visits, minlength=hosts)
    if len(visits) > count or times.max() > fitting:
        return None
    where = np.zeros(count, dtype=np.intp)
    where[order] = np.repeat(visits, _lengths(visits, count, fitting))
    main = goal.cost(where)
    return Solved(where, main, main - max(0.0, cost - bound), "walks", looked_at)


def _chain(goal: Goal) -> Indices | None:
    """Return the operators in chain order. None: there is no chain, or operators or hosts differ."""
    instance, form = goal.instance, goal.form
    inputs, outputs = ([len(streams) for streams in ends] for ends in (instance.inputs, instance.outputs))
    node = form.node + form.response * instance.execution_s[:, None] / instance.speed
    alike = (
        len(instance.edges) == instance.count - 1
        and max(inputs) <= 1
        and max(outputs) <= 1
        and instance.candidates.all()
        and not instance.limited
        and not form.host.any()
        and (instance.demand == instance.demand[0]).all()
        and (instance.capacity == instance.capacity[0]).all()
        and (node == node[:, :1]).all()
        and (form.edge == form.edge[:1]).all()
    )
    if not alike:
        return None
    chain = [inputs.index(0)]
    while instance.outputs[chain[-1]]:
        chain.append(instance.outputs[chain[-1]][0][0])
    return np.array(chain, dtype=np.intp)


def _cheapest_ways(links: Floats) -> tuple[Floats, Indices]:
    """Return the costs (h, h) of the cheapest connections of hosts, and (h, h) a host between the two.

    The host between is -1 if the connection is the link itself.
    """
    ways, over = links.copy(), np.full(links.shape, -1, dtype=np.intp)
    for middle in range(len(links)):
        through = ways[:, middle, None] + ways[middle]
        shorter = through < ways * (1 - ROUNDING)
        ways[shorter], over[shorter] = through[shorter], middle
    return ways, over


def _written_out(path: Sequence[int], over: Indices) -> list[int]:
    """Return every host on the cheapest connections between the hosts of the path, in order."""
    visits = [path[0]]
    for target in path[1:]:
        ahead = [target]
        while ahead:
            middle = int(over[visits[-1], ahead[-1]])
            if middle < 0:
                visits.append(ahead.pop())
            else:
                ahead.append(middle)
    return visits


def _lengths(visits: Sequence[int], count: int, fitting: int) -> list[int]:
    """Return the number of operators of each visit: one, and as many more as the host has room for, in turn."""
    times = np.bincount(visits)
    lengths, left = [1] * len(visits), count - len(visits)
    for place, host in enumerate(visits):
        more = min(left, fitting - int(times[host]))
        lengths[place] += more
        times[host] += more
        left -= more
    return lengths


def _prices(ways: Floats, links: int, target: float) -> Floats:
    """Return prices (h,) of hosts that make the bound of walks with so many ``links`` largest (R2), or nearly so.

    ``target``: cost of the best known path.
    """
    hosts = len(ways)
    prices, best, least = np.zeros(hosts), np.zeros(hosts), -math.inf
    apart = np.where(np.eye(hosts, dtype=bool), np.inf, ways)
    step = 1.0
    for _ in range(STEPS):
        rest, nexts = prices.copy(), []
        for _ in range(links):
            through = apart + rest
            nexts.append(through.argmin(axis=1))
            rest = prices + through.min(axis=1)
        at = int(rest.argmin())
        bound = float(rest[at] - prices.sum())
        if bound > least:
            least, best = bound, prices
        else:
            step *= 0.95
        visits = np.zeros(hosts)
        visits[at] += 1
        for following in reversed(nexts):
            at = int(following[at])
            visits[at] += 1
        slope = visits - 1
        slope[(prices <= 0) & (slope < 0)] = 0
        if not slope.any():
            break
        prices = np.maximum(0.0, prices + step * max(target - bound, ROUNDING) / float(slope @ slope) * slope)
    return best


def _search(ways: Floats, count: int, widths: Sequence[int]) -> tuple[list[int], float, float, int]:
    """Return the cheapest path over ``count`` different hosts, its cost, a bound, and the number of evaluated paths."""
    hosts, looked_at = len(ways), 0
    if count == 1:
        return [0], 0.0, 0.0, 1
    best, cost, bound = list[int](), math.inf, -math.inf
    prices = np.zeros(hosts)
    for number, width in enumerate(widths):
        path, value, left_out, rows = _pass(ways, count, prices, width, cost)
        looked_at += rows
        if path and value < cost:
            best, cost = path, value
        bound = max(bound, min(left_out, cost))
        if bound >= cost * (1 - ROUNDING):
            break
        if not number:
            prices = _prices(ways, count - 1, cost)
    return best, cost, bound, looked_at


def _pass(ways: Floats, count: int, prices: Floats, width: int, limit: float) -> tuple[list[int], float, float, int]:
    """Return the cheapest path below ``limit``, its cost, the least bound of an omitted path, and the number of paths.

    At most ``width`` paths are kept after each step. The path is empty if none is below the limit.
    """
    hosts = len(ways)
    apart = np.where(np.eye(hosts, dtype=bool), np.inf, ways)
    rests = [np.zeros(hosts)]  # cheapest walks with so many further links, by their first host
    for _ in range(count - 1):
        rests.append((apart + prices + rests[-1]).min(axis=1))
    marks = np.random.default_rng(0).integers(1, 2**63, (2, hosts), np.uint64)
    ends, costs, seen = np.arange(hosts), np.zeros(hosts), np.eye(hosts, dtype=bool)
    mark, owed = marks[0].copy(), prices.sum() - prices
    came: list[tuple[Indices, Indices]] = [(ends, ends)]
    left_out, looked_at = math.inf, hosts
    for rest in reversed(rests[:-1]):
        total = costs[:, None] + ways[ends]
        bounds = total + rest
        bounds += prices  # price of the host itself, at its first visit
        bounds -= owed[:, None]
        bounds[seen] = np.inf
        rows, nexts = np.nonzero(bounds < limit)
        looked_at += len(rows)
        if not len(rows):
            return [], math.inf, left_out, looked_at
        costs, bounds = total[rows, nexts], bounds[rows, nexts]
        own = mark[rows] + marks[0][nexts]
        both = own + marks[1][nexts]
        order = np.lexsort((costs, both))
        first = np.r_[True, both[order[1:]] != both[order[:-1]]]
        leader = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        # marks may be equal by chance: then both paths stay
        chance = (nexts[order] != nexts[leader]) | (rows[order] != rows[leader]) & (
            seen[rows[order]] | (np.arange(hosts) == nexts[order, None])
            != seen[rows[leader]] | (np.arange(hosts) == nexts[leader, None])
        ).any(axis=1)
        keep = order[first | chance]
        if len(keep) > width:
            nearest = np.argpartition(bounds[keep], width)
            left_out = min(left_out, float(bounds[keep[nearest[width:]]].min()))
            keep = keep[nearest[:width]]
        rows, ends = rows[keep], nexts[keep]
        costs, mark, owed = costs[keep], own[keep], owed[rows] - prices[ends]
        seen = seen[rows]
        seen[np.arange(len(keep)), ends] = True
        came.append((rows, ends))
    row = int(costs.argmin())
    value, path = float(costs[row]), []
    for rows, ends in reversed(came):
        path.append(int(ends[row]))
        row = int(rows[row])
    return path[::-1], value, left_out, looked_at
