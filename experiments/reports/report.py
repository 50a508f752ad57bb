"""Self-contained HTML page about any number of run folders and sweeps.

Files determine a folder's kind: ``run.toml`` (a run), ``sweep.toml`` (a sweep), ``comparison.json`` (simulation against
emulation). A folder of a run or sweep may also hold a comparison.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from thalweg.emulation.reports.page import sheet
from thalweg.experiments.command import Tell
from thalweg.experiments.papers.study import FigureData
from thalweg.experiments.records.aggregates import aggregate, load_runs
from thalweg.experiments.records.analysis import RunSummary, reading_log, summarize_run
from thalweg.experiments.records.comparisons import COMPARISON, Comparison, beyond, furthest, load_comparison
from thalweg.experiments.records.records import RUN_TOML, RunInfo
from thalweg.experiments.reports import sweep as report_sweep
from thalweg.experiments.reports.page import NONE, Room, from_rich, render
from thalweg.experiments.reports.run import Told, read_run, run_section
from thalweg.experiments.sweeps.results import SWEEP_TOML, neither
from thalweg.experiments.views.tables import aggregate_table, comparison_latencies, comparison_table, seconds
from thalweg.middleware.errors import UsageError, counted
from thalweg.middleware.files.writing import whole


class Report(msgspec.Struct, frozen=True):
    """Result of ``thalweg report``, as printed with ``--json``."""

    report: str
    size_bytes: int
    runs: list[RunSummary]
    sweeps: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    left_out: int  # pictures without room


class Folders(msgspec.Struct, frozen=True):
    """Folders by kind, each once, in the order given."""

    runs: dict[Path, RunInfo]
    sweeps: list[Path]
    comparisons: dict[Path, Comparison]


def look(folders: Sequence[Path]) -> Folders:
    """Return the folders by kind. Raise UsageError for the first folder of no known kind, and for a damaged folder."""
    runs: list[Path] = []
    sweeps: list[Path] = []
    compared: dict[Path, Comparison] = {}
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        is_run, is_sweep = (folder / RUN_TOML).is_file(), (folder / SWEEP_TOML).is_file()
        if (folder / COMPARISON).is_file():
            compared[folder] = load_comparison(folder / COMPARISON)
        elif not is_run and not is_sweep:
            raise UsageError(neither(folder))
        if is_run:
            runs.append(folder)
        if is_sweep:
            sweeps.append(folder)
    return Folders(load_runs(runs), sweeps, compared)


def check_out(out: Path) -> Path:
    """Return ``out`` unchanged. Raise UsageError if no file can be written there."""
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")
    near = next(path for path in (out.parent, *out.parent.parents) if path.exists())
    if not near.is_dir() or not os.access(near, os.W_OK) or (out.exists() and not os.access(out, os.W_OK)):
        raise UsageError(f"--out {out} cannot be written: {near} is not a folder of yours; choose another")
    return out


def write_report(folders: Sequence[Path], out: Path, tell: Tell = lambda what, done, total: None) -> Report:
    """Make the page and write it to ``out``, whole or not at all.

    Raises UsageError for a folder of no known kind, for damaged records, and if ``out`` cannot be written. Then nothing
    is written.
    """
    check_out(out)
    contents = look(folders)
    total = len(contents.runs) + len(contents.sweeps)
    summaries: list[RunSummary] = []
    records: list[Told] = []
    for folder, info in contents.runs.items():
        tell("reading the runs", len(summaries), len(contents.runs))
        summary, more = _read(folder, info)
        summaries.append(summary)
        records.append(more)
    figures: dict[Path, FigureData[Any]] = {}
    for folder in contents.sweeps:
        tell("reading the sweeps", len(figures), len(contents.sweeps))
        figures[folder] = report_sweep.figures_of(folder)
    room = Room()
    sweeps, runs = [], []
    for i, (folder, data) in enumerate(figures.items()):
        tell("drawing", i, total)
        sweeps.append((folder.resolve().name, report_sweep.sweep_section(folder, data, room)))
    for i, (folder, info) in enumerate(contents.runs.items()):
        tell("drawing", len(figures) + i, total)
        # the remaining room is shared evenly, so that the first run does not take all of it
        own = Room(room.left_bytes // (len(contents.runs) - i))
        granted_bytes = own.left_bytes
        runs.append((folder.resolve().name, run_section(folder, info, summaries[i], records[i], own)))
        room.left_bytes -= granted_bytes - own.left_bytes
        room.left_out += own.left_out
    text = render(
        "report.html",
        title=_title(contents),
        made=f"Made by thalweg {version('thalweg')} on {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC.",
        compared=_compared_runs(contents.runs, summaries) if len(summaries) > 1 else None,
        sweeps=sweeps,
        runs=runs,
        comparisons=[_comparison(folder, comparison) for folder, comparison in contents.comparisons.items()],
    )
    return Report(
        report=str(out),
        size_bytes=_write(out, text),
        runs=summaries,
        sweeps=[_told(folder, data) for folder, data in figures.items()],
        comparisons=[_told(folder, comparison) for folder, comparison in contents.comparisons.items()],
        left_out=room.left_out,
    )


def _read(folder: Path, info: RunInfo) -> tuple[RunSummary, Told]:
    """Return a run's figures and the further records for the page. Raise UsageError for a damaged log."""
    with reading_log(folder):
        return summarize_run(folder), read_run(folder, info)


