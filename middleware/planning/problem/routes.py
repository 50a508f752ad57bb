"""Routes of several rented links between two hosts: hosts in between pass on what comes, and hold nothing of it.

Rules:

R1. A route over relays takes links that were agreed on (``Network.links``), and no others: what these carry is known,
    and nobody else's traffic is in the way. It meets no host twice, and has at most ``Task.hops`` links.
R2. It carries what the slowest of its links does, as relays pass on chunk by chunk; it costs what all of them do.
R3. Between two hosts the ``KEPT`` that carry most are looked at, of equal ones those of fewer links; and none that a
    direct link that was agreed on carries as much as.
R4. What relays pass on is acknowledged over the network that all hosts share: who cannot be reached there, as is known,
    is no relay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.view import Link, NetworkView, Pair
from thalweg.middleware.protocol.messages import MAX_HOPS

HOPS = 2  # links of a route, unless more are allowed: each more is a host that has to be there, and bytes paid again
KEPT = 2
Route = tuple[Link, ...]


def relayed(networks: Mapping[str, Network], hosts: Collection[str], hops: int) -> dict[Pair, list[Route]]:
    """By pair of hosts the routes over relays, all among ``hosts``, of at most ``hops`` links; the best first."""
    agreed = links_of(networks) if hops > 1 else {}
    out_of: dict[str, list[Link]] = {}
    for link in sorted(agreed):
        if link.source in hosts and link.target in hosts:
            out_of.setdefault(link.source, []).append(link)
    straight: dict[Pair, float] = {}
    for link, bps in agreed.items():
        straight[link.hosts] = max(bps, straight.get(link.hosts, 0.0))

    def carried(route: Route) -> float:
        return min(agreed[link] for link in route)

    found: dict[Pair, list[Route]] = {}
    for source in out_of:
        for route in _from(source, (), {source}, out_of, hops):
            pair = source, route[-1].target
            if carried(route) > straight.get(pair, 0.0):
                found.setdefault(pair, []).append(route)
    return {pair: sorted(over, key=lambda one: (-carried(one), len(one)))[:KEPT] for pair, over in found.items()}


def _from(at: str, before: Route, met: set[str], out_of: Mapping[str, list[Link]], hops: int) -> Iterator[Route]:
    """The routes of several links that begin with ``before``, and go on from there."""
    for link in out_of.get(at, ()):
        if link.target not in met:
            route = (*before, link)
            if before:
                yield route
            if len(route) < hops:
                yield from _from(link.target, route, {*met, link.target}, out_of, hops)


def is_route(link: Link, route: Route) -> bool:
    """Whether these links lead from the one host to the other, meeting none twice, and are few enough for hosts."""
    met = [link.source, *(each.target for each in route)]
    joined = all(each.source == host for each, host in zip(route, met, strict=False))
    return joined and met[-1] == link.target and len({*met}) == len(met) and 1 <= len(route) <= MAX_HOPS


def reachable(view: NetworkView, hosts: Collection[str]) -> set[str]:
    """R4: those of the hosts to which some link over the shared network carries something, or none is known."""
    shared = [(link.target, known.rate_bps) for link, known in view.estimates.items() if len(link) == 2]
    return {*hosts} - ({host for host, _ in shared} - {host for host, bps in shared if bps})
