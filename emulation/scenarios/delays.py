"""Delays of links from a latency matrix, by the names of hosts or by the sites of hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from thalweg.emulation.scenarios.data_sets import find_set, near_miss, read_grid
from thalweg.emulation.scenarios.hosts import HostSpec, draw_sites
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, links_between

MAX_DELAY_S = 60.0


def read_delays(
    name: str, hosts: Sequence[str], seed: int, folder: Path = Path(os.curdir)
) -> tuple[dict[Link, float], dict[str, str]]:
    """Return the delay of every link between ``hosts`` in seconds, and the site of every host with a drawn site.

    ``name``: a latency data set or CSV file, as a path from ``folder`` on. A delay is half of a round trip. If the set
    has the names of the hosts, these are the sites. If it has no host's name, ``seed`` draws for every host a site of
    its own that was measured with the sites of all other hosts. Raises UsageError or TraceError, one line, for a set
    that has only some of the hosts, or no value for two hosts.
    """
    path = find_set(name, "latency", folder)
    grid = read_grid(path, "latency")
    known = [host for host in hosts if host in grid.sites.names]
    if known and len(known) < len(hosts):
        absent = next(host for host in hosts if host not in known)
        unused = set(grid.sites.names) - set(known)
        near = f"; {near_miss(absent, unused)}" if unused else ""
        raise UsageError(
            f"{path} has host {known[0]!r} and not {absent!r}{near}; name all hosts there, or none of them"
        )
    sites = {spec.name: str(spec.site) for spec in draw_sites(map(HostSpec, hosts), [grid], seed).values()}
    delays: dict[Link, float] = {}
    for link in links_between(hosts):
        round_trip_s = grid.value(sites[link.source], sites[link.target])
        if round_trip_s is None:
            raise UsageError(f"{path} has no round trip between {link.source} and {link.target}")
        if round_trip_s / 2 > MAX_DELAY_S:
            raise UsageError(
                f"{path}: {link.source} → {link.target} takes {round_trip_s / 2:g} s one way, more than"
                f" {MAX_DELAY_S:g} s; are these milliseconds?"
            )
        delays[link] = round_trip_s / 2
    return delays, {} if known else sites
