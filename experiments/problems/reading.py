"""Reading of files that describe problems. An error is one line that names the file.

Numbers may have units, as on the command line.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from thalweg.emulation.links.units import parse_rate, seconds
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.files.reading import decode_toml, read_bounded

_Any = TypeVar("_Any")


def read_text(path: Path) -> str:
    """Return the text of a file that may be anything. Raise UsageError if the file cannot be read."""
    try:
        return read_bounded(path).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}") from error


def read_problem(path: Path, kind: type[_Any]) -> _Any:
    """Return a TOML file as a ``kind``. Raise UsageError naming the file, the wrong key and the nearest known key."""
    text = read_text(path)
    try:
        return msgspec.convert(decode_toml(text), kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: {_explain(str(error), kind)}") from error
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def naming(path: Path, make: Callable[[], _Any]) -> _Any:
    """Return the result of ``make`` for a file. Errors of ``make`` get the name of the file."""
    try:
        return make()
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def rate_bps(rate: str | float, where: str) -> float:
    """Return a rate in bits per second. An error names ``where``."""
    return quantity(parse_rate, rate, where)


def latency_s(latency: str | float, where: str) -> float:
    """Return a latency in seconds. An error names ``where``."""
    return quantity(seconds, latency, where)


def quantity(unit: Callable[[Any], float], value: str | float, where: str) -> float:
    """Return a value converted by ``unit`` (of ``emulation.links.units``). An error names ``where``."""
    try:
        return unit(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _explain(message: str, kind: type[Any]) -> str:
    """Return msgspec's message, with the nearest known key if a key is unknown."""
    unknown = re.search(r"unknown field `([^`]*)`", message)
    if unknown is None:
        return message
    known = [field for struct in _structs(kind, set()) for field in struct.__struct_encode_fields__]
    return f"{message}; {nearest(unknown[1], known)}"


def _structs(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield a struct, and the structs in its fields."""
    if kind in seen:
        return
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        seen.add(kind)
        yield kind
        inside = list(typing.get_type_hints(kind).values())
    else:
        inside = list(typing.get_args(kind))
    for hint in inside:
        yield from _structs(hint, seen)
