"""Base of operators over records: tables, columns by name, expressions, and errors that name the place.

An *expression* is a column's name, a number, a bool, None, ``{"value": "text"}``, or ``[function, expression, …]``. The
function is one of pyarrow's compute functions (``multiply``, ``utf8_lower``, …) or of ``SIGNS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from thalweg.middleware.errors import OperatorError, ThalwegError, nearest, one_line, shown
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.columns import INSTEAD, carried_as, in_words, key_as
from thalweg.operators.interface import Operator

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after ``arrow``, whose error says what to install

Table = Any  # pyarrow has no types of its own
Expression = Any

SIGNS = {
    ">": "greater", ">=": "greater_equal", "<": "less", "<=": "less_equal", "==": "equal", "!=": "not_equal",
    "+": "add_checked", "-": "subtract_checked", "*": "multiply_checked", "/": "divide",
    "and": "and_kleene", "or": "or_kleene", "not": "invert", "in": "is_in",
}  # fmt: skip
FUNCTIONS = frozenset(pc.list_functions())
FAILURES = (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError)  # errors of pyarrow for values
OWN = "__"  # begins the names of internal columns, which no output has
RENAME = "give one of them another name, an input's column by 'project' before"


class Overflow(Exception):
    """Error of a total beyond its type. ``groups``: keys of the groups with such a total."""

    def __init__(self, function: str, column: str, kind: str, groups: Table) -> None:
        wraps = "" if kind.startswith("decimal") else " or 'wrap'"
        cure = f"set overflow to 'float'{wraps}, or select the rows whose values are right"
        names = [name for name in groups.column_names if not name.startswith(OWN)]
        where = ", ".join(f"{name}={in_words(groups.column(name)[0])}" for name in names)
        self.why = f"the {function} of column {column!r} is beyond {kind}{where and f' where {where}'}"
        super().__init__(f"{self.why}; {cure}")
        self.groups = groups


class Refused(NamedTuple):
    """Rows of input ``position`` that are left out, and the reason."""

    rows: Table
    why: str
    position: int


class Records(Operator[Table | Nothing, Table]):
    """Base class of operators over records. ``name`` begins the error messages.

    ``skips_rows``: collect rows that cannot be computed in ``refused``. Otherwise such rows are an error.
    """

    name = "records"
    allows_missing = True
    skips_rows = False

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[Any, Any]] = {}  # by position of the input: a schema, and its layout
        self.refused: list[Refused] = []  # of one partition; read by the code that sets ``skips_rows``

    def layout(self, rows: Table, position: int = 0) -> Any:
        """Return the kept result of ``lay_out`` for an input's schema, so a schema is examined once."""
        known = self._layouts.get(position)
        if known is None or not known[0].equals(rows.schema):
            known = self._layouts[position] = rows.schema, self.lay_out(rows.schema, position)
        return known[1]

    def lay_out(self, schema: Any, position: int) -> Any:
        """Return the layout of the operator's columns. Raise OperatorError if the schema does not fit."""

    def refuse(self, why: str) -> OperatorError:
        return OperatorError(f"{self.name}: {why}")

    @contextmanager
    def arrow_errors(self, index: int) -> Iterator[None]:
        """Raise pyarrow's errors and overflows as OperatorError, in one line that names operator and partition."""
        try:
            yield
        except (*FAILURES, Overflow) as error:
            raise self.refuse(f"partition {index}: {why_of(error)}") from None

    def table(self, value: Any, index: int) -> Table:
        """Return an input's rows as a table. Raise OperatorError if the input is no records."""
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
        if not isinstance(value, pa.Table):
            raise self.refuse(f"an input of partition {index} is {type(value).__name__}; give a source of records")
        return value

    def key_kind(self, schema: Any, name: str, where: str = "", *, ordered: bool = True) -> Any:
        """Return the type in which a key is compared. Raise OperatorError if the column cannot be a key."""
        self.check_single(schema, name)
        kind = schema.field(name).type
        target = key_as(kind, ordered=ordered)
        if target is None:
            raise self.refuse(f"column {name!r}{where} is {kind}, which is no key; {INSTEAD}")
        return target

    def carried_kind(self, field: Any, where: str = "", *, dictionaries: bool = False) -> Any:
        """Return the type in which a column is filtered and kept in states. Raise OperatorError if it has none."""
        kind = field.type
        target = carried_as(kind, dictionaries=dictionaries)
        if target is None:
            raise self.refuse(
                f"column {field.name!r}{where} is {kind}, which cannot be filtered or remembered; {INSTEAD}"
            )
        return target

    def rows(self, inputs: Sequence[Any], index: int) -> Table | None:
        """Return the rows of all inputs, in the order of the inputs. None: all inputs are ``NOTHING``.

        Raise OperatorError if columns differ.
        """
        tables = [self.table(value, index) for value in inputs if value is not NOTHING]
        if not tables:
            return None
        for table in tables[1:]:
            if table.schema != tables[0].schema:
                names = [name for name in table.column_names if name not in tables[0].column_names]
                odd = names or [n for n in tables[0].column_names if n not in table.column_names]
                odd = odd or [n for n in table.column_names if table.schema.field(n) != tables[0].schema.field(n)]
                raise self.refuse(f"partition {index}: inputs differ in column {odd[0]!r}; project them alike")
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def given(self, table: Table | None) -> Table | Nothing:
        """Return the table as an output. None, or a table without rows, becomes ``NOTHING``."""
        return table if table is not None and table.num_rows else NOTHING

    def leave_out(self, rows: Table, why: str, index: int, position: int = 0, cure: str = "") -> None:
        """Leave out rows that cannot be computed. Without ``skips_rows``, raise OperatorError instead."""
        if not self.skips_rows:
            raise self.refuse(f"partition {index}: {why}; {cure}")
        self.refused.append(Refused(rows, why, position))

    def computed(self, compute: Callable[[Table], Any], rows: Table, index: int) -> tuple[Table, Any]:
        """Return rows and ``compute`` of them. With ``skips_rows``, rows for which it fails are left out of both."""
        try:
            with self.arrow_errors(index):
                return rows, compute(rows)
        except OperatorError:
            if not self.skips_rows:
                raise
        with self.arrow_errors(index):
            compute(rows.slice(0, 0))  # an error that concerns a column concerns all rows
            bad = np.zeros(rows.num_rows, bool)
            for row, why in _failing(compute, rows, 0):
                bad[row] = True
                self.leave_out(rows.slice(row, 1), why, index)
            rows = rows.filter(pa.array(~bad))
            return rows, compute(rows)

    def column(self, table: Table, name: str) -> Any:
        """Return the column of this name. Raise OperatorError if the table has no such column, or several."""
        position = table.schema.get_field_index(name)
        if position < 0:
            self.check_single(table.schema, name)
        return table.column(position)

    def check_single(self, schema: Any, name: str) -> None:
        """Raise OperatorError unless exactly one column has this name."""
        count = schema.names.count(name)
        if not count:
            raise self.refuse(f"there is no column {name!r}; {nearest(name, schema.names)}")
        if count > 1:
            raise self.refuse(f"there are {count} columns {name!r}; give each column of the input a name of its own")

    def check_outputs(self, columns: Iterable[tuple[str, str]]) -> None:
        """Raise OperatorError if two columns of the output have one name.

        ``columns``: names, with descriptions for the error.
        """
        known: dict[str, str] = {}
        for name, role in columns:
            if name in known:
                raise self.refuse(f"two columns of the output are named {name!r}: {known[name]}, and {role}; {RENAME}")
            known[name] = role

    def names(self, value: Any, what: str) -> list[str]:
        """Return the names in a parameter that is a column's name, or a list of names."""
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise self.refuse(f"{what}={shown(value)}; give a column's name, or a list of names")
        if len(set(names)) != len(names):
            raise self.refuse(f"{what}={shown(value)} names a column twice")
        return list(names)

    def check(self, expression: Expression) -> Expression:
        """Return an expression in the form for ``evaluate``.

        Raise OperatorError if the expression is wrong, as far as can be seen without a table.
        """
        if isinstance(expression, list | tuple) and expression and isinstance(expression[0], str):
            name = SIGNS.get(expression[0], expression[0])
            if name not in FUNCTIONS:
                known = nearest(name, sorted({*FUNCTIONS, *SIGNS}))
                raise self.refuse(f"there is no function {shown(name)}; {known}")
            if name == "is_in":
                if len(expression) != 3 or not isinstance(expression[2], list | tuple):
                    raise self.refuse(f"{shown(expression)}; give ['in', expression, [value, …]]")
                return [name, self.check(expression[1]), list(expression[2])]
            return [name, *map(self.check, expression[1:])]
        is_value = isinstance(expression, dict) and list(expression) == ["value"]
        if not (is_value or expression is None or isinstance(expression, str | bool | int | float)):
            raise self.refuse(
                f"{shown(expression)} is no expression; give a column, a number, {{'value': …}}, or [function, …]"
            )
        return expression

    def evaluate(self, expression: Expression, table: Table) -> Any:
        if isinstance(expression, list):
            name, first, *rest = expression if len(expression) > 1 else [*expression, None]
            if name == "is_in":
                options = pc.SetLookupOptions(pa.array(rest[0]))
                return pc.call_function(name, [self.evaluate(first, table)], options)
            values = [self.evaluate(term, table) for term in expression[1:]]
            try:
                return pc.call_function(name, values)
            except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
                terms = [f"{shown(term)} ({value.type})" for term, value in zip(expression[1:], values, strict=True)]
                problem = f"{name!r} of {' and '.join(terms)} cannot be computed"
                raise self.refuse(f"{problem}; choose another function, or make other columns with 'map'") from None
        if isinstance(expression, str):
            return self.column(table, expression)
        return pa.scalar(expression["value"] if isinstance(expression, dict) else expression)


