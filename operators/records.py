"""Operators over records, on pyarrow's compute functions: select, project, map, union, group-by, top-k.

Inputs are record batches and tables, or ``NOTHING``; an output is a table, or ``NOTHING`` where it would have no rows.
Windows are in ``operators.windows``.

An *expression* is a column's name; a number, a bool or None; ``{"value": "text"}``; or ``[function, expression, …]``,
where the function is one of pyarrow's compute functions (``multiply``, ``utf8_lower``, …) or one of ``SIGNS``.

Rules:

- R1: What comes out depends on the rows that came in, by their order, and on nothing else: one thread, and sorted.
- R2: Partial aggregates are merged as they are made, so that a state is the same whenever it is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from thalweg.middleware.errors import OperatorError, nearest, one_line, shown
from thalweg.middleware.loading import find_code
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.interface import Operator

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after the line that says what to install

Table = Any  # pyarrow has no types of its own
Expression = Any

SIGNS = {
    ">": "greater", ">=": "greater_equal", "<": "less", "<=": "less_equal", "==": "equal", "!=": "not_equal",
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide",
    "and": "and_kleene", "or": "or_kleene", "not": "invert", "in": "is_in",
}  # fmt: skip
FUNCTIONS = frozenset(pc.list_functions())
MERGED = {"count": "sum", "sum": "sum", "product": "product", "min": "min", "max": "max", "any": "any", "all": "all"}
AGGREGATES = (*MERGED, "mean")  # a mean is kept as a sum and a count
OWN = "__"  # begins the names of columns that no output has
RENAME = "give one of them another name, an input's column by 'project' before"


class Records(Operator[Table | Nothing, Table]):
    """What all operators over records have in common; ``name`` stands in their errors."""

    name = "records"
    allows_missing = True

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[Any, Any]] = {}  # by position of the input: a schema, and its layout

    def layout(self, rows: Table, position: int = 0) -> Any:
        """Return what ``lay_out`` makes of an input's schema. A schema is looked at once, not with every batch."""
        known = self._layouts.get(position)
        if known is None or not known[0].equals(rows.schema):
            known = self._layouts[position] = rows.schema, self.lay_out(rows.schema, position)
        return known[1]

    def lay_out(self, schema: Any, position: int) -> Any:
        """Return how the operator takes rows of this schema. Raise OperatorError if it cannot take them."""

    def refuse(self, why: str) -> OperatorError:
        return OperatorError(f"{self.name}: {why}")

    @contextmanager
    def arrow_errors(self, index: int) -> Iterator[None]:
        """pyarrow's errors, in one line that says where."""
        try:
            yield
        except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
            raise self.refuse(f"partition {index}: {one_line(error)}") from None

    def table(self, value: Any, index: int) -> Table:
        """An input's rows."""
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
        if not isinstance(value, pa.Table):
            raise self.refuse(f"an input of partition {index} is {type(value).__name__}; give a source of records")
        return value

    def rows(self, inputs: Sequence[Any], index: int) -> Table | None:
        """The rows of all inputs, in their order; None without any."""
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
        """What to return."""
        return table if table is not None and table.num_rows else NOTHING

    def column(self, table: Table, name: str) -> Any:
        """Return a column of this name. Raise OperatorError if the table has none, or several."""
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
        """Raise OperatorError if two columns of the output have one name. ``columns``: name, and what the column is."""
        known: dict[str, str] = {}
        for name, what in columns:
            if name in known:
                raise self.refuse(f"two columns of the output are named {name!r}: {known[name]}, and {what}; {RENAME}")
            known[name] = what

    def names(self, value: Any, what: str) -> list[str]:
        """A parameter that is a column's name, or a list of them."""
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
            raise self.refuse(f"{what}={shown(value)}; give a column's name, or a list of names")
        if len(set(found)) != len(found):
            raise self.refuse(f"{what}={shown(value)} names a column twice")
        return list(found)

    def check(self, expression: Expression) -> Expression:
        """An expression that can be evaluated, as far as can be told without a table."""
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
            given = [self.evaluate(each, table) for each in expression[1:]]
            return pc.call_function(name, given)
        if isinstance(expression, str):
            return self.column(table, expression)
        return pa.scalar(expression["value"] if isinstance(expression, dict) else expression)


