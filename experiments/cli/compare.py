"""``thalweg compare``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from thalweg.experiments.cli.console import JsonOption, end, output, print_json, progress
from thalweg.experiments.runs.config import RunConfig

if TYPE_CHECKING:
    from thalweg.experiments.records.comparisons import Comparison

PLACEMENTS = ("download-all", "one-shot", "local", "global")
_DEFAULT = RunConfig()


def compare(
    servers: Annotated[int, typer.Option(help="Image servers, beside the client.")] = _DEFAULT.servers,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            help="Placement algorithm, as in `thalweg run`; several times for several.",
            show_default=", ".join(PLACEMENTS),
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Composites to deliver under each placement.")] = _DEFAULT.images,
    seed: Annotated[list[int] | None, typer.Option(help="Repeat it for several.", show_default="1")] = None,
    repeats: Annotated[
        int, typer.Option(help="Emulated runs of each seed: their median is compared, their spread is told.")
    ] = 1,
    tree: Annotated[str, typer.Option(help="Order of combination: binary, left-deep, star.")] = _DEFAULT.tree,
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
        float, typer.Option(help="Emulated seconds per second: rates × N, periods ÷ N.")
    ] = _DEFAULT.time_scale,
    view: Annotated[
        Literal["probe", "truth"],
        typer.Option(
            help="What the first plan rests on: probe, each side's own measurements; truth, so that both sides begin"
            " with one plan."
        ),
    ] = "probe",
    cost: Annotated[
        str, typer.Option(help="What planners minimise: expected-period, period, or critical-path.")
    ] = _DEFAULT.cost,
    period: Annotated[
        float | None,
        typer.Option(help="Emulated seconds between decisions of global and local.", show_default="600"),
    ] = None,
    hysteresis: Annotated[
        float | None,
        typer.Option(
            help="Global and local: move when the gain of a period exceeds this many times the move's cost.",
            show_default="0",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(help="How far a simulated mean may be from the emulated one, of it.")] = 0.1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison.", show_default="runs/compare-<time>")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare simulation with emulation: the same seeds and traces in virtual time and on network namespaces.

    Every run's records are kept, below the folder; comparison.json there is what `thalweg report` shows. Exit status 1
    when a mean time between images is further off than --limit. A busy machine slows emulated hosts: let it be quiet,
    or take a lower --time-scale.

    Example: thalweg compare --seed 1 --seed 2 --seed 3 --images 60 --time-scale 120 --link-mean 0.2mbit --out runs/cmp
    """
    from thalweg.experiments.cli.run import make_config, pool_folder
    from thalweg.experiments.records.comparisons import beyond
    from thalweg.experiments.runs.compare import compare as run_both

    options = {
        "servers": servers,
        "placements": tuple(placement or PLACEMENTS),
        "images": images,
        "tree": tree,
        "traces": None if traces is None else str(pool_folder(traces)),
        "link_mean_bps": None if link_mean is None else _rate(link_mean),
        "time_scale": time_scale,
        "view": view,
        "cost": cost,
        "period_s": period,
        "hysteresis": hysteresis,
        "pictures": 0,
    }
    config = make_config(options)
    where = out or Path("runs") / f"compare-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    with progress() as tell:
        made = run_both(config, seed or [1], where, tell, limit=limit, repeats=repeats)
    _print(made, where, as_json=as_json)
    end(beyond(made))


def _rate(text: str) -> float:
    from thalweg.emulation.units import parse_rate

    return parse_rate(text)


def _print(made: Comparison, folder: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(folder), **msgspec.to_builtins(made)})
        return
    from thalweg.experiments.records.comparisons import comparison_table

    output().print(comparison_table(made))
    worst = made.worst
    if worst is not None:
        print(f"furthest: {worst.placement}, seed {worst.seed}, {worst.off:.1%} apart (limit {made.limit:.0%})")
    for note in made.notes:
        print(f"note: {note}")
    print(f"records: {folder}")
    print(f"next: thalweg report {folder}")
