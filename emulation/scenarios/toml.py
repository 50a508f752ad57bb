"""Tables of a TOML file as structs, with errors of one line: file and line number, the error, what to write instead.

``msgspec`` makes structs of tables. The path in its error becomes a line number, and the expected type becomes advice.
Readers check what no type can express, and raise the errors of a ``Spot``.
"""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, inspect

from thalweg.emulation.links import units
from thalweg.emulation.scenarios.data_sets import near_miss
from thalweg.middleware.errors import UsageError
from thalweg.middleware.files.reading import decode_toml, read_bounded

Path = tuple[str | int, ...]
MOST_OPEN = 5  # fewer brackets and braces may be open at the end of a line

# --- keys and values of tables ------------------------------------------------------------------------


class Keys(msgspec.Struct, rename=lambda key: key.rstrip("_")):
    """Related keys of a table, with values. A table may be read as several such structs.

    A key that the file leaves out is None. The field of a key that is a keyword of Python ends with ``_``.
    """


class Written(type):
    """Type of a field whose value is made by the class's ``read``, which raises UsageError with advice."""

    read: Callable[[Any], Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return True  # ``read`` has checked the value


class Rate(float, metaclass=Written):
    """Bits per second, above 0."""

    read = units.rate_bps


class Seconds(float, metaclass=Written):
    read = units.seconds


class Share(float, metaclass=Written):
    read = units.share


class Size(int, metaclass=Written):
    read = units.size_bytes


class Texts(tuple[str, ...], metaclass=Written):
    """Text, or a list of texts."""

    @staticmethod
    def read(value: Any) -> tuple[str, ...]:
        texts = value if isinstance(value, list) else [value]
        if not texts:
            raise UsageError("the list is empty; name at least one")
        for text in texts:
            if not isinstance(text, str) or not text:
                raise UsageError(_SAYS[inspect.StrType].format(units.shown(text)))
        return tuple(texts)


RATES = ("rate", "link_mean", "interface_rate", "up_rate", "down_rate")  # keys that are a Rate
Text = Annotated[str, Meta(min_length=1)]
AboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_SAYS: Mapping[type, str] = {
    inspect.StrType: "{} is not a text; write it in quotes",
    inspect.BoolType: "{} must be true or false, without quotes",
    inspect.IntType: "{} must be a whole number, without quotes",
    inspect.FloatType: "{} must be a number above 0, without quotes",
}


def example(text: str) -> Meta:
    """Return the annotation of a required field: the text that the error shows if the field is missing."""
    return Meta(extra={"example": text})


# --- files --------------------------------------------------------------------------------------------

_Keys = TypeVar("_Keys", bound=Keys)


class File(NamedTuple):
    """Name and text of a file, and the keys that may stand above its first table."""

    name: str
    text: str
    keys: tuple[str, ...]


class Spot(NamedTuple):
    """Table or value of a file, with its path. ``what``: name of the table in errors."""

    file: File
    what: str
    value: Any
    path: Path = ()

    def inner(self, key: str, what: str) -> Spot:
        """Return the table under a key, or an empty table if the key is absent."""
        table = self.value.get(key, {})
        if not isinstance(table, dict):
            raise self.error(f"{key} must be a table: write [{key}], and its keys below", key)
        return Spot(self.file, what, table, (*self.path, key))

    def inner_all(self, key: str, what: str) -> list[Spot]:
        """Return the tables of an array of tables, or an empty list if the key is absent."""
        tables = self.value.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self.error(f"{key} must be an array of tables: write [[{key}]] before each", key)
        return [Spot(self.file, what, table, (*self.path, key, number)) for number, table in enumerate(tables)]

    def only(self, *kinds: type[Keys]) -> None:
        """Raise UsageError for a key of the table that no struct in ``kinds`` has. The error has the nearest key."""
        known = [key for kind in kinds for key in kind.__struct_encode_fields__]
        for key in self.value:
            if key not in known:
                hint = near_miss(key, known)
                if self.path and key in self.file.keys:
                    hint = "it is a key of the file itself: write it above the first table"
                raise self.error(f"{self.what} has no key {key!r}; {hint}", key)

    def read(self, kind: type[_Keys]) -> _Keys:
        """Return keys of the table as a struct. Raises UsageError for a wrong value or a missing key."""
        try:
            return msgspec.convert(self.value, kind, dec_hook=_read)
        except msgspec.ValidationError as error:
            raise self._explained(kind, str(error)) from None

    def remarks(self) -> Iterator[str]:
        """Yield the remarks about rates in this table and in inner tables (``units.remark``), each with its line."""
        for key, value in self.value.items():
            if isinstance(value, dict):
                yield from self.inner(key, "").remarks()
            elif isinstance(value, list) and all(isinstance(table, dict) for table in value):
                for inner in self.inner_all(key, ""):
                    yield from inner.remarks()
            elif key in RATES and (remark := units.remark(value)):
                yield str(self.error(f"{key}: {remark}", key))

    def given(self, keys: Keys) -> dict[str, Any]:
        """Return the values of ``keys`` (read from this table) without absent keys, in the file's order."""
        fields = dict(zip(keys.__struct_encode_fields__, keys.__struct_fields__, strict=True))
        return {key: getattr(keys, fields[key]) for key in self.value if key in fields}

    def error(self, text: str, *keys: str | int) -> UsageError:
        """Return an error with the line of a key of this table, or of an element in it. Without keys, of the table."""
        return UsageError(f"{self.file.name}, line {line_of(self.file.text, (*self.path, *keys))}: {text}")

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Turn errors of the ``with`` body into errors of the value under a key."""
        try:
            yield
        except UsageError as error:
            raise self.error(f"{key}: {error}", key) from None

    def _explained(self, kind: type[Keys], said: str) -> UsageError:
        """Return the error for an error text of ``msgspec``, with advice."""
        struct = inspect.type_info(kind)
        assert isinstance(struct, inspect.StructType)
        types = {field.encode_name: field.type for field in struct.fields}
        message, at, key = said.rpartition(" - at `$.")
        if not at:
            key = said.split("`")[1]
            return self.error(f"{self.what} needs {key}; write for example {key} = {_bare(types[key])[1]['example']}")
        key = key.rstrip("`")
        info, _ = _bare(types[key])
        if isinstance(info, inspect.LiteralType):
            message = (
                f"there is no {units.shown(self.value[key])}; {near_miss(str(self.value[key]), map(str, info.values))}"
            )
        elif not isinstance(info, inspect.CustomType):  # the error of ``_read`` has advice
            message = _SAYS[type(info)].format(units.shown(self.value[key]))
        return self.error(f"{key}: {message}", key)


def read_toml(path: str | os.PathLike[str], what: str, *kinds: type[Keys]) -> Spot:
    """Return the top table of a file, which has keys of ``kinds``.

    Raises UsageError for a file that cannot be read, is not TOML, or has other keys.
    """
    name = os.fspath(path)
    try:
        data = read_bounded(name)
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        tree = decode_toml(text)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}; name {what}") from None
    except UnicodeDecodeError as error:
        line, why = data.count(b"\n", 0, error.start) + 1, "this is not UTF-8 text; save the file as UTF-8"
    except ValueError as error:
        problem, _, at = str(error).partition(" (at ")
        match = re.match(r"line (\d+),", at)
        line = int(match[1]) if match else max(1, text.rstrip().count("\n") + 1)
        why = f"not TOML: {problem}; texts stand in quotes, lists in brackets, a table's keys below it"
    else:
        root = Spot(File(name, text, tuple(key for kind in kinds for key in kind.__struct_encode_fields__)), what, tree)
        root.only(*kinds)
        return root
    raise UsageError(f"{name}, line {line}: {why}")


def line_of(text: str, path: Path) -> int:
    """Return the line of valid TOML on which the value at a path begins, or else the table around it.

    TOML's reader gives no lines. The value's line is the first at which the text may end and still has the value. The
    search is for errors only. It takes half a second for 5,000 lines.
    """
    lines = text.split("\n")
    while path and not _has(msgspec.toml.decode(text), path):
        path = path[:-1]
    return 1 + bisect_left(range(1, len(lines)), True, key=lambda number: _has(_head(lines, number), path))


def _head(lines: Sequence[str], number: int) -> Any:
    """Return the content of the first lines, or of more lines if a text goes on after these."""
    while True:
        text = "\n".join(lines[:number]) + "\n"
        for count in range(MOST_OPEN):
            for closing in product("]}", repeat=count):
                with suppress(msgspec.DecodeError):
                    return msgspec.toml.decode(text + "".join(closing))
        number += 1


def _has(value: Any, path: Path) -> bool:
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):  # TypeError: a value without keys, or with keys of another type
            return False
    return True


def _read(kind: type[Written], value: Any) -> Any:
    try:
        return kind.read(value)
    except UsageError as error:
        raise ValueError(str(error)) from None  # msgspec adds the path
    except OverflowError:
        raise ValueError("a number there has hundreds of digits; write a shorter number") from None


def _bare(info: inspect.Type) -> tuple[inspect.Type, Mapping[str, str]]:
    """Return the type of a field without None, and additions of its annotation for errors."""
    more: Mapping[str, str] = {}
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        if isinstance(info, inspect.Metadata):
            more, info = info.extra or {}, info.type
        else:
            info = next(option for option in info.types if not isinstance(option, inspect.NoneType))
    return info, more
