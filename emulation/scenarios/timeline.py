"""A network over time: its links at the start, the traces that their rates follow, and what befalls them.

``Timeline`` is the form in which testbeds, plans and the virtual shell all take a network; ``compile_timeline`` makes
one of a scenario. Its events become changes of links: from when on, which link, and the total effect that holds then.

R1. Where events overlap, a later one in the file wins over an earlier one, figure by figure (a rate, a delay, …).
R2. Factors multiply each other and whatever rate there is, given by an event or by the link.
R3. A cut wins over everything.
R4. When the last event ends, the link is as the file describes it, its trace where it would be by then.
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
    """A network over time. Seconds and bit/s are emulated, but for what ``wall_…`` gives.

    ``hosts``: by name. ``networks``: what those cost that have been described. ``links``: every directed pair over
    the network that all hosts share, and those of the others, with their shapes at the start. ``traces``: of those
    links whose rate follows one. ``changes``: sorted by time, each replaces its link's one before it; no link of them
    is missing in ``links``. ``layer``: what rates count, IP packets (3) or Ethernet frames (2). ``deeds``:
    what befalls the hosts' processes, by time. ``carriers``: when hosts lose their carrier and get it back; their links
    are cut meanwhile. ``ipv6``, ``control_band``, ``private``: of a scenario.
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
        """Links that follow traces, and that nothing befalls; their ends are the hosts."""
        hosts = {host: HostSpec(host) for link in traces for host in link[:2]}
        links = {link: LinkShape(trace.rate_at(0.0)) for link, trace in traces.items()}
        return cls(hosts=hosts, links=links, traces=traces, time_scale=time_scale)

    @property
    def capacities(self) -> dict[str, HostFigures]:
        """The hosts that say something of their processors."""
        hosts = self.hosts.values()
        return {one.name: HostFigures(one.speed or 1.0, one.cores or 1) for one in hosts if one.speed or one.cores}

    @property
    def sites(self) -> dict[str, str]:
        """Where the hosts are of which the file says so: what is at one site fails together."""
        return {one.name: one.site for one in self.hosts.values() if one.site}

    def delayed(self, delays_s: Mapping[Link, float]) -> Timeline:
        """The same where links have these delays."""
        links = {link: shape._replace(delay_s=delays_s[link]) for link, shape in self.links.items()}
        return msgspec.structs.replace(self, links=links)

    @cached_property
    def by_link(self) -> Mapping[Link, Sequence[tuple[float, Effect]]]:
        """The changes of every link that has any: (seconds, effect)."""
        found: dict[Link, list[tuple[float, Effect]]] = {}
        for one in self.changes:
            found.setdefault(one.link, []).append((one.at_s, one.effect))
        return found

    @property
    def delays(self) -> bool:
        """Whether a link has a delay at any time."""
        return any(shape.delay_s for shape in self.links.values()) or any(
            change.effect.delay_s for change in self.changes
        )

    @property
    def further(self) -> list[str]:
        """The networks besides the one that all share."""
        return [via for via in self.networks if via != NET]

    @property
    def interfaces_bps(self) -> dict[Cable, float]:
        """The cables that are limited."""
        hosts = self.hosts.values()
        return {cable_of(one.name, via): bps for one in hosts for via, bps in one.interfaces_bps.items()}

    @property
    def up_bps(self) -> dict[Cable, float]:
        """The total sending rates of hosts (``up_rate``), by cable. The limits of interfaces are not among them."""
        hosts = self.hosts.values()
        return {cable_of(one.name, via): bps for one in hosts for via, bps in (one.up_bps or {}).items()}

    @property
    def down_bps(self) -> dict[Cable, float]:
        """The total receiving rates of hosts (``down_rate``), by cable, likewise."""
        hosts = self.hosts.values()
        return {cable_of(one.name, via): bps for one in hosts for via, bps in (one.down_bps or {}).items()}

    @property
    def wall_interfaces_bps(self) -> dict[Cable, float]:
        """The limits of interfaces in wall-clock bit/s."""
        return {cable: bps * self.time_scale for cable, bps in self.interfaces_bps.items()}

    def shape_testbed(self, testbed: Testbed, tell: Callable[[int], None] | None = None) -> None:
        """Make a testbed's links and interfaces what they are at the start.

        Links come first: if the kernel refuses one of them, nothing has been set.
        """
        testbed.shape(self.wall_shapes(), tell)
        interfaces, ways = self.interfaces_bps, (self.up_bps, self.down_bps)
        for via in (NET, *self.further):
            limits: list[dict[str, float | None]] = []
            for own in ways:
                both = {host: min(interfaces.get(end, math.inf), own.get(end, math.inf)) * self.time_scale
                        for host in self.hosts for end in [cable_of(host, via)]}  # fmt: skip
                limits.append({host: bps if bps < math.inf else None for host, bps in both.items()})
            if any(bps is not None for one in limits for bps in one.values()) or testbed.limited:
                if via == NET:
                    self._set_lines(testbed)
                testbed.limit_hosts(limits[0], limits[1], via)

    def _set_lines(self, testbed: Testbed) -> None:
        """Note the access lines of hosts, if there are any, or were any before."""
        lines = {
            host.name: HostLine(host.preset, (host.up_queue or QUEUE).dilated(self.time_scale)) if host.preset else None
            for host in self.hosts.values()
        }
        if any(lines.values()) or testbed.lines:
            testbed.set_lines(lines)

    @property
    def rented(self) -> dict[Link, float]:
        """The links of dedicated networks, and the most that each carries at any time, in bit/s."""
        found = {}
        for link, shape in self.links.items():
            if link.via != NET and self.networks[link.via].kind == "dedicated":
                trace = self.traces.get(link)
                found[link] = shape.rate_bps if trace is None else float(trace.rates_bps.max())
        return found

    @property
    def agreed_bps(self) -> dict[Link, float]:
        """What planners are told that each of them carries: its mean."""
        return {link: self.trace(link).mean_bps for link in self.rented}

    def over(self, networks: Collection[str]) -> Timeline:
        """The same with these networks alone, and the one that all share."""
        kept = {NET, *networks}
        return msgspec.structs.replace(
            self,
            networks={via: tariff for via, tariff in self.networks.items() if via in kept},
            links={link: shape for link, shape in self.links.items() if link.via in kept},
            traces={link: trace for link, trace in self.traces.items() if link.via in kept},
            changes=[one for one in self.changes if one.link.via in kept],
            carriers=[one for one in self.carriers if one.via in kept],
        )

    def wall_shapes(self) -> dict[Link, LinkShape]:
        """Every link's shape at the start as a testbed takes it: rates times the time scale, delays divided by it."""
        return {link: shape.dilated(self.time_scale) for link, shape in self.links.items()}

    def trace(self, link: Link) -> BandwidthTrace:
        """What a link's rate follows before any change; of a constant rate a trace of one row."""
        found = self.traces.get(link)
        return BandwidthTrace.constant(as_link(link).text, self.links[link].rate_bps) if found is None else found

    def rates(
        self, *, floor_bps: float | None = None, emulated: Mapping[Link, BandwidthTrace] | None = None
    ) -> dict[Link, BandwidthTrace | ChangedRates]:
        """What every link's rate really is over time, changes and all.

        ``floor_bps``: the least that a link is set to unless it is cut; default what testbeds can set. ``emulated``:
        what a replay has made of the traces (``ReplayHandle.emulated``), default the traces themselves.
        """
        least_bps = RATE_FLOOR_BPS / self.time_scale if floor_bps is None else floor_bps
        known = emulated or {}
        return {
            link: changed(known.get(link) or self.trace(link), self.by_link.get(link, ()), least_bps)
            for link in self.links
        }

    def shapes(self, link: Link) -> list[tuple[float, LinkShape]]:
        """A link's whole shape, each from its time on until the next; the first from 0 on.

        Of a link that follows a trace the rate is that of the moment: ``rates`` has what comes between.
        """
        base, trace = self.links[link], self.trace(link)
        events = self.by_link.get(link, ())
        return [(0.0, base), *((at_s, effect.shape(base, trace.rate_at(at_s))) for at_s, effect in events)]

    def renamed(self, names: Mapping[str, str]) -> Timeline:
        """The same with other names of hosts, each under its present one."""

        def ends(link: Link) -> Link:
            source, target, via = *link[:2], as_link(link).via
            return Link(names[source], names[target], via)

        return msgspec.structs.replace(
            self,
            hosts={names[host]: msgspec.structs.replace(one, name=names[host]) for host, one in self.hosts.items()},
            links={ends(link): shape for link, shape in self.links.items()},
            traces={ends(link): trace for link, trace in self.traces.items()},
            changes=[msgspec.structs.replace(one, link=ends(one.link)) for one in self.changes],
            deeds=[msgspec.structs.replace(one, host=names[one.host]) for one in self.deeds],
            carriers=[msgspec.structs.replace(one, host=names[one.host]) for one in self.carriers],
        )


