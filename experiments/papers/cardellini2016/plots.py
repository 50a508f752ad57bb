"""Pictures of Figures 4 to 7, with the values of the paper's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thalweg.experiments.papers.cardellini2016.study import METRIC, SHOWN, over
from thalweg.experiments.papers.claims import known, of
from thalweg.experiments.papers.plots import ONE, Palette, Result, bar, bars, named_rows, title, two_panels
from thalweg.experiments.papers.study import spread
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "odp-5": {"traffic": {"relaxation": 1.84}, "latency": {"relaxation": 1.15}, "reassignments": {"relaxation": 16}},
    "odp-6": {"usage": {"rizou": 1.0}, "reassignments": {"rizou": 5}},
    "odp-7": {"traffic": {"t-storm": 1.0}},
}


def _four(result: Result, palette: Palette) -> Figure:
    figure, left, right = two_panels(result, "What response time and availability cost each other")
    bars(left, result, "network_ms", palette, {"": 0})
    left.set_xlabel("network delay of the longest way, ms")
    bars(right, result, "lost", palette, {"S-ODP_R": 3.37})
    right.set_xlabel("tuples lost, %; diamond: the paper's")
    return figure


def _running(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 4.2)
    title(figure, result, result.title)
    first, paper = SHOWN[result.figure][0], PUBLISHED[result.figure]
    columns = tuple(dict.fromkeys((METRIC[result.figure], "traffic", "latency", "reassignments")))
    for axes, column in zip(figure.subplots(1, len(columns)), columns, strict=True):
        names, most = [row.arm.scheduler for row in result.rows], 0.0
        for y, name in enumerate(names):
            value = known(of(name, column) if column == "reassignments" else over(name, first, column), result)
            if value is None:
                continue
            label = spread(value, 1 if column == "reassignments" else 2)
            most = max(most, bar(axes, y, value, palette.tint(name), label, paper.get(column, {}).get(name)))
        named_rows(axes, [row.label for row in result.rows])
        axes.tick_params(labelleft=column == columns[0])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * most)
        if column == "reassignments":
            axes.set_xlabel("reassignments")
        else:
            axes.axvline(1, zorder=1, **ONE)
            axes.set_xlabel(f"{column}, of the optimum's")
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"odp-4": _four, **dict.fromkeys(SHOWN, _running)}
