"""The table of types in the reference of records: each cell works, or is an error with the column and a remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from thalweg import NOTHING
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.shell.packing import opened, parcel_of
from thalweg.operators.join import Join
from thalweg.operators.records import GroupBy, Project, Select, TopK, Union
from thalweg.operators.reference import digest
from thalweg.operators.windows import Window

PAGE = Path(__file__).parents[2] / "docs/reference/records.md"
NESTED = [[1], [2], None, [1]]


def union(make: Callable[..., Any], *offsets: Any) -> Any:
    kinds = pa.array([0, 1, 0, 1], pa.int8())
    return make(kinds, *offsets, [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])])


def extension(kind: Any, storage: Any) -> Any:
    return pa.ExtensionArray.from_storage(kind, storage)


def whole(kind: Any) -> Any:
    day = 1 if kind.bit_width == 32 else 86_400_000
    return pa.array([0, day, None, 0], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


REPEATED = pa.array(["a", "b", None, "a"]).dictionary_encode()
OFFSETS = pa.array([0, 1, 2, 3, 4], pa.int32())
TEXTS, BYTES = ["a", "b", None, "a"], [b"a", b"b", None, b"a"]
VALUES: dict[str, list[Any]] = {  # by the name of the page's row: two equal values, a different value and a null
    "null": [pa.nulls(4)],
    "bool": [pa.array([True, False, None, True])],
    "integers": [
        pa.array([1, 2, None, 1], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ],
    "float32, float64": [pa.array([1.5, 2, None, 1.5], kind) for kind in (pa.float32(), pa.float64())],
    "float16": [pa.array(np.array([1.5, 2, 3, 1.5], np.float16))],
    "decimal128, decimal256": [
        pa.array([Decimal("1.5"), Decimal(2), None, Decimal("1.5")], kind)
        for kind in (pa.decimal128(20, 2), pa.decimal256(40, 2))
    ],
    "decimal32, decimal64": [
        pa.array([Decimal("1.5"), Decimal(2), None, Decimal("1.5")], kind)
        for kind in (pa.decimal32(5, 2), pa.decimal64(10, 2))
    ],
    "string, large_string": [pa.array(TEXTS, kind) for kind in (pa.string(), pa.large_string())],
    "string_view": [pa.array(TEXTS, pa.string_view())],
    "binary, large_binary, fixed_size_binary": [
        pa.array(BYTES, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(1))
    ],
    "binary_view": [pa.array(BYTES, pa.binary_view())],
    "date32, date64": [whole(pa.date32()), whole(pa.date64())],
    "time32, time64": [pa.array([1, 2, None, 1], pa.int32()).cast(pa.time32("s")), whole(pa.time64("ns"))],
    "timestamp, with or without a zone": [
        whole(pa.timestamp("s")), whole(pa.timestamp("us", "UTC")), whole(pa.timestamp("ns", "Europe/Berlin")),
    ],
    "duration": [whole(pa.duration("ms"))],
    "interval": [pa.array([pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([2, 2, 3]), None, pa.MonthDayNano([1, 2, 3])])],
    "dictionary": [REPEATED, pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.uint8()), ["a", "b"])],
    "run_end_encoded": [pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), TEXTS)],
    "list, large_list, fixed_size_list, list_view, map": [
        *(pa.array(NESTED, make(pa.int64())) for make in (pa.list_, pa.large_list, pa.list_view)),
        pa.array(NESTED, pa.list_(pa.int64(), 1)),
        pa.array([[(1, 2)], [(2, 3)], None, [(1, 2)]], pa.map_(pa.int64(), pa.int64())),
    ],
    "list or map of string_view": [
        pa.array([["a"], ["b"], None, ["a"]], pa.list_(pa.string_view())),
        pa.array([["a"], ["b"], None, ["a"]], pa.large_list(pa.string_view())),
        pa.array([["a"], ["b"], None, ["a"]], pa.list_(pa.string_view(), 1)),
        pa.array([[("a", 1)], [("b", 1)], None, [("a", 1)]], pa.map_(pa.string_view(), pa.int64())),
    ],
    "list or struct of dictionary": [
        pa.ListArray.from_arrays(OFFSETS, REPEATED),
        pa.StructArray.from_arrays([REPEATED], ["a"]),
    ],
    "struct": [pa.array([{"a": 1}, {"a": 2}, None, {"a": 1}])],
    "union": [
        union(pa.UnionArray.from_sparse), union(pa.UnionArray.from_dense, pa.array([0, 1, 2, 3], pa.int32())),
    ],
    "extension types (uuid)": [
        extension(pa.uuid(), pa.array([b"a" * 16, b"b" * 16, None, b"a" * 16], pa.binary(16))),
    ],
    "list_view of string_view": [
        pa.array([["a"], ["b"], None, ["a"]], pa.list_view(pa.string_view())),
    ],
}  # fmt: skip
LATER = 10.0


def table(values: Any) -> Any:
    return pa.table({"time": [0, 1, 2, 3], "k": [1, 1, 1, 1], "v": values, "n": [1, 2, 3, 4]})


def outputs(make: Callable[[], Any], values: Any, inputs: int = 1, column: str = "v") -> list[Any]:
    """Return an operator's outputs for rows, for no row and for the end. Check that moves do not change the outputs."""
    rows = table(values)
    if not column:  # of times, none is null
        rows = rows.filter(pa.array([True, True, False, True]))
    runs: list[list[Any]] = []
    for moves in (False, True):
        operator, results = make(), []
        for index, batch in enumerate([rows, rows.slice(0, 0), rows.slice(1), NOTHING]):
            operator.watermark_s = LATER if batch is NOTHING else 0.0
            if batch is NOTHING and not operator.on_nothing:
                break
            results.append(operator.combine([batch] * inputs, index))
            if moves:
                state, operator = operator.snapshot(), make()
                operator.restore(state)
        runs.append(results)
    for stayed, moved in zip(*runs, strict=True):
        assert digest(stayed) == digest(moved)
        value = opened(parcel_of(stayed))
        if value is not NOTHING:
            value.validate(full=True)
    return [results for results in runs[0] if results is not NOTHING]


