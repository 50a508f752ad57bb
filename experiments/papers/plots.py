"""Pictures of a paper's figures by form, and their files. A study's ``plots.py`` combines the forms.

The forms are single configurations in the order of one arm, bars of one column, ratios with published values, and lines
over a factor. Further forms are changes against the usual value, and the distribution of a column over configurations.
A series has the same colour in every form. Error bars are standard deviations between pools, or twice the standard
error of a change. With one pool there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from thalweg.experiments.command import clipped
from thalweg.experiments.papers.claims import ERRORS
from thalweg.experiments.papers.study import FigureData, FigureResult, Over, Pooled, Ratio, Row, Study, spread
from thalweg.experiments.papers.tables import heading
from thalweg.experiments.views.plots import save_pictures
from thalweg.experiments.views.style import COLOURS, INK, new_figure, round_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = FigureResult[Any, Any]
PAPER: dict[str, Any] = {  # mark of a published value
    "marker": "D", "color": "white", "markeredgecolor": INK, "markeredgewidth": 1.4, "markersize": 7,
    "linestyle": "none", "zorder": 5,
}  # fmt: skip
MORE = (
    COLOURS[5],
    "#997700",
    "#332288",
    "#555555",
)  # for a researcher's own series, distinct from the paper's and ours
GREY, PALE, ACCEPTED = "#777777", "#eeeeee", "#e4e4e4"
BARS: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.2, "capsize": 3, "fmt": "none", "zorder": 4}
ROOM = 18  # characters of a series' name in a picture
ONE: dict[str, Any] = {"color": "#999999", "linewidth": 1, "linestyle": (0, (4, 3))}


# --- files ------------------------------------------------------------------------------------------


def plot_figures(data: FigureData[Any], folder: Path) -> list[Path]:
    """Draw every figure into ``folder/plots`` and return the files, ``figure-6.png`` and so on.

    Names of files contain the name of the pools if there are several. A figure without a finished run is not drawn.
    Raises RunError if a file cannot be written.
    """
    several = len({result.pool for result in data.results}) > 1

    def drawn() -> Iterator[tuple[str, Figure]]:
        for result in data.results:
            if figure := draw(result):
                pool = "-" + re.sub(r"[^A-Za-z0-9_.-]+", "_", result.pool).strip("_") if several else ""
                yield f"figure-{result.figure}{pool}", figure

    return save_pictures(folder, drawn(), f"make {folder} writable")


def draw(result: Result) -> Figure | None:
    """Return one figure's picture, None without a finished run. Call it within ``views.plots.styled``."""
    if all(row.value(result.study.level) is None for row in result.rows):
        return None
    drawn: Mapping[str, Callable[[Result, Palette], Figure]]
    drawn = import_module(f"thalweg.experiments.papers.{result.study.name}.plots").DRAWN
    return drawn[result.figure](result, Palette(result))


class Palette:
    """Colours of a figure's series by name."""

    def __init__(self, result: Result) -> None:
        study: Study = result.study
        self._tints = dict(zip(study.colours, COLOURS, strict=False)) | dict(study.tints)
        self._others = [name for name in result.series() if name not in self._tints]

    def tint(self, series: str) -> str:
        if series in self._tints:
            return self._tints[series]
        return MORE[self._others.index(series) % len(MORE)]


def short(series: str) -> str:
    """Return a series' name without the module of a researcher's own, cut to the available room."""
    return clipped(series.rpartition(":")[2] or series, ROOM)


# --- the frame of a figure --------------------------------------------------------------------------


def title(figure: Figure, result: Result, seen: str) -> None:
    """Write the subject of the picture, and below in grey the figure, pools and size."""
    figure.suptitle(f"{seen}\n", fontweight="bold", x=0.012, ha="left", fontsize=13)
    below = f"{heading(result)}{': no spread' if result.pools == 1 else ''}"
    under = 1 - 0.29 / figure.get_figheight()  # inches: a line of the title and its padding
    figure.text(0.012, under, below, ha="left", va="top", color=GREY, fontsize=9.5)


def empty(axes: Axes, why: str, **where: Any) -> None:
    """Show a reason in place of axes."""
    axes.text(0.5, 0.5, why, ha="center", color=GREY, transform=axes.transAxes, **where)
    axes.set_axis_off()


def two_panels(result: Result, seen: str) -> tuple[Figure, Axes, Axes]:
    figure = new_figure(10.5, 5.0)
    title(figure, result, seen)
    left, right = figure.subplots(1, 2)
    return figure, left, right


def legend_below(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5)


