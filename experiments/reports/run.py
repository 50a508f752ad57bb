"""Part of a report about one run: figures, plots, placements over time, link proofs, moves, pictures, configuration."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup
from numpy.typing import NDArray
from rich.table import Table

from thalweg.emulation.links.units import format_rate
from thalweg.emulation.reports.page import sheet
from thalweg.experiments.records.analysis import PROOF_FLOOR_BPS, RunSummary, failures, natural
from thalweg.experiments.records.log import read_log
from thalweg.experiments.records.records import EVENTS, IMAGES, PLOTS, RunInfo, to_toml
from thalweg.experiments.reports.page import Picture, Room, fewer_colours, from_rich, render, spread_out
from thalweg.experiments.reports.placements import drawings, still, strip
from thalweg.experiments.views.plots import plot_run
from thalweg.experiments.views.tables import (
    changes_table,
    handovers_table,
    lines_of,
    links_line,
    moves_table,
    queries_table,
    recoveries_table,
    run_table,
    trees_table,
)
from thalweg.experiments.views.timelines import Course, host_colours, read_courses
from thalweg.middleware.errors import OperatorError, UsageError, one_line
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded
from thalweg.middleware.network.view import NET, Link

PICTURES = 6  # composites shown for a placement
PICTURE_PIXELS = 176  # larger side of a composite
SHEET_PIXELS = 900
PIXELS_BYTES = 64 * 1024 * 1024  # largest picture that is shown
LISTED = 60  # moves of a placement that are listed, the first ones
UNFOLDED = 15  # a longer list is folded
MATRIX = 40  # hosts; with more hosts, only the links with the largest errors are listed
WORST = 20
STEPS = ((0.01, "up to 1 %"), (0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (float("inf"), "more"))
ALTS = {
    "arrivals": "Images delivered at the client over emulated time, one line a placement",
    "interarrival": "Distribution of the time between consecutive images, one line a placement",
    "latency": "Distribution of the latency at each sink, one line a placement",
    "hosts": "CPU and memory of every host, one dot a placement",
    "moves": "Deliveries around a move, and where every operator was over time",
    "estimates": "Bandwidth estimates against the emulator's rates",
}
ALTS_OF = {"links": "Bandwidth of the busiest links under", "graph": "The dataflow and its hosts under"}


class Proof(msgspec.Struct, frozen=True):
    """Asked and delivered rate of a link before the run, in bit/s on the wire."""

    asked_bps: float
    delivered_bps: float

    @property
    def error(self) -> float | None:
        return abs(self.delivered_bps / self.asked_bps - 1) if self.asked_bps > 0 else None

    @property
    def tint(self) -> str:
        """CSS class of the proof's cell: step of the error, or ``slow`` for a rate too low to be proved."""
        step = next(i for i, (limit, _) in enumerate(STEPS) if (self.error or 0.0) <= limit)
        return "slow" if self.asked_bps < PROOF_FLOOR_BPS else f"e{step}"

    @property
    def mbits(self) -> tuple[str, str]:
        """Asked and delivered rate as text, in Mbit/s."""
        return f"{self.asked_bps / 1e6:.3g}", f"{self.delivered_bps / 1e6:.3g}"


Told = tuple[dict[str, Course], dict[Link, Proof]]


def read_run(folder: Path, info: RunInfo) -> Told:
    """Return a run's courses and proofs for the page. Raise UsageError if the event log is damaged."""
    proofs = {
        Link(row.host, row.peer, row.detail.via or NET): Proof(row.detail.asked_bps, row.value or 0.0)
        for row in read_log(folder, "proof")
        if row.peer is not None and row.detail.asked_bps is not None
    }
    return read_courses(folder, info), proofs


