"""A run's part of a report: its figures, plots, placements over time, link proofs, moves, pictures, configuration."""

from __future__ import annotations

import io
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from thalweg.emulation.units import format_rate
from thalweg.experiments.records.analysis import PROOF_FLOOR_BPS, RunSummary, failures, natural
from thalweg.experiments.records.moves import Move, read_moves, read_rows
from thalweg.experiments.records.records import EVENTS, IMAGES, PLOTS, RunInfo, half_written, to_toml
from thalweg.experiments.records.trees import Change, read_changes
from thalweg.experiments.reports.page import (
    NONE,
    Cell,
    Room,
    bullets,
    encoded_bytes,
    esc,
    facts,
    fewer_colours,
    folded,
    from_rich,
    picture,
    table,
)
from thalweg.experiments.reports.placements import HINT, Befell, Course, drawings, host_colours, still, strip
from thalweg.experiments.views.plots import plot_run
from thalweg.experiments.views.tables import (
    changes_table,
    estimates_lines,
    handovers_table,
    links_line,
    monitor_line,
    moves_table,
    run_table,
    trees_table,
)
from thalweg.middleware.errors import UsageError

PICTURES = 6  # composites shown of a placement
PICTURE_PIXELS = 176  # their larger side
SHEET_PIXELS = 900
LISTED = 60  # moves of a placement; of more the first are listed
UNFOLDED = 15  # of more, the list is folded
MATRIX = 40  # hosts; of more, only the links that are furthest off are listed
WORST = 20
STEPS = ((0.01, "up to 1 %"), (0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (float("inf"), "more"))
ALTS = {
    "arrivals": "Images delivered at the client over emulated time, one line a placement",
    "interarrival": "Distribution of the time between consecutive images, one line a placement",
    "hosts": "CPU and memory of every host, one dot a placement",
    "moves": "Deliveries around a move, and where every operator was over time",
    "estimates": "Bandwidth estimates against the emulator's rates",
}


class Proof(msgspec.Struct, frozen=True):
    """What a link was asked and what it delivered before the run, in bit/s on the wire."""

    asked_bps: float
    delivered_bps: float

    @property
    def error(self) -> float | None:
        return abs(self.delivered_bps / self.asked_bps - 1) if self.asked_bps > 0 else None


class Told(msgspec.Struct, frozen=True):
    """What the page needs of a run's records besides its summary; ``moves``, ``changes`` (of trees) are by time."""

    courses: dict[str, Course]
    proofs: dict[tuple[str, str], Proof]
    moves: list[Move]
    changes: list[Change] = []


class _Detail(msgspec.Struct):
    """What the page needs of a record's detail."""

    placement: dict[str, str] = {}
    inputs: dict[str, list[str]] = {}
    asked_bps: float | None = None
    at_s: float | None = None
    until_s: float | None = None
    scenario: str = "scenario"


def read_run(folder: Path, info: RunInfo) -> Told:
    """Gather it from the event log; UsageError when that is damaged."""
    events = folder / EVENTS
    decode = msgspec.json.Decoder(_Detail).decode
    start: dict[str, dict[str, str]] = {}
    inputs: dict[str, dict[str, list[str]]] = {}
    befell: dict[str, list[Befell]] = defaultdict(list)
    transfers: dict[str, list[tuple[float, str, str, int]]] = defaultdict(list)
    proofs: dict[tuple[str, str], Proof] = {}
    end_s: dict[str, float] = defaultdict(float)
    columns = ["placement", "host", "t_s", "kind", "peer", "size_bytes", "value", "detail"]
    kinds = ["placed", "scenario", "transfer", "delivered", "proof"]
    for name, host, t_s, kind, peer, size_bytes, value, text in read_rows(events, columns, kinds, placed=False):
        if kind == "transfer":
            if name is not None and peer is not None and peer != host:
                transfers[name].append((t_s, host, peer, size_bytes or 0))
            continue
        if kind == "delivered":
            end_s[name] = max(end_s[name], t_s)
            continue
        try:
            detail = decode(text or "{}")
        except msgspec.DecodeError as error:
            raise UsageError(f"{events}: the detail of a record {kind!r} is damaged ({error}); run it again") from None
        if kind == "placed" and name is not None:
            start.setdefault(name, detail.placement)
            inputs.setdefault(name, detail.inputs)
        elif kind == "scenario" and name is not None and detail.at_s is not None and detail.until_s is not None:
            befell[name].append(Befell(host, detail.at_s, detail.until_s, detail.scenario))
        elif kind == "proof" and peer is not None and detail.asked_bps is not None:
            proofs[host, peer] = Proof(detail.asked_bps, value or 0.0)
    moves, changes = read_moves(folder), read_changes(folder)
    courses = {}
    for name in dict.fromkeys([*info.placements, *start]):
        own = [move for move in moves if move.placement == name]
        grown = [change for change in changes if change.placement == name]
        last_s = max([end_s[name], *(move.settled_s for move in own), *(change.at_s for change in grown)])
        if name in start or own:
            given = start.get(name, {}), own, last_s, transfers[name], befell[name], inputs.get(name, {}), grown
            courses[name] = Course(name, *given)
    return Told(courses, proofs, moves, changes)


def run_section(folder: Path, info: RunInfo, summary: RunSummary, told: Told, room: Room, anchor: str) -> str:
    """Everything about one run. Pictures that find no ``room`` are left out, and the page says so."""
    left_out = room.left_out
    parts = [f'<section id="{esc(anchor)}"><h2>Run {esc(folder.name or info.run)}</h2>', _head(folder, info)]
    parts.append(bullets(failures(summary), "wrong"))
    parts.append(from_rich(run_table(summary), "Time between consecutive images at the client, emulated seconds"))
    parts.append(bullets(_notes(folder, info, summary)))
    if any(row.relocations or row.stayed for row in summary.placements.values()):
        parts.append(from_rich(moves_table(summary), "Moves: pauses in emulated seconds, state that travelled"))
    if any(row.reshapes or row.unshaped for row in summary.placements.values()):
        parts.append(from_rich(trees_table(summary), "Changes of the tree: pauses in emulated seconds"))
    parts.append(_plots(folder, info, room))
    parts.append(_placements(info, told))
    parts.append(_proofs(told.proofs, summary))
    parts.append(_moves(folder, summary, told.moves))
    parts.append(_trees(folder, summary, told.changes))
    parts.append(_pictures(folder, info, room))
    if room.left_out > left_out:
        text = f"{room.left_out - left_out} pictures were left out to keep the page small; they are in {folder}"
        parts.append(f'<p class="soft">{esc(text)}</p>')
    configuration = to_toml(msgspec.to_builtins(info))
    parts.append(folded("Configuration and versions", f"<pre>{esc(configuration)}</pre>"))
    return "\n".join([*(part for part in parts if part), "</section>"])


def _head(folder: Path, info: RunInfo) -> str:
    config = info.config
    servers = config.get("servers")
    versions = ", ".join(f"{name} {text}" for name, text in info.versions.items())
    what = f"{info.images} images" + (f" from {servers} servers" if servers is not None else "")
    scale = f", {info.time_scale:g} emulated seconds a second" if info.time_scale != 1 else ""
    mean = config.get("link_mean_bps")
    links = f"scaled to a mean of {format_rate(mean)}" if isinstance(mean, int | float) and mean > 0 else ""
    known = (("tree", "tree"), ("operator", "operator"), ("cost", "cost"), ("scenario", "scenario"))
    chosen = ", ".join(f"{name} {config[key]}" for key, name in known if config.get(key) is not None)
    return facts(
        [
            ("run", esc(info.run)),
            ("started", esc(info.started or "")),
            ("folder", esc(folder)),
            ("testbed", esc(f"{info.testbed}{scale}")),
            ("workload", esc(f"{what}, seed {info.seed}")),
            ("links", esc(links)),
            ("placements", esc(", ".join(info.placements))),
            ("options", esc(chosen)),
            ("versions", esc(versions)),
        ]
    )


def _notes(folder: Path, info: RunInfo, summary: RunSummary) -> Iterator[str]:
    yield links_line(summary)
    yield from (line.strip() for line in estimates_lines(summary.estimates))
    for label, placement in summary.placements.items():
        if placement.monitor is not None:
            yield monitor_line(label, placement.monitor)
    for label, placement in summary.placements.items():
        if not placement.delivered:
            yield f"{label} has no records: the run ended before it"
    yield from info.notes
    for log in half_written(folder):
        yield f"{log} ends in half a line, which was left out; its writer was killed"


# --- plots ------------------------------------------------------------------------------------------


@contextmanager
def drawn_plots(folder: Path, info: RunInfo) -> Iterator[list[Path]]:
    """The run's plots: those that ``analyze`` left, unless the records are newer, or else drawn elsewhere for now."""
    there = sorted((folder / PLOTS).glob("*.png"))
    events = folder / EVENTS
    if there and min(path.stat().st_mtime for path in there) >= events.stat().st_mtime:
        yield sorted(there, key=_plot_order)
        return
    with tempfile.TemporaryDirectory(prefix="thalweg-report-") as name:
        here = Path(name)
        (here / EVENTS).symlink_to(events.resolve())
        yield plot_run(here, info)


def _plot(path: Path) -> bytes:
    try:
        return fewer_colours(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} is damaged ({error}); remove it, and it is drawn again") from None


def _plot_order(path: Path) -> tuple[int, str]:
    order = ["arrivals", "interarrival", "links", "hosts", "moves", "estimates"]
    kind = path.stem.split("-")[0]
    return (order.index(kind) if kind in order else len(order), path.stem)


def _plots(folder: Path, info: RunInfo, room: Room) -> str:
    shown = []
    with drawn_plots(folder, info) as paths:
        for path in paths:
            data = _plot(path)
            if room.take(encoded_bytes(len(data))):
                name = path.stem
                alt = ALTS.get(name, f"Bandwidth of the busiest links under {name.removeprefix('links-')}")
                shown.append(picture(data, "png", alt))
    return f'<h3>Plots</h3><div class="plots">{"".join(shown)}</div>' if shown else ""


# --- placements -------------------------------------------------------------------------------------


def _placements(info: RunInfo, told: Told) -> str:
    known = [course for course in told.courses.values() if course.start]
    if not told.courses:
        return ""
    tints = host_colours(told.courses.values(), info.hosts)
    tree = info.config.get("tree")
    parts = ["<h3>Placements over time</h3>", f'<p class="hint">{esc(HINT)}</p>']
    stayed = [course for course in known if not course.moves and not course.changed]
    if stayed:
        parts.append("<h4>Operators stay</h4>" + still(stayed, info.hosts, tints, tree))
    for name, course in told.courses.items():
        if not course.start:
            parts.append(f'<p class="soft">{esc(name)}: its records do not say where operators began.</p>')
        elif course.moves or course.changed:
            moved, turns = sum(move.moved for move in course.moves), len(course.changed)
            title = [f"the tree changed {turns} time{'s' * (turns > 1)}"] if turns else []
            if course.moves:
                title.append(f"{moved} moved, {len(course.moves) - moved} stayed")
            parts.append(f"<h4>{esc(name)}: {'; '.join(title)}</h4>")
            parts += [drawings(course, info.hosts, tints, tree), strip(course, tints)]
    return "\n".join(parts)


# --- link proofs ------------------------------------------------------------------------------------


def _proofs(proofs: Mapping[tuple[str, str], Proof], summary: RunSummary) -> str:
    if not proofs:
        return ""
    hosts = sorted({host for link in proofs for host in link}, key=natural)
    line = links_line(summary)
    if len(hosts) > MATRIX:
        shown = _worst(proofs)
    else:
        shown = table(
            "What links delivered against what was asked, before the run (wire rates)",
            ["from ↓ to →", *hosts],
            (
                [esc(host), *(_cell(host, peer, proofs.get((host, peer)), summary.links.worst_link) for peer in hosts)]
                for host in hosts
            ),
            style="proofs",
        )
    key = "".join(f'<span class="e{i}">{esc(text)}</span>' for i, (_, text) in enumerate(STEPS))
    floor = format_rate(PROOF_FLOOR_BPS)
    hint = f"Error, asked → delivered in Mbit/s. Framed: the worst. Grey: below {floor}, too slow to be proved."
    return f'<h3>Link proofs</h3><p>{esc(line)}</p>{shown}<div class="key">{key}</div><p class="hint">{esc(hint)}</p>'


def _step(error: float) -> int:
    return next(i for i, (limit, _) in enumerate(STEPS) if error <= limit)


def _cell(source: str, target: str, proof: Proof | None, worst: str | None) -> Cell:
    if proof is None or proof.error is None:
        return "" if source == target else NONE
    tint = "slow" if proof.asked_bps < PROOF_FLOOR_BPS else f"e{_step(proof.error)}"
    rates = f"{_mega(proof.asked_bps)} → {_mega(proof.delivered_bps)}"
    marked = f"{tint} worst" if worst == f"{source}>{target}" else tint
    return f"{proof.error:.1%}<small>{rates}</small>", marked


def _worst(proofs: Mapping[tuple[str, str], Proof]) -> str:
    known = [(link, proof) for link, proof in proofs.items() if proof.asked_bps >= PROOF_FLOOR_BPS]
    furthest = sorted(known, key=lambda item: -(item[1].error or 0.0))[:WORST]
    rows = (
        [f"{esc(a)} → {esc(b)}", _mega(proof.asked_bps), _mega(proof.delivered_bps), f"{proof.error or 0.0:.1%}"]
        for (a, b), proof in furthest
    )
    return table(
        f"The {len(furthest)} of {len(proofs)} links that were furthest off (wire rates)",
        ["link", "asked Mbit/s", "delivered Mbit/s", "error"],
        rows,
    )


def _mega(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:.3g}"


# --- moves ------------------------------------------------------------------------------------------


def _moves(folder: Path, summary: RunSummary, moves: Sequence[Move]) -> str:
    parts = []
    for label in summary.placements:
        own = [move for move in moves if move.placement == label]
        if not own:
            continue
        title = f"{label}: who moved, emulated seconds"
        made = from_rich(handovers_table(title, own[:LISTED]))
        if len(own) > LISTED:
            more = f"{len(own) - LISTED} more: thalweg analyze {folder} --moves"
            made += f'<p class="soft">{esc(more)}</p>'
        parts.append(made if len(own) <= UNFOLDED else folded(f"{label}: {len(own)} handovers", made))
    return "<h3>Moves</h3>" + "\n".join(parts) if parts else ""


def _trees(folder: Path, summary: RunSummary, changes: Sequence[Change]) -> str:
    parts = []
    for label in summary.placements:
        own = [change for change in changes if change.placement == label]
        if not own:
            continue
        made = from_rich(changes_table(f"{label}: how the tree changed, emulated seconds", own[:LISTED]))
        if len(own) > LISTED:
            more = f"{len(own) - LISTED} more: thalweg analyze {folder} --moves"
            made += f'<p class="soft">{esc(more)}</p>'
        parts.append(made if len(own) <= UNFOLDED else folded(f"{label}: {len(own)} changes of the tree", made))
    return "<h3>Changes of the tree</h3>" + "\n".join(parts) if parts else ""


# --- pictures ---------------------------------------------------------------------------------------


def _pictures(folder: Path, info: RunInfo, room: Room) -> str:
    """The overview of sites and composite, then some composites of every placement."""
    parts = []
    sheet = folder / IMAGES / "sheet.png"
    if sheet.is_file():
        data = scaled_jpeg(sheet, SHEET_PIXELS)
        if room.take(encoded_bytes(len(data))):
            alt = "Some sites' images and the composite, for the first few images"
            parts.append(f'<div class="sheet">{picture(data, "jpeg", alt)}</div>')
    for name in info.placements:
        where = folder / IMAGES / name.replace("/", "_").replace(":", "_")
        paths = spread_out(sorted(where.glob("*.png"), key=lambda path: natural(path.stem)), PICTURES)
        shown = []
        for path in paths:
            data = scaled_jpeg(path, PICTURE_PIXELS)
            if room.take(encoded_bytes(len(data))):
                number = path.stem.lstrip("0") or "0"
                shown.append(picture(data, "jpeg", f"Composite {number} under {name}", f"image {number}"))
        if shown:
            parts.append(f'<h4>{esc(name)}</h4><div class="shots">{"".join(shown)}</div>')
    return "<h3>Composed pictures</h3>" + "\n".join(parts) if parts else ""


def spread_out(paths: Sequence[Path], most: int) -> list[Path]:
    """At most ``most``, evenly, the first and the last included."""
    if len(paths) <= most:
        return list(paths)
    return [paths[round(i * (len(paths) - 1) / (most - 1))] for i in range(most)]


def scaled_jpeg(path: Path, pixels: int) -> bytes:
    """A picture no larger than ``pixels``; one band in the colours that the overview has."""
    import numpy as np
    from PIL import Image

    from thalweg.operators.pictures import colour

    try:
        with Image.open(path) as image:
            values = np.asarray(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} is damaged ({error}); remove it, and the report does without") from None
    if values.dtype not in (np.uint8, np.uint16):
        values = np.clip(values, 0, 65535).astype(np.uint16)  # Pillow's name for 16 bits has changed with its versions
    shown = Image.fromarray(colour(values[..., :3] if values.ndim == 3 else values))
    shown.thumbnail((pixels, pixels))
    out = io.BytesIO()
    shown.save(out, "JPEG", quality=80, optimize=True)
    return out.getvalue()
