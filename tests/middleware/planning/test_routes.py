"""Which hosts pass on what goes between two others, over links that were agreed on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning.problem.routes import KEPT, is_route, reachable, relayed

HOSTS = tuple("abcdef")
RENTED = st.dictionaries(
    st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)).filter(lambda pair: pair[0] != pair[1]),
    st.integers(1, 9).map(float),
    max_size=20,
)


@given(RENTED, RENTED, st.integers(1, 4), st.sets(st.sampled_from(HOSTS)))
def test_routes_take_rented_links_of_hosts_that_are_there_and_carry_more_than_straight_ones(
    one: dict[tuple[str, str], float], other: dict[tuple[str, str], float], hops: int, hosts: set[str]
) -> None:
    networks = {"one": Network(TARIFFS["dedicated"], one), "other": Network(TARIFFS["dedicated"], other)}
    agreed = links_of(networks)
    for pair, routes in relayed(networks, hosts, hops).items():
        assert 1 <= len(routes) <= KEPT and len({*routes}) == len(routes)
        carried = [min(agreed[link] for link in route) for route in routes]
        assert carried == sorted(carried, reverse=True)
        assert min(carried) > max(one.get(pair, 0.0), other.get(pair, 0.0))
        for route in routes:
            assert is_route(Link(*pair), route) and 2 <= len(route) <= hops
            assert all(hosts.issuperset(link.hosts) for link in route)


def test_the_way_that_carries_most_is_found_whatever_the_network_of_its_links() -> None:
    networks = {
        "one": Network(TARIFFS["dedicated"], {("a", "b"): 9.0, ("b", "c"): 2.0, ("c", "d"): 8.0}),
        "other": Network(TARIFFS["dedicated"], {("b", "d"): 3.0, ("b", "c"): 7.0}),
    }
    by_three = Link("a", "b", "one"), Link("b", "c", "other"), Link("c", "d", "one")
    by_two = Link("a", "b", "one"), Link("b", "d", "other")
    assert relayed(networks, "abcd", 3)["a", "d"] == [by_three, by_two]
    assert relayed(networks, "abcd", 2)["a", "d"] == [by_two]
    assert relayed(networks, "abcd", 1) == {} and ("a", "d") not in relayed(networks, "acd", 3)


def test_who_cannot_be_reached_over_the_shared_network_is_no_relay() -> None:
    known = {
        Link("a", "b"): 0.0,
        Link("c", "b"): 0.0,
        Link("a", "c"): 0.0,
        Link("b", "c"): 1.0,
        Link("a", "d", "x"): 0.0,
    }
    view = NetworkView({link: LinkEstimate(bps) for link, bps in known.items()})
    assert reachable(view, "abcd") == {*"acd"}
