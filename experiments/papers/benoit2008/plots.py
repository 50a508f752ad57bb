"""Pictures of Figures 2 to 9 and Table 2: costs above, and the share of trees with machines below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from thalweg.experiments.papers.benoit2008.points import N_TABLE, SAYS, SHORT, TABLE_2, at, points_of, told
from thalweg.experiments.papers.benoit2008.renting import CHEAPEST, OPTIMUM, SUBTREE
from thalweg.experiments.papers.claims import known
from thalweg.experiments.papers.plots import PAPER, Palette, Result, legend_below, log_axis, title
from thalweg.experiments.views.style import new_figure, round_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"nodes": "N, nodes of the tree", "alpha": "α, exponent of the work", "period_s": "1/f, seconds"}
MARKS = dict(zip(SHORT, "svD^oPX", strict=True))
DASHED = {CHEAPEST: "cheapest of the seven", OPTIMUM: "optimum"}
DASHES = {CHEAPEST: (0, (4, 2)), OPTIMUM: (0, (1, 2))}
# points of the paper's text by figure and panel: N and $, or the α where cost rises and where platforms end
TOLD: Mapping[tuple[str, int], Sequence[tuple[float, float]]] = {("benoit-2", 0): ((100, 8_745), (100, 400_000))}
ENDS: Mapping[tuple[str, int], tuple[float, float]] = {("benoit-3", 0): (1.7, 2.2), ("benoit-3", 1): (1.6, 1.8)}


def _lines(axes: Axes, result: Result, column: str, over: str, given: Mapping[str, Any], palette: Palette) -> None:
    """Draw a column over a factor, one line per heuristic, with the remaining factors as given."""
    points = [point for point in points_of(result) if given.items() <= point.items()]
    for name in result.series():
        if values := {point[over]: value.mean for point in points if (value := known(at(name, column, point), result))}:
            axes.plot(
                list(values), list(values.values()), color=palette.tint(name), marker=MARKS.get(name, ""),
                markersize=5, linewidth=1.3, linestyle=DASHES.get(name, "-"),
                zorder=3 + (name in DASHED), label=DASHED.get(name) or SHORT[name],
            )  # fmt: skip


def _panels(seen: str, over: str, columns: Sequence[Mapping[str, Any]], result: Result, palette: Palette) -> Figure:
    """Draw the costs, and below the share of trees with machines, in a column of panels for each of ``columns``."""
    figure = new_figure(2.5 + (4 if len(columns) == 2 else 3) * len(columns), 6.6)
    title(figure, result, seen)
    grid = figure.subplots(2, len(columns), sharex="col", sharey="row", height_ratios=(3, 2), squeeze=False)
    for number, given in enumerate(columns):
        upper, lower = grid[0][number], grid[1][number]
        _lines(upper, result, "cost", over, given, palette)
        _lines(lower, result, "found", over, given, palette)
        upper.set_yscale("log")
        round_ticks(upper.yaxis)
        upper.yaxis.set_major_formatter(lambda dollars, _: f"{dollars:,.0f}")
        upper.set_title(told(given))
        lower.set_ylim(-4, 104)
        lower.set_xlabel(LABELS[over])
        if over == "period_s":
            for axes in (upper, lower):
                log_axis(axes, {at: f"{at:g}" for at in (2, 3, 5, 10, 20, 50)})
        for x, y in TOLD.get((result.figure, number), ()):
            upper.plot(x, y, **PAPER, label="the paper's")
        if ends := ENDS.get((result.figure, number)):
            costs = [line.get_ydata()[0] for line in upper.lines]
            upper.plot(ends[0], min(costs), **PAPER, label="the paper's")
            lower.plot(ends[1], 0, **PAPER, clip_on=False)
    grid[0][0].set_ylabel("mean cost of the platform, $")
    grid[1][0].set_ylabel("trees with a platform, %")
    named: dict[str, Any] = {}  # lower panels first: a heuristic without machines is in a lower panel alone
    for axes in (*grid[1], *grid[0]):
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=5)
    return figure


def _table(result: Result, palette: Palette) -> Figure:
    figure = new_figure(10.5, 4.6)
    title(figure, result, "What the download rate changes, small objects")
    panels = figure.subplots(1, 2, sharey=True)
    names = ("comm-greedy", "object-greedy", SUBTREE)
    for axes, period_s in zip(panels, (2.0, 50.0), strict=True):
        for number, name in enumerate(names):
            beside = 0.22 * (number - 1)
            for place, nodes in enumerate(N_TABLE):
                point = {"nodes": nodes, "period_s": period_s, "sizes": "small"}
                if value := known(at(name, "cost", point), result):
                    axes.bar(
                        nodes + beside, value.mean, 0.2, color=palette.tint(name), alpha=0.85,
                        yerr=value.deviation, capsize=2, label=SHORT[name] if not place else None,
                    )  # fmt: skip
                paper = TABLE_2[name][period_s][place]
                axes.plot(nodes + beside, paper, **PAPER, label="the paper's" if not (place or number) else None)
        axes.set(title=SAYS["period_s"](period_s), xlabel=LABELS["nodes"], xticks=N_TABLE)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("mean cost of the platform, $")
    legend_below(figure, panels[0])
    return figure


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {
    "benoit-2": partial(_panels, "What larger trees cost, small objects", "nodes", ({"alpha": 0.9}, {"alpha": 1.7})),
    "benoit-3": partial(_panels, "What more work costs, small objects", "alpha", ({"nodes": 20}, {"nodes": 60})),
    "benoit-4": partial(_panels, "What larger trees cost, big objects", "nodes", ({"alpha": 0.9}, {"alpha": 1.1})),
    "benoit-5": partial(_panels, "What more work costs, big objects", "alpha", ({"nodes": 20}, {"nodes": 40})),
    "benoit-table2": _table,
    "benoit-6": partial(
        _panels, "What the download rate changes, big objects", "nodes", ({"period_s": 50.0}, {"period_s": 2.0})
    ),
    "benoit-7": partial(_panels, "What the download rate changes", "period_s", ({"nodes": 140}, {"nodes": 160})),
    "benoit-8": partial(_panels, "On how many servers objects are", "period_s", ({"copies": 1}, {"copies": 3})),
    "benoit-9": partial(
        _panels,
        "One class of machines",
        "nodes",
        (
            {"alpha": 0.9, "sizes": "big"},
            {"alpha": 1.1, "sizes": "big"},
            {"alpha": 0.9, "sizes": "small"},
            {"alpha": 1.8, "sizes": "small"},
        ),
    ),
}
