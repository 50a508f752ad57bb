"""Sums and products beyond their type: an error, a wrapped value or a float, but never silently wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_flows import ALLOW, records, source
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators.records import GroupBy, Project, Select
from thalweg.operators.windows import Window

BIG = 2**62
NINES = Decimal("9" * 38)
TOTALS = {"total": ["v", "sum"]}


def table(values: list[Any], kind: Any, keys: list[Any] | None = None) -> Any:
    return pa.table({"time": range(len(values)), "k": keys or ["a"] * len(values), "v": pa.array(values, kind)})


OVERFLOWS = [
    (pa.int64(), [BIG, BIG], "sum", "int64"),
    (pa.int64(), [-BIG, -BIG, -1], "sum", "int64"),
    (pa.uint64(), [2**63, 2**63], "sum", "uint64"),
    (pa.int64(), [2**32, 2**31], "product", "int64"),
    (pa.int8(), [-128] * 10, "product", "int64"),
    (pa.uint16(), [2**15] * 5, "product", "uint64"),
    (pa.decimal128(38, 0), [NINES, NINES], "sum", "decimal128(38, 0)"),
    (pa.decimal128(38, 2), [Decimal("9" * 36 + ".99")] * 2, "sum", "decimal128(38, 2)"),
    (pa.decimal256(76, 0), [Decimal("9" * 76)] * 2, "sum", "decimal256(76, 0)"),
]


@pytest.mark.parametrize(("kind", "values", "function", "held"), OVERFLOWS, ids=str)
def test_a_total_beyond_the_type_is_an_error_with_column_partition_and_group(
    kind: Any, values: list[Any], function: str, held: str
) -> None:
    whole, (first, *rest) = table(values, kind), [[value] for value in values]
    aggregates = {"total": ["v", function]}
    says = f"partition 7: the {function} of column 'v' is beyond {held} where k='a'; set overflow to 'float'"
    for make in (lambda: GroupBy("k", aggregates), lambda: Window(aggregates, "k", window_s=60)):
        with pytest.raises(OperatorError) as caught:
            make().combine([whole], 7)
        assert says in str(caught.value)
        assert make().combine([table([*first, type(first[0])(0)], kind)], 7) is not None
    window = Window(aggregates, "k", window_s=60)
    window.combine([table(first, kind)], 5)
    for batch in rest[:-1]:
        window.combine([table(batch, kind)], 6)
    with pytest.raises(OperatorError) as caught:
        window.combine([table(rest[-1], kind)], 7)
    assert says in str(caught.value)


@pytest.mark.parametrize(("kind", "values", "function", "held"), OVERFLOWS, ids=str)
def test_a_total_as_float_does_not_overflow(kind: Any, values: list[Any], function: str, held: str) -> None:
    group = GroupBy("k", {"total": ["v", function], "top": ["v", "max"]}, overflow="float")
    (row,) = group.combine([table(values, kind)], 0).to_pylist()
    expected = math.prod(map(float, values)) if function == "product" else math.fsum(map(float, values))
    assert row["total"] == pytest.approx(expected)
    assert row["top"] == max(values), "the values themselves are not made floats"
    assert isinstance(row["top"], type(values[0]))


def test_integers_wrap_on_request_and_decimals_and_means_never_wrap() -> None:
    wraps = GroupBy("k", {"total": ["v", "sum"], "mean": ["v", "mean"]}, overflow="wrap")
    assert wraps.combine([table([BIG, BIG], pa.int64())], 0).to_pylist() == [{"k": "a", "total": -(2**63), "mean": BIG}]
    with pytest.raises(OperatorError, match="beyond decimal128"):
        wraps.combine([table([NINES, NINES], pa.decimal128(38, 0))], 0)
    with pytest.raises(OperatorError, match="the sum of column 'v' is beyond int64"):
        GroupBy("k", {"mean": ["v", "mean"]}).combine([table([BIG, BIG], pa.int64())], 0)


def test_panes_that_fit_alone_overflow_together_in_a_window() -> None:
    window = Window(TOTALS, "k", window_s=2, every=1)
    window.watermark_s = math.inf
    with pytest.raises(OperatorError, match="partition 3: the sum of column 'v' is beyond int64 where k='a'"):
        window.combine([table([BIG, BIG], pa.int64())], 3)


numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.none())


@given(batches=st.lists(st.lists(st.tuples(st.sampled_from("ab"), numbers), min_size=1, max_size=5), max_size=5))
@pytest.mark.parametrize("overflow", ["error", "wrap"])
@pytest.mark.parametrize("function", ["sum", "product"])
def test_totals_equal_exact_integer_totals_or_overflow_as_configured(
    function: str, overflow: Any, batches: Any
) -> None:
    window = Window({"total": ["v", function]}, "k", window_s=60, overflow=overflow)
    totals = defaultdict[str, list[int]](list)
    for index, batch in enumerate(batches):
        window.watermark_s = None
        for key, value in batch:
            totals[key] += [] if value is None else [value]
        inputs = [table([value for _, value in batch], pa.int64(), [key for key, _ in batch])]
        whole = {key: (sum if function == "sum" else math.prod)(terms) for key, terms in totals.items()}
        if overflow == "error" and not all(-(2**63) <= total < 2**63 for total in whole.values()):
            with pytest.raises(OperatorError, match=f"partition {index}: the {function} of column 'v' is beyond int64"):
                window.combine(inputs, index)
            return
        window.combine(inputs, index)
    window.watermark_s = math.inf
    output = window.combine([NOTHING], 99)
    rows = {} if output is NOTHING else {row["k"]: row["total"] for row in output.to_pylist()}
    expected = {}
    for key, terms in totals.items():
        total = (sum if function == "sum" else math.prod)(terms)
        expected[key] = (total + 2**63) % 2**64 - 2**63 if terms else None
    assert rows == expected


@given(values=st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=6))
def test_totals_of_decimals_are_exact_or_overflow(values: list[int]) -> None:
    exact = Context(prec=60)
    total = exact.scaleb(Decimal(sum(values)), -3)
    rows = table([exact.scaleb(Decimal(value), -3) for value in values], pa.decimal128(38, 3))
    group = GroupBy("k", TOTALS)
    if abs(sum(values)) < 10**38:
        assert group.combine([rows], 0).to_pylist() == [{"k": "a", "total": total}]
    else:
        with pytest.raises(OperatorError, match="beyond decimal128"):
            group.combine([rows], 0)


def test_arithmetic_signs_raise_on_overflow_and_functions_by_name_wrap() -> None:
    rows = table([2**63 - 1], pa.int64())
    for sign in "+*-":
        value = -2 if sign == "-" else 2
        with pytest.raises(OperatorError, match="project: partition 4: column 'x': overflow; 'add', 'subtract' and"):
            Project({"x": [sign, "v", value]}).combine([rows], 4)
        with pytest.raises(OperatorError, match="select: partition 4: overflow; "):
            Select([">", [sign, "v", value], 0]).combine([rows], 4)
    assert Project({"x": ["add", "v", 1]}).combine([rows], 4).to_pylist() == [{"x": -(2**63)}]


def test_a_run_with_an_overflowing_sum_fails_with_node_column_and_partition() -> None:
    flow = Dataflow()
    big = flow.operator(records("Project", columns={"plate": "plate", "v": 2**62}), flow.source(source(0), at="h1"))
    flow.sink("t", flow.operator(records("GroupBy", by="plate", aggregates=TOTALS), big, name="sums"))
    run = Moved(flow, 3, ALLOW, moves=0)
    assert run.failed is not None
    assert "node 'sums' on host" in run.failed
    assert "group-by: partition 0: the sum of column 'v' is beyond int64 where plate='p" in run.failed


@pytest.mark.parametrize("name", ["GroupBy", "Window"])
def test_an_unknown_overflow_is_refused_with_the_three_choices(name: str) -> None:
    params: dict[str, Any] = {"by": "k", "aggregates": TOTALS} | ({"window_s": 1} if name == "Window" else {})
    with pytest.raises(OperatorError, match="overflow='saturate'; use error, wrap, float"):
        load_code(records(name, overflow="saturate", **params))
