"""Operators over records, on pyarrow's compute functions: select, project, map, union, group-by, top-k.

Inputs are record batches and tables, or ``NOTHING``. An output is a table, or ``NOTHING`` in place of a table without
rows. Windows are in ``operators.windows``.

R1: An output depends only on the input rows and their order. One thread computes it, and groups are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.middleware.errors import one_line, shown
from thalweg.middleware.loading import find_code
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.aggregates import Aggregates, Beyond, members
from thalweg.operators.columns import Layout, key_as
from thalweg.operators.tables import (
    FAILURES,
    OWN,
    RENAME,
    Expression,
    Overflow,
    Records,
    Table,
    failure,
    packed,
    unpacked,
)

pa = arrow()


TEXT = f"{OWN}text "  # begins the name of a column with the text of a nested column, which orders rows


class Select(Records):
    """Operator that keeps the rows for which ``where`` is true: ``Code("select", {"where": [">", "speed", 50]})``.

    ``share``: share of the rows that planners expect to pass.
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

    def lay_out(self, schema: Any, position: int) -> Layout:
        """Return a layout of columns by position, because columns outside ``where`` may share a name."""
        return Layout(schema, {at: self.carried_kind(field, dictionaries=True) for at, field in enumerate(schema)})

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        layout = self.layout(rows)
        if not layout.is_whole:
            with self.arrow_errors(index):
                rows = layout.of(rows)
        rows, mask = self.computed(self._mask, rows, index)
        if isinstance(mask, pa.Scalar):
            return self.given(rows if mask.as_py() else None)
        return self.given(rows.filter(mask))

    def _mask(self, rows: Table) -> Any:
        mask = self.evaluate(self.where, rows)
        if not pa.types.is_boolean(mask.type):
            raise self.refuse(f"where gives {mask.type}; give an expression that is true or false")
        return mask


class Project(Records):
    """Operator that outputs columns by name, or computed: ``{"plate": "plate", "kmh": ["*", "mps", 3.6]}``."""

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
        return self.given(self.computed(self._made, rows, index)[1])

    def _made(self, rows: Table) -> Table:
        columns = {}
        for name, expression in self.columns.items():
            try:
                value = self.evaluate(expression, rows)
            except FAILURES as error:
                raise ValueError(f"column {name!r}: {one_line(error)}") from None
            columns[name] = pa.repeat(value, rows.num_rows) if isinstance(value, pa.Scalar) else value
        return pa.table(columns)


def as_map(function: Any) -> Any:
    """Mark a function of a table, so that ``map`` may call it in a dataflow. Use it as a decorator."""
    function.maps_records = True
    return function


