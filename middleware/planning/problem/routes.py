"""Routes of several rented links between two hosts: hosts in between pass on what comes, and hold nothing of it.

Rules:

R1. A route over relays takes links that were agreed on (``Network.links``), and no others: what these carry is known,
    and nobody else's traffic is in the way. It meets no host twice, and has at most ``Task.hops`` links.
R2. It carries what the slowest of its links does, as relays pass on chunk by chunk; it costs what all of them do.
R3. Between two hosts the ``KEPT`` that carry most are looked at, of equal ones those of fewer links; and none that a
    direct link that was agreed on carries as much as. None is missed, in polynomial time: the next best route leaves
    one of those before it at some host, and is the best one that does (Yen, *Finding the K shortest loopless paths in a
    network*, 1971).
R4. What relays pass on is acknowledged over the network that all hosts share: who cannot be reached there, as is known,
    is no relay.
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

HOPS = 2  # links of a route, unless more are allowed: each more is a host that has to be there, and bytes paid again
KEPT = 2
Route = tuple[Link, ...]
Over = str | Route  # a network, or the links over relays


def route_of(pair: Pair, over: Over) -> Route:
    """The links that it takes."""
    return (Link(*pair, over),) if isinstance(over, str) else over


def over_of(route: Route) -> Over:
    """The network that a route is over, or, over relays, the route."""
    return route[0].via if len(route) == 1 else route


def relayed(
    networks: Mapping[str, Network],
    hosts: Collection[str],
    hops: int,
    pairs: Iterable[Pair],
    shunned: Collection[Route] = (),
) -> dict[Pair, list[Route]]:
    """By pair of hosts, of these, the routes over relays among ``hosts`` of at most ``hops`` links, the best first.

    None of those that are ``shunned``. Of those that carry as much, and have as many links, it may be any.
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
    """Links that were agreed on, and what they carry, bit/s."""

    def __init__(self, agreed: Mapping[Link, float]) -> None:
        self._agreed = agreed
        self._hosts = sorted({host for link in agreed for host in link.hosts})
        self._number = {host: number for number, host in enumerate(self._hosts)}
        self._links: dict[tuple[int, int], list[Link]] = {}  # the best of two hosts first
        for link in sorted(agreed, key=lambda link: (-agreed[link], link)):
            self._links.setdefault((self._number[link.source], self._number[link.target]), []).append(link)
        self._best = np.zeros((len(self._hosts),) * 2)  # (from, to) bit/s, 0 without a link
        for ends, (best, *_) in self._links.items():
            self._best[ends] = agreed[best]

    def between(self, pair: Pair, hops: int) -> Iterator[Route]:
        """R3: the routes of several links that carry more than a direct one, the best first."""
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
        """Of the routes that begin with ``start``, and go on from host ``at`` over a link that is not barred, the one
        that carries most, of equal ones one with the fewest links; empty where there is none.
        """
        open_bps = self._best.copy()
        open_bps[:, [at, *(self._number[link.source] for link in start)]] = 0.0  # R1: no host twice
        first = {to: link for to in np.flatnonzero(open_bps[at]).tolist() if (link := self._first(at, to, barred))}
        carried = np.zeros(len(self._hosts))  # (hosts,) bit/s with so many links more; R2
        for to, link in first.items():
            carried[to] = min(self._agreed[link], self._carried(start))
        came: list[list[int]] = []  # by links more, and host: from which host, -1 where fewer links carry as much
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
        """The best link of two hosts that is not barred."""
        return next((link for link in self._links[at, to] if link not in barred), None)


def is_route(link: Link, route: Route) -> bool:
    """Whether these links lead from the one host to the other, meeting none twice, and are few enough for hosts."""
    met = [link.source, *(hop.target for hop in route)]
    joined = all(hop.source == host for hop, host in zip(route, met, strict=False))
    return joined and met[-1] == link.target and len({*met}) == len(met) and 1 <= len(route) <= MAX_HOPS


def reachable(view: NetworkView, hosts: Collection[str]) -> set[str]:
    """R4: those of the hosts to which some link over the shared network carries something, or none is known."""
    shared = [(link.target, known.rate_bps) for link, known in view.estimates.items() if len(link) == 2]
    return {*hosts} - ({host for host, _ in shared} - {host for host, bps in shared if bps})
