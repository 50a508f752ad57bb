"""The figures as text: ours beside the paper's, the verdicts, what the reader must know."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thalweg.experiments.papers.ranganathan1998.ablation import ablation_cells, gap_cells
from thalweg.experiments.papers.ranganathan1998.claims import spread
from thalweg.experiments.papers.ranganathan1998.definitions import (
    ABLATION,
    OURS,
    PLACEMENTS,
    FigureData,
    FigureResult,
    Pooled,
    Ratio,
    Row,
    Verdict,
    label,
)
from thalweg.experiments.records.analysis import BASELINE, natural
from thalweg.experiments.views.tables import NONE


def cells(result: FigureResult) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a figure's table, as text: ours and, where it is published, the paper's."""
    if result.figure == ABLATION:
        return ablation_cells(result)
    paper = {one.name: one for one in result.comparisons}
    times = any(one.unit == "s" for one in result.comparisons)
    beside_global = any(row.of_global is not None for row in result.rows)
    heads = ["placement", "runs", "mean s", *(["paper"] if times else []), *(["of global"] if beside_global else [])]
    heads += ["speed-up", "median", "moves"]
    made = []
    for row in result.rows:
        of = paper.get(row.label) if times else None
        runs = f"{row.runs - row.failed}/{row.runs + row.missing}" if row.failed or row.missing else str(row.runs)
        made.append(
            [
                row.label,
                runs,
                _text(row.interarrival_s, 1),
                *([NONE if of is None else f"{of.paper:g}"] if times else []),
                *([NONE if row.of_global is None else f"{row.of_global.mean:.2f}"] if beside_global else []),
                "1" if row.arm.placement == BASELINE and row.speedup else _text(row.speedup, 2),
                NONE if row.median_speedup is None else f"{row.median_speedup.mean:.2f}",
                _moves(row),
            ]
        )
    return heads, made


def _moves(row: Row) -> str:
    """How many operators moved in a run, or how often it took another tree."""
    if row.reshapings is not None and row.reshapings.mean > 0 and row.arm.placement not in PLACEMENTS:
        return f"{row.reshapings.mean:.1f}*"
    return NONE if row.relocations is None else f"{row.relocations.mean:.1f}"


def ratio_cells(result: FigureResult) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of how placements compare on the same configurations: global and a researcher's
    own over the others, or one placement over itself with what the figure varies."""
    paper = {one.name: one for one in result.comparisons if not one.unit}
    heads = ["own over other", "median", *(["paper"] if paper else []), "of means", "faster on", "as fast on"]
    made = []
    for ratio in result.ratios if result.figure != ABLATION else ():
        if result.figure in ("6", "8") and not _told(ratio):
            continue
        name = pair_label(result.figure, ratio)
        of = paper.get(name)
        made.append(
            [
                name,
                _text(ratio.median, 2),
                *([NONE if of is None else f"{of.paper:.2f}"] if paper else []),
                _text(ratio.mean, 2),
                f"{ratio.faster.mean:.0%}",
                f"{ratio.tied:.0%}",
            ]
        )
    return heads, made


def _told(ratio: Ratio) -> bool:
    """Global over the paper's others, ours and a researcher's own over the paper's, a researcher's own over ours and,
    once, over each other."""
    own, other = ratio.own.placement, ratio.other.placement
    if other in PLACEMENTS:
        return own == "global" or own not in PLACEMENTS
    if other in OURS:  # a researcher's own over ours
        return own not in (*PLACEMENTS, *OURS) or (own, other) == ("thalweg", "thalweg-once")
    return own not in (*PLACEMENTS, *OURS) and natural(own) < natural(other)


def pair_label(number: str, ratio: Ratio) -> str:
    """``global over local``, ``global over local, 16 servers``, ``local, k = 3 over k = 0``."""
    own, other = label(number, ratio.own), label(number, ratio.other)
    if ratio.own.placement == ratio.other.placement:
        return f"{own} over {other.removeprefix(ratio.other.placement).removeprefix(', ')}"
    return f"{ratio.own.placement} over {other}"


def comparison_cells(result: FigureResult) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the published values: the paper's, ours, ours over the paper's, what is accepted."""
    made = []
    for one in result.comparisons:
        digits, unit = (1, " s") if one.unit else (2, "")
        accept = NONE if one.accept is None else f"{one.accept[0]:.{digits}f} to {one.accept[1]:.{digits}f}{unit}"
        within = NONE if one.within is None else "yes" if one.within else "no"
        ratio = NONE if one.ratio is None else f"{one.ratio:.2f}"
        made.append([one.name, f"{one.paper:.{digits}f}{unit}", _text(one.ours, digits, unit), ratio, accept, within])
    return ["figure", "paper", "ours", "ratio", "accepted", "within"], made


