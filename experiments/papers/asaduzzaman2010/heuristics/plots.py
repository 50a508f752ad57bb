"""Picture of Figure 7: costs over the bound, and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.asaduzzaman2010.heuristics.study import NODES
from thalweg.experiments.papers.plots import Palette, Result, legend_below, lines, two_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _seven(result: Result, palette: Palette) -> Figure:
    figure, left, right = two_panels(result, "How near to the bound maps are, and what finding them takes")
    lines(left, result, "ratio", NODES, palette)
    left.set(title="(a) cost by the bound", xlabel="nodes", ylim=(1, None))
    lines(right, result, "messages", NODES, palette)
    right.set(title="(b) maps sent", xlabel="nodes", yscale="log")
    legend_below(figure, left)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"bimodal-7": _seven}
