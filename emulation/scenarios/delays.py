"""The delays of links from a latency matrix: round trips between hosts by name, or between sites that hosts are at."""

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
    """Seconds one way over every link between ``hosts``: half of the round trips in ``name``, a data set or CSV file.

    Where the set names the hosts these are meant; where it names none of them, each is at a site of its own that was
    measured with all others, drawn by ``seed``: the second answer says at which. A path is from ``folder`` on. Raises
    UsageError or TraceError, one line, for a set that names some of the hosts only, or has nothing for two of them.
    """
    path = find_set(name, "latency", folder)
    grid = read_grid(path, "latency")
    known = [host for host in hosts if host in grid.sites.names]
    if known and len(known) < len(hosts):
        absent = next(host for host in hosts if host not in known)
        others = set(grid.sites.names) - set(known)
        near = f"; {near_miss(absent, others)}" if others else ""
        raise UsageError(
            f"{path} has host {known[0]!r} and not {absent!r}{near}; name all hosts there, or none of them"
        )
    sites = {one.name: str(one.site) for one in draw_sites(map(HostSpec, hosts), [grid], seed).values()}
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
