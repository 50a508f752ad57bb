"""Number of partitions under way: the bandwidth-delay product of the links of a tree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from thalweg.middleware.dataflow import MOST_AHEAD, Code, Dataflow, Node
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import Hints
from thalweg.middleware.planning.problem.depth import ROOM_BYTES, VARYING, depth_for, depth_of, links_of
from thalweg.middleware.planning.problem.task import Stripe

CODE = Code("composite")
CHAIN = Dataflow(
    (
        Node("s", "source", (), CODE, "h1"),
        Node("o", "operator", ("s",), CODE),
        Node("t", "sink", ("o",), None, "client"),
    )
)
TREE = Stripe(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 1.0)
FIRST, SECOND = Link("h1", "h2"), Link("h2", "client")


def view(rates: Mapping[Link, float], delays: Mapping[Link, float]) -> NetworkView:
    estimates = {link: LinkEstimate(rate_bps) for link, rate_bps in rates.items()}
    return NetworkView(estimates, {link: Latency(delay_s) for link, delay_s in delays.items()})


def depth(size_bytes: float, rate_bps: float = 10e6, delay_s: float = 0.1, **more: float) -> int:
    hints = Hints(dict.fromkeys("so", size_bytes), compute_s=more)
    both = FIRST, SECOND
    return depth_of(TREE, hints, view(dict.fromkeys(both, rate_bps), dict.fromkeys(both, delay_s)))


@pytest.mark.parametrize(
    ("size_bytes", "delay_s", "expected"),
    [
        (16_384, 0.1, 18),  # a round trip of 200 ms at 10 Mbit/s is 250,000 bytes
        (65_536, 0.1, 6),
        (262_144, 0.1, 3),
        (262_144, 0.004, 1),  # 8 ms of 210
        (65_536, 0.0001, 1),
        (8, 0.0001, 1),  # as on one machine
        (8, 60.0, MOST_AHEAD),
    ],
)
def test_the_depth_covers_a_round_trip_over_the_links(size_bytes: float, delay_s: float, expected: int) -> None:
    assert depth(size_bytes, delay_s=delay_s) == expected


def test_the_depth_follows_the_slowest_link_or_operator() -> None:
    hints = Hints(dict.fromkeys("so", 65_536))
    delays = {FIRST: 0.1, SECOND: 0.1}
    slow = depth_of(TREE, hints, view({FIRST: 1e6, SECOND: 1e9}, delays))
    assert slow == 3, "0.52 s on the slow link, 0.2 s of a round trip"
    assert depth(65_536, o=0.1) == 4
    assert depth(65_536, o=1.0) == 1, "a word of it has come back long before the next"


def test_unknown_links_and_sizes_do_not_raise_the_depth() -> None:
    hints = Hints(dict.fromkeys("so", 65_536))
    assert depth_of(TREE, hints, view({}, {})) == 1
    assert depth_of(TREE, hints, view({FIRST: 10e6, SECOND: 0.0}, {FIRST: 0.1, SECOND: 0.1})) == 6
    assert depth_of(TREE, Hints({}), view({FIRST: 10e6}, {FIRST: 0.1})) == 1
    one_way = view({FIRST: 10e6}, {FIRST: 0.15, Link("h2", "h1"): 0.05})
    assert depth_of(TREE, hints, one_way) == 6


@pytest.mark.parametrize(
    ("size_bytes", "count", "expected"),
    [
        (65_536, 1, VARYING),
        (65_536, 2, 1),  # several trees keep each other's links busy
        (ROOM_BYTES / 2, 1, 2),
        (2 * ROOM_BYTES, 1, 1),
        (0.0, 1, VARYING),
    ],
)
def test_a_single_tree_has_partitions_under_way_for_rates_that_vary(
    size_bytes: float, count: int, expected: int
) -> None:
    hints = Hints(dict.fromkeys("so", size_bytes))
    assert depth_for([TREE] * count, [hints] * count, view({FIRST: 10e6, SECOND: 10e6}, {})) == expected


def test_the_depth_for_a_stream_fills_its_longest_links_and_is_one_on_a_single_host() -> None:
    hints, known = Hints(dict.fromkeys("so", 65_536)), view({FIRST: 10e6, SECOND: 10e6}, {FIRST: 0.1, SECOND: 0.1})
    assert depth_for([TREE], [hints], known) == depth_for([TREE, TREE], [hints, hints], known) == 6
    here = Stripe(CHAIN, dict.fromkeys(CHAIN.by_name, "client"), 1.0)
    assert depth_for([here], [hints], known) == 1
    assert depth_for([TREE], [Hints({})], known) == 1, "the sizes are unknown"


def test_a_graph_that_is_no_tree_gets_several_partitions_under_way_only_for_delays() -> None:
    """With more than one, all of its nodes restart after a failure."""
    twice = Dataflow((*CHAIN.nodes, Node("t2", "sink", ("o",), None, "client")))
    graph, hints = Stripe(twice, {**TREE.placement, "t2": "client"}, 1.0), Hints(dict.fromkeys("so", 65_536))
    rates = {FIRST: 10e6, SECOND: 10e6}
    assert depth_for([graph], [hints], view(rates, {})) == 1
    assert depth_for([graph], [hints], view(rates, {FIRST: 0.1, SECOND: 0.1})) == 6


def test_the_links_of_a_tree_connect_different_hosts() -> None:
    here = Stripe(CHAIN, {"s": "h1", "o": "h1", "t": "client"}, 1.0)
    assert links_of([TREE]) == {FIRST, SECOND}
    assert links_of([here]) == {Link("h1", "client")}
    assert links_of([TREE, here]) == {FIRST, SECOND, Link("h1", "client")}
