"""How long a plan takes when all links are known: by cost model and number of servers, from both starting points.

A planner runs beside the flow, on the client: what it takes is what the flow may lose at worst. Planned are random
networks with log-normal rates, for images of 128 KB as in the paper, with all links known, so that one call makes the
whole plan.

``thalweg`` is timed by itself: as it plans once, and as it looks again while data flows, from its own tree and all
that a run keeps of its links: reading how links vary, forecasts, the search for the best tree, and what probes are
worth.
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
CORRELATION_S = 600.0  # of the links' rates, in what a run has measured of them
_CODE = Code("unused")  # the operators are only planned for, never run
_LARGEST = Answers(max, lambda _: 0.9, reorderable=True)  # a result as large as the largest input


def bench_plan(options: PlanOptions, progress: Progress = silent) -> dict[str, Any]:
    """Median and 95th percentile of the seconds that plans of random networks take, one call each.

    Raises UsageError for fewer than one server or problem, or an unknown tree.
    """
    servers, problems, tree = options.servers, options.problems, options.tree
    if not servers or min(servers) < 1 or problems < 1:
        raise UsageError(f"planning is timed for at least 1 server and 1 problem, not {list(servers)} and {problems}")
    if tree not in TREES:
        raise UsageError(f"unknown tree {tree!r}; known are {', '.join(TREES)}")
    rows = []
    for count in dict.fromkeys(servers):
        given = [_Problem(seed, count, tree) for seed in range(problems)]
        for which in OURS:
            progress(f"{count} servers, thalweg, {which}")
            looks = (one.look_once if which == OURS[0] else one.look_again() for one in (given[0], *given))
            row = {"servers": count, "model": "period", "planner": f"thalweg, {which}", **_timed(looks)}
            rows.append(row | {"median_moves": None})
        for name, model in MODELS.items():
            for start, planner in STARTS.items():
                progress(f"{count} servers, {name}, {start}")
                plans = (partial(one.plan, planner, model) for one in (given[0], *given))
                rows.append({"servers": count, "model": name, "planner": start, **_timed(plans)})
    return {"bench": "plan", "tree": tree, "problems": problems, "plans": rows}


def _timed(calls: Iterable[Callable[[], Plan | None]]) -> dict[str, float | None]:
    """Figures of all calls but the first, which warms up what is made on first use."""
    took_s, moves = [], []
    for call in calls:
        begun = time.perf_counter()
        made = call()
        took_s.append(time.perf_counter() - begun)
        moves.append(0 if made is None else len(made.steps))
    return {
        "median_s": float(np.median(took_s[1:])),
        "p95_s": float(np.percentile(took_s[1:], 95)),
        "median_moves": float(np.median(moves[1:])),
    }


class _Problem:
    """A random network with all links known, and operators anywhere on it."""

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
        """Make the plan, from where operators are."""
        return planner.plan(Task((self.dataflow,), self.hosts, self.view, self.hints, current=self.current), model)

    def look_once(self) -> Plan:
        """What ``thalweg`` plans before a run."""
        return self._thalweg(self.dataflow, self.view, None)

    def look_again(self) -> Callable[[], Plan | None]:
        """A look of ``thalweg`` at its own tree, with all that a run keeps of every link; its result is None where
        links are to be probed first."""
        found, now_s = self.look_once(), 3600.0
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
                return self._thalweg(found.dataflow, look_ahead(past, self.hosts, HORIZON_S), found.placement)
            except LinksNeeded:
                return None

        return look

    def _thalweg(self, dataflow: Dataflow, view: NetworkView, current: Placement | None) -> Plan:
        sizes = {name: self.hints.output_bytes[name] for name in dataflow.sources}
        hints = propagate_hints(dataflow, sizes, lambda _: _LARGEST)
        return Thalweg().plan(Task((dataflow,), self.hosts, view, hints, current=current), Period())
