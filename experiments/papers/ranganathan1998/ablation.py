"""What each part of ``thalweg`` brings, and what is left above the bound: tables and pictures of the ablation.

Every row is ``thalweg`` with one thing changed (see ``variants``), on the same configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.experiments.papers.ranganathan1998.claims import spread
from thalweg.experiments.papers.ranganathan1998.definitions import FigureResult, Pooled, Row
from thalweg.experiments.views.tables import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS = {  # placements and variants, in the order in which they are read
    "cost and shape": ("global", "global-period", "fixed-path", "fixed", "busiest", "thalweg"),
    "how often it plans": ("thalweg-once", "every-600", "every-300", "every-120", "every-30", "every-10"),
    "what is worth a change": ("gain-0", "gain-20"),
    "what it goes by": ("timed-out", "last", "no-probes", "ahead", "exact", "once-exact", "steady"),
    "forecaster": ("forecaster-last", "forecaster-mean", "forecaster-median", "forecaster-exponential"),
}
SAYS = {
    "global": "global: given tree, critical path, every 10 min",
    "thalweg": "thalweg: periods, every minute, 5 %, forecasts",
    "thalweg-once": "thalweg-once",
}


def grouped(result: FigureResult) -> Iterator[tuple[str, Row]]:
    """Every row there is, with its group: those of ``GROUPS`` in their order, then others."""
    rows = {row.arm.variant or row.arm.placement: row for row in result.rows}
    for group, names in GROUPS.items():
        for name in names:
            if name in rows:
                yield group, rows.pop(name)
    for row in rows.values():
        yield "others", row


def says(row: Row) -> str:
    """What a row is of."""
    return row.label if row.arm.variant else SAYS.get(row.arm.placement, row.label)


def ablation_cells(result: FigureResult) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table, as text."""
    heads = ["variant", "mean s", "of global", "of thalweg", "plans", "trees", "moves", "probes MB", "ms a plan"]
    made = []
    for _, row in grouped(result):
        probes_mb = None if row.probe_bytes is None else row.probe_bytes.mean / 1e6
        plan_ms = None if row.planning_s is None else row.planning_s.mean * 1e3
        made.append(
            [
                says(row),
                NONE if row.interarrival_s is None else spread(row.interarrival_s, 1),
                *(_mean(value, 2) for value in (row.of_global, row.of_thalweg)),
                *(_mean(value, 1) for value in (row.plans, row.reshapings, row.relocations)),
                NONE if probes_mb is None else f"{probes_mb:.1f}",
                NONE if plan_ms is None else f"{plan_ms:.0f}",
            ]
        )
    return heads, made


def _mean(value: Pooled | None, digits: int) -> str:
    return NONE if value is None else f"{value.mean:.{digits}f}"


class Step(msgspec.Struct, frozen=True):
    """A time between images on the way from the bound up, and what makes it longer than the one before."""

    says: str
    why: str
    value: Pooled


def steps(result: FigureResult) -> list[Step]:
    """From the bound to what is reached, and beyond that what is reached with less; those that there are."""

    def of(name: str, variant: str, field: str) -> Pooled | None:
        arm = result.arm(name, variant=variant)
        value: Pooled | None = None if arm is None else getattr(result.row(arm), field)
        return value

    found = [
        ("bound, links as they begin", "", of("thalweg", "steady", "bound_s")),
        (
            "best tree found, as predicted",
            "one tree for a mixture; growing images",
            of("thalweg", "steady", "predicted_s"),
        ),
        (
            "it, on links that stay so",
            "transfers of a host that do not interlock",
            of("thalweg", "steady", "interarrival_s"),
        ),
        ("exact knowledge of the next 5 min", "links that change", of("thalweg", "ahead", "interarrival_s")),
        ("thalweg", "what is not known of them", of("thalweg", "", "interarrival_s")),
        ("thalweg-once", "not planning again", of("thalweg-once", "", "interarrival_s")),
    ]
    return [Step(said, why, value) for said, why, value in found if value is not None]