def failure(error: Exception) -> str:
    """Return the error that a node's code raised, as one line of text."""
    return one_line(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {one_line(error)}"


def why_of(error: Exception) -> str:
    """Return an error of pyarrow's as one line of text, with a remedy if one is known."""
    why = one_line(error)
    wrapping = "'add', 'subtract' and 'multiply' wrap, or compute with floats"
    return f"{why}; {wrapping}" if why.split(": ")[-1] == "overflow" else why


def _failing(compute: Callable[[Table], Any], rows: Table, first: int) -> Iterator[tuple[int, str]]:
    """Yield rows for which ``compute`` fails, counted from ``first``, with the reason. The search is by halves."""
    try:
        compute(rows)
    except FAILURES as error:
        half = rows.num_rows // 2
        if not half:
            yield first, why_of(error)
            return
        yield from _failing(compute, rows.slice(0, half), first)
        yield from _failing(compute, rows.slice(half), first + half)


def packed(table: Table) -> bytes:
    """Return a table as a part of a state."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        every = pa.array(range(table.num_rows), pa.int64())
        writer.write_table(table.combine_chunks().take(every))  # copies only the rows: buffers may be longer
    return bytes(sink.getvalue())


def unpacked(operator: Records, state: bytes) -> Table:
    """Return the table in a part of a state. Raise OperatorError for other bytes."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(state)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise operator.refuse(f"{len(state)} bytes are no state of this operator: {one_line(error)}") from None
    return table
