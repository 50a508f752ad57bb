"""The optimum of a chain of operators that are alike on hosts that are alike: the cheapest way over enough hosts.

Where at most c operators fit on a host, a chain of n is a walk over the hosts with at least ⌈n/c⌉ different ones, n
visits at most, and c at most of each host: every visit has an operator, and the others go wherever there is room. A
walk may come back to a host, and over more hosts than needed, where links break the triangle inequality. With every
link replaced by the cheapest way between its ends, some cheapest walk is a path over exactly ⌈n/c⌉ different hosts:
leaving out what comes again, and what is beyond those, costs nothing. So no walk costs less than the cheapest such path
(R1), and if that, written out, has no more visits than allowed, it is the optimum; else nothing is claimed.

The path is searched host by host. Of paths over the same hosts with the same end the cheapest stays. The bound of the
rest is the cheapest walk of as many links in which every visit costs its host's price besides, less the prices of the
hosts that were not visited (R2): Lagrange's relaxation of *no host twice*. Prices are found by subgradient steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from thalweg.middleware.planning.odp.instance import SLACK, Floats, Indices
from thalweg.middleware.planning.odp.objective import Goal
from thalweg.middleware.planning.odp.solved import Solved

WIDTHS = (100, 2_000, 50_000, 1_500_000)  # paths that are kept
STEPS = 150  # of the prices
ROUNDING = 1e-12


def walk(goal: Goal, widths: Sequence[int] = WIDTHS) -> Solved | None:
    """The optimum, or the best with so many paths and a bound; None where this way says nothing of the problem."""
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
    direct = fitting == 1  # no host twice: nothing is on the way
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
    """The operators one after the other, where they are a chain and alike, and so are hosts; else None."""
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
    """(h, h) what the cheapest way between two hosts costs, and a host in between on it, -1 where it is the link."""
    ways, over = links.copy(), np.full(links.shape, -1, dtype=np.intp)
    for middle in range(len(links)):
        through = ways[:, middle, None] + ways[middle]
        shorter = through < ways * (1 - ROUNDING)
        ways[shorter], over[shorter] = through[shorter], middle
    return ways, over


def _written_out(path: Sequence[int], over: Indices) -> list[int]:
    """All hosts on the cheapest ways between those of the path, one after the other."""
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
    """How many operators each visit has: one, and as many more as its host has room for, in turn."""
    times = np.bincount(visits)
    lengths, left = [1] * len(visits), count - len(visits)
    for place, host in enumerate(visits):
        more = min(left, fitting - int(times[host]))
        lengths[place] += more
        times[host] += more
        left -= more
    return lengths


def _prices(ways: Floats, links: int, target: float) -> Floats:
    """(h,) what makes the bound of walks with so many links largest (R2), or nearly so."""
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
    """The cheapest path over so many different hosts, its cost, a bound on it, and how many were looked at."""
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
    """The cheapest path below ``limit`` with at most so many kept, its cost, the least bound of one left out, rows."""
    hosts = len(ways)
    apart = np.where(np.eye(hosts, dtype=bool), np.inf, ways)
    rests = [np.zeros(hosts)]  # of walks with so many more links, by where they begin
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
        bounds += prices  # of the host itself, visited for the first time
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
        # marks may be equal by chance, of which nothing may come
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
