"""Pictures of the paper's figures and of the ablation, with marks at the paper's published values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from thalweg.experiments.papers.plots import (
    ACCEPTED,
    BARS,
    GREY,
    ONE,
    PALE,
    PAPER,
    Curve,
    Palette,
    Result,
    bars,
    changes,
    empty,
    legend_below,
    line,
    log_axis,
    named_rows,
    ratio_dots,
    say,
    series_of,
    short,
    side_by_side,
    speedups,
    title,
    two_panels,
)
from thalweg.experiments.papers.ranganathan1998.ablation import grouped, says, steps
from thalweg.experiments.papers.ranganathan1998.striped import INTERFACES, bars_of
from thalweg.experiments.papers.ranganathan1998.study import KS, OURS, PERIODS, PLACEMENTS, SAME, SERVERS, TREES
from thalweg.experiments.records.analysis import BASELINE
from thalweg.experiments.sweeps.simulations import minutes
from thalweg.experiments.views.style import COLOURS, INK, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOUND: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1.5)), "zorder": 4}
PANELS = 4  # single comparisons of Fig. 6 and 10 side by side; the first ones if there are more placements
LEFT_OUT = 2.6  # times the time of global: a longer bar is cut, and the number beside it is its length


# --- Fig. 6 and 10: single configurations -----------------------------------------------------------


def _six(result: Result, palette: Palette) -> Figure:
    from matplotlib.lines import Line2D

    curves = {
        name: Curve(rows[0], short(name), palette.tint(name)) for name, rows in series_of(result, "speedup").items()
    }
    lead = "global" if "global" in curves else next(reversed(curves), None)
    rivals = [name for name in curves if name not in (lead, "thalweg-once")][:PANELS]
    wide = max(2, len(rivals))
    figure = new_figure(max(10.0, 4.0 * wide), (8.5 if rivals else 4.1) + 0.25 * max(0, len(result.rows) - 4))
    title(figure, result, _six_seen(result, lead))
    # two rows with separate layouts: a long name below takes no room from the panels above
    parts = figure.subfigures(1 + bool(rivals), 1, squeeze=False, height_ratios=[1.5, 1][-1 - bool(rivals) :])[:, 0]
    if rivals:
        assert lead is not None
        panels = parts[0].subplots(1, wide, sharey=True, squeeze=False)[0]
        pairs = [(f"{short(lead)} and {short(other)}", curves[lead], curves[other]) for other in rivals]
        side_by_side(panels, result, pairs, f"speed-up over {BASELINE} (log scale)")
    left, right = parts[-1].subplots(1, 2)
    _means(left, result, palette)
    _medians(right, result, palette)
    marks = _published_marks(result)
    if any(row.bound_s is not None for row in result.rows):
        marks.insert(1, Line2D([], [], label="bound of all trees", **_BOUND))
    parts[-1].legend(handles=marks, loc="outside lower left", ncols=3)
    return figure


def _published_marks(result: Result) -> list[Artist]:
    """Return the legend's entries for the paper's marks in a picture of ratios."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    accepted = any(comparison.accept is not None and not comparison.unit for comparison in result.comparisons)
    return [
        Line2D([], [], label="the paper's", **PAPER),
        *([Patch(color=ACCEPTED, label="accepted as the paper's")] if accepted else []),
    ]


def _six_seen(result: Result, lead: str | None) -> str:
    medians = [
        f"{ratio.median.mean:.2f} × {ratio.other.placement}"
        for ratio in result.ratios
        if ratio.own.placement == lead and ratio.other.placement in PLACEMENTS and result.definition.told(ratio)
    ]
    thalweg = result.ratio(result.arm("thalweg"), result.arm("global"))
    if lead is None or not medians:
        return result.title
    own = "" if thalweg is None or lead != "global" else f", and thalweg at {thalweg.median.mean:.2f} × global"
    return f"The median configuration runs {short(lead)} at {' and '.join(medians)}{own}"


def _means(axes: Axes, result: Result, palette: Palette) -> None:
    """Draw mean inter-arrival times beside the paper's, and the bound."""
    bars(axes, result, "interarrival_s", palette)
    bounds = [row.bound_s.mean for row in result.rows if row.interarrival_s is not None and row.bound_s is not None]
    if bounds:
        axes.axvline(fmean(bounds), **_BOUND)
    spreads = " (bar: standard deviation between pools)" if result.pools > 1 else ""
    axes.set(title="Mean time between images", xlabel=f"seconds{spreads}")