class Role(NamedTuple):
    """Column of the page's table: operators, the number of their inputs, and the output column that is checked."""

    makes: tuple[Callable[[], Any], ...]
    inputs: int = 1
    column: str = "v"


def aggregating(function: str) -> tuple[Callable[[], Any], ...]:
    aggregates = {"a": ["v", function]}
    return lambda: GroupBy("k", aggregates), lambda: Window(aggregates, "k", window_s=5)


N = {"n": "count"}
ROLES = {
    "`project`, `union`": Role((lambda: Project(["v", "n"]), Union)),
    "`select`": Role((lambda: Select([">", "n", 1]),)),
    "key of `group-by`, `window`": Role((lambda: GroupBy("v", N), lambda: Window(N, "v", window_s=5))),
    "key of `join`": Role((lambda: Join("v", window_s=5), lambda: Join("v", window_s=5, how="left semi")), 2),
    "other column of `join`": Role((lambda: Join("n", window_s=5), lambda: Join("n", window_rows=2)), 2),
    "`by` of `top-k`": Role((lambda: TopK("v", 3), lambda: TopK("v", 3, smallest=True, running=True))),
    "other column of `top-k`": Role((lambda: TopK("n", 3), lambda: TopK("time", 3, smallest=True, running=True))),
    "`count`": Role(aggregating("count"), column="a"),
    "`sum`, `mean`": Role((*aggregating("sum"), *aggregating("mean")), column="a"),
    "`product`": Role(aggregating("product"), column="a"),
    "`min`, `max`": Role((*aggregating("min"), *aggregating("max")), column="a"),
    "time of `window`, `join`": Role(
        (lambda: Window(N, window_s=2, time="v"), lambda: Window(N, window_s=2, every=1, time="v")), column=""
    ),
    "`any`, `all`": Role((*aggregating("any"), *aggregating("all")), column="a"),
}  # fmt: skip


