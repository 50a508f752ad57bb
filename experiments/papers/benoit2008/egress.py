"""Cost of bytes between clouds on the cheapest tree, compared with trees that are planned for their rate.

Not in the paper, whose links are free. Eight sources and a client are random regions of Skyplane's throughput grid.
Results are as large as each input, and combined in any order. Bytes cost the list price of the region that they leave.
A tree keeps a throughput if its period is short enough by the grid's rates alone. A host receives and sends one result
after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from thalweg.emulation.scenarios.data_sets import Grid, find_set, read_grid
from thalweg.experiments.problems.catalogue import read_egress
from thalweg.experiments.provisioning.arborescence import busiest_s, cheapest_tree
from thalweg.middleware.dataflow import Code, Dataflow, Placement, complete_binary_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    Answers,
    CostParameters,
    DownloadAll,
    OneShot,
    Period,
    Planner,
    Task,
    Thalweg,
    ask_planner,
    propagate_hints,
)

GRID, PRICES = "skyplane_2022-11", Path("prices", "skyplane_egress.csv")
DATE = "list prices as Skyplane published them in 2023, rates of November 2022"
SOURCES = 8
RESULT_BYTES = 1e6
PLANNERS: Mapping[str, Planner] = {"thalweg": Thalweg(), "one-shot": OneShot(), "download-all": DownloadAll()}
SHARES = (0.5, 0.75, 0.9, 1.0)  # of the throughput of thalweg's own tree, which the cheapest tree has to keep
ROUNDING = 1e-6  # periods of plans are whole nanoseconds
_CODE = Code("unused")  # the operators are only planned for, never run
_LARGEST = Answers(max, lambda _: 0.0, reorderable=True)

Cost = tuple[float, float]  # $ per GB of results, and the period in s


class Scored(msgspec.Struct, frozen=True):
    """Scores of one way to make trees, in the mean over the draws.

    ``usd_per_gb``: of results. ``of_thalweg``, ``of_download_all``: the cost over the planner's. ``throughput``: over
    thalweg's. ``least``: the smallest throughput of a draw.
    """

    tree: str
    usd_per_gb: float
    of_thalweg: float
    of_download_all: float
    throughput: float
    least: float


def compared(draws: int, seed: int, tell: Callable[[int], None]) -> list[Scored]:
    """Return the scores of every way on ``draws`` draws. Raise UsageError without the collection of data sets with
    rates and prices.
    """
    path = find_set(GRID, "throughput", Path())
    grid, prices = read_grid(path, "throughput"), path.parent.parent / PRICES
    if not prices.is_file():
        raise UsageError(f"there is no {prices}, which has the prices of a GB between regions")
    egress = read_egress(prices)
    priced = {source for source, _ in egress}
    sites = [site for site in grid.sites.names if site in priced]
    for pair in permutations(sites, 2):
        if pair not in egress or not grid.value(*pair):
            raise UsageError(f"{prices} and {path} say nothing of {pair[0]} to {pair[1]}; both are needed")
    costs = []
    for number in range(draws):
        tell(number)
        chosen = np.random.default_rng([seed, number]).choice(len(sites), SOURCES + 1, replace=False)
        costs.append(one([sites[at] for at in chosen], grid, egress))
    return [_scored(way, costs) for way in costs[0]]


def one(sites: Sequence[str], grid: Grid, egress: Mapping[tuple[str, str], float]) -> dict[str, Cost]:
    """Return cost and period of every way, for a client at the first site and sources at the others."""
    client, *sources = sites
    dataflow = complete_binary_tree(dict.fromkeys(sources, _CODE), _CODE, client)
    rates = {Link(*pair): LinkEstimate(_rate_bps(grid, *pair)) for pair in permutations(sites, 2)}
    hints = propagate_hints(dataflow, dict.fromkeys(dataflow.sources, RESULT_BYTES), lambda _: _LARGEST)
    free = CostParameters(startup_s=0.0, disk_bytes_per_s=float("inf"))
    task = Task((dataflow,), tuple(sites), NetworkView(rates), hints, free)
    costs: dict[str, Cost] = {}
    for name, planner in PLANNERS.items():
        plan = ask_planner(planner, task, Period())
        costs[name] = _egress(plan.dataflow, plan.placement, egress), plan.cost_s
    price, took_s = (np.zeros((len(sites), len(sites))) for _ in range(2))
    for at, source in enumerate(sites):
        for to, target in enumerate(sites):
            if at != to:
                price[at, to] = egress[source, target]
                took_s[at, to] = 8 * RESULT_BYTES / _rate_bps(grid, source, target)
    for share in SHARES:
        tree = cheapest_tree(price, took_s, 0, costs["thalweg"][1] / share * (1 + ROUNDING))
        cost = sum(float(price[ends]) for ends in tree.items())
        costs[f"cheapest at {share:.0%} of thalweg's throughput"] = cost, busiest_s(tree, took_s)
    return costs


def _rate_bps(grid: Grid, source: str, target: str) -> float:
    return grid.value(source, target) or math.nan


def _egress(dataflow: Dataflow, placement: Placement, egress: Mapping[tuple[str, str], float]) -> float:
    ends = ((placement[producer], placement[consumer]) for producer, consumer in dataflow.edges)
    return sum(egress[pair] for pair in ends if pair[0] != pair[1])


def _scored(way: str, found: Sequence[dict[str, Cost]]) -> Scored:
    throughput = [draw["thalweg"][1] / draw[way][1] for draw in found]
    return Scored(
        way,
        usd_per_gb=fmean(draw[way][0] for draw in found),
        of_thalweg=fmean(draw[way][0] / draw["thalweg"][0] for draw in found),
        of_download_all=fmean(draw[way][0] / draw["download-all"][0] for draw in found),
        throughput=fmean(throughput),
        least=min(throughput),
    )
