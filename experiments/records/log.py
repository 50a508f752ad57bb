"""The event log of a run, read: a ``Row`` for every record, in the log's order and in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thalweg.experiments.records.bills import Bill
from thalweg.experiments.records.records import EVENTS, SCHEMA, half_written
from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.protocol.absent_sources import Gap

BATCH_ROWS = 16_384
MAX_BYTES = 256 * 1024 * 1024  # of a column in one piece, and of its texts in BATCH_ROWS rows
MAX_ROWS = 100_000_000  # a day of a hundred hosts is some millions
TreeRow = tuple[str, list[str], str]  # name, inputs and host of an operator or the sink


class Detail(msgspec.Struct, frozen=True):
    """What a record's detail says; the fields that its kind does not have keep their defaults.

    ``ago``: how many seconds before the record each phase of a move or of a change of the tree began.
    """

    # relocated, arrived, proposal, reshaped
    outcome: str | None = None
    protocol: str | None = None
    reason: str = ""  # of a missing one, too
    why: str = ""
    version: int | None = None
    ago: dict[str, float | None] = {}
    after: tuple[TreeRow, ...] = ()
    # recovered, befallen
    hosts: dict[str, str] = {}
    generation: int = 0
    again: dict[str, int] = {}
    went_on: tuple[str, ...] = ()
    moved: dict[str, str] = {}
    missing: dict[str, list[Gap]] = {}
    # carried
    stripe: int = 0
    kept: bool = True
    # placed, plan, epoch
    planner: str | None = None
    predicted_s: float | None = None
    probed: int = 0
    placement: dict[str, str] = {}
    inputs: dict[str, list[str]] = {}
    decision: str | None = None
    # estimate, monitor
    how: str = "probe"
    truth_bps: float | None = None
    news_bytes: int = 0
    probe_bytes: int = 0
    bytes_sent: int = 0
    # relayed
    relays: tuple[str, ...] = ()
    # proof, link, replay
    via: str | None = None
    asked_bps: float | None = None
    asked_delay_s: float = 0.0
    delivered_delay_s: float | None = None
    lost: int = 0
    lost_low: int = 0
    lost_high: int = 0
    stalled: float | None = None
    worst_window: float | None = None
    lag_max_s: float | None = None
    # bill
    bill: Bill | None = None
    # relayed
    source: str | None = None
    target: str | None = None
    # delivered, log
    digest: str | None = None
    # missing
    rows: int = 0
    # scenario
    scenario: str = "scenario"
    at_s: float | None = None
    until_s: float | None = None


class Row(msgspec.Struct, frozen=True):
    """A record, its columns those of the log's schema; ``placement`` None: it belongs to the run."""

    placement: str | None
    host: str
    t_s: float
    wall_s: float
    kind: str
    node: str | None
    peer: str | None
    index: int | None
    size_bytes: int | None
    duration_s: float | None
    value: float | None
    detail: Detail


_COLUMNS = list(Row.__struct_fields__)
_SILENT = Detail()
_decode = msgspec.json.Decoder(Detail).decode


def read_log(folder: Path, *kinds: str) -> Iterator[Row]:
    """The records of these kinds; UsageError when one has not the detail of its kind."""
    wanted = pa.array(kinds)
    for batch in _batches(folder, _COLUMNS):
        kept = batch.filter(pc.is_in(batch["kind"], wanted))
        for *said, text in zip(*(kept[column].to_pylist() for column in _COLUMNS), strict=True):
            try:
                yield Row(*(*said, _decode(text) if text else _SILENT))
            except (msgspec.DecodeError, RecursionError) as error:
                what = f"the detail of a record {said[4]!r} is damaged ({error})"
                raise UsageError(f"{folder / EVENTS}: {what}; run it again") from None


def gaps(folder: Path, missing: Iterable[Row]) -> list[str]:
    """What is missing of the hosts' logs and why, one line each; ``missing``: the records that say so."""
    lost: Counter[tuple[str, str]] = Counter()
    for row in missing:
        lost[row.host, row.detail.reason] += row.detail.rows
    torn = half_written(folder)
    return [
        *(f"{rows} rows of the records are missing on host {host!r}: {why}" for (host, why), rows in lost.items()),
        *(f"{name} ends in half a line, which was left out; its writer was killed" for name in torn),
    ]


