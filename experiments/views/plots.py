"""Pictures of one run: when images arrived, how far apart, what the links carried, what the hosts spent, who
moved where and when, and how good the bandwidth estimates were.

A run's event log is read in batches, with series thinned to a few hundred points, so that memory does not grow
with its length but by a few numbers for every delivery and move. Every placement has the same colour in all
pictures of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from thalweg.experiments.records.analysis import natural
from thalweg.experiments.records.moves import (
    HOW,
    SPAN_S,
    Move,
    Timeline,
    move_figures,
    read_estimates,
    read_moves,
    read_rows,
)
from thalweg.experiments.records.records import EVENTS, PLOTS, RunInfo
from thalweg.experiments.records.trees import Change, Life, lives, read_changes
from thalweg.middleware.errors import RunError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

BUCKETS = 400  # points of a thinned series: about one for each pixel column of a small multiple
LINKS = 8  # small multiples a placement
USED = 0.02  # a link that carried less, relative to the busiest, carried demands and heartbeats only
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")  # Okabe and Ito
INK = "#333333"
HOST_COLOURS = (  # Tol's muted and bright ones, neighbours in the list far apart
    "#4477AA", "#EE8866", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#997700", "#BBCC33", "#332288", "#EE99AA",
    "#44AA99", "#882255", "#99DDFF", "#555555",
)  # fmt: skip
CLIENT_COLOUR = "#BBBBBB"
POINTS = 4_000  # of a scatter plot; of more, every second, fourth, eighth … is shown
SHORT_S = 180.0  # a placement that took no longer is shown in seconds
CROWDED = 60  # moves of a placement; with more, bars are too short to be named and marks shrink
MARKS = {"barrier": "v", "epoch": "D", "moved": "o", "stayed": "x"}  # of a handover, at its operator's row
_CHANGE: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}  # of a line across all rows
NAME: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "in_layout": False}  # of a bar
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 130,
}


class _Thinned:
    """Means of a series over ``BUCKETS`` equal spans of 0 … ``end_s``."""

    def __init__(self, end_s: float, columns: int) -> None:
        self.end_s = max(end_s, 1e-9)
        self.total = np.zeros((columns, BUCKETS))
        self.count = np.zeros(BUCKETS)

    def add(self, t_s: float, values: Sequence[float]) -> None:
        bucket = min(BUCKETS - 1, max(0, int(t_s / self.end_s * BUCKETS)))
        self.total[:, bucket] += values
        self.count[bucket] += 1

    def series(self) -> tuple[np.ndarray, np.ndarray]:
        """Times of shape (n,) and means of shape (columns, n) of the spans that have values."""
        known = self.count > 0
        t_s = (np.arange(BUCKETS) + 0.5) * self.end_s / BUCKETS
        return t_s[known], self.total[:, known] / self.count[known]


class _Load:
    """A host's CPU share (sum, least, largest) and largest resident memory."""

    def __init__(self) -> None:
        self.count, self.total, self.least, self.largest, self.rss_bytes = 0, 0.0, float("inf"), 0.0, 0

    def add(self, cpu: float, rss_bytes: int) -> None:
        self.count += 1
        self.total += cpu
        self.least = min(self.least, cpu)
        self.largest = max(self.largest, cpu)
        self.rss_bytes = max(self.rss_bytes, rss_bytes)