def _medians(axes: Axes, result: Result, palette: Palette) -> None:
    """Draw the median gain of global over the paper's other placements, and of other placements over global."""
    ratios = [
        ratio
        for ratio in result.ratios
        if result.definition.told(ratio) and "global" in (ratio.own.placement, ratio.other.placement)
    ]
    if not ratios:
        empty(axes, "global was not compared")
        return
    other = [ratio.own if ratio.own.placement not in PLACEMENTS else ratio.other for ratio in ratios]
    ratio_dots(axes, result, ratios, [palette.tint(arm.placement) for arm in other])
    pools = " (line: a pool, dot: their mean)" if result.pools > 1 else ""
    axes.set(title="Median over configurations", xlabel=f"times as fast{pools}")


def _ten(result: Result, palette: Palette) -> Figure:
    both: list[tuple[str, Curve, Curve]] = []
    seen = []
    for name, listed in sorted(series_of(result, "speedup").items(), key=lambda one: one[0] != "global"):
        rows = {row.arm.tree: row for row in listed}
        if set(TREES.values) <= rows.keys() and len(both) < PANELS:
            binary, left_deep = (rows[tree] for tree in TREES.values)
            curves = Curve(binary, "binary", palette.tint(name)), Curve(left_deep, "left-deep", GREY)
            both.append((short(name), *curves))
    figure = new_figure(max(10.0, 4.6 * len(both)), 5.2)
    if not both:
        title(figure, result, result.title)
        empty(figure.add_subplot(), "no placement has finished with both trees", va="center")
        return figure
    panels = figure.subplots(1, len(both), sharey=True, squeeze=False)[0]
    side_by_side(panels, result, both, f"speed-up over {BASELINE}\nwith the same tree (log scale)")
    for name, binary, left_deep in both:
        mean = result.gain(result.ratio(binary.row.arm, left_deep.row.arm))
        if mean is not None and (binary.row.arm.series in (*PLACEMENTS[2:], "thalweg") or len(both) == 1):
            seen.append(f"{mean.mean:.2f} × left-deep for {name}")
    title(figure, result, f"Mean speed-up of the binary tree: {', '.join(seen)}" if seen else result.title)
    return figure


# --- Fig. 7, 8 and 9: over a parameter --------------------------------------------------------------


