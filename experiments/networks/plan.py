"""Figures of a scenario file before it runs: its links, its events, the load on the machine, and rates over time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.emulation.links.shape import MAX_RATE_BPS, RATE_FLOOR_BPS
from thalweg.emulation.scenarios.file import Event, Scenario
from thalweg.emulation.scenarios.timeline import Timeline, compile_timeline
from thalweg.experiments.networks.traced import carried_bps
from thalweg.middleware.network.view import NET, Link

LONGEST_TRACE_S = 2 * 3600.0  # longest time line without events
TURNS = 20  # shown turns of a flap or a churn without an end
AFTER = 1.1  # a time line goes on a little after the last event


class LinkPlan(msgspec.Struct, frozen=True):
    """Link before any event, in emulated bit/s and seconds. ``follows``: the name of the link's trace.

    ``via``: the link's network, left out for the network of all hosts.
    """

    src: str
    dst: str
    mean_bps: float
    min_bps: float
    max_bps: float
    delay_s: float
    jitter_s: float
    distribution: str
    loss: float
    duplicate: float
    reorder: float
    corrupt: float
    burst_bytes: int | None
    queue: str | None
    follows: str | None
    via: str | msgspec.UnsetType = msgspec.UNSET
    loss_burst: float = 0.0
    mtu: str | None = None

    @property
    def link(self) -> Link:
        return Link(self.src, self.dst, NET if self.via is msgspec.UNSET else self.via)


class EventPlan(msgspec.Struct, frozen=True):
    """Event: ``until_s`` is None if it does not end, ``links`` is the number of affected links.

    ``spans``: the shown times (from, until) of the event, for churn by host.
    """

    kind: str
    at_s: float
    until_s: float | None
    who: str
    what: str
    links: int
    spans: Mapping[str, list[tuple[float, float]]]


class WallPlan(msgspec.Struct, frozen=True):
    """Load on the machine, in wall-clock bit/s. ``full_bps``: if every link is full at once, at the mean rates.

    ``carries_bps``: load that the machine carries. ``too_slow``, ``too_fast``: number of links with a rate, at some
    time, that a testbed cannot set.
    """

    full_bps: float
    carries_bps: float
    too_slow: int
    too_fast: int
    least_bps: float
    most_bps: float


class Plan(msgspec.Struct, frozen=True):
    """Figures of a scenario. ``until_s``: end of its shown part. ``timeline``: network until the scenario's end."""

    scenario: Scenario
    links: list[LinkPlan]
    events: list[EventPlan]
    timeline: Timeline
    wall: WallPlan
    until_s: float


def make_plan(scenario: Scenario, until_s: float | None = None) -> Plan:
    """Return the plan of a scenario. ``until_s`` (emulated): end of the shown time line, by default as needed."""
    end_s = until_s if until_s is not None else _end_s(scenario)
    links = [_link(scenario, link) for link in scenario.links]
    events = [_event(event, number, scenario, end_s) for number, event in enumerate(scenario.events)]
    timeline = compile_timeline(scenario)
    return Plan(scenario, links, events, timeline, _wall(timeline, links), end_s)


def _end_s(scenario: Scenario) -> float:
    ends = []
    for event in scenario.events:
        if event.until_s < math.inf:
            ends.append(event.until_s)
        elif event.kind in ("flap", "churn"):
            ends.append(min(scenario.duration_s, event.at_s + TURNS * (event.down_s + event.up_s)))
        else:
            ends.append(1.3 * event.at_s + 60.0)
    if ends:
        return AFTER * max(ends)
    periods_s = [trace.duration_s for trace in scenario.traces.values()]
    periods_s += [course.period_s for some in scenario.courses.values() for course in some]
    return min(LONGEST_TRACE_S, max(periods_s, default=60.0))


def _link(scenario: Scenario, link: Link) -> LinkPlan:
    shape, trace = scenario.links[link], scenario.traces.get(link)
    followed = [*([] if trace is None else [trace.name]), *(course.name for course in scenario.courses.get(link, ()))]
    rates = (shape.rate_bps,) * 3
    if trace is not None:
        rates = (trace.mean_bps, float(trace.rates_bps.min()), float(trace.rates_bps.max()))
    return LinkPlan(
        *link[:2], *rates, shape.delay_s, shape.jitter_s, shape.distribution, shape.loss, shape.duplicate,
        shape.reorder, shape.corrupt, shape.burst_bytes, None if shape.queue is None else str(shape.queue),
        ", ".join(dict.fromkeys(followed)) or None, msgspec.UNSET if link.via == NET else link.via,
        shape.loss_burst, None if shape.mtu is None else str(shape.mtu),
    )  # fmt: skip


def _event(event: Event, number: int, scenario: Scenario, end_s: float) -> EventPlan:
    spans: dict[str, list[tuple[float, float]]] = {}
    for start_s, stop_s, links in event.spans(scenario.duration_s, scenario.seed, number):
        host = next((name for name in event.away if all(name in link for link in links)), event.who)
        if start_s < end_s:
            spans.setdefault(host, []).append((start_s, min(stop_s, end_s)))
    until_s = None if event.until_s == math.inf else event.until_s
    return EventPlan(event.kind, event.at_s, until_s, event.who, event.what, len(event.links), spans)


def _wall(timeline: Timeline, links: list[LinkPlan]) -> WallPlan:
    scale = timeline.time_scale
    extremes = {plan.link: (plan.min_bps, plan.max_bps) for plan in links}
    least, most = ({link: pair[end] for link, pair in extremes.items()} for end in (0, 1))
    for change in timeline.changes:
        if not change.effect.cut:
            low, high = map(change.effect.rate, extremes[change.link])
            least[change.link] = min(least[change.link], low)
            most[change.link] = max(most[change.link], high)
    return WallPlan(
        full_bps=scale * sum(plan.mean_bps for plan in links),
        carries_bps=carried_bps(),
        too_slow=sum(0 < rate_bps * scale < RATE_FLOOR_BPS for rate_bps in least.values()),
        too_fast=sum(rate_bps * scale > MAX_RATE_BPS for rate_bps in most.values()),
        least_bps=scale * min(least.values(), default=0.0),
        most_bps=scale * max(most.values(), default=0.0),
    )


def sampled_rates(plan: Plan, steps: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the mean rates of ``steps`` equal spans of the time line, with events and without, in emulated bit/s.

    The shape is (links, steps), with the links in the scenario's order.
    """
    edges = np.linspace(0.0, plan.until_s, steps + 1)
    bits = [
        [np.diff(rates.bits_until(edges)) for rates in timeline.rates().values()]
        for timeline in (plan.timeline, msgspec.structs.replace(plan.timeline, changes=()))
    ]
    with_events, without = np.array(bits) * (steps / plan.until_s)
    return with_events, without


def matrix(plan: Plan, values: Mapping[Link, float], via: str = NET) -> npt.NDArray[np.float64]:
    """Return a network's values by source (rows) and destination, in the hosts' order, nan where there is none."""
    names = list(plan.scenario.hosts)
    return np.array([[values.get(Link(a, b, via), math.nan) for b in names] for a in names])
