"""Part of a report about a sweep: our figures beside the paper's published figures, with a verdict for each claim.

``thalweg.experiments.papers`` makes the figures. This module only puts them on the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from thalweg.emulation.reports.page import sheet
from thalweg.experiments.papers.aggregation import FIGURES_JSON, aggregate, load_figures
from thalweg.experiments.papers.plots import draw
from thalweg.experiments.papers.study import FigureData, FigureResult, Verdict
from thalweg.experiments.papers.tables import cells, comparison_cells, heading, ratio_cells
from thalweg.experiments.reports.page import Picture, Room, fewer_colours, render
from thalweg.experiments.sweeps.results import RESULTS, SWEEP_TOML
from thalweg.experiments.views.style import styled
from thalweg.middleware.errors import UsageError, counted
from thalweg.middleware.files.reading import read_bounded, reason


def figures_of(folder: Path) -> FigureData[Any]:
    """Return the figures of a sweep folder.

    Saved figures are used unless results are newer, or the file is unreadable or of a different version. Otherwise
    Spark makes the figures now. Raises UsageError if the folder has no results.
    """
    figures, parts = folder / FIGURES_JSON, list((folder / RESULTS).glob("*.parquet"))
    if not parts and not figures.is_file():
        raise UsageError(f"{folder} has no results yet; run thalweg sweep --out {folder} first")
    if figures.is_file() and all(part.stat().st_mtime <= figures.stat().st_mtime for part in parts):
        try:
            return load_figures(folder)
        except UsageError:
            if not parts:  # without results, new figures cannot be made
                raise
    from thalweg.experiments.records.spark import session

    with session() as spark:
        return aggregate(spark, folder)


def pictures_of(data: FigureData[Any]) -> dict[tuple[str, str], bytes]:
    """Return a PNG for each figure and name of pools that has something to show."""
    drawn = {}
    with styled():
        for result in data.results:
            figure = draw(result)
            if figure is not None:
                out = io.BytesIO()
                figure.savefig(out, format="png")
                drawn[result.figure, result.pool] = fewer_colours(out.getvalue())
    return drawn


def sweep_section(folder: Path, data: FigureData[Any], room: Room) -> Markup:
    """Return the section about a sweep, with a part for each figure and name of pools."""
    pictures = pictures_of(data)
    concluded = [verdict for verdict in data.conclusions if verdict.verdict != "not tested"]
    file = folder / SWEEP_TOML
    try:
        configuration = read_bounded(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}") from None
    return render(
        "sweep.html",
        name=folder.resolve().name,
        head=[
            ("folder", folder),
            ("simulations", f"{data.runs}{f', {data.failed} of them failed' if data.failed else ''}"),
        ],
        wrong=[f"{counted(runs, 'run')} failed: {reason}" for reason, runs in data.failures.items()],
        figures=[_figure(result, pictures.get((result.figure, result.pool)), room) for result in data.results],
        concluded=list(_verdicts(concluded, lambda one: f"{one.conclusion} ({one.pool})")),
        configuration=configuration,
    )


def _figure(result: FigureResult[Any, Any], png: bytes | None, room: Room) -> dict[str, Any]:
    alt = f"Figure {result.figure}: {result.title}, pool {result.pool}"
    own = result.definition.caption
    tables = [
        (own, cells(result)),
        ("Published values", comparison_cells(result)),
        ("On the same configurations: how many times as fast", ratio_cells(result)),
        *((caption[0].upper() + caption[1:], of(result)) for caption, of in result.definition.tables),
    ]
    return {
        "heading": heading(result),
        "text": f"{result.title}. {result.question}",
        "picture": Picture(png, "png", alt) if png is not None and room.take(png) else None,
        "tables": [sheet(caption, *table) for caption, table in tables if caption == own or table[1]],
        "verdicts": list(_verdicts(result.verdicts, lambda one: one.text)),
        "notes": result.notes,
    }


def _verdicts(verdicts: Sequence[Verdict], name: Callable[[Verdict], str]) -> Iterator[dict[str, str]]:
    for row in verdicts:
        detail = row.detail if name(row) == row.text else f"{row.text} – {row.detail}" if row.detail else row.text
        pools = "" if row.pools_holding is None else f"{row.pools_holding} of {row.pools}"
        yield {"name": name(row), "how": row.how, "verdict": row.verdict, "detail": detail, "pools": pools}
