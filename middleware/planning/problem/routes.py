"""Routes of several rented links between two hosts. The hosts in between pass chunks on and store nothing.

Rules:

R1. A route over relays takes only links that were agreed on (``Network.links``). The rates of these links are known,
    and the links carry no foreign traffic. A route meets no host twice, and has at most ``Task.hops`` links.
R2. A route carries as much as its slowest link, as relays pass on chunk by chunk. It costs the sum of its links.
R3. For a pair of hosts, the ``KEPT`` routes that carry most are considered. Of equal routes, the route with fewer links
    comes first. A route is left out if a direct link that was agreed on carries as much. The search is polynomial and
    misses no route. The next best route leaves an earlier route at some host, and is the best route that does (Yen,
    *Finding the K shortest loopless paths in a network*, 1971).
R4. Bytes that relays pass on are acknowledged over the network that all hosts share. So a host that is known to be
    unreachable there is no relay.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.view import Link, NetworkView, Pair
from thalweg.middleware.protocol.messages import MAX_HOPS

HOPS = 2  # default limit of links in a route: each further link needs a host, and its bytes are paid again
KEPT = 2
Route = tuple[Link, ...]
Over = str | Route  # a network, or a route over relays


def route_of(pair: Pair, over: Over) -> Route:
    """Return the links that a network or route between two hosts takes."""
    return (Link(*pair, over),) if isinstance(over, str) else over


def over_of(route: Route) -> Over:
    """Return the network of a route of one link, or the route itself if it goes over relays."""
    return route[0].via if len(route) == 1 else route


def relayed(
    networks: Mapping[str, Network],
    hosts: Collection[str],
    hops: int,
    pairs: Iterable[Pair],
    shunned: Collection[Route] = (),
) -> dict[Pair, list[Route]]:
    """Return the best routes over relays for each of ``pairs``, at most ``KEPT``, the best first.

    Relays are among ``hosts``, a route has at most ``hops`` links, and ``shunned`` routes are left out. The order of
    routes with the same rate and number of links is not specified. A pair without such a route is left out.
    """
    agreed = links_of(networks) if hops > 1 else {}
    rented = _Rented({link: bps for link, bps in agreed.items() if link.source in hosts and link.target in hosts})
    over_relays = {}
    for pair in pairs:
        ranked = (route for route in rented.between(pair, hops) if route not in shunned)
        if routes := list(itertools.islice(ranked, KEPT)):
            over_relays[pair] = routes
    return over_relays


class _Rented:
    """Links that were agreed on, with their rates in bit/s, and the search for routes over these links."""

    def __init__(self, agreed: Mapping[Link, float]) -> None:
        self._agreed = agreed
        self._hosts = sorted({host for link in agreed for host in link.hosts})
        self._number = {host: number for number, host in enumerate(self._hosts)}
        self._links: dict[tuple[int, int], list[Link]] = {}  # by pair of hosts, the best link first
        for link in sorted(agreed, key=lambda link: (-agreed[link], link)):
            self._links.setdefault((self._number[link.source], self._number[link.target]), []).append(link)
        self._best = np.zeros((len(self._hosts),) * 2)  # (from, to) bit/s, 0 without a link
        for ends, (best, *_) in self._links.items():
            self._best[ends] = agreed[best]

    def between(self, pair: Pair, hops: int) -> Iterator[Route]:
        """Yield the routes of several links that carry more than a direct link, the best first (R3)."""
        source, target = self._number.get(pair[0]), self._number.get(pair[1])
        if source is None or target is None:
            return
        straight = {*self._links.get((source, target), ())}
        known: set[Route] = set()
        waiting: list[tuple[float, int, Route]] = []
        before: list[Route] = [()]
        yielded: list[Route] = []
        while True:
            for start in before:
                barred = {route[len(start)] for route in yielded if route[: len(start)] == start}
                at = self._number[start[-1].target] if start else source
                route = self._widest(start, at, target, barred if start else barred | straight, hops)
                if route and route not in known:
                    known.add(route)
                    heapq.heappush(waiting, (-self._carried(route), len(route), route))
            if not waiting or -waiting[0][0] <= self._best[source, target]:
                return
            best = heapq.heappop(waiting)[2]
            yield best
            yielded.append(best)
            before = [best[:number] for number in range(len(best))]

    def _carried(self, route: Route) -> float:
        return min([self._agreed[link] for link in route], default=math.inf)

    def _widest(self, start: Route, at: int, target: int, barred: set[Link], hops: int) -> Route:
        """Return the route with the highest rate that begins with ``start`` and goes on from host ``at``.

        The next link of the route is not in ``barred``. Of equal routes, a route with the fewest links is returned. The
        result is empty if there is no route.
        """
        open_bps = self._best.copy()
        open_bps[:, [at, *(self._number[link.source] for link in start)]] = 0.0  # R1: a route meets no host twice
        first = {to: link for to in np.flatnonzero(open_bps[at]).tolist() if (link := self._first(at, to, barred))}
        carried = np.zeros(len(self._hosts))  # R2: (hosts,) bit/s of the best route with the links so far
        for to, link in first.items():
            carried[to] = min(self._agreed[link], self._carried(start))
        came: list[list[int]] = []  # predecessor by round and host, -1 if fewer links carry as much
        while len(start) + len(came) + 1 < hops and carried[target] < carried.max():
            over = np.minimum(carried[:, np.newaxis], open_bps)
            most = over.max(axis=0)
            wider = most > carried
            if not wider.any():
                break
            came.append(np.where(wider, over.argmax(axis=0), -1).tolist())
            carried = np.maximum(most, carried)
        if not carried[target]:
            return ()
        rest: list[Link] = []
        for predecessors in reversed(came):
            if predecessors[target] >= 0:
                rest.append(self._links[predecessors[target], target][0])
                target = predecessors[target]
        return (*start, first[target], *reversed(rest))

    def _first(self, at: int, to: int, barred: set[Link]) -> Link | None:
        """Return the best link between two hosts that is not barred. None: all links are barred."""
        return next((link for link in self._links[at, to] if link not in barred), None)


def is_route(link: Link, route: Route) -> bool:
    """Return whether these links form a route from the source to the target of ``link``.

    A route meets no host twice, and has no more links than hosts accept.
    """
    met = [link.source, *(hop.target for hop in route)]
    joined = all(hop.source == host for hop, host in zip(route, met, strict=False))
    return joined and met[-1] == link.target and len({*met}) == len(met) and 1 <= len(route) <= MAX_HOPS


def reachable(view: NetworkView, hosts: Collection[str]) -> set[str]:
    """Return the hosts that may serve as relays: those that can be reached over the shared network (R4).

    A host counts as reachable if a link over the shared network to it has a rate above 0, or if no such link is known.
    """
    shared = [(link.target, known.rate_bps) for link, known in view.estimates.items() if len(link) == 2]
    return {*hosts} - ({host for host, _ in shared} - {host for host, bps in shared if bps})
