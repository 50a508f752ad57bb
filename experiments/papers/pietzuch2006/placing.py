"""Trial of one placed query of Pietzuch et al. (2006), section 4.1, on a transit-stub topology of 1,550 routers.

Hosts are the routers. The ends of a query are drawn: four producers and a consumer, each on a host of its own. Each
producer gives 2 KB/s. A single operator takes from every producer, and gives an eighth of its inputs (8:1). Of three
operators, the first two take from two producers each and give half of their inputs. The third takes from these two and
gives a quarter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.emulation.traces.topologies import Topology, transit_stub
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.coordinates import Coordinates, embedded
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import at_rest, relaxed
from thalweg.middleware.planning.usage.search import by_coordinates, optimal
from thalweg.middleware.planning.usage.streams import Query, QueryStream

PRODUCERS = 4
RATE = 2_000.0  # bytes/s of a producer: "2 KB/s"
# by the number of operators: the producers of each operator, and its output as a share of its inputs
TAKES = {1: {4: range(4)}, 3: {4: range(2), 5: range(2, 4), 6: range(4, 6)}}
GIVES = {1: {4: 1 / 8}, 3: {4: 1 / 2, 5: 1 / 2, 6: 1 / 4}}
ROUNDS = 600  # of measurements, one per host and round: coordinates hardly change afterwards
COORDINATES, QUERIES = 1, 2  # purposes of draws with a seed


class Placing(Trial, frozen=True, kw_only=True):
    """Topology (``pool``, ``pool_seed``), query (``configuration``), and placement.

    ``dimensions``, ``rounds``: of the coordinates that hosts find. ``measured``: the number of hosts of an operator
    between which ``cost-space`` asks for latencies.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.pietzuch2006.placing:place"

    placement: str = "relaxation"
    operators: int = 1
    dimensions: int = 3
    rounds: int = ROUNDS
    measured: int = 10


class Placed(Outcome, frozen=True, kw_only=True):
    """Result of a placement: bytes in transit, of the optimum too, and the longest delay from a producer to the
    consumer. ``route_s``: the delay of the longest direct route. ``planning_s``: the time to place.
    """

    usage_bytes: float | None = None
    optimal_bytes: float | None = None
    delay_s: float | None = None
    route_s: float | None = None
    planning_s: float | None = None


Placing.outcome = Placed


class Space(msgspec.Struct, frozen=True):
    """Topology with the coordinates that hosts found: the paper's (``plain``), and ours with heights (``high``)."""

    topology: Topology
    plain: Coordinates
    high: Coordinates
    mapper: Mapper


@lru_cache(maxsize=2)
def space(preset: str, seed: int, dimensions: int, rounds: int) -> Space:
    """Return a topology with its coordinates, computed once per process."""
    topology = transit_stub(preset, seed)
    plain, high = (
        embedded(
            topology.latency_s,
            np.random.default_rng((seed, COORDINATES, heights)),
            rounds=rounds,
            dimensions=dimensions,
            heights=heights,
        )
        for heights in (False, True)
    )
    return Space(topology, plain, high, Mapper(plain.places))


def draw_query(hosts: int, operators: int, random: np.random.Generator) -> Query:
    """Return a query with its ends on different hosts. The consumer is the last node."""
    ends = random.choice(hosts, PRODUCERS + 1, replace=False).tolist()
    consumer = PRODUCERS + operators
    rates = dict.fromkeys(range(PRODUCERS), RATE)
    streams = []
    for node, producers in TAKES[operators].items():
        streams += [QueryStream(producer, node, rates[producer]) for producer in producers]
        rates[node] = sum(rates[producer] for producer in producers) * GIVES[operators][node]
    streams.append(QueryStream(consumer - 1, consumer, rates[consumer - 1]))
    return Query(tuple(streams), dict(zip((*range(PRODUCERS), consumer), ends, strict=True))).check()


# --- placements: the hosts of all nodes -------------------------------------------------------------


