"""``thalweg sweep``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from thalweg.experiments.cli.console import JsonOption, counted, end, output, print_json, progress
from thalweg.middleware.errors import UsageError

if TYPE_CHECKING:
    from thalweg.experiments.sweeps.sweep import PlacementResult, Sweep, SweepOutcome

POOLS = 10  # a pool is one draw: fewer do not tell how much another would differ
CONFIGURATIONS = 300  # as many as the paper's
REASONS = 10  # that are printed
TAKEN = {"faults": ("first_seed", "master", "out", "as_json"), "replay_faults": ("as_json",)}  # of all options


def sweep(
    context: typer.Context,
    figure: Annotated[
        str | None,
        typer.Option(
            help="The grid of a figure of the paper: 6, 7, 8, 9 or 10; or ablation, what each part of thalweg brings.",
            show_default="none",
        ),
    ] = None,
    configurations: Annotated[
        int, typer.Option(help="Network configurations in all, spread evenly over the pools.")
    ] = CONFIGURATIONS,
    pools: Annotated[
        int | None,
        typer.Option(help="Draws of the pool of traces.", show_default=f"{POOLS}, at most one a configuration"),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            help="paper (calibrated to the paper), regions (the same, links by region), real (measured), or a folder"
            " of traces."
        ),
    ] = "paper",
    first_pool: Annotated[int, typer.Option(help="Seed of the first pool; the others follow it.", min=0)] = 1001,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            help="As in `thalweg run`, or package.module:Planner; several times for several. They are added to those"
            " of --figure.",
            show_default="download-all, one-shot, local, global, thalweg-once, thalweg",
        ),
    ] = None,
    servers: Annotated[
        list[int] | None, typer.Option(help="Image servers; repeat to vary.", show_default="the figure's, or 8")
    ] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(help="binary, left-deep, star; repeat to vary.", show_default="the figure's, or binary"),
    ] = None,
    period: Annotated[
        list[float] | None,
        typer.Option(
            help="Seconds between decisions of global, local and thalweg; repeat to vary.",
            show_default="the figure's, or 600, of thalweg 60",
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k", help="Random hosts that local considers; repeat to vary.", show_default="the figure's, or 0"
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Composites to deliver in every run.")] = 180,
    interface: Annotated[
        Literal["single", "independent"],
        typer.Option(help="single: a host sends or receives one message at a time; independent: links do not hinder."),
    ] = "single",
    cost: Annotated[str, typer.Option(help="What planners minimise, as in `thalweg run`.")] = "critical-path",
    view: Annotated[
        Literal["probe", "truth"],
        typer.Option(
            help="What planners know of links: what is probed and measured, or the truth, before a run and while it"
            " goes on (local decides by what hosts measured)."
        ),
    ] = "probe",
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder with bandwidth/NAME, of measured pools.", envvar="THALWEG_TRACES"),
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Package of your own whose code may be named.")] = None,
    faults: Annotated[
        int | None, typer.Option(help="Instead: so many seeded fault plans over both ways of moving.", min=1)
    ] = None,
    first_seed: Annotated[int, typer.Option(help="Seed of the first fault plan; the others follow it.", min=0)] = 1,
    replay_faults: Annotated[
        str | None, typer.Option(metavar="SEED|FILE", help="Instead: one fault plan again, of a seed or from a file.")
    ] = None,
    master: Annotated[
        str, typer.Option(help="Spark master; to a cluster the package is sent along, results come back here.")
    ] = "local[*]",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the sweep; with --faults, of the plans that fail, which alone are written.",
            show_default="runs/<name of sweep>",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate many network configurations on Spark.

    The same command on the same folder goes on where a sweep was stopped, however that happened: what is finished is
    not run again, what failed is. After a change of a planner take another folder. Exit status 1 when runs failed.

    Example: thalweg sweep --figure 6 --configurations 300 --out runs/fig6

    Your own planner (planners.py, here) beside the paper's: thalweg sweep --figure 6 --placement planners:Mine
    --out runs/mine

    What each part of thalweg brings, and what is left to gain: thalweg sweep --figure ablation --configurations 100
    --out runs/ablation

    A grid of your own: thalweg sweep --placement download-all --placement global --servers 8 --servers 16 --period 120
    --period 600 --configurations 40 --pools 2

    What goes wrong in networks, over both ways of moving: thalweg sweep --faults 1000
    """
    _check_together(context)
    if faults is not None or replay_faults is not None:
        _faults(faults, replay_faults, first_seed, out, master, as_json=as_json)
        return
    asked = _make(
        figure=figure,
        placements=placement or [],
        servers=servers or [],
        trees=tree or [],
        periods_s=period or [],
        ks=k or [],
        images=images,
        pool=pool,
        pools=min(POOLS, max(configurations, 1)) if pools is None else pools,
        first_pool=first_pool,
        configurations=configurations,
        traces=traces,
        parameters={"interface": interface, "cost": cost, "view": view, "allow": list(allow or [])},
    )
    outcome = _run(asked, out or Path("runs") / asked.id, master)
    _print(asked, outcome, as_json=as_json)


