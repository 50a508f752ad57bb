"""Windows, groups, joins and best rows of random streams, compared with DuckDB except for the page's list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from thalweg import NOTHING
from thalweg.operators.columns import stored
from thalweg.operators.join import Join
from thalweg.operators.records import GroupBy, TopK
from thalweg.operators.windows import UNITS, Window

duckdb = pytest.importorskip("duckdb", reason="install the extra dev, which has duckdb")

ZERO = datetime(1970, 1, 1, tzinfo=UTC)
FLOATS = [0.0, -0.0, math.nan, -math.nan, 1.5, -2.25, math.inf, -math.inf, None]
TEXTS = ["", "a", "b", "ä", "a\0b", None]
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "int": (pa.int64(), [-1, 0, 7, 2**40, None]),
    "small": (pa.int8(), [-128, 0, 127, None]),
    "unsigned": (pa.uint32(), [0, 1, 2**32 - 1, None]),
    "float": (pa.float64(), FLOATS),
    "single": (pa.float32(), FLOATS),
    "decimal": (pa.decimal128(12, 2), [Decimal("0.10"), Decimal("-3.25"), Decimal("9999999999.99"), None]),
    "text": (pa.string(), TEXTS),
    "view": (pa.string_view(), TEXTS),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    "zone": (pa.timestamp("us", "Europe/Berlin"), [ZERO, ZERO + timedelta(days=200, microseconds=1), None]),
    "date": (pa.date32(), [ZERO.date(), (ZERO - timedelta(days=9)).date(), None]),
    "bool": (pa.bool_(), [True, False, None]),
}
NUMBERS = ("int", "small", "unsigned", "float", "single", "decimal")
TIMES = [pa.int64(), pa.float64(), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Kolkata")]
Rows = list[tuple[Any, ...]]


class Stream:
    """Inputs of an operator for each index, and DuckDB tables of them: ``i0`` and ``i1`` by input, ``rows`` of all.

    The tables have three further columns. ``part`` is the index. ``row`` is the place of the row in the table. ``t`` is
    the time in units of the column.
    """

    def __init__(self, seed: int, inputs: int) -> None:
        self.random = random = Random(seed)
        self.kinds = {name: random.choice(list(KINDS)) for name in ("k", "l", "v", "w")}
        self.kinds["v"] = random.choice(NUMBERS)
        self.time = random.choice(TIMES)
        self.indices = random.randint(1, 6)
        self.batches = [[self._batch() for _ in range(inputs)] for _ in range(self.indices)]
        self.sql = duckdb.connect()
        self.sql.execute("SET TimeZone = 'UTC'")
        every: list[Any] = []
        for number in range(inputs):
            mine = [(index, batches[number]) for index, batches in enumerate(self.batches)]
            self._give(f"i{number}", mine)
        for index, batches in enumerate(self.batches):
            every += [(index, batch) for batch in batches]
        self._give("rows", every)

    def _batch(self) -> Any:
        rows = self.random.choice([0, 1, 3, 8, 20])
        if not rows and self.random.random() < 0.5:
            return NOTHING
        columns = {"time": self._times(rows)}
        for name, kind in self.kinds.items():
            arrow, values = KINDS[kind]
            chosen = [self.random.choice(values) for _ in range(rows)]
            if pa.types.is_dictionary(arrow):  # each batch has a dictionary of its own
                columns[name] = pa.array(chosen, pa.string()).dictionary_encode().cast(arrow)
            else:
                columns[name] = pa.array(chosen, arrow)
        return pa.table(columns) if self.random.random() < 0.5 else pa.RecordBatch.from_pydict(columns)

    def _times(self, rows: int) -> Any:
        scale = UNITS[getattr(self.time, "unit", "s")]
        if pa.types.is_floating(self.time):
            return pa.array([self.random.randint(-80, 120) / 4 for _ in range(rows)], self.time)
        return pa.array([self.random.randint(-20 * scale, 30 * scale) for _ in range(rows)], pa.int64()).cast(self.time)

    @property
    def unit(self) -> int:
        """Return how many units of ``t`` a second has."""
        return 10**6 if pa.types.is_floating(self.time) else UNITS[getattr(self.time, "unit", "s")]

    def _in_units(self, times: Any) -> list[int]:
        if pa.types.is_floating(times.type):
            return [math.floor(value * 1e6) for value in times.to_pylist()]
        return times.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]

    def _give(self, name: str, batches: Sequence[tuple[int, Any]]) -> None:
        fields = [("time", self.time), *((column, KINDS[kind][0]) for column, kind in self.kinds.items())]
        whole: list[Any] = [pa.schema(fields).empty_table().append_column("part", pa.array([], pa.int64()))]
        for index, batch in batches:
            if batch is not NOTHING:
                table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
                whole.append(table.append_column("part", pa.array([index] * table.num_rows, pa.int64())))
        table = pa.concat_tables(whole)
        table = pa.table({column: _plain(table.column(column)) for column in table.column_names})
        table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
        table = table.append_column("t", pa.array(self._in_units(table.column("time")), pa.int64()))
        self.sql.register(f"{name}_", table)
        self.sql.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_")

    def ask(self, query: str) -> Rows:
        return [tuple(_same(value) for value in row) for row in self.sql.execute(query).fetchall()]

    def watermarks(self) -> Iterator[float]:
        """Yield the latest true watermark after each index, in seconds. The last watermark is infinite."""
        for index in range(self.indices):
            (earliest,) = self.sql.execute(f"SELECT min(t) FROM rows WHERE part > {index}").fetchone()
            yield math.inf if earliest is None else earliest / self.unit

    def run(self, operator: Any) -> list[Any]:
        """Return the operator's output for each index. In the middle the operator moves."""
        outputs, leaves = [], self.random.randrange(self.indices)
        for index, watermark_s in enumerate(self.watermarks()):
            operator.watermark_s = watermark_s
            outputs.append(operator.combine(self.batches[index], index))
            if index == leaves:
                state = operator.snapshot()
                operator = type(operator).__new__(type(operator))
                operator.__init__(**self.params)
                operator.restore(state)
        assert not operator.late_rows
        return outputs

    params: dict[str, Any]

    def made_by(self, kind: type, **params: Any) -> list[Any]:
        self.params = params
        return self.run(kind(**params))


