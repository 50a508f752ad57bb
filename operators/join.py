"""A windowed join of records, by event time or by count; what is not complete is remembered (see ``windows``)."""

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
import pyarrow.compute as pc  # noqa: E402  # after the line that says what to install

ROW = f"{OWN}row"  # with the input's number: the position of a row among those of one input that are joined


class Join(Windowed):
    """Rows of two or more inputs that have the same keys ``on``, in the same window; when the window is complete.

    ``window_s`` of the event times in column ``time``, or the n-th ``window_rows`` rows of one input with those of the
    others. ``how``: ``inner``; or for two inputs ``left semi`` or ``left anti``, the rows of the first that have, or
    have not, a match. Columns that inputs before have too get the input's number: ``time_2``.
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
        self._names: dict[int, list[str]] = {}  # by position of the input: the columns' names

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        """As if every row had one match in each of the other inputs: a row of all columns."""
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
        """Check an input's names, and those of the output as soon as all inputs are known that it is made of."""
        for name in (*self.on, *schema.names):
            self.check_single(schema, name)
            if name.startswith(OWN):
                what = f"column {name!r} of input {position}"
                raise self.refuse(f"{what}: names that begin with {OWN!r} are the operator's; {RENAME}")
        self._names[position] = schema.names
        known = {number: part.column_names[1:] for number, part in self.parts.items()} | self._names
        inputs = itertools.takewhile(known.__contains__, range(len(known) if self.how == "inner" else 1))
        made = [(START, "the window's beginning")]
        for number, renamed in enumerate(self._renamed([known[number] for number in inputs])):
            made += [(new, f"column {old!r} of input {number}") for old, new in renamed.items()]
        self.check_outputs(made)

    def _renamed(self, inputs: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Return what the columns of the inputs are called in the output. Keys are those of the first input."""
        renamed: list[dict[str, str]] = []
        taken: set[str] = set()
        for number, columns in enumerate(inputs, 1):
            names = [name for name in columns if number == 1 or name not in self.on]
            renamed.append({name: f"{name}_{number}" if name in taken else name for name in names})
            taken.update(renamed[-1].values())
        return renamed

    def _keep(self, rows: Table, position: int) -> None:
        kept = self.parts.get(position)
        if kept is not None and kept.schema != rows.schema:
            names = [each.name for each in rows.schema if each not in list(kept.schema)] or kept.column_names
            raise self.refuse(f"column {names[0]!r} of input {position} is not what it was before")
        self.parts[position] = rows if kept is None else pa.concat_tables([kept, rows])

    def _done(self, passed: int, inputs: int) -> Table | None:
        due: list[Table | None] = []
        for position in range(inputs):
            kept = self.parts.get(position)
            due.append(None)
            if kept is not None:
                done = pc.less(kept.column(PANE), passed)
                due[-1] = kept.filter(done)
                self.parts[position] = kept.filter(pc.invert(done)).combine_chunks()
        if due[0] is None or (self.how != "left anti" and any(rows is None for rows in due)):
            return None
        keys = [PANE, *self.on]
        joined = _numbered(due[0], keys, 0)
        for position, other in enumerate(due[1:], 1):
            if other is not None:
                numbered = _numbered(other, keys, position) if self.how == "inner" else other.select(keys)
                joined = joined.join(numbered, keys, join_type=self.how, use_threads=False)
        orders = [name for name in joined.column_names if name not in keys]
        # R3 of ``windows``: by window, then in the order of the rows
        joined = joined.sort_by([(name, "ascending") for name in (PANE, *orders)])
        made: dict[str, Any] = {START: self.starts(joined.column(PANE))}
        inner = [rows for rows in due if rows is not None][: len(orders)]
        renamed = self._renamed([rows.column_names[1:] for rows in inner])
        for rows, order, names in zip(inner, orders, renamed, strict=True):
            chosen = joined.column(order)
            made |= {new: rows.column(name).take(chosen) for name, new in names.items()}
        return pa.table(made)


def _numbered(rows: Table, keys: list[str], position: int) -> Table:
    """Return the keys of an input's rows, each with its position among them: columns of any type can follow it."""
    return rows.select(keys).append_column(f"{ROW}_{position}", pa.array(np.arange(rows.num_rows)))
