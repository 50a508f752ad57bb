"""Results of a sweep: Parquet files with one row a trial, each written whole or not at all.

A row has the trial's key, the fields of the trial, and the fields of the outcome. No key appears twice: rows of failed
simulations are removed before a new run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import inspect

from thalweg.experiments.records.log import MAX_BYTES, read_batches
from thalweg.experiments.records.records import RUN_TOML
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import RunError, UsageError, one_line
from thalweg.middleware.files.writing import whole
from thalweg.middleware.platform.files import check_regular

SWEEP_TOML = "sweep.toml"  # marks the folder of a sweep
RESULTS = "results"
DAMAGED = ".damaged"
UNREADABLE = (pa.ArrowException, OSError, ValueError)  # raised for damaged Parquet, also for text in its footer
_PART = re.compile(r"part-(\d+)\.parquet")
_ARROW: dict[type, pa.DataType] = {
    inspect.StrType: pa.string(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.BoolType: pa.bool_(),
}


def neither(folder: Path) -> str:
    """Return the problem with a folder that holds neither a run nor a sweep."""
    if not folder.exists():
        return f"{folder} does not exist; name folders that `run` or `sweep` wrote"
    if (folder / "logs").is_dir():
        return f"{folder} has no {RUN_TOML}: its run was killed before it ended; run it again, or leave it out"
    return f"{folder} is neither a run folder (no {RUN_TOML}) nor a sweep (no {SWEEP_TOML}); leave it out"


@cache
def schema(trial: type[Trial]) -> pa.Schema:
    """Return the schema of every part: ``key``, the fields of the trial, the fields of its outcome, in order."""
    fields = [pa.field("key", pa.string(), nullable=False)]
    for kind in (trial, trial.outcome):
        described = inspect.type_info(kind)
        assert isinstance(described, inspect.StructType)
        fields += [_field(field.name, field.type) for field in described.fields]
    return pa.schema(fields)


def _field(name: str, described: inspect.Type) -> pa.Field:
    nullable = False
    if isinstance(described, inspect.UnionType):
        (described,) = (member for member in described.types if not isinstance(member, inspect.NoneType))
        nullable = True
    if isinstance(described, inspect.LiteralType):  # literals of trials are strings
        return pa.field(name, pa.string(), nullable=nullable)
    if isinstance(described, inspect.VarTupleType):
        return pa.field(name, pa.list_(_ARROW[type(described.item_type)]), nullable=nullable)
    return pa.field(name, _ARROW[type(described)], nullable=nullable)


def row(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    """Return the row of one trial in a part."""
    return {"key": trial.key, **msgspec.structs.asdict(trial), **msgspec.structs.asdict(outcome)}


class Results:
    """Parts of one sweep's folder, for the process that writes them.

    Call ``open`` first. Then ``finished`` has the keys of finished trials, and ``notes`` the repairs.
    """

    def __init__(self, folder: Path, trial: type[Trial]) -> None:
        self.folder, self.schema = folder / RESULTS, schema(trial)
        self.finished: set[str] = set()
        self.notes: list[str] = []
        self._next = 0

    def open(self) -> None:
        """Read the parts. Remove files of killed writers, set damaged parts aside, and remove failed rows.

        Raises UsageError for parts of a different version, RunError if the folder cannot be written.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(".part-"):
                    path.unlink()
                elif (match := _PART.match(path.name)) is not None:  # also parts set aside, as no name is used twice
                    self._next = max(self._next, int(match[1]) + 1)
            for path in _parts(self.folder):
                self._take_in(path)
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{self.folder} cannot be written: {why}; free space there") from error

    def _take_in(self, path: Path) -> None:
        try:
            table = _read(path, self.schema)
        except UNREADABLE:
            aside = path.with_name(path.name + DAMAGED)
            path.replace(aside)
            self.notes.append(f"{path} is damaged; it was set aside as {aside.name}, and its runs are run again")
            return
        rows = list(zip(table["key"].to_pylist(), table["failed"].to_pylist(), strict=True))
        keep = [failed is None and key not in self.finished for key, failed in rows]
        self.finished.update(key for key, failed in rows if failed is None)
        if not any(keep):
            path.unlink()
        elif not all(keep):
            self._put(path, table.filter(pa.array(keep)))

    def write(self, rows: Iterable[dict[str, Any]]) -> Path:
        """Write a further part, and return its path when it is on the disk. Raise RunError if writing fails."""
        path = self.folder / f"part-{self._next:05d}.parquet"
        self._put(path, pa.Table.from_pylist(list(rows), schema=self.schema))
        self._next += 1
        return path

    def _put(self, path: Path, table: pa.Table) -> None:
        with whole(path, "free space there", sync=True) as unfinished:
            pq.write_table(table, unfinished, compression="zstd", write_page_checksum=True)


def read_results(folder: Path, trial: type[Trial]) -> pa.Table:
    """Return the rows of a sweep with this class of trial in ``folder``.

    Raises UsageError for a damaged part, with the way to mend it.
    """
    tables = []
    for path in _parts(folder / RESULTS):
        try:
            tables.append(_read(path, schema(trial)))
        except FileNotFoundError:  # a running sweep removes failed rows meanwhile
            continue
        except UNREADABLE as error:
            reason = one_line(error)[:120]
            raise UsageError(
                f"{path} is damaged ({reason}); give the sweep's command again, which sets it aside and runs its"
                " simulations again"
            ) from None
    return pa.concat_tables(tables) if tables else schema(trial).empty_table()


def _parts(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _PART.fullmatch(path.name))


def _read(path: Path, wanted: pa.Schema) -> pa.Table:
    check_regular(path)
    file = pq.ParquetFile(path, page_checksum_verification=True)
    with file:
        if not file.schema_arrow.equals(wanted):
            expected = dict(zip(wanted.names, wanted.types, strict=True))
            types = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
            column = next((name for name in expected | types if expected.get(name) != types.get(name)), "their order")
            raise UsageError(
                f"{path} has other columns than this version writes (the first is {column}); choose another --out, or"
                " use the version that wrote it"
            )
    batches, size = [], 0
    for batch in read_batches(path, wanted, wanted.names):
        batches.append(batch)
        if (size := size + batch.nbytes) > MAX_BYTES:
            raise pa.ArrowInvalid(f"more than {MAX_BYTES} bytes of results")
    return pa.Table.from_batches(batches, wanted)
