"""A windowed join of records, by event time or by count; what is not complete is remembered (see ``windows``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.middleware.errors import shown
from thalweg.middleware.parcels import Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.records import Table
from thalweg.operators.windows import PANE, ROW, START, Windowed

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after the line that says what to install


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
        self.how = how

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
                    for key in self.on:
                        self.column(rows, key)
                    self._keep(rows, position)
            before = self.kept.passed
            passed = self.complete(len(inputs))
            return self.given(self._done(passed, len(inputs)) if passed > before else None)

    def _keep(self, rows: Table, position: int) -> None:
        kept = self.parts.get(position)
        first = 0 if kept is None or not kept.num_rows else pc.max(kept.column(ROW)).as_py() + 1
        rows = rows.append_column(ROW, pa.array(np.arange(first, first + rows.num_rows)))
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
        joined = due[0]
        if joined is None:
            return None
        keys, orders = [PANE, *self.on], [f"{ROW}_1"]
        joined = joined.rename_columns([f"{ROW}_1" if name == ROW else name for name in joined.column_names])
        for number, other in enumerate(due[1:], 2):
            if other is None:
                if self.how == "left anti":
                    continue
                return None
            if self.how != "inner":
                joined = joined.join(other.select(keys), keys, join_type=self.how, use_threads=False)
                continue
            taken = set(joined.column_names)
            names = [
                name if name in keys else f"{name}_{number}" if name == ROW or name in taken else name
                for name in other.column_names
            ]
            joined = joined.join(other.rename_columns(names), keys, join_type="inner", use_threads=False)
            orders.append(f"{ROW}_{number}")
        joined = joined.sort_by([(name, "ascending") for name in (PANE, *orders)])  # R3
        starts = self.starts(joined.column(PANE))
        return joined.drop_columns([PANE, *orders]).add_column(0, START, starts)
