"""Types of columns that an operator over records accepts in each role, and the types in which it computes.

The table of types in ``docs/reference/records.md`` says the same, and a test checks its cells.

Rules:

- R1: Types are examined once for each schema (``Records.layout``), and an unsuitable type is refused there.
- R2: Filtered columns and columns in states have no dictionaries, views or run ends. The memory of these types would
  grow, or they have no kernels. A dictionary is decoded, and comes out as values.
- R3: Equal keys have equal bytes: 0.0 replaces -0.0, and one NaN replaces every NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from thalweg.middleware.errors import shown
from thalweg.middleware.shell.packing import arrow

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after ``arrow``, whose error says what to install

Kind = Any  # pyarrow has no types of its own
INSTEAD = "compute another column of it with 'project' or 'map' before"


class Taken(NamedTuple):
    """Column that an operator takes: its name, its position, and the type of a cast. None: no cast.

    ``one_zero``: the column is a float key (R3).
    """

    name: str
    position: int
    cast: Kind | None
    one_zero: bool

    def of(self, rows: Any) -> Any:
        """Return the column of a table, cast and with one zero if necessary."""
        column = rows.column(self.position)
        if self.cast is not None:
            column = decoded(column, self.cast)
        return with_one_zero(column) if self.one_zero else column


class Layout:
    """Columns of one schema that an operator takes. ``kinds``: types of the columns by position."""

    def __init__(self, schema: Any, kinds: Mapping[int, Kind], keys: Iterable[str] = ()) -> None:
        fields, keys = list(schema), set(keys)
        self.taken = [
            Taken(
                name := fields[position].name,
                position,
                None if kind == fields[position].type else kind,
                name in keys and pa.types.is_floating(kind),
            )
            for position, kind in kinds.items()
        ]
        self.names = [column.name for column in self.taken]
        changes = any(column.cast is not None or column.one_zero for column in self.taken)
        self.is_whole = not kinds or (list(kinds) == list(range(len(fields))) and not changes)

    @classmethod
    def named(cls, schema: Any, kinds: Mapping[str, Kind], keys: Iterable[str] = ()) -> Layout:
        """Return the layout for columns by name. ``kinds``: types of the columns by name."""
        return cls(schema, {schema.get_field_index(name): kind for name, kind in kinds.items()}, keys)

    def columns(self, rows: Any) -> list[Any]:
        """Return the layout's columns of a table, with casts."""
        return [column.of(rows) for column in self.taken]

    def of(self, rows: Any) -> Any:
        """Return a table of the layout's columns, with casts.

        A layout without columns returns the table itself, for its number of rows.
        """
        return rows if self.is_whole else pa.table(self.columns(rows), names=self.names)


def stored(kind: Kind, *, dictionaries: bool = False) -> Kind:
    """Return the type in which a column is filtered and kept in states (R2). ``dictionaries``: keep these."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind if dictionaries else stored(kind.value_type)
    if types.is_run_end_encoded(kind):
        return stored(kind.value_type, dictionaries=dictionaries)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_map(kind):
        key, item = (stored(inner, dictionaries=dictionaries) for inner in (kind.key_type, kind.item_type))
        return kind if (key, item) == (kind.key_type, kind.item_type) else pa.map_(key, item, kind.keys_sorted)
    if types.is_struct(kind):
        fields = [_stored_field(kind.field(number), dictionaries) for number in range(kind.num_fields)]
        struct = pa.struct(fields)
        return kind if struct.equals(kind) else struct
    for name in ("list", "large_list", "fixed_size_list"):
        if getattr(types, f"is_{name}")(kind):
            field = _stored_field(kind.value_field, dictionaries)
            if field.type == kind.value_type:
                return kind
            if name == "fixed_size_list":
                return pa.list_(field, kind.list_size)
            return pa.large_list(field) if name == "large_list" else pa.list_(field)
    return kind


def _stored_field(field: Any, dictionaries: bool) -> Any:
    return field.with_type(stored(field.type, dictionaries=dictionaries))


def compared(kind: Kind) -> Kind:
    """Return the type in which a column is compared, sorted and added."""
    kind = stored(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return compared(kind.storage_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def decoded(column: Any, kind: Kind) -> Any:
    """Return a column as another type, a result of ``stored`` or ``compared``."""
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    return column if column.type == kind else pc.cast(column, kind)


def with_one_zero(column: Any) -> Any:
    """Return a column of floats without -0.0, and with only one NaN (R3)."""
    column = pc.add(column, pa.scalar(0.0, column.type))
    odd = pc.is_nan(column)
    return pc.if_else(odd, pa.scalar(math.nan, column.type), column) if pc.any(odd).as_py() else column


def in_words(value: Any) -> str:
    """Return a scalar as text for an error. Python has no value for some times of nanoseconds."""
    try:
        return shown(value.as_py())
    except (ValueError, OverflowError):
        return str(pc.cast(value, pa.string()).as_py())


@lru_cache(maxsize=1024)
def carried_as(kind: Kind, *, dictionaries: bool = False) -> Kind | None:
    """Return the type in which a column is filtered and kept in states. None: pyarrow cannot handle it."""
    target = stored(kind, dictionaries=dictionaries)
    try:
        decoded(pa.nulls(1, kind), target).take(pa.array([0]))
    except (pa.ArrowException, TypeError, ValueError):
        return None
    return None if _has_views(target) else target


def _has_views(kind: Kind) -> bool:
    """Return whether a type has views or run ends, which no kernel takes, inside a type without a cast."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_views(kind.storage_type)
    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind) or types.is_run_end_encoded(kind):
        return True
    return types.is_nested(kind) and any(_has_views(kind.field(number).type) for number in range(kind.num_fields))


@lru_cache(maxsize=1024)
def key_as(kind: Kind, *, ordered: bool = True) -> Kind | None:
    """Return the type in which a key is compared. None: the type has no keys. ``ordered``: keys are sorted too."""
    target = compared(kind)
    if carried_as(kind) is None or not (_is_plain(target) or (not ordered and pa.types.is_interval(target))):
        return None
    return None if not ordered and pa.types.is_null(target) else target


def aggregated_as(kind: Kind, functions: Iterable[str]) -> tuple[Kind | None, str]:
    """Return the type in which a column is aggregated by all ``functions``, and an empty text.

    Otherwise return None, and the function that cannot aggregate the column.
    """
    target = carried_as(kind)
    if target is None:
        return None, next(iter(functions))
    for function in functions:
        if function != "count":
            target = compared(kind)
            if not _can(function, target):
                return None, function
    return target, ""


def _can(function: str, kind: Kind) -> bool:
    types = pa.types
    if function in ("any", "all"):
        return bool(types.is_boolean(kind))
    if function in ("min", "max"):
        return _is_plain(kind) and not types.is_duration(kind)
    if function == "product" and types.is_decimal(kind):
        return False
    return any(getattr(types, f"is_{name}")(kind) for name in ("boolean", "integer", "floating", "decimal", "null"))


def _is_plain(kind: Kind) -> bool:
    """Return whether values of a type can be compared and sorted: numbers, texts, bytes and times."""
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_dictionary(kind):
        return False
    return not isinstance(kind, pa.BaseExtensionType)
