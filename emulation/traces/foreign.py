"""Reader of CSV files of other tools, which may have unsorted rows, gaps, units in cells, and dates.

R1. Blocks of plain lines are parsed at once. The lines of a block that is not plain are read one by one.
R2. A cell without a value is refused, unless ``Reading.missing`` replaces the cell or drops the row.
R3. Rows stay in the order of the file unless ``Reading.sort`` is set. Sorted rows of one time become their mean.
R4. Bytes and their interval become a rate that holds from the interval's start. Intervals do not overlap.
R5. The last line may be cut short, and is then left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from thalweg.emulation.traces import cells, chosen, columns
from thalweg.emulation.traces.cells import BLANKS, Decimal, Layout, Note
from thalweg.emulation.traces.columns import BYTES, INTERVAL, RATE, TIME, Choose, Column, FloatArray, shown
from thalweg.emulation.traces.trace import default_duration_s
from thalweg.middleware.errors import TraceError, UsageError, counted

Missing = Literal["drop", "hold", "zero"]
TOO_LONG = 2.0  # times the span of the rows: a longer sum of intervals has a wrong unit
EPOCH_S = 1e8  # from here on a float keeps microseconds only


class Reading(NamedTuple):
    """Options of a reading. None refuses missing cells, and guesses the decimal mark."""

    missing: Missing | None = None
    sort: bool = False
    decimal: Decimal | None = None


STRICT = Reading()


class Rows(NamedTuple):
    """Times from 0 on, figures by field in SI units, and the duration of all rows together."""

    times_s: FloatArray
    figures: dict[str, FloatArray]
    duration_s: float


def quiet(note: str) -> None:
    """Ignore a note: the default of readers."""


def read(
    path: Path,
    choose: Choose,
    reading: Reading = STRICT,
    note: Note = quiet,
    tell: columns.Tell | None = None,
) -> Rows:
    """Return the chosen columns of a file.

    ``note``: called with each guess. ``tell``: called with the bytes read so far and the total. Raises TraceError with
    file and line, and UsageError for an unknown unit.
    """
    encoding = cells.encoding_of(path, note)
    blocks = columns.blocks(path, "a trace", encoding)
    most, total_bytes = next(blocks)
    first: bytes = next(blocks)
    if len(first) < cells.HEAD_BYTES and (second := next(blocks, b"")):
        first += b"\n" + second  # a short file: the last line is a block of its own
    layout = cells.layout(path, first, reading.decimal, note)
    table = _Table(path, layout, choose(path, layout.header, layout.sample), reading, note)
    rest = first.split(b"\n", layout.before)[layout.before :]
    filled = [np.empty(most) for _ in table.columns]
    rows, line, done = 0, layout.before + 1, 0
    for block in itertools.chain(rest, blocks):
        parsed = table.parsed(line, block) if block else ()
        end = rows + (len(parsed[0]) if parsed else 0)
        for column, values in zip(filled, parsed, strict=bool(parsed)):
            column[rows:end] = values
        rows, line, done = end, line + block.count(b"\n") + 1, done + len(block)
        if tell is not None:
            tell(min(done, total_bytes), total_bytes)
    table.tell_counts()
    if not rows:
        raise TraceError(f"{path}: no rows after the header; a trace needs at least one")
    for column in filled:
        column.resize(rows, refcheck=False)
    return _finished(path, table.columns, filled, reading, note)


class _Table:
    """Parser of the lines of one file, block by block."""

    def __init__(self, path: Path, layout: Layout, columns_read: list[Column], reading: Reading, note: Note) -> None:
        self.path, self.layout, self.columns, self.reading, self.note = path, layout, columns_read, reading, note
        self.width = len(layout.header)
        self.places = [column.place for column in columns_read]
        self.by_number = all(column.stamps is None for column in columns_read)
        self.last: float | None = None  # time of the row before, in the unit of the file
        self.broken: TraceError | None = None  # R5: of a line that is good only as the last one
        self.noted: set[str] = set()
        self.missing = self.repeated = 0

    def parsed(self, first: int, block: bytes) -> Sequence[FloatArray]:
        """Return the chosen columns of a block in the units of the file. ``first``: number of the first line."""
        values = None
        if self.by_number and self.broken is None and (plain := self._plain(block)) is not None:
            values = columns.parse_plain(plain, self.width, self.places)
        if values is None or not self._sound(values):
            values = self._careful(first, block)
        if len(values[0]):
            self.last = float(values[0][-1])
        return values

    def _plain(self, block: bytes) -> bytes | None:
        """Return the block with commas between cells and decimal points, or None if it has other marks too."""
        separator, comma = self.layout.separator.encode(), self.layout.decimal == "comma"
        if separator == b",":
            return None if comma else block
        if b"," in block and not comma:
            return None
        if comma:
            if b"." in block:
                return None
            block = block.replace(b",", b".")
        if self.layout.separator == BLANKS:
            block = re.sub(rb"(?m)^[ \t]+|[ \t]+$", b"", block)
            return re.sub(rb"[ \t]+", b",", block)
        return block.replace(separator, b",")

    def _sound(self, found: Sequence[FloatArray]) -> bool:
        times = found[0]
        if not np.isfinite(times).all():
            return False
        if not self.reading.sort:
            begins = self.last is None or times[0] > self.last
            if not (begins and (times[1:] > times[:-1]).all()):
                return False
        return all(
            columns.in_bounds(column, values) for column, values in zip(self.columns[1:], found[1:], strict=True)
        )

    def _careful(self, first: int, block: bytes) -> list[FloatArray]:
        """Return the rows of a block, read line by line. Raises TraceError with the line."""
        table = [list[float]() for _ in self.columns]
        text, latin = cells.decoded(block)
        if latin:
            self._note_once("latin", f"{self.path}: not UTF-8 from line {first} on; read as Latin-1")
        last = self.last
        for number, line in enumerate(text.split("\n"), first):
            if cells.is_passed_over(line):
                continue
            if self.broken is not None:
                raise self.broken
            at = f"{self.path}:{number}"
            row = self._cells(at, line)
            if row is None:
                continue
            values = self._values(at, row)
            if values is None:
                continue
            if last is not None and values[0] <= last and not self.reading.sort:
                flaw = "repeats" if values[0] == last else "is earlier than"
                raise TraceError(
                    f"{at}: {self.columns[0].name} {self._text(row, self.columns[0])} {flaw} the row before's; `--sort`"
                    " sorts rows, and takes the mean of rows of one time"
                )
            last = values[0]
            for column_values, value in zip(table, values, strict=True):
                column_values.append(value)
        return [np.array(values) for values in table]

    def _cells(self, at: str, line: str) -> list[str] | None:
        """Return the cells of a line. None: it repeats the header, or is good only as the last line (R5)."""
        row = cells.split(line, self.layout.separator)
        if row is None:
            self.broken = TraceError(f"{at}: {shown(line)} is not a line of a CSV file; close its quotes")
            return None
        while len(row) > self.width and not row[-1].strip():
            row.pop()
        if len(row) != self.width:
            error = TraceError(
                f"{at}: {shown(line)} has {len(row)} column(s), not the {self.width} of the"
                f" {'header' if self.layout.named else 'first line'}; correct or remove the line"
            )
            if len(row) > self.width:
                raise error
            self.broken = error
            return None
        if self.layout.named and [cell.strip() for cell in row] == self.layout.header:
            self.repeated += 1
            return None
        return row

    def _values(self, at: str, row: Sequence[str]) -> list[float] | None:
        """Return the values of a row, NaN for a missing value. None: the row is left out."""
        values = []
        for column in self.columns:
            text = self._text(row, column)
            if cells.is_missing(text):
                self.missing += 1
                if self.reading.missing == "drop":
                    return None
                self._check_missing(at, column, text)
                values.append(np.nan)
                continue
            value = self._value(at, column, text)
            if column.field != TIME:
                columns.judge(at, column, value, text)
            values.append(value)
        return values

    def _check_missing(self, at: str, column: Column, text: str) -> None:
        """Raise TraceError if a cell may not be missing (R2)."""
        problem = f"{at}: {column.name} is {shown(text)}, not a number"
        if column.field == TIME or (column.field == INTERVAL and self.reading.missing == "zero"):
            raise TraceError(f"{problem}; `--missing drop` leaves the row out")
        if self.reading.missing is None:
            raise TraceError(f"{problem}; where values are missing, write --missing drop, hold or zero")

    def _text(self, row: Sequence[str], column: Column) -> str:
        return " ".join(row[place].strip() for place in (column.place, *column.more))

    def _value(self, at: str, column: Column, text: str) -> float:
        if column.stamps is not None:
            value = column.stamps.seconds(text)
            if value is None:
                raise TraceError(
                    f"{at}: {column.name} is {shown(text)}, but the first times are read {column.stamps.reading};"
                    " write all in one form"
                )
            return value
        value = cells.number(text, self.layout.decimal)
        if value is None:
            return self._with_unit(at, column, text)
        if not np.isfinite(value):
            raise TraceError(f"{at}: {column.name} is {shown(text)}; it must be finite")
        if cells.has_groups(text, self.layout.decimal):
            name = f"{self.path}: marks between thousands are left out, as in {shown(text)} ({value:.15g})"
            self._note_once("groups", name)
        return value

    def _with_unit(self, at: str, column: Column, text: str) -> float:
        """Return the value of a cell such as ``8.2 Mbps`` in the unit of its column."""
        kind, parts = column.kind, cells.parted(text)
        value = cells.number(parts[0], self.layout.decimal) if parts else None
        if parts is None or value is None:
            hint = "; write --decimal comma if commas are decimal" * (self.layout.decimal == "point" and "," in text)
            if column.field == TIME and not hint:
                hint = " and no known form of a date or a time of day; write it as 2019-12-16 07:22:00"
            raise TraceError(f"{at}: {column.name} is {shown(text)}, not a number{hint}")
        word = parts[1].replace("µ", "u").replace("μ", "u")
        unit = chosen.unit_at_end(f" {word}", kind) or word
        try:
            factor = chosen.worth(unit, kind)
        except UsageError as error:
            raise TraceError(f"{at}: {column.name} is {shown(text)}: {error}") from None
        self._note_once(
            f"{column.name} {word}", f"{self.path}: {shown(word)} in cells of {column.name!r} is read as {unit}"
        )
        return _scaled(_scaled(value, factor), 1 / column.worth)

    def _note_once(self, key: str, text: str) -> None:
        if key not in self.noted:
            self.noted.add(key)
            self.note(text)

    def tell_counts(self) -> None:
        """Note lines and cells that were left out or filled in. If a short line is the only row, raise its error."""
        if self.broken is not None:
            if self.last is None:
                raise self.broken
            self.note(f"{str(self.broken).partition(';')[0]}; as the last line it is left out")
        if self.missing:
            became = {"drop": "such rows are left out", "hold": "the value before holds", "zero": "read as 0"}
            self.note(f"{self.path}: {counted(self.missing, 'missing cell')}; {became[self.reading.missing or 'drop']}")
        if self.repeated:
            self.note(f"{self.path}: {counted(self.repeated, 'repeated header')} passed over")
        for column in self.columns:
            if column.stamps is not None and column.stamps.midnights:
                self.note(f"{self.path}: {column.name!r} passes {counted(column.stamps.midnights, 'midnight')}")


def _scaled(value: float, factor: float) -> float:
    """Return value times factor. If 1 / factor is whole, divide by it instead, which is exact more often."""
    inverse = round(1 / factor) if factor else 0
    return value / inverse if factor < 1 and abs(inverse * factor - 1) < 1e-12 else value * factor


def _finished(path: Path, found: Sequence[Column], kept: list[FloatArray], reading: Reading, note: Note) -> Rows:
    """Return the rows, with columns sorted, filled in and converted to SI units."""
    if reading.sort:
        kept = _sorted(path, kept, reading, note)
    kept = _filled(path, kept, reading)
    times, *figures = kept
    base = float(times[0])
    times -= base
    for column, values in zip(found, kept, strict=True):
        columns.in_unit(values, column.unit)
    if abs(base) >= EPOCH_S and found[0].unit == 1.0 and found[0].stamps is None:
        tidy = np.round(times, 6)  # further digits are noise of a large number
        if (tidy[1:] > tidy[:-1]).all():
            times = tidy
    fields = dict(zip((column.field for column in found[1:]), figures, strict=True))
    duration_s = None
    if BYTES in fields:
        times, fields, duration_s = _rates(path, times, fields, note)
    for values in (times, *fields.values()):
        values.flags.writeable = False  # so that a trace need not copy it
    return Rows(times, fields, default_duration_s(times) if duration_s is None else duration_s)


def _sorted(path: Path, kept: list[FloatArray], reading: Reading, note: Note) -> list[FloatArray]:
    """Return the rows sorted by time, with one row for each time (R3)."""
    times = kept[0]
    if (times[1:] > times[:-1]).all():
        return kept
    moved = int((times[1:] < times[:-1]).sum())
    order = np.argsort(times, kind="stable")
    kept = [values[order] for values in kept]
    starts = np.flatnonzero(np.diff(kept[0], prepend=-np.inf) > 0)
    repeated = len(times) - len(starts)
    if moved:
        note(f"{path}: rows are sorted, since {counted(moved, 'row')} came after a later one")
    if not repeated:
        return kept
    note(f"{path}: {counted(repeated, 'row')} left out by the mean of the rows of one time")
    means = [kept[0][starts]]
    for values in kept[1:]:
        if reading.missing == "zero":
            values = np.nan_to_num(values, nan=0.0)
        known = ~np.isnan(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), starts)
        counts = np.add.reduceat(known.astype(np.float64), starts)
        with np.errstate(invalid="ignore"):
            means.append(sums / counts)  # NaN without a known value
    return means


def _filled(path: Path, kept: list[FloatArray], reading: Reading) -> list[FloatArray]:
    """Return the columns without NaN: 0 or the value before instead. Rows before the first value are left out."""
    if reading.missing not in ("hold", "zero"):
        return kept
    begin = 0
    for place, values in enumerate(kept[1:], 1):
        missing = np.isnan(values)
        if not missing.any():
            continue
        if reading.missing == "zero":
            kept[place] = np.where(missing, 0.0, values)
            continue
        begin = max(begin, int(np.argmin(missing)) if not missing.all() else len(values))
        kept[place] = values[np.maximum.accumulate(np.where(missing, 0, np.arange(len(values))))]
    if begin == len(kept[0]):
        raise TraceError(f"{path}: a column has no value at all to hold; name another one")
    return [values[begin:].copy() for values in kept] if begin else kept


def _rates(
    path: Path, times: FloatArray, fields: dict[str, FloatArray], note: Note
) -> tuple[FloatArray, dict[str, FloatArray], float]:
    """Return the starts of the intervals, the figures with rates, and the time from the first start to the end (R4)."""
    sizes, intervals = fields[BYTES], fields[INTERVAL]
    span_s, total_s = float(times[-1]), float(intervals[1:].sum())
    if total_s > TOO_LONG * span_s:
        raise TraceError(
            f"{path}: the intervals of --per add up to {total_s:g} s, but the rows span {span_s:g} s;"
            " is the unit of --per right?"
        )
    if total_s < span_s / TOO_LONG:
        note(f"{path}: the intervals of --per cover {total_s / span_s:.1%} of the time; is their unit right?")
    starts = times - intervals
    starts[1:] = np.maximum(starts[1:], times[:-1])
    with np.errstate(over="ignore"):
        rates = sizes * 8 / intervals
    if not np.isfinite(rates).all():
        raise TraceError(f"{path}: a rate is too large to be counted; are the units of --bytes and --per right?")
    figures = {RATE: rates, **{field: values for field, values in fields.items() if field not in (BYTES, INTERVAL)}}
    begin = float(starts[0])
    return starts - begin, figures, float(times[-1] - begin)
