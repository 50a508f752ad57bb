"""Pictures of one run: when images arrived, how far apart, what the links carried, what the hosts spent.

A run's event log is read twice in batches, with series thinned to a few hundred points, so that memory does
not grow with its length. Every placement has the same colour in all pictures of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thalweg.experiments.analysis import natural
from thalweg.experiments.records import EVENTS, PLOTS, RunInfo
from thalweg.middleware.errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

BUCKETS = 400  # points of a thinned series: about one for each pixel column of a small multiple
LINKS = 8  # small multiples a placement
USED = 0.02  # a link that carried less, relative to the busiest, carried demands and heartbeats only
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")  # Okabe and Ito
INK = "#333333"
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


class RunSeries:
    """What the pictures show of a run, by placement: arrivals, the busiest links, the hosts' load.

    ``arrivals_s``: sorted emulated times of the deliveries. ``links``: for the at most ``LINKS`` links that
    moved most bytes, asked and delivered bits per second. ``load``: CPU share and resident bytes by host.
    """

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.arrivals_s: dict[str, np.ndarray] = {}
        self.links: dict[str, dict[tuple[str, str], _Thinned]] = {}
        self.load: dict[str, dict[str, _Load]] = {}
        self.end_s: dict[str, float] = {}
        moved = self._first_pass(folder / EVENTS)
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
        for name, host, t_s, kind, peer, value in _rows(events, columns, ["delivered", "link", "host_load"]):
            self.end_s[name] = max(self.end_s.get(name, 0.0), t_s)
            if kind == "delivered":
                arrivals.setdefault(name, []).append(t_s)
            elif kind == "link" and peer is not None:
                links = moved.setdefault(name, {})
                links[(host, peer)] = links.get((host, peer), 0.0) + (value or 0.0)
        self.arrivals_s = {name: np.sort(np.array(times)) for name, times in arrivals.items()}
        return moved

    def _second_pass(self, events: Path, time_scale: float) -> None:
        """The links' and the hosts' series; links are recorded in rates on the wire, so undo the time scale."""
        asked = msgspec.json.Decoder(_Asked)
        columns = ["placement", "host", "t_s", "kind", "peer", "size_bytes", "value", "detail"]
        for name, host, t_s, kind, peer, size, value, detail in _rows(events, columns, ["link", "host_load"]):
            if value is None or name not in self.links:
                continue
            if kind == "host_load":
                self.load[name].setdefault(host, _Load()).add(value, size or 0)
            elif (link := self.links[name].get((host, peer))) is not None:
                asked_bps = asked.decode(detail or "{}").asked_bps
                link.add(t_s, (asked_bps / time_scale, value / time_scale))


class _Asked(msgspec.Struct):
    asked_bps: float = float("nan")


def _rows(events: Path, columns: list[str], kinds: list[str]) -> Iterator[tuple]:  # type: ignore[type-arg]
    """The rows of these kinds that belong to a placement, in bounded memory."""
    wanted = pa.array(kinds)
    with pq.ParquetFile(events) as file:
        for batch in file.iter_batches(columns=columns, batch_size=16_384):
            keep = pc.and_(pc.is_in(batch["kind"], wanted), pc.is_valid(batch["placement"]))
            kept = batch.filter(keep)
            yield from zip(*(kept[column].to_pylist() for column in columns), strict=True)


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


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _arrivals(series: RunSeries, info: RunInfo) -> Figure:
    figure = _figure(7.5, 4.2)
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
    figure = _figure(7.5, 4.2)
    axes = figure.add_subplot()
    for name in series.placements:
        gaps = np.sort(np.diff(series.arrivals_s.get(name, np.empty(0))))
        gaps = gaps[gaps > 0]
        if len(gaps):
            share = np.arange(1, len(gaps) + 1) / len(gaps)
            tint = colour(series.placements, name)
            axes.step(gaps, share, where="post", color=tint, label=f"{name} (mean {_short(gaps.mean())} s)")
            axes.axvline(gaps.mean(), color=tint, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(_one_two_five())
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
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
    figure = _figure(4.6 * columns + 0.4, 1.75 * rows + 1.1)
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
    figure = _figure(7.5, 1.4 + 0.34 * len(hosts))
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


def _widen(axes: Axes) -> None:
    """Leave a tenth of the width free at the right end."""
    axes.set_xlim(0, axes.get_xlim()[1] * 1.08 or 1.0)


def _one_two_five() -> Locator:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=20)


def _short(value: float) -> str:
    return f"{value:.3g}"
