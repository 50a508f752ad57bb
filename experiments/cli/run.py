"""``thalweg run``."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from thalweg.emulation.units import parse_rate
from thalweg.experiments.cli.console import JsonOption, counted, end, progress
from thalweg.experiments.cli.uml_option import KernelOption, runs_elsewhere
from thalweg.experiments.networks.described import adopt_file
from thalweg.experiments.networks.setup import NoDelayOption
from thalweg.experiments.runs.config import COLLAPSE_AT_S, COLLAPSE_FACTOR, COLLAPSE_S, RunConfig, is_scenario_file
from thalweg.middleware.planning.planners.thalweg import PERIOD_S
from thalweg.middleware.protocol.adaptation import PAPER_PERIOD_S

if TYPE_CHECKING:
    from thalweg.experiments.records.analysis import RunSummary
    from thalweg.experiments.runs.launcher import Outcome

_DEFAULT = RunConfig()
DEFAULT_DATA_SET = "wanify_aws"  # of a collection: wide-area paths between eight cloud regions, all measured at once


def run(
    testbed: Annotated[
        str,
        typer.Option(
            help="netns: shaped network namespaces; docker: shaped containers; loopback: unshaped; sim: virtual time."
        ),
    ] = "netns",
    image: Annotated[
        str | None, typer.Option(help="Docker: what hosts run.", show_default="that of `testbed build`")
    ] = None,
    kernel: KernelOption = "host",
    interface: Annotated[
        str | None,
        typer.Option(
            help="Sim: independent, links as tc shapes them; single, a host sends or receives one message at a time.",
            show_default="independent",
        ),
    ] = None,
    real_bytes: Annotated[
        bool, typer.Option("--bytes", help="Sim: real images through real operators, not sizes only.")
    ] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Sim: check every host's invariants after each event.")
    ] = False,
    servers: Annotated[
        int | None, typer.Option(help="Image servers, beside the client.", show_default="8, or a scenario file's hosts")
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            help="Placement algorithm: download-all, one-shot, exhaustive, thalweg-once (operators stay); global,"
            " local, random-moves (they move); thalweg, random-reshapes (the tree changes as well); or"
            " package.module:Planner. Give it several times to compare.",
            show_default=", ".join(_DEFAULT.placements),
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Composites to deliver under each placement.")] = 60,
    tree: Annotated[str, typer.Option(help="Order of combination: binary, left-deep, star.")] = "binary",
    rule: Annotated[str, typer.Option(help="Pixel selection: max, min, latest, or package.module:function.")] = "max",
    seed: Annotated[int, typer.Option(help="Of images, link assignment and generated traces.")] = 1,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="Folder of bandwidth traces, or a collection with bandwidth/NAME; generated ones without.",
            envvar="THALWEG_TRACES",
        ),
    ] = None,
    link_mean: Annotated[
        str | None, typer.Option(help="Scale the pool by one constant to this mean rate, e.g. 0.2mbit.")
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            help="Emulated seconds per second: rates × N, periods ÷ N.",
            show_default="1; uml: what it carries with ease",
        ),
    ] = None,
    view: Annotated[
        str,
        typer.Option(
            help="What planners know before a run, on testbed sim also while it goes on: probe, or truth (the"
            " emulator's own values)."
        ),
    ] = "probe",
    cost: Annotated[
        str, typer.Option(help="What planners minimise: expected-period, period, or critical-path (the paper's).")
    ] = _DEFAULT.cost,
    period: Annotated[
        float | None,
        typer.Option(
            help="Emulated seconds between decisions of global, local and thalweg.",
            show_default=f"{PAPER_PERIOD_S:g}; thalweg: {PERIOD_S:g}",
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Random hosts that local considers besides neighbours.", show_default="0")
    ] = None,
    gate: Annotated[
        bool | None,
        typer.Option("--gate/--no-gate", help="Local: only operators on the critical path move.", show_default="gate"),
    ] = None,
    hysteresis: Annotated[
        float | None,
        typer.Option(
            help="Global and local: move when the gain of a period exceeds this many times the move's cost.",
            show_default="0",
        ),
    ] = None,
    moves: Annotated[
        int | None,
        typer.Option(
            help="Random-moves and random-reshapes (tests): after so many moves they stop.",
            show_default="500; random-reshapes: 0",
        ),
    ] = None,
    reshapes: Annotated[
        int | None,
        typer.Option(help="Random-reshapes (a test): after so many changes of the tree it stops.", show_default="500"),
    ] = None,
    forecaster: Annotated[
        str | None,
        typer.Option(
            help="What a link's next rate is taken to be: last, mean, median, exponential, best.",
            show_default="the monitor's own",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="A scenario file (FILE.toml), or collapse:"
            f" {COLLAPSE_AT_S:g} s into every placement, all links of the host that one-shot gives most operators fall"
            f" to {COLLAPSE_FACTOR:.0%} of their rate, for {COLLAPSE_S:g} s.",
            show_default="none",
        ),
    ] = None,
    no_delay: NoDelayOption = False,
    operator: Annotated[
        str,
        typer.Option(
            help="What combines: composite; with state: running, join, best-of-last, or mixed (these in turn);"
            " or package.module:Class."
        ),
    ] = _DEFAULT.operator,
    startup_s: Annotated[
        float, typer.Option(help="Message start-up cost that planners reckon with; on sim messages take it.")
    ] = 0.0,
    disk_rate: Annotated[
        float | None,
        typer.Option(
            help="Disk bandwidth that planners reckon with, bytes/s; on sim reading takes it.", show_default="free"
        ),
    ] = None,
    pixel_s: Annotated[
        float | None,
        typer.Option(
            help="Composition time a pixel that planners reckon with; on sim composing takes it.",
            show_default="measured",
        ),
    ] = None,
    image_bytes: Annotated[int, typer.Option(help="Mean size of the synthetic images.")] = 131_072,
    image_deviation: Annotated[float, typer.Option(help="Its relative standard deviation.")] = 0.25,
    dtype: Annotated[str, typer.Option(help="uint8 or uint16.")] = "uint8",
    bands: Annotated[int, typer.Option(help="Bands of the synthetic images.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Your own images (PNG, JPEG, TIFF): one subfolder a server.")
    ] = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Leave out images that cannot be read.")] = False,
    allow: Annotated[list[str] | None, typer.Option(help="Package of your own whose code may be named.")] = None,
    pictures: Annotated[int, typer.Option(help="How many composites to keep as PNG.")] = 12,
    prove: Annotated[bool, typer.Option(help="Measure every link before the run.")] = True,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/<time>")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run one workload on one testbed under one or more placements.

    Every placement is planned ahead, on the links as they are at the start of their traces, and then runs from that
    start on warmed-up hosts. Those that begin with one-shot (one-shot, global, local) share one plan. Under thalweg the
    tree itself is chosen, and changes while data flows, where the operator may be applied in any order (composite
    with max or min).

    Example: thalweg run --servers 8 --placement one-shot --placement thalweg --images 60 --time-scale 60
    --link-mean 0.2mbit --seed 1 --out runs/a

    Operators that move: thalweg run --servers 8 --placement one-shot --placement global --placement local
    --period 600 --images 120 --time-scale 120 --link-mean 0.2mbit --scenario collapse

    Moves at random, of operators with state: thalweg run --testbed loopback --placement random-moves --moves 500
    --images 600 --operator mixed

    Trees at random: thalweg run --testbed loopback --placement random-reshapes --reshapes 100 --images 600
    (a change takes some four images: those that are in the old tree come first)
    """
    options: dict[str, Any] = {
        "testbed": testbed,
        "image": image,
        "kernel": kernel,
        "interface": interface,
        "bytes": real_bytes,
        "validate": validate,
        "servers": 8 if servers is None else servers,
        "placements": tuple(placement or _DEFAULT.placements),
        "images": images,
        "tree": tree,
        "rule": rule,
        "seed": seed,
        "traces": None if traces is None or testbed == "loopback" else str(pool_folder(traces)),
        "link_mean_bps": None if link_mean is None else parse_rate(link_mean),
        "time_scale": 1.0 if time_scale is None else time_scale,
        "view": view,
        "cost": cost,
        "period_s": period,
        "k": k,
        "gate": gate,
        "hysteresis": hysteresis,
        "moves": moves,
        "reshapes": reshapes,
        "forecaster": forecaster,
        "scenario": scenario,
        "no_delay": no_delay,
        "operator": operator,
        "startup_s": startup_s,
        "disk_bytes_per_s": disk_rate,
        "pixel_s": pixel_s,
        "image_bytes": image_bytes,
        "image_deviation": image_deviation,
        "dtype": dtype,
        "bands": bands,
        "folder": None if folder is None else str(folder),
        "skip_corrupt": skip_corrupt,
        "allow": tuple(allow or ()),
        "pictures": pictures,
        "prove": prove,
    }
    if is_scenario_file(scenario):
        adopt_file(options, scenario, time_scale, servers)
        time_scale = float(options["time_scale"])
    config = make_config(options)
    if config.kernel == "uml":
        config = in_uml(config, out, choose_time_scale=time_scale is None)
    where = out or Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    run_and_report(config, where, as_json=as_json)


