"""Platforms and tasks of the simulation of Asaduzzaman and Maheswaran (section 6.1), drawn with a seed.

Hosts join the dedicated network one by one, each by a link to a host that is drawn by its number of links (Barabási and
Albert, m = 1). With fewer links than hosts the last hosts have none. Further links join a uniformly drawn host to a
host drawn by its links. Draws of hosts and tasks do not depend on the number of links.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Dedicated, Host, MappingTask, Platform, Server, ends

SERVICES, COMPONENTS = 25, 10
RATE_BPS, SIZE_BITS = 1e6, 8e8  # of a task: 1 Mb/s, 100 MB
INSTANCES = 2  # of each service that a host can run at once
LINK_BPS, LINK_S = (1e6, 10e6), (0.001, 0.010)
LAST_MILE_BPS, PUBLIC_S = (1e6, 2e6), (0.010, 0.100)
Networks = Literal["dedicated", "public", "both"]


def preferential(hosts: int, links: int, random: np.random.Generator, joined: int = 1) -> list[tuple[Host, Host]]:
    """Return links among hosts, grown by preference for hosts with many. ``joined``: links of a new host."""
    pairs: list[tuple[Host, Host]] = []
    drawn: list[Host] = [0]  # every host as often as its number of links
    for host in range(1, hosts):
        targets: set[Host] = set()
        while len(targets) < min(joined, host):
            targets.add(drawn[int(random.integers(len(drawn)))])
        for target in sorted(targets):
            pairs.append((target, host))
            drawn += [target, host]
        if host == 1:
            drawn.remove(0)  # the entry for the first draw
    known = set(pairs)
    while len(pairs) < min(links, hosts * (hosts - 1) // 2):
        pair = ends(int(random.integers(hosts)), drawn[int(random.integers(len(drawn)))])
        if pair[0] != pair[1] and pair not in known:
            known.add(pair)
            pairs.append(pair)
            drawn += pair
    return pairs[:links]


def platform(seed: tuple[int, ...], hosts: int = 100, links: int = 99, networks: Networks = "both") -> Platform:
    """Return a platform. A host's services and capacity depend on its dedicated links, even unused ones."""
    random = np.random.default_rng((*seed, 1))
    joined = preferential(hosts, max(links, hosts - 1), np.random.default_rng((*seed, 2)))[:links]
    degree = np.bincount(np.array(joined, int).ravel(), minlength=hosts) if joined else np.zeros(hosts, int)
    up, down = random.uniform(*LAST_MILE_BPS, (2, hosts))
    order = [random.permutation(SERVICES) for _ in range(hosts)]
    delays = random.uniform(*PUBLIC_S, (hosts, hosts))
    rates, latencies = (
        np.random.default_rng((*seed, number)).uniform(*bounds, max(links, hosts * 4))
        for number, bounds in ((3, LINK_BPS), (4, LINK_S))
    )
    public = networks != "dedicated"
    servers = tuple(
        Server(
            float(INSTANCES * (1 + degree[host])),
            frozenset(map(int, order[host][: 1 + degree[host]])),
            float(up[host]) if public else 0.0,
            float(down[host]) if public else 0.0,
        )
        for host in range(hosts)
    )
    own = [
        Dedicated(first, second, float(rates[at]), float(latencies[at])) for at, (first, second) in enumerate(joined)
    ]
    public_s = {
        (first, second): float(delays[first, second]) for first in range(hosts) for second in range(first + 1, hosts)
    }
    return Platform(servers, () if networks == "public" else tuple(own), public_s)


def task(number: int, random: np.random.Generator, hosts: int = 100) -> MappingTask:
    """Return a task of ``COMPONENTS`` different services, between two different hosts."""
    source, sink = random.choice(hosts, 2, replace=False).tolist()
    services = random.choice(SERVICES, COMPONENTS, replace=False).tolist()
    return MappingTask(number, source, sink, tuple(services), (1.0,) * COMPONENTS, (RATE_BPS,) * (COMPONENTS + 1))
