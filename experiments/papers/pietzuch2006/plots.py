"""Pictures of Table 1 and Figures 8 and 9, with the paper's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.pietzuch2006.placing import OURS, PLACEMENTS
from thalweg.experiments.papers.pietzuch2006.study import DELAY, PUBLISHED, QUANTILE, USAGE
from thalweg.experiments.papers.plots import PAPER, Palette, Result, bars, distribution, title, two_panels
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = tuple(name for name in (*PLACEMENTS, *OURS) if name not in ("at-rest", "estimates-only"))  # curves


def _table(result: Result, palette: Palette) -> Figure:
    from matplotlib.lines import Line2D

    figure, left, right = two_panels(result, "Network usage and delay by placement")
    for axes, column, head in (
        (left, USAGE, "usage above the optimum's, %"),
        (right, DELAY, "delay above the routes', %"),
    ):
        bars(axes, result, column, palette, PUBLISHED[column])
        axes.set_xlabel(head)
    figure.legend(handles=[Line2D([], [], label="the paper's", **PAPER)], loc="outside lower left")
    return figure


def _distribution(seen: str, head: str, limit: float) -> Callable[[Result, Palette], Figure]:
    """Return a function that draws each placement's share of queries up to a value, without the largest values."""

    def drawn(result: Result, palette: Palette) -> Figure:
        figure = new_figure(8.5, 5.0)
        title(figure, result, seen)
        axes = figure.subplots()
        known = {name: result.singles[name] for name in SHOWN if result.singles.get(name)}
        distribution(axes, known, palette)
        every = sorted(value for column in known.values() for value in column if value is not None)
        axes.set_xlim(min(0.0, every[0]), every[int(limit * (len(every) - 1))])
        axes.axhline(QUANTILE, color="#bbbbbb", linewidth=0.8, zorder=1)
        axes.set_xlabel(head)
        return figure

    return drawn


def _operators(result: Result, palette: Palette) -> Figure:
    figure = new_figure(8.5, 7.0)
    title(figure, result, "Network usage with one operator and with three")
    axes = figure.subplots()
    bars(axes, result, USAGE, palette)
    axes.set_xlabel("usage above the optimum's, %")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {
    "sbon-table1": _table,
    "sbon-8": _distribution("How network usage is distributed over queries", "network usage of a query (KB)", 0.97),
    "sbon-9": _distribution("How the delay penalty is distributed over queries", "delay penalty (%)", 0.97),
    "sbon-operators": _operators,
}
