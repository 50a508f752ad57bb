"""Pictures of Figures 9 and 10: times over each factor, and the cost of samples of candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from thalweg.experiments.papers.cardellini2016.solving.solving import SHAPES
from thalweg.experiments.papers.cardellini2016.solving.study import MANY, SHARES, USUAL, VARIED, Problem
from thalweg.experiments.papers.plots import ONE, PAPER, Palette, Result, legend_below, line, title
from thalweg.experiments.papers.study import Over, Pooled
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _lines(axes: Axes, result: Result, column: str, over: Over, palette: Palette, usual: Mapping[str, Any]) -> None:
    for shape in SHAPES:
        wanted = {Problem(shape, **{**usual, over.factor: value}): value for value in over.values}
        known: dict[float, Pooled] = {
            wanted[row.arm]: value for row in result.rows if row.arm in wanted and (value := row.value(column))
        }
        line(axes, dict(sorted(known.items())), palette.tint(shape), shape)
    axes.set_xlabel(over.noun)


def _nine(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 4.4)
    title(figure, result, "How long it takes to prove a placement the best")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, over in zip(panels, VARIED.values(), strict=True):
        _lines(axes, result, "solve_ms", over, palette, USUAL)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("time, ms")
    legend_below(figure, panels[0])
    return figure


def _ten(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 4.4)
    title(figure, result, "What a sample of the candidates costs, and how long it takes")
    left, right = figure.subplots(1, 2)
    _lines(left, result, "degradation", SHARES, palette, MANY)
    left.axhline(1, zorder=1, **ONE)
    left.plot([0.2, 0.2], [3.0, 1.02], label="the paper's", **PAPER)
    left.set_ylabel("network delay, of that with all")
    _lines(right, result, "solve_ms", SHARES, palette, MANY)
    right.set_yscale("log")
    right.set_ylabel("time, ms")
    legend_below(figure, left)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"odp-9": _nine, "odp-10": _ten}
