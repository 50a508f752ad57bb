"""Report of a testbed: Parquet tables and an HTML page about everything since its start."""

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
LISTED = 1_000  # limit of rows of a table of the page
UNFOLDED = 20
WRONG = 8  # limit of lines about failures of one kind


class About(msgspec.Struct, frozen=True):
    """Description of a testbed beside its record. ``title``: of the page. ``backend``: kind of the hosts.

    ``outputs``: last lines of processes, by their numbers.
    """

    name: str
    backend: str
    hosts: Mapping[str, str]
    title: str = ""
    outputs: Mapping[int, Sequence[str]] = {}


def last_lines(record: Recording, outputs: Mapping[tuple[str, int], Sequence[str]]) -> dict[int, Sequence[str]]:
    """Return the last lines of processes by their numbers in a record.

    ``outputs``: lines from a different source, by host and number of the process there. The remaining lines are of
    logs.
    """
    # if several processes had one number, the last of them
    numbers = {(process.host, process.pid): process.number for process in record.processes}
    lines_by_number: dict[int, Sequence[str]] = {
        process.number: process.tail.splitlines() for process in record.processes if process.tail
    }
    return lines_by_number | {numbers[key]: lines for key, lines in outputs.items() if key in numbers}


def write_report(record: Recording, about: About, folder: Path, last_s: float | None = None) -> Path:
    """Write the tables and the page into a folder, and return the page. The folder is created if missing.

    ``last_s``: limit the report to the last seconds. Raises UsageError if the folder cannot be created or written.
    """
    if last_s is not None:
        record = record.since(record.now_s - last_s)
    page = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; choose another folder") from None
    written = tables(record)
    write_tables(written, folder)
    text = page_text(record, about, {name: table.num_rows for name, table in written.items()})
    with whole(page, "choose another folder", error=UsageError) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
    return page


def page_text(record: Recording, about: About, files: Mapping[str, int]) -> str:
    """Return the page. ``files``: the numbers of rows of the tables beside it, by file name."""
    scale = timeline.Scale(record.begin_s, record.now_s)
    link_sums = plots.pairs(plots.sums(record, scale))
    asked, cuts = plots.Asked(record), record.cuts()
    drawn = [plots.plot(link_sum, record, asked, cuts, scale) for link_sum in link_sums[: OPEN_PLOTS + FOLDED_PLOTS]]
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
        "undrawn": len(link_sums) - len(drawn),
        "tables": [*_sheets(record, link_sums)],
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
    tints = [timeline.tint_of(process) for process in record.processes]
    words = {"bad": "failed", "stopped": "ended by a signal", "good": "ended well", "runs": "running"}
    return ", ".join(f"{tints.count(tint)} {text}" for tint, text in words.items() if tint in tints)


def _wrong(record: Recording, about: About) -> Iterator[str]:
    """Yield the lines at the top of the page: failed processes, ended hosts, stopped replays, remaining cuts."""
    kinds = {
        "processes that failed": _failed(record, about), "events": _mishaps(record), "cuts": _still_cut(record),
    }  # fmt: skip
    for kind, texts in kinds.items():
        lines = [*texts]
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
    for happening in record.happenings:
        if happening.kind == "end":
            yield f"host {happening.note} ended by itself at {moment(happening.begin_s)}"
        elif happening.kind == "carrier" and happening.end_s is None:
            yield f"{happening.note} has no carrier since {moment(happening.begin_s)}"
        elif happening.kind not in ("carrier", "reset") and happening.note:
            yield f"{happening.note}, at {moment(happening.end_s or happening.begin_s)}"


def _still_cut(record: Recording) -> Iterator[str]:
    for links, cut in timeline.cut_groups(record.cuts()):
        if cut.end_s is None:
            yield f"{timeline.links_text(links)} {timeline.cut_text(cut)}"


def _notes(record: Recording) -> Iterator[str]:
    for kind, count in record.left_out.items():
        yield f"{count} older {kind} are left out, to keep the record small"
    if record.joined_s:
        yield f"older samples of links are joined into samples of up to {format_time(record.joined_s)}"


def _outputs(record: Recording, about: About) -> Iterator[tuple[str, str, str]]:
    """Yield tint, title and last lines of processes. Failed processes come first."""
    order = {"bad": 0, "runs": 1, "stopped": 2, "good": 3}
    for process in sorted(record.processes, key=lambda one: (order[timeline.tint_of(one)], one.begin_s)):
        if lines := about.outputs.get(process.number):
            yield timeline.tint_of(process), f"{process.host}: {timeline.process_text(process)}", "\n".join(lines)


# --- tables -----------------------------------------------------------------------------------------


def _sheets(record: Recording, found: Sequence[plots.LinkSum]) -> Iterator[tuple[str, str, Sheet, int]]:
    """Yield the tables of the page: id, name, table, and the number of rows left out."""
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
    carried = {link_sum.link: link_sum for link_sum in found}
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
        (group.at_s, _row(moment(group.at_s), group.by, timeline.links_text(group.links), group.text))
        for group in timeline.groups(record)
    ]
    for change in record.host_changes:
        text = timeline.host_text(change.direction, change.rate_bps)
        rows.append((change.at_s, _row(moment(change.at_s), "set", change.name, text)))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _process_rows(record: Recording) -> list[SheetRow]:
    rows = []
    for process in sorted(record.processes, key=lambda one: (timeline.tint_of(one) != "bad", one.begin_s)):
        end_s = record.now_s if process.end_s is None else process.end_s
        rows.append(_row(
            timeline.command_text(process), process.host, timeline.ended_text(process), moment(process.begin_s),
            "" if process.end_s is None else moment(process.end_s), format_time(end_s - process.begin_s),
            "" if process.cpu_s is None else format_time(process.cpu_s), tint=timeline.tint_of(process), of=2,
        ))  # fmt: skip
    return rows
