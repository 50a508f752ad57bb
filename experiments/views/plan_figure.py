"""Picture of a scenario: rates and delays between hosts, and the rates over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from thalweg.experiments.command import clipped
from thalweg.experiments.networks.plan import EventPlan, Plan, matrix, sampled_rates
from thalweg.experiments.views.style import COLOURS, INK, new_figure, round_ticks, styled
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

STEPS = 240  # steps of a time line, about three pixels wide
NAMED = 10  # most hosts of a matrix with figures in its cells
LANES = 14  # most lines of events; if lines for the hosts of a churn would be more, the hosts share a line
SWING = 8.0  # a host's colour shows from 1/SWING to SWING times the usual rate
LETTER = 0.0075  # width of a letter in a bar, as a share of the time line's width
KINDS = {"change": COLOURS[4], "outage": COLOURS[1], "flap": COLOURS[3], "partition": COLOURS[0], "churn": COLOURS[2]}
UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))

Matrix = npt.NDArray[np.float64]


def draw_plan(plan: Plan, path: Path) -> None:
    """Write the picture of a plan. Raises UsageError if the picture cannot be written."""
    with styled():
        figure = plan_figure(plan)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:  # ValueError: the ending names no format of pictures
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot write {path}: {why}; choose another --out, ending in .png") from None


def plan_figure(plan: Plan) -> Figure:
    """Return a figure with matrices of rate and delay for every network.

    If rates or hosts change, rates, events and hosts over time are drawn below.
    """
    changing = bool(plan.scenario.traces or plan.events)
    hosts = len(plan.scenario.hosts)
    lanes = _lanes(plan) if changing else []
    heights = [2.0, *([0.5 + 0.27 * len(lanes)] if lanes else []), max(1.6, 0.6 + 0.135 * hosts)] if changing else []
    further = sorted({entry.link.via for entry in plan.links} - {NET})
    side = min(5.2, max(3.6, 0.18 * hosts)) * (1 + len(further))
    below = [sum(heights) + 0.5 * len(heights)] if changing else []
    figure = new_figure(11.0, side + sum(below) + 0.4)
    parts = figure.subfigures(1 + len(below), 1, squeeze=False, height_ratios=[side, *below])[:, 0]
    for via, part in zip((NET, *further), parts[0].subfigures(1 + len(further), 1, squeeze=False)[:, 0], strict=True):
        _matrices(plan, via, part)
    if changing:
        changed, usual = sampled_rates(plan, STEPS)
        span_s = plan.until_s
        unit_s, unit = (3600.0, "h") if span_s > 4 * 3600 else (60.0, "min") if span_s > 300 else (1.0, "s")
        grid = parts[1].subplots(len(heights), 2, squeeze=False, height_ratios=heights, width_ratios=(1, 0.018))
        _rates(grid[0, 0], changed, plan.until_s / unit_s)
        if lanes:
            _events(grid[1, 0], lanes, unit_s, plan.until_s)
        for aside in grid[:-1, 1]:
            aside.axis("off")
        _over_hosts(grid[-1, 0], grid[-1, 1], plan, changed, usual, plan.until_s / unit_s)
        for axes in grid[:, 0]:
            axes.set_xlim(0, plan.until_s / unit_s)
        grid[-1, 0].set_xlabel(f"emulated time ({unit})")
    title = f"{plan.scenario.name}: {hosts} hosts"
    if plan.scenario.time_scale != 1:
        title += f", time scale {plan.scenario.time_scale:g}"
    figure.suptitle(title, fontsize=13, fontweight="bold")
    return figure


# --- matrices -----------------------------------------------------------------------------------------


def _matrices(plan: Plan, via: str, part: SubFigure) -> None:
    """Draw the matrices of the links of one network."""
    links = [entry for entry in plan.links if entry.link.via == via]
    rates = matrix(plan, {entry.link: entry.mean_bps for entry in links}, via)
    delays = matrix(plan, {entry.link: entry.delay_s * 1e3 for entry in links}, via)
    over = "" if via == NET else f" over {via}"
    factor, unit = next((pair for pair in UNITS if np.nanmedian(rates) >= pair[0]), UNITS[-1])
    delayed = bool(np.nanmax(delays, initial=0.0) > 0)
    left, right = part.subplots(1, 2)
    names = list(plan.scenario.hosts)
    _heat(left, part, rates / factor, names, f"Mean rate{over} ({unit})", "viridis", logarithmic=True)
    if delayed:
        _heat(right, part, delays, names, f"One-way delay{over} (ms)", "YlOrRd", logarithmic=False)
    else:
        right.axis("off")
        right.text(0.5, 0.5, f"no link{over} has a delay", ha="center", va="center", color="#777777")


def _heat(
    axes: Axes, part: SubFigure, values: Matrix, names: Sequence[str], title: str, colours: str, *, logarithmic: bool
) -> None:
    from matplotlib.colors import LogNorm, Normalize

    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if logarithmic and low > 0 and high / low > 10:
        norm: Normalize = LogNorm(low, high)
    else:
        norm = Normalize(0.0, high if high > low else 2 * high or 1.0)
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, norm=norm)
    axes.set_title(title)
    axes.grid(False)
    size = 9 if len(names) <= 12 else max(5.0, 8.6 - 0.06 * len(names))
    labels = [clipped(name, 12) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=45 if len(names) <= NAMED else 90, fontsize=size,
                    ha="right" if len(names) <= NAMED else "center", rotation_mode="anchor" if len(names) <= NAMED
                    else "default")  # fmt: skip
    axes.set_yticks(range(len(names)), labels, fontsize=size)
    axes.tick_params(length=0)
    axes.set(xlabel="to", ylabel="from")
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = part.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
    if isinstance(norm, LogNorm):
        round_ticks(bar.ax.yaxis)
    bar.outline.set_visible(False)
    if len(names) <= NAMED:
        for (row, column), value in np.ndenumerate(values):
            if math.isfinite(value):
                shade = image.cmap(norm(value))
                dark = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] < 0.55
                axes.text(column, row, _figure(value), ha="center", va="center", fontsize=7.5,
                          color="white" if dark else INK)  # fmt: skip


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


# --- over time ----------------------------------------------------------------------------------------


def _rates(axes: Axes, changed: Matrix, until: float) -> None:
    """Draw the median, the middle half and the middle nine tenths of the links' rates. A cut link counts as 0."""
    factor, unit = next((pair for pair in UNITS if np.median(changed) >= pair[0]), UNITS[-1])
    values = changed / factor
    at = np.linspace(0.0, until, values.shape[1] + 1)
    positive = values[values > 0] if (values > 0).any() else np.ones(1)
    least, most = np.quantile(positive, [0.02, 0.98])
    logarithmic = most > 20 * least
    edge = [np.append(row, row[-1]) for row in np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)]
    low, quarter, middle, upper, high = (np.maximum(row, least / 2) if logarithmic else row for row in edge)
    tint = COLOURS[0]
    axes.fill_between(at, low, high, step="post", color=tint, alpha=0.15, linewidth=0, label="9 of 10 links")
    axes.fill_between(at, quarter, upper, step="post", color=tint, alpha=0.3, linewidth=0, label="the middle half")
    axes.step(at, middle, where="post", color=tint, linewidth=1.6, label="median")
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(least / 2, None)  # cut links lie on the lower edge
    else:
        axes.set_ylim(0, None)
    axes.set(title="Rate of the links", ylabel=unit)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8.5, ncols=3, borderpad=0.2)


