"""``thalweg run``: one workload on one testbed under one or more placements."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from thalweg.experiments.cli.console import JsonOption, end, progress
from thalweg.experiments.cli.options import Given, find_own_code, make, takes
from thalweg.experiments.command import RUN_LIBRARIES
from thalweg.experiments.run_config import DEFAULTS, RunConfig, is_scenario_file, runs_elsewhere
from thalweg.middleware.errors import counted, require

if TYPE_CHECKING:
    from thalweg.experiments.records.analysis import RunSummary
    from thalweg.experiments.runs.session import Outcome


@takes(RunConfig)
def run(
    given: Given,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder.", show_default="runs/<time>")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one workload on one testbed under one or more placements.

    Every placement is planned before its run, from the rates of the links at the start of their traces. Placements that
    begin with the plan of one-shot share that plan. The placement thalweg chooses the tree as well, if the operator may
    be applied in any order: composite with max or min.

    In virtual time: thalweg run --testbed sim --placement one-shot --placement thalweg --images 60 --out runs/a

    On shaped links of this machine, 60 times as fast: thalweg run --placement one-shot --placement thalweg
    --time-scale 60 --link-mean 0.2mbit --seed 1 --out runs/b

    Operators that move, when a host loses its network: thalweg run --placement one-shot --placement global
    --placement local --images 120 --time-scale 120 --link-mean 0.2mbit --scenario collapse

    A plan that `thalweg provision` made: thalweg run --plan runs/rented/answer/plan.toml --testbed docker

    Records with windows, and two sinks: thalweg run --workload plates --placement one-shot --placement thalweg
    """
    from thalweg.experiments.networks.described import adopt_file
    from thalweg.experiments.runs.plan_file import adopt_plan

    if given.get("testbed") == "loopback" and "traces" not in given.said:
        given.pop("traces", None)  # loopback shapes no links, and the environment may name traces
    choose_time_scale = "time_scale" not in given
    if given.get("plan") is not None:
        adopt_plan(given, given["plan"])
    scenario = given.get("scenario")
    if is_scenario_file(scenario):
        adopt_file(given, scenario)
        choose_time_scale = False
    adopt_defaults(given)
    config = make_config(given, "run")
    if config.kernel == "uml":
        config = in_uml(config, out, choose_time_scale=choose_time_scale)
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    run_and_report(config, where, as_json=as_json)


def adopt_defaults(given: dict[str, Any]) -> None:
    """Set the usual options of a workload, unless they are given."""
    for name, value in DEFAULTS.get(given.get("workload", ""), {}).items():
        if name == "link_mean_bps" and (given.get("testbed") == "loopback" or is_scenario_file(given.get("scenario"))):
            continue  # the testbed has no links, or the file sets the rates
        given.setdefault(name, value)


def make_config(given: Mapping[str, Any], verb: str) -> RunConfig:
    """Return the checked configuration of the options. Raise UsageError, with the option, if a value does not fit."""
    config = make(RunConfig, given, f"thalweg {verb}").check()
    find_own_code((*config.placements, config.cost, config.operator, config.rule))
    return config


def in_uml(config: RunConfig, out: Path | None, *, choose_time_scale: bool) -> RunConfig:
    """Ensure that this command runs in a User-Mode Linux kernel, and return the configuration for this kernel.

    On the machine's own kernel, boot a User-Mode Linux kernel, run this command line there, and exit with its status.
    """
    from thalweg.experiments.networks.traced import easy_time_scale
    from thalweg.experiments.runs.folder import check_empty
    from thalweg.experiments.runs.workload import edges

    if runs_elsewhere(config.kernel, config.testbed):
        if out is not None:
            check_empty(out)  # before a kernel boots for nothing
        from thalweg.emulation.uml.kernel import run_thalweg_inside  # imports modules that only Linux has

        raise typer.Exit(run_thalweg_inside())
    if choose_time_scale:
        config = msgspec.structs.replace(config, time_scale=easy_time_scale(config, edges(config)))
        note = f"--time-scale is {config.time_scale:g}, which this kernel carries with ease; give another if you like"
        print(f"note: {note}", file=sys.stderr)
    return config


def run_and_report(config: RunConfig, where: Path, *, as_json: bool) -> None:
    """Execute a run, summarise it without Spark, and print the summary."""
    require(*RUN_LIBRARIES)
    from thalweg.experiments.records.analysis import summarize_run
    from thalweg.experiments.runs.folder import needing_room
    from thalweg.experiments.runs.launcher import execute
    from thalweg.experiments.runs.workload import workload_of
    from thalweg.experiments.simulation.recorded import execute_virtually

    with needing_room(where), progress() as tell:
        virtual = config.testbed == "sim"
        outcome = (execute_virtually if virtual else execute)(config, where, tell)
        composed = any(outcome.found.delivered.values()) and (config.bytes or not virtual)
        sheet = workload_of(config).write_sheet(outcome.folder, outcome.info.images) if composed else None
    summary = summarize_run(outcome.folder)
    _print(summary, outcome, sheet, as_json=as_json)


def _print(summary: RunSummary, outcome: Outcome, sheet: Path | None, *, as_json: bool) -> None:
    """Print the table and the paths, or the JSON object. Exit with status 1 if a placement broke a promise."""
    from thalweg.experiments.records.aggregates import RunsSummary
    from thalweg.experiments.records.analysis import failures
    from thalweg.experiments.records.trees import as_edges
    from thalweg.experiments.views.tables import print_runs

    if as_json:
        print(RunsSummary([summary]).to_json().decode())
    else:
        print_runs(RunsSummary([summary]))
        if outcome.dataflow.not_a_tree():
            print(f"graph: {as_edges(outcome.dataflow.edges)}")
        for label, placed in outcome.found.placed.items():
            tree = outcome.found.trees.get(label)
            if tree is None:
                print(f"{label}: {_where(placed, outcome.found.ended.get(label))}")
            else:
                times = summary.placements[label].reshapes
                print(f"{label}: the tree changed {counted(times, 'time')} and ended as {tree}")
        for note in (*outcome.info.notes, *summary.missing):
            print(f"note: {note}")
        print(f"records: {outcome.folder}" + (f"   pictures: {sheet}" if sheet else ""))
        print(f"next: thalweg analyze {outcome.folder}")
    end(failures(summary))


def _where(placed: Mapping[str, str], ended: Mapping[str, str] | None) -> str:
    """Return the host of each operator. If the placement moves, add the last host: ``op0 h1 → h4, op1 h2``."""
    places = [
        f"{node} {host}" + (f" → {ended[node]}" if ended and ended[node] != host else "")
        for node, host in placed.items()
    ]
    if ended is None:
        return ", ".join(places)
    elsewhere = sum(ended[node] != host for node, host in placed.items())
    return f"{elsewhere} of {len(placed)} operators ended elsewhere: {', '.join(places)}"
