"""Presets in scenario files: access lines of hosts, and paths for links.

R1. A line belongs to a host. ``preset`` in the file's own keys or in ``[links]`` gives the line to every host. In a
    host's entry, or in a ``[[link]]`` with ``host``, it gives the line to that host.
R2. A figure in the same table wins over the preset's. A host's own line wins over ``[links]``, and a ``[[link]]`` wins
    over lines.
R3. Lines are in the network ``net``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from thalweg.emulation.links import units
from thalweg.emulation.links.shape import Queue
from thalweg.emulation.presets.table import PRESETS, between, by_lines, find_preset, preset_name
from thalweg.emulation.scenarios.toml import Spot, Written
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET, Link

KEYS = {"rate_bps": "rate", "delay_s": "delay", "jitter_s": "jitter"}  # of figures; else the same name
EVERY = "*"


class PresetName(str, metaclass=Written):
    """Name of a preset."""

    read = preset_name


class LineName(str, metaclass=Written):
    """Name of an access line's preset."""

    @staticmethod
    def read(value: Any) -> str:
        if not find_preset(value).of_host:
            raise UsageError(f"{value!r} is a path, which only links can be; write it in [links] or in a [[link]]")
        return str(value)


class HostsLine(NamedTuple):
    """Line that a table gives to hosts, by name, and the queue in the same table, if there is one."""

    preset: str
    queue: Queue | None
    hosts: Sequence[Any] = (EVERY,)


def is_line(name: Any) -> bool:
    """Return whether a value of a file names the preset of an access line."""
    return isinstance(name, str) and name in PRESETS and PRESETS[name].of_host


def common_line(root: Spot) -> HostsLine | None:
    """Return the line of hosts without an own line, from ``[links]`` or else from the file's own keys."""
    return _line_of(root.value.get("links")) or _line_of({"preset": root.value.get("preset")})


def lines_of_links(root: Spot) -> list[HostsLine]:
    """Return the lines that ``[[link]]`` tables with ``host`` give, in the file's order."""
    tables = root.value.get("link")
    lines = [_line_of(table) for table in (tables if isinstance(tables, list) else [])]
    return [line for line in lines if line is not None and line.hosts != (EVERY,)]


def _line_of(table: Any) -> HostsLine | None:
    """Return the line that a table gives, before a check of the table's values."""
    if not isinstance(table, dict) or not is_line(table.get("preset")):
        return None
    queue = None
    if "queue" in table:
        with suppress(UsageError):  # the reader of links refuses such a queue
            queue = Queue(*units.queue(table["queue"]))
    if "host" not in table:
        return HostsLine(table["preset"], queue)
    hosts = table["host"]
    return HostsLine(table["preset"], queue, hosts if isinstance(hosts, list) else [hosts])


def line_of_host(name: str, lines: Iterable[HostsLine]) -> HostsLine | None:
    """Return the last of these lines that names a host, or None."""
    named = [line for line in lines if name in line.hosts or EVERY in line.hosts]
    return named[-1] if named else None


def with_rates(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a host, with the rates of its line added. Rates among the keys win (R2)."""
    result = dict(keys)
    if keys.get("preset") is not None:
        for key in ("up_rate", "down_rate"):
            rate_bps = units.rate_bps(PRESETS[keys["preset"]].figures[key].value)
            result[key] = {NET: rate_bps} | (keys.get(key) or {})
    return result


def check_table(spot: Spot) -> None:
    """Raise UsageError for a ``[[link]]`` that gives a line to links, or to a host in another network (R1, R3)."""
    name = spot.value.get("preset")
    if not is_line(name):
        return
    if "host" not in spot.value:
        raise spot.error(f'preset: {name!r} is the line of a host; write host = "NAME", not from and to', "preset")
    if spot.value.get("network", NET) != NET:
        raise spot.error(f"preset: lines are of the network {NET!r}; give these links a rate and a delay", "preset")


def figures_of_lines(
    lines: Mapping[str, str | None], common: HostsLine | None, links: Iterable[Link], *, own: bool
) -> Iterator[tuple[dict[str, float | Queue], list[Link]]]:
    """Yield figures by key of a file, and the links that get these figures from lines.

    Args:
        lines: the hosts' lines.
        common: the line of hosts without an own line.
        links: all links.
        own: True for links with an own line at an end, False for the remaining links.
    """
    usual = (None, None if common is None else common.preset)
    for ends, some in by_lines(lines, (link for link in links if link.via == NET)).items():
        if ends != (None, None) and own is any(line not in usual for line in ends):
            yield by_key(between(*ends)), some


def figures_of_path(name: str | None) -> dict[str, float | Queue]:
    """Return the figures of a path's preset by key of a file. There are none for a line, or for None."""
    return {} if name is None or is_line(name) else by_key(between(name))


def by_key(figures: Mapping[str, float | Queue]) -> dict[str, float | Queue]:
    """Return figures of ``LinkShape`` by key of a file."""
    return {KEYS.get(field, field): figure for field, figure in figures.items()}