def _lanes(plan: Plan) -> list[tuple[str, EventPlan, list[tuple[float, float]]]]:
    """Return the label, event and spans of every line of events, in the file's order."""
    lanes: list[tuple[str, EventPlan, list[tuple[float, float]]]] = []
    several = sum(max(1, len(event.spans)) for event in plan.events) <= LANES
    for event in plan.events:
        if event.kind == "churn" and several and event.spans:
            lanes += [(f"churn: {host}", event, spans) for host, spans in sorted(event.spans.items())]
        else:
            spans = [span for host_spans in event.spans.values() for span in host_spans]
            lanes.append((f"{event.kind}: {event.who}", event, spans))
    return lanes


def _events(
    axes: Axes, lanes: Sequence[tuple[str, EventPlan, list[tuple[float, float]]]], unit_s: float, until_s: float
) -> None:
    for row, (_, event, spans) in enumerate(lanes):
        bars: list[tuple[float, float]] = [(start / unit_s, (stop - start) / unit_s) for start, stop in spans]
        crowded = event.kind == "churn" and len(event.spans) > 1 and sum(lane[1] is event for lane in lanes) == 1
        axes.broken_barh(
            bars, (row - 0.36, 0.72), color=KINDS[event.kind], alpha=0.25 if crowded else 0.85, linewidth=0
        )
        if bars and event.kind == "change":
            start, width = bars[0]
            inside = width * unit_s / until_s > LETTER * len(event.what)
            axes.annotate(event.what, (start if inside else start + width, row), xytext=(4, 0), va="center",
                          textcoords="offset points", fontsize=7.5, color=INK, in_layout=False)  # fmt: skip
    axes.set_yticks(range(len(lanes)), [clipped(label, 44) for label, _, _ in lanes], fontsize=8)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_title("Events")


def _over_hosts(axes: Axes, aside: Axes, plan: Plan, changed: Matrix, usual: Matrix, until: float) -> None:
    """Draw the total rate of every host's links over time, as multiples of its mean without events. Black: cut off."""
    import matplotlib as mpl
    from matplotlib.colors import LogNorm

    names = list(plan.scenario.hosts)
    ends = np.array([[name in link[:2] for link in plan.scenario.links] for name in names], dtype=float)
    share = (ends @ changed) / (ends @ usual).mean(axis=1, keepdims=True)
    colours = mpl.colormaps["RdBu"].with_extremes(bad="#111111")
    shown = np.ma.masked_where(share < 1 / (4 * SWING), share)
    image = axes.imshow(
        shown, aspect="auto", cmap=colours, norm=LogNorm(1 / SWING, SWING), interpolation="nearest",
        extent=(0.0, until, len(names) - 0.5, -0.5),
    )  # fmt: skip
    size = 8 if len(names) <= 12 else 6.5
    axes.set_yticks(range(len(names)), [clipped(name, 16) for name in names], fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    axes.set_title("Rate of each host's links, times its usual mean (black: cut off)")
    bar = axes.figure.colorbar(image, cax=aside, ticks=[1 / SWING, 1, SWING])
    bar.ax.set_yticklabels([f"× 1/{SWING:g}", "× 1", f"× {SWING:g}"])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
