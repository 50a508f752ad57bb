"""Aggregates of groups of records, merged from partial aggregates, and the handling of totals beyond their type.

Rules:

- R1: Partial aggregates are sorted by their keys. One thread computes them.
- R2: Partial aggregates are merged as they are made, so the state is the same whenever a snapshot is made.
- R3: The type of a sum and the number of rows first tell whether the sum can overflow. The extremes of the column tell
  it next. The sum is computed again from exact numbers only if both permit an overflow.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from thalweg.middleware.errors import shown
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.columns import INSTEAD, aggregated_as
from thalweg.operators.tables import OWN, RENAME, Overflow, Records, Table

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after ``arrow``, whose error says what to install

Beyond = Literal["error", "wrap", "float"]
MERGED = {"count": "sum", "sum": "sum", "product": "product", "min": "min", "max": "max", "any": "any", "all": "all"}
AGGREGATES = (*MERGED, "mean")  # a mean is kept as a sum and a count
EXACT = decimal.Context(prec=200)  # digits: for sums of 76 digits, and their products with a number of rows


class Part(NamedTuple):
    """Partial aggregate: ``function`` of ``column``. With ``floating``, the values are aggregated as float64."""

    column: str
    function: str
    floating: bool = False

    @property
    def name(self) -> str:
        """Name of the column that has the partial aggregate."""
        return f"{OWN}{'float ' if self.floating else ''}{self.function} {self.column}"

    @property
    def source(self) -> str:
        """Name of the column that is aggregated."""
        return f"{OWN}float {self.column}" if self.floating else self.column


class Aggregates:
    """Aggregates of groups, as wanted by ``{"n": "count", "top": ["speed", "max"]}``, with parts that are merged later.

    ``overflow``: result of a sum or product that its type does not hold. ``error`` raises an error, ``wrap`` keeps the
    bits that fit the type, and ``float`` computes with floats from the start. Decimals and means do not wrap.
    """

    def __init__(
        self,
        operator: Records,
        aggregates: Mapping[str, Any],
        keys: Sequence[str],
        start: Sequence[str] = (),
        overflow: Beyond = "error",
    ) -> None:
        """Check the wanted ``aggregates``, and raise OperatorError if they cannot be used.

        The output has ``keys``, and the column ``start`` of a window, before the aggregates.
        """
        if overflow not in get_args(Beyond):
            raise operator.refuse(f"overflow={shown(overflow)}; use {', '.join(get_args(Beyond))}")
        self.overflow = overflow
        self.wanted: dict[str, tuple[str, str]] = {}  # by name in the output: column and function
        for name, wanted in aggregates.items() if isinstance(aggregates, Mapping) else ():
            column, function = ("", wanted) if isinstance(wanted, str) else wanted if len(wanted) == 2 else ("", "")
            if function not in AGGREGATES or (not column and function != "count"):
                raise operator.refuse(
                    f"aggregate {name}={shown(wanted)}; give 'count', or [column, one of {', '.join(AGGREGATES)}]"
                )
            self.wanted[name] = column, function
        if not self.wanted:
            raise operator.refuse(f"aggregates={shown(aggregates)}; give at least one, by its name")
        self._check_names(operator, keys, start)
        parts = [part for wanted in self.wanted.values() for part in self._parts_of(*wanted)]
        self.parts = {part.name: part for part in parts}
        self.floated = list(dict.fromkeys(part.column for part in parts if part.floating))
        self.totals = {part.name: part for part in parts if part.function in ("sum", "product") and not part.floating}

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are aggregated."""
        return list(dict.fromkeys(column for column, _ in self.wanted.values() if column))

    def kinds(self, operator: Records, schema: Any, where: str = "") -> dict[str, Any]:
        """Return the types to which aggregated columns of ``schema`` are cast. Raise OperatorError if one has none."""
        functions: dict[str, list[str]] = {}
        for part in self.parts.values():
            if part.column:  # floats are added, so every type that has a sum will do
                functions.setdefault(part.column, []).append("sum" if part.floating else part.function)
        kinds = {}
        for column, used in functions.items():
            operator.check_single(schema, column)
            kind = schema.field(column).type
            kinds[column], function = aggregated_as(kind, used)
            if function:
                problem = f"column {column!r}{where} is {kind}, which has no {function!r}"
                floats = "set overflow to 'float', " if function == "product" and pa.types.is_decimal(kind) else ""
                raise operator.refuse(f"{problem}; {floats}choose another function, or {INSTEAD}")
        return kinds

    def _check_names(self, operator: Records, keys: Sequence[str], start: Sequence[str]) -> None:
        named = [*((name, "the window's beginning") for name in start), *((name, "a column of 'by'") for name in keys)]
        operator.check_outputs([*named, *((name, "an aggregate") for name in self.wanted)])
        for name in (*keys, *self.columns, *self.wanted):
            if name.startswith(OWN):
                raise operator.refuse(f"column {name!r}: names that begin with {OWN!r} are the operator's; {RENAME}")

    def _parts_of(self, column: str, function: str) -> list[Part]:
        if function == "mean":
            return [Part(column, "sum", self.overflow != "error"), Part(column, "count")]
        return [Part(column, function, self.overflow == "float" and function in ("sum", "product"))]

    def of(self, rows: Table, keys: list[str]) -> Table:
        """Return the partial aggregates of ``rows``, by ``keys``. Raise Overflow for a total that no type holds."""
        for column in self.floated:
            rows = rows.append_column(f"{OWN}float {column}", pc.cast(rows.column(column), pa.float64(), safe=False))
        asked = {name: (part.source, part.function) for name, part in self.parts.items()}
        checked = [name for name, part in self.totals.items() if self._may_overflow(rows, part.source, part, None)]
        return self._aggregated(rows, keys, asked, checked)

    def merged(self, parts: Sequence[Table], keys: list[str]) -> Table:
        """Return one table of partial aggregates for parts of the same groups (R2).

        Raise Overflow for a total that no type holds.
        """
        whole = pa.concat_tables(parts)
        asked = {name: (name, MERGED[part.function]) for name, part in self.parts.items()}
        terms = len(parts)
        checked = [name for name, part in self.totals.items() if self._may_overflow(whole, name, part, terms)]
        return self._aggregated(whole, keys, asked, checked)

    def _aggregated(
        self, rows: Table, keys: list[str], asked: Mapping[str, tuple[str, str]], checked: Sequence[str]
    ) -> Table:
        """Return aggregates under the names in ``asked``, sorted by ``keys`` (R1).

        The ``checked`` aggregates are exact.
        """
        calls = [(column, function) if column else ([], "count_all") for column, function in asked.values()]
        calls += [(asked[name][0], "list") for name in checked]
        table = rows.group_by(keys, use_threads=False).aggregate(calls)
        lists = table.columns[len(keys) + len(asked) :] if checked else []
        if lists:
            table = table.select(range(len(keys) + len(asked)))
        table = table.rename_columns([*keys, *asked])
        for name, values in zip(checked, lists, strict=True):
            table = self._exact(table, keys, name, values)
        return table.sort_by([(key, "ascending") for key in keys]) if keys else table

    # --- totals that no type holds -----------------------------------------------------------------------

    def _may_overflow(self, rows: Table, source: str, part: Part, terms: int | None) -> bool:
        """Return whether a total of a column may be beyond its type (R3).

        ``terms``: largest number of values in a total. None: the number of rows.
        """
        column = rows.column(source)
        kind, count = column.type, rows.num_rows if terms is None else terms
        most = _most(kind)
        if most is None or (self.overflow == "wrap" and pa.types.is_integer(kind)):
            return False
        if part.function == "sum" and _largest(kind) * count <= most:
            return False
        extremes = pc.min_max(column)
        magnitude = max((abs(_whole(extremes[end].as_py(), kind)) for end in ("min", "max")), default=0)
        if part.function == "sum":
            return magnitude * count > most
        return magnitude > 1 and count * math.log2(magnitude) >= most.bit_length() - 1

    def _exact(self, table: Table, keys: list[str], name: str, lists: Any) -> Table:
        """Return the table with exact totals of ``lists`` in column ``name``.

        Raise Overflow if a total is out of range.
        """
        part, position = self.parts[name], table.column_names.index(name)
        kind = table.schema.field(position).type
        most, signed = _most(kind) or 0, not pa.types.is_unsigned_integer(kind)
        totals, beyond = [], []
        for values in lists.to_pylist():
            some = [value for value in values if value is not None]
            total = (_sum if part.function == "sum" else _product)(some, most, kind) if some else None
            whole = 0 if total is None else _whole(total, kind)
            beyond.append(not -(most + 1 if pa.types.is_integer(kind) else most) * signed <= whole <= most)
            totals.append(None if beyond[-1] else total)
        if any(beyond):
            groups = table.select(keys).filter(pa.array(beyond))
            raise Overflow(part.function, part.column, f"{kind}", groups)
        return table.set_column(position, name, pa.array(totals, kind))

    def final(self, parts: Table, keys: list[str]) -> Table:
        """Return the wanted aggregates of complete groups."""
        result = {key: parts.column(key) for key in keys}
        for name, (column, function) in self.wanted.items():
            first, *count = [parts.column(part.name) for part in self._parts_of(column, function)]
            result[name] = pc.divide(pc.cast(first, pa.float64(), safe=False), count[0]) if count else first
        return pa.table(result)


