"""Events of a scenario file: effects on links and changes of hosts' processes, with their times.

An event on links has spans of time in which an effect holds. A ``change``, an ``outage`` and a ``partition`` have one
span. A ``flap`` has one for every ``down``. A ``churn`` has one for every absence of a host, drawn by the seed. Events
of a host's process (``DEEDS``) leave the links as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from thalweg.emulation.links.effects import CarrierChange, Effect
from thalweg.emulation.links.units import Loss, format_rate, format_time, seconds
from thalweg.emulation.scenarios.data_sets import near_miss
from thalweg.emulation.scenarios.hosts import Ends, HostSpec, hosts_named, links_named, links_of
from thalweg.emulation.scenarios.links import Figures, fields
from thalweg.emulation.scenarios.networks import EVERY, vias_of
from thalweg.emulation.scenarios.toml import AboveZero, Keys, Seconds, Spot, Text, Texts, Written, example
from thalweg.emulation.traces.pool import two_draws
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import NET, Link, links_between

CLIENT = "client"  # churn leaves the client out unless the file names it
CUT = Effect(cut=True)
MAX_CHANGES = 2_000_000  # of links: far more than a testbed would keep up with
LEAST_S = 0.001  # of a down, an up and their means: less is a mistaken unit, and would fill the memory


CARRIER = "carrier"
DEEDS = ("crash", "restart", "drain", "join")


class Deed(msgspec.Struct, frozen=True, order=True):
    """Event of the process on ``host``: at ``at_s`` it is killed (``crash``), started (again), or drained.

    Before a ``join`` the host has no process.
    """

    at_s: float
    host: str
    kind: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[event]]``. Seconds are emulated, and ``until_s`` is infinite for an event without end.

    ``links``: the affected links, for churn all links of the hosts in ``away``. ``effect``: the effect during the
    spans. None and the factor 1 leave a figure unchanged. ``who`` and ``what``: links and effect for people.
    """

    kind: str
    at_s: float
    until_s: float
    links: tuple[Link, ...]
    effect: Effect
    who: str
    what: str
    down_s: float = 0.0
    up_s: float = 0.0
    away: tuple[str, ...] = ()

    def spans(self, horizon_s: float, seed: int, number: int) -> Iterator[tuple[float, float, tuple[Link, ...]]]:
        """Yield begin, end and links of every span. Repeated spans end at ``horizon_s`` at the latest.

        ``number``: position of the event in the file, so that two churns have different draws.
        """
        if self.kind == "flap":
            stop_s, turn = min(self.until_s, horizon_s), 0
            while (start_s := self.at_s + turn * (self.down_s + self.up_s)) < stop_s:
                yield start_s, min(start_s + self.down_s, stop_s), self.links
                turn += 1
        elif self.kind == "churn":
            for host in self.away:
                links = tuple(link for link in self.links if host in link[:2])
                for start_s, stop_s in self._absences(host, horizon_s, seed, number):
                    yield start_s, stop_s, links
        elif self.kind not in DEEDS:
            yield self.at_s, self.until_s, self.links

    def deeds(self) -> Iterator[Deed]:
        """Yield the events of hosts' processes."""
        for host in self.away if self.kind in DEEDS else ():
            yield Deed(self.at_s, host, self.kind)
            if self.until_s < math.inf:
                yield Deed(self.until_s, host, "restart")

    def carriers(self) -> Iterator[CarrierChange]:
        """Yield the losses and returns of carriers."""
        for host in self.away if self.kind == CARRIER else ():
            for via in dict.fromkeys(link.via for link in self.links if host in link[:2]):
                yield CarrierChange(self.at_s, host, via, up=False)
                if self.until_s < math.inf:
                    yield CarrierChange(self.until_s, host, via, up=True)

    def many(self, horizon_s: float) -> float:
        """Return about how many changes of links the event causes."""
        turns = (min(self.until_s, horizon_s) - self.at_s) / (self.down_s + self.up_s) if self.up_s else 1.0
        return 2 * len(self.links) * turns * (2 if self.kind == "churn" else 1)  # a link has two ends that may leave

    def _absences(self, host: str, horizon_s: float, seed: int, number: int) -> Iterator[tuple[float, float]]:
        end_s, now_s, turn = min(self.until_s, horizon_s), self.at_s, 0
        while True:
            up, down = two_draws(seed, "churn", number, host, turn)
            start_s = now_s + _exponential(up, self.up_s)
            if start_s >= end_s:
                return
            now_s = start_s + _exponential(down, self.down_s)
            yield start_s, min(now_s, end_s)
            turn += 1


def _exponential(draw: int, mean_s: float) -> float:
    return -mean_s * math.log1p(-draw / 2**64 * (1 - 2**-53))


class Span(float, metaclass=Written):
    """Seconds, at least ``LEAST_S``: a shorter time is a mistaken unit."""

    @staticmethod
    def read(value: Any) -> float:
        span_s = seconds(value)
        if span_s < LEAST_S:
            raise UsageError(f"{value!r} is too short; it must be at least {LEAST_S * 1e3:g}ms")
        return span_s