def log_axis(axes: Axes, ticks: Mapping[float, str], **options: Any) -> None:
    """Make a logarithmic x axis with the values of a factor as ticks."""
    axes.set_xscale("log", **options)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()


def named_rows(axes: Axes, names: Sequence[str], ats: Sequence[float] | None = None, **options: Any) -> None:
    """Write the names of bars at the left."""
    axes.set_yticks(range(len(names)) if ats is None else ats, names, **options)
    axes.grid(visible=False, axis="y")


def say(axes: Axes, text: str, at: tuple[float, float], offset: tuple[int, int], size: float = 9, **more: Any) -> None:
    """Write a number beside its point."""
    axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=size, **more)


def bar(
    axes: Axes, y: float, value: Pooled, tint: str, told: str, paper: float | None = None, *, pale: bool = False
) -> float:
    """Draw a bar with its spread between pools and a text, and a diamond at the paper's value. Return the right end."""
    axes.barh(y, value.mean, 0.62, color=tint, alpha=0.4 if pale else 0.85)
    if value.deviation is not None:
        axes.errorbar(value.mean, y, xerr=value.deviation, **BARS)
    right = max(0.0, value.mean + (value.deviation or 0.0), paper or 0.0)
    say(axes, told, (right, y), (9, 0), va="center")
    if paper is not None:
        axes.plot(paper, y, **PAPER)
    return right


# --- forms ------------------------------------------------------------------------------------------


class Curve(msgspec.Struct, frozen=True):
    """Arm in a picture of single configurations, with name and colour."""

    row: Row[Any]
    name: str
    tint: str

    @property
    def label(self) -> str:
        return self.name if self.row.speedup is None else f"{self.name} (mean {self.row.speedup.mean:.2f})"


def singles(axes: Axes, result: Result, lead: Curve, other: Curve) -> None:
    """Plot the speed-ups of two arms over configurations, in the order of the first arm's speed-ups."""
    pairs = zip(result.singles[lead.row.label], result.singles[other.row.label], strict=True)
    known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
    known = known[np.argsort(known[:, 0], kind="stable")]
    at = np.arange(1, len(known) + 1)
    many = len(known) > 150
    axes.plot(
        at, known[:, 1], "o", color=other.tint, markersize=2.6 if many else 4.5, alpha=0.6 if many else 0.85,
        markeredgewidth=0, label=other.label,
    )  # fmt: skip
    axes.plot(at, known[:, 0], color=lead.tint, linewidth=2.2, label=lead.label)
    axes.axhline(1, zorder=1, **ONE)
    axes.set_xlim(0, len(known) + 1)
    axes.set_xlabel(f"configuration, in the order of {lead.name}")
    axes.set_yscale("log")
    round_ticks(axes.yaxis)
    axes.legend(loc="upper left", handlelength=1.4, reverse=True)


def side_by_side(panels: Sequence[Axes], result: Result, pairs: Sequence[tuple[str, Curve, Curve]], what: str) -> None:
    """Plot the speed-ups of two arms in each panel, with a title and one scale. Surplus panels are hidden."""
    for axes, (titled, lead, other) in zip(panels, pairs, strict=False):
        singles(axes, result, lead, other)
        axes.set_title(titled)
        axes.tick_params(labelleft=True)
    for axes in panels[len(pairs) :]:
        axes.set_visible(False)
    panels[0].set_ylabel(what)
    bottom, top = panels[0].get_ylim()
    panels[0].set_ylim(bottom, top * (top / bottom) ** 0.14)  # room for the legend


