"""Layout of files of field tools: encoding, separator, decimal mark, header, and numbers in cells.

R1. The first lines of a file decide. Blank lines and lines that begin with ``#`` are passed over.
R2. If the first line has only numbers, dates and missing cells, it is data. The columns are then called 1, 2, 3, …, or
    as the comment above them says.
R3. A comma that can only be decimal makes all commas decimal. If ``;`` separates, an unclear comma is decimal.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from thalweg.emulation.traces.times import is_stamp
from thalweg.middleware.errors import TraceError, printable
from thalweg.middleware.platform.files import open_regular

Note = Callable[[str], None]
Decimal = Literal["point", "comma"]
SAMPLED_LINES, HEAD_BYTES = 100, 4096
BLANKS = " "  # separator: one or more blanks and tabs
MISSING = frozenset({"", "-", "--", "?", "nan", "na", "n/a", "null", "none", "nil"})
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?", re.ASCII | re.IGNORECASE)
_UNITED = re.compile(r"([+-]?[\d.,' \u00a0\u202f]*\d\.?(?:e[+-]?\d+)?)\s*([a-z%µμ][a-z%/.]*)", re.IGNORECASE)
_GROUPS = {
    "point": re.compile(r"[+-]?\d{1,3}(?:([,' \u00a0\u202f])\d{3})(?:\1\d{3})*(?:\.\d*)?", re.ASCII),
    "comma": re.compile(r"[+-]?\d{1,3}(?:([.' \u00a0\u202f])\d{3})(?:\1\d{3})*(?:,\d*)?", re.ASCII),
}
_COMMA = re.compile(r"[+-]?\d*,\d+(?:e[+-]?\d+)?|[+-]?\d{1,3}(?:[.' \u00a0\u202f]\d{3})+,\d+", re.ASCII | re.IGNORECASE)
_UNCLEAR = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
_POINT = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)\.\d+(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_COMMA_INSIDE = re.compile(r"(?<=\d),(?=\d)")
_SHOWN = {",": "commas", ";": "semicolons", "\t": "tabs", BLANKS: "blanks"}


class Layout(NamedTuple):
    """Layout of one file. ``before``: number of lines above the first row of data. ``sample``: first rows of data."""

    separator: str
    decimal: Decimal
    header: list[str]
    named: bool
    before: int
    sample: list[list[str]]


def encoding_of(path: Path, note: Note) -> str:
    """Return ``utf-8`` or a form of UTF-16, by the first bytes of a file. Raises TraceError for an unreadable file."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES) or b""
    except OSError as error:
        raise TraceError(f"cannot read {error.filename}: {error.strerror}") from error
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = head[1:64:2].count(0), head[0:64:2].count(0)
    if max(zeros) and not min(zeros) and max(zeros) >= len(head[:64]) // 2 - 2:
        encoding = "utf-16-le" if zeros[0] else "utf-16-be"
        note(f"{path}: read as {encoding.upper()}, by its zero bytes")
        return encoding
    return "utf-8"


def decoded(data: bytes) -> tuple[str, bool]:
    """Return lines as text, and whether they were read as Latin-1 because they are not UTF-8."""
    try:
        return data.decode("utf-8"), False
    except UnicodeDecodeError:
        return data.decode("latin-1"), True


def layout(path: Path, block: bytes, decimal: Decimal | None, note: Note) -> Layout:
    """Return the layout of a file that begins with this block of lines."""
    lines, comment = _first_lines(block)
    if not lines:
        return Layout(",", "point", [""], True, block.count(b"\n") + 1, [])
    separator = _separator([text for _, text in lines])
    rows = [split(text, separator) for _, text in lines]
    first = [printable(cell.strip()) for cell in rows[0] or [lines[0][1]]]
    named = not (all(map(_is_value, first)) or any(map(is_stamp, first)))  # R2: a line of values is data
    sample = [row for row in (rows[1:] if named else rows) if row is not None]
    mark = decimal or _decimal(path, separator, sample, note)
    if separator != ",":
        note(f"{path}: {_SHOWN[separator]} separate its columns{', commas are decimal' * (mark == 'comma')}")
    elif mark == "comma" and decimal is None:
        note(f"{path}: commas in its cells are decimal; else write --decimal point")
    header = first if named else _header_of_data(len(first), comment, separator)
    return Layout(separator, mark, header, named, lines[0][0] + named, sample)


