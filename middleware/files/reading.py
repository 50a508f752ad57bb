"""Reading of foreign files in bounded memory and time."""

from __future__ import annotations

import errno
import io
import os
import re
import tomllib
from typing import Any, TextIO

from thalweg.middleware.errors import UsageError
from thalweg.middleware.platform.files import open_regular

MAX_TEXT_BYTES = 4 * 1024 * 1024  # of a handwritten file, or the description of a run
MAX_JSON_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64  # of brackets, or of parts of a dotted key: the time of both grows with its square
MAX_DIGITS = 4300  # digits of a number: Python's own limit
_TOML = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|#[^\n]*|(?P<open>[\[{])|(?P<close>[\]}])|(?P<dot>\.)|(?P<space>\s+)'
    r"|'''.*?'''|'[^'\n]*'|(?P<word>[\w+-]+)|(?P<other>.)",
    re.DOTALL,
)


def read_bounded(path: str | os.PathLike[str], most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises UsageError for more than ``most_bytes``, and OSError as ``open_regular``.
    """
    with open_regular(path) as file:
        large = os.fstat(file.fileno()).st_size > most_bytes  # files of the kernel have size 0
        data = b"" if large else file.read(most_bytes + 1)
    if data is None:  # a file of the kernel that waits for data
        raise OSError(errno.EAGAIN, "it has nothing to read yet; name a regular file", os.fspath(path))
    if large or len(data) > most_bytes:
        raise UsageError(f"{os.fspath(path)} has more than {most_bytes} bytes; name the file that was meant")
    return data


def reason(error: Exception) -> str:
    """Return why a file cannot be used, without the file's name and the number of the error."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def open_text(path: str | os.PathLike[str], *, encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """Open a regular file as text, for a reader that reads it in pieces. Raises OSError as ``open_regular``."""
    return io.TextIOWrapper(open_regular(path), encoding=encoding, newline=newline)


def decode_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text.

    Raise ValueError, mostly with ``(at line …``, for a text that is no TOML or is nested too deep.
    """
    depth = dots = 0
    for token in _TOML.finditer(text):
        if token[0] in ("''", '""') and text.startswith(token[0][0], token.end()):
            break  # a long text without an end: the rest is not read
        match token.lastgroup:
            case "space":
                continue
            case "dot":
                dots += 1
            case "open":
                depth += 1
            case "close":
                depth -= 1
            case "word" if len(token[0]) > MAX_DIGITS and token[0].strip("+-_").isdigit():
                raise _toml_error(text, token, "a number has too many digits")
        if token.lastgroup in ("open", "close", "other"):
            dots = 0
        if max(depth, dots) > MAX_DEPTH:
            raise _toml_error(text, token, f"it is nested deeper than {MAX_DEPTH} levels")
    return tomllib.loads(text)


def _toml_error(text: str, token: re.Match[str], said: str) -> ValueError:
    return ValueError(f"{said} (at line {text.count(chr(10), 0, token.start()) + 1}, column 1)")
