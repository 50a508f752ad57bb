"""``thalweg report``: one HTML page about runs and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.emulation.links.units import format_size
from thalweg.experiments.cli.console import JsonOption, print_json, progress
from thalweg.experiments.command import PAGE_LIBRARIES
from thalweg.middleware.errors import counted, require


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDERS…", help="Run folders and sweep folders, in any order.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write. It may exist.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page about any number of runs and sweeps.

    The page has tables, plots, placements over time, proofs of links, and composed pictures. It is self-contained, and
    can be read without its script. Plots that `thalweg analyze` has drawn are used. Missing plots are drawn, and
    nothing is written into run folders. A sweep whose figures are out of date is aggregated on Spark.

    Example: thalweg report runs/a runs/b --out report.html

    The figures of a sweep: thalweg report runs/fig6
    """
    require(*PAGE_LIBRARIES)
    from thalweg.experiments.reports.report import write_report

    with progress() as tell:
        page = write_report(folders, out, tell)
    if as_json:
        print_json(page)
    else:
        counts = ((len(page.runs), "run"), (len(page.sweeps), "sweep"), (len(page.comparisons), "comparison"))
        contents = ", ".join(counted(number, name) for number, name in counts if number)
        print(f"report: {page.report} ({format_size(page.size_bytes)}): {contents}")
        if page.left_out:
            print(f"note: {page.left_out} pictures were left out to keep the page small")
    if open_it:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