class Select(Records):
    """The rows for which ``where`` is true: ``Code("select", {"where": [">", "speed", 50]})``. All inputs' rows.

    ``share``: of the rows, that planners reckon with before any has come.
    """

    name = "select"

    def __init__(self, where: Expression, share: float = 1.0) -> None:
        super().__init__()
        self.where = self.check(where)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise self.refuse(f"share={shown(share)}; give the share of the rows that pass, 0 to 1")
        self.share = share

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return self.share * sum(input_sizes)

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        with self.arrow_errors(index):
            mask = self.evaluate(self.where, rows)
            if not pa.types.is_boolean(mask.type):
                raise self.refuse(f"where gives {mask.type}; give an expression that is true or false")
            if isinstance(mask, pa.Scalar):
                return self.given(rows if mask.as_py() else None)
            return self.given(rows.filter(mask))


class Project(Records):
    """These columns, by their names, or computed: ``{"plate": "plate", "kmh": ["*", "mps", 3.6]}``."""

    name = "project"

    def __init__(self, columns: Sequence[str] | Mapping[str, Expression]) -> None:
        super().__init__()
        if not isinstance(columns, Mapping):
            columns = {name: name for name in self.names(columns, "columns")}
        if not columns:
            raise self.refuse("columns are empty; name at least one")
        self.columns = {name: self.check(expression) for name, expression in columns.items()}

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        with self.arrow_errors(index):
            made = {name: self.evaluate(each, rows) for name, each in self.columns.items()}
            for name, value in made.items():
                if isinstance(value, pa.Scalar):
                    made[name] = pa.repeat(value, rows.num_rows)
            return self.given(pa.table(made))


def as_map(function: Any) -> Any:
    """Mark a function of a table as one that a dataflow may name as what ``map`` calls; a decorator."""
    function.maps_records = True
    return function


