"""Tables of a TOML file as structs, whose every error is one line: file and line, what is wrong, what to write instead.

``msgspec`` makes structs of tables, and says by a path what is wrong: the path becomes a line, and the type that was
expected becomes advice. What no type can know is checked by those who read, and goes wrong at a ``Spot``.
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
MOST_OPEN = 5  # brackets and braces at the end of a line

# --- what stands in tables ----------------------------------------------------------------------------


class Keys(msgspec.Struct, rename=lambda key: key.rstrip("_")):
    """Keys of a table that belong together, and their values; of some tables there are several such structs.

    What a file does not say is None. A key that is a word of Python has ``_`` behind it here.
    """


class Written(type):
    """The type of a field that the class's ``read`` makes a plain value of; ``read`` raises UsageError with advice."""

    read: Callable[[Any], Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return True  # whatever has been read


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
    """A text, or a list of them."""

    @staticmethod
    def read(value: Any) -> tuple[str, ...]:
        found = value if isinstance(value, list) else [value]
        if not found:
            raise UsageError("the list is empty; name at least one")
        for one in found:
            if not isinstance(one, str) or not one:
                raise UsageError(_SAYS[inspect.StrType].format(units.shown(one)))
        return tuple(found)


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
    """What an error says to write where a field is missing."""
    return Meta(extra={"example": text})


# --- files --------------------------------------------------------------------------------------------

_Keys = TypeVar("_Keys", bound=Keys)


class File(NamedTuple):
    """A file's text, and the keys that may stand above its first table."""

    name: str
    text: str
    keys: tuple[str, ...]


class Spot(NamedTuple):
    """A table or another value of a file, and where it stands. Errors call a table ``what``."""

    file: File
    what: str
    value: Any
    path: Path = ()

    def inner(self, key: str, what: str) -> Spot:
        """The table under a key; an empty one where there is none."""
        given = self.value.get(key, {})
        if not isinstance(given, dict):
            raise self.error(f"{key} must be a table: write [{key}], and its keys below", key)
        return Spot(self.file, what, given, (*self.path, key))

    def inner_all(self, key: str, what: str) -> list[Spot]:
        """The tables of an array of tables; none where there is none."""
        given = self.value.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise self.error(f"{key} must be an array of tables: write [[{key}]] before each", key)
        return [Spot(self.file, what, one, (*self.path, key, number)) for number, one in enumerate(given)]

    def only(self, *kinds: type[Keys]) -> None:
        """Raise UsageError for a key that none of ``kinds`` has; the error names the nearest that they have."""
        known = [key for kind in kinds for key in kind.__struct_encode_fields__]
        for key in self.value:
            if key not in known:
                hint = near_miss(key, known)
                if self.path and key in self.file.keys:
                    hint = "it is a key of the file itself: write it above the first table"
                raise self.error(f"{self.what} has no key {key!r}; {hint}", key)

    def read(self, kind: type[_Keys]) -> _Keys:
        """Some keys of the table. Raises UsageError for values that they cannot have, and where one is missing."""
        try:
            return msgspec.convert(self.value, kind, dec_hook=_read)
        except msgspec.ValidationError as error:
            raise self._explained(kind, str(error)) from None

    def remarks(self) -> Iterator[str]:
        """What is to be said of rates in this table and those in it (``units.remark``), each with its line."""
        for key, value in self.value.items():
            if isinstance(value, dict):
                yield from self.inner(key, "").remarks()
            elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
                for inner in self.inner_all(key, ""):
                    yield from inner.remarks()
            elif key in RATES and (said := units.remark(value)):
                yield str(self.error(f"{key}: {said}", key))

    def given(self, keys: Keys) -> dict[str, Any]:
        """What the table says of ``keys``, which have been read of it, in the file's order."""
        fields = dict(zip(keys.__struct_encode_fields__, keys.__struct_fields__, strict=True))
        return {key: getattr(keys, fields[key]) for key in self.value if key in fields}

    def error(self, text: str, *keys: str | int) -> UsageError:
        """An error at the line of a key of this table, or of an element of it; without one, of the table."""
        return UsageError(f"{self.file.name}, line {line_of(self.file.text, (*self.path, *keys))}: {text}")

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Errors meanwhile are errors of the value under a key."""
        try:
            yield
        except UsageError as error:
            raise self.error(f"{key}: {error}", key) from None

    def _explained(self, kind: type[Keys], said: str) -> UsageError:
        """What ``msgspec`` found wrong, with advice."""
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
        elif not isinstance(info, inspect.CustomType):  # of these ``_read`` has said enough
            message = _SAYS[type(info)].format(units.shown(self.value[key]))
        return self.error(f"{key}: {message}", key)


def read_toml(path: str | os.PathLike[str], what: str, *kinds: type[Keys]) -> Spot:
    """A file's top table, with the keys of ``kinds``. Raises UsageError for none, for what is not TOML, other keys."""
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
        said, _, at = str(error).partition(" (at ")
        found = re.match(r"line (\d+),", at)
        line = int(found[1]) if found else max(1, text.rstrip().count("\n") + 1)
        why = f"not TOML: {said}; texts stand in quotes, lists in brackets, a table's keys below it"
    else:
        root = Spot(File(name, text, tuple(key for kind in kinds for key in kind.__struct_encode_fields__)), what, tree)
        root.only(*kinds)
        return root
    raise UsageError(f"{name}, line {line}: {why}")


def line_of(text: str, path: Path) -> int:
    """The line of valid TOML on which the value at a path begins; of what it stands in, where there is none.

    TOML's reader tells what, but not where. A value's line is the first with which the text, ended there, has it. Only
    errors ask; of 5,000 lines half a second.
    """
    lines = text.split("\n")
    while path and not _has(msgspec.toml.decode(text), path):
        path = path[:-1]
    return 1 + bisect_left(range(1, len(lines)), True, key=lambda number: _has(_head(lines, number), path))


def _head(lines: Sequence[str], number: int) -> Any:
    """What stands on the first lines; on more of them where a text goes on after these."""
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
        except (LookupError, TypeError):  # TypeError: what stands there has no keys, or other ones
            return False
    return True


def _read(kind: type[Written], value: Any) -> Any:
    try:
        return kind.read(value)
    except UsageError as error:
        raise ValueError(str(error)) from None  # of these msgspec says where
    except OverflowError:
        raise ValueError("a number there has hundreds of digits; write one that can be meant") from None


def _bare(info: inspect.Type) -> tuple[inspect.Type, Mapping[str, str]]:
    """The type of what a field holds if not None, and what its annotation adds for errors."""
    more: Mapping[str, str] = {}
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        if isinstance(info, inspect.Metadata):
            more, info = info.extra or {}, info.type
        else:
            info = next(one for one in info.types if not isinstance(one, inspect.NoneType))
    return info, more