def _seven(result: Result, palette: Palette) -> Figure:
    by_k = {
        at: ratio.mean - 1 for at, ratio in result.over_factor("local", None, "k").items() if at != result.usual("k")
    }
    seen = result.title
    if by_k:
        largest = max(by_k, key=lambda at: abs(by_k[at]))
        seen = f"More hosts to choose from change local's mean speed-up by {by_k[largest]:+.1%} at most (k = {largest})"
    figure, left, right = two_panels(result, seen)
    speedups(left, result, KS, palette)
    legend_below(figure, left)
    right.axhspan(-100 * SAME, 100 * SAME, color=PALE, zorder=0)
    changes(right, result, KS, f"k = {result.usual('k')}", palette)
    low, high = right.get_ylim()
    right.set_ylim(min(low, -120 * SAME), max(high, 150 * SAME))
    say(
        right, f"within {SAME:.0%}", (1, 100 * SAME), (-4, -4), xycoords=("axes fraction", "data"), ha="right",
        va="top", color=GREY,
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xlabel("k: random hosts considered besides the neighbours'")
        axes.set_xticks(sorted({row.arm.k for row in result.rows if row.arm.k is not None}) or [0])
    return figure


def _eight(result: Result, palette: Palette) -> Figure:
    figure, left, right = two_panels(result, _eight_seen(result))
    counts = sorted({row.arm.servers for row in result.rows})
    speedups(left, result, SERVERS, palette, room=1.0)
    legend_below(figure, left)
    series = series_of(result, "speedup")
    lead = "global" if "global" in series else next(reversed(series), "global")
    shown = [name for name in series if name != lead]
    for i, other in enumerate(shown):
        # ours over global, and global over each of the paper's
        own, under = (other, lead) if other in OURS and lead == "global" else (lead, other)
        if ratios := result.over_factor(own, under, "servers"):
            points = SERVERS.points(ratios, i, len(shown))
            line(right, points, palette.tint(other), f"{short(own)} over {short(under)}")
    right.axhline(1, zorder=1, **ONE)
    right.set(title="One over another", ylabel="ratio of mean speed-ups")
    if shown:
        right.legend(loc="upper left")
    for axes in (left, right):
        log_axis(axes, {count: str(count) for count in counts}, base=2)
        axes.set_xlim(counts[0] * 0.85, counts[-1] * 1.18)
        axes.set_xlabel("servers (log scale)")
    return figure


def _eight_seen(result: Result) -> str:
    parts = []
    for other in ("one-shot", "local"):
        ratios = result.over_factor("global", other, "servers")
        if len(ratios) > 1:
            few, many = min(ratios), max(ratios)
            parts.append(f"{other} {ratios[few].mean:.2f} × at {few} servers, {ratios[many].mean:.2f} × at {many}")
    return f"global over {'; over '.join(parts)}" if parts else result.title


def _nine(result: Result, palette: Palette) -> Figure:
    def best(name: str) -> str | None:
        known = result.over_factor(name, None, "period_s")
        return minutes(max(known, key=lambda period_s: known[period_s].mean)) if len(known) > 1 else None

    seen = result.title
    if paper := best("global"):
        seen = f"global is fastest with a period of {paper}"
        seen += f", thalweg with {period}" if (period := best("thalweg")) else ""
    figure, left, right = two_panels(result, seen)
    for axes in (left, right):
        axes.axvspan(5, 10, color=PALE, zorder=0, label="the paper's best" if axes is left else None)
    speedups(left, result, PERIODS, palette)
    legend_below(figure, left)
    usual = result.arm("global") or result.rows[0].arm
    label = result.study.label(result.definition, usual).removeprefix("global, ")
    changes(right, result, PERIODS, label, palette)
    ticks = sorted({at / 60 for at in {*PERIODS.values, *(row.arm.period_s for row in result.rows)} if at})
    for axes in (left, right):
        log_axis(axes, {tick: shortened(tick) for tick in ticks})
        axes.set_xlabel("relocation period (min, log scale)")
    return figure


# --- the parameters of the generated traces ---------------------------------------------------------


def _sensitivity(result: Result, palette: Palette) -> Figure:
    """Draw the medians of global over one-shot and of thalweg over global, by the generator's parameters."""
    by_pair = {}
    for own, other in (("global", "one-shot"), ("thalweg", "global")):
        settings = [row.arm.made for row in result.of("global")]
        pairs = (result.ratio(result.arm(own, made=setting), result.arm(other, made=setting)) for setting in settings)
        by_pair[own, other] = [ratio for ratio in pairs if ratio is not None]
    medians = {pair: [ratio.median.mean for ratio in ratios] for pair, ratios in by_pair.items() if ratios}
    spans = [f"{own} at {min(values):.2f} to {max(values):.2f} × {other}" for (own, other), values in medians.items()]
    figure, *panels = two_panels(result, f"By what traces are made by, {', '.join(spans)}" if spans else result.title)
    for axes, ((own, other), ratios) in zip(panels, by_pair.items(), strict=True):
        if not ratios:
            empty(axes, f"{own} was not compared with {other}")
            continue
        ratio_dots(axes, result, ratios, [palette.tint(own)] * len(ratios))
        named_rows(axes, [ratio.own.made for ratio in ratios])
        pools = " (line: a pool, dot: their mean)" if result.pools > 1 else ""
        axes.set(title=f"{own} over {other}", xlabel=f"times as fast in the median{pools}")
    figure.legend(handles=_published_marks(result), loc="outside lower left", ncols=2)
    return figure


# --- the ablation -----------------------------------------------------------------------------------


def _ablation(result: Result, palette: Palette) -> Figure:
    share = result.value("thalweg", "of_global")
    seen = result.title if share is None else f"thalweg takes {share.mean:.2f} of global's time between images"
    groups = {group for group, _ in grouped(result)}
    figure = new_figure(13.5, 1.9 + 0.27 * (len(result.rows) + 0.6 * len(groups)))
    title(figure, result, seen)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _variants(left, result, palette)
    _gap(right, result)
    return figure


def _variants(axes: Axes, result: Result, palette: Palette) -> None:
    y, ticks, before = 0.0, [], None
    usual, thalweg = result.value("global", "interarrival_s"), result.value("thalweg", "interarrival_s")
    rows = [(group, row) for group, row in grouped(result) if row.interarrival_s is not None]
    longest = max(row.interarrival_s.mean for _, row in rows)
    longest = longest if usual is None else min(longest, LEFT_OUT * usual.mean)
    for group, row in rows:
        value = row.interarrival_s
        if group != before:
            y += 0.75 if before is not None else 0.0
            at: Any = ("axes fraction", "data")
            say(axes, group, (0, y), (-6, 0), xycoords=at, ha="right", va="center", fontweight="bold")
            y, before = y + 0.85, group
        is_thalweg = not row.arm.variant and row.arm.placement == "thalweg"
        tint = palette.tint("thalweg") if is_thalweg else COLOURS[0]
        axes.barh(y, min(value.mean, longest), 0.68, color=tint, alpha=0.85)
        if value.deviation is not None and value.mean < longest:
            axes.errorbar(value.mean, y, xerr=value.deviation, **BARS | {"elinewidth": 1.1, "capsize": 2.5})
        right = min(value.mean + (value.deviation or 0.0), longest)
        label = f"{value.mean:.1f}" if row.of_global is None else f"{value.mean:.1f} s ({row.of_global.mean:.2f})"
        say(axes, label, (right, y), (6, 0), 8.5, va="center")
        ticks.append((y, says(row)))
        y += 1.0
    _rows(axes, ticks)
    axes.set_ylim(y - 0.3, -0.6)
    axes.set_xlim(0, longest * 1.3)
    if thalweg is not None:
        axes.axvline(thalweg.mean, color=palette.tint("thalweg"), linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    spreads = ", bar: standard deviation between pools" if result.pools > 1 else ""
    axes.set_title("Mean time between images, in brackets by global's")
    axes.set_xlabel(f"seconds{spreads}")


def _gap(axes: Axes, result: Result) -> None:
    gap_steps = steps(result)
    if not gap_steps:
        empty(axes, "nothing to tell the gap from")
        return
    before = 0.0
    for y, step in enumerate(gap_steps):
        mean = step.value.mean
        axes.barh(y, before, 0.6, color=ACCEPTED)
        axes.barh(y, mean - before, 0.6, left=before, color=COLOURS[0] if before else GREY, alpha=0.85)
        more = f"  ({mean - before:+.1f})" if before else ""
        say(axes, f"{mean:.1f} s{more}", (max(mean, before), y), (6, 0), va="center")
        before = mean
    _rows(axes, [(float(y), f"{step.says}\n{step.why}".rstrip()) for y, step in enumerate(gap_steps)])
    axes.set_ylim(len(gap_steps) - 0.4, -0.6)
    axes.set_xlim(0, max(step.value.mean for step in gap_steps) * 1.3)
    axes.set_title("What the gap to the bound is made of")
    axes.set_xlabel("seconds between images")


# --- several trees at once --------------------------------------------------------------------------


def _stripes(result: Result, palette: Palette) -> Figure:
    """Draw the time between images over the bound, by the number of trees, for either model of interfaces."""
    several, single = (
        result.value("thalweg", "interarrival_s", variant=f"independent-{number}") for number in ("auto", 1)
    )
    seen = result.title
    if several is not None and single is not None:
        seen = f"On independent links as many trees as repay take {several.mean / single.mean:.2f} of the time of one"
    figure, *panels = two_panels(result, seen)
    for axes, interface in zip(panels, reversed(INTERFACES), strict=True):
        listed = bars_of(result, interface)
        if not listed:
            empty(axes, f"nothing was run on {interface} interfaces")
            continue
        for place, (_, value, bound) in enumerate(listed):
            axes.bar(place, value.mean, 0.62, color=palette.tint("thalweg"), alpha=0.85)
            if value.deviation is not None:
                axes.errorbar(place, value.mean, yerr=value.deviation, **BARS | {"elinewidth": 1.1, "capsize": 2.5})
            say(axes, f"{value.mean:.1f}", (place, value.mean + (value.deviation or 0.0)), (0, 3), 8.5, ha="center")
            if bound is not None:
                axes.hlines(bound.mean, place - 0.42, place + 0.42, **_BOUND)
        axes.set_xticks(range(len(listed)), [name for name, _, _ in listed])
        axes.set(title=f"{interface} interfaces", xlabel="trees", ylabel="seconds between images (dots: bound)")
        axes.set_ylim(0, None)
    return figure


def _rows(axes: Axes, ticks: list[tuple[float, str]]) -> None:
    named_rows(axes, [text for _, text in ticks], [at for at, _ in ticks], fontsize=8.5)
    axes.tick_params(axis="y", length=0)


DRAWN: Mapping[str, Callable[[Result, Palette], Figure]] = {
    "6": _six,
    "7": _seven,
    "8": _eight,
    "9": _nine,
    "10": _ten,
    "sensitivity": _sensitivity,
    "ablation": _ablation,
    "stripes": _stripes,
}
