"""``--compare`` of ``thalweg place`` and ``thalweg provision``: heuristics beside the optimum."""

from __future__ import annotations

import math
from functools import partial

from msgspec.structs import replace
from rich.table import Table

from thalweg.experiments.cli.console import output, print_json, progress
from thalweg.experiments.papers.benoit2008 import egress
from thalweg.experiments.papers.benoit2008.instances import Drawing
from thalweg.experiments.papers.benoit2008.optimum import compared as compared_drawn
from thalweg.experiments.papers.benoit2008.optimum import scores
from thalweg.experiments.papers.cardellini2016.comparing import Scored, at_random, compared
from thalweg.experiments.provisioning.best import ProvisioningLimits
from thalweg.middleware.errors import counted
from thalweg.middleware.planning import Odp, Task, ask_planner, get_cost_model, get_planner
from thalweg.middleware.planning.odp.instance import Indices
from thalweg.middleware.planning.odp.objective import Goal

PLANNERS = ("download-all", "one-shot")  # planners that place every form of graph by every cost model


def compare_task(planner: Odp, task: Task, seed: int, *, as_json: bool) -> None:
    """Print every heuristic and planner on a task, by the goal of ``planner``, the best first."""
    goal = planner.goal(task)
    optimum = planner.solve(goal, task)
    weighed = {str(metric): weight for metric, weight in goal.objective.weights.items()}
    quality = replace(task.quality, objective=weighed, counted=goal.objective.availability_of)
    own = replace(task, quality=quality)
    planners = {f"planner {name}": partial(_planned, name, own, goal) for name in PLANNERS}
    rows = compared(goal, optimum, seed, planners)
    if as_json:
        of = {"weights": goal.objective.weights, "cost": optimum.cost, "bound": optimum.bound}
        print_json(of | {"proven": optimum.proven, "way": optimum.way, "seed": seed, "compared": rows})
        return
    table = Table("", "cost", "of the optimum's", "ms", "")
    proof = "proven optimal" if optimum.proven else f"at most {optimum.gap:.2%} above the bound"
    table.add_row("odp", f"{optimum.cost:g}", "1", "", f"{proof}, by {optimum.way}")
    for score in rows:
        table.add_row(score.name, *_cells(score), f"{1e3 * score.planning_s:.1f}", score.said)
    output().print(table)


def _planned(name: str, task: Task, goal: Goal) -> Indices:
    plan = ask_planner(get_planner(name), task, get_cost_model("objective"))
    return goal.instance.where([plan.placement[node] for node in goal.instance.names])


def _cells(one: Scored) -> tuple[str, str]:
    if one.cost is None or one.ratio is None:
        return "none", ""
    return f"{one.cost:g}", _ratio(one.ratio)


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def compare_random(count: int, seed: int, *, as_json: bool) -> None:
    """Print how the ratios of every heuristic to the optimum are distributed on random problems."""
    with progress() as tell:
        rows = at_random(count, seed, lambda done: tell("random problems", done, count))
    proven = max(row.problems for row in rows)
    if as_json:
        print_json({"problems": count, "proven": proven, "seed": seed, "heuristics": rows})
        return
    table = Table("", "placed", "median", "95 %", "worst", "optimal", "ms")
    for row in rows:
        ratios = map(_ratio, (row.median, row.percentile_95, row.worst))
        table.add_row(row.name, f"{row.found}/{row.problems}", *ratios, f"{row.optimal:.0%}", f"{row.planning_ms:.1f}")
    output().print(table)
    caption = f"ratios of costs to the optimum's, on {counted(count, 'random problem')}"
    caption += "" if proven == count else f"; {count - proven} problems without a proven optimum are left out"
    output().print(f"{caption}; ratios leave out problems without a placement", soft_wrap=True)


def compare_provisioning(drawing: Drawing, count: int, seed: int, effort: ProvisioningLimits, *, as_json: bool) -> None:
    """Print by how much every way to rent machines is dearer than the optimum, on drawn problems."""
    with progress() as tell:
        problems = compared_drawn(drawing, count, seed, effort, lambda done: tell("random problems", done, count))
    ways, feasible = scores(problems), [problem.best for problem in problems if problem.best is not None]
    proven, none = sum(problem.proven for problem in feasible), sum(problem.none for problem in problems)
    settled = sum(problem.settled for problem in problems)
    if as_json:
        counts = {"problems": count, "feasible": len(feasible), "none": none, "settled": settled, "proven": proven}
        print_json({"drawing": drawing, "seed": seed, **counts, "ways": ways})
        return
    table = Table("", "found", "optimal", "cheapest", "dearer", "worst", "ms", "longest ms")
    for way in ways:
        dearer = ("" if math.isnan(value) else f"{value - 1:.1%}" for value in (way.ratio, way.worst))
        times = ("" if math.isnan(value) else f"{1e3 * value:.1f}" for value in (way.median_s, way.longest_s))
        cheapest = f"{way.cheapest}/{way.unsettled}"
        table.add_row(way.way, f"{way.found}/{proven}", str(way.optimal), cheapest, *dearer, *times)
    output().print(table)
    caption = (
        f"{counted(count, 'problem')}: {none} proven to have no machines that suffice, {len(feasible)} with machines,"
    )
    caption += f" {proven} of them with a proven optimum; the cover bound settles {settled} problems, and the columns"
    output().print(f"{caption} cheapest, dearer, worst and ms are of the others", soft_wrap=True)


def compare_egress(draws: int, seed: int, *, as_json: bool) -> None:
    """Print the trees between clouds, with the price of their bytes and their throughput."""
    with progress() as tell:
        trees = egress.compared(draws, seed, lambda done: tell("random draws", done, draws))
    if as_json:
        print_json({"draws": draws, "sources": egress.SOURCES, "seed": seed, "date": egress.DATE, "trees": trees})
        return
    table = Table("", "$ a GB", "of thalweg's", "of download-all's", "throughput of thalweg's", "least")
    for tree in trees:
        shares = (f"{value:.0%}" for value in (tree.of_thalweg, tree.of_download_all, tree.throughput, tree.least))
        table.add_row(tree.tree, f"{tree.usd_per_gb:.3f}", *shares)
    output().print(table)
    caption = f"means over {counted(draws, 'draw')} of {egress.SOURCES} sources and a client; $ for a GB of results, by"
    output().print(f"{caption} {egress.DATE}", soft_wrap=True)
