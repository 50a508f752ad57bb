"""Network over time: links at the start, traces of rates, and changes of links and hosts.

``Timeline`` is the form of a network for testbeds, plans and the virtual shell. ``compile_timeline`` makes one from a
scenario. The scenario's events become changes of links: a time, a link, and the total effect from then on.

R1. If events overlap, a later event in the file wins over an earlier one, figure by figure (a rate, a delay, …).
R2. Factors multiply each other and the rate, whether the rate is of an event or of the link.
R3. A cut wins over everything.
R4. After the last event, the link is as the file describes it, and its trace is where it would be by then.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter

import msgspec

from thalweg.emulation.links.effects import NEUTRAL, REPLACED, CarrierChange, Effect, LinkChange
from thalweg.emulation.links.shape import QUEUE, RATE_FLOOR_BPS, LinkShape
from thalweg.emulation.links.units import format_time
from thalweg.emulation.scenarios.events import MAX_CHANGES, Deed, Event
from thalweg.emulation.scenarios.file import DURATION_S, HostSpec, Scenario
from thalweg.emulation.supervisor.requests import HostLine
from thalweg.emulation.testbeds.replay import ReplayHandle, check_changes
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.changed import ChangedRates, changed
from thalweg.emulation.traces.link import Course
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import NET, Cable, Link, as_link, cable_of


class Timeline(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Network over time. Seconds and bit/s are emulated, except in ``wall_…``.

    ``hosts``: by name. ``networks``: tariffs of described networks. ``links``: shapes at the start. They have every
    directed pair over the network ``net``, and the links of further networks. ``traces``: of links whose rate follows a
    trace. ``changes``: sorted by time. A change replaces the link's change before, and its link is in ``links``.
    ``layer``: rates count IP packets (3) or Ethernet frames (2). ``deeds``: events of hosts' processes, by time.
    ``carriers``: losses and returns of hosts' carriers. The hosts' links are cut meanwhile. ``ipv6``, ``control_band``,
    ``private``: of a scenario.
    """

    hosts: Mapping[str, HostSpec]
    links: Mapping[Link, LinkShape]
    traces: Mapping[Link, BandwidthTrace]
    changes: Sequence[LinkChange] = ()
    time_scale: float = 1.0
    layer: int = 3
    networks: Mapping[str, Tariff] = {}
    deeds: Sequence[Deed] = ()
    carriers: Sequence[CarrierChange] = ()
    ipv6: bool = True
    control_band: bool | None = None
    private: tuple[str, ...] = ()

    @classmethod
    def of_traces(cls, traces: Mapping[Link, BandwidthTrace], time_scale: float = 1.0) -> Timeline:
        """Return a network of links that follow traces, without events. The hosts are the links' ends."""
        hosts = {host: HostSpec(host) for link in traces for host in link[:2]}
        links = {link: LinkShape(trace.rate_at(0.0)) for link, trace in traces.items()}
        return cls(hosts=hosts, links=links, traces=traces, time_scale=time_scale)

    @property
    def capacities(self) -> dict[str, HostFigures]:
        """Figures of processors, by host. A host without figures is left out."""
        hosts = self.hosts.values()
        return {
            host.name: HostFigures(host.speed or 1.0, host.cores or 1) for host in hosts if host.speed or host.cores
        }

    @property
    def sites(self) -> dict[str, str]:
        """Sites by host. Hosts at one site fail together. A host without a site is left out."""
        return {host.name: host.site for host in self.hosts.values() if host.site}

    def delayed(self, delays_s: Mapping[Link, float]) -> Timeline:
        """Return the network with these delays of links."""
        links = {link: shape._replace(delay_s=delays_s[link]) for link, shape in self.links.items()}
        return msgspec.structs.replace(self, links=links)

    @cached_property
    def by_link(self) -> Mapping[Link, Sequence[tuple[float, Effect]]]:
        """Changes of every changed link: (seconds, effect)."""
        changes: dict[Link, list[tuple[float, Effect]]] = {}
        for change in self.changes:
            changes.setdefault(change.link, []).append((change.at_s, change.effect))
        return changes

    @property
    def delays(self) -> bool:
        """Return whether a link has a delay at any time."""
        return any(shape.delay_s for shape in self.links.values()) or any(
            change.effect.delay_s for change in self.changes
        )

    @property
    def further(self) -> list[str]:
        """Networks besides ``net``."""
        return [via for via in self.networks if via != NET]

    @property
    def interfaces_bps(self) -> dict[Cable, float]:
        """Limits of interfaces, by cable."""
        hosts = self.hosts.values()
        return {cable_of(host.name, via): bps for host in hosts for via, bps in host.interfaces_bps.items()}

    @property
    def up_bps(self) -> dict[Cable, float]:
        """Total sending rates of hosts (``up_rate``), by cable, without the limits of interfaces."""
        hosts = self.hosts.values()
        return {cable_of(host.name, via): bps for host in hosts for via, bps in (host.up_bps or {}).items()}

    @property
    def down_bps(self) -> dict[Cable, float]:
        """Total receiving rates of hosts (``down_rate``), by cable, without the limits of interfaces."""
        hosts = self.hosts.values()
        return {cable_of(host.name, via): bps for host in hosts for via, bps in (host.down_bps or {}).items()}

    @property
    def wall_interfaces_bps(self) -> dict[Cable, float]:
        """Limits of interfaces in wall-clock bit/s, by cable."""
        return {cable: bps * self.time_scale for cable, bps in self.interfaces_bps.items()}

    def shape_testbed(self, testbed: Testbed, tell: Callable[[int], None] | None = None) -> None:
        """Set a testbed's links and interfaces as they are at the start.

        Links come first: if the kernel refuses a link, nothing has been set.
        """
        testbed.shape(self.wall_shapes(), tell)
        interfaces, ways = self.interfaces_bps, (self.up_bps, self.down_bps)
        for via in (NET, *self.further):
            limits: list[dict[str, float | None]] = []
            for own in ways:
                both = {host: min(interfaces.get(end, math.inf), own.get(end, math.inf)) * self.time_scale
                        for host in self.hosts for end in [cable_of(host, via)]}  # fmt: skip
                limits.append({host: bps if bps < math.inf else None for host, bps in both.items()})
            if any(bps is not None for direction in limits for bps in direction.values()) or testbed.limited:
                if via == NET:
                    self._set_lines(testbed)
                testbed.limit_hosts(limits[0], limits[1], via)

    def _set_lines(self, testbed: Testbed) -> None:
        """Set the access lines of a testbed's hosts, if there are lines now, or were lines before."""
        lines = {
            host.name: HostLine(host.preset, (host.up_queue or QUEUE).dilated(self.time_scale)) if host.preset else None
            for host in self.hosts.values()
        }
        if any(lines.values()) or testbed.lines:
            testbed.set_lines(lines)

    @property
    def rented(self) -> dict[Link, float]:
        """Links of dedicated networks, with the highest rate of each in bit/s."""
        rates_bps = {}
        for link, shape in self.links.items():
            if link.via != NET and self.networks[link.via].kind == "dedicated":
                trace = self.traces.get(link)
                rates_bps[link] = shape.rate_bps if trace is None else float(trace.rates_bps.max())
        return rates_bps

    @property
    def agreed_bps(self) -> dict[Link, float]:
        """Mean rate of every rented link in bit/s, as planners see it."""
        return {link: self.trace(link).mean_bps for link in self.rented}

    def over(self, networks: Collection[str]) -> Timeline:
        """Return the timeline with only these networks and ``net``."""
        chosen = {NET, *networks}
        return msgspec.structs.replace(
            self,
            networks={via: tariff for via, tariff in self.networks.items() if via in chosen},
            links={link: shape for link, shape in self.links.items() if link.via in chosen},
            traces={link: trace for link, trace in self.traces.items() if link.via in chosen},
            changes=[change for change in self.changes if change.link.via in chosen],
            carriers=[change for change in self.carriers if change.via in chosen],
        )

    def wall_shapes(self) -> dict[Link, LinkShape]:
        """Return the shapes of links at the start in wall time: rates times the time scale, delays divided by it."""
        return {link: shape.dilated(self.time_scale) for link, shape in self.links.items()}

    def trace(self, link: Link) -> BandwidthTrace:
        """Return the trace of a link's rate, before changes. A constant rate is a trace of one row."""
        trace = self.traces.get(link)
        return BandwidthTrace.constant(as_link(link).text, self.links[link].rate_bps) if trace is None else trace

    def rates(
        self, *, floor_bps: float | None = None, emulated: Mapping[Link, BandwidthTrace] | None = None
    ) -> dict[Link, BandwidthTrace | ChangedRates]:
        """Return the real rate of every link over time, with all changes.

        ``floor_bps``: least rate of a link without a cut, by default the least that testbeds can set. ``emulated``:
        traces as a replay has made them (``ReplayHandle.emulated``), by default the traces themselves.
        """
        least_bps = RATE_FLOOR_BPS / self.time_scale if floor_bps is None else floor_bps
        known = emulated or {}
        return {
            link: changed(known.get(link) or self.trace(link), self.by_link.get(link, ()), least_bps)
            for link in self.links
        }

    def shapes(self, link: Link) -> list[tuple[float, LinkShape]]:
        """Return the shapes of a link over time, each with its begin. The first begins at 0.

        If the link follows a trace, a shape has the rate at its begin. ``rates`` has the rates in between.
        """
        base, trace = self.links[link], self.trace(link)
        events = self.by_link.get(link, ())
        return [(0.0, base), *((at_s, effect.shape(base, trace.rate_at(at_s))) for at_s, effect in events)]

    def renamed(self, names: Mapping[str, str]) -> Timeline:
        """Return the timeline with new names of hosts. ``names``: new names by present name."""

        def ends(link: Link) -> Link:
            source, target, via = *link[:2], as_link(link).via
            return Link(names[source], names[target], via)

        return msgspec.structs.replace(
            self,
            hosts={names[host]: msgspec.structs.replace(entry, name=names[host]) for host, entry in self.hosts.items()},
            links={ends(link): shape for link, shape in self.links.items()},
            traces={ends(link): trace for link, trace in self.traces.items()},
            changes=[msgspec.structs.replace(entry, link=ends(entry.link)) for entry in self.changes],
            deeds=[msgspec.structs.replace(entry, host=names[entry.host]) for entry in self.deeds],
            carriers=[msgspec.structs.replace(entry, host=names[entry.host]) for entry in self.carriers],
        )


