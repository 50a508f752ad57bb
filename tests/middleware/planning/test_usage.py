from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, Dataflow, sinks_at
from thalweg.middleware.errors import PlacementError, UsageError
from thalweg.middleware.network.coordinates import Coordinates
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import NetworkView
from thalweg.middleware.planning import Hints, Task
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import at_rest, relaxed
from thalweg.middleware.planning.usage.reuse import too_far
from thalweg.middleware.planning.usage.search import best, between_all, by_coordinates, optimal, usages
from thalweg.middleware.planning.usage.streams import Query, QueryStream


def tree(shape: Sequence[int], seed: int, hosts: int) -> Query:
    """Return a query whose operators take as many of the free nodes as ``shape`` says. Its ends are pinned."""
    random = np.random.default_rng(seed)
    free, streams, node = [0, 1, 2, 3], [], 4
    for taken in shape:
        streams += [QueryStream(one, node, float(random.uniform(0.1, 5))) for one in free[:taken]]
        free = [*free[taken:], node]
        node += 1
    streams += [QueryStream(one, node, float(random.uniform(0.1, 5))) for one in free]
    return Query(tuple(streams), {one: int(random.integers(hosts)) for one in (0, 1, 2, 3, node)}).check()


def latencies(hosts: int, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).random((hosts, hosts))
    return made + made.T


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 99))
def test_dynamic_programming_finds_the_least_usage_of_all_placements(shape: list[int], seed: int) -> None:
    query, latency_s = tree(shape, seed, 6), latencies(6, seed)
    everything = {
        chosen: query.usage([query.pinned.get(node, dict(zip(query.operators, chosen, strict=True)).get(node, 0))
                             for node in range(query.nodes)], latency_s)
        for chosen in itertools.product(range(6), repeat=len(query.operators))
    }  # fmt: skip
    least = min(everything.values())
    assert query.usage(optimal(query, latency_s), latency_s) == pytest.approx(least)
    everywhere = dict.fromkeys(query.operators, np.arange(6))
    told = usages(query, everywhere, lambda a, b: latency_s[np.ix_(a, b)])
    for number, node in enumerate(query.operators):
        for host in range(6):
            there = min(usage for chosen, usage in everything.items() if chosen[number] == host)
            assert told[node][host] == pytest.approx(there)


def test_coordinates_name_the_hosts_that_are_worth_measuring() -> None:
    random = np.random.default_rng(5)
    places = random.random((200, 3))
    latency_s = np.sqrt(((places[:, None] - places[None]) ** 2).sum(2)) * random.uniform(0.9, 1.1, (200, 200))
    latency_s = (latency_s + latency_s.T) / 2
    found = Coordinates(places, np.zeros(200), np.ones(200))
    asked: list[tuple[int, int]] = []

    def measure(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
        asked.append((len(ones), len(others)))
        return latency_s[np.ix_(ones, others)]

    worse, equal = 0, 0
    for seed in range(20):
        query = tree((2, 2, 2), seed, 200)
        least = query.usage(optimal(query, latency_s), latency_s)
        estimated = query.usage(by_coordinates(query, found), latency_s)
        measured = query.usage(by_coordinates(query, found, measure), latency_s)
        assert least <= measured <= estimated * 1.0001
        worse, equal = worse + (estimated > measured * 1.001), equal + (measured < least * 1.01)
    assert worse >= 5
    assert equal >= 15
    assert max(max(sizes) for sizes in asked) == 10  # of 200 hosts


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), (3, 1, 2)])
def test_relaxation_converges_to_the_rest_position_of_the_springs(shape: tuple[int, ...]) -> None:
    query = tree(shape, 1, 50)
    random = np.random.default_rng(1)
    places = {node: random.random(3) for node in query.pinned}
    exact = at_rest(query, places)
    found = relaxed(query, places, random, threshold_s=1e-9)
    for node in query.operators:
        assert found[node] == pytest.approx(exact[node], abs=1e-6)
        others = {**places, **exact}
        rates = sum(rate for _, rate in query.beside[node])
        mean = sum(rate * others[other] for other, rate in query.beside[node]) / rates
        assert exact[node] == pytest.approx(mean)
    with pytest.raises(UsageError, match="the damping of relaxation is 2; it must be above 0 and below 2"):
        relaxed(query, places, random, damping=2)


def test_an_operator_is_mapped_to_the_nearest_host_that_has_or_can_take_the_operator() -> None:
    mapper = Mapper(np.array([[float(at)] for at in range(40)]))
    place = np.array([10.2])
    assert mapper.host(place) == 10
    assert mapper.host(place, has={13, 14}) == 13
    assert mapper.host(place, has={39}) == 10  # farther than the ten nearest
    assert mapper.host(place, lacks=lambda host: "memory" if host < 12 else None) == 12
    assert mapper.host(place, lacks=lambda host: "memory" if host < 35 else None) == 35  # more and more are asked
    with pytest.raises(PlacementError, match="no host can take the operator: the nearest, 10, lacks 2 GB of memory"):
        mapper.host(place, lacks=lambda host: "2 GB of memory")
    load = np.zeros(40)
    load[10] = 3.0
    assert Mapper(np.array([[float(at)] for at in range(40)]), load).host(place) == 11  # load makes a host far
    assert Mapper(np.array([[float(at)] for at in range(40)]), load, load_s=0.1).host(place) == 10
    with pytest.raises(UsageError, match="the load of host 10 is nan"):
        Mapper(np.zeros((40, 1)), np.where(load > 0, np.nan, 0.0))


