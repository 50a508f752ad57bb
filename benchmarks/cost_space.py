"""Benchmark of the cost space: a topology of 1,550 routers with its routes, coordinates, and placing single queries.

Seconds are the processor time of this process, on one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, ParamSpec, TypeVar

import numpy as np

from benchmarks.options import CostSpaceOptions
from benchmarks.rounds import Progress, silent
from thalweg.emulation.traces.topologies import transit_stub
from thalweg.experiments.papers.pietzuch2006.placing import (
    OURS,
    PLACEMENTS,
    ROUNDS,
    TAKES,
    Placing,
    Space,
    draw_query,
)
from thalweg.middleware.network.coordinates import Coordinates, Floats, embedded
from thalweg.middleware.planning.usage.mapping import Mapper

P = ParamSpec("P")
T = TypeVar("T")
TIMED = {"relaxation": PLACEMENTS, "optimal": PLACEMENTS, "estimates-only": OURS, "cost-space": OURS}


def bench_cost_space(options: CostSpaceOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return medians, and the longest time of the queries, in seconds."""
    topologies, rows = [], []
    for seed in range(options.rounds):
        progress(f"topology {seed + 1} of {options.rounds}")
        topology, topology_s = _timed(transit_stub, options.preset, seed)
        plain, plain_s = _timed(_coordinates, topology.latency_s, False)
        high, _ = _timed(_coordinates, topology.latency_s, True)
        topologies.append((Space(topology, plain, high, Mapper(plain.places)), topology_s, plain_s))
    for operators in TAKES:
        for name, where in TIMED.items():
            progress(f"{name}, {operators} operators")
            took = []
            for number in range(options.queries):
                at = topologies[number % len(topologies)][0]
                random = np.random.default_rng(number)
                query = draw_query(len(at.plain), operators, random)
                trial = Placing(placement=name, operators=operators)
                took.append(_timed(where[name], query, at, random, trial)[1])
            rows.append({"placement": name, "operators": operators, "median_s": median(took), "longest_s": max(took)})
    return {
        "bench": "cost-space",
        "hosts": len(topologies[0][0].plain),
        "preset": options.preset,
        "topology_s": median(row[1] for row in topologies),
        "coordinates_s": median(row[2] for row in topologies),
        "queries": rows,
    }


def _coordinates(latency_s: Floats, heights: bool) -> Coordinates:
    return embedded(latency_s, np.random.default_rng(1), rounds=ROUNDS, heights=heights)


def _timed(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> tuple[T, float]:
    begun = time.process_time()
    result = work(*given, **named)
    return result, time.process_time() - begun
