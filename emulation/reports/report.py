"""The report of a testbed: Parquet tables and one HTML page about all that went on there since its start."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.links.units import format_rate, format_size, format_time
from thalweg.emulation.links.words import shape_text
from thalweg.emulation.recording.recording import Recording
from thalweg.emulation.reports import plots, timeline
from thalweg.emulation.reports.page import Sheet, SheetRow, render
from thalweg.emulation.reports.tables import tables, write_tables
from thalweg.emulation.reports.timeline import moment
from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.writing import whole
from thalweg.middleware.network.view import Link

PAGE = "index.html"
OPEN_PLOTS, FOLDED_PLOTS = 8, 112
LISTED = 1_000  # rows of a table of the page
UNFOLDED = 20
WRONG = 8  # lines about what went wrong, of each kind


class About(msgspec.Struct, frozen=True):
    """What a page says of a testbed besides its record. ``title``: of the page. ``backend``: what hosts are.

    ``outputs``: last lines of processes, by their numbers.
    """

    name: str
    backend: str
    hosts: Mapping[str, str]
    title: str = ""
    outputs: Mapping[int, Sequence[str]] = {}


def last_lines(record: Recording, outputs: Mapping[tuple[str, int], Sequence[str]]) -> dict[int, Sequence[str]]:
    """Return the last lines of processes by their numbers in a record.

    ``outputs``: lines that were read elsewhere, by host and number of the process there. The others are of logs.
    """
    numbers = {(one.host, one.pid): one.number for one in record.processes}  # the last that had the number
    found: dict[int, Sequence[str]] = {one.number: one.tail.splitlines() for one in record.processes if one.tail}
    return found | {numbers[key]: lines for key, lines in outputs.items() if key in numbers}


def write_report(record: Recording, about: About, folder: Path, last_s: float | None = None) -> Path:
    """Write the tables and the page into a folder, which is made, and return the page.

    ``last_s``: only what went on in the last so many seconds. Raises UsageError if the folder cannot be written.
    """
    if last_s is not None:
        record = record.since(record.now_s - last_s)
    page = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; choose another folder") from None
    made = tables(record)
    write_tables(made, folder)
    text = page_text(record, about, {name: table.num_rows for name, table in made.items()})
    with whole(page, "choose another folder", error=UsageError) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
    return page


def page_text(record: Recording, about: About, files: Mapping[str, int]) -> str:
    """Return the page. ``files``: the numbers of rows of the tables beside it, by the names of their files."""
    scale = timeline.Scale(record.begin_s, record.now_s)
    found = plots.pairs(plots.sums(record, scale))
    asked, cuts = plots.Asked(record), record.cuts()
    drawn = [plots.plot(one, record, asked, cuts, scale) for one in found[: OPEN_PLOTS + FOLDED_PLOTS]]
    values = {
        "title": about.title or f"Testbed {about.name}",
        "made": f"Made by thalweg {version('thalweg')} on {_date(record.began_unix_s + record.now_s)}.",
        "head": _head(record, about),
        "wrong": [*_wrong(record, about)],
        "notes": [*_notes(record)],
        "rows": timeline.rows(record, scale, [*about.hosts]),
        "ticks": scale.ticks(),
        "outputs": [*_outputs(record, about)],
        "plots": drawn[:OPEN_PLOTS],
        "folded": drawn[OPEN_PLOTS:],
        "undrawn": len(found) - len(drawn),
        "tables": [*_sheets(record, found)],
        "unfolded": UNFOLDED,
        "files": files,
        "begin_s": record.begin_s,
        "span_s": scale.end_s - scale.begin_s,
        "began_ms": record.began_unix_s * 1e3,
    }
    return render("testbed.html", values)


def _date(unix_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(unix_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _head(record: Recording, about: About) -> list[tuple[str, object]]:
    shown = "" if not record.begin_s else f"the last {format_time(record.now_s - record.begin_s)} of "
    shaped = record.shapes()
    return [
        ("testbed", f"{about.name} ({about.backend})"),
        ("hosts", _some([f"{name} {address}" for name, address in about.hosts.items()])),
        ("started", _date(record.began_unix_s)),
        ("covers", f"{shown}{format_time(record.now_s)}"),
        ("links", f"{len(shaped)} shaped" if shaped else "not shaped"),
        ("processes", _counts(record)),
    ]


def _some(texts: Sequence[str], most: int = 12) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _counts(record: Recording) -> str:
    tints = [timeline.tint_of(one) for one in record.processes]
    words = {"bad": "failed", "stopped": "ended by a signal", "good": "ended well", "runs": "running"}
    return ", ".join(f"{tints.count(tint)} {text}" for tint, text in words.items() if tint in tints)


def _wrong(record: Recording, about: About) -> Iterator[str]:
    """Yield what a reader is to see first: failed processes, ended hosts, stopped replays, links that are still cut."""
    kinds = {
        "processes that failed": _failed(record, about), "events": _mishaps(record), "cuts": _still_cut(record),
    }  # fmt: skip
    for kind, found in kinds.items():
        lines = [*found]
        yield from lines[:WRONG]
        if len(lines) > WRONG:
            yield f"and {len(lines) - WRONG} more {kind}"
    if record.refusal:
        yield record.refusal


def _failed(record: Recording, about: About) -> Iterator[str]:
    for process in record.processes:
        if timeline.tint_of(process) == "bad":
            last = [line for line in about.outputs.get(process.number, ()) if line.strip()][-1:]
            yield f"{process.host}: {timeline.process_text(process)}" + (f": {last[0].strip()}" if last else "")


def _mishaps(record: Recording) -> Iterator[str]:
    """Yield the hosts that ended by themselves or have no carrier, and the replays that stopped by themselves."""
    for one in record.happenings:
        if one.kind == "end":
            yield f"host {one.note} ended by itself at {moment(one.begin_s)}"
        elif one.kind == "carrier" and one.end_s is None:
            yield f"{one.note} has no carrier since {moment(one.begin_s)}"
        elif one.kind not in ("carrier", "reset") and one.note:
            yield f"{one.note}, at {moment(one.end_s or one.begin_s)}"


def _still_cut(record: Recording) -> Iterator[str]:
    for links, cut in timeline.cut_groups(record.cuts()):
        if cut.end_s is None:
            yield f"{timeline.links_text(links)} {timeline.cut_text(cut)}"


def _notes(record: Recording) -> Iterator[str]:
    for what, count in record.left_out.items():
        yield f"{count} older {what} are left out, to keep the record small"
    if record.joined_s:
        yield f"older samples of links are joined to such of up to {format_time(record.joined_s)}"


def _outputs(record: Recording, about: About) -> Iterator[tuple[str, str, str]]:
    """Yield tint, title and last lines of processes, those that failed first."""
    order = {"bad": 0, "runs": 1, "stopped": 2, "good": 3}
    for process in sorted(record.processes, key=lambda one: (order[timeline.tint_of(one)], one.begin_s)):
        if lines := about.outputs.get(process.number):
            yield timeline.tint_of(process), f"{process.host}: {timeline.process_text(process)}", "\n".join(lines)


# --- tables -----------------------------------------------------------------------------------------


def _sheets(record: Recording, found: Sequence[plots.LinkSum]) -> Iterator[tuple[str, str, Sheet, int]]:
    """Yield the tables of the page: id, name, table, and how many rows are left out."""
    yield (
        "links",
        "All links",
        *_sheet(
            ["link", "now", "carried", "at most", "packets dropped", "waited at most"], _link_rows(record, found), 2
        ),
    )
    yield "cuts", "Cuts", *_sheet(["cut", "from", "to", "lasted", "by"], _cut_rows(record), 1)
    yield "changes", "Changes", *_sheet(["at", "by", "of", "to"], _change_rows(record), 4)
    yield (
        "processes",
        "Processes",
        *_sheet(["process", "host", "ended", "from", "to", "lasted", "processor time"], _process_rows(record), 3),
    )


def _sheet(heads: Sequence[str], rows: Sequence[SheetRow], left: int) -> tuple[Sheet, int]:
    sides = [(head, i >= left) for i, head in enumerate(heads)]
    return Sheet("", sides, [*rows[:LISTED]]), max(0, len(rows) - LISTED)


def _row(*cells: object, tint: str = "", of: int = 0) -> SheetRow:
    """Return a row. ``tint``: the class of cell number ``of``."""
    return SheetRow([(cell, tint if i == of else "") for i, cell in enumerate(cells)])


def _link_rows(record: Recording, found: Sequence[plots.LinkSum]) -> list[SheetRow]:
    shapes = record.shapes()
    carried = {one.link: one for one in found}
    links = [*carried, *(link for link in shapes if link not in carried)]
    return [_link_row(link, shapes, carried.get(link)) for link in links]


def _link_row(link: Link, shapes: Mapping[Link, Any], one: plots.LinkSum | None) -> SheetRow:
    now = shape_text(shapes[link]) if link in shapes else "as it was set before"
    if one is None:
        return SheetRow([(cell, "") for cell in (link.text, now, "", "", "", "")], dim=True)
    waited = format_size(one.waiting_bytes) if one.waiting_bytes else ""
    return _row(link.text, now, format_size(one.sent_bytes), format_rate(one.most_bps), one.drops or "", waited)


def _cut_rows(record: Recording) -> list[SheetRow]:
    return [
        _row(
            timeline.links_text(links), moment(cut.begin_s), "still cut" if cut.end_s is None else moment(cut.end_s),
            "" if cut.end_s is None else format_time(cut.end_s - cut.begin_s), cut.by,
            tint="bad" if cut.end_s is None else "", of=2,
        )
        for links, cut in timeline.cut_groups(record.cuts())
    ]  # fmt: skip


def _change_rows(record: Recording) -> list[SheetRow]:
    rows = [
        (one.at_s, _row(moment(one.at_s), one.by, timeline.links_text(one.links), one.text))
        for one in timeline.groups(record)
    ]
    for change in record.host_changes:
        text = timeline.host_text(change.direction, change.rate_bps)
        rows.append((change.at_s, _row(moment(change.at_s), "set", change.name, text)))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _process_rows(record: Recording) -> list[SheetRow]:
    rows = []
    for one in sorted(record.processes, key=lambda one: (timeline.tint_of(one) != "bad", one.begin_s)):
        end_s = record.now_s if one.end_s is None else one.end_s
        rows.append(_row(
            timeline.command_text(one), one.host, timeline.ended_text(one), moment(one.begin_s),
            "" if one.end_s is None else moment(one.end_s), format_time(end_s - one.begin_s),
            "" if one.cpu_s is None else format_time(one.cpu_s), tint=timeline.tint_of(one), of=2,
        ))  # fmt: skip
    return rows
