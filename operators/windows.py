"""Windows over records, by event time or by count: the base of windowed operators, and aggregates of windows.

A window by event time is complete when the watermark has passed its end. The inputs give the watermark
(``watermark_s``). If they give none, it is the earliest of the inputs' latest times, less ``lateness_s``. A row is late
if all its windows are complete. Late rows are left out, and counted. A window by count has a fixed number of rows.
Windows that are incomplete at the end of the streams are not delivered, unless sources end with a watermark of
``math.inf``.

Rules:

- R1: Time is cut into panes of one step, counted from 0. A window has as many panes as it has steps.
- R2: A row goes to its pane before the watermark of its partition counts, because the watermark is about later rows.
- R3: Outputs are sorted by window, then by keys or in the order of the input rows.
- R4: The output's watermark is the beginning of the earliest incomplete window.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from thalweg.middleware.errors import shown
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.middleware.shell.packing import arrow
from thalweg.operators.aggregates import Aggregates, Beyond, members
from thalweg.operators.columns import Layout, in_words
from thalweg.operators.tables import OWN, Overflow, Records, Table, packed, unpacked

pa = arrow()
import pyarrow.compute as pc  # noqa: E402  # after ``arrow``, whose error says what to install

PANE = f"{OWN}pane"  # column with the pane of a row
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FAR = 2**62  # beyond any time or count
START = "window_start"


class Kept(msgspec.Struct):
    """State of a windowed operator beside its rows. Times and counts are in the unit of the column.

    ``passed``: windows that begin before this pane are complete. ``seen``: latest time, or number of rows, of each
    input. ``form``: form of the times: ``timestamp`` (with ``zone``), ``integer`` or ``floating``.
    """

    passed: int = -FAR
    seen: list[int | None] = []
    late_rows: int = 0
    unit: str = ""
    form: str = ""
    zone: str | None = None
    tables: list[int] = []  # bytes of each table that follows


class Times(NamedTuple):
    """Form of the column of times: ``timestamp`` (with ``zone``), ``integer`` or ``floating``, and its unit."""

    form: str
    unit: str
    zone: str | None


class Windowed(Records):
    """Base class of windowed operators. The state is ``kept``, and tables of rows by position."""

    on_nothing = True  # a watermark may complete a window
    keys: Sequence[str] = ()  # the columns by which rows are grouped, or joined
    state_version = 2

    def __init__(
        self, window_s: float | None, window_rows: int | None, step: float | None, time: str, lateness_s: float
    ) -> None:
        if (window_s is None) == (window_rows is None):
            raise self.refuse("give either window_s or window_rows")
        length: Any = window_s if window_rows is None else window_rows
        step = length if step is None else step
        for name, value in (("a window", length), ("a step", step)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole or (window_rows is None and isinstance(value, float))) or not 0 < value < 2**40:
                unit = "seconds" if window_rows is None else "rows"
                raise self.refuse(f"{name} has {shown(value)} {unit}; give {unit} above 0")
        self.panes = round(length / step)
        if self.panes < 1 or not math.isclose(self.panes * step, length):
            raise self.refuse(f"a window of {length} is no multiple of its step of {step}")
        if not isinstance(lateness_s, int | float) or not 0 <= lateness_s < 2**40:
            raise self.refuse(f"lateness_s={shown(lateness_s)}; give seconds, at least 0")
        super().__init__()
        self.step, self.by_time, self.time, self.lateness_s = step, window_rows is None, time, lateness_s
        self._alike: dict[str, tuple[Any, int]] = {}  # by column: its type, and the first input with it
        self.kept = Kept(-FAR if self.by_time else 0)
        self.parts: dict[int, Table] = {}  # by position: rows or aggregates of incomplete windows

    # --- what comes in ---------------------------------------------------------------------------------

    def cut(self, value: Any, position: int, index: int) -> Table | None:
        """Return an input's rows with the pane of each row, without late rows. None: no rows remain."""
        while len(self.kept.seen) <= position:
            self.kept.seen.append(None)
        if value is NOTHING or not (rows := self.table(value, index)).num_rows:
            return None
        layout = self.layout(rows, position)
        seen = self.kept.seen[position]
        if not self.by_time:
            first = seen or 0
            self.kept.seen[position] = first + rows.num_rows
            panes = np.arange(first, first + rows.num_rows) // int(self.step)
            return _with_panes(layout, rows, panes)
        times, bad = self._times(rows)
        if bad is not None and bad.any():
            rows, times = self._without(rows, bad, position, index), times[~bad]
            if not rows.num_rows:
                return None
        self.kept.seen[position] = max(int(times.max()), -FAR if seen is None else seen)
        panes = np.floor_divide(times, self._in_units(self.step))
        late = panes < self.kept.passed
        rows = _with_panes(layout, rows, panes)
        if late.any():
            self.late_rows += int(late.sum())
            rows = rows.filter(pa.array(~late))
        return rows if rows.num_rows else None

    def lay_out(self, schema: Any, position: int) -> Layout:
        if self.by_time:
            self._lay_out_times(schema, position)
        kinds = self.kinds(schema, position)
        return Layout.named(schema, kinds, self.keys)

    @abstractmethod
    def kinds(self, schema: Any, position: int) -> dict[str, Any]:
        """Return the types of the columns that the operator takes. Raise OperatorError if a type is unsuitable."""

    def check_alike(self, kinds: Mapping[str, Any], position: int) -> None:
        """Raise OperatorError if a column has another type than in an earlier input.

        ``kinds``: types of the columns that every input has.
        """
        for name, kind in kinds.items():
            before, first = self._alike.setdefault(name, (kind, position))
            if kind != before:
                why = f"column {name!r} of input {position} is taken as {kind}, and that of input {first} as {before}"
                raise self.refuse(f"{why}; make them of one type where they come from, or with 'map'")

    def _lay_out_times(self, schema: Any, position: int) -> None:
        """Check the column of times. All inputs must have one form, unit and zone."""
        self.check_single(schema, self.time)
        kind = schema.field(self.time).type
        problem = f"column {self.time!r} of input {position} is {kind}"
        forms = ("timestamp", "integer", "floating")
        form = next((form for form in forms if getattr(pa.types, f"is_{form}")(kind)), "")
        if not form:
            raise self.refuse(f"{problem}; give timestamps, or seconds as integers or floats")
        unit = {"timestamp": getattr(kind, "unit", ""), "integer": "s", "floating": "us"}[form]
        times = Times(form, unit, getattr(kind, "tz", None))
        before = Times(self.kept.form, self.kept.unit, self.kept.zone)
        if before.form and times != before:
            known = f"{before.form} in {before.unit}" + (f" of zone {before.zone}" if before.zone else "")
            raise self.refuse(f"{problem}, and times before were {known}; give all inputs times of one type")
        if not 1 <= self._in_units(self.step, unit) < FAR:
            raise self.refuse(
                f"{problem}: a step of {self.step} s is not a step in {unit}; choose another step, or unit"
            )
        self.kept.form, self.kept.unit, self.kept.zone = times

    def _times(self, rows: Table) -> tuple[Any, Any]:
        """Return the times of an input's rows, in the unit of the column, and a mask of the rows without a time."""
        column = self.column(rows, self.time)
        if self.kept.form == "floating":  # seconds: as exact as a timestamp of microseconds
            micros = np.floor(pc.cast(column, pa.float64()).to_numpy() * 1e6)
            bad = ~(np.abs(micros) < FAR)
            times = np.where(bad, 0.0, micros).astype(np.int64)
        else:
            if pa.types.is_uint64(column.type):
                column = pc.if_else(pc.less(column, pa.scalar(FAR, pa.uint64())), column, None)
            whole = pc.cast(column, pa.int64())
            times = (pc.fill_null(whole, FAR) if whole.null_count else whole).to_numpy()
            bad = None
            if times.view(np.uint64).max() >= FAR:  # one comparison for both ends, a second for times before 1970
                bad = (times >= FAR) | (times <= -FAR)
        return times, bad

    def _without(self, rows: Table, bad: Any, position: int, index: int) -> Table:
        """Return the rows that have a time. Leave out the remaining rows, or raise OperatorError."""
        first = int(bad.argmax())
        value = in_words(self.column(rows, self.time)[first])
        problem = f"{int(bad.sum())} of {len(bad)} rows have no time, the first of them row {first}: {value}"
        why = f"column {self.time!r} of input {position}: {problem}"
        self.leave_out(
            rows.filter(pa.array(bad)),
            why,
            index,
            position,
            "select the rows that have a time, or give the node on_error='skip'",
        )
        return rows.filter(pa.array(~bad))

    def _in_units(self, seconds: float, unit: str = "") -> int:
        return round(seconds * UNITS[unit or self.kept.unit or "us"])

    # --- what is complete ------------------------------------------------------------------------------

    def complete(self, inputs: int) -> int:
        """Count the windows that have passed. Return the first pane whose window is not complete."""
        mark = self._watermark(inputs) if self.by_time else self._least(inputs)
        span = self._in_units(self.step) if self.by_time else int(self.step)
        first = FAR if mark >= FAR else mark // span - self.panes + 1 if mark > -FAR else -FAR
        self.kept.passed = max(self.kept.passed, first)
        if self.by_time:  # R4: the windows still to come begin at this pane or later
            passed_s = self.kept.passed * self.step
            self.watermark_s = math.inf if self.kept.passed >= FAR else passed_s if self.kept.passed > -FAR else None
        return self.kept.passed

    def _least(self, inputs: int) -> int:
        """Return the time, or number of rows, that every input has reached."""
        seen = [-FAR if value is None else value for value in self.kept.seen]
        return min(seen) if len(seen) == inputs else -FAR

    def _watermark(self, inputs: int) -> int:
        if self.watermark_s is None:
            least = self._least(inputs)
            return least if least == -FAR else least - self._in_units(self.lateness_s)
        if math.isinf(self.watermark_s):
            return FAR if self.watermark_s > 0 else -FAR
        return math.floor(self.watermark_s * UNITS[self.kept.unit or "us"])

    def starts(self, panes: Any) -> Any:
        """Return the column of the windows' beginnings: times in the form of the rows, or numbers of rows."""
        starts = pc.multiply(panes, self._in_units(self.step) if self.by_time else int(self.step))
        if self.kept.form == "timestamp":
            return pc.cast(starts, pa.timestamp(self.kept.unit, self.kept.zone))
        return pc.divide(pc.cast(starts, pa.float64(), safe=False), 1e6) if self.kept.form == "floating" else starts

    # --- state -----------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        tables = [packed(self.parts[position]) for position in sorted(self.parts)]
        if not self.kept.seen:
            return b""
        self.kept.late_rows, self.kept.tables = self.late_rows, [len(table) for table in tables]
        positions = sorted(self.parts)
        head = msgspec.msgpack.encode((self.kept, positions))
        return b"".join((len(head).to_bytes(4, "little"), head, *tables))

    def restore(self, state: bytes) -> None:
        self.kept, self.parts = Kept(-FAR if self.by_time else 0), {}
        if not state:
            return
        end = 4 + int.from_bytes(state[:4], "little")
        try:
            self.kept, positions = msgspec.msgpack.decode(state[4:end], type=tuple[Kept, list[int]])
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.refuse(f"{len(state)} bytes are no state of this operator: {error}") from None
        if len(positions) != len(self.kept.tables) or end + sum(self.kept.tables) != len(state):
            raise self.refuse(f"{len(state)} bytes are no state of this operator")
        for position, size in zip(positions, self.kept.tables, strict=True):
            self.parts[position] = unpacked(self, state[end : end + size])
            end += size
        self.late_rows = self.kept.late_rows


