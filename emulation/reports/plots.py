"""Plots of the requested and delivered rates of links, as SVG paths.

Every plot is 1000 wide and 100 high. No input or output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import format_rate, format_size
from thalweg.emulation.recording.recording import Column, Cut, Recording
from thalweg.emulation.reports.timeline import Bar, Scale, shades
from thalweg.middleware.errors import counted
from thalweg.middleware.network.view import Link

BINS = 400  # parts of a plot's width
ABOVE = 4.0  # beyond this ratio of requested to delivered rates, the scale is that of the delivered rates
ROOM = 1.1  # ratio of the top of the scale to the highest rate


class LinkSum(msgspec.Struct, frozen=True):
    """Sums of a link in the time shown. ``most_bps``: the highest mean of a sample, which counts as at least 0.05 s.

    ``waiting_bytes``: the most bytes seen waiting. ``rows``: the link's rows in the record.
    """

    link: Link
    sent_bytes: int
    drops: int
    most_bps: float
    waiting_bytes: int
    rows: npt.NDArray[np.int64]


class Plot(msgspec.Struct, frozen=True):
    """Plot of a link over time. ``area``: delivered. ``line``: requested. ``drops``: bars of dropped packets."""

    name: str
    area: str
    line: str
    drops: str
    top: str
    text: str
    shades: list[Bar]


def sums(record: Recording, scale: Scale) -> list[LinkSum]:
    """Return the sums of links that carried or dropped something in the time shown, the busiest first."""
    numbers, begin_s, end_s = record.column("link").astype(np.int64), *_times(record)
    shown = (end_s > scale.begin_s) & (begin_s < scale.end_s)
    order = np.argsort(numbers, kind="stable")
    order = order[shown[order]]
    link_sums = []
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else []:
        sent, seconds = record.column("sent_bytes")[rows], end_s[rows] - begin_s[rows]
        rates = sent * 8 / np.maximum(seconds, 0.05)
        link_sums.append(LinkSum(
            record.links[numbers[rows[0]]], int(sent.sum()), int(record.column("drops")[rows].sum()),
            float(rates.max()), int(record.column("waiting_bytes")[rows].max()), rows,
        ))  # fmt: skip
    return sorted(link_sums, key=lambda one: (-one.sent_bytes, -one.drops, one.link))


def pairs(found: Sequence[LinkSum]) -> list[LinkSum]:
    """Return the sums with both directions of a pair in sequence. The pair that carried most comes first."""
    both: dict[tuple[frozenset[str], str], list[LinkSum]] = {}
    for link_sum in found:
        both.setdefault((frozenset(link_sum.link.hosts), link_sum.link.via), []).append(link_sum)
    ranked = sorted(both.values(), key=lambda some: -sum(link_sum.sent_bytes for link_sum in some))
    return [link_sum for some in ranked for link_sum in some]


def _times(record: Recording) -> tuple[Column, Column]:
    return record.column("begin_s"), record.column("end_s")


class Asked:
    """Requested rates of links over time, from the record's changes."""

    def __init__(self, record: Recording) -> None:
        self._steps: dict[Link, list[tuple[float, LinkShape]]] = {}
        for change in record.changes:
            self._steps.setdefault(record.links[change.link], []).append((change.at_s, change.after))

    def steps(self, link: Link) -> list[tuple[float, float | None]]:
        """Return the steps of a link's requested rate: time and rate. None is no rate, 0 is a cut."""
        return [(at_s, _rate(shape)) for at_s, shape in self._steps.get(link, ())]


def _rate(shape: LinkShape) -> float | None:
    if not shape.passes:
        return 0.0
    return shape.set_bps if shape.rated else None


