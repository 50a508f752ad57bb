"""Planning with knowledge fetched on demand: call the planner, measure the links that it lacks, and plan again.

Planning is cheap and probing is not, so a planner simply starts over with all that is known by then. Pruning never
changes the result. The plan is therefore the plan that full knowledge would have given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec

from thalweg.middleware.network.at_once import AtOnce, slowest
from thalweg.middleware.network.place import UNPLACED, Place
from thalweg.middleware.network.view import (
    LatenciesNeeded,
    Latency,
    Link,
    LinkEstimate,
    LinksNeeded,
    NetworkView,
    PlacesNeeded,
    links_between,
)
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.planner import Planner, ask_planner
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task

UNUSABLE = LinkEstimate(0.0, count=0)  # a link whose probe failed: no plan may rely on the link
UNHEARD = Latency(math.inf, count=0)  # a link whose latency could not be measured
Probe = Callable[[frozenset[Link]], Mapping[Link, LinkEstimate]]
Sound = Callable[[frozenset[Link]], Mapping[Link, Latency]]
Find = Callable[[frozenset[Link]], Mapping[str, Place]]
Answers = Mapping[Link, LinkEstimate] | Mapping[Link, Latency] | Mapping[str, Place]


class Unheard(frozenset[Link]):
    """Links of which the planner needs the latency, not the bandwidth."""


class Unplaced(frozenset[Link]):
    """Links whose source hosts are to report their network coordinates."""


KINDS: Mapping[type[LinksNeeded], type[frozenset[Link]]] = {LatenciesNeeded: Unheard, PlacesNeeded: Unplaced}


class ProbedPlan(msgspec.Struct, frozen=True):
    """Plan with the probing that led to it: the links asked for, and the number of rounds.

    - ``asked``: links whose bandwidth or latency was asked for.
    - ``view``: knowledge at the end.
    - ``unanswered``: links asked for that no probe could measure, and that counted as unusable.
    - ``complete``: False if ``max_rounds`` ended the probing, after which unknown links counted as unusable.
    - ``took_s``: seconds until the last answer, if the caller has a clock and sets the field.
    """

    result: Plan
    view: NetworkView
    asked: frozenset[Link]
    unanswered: frozenset[Link]
    rounds: int
    complete: bool
    took_s: float = 0.0


def plan_probing(
    planner: Planner, task: Task, model: CostModel, *, max_rounds: int = 100
) -> Generator[frozenset[Link], Answers, ProbedPlan]:
    """Return a generator that yields the links to probe, receives the measurements, and returns the plan.

    Every kind of caller can drive the generator. If the yielded links are ``Unheard``, the caller sends latencies. For
    ``Unplaced`` links the caller sends places of hosts, and for all other links estimates. An answer may hold more than
    was requested, since a round trip also measures the link back. A link that is missing in the answer counts as
    unusable. Among links ``AtOnce``, it counts as the slowest link of the answer. LinksNeeded is never raised. Raises
    PlannerError if the planner fails.
    """
    asked: set[Link] = set()
    unanswered: set[Link] = set()
    rounds = 0
    while True:
        view = task.view
        try:
            plan = ask_planner(planner, task, model)
        except LinksNeeded as needed:
            wanted = AtOnce(needed.links) if needed.at_once else KINDS.get(type(needed), frozenset)(needed.links)
        else:
            complete = rounds <= max_rounds
            return ProbedPlan(plan, view, frozenset(asked), frozenset(unanswered), min(rounds, max_rounds), complete)
        rounds += 1
        if rounds > max_rounds:
            unknown = [link for link in links_between(task.hosts) if view.rate_bps(*link) is None]
            unheard = [link for link in links_between(task.hosts) if view.latency(*link) is None]
            unplaced = {host: UNPLACED for host in task.hosts if host not in view.places}
            view = view.with_estimates(dict.fromkeys(unknown, UNUSABLE)).with_places(unplaced)
            task = task.but(view=view.with_latencies(dict.fromkeys(unheard, UNHEARD)))
            continue
        answers: Any = yield wanted
        if isinstance(wanted, Unplaced):
            missing = dict.fromkeys({link.source for link in wanted}, UNPLACED)
            task = task.but(view=view.with_places({**missing, **answers}))
            continue
        asked |= wanted
        if isinstance(wanted, Unheard):
            heard = view.with_latencies(answers)
            silent = frozenset(link for link in wanted if heard.latency(*link) is None)
            task = task.but(view=heard.with_latencies(dict.fromkeys(silent, UNHEARD)))
        else:
            silent = wanted - answers.keys()
            assumed = slowest(answers.values()) if isinstance(wanted, AtOnce) else UNUSABLE
            task = task.but(view=view.with_estimates({**dict.fromkeys(sorted(silent), assumed), **answers}))
            silent = frozenset() if assumed.rate_bps else silent
        unanswered |= silent


def plan_with_probes(
    planner: Planner,
    task: Task,
    model: CostModel,
    probe: Probe,
    *,
    sound: Sound = lambda _: {},
    find: Find = lambda _: {},
    max_rounds: int = 100,
) -> ProbedPlan:
    """Run ``plan_probing`` for a caller that can wait, and return the plan.

    ``probe`` measures links and returns estimates. ``sound`` returns latencies, and ``find`` returns places of hosts.
    """
    search = plan_probing(planner, task, model, max_rounds=max_rounds)
    try:
        links = next(search)
        while True:
            answers: Answers = find(links) if isinstance(links, Unplaced) else {}
            if not isinstance(links, Unplaced):
                answers = sound(links) if isinstance(links, Unheard) else probe(links)
            links = search.send(answers)
    except StopIteration as done:
        plan: ProbedPlan = done.value
        return plan