def _batches(folder: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """These columns of the log; UsageError where it is damaged, or would fill the memory."""
    events = folder / EVENTS
    try:
        yield from read_batches(events, SCHEMA, columns)
    except FileNotFoundError:  # nothing is wrong with the log: it is elsewhere
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"{events} is damaged ({one_line(error)[:200]}); run it again") from None


def read_batches(path: Path, schema: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a Parquet file, some rows at a time; ArrowInvalid where that would fill the memory.

    A text that many rows share stands in the file once, so that a small file may hold any number of bytes: texts are
    read as they stand there, and counted before they are written out.
    """
    texts = [name for name in columns if schema.field(name).type == pa.string()]
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
        told = file.metadata
        groups = map(told.row_group, range(told.num_row_groups))
        sizes = (each.column(i).total_uncompressed_size for each in groups for i in range(each.num_columns))
        largest = max(sizes, default=0)
        if told.num_rows > MAX_ROWS or largest > MAX_BYTES:
            raise pa.ArrowInvalid(f"{told.num_rows} rows, {largest} bytes in one piece")
        for batch in file.iter_batches(columns=columns, batch_size=BATCH_ROWS):
            written = [_written(batch[name]) if name in texts else batch[name] for name in columns]
            yield pa.RecordBatch.from_arrays(written, schema=pa.schema([schema.field(name) for name in columns]))


def _written(texts: pa.DictionaryArray) -> pa.StringArray:
    """Every row's text, where they have room."""
    lengths = pc.binary_length(texts.dictionary).cast(pa.int64())
    if (size := pc.sum(lengths.take(texts.indices)).as_py() or 0) > MAX_BYTES:
        raise pa.ArrowInvalid(f"{size} bytes of text in {len(texts)} rows")
    return texts.cast(pa.string())


Latest = dict[str, dict[int, float]]  # by placement, of every index


def last_produced(folder: Path, queries: Mapping[str, Sequence[str]]) -> dict[str, Latest]:
    """By sink, when the last of the sources that it is made of had produced each index; ``queries``: these sources."""
    columns = ["placement", "kind", "node", "index", "t_s"]
    found: dict[str, Latest] = {sink: {} for sink in queries}
    for batch in _batches(folder, columns) if queries else ():
        rows = pa.Table.from_batches([batch]).filter(pc.field("kind") == "produced")
        for sink, sources in queries.items():
            own = rows.filter(pc.is_in(rows["node"], pa.array(sources, pa.string())))
            last = own.group_by(["placement", "index"]).aggregate([("t_s", "max")])
            for name, index, t_s in zip(*(each.to_pylist() for each in last.columns), strict=True):
                known = found[sink].setdefault(name, {})
                known[index] = max(t_s, known.get(index, t_s))
    return found


class LinkSum(NamedTuple):
    """What records of a kind say of a link together: how many there are, the sum of a column, the last one's time."""

    rows: int = 0
    total: int | float = 0
    last_s: float = 0.0


def sum_links(folder: Path, kind: str, column: str, of: str = "host") -> dict[tuple[str, str, str], LinkSum]:
    """By placement, host (or node, with ``of``) and peer, where all three are said; of these records there are many."""
    found: dict[tuple[str, str, str], LinkSum] = {}
    by = ["placement", of, "peer"]
    for batch in _batches(folder, [*by, "kind", "t_s", column]):
        said = (pc.field("kind") == kind) & pc.field("placement").is_valid() & pc.field("peer").is_valid()
        said &= pc.field(of).is_valid()
        sums = pa.Table.from_batches([batch]).filter(said).group_by(by)
        for row in sums.aggregate([([], "count_all"), (column, "sum"), ("t_s", "max")]).to_pylist():
            link = row["placement"], row[of], row["peer"]
            known, total = found.get(link, LinkSum()), row[f"{column}_sum"] or 0
            last_s = max(known.last_s, row["t_s_max"])
            found[link] = LinkSum(known.rows + row["count_all"], known.total + total, last_s)
    return found
