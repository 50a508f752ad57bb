"""The events of a scenario file: what befalls which links, when.

Each is a set of spans of time in which an effect holds: a ``change``, an ``outage`` and a ``partition`` are one span, a
``flap`` is one for every ``down`` and ``up``, a ``churn`` one for every time that a host is away, drawn by the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from thalweg.emulation.links.effects import Effect
from thalweg.emulation.scenarios.data_sets import near_miss
from thalweg.emulation.scenarios.hosts import HostSpec, hosts_named, links_named
from thalweg.emulation.scenarios.links import ENDS, FIELDS, SHAPE
from thalweg.emulation.scenarios.toml_table import Reader, Table, above_zero, one_of, texts
from thalweg.emulation.traces.pool import two_draws
from thalweg.emulation.units import format_rate, format_time, seconds
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, links_between

CLIENT = "client"  # churn spares it unless it is named
CUT = Effect(cut=True)
MAX_CHANGES = 2_000_000  # of links: far more than a testbed would keep up with
LEAST_S = 0.001  # of a down, an up and their means: less is a mistaken unit, and would fill the memory


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[event]]``. Emulated seconds; ``until_s`` is infinite for good.

    ``links``: what it befalls; for churn, by host (``away``), every link of the host. ``effect``: what holds in its
    spans, where None and the factor 1 leave a figure alone. ``who`` and ``what`` say it to people.
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
        """When it holds, from, until and where; those that repeat end at ``horizon_s`` at the latest.

        ``number``: the event's among the file's, so that two churns are drawn apart.
        """
        if self.kind == "flap":
            stop_s, turn = min(self.until_s, horizon_s), 0
            while (start_s := self.at_s + turn * (self.down_s + self.up_s)) < stop_s:
                yield start_s, min(start_s + self.down_s, stop_s), self.links
                turn += 1
        elif self.kind == "churn":
            for host in self.away:
                links = tuple(link for link in self.links if host in link)
                for start_s, stop_s in self._absences(host, horizon_s, seed, number):
                    yield start_s, stop_s, links
        else:
            yield self.at_s, self.until_s, self.links

    def many(self, horizon_s: float) -> float:
        """About how many changes of links it is."""
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


def _span(value: Any) -> float:
    found = seconds(value)
    if found < LEAST_S:
        raise UsageError(f"{value!r} is too short; it must be at least {LEAST_S * 1e3:g}ms")
    return found


def _groups(value: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or len(value) < 2:
        raise UsageError('groups are lists of hosts, at least two: [["client", "h1"], ["h2"]]')
    return tuple(texts(one) for one in value)


_TIMES: dict[str, Reader] = {"at": seconds, "for": _span, "until": seconds}
_KINDS: dict[str, dict[str, Reader]] = {
    "change": {**ENDS, **SHAPE, "factor": above_zero},
    "outage": ENDS,
    "flap": {**ENDS, "down": _span, "up": _span},
    "partition": {"groups": _groups},
    "churn": {"hosts": texts, "mean_up": _span, "mean_down": _span},
}
_NEEDS = {"flap": ("down", "up"), "partition": ("groups",), "churn": ("mean_up", "mean_down")}


def read_events(root: Table, hosts: Mapping[str, HostSpec], duration_s: float) -> tuple[Event, ...]:
    """The events in the file's order. ``duration_s``: when those that repeat end at the latest."""
    events = []
    for table in root.inner_all("event", "[[event]]"):
        events.append(_event(table, hosts))
        if events[-1].many(duration_s) > MAX_CHANGES:
            raise table.error(
                f"this event is more than {MAX_CHANGES:,} changes of links; give it a for or longer times, or the"
                " scenario a shorter duration"
            )
    return tuple(events)