def compile_timeline(scenario: Scenario, duration_s: float | None = None) -> Timeline:
    """Return the network of a scenario over time.

    Flaps, churn and courses go on until ``duration_s`` (default: the scenario's own). The same file and seed give the
    same changes. A longer duration only adds changes. Raises UsageError for too many changes.
    """
    horizon_s = scenario.duration_s if duration_s is None else duration_s
    turns: dict[Link, list[tuple[float, int, int]]] = {}  # (seconds, event, 1 for begin or -1 for end)
    count = 0
    for number, event in enumerate(scenario.events):
        for start_s, stop_s, links in event.spans(horizon_s, scenario.seed, number):
            if stop_s <= start_s:  # too short for the precision of the times
                continue
            count += 2 * len(links)
            if count > MAX_CHANGES:
                raise UsageError(
                    f"the events are more than {MAX_CHANGES:,} changes of links; give flaps and churn a for, longer"
                    " times, or the scenario a shorter duration"
                )
            for link in links:
                link_turns = turns.setdefault(link, [])
                link_turns.append((start_s, number, 1))
                if stop_s < math.inf:
                    link_turns.append((stop_s, number, -1))
    known: dict[tuple[int, ...], Effect] = {(): NEUTRAL}
    changes: list[LinkChange] = []
    for link, link_turns in turns.items():
        changes += _link_changes(link, sorted(link_turns), scenario, known)
    changes = following(scenario.courses, horizon_s, changes)
    return Timeline(
        hosts=scenario.hosts, links=scenario.links, traces=scenario.traces, changes=changes,
        time_scale=scenario.time_scale, layer=scenario.layer,
        networks={NET: TARIFFS["public"], **scenario.networks} if scenario.networks else {},
        deeds=sorted(deed for event in scenario.events for deed in event.deeds()),
        carriers=_carriers(scenario.events),
        ipv6=scenario.ipv6, control_band=scenario.control_band, private=scenario.private,
    )  # fmt: skip


