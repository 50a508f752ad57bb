"""Networks of routers for simulations of many hosts: transit-stub topologies, their routes, and the latencies of those.

A *transit domain* is a connected random graph of routers, and so is a graph of such domains; every router of one has
some *stub domains*, random graphs as well, each joined to it by one link. Routers lie in a plane: a link's latency is
its length, and all are scaled so that the farthest two routers have the network's diameter between them.

Presets:

- ``paper``: fitted to the penalties that Pietzuch et al. (2006), Table 1, publish for placements that know no
  coordinates; the paper says how many domains and routers there are and what the diameter is, and no more. Routes are
  of the fewest links.
- ``gt-itm``: fitted to nothing, with probabilities and weights of the usual order for that generator. Routes are of
  least weight, so that none goes through a stub domain, and few go back and forth between transit domains.

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
UNLIKE = 1e-6  # of its weight that a link may have more: no two routes are as short, and both ways are one
DRAWS = 10_000  # of a domain's links, until they join all of it: with the presets a hundred are many


class Preset(msgspec.Struct, frozen=True):
    """How a transit-stub topology is drawn, in a plane whose transit domains have their centres in a unit square.

    ``joined``: the probability that two transit domains are, two routers of one, two of a stub domain. ``side``,
    ``stub_side``: of the squares in which the routers of a domain lie; ``stub_offset``: how far the centre of a stub
    domain may be from its router, either way. ``weights``: of links within a domain, between transit domains, and of
    those that join a stub domain.
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

    ``latency_s``: (n, n), of the routes. ``before``: (n, n), the router before *j* on the route from *i*, below 0 where
    *i* is *j*. ``links``: (m, 2).
    """

    latency_s: Floats
    before: Ints
    links: Ints

    def route(self, source: int, target: int) -> list[int]:
        """The routers on the route, with both ends."""
        found = [target]
        while found[-1] != source:
            found.append(int(self.before[source, found[-1]]))
        return found[::-1]


def transit_stub(preset: str, seed: int) -> Topology:
    """The topology of that preset and seed; UsageError for a preset that is none."""
    if preset not in PRESETS:
        raise UsageError(f"{preset!r} is no topology; {nearest(preset, PRESETS)}")
    made, random = PRESETS[preset], np.random.default_rng(seed)
    drawn = _Drawn(made, random)
    for centre in random.random((made.domains, 2)):
        drawn.domain(centre, made.routers, made.side / 2, made.joined[1])
    for one, other in _connected(made.domains, made.joined[0], random):
        first, last = (domain * made.routers + int(random.integers(made.routers)) for domain in (one, other))
        drawn.link(first, last, made.weights[1])
    for router in range(made.domains * made.routers):
        for _ in range(made.stubs):
            centre = drawn.places[router] + random.uniform(-made.stub_offset, made.stub_offset, 2)
            first = drawn.domain(centre, made.stub_routers, made.stub_side / 2, made.joined[2])
            drawn.link(router, first + int(random.integers(made.stub_routers)), made.weights[2])
    return drawn.routed()


class _Drawn:
    """A topology while it is drawn: where routers lie, and the links with their weights."""

    def __init__(self, made: Preset, random: np.random.Generator) -> None:
        self.places: list[Floats] = []
        self._made, self._random = made, random
        self._links: list[tuple[int, int]] = []
        self._weights: list[float] = []

    def domain(self, centre: Floats, routers: int, half_side: float, joined: float) -> int:
        """A domain around that centre; its first router."""
        first = len(self.places)
        self.places += list(centre + self._random.uniform(-half_side, half_side, (routers, 2)))
        for one, other in _connected(routers, joined, self._random):
            self.link(first + one, first + other, self._made.weights[0])
        return first

    def link(self, one: int, other: int, weight: float) -> None:
        self._links.append((one, other))
        self._weights.append(weight)

    def routed(self) -> Topology:
        """With the routes of least weight, and their latencies."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        routers, places = len(self.places), np.array(self.places)
        links = np.array(self._links, np.int32)
        one, other = links.T
        lengths = np.hypot(*(places[one] - places[other]).T)
        weights = np.array(self._weights) * (1 + UNLIKE * self._random.random(len(links)))
        graph = csr_array((weights, (one, other)), shape=(routers, routers))
        distances, before = dijkstra(graph, directed=False, return_predecessors=True)
        of_link = np.zeros((routers, routers))
        of_link[one, other] = of_link[other, one] = lengths
        latency_s, sources = np.zeros((routers, routers)), np.arange(routers)
        for reached in np.argsort(distances, axis=1, kind="stable").T[1:]:  # of every source the next farther router
            last = before[sources, reached]
            latency_s[sources, reached] = latency_s[sources, last] + of_link[last, reached]
        latency_s *= self._made.diameter_s / latency_s.max()
        return Topology(latency_s, before, links)


def _connected(nodes: int, joined: float, random: np.random.Generator) -> list[tuple[int, int]]:
    """The links of a random graph, each pair with that probability, drawn until it is connected."""
    pairs = np.stack(np.triu_indices(nodes, 1), 1)
    for _ in range(DRAWS):
        links = [(int(one), int(other)) for one, other in pairs[random.random(len(pairs)) < joined]]
        reached = {0}
        for _ in range(nodes):
            reached |= {end for link in links if reached & {*link} for end in link}
        if len(reached) == nodes:
            return links
    raise UsageError(f"{nodes} routers, each two joined with probability {joined}, do not become one network")
