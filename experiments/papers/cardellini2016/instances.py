"""Optimal placement problems as Cardellini et al. (2016) draw them, and random problems.

Tag-and-Count with its eight hosts is the problem of section 7.1. The sequential and the fat application on alike hosts
are the problems of section 7.3 (Table 2, Figure 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from thalweg.middleware.planning.odp.instance import Floats, Indices, OdpInstance

TUPLES_HZ = 10.0  # of Tag-and-Count's source
LAYERS = (1, 2, 2, 2, 2, 2, 1)  # of Tag-and-Count's executors: a source, five operators of two each, a consumer
SLOTS, EXECUTORS_PER_SLOT = 2, 4  # of a worker node
UNRELIABLE = 0.99
MEANS_S, SPREADS_S = (0.012, 0.032), (0.001, 0.003)  # of Gaussian delays
TABLE_2 = 0.022, 0.005, 0.001  # delays' mean, deviation and least


def layered(sizes: Sequence[int]) -> Indices:
    """Return (m, 2) the streams from every operator of a layer to every operator of the next."""
    ends = np.cumsum([0, *sizes])
    pairs = [
        (a, b)
        for left, middle, right in zip(ends, ends[1:], ends[2:], strict=False)
        for a in range(left, middle)
        for b in range(middle, right)
    ]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def even_rates(edges: Indices, count: int, source_rate: float) -> Floats:
    """Return (m,) the rates of streams, if an operator's input goes out in equal parts to its consumers."""
    flow, rates = np.zeros(count), np.zeros(len(edges))
    outputs = np.bincount(edges[:, 0], minlength=count) if len(edges) else np.zeros(count, dtype=np.intp)
    flow[np.setdiff1d(np.arange(count), edges[:, 1])] = source_rate
    for stream in np.lexsort((edges[:, 1], edges[:, 0])).tolist():
        producer, consumer = edges[stream].tolist()
        rates[stream] = flow[producer] / outputs[producer]
        flow[consumer] += rates[stream]
    return rates


def tag_and_count(random: np.random.Generator, *, unreliable: bool = True, execution_s: float = 0.001) -> OdpInstance:
    """Return twelve executors on eight hosts, with both ends on the first. Every second host is up 99 % of the time."""
    hosts = 8
    means, spreads = random.uniform(*MEANS_S, (hosts, hosts)), random.uniform(*SPREADS_S, (hosts, hosts))
    delays = np.maximum(random.normal(means, spreads), 0.0)
    delays = np.triu(delays, 1) + np.triu(delays, 1).T
    available = np.where(np.arange(hosts) % 2, UNRELIABLE if unreliable else 1.0, 1.0)
    instance = alike(LAYERS, hosts, SLOTS * EXECUTORS_PER_SLOT, delays, execution_s=execution_s)
    candidates = instance.candidates.copy()
    candidates[[0, -1], 1:] = False
    return msgspec.structs.replace(
        instance,
        rate=even_rates(instance.edges, instance.count, TUPLES_HZ),
        availability=available,
        candidates=candidates,
    ).check()


def alike(
    sizes: Sequence[int], hosts: int, capacity: float, delay_s: Floats, *, execution_s: float = 1.0
) -> OdpInstance:
    """Return layers of alike operators on alike hosts, with nothing pinned and streams of rate 1."""
    count, edges = sum(sizes), layered(sizes)
    return OdpInstance(
        names=tuple(f"op{number + 1}" for number in range(count)),
        hosts=tuple(f"h{number + 1}" for number in range(hosts)),
        edges=edges,
        rate=np.ones(len(edges)),
        execution_s=np.full(count, execution_s),
        demand=np.ones(count),
        capacity=np.full(hosts, float(capacity)),
        speed=np.ones(hosts),
        availability=np.ones(hosts),
        delay_s=delay_s,
        link_availability=np.ones((hosts, hosts)),
        bandwidth=np.full((hosts, hosts), math.inf),
        candidates=np.ones((count, hosts), dtype=bool),
    )


