"""``thalweg testbed report``: the history of a testbed, as a page and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.emulation.links.units import format_size
from thalweg.emulation.wan import Testbed
from thalweg.experiments.cli.console import JsonOption, say
from thalweg.experiments.cli.testbed.exec import IdOption
from thalweg.middleware.errors import counted, require


def report(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write into. It may exist.")] = Path(
        "testbed-report"
    ),
    last: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only what went on in the last 30s, 5min, 2h.", show_default="everything"),
    ] = None,
    title: Annotated[str, typer.Option(metavar="WORDS", help="Title of the page.", show_default="the testbed")] = "",
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
    identity: IdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of all that went on in a testbed.

    The page `index.html` has a time line of cuts, changes and processes, the asked and the delivered rate of each link,
    and the last lines of processes that failed. The page is self-contained. The Parquet files beside the page have the
    same figures. The testbed stays up.

    Example: thalweg testbed report --out report

    Of the last five minutes: thalweg testbed report --last 5min
    """
    require("pyarrow", "jinja2")
    from thalweg.emulation.reports.tables import SCHEMAS  # imports pyarrow, which may be missing

    with Testbed.attach(identity) as bed:
        page = bed.report(out, last=last, title=title)
    files, size_bytes = sorted(str(page.with_name(name)) for name in SCHEMAS), page.stat().st_size
    answer = {"id": bed.id, "report": str(page), "tables": files, "size_bytes": size_bytes}
    say(as_json, answer, f"report: {page} ({format_size(size_bytes)}), and {counted(len(files), 'table')} beside it")
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
