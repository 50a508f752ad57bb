"""Picture of Figure 14: the distribution over draws of the usage over the best host's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.pietzuch2006.choosing.study import CLOSE, GOAL
from thalweg.experiments.papers.plots import ONE, Palette, Result, distribution, title
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 2.0  # times the best's


def _fourteen(result: Result, palette: Palette) -> Figure:
    figure = new_figure(8.5, 5.0)
    title(figure, result, "How near the host chosen is to the best of nineteen")
    axes = figure.subplots()
    distribution(axes, result.singles, palette)
    axes.axvline(CLOSE, **ONE)
    axes.axhline(GOAL / 100, color="#bbbbbb", linewidth=0.8, zorder=1)
    axes.set_xlim(0.99, SHOWN)
    axes.set_xlabel("usage by the best host's (line: 10 % more)")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-14": _fourteen}