class _Sampled:
    """At most ``POINTS`` of a stream of points, evenly spaced in its order."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self.seen, self.stride = 0, 1

    def add(self, point: tuple[float, float]) -> None:
        if self.seen % self.stride == 0:
            self.points.append(point)
        self.seen += 1
        if len(self.points) > POINTS:
            del self.points[1::2]
            self.stride *= 2


class RunSeries:
    """What the pictures show of a run, by placement: arrivals, the busiest links, the hosts' load, the moves.

    ``arrivals_s``: sorted emulated times of the deliveries. ``links``: for the at most ``LINKS`` links that
    moved most bytes, asked and delivered bits per second. ``load``: CPU share and resident bytes by host.
    ``moves``: every handover, in the order of time; ``changes``: every change of the tree; ``timelines``: deliveries
    around the moves; ``places``: where the nodes were at the start. ``estimates``: (truth, estimate) in bit/s by how
    it was measured.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.arrivals_s: dict[str, np.ndarray] = {}
        self.links: dict[str, dict[tuple[str, str], _Thinned]] = {}
        self.load: dict[str, dict[str, _Load]] = {}
        self.end_s: dict[str, float] = {}
        self.moves: dict[str, list[Move]] = {}
        self.changes: dict[str, list[Change]] = {}
        self.timelines: dict[str, Timeline] = {}
        self.places: dict[str, dict[str, str]] = {}
        self.estimates: dict[str, _Sampled] = {}
        moved = self._first_pass(folder / EVENTS)
        self._moves(folder, info.time_scale)
        self.placements = [*(name for name in info.placements if name in self.end_s)]
        self.placements += sorted(self.end_s.keys() - set(self.placements))
        for name in self.placements:
            busiest = sorted(moved.get(name, {}).items(), key=lambda item: (-item[1], item[0]))[:LINKS]
            used = [link for link, carried in busiest if carried >= USED * busiest[0][1] > 0]
            self.links[name] = {link: _Thinned(self.end_s[name], 2) for link in used}
            self.load[name] = {}
        self._second_pass(folder / EVENTS, info.time_scale)

    def _first_pass(self, events: Path) -> dict[str, dict[tuple[str, str], float]]:
        """Arrivals, every placement's last time, and how much each link moved (in no unit: equal intervals)."""
        moved: dict[str, dict[tuple[str, str], float]] = {}
        arrivals: dict[str, list[float]] = {}
        columns = ["placement", "host", "t_s", "kind", "peer", "value"]
        for name, host, t_s, kind, peer, value in read_rows(events, columns, ["delivered", "link", "host_load"]):
            self.end_s[name] = max(self.end_s.get(name, 0.0), t_s)
            if kind == "delivered":
                arrivals.setdefault(name, []).append(t_s)
            elif kind == "link" and peer is not None:
                links = moved.setdefault(name, {})
                links[(host, peer)] = links.get((host, peer), 0.0) + (value or 0.0)
        self.arrivals_s = {name: np.sort(np.array(times)) for name, times in arrivals.items()}
        return moved

    def _moves(self, folder: Path, time_scale: float) -> None:
        """Handovers, where everything began, and estimates; deliveries again when a timeline needs them."""
        events = folder / EVENTS
        for how, value, truth in read_estimates(events):
            self.estimates.setdefault(how, _Sampled()).add((truth, value))
        for move in read_moves(folder):
            self.moves.setdefault(move.placement, []).append(move)
            self.end_s[move.placement] = max(self.end_s.get(move.placement, 0.0), move.settled_s)
        for change in read_changes(folder):
            self.changes.setdefault(change.placement, []).append(change)
            self.end_s[change.placement] = max(self.end_s.get(change.placement, 0.0), change.at_s)
        if not self.moves and not self.changes:
            return
        for name, figures in move_figures(folder, time_scale).items():
            if figures.timeline_wall is not None:
                self.timelines[name] = figures.timeline_wall
        placed = msgspec.json.Decoder(_Placed)
        for name, _, text in read_rows(events, ["placement", "kind", "detail"], ["placed"]):
            self.places.setdefault(name, placed.decode(text or "{}").placement)

    def _second_pass(self, events: Path, time_scale: float) -> None:
        """The links' and the hosts' series; links are recorded in rates on the wire, so undo the time scale."""
        asked = msgspec.json.Decoder(_Asked)
        columns = ["placement", "host", "t_s", "kind", "peer", "size_bytes", "value", "detail"]
        for name, host, t_s, kind, peer, size, value, detail in read_rows(events, columns, ["link", "host_load"]):
            if value is None or name not in self.links:
                continue
            if kind == "host_load":
                self.load[name].setdefault(host, _Load()).add(value, size or 0)
            elif (link := self.links[name].get((host, peer))) is not None:
                asked_bps = asked.decode(detail or "{}").asked_bps
                link.add(t_s, (asked_bps / time_scale, value / time_scale))


class _Asked(msgspec.Struct):
    asked_bps: float = float("nan")


class _Placed(msgspec.Struct):
    placement: dict[str, str] = {}


