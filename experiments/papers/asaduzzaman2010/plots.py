"""Pictures of Figures 8 and 9: a panel for each of the paper's, our cost beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from thalweg.experiments.papers.asaduzzaman2010.study import LINKS, OURS, PAPERS, RATES
from thalweg.experiments.papers.plots import BARS, PAPER, Palette, Result, title
from thalweg.experiments.views.style import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {PAPERS: "-", OURS: (0, (4, 2))}
NAMES = {PAPERS: "the paper's cost", OURS: "our cost"}
AXES = {"links": (LINKS, "dedicated links"), "per_hour": (RATES, "tasks an hour")}
NINE = (  # panels: title, column, and factor of the x axis
    ("(a) finished tasks an hour", "finished_per_hour", "links"),
    ("(b) accepted, %", "accepted", "links"),
    ("(c) server use, %", "server_use", "per_hour"),
    ("(d) server use, %", "server_use", "links"),
    ("(e) use of dedicated links, %", "link_use", "per_hour"),
    ("(f) use of dedicated links, %", "link_use", "links"),
    ("(g) deviation from the rate, %", "deviation", "per_hour"),
    ("(h) deviation from the rate, %", "deviation", "links"),
    ("(i) time above a task's own, %", "elongation", "links"),
)
TOLD = {("accepted", "links"): ((120, 50), (50, 50)), ("elongation", "links"): ((99, 250), (99, 15)),
        ("deviation", "per_hour"): ((60, 15),)}  # fmt: skip


def _line(
    axes: Axes, result: Result, column: str, over: str, series: str, given: Mapping[str, Any], **style: Any
) -> None:
    known = {at: value for at in AXES[over][0] if (value := result.value(series, column, **{over: at}, **given))}
    if known:
        heights = [value.deviation or 0.0 for value in known.values()]
        axes.plot(list(known), [value.mean for value in known.values()], **style)
        if any(heights):
            bars = {**BARS, "elinewidth": 0.8, "capsize": 2, "alpha": 0.5}
            axes.errorbar(list(known), [value.mean for value in known.values()], yerr=heights, **bars)
    axes.set_xlabel(AXES[over][1])


def _nine(result: Result, palette: Palette) -> Figure:
    figure = new_figure(12.5, 11.0)
    title(figure, result, "What the public network adds to dedicated links")
    panels = figure.subplots(3, 3).ravel()
    for axes, (head, column, over) in zip(panels, NINE, strict=True):
        for series in result.study.series:
            for cost, dashes in DASHES.items():
                label = f"{series}, {NAMES[cost]}"
                style = {"color": palette.tint(series), "linestyle": dashes, "marker": "o", "markersize": 4}
                _line(axes, result, column, over, series, {"cost": cost}, label=label, **style)
        for number, (x, y) in enumerate(TOLD.get((column, over), ())):
            axes.plot(x, y, **PAPER, label="the paper's text" if number == 0 else None)
        axes.set_title(head)
        axes.set_ylim(bottom=0)
    handles = dict(zip(*reversed(panels[1].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=3, handlelength=4)
    return figure


def _eight(result: Result, palette: Palette) -> Figure:
    figure = new_figure(12.5, 4.6)
    title(figure, result, "Links allocated anew, and not")
    panels = figure.subplots(1, 3)
    for axes, (head, column) in zip(
        panels,
        (
            ("(a) finished tasks an hour", "finished_per_hour"),
            ("(b) use of dedicated links, %", "link_use"),
            ("(c) deviation from the rate, %", "deviation"),
        ),
        strict=True,
    ):
        for cost, tint in ((PAPERS, palette.tint("both")), (OURS, palette.tint("dedicated"))):
            for on, dashes in (("on", "-"), ("off", (0, (4, 2)))):
                style = {"color": tint, "linestyle": dashes, "marker": "o", "markersize": 4}
                factors = {"cost": cost, "reallocation": on}
                _line(axes, result, column, "per_hour", "both", factors, label=f"{on}, {NAMES[cost]}", **style)
        axes.set_title(head)
        axes.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, handlelength=4)
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {"bimodal-8": _eight, "bimodal-9": _nine}
