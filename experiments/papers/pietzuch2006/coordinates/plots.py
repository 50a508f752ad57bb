"""Picture of Figure 5: the error, and the movement of hosts, by the number of measurements of each host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.pietzuch2006.coordinates.embedding import SAMPLES, SPACES
from thalweg.experiments.papers.pietzuch2006.coordinates.study import PUBLISHED, ROUNDS
from thalweg.experiments.papers.plots import ONE, Palette, Result, line, log_axis, title
from thalweg.experiments.views.style import COLOURS, new_figure, round_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEN = {"error": "median error, %", "moved_ms": "ms a host moves a round"}


def _five(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 5.0)
    title(figure, result, "How hosts find their coordinates")
    panels = figure.subplots(1, 2)
    for axes, (column, head) in zip(panels, SEEN.items(), strict=True):
        for space in SPACES:
            for samples, tint in zip(SAMPLES, (COLOURS[0], COLOURS[1], COLOURS[2]), strict=True):
                levels = {at: result.value(space, column, samples=samples, rounds=at) for at in ROUNDS.values}
                points = {at: value for at, value in levels.items() if value is not None}
                if points:
                    line(axes, points, tint, f"{space}, {samples}")
                    axes.containers[-1].lines[0].set_linestyle("-" if space == "plain" else ":")
        log_axis(axes, {at: str(at) for at in ROUNDS.values})
        axes.set(xlabel="measurements of each host", ylabel=head, yscale="log")
        round_ticks(axes.yaxis)
    panels[0].axhline(PUBLISHED, label="the paper's 9 %", **ONE)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=4)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"sbon-5": _five}