class Groups(tuple[tuple[str, ...], ...], metaclass=Written):
    """Lists of hosts, at least two."""

    @staticmethod
    def read(value: Any) -> tuple[tuple[str, ...], ...]:
        if not isinstance(value, list) or len(value) < 2:
            raise UsageError('groups are lists of hosts, at least two: [["client", "h1"], ["h2"]]')
        return tuple(map(Texts.read, value))


class When(Keys):
    """Keys of every event: kind, times, and the network of the links (``*``: all networks)."""

    at: Annotated[Seconds, example('"60s"')]
    kind: str = ""
    for_: Span | None = None
    until: Seconds | None = None
    network: Text | None = None


class ChangeKeys(Figures):
    """Keys of a ``change``: figures of links, or a factor of the rate."""

    factor: AboveZero | None = None


class FlapKeys(Keys):
    """Keys of a ``flap``: times for which links are down, and then up."""

    down: Annotated[Span, example('"5s"')]
    up: Annotated[Span, example('"20s"')]


class PartitionKeys(Keys):
    """Key of a ``partition``: the groups of hosts to separate."""

    groups: Annotated[Groups, example('[["client", "h1"], ["h2"]]')]


class ChurnKeys(Keys):
    """Keys of a ``churn``: hosts that leave and return, and the mean times up and away."""

    mean_up: Annotated[Span, example('"10min"')]
    mean_down: Annotated[Span, example('"30s"')]
    hosts: Texts | None = None


class HostKeys(Keys):
    """Key of an event of hosts: hosts that lose the ``carrier``, or that have a process event such as ``crash``."""

    host: Annotated[Texts, example('"h3"')]


_KINDS: Mapping[str, tuple[type[Keys], ...]] = {
    "change": (Ends, ChangeKeys),
    "outage": (Ends,),
    "flap": (Ends, FlapKeys),
    "partition": (PartitionKeys,),
    "churn": (ChurnKeys,),
    CARRIER: (HostKeys,),
    **dict.fromkeys(DEEDS, (HostKeys,)),
}


class Wan(NamedTuple):
    """Network to which events refer: the hosts, the tariffs of networks, and all links."""

    hosts: Mapping[str, HostSpec]
    networks: Mapping[str, Tariff]
    links: Set[Link]


def read_events(root: Spot, wan: Wan, duration_s: float) -> tuple[Event, ...]:
    """Return the events in the order of the file. ``duration_s``: latest end of repeated spans."""
    events = []
    for spot in root.inner_all("event", "[[event]]"):
        events.append(_event(spot, wan))
        if events[-1].many(duration_s) > MAX_CHANGES:
            raise spot.error(
                f"this event is more than {MAX_CHANGES:,} changes of links; give it a for or longer times, or the"
                " scenario a shorter duration"
            )
    return tuple(events)


def _event(spot: Spot, wan: Wan) -> Event:
    hosts, kind = wan.hosts, _kind(spot)
    spot = spot._replace(what=f"an event of kind {kind!r}")
    spot.only(When, *_KINDS[kind])
    when = spot.read(When)
    event = partial(Event, kind=kind, at_s=when.at, until_s=_until_s(spot, when), effect=CUT)
    vias = vias_of(spot, wan.networks, EVERY if kind in ("partition", "churn") else NET)
    over = "" if vias == (NET,) or "network" not in spot.value else f" over {spot.value['network']}"

    def there(name: Callable[[str], Iterable[Link]]) -> tuple[Link, ...]:
        """Return the existing links among the links that ``name`` finds in each network."""
        existing = tuple(link for via in vias for link in name(via) if link in wan.links)
        if not existing:
            raise spot.error(f"there is no such link over {' or '.join(vias)}; the event changes nothing", "network")
        return existing

    if kind == "partition":
        group_of, groups = _between(spot, spot.read(PartitionKeys).groups, hosts)
        links = there(lambda via: (link for link in links_between(group_of, via) if _apart(group_of, link)))
        return event(links=links, who=groups + over, what="no traffic between the groups")
    if kind in DEEDS:
        away = _hosts_of_deed(spot, kind, hosts)
        return event(links=(), who=_listed(away), what=f"its process: {kind}", away=away)
    if kind == CARRIER:
        away = hosts_named(spot, "host", spot.read(HostKeys).host, hosts)
        links = there(lambda via: links_of(away, hosts, via))
        return event(links=links, who=_listed(away) + over, what="no carrier", away=away)
    if kind == "churn":
        churn = spot.read(ChurnKeys)
        away = tuple(host for host in hosts if host != CLIENT)
        if churn.hosts is not None:
            away = hosts_named(spot, "hosts", churn.hosts, hosts)
        means = f"up {format_time(churn.mean_up)}, away {format_time(churn.mean_down)} on average"
        links = there(lambda via: links_of(away, hosts, via))
        return event(links=links, who=_listed(away) + over, what=f"leave and return: {means}",
                     down_s=churn.mean_down, up_s=churn.mean_up, away=away)  # fmt: skip
    links = there(lambda via: links_named(spot, hosts, via))
    event = partial(event, links=links, who=_who(spot.read(Ends), hosts) + over)
    if kind == "flap":
        flap = spot.read(FlapKeys)
        effects = f"down {format_time(flap.down)}, up {format_time(flap.up)}, in turn"
        return event(what=effects, down_s=flap.down, up_s=flap.up)
    if kind == "change":
        effect, effects = _effect(spot)
        return event(effect=effect, what=effects)
    return event(what="nothing passes")


