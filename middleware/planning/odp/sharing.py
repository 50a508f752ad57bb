"""Placements where a partition that several consumers on one host take goes there once, as it does while data flows.

The paper's streams are each for themselves: (6) to (8) count what two consumers on one host take twice. What is sent
once depends on where consumers are, so a placement is found by three steps.

R1. With every stream's share of what its producer sends as its rate no placement is priced above what it costs: the
    optimum of that is the bound. Bandwidths (17) are kept by the paper's streams, so what is found keeps them by far.
R2. From that optimum, from that of the paper's streams and from the present placement a descent goes on by true costs:
    an operator moves, or all on one host that may, or all consumers of a producer.
R3. The best of all is taken; it is proven where it meets the bound.
"""

from __future__ import annotations

import msgspec
import numpy as np

from thalweg.middleware.planning.odp.instance import Floats, Indices
from thalweg.middleware.planning.odp.objective import Form, Goal
from thalweg.middleware.planning.odp.solve import OdpLimits, solve
from thalweg.middleware.planning.odp.solved import Solved

ROUNDS = 200  # of a descent at most
LEAST = 1e-9  # of a cost, that a step of a descent saves


def costs_as_sent(goal: Goal, where: Indices, form: Form | None = None) -> Floats:
    """(rows,) ``form``, by default that with what decides ties, of many placements (rows, n): of the streams of one
    producer to one host the dearest counts."""
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
    """The best placement that was found, with its bound; errors as ``solve``."""
    instance = goal.instance
    sent = np.bincount(instance.edges[:, 0], minlength=instance.count)
    shares = msgspec.structs.replace(instance, rate=instance.rate / sent[instance.edges[:, 0]])
    # R1: no placement is priced above its cost, so the optimum is a bound
    least = solve(msgspec.structs.replace(goal, instance=shares), effort, start)
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
    """The placement from which no step leads to a better one."""
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
