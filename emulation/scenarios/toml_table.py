"""Tables of a TOML file whose every error is one line that names the file and the line."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

from thalweg.emulation.scenarios.data_sets import near_miss
from thalweg.emulation.scenarios.toml_lines import Lines, Path
from thalweg.middleware.errors import UsageError

Reader = Callable[[Any], Any]
"""Makes a value of what TOML has; raises UsageError saying what is wrong with it and what to write."""


class Table:
    """A table of a file, or the file itself. ``values``: what has been read of it, by key."""

    def __init__(self, file: str, lines: Lines, path: Path, given: Mapping[str, Any], what: str) -> None:
        self.file, self.path, self.given, self.what = file, path, given, what
        self.values: dict[str, Any] = {}
        self._lines = lines
        self._top: set[str] = set()  # keys of the file itself

    def read(self, readers: Mapping[str, Reader]) -> Mapping[str, Any]:
        """Read every key; one that has no reader is an error that names the nearest."""
        if not self.path:
            self._top.update(readers)
        for key, value in self.given.items():
            if key not in readers:
                hint = near_miss(key, readers)
                if key in self._top:
                    hint = "it is a key of the file itself: write it above the first table"
                raise self.error(f"{self.what} has no key {key!r}; {hint}", key)
            try:
                self.values[key] = readers[key](value)
            except UsageError as error:
                raise self.error(f"{key}: {error}", key) from None
        return self.values

    def error(self, text: str, *keys: str | int) -> UsageError:
        """An error at the line of a key of this table, or of an element of it; without one, of the table."""
        return UsageError(f"{self.file}, line {self._lines.of((*self.path, *keys))}: {text}")

    def inner(self, key: str, what: str) -> Table:
        """The table under a key; an empty one when there is none."""
        given = self.given.get(key, {})
        if not isinstance(given, dict):
            raise self.error(f"{key} must be a table: write [{key}], and its keys below", key)
        return self._within((*self.path, key), given, what)

    def inner_all(self, key: str, what: str) -> list[Table]:
        """The tables of an array of tables; none when there is none."""
        given = self.given.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise self.error(f"{key} must be an array of tables: write [[{key}]] before each", key)
        return [self.element(key, number, what) for number in range(len(given))]

    def element(self, key: str, number: int, what: str) -> Table:
        """The table that is an element of an array."""
        return self._within((*self.path, key, number), self.given[key][number], what)

    def _within(self, path: Path, given: Mapping[str, Any], what: str) -> Table:
        table = Table(self.file, self._lines, path, given, what)
        table._top = self._top
        return table


def read_toml(path: str | os.PathLike[str], what: str) -> Table:
    """A file's top table. Raises UsageError when there is no such file, or it is not TOML."""
    file = os.fspath(path)
    try:
        data = FilePath(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; name {what}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}, line {line}: this is not UTF-8 text; save the file as UTF-8") from None
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why, found, _ = str(error).partition(" (at ")
        at = re.search(r"\(at line (\d+),", str(error))
        line = int(at[1]) if at else max(1, text.rstrip().count("\n") + 1)
        why = why if found else str(error)
        raise UsageError(
            f"{file}, line {line}: not TOML: {why}; texts stand in quotes, lists in brackets, a table's keys below it"
        ) from None
    except RecursionError:
        raise UsageError(f"{file}, line 1: its brackets are nested too deep; {what} is flat") from None
    return Table(file, Lines(text.replace("\r\n", "\n")), (), given, what)


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{value!r} is not a text; write it in quotes")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{value!r} must be true or false, without quotes")
    return value


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{value!r} must be a whole number, without quotes")
    return value


def above_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{value!r} must be a number above 0, without quotes")
    return float(value)


def one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            raise UsageError(f"there is no {value!r}; {near_miss(str(value), words)}")
        return str(value)

    return read


def texts(value: Any) -> tuple[str, ...]:
    """A text, or a list of them."""
    found = value if isinstance(value, list) else [value]
    if not found:
        raise UsageError("the list is empty; name at least one")
    return tuple(text(one) for one in found)
