"""What all files that describe problems have in common: what is wrong is one line that names the file.

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
    """The text of a file of others; UsageError where there is none."""
    try:
        return read_bounded(path).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}") from error


def read_problem(path: Path, kind: type[_Any]) -> _Any:
    """A TOML file as a ``kind``; UsageError naming the file and the key that is wrong, with the nearest known one."""
    text = read_text(path)
    try:
        return msgspec.convert(decode_toml(text), kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: {_explain(str(error), kind)}") from error
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def naming(path: Path, make: Callable[[], _Any]) -> _Any:
    """What ``make`` makes of a file; its errors name the file."""
    try:
        return make()
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def rate_bps(rate: str | float, where: str) -> float:
    """Bits per second; the error says where it stands."""
    return quantity(parse_rate, rate, where)


def latency_s(latency: str | float, where: str) -> float:
    """Seconds; the error says where it stands."""
    return quantity(seconds, latency, where)


def quantity(unit: Callable[[Any], float], value: str | float, where: str) -> float:
    """What ``unit`` (of ``emulation.links.units``) makes of a value; the error says where it stands."""
    try:
        return unit(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _explain(message: str, kind: type[Any]) -> str:
    """msgspec's message, with the nearest known key where a key is unknown."""
    unknown = re.search(r"unknown field `([^`]*)`", message)
    if unknown is None:
        return message
    known = [field for struct in _structs(kind, set()) for field in struct.__struct_encode_fields__]
    return f"{message}; {nearest(unknown[1], known)}"


def _structs(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """A struct, and those in its fields."""
    if kind in seen:
        return
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        seen.add(kind)
        yield kind
        inside = list(typing.get_type_hints(kind).values())
    else:
        inside = list(typing.get_args(kind))
    for each in inside:
        yield from _structs(each, seen)
