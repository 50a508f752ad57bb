"""Pictures of one run: dataflows on hosts, arrivals and latencies, bandwidth of links, load of hosts, moves, estimates.

A run's event log is read in batches, and series are drawn with a few hundred points. So the run's length adds only a
few numbers of memory for every delivery, move, estimate and sample that is drawn. A placement has the same colour in
every picture of a run.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.experiments.records.analysis import SINK, complete, latencies, natural
from thalweg.experiments.records.log import Row, last_produced, read_log, sum_links
from thalweg.experiments.records.moves import HOW, SPAN_S, AroundMoves, judged, moves_wall
from thalweg.experiments.records.records import PLOTS, RunInfo
from thalweg.experiments.views.graph import graph_figure, shown
from thalweg.experiments.views.stripes import carried_figure, read_carried
from thalweg.experiments.views.style import COLOURS, INK, new_figure, round_ticks, shortened, styled
from thalweg.experiments.views.timelines import (
    SHORT_S,
    Course,
    Timeline,
    host_colours,
    lives,
    mark,
    read_courses,
    readable_on,
    timeline,
)
from thalweg.middleware.errors import RunError, counted
from thalweg.middleware.network.view import NET

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BUCKETS = 400  # points of a thinned series: about one for every pixel column of a panel
LINKS = 8  # most panels of a placement
USED = 0.02  # a link below this share of the busiest carried only demands and heartbeats
POINTS = 4_000  # most points of a scatter plot; of more, every second, fourth, eighth … is drawn
CROWDED = 60  # moves of a placement; with more, bars have no names and marks shrink
MARKS = {"barrier": "v", "epoch": "D", "moved": "o", "stayed": "x"}  # of a hand-over, in its operator's row
_MARK: dict[str, Any] = {"color": "#B00020", "linewidth": 1.0, "linestyle": (0, (4, 3))}  # of a scenario's ends
_TURN: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}  # of a line across the rows
NAME: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "in_layout": False}  # of a bar


Points = defaultdict[str, list[tuple[float, float]]]


def thinned(samples: Sequence[Sequence[float]], end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the times, of shape (n,), and the means, of shape (columns, n), of a series.

    The means are over ``BUCKETS`` equal spans of 0 … ``end_s``. Spans without samples are left out. Every sample begins
    with its time.
    """
    t_s, *columns = np.array(samples, float).T
    end_s = max(end_s, 1e-9)
    bucket = np.clip(t_s / end_s * BUCKETS, 0, BUCKETS - 1).astype(int)
    count = np.bincount(bucket, minlength=BUCKETS)
    totals = np.array([np.bincount(bucket, column, BUCKETS) for column in columns])
    known = count > 0
    return ((np.arange(BUCKETS) + 0.5) * end_s / BUCKETS)[known], totals[:, known] / count[known]


def at_most(points: Sequence[tuple[float, float]], most: int = POINTS) -> Sequence[tuple[float, float]]:
    """Return at most ``most`` points, evenly spaced in their order: every second, fourth, eighth …"""
    stride = 1
    while len(points) > most * stride:
        stride *= 2
    return points[::stride]


