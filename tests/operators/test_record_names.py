"""Names of output columns: a name that occurs twice is refused before a row is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from record_flows import ALLOW, records, source
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators.join import Join
from thalweg.operators.records import GroupBy, Project, Select, TopK
from thalweg.operators.windows import Window

N = {"n": "count"}


def feed(operator: Any, batches: Sequence[Sequence[Any]]) -> list[Any]:
    return [operator.combine(inputs, index) for index, inputs in enumerate(batches)]


@pytest.mark.parametrize(
    ("name", "params", "column", "what"),
    [
        ("Window", {"by": "n", "aggregates": N, "window_s": 5}, "n", "a column of 'by', and an aggregate"),
        ("Window", {"aggregates": {"window_start": "count"}, "window_s": 5}, "window_start", "beginning, and an aggr"),
        ("Window", {"by": "window_start", "aggregates": N, "window_s": 5}, "window_start", "beginning, and a column"),
        ("GroupBy", {"by": ["k", "n"], "aggregates": N}, "n", "a column of 'by', and an aggregate"),
    ],
)
def test_two_output_columns_of_the_same_name_are_refused_when_the_operator_is_loaded(
    name: str, params: dict[str, Any], column: str, what: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        load_code(records(name, **params))
    assert f"two columns of the output are named {column!r}: " in str(caught.value)
    assert what in str(caught.value)
    assert "give one of them another name" in str(caught.value)


@pytest.mark.parametrize("name", ["__pane", "__sum v"])
def test_column_names_that_operators_use_internally_are_refused(name: str) -> None:
    for make in (
        lambda: Window(N, name, window_s=5),
        lambda: GroupBy(name, {"v": ["v", "sum"]}),
        lambda: Window({"n": [name, "sum"]}, window_s=5),
        lambda: Window({name: "count"}, window_s=5),
        lambda: Join("k", window_s=5).combine([pa.table({"time": [1], "k": [1], name: [1]}), NOTHING], 0),
    ):
        with pytest.raises(OperatorError, match=f"column '{name}'.*: names that begin with '__' are the operator's"):
            make()


def test_a_window_ignores_unused_columns_with_reserved_names() -> None:
    window = Window({"total": ["v", "sum"]}, "k", window_rows=2)
    output = window.combine([pa.table({"__pane": [7, 7], "__sum v": [7, 7], "k": [1, 1], "v": [2, 3]})], 0)
    assert output.to_pylist() == [{"window_start": 0, "k": 1, "total": 5}]


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ([["v", "v_2"], ["v"]], "v_2"),
        ([["v"], ["v", "v_2"]], "v_2"),
        ([["v"], ["w_3", "w"], ["w"]], "w_3"),
        ([["window_start"], []], "window_start"),
        ([[], ["window_start"]], "window_start"),
    ],
)
def test_a_join_with_two_equal_output_column_names_is_refused_at_the_first_batches(
    columns: list[list[str]], name: str
) -> None:
    tables = [pa.table({column: [1] for column in ("time", "k", *names)}) for names in columns]
    for order in (range(len(tables)), reversed(range(len(tables)))):
        join = Join("k", window_s=5)
        batches = [[table if at == here else NOTHING for at, table in enumerate(tables)] for here in order]
        with pytest.raises(OperatorError) as caught:
            feed(join, batches)
        assert f"join: two columns of the output are named {name!r}: " in str(caught.value)
        assert "'project'" in str(caught.value)
    assert not [part for part in join.parts.values() if part.num_rows > 1]


def test_a_join_gives_repeated_column_names_a_number_also_after_a_move() -> None:
    first = pa.table({"time": [1], "k": [1], "v": [1]})
    tables = [first, first.append_column("w", pa.array([2])), first]
    stays, moves = Join("k", window_s=2), Join("k", window_s=2)
    stays.combine(tables, 0)
    moves.restore(stays.snapshot())
    for operator in (stays, moves):
        operator.watermark_s = 4.0
        output = operator.combine([NOTHING] * 3, 1)
        assert output.column_names == ["window_start", "time", "k", "v", "time_2", "v_2", "w", "time_3", "v_3"]
        assert output.to_pylist()[0]["w"] == 2


@pytest.mark.parametrize(
    ("operator", "used"),
    [
        (Select([">", "v", 1]), "v"),
        (Project(["v"]), "v"),
        (GroupBy("v", N), "v"),
        (GroupBy("k", {"m": ["v", "max"]}), "v"),
        (TopK("k", 1), "v"),
        (Window(N, window_s=1, time="v"), "v"),
        (Window(N, "v", window_rows=1), "v"),
        (Join("k", window_rows=1), "v"),
    ],
)
def test_a_repeated_input_column_is_refused_by_every_operator_that_uses_the_column(operator: Any, used: str) -> None:
    table = pa.table([pa.array([2]), pa.array([3]), pa.array([4])], names=["k", "v", "v"])
    inputs = [table, table] if isinstance(operator, Join) else [table]
    with pytest.raises(OperatorError, match=f"there are 2 columns '{used}'; give each column of the input a name"):
        operator.combine(inputs, 0)


def test_a_run_with_colliding_columns_fails_and_the_error_names_node_and_column() -> None:
    flow = Dataflow()
    cameras = [flow.source(source(site), at=f"h{site + 1}") for site in range(2)]
    columns = {name: name for name in ("time", "plate", "speed")} | {"speed_2": "speed"}
    twice = flow.operator(records("Project", columns=columns), cameras[0])
    flow.sink("t", flow.operator(records("Join", on="plate", window_s=5), twice, cameras[1], name="both"))
    run = Moved(flow, 3, ALLOW, moves=0)
    assert run.failed is not None
    assert run.failed.startswith("node 'both' on host")
    assert "join: two columns of the output are named 'speed_2': column 'speed_2' of input 0, and column" in run.failed
