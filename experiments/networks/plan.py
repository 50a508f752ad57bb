"""What a scenario file will do, in figures: its links, its events, what the machine must carry, and rates over time."""

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

LONGEST_TRACE_S = 2 * 3600.0  # of a time line without events
TURNS = 20  # of a flap or a churn without an end that a time line shows
AFTER = 1.1  # a time line goes on a little after the last event


class LinkPlan(msgspec.Struct, frozen=True):
    """A link before any event, in emulated bit/s and seconds; ``follows``: the name of its trace.

    ``via``: its network, left out where all hosts share it.
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
    """An event: ``until_s`` None for good, ``links`` how many it befalls, ``spans`` (from, until) those that are shown.

    Of churn the spans are by host.
    """

    kind: str
    at_s: float
    until_s: float | None
    who: str
    what: str
    links: int
    spans: Mapping[str, list[tuple[float, float]]]


class WallPlan(msgspec.Struct, frozen=True):
    """What the machine must do, in wall-clock bit/s: with every link full at once (``full_bps``, at the mean rates),
    and what it carries. ``too_slow`` and ``too_fast``: links that a testbed cannot set so at some time.
    """

    full_bps: float
    carries_bps: float
    too_slow: int
    too_fast: int
    least_bps: float
    most_bps: float


class Plan(msgspec.Struct, frozen=True):
    """All of it. ``until_s``: how far the time line is shown; ``timeline``: the network until the scenario's end."""

    scenario: Scenario
    links: list[LinkPlan]
    events: list[EventPlan]
    timeline: Timeline
    wall: WallPlan
    until_s: float


def make_plan(scenario: Scenario, until_s: float | None = None) -> Plan:
    """The plan of a scenario; ``until_s`` (emulated): how far its time line is shown, by default as far as it needs."""
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
    followed = [*([] if trace is None else [trace.name]), *(one.name for one in scenario.courses.get(link, ()))]
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
        host = next((one for one in event.away if all(one in link for link in links)), event.who)
        if start_s < end_s:
            spans.setdefault(host, []).append((start_s, min(stop_s, end_s)))
    until_s = None if event.until_s == math.inf else event.until_s
    return EventPlan(event.kind, event.at_s, until_s, event.who, event.what, len(event.links), spans)


def _wall(timeline: Timeline, links: list[LinkPlan]) -> WallPlan:
    scale = timeline.time_scale
    extremes = {one.link: (one.min_bps, one.max_bps) for one in links}
    least, most = ({link: pair[which] for link, pair in extremes.items()} for which in (0, 1))
    for change in timeline.changes:
        if not change.effect.cut:
            low, high = map(change.effect.rate, extremes[change.link])
            least[change.link] = min(least[change.link], low)
            most[change.link] = max(most[change.link], high)
    return WallPlan(
        full_bps=scale * sum(one.mean_bps for one in links),
        carries_bps=carried_bps(),
        too_slow=sum(0 < rate_bps * scale < RATE_FLOOR_BPS for rate_bps in least.values()),
        too_fast=sum(rate_bps * scale > MAX_RATE_BPS for rate_bps in most.values()),
        least_bps=scale * min(least.values(), default=0.0),
        most_bps=scale * max(most.values(), default=0.0),
    )


def sampled_rates(plan: Plan, steps: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean rates of ``steps`` equal spans of the time line, shape (links, steps), with events and without.

    Emulated bit/s; the links in the scenario's order.
    """
    edges = np.linspace(0.0, plan.until_s, steps + 1)
    found = [
        [np.diff(rates.bits_until(edges)) for rates in timeline.rates().values()]
        for timeline in (plan.timeline, msgspec.structs.replace(plan.timeline, changes=()))
    ]
    with_events, without = np.array(found) * (steps / plan.until_s)
    return with_events, without


def matrix(plan: Plan, values: Mapping[Link, float], via: str = NET) -> npt.NDArray[np.float64]:
    """Values of a network's links by source (rows) and destination, in the hosts' order; nan where there is none."""
    names = list(plan.scenario.hosts)
    return np.array([[values.get(Link(a, b, via), math.nan) for b in names] for a in names])
