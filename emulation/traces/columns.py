"""Columns of numbers over time in CSV files, which are read block by block.

The lines of a block are parsed at once. If that fails, they are parsed line by line, to name the wrong line.

R1. A file of ours has the header ``time_s``, then one or more of ``FIGURES``. Times start at 0.
R2. The files of other tools are read by ``foreign``, which parses plain lines with ``parse_plain`` too.
R3. Times rise strictly. Figures are at least 0, a loss at most 1 and a delay at most a minute.
"""

from __future__ import annotations

import codecs
import csv
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg.emulation.links.shape import MAX_DELAY_S
from thalweg.emulation.traces.times import Stamps
from thalweg.middleware.errors import TraceError
from thalweg.middleware.platform.files import open_regular

FloatArray = npt.NDArray[np.float64]
TIME, RATE, DELAY, LOSS = "time_s", "bandwidth_bps", "delay_s", "loss"
FIGURES = (RATE, DELAY, LOSS)
BYTES, INTERVAL = "bytes", "interval_s"  # in other tools' files: they become a rate
_MOST = {DELAY: MAX_DELAY_S, LOSS: 1.0}
_BEYOND = {DELAY: f"more than {MAX_DELAY_S:g} s", LOSS: "more than 1"}
MAX_BYTES, MAX_LINES = 1 << 30, 20_000_000
BLOCK_BYTES = 1 << 20  # in one read
Tell = Callable[[int, int], None]
Kind = Literal["time", "rate", "share", "size"]


class Column(NamedTuple):
    """Column to be read. ``field``: meaning of the column. ``place``: position in the file, from 0.

    ``unit``: factor that converts the values to SI units. ``worth``: value of the values' unit, which is of ``kind``.
    ``more``: places of further cells of the column, as a date and a time of day. ``stamps``: reader of times that are
    not plain numbers.
    """

    field: str
    place: int
    name: str
    unit: float = 1.0
    more: tuple[int, ...] = ()
    stamps: Stamps | None = None
    kind: Kind = "rate"
    worth: float = 1.0


Choose = Callable[[Path, Sequence[str], Sequence[Sequence[str]]], list[Column]]
"""Function from a path, the names of columns and the first rows to the columns to be read, times first."""