def run_section(folder: Path, info: RunInfo, summary: RunSummary, told: Told, room: Room) -> Markup:
    """Return the section about one run. Pictures that find no ``room`` are left out, and the page says so."""
    left_out = room.left_out
    courses, proofs = told
    tints = host_colours(courses.values(), info.hosts)
    stayed = [course for course in courses.values() if course.start and course.stayed]
    tables = (
        (queries_table(summary), "Queries: time between deliveries, and latency from source to sink, emulated seconds"),
        (moves_table(summary), "Moves: pauses in emulated seconds, state that travelled"),
        (trees_table(summary), "Changes of the tree: pauses in emulated seconds"),
        (recoveries_table(summary), "Recoveries: emulated seconds after a host was lost"),
    )
    with drawn_plots(folder, info) as paths:
        alts = (ALTS.get(path.stem) or _of_placement(path.stem) for path in paths)
        plots = list(_fitting(room, "png", ((_plot(path), alt, "") for path, alt in zip(paths, alts, strict=True))))
    overview = list(_fitting(room, "jpeg", _overview(folder)))
    shots = {name: list(_fitting(room, "jpeg", _composites(folder, name))) for name in info.placements}
    return render(
        "run.html",
        folder=folder,
        name=folder.name or info.run,
        head=_head(folder, info),
        wrong=failures(summary),
        figures=from_rich(run_table(summary), "Time between consecutive images at the client, emulated seconds"),
        notes=[*lines_of(summary), *_notes(folder, info, summary)],
        tables=[from_rich(table, caption) for table, caption in tables if table.rows],
        plots=plots,
        courses=list(courses.values()),
        still=still(stayed, info.hosts, tints) if stayed else "",
        drawings=lambda course: drawings(course, info.hosts, tints),
        strip=lambda course: strip(course, tints),
        proofs=_proofs(proofs, summary) if proofs else None,
        moves=_listed(summary, courses, lambda course: course.moves, handovers_table, ("who moved", "handovers")),
        changes=_listed(
            summary, courses, lambda course: course.changes, changes_table,
            ("how the tree changed", "changes of the tree"),
        ),
        overview=overview[0] if overview else None,
        shots={name: pictures for name, pictures in shots.items() if pictures},
        left_out=room.left_out - left_out,
        configuration=to_toml(msgspec.to_builtins(info)),
    )  # fmt: skip


def _head(folder: Path, info: RunInfo) -> list[tuple[str, object]]:
    config = info.config
    servers = config.get("servers")
    amount = f"{info.images} {info.item}s" + (f" from {servers} servers" if servers is not None else "")
    scale = f", {info.time_scale:g} emulated seconds a second" if info.time_scale != 1 else ""
    mean = config.get("link_mean_bps")
    chosen = [
        f"{key} {config[key]}"
        for key in ("workload", "tree", "operator", "cost", "scenario")
        if config.get(key) is not None
    ]
    return [
        ("run", info.run),
        ("started", info.started),
        ("folder", folder),
        ("testbed", f"{info.testbed}{scale}"),
        ("workload", f"{amount}, seed {info.seed}"),
        ("links", f"scaled to a mean of {format_rate(mean)}" if isinstance(mean, int | float) and mean > 0 else ""),
        ("placements", ", ".join(info.placements)),
        ("options", ", ".join(chosen)),
        ("versions", ", ".join(f"{name} {text}" for name, text in info.versions.items())),
    ]


def _notes(folder: Path, info: RunInfo, summary: RunSummary) -> Iterator[str]:
    for label, placement in summary.placements.items():
        if not placement.delivered:
            yield f"{label} has no records: the run ended before it"
    yield from info.notes
    yield from summary.missing


def _proofs(proofs: Mapping[Link, Proof], summary: RunSummary) -> dict[str, Any]:
    """Return a matrix of the proofs of the shared network, and a list of the worst links of further networks.

    With more than ``MATRIX`` hosts, only the worst of all links are listed.
    """
    shared = {link: proof for link, proof in proofs.items() if link.via == NET}
    hosts = sorted({host for link in shared for host in link}, key=natural)
    listed = proofs if len(hosts) > MATRIX else {link: proof for link, proof in proofs.items() if link.via != NET}
    known = [(link, proof) for link, proof in listed.items() if proof.asked_bps >= PROOF_FLOOR_BPS]
    furthest = sorted(known, key=lambda item: -(item[1].error or 0.0))[:WORST]
    rows = [(link.text, *proof.mbits, f"{proof.error or 0.0:.1%}") for link, proof in furthest]
    scope = "" if len(hosts) > MATRIX else " of further networks"
    caption = f"The {len(furthest)} of {len(listed)} links{scope} that were furthest off (wire rates)"
    heads = ("link", "asked Mbit/s", "delivered Mbit/s", "error")
    return {
        "line": links_line(summary),
        "hosts": hosts,
        "links": shared,
        "worst": summary.links.worst_link,
        "furthest": sheet(caption, heads, rows) if listed else None,
        "matrix": len(hosts) <= MATRIX,
        "steps": [text for _, text in STEPS],
        "floor": format_rate(PROOF_FLOOR_BPS),
    }


