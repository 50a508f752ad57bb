"""Placements whose bytes are cheap: what a planner is asked besides, where a rate is wanted and no more.

Planners look for what is fast, and see of two hosts the fastest network between them (``with_all_networks``). Where a
rate is wanted that is less than that, a slower placement may send less over what is dear. So a planner is asked again
with links that are as much slower as their bytes are dearer than the cheapest ones, and much slower than that; of
what it finds, the placement is taken whose bytes cost least over the networks that they would take (``choice``), of
those that keep the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from thalweg.middleware.network.networks import links_of
from thalweg.middleware.network.view import NET, Link, LinkEstimate
from thalweg.middleware.planning.problem.choice import GAIN, choose, cost_of
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task

LEAST_PER_GB = 0.01  # a share of the dearest price, for one that costs nothing


def cheaper(task: Task) -> Iterator[Task]:
    """The same task with slower links where these are dearer; nothing where prices are alike, or no rate is wanted."""
    per_gb = {via: network.tariff.per_gb for via, network in task.networks.items()}
    per_gb.setdefault(NET, 0.0)
    if task.wanted_hz is None or len({*per_gb.values()}) < 2:
        return
    least = max(min(per_gb.values()), LEAST_PER_GB * max(per_gb.values()))

    def cheapness(link: Link) -> float:
        return least / max(least, per_gb[link.via])

    yield _weighed(task, cheapness)
    yield _weighed(task, lambda link: cheapness(link) ** 2)


def _weighed(task: Task, share: Callable[[Link], float]) -> Task:
    """Between two hosts what the best network carries, where each carries such a share of what it does."""
    agreed = {link: LinkEstimate(rate_bps, 0) for link, rate_bps in links_of(task.networks).items()}
    best: dict[Link, LinkEstimate] = {}
    for link, known in {**agreed, **task.view.estimates}.items():
        if link.via == NET or (link.via in task.networks and task.networks[link.via].joins(*link.hosts)):
            pair, rate_bps = Link(*link.hosts), known.rate_bps * share(link)
            if pair not in best or rate_bps > best[pair].rate_bps:
                best[pair] = msgspec.structs.replace(known, rate_bps=rate_bps)
    return task.but(view=task.view.with_estimates(best))


def dollars(task: Task, plan: Plan) -> float:
    """What a partition's bytes cost, at the wanted rate; inf where the plan does not keep that."""
    assert task.wanted_hz is not None
    choice = choose(task, plan.dataflow, plan.placement, plan.hints)
    period_s, price = cost_of(task, plan.dataflow, plan.placement, choice, plan.hints)
    return price if period_s * task.wanted_hz <= 1 + GAIN else math.inf