def test_usage_and_delay_follow_the_definitions_of_the_paper() -> None:
    query = Query((QueryStream(0, 2, 2.0), QueryStream(1, 2, 2.0), QueryStream(2, 3, 0.5)), {0: 0, 1: 1, 3: 3})
    latency_s = np.array([[abs(a - b) / 10 for a in range(4)] for b in range(4)])
    assert query.usage([0, 1, 2, 3], latency_s) == pytest.approx(2 * 0.2 + 2 * 0.1 + 0.5 * 0.1)
    assert query.delay_s([0, 1, 2, 3], latency_s) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (
            Query((QueryStream(0, 1, float("nan")),), {0: 0, 1: 0}),
            "from node 0 to 1 has a rate of nan bytes/s; it must be",
        ),
        (Query((QueryStream(0, 1, -2.0),), {0: 0, 1: 0}), "has a rate of -2.0 bytes/s"),
        (Query((QueryStream(1, 0, 1.0),), {0: 0, 1: 0}), "a stream goes from node 1 to 0; nodes are numbered so that"),
        (
            Query((QueryStream(0, 1, 1.0), QueryStream(2, 3, 1.0)), {0: 0, 1: 0}),
            "node 2 has no pin, and the nodes joined to it have none",
        ),
    ],
)
def test_a_query_that_cannot_be_placed_is_refused(query: Query, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        query.check()


def test_only_trees_are_placed_by_dynamic_programming() -> None:
    streams = (QueryStream(0, 1, 1.0), QueryStream(0, 2, 1.0), QueryStream(1, 3, 1.0), QueryStream(2, 3, 1.0))
    query = Query(streams, {0: 0, 3: 1}).check()
    with pytest.raises(UsageError, match="the streams of the query are no tree"):
        best(query, dict.fromkeys(query.operators, np.arange(4)), lambda a, b: np.ones((len(a), len(b))))


def test_an_operator_within_the_radius_of_the_wanted_position_is_reused() -> None:
    graph = Dataflow()
    seen = [graph.source(Code("scenes"), at=host) for host in ("h1", "h2")]
    graph.sink("map", graph.operator(Code("composite"), *seen, name="one"))
    hosts = ("h1", "h2", "h3", "client")
    places = {host: Place((at, 0.0), 0.01) for host, at in zip(hosts, (0.0, 0.1, 0.06, 0.4), strict=True)}
    sizes = {**dict.fromkeys(seen, 200.0), "one": 100.0}
    task = Task((sinks_at(graph, "client"),), hosts, NetworkView({}), Hints(sizes))
    wanted = (200 * 0.1 + 100 * 0.4) / 500
    for host, at in (("h3", 0.06), ("client", 0.4)):
        far = too_far(task, {"one": host}, places, 0.1)
        assert far == ({} if abs(at - wanted) <= 0.1 else {"one": pytest.approx(at - wanted)})
    assert too_far(task, {}, places, 0.0) == {}
    for radius_s in (math.nan, math.inf, -0.1):
        with pytest.raises(UsageError, match=f"radius_s is {radius_s}; it must be finite and at least 0"):
            too_far(task, {"one": "h3"}, places, radius_s)


def test_an_invalid_matrix_of_latencies_is_refused_with_the_reason() -> None:
    query, latency_s = tree((2, 2), 1, 6), latencies(6, 1)
    operator = min(query.operators)
    (first, *_) = (host for node, host in query.pinned.items() if operator in dict(query.beside[node]))
    for bad in (-0.5, math.nan):
        odd = latency_s.copy()
        odd[first, :] = odd[:, first] = bad
        with pytest.raises(UsageError, match=rf"the latency between hosts \d and \d is {bad} s; it must be at least 0"):
            optimal(query, odd)
    apart = latency_s.copy()
    apart[first, :] = apart[:, first] = math.inf
    coordinates = Coordinates(np.random.default_rng(1).random((6, 3)), np.zeros(6), np.ones(6))
    for place in (
        lambda matrix: optimal(query, matrix),
        lambda matrix: by_coordinates(query, coordinates, between_all(matrix)),
    ):
        with pytest.raises(
            PlacementError, match=r"no placement: no route leads from host \d to \d, directly or over other hosts"
        ):
            place(apart)
    with pytest.raises(UsageError, match=r"node 0 is pinned to host 6; there are 6 hosts, from 0"):
        optimal(Query(query.streams, {**query.pinned, 0: 6}), latency_s)