def own(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> list[Column]:
    """Return the columns of a file of ours (R1). Raises TraceError for other files."""
    if header[:1] != [TIME] or not set(FIGURES).issuperset(header[1:]) or not 1 < len(header) == len(set(header)):
        raise TraceError(
            f"{path}:1: the header is {shown(','.join(header))}, not '{TIME},{RATE}' (or {DELAY}, {LOSS}); is this a"
            " bandwidth trace? `thalweg traces import` takes other columns by --time and --rate"
        )
    return [Column(name, place, name) for place, name in enumerate(header)]


def read(
    path: Path, choose: Choose, *, rebase: bool = False, tell: Tell | None = None
) -> tuple[FloatArray, list[FloatArray]]:
    """Return the times and the further chosen columns of a file of ours. Times begin with 0.

    ``rebase``: shift times to start at 0. ``tell``: called with the bytes read so far and the total. Raises TraceError
    with file and line.
    """
    lines = blocks(path, "a trace")
    most, total_bytes = next(lines)
    first: bytes = next(lines)
    head, _, rest = first.partition(b"\n")
    header = [name.strip() for name in _cells(path, 1, decoded(path, 1, head).removeprefix("\ufeff").strip())]
    table = _Table(path, choose(path, header, ()), len(header), rebase)
    filled = [np.empty(most) for _ in table.columns]
    rows, done = 0, len(first) - len(rest)
    for block in (piece for part in ((rest,), lines) for piece in part if piece):
        parsed = table.parsed(rows + 2, block)
        end = rows + len(parsed[0])
        for column, values in zip(filled, parsed, strict=True):
            column[rows:end] = values
        rows, done = end, done + len(block)
        if tell is not None:
            tell(done, total_bytes)
    if not rows:
        raise TraceError(f"{path}: no rows after the header; a trace needs at least one")
    for column in filled:
        column.resize(rows, refcheck=False)
    filled[0] -= filled[0][0]
    for column in filled:
        column.flags.writeable = False  # so that a trace need not copy it
    return filled[0], filled[1:]


def in_unit(values: FloatArray, unit: float) -> None:
    """Convert values to SI units in place, to the last digit: 40 in ms are 0.04."""
    inverse = round(1 / unit)
    if abs(inverse * unit - 1) < 1e-12:
        values /= inverse
    else:
        values *= unit


class _Table:
    """Parser of the lines of one file, block by block."""

    def __init__(self, path: Path, columns: list[Column], width: int, rebase: bool) -> None:
        self.path, self.columns, self.width, self.rebase = path, columns, width, rebase
        self.places = [column.place for column in columns]
        self.last: float | None = None  # the time of the row before

    def parsed(self, first: int, block: bytes) -> Sequence[FloatArray]:
        """Return the chosen columns in the units of the file. ``first``: number of the block's first line."""
        values = parse_plain(block, self.width, self.places)
        if values is None or not self._sound(values):
            values = self._careful(first, block)
        self.last = float(values[0][-1])
        return values

    def _sound(self, found: Sequence[FloatArray]) -> bool:
        times = found[0]
        begins = (self.rebase or times[0] == 0.0) if self.last is None else times[0] > self.last
        if not (begins and np.isfinite(times).all() and (times[1:] > times[:-1]).all()):
            return False
        return all(in_bounds(column, values) for column, values in zip(self.columns[1:], found[1:], strict=True))

    def _careful(self, first: int, block: bytes) -> list[FloatArray]:
        """Return the rows, parsed one by one. Spaces around numbers are fine. Raises TraceError with the line."""
        last, table = self.last, [list[float]() for _ in self.columns]
        for number, line in enumerate(decoded(self.path, first, block).split("\n"), first):
            at = f"{self.path}:{number}"
            cells = _cells(self.path, number, line)
            if len(cells) != self.width:
                raise TraceError(f"{at}: {shown(line)} has {len(cells)} column(s), not the {self.width} of the header")
            texts = [cells[column.place].strip() for column in self.columns]
            values = [_number(at, column.name, text) for column, text in zip(self.columns, texts, strict=True)]
            for column, value, text in zip(self.columns[1:], values[1:], texts[1:], strict=True):
                judge(at, column, value, text)
            if last is None and values[0] != 0 and not self.rebase:
                raise TraceError(
                    f"{at}: the first time is {texts[0]}, not 0;"
                    " `thalweg traces import` shifts such files to start at 0"
                )
            if last is not None and values[0] <= last:
                problem = "repeats" if values[0] == last else "is earlier than"
                raise TraceError(
                    f"{at}: {self.columns[0].name} {texts[0]} {problem} the row before's; sort the rows, and keep one"
                    " for each time"
                )
            last = values[0]
            for column_values, value in zip(table, values, strict=True):
                column_values.append(value)
        return [np.array(values) for values in table]


def parse_plain(block: bytes, width: int, places: Sequence[int]) -> Sequence[FloatArray] | None:
    """Return the columns at these places, or None unless all lines are plain and have ``width`` cells with commas."""
    rows = block.count(b"\n") + 1
    commas = b"," * (width - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of text, which both parsers also report by their result
        if block.translate(None, b"0123456789.+-eE") == (commas + b"\n") * (rows - 1) + commas:  # no nan, no inf
            try:
                values = np.fromstring(block.replace(b"\n", b",").decode("ascii"), sep=",")
            except ValueError:  # newer versions of NumPy raise it, as for "-"
                return None
            if len(values) == width * rows:
                table = values.reshape(rows, width)
                return [table[:, place] for place in places]
        elif b'"' not in block:  # files of other tools may have columns of text
            try:
                lines = block.decode("ascii").split("\n")
                table = np.loadtxt(lines, delimiter=",", usecols=places, comments=None, ndmin=2)
            except ValueError:
                return None
            even = all(line.count(",") == width - 1 for line in lines)
            if even and len(table) == rows:  # loadtxt skips empty lines
                return [*table.T]
    return None


def in_bounds(column: Column, values: FloatArray) -> bool:
    """Return whether ``judge`` accepts all values of a column. NaN is not accepted."""
    least = values > 0 if column.field == INTERVAL else values >= 0
    return bool((least & (values <= _MOST.get(column.field, sys.float_info.max) / column.unit)).all())


def judge(at: str, column: Column, value: float, text: str) -> None:
    """Raise TraceError if a value is out of bounds (R3)."""
    if value < 0:
        outage = "; an outage is 0" if column.field == RATE else ""
        raise TraceError(f"{at}: {column.name} is {text}, below 0{outage}")
    if value == 0 and column.field == INTERVAL:
        raise TraceError(f"{at}: the interval {column.name} is {text}; remove the row, or name another column by --per")
    if value > _MOST.get(column.field, sys.float_info.max) / column.unit:
        beyond = _BEYOND.get(column.field, "too large to be counted")
        raise TraceError(f"{at}: {column.name} is {text}, {beyond}; is its unit right?")


def blocks(path: Path, what: str, encoding: str = "utf-8") -> Iterator[Any]:
    """Yield the most lines that the file can have, and its bytes. Then yield blocks of whole lines.

    A block ends without a line end, and the last block without blank lines. ``what``: the expected content, for errors.
    ``encoding``: text of another encoding becomes UTF-8. Raises TraceError for a file that cannot be read, or is too
    large.
    """
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise TraceError(f"{path} has {size} bytes, more than {MAX_BYTES}; divide it")
            size = count = 0
            for piece in _pieces(path, file, encoding):
                size, count = size + len(piece), count + piece.count(b"\n")
                if size > MAX_BYTES or count > MAX_LINES:
                    raise TraceError(f"{path} has more than {MAX_LINES} lines or {MAX_BYTES} bytes; divide it")
            yield count + 1, size
            file.seek(0)
            rest = b""
            for piece in _pieces(path, file, encoding):
                text = (rest + piece).replace(b"\r\n", b"\n")
                cut = text.rstrip().rfind(b"\n") + 1
                if len(text) - cut > 2 * BLOCK_BYTES:
                    raise TraceError(f"{path} has a line of more than {BLOCK_BYTES} bytes; is this {what}?")
                if cut:
                    yield text[: cut - 1]
                rest = text[cut:]
            yield rest.rstrip()
    except OSError as error:
        raise TraceError(f"cannot read {error.filename}: {error.strerror}") from error


def _pieces(path: Path, file: BinaryIO, encoding: str) -> Iterator[bytes]:
    """Yield the rest of a file as UTF-8, or unchanged for the encoding ``utf-8``."""
    decoder = codecs.getincrementaldecoder(encoding)()
    while piece := file.read(BLOCK_BYTES):
        try:
            yield piece if encoding == "utf-8" else decoder.decode(piece, len(piece) < BLOCK_BYTES).encode()
        except UnicodeError as error:
            raise TraceError(f"{path}: not {encoding.upper()} text: {error}; save the file as UTF-8") from error


def _cells(path: Path, number: int, line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise TraceError(f"{path}:{number}: {shown(line)} is not a line of a CSV file: {error}") from None


def decoded(path: Path, first: int, data: bytes) -> str:
    """Return lines as text. ``first``: number of the first line. Raises TraceError with the line if not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise TraceError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8, or name another") from error


def _is_number(text: str) -> bool:
    try:
        return text.isascii() and "_" not in text and float(text) is not None
    except ValueError:
        return False


def _number(at: str, column: str, text: str) -> float:
    if not _is_number(text):
        raise TraceError(f"{at}: {column} is {shown(text)}, not a number")
    value = float(text)
    if not math.isfinite(value):
        raise TraceError(f"{at}: {column} is {shown(text)}; it must be finite")
    return value


def shown(text: str) -> str:
    """Return the beginning of a text in a file, for an error."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
