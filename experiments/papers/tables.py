"""A paper's figures as text: ours beside the paper's, the verdicts, what the reader must know."""

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
    """Mean and spread, for a cell."""
    return NONE if value is None else spread(value, digits, unit)


def mean(value: Pooled | None, digits: int, factor: float = 1.0) -> str:
    """The mean alone, times ``factor``."""
    return NONE if value is None else f"{value.mean * factor:.{digits}f}"


def published(row: Row[Any], result: Result) -> str:
    """The paper's level of a row's arm."""
    of = next((one for one in result.comparisons if one.unit and one.name == row.label), None)
    return NONE if of is None else f"{of.paper:g}"


def finished(row: Row[Any], result: Result) -> str:
    """How many runs of a row there are; where some failed or are missing, of how many."""
    return f"{row.runs - row.failed}/{row.runs + row.missing}" if row.failed or row.missing else str(row.runs)


def cells(result: Result) -> Cells:
    """Heads and rows of a figure's table, as text."""
    columns = [column for column in result.definition.columns if column.shown(result)]
    rows = [[_cell(column, row, result) for column in columns] for row in result.definition.ordered(result)]
    return [column.head for column in columns], rows


def _cell(column: Column, row: Row[Any], result: Result) -> str:
    if isinstance(column.cell, str):
        return text(row.value(column.cell), column.digits)
    return column.cell(row, result)


def ratio_cells(result: Result) -> Cells:
    """Heads and rows of how arms compare on the same configurations, those that the figure tells."""
    paper = {one.name: one for one in result.comparisons if not one.unit}
    heads = ["own over other", "median", *(["paper"] if paper else []), "of means", "faster on", "as fast on"]
    made = []
    for ratio in filter(result.definition.told, result.ratios):
        name = pair_label(result, ratio)
        of = paper.get(name)
        made.append(
            [
                name,
                text(ratio.median, 2),
                *([NONE if of is None else f"{of.paper:.2f}"] if paper else []),
                text(ratio.mean, 2),
                f"{ratio.faster.mean:.0%}",
                f"{ratio.tied:.0%}",
            ]
        )
    return heads, made


def pair_label(result: Result, ratio: Ratio[Any]) -> str:
    """``global over local``, ``global over local, 16 servers``, ``local, k = 3 over k = 0``."""
    own, other = (result.study.label(result.definition, arm) for arm in (ratio.own, ratio.other))
    if ratio.own.series == ratio.other.series:
        return f"{own} over {other.removeprefix(ratio.other.series).removeprefix(', ')}"
    return f"{ratio.own.series} over {other}"


def comparison_cells(result: Result) -> Cells:
    """Heads and rows of the published values: the paper's, ours, ours over the paper's, what is accepted."""
    made = []
    for one in result.comparisons:
        digits, unit = (1, f" {one.unit}") if one.unit else (2, "")
        accept = NONE if one.accept is None else f"{one.accept[0]:.{digits}f} to {one.accept[1]:.{digits}f}{unit}"
        within = NONE if one.within is None else "yes" if one.within else "no"
        ratio = NONE if one.ratio is None else f"{one.ratio:.2f}"
        made.append([one.name, f"{one.paper:.{digits}f}{unit}", text(one.ours, digits, unit), ratio, accept, within])
    return ["figure", "paper", "ours", "ratio", "accepted", "within"], made


def table(result: Result) -> Table:
    """Ours beside the paper's, one row an arm, for a terminal of 80 columns."""
    return _rich(f"{heading(result)}: {result.title}", *cells(result))


def heading(result: Result) -> str:
    """Which figure on which pools: ``Fig. 6, 10 pools paper, 300 configurations``."""
    pools = f"{result.pools} pools {result.pool}" if result.pools > 1 else f"one pool {result.pool}"
    return f"{result.definition.name}, {pools}, {counted(result.expected, 'configuration')}"


def verdict_line(verdict: Verdict) -> str:
    """``holds: "the claim" – the numbers – in 9 of 10 pools``."""
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
            told = f"conclusion {verdict.conclusion} ({verdict.pool}): {verdict.verdict}: {verdict.text}"
            console.print(Text(told, _STYLES[verdict.verdict]), soft_wrap=True)
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
    """Return the explanations of the signs and marks that stand in the tables."""
    feet = ["±: standard deviation between pools"] if any(result.pools > 1 for result in data.results) else []
    if any(result.verdicts for result in data.results):
        feet.append("how each claim is decided: thalweg report, or figures.json")
    for mark, says in dict(one for result in data.results for one in result.study.marks.items()).items():
        if any(cell.endswith(mark) for result in data.results for row in cells(result)[1] for cell in row):
            feet.append(f"{mark}: {says}")
    return feet


def _rich(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    broken = [_broken(head, [row[at] for row in rows]) for at, head in enumerate(heads) if at]
    made = framed(title, {heads[0]: TEXT} | dict.fromkeys(broken, FIGURE), padding=(0, 1, 0, 0))
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _broken(head: str, column: Sequence[str]) -> str:
    """A head in lines no longer than its cells, or than its longest word: room for what rows are called."""
    return "\n".join(textwrap.wrap(head, max(map(len, column), default=1) or 1, break_long_words=False))