def _kind(spot: Spot) -> str:
    """Return the kind of an event. Raises UsageError for an unknown kind."""
    kind = spot.value.get("kind")
    if kind is None:
        raise spot.error(f"an [[event]] needs a kind: {', '.join(_KINDS)}")
    if kind not in tuple(_KINDS):
        raise spot.error(f"kind: there is no {kind!r}; {near_miss(str(kind), _KINDS)}", "kind")
    return str(kind)


def _hosts_of_deed(spot: Spot, kind: str, hosts: Mapping[str, HostSpec]) -> tuple[str, ...]:
    """Return the hosts of a process event. Raises UsageError for the client."""
    if "network" in spot.value:
        raise spot.error(f"a {kind} befalls a host's process, whatever its networks; leave network out", "network")
    away = hosts_named(spot, "host", spot.read(HostKeys).host, hosts)
    if CLIENT in away:
        raise spot.error("the client's own process stays; name other hosts", "host")
    if kind != "crash" and (ends := next((key for key in ("for", "until") if key in spot.value), None)):
        raise spot.error(f"a {kind} does not last; {ends} goes with a crash, which a restart ends", ends)
    return away


def _until_s(spot: Spot, when: When) -> float:
    if when.for_ is not None and when.until is not None:
        raise spot.error("for and until both set the end of the event; leave one of them out", "until")
    if when.for_ is not None:
        return when.at + when.for_
    if when.until is not None and when.until <= when.at:
        raise spot.error(f"the event ends at {when.until:g} s, and begins at {when.at:g} s; until is a time after at,"
                         " and for is the length of the event", "until")  # fmt: skip
    return math.inf if when.until is None else when.until


def _who(ends: Ends, hosts: Mapping[str, HostSpec]) -> str:
    if ends.host is not None:
        return f"all links of {_listed(tuple(hosts) if ends.host == ('*',) else tuple(dict.fromkeys(ends.host)))}"
    source, target = ("all" if names in (None, ("*",)) else _listed(names or ()) for names in (ends.from_, ends.to))
    return f"{source} {'↔' if ends.both else '→'} {target}"


def _between(spot: Spot, groups: Sequence[Sequence[str]], hosts: Mapping[str, HostSpec]) -> tuple[dict[str, int], str]:
    """Return the group's number of every host in a group, and a text with all groups."""
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        for place, host in enumerate(group):
            if host not in hosts:
                raise spot.error(f"groups: there is no host {host!r}; {near_miss(host, hosts)}",
                                  "groups", number, place)  # fmt: skip
            if host in group_of:
                raise spot.error(f"groups: host {host!r} stands there twice; a host is on one side only",
                                  "groups", number, place)  # fmt: skip
            group_of[host] = number
    return group_of, " | ".join(_listed(group) for group in groups)


def _apart(group_of: Mapping[str, int], link: Link) -> bool:
    return group_of[link.source] != group_of[link.target]


def _effect(spot: Spot) -> tuple[Effect, str]:
    values = spot.given(spot.read(ChangeKeys))
    if not values:
        known = ", ".join(Figures.__struct_encode_fields__)
        raise spot.error(f"this event changes nothing; give one of factor, {known}")
    if "rate" in values and "factor" in values:
        raise spot.error("rate replaces the link's rate and factor multiplies it; leave one of them out", "factor")
    parts = []
    for key, value in values.items():
        if key == "factor":
            parts.append(f"rate × {value:g}")
        elif key == "rate":
            parts.append(f"rate {format_rate(value)}")
        elif key in ("delay", "jitter"):
            parts.append(f"{key} {format_time(value)}")
        elif key in ("queue", "mtu"):
            parts.append(f"{key} {value}")
        elif isinstance(value, Loss):
            parts.append(f"loss {100 * value.share:.3g} %" + (f" in bursts of {value.burst:.3g}" * (value.burst > 0)))
        elif isinstance(value, float):
            parts.append(f"{key} {100 * value:.3g} %")
        else:
            parts.append(f"{key} {value}" + (" bytes" if key == "burst" else ""))
    changed: dict[str, Any] = {}
    for key, value in values.items():
        changed |= fields(key, value)
    return Effect(**changed), ", ".join(parts)


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} … {hosts[-1]} ({len(hosts)})"