def _check_together(context: typer.Context) -> None:
    """Raise UsageError for an option of one kind of sweep that is given with another kind."""
    given = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and _is_given(context, parameter.name)
    }
    if "faults" in given and "replay_faults" in given:
        raise UsageError("--faults and --replay-faults do not go together; leave one away")
    for kind, takes in TAKEN.items():
        if kind in given:
            for name, option in given.items():
                if name != kind and name not in takes:
                    raise UsageError(f"{option} does not go with {given[kind]}; leave one away")
            return
    if "first_seed" in given:
        raise UsageError("--first-seed goes with --faults; the seed of the first pool is --first-pool")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _make(*, figure: str | None, placements: list[str], pool: str, traces: Path | None, **more: Any) -> Sweep:
    """The sweep that was asked for. What is given of the grid replaces that of the figure, but placements are added."""
    from thalweg.experiments.papers.ranganathan1998.definitions import FIGURES, OURS, PLACEMENTS, Grid
    from thalweg.experiments.runs.launcher import versions
    from thalweg.experiments.runs.own_code import find_own_code
    from thalweg.experiments.sweeps.sweep import GENERATED, Sweep

    if figure is not None and figure not in FIGURES:
        raise UsageError(f"--figure is {figure}; there are {', '.join(FIGURES)}")
    own = Grid(placements=tuple(dict.fromkeys(placements)) or (*PLACEMENTS, *OURS))
    grid = own if figure is None else FIGURES[figure].grid(*placements)
    find_own_code((*grid.placements, more["parameters"]["cost"]))
    given_periods = bool(more["periods_s"])
    of_grid = {
        "servers": grid.servers,
        "trees": grid.trees,
        "periods_s": [period for period in grid.periods_s if period is not None],
        "ks": [k for k in grid.ks if k is not None],
    }
    given = {name: list(dict.fromkeys(more.pop(name) or values)) for name, values in of_grid.items()}
    folder = None if traces is None or pool in GENERATED else os.path.abspath(traces)
    tree = {
        "figure": figure,
        "placements": grid.placements,
        "pool": _pool(pool, folder),
        "traces": folder,
        "versions": versions(),
        "own_periods_s": () if given_periods else grid.own_periods_s,
        "variants": grid.variants,
        **given,
        **more,
    }
    try:
        return msgspec.convert(tree, Sweep)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option does not fit: {error}; see thalweg sweep --help") from None


def _pool(name: str, traces: str | None) -> str:
    """A pool's name, or the absolute path of a folder: executors have another working directory."""
    if name in ("paper", "regions", "real"):
        return name
    roots = () if traces is None or os.path.basename(name) != name else (os.path.join(traces, "bandwidth"), traces)
    if any(os.path.isdir(os.path.join(root, name)) for root in roots):
        return name
    return os.path.abspath(name) if os.path.exists(name) else name