def in_uml(config: RunConfig, out: Path | None, *, choose_time_scale: bool) -> RunConfig:
    """See to it that this command runs in a User-Mode Linux kernel, and adapt its configuration to that.

    On the machine's own kernel it boots one, runs there what this process was asked to, and ends with its status.
    """
    from thalweg.emulation.uml.kernel import run_thalweg_inside
    from thalweg.experiments.networks.traced import easy_time_scale
    from thalweg.experiments.runs.launcher import check_empty

    if runs_elsewhere(config.kernel, config.testbed):
        if out is not None:
            check_empty(out)  # before a kernel boots for nothing
        raise typer.Exit(run_thalweg_inside())
    if choose_time_scale:
        config = msgspec.structs.replace(config, time_scale=easy_time_scale(config))
        note = f"--time-scale is {config.time_scale:g}, which this kernel carries with ease; give another if you like"
        print(f"note: {note}", file=sys.stderr)
    return config


def pool_folder(folder: Path) -> Path:
    """``folder``, or in a collection of data sets its default one."""
    sets = folder / "bandwidth"
    if not sets.is_dir():
        return folder
    preferred = sets / DEFAULT_DATA_SET
    return preferred if preferred.is_dir() else sets


def make_config(options: dict[str, Any]) -> RunConfig:
    """The options as a checked configuration; UsageError names the one that does not fit."""
    from thalweg.experiments.runs.own_code import find_own_code
    from thalweg.middleware.errors import UsageError

    try:
        config = msgspec.convert(options, RunConfig).check()
    except msgspec.ValidationError as error:
        raise UsageError(f"an option does not fit: {error}; see thalweg run --help") from None
    find_own_code((*config.placements, config.cost, config.operator, config.rule))
    return config


