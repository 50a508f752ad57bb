"""``thalweg compare``: simulated runs beside emulated runs of the same seeds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from thalweg.experiments.cli.console import JsonOption, end, output, print_json, progress
from thalweg.experiments.cli.options import Given, number, takes
from thalweg.experiments.cli.run import adopt_defaults, make_config
from thalweg.experiments.command import RUN_LIBRARIES
from thalweg.experiments.names import free_placement_names
from thalweg.experiments.run_config import PLANNED, WORKLOADS, RunConfig
from thalweg.middleware.errors import require

if TYPE_CHECKING:
    from thalweg.experiments.records.comparisons import Comparison

PLACEMENTS = ("download-all", "one-shot", "local", "global", "thalweg")
SEEDS = (1, 2, 3, 4, 5)


def compared_workloads() -> dict[str, str]:
    """Return the workloads that need no plan file."""
    return {name: meaning for name, meaning in WORKLOADS.items() if name != PLANNED}


OPTIONS: Mapping[str, Mapping[str, Any]] = {  # the options of a run that compare has, with changes
    "workload": {"names": compared_workloads},
    "servers": {"shown": "8; plates: 4"},
    "placements": {"names": free_placement_names, "shown": ", ".join(PLACEMENTS)},
    "images": {},
    "rate": {},
    "tree": {},
    "traces": {},
    "link_mean_bps": {},
    "time_scale": {"shown": "1; plates: 30"},
    "view": {
        "help": "Rates that the first plan is made from. probe: the measurements of each side. truth: the true rates,"
        " so that both sides begin with the same plan.",
        "common": True,
    },
    "cost": {},
    "period_s": {},
    "hysteresis": {},
}


@takes(RunConfig, OPTIONS)
def compare(
    given: Given,
    seed: Annotated[list[int] | None, number(int, "--seed", "Seed.", show_default=", ".join(map(str, SEEDS)))] = None,
    repeats: Annotated[
        int, number(int, "--repeats", "Emulated runs of each seed. Their median is compared, and their spread shown.")
    ] = 3,
    limit: Annotated[
        float, number(float, "--limit", "Largest difference of a simulated mean, as a share of the emulated one.")
    ] = 0.08,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the comparison.", show_default="runs/compare-<time>"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare simulated runs with emulated runs of the same seeds.

    The same traces are used in virtual time and on network namespaces. The records of every run are kept in the
    folder, and `thalweg report` shows its comparison.json. The exit status is 1 if a mean time between images (plates:
    partitions) differs by more than --limit. A busy machine slows emulated hosts: use a quiet one, or a lower
    --time-scale.

    Example: thalweg compare --seed 1 --seed 2 --seed 3 --images 60 --time-scale 120 --link-mean 0.2mbit --out runs/cmp

    Records with windows, and two sinks: thalweg compare --workload plates --seed 1 --repeats 1
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
        comparison = run_both(config, seed or SEEDS, where, tell, sides, limit=limit, repeats=repeats)
    _print(comparison, where, as_json=as_json)
    end(beyond(comparison))


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