def _first_lines(block: bytes) -> tuple[list[tuple[int, str]], str]:
    """Return the first lines of a file with their numbers, and the last comment above them (R1)."""
    lines: list[tuple[int, str]] = []
    comment = ""
    for number, data in enumerate(block.removeprefix(codecs.BOM_UTF8).split(b"\n")):
        text = decoded(data)[0].strip("\r\n")
        if is_passed_over(text):
            comment = text if text.strip() and not lines else comment
            continue
        lines.append((number, text.removeprefix("\ufeff")))
        if len(lines) > SAMPLED_LINES:
            break
    return lines, comment


def _header_of_data(columns: int, comment: str, separator: str) -> list[str]:
    """Return the column names of a file that begins with data: from the comment above it, or numbers (R2)."""
    names = [printable(name.strip()) for name in split(comment.strip().lstrip("#").strip(), separator) or []]
    if comment and len(names) == columns and not any(map(_is_value, names)):
        return names
    return [str(number) for number in range(1, columns + 1)]


def is_passed_over(line: str) -> bool:
    """Return whether a line is blank or a comment (R1)."""
    stripped = line.strip()
    return not stripped or stripped.startswith("#")


def split(line: str, separator: str) -> list[str] | None:
    """Return the cells of a line, or None if a quote in the line does not close."""
    if separator == BLANKS:
        line = line.strip()
        if '"' not in line:
            return line.split()
        separator, line = " ", re.sub(r"\s+", " ", line)
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, strict=True, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return None


def number(text: str, decimal: Decimal) -> float | None:
    """Return the number in a cell, or None for other text. Marks between thousands are left out."""
    if (match := _GROUPS[decimal].fullmatch(text)) is not None:
        text = text.replace(match[1], "")
    if decimal == "comma":
        text = text.replace(",", ".", 1) if "." not in text else text
    return float(text) if _PLAIN.fullmatch(text) else None


def has_groups(text: str, decimal: Decimal) -> bool:
    """Return whether marks stand between the thousands of a number."""
    return _GROUPS[decimal].fullmatch(text) is not None


def parted(text: str) -> tuple[str, str] | None:
    """Return number and unit of a cell such as ``8.2 Mbps``, or None for a cell of another form."""
    match = _UNITED.fullmatch(text)
    return (match[1].strip(), match[2]) if match else None


def is_missing(text: str) -> bool:
    """Return whether a cell stands for a value that was not measured."""
    return text.lower() in MISSING


def is_plain_number(text: str) -> bool:
    """Return whether a text is a finite number in Python's notation."""
    return _PLAIN.fullmatch(text) is not None and math.isfinite(float(text))


def _is_value(text: str) -> bool:
    if number(text, "point") is not None or number(text, "comma") is not None or is_missing(text) or is_stamp(text):
        return True
    parts = parted(text)
    return parts is not None and number(parts[0], "point") is not None


def _separator(lines: Sequence[str]) -> str:
    """Return the separator that splits most lines into as many cells as the first line. ``;`` and tabs come first."""
    counts: dict[str, list[int]] = {}
    for separator in (";", "\t", ",", BLANKS):
        counts[separator] = [len(split(line, separator) or ()) for line in lines]
    if all(" " in line.strip() and ";" not in line and "\t" not in line for line in lines):
        words = [word for line in lines[1:] or lines for word in line.split()]
        if all(is_plain_number(_COMMA_INSIDE.sub(".", word, count=1)) for word in words) and len(words) > 1:
            return BLANKS  # even if commas are decimal
    for separator, numbers in counts.items():
        alike = sum(count == numbers[0] for count in numbers)
        if numbers[0] > 1 and 2 * alike > len(numbers):
            return separator
    return next((separator for separator in (",", ";", "\t") if separator in lines[0]), ",")


def _decimal(path: Path, separator: str, rows: Sequence[Sequence[str]], note: Note) -> Decimal:
    cells = [cell.strip() for row in rows for cell in row]
    texts = [parts[0] if (parts := parted(cell)) else cell for cell in cells if "," in cell or "." in cell]
    if any(_COMMA.fullmatch(text) and not _UNCLEAR.fullmatch(text) for text in texts):  # R3: unlike 1,500
        return "comma"
    unclear = next((text for text in texts if _UNCLEAR.fullmatch(text)), None)
    if unclear is None:
        return "point"
    if separator == ";" and not any(map(_POINT.fullmatch, texts)):
        value, other = number(unclear, "comma"), "point"
    else:
        value, other = number(unclear, "point"), "comma"
    note(f"{path}: {unclear!r} is read as {value:g}; else write --decimal {other}")
    return "comma" if other == "point" else "point"