def colour(placements: Sequence[str], name: str) -> str:
    """The colour of a placement: by its place among those of the run, so the same in every picture."""
    return COLOURS[list(placements).index(name) % len(COLOURS)]


def plot_run(folder: Path, info: RunInfo, stop: Event | None = None) -> list[Path]:
    """Draw a run's pictures into ``folder/plots`` and return their paths; a picture without data is not drawn.

    Safe beside other threads as long as they do not draw. ``stop``, once set, ends it before the next picture.
    Raises RunError when a file cannot be written.
    """
    import matplotlib as mpl

    series = RunSeries(folder, info)
    where = folder / PLOTS
    drawn: list[Path] = []
    try:
        where.mkdir(exist_ok=True)
        with mpl.rc_context(dict(mpl.rcParamsDefault) | STYLE):
            for name, figure in _figures(series, info):
                if stop is not None and stop.is_set():
                    break
                drawn.append(where / f"{name}.png")
                figure.savefig(drawn[-1])
    except OSError as error:
        raise RunError(f"{where} cannot be written: {error.strerror or error}; or use --no-plots") from error
    return drawn


def _figures(series: RunSeries, info: RunInfo) -> Iterator[tuple[str, Figure]]:
    if series.arrivals_s:
        yield "arrivals", _arrivals(series, info)
    if any(len(times) > 1 for times in series.arrivals_s.values()):
        yield "interarrival", _interarrival(series)
    for name in series.placements:
        if any(link.count.any() for link in series.links[name].values()):
            yield f"links-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}", _links(series, name)
    if any(series.load.values()):
        yield "hosts", _hosts(series)
    if series.moves or series.changes:
        yield "moves", _moves(series)
    if series.estimates:
        yield "estimates", _estimates(series)


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _arrivals(series: RunSeries, info: RunInfo) -> Figure:
    figure = new_figure(7.5, 4.2)
    axes = figure.add_subplot()
    for name in series.placements:
        times = series.arrivals_s.get(name)
        if times is not None:
            axes.step(
                np.concatenate(([0.0], times)) / 60,
                np.arange(len(times) + 1),
                where="post",
                color=colour(series.placements, name),
                label=name,
            )
    axes.set(title="Images at the client", xlabel="emulated time (min)", ylabel="images delivered", ylim=(0, None))
    axes.axhline(info.images, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"all {info.images}", (0, info.images), xycoords=("axes fraction", "data"), textcoords="offset points",
        xytext=(4, -3), ha="left", va="top", color="#777777", fontsize=9,
    )  # fmt: skip
    axes.set_xlim(0, None)
    axes.legend(loc="lower right")
    return figure