def _text(value: Pooled | None, digits: int, unit: str = "") -> str:
    return NONE if value is None else spread(value, digits, unit)


def table(result: FigureResult) -> Table:
    """Ours beside the paper's, one row an arm, for a terminal of 80 columns."""
    return _rich(f"{heading(result)}: {result.title}", *cells(result))


def heading(result: FigureResult) -> str:
    """Which figure on which pools: ``Fig. 6, 10 pools paper, 300 configurations``."""
    pools = f"{result.pools} pools {result.pool}" if result.pools > 1 else f"one pool {result.pool}"
    name = "Ablation" if result.figure == ABLATION else f"Fig. {result.figure}"
    return f"{name}, {pools}, {result.expected} configuration{'s' * (result.expected != 1)}"


def lines(result: FigureResult) -> list[str]:
    """The verdicts, one line each, then what the reader must know."""
    return [verdict_line(verdict) for verdict in result.verdicts] + [f"note: {note}" for note in result.notes]


def verdict_line(verdict: Verdict) -> str:
    """``holds: "the claim" – the numbers – in 9 of 10 pools``."""
    pools = "" if verdict.pools_holding is None else f" – in {verdict.pools_holding} of {verdict.pools} pools"
    return f"{verdict.verdict}: “{verdict.text}” – {verdict.detail}{pools}"


def print_figures(data: FigureData, console: Console | None = None) -> None:
    """Print every figure's tables, verdicts and notes, then the paper's conclusions (``console``: standard output)."""
    console = console or Console(highlight=False, soft_wrap=False)
    styles = {"holds": "green", "does not hold": "bold red", "not shown": "yellow", "not tested": "dim"}
    for result in data.results:
        console.print(table(result))
        heads, rows = ratio_cells(result)
        if rows:
            console.print(_rich("on the same configurations", heads, rows))
        if result.figure == ABLATION:
            console.print(_rich("what the gap to the bound is made of", *gap_cells(result)))
        for verdict in result.verdicts:
            console.print(Text(verdict_line(verdict), styles[verdict.verdict]), soft_wrap=True)
        for note in result.notes:
            console.print(Text(f"note: {note}"), soft_wrap=True)
        console.print()
    for reason, runs in data.failures.items():
        console.print(Text(f"failed, {runs} run{'s' * (runs != 1)}: {reason}", "bold red"), soft_wrap=True)
    for verdict in data.conclusions:
        if verdict.verdict != "not tested":
            text = f"conclusion {verdict.conclusion} ({verdict.pool}): {verdict.verdict}: {verdict.text}"
            console.print(Text(text, styles[verdict.verdict]), soft_wrap=True)
    feet = ["±: standard deviation between pools"] if any(result.pools > 1 for result in data.results) else []
    if any(result.verdicts for result in data.results):
        feet.append("how each claim is decided: thalweg report, or figures.json")
    if any(cell.endswith("*") for result in data.results for row in cells(result)[1] for cell in row):
        feet.append("*: other trees that were taken, instead of operators that moved")
    if feet:
        console.print(Text("; ".join(feet), "dim"), soft_wrap=True)


def _rich(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.padding = (0, 1, 0, 0)
    made.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        made.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made