def run_and_report(config: RunConfig, where: Path, *, as_json: bool) -> None:
    """Execute, summarise without Spark, and print."""
    from thalweg.experiments.records.summary import summarize_run
    from thalweg.experiments.runs.launcher import execute
    from thalweg.experiments.runs.sheets import write_sheet
    from thalweg.experiments.simulation.recorded import execute_virtually

    with progress() as tell:
        virtual = config.testbed == "sim"
        outcome = (execute_virtually if virtual else execute)(config, where, tell)
        sheet = None if virtual and not config.bytes else write_sheet(config, outcome)
    summary = summarize_run(outcome.folder)
    _print(summary, outcome, sheet, as_json=as_json)


def _print(summary: RunSummary, outcome: Outcome, sheet: Path | None, *, as_json: bool) -> None:
    """The table and where things are, or the JSON object; exit status 1 when a promise was not kept."""
    from thalweg.experiments.records.analysis import failures, to_json
    from thalweg.experiments.views.tables import print_runs

    if as_json:
        print(to_json([summary]).decode())
    else:
        print_runs([summary])
        for label, placed in outcome.placed.items():
            tree = outcome.trees.get(label)
            if tree is None:
                print(f"{label}: {_where(placed, outcome.ended.get(label))}")
            else:
                times = summary.placements[label].reshapes
                print(f"{label}: the tree changed {counted(times, 'time')} and ended as {tree}")
        for note in outcome.info.notes:
            print(f"note: {note}")
        print(f"records: {outcome.folder}" + (f"   pictures: {sheet}" if sheet else ""))
        print(f"next: thalweg analyze {outcome.folder}")
    end(failures(summary))


def _where(placed: Mapping[str, str], ended: Mapping[str, str] | None) -> str:
    """Where each operator was, and where it was at the end, for placements that move: ``op0 h1 → h4, op1 h2``."""
    places = [
        f"{node} {host}" + (f" → {ended[node]}" if ended and ended[node] != host else "")
        for node, host in placed.items()
    ]
    if ended is None:
        return ", ".join(places)
    elsewhere = sum(ended[node] != host for node, host in placed.items())
    return f"{elsewhere} of {len(placed)} operators ended elsewhere: {', '.join(places)}"