def _interarrival(series: RunSeries) -> Figure:
    figure = new_figure(7.5, 4.2)
    axes = figure.add_subplot()
    for name in series.placements:
        gaps = np.sort(np.diff(series.arrivals_s.get(name, np.empty(0))))
        gaps = gaps[gaps > 0]
        if len(gaps):
            share = np.arange(1, len(gaps) + 1) / len(gaps)
            tint = colour(series.placements, name)
            axes.step(gaps, share, where="post", color=tint, label=f"{name} (mean {shortened(gaps.mean())} s)")
            axes.axvline(gaps.mean(), color=tint, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(one_two_five())
    axes.xaxis.set_major_formatter(lambda value, _: shortened(value))
    axes.xaxis.minorticks_off()
    axes.set(
        title="Time between consecutive images", xlabel="inter-arrival time (emulated s, log scale)",
        ylabel="share of images at most this far apart", ylim=(0, 1.02),
    )  # fmt: skip
    axes.legend(loc="upper left", title="dashed: mean", alignment="left")
    return figure


def _links(series: RunSeries, name: str) -> Figure:
    links = {link: data for link, data in series.links[name].items() if data.count.any()}
    columns = 2 if len(links) > 1 else 1
    rows = -(-len(links) // columns)
    figure = new_figure(4.6 * columns + 0.4, 1.75 * rows + 1.1)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    top = 0.0
    for axes, ((source, target), data) in zip(grid.flat, links.items(), strict=False):
        t_s, values = data.series()
        start = max(0.0, t_s[0] - (np.median(np.diff(t_s)) if len(t_s) > 1 else t_s[0]))
        t_s = np.concatenate(([start], t_s))  # a sample stands for the interval that it ends
        asked, got = np.concatenate((values[:, :1], values), axis=1)
        tint = colour(series.placements, name)
        axes.fill_between(t_s / 60, got / 1e6, step="pre", color=tint, alpha=0.55, linewidth=0, label="delivered")
        axes.step(t_s / 60, asked / 1e6, where="pre", color=INK, linewidth=1.1, label="asked of the link")
        axes.set_title(f"{source} → {target}", fontsize=10)
        top = max(top, float(got.max()), float(np.nanmax(asked, initial=0.0)))
    grid.flat[0].set(xlim=(0, series.end_s[name] / 60), ylim=(0, top / 1e6 * 1.05 or 1.0))
    for axes in list(grid.flat)[len(links) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(links) - columns) : len(links)]:
        axes.tick_params(labelbottom=True)
    figure.suptitle(f"Bandwidth of the busiest links, {name}", fontweight="bold", x=0.02, ha="left", fontsize=12)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    figure.supxlabel("emulated time (min)", fontsize=10)
    figure.supylabel("Mbit/s (emulated)", fontsize=10)
    return figure


def _hosts(series: RunSeries) -> Figure:
    """One dot a host and placement: mean CPU with its range, and the largest resident memory."""
    hosts = sorted({host for load in series.load.values() for host in load}, key=natural)
    names = [name for name in series.placements if series.load[name]]
    figure = new_figure(7.5, 1.4 + 0.34 * len(hosts))
    left, right = figure.subplots(1, 2, sharey=True)
    for i, name in enumerate(names):
        tint = colour(series.placements, name)
        offset = (i - (len(names) - 1) / 2) * min(0.22, 0.6 / len(names))
        for y, host in enumerate(hosts):
            if host not in series.load[name]:
                continue
            load = series.load[name][host]
            label = name if y == min(hosts.index(h) for h in series.load[name]) else None
            span = [load.least * 100, load.largest * 100]
            left.plot(span, [y + offset] * 2, color=tint, alpha=0.4, linewidth=2.5)
            left.plot(load.total / load.count * 100, y + offset, "o", color=tint, markersize=5.5, label=label)
            right.plot(load.rss_bytes / 1e6, y + offset, "o", color=tint, markersize=5.5)
    left.set_yticks(range(len(hosts)), hosts)
    left.set_ylim(len(hosts) - 0.4, -0.6)
    left.set(title="CPU", xlabel="% of one core (dot: mean, bar: range)")
    right.set(title="Memory", xlabel="largest resident size (MB)")
    for axes in (left, right):
        axes.set_xlim(0, None)
        axes.grid(visible=False, axis="y")
        _widen(axes)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(names)))
    return figure


def _moves(series: RunSeries) -> Figure:
    """Deliveries around a move, and below, for every placement with handovers, which host had which operator.

    Where the tree changes, rows are places in it, which operators that appear take over from those that disappear.
    """
    names = [name for name in series.placements if name in series.moves or name in series.changes]
    rows = {
        name: lives(
            _operators(series, name), series.places.get(name, {}), series.changes.get(name, []), series.end_s[name]
        )
        for name in names
    }
    hosts = sorted({host for name in names for host in _hosts_of(series, name, rows[name])}, key=natural)
    tints = _host_colours(hosts)
    heights = [2.6] * any(name in series.timelines for name in names)
    heights += [0.75 + 0.32 * _height(rows[name]) for name in names]
    figure = new_figure(9.0, sum(heights) + 0.9)
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    if len(heights) > len(names):
        _timelines(panels.pop(0), series)
    unit_s, unit = (60.0, "min") if max(series.end_s[name] for name in names) > SHORT_S else (1.0, "s")
    for axes, name in zip(panels, names, strict=True):
        _whereabouts(axes, series, name, rows[name], tints, unit_s)
    panels[-1].set_xlabel(f"emulated time ({unit})")
    handles = _move_legend(series, names, tints)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=12, columnspacing=1.1, handlelength=1.1, fontsize=9
    )
    return figure