def read_over(folder: Path) -> dict[str, dict[tuple[str, str], list[str]]]:
    """Return networks and relays with most bytes first, by placement, and by sending node and target host."""
    sizes: defaultdict[str, defaultdict[tuple[str, str], Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in read_log(folder, "transfer"):
        if row.placement is not None and row.node is not None and row.peer is not None:
            by = f" by {', '.join(row.detail.relays)}" if row.detail.relays else ""
            sizes[row.placement][row.node, row.peer][(row.detail.via or NET) + by] += row.size_bytes or 0
    return {
        name: {edge: [way for way, _ in ways.most_common()] for edge, ways in edges.items()}
        for name, edges in sizes.items()
    }


class RunSeries:
    """Data of a run's pictures, by placement: arrivals, the busiest links, the hosts' load, the moves.

    ``arrivals_s``: sorted emulated times of the deliveries. ``links``: time, requested and delivered bits per second of
    the links with most bytes, at most ``LINKS``. ``load``: CPU shares and resident bytes by host. ``latency_s``: sorted
    latencies from source to sink, by sink and placement. ``all_courses``: locations of nodes. ``courses``: courses of
    the placements with moves or changes of the tree, carried out or refused. ``sent``: bytes by node and target host.
    ``around``: deliveries around the moves. ``carried``: trees of the partitions. ``estimates``: (truth, estimate) in
    bit/s, by kind of measurement.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.estimates = Points(list)
        for how, value, truth_bps in judged(read_log(folder, "estimate")):
            self.estimates[how].append((truth_bps, value))
        self.all_courses = read_courses(folder, info, transfers=False)
        self.sent: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
        for (name, node, peer), some in sum_links(folder, "transfer", "size_bytes", of="node").items():
            self.sent[name][node, peer] = int(some.total)
        self.over = read_over(folder) if info.config.get("scenario") else {}  # only a scenario has networks
        self.carried = read_carried(folder)
        self.courses = {name: course for name, course in self.all_courses.items() if course.moves or course.changes}
        self.end_s: defaultdict[str, float] = defaultdict(float)
        for name, course in self.courses.items():
            last_s = [move.settled_s for move in course.moves] + [change.at_s for change in course.changes]
            self.end_s[name] = max(0.0, *last_s)
        self._read_hosts(folder, info)
        self.links = self._busiest(folder)
        for row in read_log(folder, "link"):  # rates on the wire, with the time scale
            link = self.links[row.placement].get((row.host, row.peer)) if row.placement is not None else None
            if link is not None and row.value is not None:
                asked_bps = np.nan if row.detail.asked_bps is None else row.detail.asked_bps
                link.append((row.t_s, asked_bps / info.time_scale, row.value / info.time_scale))
        self.placements = [*(name for name in info.placements if name in self.end_s)]
        self.placements += sorted(self.end_s.keys() - set(self.placements))

    def _read_hosts(self, folder: Path, info: RunInfo) -> None:
        """Read the arrivals, the deliveries around moves, and the hosts' load."""
        self.load: defaultdict[str, Points] = defaultdict(lambda: Points(list))
        rows: defaultdict[str, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in read_log(folder, "delivered", "host_load", "relocated"):
            name = row.placement
            if name is None:
                continue
            self.end_s[name] = max(self.end_s[name], row.t_s)
            if row.kind != "host_load":
                rows[name][row.kind].append(row)
            elif row.value is not None:
                self.load[name][row.host].append((row.value, row.size_bytes or 0))
        self.arrivals_s = {
            name: np.sort([row.t_s for row in complete(own["delivered"], len(info.queries) or 1)])
            for name, own in rows.items()
            if own["delivered"]
        }
        produced = last_produced(folder, info.queries)
        self.latency_s = {
            sink: {name: np.sort(known) for name, own in rows.items()
                   if (known := latencies((row for row in own["delivered"] if (row.node or SINK) == sink),
                                          latest.get(name, {})))}
            for sink, latest in produced.items()
        }  # fmt: skip
        around = {name: moves_wall(own, info.time_scale) for name, own in rows.items()}
        self.around: dict[str, AroundMoves] = {name: some for name, some in around.items() if some is not None}

    def _busiest(self, folder: Path) -> defaultdict[str, dict[tuple[str, str | None], list[tuple[float, ...]]]]:
        """Return the links to be drawn, with empty series, by placement. Update the placements' ends.

        Links are compared by sums of rates, which need no unit because the intervals are equal.
        """
        carried: defaultdict[str, dict[tuple[str, str | None], float]] = defaultdict(dict)
        for (name, host, peer), some in sum_links(folder, "link", "value").items():
            carried[name][host, peer] = some.total
            self.end_s[name] = max(self.end_s[name], some.last_s)
        series: defaultdict[str, dict[tuple[str, str | None], list[tuple[float, ...]]]] = defaultdict(dict)
        for name, links in carried.items():
            most = sorted(links, key=lambda link: (-links[link], link))[:LINKS]
            used = [link for link in most if links[link] >= USED * links[most[0]] > 0]
            series[name] = {link: [] for link in used}
        return series


def colour(placements: Sequence[str], name: str) -> str:
    """Return the colour of a placement, by its index among the run's placements: the same in every picture."""
    return COLOURS[list(placements).index(name) % len(COLOURS)]


def plot_run(folder: Path, info: RunInfo, stop: Event | None = None) -> list[Path]:
    """Draw a run's pictures into ``folder/plots`` and return their paths. A picture without data is not drawn.

    Safe beside other threads if these do not draw. ``stop``: when set, no further picture is drawn. Raises RunError if
    a file cannot be written.
    """
    figures = _figures(RunSeries(folder, info), info)
    wanted = itertools.takewhile(lambda _: stop is None or not stop.is_set(), figures)
    return save_pictures(folder, wanted, "or use --no-plots")


def save_pictures(folder: Path, figures: Iterable[tuple[str, Figure]], advice: str) -> list[Path]:
    """Draw figures by their names into ``folder/plots`` and return their paths.

    Raises RunError, with the advice, if a file cannot be written.
    """
    where = folder / PLOTS
    drawn: list[Path] = []
    try:
        where.mkdir(exist_ok=True)
        with styled():
            for name, figure in figures:
                drawn.append(where / f"{name}.png")
                figure.savefig(drawn[-1])
    except OSError as error:
        raise RunError(f"{where} cannot be written: {error.strerror or error}; {advice}") from error
    return drawn


def _figures(series: RunSeries, info: RunInfo) -> Iterator[tuple[str, Figure]]:
    tints = host_colours(series.all_courses.values())
    for name, course in series.all_courses.items():
        if course.inputs:
            title = f"{name}: where nodes were at the end" + f" ({course.title})" * (not course.stayed)
            yield (
                f"graph-{_in_path(name)}",
                graph_figure(shown(course, series.sent[name], series.over.get(name, {})), title, tints),
            )
    if series.arrivals_s:
        yield "arrivals", _arrivals(series, info)
    if any(len(times) > 1 for times in series.arrivals_s.values()):
        yield "interarrival", _interarrival(series)
    if any(series.latency_s.values()):
        yield "latency", _latency(series)
    for name in series.placements:
        if any(series.links[name].values()):
            yield f"links-{_in_path(name)}", _links(series, name)
    if any(series.load.values()):
        yield "hosts", _hosts(series)
    if series.carried:
        yield "stripes", carried_figure(series.carried, new_figure)
    if series.courses:
        yield "moves", _moves(series)
    if series.estimates:
        yield "estimates", _estimates(series)


def _in_path(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


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
    items = f"{info.item}s"
    axes.set(
        title=f"{items.capitalize()} at the client", xlabel="emulated time (min)", ylabel=f"{items} delivered",
        ylim=(0, max([info.images, *map(len, series.arrivals_s.values())]) * 1.09),
    )  # fmt: skip
    axes.axhline(info.images, color="#999999", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"all {info.images}", (0, info.images), xycoords=("axes fraction", "data"), textcoords="offset points",
        xytext=(4, 2), ha="left", va="bottom", color="#777777", fontsize=9,
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
    round_ticks(axes.xaxis)
    axes.set(
        title="Time between consecutive images", xlabel="inter-arrival time (emulated s, log scale)",
        ylabel="share of images at most this far apart", ylim=(0, 1.02),
    )  # fmt: skip
    axes.legend(loc="upper left", title="dashed: mean", alignment="left")
    return figure


def _latency(series: RunSeries) -> Figure:
    """Return a figure with a panel for every sink, and a line for every placement."""
    sinks = [sink for sink, of in series.latency_s.items() if of]
    figure = new_figure(max(7.5, 4.6 * len(sinks)), 4.2)
    for axes, sink in zip(figure.subplots(1, len(sinks), sharey=True, squeeze=False).flat, sinks, strict=True):
        for name, late_s in series.latency_s[sink].items():
            tint, p95_s = colour(series.placements, name), float(np.quantile(late_s, 0.95))
            share = np.arange(1, len(late_s) + 1) / len(late_s)
            axes.step(late_s, share, where="post", color=tint, label=f"{name} ({shortened(p95_s)} s)")
            axes.axvline(p95_s, color=tint, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        round_ticks(axes.xaxis)
        axes.set(title=f"Latency at {sink}", xlabel="source to sink (emulated s, log scale)", ylim=(0, 1.02))
        axes.legend(loc="upper left", title="dashed: 95th percentile", alignment="left", fontsize=8.5)
    figure.axes[0].set_ylabel("share of values at most this late")
    return figure


def _links(series: RunSeries, name: str) -> Figure:
    links = {link: samples for link, samples in series.links[name].items() if samples}
    columns = 2 if len(links) > 1 else 1
    rows = -(-len(links) // columns)
    figure = new_figure(4.6 * columns + 0.4, 1.75 * rows + 1.1)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    top = 0.0
    for axes, ((source, target), samples) in zip(grid.flat, links.items(), strict=False):
        t_s, values = thinned(samples, series.end_s[name])
        start = max(0.0, t_s[0] - (np.median(np.diff(t_s)) if len(t_s) > 1 else t_s[0]))
        t_s = np.concatenate(([start], t_s))  # a sample is of the interval before its time
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
    """Return a figure with a dot for every host and placement: mean CPU with its range, and the largest memory."""
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
            cpu, rss_bytes = np.array(series.load[name][host]).T
            label = name if y == min(hosts.index(h) for h in series.load[name]) else None
            left.plot([cpu.min() * 100, cpu.max() * 100], [y + offset] * 2, color=tint, alpha=0.4, linewidth=2.5)
            left.plot(cpu.mean() * 100, y + offset, "o", color=tint, markersize=5.5, label=label)
            right.plot(rss_bytes.max() / 1e6, y + offset, "o", color=tint, markersize=5.5)
    left.set_yticks(range(len(hosts)), hosts)
    left.set_ylim(len(hosts) - 0.4, -0.6)
    left.set(title="CPU", xlabel="% of one core (dot: mean, bar: range)")
    right.set(title="Memory", xlabel="largest resident size (MB)")
    for axes in (left, right):
        axes.set_xlim(0, axes.get_xlim()[1] * 1.08 or 1.0)  # a tenth of the width is free at the right end
        axes.grid(visible=False, axis="y")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(names)))
    return figure


def _moves(series: RunSeries) -> Figure:
    """Return a figure of the deliveries around a move.

    Below, for every placement with hand-overs, it shows the host of every operator over time.
    """
    courses = [series.courses[name] for name in series.placements if name in series.courses]
    involved = set().union(*(course.operators_hosts() for course in courses))
    tints = {host: tint for host, tint in host_colours(courses).items() if host in involved}
    heights = [2.6] * bool(series.around)
    heights += [0.75 + 0.32 * len(timeline(course).rows) for course in courses]
    figure = new_figure(9.0, sum(heights) + 0.9)
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    if series.around:
        _around(panels.pop(0), series)
    unit_s, unit = (60.0, "min") if max(course.end_s for course in courses) > SHORT_S else (1.0, "s")
    for axes, course in zip(panels, courses, strict=True):
        _whereabouts(axes, course, tints, unit_s)
    panels[-1].set_xlabel(f"emulated time ({unit})")
    handles = _move_legend(courses, tints)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=12, columnspacing=1.1, handlelength=1.1, fontsize=9
    )
    return figure


def _around(axes: Axes, series: RunSeries) -> None:
    for name in series.placements:
        if (around := series.around.get(name)) is None:
            continue
        rates = [np.nan if rate is None else rate for rate in around.deliveries_per_s]
        edges = np.append(around.offset_s, around.offset_s[-1] + around.bin_s)
        label = f"{name} (mean of {counted(around.moves, 'move')})"
        axes.stairs(rates, edges, color=colour(series.placements, name), label=label, baseline=None)
    axes.axvline(0, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(
        title="Images at the client around a move", xlabel="wall-clock time since the operator was suspended (s)",
        ylabel="images per second (wall)", ylim=(0, axes.get_ylim()[1] * 1.2 or 1.0), xlim=(-SPAN_S, SPAN_S),
    )  # fmt: skip
    axes.legend(loc="upper left", ncols=3)


def _whereabouts(axes: Axes, course: Course, tints: Mapping[str, str], unit_s: float) -> None:
    """Draw a row for every operator in the colour of its host, white while the operator is under way.

    A mark shows a hand-over. Lines show a change of the tree, and the start and end of a scenario.
    """
    drawn = timeline(course)
    crowded = len(course.moves) + len(lives(course)) > CROWDED
    _draw_stays(axes, drawn, tints, unit_s, named=not crowded)
    for kind in sorted({entry.kind for entry in drawn.marks}):
        marks = [entry for entry in drawn.marks if entry.kind == kind]
        style = _mark_style(kind, 3.0 if crowded else 5.0)
        axes.plot([entry.at_s / unit_s for entry in marks], [entry.row - 0.36 for entry in marks], **style)
    _draw_turns(axes, drawn, unit_s)
    axes.set_yticks(np.arange(len(drawn.rows)) + 0.11, drawn.rows)
    axes.set_ylim(len(drawn.rows) - 0.4, -1.2 if any(turn.kind == "mark" for turn in drawn.turns) else -0.7)
    axes.set_xlim(0, drawn.end_s / unit_s)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"{course.name}: {course.title}")


def _draw_stays(axes: Axes, drawn: Timeline, tints: Mapping[str, str], unit_s: float, *, named: bool) -> None:
    """Draw a bar for each stay at a host. ``named``: with the host's name in bars that are wide enough."""
    span = drawn.end_s / unit_s
    for row in range(len(drawn.rows)):
        own = [stay for stay in drawn.stays if stay.row == row]
        spans = [(stay.begin_s / unit_s, (stay.until_s - stay.begin_s) / unit_s) for stay in own]
        axes.broken_barh(spans, (row - 0.22, 0.66), facecolors=[tints[stay.host] for stay in own], linewidth=0)
        for (begin, width), stay in zip(spans, own, strict=True):
            if named and width > span * (0.012 + 0.011 * len(stay.host)):
                axes.text(begin + width / 2, row + 0.11, stay.host, color=readable_on(tints[stay.host]), **NAME)


def _draw_turns(axes: Axes, drawn: Timeline, unit_s: float) -> None:
    """Draw a line at every change of the tree, and a line with a name at the start and the end of a scenario."""
    for turn in drawn.turns:
        axes.axvline(turn.at_s / unit_s, **(_MARK if turn.kind == "mark" else _TURN))
    for turn in drawn.turns:
        if turn.kind != "mark":
            continue
        right = turn.at_s > 0.7 * drawn.end_s
        axes.annotate(
            turn.what, (turn.at_s / unit_s, 1), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(-3 if right else 3, 0), ha="right" if right else "left", va="top", color=_MARK["color"], fontsize=8,
        )  # fmt: skip


def _mark_style(mark: str, size: float) -> dict[str, Any]:
    tint = "#CC0000" if mark == "stayed" else INK
    return {
        "marker": MARKS[mark], "markersize": size, "linestyle": "none", "color": tint, "markeredgecolor": "white",
        "markeredgewidth": 0.6, "clip_on": False, "label": mark,
    } | ({"markeredgecolor": tint, "markeredgewidth": 1.5} if mark == "stayed" else {})  # fmt: skip


def _move_legend(courses: Sequence[Course], tints: Mapping[str, str]) -> list[Artist]:
    """Return the legend: the hosts' colours, then the marks that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {mark(move) for course in courses for move in course.moves}
    handles: list[Artist] = [Patch(color=tint, label=host) for host, tint in tints.items()]
    handles += [Line2D([], [], **_mark_style(kind, 6.0)) for kind in MARKS if kind in seen]
    if any(course.changed for course in courses):
        handles.append(Line2D([], [], label="another tree", **_TURN))
    return handles


def _estimates(series: RunSeries) -> Figure:
    figure = new_figure(6.0, 5.8)
    axes = figure.add_subplot()
    shown = {how: np.array(at_most(series.estimates[how])) / 1e6 for how in HOW if how in series.estimates}
    limits = np.array([min(points.min() for points in shown.values()), max(points.max() for points in shown.values())])
    limits = np.array([max(limits[0], limits[1] / 1e4) / 1.3, limits[1] * 1.3])
    axes.fill_between(limits, limits * 0.75, limits * 1.25, color="#eeeeee", linewidth=0, label="within 25%")
    axes.fill_between(limits, limits * 0.9, limits * 1.1, color="#dddddd", linewidth=0, label="within 10%")
    axes.plot(limits, limits, color=INK, linewidth=1)
    many = sum(map(len, shown.values())) > 400
    for tint, (how, points) in zip(COLOURS, shown.items(), strict=False):
        seen = len(series.estimates[how])
        some = f"{seen}" if len(points) == seen else f"{len(points)} of {seen}"
        axes.plot(
            *points.T, ".", color=tint, markersize=3 if many else 6, alpha=0.35 if many else 0.6, markeredgewidth=0,
            label=f"{how} ({some})",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        round_ticks(axis)
    axes.set(
        title="Bandwidth estimates against the truth", xlabel="the emulator's rate (emulated Mbit/s, log scale)",
        ylabel="estimate (emulated Mbit/s, log scale)",
    )  # fmt: skip
    axes.legend(loc="upper left", markerscale=3 if many else 1.5)
    return figure