def _listed(
    summary: RunSummary,
    courses: Mapping[str, Course],
    of: Callable[[Course], Sequence[Any]],
    listing: Callable[[str, Sequence[Any]], Table],
    names: tuple[str, str],
) -> list[dict[str, Any]]:
    """Return tables with the events of each placement. ``names``: title of a table, and noun for its rows."""
    lists = []
    for label in summary.placements:
        if label in courses and (own := of(courses[label])):
            table = from_rich(listing(f"{label}: {names[0]}, emulated seconds", own[:LISTED]))
            folded = f"{label}: {len(own)} {names[1]}" if len(own) > UNFOLDED else ""
            lists.append({"table": table, "folded": folded, "more": max(0, len(own) - LISTED)})
    return lists


# --- pictures ---------------------------------------------------------------------------------------


@contextmanager
def drawn_plots(folder: Path, info: RunInfo) -> Iterator[list[Path]]:
    """Yield the files of the run's plots: plots of ``analyze``, or temporary ones if the records are newer."""
    existing = sorted((folder / PLOTS).glob("*.png"))
    events = folder / EVENTS
    if existing and min(path.stat().st_mtime for path in existing) >= events.stat().st_mtime:
        yield sorted(existing, key=_plot_order)
        return
    with tempfile.TemporaryDirectory(prefix="thalweg-report-") as name:
        here = Path(name)
        (here / EVENTS).symlink_to(events.resolve())
        yield plot_run(here, info)


def _plot(path: Path) -> bytes:
    _checked(path, "it is drawn again")
    return fewer_colours(read_bounded(path, MAX_JSON_BYTES))


def _of_placement(stem: str) -> str:
    kind, _, placement = stem.partition("-")
    return f"{ALTS_OF.get(kind, 'A picture of')} {placement}"


def _plot_order(path: Path) -> tuple[int, str]:
    order = ["graph", "arrivals", "interarrival", "latency", "links", "hosts", "moves", "estimates"]
    kind = path.stem.split("-")[0]
    return (order.index(kind) if kind in order else len(order), path.stem)


def _overview(folder: Path) -> Iterator[tuple[bytes, str, str]]:
    """Yield the picture of sites and composite, if the run has one."""
    path = folder / IMAGES / "sheet.png"
    if path.is_file():
        yield scaled_jpeg(path, SHEET_PIXELS), "Some sites' images and the composite, for the first few images", ""


def _composites(folder: Path, label: str) -> Iterator[tuple[bytes, str, str]]:
    """Yield some composites of a placement."""
    where = folder / IMAGES / label.replace("/", "_").replace(":", "_")
    files = sorted(where.glob("*.png"), key=lambda path: natural(path.stem))
    for path in (files[i] for i in spread_out(len(files), PICTURES)):
        number = path.stem.lstrip("0") or "0"
        yield scaled_jpeg(path, PICTURE_PIXELS), f"Composite {number} under {label}", f"image {number}"


def _fitting(room: Room, kind: str, pictures: Iterable[tuple[bytes, str, str]]) -> Iterator[Picture]:
    """Yield the pictures that find room, from pictures as (data, description, caption)."""
    for data, alt, caption in pictures:
        if room.take(data):
            yield Picture(data, kind, alt, caption)


def _checked(path: Path, then: str) -> NDArray[Any]:
    """Return the pixels of a run folder's picture, which may be anybody's. Raise UsageError if damaged or huge."""
    from thalweg.operators.folder import read_image

    try:
        return read_image(path, PIXELS_BYTES)
    except OperatorError as error:
        problem = one_line(error).partition(";")[0]  # without the advice, which concerns sources
        raise UsageError(f"{path} is damaged or too large ({problem}); remove it, and {then}") from None


def scaled_jpeg(path: Path, pixels: int) -> bytes:
    """Return a picture as JPEG, no larger than ``pixels``. A single band is coloured as in the overview."""
    from PIL import Image

    from thalweg.operators.pictures import colour

    values = _checked(path, "the report does without")
    shown = Image.fromarray(colour(values))
    shown.thumbnail((pixels, pixels))
    out = io.BytesIO()
    shown.save(out, "JPEG", quality=80, optimize=True)
    return out.getvalue()
