"""Pictures of the paper's figures from a sweep's results, with the paper's published values marked where it gives any.

A placement has the same colour in all of them. Error bars are standard deviations between pools, or, where a change is
shown, twice its standard error; with one pool there are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.experiments.papers.ranganathan1998.ablation import OURS_COLOUR, draw_ablation, height
from thalweg.experiments.papers.ranganathan1998.claims import ERRORS, SAME, over_periods, over_servers, spread
from thalweg.experiments.papers.ranganathan1998.definitions import (
    ABLATION,
    OURS,
    PERIODS_S,
    PLACEMENTS,
    FigureData,
    FigureResult,
    Pooled,
    Row,
    label,
    minutes,
    pooled,
)
from thalweg.experiments.papers.ranganathan1998.tables import heading
from thalweg.experiments.records.analysis import BASELINE
from thalweg.experiments.records.records import PLOTS
from thalweg.experiments.views.plots import COLOURS, INK, STYLE, new_figure, one_two_five, shortened
from thalweg.middleware.errors import RunError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER: dict[str, Any] = {  # the mark of a published value
    "marker": "D", "color": "white", "markeredgecolor": INK, "markeredgewidth": 1.4, "markersize": 7,
    "linestyle": "none", "zorder": 5,
}  # fmt: skip
_TINTS = dict(zip(("global", "one-shot", "local", BASELINE, "thalweg-once"), COLOURS, strict=False))
_TINTS["thalweg"] = OURS_COLOUR
_MORE = (COLOURS[5], "#997700", "#332288", "#555555")  # a researcher's own: none like the paper's and ours
_BOUND: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1.5)), "zorder": 4}
ACCEPTED = "#e4e4e4"
PANELS = 4  # single comparisons of Fig. 6 and 10 side by side; of more placements the first are shown
ROOM = 18  # characters of a placement's name in a picture


def plot_figures(data: FigureData, folder: Path) -> list[Path]:
    """Draw every figure into ``folder/plots`` and return the files, ``figure-6.png`` and so on, with the pool's name
    where there are several. A figure without any finished run is not drawn. RunError when a file cannot be written.
    """
    import matplotlib as mpl

    where = folder / PLOTS
    drawn: list[Path] = []
    several = len({result.pool for result in data.results}) > 1
    try:
        where.mkdir(exist_ok=True)
        with mpl.rc_context(dict(mpl.rcParamsDefault) | STYLE):
            for result in data.results:
                figure = draw(result)
                if figure is None:
                    continue
                pool = "-" + re.sub(r"[^A-Za-z0-9_.-]+", "_", result.pool).strip("_") if several else ""
                drawn.append(where / f"figure-{result.figure}{pool}.png")
                figure.savefig(drawn[-1])
    except OSError as error:
        raise RunError(f"{where} cannot be written: {error.strerror or error}; make {folder} writable") from error
    return drawn


def draw(result: FigureResult) -> Figure | None:
    """One figure; None where nothing finished. Call it within the style that ``plot_figures`` sets."""
    if all(row.interarrival_s is None for row in result.rows):
        return None
    return _DRAWN[result.figure](result)


def _tint(result: FigureResult, placement: str) -> str:
    if placement in _TINTS:
        return _TINTS[placement]
    others = [name for name in result.placements() if name not in _TINTS]
    return _MORE[others.index(placement) % len(_MORE)]


def _name(placement: str) -> str:
    """Without the module of a researcher's own, and not longer than there is room for."""
    plain = placement.rpartition(":")[2] or placement
    return plain if len(plain) <= ROOM else plain[: ROOM - 1] + "…"


def _title(figure: Figure, result: FigureResult, seen: str) -> None:
    """What is seen, and below in grey what it is of."""
    figure.suptitle(f"{seen}\n", fontweight="bold", x=0.012, ha="left", fontsize=13)
    below = f"{heading(result)}{': no spread' if result.pools == 1 else ''}"
    under = 1 - 0.29 / figure.get_figheight()  # inches: a line of the title and its padding
    figure.text(0.012, under, below, ha="left", va="top", color="#777777", fontsize=9.5)


