"""Hosts of a scenario file: names, sites and limits, and drawn sites for hosts without one."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from thalweg.emulation.kernel.names import objection
from thalweg.emulation.links.shape import Queue
from thalweg.emulation.links.units import rate_bps
from thalweg.emulation.presets.table import line
from thalweg.emulation.scenarios.data_sets import Grid, near_miss, place
from thalweg.emulation.scenarios.lines import (
    EVERY,
    HostsLine,
    LineName,
    common_line,
    is_line,
    line_of_host,
    lines_of_links,
    with_rates,
)
from thalweg.emulation.scenarios.toml import AboveZero, Keys, Size, Spot, Text, Texts, Written
from thalweg.emulation.traces.pool import choose
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.figures import read_capacity
from thalweg.middleware.network.view import NET, Link, links_between

MAX_HOSTS = 1023  # addresses that a testbed has
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  # becomes a container's and a host's name
_UNFIT = re.compile(r"[^A-Za-z0-9]+")


class HostSpec(msgspec.Struct, frozen=True):
    """Host with its site and limits. None: no site, or no limit.

    ``interface_bps``: emulated bit/s for all sending, and the same for all receiving. Only containers keep ``cpus`` and
    ``memory_bytes``. ``speed`` and ``cores``: the processor as planners see it, and in virtual time the processor
    itself. ``drawn``: the site was drawn, because the file has none. ``cables_bps``: like ``interface_bps``, by further
    network. ``up_bps``, ``down_bps``: emulated bit/s for all sending, or all receiving, by network. Mappings without
    limits are left out. ``preset``: access line of the host. ``up_queue``: queue before ``up_bps`` in the network
    ``net``.
    """

    name: str
    site: str | None = None
    interface_bps: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    speed: float | None = None
    cores: int | None = None
    drawn: bool = False
    cables_bps: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    up_bps: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    down_bps: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    preset: str | msgspec.UnsetType = msgspec.UNSET
    up_queue: Queue | msgspec.UnsetType = msgspec.UNSET

    @property
    def interfaces_bps(self) -> dict[str, float]:
        """Limits of the host's interfaces, by network."""
        own = {} if self.interface_bps is None else {NET: self.interface_bps}
        return own if self.cables_bps is msgspec.UNSET else own | self.cables_bps


class InterfaceRate(dict[str, float], metaclass=Written):
    """Bits per second by network. A rate alone is for the network ``net``."""

    @staticmethod
    def read(value: Any) -> dict[str, float]:
        return {via: rate_bps(rate) for via, rate in (value if isinstance(value, dict) else {NET: value}).items()}


class Speed(float, metaclass=Written):
    """Speed of a processor, as a multiple of a usual host's speed."""

    @staticmethod
    def read(value: Any) -> float:
        return read_capacity((f"speed={value}",)).speed


class Cores(int, metaclass=Written):
    """Number of calls that a host makes at once."""

    @staticmethod
    def read(value: Any) -> int:
        return read_capacity((f"cores={value}",)).cores


class Limits(Keys):
    """Keys for limits of a host, or at the top of a file, of every host without own limits."""

    interface_rate: InterfaceRate | None = None
    up_rate: InterfaceRate | None = None
    down_rate: InterfaceRate | None = None
    preset: LineName | None = None
    cpus: AboveZero | None = None
    memory: Size | None = None
    speed: Speed | None = None
    cores: Cores | None = None


class HostKeys(Limits):
    """Keys of one of ``[[hosts]]``."""

    name: Text | None = None
    site: Text | None = None


_FIGURES = {"cpus": "cpus", "memory_bytes": "memory", "speed": "speed", "cores": "cores"}  # fields, and their keys


class Ends(Keys):
    """Keys that name links: ``from`` and ``to`` (if absent: all hosts), or ``host`` for all links of hosts."""

    from_: Texts | None = None
    to: Texts | None = None
    both: bool | None = None
    host: Texts | None = None


