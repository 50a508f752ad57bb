"""Operators over records, on pyarrow's compute functions: select, project, map, union, group-by, top-k.

Inputs are record batches and tables, or ``NOTHING``; an output is a table, or ``NOTHING`` where it would have no rows.
Windows are in ``operators.windows``.

R1: What comes out depends on the rows that came in, by their order, and on nothing else: one thread, and sorted.
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


TEXT = f"{OWN}text "  # begins the name of a column that orders rows as a nested column does


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

    def lay_out(self, schema: Any, position: int) -> Layout:
        """Lay out every column by its position, as two columns that ``where`` does not use may have the same name."""
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
        return self.given(self.computed(self._made, rows, index)[1])

    def _made(self, rows: Table) -> Table:
        made = {}
        for name, expression in self.columns.items():
            try:
                value = self.evaluate(expression, rows)
            except FAILURES as error:
                raise ValueError(f"column {name!r}: {one_line(error)}") from None
            made[name] = pa.repeat(value, rows.num_rows) if isinstance(value, pa.Scalar) else value
        return pa.table(made)


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
        try:
            made = self.function(rows, **self.params)
            return NOTHING if made is NOTHING else self.given(self.table(made, index))
        except Exception as error:
            if not self.skips_rows or isinstance(error, MemoryError):
                raise
            self.leave_out(rows, failure(error), index)  # only the function knows of which row it is
            return NOTHING


class Union(Records):
    """All rows of all inputs, in the order of the inputs; they have the same columns."""

    name = "union"

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        return self.given(self.rows(inputs, index))

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return float(sum(input_sizes))


class GroupBy(Records):
    """Aggregates of the rows of one partition, all inputs', by the columns ``by``; sorted by these.

    ``overflow``: what a sum or product gives that its type does not hold (``Aggregates``).
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
            taken = self.layout(rows).of(rows)
            while True:
                try:
                    return self.given(self.aggregates.final(self.aggregates.of(taken, self.by), self.by))
                except Overflow as error:
                    if not self.skips_rows:
                        raise
                    bad = members(taken, error.groups, self.by)
                    self.leave_out(rows.filter(pa.array(bad)), error.why, index)
                    rows, taken = rows.filter(pa.array(~bad)), taken.filter(pa.array(~bad))
                if not rows.num_rows:
                    return NOTHING


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
            rows = self.layout(rows).of(rows)
            if not self.running:
                return self.given(self._top([rows]))
            self.best = self._top([rows] if self.best is None else [self.best, rows])
        return self.given(self.best)

    def lay_out(self, schema: Any, position: int) -> Layout:
        """Columns order rows that are equal in the columns ``by``: by their values, and nested ones by their text."""
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
        """Return the best rows of all parts; if it is ``running``, each once."""
        rows = pa.concat_tables(parts)
        names, nested = rows.column_names, _without_order(rows.schema)
        for name in nested:  # takes long, but the same rows come in any tree
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
        others = [(name, "ascending") for name in compared if name not in self.by]
        best = rows.sort_by([*((name, order) for name in self.by), *others]).slice(0, self.k)
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