class Map(Records):
    """Operator that calls a named function with the inputs' rows: ``Code("map", {"function": "my.module:clean"})``.

    The function takes a table, and ``params`` by name. The function returns records, possibly with more rows, or
    ``NOTHING``. It belongs to an allowed package, is marked with ``as_map``, and keeps nothing between calls.
    """

    name = "map"

    def __init__(self, function: str, params: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        code = find_code(function)
        if isinstance(code, type) or not getattr(code, "maps_records", False):
            raise self.refuse(f"{function!r} is no function of a table; define one there, under @as_map")
        self.function, self.params = code, dict(params or {})

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None:
            return NOTHING
        try:
            result = self.function(rows, **self.params)
            return NOTHING if result is NOTHING else self.given(self._checked(result, index))
        except Exception as error:
            if not self.skips_rows or isinstance(error, MemoryError):
                raise
            self.leave_out(rows, failure(error), index)  # only the function knows the row of the error
            return NOTHING

    def _checked(self, result: Any, index: int) -> Table:
        """Return the records of a function. Raise OperatorError if the function returned something else."""
        if not isinstance(result, pa.Table | pa.RecordBatch):
            made = f"{self.function.__module__}:{self.function.__name__} returned {type(result).__name__}"
            raise self.refuse(f"{made} for partition {index}; let it return a table, a record batch or NOTHING")
        return self.table(result, index)


class Union(Records):
    """Operator that outputs the rows of the inputs, in the order of the inputs. The inputs must have equal columns."""

    name = "union"

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        return self.given(self.rows(inputs, index))

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return float(sum(input_sizes))


class GroupBy(Records):
    """Operator that aggregates the inputs' rows of one partition by the columns ``by``. Groups are sorted by ``by``.

    ``overflow``: result of a sum or product beyond its type (see ``Aggregates``).
    """

    name = "group-by"

    def __init__(self, by: str | Sequence[str], aggregates: Mapping[str, Any], overflow: Beyond = "error") -> None:
        super().__init__()
        self.by = self.names(by, "by")
        self.aggregates = Aggregates(self, aggregates, self.by, overflow=overflow)

    def lay_out(self, schema: Any, position: int) -> Layout:
        kinds = self.aggregates.kinds(self, schema) | {name: self.key_kind(schema, name) for name in self.by}
        return Layout.named(schema, kinds, self.by)

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        rows = self.rows(inputs, index)
        if rows is None or not rows.num_rows:
            return NOTHING
        with self.arrow_errors(index):
            laid_out = self.layout(rows).of(rows)
            while True:
                try:
                    return self.given(self.aggregates.final(self.aggregates.of(laid_out, self.by), self.by))
                except Overflow as error:
                    if not self.skips_rows:
                        raise
                    bad = members(laid_out, error.groups, self.by)
                    self.leave_out(rows.filter(pa.array(bad)), error.why, index)
                    rows, laid_out = rows.filter(pa.array(~bad)), laid_out.filter(pa.array(~bad))
                if not rows.num_rows:
                    return NOTHING


class TopK(Records):
    """Operator that outputs the ``k`` rows with the largest values of ``by`` among the inputs' rows of one partition.

    ``smallest``: the rows with the smallest values. Of rows with equal values, rows with smaller values in the
    remaining columns win. ``running``: the best of all rows so far, without duplicates. Operators with the same
    parameters may form any tree.
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
            rows = self.layout(rows).of(rows)
            if not self.running:
                return self.given(self._top([rows]))
            self.best = self._top([rows] if self.best is None else [self.best, rows])
        return self.given(self.best)

    def lay_out(self, schema: Any, position: int) -> Layout:
        """Return the layout of all columns, because they order rows with equal ``by``.

        A nested column orders rows by its text.
        """
        for name in (*self.by, *schema.names):
            self.check_single(schema, name)
            if f"{TEXT}{name}" in schema.names:
                raise self.refuse(f"column {TEXT + name!r}: names that begin with {OWN!r} are the operator's; {RENAME}")
        nested = [name for name in _without_order(schema) if name not in self.by]
        kinds = {
            field.name: self.carried_kind(field) if field.name in nested else self.key_kind(schema, field.name)
            for field in schema
        }
        return Layout.named(schema, kinds, [name for name in schema.names if name not in nested])

    def _top(self, parts: Sequence[Table]) -> Table:
        """Return the best rows of the parts, if ``running`` without duplicates."""
        rows = pa.concat_tables(parts)
        names, nested = rows.column_names, _without_order(rows.schema)
        for name in nested:  # slow, but every tree then selects the same rows
            texts = [repr(value) for value in rows.column(name).to_pylist()]
            rows = rows.append_column(f"{TEXT}{name}", pa.array(texts, pa.string()))
        compared = [f"{TEXT}{name}" if name in nested else name for name in names]
        if self.running and not nested:
            rows = rows.group_by(names, use_threads=False).aggregate([])
        elif self.running:
            rows = rows.append_column(OWN, pa.array(np.arange(rows.num_rows)))
            firsts = rows.group_by(compared, use_threads=False).aggregate([(OWN, "min")])
            rows = rows.take(firsts.column(f"{OWN}_min"))
        order = "ascending" if self.smallest else "descending"
        rest = [(name, "ascending") for name in compared if name not in self.by]
        best = rows.sort_by([*((name, order) for name in self.by), *rest]).slice(0, self.k)
        return best.select(names).combine_chunks()

    def snapshot(self) -> bytes:
        return b"" if self.best is None else packed(self.best)

    def restore(self, state: bytes) -> None:
        self.best = unpacked(self, state) if state else None

    def merge(self, states: Sequence[bytes]) -> bytes:
        tables = [unpacked(self, state) for state in states if state]
        return packed(self._top(tables)) if tables else b""


def _without_order(schema: Any) -> list[str]:
    """Return the names of the columns whose values have no order of their own."""
    return [field.name for field in schema if key_as(field.type) is None]