def cells() -> list[tuple[str, str, str]]:
    """Return the type, the role and the text of each cell of the page's table."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| type | `project`, `union` |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _, *body = rows
    return [(name, role, cell) for name, *row in body for role, cell in zip(head[1:], row, strict=True)]


CELLS = cells()


def test_the_page_has_every_type_and_every_role() -> None:
    assert {name for name, _, _ in CELLS} == set(VALUES)
    assert {role for _, role, _ in CELLS} == set(ROLES)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(("name", "role", "cell"), CELLS)
def test_an_operator_treats_a_type_as_the_cell_of_the_page_says(name: str, role: str, cell: str) -> None:
    makes, inputs, column = ROLES[role]
    for values in VALUES[name]:
        for make in makes:
            if cell == "no":
                with pytest.raises(OperatorError) as caught:
                    make().combine([table(values)] * inputs, 3)
                message = str(caught.value)
                assert re.search(r"column 'v'( of input \d)? is ", message), message
                assert "; " in message
                assert not re.search("kernel|Unsupported|not implemented", message), message
                continue
            results = outputs(make, values, inputs, column)
            assert results
            for rows in results:
                if column == "v":
                    assert str(rows.schema.field("v").type) == as_type(cell, values.type)
                    expected = values.storage if cell == "as their storage" else values
                    assert set(map(str, rows.column("v").to_pylist())) <= {*map(str, expected.to_pylist()), "None"}


def as_type(cell: str, kind: Any) -> str:
    """Return the type of an output column for a cell of the page. ``yes`` means the type itself."""
    if cell == "yes":
        return str(kind)
    if cell == "as their values":
        plain = re.sub(r"dictionary<values=(\w+), indices=\w+, ordered=\d>", r"\1", str(kind))
        return re.sub(r"run_end_encoded<run_ends: \w+, values: (\w+)>", r"\1", plain).replace("_view", "")
    if cell == "as their storage":
        return str(kind.storage_type)
    return {
        "as `float32`": "float", "as `string`": "string", "as `binary`": "binary",
        "as `decimal128`": f"decimal128({getattr(kind, 'precision', 0)}, {getattr(kind, 'scale', 0)})",
    }[cell]  # fmt: skip


# --- null, NaN, -0.0, and times ---------------------------------------------------------------------------


ODD = [0.0, -0.0, math.nan, -math.nan, None, None, 1.0]


def test_zeros_nans_and_nulls_are_grouped_and_nulls_do_not_join() -> None:
    rows = pa.table({"time": range(7), "v": pa.array(ODD)})
    for operator in (GroupBy("v", N), Window(N, "v", window_s=60)):
        operator.watermark_s = math.inf
        output = operator.combine([rows], 0)
        assert output.column("n").to_pylist() == [2, 1, 2, 2]
        assert str(output.column("v").to_pylist()) == "[0.0, 1.0, nan, None]", "without a sign, and null is the last"
    join = Join("v", window_s=60)
    join.watermark_s = math.inf
    pairs = join.combine([rows, rows], 0).select(["v", "time", "time_2"]).to_pylist()
    assert [(row["time"], row["time_2"]) for row in pairs] == [
        *((0, 0), (0, 1), (1, 0), (1, 1)), *((2, 2), (2, 3), (3, 2), (3, 3)), (6, 6)
    ], "NaN is equal to itself, and null to nothing"  # fmt: skip


def test_a_key_is_the_same_although_batches_have_different_dictionaries() -> None:
    window, total = Window(N, "v", window_s=60), Window({"n": ["v", "max"]}, window_s=60)
    for operator in (window, total):
        for index, names in enumerate((["b", "a"], ["c", "b"])):
            values = pa.array(names).dictionary_encode()
            operator.combine([pa.table({"time": [0, 1], "v": values})], index)
        operator.watermark_s = math.inf
    counted = window.combine([NOTHING], 2).to_pylist()
    assert [(row["v"], row["n"]) for row in counted] == [("a", 1), ("b", 2), ("c", 1)]
    assert total.combine([NOTHING], 2).to_pylist() == [{"window_start": 0, "n": "c"}]


def test_top_k_ranks_nan_and_null_behind_all_values_in_both_directions() -> None:
    rows = pa.table({"v": pa.array(ODD)})
    for smallest, first in ((False, [1.0, 0.0, 0.0]), (True, [0.0, 0.0, 1.0])):
        ranked = TopK("v", 9, smallest=smallest).combine([rows], 0).column("v").to_pylist()
        assert str(ranked) == str([*first, math.nan, math.nan, None, None])
    assert str(TopK("v", 9, running=True).combine([rows], 0).column("v").to_pylist()) == "[1.0, 0.0, nan, None]"


def test_minimum_and_maximum_leave_nan_out_unless_a_group_has_no_number() -> None:
    rows = pa.table({"k": ["a", "a", "b", "c"], "v": [math.nan, 1.0, math.nan, None]})
    output = GroupBy("k", {"min": ["v", "min"], "max": ["v", "max"], "sum": ["v", "sum"]}).combine([rows], 0)
    assert str(output.to_pydict()) == str({
        "k": ["a", "b", "c"], "min": [1.0, math.nan, None], "max": [1.0, math.nan, None],
        "sum": [math.nan, math.nan, None],
    })  # fmt: skip


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.inf]),
        pa.array([1.0, -1e19]),
        pa.array([1, None]),
        pa.array([1, 2**63], pa.uint64()),
        pa.array([1, 2**62]),
        pa.array([1, None], pa.timestamp("us")),
        pa.array([1, -(2**62)], pa.timestamp("ns", "UTC")),
    ],
    ids=str,
)
def test_a_row_without_a_time_is_an_error_that_names_the_row(times: Any) -> None:
    says = "partition 4: column 'at' of input 0: 1 of 2 rows have no time, the first of them row 1: "
    for make in (lambda: Window(N, window_s=1, time="at"), lambda: Join("k", window_s=1, time="at")):
        operator, good = make(), pa.table({"at": times, "k": [1, 1]})
        operator.combine([good.slice(0, 1)] * (2 if isinstance(operator, Join) else 1), 3)
        with pytest.raises(OperatorError, match=re.escape(says)):
            operator.combine([good] * (2 if isinstance(operator, Join) else 1), 4)


STAMPS = {kind: pa.array([1, 2], kind) for kind in (pa.timestamp("s", "UTC"), pa.timestamp("s"), pa.int64())}


@pytest.mark.parametrize("other", [pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ms", "UTC"), *STAMPS], ids=str)
@pytest.mark.parametrize("first", STAMPS, ids=str)
def test_times_that_differ_in_type_unit_or_zone_between_inputs_are_refused(first: Any, other: Any) -> None:
    inputs = [pa.table({"time": pa.array([1, 2], kind), "k": [1, 1]}) for kind in (first, other)]
    for operator in (Window(N, window_s=1), Join("k", window_s=1)):
        if first == other:
            operator.combine(inputs, 0)
            continue
        with pytest.raises(OperatorError, match=r"column 'time' of input 1 is .*; give all inputs times of one type"):
            operator.combine(inputs, 0)


def test_windows_have_the_zone_of_their_times_and_are_cut_in_utc() -> None:
    kind = pa.timestamp("s", "Asia/Kolkata")  # half an hour off
    window = Window(N, window_s=3600)
    window.watermark_s = math.inf
    output = window.combine([pa.table({"time": pa.array([3599, 3600], kind)})], 0)
    assert output.column("window_start").type == kind
    assert output.column("window_start").cast(pa.int64()).to_pylist() == [0, 3600]


def test_a_column_of_different_types_in_two_inputs_is_refused() -> None:
    inputs = [pa.table({"time": [1], "k": pa.array([1], kind)}) for kind in (pa.int32(), pa.int64())]
    says = "column 'k' of input 1 is taken as int64, and that of input 0 as int32; make them of one type"
    for operator in (Window(N, "k", window_s=1), Join("k", window_s=1), Window({"m": ["k", "max"]}, window_s=1)):
        with pytest.raises(OperatorError, match=says):
            operator.combine(inputs, 0)


def test_the_schema_of_an_input_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    positions: list[int] = []
    whole_layout = Window.lay_out

    def counted(self: Any, schema: Any, position: int) -> Any:
        positions.append(position)
        return whole_layout(self, schema, position)

    monkeypatch.setattr(Window, "lay_out", counted)
    window = Window({"n": ["v", "sum"]}, "k", window_s=5)
    for index in range(9):
        window.combine([pa.table({"time": [index], "k": [1], "v": [2.0]})] * 2, index)
    assert positions == [0, 1]


def test_a_select_that_cannot_compare_columns_names_the_columns_and_types() -> None:
    rows = pa.table({"tags": [["a"]], "n": [1]})
    with pytest.raises(OperatorError, match=re.escape("'equal' of 'tags' (list<")) as caught:
        Select(["==", "tags", "n"]).combine([rows], 0)
    assert "and 'n' (int64) cannot be computed; choose another function" in str(caught.value)


def test_top_k_of_nested_rows_does_not_depend_on_order_and_has_no_duplicates() -> None:
    rows = pa.table({"v": [1, 1, 1, 2], "tags": [["b"], None, ["a"], ["c"]], "at": [{"x": 1.0}] * 4})
    reversed_ = rows.take(pa.array([3, 2, 1, 0]))
    for running in (False, True):
        ranked = [TopK("v", 3, running=running).combine(inputs, 0) for inputs in ([rows], [reversed_])]
        assert digest(ranked[0]) == digest(ranked[1])
        assert ranked[0].column("tags").to_pylist() == [["c"], None, ["a"]]
    both = TopK("v", 9, running=True)
    both.combine([rows], 0)
    assert both.combine([reversed_], 1).num_rows == 4
    assert both.merge([both.snapshot(), both.snapshot()]) == both.snapshot()
    with pytest.raises(OperatorError, match=r"column 'tags' is list<.*>, which is no key"):
        TopK("tags", 1).combine([rows], 0)
