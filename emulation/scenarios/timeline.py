"""A scenario's events become changes of links: from when on, which link, and the total effect that holds then.

Where events overlap, a later one in the file wins over an earlier one, figure by figure (a rate, a delay, …); factors
multiply each other and whatever rate there is, given by an event or by the link; a cut wins over everything. When the
last ends, the link is as the file describes it, its trace where it would be by then.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from thalweg.emulation.links.effects import NEUTRAL, REPLACED, Effect
from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.scenarios.events import MAX_CHANGES
from thalweg.emulation.scenarios.file import Scenario
from thalweg.emulation.testbeds.replay import Change, ReplayHandle, check_changes
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.changed import ChangedRates, changed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link


def compile_timeline(scenario: Scenario, duration_s: float | None = None) -> list[Change]:
    """What befalls the links, sorted by time; each change replaces the link's one before it.

    Flaps and churn without an end go on until ``duration_s`` (default: the scenario's own). The same file and seed
    give the same changes; a longer duration only adds to them. Raises UsageError for more than can be kept.
    """
    horizon_s = scenario.duration_s if duration_s is None else duration_s
    turns: dict[Link, list[tuple[float, int, int]]] = {}  # (when, event, 1 begins or -1 ends)
    count = 0
    for number, event in enumerate(scenario.events):
        for start_s, stop_s, links in event.spans(horizon_s, scenario.seed, number):
            if stop_s <= start_s:  # shorter than such times can tell
                continue
            count += 2 * len(links)
            if count > MAX_CHANGES:
                raise UsageError(
                    f"the events are more than {MAX_CHANGES:,} changes of links; give flaps and churn a for, longer"
                    " times, or the scenario a shorter duration"
                )
            for link in links:
                found = turns.setdefault(link, [])
                found.append((start_s, number, 1))
                if stop_s < math.inf:
                    found.append((stop_s, number, -1))
    known: dict[tuple[int, ...], Effect] = {(): NEUTRAL}
    changes: list[Change] = []
    for link, found in turns.items():
        changes += _link_changes(link, sorted(found), scenario, known)
    changes.sort(key=lambda change: change.at_s)
    return changes


def _link_changes(
    link: Link, turns: Sequence[tuple[float, int, int]], scenario: Scenario, known: dict[tuple[int, ...], Effect]
) -> list[Change]:
    """One link's changes, of the beginnings and ends of what befalls it."""
    changes: list[Change] = []
    spans = [0] * len(scenario.events)  # that hold now, of every event
    holding: list[int] = []  # the events that do, in order
    last = NEUTRAL
    for i, (at_s, number, by) in enumerate(turns):
        spans[number] += by
        if spans[number] == 0:
            holding.remove(number)
        elif by == spans[number] == 1:
            insort(holding, number)
        if i + 1 < len(turns) and turns[i + 1][0] == at_s:
            continue
        key = tuple(holding)
        if key not in known:
            known[key] = combined(scenario.events[one].effect for one in holding)
        if known[key] != last:
            last = known[key]
            changes.append(Change(at_s, link, last))
    return changes


def combined(effects: Iterable[Effect]) -> Effect:
    """What several effects at once come to; the last wins, figure by figure."""
    total = NEUTRAL
    for one in effects:
        later = {name: value for name in ("rate_bps", *REPLACED) if (value := getattr(one, name)) is not None}
        total = total._replace(factor=total.factor * one.factor, cut=total.cut or one.cut, **later)
    return total


def by_link(changes: Iterable[Change]) -> dict[Link, list[tuple[float, Effect]]]:
    """Changes as (seconds, effect) of every link that has any."""
    found: dict[Link, list[tuple[float, Effect]]] = {}
    for one in changes:
        found.setdefault(one.link, []).append((one.at_s, one.effect))
    return found


def rates_over_time(
    scenario: Scenario, changes: Iterable[Change], emulated: Mapping[Link, BandwidthTrace] | None = None
) -> dict[Link, BandwidthTrace | ChangedRates]:
    """What every link's rate really is over time, events and all, in emulated seconds and bit/s.

    ``emulated``: what a replay has made of the traces (``ReplayHandle.emulated``); default the traces themselves,
    nowhere below what a testbed can set.
    """
    floor_bps = RATE_FLOOR_BPS / scenario.time_scale
    events = by_link(changes)
    found: dict[Link, BandwidthTrace | ChangedRates] = {}
    for link, shape in scenario.links.items():
        trace = (emulated or {}).get(link) or scenario.traces.get(link) or constant(link, shape.rate_bps)
        found[link] = changed(trace, events.get(link, ()), floor_bps)
    return found


def constant(link: Link, rate_bps: float) -> BandwidthTrace:
    """A link of one rate as a trace."""
    return BandwidthTrace(f"{link[0]} → {link[1]}", np.array([0.0]), np.array([rate_bps]))


@runtime_checkable
class _LimitsInterfaces(Protocol):
    def limit_interfaces(self, rates_bps: Mapping[str, float], /) -> None: ...


def apply(scenario: Scenario, testbed: Testbed, *, sample_interval_s: float | None = 1.0) -> ReplayHandle | None:
    """Shape a testbed's links and interfaces as the scenario has them at its start, and load what is to come.

    The testbed must be up, with the scenario's hosts. ``start()`` of what is returned begins the traces and the events;
    None: the links follow none and nothing befalls them. Raises UsageError for what the testbed cannot do, before
    anything is set for events that ask of a link what none can be; CapabilityError where its kernel cannot.
    """
    changes, shapes = compile_timeline(scenario), scenario.wall_shapes()
    check_changes(changes, shapes, scenario.traces, scenario.time_scale)
    if limits := scenario.interfaces_bps:
        if not isinstance(testbed, _LimitsInterfaces):
            raise UsageError(f"the {testbed.backend} testbed cannot limit interfaces; leave out interface_rate")
        testbed.limit_interfaces(limits)
    testbed.shape(shapes)
    followed = dict(scenario.traces)
    for link in {change.link for change in changes}:
        followed.setdefault(link, constant(link, scenario.links[link].rate_bps))
    if not followed:
        return None
    handle = testbed.replay(followed, scenario.time_scale, sample_interval_s=sample_interval_s)
    if changes:
        handle.change(changes)
    return handle