def gap_cells(result: FigureResult) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of what the gap between the bound and ``thalweg`` is made of."""
    made, before = [], None
    for step in steps(result):
        more = "" if before is None else f"{step.value.mean - before:+.1f}"
        made.append([step.says, spread(step.value, 1), more, step.why])
        before = step.value.mean
    return ["from the bound up", "mean s", "adds", "for"], made


# --- pictures ---------------------------------------------------------------------------------------

_BARS: dict[str, Any] = {"ecolor": "#333333", "elinewidth": 1.1, "capsize": 2.5, "fmt": "none", "zorder": 4}
OURS_COLOUR, OTHER_COLOUR, GREY = "#882255", "#0072B2", "#777777"
LEFT_OUT = 2.6  # times the time of global: a longer bar is cut, and its number says how long it is


def draw_ablation(figure: Figure, result: FigureResult) -> None:
    """Both pictures into a figure; see :func:`height`."""
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _variants(left, result)
    _gap(right, result)


def height(result: FigureResult) -> float:
    """Inches that the picture needs."""
    groups = {group for group, _ in grouped(result)}
    return 1.9 + 0.27 * (len(result.rows) + 0.6 * len(groups))


def _variants(axes: Axes, result: FigureResult) -> None:
    y, ticks, before = 0.0, [], None
    arm = result.arm("global")
    usual = None if arm is None else result.row(arm).interarrival_s
    known = [row.interarrival_s.mean for _, row in grouped(result) if row.interarrival_s is not None]
    longest = min(max(known), LEFT_OUT * usual.mean) if usual is not None else max(known)
    for group, row in grouped(result):
        value = row.interarrival_s
        if value is None:
            continue
        if group != before:
            y += 0.75 if before is not None else 0.0
            axes.annotate(
                group, (0, y), xycoords=("axes fraction", "data"), xytext=(-6, 0), textcoords="offset points",
                ha="right", va="center", fontsize=9, fontweight="bold",
            )  # fmt: skip
            y, before = y + 0.85, group
        ours = not row.arm.variant and row.arm.placement == "thalweg"
        axes.barh(y, min(value.mean, longest), 0.68, color=OURS_COLOUR if ours else OTHER_COLOUR, alpha=0.85)
        if value.deviation is not None and value.mean < longest:
            axes.errorbar(value.mean, y, xerr=value.deviation, **_BARS)
        right = min(value.mean + (value.deviation or 0.0), longest)
        told = f"{value.mean:.1f}" if row.of_global is None else f"{value.mean:.1f} s ({row.of_global.mean:.2f})"
        axes.annotate(told, (right, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5)
        ticks.append((y, says(row)))
        y += 1.0
    _rows(axes, ticks)
    axes.set_ylim(y - 0.3, -0.6)
    axes.set_xlim(0, longest * 1.3)
    mine = result.arm("thalweg")
    if mine is not None and (value := result.row(mine).interarrival_s) is not None:
        axes.axvline(value.mean, color=OURS_COLOUR, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    spreads = ", bar: standard deviation between pools" if result.pools > 1 else ""
    axes.set_title("Mean time between images, in brackets by global's")
    axes.set_xlabel(f"seconds{spreads}")


def _gap(axes: Axes, result: FigureResult) -> None:
    found = steps(result)
    if not found:
        axes.text(0.5, 0.5, "nothing to tell the gap from", ha="center", color=GREY, transform=axes.transAxes)
        axes.set_axis_off()
        return
    before = 0.0
    for y, step in enumerate(found):
        mean = step.value.mean
        axes.barh(y, before, 0.6, color="#e4e4e4")
        axes.barh(y, mean - before, 0.6, left=before, color=OTHER_COLOUR if before else GREY, alpha=0.85)
        axes.annotate(
            f"{mean:.1f} s" + (f"  ({mean - before:+.1f})" if before else ""), (max(mean, before), y), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
        before = mean
    _rows(axes, [(float(y), f"{step.says}\n{step.why}".rstrip()) for y, step in enumerate(found)])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(0, max(step.value.mean for step in found) * 1.3)
    axes.set_title("What the gap to the bound is made of")
    axes.set_xlabel("seconds between images")


def _rows(axes: Axes, ticks: list[tuple[float, str]]) -> None:
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
