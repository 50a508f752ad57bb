"""The platforms and tasks of Asaduzzaman and Maheswaran's simulation (section 6.1), drawn with a seed.

Hosts join the dedicated network one by one, each by a link to one that is drawn by its number of links (Barabási and
Albert, m = 1). With fewer links than hosts the last hosts have none; links beyond that join a host drawn evenly to one
drawn by its links. What is drawn of hosts and tasks does not hang on how many links there are.
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
    """That many links among hosts, grown by preference for those with many; ``joined``: links of a host that joins."""
    found: list[tuple[Host, Host]] = []
    drawn: list[Host] = [0]  # every host as often as it has links
    for host in range(1, hosts):
        targets: set[Host] = set()
        while len(targets) < min(joined, host):
            targets.add(drawn[int(random.integers(len(drawn)))])
        for target in sorted(targets):
            found.append((target, host))
            drawn += [target, host]
        if host == 1:
            drawn.remove(0)  # which was there to be drawn first
    known = set(found)
    while len(found) < min(links, hosts * (hosts - 1) // 2):
        pair = ends(int(random.integers(hosts)), drawn[int(random.integers(len(drawn)))])
        if pair[0] != pair[1] and pair not in known:
            known.add(pair)
            found.append(pair)
            drawn += pair
    return found[:links]


def platform(seed: tuple[int, ...], hosts: int = 100, links: int = 99, networks: Networks = "both") -> Platform:
    """A platform; a host's services and capacity go by its dedicated links, also where these are not used."""
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
    own = [Dedicated(one, other, float(rates[at]), float(latencies[at])) for at, (one, other) in enumerate(joined)]
    public_s = {(one, other): float(delays[one, other]) for one in range(hosts) for other in range(one + 1, hosts)}
    return Platform(servers, () if networks == "public" else tuple(own), public_s)


def task(number: int, random: np.random.Generator, hosts: int = 100) -> MappingTask:
    """A task of ``COMPONENTS`` different services, between two different hosts."""
    source, sink = random.choice(hosts, 2, replace=False).tolist()
    services = random.choice(SERVICES, COMPONENTS, replace=False).tolist()
    return MappingTask(number, source, sink, tuple(services), (1.0,) * COMPONENTS, (RATE_BPS,) * (COMPONENTS + 1))
