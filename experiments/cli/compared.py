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

PLANNERS = ("download-all", "one-shot")  # of all, those that place a graph of any form by any cost model


def compare_task(planner: Odp, task: Task, seed: int, *, as_json: bool) -> None:
    """Every heuristic and planner on a task, by what ``planner`` minimises, the best first."""
    goal = planner.goal(task)
    optimum = planner.solve(goal, task)
    weighed = {str(metric): weight for metric, weight in goal.objective.weights.items()}
    quality = replace(task.quality, objective=weighed, counted=goal.objective.availability_of)
    own = replace(task, quality=quality)
    others = {f"planner {name}": partial(_planned, name, own, goal) for name in PLANNERS}
    found = compared(goal, optimum, seed, others)
    if as_json:
        of = {"weights": goal.objective.weights, "cost": optimum.cost, "bound": optimum.bound}
        print_json(of | {"proven": optimum.proven, "way": optimum.way, "seed": seed, "compared": found})
        return
    table = Table("", "cost", "of the optimum's", "ms", "")
    proof = "proven optimal" if optimum.proven else f"at most {optimum.gap:.2%} above the bound"
    table.add_row("odp", f"{optimum.cost:g}", "1", "", f"{proof}, by {optimum.way}")
    for one in found:
        table.add_row(one.name, *_cells(one), f"{1e3 * one.planning_s:.1f}", one.said)
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
    """Every heuristic on random problems: how its ratios to the optimum are distributed."""
    with progress() as tell:
        found = at_random(count, seed, lambda done: tell("random problems", done, count))
    proven = max(one.problems for one in found)
    if as_json:
        print_json({"problems": count, "proven": proven, "seed": seed, "heuristics": found})
        return
    table = Table("", "placed", "median", "95 %", "worst", "optimal", "ms")
    for one in found:
        ratios = map(_ratio, (one.median, one.percentile_95, one.worst))
        table.add_row(one.name, f"{one.found}/{one.problems}", *ratios, f"{one.optimal:.0%}", f"{one.planning_ms:.1f}")
    output().print(table)
    said = f"costs by the optimum's, on {counted(count, 'random problem')}"
    said += "" if proven == count else f"; {count - proven} whose optimum was not proven are left out"
    output().print(f"{said}; one without a placement is left out of the ratios", soft_wrap=True)


def compare_provisioning(drawing: Drawing, count: int, seed: int, effort: ProvisioningLimits, *, as_json: bool) -> None:
    """Every way to rent machines, on problems that are drawn: how much dearer than the optimum it is."""
    with progress() as tell:
        found = compared_drawn(drawing, count, seed, effort, lambda done: tell("random problems", done, count))
    told, feasible = scores(found), [each.best for each in found if each.best is not None]
    proven, none = sum(each.proven for each in feasible), sum(each.none for each in found)
    settled = sum(each.settled for each in found)
    if as_json:
        counts = {"problems": count, "feasible": len(feasible), "none": none, "settled": settled, "proven": proven}
        print_json({"drawing": drawing, "seed": seed, **counts, "ways": told})
        return
    table = Table("", "found", "optimal", "cheapest", "dearer", "worst", "ms", "longest ms")
    for one in told:
        dearer = ("" if math.isnan(value) else f"{value - 1:.1%}" for value in (one.ratio, one.worst))
        times = ("" if math.isnan(value) else f"{1e3 * value:.1f}" for value in (one.median_s, one.longest_s))
        cheapest = f"{one.cheapest}/{one.unsettled}"
        table.add_row(one.way, f"{one.found}/{proven}", str(one.optimal), cheapest, *dearer, *times)
    output().print(table)
    said = f"{counted(count, 'problem')}: {none} proven without any machines that do, {len(feasible)} with, whose"
    said += f" optimum is proven on {proven}; the cover bound settles {settled}, and what is dearer, cheapest and how"
    output().print(f"{said} long are of the others", soft_wrap=True)


def compare_egress(draws: int, seed: int, *, as_json: bool) -> None:
    """Trees between clouds: what their bytes cost, and how fast they are."""
    with progress() as tell:
        found = egress.compared(draws, seed, lambda done: tell("random draws", done, draws))
    if as_json:
        print_json({"draws": draws, "sources": egress.SOURCES, "seed": seed, "date": egress.DATE, "trees": found})
        return
    table = Table("", "$ a GB", "of thalweg's", "of download-all's", "throughput of thalweg's", "least")
    for one in found:
        shares = (f"{value:.0%}" for value in (one.of_thalweg, one.of_download_all, one.throughput, one.least))
        table.add_row(one.tree, f"{one.usd_per_gb:.3f}", *shares)
    output().print(table)
    said = f"means over {counted(draws, 'draw')} of {egress.SOURCES} sources and a client; $ for a GB of results, by"
    output().print(f"{said} {egress.DATE}", soft_wrap=True)
