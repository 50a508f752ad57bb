"""Search for placements whose bytes are cheap, for a task with a wanted rate.

Planners look for fast placements, and see between two hosts the fastest network alone (``with_all_networks``). If the
wanted rate is lower than the fastest placement allows, a slower placement may send fewer bytes over expensive networks.
So a planner is called again with slower links. In the first call, a link is slower by the factor by which its bytes are
dearer than the cheapest bytes. In the second call, it is slower by the square of that factor. Of the plans that keep
the rate, the plan is taken whose bytes cost least over the networks that they would take (``choice``).
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

LEAST_PER_GB = 0.01  # share of the highest price that a free network counts as


def cheaper(task: Task) -> Iterator[Task]:
    """Yield the task with slower links where bytes are dearer, first by the ratio of prices and then by its square.

    Yield nothing if all prices are the same, or if no rate is wanted.
    """
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
    """Return the task with weighted rates. Each link gets the rate of the best network between its hosts.

    ``share``: factor of the rate of every link of a network.
    """
    agreed = {link: LinkEstimate(rate_bps, 0) for link, rate_bps in links_of(task.networks).items()}
    best: dict[Link, LinkEstimate] = {}
    for link, known in {**agreed, **task.view.estimates}.items():
        if link.via == NET or (link.via in task.networks and task.networks[link.via].joins(*link.hosts)):
            pair, rate_bps = Link(*link.hosts), known.rate_bps * share(link)
            if pair not in best or rate_bps > best[pair].rate_bps:
                best[pair] = msgspec.structs.replace(known, rate_bps=rate_bps)
    return task.but(view=task.view.with_estimates(best))


def dollars(task: Task, plan: Plan) -> float:
    """Return the dollars for a partition's bytes at the wanted rate; inf if the plan does not keep the rate."""
    assert task.wanted_hz is not None
    choice = choose(task, plan.dataflow, plan.placement, plan.hints)
    period_s, price = cost_of(task, plan.dataflow, plan.placement, choice, plan.hints)
    return price if period_s * task.wanted_hz <= 1 + GAIN else math.inf
