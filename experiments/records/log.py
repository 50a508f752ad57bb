"""Reader of a run's event log: a ``Row`` for every record, in the log's order and in bounded memory."""

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
MAX_BYTES = 256 * 1024 * 1024  # of a column in a row group, and of its texts in BATCH_ROWS rows
MAX_ROWS = 100_000_000  # a day of a hundred hosts is some millions
TreeRow = tuple[str, list[str], str]  # name, inputs and host of an operator or the sink


class Detail(msgspec.Struct, frozen=True):
    """Detail of a record. Fields that the record's kind does not have keep their defaults.

    ``ago``: by phase of a move or of a change of the tree, the seconds from the start of the phase to the record.
    """

    # relocated, arrived, proposal, reshaped
    outcome: str | None = None
    protocol: str | None = None
    reason: str = ""  # also of missing
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
    """Record of the log, with the schema's columns. ``placement`` is None if the record belongs to the run."""

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
    """Yield the records of the given kinds. Raise UsageError if the detail of a record does not decode."""
    wanted = pa.array(kinds)
    for batch in _batches(folder, _COLUMNS):
        batch_of_kinds = batch.filter(pc.is_in(batch["kind"], wanted))
        for *columns, text in zip(*(batch_of_kinds[column].to_pylist() for column in _COLUMNS), strict=True):
            try:
                yield Row(*(*columns, _decode(text) if text else _SILENT))
            except (msgspec.DecodeError, RecursionError) as error:
                problem = f"the detail of a record {columns[4]!r} is damaged ({error})"
                raise UsageError(f"{folder / EVENTS}: {problem}; run it again") from None


def gaps(folder: Path, missing: Iterable[Row]) -> list[str]:
    """Return a line for each part of the hosts' logs that is missing, with the reason.

    ``missing``: records of kind ``missing``, which count lost rows.
    """
    lost: Counter[tuple[str, str]] = Counter()
    for row in missing:
        lost[row.host, row.detail.reason] += row.detail.rows
    torn = half_written(folder)
    return [
        *(f"{rows} rows of the records are missing on host {host!r}: {why}" for (host, why), rows in lost.items()),
        *(f"{name} ends in half a line, which was left out; its writer was killed" for name in torn),
    ]


def _batches(folder: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of the log in batches. Raise UsageError if the log is damaged or too large for memory."""
    events = folder / EVENTS
    try:
        yield from read_batches(events, SCHEMA, columns)
    except FileNotFoundError:  # the log is not damaged, but absent
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"{events} is damaged ({one_line(error)[:200]}); run it again") from None


def read_batches(path: Path, schema: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of a Parquet file in batches. Raise ArrowInvalid if the file is too large for memory.

    Parquet stores a text that many rows share only once, so a small file may expand to any number of bytes. Texts are
    read as dictionaries, and their size is checked before the expansion.
    """
    texts = [name for name in columns if schema.field(name).type == pa.string()]
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
        metadata = file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        sizes = (group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
        largest = max(sizes, default=0)
        if metadata.num_rows > MAX_ROWS or largest > MAX_BYTES:
            raise pa.ArrowInvalid(f"{metadata.num_rows} rows, {largest} bytes in one piece")
        for batch in file.iter_batches(columns=columns, batch_size=BATCH_ROWS):
            written = [_written(batch[name]) if name in texts else batch[name] for name in columns]
            yield pa.RecordBatch.from_arrays(written, schema=pa.schema([schema.field(name) for name in columns]))


def _written(texts: pa.DictionaryArray) -> pa.StringArray:
    """Expand a dictionary column to the text of every row. Raise ArrowInvalid above ``MAX_BYTES``."""
    lengths = pc.binary_length(texts.dictionary).cast(pa.int64())
    if (size := pc.sum(lengths.take(texts.indices)).as_py() or 0) > MAX_BYTES:
        raise pa.ArrowInvalid(f"{size} bytes of text in {len(texts)} rows")
    return texts.cast(pa.string())


Latest = dict[str, dict[int, float]]  # by placement and index


def last_produced(folder: Path, queries: Mapping[str, Sequence[str]]) -> dict[str, Latest]:
    """Return, by sink, placement and index, the time when the last of the sink's sources had produced the index.

    ``queries``: by sink, the sources that its results are made of.
    """
    columns = ["placement", "kind", "node", "index", "t_s"]
    latest: dict[str, Latest] = {sink: {} for sink in queries}
    for batch in _batches(folder, columns) if queries else ():
        rows = pa.Table.from_batches([batch]).filter(pc.field("kind") == "produced")
        for sink, sources in queries.items():
            own = rows.filter(pc.is_in(rows["node"], pa.array(sources, pa.string())))
            last = own.group_by(["placement", "index"]).aggregate([("t_s", "max")])
            for name, index, t_s in zip(*(column.to_pylist() for column in last.columns), strict=True):
                known = latest[sink].setdefault(name, {})
                known[index] = max(t_s, known.get(index, t_s))
    return latest


class LinkSum(NamedTuple):
    """Sums over a link's records of one kind: number of records, sum of a column, time of the last record."""

    rows: int = 0
    total: int | float = 0
    last_s: float = 0.0


def sum_links(folder: Path, kind: str, column: str, of: str = "host") -> dict[tuple[str, str, str], LinkSum]:
    """Return sums of a column by placement, host and peer, over the records of one kind.

    ``of``: column to use instead of the host, such as ``node``. Records without placement, host or peer do not count.
    """
    by_link: dict[tuple[str, str, str], LinkSum] = {}
    by = ["placement", of, "peer"]
    for batch in _batches(folder, [*by, "kind", "t_s", column]):
        of_kind = (pc.field("kind") == kind) & pc.field("placement").is_valid() & pc.field("peer").is_valid()
        of_kind &= pc.field(of).is_valid()
        sums = pa.Table.from_batches([batch]).filter(of_kind).group_by(by)
        for row in sums.aggregate([([], "count_all"), (column, "sum"), ("t_s", "max")]).to_pylist():
            link = row["placement"], row[of], row["peer"]
            known, total = by_link.get(link, LinkSum()), row[f"{column}_sum"] or 0
            last_s = max(known.last_s, row["t_s_max"])
            by_link[link] = LinkSum(known.rows + row["count_all"], known.total + total, last_s)
    return by_link
