"""``thalweg compare``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from thalweg.experiments.cli.console import JsonOption, end, output, print_json, progress
from thalweg.experiments.cli.options import Given, takes
from thalweg.experiments.cli.run import adopt_defaults, make_config
from thalweg.experiments.command import RUN_LIBRARIES
from thalweg.experiments.runs.config import RunConfig
from thalweg.middleware.errors import require

if TYPE_CHECKING:
    from thalweg.experiments.records.comparisons import Comparison

PLACEMENTS = ("download-all", "one-shot", "local", "global", "thalweg")
SEEDS = (1, 2, 3, 4, 5)
OPTIONS: Mapping[str, Mapping[str, Any]] = {  # of those of a run
    "workload": {},
    "servers": {"shown": "8; plates: 4"},
    "placements": {
        "help": "Placement algorithm, as in `thalweg run`; several times for several.",
        "shown": ", ".join(PLACEMENTS),
    },
    "images": {},
    "rate": {},
    "tree": {},
    "traces": {},
    "link_mean_bps": {},
    "time_scale": {"shown": "1; plates: 30"},
    "view": {
        "help": "What the first plan rests on: probe, each side's own measurements; truth, so that both sides begin"
        " with one plan."
    },
    "cost": {},
    "period_s": {},
    "hysteresis": {},
}


@takes(RunConfig, OPTIONS)
def compare(
    given: Given,
    seed: Annotated[
        list[int] | None, typer.Option(help="Repeat it for several.", show_default=", ".join(map(str, SEEDS)))
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Emulated runs of each seed: their median is compared, their spread is told.")
    ] = 3,
    limit: Annotated[float, typer.Option(help="How far a simulated mean may be from the emulated one, of it.")] = 0.08,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison.", show_default="runs/compare-<time>")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare simulation with emulation: the same seeds and traces in virtual time and on network namespaces.

    Every run's records are kept, below the folder; comparison.json there is what `thalweg report` shows. Exit status 1
    when a mean time between images, or partitions, is further off than --limit. A busy machine slows emulated hosts:
    let it be quiet, or take a lower --time-scale.

    Records with windows, and two sinks: thalweg compare --workload plates --seed 1 --repeats 1

    Example: thalweg compare --seed 1 --seed 2 --seed 3 --images 60 --time-scale 120 --link-mean 0.2mbit --out runs/cmp
    """
    require(*RUN_LIBRARIES)
    from thalweg.experiments.records.comparisons import beyond
    from thalweg.experiments.runs.compare import compare as run_both
    from thalweg.experiments.runs.launcher import execute
    from thalweg.experiments.simulation.recorded import execute_as_on_testbeds

    adopt_defaults(given)
    config = make_config({"placements": PLACEMENTS, "pictures": 0, **given}, "compare")
    where = out or Path("runs") / f"compare-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    sides = execute_as_on_testbeds, execute
    with progress() as tell:
        made = run_both(config, seed or SEEDS, where, tell, sides, limit=limit, repeats=repeats)
    _print(made, where, as_json=as_json)
    end(beyond(made))


def _print(made: Comparison, folder: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(folder), **msgspec.to_builtins(made)})
        return
    from thalweg.experiments.views.tables import comparison_latencies, comparison_table

    output().print(comparison_table(made))
    if (latencies := comparison_latencies(made)).row_count:
        output().print(latencies)
    worst = made.worst
    if worst is not None:
        print(f"furthest: {worst.placement}, seed {worst.seed}, {worst.off:.1%} apart (limit {made.limit:.0%})")
    for note in made.notes:
        print(f"note: {note}")
    print(f"records: {folder}")
    print(f"next: thalweg report {folder}")