def bars(
    axes: Axes, result: Result, column: str, palette: Palette, published: Mapping[str, float] | None = None
) -> None:
    """Draw a column of every arm with its spread between pools. A diamond marks a value of the paper."""
    rows = [(row, value) for row in result.rows if (value := row.value(column)) is not None]
    paper = published or {comparison.name: comparison.paper for comparison in result.comparisons if comparison.unit}
    largest = 0.0
    for y, (row, value) in enumerate(rows):
        right = bar(axes, y, value, palette.tint(row.arm.series), spread(value, 1), paper.get(row.label))
        largest = max(largest, right)
    named_rows(axes, [short(row.label) for row, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, largest * 1.25)  # room for the numbers


def ratio_dots(axes: Axes, result: Result, ratios: Sequence[Ratio[Any]], tints: Sequence[str]) -> None:
    """Plot an arm's median gain over a second arm, by pool. The accepted range is grey, a published value a diamond."""
    paper = {comparison.name: comparison for comparison in result.comparisons if not comparison.unit}
    for y, (ratio, tint) in enumerate(zip(ratios, tints, strict=True)):
        published = paper.get(f"{ratio.own.name} over {ratio.other.name}")
        if published is not None and published.accept is not None:
            low, high = published.accept
            axes.barh(y, high - low, 0.7, left=low, color=ACCEPTED, zorder=1)
        medians = list(ratio.median.by_pool.values())
        if len(medians) > 1:
            axes.plot(medians, [y] * len(medians), "|", color=tint, markersize=13, alpha=0.55)
        axes.plot(ratio.median.mean, y, "o", color=tint, markersize=8)
        say(axes, spread(ratio.median), (ratio.median.mean, y), (0, 12), ha="center")
        if published is not None:
            axes.plot(published.paper, y, **PAPER)
    axes.axvline(1, **ONE)
    named_rows(axes, [f"{short(pair.own.name)} over\n{short(pair.other.name)}" for pair in ratios])
    axes.set_ylim(len(ratios) - 0.4, -0.75)
    left, right = axes.get_xlim()
    axes.set_xlim(min(0.95, left), right + 0.04 * (right - left))


def series_of(result: Result, column: str) -> dict[str, list[Any]]:
    """Return the rows with a value in the column, by series, without the base."""
    series: dict[str, list[Any]] = {}
    for row in result.rows:
        if row.arm.series != result.study.base and row.value(column) is not None:
            series.setdefault(row.arm.series, []).append(row)
    return series


def line(axes: Axes, points: Mapping[float, Pooled], tint: str, name: str, *, errors: bool = False) -> None:
    """Draw means with error bars: deviations between pools, or with ``errors`` twice the standard error of the mean."""
    heights = [(ERRORS * (point.error or 0.0) if errors else point.deviation) or 0.0 for point in points.values()]
    axes.errorbar(
        list(points), [value.mean for value in points.values()], yerr=heights if any(heights) else None, color=tint,
        marker="o", markersize=5.5, capsize=3, elinewidth=1.2, label=name,
    )  # fmt: skip


def lines(axes: Axes, result: Result, column: str, over: Over, palette: Palette) -> None:
    """Draw a column over a factor, one line per series. A series without the factor is a horizontal line."""
    series = series_of(result, column)
    for i, (name, rows) in enumerate(series.items()):
        tint, named = palette.tint(name), short(name)
        known = {at: row.value(column) for row in rows if (at := getattr(row.arm, over.factor)) is not None}
        if known:
            line(axes, over.points(known, i, len(series)), tint, named)
        else:
            level = rows[0].value(column).mean
            axes.axhline(level, color=tint, linewidth=1.5, linestyle=(0, (5, 3)), label=named, zorder=1)


def speedups(axes: Axes, result: Result, over: Over, palette: Palette, room: float = 1.12) -> None:
    """Draw mean speed-ups over a factor, and the base. ``room``: the end of the axis, as a multiple of the values."""
    lines(axes, result, "speedup", over, palette)
    axes.axhline(1, **ONE | {"linestyle": (0, (1, 2))}, label=result.study.base, zorder=1)
    axes.set_ylim(0, axes.get_ylim()[1] * room)
    spreads = "\n(bars: standard deviation between pools)" if result.pools > 1 else ""
    axes.set(title="Speed-up", ylabel=f"mean speed-up over {result.study.base}{spreads}")


def changes(axes: Axes, result: Result, over: Over, usual: str, palette: Palette) -> None:
    """Draw the changes of mean speed-ups against the usual value on the same configurations, pool by pool."""
    for name in series_of(result, "speedup"):
        ratios = result.over_factor(name, None, over.factor)
        if len(ratios) > 1:
            points = {at: ratio.map(lambda value: 100 * (value - 1)) for at, ratio in ratios.items()}
            line(axes, over.points(points), palette.tint(name), short(name), errors=True)
    axes.axhline(0, zorder=1, **ONE)
    spreads = "\n(bars: two standard errors)" if result.pools > 1 else ""
    axes.set(title=f"Change against {usual}", ylabel=f"change of the mean speed-up (%){spreads}")


def distribution(axes: Axes, values: Mapping[str, Sequence[float | None]], palette: Palette) -> None:
    """Draw the share of configurations up to each value, by series. Failures are left out."""
    for name, column in values.items():
        known = sorted(value for value in column if value is not None)
        shares = np.arange(1, len(known) + 1) / max(1, len(known))
        axes.step(known, shares, where="post", color=palette.tint(name), label=short(name))
    axes.set(ylim=(0, 1), ylabel="share of the configurations")
    axes.legend(loc="lower right")