def read_hosts(root: Spot, networks: Collection[str] = ()) -> dict[str, HostSpec]:
    """Return the hosts by name, in the order of the file. ``networks``: networks of the hosts besides ``net``."""
    entries, common = root.value.get("hosts"), root.given(root.read(Limits))
    lines = [*filter(None, [common_line(root)]), *lines_of_links(root)]
    if isinstance(entries, int) and not isinstance(entries, bool):
        if not 1 <= entries <= MAX_HOSTS:
            raise root.error(f"hosts is {entries}; a testbed has 1 to {MAX_HOSTS}", "hosts")
        entries = ["client", *(f"h{i}" for i in range(1, entries))]
    if not isinstance(entries, list) or not entries:
        raise root.error("a scenario needs hosts: a number of them, a list such as [\"client\", \"h1\"], or [[hosts]]",
                         "hosts")  # fmt: skip
    if len(entries) > MAX_HOSTS:
        raise root.error(f"{len(entries)} hosts; a testbed has at most {MAX_HOSTS}", "hosts")
    hosts: dict[str, HostSpec] = {}
    for number, entry in enumerate(entries):
        spot = Spot(root.file, "a host", entry, ("hosts", number))
        host = _host(spot, common, networks, lines)
        if host.name in hosts:
            way = f'"other@{host.site}"' if host.site else "each its own"
            raise spot.error(f"two hosts are named {host.name!r}; name {way}")
        hosts[host.name] = host
        if wrong := objection([host.name]):
            raise spot.error(wrong)
    if wrong := objection([*hosts], [*networks]):
        raise root.error(wrong, "hosts")
    return hosts


def _host(spot: Spot, common: Mapping[str, Any], networks: Collection[str], lines: Sequence[HostsLine]) -> HostSpec:
    own: dict[str, Any] = {}
    if isinstance(spot.value, dict):
        spot.only(HostKeys)
        own = spot.given(spot.read(HostKeys))
    name, site = _name_and_site(spot, own)
    given_line, shared = line_of_host(name, lines), dict(common)
    if given_line is not None:
        (own if EVERY not in given_line.hosts else shared)["preset"] = given_line.preset
    values = with_rates(shared) | with_rates(own)
    figures = {field: values.get(key) for field, key in _FIGURES.items()}
    for key in RATE_KEYS:
        limits = dict(values.get(key) or {})
        if unknown := next((via for via in limits if via not in (NET, *networks)), None):
            known = near_miss(unknown, [NET, *networks])
            raise spot.error(f"{key}: there is no network {unknown!r}; {known}", key)
        if key == "interface_rate":
            figures["interface_bps"] = limits.pop(NET, None)
        figures[RATE_KEYS[key]] = limits or msgspec.UNSET
    queue = given_line.queue if given_line is not None and given_line.preset == values["preset"] else None
    return with_preset(msgspec.structs.replace(HostSpec(name, site or None), **figures), values.get("preset"), queue)


