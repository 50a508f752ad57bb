"""A sweep's part of a report: the paper's figures, ours beside the published ones, with a verdict for each claim.

What the figures are is in ``thalweg.experiments.figures``; this only puts them on the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from thalweg.experiments.papers.ranganathan1998.ablation import gap_cells
from thalweg.experiments.papers.ranganathan1998.aggregation import FIGURES_JSON, aggregate, load_figures
from thalweg.experiments.papers.ranganathan1998.definitions import ABLATION, FigureData, FigureResult, Verdict
from thalweg.experiments.papers.ranganathan1998.tables import cells, comparison_cells, heading, ratio_cells
from thalweg.experiments.reports.page import (
    Room,
    bullets,
    encoded_bytes,
    esc,
    facts,
    fewer_colours,
    folded,
    picture,
    table,
)
from thalweg.experiments.sweeps.results import RESULTS, SWEEP_TOML
from thalweg.middleware.errors import UsageError

_GOOD = {"holds": "good", "does not hold": "bad"}


def figures_of(folder: Path) -> FigureData:
    """The figures of a sweep folder: those that were made last, or made now on Spark when these are of no use.

    They are when results came since, when they cannot be read, and when another version made them.
    """
    made, parts = folder / FIGURES_JSON, list((folder / RESULTS).glob("*.parquet"))
    if not parts and not made.is_file():
        raise UsageError(f"{folder} has no results yet; run thalweg sweep --out {folder} first")
    if made.is_file() and all(part.stat().st_mtime <= made.stat().st_mtime for part in parts):
        try:
            return load_figures(folder)
        except UsageError:
            if not parts:  # to make them from
                raise
    from thalweg.experiments.records.spark import session

    with session() as spark:
        return aggregate(spark, folder)


def pictures_of(data: FigureData) -> dict[tuple[str, str], bytes]:
    """A PNG for each figure and name of pools that has anything to show."""
    import matplotlib as mpl

    from thalweg.experiments.papers.ranganathan1998.plots import draw
    from thalweg.experiments.views.plots import STYLE

    drawn = {}
    with mpl.rc_context(dict(mpl.rcParamsDefault) | STYLE):
        for result in data.results:
            figure = draw(result)
            if figure is not None:
                out = io.BytesIO()
                figure.savefig(out, format="png")
                drawn[result.figure, result.pool] = fewer_colours(out.getvalue())
    return drawn


def sweep_section(folder: Path, data: FigureData, room: Room, anchor: str) -> str:
    """Everything about one sweep: a part for each figure and name of pools."""
    failed = f", {data.failed} of them failed" if data.failed else ""
    parts = [
        f'<section id="{esc(anchor)}"><h2>Sweep {esc(folder.resolve().name)}</h2>',
        facts([("folder", esc(folder)), ("simulations", esc(f"{data.runs}{failed}"))]),
        bullets((f"{runs} run{'s' * (runs != 1)} failed: {reason}" for reason, runs in data.failures.items()), "wrong"),
    ]
    pictures = pictures_of(data)
    for result in data.results:
        parts.append(_figure(result, pictures.get((result.figure, result.pool)), room))
    concluded = [verdict for verdict in data.conclusions if verdict.verdict != "not tested"]
    if concluded:
        parts.append(_verdicts("The paper's conclusions", concluded, lambda one: f"{one.conclusion} ({one.pool})"))
    configuration = folder / SWEEP_TOML
    try:
        text = configuration.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{configuration} cannot be read: {error}") from None
    parts.append(folded("Configuration", f"<pre>{esc(text)}</pre>"))
    return "\n".join([*(part for part in parts if part), "</section>"])


def _figure(result: FigureResult, png: bytes | None, room: Room) -> str:
    parts = [f"<h3>{esc(heading(result))}</h3><p>{esc(result.title)}. {esc(result.question)}</p>"]
    if png is not None and room.take(encoded_bytes(len(png))):
        alt = f"Figure {result.figure}: {result.title}, pool {result.pool}"
        parts.append(f'<div class="sheet">{picture(png, "png", alt)}</div>')
    caption = "thalweg with one thing changed" if result.figure == ABLATION else "Ours beside the paper's"
    parts.append(_cells(caption, *cells(result)))
    for caption, (heads, rows) in (
        ("Published values", comparison_cells(result)),
        ("On the same configurations: how many times as fast", ratio_cells(result)),
        ("What the gap to the bound is made of", gap_cells(result) if result.figure == ABLATION else ([], [])),
    ):
        if rows:
            parts.append(_cells(caption, heads, rows))
    if result.verdicts:
        parts.append(_verdicts("What the paper claims", result.verdicts, lambda one: one.text))
    parts.append(bullets(result.notes))
    return "\n".join(part for part in parts if part)


def _cells(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(caption, heads, [[esc(cell) for cell in row] for row in rows])


def _verdicts(caption: str, verdicts: Sequence[Verdict], name: Callable[[Verdict], str]) -> str:
    rows = []
    for one in verdicts:
        said = f'<span class="{_GOOD.get(one.verdict, "soft")}">{esc(one.verdict)}</span>'
        detail = one.detail if name(one) == one.text else f"{one.text} – {one.detail}" if one.detail else one.text
        pools = "" if one.pools_holding is None else f"{one.pools_holding} of {one.pools}"
        how = f'<div class="soft">{esc(one.how)}</div>' if one.how else ""
        rows.append([esc(name(one)) + how, said, esc(detail), esc(pools)])
    return table(caption, ["claim", "verdict", "numbers", "in pools"], rows, left=4)