def _with_panes(layout: Layout, rows: Table, panes: Any) -> Table:
    """Return the columns that the operator takes, after a column with the pane of each row."""
    return pa.table([pa.array(panes), *layout.columns(rows)], names=[PANE, *layout.names])


class Window(Windowed):
    """Operator that aggregates windows by the columns ``by``: one row for each group of a complete window.

    ``window_s``: length of a window by event time, from column ``time`` (timestamps, or seconds). ``window_rows``:
    length of a window in rows as they come. ``every``: seconds or rows between the beginnings of two windows. Without
    ``every``, a window begins where the last one ended. ``aggregates`` and ``overflow``: as of ``GroupBy``. The inputs'
    rows are taken together. Column ``window_start`` has the window's beginning. ``share``: share of the inputs' bytes
    that planners expect in the output.
    """

    name = "window"

    def __init__(
        self,
        aggregates: Mapping[str, Any],
        by: str | Sequence[str] = (),
        window_s: float | None = None,
        window_rows: int | None = None,
        every: float | None = None,
        time: str = "time",
        lateness_s: float = 0.0,
        share: float = 1.0,
        overflow: Beyond = "error",
    ) -> None:
        super().__init__(window_s, window_rows, every, time, lateness_s)
        if not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise self.refuse(f"share={shown(share)}; give the share of the bytes that come out, at least 0")
        self.share = share
        self.by = self.names(list(by) if isinstance(by, tuple) else by, "by")
        self.keys = self.by
        self.groups = [PANE, *self.by]
        self.aggregates = Aggregates(self, aggregates, self.by, [START], overflow)

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return self.share * sum(input_sizes)

    def kinds(self, schema: Any, position: int) -> dict[str, Any]:
        where = f" of input {position}"
        keys = {name: self.key_kind(schema, name, where) for name in self.by}
        kinds = self.aggregates.kinds(self, schema, where) | keys
        self.check_alike(kinds, position)
        return kinds

    def combine(self, inputs: Sequence[Any], index: int) -> Table | Nothing:
        with self.arrow_errors(index):
            parts = [self.parts[0]] if 0 in self.parts else []
            if self.by_time:
                cut = [self.cut(value, position, index) for position, value in enumerate(inputs)]
                count = len(inputs)
            else:
                cut, count = [self.cut(self.rows(inputs, index) or NOTHING, 0, index)], 1
            whole = self._added(parts, [rows for rows in cut if rows is not None], index)  # R2: before the watermark
            before = self.kept.passed
            passed = self.complete(count)
            if whole is None:
                return NOTHING
            self.parts[0] = whole
            return self.given(self._done(whole, before, passed, index) if passed > before else None)

    def _added(self, kept: list[Table], cut: list[Table], index: int) -> Table | None:
        """Return the earlier partial aggregates merged with those of new rows.

        With ``skips_rows``, leave out new rows of groups that overflow.
        """
        while True:
            try:
                parts = [*kept, *(self.aggregates.of(rows, self.groups) for rows in cut)]
                return self.aggregates.merged(parts, self.groups) if len(parts) > 1 else parts[0] if parts else None
            except Overflow as error:
                if not self.skips_rows:
                    raise
                remaining = []
                for rows in cut:
                    bad = members(rows, error.groups, self.groups)
                    if bad.any():
                        self.leave_out(rows.filter(pa.array(bad)), error.why, index)
                    if not bad.all():
                        remaining.append(rows.filter(pa.array(~bad)))
                cut = remaining

    def _done(self, whole: Table, before: int, passed: int, index: int) -> Table | None:
        """Return the aggregates of newly complete windows, and drop panes that no later window needs."""
        self.parts[0] = whole.filter(pc.greater_equal(whole.column(PANE), passed)).combine_chunks()
        shifted = []
        panes = whole.column(PANE)
        for back in range(self.panes):  # windows that begin so many panes before a pane
            begins = pc.subtract(panes, back)
            mask = pc.and_(pc.greater_equal(begins, before), pc.less(begins, passed))
            shifted.append(whole.set_column(0, PANE, begins).filter(mask))
        parts = self._merged(shifted, index) if self.panes > 1 else shifted[0]
        final = self.aggregates.final(parts, self.groups)
        return final.drop_columns([PANE]).add_column(0, START, self.starts(parts.column(PANE)))

    def _merged(self, made: list[Table], index: int) -> Table:
        """Return the aggregates of windows of several panes.

        With ``skips_rows``, leave out a window that overflows.
        """
        while True:
            try:
                return self.aggregates.merged(made, self.groups)
            except Overflow as error:
                if not self.skips_rows:
                    raise
                starts = self.starts(error.groups.column(PANE))
                self.leave_out(error.groups.drop_columns([PANE]).add_column(0, START, starts), error.why, index)
                made = [part.filter(pa.array(~members(part, error.groups, self.groups))) for part in made]
