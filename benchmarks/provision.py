"""Benchmark of the search for machines to rent: every heuristic, annealing, and the proof of the optimum.

Problems are those of Benoit et al. (2008), drawn as in section 7.2. The rows ``best`` have only the problems that the
cover bound does not settle. Seconds are the processor time of this process, on one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.options import ProvisionOptions
from benchmarks.rounds import Progress, silent
from thalweg.experiments.papers.benoit2008.instances import Drawing, drawn
from thalweg.experiments.papers.benoit2008.optimum import one
from thalweg.experiments.provisioning.annealing import anneal
from thalweg.experiments.provisioning.best import ProvisioningLimits
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.parts import parts_of
from thalweg.middleware.errors import PlannerError

LARGE, MIDDLE = Drawing(nodes=180, alpha=1.3), Drawing(nodes=60, alpha=1.6)
SEVERAL = {
    20: (2.05, 2.0),
    40: (1.8, 2.0),
    60: (1.6, 2.0),
    80: (1.6, 15.0),
}  # N: α at which several machines are needed, goal in s
TRIES = 20  # most problems that are drawn for each counted problem


def bench_provision(options: ProvisionOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return medians, the longest round in seconds, and the number of proven optima, for every row."""
    table = []
    for name in HEURISTICS:
        progress(name)
        table.append(_timed(name, LARGE, options.rounds, 0.02, partial(rented, heuristic=name)))
    progress("annealing")
    table.append(_timed("annealing", MIDDLE, options.rounds, 3.0, lambda instance: anneal(parts_of(instance))))
    for nodes, (alpha, goal_s) in SEVERAL.items():
        if nodes > options.largest:
            break
        progress(f"best, N = {nodes}")
        drawing, effort = Drawing(nodes=nodes, alpha=alpha), ProvisioningLimits(time_limit_s=options.time_limit_s)
        solved = list(_open(drawing, options.rounds, effort))
        times = [took_s for took_s, _ in solved]
        table.append(_row("best", drawing, times, goal_s) | {"proven": sum(proven for _, proven in solved)})
    return {"bench": "provision", "rounds": options.rounds, "rows": table}


def _timed(
    way: str, drawing: Drawing, rounds: int, goal_s: float, solve: Callable[[ProvisioningInstance], Any]
) -> dict[str, Any]:
    times = []
    for seed in range(rounds):
        instance = drawn(drawing, np.random.default_rng(seed))
        begun = time.process_time()
        with suppress(PlannerError):  # finding no answer takes as long
            solve(instance)
        times.append(time.process_time() - begun)
    return _row(way, drawing, times, goal_s) | {"proven": None}


def _open(drawing: Drawing, rounds: int, effort: ProvisioningLimits) -> Iterator[tuple[float, bool]]:
    """Yield the seconds, and whether the optimum was proven, for ``rounds`` problems that the bound does not settle."""
    left = rounds
    for seed in range(rounds * TRIES):
        solved = one(drawn(drawing, np.random.default_rng(seed)), effort)
        if solved.best is not None and not solved.settled:
            yield solved.took_s["best"], solved.best.proven
            left -= 1
        if not left:
            return


def _row(way: str, drawing: Drawing, times: list[float], goal_s: float) -> dict[str, Any]:
    figures = {"median_s": median(times), "longest_s": max(times)}
    return {"way": way, "nodes": drawing.nodes, "alpha": drawing.alpha, **figures, "goal_s": goal_s}