def members(rows: Table, groups: Table, keys: list[str]) -> Any:
    """Return a mask of the rows that belong to one of ``groups``. Null and NaN may be keys."""
    mask = np.zeros(rows.num_rows, bool)
    if not keys:
        return ~mask
    marked = [
        groups.select(keys).append_column(OWN, pa.array([-1] * groups.num_rows, pa.int64())),
        rows.select(keys).append_column(OWN, pa.array(np.arange(rows.num_rows))),
    ]
    gathered = pa.concat_tables(marked).group_by(keys, use_threads=False).aggregate([(OWN, "list")])
    for positions in gathered.column(f"{OWN}_list").to_pylist():
        if positions[0] == -1:
            mask[positions[1:]] = True
    return mask


def _most(kind: Any) -> int | None:
    """Return the largest total that the type of a column's sums holds, decimals without their point. None: no limit."""
    if pa.types.is_decimal(kind):
        return 10**76 - 1 if kind.bit_width == 256 else 10**38 - 1
    if pa.types.is_unsigned_integer(kind):
        return 2**64 - 1
    is_integer: bool = pa.types.is_integer(kind)
    return 2**63 - 1 if is_integer else None


def _largest(kind: Any) -> int:
    """Return the largest magnitude of a value of a type, of decimals without their point."""
    if pa.types.is_decimal(kind):
        return int(10**kind.precision)
    return int(2 ** (kind.bit_width - (not pa.types.is_unsigned_integer(kind))))


def _whole(value: Any, kind: Any) -> int:
    """Return a value of a type as a whole number, of decimals without their point."""
    if value is None:
        return 0
    return int(EXACT.scaleb(value, kind.scale)) if pa.types.is_decimal(kind) else int(value)


def _sum(values: Iterable[Any], most: int, kind: Any) -> Any:
    with decimal.localcontext(EXACT):
        return sum(values)


def _product(values: Sequence[Any], most: int, kind: Any) -> int:
    """Return the product of whole numbers.

    As soon as the product is more than twice ``most``, return it early: the complete product is beyond ``most`` too.
    """
    if 0 in values:
        return 0
    product = 1
    for value in values:
        product *= value
        if abs(product) > 2 * most:
            break
    return product