def _empty(figure: Figure, why: str) -> Figure:
    axes = figure.add_subplot()
    axes.text(0.5, 0.5, why, ha="center", va="center", color="#777777", transform=axes.transAxes)
    axes.set_axis_off()
    return figure


def _log_speedup(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(one_two_five())
    axes.yaxis.set_major_formatter(lambda value, _: shortened(value))
    axes.yaxis.minorticks_off()


# --- Fig. 6 and 10: single configurations -----------------------------------------------------------


def _single(
    axes: Axes, result: FigureResult, lead: Row, other: Row, names: tuple[str, str], tints: Sequence[str]
) -> None:
    """Speed-ups of two arms, configurations in the order of the first one's."""
    pairs = zip(result.speedups[lead.label], result.speedups[other.label], strict=True)
    known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
    known = known[np.argsort(known[:, 0], kind="stable")]
    at = np.arange(1, len(known) + 1)
    many = len(known) > 150
    axes.plot(
        at, known[:, 1], "o", color=tints[1], markersize=2.6 if many else 4.5, alpha=0.6 if many else 0.85,
        markeredgewidth=0, label=_with_mean(names[1], other.speedup),
    )  # fmt: skip
    axes.plot(at, known[:, 0], color=tints[0], linewidth=2.2, label=_with_mean(names[0], lead.speedup))
    axes.axhline(1, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xlim(0, len(known) + 1)
    axes.set_xlabel(f"configuration, in the order of {names[0]}")
    _log_speedup(axes)
    axes.legend(loc="upper left", handlelength=1.4, reverse=True)


def _with_mean(name: str, value: Pooled | None) -> str:
    return name if value is None else f"{name} (mean {value.mean:.2f})"


def _six(result: FigureResult) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = {row.arm.placement: row for row in result.rows if row.arm.placement != BASELINE and row.speedup is not None}
    lead = "global" if "global" in rows else next(reversed(rows), None)
    others = [name for name in rows if name not in (lead, "thalweg-once")][:PANELS]
    wide = max(2, len(others))
    figure = new_figure(max(10.0, 4.0 * wide), (8.5 if others else 4.1) + 0.25 * max(0, len(result.rows) - 4))
    _title(figure, result, _six_seen(result, lead))
    # two rows that are laid out each by itself: a long name below takes no room from the panels above
    parts = figure.subfigures(1 + bool(others), 1, squeeze=False, height_ratios=[1.5, 1][-1 - bool(others) :])[:, 0]
    if others:
        assert lead is not None
        panels = parts[0].subplots(1, max(2, len(others)), sharey=True, squeeze=False)[0]
        for axes in panels[len(others) :]:
            axes.set_visible(False)
        for axes, other in zip(panels, others, strict=False):
            tints = (_tint(result, lead), _tint(result, other))
            _single(axes, result, rows[lead], rows[other], (_name(lead), _name(other)), tints)
            axes.set_title(f"{_name(lead)} and {_name(other)}")
            axes.tick_params(labelleft=True)
        panels[0].set_ylabel(f"speed-up over {BASELINE} (log scale)")
        _headroom(panels[0])
    left, right = parts[-1].subplots(1, 2)
    _means(left, result)
    _medians(right, result)
    marks: list[Artist] = [Line2D([], [], label="the paper's", **PAPER)]
    if any(row.bound_s is not None for row in result.rows):
        marks.append(Line2D([], [], label="bound of all trees", **_BOUND))
    if any(one.accept is not None and not one.unit for one in result.comparisons):
        marks.append(Patch(color=ACCEPTED, label="accepted as the paper's"))
    parts[-1].legend(handles=marks, loc="outside lower left", ncols=3)
    return figure


def _headroom(axes: Axes) -> None:
    """Room for the legend at the top of a logarithmic axis."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * (top / bottom) ** 0.14)


def _six_seen(result: FigureResult, lead: str | None) -> str:
    told = [
        f"{ratio.median.mean:.2f} × {ratio.other.placement}"
        for ratio in result.ratios
        if ratio.own.placement == lead and ratio.other.placement in PLACEMENTS
    ]
    ours = result.ratio(result.arm("thalweg"), result.arm("global"))
    if lead is None or not told:
        return result.title
    own = "" if ours is None or lead != "global" else f", and thalweg at {ours.median.mean:.2f} × global"
    return f"The median configuration runs {_name(lead)} at {' and '.join(told)}{own}"


def _means(axes: Axes, result: FigureResult) -> None:
    """Mean inter-arrival times with their spread between pools; a diamond where the paper has one, and the bound."""
    rows = [row for row in result.rows if row.interarrival_s is not None]
    paper = {one.name: one.paper for one in result.comparisons if one.unit == "s"}
    largest = 0.0
    for y, row in enumerate(rows):
        value = row.interarrival_s
        assert value is not None
        axes.barh(y, value.mean, 0.62, color=_tint(result, row.arm.placement), alpha=0.85)
        if value.deviation is not None:
            axes.errorbar(value.mean, y, xerr=value.deviation, **_BARS)
        right = max(value.mean + (value.deviation or 0.0), paper.get(row.arm.placement, 0.0))
        largest = max(largest, right)
        axes.annotate(
            spread(value, 1), (right, y), xytext=(9, 0), textcoords="offset points", va="center", fontsize=9
        )  # fmt: skip
        if row.arm.placement in paper:
            axes.plot(paper[row.arm.placement], y, **PAPER)
    bounds = [row.bound_s.mean for row in rows if row.bound_s is not None]
    if bounds:
        axes.axvline(fmean(bounds), **_BOUND)
    axes.set_yticks(range(len(rows)), [_name(row.arm.placement) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, largest * 1.25)  # room for the numbers
    axes.grid(visible=False, axis="y")
    axes.set(title="Mean time between images", xlabel="seconds (bar: standard deviation between pools)")
    if result.pools == 1:
        axes.set_xlabel("seconds")


def _medians(axes: Axes, result: FigureResult) -> None:
    """Medians over configurations of how much faster global is than the paper's others, and others than global; what
    is accepted in grey."""
    ratios = [
        ratio
        for ratio in result.ratios
        if (ratio.own.placement == "global" and ratio.other.placement in PLACEMENTS)
        or (ratio.own.placement not in PLACEMENTS and ratio.other.placement == "global")
    ]
    paper = {one.name: one for one in result.comparisons if not one.unit}
    if not ratios:
        axes.text(0.5, 0.5, "global was not compared", ha="center", color="#777777", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for y, ratio in enumerate(ratios):
        published = paper.get(f"{ratio.own.placement} over {ratio.other.placement}")
        if published is not None and published.accept is not None:
            low, high = published.accept
            axes.barh(y, high - low, 0.7, left=low, color=ACCEPTED, zorder=1)
        each = list(ratio.median.by_pool.values())
        other = ratio.own.placement if ratio.own.placement not in PLACEMENTS else ratio.other.placement
        tint = _tint(result, other)
        if len(each) > 1:
            axes.plot(each, [y] * len(each), "|", color=tint, markersize=13, alpha=0.55)
        axes.plot(ratio.median.mean, y, "o", color=tint, markersize=8)
        axes.annotate(
            spread(ratio.median), (ratio.median.mean, y), xytext=(0, 12), textcoords="offset points", ha="center",
            fontsize=9,
        )  # fmt: skip
        if published is not None:
            axes.plot(published.paper, y, **PAPER)
    axes.axvline(1, color="#999999", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(
        range(len(ratios)), [f"{_name(one.own.placement)} over\n{_name(one.other.placement)}" for one in ratios]
    )
    axes.set_ylim(len(ratios) - 0.4, -0.75)
    left, right = axes.get_xlim()
    axes.set_xlim(min(0.95, left), right + 0.04 * (right - left))
    axes.grid(visible=False, axis="y")
    pools = " (line: a pool, dot: their mean)" if result.pools > 1 else ""
    axes.set(title="Median over configurations", xlabel=f"times as fast{pools}")


def _ten(result: FigureResult) -> Figure:
    both = []
    for name in result.placements():
        rows = {row.arm.tree: row for row in result.of(name) if row.speedup is not None}
        if name != BASELINE and {"binary", "left-deep"} <= rows.keys():
            both.append((name, rows["binary"], rows["left-deep"]))
    both = sorted(both, key=lambda one: one[0] != "global")[:PANELS]
    figure = new_figure(max(10.0, 4.6 * len(both)), 5.2)
    if not both:
        _title(figure, result, result.title)
        return _empty(figure, "no placement has finished with both trees")
    seen = []
    axes: Axes | None = None
    for i, (name, binary, left_deep) in enumerate(both):
        axes = figure.add_subplot(1, len(both), i + 1, sharey=axes)
        tint = _tint(result, name)
        _single(axes, result, binary, left_deep, ("binary", "left-deep"), (tint, "#777777"))
        axes.set_title(_name(name))
        axes.tick_params(labelleft=True)
        if i == 0:
            axes.set_ylabel(f"speed-up over {BASELINE}\nwith the same tree (log scale)")
        ratio = result.ratio(binary.arm, left_deep.arm)
        told = name in (*PLACEMENTS[2:], "thalweg") or len(both) == 1
        if ratio is not None and ratio.mean is not None and told:
            seen.append(f"{ratio.mean.mean:.2f} × left-deep for {_name(name)}")
    assert axes is not None
    _headroom(axes)
    _title(figure, result, f"Mean speed-up of the binary tree: {', '.join(seen)}" if seen else result.title)
    return figure


# --- Fig. 7, 8 and 9: over a parameter --------------------------------------------------------------

_BARS: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.2, "capsize": 3, "fmt": "none", "zorder": 4}


def _line(axes: Axes, at: Sequence[float], values: Sequence[Pooled], *, tint: str, name: str, errors: str) -> None:
    """Means with bars: ``deviation`` between pools, or ``error``: twice the mean's standard error."""
    heights = [(value.deviation if errors == "deviation" else ERRORS * (value.error or 0.0)) or 0.0 for value in values]
    axes.errorbar(
        at, [value.mean for value in values], yerr=heights if any(heights) else None, color=tint, marker="o",
        markersize=5.5, capsize=3, elinewidth=1.2, label=name,
    )  # fmt: skip


def _level(axes: Axes, result: FigureResult, row: Row) -> None:
    """A placement that the figure does not vary: one level all the way."""
    assert row.speedup is not None
    axes.axhline(
        row.speedup.mean, color=_tint(result, row.arm.placement), linewidth=1.5, linestyle=(0, (5, 3)),
        label=_name(row.arm.placement), zorder=1,
    )  # fmt: skip


def _series(result: FigureResult, value_of: Callable[[Row], float | None]) -> dict[str, list[tuple[float | None, Row]]]:
    """By placement other than download-all, the rows with a speed-up and where they stand."""
    found: dict[str, list[tuple[float | None, Row]]] = {}
    for row in result.rows:
        if row.arm.placement != BASELINE and row.speedup is not None:
            found.setdefault(row.arm.placement, []).append((value_of(row), row))
    return found


def _over(axes: Axes, result: FigureResult, value_of: Callable[[Row], float | None]) -> None:
    """Mean speed-up over what the figure varies, one line a placement."""
    for name, points in _series(result, value_of).items():
        known = [(at, row.speedup) for at, row in points if at is not None and row.speedup is not None]
        if known:
            ats, values = zip(*sorted(known, key=lambda one: one[0]), strict=True)
            _line(axes, ats, values, tint=_tint(result, name), name=_name(name), errors="deviation")
        else:
            _level(axes, result, points[0][1])
    axes.axhline(1, color="#999999", linewidth=1, linestyle=(0, (1, 2)), label=BASELINE, zorder=1)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    bars = "\n(bars: standard deviation between pools)" if result.pools > 1 else ""
    axes.set_ylabel(f"mean speed-up over {BASELINE}{bars}")


def _changes(axes: Axes, result: FigureResult, value_of: Callable[[Row], float | None], usual: str) -> None:
    """How mean speed-ups change against the usual value on the same configurations, pool by pool."""
    for name, points in _series(result, value_of).items():
        at: list[float] = []
        values: list[Pooled] = []
        reference = result.arm(name)
        for where, row in points:
            ratio = result.ratio(row.arm, reference)
            if where is None:
                continue
            if row.arm == reference:
                change = Pooled(mean=0.0, deviation=None, by_pool={})
            elif ratio is None or ratio.mean is None:
                continue
            else:
                change = pooled({seed: 100 * (value - 1) for seed, value in ratio.mean.by_pool.items()}) or Pooled(
                    mean=0.0, deviation=None, by_pool={}
                )
            at.append(where)
            values.append(change)
        if len(at) > 1:
            order = np.argsort(at)
            _line(
                axes, [at[i] for i in order], [values[i] for i in order], tint=_tint(result, name), name=_name(name),
                errors="error",
            )  # fmt: skip
    axes.axhline(0, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    bars = "\n(bars: two standard errors)" if result.pools > 1 else ""
    axes.set(title=f"Change against {usual}", ylabel=f"change of the mean speed-up (%){bars}")


def _two_panels(result: FigureResult, seen: str) -> tuple[Figure, Axes, Axes]:
    figure = new_figure(10.5, 5.0)
    _title(figure, result, seen)
    left, right = figure.subplots(1, 2)
    return figure, left, right


def _legend_below(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5)


def _seven(result: FigureResult) -> Figure:
    def k(row: Row) -> float | None:
        return None if row.arm.k is None else float(row.arm.k)

    base = result.arm("local")
    found = {row.arm.k: result.ratio(row.arm, base) for row in result.of("local") if row.arm != base}
    changes = {k: ratio.mean.mean - 1 for k, ratio in found.items() if ratio is not None and ratio.mean is not None}
    seen = result.title
    if changes:
        largest = max(changes, key=lambda k: abs(changes[k]))
        seen = (
            f"More hosts to choose from change local's mean speed-up by {changes[largest]:+.1%} at most (k = {largest})"
        )
    figure, left, right = _two_panels(result, seen)
    _over(left, result, k)
    left.set_title("Speed-up")
    _legend_below(figure, left)
    right.axhspan(-100 * SAME, 100 * SAME, color="#eeeeee", zorder=0)
    _changes(right, result, k, f"k = {result.k}")
    low, high = right.get_ylim()
    right.set_ylim(min(low, -120 * SAME), max(high, 150 * SAME))
    right.annotate(
        f"within {SAME:.0%}", (1, 100 * SAME), xycoords=("axes fraction", "data"), xytext=(-4, -4),
        textcoords="offset points", ha="right", va="top", color="#777777", fontsize=9,
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xlabel("k: random hosts considered besides the neighbours'")
        axes.set_xticks(sorted({row.arm.k for row in result.rows if row.arm.k is not None}) or [0])
    return figure


def _eight(result: FigureResult) -> Figure:
    figure, left, right = _two_panels(result, _eight_seen(result))
    series = _series(result, lambda row: float(row.arm.servers))
    counts = sorted({row.arm.servers for row in result.rows})
    for i, (name, points) in enumerate(series.items()):
        shift = 1 + 0.025 * (i - (len(series) - 1) / 2)  # bars beside each other
        at = [row.arm.servers * shift for _, row in points]
        values = [row.speedup for _, row in points if row.speedup is not None]
        _line(left, at, values, tint=_tint(result, name), name=_name(name), errors="deviation")
    left.axhline(1, color="#999999", linewidth=1, linestyle=(0, (1, 2)), label=BASELINE, zorder=1)
    left.set(title="Speed-up", ylabel=f"mean speed-up over {BASELINE}", ylim=(0, None))
    if result.pools > 1:
        left.set_ylabel(f"mean speed-up over {BASELINE}\n(bars: standard deviation between pools)")
    _legend_below(figure, left)
    lead = "global" if "global" in series else next(reversed(series), "global")
    shown = [name for name in series if name != lead]
    for i, other in enumerate(shown):
        above = other in OURS and lead == "global"  # what it is beside is what is told of it
        ratios = over_servers(result, other, lead) if above else over_servers(result, lead, other)
        shift = 1 + 0.025 * (i - (len(shown) - 1) / 2)
        if ratios:
            at = [servers * shift for servers in ratios]
            _line(
                right,
                at,
                list(ratios.values()),
                tint=_tint(result, other),
                name=f"{_name(other)} over {lead}" if above else f"{_name(lead)} over {_name(other)}",
                errors="deviation",
            )
    right.axhline(1, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    right.set(title="One over another", ylabel="ratio of mean speed-ups")
    if shown:
        right.legend(loc="upper left")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_xlim(counts[0] * 0.85, counts[-1] * 1.18)
        axes.set_xlabel("servers (log scale)")
    return figure


def _eight_seen(result: FigureResult) -> str:
    told = []
    for other in ("one-shot", "local"):
        ratios = over_servers(result, "global", other)
        if len(ratios) > 1:
            few, many = min(ratios), max(ratios)
            told.append(f"{other} {ratios[few].mean:.2f} × at {few} servers, {ratios[many].mean:.2f} × at {many}")
    return f"global over {'; over '.join(told)}" if told else result.title


def _nine(result: FigureResult) -> Figure:
    def period_min(row: Row) -> float | None:
        return None if row.arm.period_s is None else row.arm.period_s / 60

    known = over_periods(result)
    best = max(known, key=lambda period_s: known[period_s].mean) if len(known) > 1 else None
    seen = f"global is fastest with a period of {minutes(best)}" if best else result.title
    known = over_periods(result, "thalweg")
    if best and len(known) > 1:
        seen += f", thalweg with {minutes(max(known, key=lambda period_s: known[period_s].mean))}"
    figure, left, right = _two_panels(result, seen)
    for axes in (left, right):
        axes.axvspan(5, 10, color="#eeeeee", zorder=0, label="the paper's best" if axes is left else None)
    _over(left, result, period_min)
    left.set_title("Speed-up")
    _legend_below(figure, left)
    _changes(right, result, period_min, label("9", result.arm("global") or result.rows[0].arm).removeprefix("global, "))
    ticks = sorted({period_s / 60 for period_s in PERIODS_S} | {p for row in result.rows if (p := period_min(row))})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [shortened(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("relocation period (min, log scale)")
    return figure


def _ablation(result: FigureResult) -> Figure:
    arm = result.arm("thalweg")
    ours = None if arm is None else result.row(arm).of_global
    seen = result.title if ours is None else f"thalweg takes {ours.mean:.2f} of global's time between images"
    figure = new_figure(13.5, height(result))
    _title(figure, result, seen)
    draw_ablation(figure, result)
    return figure


_DRAWN: Mapping[str, Callable[[FigureResult], Figure]] = {
    "6": _six,
    "7": _seven,
    "8": _eight,
    "9": _nine,
    "10": _ten,
    ABLATION: _ablation,
}
