"""How long a plan takes when all links are known: by cost model and number of servers, from both starting points.

A planner runs beside the flow, on the client: what it takes is what the flow may lose at worst. Planned are random
networks with log-normal rates, for images of 128 KB as in the paper, with all links known, so that one call makes the
whole plan.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.experiments.bench.rounds import Progress, silent
from thalweg.middleware.dataflow import TREES, Code, Dataflow, Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network_view import LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    CriticalPath,
    ExpectedPeriod,
    Hints,
    OneShot,
    Period,
)

MODELS: Mapping[str, CostModel] = {
    "critical-path": CriticalPath(),
    "critical-path, serialised": CriticalPath(serialised=True),
    "period": Period(),
    "period, duplex": Period(interface="duplex"),
    "period, independent": Period(interface="independent"),
    "expected-period": ExpectedPeriod(),
}
STARTS = {"one-shot": OneShot(), "global": OneShot(start="current")}
_CODE = Code("unused")  # the operators are only planned for, never run


def bench_plan(
    *, servers: Sequence[int] = (4, 8, 16, 32), problems: int = 20, tree: str = "binary", progress: Progress = silent
) -> dict[str, Any]:
    """Median and 95th percentile of the seconds that plans of ``problems`` random networks take, one call each.

    Raises UsageError for fewer than one server or problem, or an unknown tree.
    """
    if not servers or min(servers) < 1 or problems < 1:
        raise UsageError(f"planning is timed for at least 1 server and 1 problem, not {list(servers)} and {problems}")
    if tree not in TREES:
        raise UsageError(f"unknown tree {tree!r}; known are {', '.join(TREES)}")
    rows = []
    for count in dict.fromkeys(servers):
        given = [_Problem(seed, count, tree) for seed in range(problems)]
        for name, model in MODELS.items():
            for start, planner in STARTS.items():
                progress(f"{count} servers, {name}, {start}")
                took_s, moves = [], []
                given[0].plan(planner, model)  # warms up what is made on first use
                for problem in given:
                    begun = time.perf_counter()
                    moves.append(problem.plan(planner, model))
                    took_s.append(time.perf_counter() - begun)
                rows.append(
                    {
                        "servers": count,
                        "model": name,
                        "planner": start,
                        "median_s": float(np.median(took_s)),
                        "p95_s": float(np.percentile(took_s, 95)),
                        "median_moves": float(np.median(moves)),
                    }
                )
    return {"bench": "plan", "tree": tree, "problems": problems, "plans": rows}


class _Problem:
    """A random network with all links known, and operators anywhere on it."""

    def __init__(self, seed: int, servers: int, tree: str) -> None:
        rng = random.Random(seed)
        self.hosts = ["client", *(f"h{i + 1}" for i in range(servers))]
        self.dataflow: Dataflow = TREES[tree](dict.fromkeys(self.hosts[1:], _CODE), _CODE)
        sizes = {node.name: max(1.0, rng.gauss(128_000, 32_000)) for node in self.dataflow.nodes if node.kind != "sink"}
        self.hints = Hints(sizes, dict.fromkeys(self.dataflow.operators, 0.9))
        pairs = [(a, b) for a in self.hosts for b in self.hosts if a != b]
        self.view = NetworkView({pair: LinkEstimate(rng.lognormvariate(12, 1.2)) for pair in pairs})
        self.current: Placement = {node.name: node.pinned or rng.choice(self.hosts) for node in self.dataflow.nodes}

    def plan(self, planner: OneShot, model: CostModel) -> int:
        """Make the plan; returns how many moves it took."""
        given = (self.dataflow, self.hosts, self.view, self.current)
        return len(planner.plan(*given, hints=self.hints, costs=CostParameters(), model=model).steps)