def _operators(series: RunSeries, name: str) -> list[str]:
    """The nodes worth a row: all but those that are pinned, to go by the names that the tree builders give
    sources (``source@h1``) and the sink, and that were never handed over; of a tree that changes its first ones."""
    grown = {node for change in series.changes.get(name, ()) if change.changed for node in change.operators}
    moved = {move.node for move in series.moves.get(name, ())} - grown
    placed = {node for node, host in series.places.get(name, {}).items() if node not in (f"source@{host}", "sink")}
    return sorted(moved | placed, key=natural)


def _height(rows: Sequence[Life]) -> int:
    return 1 + max((life.row for life in rows), default=-1)


def _hosts_of(series: RunSeries, name: str, rows: Sequence[Life]) -> set[str]:
    began = {life.host for life in rows if life.host is not None}
    moves = series.moves.get(name, ())
    return began | {host for move in moves for host in ((move.source, move.target)[: 1 + move.moved])}


def _host_colours(hosts: Sequence[str]) -> dict[str, str]:
    """A colour for every host, grey for the client, the same in all panels of a picture."""
    servers = [host for host in hosts if host != "client"]
    tints = {host: HOST_COLOURS[i % len(HOST_COLOURS)] for i, host in enumerate(servers)}
    return tints | ({"client": CLIENT_COLOUR} if "client" in hosts else {})


