"""On which line of a TOML text every table, key and array element stands; ``tomllib`` tells what, but not where.

For errors that name a line. The text must be valid TOML (``tomllib`` has read it); then a scanner is enough that
knows strings, comments, brackets and dots.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\#[^\n]*)
    |(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')
    |(?P<mark>[][{}=,.\n])
    |(?P<bare>[^\s\#"'=,.\[\]{}]+)""",
    re.DOTALL | re.VERBOSE,
)


class Lines:
    """Line numbers by path: ``("links", "rate")``, ``("link", 0, "from")``, ``("hosts", 2)``."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, line
        line = 1
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind != "skip":
                self._tokens.append((kind, match[0], line))
            line += match[0].count("\n")
        self._next = 0
        self._found: dict[Path, int] = {(): 1}
        self._arrays: dict[Path, int] = {}
        self._read()

    def of(self, path: Path) -> int:
        """The line of a path, or of what it stands in when the text does not have it."""
        while path not in self._found:
            path = path[:-1]
        return self._found[path]

    @property
    def found(self) -> Mapping[Path, int]:
        """Every path of the text and its line."""
        return self._found

    def _read(self) -> None:
        table: Path = ()
        while self._next < len(self._tokens):
            if self._at("\n"):
                self._next += 1
            elif self._at("["):
                table = self._header()
            else:
                self._pair(table)

    def _at(self, mark: str, ahead: int = 0) -> bool:
        position = self._next + ahead
        return position < len(self._tokens) and self._tokens[position][:2] == ("mark", mark)

    def _header(self) -> Path:
        line, array = self._tokens[self._next][2], self._at("[", 1)
        self._next += 2 if array else 1
        keys = self._keys()
        self._next += 2 if array else 1
        path: Path = ()
        for i, key in enumerate(keys):
            path = (*path, key)
            if array and i == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            self._found.setdefault(path, line)
            if path in self._arrays:  # its latest element is meant
                path = (*path, self._arrays[path])
        self._found.setdefault(path, line)
        return path

    def _keys(self) -> list[str]:
        """A key, dotted or not; ends at the first token behind it."""
        keys = []
        while True:
            kind, text, _ = self._tokens[self._next]
            keys.append(next(iter(tomllib.loads(f"{text} = 0"))) if kind == "text" else text)
            self._next += 1
            if not self._at("."):
                return keys
            self._next += 1

    def _pair(self, table: Path) -> None:
        line, path = self._tokens[self._next][2], table
        for key in self._keys():
            path = (*path, key)
            self._found.setdefault(path, line)
        self._next += 1  # =
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._at("["):
            self._next += 1
            number = 0
            while not self._at("]"):
                if self._at(",") or self._at("\n"):
                    self._next += 1
                    continue
                self._found[*path, number] = self._tokens[self._next][2]
                self._value((*path, number))
                number += 1
            self._next += 1
        elif self._at("{"):
            self._next += 1
            while not self._at("}"):
                if self._at(",") or self._at("\n"):
                    self._next += 1
                else:
                    self._pair(path)
            self._next += 1
        else:
            while self._next < len(self._tokens) and not any(map(self._at, ",]}\n")):
                self._next += 1