def _plain(column: Any) -> Any:
    return pc.cast(column, stored(column.type))


def _same(value: Any) -> Any:
    """Return a value in the form for comparisons, in which NaN equals NaN and 0.0 equals -0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def rows_of(tables: Sequence[Any], *columns: str) -> Rows:
    rows: Rows = []
    for table in tables:
        if table is not NOTHING:
            values = [_instants(table.column(name)).to_pylist() for name in columns or table.column_names]
            rows += [tuple(_same(value) for value in row) for row in zip(*values, strict=True)]
    return rows


def _instants(column: Any) -> Any:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def shown(name: str, kind: str) -> str:
    """Return the SQL of a column as ``rows_of`` gives it."""
    return f"epoch_us({name})" if kind == "zone" else name


def order(name: str, kind: str, how: str = "ASC") -> str:
    """Return the SQL of an order in which NaN comes after all numbers, and null after NaN."""
    odd = f"coalesce(isnan({name}), false), " if kind in ("float", "single") else ""
    return f"{name} IS NULL, {odd}{name} {how}"


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def assert_same(found: Rows, expected: Rows) -> None:
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row == tuple(close(value) for value in other)


def aggregates(kinds: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Return aggregates of columns v and w, and their SQL."""
    asked: dict[str, Any] = {"n": "count"}
    sql = ["count(*)"]
    for name in "vw":
        kind = kinds[name]
        real = f" FILTER (WHERE NOT isnan({name}))" if kind in ("float", "single") else ""
        some = f"count({name}) > 0"
        functions: dict[str, str] = {"count": f"count({name})"}
        for function in ("min", "max") if kind != "bool" else ():
            best = shown(f"{function}({name}){real}", kind)
            nan = f"'nan'::{'FLOAT' if kind == 'single' else 'DOUBLE'}"
            functions[function] = f"CASE WHEN {some} THEN coalesce({best}, {nan}) END" if real else best
        if kind in NUMBERS:
            wide = f"{name}::DOUBLE" if real else name
            functions |= {"sum": f"sum({wide})", "mean": f"avg({name}::DOUBLE)"}
        if kind == "bool":
            functions |= {"any": f"bool_or({name})", "all": f"bool_and({name})"}
        if kind in ("float", "single"):
            functions["product"] = f"product({name}::DOUBLE)"
        asked |= {f"{function} {name}": [name, function] for function in functions}
        sql += functions.values()
    return asked, ", ".join(sql)


def check_groups(stream: Stream) -> None:
    asked, sql = aggregates(stream.kinds)
    k, l = (shown(name, stream.kinds[name]) for name in "kl")  # noqa: E741
    orders = ", ".join(order(name, stream.kinds[name]) for name in "kl")
    outputs = stream.made_by(GroupBy, by=["k", "l"], aggregates=asked)
    expected = stream.ask(f"SELECT {k}, {l}, {sql} FROM rows GROUP BY part, k, l ORDER BY part, {orders}")
    assert_same(rows_of(outputs), expected)


def check_windows(stream: Stream) -> None:
    asked, sql = aggregates(stream.kinds)
    every, panes = stream.random.choice([1, 5]), stream.random.choice([1, 1, 3])
    step, k = every * stream.unit, stream.kinds["k"]
    begins = f"(floor(t::DOUBLE / {step})::BIGINT - back) * {step}"
    outputs = stream.made_by(Window, by="k", aggregates=asked, window_s=every * panes, every=every)
    start = f"begins / {1e6}" if pa.types.is_floating(stream.time) else "begins"
    expected = stream.ask(
        f"SELECT {start}, {shown('k', k)}, {sql} FROM"
        f" (SELECT *, {begins} AS begins FROM rows, range({panes}) AS b(back))"
        f" GROUP BY begins, k ORDER BY begins, {order('k', k)}"
    )
    assert_same(rows_of(outputs), expected)
    size = stream.random.choice([1, 4, 7])
    outputs = stream.made_by(Window, by="k", aggregates=asked, window_rows=size)
    expected = stream.ask(
        f"SELECT (row // {size}) * {size} AS begins, {shown('k', k)}, {sql} FROM rows"
        f" WHERE row // {size} < (SELECT count(*) FROM rows) // {size}"
        f" GROUP BY begins, k ORDER BY begins, {order('k', k)}"
    )
    assert_same(rows_of(outputs), expected)


