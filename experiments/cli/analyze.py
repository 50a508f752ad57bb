"""``thalweg analyze``: tables and plots of run folders, and figures of sweeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from thalweg.experiments.cli.console import JsonOption, end, print_json, spinner
from thalweg.experiments.command import PLOT_LIBRARIES
from thalweg.middleware.errors import UsageError, counted, require

if TYPE_CHECKING:
    from thalweg.experiments.records.aggregates import RunsSummary
    from thalweg.experiments.records.records import RunInfo


def analyze(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDERS…",
            help="Folders that `thalweg run` or `thalweg sweep` wrote, all of one kind.",
            show_default=False,
        ),
    ],
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark master. A cluster's workers need the folders under the same path, and the same Python.",
            show_default="local[*]; none for one run folder",
        ),
    ] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the pictures of each run.")] = True,
    moves: Annotated[bool, typer.Option("--moves", help="List every move: operator, hosts, time and reason.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make tables and plots of run folders, or the figures of sweeps.

    Sweeps and several run folders are analysed on Spark, which needs Java 17 or newer. One run folder is analysed in
    this process, with the same figures and several times as fast. Name a --master to have it on Spark.

    A run folder gets plots/*.png and summary.json. A sweep's folder gets plots/*.png and figures.json. For a single
    run, the last lines say in words what happened, and where the pictures are. The exit status is 1 if a run lost,
    repeated or reordered images, or if its images differ from its reference. It is also 1 if a simulation of a sweep
    failed.

    Example: thalweg analyze runs/a runs/b

    Every move of a run: thalweg analyze runs/a --moves --no-plots

    The figures of a sweep, with a verdict for each claim of the paper: thalweg analyze runs/fig6
    """
    require("pyarrow", *(PLOT_LIBRARIES if plots else ()))
    from thalweg.experiments.records.aggregates import load_runs
    from thalweg.experiments.records.analysis import failures
    from thalweg.experiments.records.records import RUN_TOML
    from thalweg.experiments.records.spark import LOCAL, check_master, require_spark
    from thalweg.experiments.sweeps.results import SWEEP_TOML, neither

    if master is not None:
        check_master(master)
    sweeps = [folder for folder in folders if (folder / SWEEP_TOML).is_file()]
    if sweeps:
        if len(sweeps) < len(folders):
            raise UsageError(
                f"{sweeps[0]} is a sweep and other folders are not; analyse them apart, or use thalweg report"
            )
        require_spark()
        _sweeps(sweeps, master or LOCAL, plots=plots, as_json=as_json)
        return
    for folder in folders:
        if not (folder / RUN_TOML).is_file():
            raise UsageError(neither(folder))
    runs = load_runs(folders)
    if len(runs) > 1 or master is not None:
        require_spark()
    result, pictures = _work(runs, master, plots)
    if as_json:
        print((result.with_moves() if moves else result).to_json().decode())
    else:
        _print(result, runs, pictures, all_moves=moves)
    end(line for summary in result.runs for line in failures(summary))


def _sweeps(folders: list[Path], master: str, *, plots: bool, as_json: bool) -> None:
    from thalweg.experiments.papers.aggregation import FIGURES_JSON, aggregate
    from thalweg.experiments.papers.plots import plot_figures
    from thalweg.experiments.papers.tables import print_figures
    from thalweg.experiments.records.spark import session

    with spinner(f"analysing {counted(len(folders), 'sweep')}"), session(master) as spark:
        figures = {folder: aggregate(spark, folder) for folder in folders}
    pictures = {folder: plot_figures(data, folder) for folder, data in figures.items()} if plots else {}
    if as_json:
        rows = [{"out": str(folder), "figures": data} for folder, data in figures.items()]
        print_json({"sweeps": rows})
    else:
        for folder, data in figures.items():
            print_figures(data)
            drawn = pictures.get(folder)
            print(f"figures: {folder / FIGURES_JSON}" + (f"   plots: {drawn[0].parent}{os.sep}" if drawn else ""))
    failed = sum(data.failed for data in figures.values())
    end([f"{counted(failed, 'simulation')} failed"] if failed else [])


def _work(runs: Mapping[Path, RunInfo], master: str | None, plots: bool) -> tuple[RunsSummary, dict[Path, list[Path]]]:
    """Summarise the runs while a thread draws their pictures, and write every summary."""
    from thalweg.experiments.records.analysis import write_summary
    from thalweg.experiments.views.plots import plot_run

    stop = Event()
    with ThreadPoolExecutor(1) as pool, spinner(f"analysing {counted(len(runs), 'run')}"):
        drawing = {folder: pool.submit(plot_run, folder, info, stop) for folder, info in runs.items() if plots}
        try:
            result = _summarized(runs, master)
            for folder, summary in zip(runs, result.runs, strict=True):
                write_summary(folder, summary)
            return result, {folder: future.result() for folder, future in drawing.items()}
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _summarized(runs: Mapping[Path, RunInfo], master: str | None) -> RunsSummary:
    """Return the summary of the runs, made on Spark. One run without a ``master`` is summarised in this process."""
    from thalweg.experiments.records.aggregates import analyze_run, analyze_runs
    from thalweg.experiments.records.spark import LOCAL, session

    if len(runs) == 1 and master is None:
        ((folder, info),) = runs.items()
        return analyze_run(folder, info)
    with session(master or LOCAL) as spark:
        return analyze_runs(spark, runs)


def _print(
    found: RunsSummary,
    runs: Mapping[Path, RunInfo],
    pictures: Mapping[Path, list[Path]],
    *,
    all_moves: bool,
) -> None:
    from thalweg.experiments.records.records import SUMMARY
    from thalweg.experiments.views.tables import print_runs, seen_lines

    print_runs(found, all_moves=all_moves)
    missing = {run.out: run.missing for run in found.runs}
    for folder, info in runs.items():
        for note in info.notes:
            print(f"note: {folder}: {note}")
        for gap in missing.get(str(folder), ()):
            print(f"note: {folder}: {gap}")
        drawn = pictures.get(folder)
        print(f"summary: {folder / SUMMARY}" + (f"   plots: {drawn[0].parent}{os.sep}" if drawn else ""))
    for run in found.runs if len(found.runs) == 1 else ():
        print("\n".join(seen_lines(run)))
