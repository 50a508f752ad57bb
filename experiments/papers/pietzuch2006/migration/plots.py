"""A picture of Figure 12: what moving changes, of both optimisers, with what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.pietzuch2006.migration.migrating import OPTIMISERS
from thalweg.experiments.papers.pietzuch2006.migration.study import PAPER, changes
from thalweg.experiments.papers.plots import BARS, Palette, Result, named_rows, say, title
from thalweg.experiments.papers.plots import PAPER as MARK
from thalweg.experiments.papers.study import spread
from thalweg.experiments.views.plots import new_figure

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
        shown = [(one, found[name]) for one in OPTIMISERS if (found := changes(result, one)) is not None]
        for y, (placement, value) in enumerate(shown):
            axes.barh(y, value.mean, 0.6, color=palette.tint(placement), alpha=0.85)
            if value.deviation is not None:
                axes.errorbar(value.mean, y, xerr=value.deviation, **BARS)
            axes.plot(PAPER[name], y, **MARK)
            say(
                axes,
                spread(value, 1),
                (max(0.0, value.mean + (value.deviation or 0.0), PAPER[name]), y),
                (9, 0),
                va="center",
            )
        named_rows(axes, [placement for placement, _ in shown])
        low, high = axes.get_xlim()
        axes.set_xlim(low, high + 0.3 * (high - low))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(head)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-12": _twelve}