def compile_timeline(scenario: Scenario, duration_s: float | None = None) -> Timeline:
    """The network of a scenario over time.

    Flaps, churn and courses go on until ``duration_s`` (default: the scenario's own). The same file and seed
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
    changes: list[LinkChange] = []
    for link, found in turns.items():
        changes += _link_changes(link, sorted(found), scenario, known)
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
    """Return the changes of carriers by time. Of losses that overlap, the last one to end gives the carrier back."""
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
    """One link's changes, of the beginnings and ends of what befalls it."""
    changes: list[LinkChange] = []
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
            changes.append(LinkChange(at_s, link, last))
    return changes


FOLLOWED_CHANGES = 500_000  # of links that follow traces of delays and losses: each may differ from all others


def _many(courses: Mapping[Link, Sequence[Course]], horizon_s: float) -> float:
    return sum(one.many(horizon_s) for some in courses.values() for one in some)


def longest_s(courses: Mapping[Link, Sequence[Course]]) -> float:
    """How long courses can be followed, a scenario's default duration at most."""
    return math.floor(DURATION_S * min(1.0, FOLLOWED_CHANGES / max(1.0, _many(courses, DURATION_S))))


def following(
    courses: Mapping[Link, Sequence[Course]], horizon_s: float, changes: Sequence[LinkChange] = ()
) -> list[LinkChange]:
    """``changes``, sorted, on links whose delays and losses follow courses until ``horizon_s``; changes win (R1).

    Raises UsageError for more than can be kept.
    """
    count = _many(courses, horizon_s)
    if count > FOLLOWED_CHANGES:
        longest = format_time(longest_s(courses))
        raise UsageError(
            f"traces of delays and losses are {count:,.0f} changes of links in {format_time(horizon_s)}, more than"
            f" {FOLLOWED_CHANGES:,}; let fewer links follow them, or give the scenario a duration (of {longest})"
        )
    given: dict[Link, list[LinkChange]] = {}
    for change in changes:
        given.setdefault(change.link, []).append(change)
    found = [change for change in changes if change.link not in courses]
    for link, some in courses.items():
        rows = [(at_s, i, effect) for i, one in enumerate(some) for at_s, effect in one.until(horizon_s)]
        rows += [(change.at_s, len(some), change.effect) for change in given.get(link, ())]
        rows.sort(key=itemgetter(0))
        holding, known = [NEUTRAL] * (len(some) + 1), dict[tuple[int, ...], Effect]()
        for i, (at_s, which, effect) in enumerate(rows):
            holding[which] = effect
            if i + 1 < len(rows) and rows[i + 1][0] == at_s:
                continue
            key = tuple(map(id, holding))
            if key not in known:
                known[key] = combined(holding)
            found.append(LinkChange(at_s, link, known[key]))
    found.sort(key=lambda change: change.at_s)
    return found


def combined(effects: Iterable[Effect]) -> Effect:
    """What several effects at once come to, in the order of the file."""
    total = NEUTRAL
    for one in effects:
        # R1: later events win
        later = {name: value for name in ("rate_bps", *REPLACED) if (value := getattr(one, name)) is not None}
        # R2, R3: factors multiply, and a cut wins
        total = total._replace(factor=total.factor * one.factor, cut=total.cut or one.cut, **later)
    return total


def apply(timeline: Timeline, testbed: Testbed, tell: Callable[[int], None] | None = None) -> ReplayHandle | None:
    """Shape a testbed's links and interfaces as they are at the start, and load what is to come.

    The testbed must be up, with the timeline's hosts. ``start()`` of what is returned begins the traces and changes;
    None: the links follow none and nothing befalls them. Raises UsageError for what the testbed cannot do, before
    anything is set for changes that ask of a link what none can be; CapabilityError where its kernel cannot.
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