def check_best(stream: Stream) -> None:
    k, smallest = stream.random.choice([1, 3, 9]), stream.random.random() < 0.5
    kinds = {"time": "time", **stream.kinds}
    orders = [order("v", kinds["v"], "ASC" if smallest else "DESC")]
    orders += [order(name, kind) for name, kind in kinds.items() if name != "v"]
    columns = ", ".join(["t", *(shown(name, kind) for name, kind in stream.kinds.items())])
    every = ", ".join(kinds)
    outputs = [_with_units(stream, table) for table in stream.made_by(TopK, by="v", k=k, smallest=smallest)]
    expected: Rows = []
    for index in range(stream.indices):
        expected += stream.ask(
            f"SELECT {columns} FROM rows WHERE part = {index} ORDER BY {', '.join(orders)} LIMIT {k}"
        )
    assert_same(rows_of(outputs), expected)
    outputs = stream.made_by(TopK, by="v", k=k, smallest=smallest, running=True)
    for index, table in enumerate(outputs):
        best = stream.ask(
            f"SELECT {columns} FROM (SELECT DISTINCT t, {every} FROM rows WHERE part <= {index})"
            f" ORDER BY {', '.join(orders)} LIMIT {k}"
        )
        if any(batch is not NOTHING for batch in stream.batches[index]):
            assert_same(rows_of([_with_units(stream, table)]), best)


def _with_units(stream: Stream, table: Any) -> Any:
    if table is NOTHING:
        return table
    return table.set_column(0, "time", pa.array(stream._in_units(table.column("time")), pa.int64()))


def check_joins(stream: Stream) -> None:
    seconds, size = stream.random.choice([2, 10, 60]), stream.random.choice([2, 5])
    step = seconds * stream.unit
    complete = f"(SELECT min(n) FROM (SELECT count(*) AS n FROM i0 UNION ALL SELECT count(*) FROM i1)) // {size}"
    on = stream.random.choice([["k"], ["k", "l"]])
    equal = " AND ".join(f"a.{name} = b.{name}" for name in on)
    for params, window, whole in (
        ({"window_s": seconds}, f"floor({{}}.t::DOUBLE / {step})::BIGINT", "true"),
        ({"window_rows": size}, f"({{}}.row // {size})", f"a.row // {size} < {complete}"),
    ):
        left, right = window.format("a"), window.format("b")
        match = f"{equal} AND {left} = {right}"
        where = f"{whole} ORDER BY {left}, a.row"
        keys = ", ".join(shown(f"a.{name}", stream.kinds[name]) for name in on)
        v, w = (shown("a.v", stream.kinds["v"]), shown("b.v", stream.kinds["v"]))
        outputs = stream.made_by(Join, on=on, **params)
        expected = stream.ask(f"SELECT {keys}, {v}, {w} FROM i0 a JOIN i1 b ON {match} WHERE {where}, b.row")
        assert_same(rows_of(outputs, *on, "v", "v_2"), expected)
        for how, exists in (("left semi", "EXISTS"), ("left anti", "NOT EXISTS")):
            outputs = stream.made_by(Join, on=on, how=how, **params)
            expected = stream.ask(
                f"SELECT {keys}, {v} FROM i0 a WHERE {exists} (SELECT 1 FROM i1 b WHERE {match}) AND {where}"
            )
            assert_same(rows_of(outputs, *on, "v"), expected)


def check(seed: int) -> None:
    one_or_two = Stream(seed, 1 + seed % 2)
    for part in (check_groups, check_windows, check_best):
        part(one_or_two)
    check_joins(Stream(seed, 2))


@pytest.mark.parametrize("seed", range(12))
def test_results_of_a_random_stream_equal_the_results_of_duckdb(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(first, first + 61) for first in range(12, 500, 61)], ids=str)
def test_results_of_five_hundred_random_streams_equal_the_results_of_duckdb(seeds: Sequence[int]) -> None:
    for seed in seeds:
        check(seed)


def test_random_streams_have_all_column_types_all_time_types_and_empty_batches() -> None:
    streams = [Stream(seed, 2) for seed in range(40)]
    assert {kind for stream in streams for kind in stream.kinds.values()} == set(KINDS)
    assert {str(stream.time) for stream in streams} == {str(kind) for kind in TIMES}
    inputs = [batch for stream in streams for batches in stream.batches for batch in batches]
    assert any(batch is NOTHING for batch in inputs)
    assert any(batch is not NOTHING and not batch.num_rows for batch in inputs)