def table_2(random: np.random.Generator, sizes: Sequence[int], hosts: int = 20, capacity: float = 4) -> OdpInstance:
    """Return a problem of section 7.3. ``sizes``: of layers, all 1 for the sequential application, (1, n - 2, 1) for
    the fat one.
    """
    mean_s, deviation_s, least_s = TABLE_2
    delays = np.maximum(random.normal(mean_s, deviation_s, (hosts, hosts)), least_s)
    return alike(sizes, hosts, capacity, np.triu(delays, 1) + np.triu(delays, 1).T).check()


def sequential(operators: int) -> tuple[int, ...]:
    """Return the layers of the sequential application."""
    return (1,) * operators


def fat(operators: int) -> tuple[int, ...]:
    """Return the layers of the fat application."""
    return 1, operators - 2, 1


def drawn(
    random: np.random.Generator, operators: tuple[int, int] = (5, 12), hosts: tuple[int, int] = (5, 10)
) -> OdpInstance:
    """Return random layers of unlike operators on unlike hosts, with room for all.

    Half of the instances have asymmetric delays, half have links that fail, and a quarter has narrow links. The first
    and the last operator are pinned in two of three instances. Every operator may be on three hosts in four.
    """
    count, number = int(random.integers(operators[0], operators[1] + 1)), int(random.integers(hosts[0], hosts[1] + 1))
    streams = _drawn_streams(random, count)
    mean_s, deviation_s, least_s = TABLE_2
    delays = np.maximum(random.normal(mean_s, 2 * deviation_s, (number, number)), least_s)
    if random.random() < 0.5:
        delays = (delays + delays.T) / 2
    candidates = random.random((count, number)) < 0.75
    candidates[np.arange(count), random.integers(0, number, count)] = True
    if random.random() < 2 / 3:
        for node in (0, count - 1):
            candidates[node] = np.arange(number) == random.integers(number)
    demand = random.integers(1, 4, count).astype(np.float64)
    # a placement for which there is room, so that the problem has a solution
    held = [int(random.choice(np.flatnonzero(row))) for row in candidates]
    spare = random.uniform(1.0, 3.0) * demand.sum() / number
    capacity = np.maximum(np.ceil(random.uniform(0.5, 1.5, number) * spare), np.bincount(held, demand, number))
    rate, bandwidth = random.uniform(0.5, 10, len(streams)), np.full((number, number), math.inf)
    if random.random() < 1 / 4:
        hosts_of = np.array(held)[streams]
        bandwidth = random.uniform(0, 10, (number, number))
        np.add.at(bandwidth, (hosts_of[:, 0], hosts_of[:, 1]), rate)
    fails = 0.02 if random.random() < 0.5 else 0.0
    return OdpInstance(
        names=tuple(f"op{node + 1}" for node in range(count)),
        hosts=tuple(f"h{host + 1}" for host in range(number)),
        edges=streams,
        rate=rate,
        execution_s=random.uniform(0.001, 0.02, count),
        demand=demand,
        capacity=capacity,
        speed=random.uniform(0.5, 2, number),
        availability=1 - random.uniform(0, 0.05, number),
        delay_s=delays,
        link_availability=1 - random.uniform(0, fails, (number, number)),
        bandwidth=bandwidth,
        candidates=candidates,
    ).check()


def _drawn_streams(random: np.random.Generator, count: int) -> Indices:
    """Return (m, 2) streams between operators in random layers, most of them to the next layer."""
    ranks = np.sort(random.integers(0, max(2, count // 2), count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if ranks[a] < ranks[b]]
    near = [(a, b) for a, b in pairs if ranks[b] == ranks[ranks > ranks[a]].min()]
    edges = {pair for pair in near if random.random() < 0.5} | {pair for pair in pairs if random.random() < 0.05}
    for node in range(1, count):
        before = [pair for pair in pairs if pair[1] == node]
        if before and not any(pair in edges for pair in before):
            edges.add(before[int(random.integers(len(before)))])
    return np.array(sorted(edges), dtype=np.intp).reshape(-1, 2)