def _carriers(events: Iterable[Event]) -> list[CarrierChange]:
    """Return the changes of carriers by time. If losses overlap, the end of the last one gives the carrier back."""
    turns = sorted((change for event in events for change in event.carriers()), key=lambda one: (one.at_s, one.up))
    lost, changes = Counter[tuple[str, str]](), []
    for change in turns:
        place = (change.host, change.via)
        before = lost[place]
        lost[place] += -1 if change.up else 1
        if bool(before) != bool(lost[place]):
            changes.append(change)
    return changes


def _link_changes(
    link: Link, turns: Sequence[tuple[float, int, int]], scenario: Scenario, known: dict[tuple[int, ...], Effect]
) -> list[LinkChange]:
    """Return the changes of one link. ``turns``: begins and ends of its events. ``known``: effects by events."""
    changes: list[LinkChange] = []
    spans = [0] * len(scenario.events)  # number of active spans, by event
    holding: list[int] = []  # active events, in the order of the file
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
            known[key] = combined(scenario.events[event].effect for event in holding)
        if known[key] != last:
            last = known[key]
            changes.append(LinkChange(at_s, link, last))
    return changes


FOLLOWED_CHANGES = 500_000  # of links that follow traces of delays and losses: all may differ


def _many(courses: Mapping[Link, Sequence[Course]], horizon_s: float) -> float:
    return sum(course.many(horizon_s) for some in courses.values() for course in some)


