"""Parquet tables of a testbed's record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thalweg.emulation.links.shape import UNRATED_BPS, LinkShape
from thalweg.emulation.recording.recording import Recording
from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.writing import whole
from thalweg.middleware.network.view import NET, Link

TIME = pa.timestamp("us", tz="UTC")
ENDS = [("source", pa.string()), ("target", pa.string()), ("network", pa.string())]
SHAPE = ("rate_bps", "delay_s", "jitter_s", "loss", "cut", "queue", "distribution", "duplicate", "reorder", "corrupt",
         "burst_bytes")  # fmt: skip
SHAPE_TYPES = {"cut": pa.bool_(), "queue": pa.string(), "distribution": pa.string(), "burst_bytes": pa.int64()}
COUNTERS = pa.schema([
    ("begin_s", pa.float64()), ("end_s", pa.float64()), ("time", TIME), *ENDS,
    ("asked_bps", pa.float64()), ("delivered_bps", pa.float64()), ("bytes", pa.int64()), ("packets", pa.int64()),
    ("drops", pa.int64()), ("waiting_bytes", pa.int64()),
])  # fmt: skip
CHANGES = pa.schema([
    ("at_s", pa.float64()), ("time", TIME), ("change", pa.int64()), ("by", pa.string()), *ENDS,
    ("changed", pa.list_(pa.string())), *((name, SHAPE_TYPES.get(name, pa.float64())) for name in SHAPE),
    ("rate_before_bps", pa.float64()),
])  # fmt: skip
CUTS = pa.schema([
    ("begin_s", pa.float64()), ("end_s", pa.float64()), ("time", TIME), *ENDS, ("by", pa.string()),
])  # fmt: skip
HOST_RATES = pa.schema([
    ("at_s", pa.float64()), ("time", TIME), ("host", pa.string()), ("network", pa.string()),
    ("direction", pa.string()), ("rate_bps", pa.float64()),
])  # fmt: skip
PROCESSES = pa.schema([
    ("number", pa.int64()), ("host", pa.string()), ("pid", pa.int64()), ("command", pa.string()),
    ("begin_s", pa.float64()), ("end_s", pa.float64()), ("time", TIME), ("status", pa.int64()),
    ("cpu_s", pa.float64()), ("detached", pa.bool_()),
])  # fmt: skip
EVENTS = pa.schema([
    ("begin_s", pa.float64()), ("end_s", pa.float64()), ("time", TIME), ("kind", pa.string()), ("note", pa.string()),
])  # fmt: skip


SCHEMAS: Mapping[str, pa.Schema] = {
    "counters.parquet": COUNTERS, "changes.parquet": CHANGES, "cuts.parquet": CUTS, "host_rates.parquet": HOST_RATES,
    "processes.parquet": PROCESSES, "events.parquet": EVENTS,
}  # fmt: skip
"""Schemas of the tables by file name."""


def tables(record: Recording) -> dict[str, pa.Table]:
    """Return the record's tables by file name."""
    rows: dict[str, Iterable[Sequence[Any]]] = {
        "changes.parquet": _changes(record),
        "cuts.parquet": (
            [cut.begin_s, cut.end_s, cut.begin_s, *_ends(cut.link), cut.by] for cut in record.cuts()
        ),
        "host_rates.parquet": (
            [change.at_s, change.at_s, change.host, change.via or None, change.direction, change.rate_bps]
            for change in record.host_changes
        ),
        "processes.parquet": (
            [process.number, process.host, process.pid, process.command, process.begin_s, process.end_s,
             process.begin_s, process.status, process.cpu_s, process.stays] for process in record.processes
        ),
        "events.parquet": (
            [event.begin_s, event.end_s, event.begin_s, event.kind, event.note] for event in record.happenings
        ),
    }  # fmt: skip
    by_name = {name: _table(SCHEMAS[name], record, values) for name, values in rows.items()}
    return {"counters.parquet": counters_table(record)} | by_name


def write_tables(made: Mapping[str, pa.Table], folder: Path) -> None:
    """Write tables into an existing folder. Raises UsageError if a file cannot be written."""
    for name, table in made.items():
        with whole(folder / name, "choose another folder", error=UsageError) as part:
            pq.write_table(table, part, compression="zstd")


def counters_table(record: Recording) -> pa.Table:
    """Return the counters of links: a row for every link and time in which the link was not idle."""
    names = [_ends(link) for link in record.links]
    numbers = pa.array(record.column("link").astype(np.int32))
    texts = [
        pa.DictionaryArray.from_arrays(numbers, pa.array(column, pa.string())).cast(pa.string())
        for column in (zip(*names, strict=True) if names else ([], [], []))
    ]
    begin_s, end_s = record.column("begin_s"), record.column("end_s")
    seconds = np.maximum(end_s - begin_s, 1e-9)
    asked = asked_bps(record)
    whole_numbers = [
        record.column(name).astype(np.int64) for name in ("sent_bytes", "packets", "drops", "waiting_bytes")
    ]
    times = ((record.began_unix_s + end_s) * 1e6).astype(np.int64)
    columns = [
        begin_s, end_s, pa.array(times).cast(TIME), *texts, pa.array(asked, mask=np.isnan(asked)),
        record.column("sent_bytes") * 8 / seconds, *whole_numbers,
    ]  # fmt: skip
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=COUNTERS)


def asked_bps(record: Recording) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean requested rate of every sample's link. NaN: the link had no rate."""
    seconds = np.maximum(record.column("end_s") - record.column("begin_s"), 1e-9)
    asked = (record.column("asked_end_bits") - record.column("asked_begin_bits")) / seconds
    return np.where(asked < 0.9 * UNRATED_BPS, asked, np.nan)


def _ends(link: Link) -> list[str | None]:
    return [link.source, link.target, None if link.via == NET else link.via]


def _changes(record: Recording) -> Iterable[list[Any]]:
    for change in record.recent_changes():
        before = change.before
        since = LinkShape(UNRATED_BPS) if before is None else before
        changed = [name for name in SHAPE if getattr(since, name) != getattr(change.after, name)]
        shape = [_plain(change.after, name) for name in SHAPE]
        ends = _ends(record.links[change.link])
        rate_bps = None if before is None else _plain(before, "rate_bps")
        yield [change.at_s, change.at_s, change.number, change.by, *ends, changed, *shape, rate_bps]


def _plain(shape: LinkShape, name: str) -> Any:
    value = getattr(shape, name)
    if name == "rate_bps" and value == UNRATED_BPS:
        return None
    return str(value) if name == "queue" and value is not None else value


def _table(schema: pa.Schema, record: Recording, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Return a table of rows. Times are given in seconds since the start."""
    columns = [*zip(*rows, strict=True)] or [()] * len(schema)
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        values = list(column)
        if field.type == TIME:
            values = [round((record.began_unix_s + at_s) * 1e6) for at_s in values]
            arrays.append(pa.array(values, pa.int64()).cast(TIME))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
