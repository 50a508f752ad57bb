"""Text of a paper's figures: our results beside the paper's, verdicts, and notes for the reader."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.experiments.papers.study import Column, FigureData, FigureResult, Pooled, Ratio, Row, Verdict, spread
from thalweg.experiments.views.tables import FIGURE, NONE, TEXT, framed
from thalweg.middleware.errors import counted

Result = FigureResult[Any, Any]
Cells = tuple[list[str], list[list[str]]]
_STYLES = {"holds": "green", "does not hold": "bold red", "not shown": "yellow", "not tested": "dim"}


def text(value: Pooled | None, digits: int, unit: str = "") -> str:
    """Return mean and spread as text for a cell."""
    return NONE if value is None else spread(value, digits, unit)


def mean(value: Pooled | None, digits: int, factor: float = 1.0) -> str:
    """Return the mean alone, times ``factor``, as text."""
    return NONE if value is None else f"{value.mean * factor:.{digits}f}"


def published(row: Row[Any], result: Result) -> str:
    """Return the paper's level of a row's arm as text."""
    of = next(
        (comparison for comparison in result.comparisons if comparison.unit and comparison.name == row.label), None
    )
    return NONE if of is None else f"{of.paper:g}"


def finished(row: Row[Any], result: Result) -> str:
    """Return the number of finished runs, with the number of all runs if some failed or are missing."""
    return f"{row.runs - row.failed}/{row.runs + row.missing}" if row.failed or row.missing else str(row.runs)


def cells(result: Result) -> Cells:
    """Return heads and rows of a figure's table."""
    columns = [column for column in result.definition.columns if column.shown(result)]
    rows = [[_cell(column, row, result) for column in columns] for row in result.definition.ordered(result)]
    return [column.head for column in columns], rows


def _cell(column: Column, row: Row[Any], result: Result) -> str:
    if isinstance(column.cell, str):
        return text(row.value(column.cell), column.digits)
    return column.cell(row, result)


def ratio_cells(result: Result) -> Cells:
    """Return heads and rows of the figure's comparisons of arms on the same configurations."""
    paper = {comparison.name: comparison for comparison in result.comparisons if not comparison.unit}
    heads = ["own over other", "median", *(["paper"] if paper else []), "of means", "faster on", "as fast on"]
    rows = []
    for ratio in filter(result.definition.told, result.ratios):
        name = pair_label(result, ratio)
        of = paper.get(name)
        rows.append(
            [
                name,
                text(ratio.median, 2),
                *([NONE if of is None else f"{of.paper:.2f}"] if paper else []),
                text(ratio.mean, 2),
                f"{ratio.faster.mean:.0%}",
                f"{ratio.tied:.0%}",
            ]
        )
    return heads, rows


def pair_label(result: Result, ratio: Ratio[Any]) -> str:
    """Return a text like ``global over local``, ``global over local, 16 servers`` or ``local, k = 3 over k = 0``."""
    own, other = (result.study.label(result.definition, arm) for arm in (ratio.own, ratio.other))
    if ratio.own.series == ratio.other.series:
        return f"{own} over {other.removeprefix(ratio.other.series).removeprefix(', ')}"
    return f"{ratio.own.series} over {other}"


def comparison_cells(result: Result) -> Cells:
    """Return heads and rows of the published values: the paper's, ours, the ratio, the accepted range."""
    rows = []
    for value in result.comparisons:
        digits, unit = (1, f" {value.unit}") if value.unit else (2, "")
        accept = NONE if value.accept is None else f"{value.accept[0]:.{digits}f} to {value.accept[1]:.{digits}f}{unit}"
        within = NONE if value.within is None else "yes" if value.within else "no"
        ratio = NONE if value.ratio is None else f"{value.ratio:.2f}"
        rows.append(
            [value.name, f"{value.paper:.{digits}f}{unit}", text(value.ours, digits, unit), ratio, accept, within]
        )
    return ["figure", "paper", "ours", "ratio", "accepted", "within"], rows


def table(result: Result) -> Table:
    """Return our results beside the paper's, one row per arm, for a terminal of 80 columns."""
    return _rich(f"{heading(result)}: {result.title}", *cells(result))


def heading(result: Result) -> str:
    """Return a figure's name, pools and size, like ``Fig. 6, 10 pools paper, 300 configurations``."""
    pools = f"{result.pools} pools {result.pool}" if result.pools > 1 else f"one pool {result.pool}"
    return f"{result.definition.name}, {pools}, {counted(result.expected, 'configuration')}"


def verdict_line(verdict: Verdict) -> str:
    """Return a line like ``holds: "the claim" – the numbers – in 9 of 10 pools``."""
    pools = "" if verdict.pools_holding is None else f" – in {verdict.pools_holding} of {verdict.pools} pools"
    return f"{verdict.verdict}: “{verdict.text}” – {verdict.detail}{pools}"


def print_figures(data: FigureData[Any], console: Console | None = None) -> None:
    """Print every figure's tables, verdicts and notes, then the paper's conclusions (``console``: standard output)."""
    console = console or Console(highlight=False, soft_wrap=False)
    for result in data.results:
        _print_figure(result, console)
    for reason, runs in data.failures.items():
        console.print(Text(f"failed, {counted(runs, 'run')}: {reason}", "bold red"), soft_wrap=True)
    for verdict in data.conclusions:
        if verdict.verdict != "not tested":
            line = f"conclusion {verdict.conclusion} ({verdict.pool}): {verdict.verdict}: {verdict.text}"
            console.print(Text(line, _STYLES[verdict.verdict]), soft_wrap=True)
    if feet := _footnotes(data):
        console.print(Text("; ".join(feet), "dim"), soft_wrap=True)


def _print_figure(result: Result, console: Console) -> None:
    """Print the tables, verdicts and notes of a figure."""
    console.print(table(result))
    heads, rows = ratio_cells(result)
    if rows:
        console.print(_rich("on the same configurations", heads, rows))
    for caption, of in result.definition.tables:
        console.print(_rich(caption, *of(result)))
    for verdict in result.verdicts:
        console.print(Text(verdict_line(verdict), _STYLES[verdict.verdict]), soft_wrap=True)
    for note in result.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    console.print()


def _footnotes(data: FigureData[Any]) -> list[str]:
    """Return the explanations of the signs and marks in the tables."""
    feet = ["±: standard deviation between pools"] if any(result.pools > 1 for result in data.results) else []
    if any(result.verdicts for result in data.results):
        feet.append("how each claim is decided: thalweg report, or figures.json")
    for mark, says in dict(
        mark_meaning for result in data.results for mark_meaning in result.study.marks.items()
    ).items():
        if any(cell.endswith(mark) for result in data.results for row in cells(result)[1] for cell in row):
            feet.append(f"{mark}: {says}")
    return feet


def _rich(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    broken = [_broken(head, [row[at] for row in rows]) for at, head in enumerate(heads) if at]
    grid = framed(title, {heads[0]: TEXT} | dict.fromkeys(broken, FIGURE), padding=(0, 1, 0, 0))
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _broken(head: str, column: Sequence[str]) -> str:
    """Return a head in lines no longer than its cells or its longest word, to leave room for the names of rows."""
    return "\n".join(textwrap.wrap(head, max(map(len, column), default=1) or 1, break_long_words=False))
