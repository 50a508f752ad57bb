"""Networks of routers for simulations of many hosts: transit-stub topologies, with routes and latencies.

A *transit domain* is a connected random graph of routers, and the transit domains are joined as such a graph. Every
router of a transit domain has some *stub domains*. These are random graphs too, each joined to the router by one link.
Routers lie in a plane. The latency of a link is its length, scaled so that the farthest two routers have the network's
diameter between them.

Presets:

- ``paper``: fitted to the penalties in Pietzuch et al. (2006), Table 1, for placements without coordinates. The paper
  gives the numbers of domains and routers and the diameter, and no more. Routes are of the fewest links.
- ``gt-itm``: not fitted, with probabilities and weights of the usual order for that generator. Routes are of least
  weight, so no route goes through a stub domain, and few go back and forth between transit domains.

Source: Zegura, Calvert, Bhattacharjee (INFOCOM 1996); Pietzuch et al. (2006), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import UsageError, nearest

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
UNLIKE = 1e-6  # largest share of a link's weight to be added: a route is unique, and the same both ways
DRAWS = 10_000  # of a domain's links, until it is connected: for the presets a hundred are many


class Preset(msgspec.Struct, frozen=True):
    """Parameters of a transit-stub topology. The transit domains have their centres in a unit square.

    ``joined``: probabilities of a link between two transit domains, two routers of a transit domain, and two of a stub
    domain. ``side``, ``stub_side``: sides of the squares in which the routers of a domain lie. ``stub_offset``:
    greatest distance of a stub domain's centre from its router, in each direction. ``weights``: of links within a
    domain, between transit domains, and to a stub domain.
    """

    joined: tuple[float, float, float]
    side: float
    stub_side: float
    stub_offset: float
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    domains: int = 10
    routers: int = 5
    stubs: int = 3
    stub_routers: int = 10
    diameter_s: float = 0.878


PRESETS: Mapping[str, Preset] = {
    "paper": Preset((0.2, 0.4, 0.2), side=0.68, stub_side=0.03, stub_offset=0.13),
    "gt-itm": Preset((1.0, 0.6, 0.42), side=0.3, stub_side=0.1, stub_offset=0.1, weights=(1.0, 5.0, 100.0)),
}


class Topology(msgspec.Struct, frozen=True):
    """Routers and the routes between them.

    ``latency_s``: (n, n), of the routes. ``before``: (n, n), the router before *j* on the route from *i*, below 0 if
    *i* is *j*. ``links``: (m, 2).
    """

    latency_s: Floats
    before: Ints
    links: Ints

    def route(self, source: int, target: int) -> list[int]:
        """Return the routers on the route, with both ends."""
        routers = [target]
        while routers[-1] != source:
            routers.append(int(self.before[source, routers[-1]]))
        return routers[::-1]


def transit_stub(preset: str, seed: int) -> Topology:
    """Return the topology of a preset and a seed. Raises UsageError for an unknown preset."""
    if preset not in PRESETS:
        raise UsageError(f"{preset!r} is no topology; {nearest(preset, PRESETS)}")
    chosen, random = PRESETS[preset], np.random.default_rng(seed)
    drawn = _Drawn(chosen, random)
    for centre in random.random((chosen.domains, 2)):
        drawn.domain(centre, chosen.routers, chosen.side / 2, chosen.joined[1])
    for start, end in _connected(chosen.domains, chosen.joined[0], random):
        first, last = (domain * chosen.routers + int(random.integers(chosen.routers)) for domain in (start, end))
        drawn.link(first, last, chosen.weights[1])
    for router in range(chosen.domains * chosen.routers):
        for _ in range(chosen.stubs):
            centre = drawn.places[router] + random.uniform(-chosen.stub_offset, chosen.stub_offset, 2)
            first = drawn.domain(centre, chosen.stub_routers, chosen.stub_side / 2, chosen.joined[2])
            drawn.link(router, first + int(random.integers(chosen.stub_routers)), chosen.weights[2])
    return drawn.routed()


class _Drawn:
    """Topology while it is drawn: places of routers, and links with weights."""

    def __init__(self, made: Preset, random: np.random.Generator) -> None:
        self.places: list[Floats] = []
        self._made, self._random = made, random
        self._links: list[tuple[int, int]] = []
        self._weights: list[float] = []

    def domain(self, centre: Floats, routers: int, half_side: float, joined: float) -> int:
        """Add a domain around a centre, and return its first router."""
        first = len(self.places)
        self.places += list(centre + self._random.uniform(-half_side, half_side, (routers, 2)))
        for start, end in _connected(routers, joined, self._random):
            self.link(first + start, first + end, self._made.weights[0])
        return first

    def link(self, one: int, other: int, weight: float) -> None:
        self._links.append((one, other))
        self._weights.append(weight)

    def routed(self) -> Topology:
        """Return the topology with the routes of least weight, and their latencies."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        routers, places = len(self.places), np.array(self.places)
        links = np.array(self._links, np.int32)
        starts, ends = links.T
        lengths = np.hypot(*(places[starts] - places[ends]).T)
        weights = np.array(self._weights) * (1 + UNLIKE * self._random.random(len(links)))
        graph = csr_array((weights, (starts, ends)), shape=(routers, routers))
        distances, before = dijkstra(graph, directed=False, return_predecessors=True)
        of_link = np.zeros((routers, routers))
        of_link[starts, ends] = of_link[ends, starts] = lengths
        latency_s, sources = np.zeros((routers, routers)), np.arange(routers)
        for reached in np.argsort(distances, axis=1, kind="stable").T[1:]:  # for every source, the next farther router
            last = before[sources, reached]
            latency_s[sources, reached] = latency_s[sources, last] + of_link[last, reached]
        latency_s *= self._made.diameter_s / latency_s.max()
        return Topology(latency_s, before, links)


def _connected(nodes: int, joined: float, random: np.random.Generator) -> list[tuple[int, int]]:
    """Return the links of a random graph, drawn until it is connected. ``joined``: probability of each link."""
    pairs = np.stack(np.triu_indices(nodes, 1), 1)
    for _ in range(DRAWS):
        links = [(int(start), int(end)) for start, end in pairs[random.random(len(pairs)) < joined]]
        reached = {0}
        for _ in range(nodes):
            reached |= {end for link in links if reached & {*link} for end in link}
        if len(reached) == nodes:
            return links
    raise UsageError(f"{nodes} routers, each two joined with probability {joined}, do not become one network")
