"""Benchmark of optimal placements: Tag-and-Count's by every metric, all sizes of Figure 9, random graphs, a heuristic.

Seconds are the processor time of this process, on one core. Bounds are goals for such a core. CPLEX took up to 0.42 s
for the experiment of Cardellini et al. (2016).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.options import OdpOptions
from benchmarks.rounds import Progress, silent
from thalweg.experiments.papers.cardellini2016.instances import drawn, fat, sequential, table_2, tag_and_count
from thalweg.middleware.planning.odp.heuristics import HEURISTICS
from thalweg.middleware.planning.odp.instance import OdpInstance
from thalweg.middleware.planning.odp.objective import NETWORK, Goal, Metric, Objective, only
from thalweg.middleware.planning.odp.solve import OdpLimits, normalised, solve

METRICS: tuple[Metric, ...] = ("response", "availability", *NETWORK)
MIXED = Objective(0.4, 0.3, 0.3)
SIZES = (  # of Figure 9: operators, hosts, capacity
    *((operators, 20, 4) for operators in (10, 20, 30, 40, 50)),
    *((20, hosts, 4) for hosts in (10, 50, 100)),
    *((20, 20, capacity) for capacity in (2, 3, 6, 8, 10)),
)


class Row(NamedTuple):
    """Row of the table: a problem, its objective, the function that draws it, and its goal in seconds."""

    problem: str
    objective: str
    draw: Callable[[np.random.Generator], OdpInstance]
    bound_s: float | None = None


def rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    for metric in (*METRICS, "mixed"):
        yield Row("experiment", metric, tag_and_count, 0.1)
    for name, layers in (("fat", fat), ("sequential", sequential)):
        for operators, hosts, capacity in SIZES:
            bound_s = 0.5 if name == "fat" else 60.0 if operators == 50 else 2.0 if operators == 20 else None

            def draw(
                random: np.random.Generator,
                sizes: tuple[int, ...] = layers(operators),
                hosts: int = hosts,
                capacity: int = capacity,
            ) -> OdpInstance:
                return table_2(random, sizes, hosts, capacity)

            yield Row(f"{name} {operators} x {hosts}, {capacity}", "response", draw, bound_s)
    yield Row("random 5-12 x 5-10", "mixed", drawn)


def bench_odp(options: OdpOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return medians, the longest round in seconds, and the number of proven optima, for every row."""
    effort = OdpLimits(time_limit_s=options.time_limit_s, structure=not options.program)
    figures = []
    for problem, objective, draw, bound_s in rows():
        if options.only and not problem.startswith(options.only):
            continue
        took, solved = [], []
        for seed in range(options.rounds):
            progress(f"{problem}, {objective}: {seed + 1} of {options.rounds}")
            instance = draw(np.random.default_rng(seed))
            begun = time.process_time()
            goal = normalised(instance, MIXED, effort) if objective == "mixed" else Goal(instance, _only(objective))
            solved.append(solve(goal, effort))
            took.append(time.process_time() - begun)
        figures.append(
            {
                "problem": problem,
                "objective": objective,
                "way": "/".join(sorted({solution.way for solution in solved})),
                "median_s": median(took),
                "longest_s": max(took),
                "proven": sum(solution.proven for solution in solved),
                "gap": max(solution.gap for solution in solved),
                "bound_s": bound_s,
            }
        )
    if not options.only or "local search".startswith(options.only):
        progress("local search")
        figures.append(_local_search(options.rounds))
    return {"bench": "odp", "rounds": options.rounds, "rows": figures}


def _only(name: str) -> Objective:
    (metric,) = (metric for metric in METRICS if metric == name)
    return only(metric)


def _local_search(rounds: int) -> dict[str, Any]:
    """Return the row of the local search, on graphs of 50 operators and 100 hosts."""
    took = []
    for seed in range(rounds):
        goal = Goal(drawn(np.random.default_rng(seed), (50, 50), (100, 100)), only("usage"))
        begun = time.process_time()
        HEURISTICS["local-search"](goal, seed)
        took.append(time.process_time() - begun)
    return {
        "problem": "local search 50 x 100",
        "objective": "usage",
        "way": "local-search",
        "median_s": median(took),
        "longest_s": max(took),
        "proven": 0,
        "gap": None,
        "bound_s": 2.0,
    }
