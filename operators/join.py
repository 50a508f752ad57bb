"""Windowed join of records, by event time or by count.

The operator keeps the rows of incomplete windows as its state (see ``windows``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.middleware.errors import shown
from thalweg.middleware.parcels import Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.tables import OWN, RENAME, Table
from thalweg.operators.windows import PANE, START, Windowed

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after ``arrow``, whose error says what to install

ROW = f"{OWN}row"  # begins a column's name, before the input's number: position of a row in the input


class Join(Windowed):
    """Join of the rows of two or more inputs with equal keys ``on`` in the same window, once the window is complete.

    ``window_s``: length of a window in event time, which is in column ``time``. ``window_rows``: length of a window in
    rows: the n-th ``window_rows`` rows of each input form one window. ``how``: ``inner``, or for two inputs
    ``left semi`` or ``left anti``. The output is then the rows of the first input that have, or have not, a match. A
    column name that an earlier input has too gets the input's number: ``time_2``.
    """

    name = "join"

    def __init__(
        self,
        on: str | Sequence[str],
        window_s: float | None = None,
        window_rows: int | None = None,
        how: str = "inner",
        time: str = "time",
        lateness_s: float = 0.0,
    ) -> None:
        super().__init__(window_s, window_rows, None, time, lateness_s)
        self.on = self.names(on, "on")
        if not self.on:
            raise self.refuse("on is empty; name the columns to join on")
        if how not in ("inner", "left semi", "left anti"):
            raise self.refuse(f"how={shown(how)}; use inner, left semi or left anti")
        self.keys, self.how = self.on, how
        self._names: dict[int, list[str]] = {}  # by position of the input: names of its columns

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        """Return the expected size of an output. For ``inner``, every row counts as matched once in each input."""
        return float(sum(input_sizes) if self.how == "inner" else input_sizes[0])

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        if len(inputs) < 2 or (self.how != "inner" and len(inputs) > 2):
            raise self.refuse(f"{len(inputs)} inputs; give {'two or more' if self.how == 'inner' else 'two'}")
        with self.arrow_errors(index):
            for position, value in enumerate(inputs):
                rows = self.cut(value, position, index)
                if rows is not None:
                    self._keep(rows, position)
            before = self.kept.passed
            passed = self.complete(len(inputs))
            return self.given(self._done(passed, len(inputs)) if passed > before else None)

    def kinds(self, schema: Any, position: int) -> dict[str, Any]:
        self._check_names(schema, position)
        where = f" of input {position}"
        keys = {name: self.key_kind(schema, name, where, ordered=False) for name in self.on}
        self.check_alike(keys, position)
        return {field.name: keys.get(field.name) or self.carried_kind(field, where) for field in schema}

    def _check_names(self, schema: Any, position: int) -> None:
        """Check the column names of an input.

        As soon as the columns of the output's inputs are known, check the output's names too.
        """
        for name in (*self.on, *schema.names):
            self.check_single(schema, name)
            if name.startswith(OWN):
                problem = f"column {name!r} of input {position}"
                raise self.refuse(f"{problem}: names that begin with {OWN!r} are the operator's; {RENAME}")
        self._names[position] = schema.names
        known = {number: part.column_names[1:] for number, part in self.parts.items()} | self._names
        inputs = itertools.takewhile(known.__contains__, range(len(known) if self.how == "inner" else 1))
        columns = [(START, "the window's beginning")]
        for number, renamed in enumerate(self._renamed([known[number] for number in inputs])):
            columns += [(new, f"column {old!r} of input {number}") for old, new in renamed.items()]
        self.check_outputs(columns)

    def _renamed(self, inputs: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Return, for each input, the names of its columns in the output. Keys are taken from the first input."""
        renamed: list[dict[str, str]] = []
        used: set[str] = set()
        for number, columns in enumerate(inputs, 1):
            names = [name for name in columns if number == 1 or name not in self.on]
            renamed.append({name: f"{name}_{number}" if name in used else name for name in names})
            used.update(renamed[-1].values())
        return renamed

    def _keep(self, rows: Table, position: int) -> None:
        before = self.parts.get(position)
        if before is not None and before.schema != rows.schema:
            names = [field.name for field in rows.schema if field not in list(before.schema)] or before.column_names
            raise self.refuse(f"column {names[0]!r} of input {position} differs from earlier partitions")
        self.parts[position] = rows if before is None else pa.concat_tables([before, rows])

    def _done(self, passed: int, inputs: int) -> Table | None:
        due: list[Table | None] = []
        for position in range(inputs):
            pending = self.parts.get(position)
            due.append(None)
            if pending is not None:
                complete = pc.less(pending.column(PANE), passed)
                due[-1] = pending.filter(complete)
                self.parts[position] = pending.filter(pc.invert(complete)).combine_chunks()
        if due[0] is None or (self.how != "left anti" and any(rows is None for rows in due)):
            return None
        keys = [PANE, *self.on]
        joined = _numbered(due[0], keys, 0)
        for position, table in enumerate(due[1:], 1):
            if table is not None:
                numbered = _numbered(table, keys, position) if self.how == "inner" else table.select(keys)
                joined = joined.join(numbered, keys, join_type=self.how, use_threads=False)
        orders = [name for name in joined.column_names if name not in keys]
        # sorted by window, then in the order of the rows (R3 of ``windows``)
        joined = joined.sort_by([(name, "ascending") for name in (PANE, *orders)])
        columns: dict[str, Any] = {START: self.starts(joined.column(PANE))}
        inner = [rows for rows in due if rows is not None][: len(orders)]
        renamed = self._renamed([rows.column_names[1:] for rows in inner])
        for rows, order, names in zip(inner, orders, renamed, strict=True):
            chosen = joined.column(order)
            columns |= {new: rows.column(name).take(chosen) for name, new in names.items()}
        return pa.table(columns)


def _numbered(rows: Table, keys: list[str], position: int) -> Table:
    """Return the keys of an input's rows with the position of each row.

    Columns of any type are taken by these positions after the join.
    """
    return rows.select(keys).append_column(f"{ROW}_{position}", pa.array(np.arange(rows.num_rows)))