def _timelines(axes: Axes, series: RunSeries) -> None:
    for name in series.placements:
        if (timeline := series.timelines.get(name)) is None:
            continue
        rates = [np.nan if rate is None else rate for rate in timeline.deliveries_per_s]
        edges = np.append(timeline.offset_s, timeline.offset_s[-1] + timeline.bin_s)
        counted = f"{timeline.moves} move{'s' * (timeline.moves > 1)}"
        axes.stairs(
            rates, edges, color=colour(series.placements, name), label=f"{name} (mean of {counted})", baseline=None
        )
    axes.axvline(0, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(
        title="Images at the client around a move", xlabel="wall-clock time since the operator was suspended (s)",
        ylabel="images per second (wall)", ylim=(0, axes.get_ylim()[1] * 1.2 or 1.0), xlim=(-SPAN_S, SPAN_S),
    )  # fmt: skip
    axes.legend(loc="upper left", ncols=3)


def _whereabouts(
    axes: Axes, series: RunSeries, name: str, rows: Sequence[Life], tints: Mapping[str, str], unit_s: float
) -> None:
    """One row an operator, coloured by its host, white while it is under way; a mark at each handover, and a line where
    the tree changes."""
    moves, end_s = series.moves.get(name, []), series.end_s[name]
    changes = [change for change in series.changes.get(name, ()) if change.changed]
    crowded = len(moves) + len(rows) > CROWDED
    span = (end_s or 1.0) / unit_s
    for life in rows:
        y, own = life.row, [move for move in moves if move.node == life.node]
        stays = stays_of(own, life.host, life.died_s, life.born_s)
        spans = [(begin_s / unit_s, (until_s - begin_s) / unit_s) for begin_s, until_s, _ in stays]
        axes.broken_barh(spans, (y - 0.22, 0.66), facecolors=[tints[host] for *_, host in stays], linewidth=0)
        for (begin, width), (*_, host) in zip(spans, stays, strict=True):
            if not crowded and width > span * (0.012 + 0.011 * len(host)):
                axes.text(begin + width / 2, y + 0.11, host, color=readable_on(tints[host]), **NAME)
        for mark in sorted({_mark(move) for move in own}):
            at = [move.at_s / unit_s for move in own if _mark(move) == mark]
            axes.plot(at, [y - 0.36] * len(at), **_mark_style(mark, 3.0 if crowded else 5.0))
    for change in changes:
        axes.axvline(change.at_s / unit_s, **_CHANGE)
    height = _height(rows)
    labels = [str(row) for row in range(1, height + 1)] if changes else [life.node for life in rows]
    axes.set_yticks(np.arange(height) + 0.11, labels)
    axes.set_ylim(height - 0.4, -0.7)
    axes.set_xlim(0, span)
    axes.grid(visible=False, axis="y")
    moved = sum(move.moved for move in moves)
    told = [f"{moved} moved, {len(moves) - moved} stayed"] if moves or not changes else []
    if changes:
        told.insert(0, f"the tree changed {len(changes)} time{'s' * (len(changes) > 1)}")
    axes.set_title(f"{name}: {'; '.join(told)}")


def stays_of(
    moves: Sequence[Move], started: str | None, end_s: float, begin_s: float = 0.0
) -> list[tuple[float, float, str]]:
    """An operator's stays as (from, until, host) in emulated seconds: at its first host, then wherever it moved.

    ``begin_s``, ``end_s``: from when until when it was in the tree.
    """
    stays = []
    for move in moves:
        if move.moved:
            stays.append((begin_s, move.at_s, move.source))
            begin_s, started = move.settled_s, move.target
    if started is not None:
        stays.append((begin_s, end_s, started))
    return [(begin_s, until_s, host) for begin_s, until_s, host in stays if until_s > begin_s]


def _mark(move: Move) -> str:
    return (move.protocol or "moved") if move.moved else "stayed"


def _mark_style(mark: str, size: float) -> dict[str, Any]:
    tint = "#CC0000" if mark == "stayed" else INK
    return {
        "marker": MARKS[mark], "markersize": size, "linestyle": "none", "color": tint, "markeredgecolor": "white",
        "markeredgewidth": 0.6, "clip_on": False, "label": mark,
    } | ({"markeredgecolor": tint, "markeredgewidth": 1.5} if mark == "stayed" else {})  # fmt: skip


def _move_legend(series: RunSeries, names: Sequence[str], tints: Mapping[str, str]) -> list[Artist]:
    """The hosts' colours, then the marks that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {_mark(move) for name in names for move in series.moves.get(name, ())}
    handles: list[Artist] = [Patch(color=tint, label=host) for host, tint in tints.items()]
    handles += [Line2D([], [], **_mark_style(mark, 6.0)) for mark in MARKS if mark in seen]
    if any(change.changed for name in names for change in series.changes.get(name, ())):
        handles.append(Line2D([], [], label="another tree", **_CHANGE))
    return handles


def readable_on(tint: str) -> str:
    """Black or white, whichever reads better on ``tint``."""
    red, green, blue = (int(tint[i : i + 2], 16) for i in (1, 3, 5))
    return "#222222" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


def _estimates(series: RunSeries) -> Figure:
    figure = new_figure(6.0, 5.8)
    axes = figure.add_subplot()
    shown = {how: np.array(series.estimates[how].points) / 1e6 for how in HOW if how in series.estimates}
    limits = np.array([min(points.min() for points in shown.values()), max(points.max() for points in shown.values())])
    limits = np.array([max(limits[0], limits[1] / 1e4) / 1.3, limits[1] * 1.3])
    axes.fill_between(limits, limits * 0.75, limits * 1.25, color="#eeeeee", linewidth=0, label="within 25%")
    axes.fill_between(limits, limits * 0.9, limits * 1.1, color="#dddddd", linewidth=0, label="within 10%")
    axes.plot(limits, limits, color=INK, linewidth=1)
    many = sum(map(len, shown.values())) > 400
    for tint, (how, points) in zip(COLOURS, shown.items(), strict=False):
        sampled = series.estimates[how]
        some = f"{sampled.seen}" if sampled.stride == 1 else f"{len(points)} of {sampled.seen}"
        axes.plot(
            *points.T, ".", color=tint, markersize=3 if many else 6, alpha=0.35 if many else 0.6, markeredgewidth=0,
            label=f"{how} ({some})",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(one_two_five())
        axis.set_major_formatter(lambda value, _: shortened(value))
    axes.minorticks_off()
    axes.set(
        title="Bandwidth estimates against the truth", xlabel="the emulator's rate (emulated Mbit/s, log scale)",
        ylabel="estimate (emulated Mbit/s, log scale)",
    )  # fmt: skip
    axes.legend(loc="upper left", markerscale=3 if many else 1.5)
    return figure


def _widen(axes: Axes) -> None:
    """Leave a tenth of the width free at the right end."""
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08 or 1.0)


def one_two_five() -> Locator:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20)


def shortened(value: float) -> str:
    return f"{value:.3g}"
