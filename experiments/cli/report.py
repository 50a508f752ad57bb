"""``thalweg report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.experiments.cli.console import JsonOption, print_json, progress
from thalweg.experiments.command import PAGE_LIBRARIES, counted
from thalweg.middleware.errors import require


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders and sweep folders, in any order.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The page; one of that name is replaced.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Show it in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """One HTML page about runs and sweeps: tables, plots, placements over time, link proofs, composed pictures.

    The page needs nothing but itself: it fetches nothing, and can be read without its script. Plots that `analyze` has
    drawn are taken; others are drawn, and nothing is written into run folders. A sweep whose figures are not up to
    date is aggregated on Spark.

    Example: thalweg report runs/a runs/b --out report.html

    The paper's figures: thalweg report runs/fig6
    """
    require(*PAGE_LIBRARIES)
    from thalweg.experiments.reports.report import write_report
    from thalweg.experiments.views.tables import size

    with progress() as tell:
        made = write_report(folders, out, tell)
    if as_json:
        print_json(made)
    else:
        counts = ((len(made.runs), "run"), (len(made.sweeps), "sweep"), (len(made.comparisons), "comparison"))
        what = ", ".join(counted(number, name) for number, name in counts if number)
        print(f"report: {made.report} ({size(made.size_bytes)}): {what}")
        if made.left_out:
            print(f"note: {made.left_out} pictures were left out to keep the page small")
    if open_it:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
