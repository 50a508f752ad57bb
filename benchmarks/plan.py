"""Benchmark of the time of a plan when all links are known, by cost model and number of servers, from two starts.

A planner runs beside the flow, on the client. Its time is the most that the flow may lose. The problems are random
networks with log-normal rates, and images of 128 KB as in the paper. All links are known, so one call makes the whole
plan.

``thalweg`` is timed separately, for a plan before a run and for a replanning while data flows. A replanning begins with
the planner's own tree and all that a run keeps of its links. It reads how links vary, makes forecasts, searches the
best tree, and weighs the benefit of probes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.options import PlanOptions
from benchmarks.rounds import Progress, silent
from thalweg.middleware.dataflow import TREES, Code, Dataflow, Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.history import KEPT, PlanningHistory, Sample
from thalweg.middleware.network.outlook import look_ahead, read_variability
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView, links_between
from thalweg.middleware.planning import (
    Answers,
    CostModel,
    CriticalPath,
    ExpectedPeriod,
    Hints,
    OneShot,
    Period,
    Plan,
    Task,
    Thalweg,
    propagate_hints,
)
from thalweg.middleware.planning.planners.thalweg import HORIZON_S

MODELS: Mapping[str, CostModel] = {
    "critical-path": CriticalPath(),
    "critical-path, serialised": CriticalPath(serialised=True),
    "period": Period(),
    "period, duplex": Period(interface="duplex"),
    "period, independent": Period(interface="independent"),
    "expected-period": ExpectedPeriod(),
}
STARTS = {"one-shot": OneShot(), "global": OneShot(start="current")}
OURS = ("once", "a look while data flows")
CORRELATION_S = 600.0  # of the links' rates in a run's samples
_CODE = Code("unused")  # the operators are only planned for, never run
_LARGEST = Answers(max, lambda _: 0.9, reorderable=True)  # outputs are as large as the largest input


def bench_plan(options: PlanOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return the median and 95th percentile of the seconds of a plan, over random networks with one call each.

    Raise UsageError for fewer than one server or problem, or an unknown tree.
    """
    servers, problems, tree = options.servers, options.problems, options.tree
    if not servers or min(servers) < 1 or problems < 1:
        raise UsageError(f"planning is timed for at least 1 server and 1 problem, not {list(servers)} and {problems}")
    if tree not in TREES:
        raise UsageError(f"unknown tree {tree!r}; known are {', '.join(TREES)}")
    rows = []
    for count in dict.fromkeys(servers):
        cases = [_Problem(seed, count, tree) for seed in range(problems)]
        for kind in OURS:
            progress(f"{count} servers, thalweg, {kind}")
            looks = (case.look_once if kind == OURS[0] else case.look_again() for case in (cases[0], *cases))
            row = {"servers": count, "model": "period", "planner": f"thalweg, {kind}", **_timed(looks)}
            rows.append(row | {"median_moves": None})
        for name, model in MODELS.items():
            for start, planner in STARTS.items():
                progress(f"{count} servers, {name}, {start}")
                plans = (partial(case.plan, planner, model) for case in (cases[0], *cases))
                rows.append({"servers": count, "model": name, "planner": start, **_timed(plans)})
    return {"bench": "plan", "tree": tree, "problems": problems, "plans": rows}


def _timed(calls: Iterable[Callable[[], Plan | None]]) -> dict[str, float | None]:
    """Return figures of the calls after the first, which fills caches."""
    took_s, moves = [], []
    for call in calls:
        begun = time.perf_counter()
        plan = call()
        took_s.append(time.perf_counter() - begun)
        moves.append(0 if plan is None else len(plan.steps))
    return {
        "median_s": float(np.median(took_s[1:])),
        "p95_s": float(np.percentile(took_s[1:], 95)),
        "median_moves": float(np.median(moves[1:])),
    }


class _Problem:
    """Random network with all links known, and operators on random hosts."""

    def __init__(self, seed: int, servers: int, tree: str) -> None:
        rng = random.Random(seed)
        self.hosts = ("client", *(f"h{i + 1}" for i in range(servers)))
        self.dataflow: Dataflow = TREES[tree](dict.fromkeys(self.hosts[1:], _CODE), _CODE)
        sizes = {node.name: max(1.0, rng.gauss(128_000, 32_000)) for node in self.dataflow.nodes if node.kind != "sink"}
        self.hints = Hints(sizes, dict.fromkeys(self.dataflow.operators, 0.9))
        pairs = links_between(self.hosts)
        self.rng = rng
        self.view = NetworkView({pair: LinkEstimate(rng.lognormvariate(12, 1.2)) for pair in pairs})
        self.current: Placement = {node.name: node.pinned or rng.choice(self.hosts) for node in self.dataflow.nodes}

    def plan(self, planner: OneShot, model: CostModel) -> Plan:
        """Make the plan, from the present placement."""
        return planner.plan(Task((self.dataflow,), self.hosts, self.view, self.hints, current=self.current), model)

    def look_once(self) -> Plan:
        """Return the plan of ``thalweg`` before a run."""
        return self._thalweg(self.dataflow, self.view, None)

    def look_again(self) -> Callable[[], Plan | None]:
        """Return a function that replans ``thalweg``'s own tree, with the samples that a run keeps of every link.

        The function returns None if links must be probed first.
        """
        earlier, now_s = self.look_once(), 3600.0
        samples = {}
        for link, estimate in self.view.estimates.items():
            at_s, value, of_link = 0.0, 0.0, []
            for _ in range(KEPT):
                step_s = self.rng.uniform(30.0, 2 * now_s / KEPT - 30.0)
                stays = math.exp(-step_s / CORRELATION_S)
                at_s, value = at_s + step_s, value * stays + self.rng.gauss(0, math.sqrt(1 - stays**2))
                of_link.append(Sample(at_s, math.log(estimate.rate_bps) + 0.5 * value, 1))
            samples[link] = tuple(of_link)
        before = read_variability(samples)

        def look() -> Plan | None:
            past = PlanningHistory(samples, 2 * now_s, variability=read_variability(samples, before))
            try:
                return self._thalweg(earlier.dataflow, look_ahead(past, self.hosts, HORIZON_S), earlier.placement)
            except LinksNeeded:
                return None

        return look

    def _thalweg(self, dataflow: Dataflow, view: NetworkView, current: Placement | None) -> Plan:
        sizes = {name: self.hints.output_bytes[name] for name in dataflow.sources}
        hints = propagate_hints(dataflow, sizes, lambda _: _LARGEST)
        return Thalweg().plan(Task((dataflow,), self.hosts, view, hints, current=current), Period())