class Map(Records):
    """What a named function makes of all inputs' rows: ``Code("map", {"function": "my.module:clean"})``.

    The function takes a table, and ``params`` by their names, and returns records or ``NOTHING``. It is one of an
    allowed package, marked with ``as_map``, and keeps nothing from one call to the next. More rows may come out than
    went in.
    """

    name = "map"

    def __init__(self, function: str, params: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        found = find_code(function)
        if isinstance(found, type) or not getattr(found, "maps_records", False):
            raise self.refuse(f"{function!r} is no function of a table; define one there, under @as_map")
        self.function, self.params = found, dict(params or {})

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        made = self.function(rows, **self.params)
        return NOTHING if made is NOTHING else self.given(self.table(made, index))


class Union(Records):
    """All rows of all inputs, in the order of the inputs; they have the same columns."""

    name = "union"

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        return self.given(self.rows(inputs, index))

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return float(sum(input_sizes))


class Aggregates:
    """Aggregates of groups, also of parts that are merged later: ``{"n": "count", "top": ["speed", "max"]}``."""

    def __init__(
        self, operator: Records, aggregates: Mapping[str, Any], keys: Sequence[str], start: Sequence[str] = ()
    ) -> None:
        """``keys``, and the column ``start`` of a window, stand before the aggregates in the output."""
        self.wanted: dict[str, tuple[str, str]] = {}  # by the name of the output: column and function
        for name, said in aggregates.items() if isinstance(aggregates, Mapping) else ():
            column, function = ("", said) if isinstance(said, str) else said if len(said) == 2 else ("", "")
            if function not in AGGREGATES or (not column and function != "count"):
                raise operator.refuse(
                    f"aggregate {name}={shown(said)}; give 'count', or [column, one of {', '.join(AGGREGATES)}]"
                )
            self.wanted[name] = column, function
        if not self.wanted:
            raise operator.refuse(f"aggregates={shown(aggregates)}; give at least one, by its name")
        self.parts: dict[str, tuple[str, str]] = {}  # by the name of the partial
        for column, function in self.wanted.values():
            for base in ("sum", "count") if function == "mean" else (function,):
                self.parts[f"{OWN}{base} {column}"] = column, base
        made = [*((name, "the window's beginning") for name in start), *((name, "a column of 'by'") for name in keys)]
        operator.check_outputs([*made, *((name, "an aggregate") for name in self.wanted)])
        for name in (*keys, *self.columns, *self.wanted):
            if name.startswith(OWN):
                raise operator.refuse(f"column {name!r}: names that begin with {OWN!r} are the operator's; {RENAME}")

    @property
    def columns(self) -> list[str]:
        """The columns that are aggregated."""
        return list(dict.fromkeys(column for column, _ in self.wanted.values() if column))

    def of(self, rows: Table, keys: list[str]) -> Table:
        """The partial aggregates of ``rows``, by ``keys``."""
        asked = [([], "count_all") if not column else (column, base) for column, base in self.parts.values()]
        return self._named(rows.group_by(keys, use_threads=False).aggregate(asked), keys)

    def merged(self, parts: Iterable[Table], keys: list[str]) -> Table:
        """Partial aggregates of the same groups as one (R2)."""
        whole = pa.concat_tables(parts)
        asked = [(name, MERGED[base]) for name, (_, base) in self.parts.items()]
        return self._named(whole.group_by(keys, use_threads=False).aggregate(asked), keys)

    def _named(self, table: Table, keys: list[str]) -> Table:
        """With the partials by their own names, and sorted (R1)."""
        table = table.rename_columns([*keys, *self.parts])
        return table.sort_by([(key, "ascending") for key in keys]) if keys else table

    def final(self, parts: Table, keys: list[str]) -> Table:
        """What was asked for, of complete groups."""
        made = {key: parts.column(key) for key in keys}
        for name, (column, function) in self.wanted.items():
            if function == "mean":
                total = pc.cast(parts.column(f"{OWN}sum {column}"), pa.float64())
                made[name] = pc.divide(total, parts.column(f"{OWN}count {column}"))
            else:
                made[name] = parts.column(f"{OWN}{function} {column}")
        return pa.table(made)


class GroupBy(Records):
    """Aggregates of the rows of one partition, all inputs', by the columns ``by``; sorted by these."""

    name = "group-by"

    def __init__(self, by: str | Sequence[str], aggregates: Mapping[str, Any]) -> None:
        super().__init__()
        self.by = self.names(by, "by")
        self.aggregates = Aggregates(self, aggregates, self.by)

    def lay_out(self, schema: Any, position: int) -> None:
        for name in (*self.by, *self.aggregates.columns):
            self.check_single(schema, name)

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None or not rows.num_rows:
            return NOTHING
        with self.arrow_errors(index):
            self.layout(rows)
            return self.aggregates.final(self.aggregates.of(rows, self.by), self.by)


class TopK(Records):
    """The ``k`` rows with the largest values of ``by`` (``smallest``: the least), of one partition, all inputs'.

    Of equal ones those that are less in the other columns. With ``running`` the best of all rows so far, each once.
    Either way operators of one kind may be put together in any tree.
    """

    name = "top-k"
    reorderable = True

    def __init__(self, by: str | Sequence[str], k: int, smallest: bool = False, running: bool = False) -> None:
        super().__init__()
        self.by = self.names(by, "by")
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise self.refuse(f"k={shown(k)}; give a whole number of rows, at least 1")
        self.k, self.smallest, self.running = k, smallest, running
        self.best: Table | None = None

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        with self.arrow_errors(index):
            self.layout(rows)
            if not self.running:
                return self.given(self._top(rows))
            parts = [rows] if self.best is None else [self.best, rows]
            self.best = self._top(self._once(pa.concat_tables(parts)))
        return self.given(self.best)

    def lay_out(self, schema: Any, position: int) -> None:
        for name in (*self.by, *schema.names):
            self.check_single(schema, name)

    def _once(self, rows: Table) -> Table:
        return rows.group_by(rows.column_names, use_threads=False).aggregate([])

    def _top(self, rows: Table) -> Table:
        order = "ascending" if self.smallest else "descending"
        others = [(name, "ascending") for name in rows.column_names if name not in self.by]
        sorted_ = rows.sort_by([*((name, order) for name in self.by), *others])
        return sorted_.slice(0, self.k).combine_chunks()

    def snapshot(self) -> bytes:
        return b"" if self.best is None else packed(self.best)

    def restore(self, state: bytes) -> None:
        self.best = unpacked(self, state) if state else None

    def merge(self, states: Sequence[bytes]) -> bytes:
        tables = [unpacked(self, state) for state in states if state]
        return packed(self._top(self._once(pa.concat_tables(tables)))) if tables else b""


def packed(table: Table) -> bytes:
    """A table as a part of a state."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        every = pa.array(range(table.num_rows), pa.int64())
        writer.write_table(table.combine_chunks().take(every))  # no more than is in it: buffers may be longer
    return bytes(sink.getvalue())


def unpacked(operator: Records, state: bytes) -> Table:
    """The table of a state; OperatorError for other bytes."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(state)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise operator.refuse(f"{len(state)} bytes are none of its states: {one_line(error)}") from None
    return table
