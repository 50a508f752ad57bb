"""The hosts of a scenario file: their names, sites and limits, and the sites that are drawn for those without one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from thalweg.emulation.scenarios.data_sets import Grid, near_miss, place
from thalweg.emulation.scenarios.toml_table import Reader, Table, above_zero, text
from thalweg.emulation.traces.pool import choose
from thalweg.emulation.units import rate_bps, size_bytes
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, links_between

MAX_HOSTS = 1023  # addresses that a testbed has
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  # becomes a container's and a host's name
_UNFIT = re.compile(r"[^A-Za-z0-9]+")


class HostSpec(msgspec.Struct, frozen=True):
    """A host: where it stands, and its limits; None where there is none.

    ``interface_bps``: emulated bit/s for all that it sends, and the same for all that it receives. ``cpus`` and
    ``memory_bytes`` are kept by containers only. ``drawn``: the site was drawn, the file names none.
    """

    name: str
    site: str | None = None
    interface_bps: float | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    drawn: bool = False


LIMITS: dict[str, Reader] = {"interface_rate": rate_bps, "cpus": above_zero, "memory": size_bytes}
_TABLE: dict[str, Reader] = {"name": text, "site": text, **LIMITS}


def read_hosts(root: Table) -> dict[str, HostSpec]:
    """Hosts by name, in the file's order."""
    given = root.given.get("hosts")
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= MAX_HOSTS:
            raise root.error(f"hosts is {given}; a testbed has 1 to {MAX_HOSTS}", "hosts")
        given = ["client", *(f"h{i}" for i in range(1, given))]
    if not isinstance(given, list) or not given:
        raise root.error("a scenario needs hosts: a number of them, a list such as [\"client\", \"h1\"], or [[hosts]]",
                         "hosts")  # fmt: skip
    if len(given) > MAX_HOSTS:
        raise root.error(f"{len(given)} hosts; a testbed has at most {MAX_HOSTS}", "hosts")
    limits = {key: root.values[key] for key in LIMITS if key in root.values}
    hosts: dict[str, HostSpec] = {}
    for number, one in enumerate(given):
        host = _host(root, number, one, limits)
        if host.name in hosts:
            way = f'"other@{host.site}"' if host.site else "each its own"
            raise root.error(f"two hosts are named {host.name!r}; name {way}", "hosts", number)
        hosts[host.name] = host
    return hosts


def _host(root: Table, number: int, given: Any, limits: Mapping[str, Any]) -> HostSpec:
    if isinstance(given, dict):
        table = root.element("hosts", number, "a host")
        values = {**limits, **table.read(_TABLE)}
        name, site = values.get("name"), values.get("site")
    elif isinstance(given, str) and given:
        values = dict(limits)
        name, at, site = given.partition("@")
        if not at and ":" in given:  # a site alone; plain names have no colon
            name, site = "", given
        if at and not site:
            raise root.error(f"host {given!r} has no site after the @; write name@site", "hosts", number)
    else:
        raise root.error(f"{given!r} is not a host; write its name in quotes, as in \"h1\" or \"h1@aws:eu-west-1\"",
                         "hosts", number)  # fmt: skip
    if not name and site:
        name = _UNFIT.sub("-", place(site)[0]).strip("-")
    if not name:
        raise root.error("this host has no name; give it a name or a site", "hosts", number)
    if not _NAME.fullmatch(name):
        raise root.error(
            f"host name {name!r} must be letters, digits and - _ . between them, at most 63; before a site write"
            " name@site",
            "hosts",
            number,
        )
    return HostSpec(name, site or None, values.get("interface_rate"), values.get("cpus"), values.get("memory"))


# --- links by their ends ------------------------------------------------------------------------------


def hosts_named(root: Table, key: str, hosts: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts under a key of a table that has been read, all for ``*``; an error names the nearest."""
    names: Sequence[str] = root.values[key]
    for number, name in enumerate(names):
        if name == "*":
            if len(names) > 1:
                raise root.error(f'{key}: "*" is all hosts; let it stand alone', key, number)
            return tuple(hosts)
        if name not in hosts:
            raise root.error(f"{key}: there is no host {name!r}; {near_miss(name, hosts)}", key, number)
    return tuple(dict.fromkeys(names))


def links_named(table: Table, hosts: Mapping[str, Any]) -> tuple[Link, ...]:
    """The links that ``from``, ``to`` and ``both``, or ``host``, name in a table that has been read."""
    values = table.values
    if "host" in values:
        if other := next((key for key in ("from", "to", "both") if key in values), None):
            raise table.error(f"host is all links of a host, both ways; leave out {other}", other)
        chosen = hosts_named(table, "host", hosts)
        return tuple(link for link in links_between(hosts) if link.source in chosen or link.target in chosen)
    if "from" not in values and "to" not in values:
        raise table.error(f'{table.what} says nothing about which links; give from and to ("*" is all hosts), or host')
    ends = [hosts_named(table, key, hosts) if key in values else tuple(hosts) for key in ("from", "to")]
    found = dict.fromkeys(Link(a, b) for a in ends[0] for b in ends[1] if a != b)
    if values.get("both"):
        found |= dict.fromkeys(Link(b, a) for a, b in list(found))
    if not found:
        raise table.error("no link has these ends; from and to must be different hosts", "from")
    return tuple(found)


# --- sites that are drawn -----------------------------------------------------------------------------


def draw_sites(hosts: Iterable[HostSpec], grids: Sequence[Grid], seed: int) -> dict[str, HostSpec]:
    """Every host that has no site gets one that all ``grids`` have, and that nobody else has.

    Drawn by seed and name, then the next site that was measured with all those before: hosts that are added at the
    end leave the others' sites alone. Raises UsageError when there are not enough.
    """
    given = list(hosts)
    common = [site for site in grids[0].sites.names if all(grid.sites.find(site) for grid in grids[1:])]
    taken = [site for host in given if host.site and (site := grids[0].sites.find(host.site))]
    found: dict[str, HostSpec] = {}
    for host in given:
        if host.site is None:
            start = choose(len(common), seed, "site", host.name)[0]
            order = common[start:] + common[:start]
            site = next((one for one in order if one not in taken and _measured(one, taken, grids)), None)
            if site is None:
                sets = " and ".join(repr(grid.name) for grid in grids)
                why = f"no site of {sets} is left" if common else f"{sets} have no site in common"
                raise UsageError(f"{why} for host {host.name!r}; have fewer hosts, or give them sites (name@site)")
            taken.append(site)
            host = msgspec.structs.replace(host, site=site, drawn=True)
        found[host.name] = host
    return found


def _measured(site: str, others: Iterable[str], grids: Sequence[Grid]) -> bool:
    """Whether all grids have values between a site and those others that they know."""
    for grid in grids:
        one = grid.sites.find(site)
        for other in filter(None, map(grid.sites.find, others)):
            if one is None or None in (grid.value(one, other), grid.value(other, one)):
                return False
    return True