def _write(out: Path, text: str) -> int:
    data = text.encode("utf-8", "replace")  # a path may have bytes that are no text
    with whole(out, "choose another", error=UsageError, option="--out") as part:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
    return len(data)


# --- parts about several folders --------------------------------------------------------------------


def _title(found: Folders) -> str:
    folders = [*found.runs, *found.sweeps, *found.comparisons]
    if len(set(folders)) == 1:
        return f"Thalweg: {folders[0].resolve().name}"
    counts = ((len(found.runs), "run"), (len(found.sweeps), "sweep"), (len(found.comparisons), "comparison"))
    return "Thalweg: " + ", ".join(counted(number, noun) for number, noun in counts if number)


def _compared_runs(runs: Mapping[Path, RunInfo], summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the aggregate of the runs, and a table of every run's mean under every placement."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.placements))
    rows = []
    for i, (folder, summary) in enumerate(zip(runs, summaries, strict=True), 1):
        link = Markup('<a href="#run-{}">{}</a>').format(i, folder.resolve().name)
        cells = [link, summary.testbed, str(summary.seed)]
        for name in names:
            row = summary.placements.get(name)
            speedup = "" if row is None or row.speedup is None else f" ({row.speedup:.2f})"
            cells.append(NONE if row is None else seconds(row.mean_interarrival_s) + speedup)
        rows.append(cells)
    caption = "Mean time between images, emulated seconds (speed-up over download-all)"
    return {
        "differ": _differ(list(runs.values())),
        "together": from_rich(aggregate_table(aggregate(summaries), len(summaries))),
        "means": sheet(caption, ["run", "testbed", "seed", *names], rows, left=2),
    }


def _differ(infos: Sequence[RunInfo]) -> str:
    """Return a warning if the runs differ in kind, so that means over the runs say little."""
    of: dict[str, Callable[[RunInfo], object]] = {
        "testbed": lambda info: info.testbed,
        "images": lambda info: info.images,
        "servers": lambda info: info.config.get("servers"),
        "mean rate of the links": lambda info: info.config.get("link_mean_bps"),
        "scenario": lambda info: info.config.get("scenario"),
    }
    names = [name for name, get in of.items() if len({str(get(info)) for info in infos}) > 1]
    return f"These runs differ in {', '.join(names)}: means over them say little." if names else ""


def _comparison(folder: Path, comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for the page: the reasons why it does not hold, and the table of ``thalweg compare``."""
    repeated = f", the median of {comparison.repeats} runs" if comparison.repeats > 1 else ""
    caption = f"Mean time between {comparison.item}s, emulated seconds; ratio: simulated by emulated{repeated}"
    return {
        "folder": folder,
        "wrong": beyond(comparison),
        "verdict": _verdict(comparison),
        "table": from_rich(comparison_table(comparison), caption),
        "latencies": from_rich(comparison_latencies(comparison), "Latency from source to sink, emulated seconds"),
        "notes": comparison.notes,
    }


def _verdict(comparison: Comparison) -> str:
    holds = "It holds" if not beyond(comparison) else "It does not hold"
    worst = furthest(comparison.rows)
    if worst is None:
        return f"{holds}: nothing can be compared, a side is missing everywhere."
    close = sum(row.is_close(comparison.limit) for row in comparison.rows)
    where = f"{worst.placement}, seed {worst.seed}, {worst.off:.1%} apart"
    wrong = comparison.failures
    went = f"; {counted(len(wrong), 'failure')} of runs, named above" if wrong else ""
    return f"{holds}: {close} of {len(comparison.rows)} within {comparison.limit:.0%}; furthest: {where}{went}."


def _told(folder: Path, what: FigureData[Any] | Comparison) -> dict[str, Any]:
    return {"out": str(folder), **msgspec.to_builtins(what)}