def longest_s(courses: Mapping[Link, Sequence[Course]]) -> float:
    """Return how long courses can be followed in seconds, at most the default duration of a scenario."""
    return math.floor(DURATION_S * min(1.0, FOLLOWED_CHANGES / max(1.0, _many(courses, DURATION_S))))


def following(
    courses: Mapping[Link, Sequence[Course]], horizon_s: float, changes: Sequence[LinkChange] = ()
) -> list[LinkChange]:
    """Return the changes of links, sorted, with the courses of delays and losses until ``horizon_s``.

    ``changes``: by events, sorted. They win over courses (R1). Raises UsageError for too many changes.
    """
    count = _many(courses, horizon_s)
    if count > FOLLOWED_CHANGES:
        longest = format_time(longest_s(courses))
        raise UsageError(
            f"traces of delays and losses are {count:,.0f} changes of links in {format_time(horizon_s)}, more than"
            f" {FOLLOWED_CHANGES:,}; let fewer links follow them, or give the scenario a duration (of {longest})"
        )
    by_link: dict[Link, list[LinkChange]] = {}
    for change in changes:
        by_link.setdefault(change.link, []).append(change)
    result = [change for change in changes if change.link not in courses]
    for link, some in courses.items():
        rows = [(at_s, i, effect) for i, course in enumerate(some) for at_s, effect in course.until(horizon_s)]
        rows += [(change.at_s, len(some), change.effect) for change in by_link.get(link, ())]
        rows.sort(key=itemgetter(0))
        holding, known = [NEUTRAL] * (len(some) + 1), dict[tuple[int, ...], Effect]()
        for i, (at_s, source, effect) in enumerate(rows):
            holding[source] = effect
            if i + 1 < len(rows) and rows[i + 1][0] == at_s:
                continue
            key = tuple(map(id, holding))
            if key not in known:
                known[key] = combined(holding)
            result.append(LinkChange(at_s, link, known[key]))
    result.sort(key=lambda change: change.at_s)
    return result


def combined(effects: Iterable[Effect]) -> Effect:
    """Return the total of several effects at once, which are in the order of the file."""
    total = NEUTRAL
    for effect in effects:
        # R1: later events win
        later = {name: value for name in ("rate_bps", *REPLACED) if (value := getattr(effect, name)) is not None}
        # R2, R3: factors multiply, and a cut wins
        total = total._replace(factor=total.factor * effect.factor, cut=total.cut or effect.cut, **later)
    return total


def apply(timeline: Timeline, testbed: Testbed, tell: Callable[[int], None] | None = None) -> ReplayHandle | None:
    """Set a testbed's links and interfaces as they are at the start, and load the later changes.

    The testbed must be up, with the timeline's hosts. ``start()`` of the result begins the traces and changes. None:
    there are no traces and no changes. Raises UsageError for a change that the testbed cannot make. If no link can be
    as a change asks, nothing has been set. Raises CapabilityError if the kernel cannot make a change.
    """
    changes, shapes = timeline.changes, timeline.wall_shapes()
    check_changes(changes, shapes, timeline.traces, timeline.time_scale)
    timeline.shape_testbed(testbed, tell)
    followed = {link: timeline.trace(link) for link in (*timeline.traces, *timeline.by_link)}
    if not followed:
        return None
    handle = testbed.replay(followed, timeline.time_scale)
    if changes:
        handle.change(changes)
    if timeline.carriers:
        handle.change_carriers(timeline.carriers)
    return handle
