"""Run folders: the event log of a run (Parquet) and its whole configuration (``run.toml``).

A run folder holds ``run.toml``, ``events.parquet``, ``images/<placement>/NNN.png``, ``plots/`` and ``summary.json``.
During a run, every host process appends its records as JSON Lines to a file of its own, one ``Record`` a line. After
the run, ``write_events`` gathers these files into one Parquet file.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.files.reading import decode_toml, read_bounded, reason
from thalweg.middleware.files.writing import whole
from thalweg.middleware.platform.files import open_regular
from thalweg.operators.reference import sequence_digest

RUN_TOML = "run.toml"
EVENTS = "events.parquet"
IMAGES = "images"
PLOTS = "plots"
SUMMARY = "summary.json"
FORMAT = 1  # of a run folder; increased when older versions would misread a new folder

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("placement", pa.string()),  # null: the record belongs to the run, not to one placement
        pa.field("host", pa.string(), nullable=False),
        pa.field("t_s", pa.float64(), nullable=False),  # emulated seconds since the placement's start
        pa.field("wall_s", pa.float64(), nullable=False),  # Unix time
        pa.field("kind", pa.string(), nullable=False),
        pa.field("node", pa.string()),
        pa.field("peer", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("duration_s", pa.float64()),
        pa.field("value", pa.float64()),
        pa.field("detail", pa.string()),  # a JSON object
    ]
)
ROW_GROUP = 16_384  # rows held in memory at a time, about 5 MB
MAX_LINE_BYTES = 1 << 20  # a record is some hundred bytes; a longer line is no record
_TORN = b"thalweg.half_written"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a host's log. ``t`` is emulated seconds since the placement's start, ``wall`` Unix time.

    ``kind`` determines the meaning of the remaining fields. Kinds that the analysis does not know are kept.
    """

    t: float
    wall: float
    host: str
    kind: str
    placement: str | None = None
    node: str | None = None
    peer: str | None = None
    index: int | None = None
    size_bytes: int | None = None
    duration_s: float | None = None
    value: float | None = None
    detail: dict[str, Any] | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``run.toml``: how to read the run's records, the run's whole configuration, and the versions.

    ``run``: unique name of the run. ``images``: number of partitions that every placement must deliver. ``time_scale``:
    emulated seconds per wall second. ``reference_digest``: ``sequence_digest`` of a single-process run of the same seed
    (with several sinks: ``whole_digest``). ``reference_digests``: the same by sink. ``references``: the same by
    placement and sink, for placements that went on without sources. ``queries``: by sink, the sources that the sink's
    results are made of. ``config``: the rest of the options that the run was started with.
    """

    run: str
    testbed: str
    seed: int
    images: int
    placements: list[str]
    format: int = FORMAT
    time_scale: float = 1.0
    delay_emulated: bool = False
    reference_digest: str | None = None
    reference_digests: dict[str, str] = {}
    references: dict[str, dict[str, str]] = {}
    queries: dict[str, list[str]] = {}
    started: str | None = None  # ISO 8601, UTC
    hosts: list[str] = []
    notes: list[str] = []  # facts that the reader must know, such as "rates only: the kernel has no netem"
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    wall_s: dict[str, float] = {}  # of each simulated placement: duration of the simulation

    def references_of(self, placement: str) -> dict[str, str]:
        """Return the digests, by sink, of a single-process run for a placement. Empty if they are unknown."""
        return self.references.get(placement, self.reference_digests)

    @property
    def item(self) -> str:
        """Noun for a delivered partition, for messages: ``image`` or ``partition``."""
        return "image" if self.config.get("workload", "composition") == "composition" else "partition"


def whole_digest(by_sink: Mapping[str, str]) -> str | None:
    """Return the digest of the results of all sinks, from the digest of each sink.

    The digest of a single sink is returned as it is. Several digests are digested in the order of the sinks' names. The
    result is None without sinks.
    """
    digests = [by_sink[sink] for sink in sorted(by_sink)]
    return digests[0] if len(digests) == 1 else sequence_digest(digests) if digests else None


# --- the event log ----------------------------------------------------------------------------------


def write_events(run_folder: Path, run_id: str, jsonl_files: Iterable[Path]) -> Path:
    """Gather the hosts' logs into ``run_folder/events.parquet`` and return its path.

    Rows keep the order of each log. At most ``ROW_GROUP`` rows are in memory. The file appears whole or not at all. If
    the last line of a log has no newline and does not decode, its writer was killed. The line is left out, and the
    Parquet metadata name the log (``half_written``). For any other line that is not a record, RunError names the file
    and line.
    """
    target = run_folder / EVENTS
    torn: list[str] = []
    with (
        whole(target, "free space there", sync=True) as part,
        pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer,
    ):
        rows = (
            (
                run_id, record.placement or None, record.host, record.t, record.wall, record.kind,
                record.node, record.peer, record.index, record.size_bytes, record.duration_s,
                record.value, detail,
            )
            for path in jsonl_files
            for record, detail in _read_log(path, torn)
        )  # fmt: skip
        while some := list(itertools.islice(rows, ROW_GROUP)):
            columns = zip(*some, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({_TORN: json.dumps(torn).encode()})
    return target


class _Line(Record, frozen=True, forbid_unknown_fields=True):
    """Record whose detail stays JSON text."""

    detail: msgspec.Raw = msgspec.Raw(b"")  # type: ignore[assignment]  # on purpose not the type of Record.detail


_decode_line = msgspec.json.Decoder(_Line).decode


def _read_log(path: Path, torn: list[str]) -> Iterator[tuple[Record, str | None]]:
    """Yield every record of one host's log with its detail as JSON text.

    The name of a log with a half-written last line is appended to ``torn``.
    """
    try:
        with open_regular(path) as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise RunError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes; not a host log")
                try:
                    record = _decode_line(line)
                    detail = bytes(record.detail).decode() or None
                    if detail is not None and detail != "null" and not detail.startswith("{"):
                        raise msgspec.ValidationError("Expected `object` - at `$.detail`")
                    _check_range(record)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not line.endswith(b"\n"):
                        torn.append(path.name)
                        return
                    raise RunError(
                        f"{path}, line {number}: not a record ({error}); the log is damaged, run again"
                    ) from None
                yield record, None if detail == "null" else detail
    except OSError as error:
        raise RunError(f"host log {path} cannot be read: {error.strerror or error}") from error


def _check_range(record: Record) -> None:
    for name, value in (("index", record.index), ("size_bytes", record.size_bytes)):
        if value is not None and not -(2**63) <= value < 2**63:
            raise msgspec.ValidationError(f"Expected a 64-bit `int` - at `$.{name}`")


def half_written(run_folder: Path) -> list[str]:
    """Return the names of host logs whose last line was half-written, from the event log's metadata.

    Raises UsageError if the metadata are damaged.
    """
    metadata = pq.read_metadata(run_folder / EVENTS).metadata or {}
    try:
        return msgspec.json.decode(metadata.get(_TORN, b"[]"), type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{run_folder / EVENTS} is damaged ({error}); run it again") from None


# --- run.toml ---------------------------------------------------------------------------------------


def save_run(run_folder: Path, info: RunInfo) -> Path:
    """Write ``run.toml``, whole or not at all, and return its path. None values are left out."""
    target = run_folder / RUN_TOML
    with whole(target, "choose another --out") as part:
        part.write_text(to_toml(msgspec.to_builtins(info)), encoding="utf-8")
    return target


def read_toml(path: Path, verb: str, newest: int) -> dict[str, Any]:
    """Return the content of the TOML file of a folder that ``thalweg verb`` has written.

    Raises UsageError if the file is missing, damaged, or of a format newer than ``newest``.
    """
    try:
        tree = decode_toml(read_bounded(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        problem = f"{path.parent} is not a {verb} folder (no {path.name})"
        raise UsageError(f"{problem}; name one that `{verb}` wrote") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}") from None
    if isinstance(form := tree.get("format", newest), int) and form > newest:
        raise UsageError(f"{path} is of format {form} and this version reads up to {newest}; upgrade thalweg")
    return tree


def load_run(folder: Path) -> RunInfo:
    """Read a run folder's ``run.toml``.

    Raises UsageError if ``folder`` is not a run folder or has no event log, or if its ``run.toml`` is damaged or of a
    newer format.
    """
    path = folder / RUN_TOML
    tree = read_toml(path, "run", FORMAT)
    try:
        info = msgspec.convert(tree, RunInfo)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if not math.isfinite(info.time_scale) or info.time_scale <= 0:
        raise UsageError(f"{path} is damaged: time_scale must be positive, not {info.time_scale}")
    if not (folder / EVENTS).is_file():
        raise UsageError(f"{folder} has no {EVENTS}; its run did not end, run it again")
    return info


# --- a TOML writer (the standard library only reads) ------------------------------------------------

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tree: Mapping[str, Any]) -> str:
    """Return nested mappings, lists, strings, booleans, 64-bit integers and floats as TOML 1.0.

    ``tomllib.loads`` restores an equal tree. Keys with the value None are left out. For any other value or key,
    UsageError names the key.
    """
    return "\n".join(_table(tree, ())).strip("\n") + "\n"


def _table(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    here = {key: value for key, value in tree.items() if value is not None and not isinstance(value, Mapping)}
    below = {key: value for key, value in tree.items() if isinstance(value, Mapping)}
    if path and (here or not below):
        yield f"\n[{'.'.join(_key(name, path) for name in path)}]"
    for key, value in here.items():
        yield f"{_key(key, path)} = {_value(value, (*path, key))}"
    for key, value in below.items():
        yield from _table(value, (*path, key))


def _key(key: object, path: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise UsageError(f"key {key!r} of {'.'.join(map(str, path)) or 'the configuration'} is not a string")
    return key if _BARE_KEY.fullmatch(key) else _string(key, path)


def _string(text: str, path: tuple[str, ...]) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(f"{'.'.join(map(str, path))} has text that is not Unicode: {text!r}")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes it, JSON does not


def _value(value: object, path: tuple[str, ...]) -> str:
    if isinstance(value, str):
        return _string(value, path)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # TOML writes inf, -inf and nan like Python
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item, path) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(k, path)} = {_value(v, (*path, k))}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(pairs)}}}"
    raise UsageError(f"{'.'.join(map(str, path))} cannot be written as TOML: {value!r}")