def _name_and_site(spot: Spot, own: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the name and the site of a host, from its table or from a text such as ``h1@aws:eu-west-1``."""
    entry = spot.value
    if isinstance(entry, dict):
        name, site = own.get("name"), own.get("site")
    elif isinstance(entry, str) and entry:
        name, at, site = entry.partition("@")
        if not at and ":" in entry:  # a site without a name: names have no colon
            name, site = "", entry
        if at and not site:
            raise spot.error(f"host {entry!r} has no site after the @; write name@site")
    else:
        raise spot.error(f'{entry!r} is not a host; write its name in quotes, as in "h1" or "h1@aws:eu-west-1"')
    if not name and site:
        name = _UNFIT.sub("-", place(site)[0]).strip("-")
    if not name:
        raise spot.error("this host has no name; give it a name or a site")
    if not _NAME.fullmatch(name):
        raise spot.error(
            f"host name {name!r} must be letters, digits and - _ . between them, at most 63; before a site write"
            " name@site"
        )
    return name, site


def with_preset(host: HostSpec, preset: str | None, queue: Queue | None = None) -> HostSpec:
    """Return a host with an access line. Its own rates stay. None, or a path's preset: the host as it is.

    ``queue``: queue before the sending rate, instead of the line's queue.
    """
    if preset is None or not is_line(preset):
        return host
    access = line(preset)
    return msgspec.structs.replace(
        host,
        preset=preset,
        up_queue=queue or access.queue,
        up_bps={NET: access.up_bps} | (host.up_bps or {}),
        down_bps={NET: access.down_bps} | (host.down_bps or {}),
    )


RATE_KEYS = {"interface_rate": "cables_bps", "up_rate": "up_bps", "down_rate": "down_bps"}  # and the fields of HostSpec


def within_networks(root: Spot, hosts: Mapping[str, HostSpec], links: Collection[Link]) -> dict[str, HostSpec]:
    """Return the hosts without common limits of the file for networks in which a host has no link.

    Raises UsageError if a host has such a limit of its own.
    """
    joined = {(host, link.via) for link in links for host in link.hosts}
    result = {}
    for number, (name, host) in enumerate(hosts.items()):
        kept_of: dict[str, Any] = {}
        for key, field in RATE_KEYS.items():
            limits = getattr(host, field) or {}
            usable = {via: rate for via, rate in limits.items() if via == NET or (name, via) in joined}
            kept_of[field] = usable or msgspec.UNSET
            entry = root.value["hosts"][number] if usable != limits and isinstance(root.value["hosts"], list) else None
            if isinstance(entry, dict) and key in entry:
                via = next(via for via in limits if via not in usable)
                raise Spot(root.file, "a host", entry, ("hosts", number)).error(
                    f"{key}: host {name!r} has no link in network {via!r}; give it a [[link]] there, or leave"
                    f" {via} out",
                    key,
                )
        result[name] = msgspec.structs.replace(host, **kept_of)
    return result


# --- links by their ends ------------------------------------------------------------------------------


def hosts_named(spot: Spot, key: str, names: Sequence[str], hosts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts that a key of a table names, all for ``*``. An error has the nearest name."""
    for number, name in enumerate(names):
        if name == "*":
            if len(names) > 1:
                raise spot.error(f'{key}: "*" is all hosts; let it stand alone', key, number)
            return tuple(hosts)
        if name not in hosts:
            raise spot.error(f"{key}: there is no host {name!r}; {near_miss(name, hosts)}", key, number)
    return tuple(dict.fromkeys(names))


def links_of(chosen: Container[str], hosts: Iterable[str], via: str = NET) -> tuple[Link, ...]:
    """Return every link from and to the chosen hosts over a network."""
    return tuple(link for link in links_between(hosts, via) if link.source in chosen or link.target in chosen)


def links_named(spot: Spot, hosts: Mapping[str, Any], via: str = NET) -> tuple[Link, ...]:
    """Return the links over a network that a table names (see ``Ends``)."""
    ends = spot.read(Ends)
    if ends.host is not None:
        if other := next((key for key in ("from", "to", "both") if key in spot.value), None):
            raise spot.error(f"host is all links of a host, both ways; leave out {other}", other)
        return links_of(hosts_named(spot, "host", ends.host, hosts), hosts, via)
    if ends.from_ is None and ends.to is None:
        raise spot.error(f'{spot.what} names no links; give from and to ("*" is all hosts), or host')
    sources = hosts_named(spot, "from", ends.from_ or ("*",), hosts)
    targets = hosts_named(spot, "to", ends.to or ("*",), hosts)
    links = dict.fromkeys(Link(a, b, via) for a in sources for b in targets if a != b)
    if ends.both:
        links |= dict.fromkeys(link.back for link in list(links))
    if not links:
        raise spot.error("no link has these ends; from and to must be different hosts", "from")
    return tuple(links)


# --- sites that are drawn -----------------------------------------------------------------------------


def draw_sites(hosts: Iterable[HostSpec], grids: Sequence[Grid], seed: int) -> dict[str, HostSpec]:
    """Return the hosts, with a drawn site for each host without one. A site is in all ``grids``, and of one host only.

    If a host has the name of a site, it gets this site. Otherwise seed and name draw a place in the list of sites. The
    next free site from there that was measured with all sites so far is the host's. Hosts added at the end leave the
    sites of other hosts unchanged. Raises UsageError if there are not enough sites.
    """
    placed = [
        msgspec.structs.replace(host, site=host.name)
        if host.site is None and all(host.name in grid.sites.names for grid in grids)
        else host
        for host in hosts
    ]
    common = [site for site in grids[0].sites.names if all(grid.sites.find(site) for grid in grids[1:])]
    used = [site for host in placed if host.site and (site := grids[0].sites.find(host.site))]
    result: dict[str, HostSpec] = {}
    for host in placed:
        if host.site is None:
            start = choose(len(common), seed, "site", host.name)[0]
            order = common[start:] + common[:start]
            site = next((name for name in order if name not in used and _measured(name, used, grids)), None)
            if site is None:
                sets = " and ".join(repr(grid.name) for grid in grids)
                why = f"no site of {sets} is left" if common else f"{sets} have no site in common"
                raise UsageError(f"{why} for host {host.name!r}; have fewer hosts, or give them sites (name@site)")
            used.append(site)
            host = msgspec.structs.replace(host, site=site, drawn=True)
        result[host.name] = host
    return result


def _measured(site: str, others: Iterable[str], grids: Sequence[Grid]) -> bool:
    """Return whether every grid has values between a site and the known sites of ``others``, both ways."""
    for grid in grids:
        name = grid.sites.find(site)
        for known in filter(None, map(grid.sites.find, others)):
            if name is None or None in (grid.value(name, known), grid.value(known, name)):
                return False
    return True
