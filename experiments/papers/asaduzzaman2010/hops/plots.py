"""Picture of the times of chains of public hops, by the data in hops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.plots import Palette, Result, bars, named_rows, title
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _hops(result: Result, palette: Palette) -> Figure:
    figure = new_figure(9.5, 4.5)
    title(figure, result, "Eleven public hops: how much longer a task takes")
    axes = figure.subplots()
    bars(axes, result, "elongation", palette)
    named_rows(axes, [row.label for row in result.rows if row.value("elongation")])
    axes.set_xlabel("time above a task's own, %")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"bimodal-hops": _hops}
