"""Placements under shared transfers: consumers on one host get a partition of their producer once, as while data flows.

The paper counts every stream separately. (6) to (8) count twice what two consumers on one host take. The shared
transfers depend on the hosts of the consumers, so a placement is found in three steps.

R1. In the first problem, the costs of a stream are divided by the number of its producer's streams. A sum of such costs
    is never above the true costs, so the optimum is a bound. Bandwidths (17) are kept with the paper's rates, so the
    result keeps the bandwidths with room to spare.
R2. A descent by true costs starts from this optimum, from the optimum for the paper's streams, and from the present
    placement. In a step an operator moves, or every operator of one host that may move, or all consumers of a producer.
R3. The best of these results is returned. The result is proven if its cost meets the bound.
"""

from __future__ import annotations

import msgspec
import numpy as np

from thalweg.middleware.planning.odp.instance import Floats, Indices
from thalweg.middleware.planning.odp.objective import Form, Goal
from thalweg.middleware.planning.odp.solve import OdpLimits, solve
from thalweg.middleware.planning.odp.solved import Solved

ROUNDS = 200  # steps of a descent, at most
LEAST = 1e-9  # share of the cost that a step of a descent saves, at least


def costs_as_sent(goal: Goal, where: Indices, form: Form | None = None) -> Floats:
    """Return the costs (rows,) of many placements (rows, n), if a producer sends its output once to each host.

    Among the streams of one producer to one host, the most expensive stream counts. ``form``: by default the goal's
    form, with the terms that decide ties.
    """
    form = goal.form if form is None else form
    total, edges = goal.costs(where, form), goal.instance.edges
    for producer in np.flatnonzero(np.bincount(edges[:, 0]) > 1).tolist() if len(edges) else ():
        streams = np.flatnonzero(edges[:, 0] == producer)
        targets = where[:, edges[streams, 1]]
        costs = form.edge[streams, where[:, producer, None], targets]
        alike = targets[:, :, None] == targets[:, None, :]
        most = np.where(alike, costs[:, None, :], 0.0).max(axis=2)
        total += (most / alike.sum(axis=2) - costs).sum(axis=1)
    return total


def solve_as_sent(goal: Goal, effort: OdpLimits, start: Indices | None = None) -> Solved:
    """Return the best placement that was found for shared transfers, with a bound.

    ``start``: the present placement. Errors are as in ``solve``.
    """
    instance = goal.instance
    sent = np.bincount(instance.edges[:, 0], minlength=instance.count)
    # R1: with shares, the costs are never above the true costs, so the optimum is a bound
    least = solve(msgspec.structs.replace(goal, shares=1.0 / sent[instance.edges[:, 0]]), effort, start)
    if sent.max(initial=0) < 2:
        return least
    own = solve(goal, effort, start)
    starts = [
        placement
        for placement in (least.where, own.where, start)
        if placement is not None and not instance.shortfall(placement)
    ]
    placements = np.array([_descended(goal, placement) for placement in starts])  # R2: descend by true costs
    where: Indices = placements[int(costs_as_sent(goal, placements).argmin())]
    cost = float(costs_as_sent(goal, where[None], goal.main)[0])
    return Solved(where, cost, min(cost, least.bound), "as sent", least.looked_at + own.looked_at)


def _descended(goal: Goal, where: Indices) -> Indices:
    """Return the placement at the end of a descent, where no step leads to a better placement."""
    instance, hosts = goal.instance, np.arange(len(goal.instance.hosts))
    consumers = [[node for node, _ in outputs] for outputs in instance.outputs]
    cost = float(costs_as_sent(goal, where[None])[0])
    for _ in range(ROUNDS):
        groups = [[node] for node in range(instance.count)] + [siblings for siblings in consumers if len(siblings) > 1]
        groups += [np.flatnonzero(where == host).tolist() for host in hosts]
        rows = np.repeat(where[None], len(groups) * len(hosts), axis=0).reshape(len(groups), len(hosts), -1)
        for number, group in enumerate(groups):
            for node in group:
                allowed = instance.candidates[node]
                rows[number, allowed, node] = hosts[allowed]
        options = rows.reshape(-1, instance.count)
        options = options[instance.lacks(options) == 0]
        costs = costs_as_sent(goal, options)
        best = int(costs.argmin())
        if not costs[best] < cost * (1 - LEAST):
            break
        where, cost = options[best], float(costs[best])
    return where