def _faults(
    count: int | None, replayed: str | None, first_seed: int, out: Path | None, master: str, *, as_json: bool
) -> None:
    """Fault plans are a matter of their own: they print what came out and return the exit status."""
    from thalweg.experiments.faults.sweep import replay, run_faults

    if replayed is not None:
        status = replay(replayed, as_json=as_json)
    else:
        assert count is not None
        status = run_faults(count, first_seed=first_seed, out=out, master=master, as_json=as_json, progress=progress)
    if status:
        raise typer.Exit(status)


def _run(asked: Sweep, folder: Path, master: str) -> SweepOutcome:
    """Run it with a progress bar; an interrupt is said in one line."""
    from thalweg.experiments.cli.main import Stopped
    from thalweg.experiments.sweeps.sweep import run_sweep

    reached = 0, 0

    def followed(what: str, done: int, total: int) -> None:
        nonlocal reached
        reached = done, total
        tell(what, done, total)

    try:
        with progress() as tell:
            return run_sweep(asked, folder, master=master, tell=followed)
    except (Stopped, KeyboardInterrupt) as stopped:
        number = getattr(stopped, "number", 2)
        done, total = reached
        kept = f"{done} of {total} results are kept in {folder}; the same command resumes" if total else "nothing ran"
        print(f"thalweg: stopped by {'SIGTERM' if number == 15 else 'SIGINT'}; {kept}", file=sys.stderr)
        raise typer.Exit(128 + number) from None


def _print(asked: Sweep, outcome: SweepOutcome, *, as_json: bool) -> None:
    from thalweg.experiments.sweeps.sweep import load_results, summarize

    results = summarize(asked, load_results(outcome.folder))
    if as_json:
        for note in outcome.notes:
            print(f"note: {note}", file=sys.stderr)
        said = {
            "sweep": outcome.sweep,
            "out": str(outcome.folder),
            "runs": outcome.runs,
            "done": outcome.done,
            "failed": outcome.failed,
            "skipped": outcome.skipped,
            "wall_s": round(outcome.wall_s, 3),
            "placements": results,
        }
        print_json(said)
    else:
        _table(asked, outcome, results)
    end(_failures(outcome))


def _table(asked: Sweep, outcome: SweepOutcome, results: dict[str, PlacementResult]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from thalweg.experiments.views.tables import NONE, seconds

    drawn = f"{counted(asked.configurations, 'configuration')} of {counted(asked.pools, 'pool')} ({asked.pool})"
    title = f"{outcome.sweep}: {drawn}"
    table = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("placement", overflow="fold")
    for name in ("runs", "failed", "mean s", "median speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, result in results.items():
        speedup = NONE if result.median_speedup is None else f"{result.median_speedup:.2f}"
        failed = Text(str(result.failed), "bold red" if result.failed else "")
        table.add_row(Text(label), str(result.runs), failed, seconds(result.mean_interarrival_s), speedup)
    output().print(table)
    for note in outcome.notes:
        print(f"note: {note}")
    were = "was" if outcome.skipped == 1 else "were"
    there = f"{outcome.skipped} of them {were} there already"
    print(f"{counted(outcome.runs, 'run')} in {seconds(outcome.wall_s)} s, {there}")
    print(f"results: {outcome.folder}{os.sep}")
    print(f"next: thalweg report {outcome.folder}")


def _failures(outcome: SweepOutcome) -> list[str]:
    """A line for each reason; the rarest are only counted when there are very many."""
    runs = counted(outcome.runs, "run")
    lines = [f"{count} of {runs} failed: {reason}" for reason, count in outcome.reasons.items()]
    if len(lines) > REASONS:
        rest = sum(list(outcome.reasons.values())[REASONS:])
        others = counted(len(lines) - REASONS, "other reason")
        lines[REASONS:] = [f"{rest} of {runs} failed for {others}; see column failed"]
    return lines
