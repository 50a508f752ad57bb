"""Routes between two hosts over relays, on rented links."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning.problem.routes import KEPT, Route, is_route, reachable, relayed

HOSTS = tuple("abcdef")
RENTED = st.dictionaries(
    st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)).filter(lambda pair: pair[0] != pair[1]),
    st.integers(1, 9).map(float),
    max_size=20,
)


def enumerated(agreed: dict[Link, float], hops: int, route: Route) -> Iterator[Route]:
    """Yield all longer routes that begin with ``route`` and meet no host twice."""
    met = {route[0].source, *(link.target for link in route)}
    for link in agreed:
        if link.source == route[-1].target and link.target not in met and len(route) < hops:
            yield (*route, link)
            yield from enumerated(agreed, hops, (*route, link))


@given(RENTED, RENTED, st.integers(1, 6), st.sets(st.sampled_from(HOSTS)))
def test_the_fastest_routes_are_found_and_of_equal_routes_the_shortest(
    one: dict[tuple[str, str], float], other: dict[tuple[str, str], float], hops: int, hosts: set[str]
) -> None:
    networks = {"one": Network(TARIFFS["dedicated"], one), "other": Network(TARIFFS["dedicated"], other)}
    agreed = {link: bps for link, bps in links_of(networks).items() if hosts.issuperset(link.hosts)}

    def rank(route: Route) -> tuple[float, int]:
        return -min(agreed[link] for link in route), len(route)

    pairs = [*itertools.permutations(HOSTS, 2)]
    found = relayed(networks, hosts, hops, pairs)
    for pair in pairs:
        begun = [(link,) for link in agreed if link.source == pair[0]]
        every = [route for first in begun for route in enumerated(agreed, hops, first) if route[-1].target == pair[1]]
        straight = max(one.get(pair, 0.0), other.get(pair, 0.0))
        better = sorted(rank(route) for route in every if -rank(route)[0] > straight)
        routes = found.get(pair, [])
        assert [rank(route) for route in routes] == better[:KEPT] and len({*routes}) == len(routes)
        for route in routes:
            assert is_route(Link(*pair), route) and 2 <= len(route) <= hops and agreed.keys() >= {*route}


@pytest.mark.parametrize("size", [9, 32])
def test_routes_in_a_mesh_are_found_within_20_milliseconds_per_pair(size: int) -> None:
    hosts = [f"h{number}" for number in range(size)]
    dice = random.Random(size)
    links = {pair: dice.uniform(1e6, 1e7) for pair in itertools.permutations(hosts, 2)}
    networks = {"fast": Network(TARIFFS["dedicated"], links)}
    pairs = [(host, hosts[0]) for host in hosts[1:]]
    begun_s = time.perf_counter()
    found = relayed(networks, hosts, 8, pairs)
    assert time.perf_counter() - begun_s < 0.02 * len(pairs)  # many times what it takes, on a busy machine
    assert len(found) > len(pairs) / 2 and max(len(route) for each in found.values() for route in each) > 2


def test_the_fastest_route_may_use_links_of_different_networks() -> None:
    networks = {
        "one": Network(TARIFFS["dedicated"], {("a", "b"): 9.0, ("b", "c"): 2.0, ("c", "d"): 8.0}),
        "other": Network(TARIFFS["dedicated"], {("b", "d"): 3.0, ("b", "c"): 7.0}),
    }
    by_three = Link("a", "b", "one"), Link("b", "c", "other"), Link("c", "d", "one")
    by_two = Link("a", "b", "one"), Link("b", "d", "other")
    assert relayed(networks, "abcd", 3, [("a", "d")])["a", "d"] == [by_three, by_two]
    assert relayed(networks, "abcd", 2, [("a", "d")])["a", "d"] == [by_two]
    assert relayed(networks, "abcd", 1, [("a", "d")]) == {} == relayed(networks, "acd", 3, [("a", "d"), ("b", "d")])


def test_a_host_that_cannot_be_reached_over_the_shared_network_is_no_relay() -> None:
    known = {
        Link("a", "b"): 0.0,
        Link("c", "b"): 0.0,
        Link("a", "c"): 0.0,
        Link("b", "c"): 1.0,
        Link("a", "d", "x"): 0.0,
    }
    view = NetworkView({link: LinkEstimate(bps) for link, bps in known.items()})
    assert reachable(view, "abcd") == {*"acd"}