def _sides(query: Query) -> dict[int, list[int]]:
    """Return, for every operator, the producers of its data."""
    producers = {node: [node] for node in range(PRODUCERS)}
    for stream in sorted(query.streams, key=lambda one: one.producer):
        producers[stream.consumer] = [*producers.get(stream.consumer, ()), *producers[stream.producer]]
    return {node: producers[node] for node in query.operators}


def _everywhere(query: Query, chosen: Mapping[int, int]) -> list[int]:
    return [query.pinned.get(node, chosen.get(node, -1)) for node in range(query.nodes)]


def _relaxed(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    places = {node: at.plain.places[host] for node, host in query.pinned.items()}
    operator_places = relaxed(query, places, random)
    return _everywhere(query, {node: at.mapper.host(place) for node, place in operator_places.items()})


def _at_rest(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    places = {node: at.plain.places[host] for node, host in query.pinned.items()}
    operator_places = at_rest(query, places)
    return _everywhere(query, {node: at.mapper.host(place) for node, place in operator_places.items()})


def _multicast(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    """Place each operator where the routes from its producers to the consumer first meet, a branch of the tree."""
    target = query.pinned[query.nodes - 1]
    chosen = {}
    for node, producers in _sides(query).items():
        first, *rest = (at.topology.route(target, query.pinned[producer])[::-1] for producer in producers)
        chosen[node] = next(router for router in first if all(router in route for route in rest))
    return _everywhere(query, chosen)


def _producer(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    sides = _sides(query)
    return _everywhere(query, {node: query.pinned[int(random.choice(side))] for node, side in sides.items()})


def _consumer(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    return _everywhere(query, dict.fromkeys(query.operators, query.pinned[query.nodes - 1]))


def _random(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    return _everywhere(query, {node: int(random.integers(len(at.plain))) for node in query.operators})


def _optimal(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    return optimal(query, at.topology.latency_s)


def _estimated(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    return by_coordinates(query, at.high)


def _measured(query: Query, at: Space, random: np.random.Generator, trial: Placing) -> list[int]:
    latency_s = at.topology.latency_s
    return by_coordinates(query, at.high, lambda a, b: latency_s[np.ix_(a, b)], measured=trial.measured)


Place = Callable[[Query, Space, np.random.Generator, Placing], list[int]]
PLACEMENTS: Mapping[str, Place] = {  # the paper's, in the order of its Table 1
    "optimal": _optimal,
    "relaxation": _relaxed,
    "ip-multicast": _multicast,
    "producer": _producer,
    "consumer": _consumer,
    "random": _random,
}
OURS: Mapping[str, Place] = {"at-rest": _at_rest, "estimates-only": _estimated, "cost-space": _measured}


def place(trial: Placing) -> Placed:
    """Place one query. Raise UsageError for an unknown placement or topology."""
    known = {**PLACEMENTS, **OURS}
    if trial.placement not in known:
        raise UsageError(f"{trial.placement!r} is no placement of this study; {nearest(trial.placement, known)}")
    if trial.operators not in TAKES:
        raise UsageError(f"operators is {trial.operators}; this study has queries with 1 or 3")
    at = space(trial.pool, trial.pool_seed, trial.dimensions, trial.rounds)
    latency_s = at.topology.latency_s
    query = draw_query(
        len(latency_s), trial.operators, np.random.default_rng((trial.pool_seed, QUERIES, trial.configuration))
    )
    random = np.random.default_rng((trial.pool_seed, QUERIES, trial.configuration, 1))
    begun = time.perf_counter()
    hosts = known[trial.placement](query, at, random, trial)
    took = time.perf_counter() - begun
    target = query.pinned[query.nodes - 1]
    return Placed(
        usage_bytes=query.usage(hosts, latency_s),
        optimal_bytes=query.usage(optimal(query, latency_s), latency_s),
        delay_s=query.delay_s(hosts, latency_s),
        route_s=float(latency_s[[query.pinned[node] for node in range(PRODUCERS)], target].max()),
        planning_s=took,
    )
