"""Picture of Figure 12: the effect of moves under both optimisers, with the paper's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.claims import known
from thalweg.experiments.papers.pietzuch2006.migration.migrating import OPTIMISERS
from thalweg.experiments.papers.pietzuch2006.migration.study import PAPER, change
from thalweg.experiments.papers.plots import Palette, Result, bar, named_rows, title
from thalweg.experiments.papers.study import spread
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEN = {
    "usage": "total usage, % more",
    "delay": "mean delay, % more",
    "lower": "pairs that use less, %",
    "moves": "moves a query",
}


def _twelve(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 5.0)
    title(figure, result, "What queries gain whose operators may move")
    panels = figure.subplots(2, 2)
    for axes, (name, head) in zip(panels.flat, SEEN.items(), strict=True):
        shown = [(optimiser, value) for optimiser in OPTIMISERS if (value := known(change(optimiser, name), result))]
        for y, (placement, value) in enumerate(shown):
            bar(axes, y, value, palette.tint(placement), spread(value, 1), PAPER[name])
        named_rows(axes, [placement for placement, _ in shown])
        low, high = axes.get_xlim()
        axes.set_xlim(low, high + 0.3 * (high - low))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(head)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-12": _twelve}