def _event(table: Table, hosts: Mapping[str, HostSpec]) -> Event:
    kind = table.given.get("kind")
    if kind is None:
        raise table.error(f"an [[event]] needs a kind: {', '.join(_KINDS)}")
    try:
        one_of(*_KINDS)(kind)
    except UsageError as error:
        raise table.error(f"kind: {error}", "kind") from None
    table.what = f"an event of kind {kind!r}"
    values = table.read({"kind": one_of(*_KINDS), **_TIMES, **_KINDS[kind]})
    for key in ("at", *_NEEDS.get(kind, ())):
        if key not in values:
            raise table.error(f"{table.what} needs {key}; write for example {key} = {_EXAMPLES[key]}")
    at_s, until_s = values["at"], _until_s(table)
    links, who = _where(table, hosts)
    effect, what = CUT, "nothing passes"
    if kind == "change":
        effect, what = _effect(table)
    elif kind == "flap":
        what = f"down {format_time(values['down'])}, up {format_time(values['up'])}, in turn"
    elif kind == "partition":
        what = "no traffic between the groups"
    elif kind == "churn":
        what = (
            f"leave and return: up {format_time(values['mean_up'])}, away {format_time(values['mean_down'])} on average"
        )
    return Event(
        kind=kind, at_s=at_s, until_s=until_s, links=links, effect=effect, who=who, what=what,
        down_s=values.get("down", values.get("mean_down", 0.0)), up_s=values.get("up", values.get("mean_up", 0.0)),
        away=_away(table, hosts) if kind == "churn" else (),
    )  # fmt: skip


_EXAMPLES = {
    "at": '"60s"', "down": '"5s"', "up": '"20s"', "mean_up": '"10min"', "mean_down": '"30s"',
    "groups": '[["client", "h1"], ["h2"]]',
}  # fmt: skip


def _until_s(table: Table) -> float:
    values = table.values
    if "for" in values and "until" in values:
        raise table.error("for and until both say when it ends; leave one of them out", "until")
    if "until" in values and values["until"] <= values["at"]:
        raise table.error(f"it ends at {values['until']:g} s, and begins at {values['at']:g} s; until is a time after"
                          " at, for is how long it lasts", "until")  # fmt: skip
    return float(values["at"] + values["for"] if "for" in values else values.get("until", math.inf))


def _where(table: Table, hosts: Mapping[str, HostSpec]) -> tuple[tuple[Link, ...], str]:
    kind, values = table.values["kind"], table.values
    if kind == "partition":
        return _between(table, hosts)
    if kind == "churn":
        away = _away(table, hosts)
        return tuple(link for link in links_between(hosts) if link.source in away or link.target in away), _listed(away)
    links = links_named(table, hosts)
    if "host" in values:
        return links, f"all links of {_listed(hosts_named(table, 'host', hosts))}"
    ends = [_listed(values[key]) if key in values and values[key] != ("*",) else "all" for key in ("from", "to")]
    return links, f"{ends[0]} {'↔' if values.get('both') else '→'} {ends[1]}"


def _between(table: Table, hosts: Mapping[str, HostSpec]) -> tuple[tuple[Link, ...], str]:
    groups: Sequence[Sequence[str]] = table.values["groups"]
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        for place, host in enumerate(group):
            if host not in hosts:
                raise table.error(f"groups: there is no host {host!r}; {near_miss(host, hosts)}",
                                  "groups", number, place)  # fmt: skip
            if host in group_of:
                raise table.error(f"groups: host {host!r} stands there twice; a host is on one side only",
                                  "groups", number, place)  # fmt: skip
            group_of[host] = number
    links = tuple(link for link in links_between(group_of) if group_of[link.source] != group_of[link.target])
    return links, " | ".join(_listed(group) for group in groups)


def _away(table: Table, hosts: Mapping[str, HostSpec]) -> tuple[str, ...]:
    if "hosts" in table.values:
        return hosts_named(table, "hosts", hosts)
    return tuple(host for host in hosts if host != CLIENT)


def _effect(table: Table) -> tuple[Effect, str]:
    values = {key: value for key, value in table.values.items() if key in SHAPE or key == "factor"}
    if not values:
        raise table.error(f"this event changes nothing; give one of factor, {', '.join(SHAPE)}")
    if "rate" in values and "factor" in values:
        raise table.error("rate replaces the link's rate and factor multiplies it; leave one of them out", "factor")
    said = []
    for key, value in values.items():
        if key == "factor":
            said.append(f"rate × {value:g}")
        elif key == "rate":
            said.append(f"rate {format_rate(value)}")
        elif key in ("delay", "jitter"):
            said.append(f"{key} {format_time(value)}")
        elif isinstance(value, float):
            said.append(f"{key} {100 * value:.3g} %")
        else:
            said.append(f"{key} {value}" + (" bytes" if key == "burst" else ""))
    fields = {"rate": "rate_bps", "factor": "factor", **FIELDS}
    return Effect(**{fields.get(key, key): value for key, value in values.items()}), ", ".join(said)


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} … {hosts[-1]} ({len(hosts)})"