def plot(one: LinkSum, record: Recording, asked: Asked, cuts: Sequence[Cut], scale: Scale) -> Plot:
    """Return the plot of a link."""
    rates = _binned(record, one, scale, "sent_bytes") * 8 / ((scale.end_s - scale.begin_s) / BINS)
    steps = asked.steps(one.link)
    bounds = [*(at_s for at_s, _ in steps[1:]), math.inf]
    shown = [bps for (_, bps), end_s in zip(steps, bounds, strict=True) if bps is not None and end_s > scale.begin_s]
    delivered, wanted = float(rates.max(initial=0.0)), max(shown, default=0.0)
    top = ROOM * (delivered if wanted > ABOVE * delivered > 0 else max(delivered, wanted, 1.0))
    dropped = np.flatnonzero(_binned(record, one, scale, "drops") > 0)
    own = [cut for cut in cuts if cut.link == one.link]
    return Plot(
        name=one.link.text,
        area=_area(rates / top),
        line=" ".join(_line(steps, top, scale)),
        drops=" ".join(f"M{i * 1000 / BINS:g} 97h{1000 / BINS:g}" for i in dropped),
        top=format_rate(top / ROOM),
        text=sum_text(one, wanted if wanted > top else None),
        shades=shades(own, scale),
    )


def sum_text(one: LinkSum, above_bps: float | None = None) -> str:
    """Return a link's sums in words. ``above_bps``: a requested rate above the plot."""
    parts = [format_size(one.sent_bytes), f"at most {format_rate(one.most_bps)}"]
    if one.drops:
        parts.append(f"{counted(one.drops, 'packet')} dropped")
    if above_bps is not None:
        parts.append(f"asked {format_rate(above_bps)}, above this plot")
    return ", ".join(parts)


def _binned(record: Recording, one: LinkSum, scale: Scale, name: str) -> Column:
    """Return a sum over time in ``BINS`` parts of the time shown. A sample counts evenly over its time."""
    begin_s, end_s = (column[one.rows] for column in _times(record))
    values = record.column(name)[one.rows]
    # the running sum at the bounds of the bins. It rises during samples and is constant between samples
    order = np.argsort(begin_s)
    begin_s, end_s, values = begin_s[order], end_s[order], values[order]
    total = np.concatenate([[0.0], np.cumsum(values)])
    times = np.stack([begin_s, end_s], axis=1).ravel()
    heights = np.stack([total[:-1], total[1:]], axis=1).ravel()
    bounds = np.linspace(scale.begin_s, scale.end_s, BINS + 1)
    binned: Column = np.diff(np.interp(bounds, np.maximum.accumulate(times), heights))
    return binned


def _area(shares: Column) -> str:
    """Return steps, closed at the bottom. Equal neighbours are one step."""
    parts, width, last = ["M0 100"], 1000 / BINS, 0.0
    for i, share in enumerate(shares):
        height = round(100 - 100 * min(float(share), 1.0), 1)
        if i == 0 or height != last:
            parts.append(f"H{i * width:g}V{height:g}")
            last = height
    return "".join([*parts, "H1000V100Z"])


def _line(steps: Sequence[tuple[float, float | None]], top: float, scale: Scale) -> Iterator[str]:
    """Yield the pieces of the line of requested rates. The line is broken if there is no rate."""
    bounds = [*(at_s for at_s, _ in steps[1:]), scale.end_s]
    shown = [
        (10 * scale.at(at_s), 10 * scale.at(end_s), bps)
        for (at_s, bps), end_s in zip(steps, bounds, strict=True)
        if end_s >= scale.begin_s and at_s <= scale.end_s
    ]
    pen = False
    column, bounds_of = -1, 1000 / (3 * BINS)
    for begin, end, bps in shown:
        if bps is None:
            pen = False
            continue
        if pen and end < 1000 and int(begin / bounds_of) == int(end / bounds_of) == column:
            continue  # the steps are too close to be drawn
        column = int(begin / bounds_of)
        height = 100 - 100 * min(bps / top, 1.0)
        yield f"{'V' if pen else f'M{begin:.1f} '}{height:.1f}H{end:.1f}"
        pen = True
