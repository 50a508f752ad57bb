"""Tables of the figures of Benoit et al., and their common parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.experiments.papers.benoit2008.points import (
    FACTORS,
    SHORT,
    TREES,
    Platform,
    Point,
    Points,
    points_of,
    thresholds,
)
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, OPTIMUM, SERIES
from thalweg.experiments.papers.claims import NotTested, Result
from thalweg.experiments.papers.study import Claim, Column, Figure
from thalweg.experiments.papers.tables import Cells, mean
from thalweg.experiments.views.tables import NONE

HEADS = {"nodes": "N", "alpha": "α", "sizes": "objects", "period_s": "f", "copies": "copies"}
SHORTLY = {"sizes": "{}", "period_s": "1/{:g}"}


def _point(row: Any, result: Result) -> str:
    """Return the values that differ between the figure's points, like ``20, 1.7``."""
    listed = points_of(result)
    factors = [factor for factor in result.definition.varied if len({point.get(factor) for point in listed}) > 1]
    return ", ".join(SHORTLY.get(factor, "{:g}").format(getattr(row.arm, factor)) for factor in factors)


def _beside(name: str, column: str) -> Callable[[Any, Result], str]:
    """Return a function for a cell: a heuristic's cost at the row's point, over the cheapest or the optimum."""

    def cell(row: Any, result: Result) -> str:
        arm = Platform(name, *(getattr(row.arm, factor) for factor in FACTORS))
        return next((mean(peer.value(column), 2) for peer in result.rows if peer.arm == arm), NONE)

    return cell


def turns(result: Result) -> Cells:
    """Return the table of the α where platforms change."""
    rows = []
    for nodes in (20, 60):
        try:
            alphas = thresholds(result, nodes)
        except NotTested:
            continue
        for turn, value in alphas.items():
            values = value.by_pool.values()
            rows.append([f"N = {nodes}, {turn}", f"{value.mean:.2f}", f"{min(values):g}", f"{max(values):g}"])
    return ["α, of the cheapest of the seven", "mean", "least", "most"], rows


def _shares(result: Result) -> Cells:
    """Return the table of the trees, in %, for which each heuristic finds machines."""
    rows: dict[str, list[str]] = {}
    for row in result.rows:
        if row.arm.heuristic in SERIES:
            rows.setdefault(_point(row, result), []).append(mean(row.value("found"), 0))
    names = [SHORT.get(name, "any") for name in SERIES]
    return ["machines found, % of the trees", *names], [[name, *cells] for name, cells in rows.items()]


def tied(name: str) -> str:
    """Return the cheapest's column with the share of trees for which a heuristic is as cheap."""
    return f"tied_{name.replace('-', '_')}"


def _ties(result: Result) -> Cells:
    """Return the table of the trees with a platform, in %, for which each heuristic is the cheapest."""
    rows = [
        [_point(row, result), *(mean(row.value(tied(name)), 0) for name in SHORT)]
        for row in result.of(CHEAPEST)
        if row.value("cost")
    ]
    return ["cheapest or as cheap, % of those", *SHORT.values()], rows


def figure(
    number: str, titled: str, question: str, listed: Sequence[Point], claims: tuple[Claim, ...], *,
    against: str = CHEAPEST, tables: tuple[tuple[str, Callable[[Result], Cells]], ...] = (), **more: Any,
) -> Figure:  # fmt: skip
    varied = tuple(factor for factor in FACTORS if any(factor in point for point in listed))
    heads = ", ".join(HEADS[factor] for factor in varied if len({point.get(factor) for point in listed}) > 1)
    return Figure(
        number=f"benoit-{number}",
        head=f"Fig. {number}" if number.isdecimal() else "Table 2",
        title=titled,
        question=question,
        sweep=Points(*listed, series=tuple(dict.fromkeys((*SERIES, against)))),
        varied=varied,
        pairs=lambda own, other, usual: False,
        configurations=TREES,
        caption=f"What each pays, of {'the optimum' if against == OPTIMUM else 'the cheapest of the seven'}",
        ordered=lambda result: result.of(CHEAPEST),
        columns=(
            Column(heads, _point),
            Column("cheapest $", lambda row, result: mean(row.value("cost"), 0)),
            *(
                Column(f"{short} ×", _beside(name, "over_optimum" if against == OPTIMUM else "times"))
                for name, short in SHORT.items()
            ),
        ),
        tables=(
            ("For how many trees machines are found", _shares),
            ("For how many of these none is cheaper", _ties),
            *tables,
        ),
        claims=claims,
        **more,
    )
