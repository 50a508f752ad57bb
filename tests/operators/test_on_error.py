"""Operators with ``on_error``: a bad row or partition is left out, counted, logged, and on request a dead letter."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fail_codes import BAD
from virtual_runs import Moved

from thalweg import NOTHING, Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import TOLERANT, Code, Dataflow, Node, tolerant
from thalweg.middleware.errors import DataflowError, OperatorError, UsageError
from thalweg.middleware.loading import keeps_state, load_code, may_reorder
from thalweg.middleware.shell.packing import opened
from thalweg.operators.on_error import Tolerant
from thalweg.operators.reference import digest, reference_run

ALLOW = ("fail_codes",)
FLAKY, NUMBERS = Code("fail_codes:Flaky"), Code("fail_codes:Numbers")
SELECT = {"where": [">", ["/", "v", "by"], 0]}
COUNT = {"window_s": 1, "by": "k", "aggregates": {"n": "count"}}
PARTS = 12


def operator(use: str, how: str = "skip", **params: Any) -> Any:
    return load_code(tolerant(Code(use, params), how), ("thalweg.operators", *ALLOW))  # type: ignore[arg-type]


def graph(use: str, params: dict[str, Any], how: Any, *sources: Code) -> Dataflow:
    """Return sources -> ``o`` -> sink ``t``. Dead letters, if there are any, go to sink ``letters``."""
    flow = Dataflow()
    names = [flow.source(code, at=f"h{number}") for number, code in enumerate(sources, 1)]
    flow.operator(Code(use, params), *names, name="o", on_error=how)
    flow.sink("t", "o")
    if how == "dead-letter":
        flow.sink("letters", flow.dead_letters("o"))
    return flow


def reference(flow: Dataflow, sink: str, partitions: int = PARTS) -> list[Any]:
    return list(reference_run(flow, partitions, ("thalweg.operators", *ALLOW), sink=sink))


def run_moved(flow: Dataflow, partitions: int = PARTS) -> Moved:
    run = Moved(flow, partitions, ALLOW)
    assert run.failed is None
    assert run.relocations
    return run


def rows_of(values: list[Any]) -> list[dict[str, Any]]:
    return [row for value in values if value is not NOTHING for row in value.to_pylist()]


# --- rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "params", "why"),
    [
        ("select", SELECT, "divide by zero"),
        ("project", {"columns": {"x": ["/", "v", "by"], "time": "time"}}, "column 'x': divide by zero"),
        ("window", COUNT, "column 'time' of input 0: 1 of 4 rows have no time, the first of them row 1: nan"),
    ],
)
def test_a_bad_row_is_left_out_and_counted_and_all_other_rows_come(use: str, params: dict[str, Any], why: str) -> None:
    flow = graph(use, params, "fail", FLAKY)
    with pytest.raises(OperatorError, match=re.escape(f"{use}: partition 3: {why}")):
        reference(flow, "t")
    skipping = graph(use, params, "skip", FLAKY)
    run = run_moved(skipping)
    assert [digest(value) for value in run.values] == [digest(value) for value in reference(skipping, "t")]
    came = rows_of(run.values)
    expected = 4 * PARTS - len(BAD) if use != "window" else 4 * (PARTS - 1) - len(BAD)
    assert (sum(row["n"] for row in came) if use == "window" else len(came)) == expected
    left_out = run.of_kind("left-out")
    assert [(fields["index"], fields["value"], fields["node"]) for fields in left_out] == [(i, 1, "o") for i in BAD]
    assert {fields["detail"]["why"] for fields in left_out} == {why}


def test_joins_leave_out_rows_without_a_time() -> None:
    flow = graph("join", {"on": "k", "window_s": 1}, "skip", FLAKY, Code("fail_codes:Flaky", {"site": 1}))
    run = run_moved(flow)
    assert len(rows_of(run.values)) == (PARTS - 1 - len(BAD)) * 8 + len(BAD) * (4 + 1)
    assert sum(fields["value"] for fields in run.of_kind("left-out")) == 2 * len(BAD)


def test_a_map_leaves_out_a_partition_if_the_function_fails() -> None:
    run = run_moved(graph("map", {"function": "fail_codes:halves"}, "skip", FLAKY))
    assert len(rows_of(run.values)) == 4 * (PARTS - len(BAD))
    left_out = run.of_kind("left-out")
    assert [(fields["index"], fields["value"]) for fields in left_out] == [(index, 4) for index in BAD]
    assert left_out[0]["detail"]["why"] == "ZeroDivisionError: by is 0"


def big(values: list[int], keys: list[Any]) -> Any:
    return pa.table({"time": range(len(values)), "k": keys, "v": values, "id": range(len(values))})


@pytest.mark.parametrize("how", ["fail", "skip"])
def test_a_function_that_returns_no_records_is_named_with_its_type(how: Any) -> None:
    """The error said that an input was no table."""
    why = "record_codes:lists returned list for partition 0; let it return a table, a record batch or NOTHING"
    if how == "skip":
        run = Moved(graph("map", {"function": "record_codes:lists"}, how, FLAKY), 3, (*ALLOW, "record_codes"))
        assert {fields["detail"]["why"] for fields in run.of_kind("left-out")} >= {f"map: {why}"}
        return
    code = load_code(Code("map", {"function": "record_codes:lists"}), ("thalweg.operators", "record_codes"))
    with pytest.raises(OperatorError, match=re.escape(why)):
        code.combine([pa.table({"a": [1]})], 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("key", [1.0, math.nan, None])
def test_the_rows_of_a_group_that_overflows_are_left_out_and_other_groups_stay(key: float | None) -> None:
    rows = big([2**62, 5, 2**62, 6], [key, 7.0, key, 7.0])
    group = operator("group-by", by="k", aggregates={"total": ["v", "sum"]})
    assert group.combine([rows], 0).to_pylist() == [{"k": 7.0, "total": 11}]
    assert group.left_out.rows == 2
    assert "the sum of column 'v' is beyond int64 where k=" in group.left_out.why
    window = operator("window", by="k", aggregates={"total": ["v", "sum"]}, window_s=60)
    window.combine([rows.slice(0, 2)], 0)
    assert window.left_out is None
    window.combine([rows.slice(2)], 1)
    assert window.left_out.rows == 1
    window.watermark_s = math.inf
    groups = window.combine([NOTHING], 2).to_pylist()
    assert [row["total"] for row in groups] == ([2**62, 11] if key == 1.0 else [11, 2**62]), "of what came before"


def test_a_window_with_panes_that_overflow_together_is_left_out_alone() -> None:
    window = operator("window", by="k", aggregates={"total": ["v", "sum"]}, window_s=2, every=1)
    window.watermark_s = math.inf
    output = window.combine([big([2**62, 2**62], ["a", "a"])], 0)
    assert [(row["window_start"], row["total"]) for row in output.to_pylist()] == [(-1, 2**62), (1, 2**62)]
    assert window.left_out.rows == 1


@pytest.mark.parametrize(
    ("use", "params", "says"),
    [
        ("select", {"where": [">", "w", 0]}, "there is no column 'w'"),
        ("select", {"where": "v"}, "where gives int64"),
        ("window", {**COUNT, "time": "k"}, "column 'k' of input 0 is string; give timestamps"),
    ],
)
def test_a_fault_of_a_whole_column_is_an_error_even_with_on_error_skip(
    use: str, params: dict[str, Any], says: str
) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)):
        operator(use, **params).combine([big([1], ["a"])], 0)


# --- partitions -------------------------------------------------------------------------------------------


def test_an_operator_that_fails_gives_nothing_even_while_operators_move() -> None:
    flow = graph("fail_codes:Total", {}, "skip", NUMBERS)
    run = run_moved(flow)
    totals = [sum(number for number in range(index + 1) if number not in BAD) for index in range(PARTS)]
    assert [value if value is NOTHING else int(value[0]) for value in run.values] == [
        NOTHING if index in BAD else total for index, total in enumerate(totals)
    ]
    left_out = run.of_kind("left-out")
    assert [(fields["index"], fields["value"]) for fields in left_out] == [(index, None) for index in BAD]
    assert left_out[0]["detail"]["why"] == "ValueError: the number 3 is bad"
    assert sorted(fields["index"] for fields in run.of_kind("nothing")) == list(BAD)


def test_a_value_that_cannot_travel_is_left_out_and_a_long_reason_is_cut() -> None:
    odd, reasons = operator("fail_codes:Odd"), []
    for index in range(6):
        value = opened(odd.combine([np.array([index])], index))
        assert (value is NOTHING) == (index > 0)
        reasons.append(odd.left_out.why if odd.left_out else "")
    assert reasons[0] == reasons[5] == ""
    assert reasons[1].startswith("combine returned None; ")
    assert reasons[2].startswith("a value of type set does not travel")
    assert "holds Python objects" in reasons[3]
    assert reasons[4].startswith("KeyError: 'xxx")
    assert len(reasons[4]) < 500


def test_a_lack_of_memory_ends_the_run_even_with_on_error_skip() -> None:
    greedy = operator("fail_codes:Greedy")
    with pytest.raises(MemoryError):
        greedy.combine([np.array([1])], 2)
    run = Moved(graph("fail_codes:Greedy", {}, "skip", NUMBERS), PARTS, ALLOW, moves=0)
    assert run.failed == "node 'o' on host 'h1': MemoryError at partition 2: 2 TB"
    assert len(run.values) == 2


# --- dead letters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "params", "source"),
    [
        ("select", SELECT, FLAKY),
        ("window", COUNT, FLAKY),
        ("map", {"function": "fail_codes:halves"}, FLAKY),
        ("fail_codes:Total", {}, NUMBERS),
    ],
)
def test_dead_letters_come_once_on_real_hosts_while_their_operators_move(
    use: str, params: dict[str, Any], source: Code
) -> None:
    flow = graph(use, params, "dead-letter", source)
    allow = ("thalweg.operators", *ALLOW)
    with LocalCluster(2, allow=allow) as cluster, Client(cluster, allow=allow) as client:
        placement = {"o": "h1", "o.dead-letters": "h2"}
        came: dict[str, list[Any]] = {"t": [], "letters": []}
        with client.run(flow, placement, partitions=PARTS, nothing=True) as run:
            for count, delivered in enumerate(run):
                came[delivered.sink].append((delivered.index, delivered.value))
                if count == 4:
                    run.move({"o": "h2", "o.dead-letters": "h1"})
    for sink, values in came.items():
        assert [index for index, _ in values] == list(range(PARTS))
        assert [digest(value) for _, value in values] == [digest(value) for value in reference(flow, sink)]
    letters = rows_of([value for _, value in came["letters"]])
    assert [(row["node"], row["index"]) for row in letters] == [("o", index) for index in BAD for _ in range(
        4 if use == "map" else 1
    )]  # fmt: skip
    first = letters[0]
    if use == "fail_codes:Total":
        assert (first["input"], first["row"], first["reason"]) == (None, None, "ValueError: the number 3 is bad")
    else:
        bad = json.loads(letters[1 if use == "map" else 0]["row"])
        assert (first["input"], bad["k"], bad["by"], bad["v"]) == (0, "b", 0, 1)


def test_dead_letters_are_in_a_graph_once_and_by_name() -> None:
    flow = graph("select", SELECT, "dead-letter", FLAKY)
    node = flow.by_name["o.dead-letters"]
    assert node.inputs == flow.by_name["o"].inputs
    with pytest.raises(DataflowError, match=r"'o.dead-letters' is defined twice"):
        flow.dead_letters("o")
    for other in ("nobody", "t", "source@h1"):
        with pytest.raises(DataflowError, match=f"'{other}' is no operator with on_error='dead-letter'"):
            flow.dead_letters(other)


def test_a_graph_without_a_consumer_of_dead_letters_is_refused_before_the_run() -> None:
    flow = Dataflow()
    flow.sink("t", flow.operator(Code("select", SELECT), flow.source(FLAKY, at="h1"), name="o", on_error="dead-letter"))
    with LocalCluster(1) as cluster, Client(cluster) as client, pytest.raises(DataflowError) as caught:
        client.run(flow, "one-shot")
    assert "operator 'o' has on_error='dead-letter', and nothing takes its dead letters" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (Code(TOLERANT, {"use": "select", "params": SELECT, "how": "hope"}), "on_error='hope'; use skip or dead"),
        (tolerant(FLAKY, "skip"), "'fail_codes:Flaky' is a source; only operators have on_error"),
        (tolerant(Code("os:system"), "skip"), "does not allow code from 'os'"),
        (tolerant(Code("select", {"wher": 1}), "skip"), "'select' does not take"),
    ],
)
def test_code_that_cannot_be_made_tolerant_is_refused_when_loaded(code: Code, says: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)):
        load_code(code, ("thalweg.operators", *ALLOW))


def test_on_error_is_fail_skip_or_dead_letter_and_errors_name_the_wrapped_code() -> None:
    with pytest.raises(UsageError, match="on_error='ignore'; use fail, skip, dead-letter"):
        Dataflow().operator(Code("select", SELECT), "s", on_error="ignore")  # type: ignore[arg-type]
    code = Code("select", SELECT)
    assert tolerant(code, "fail") is code
    flow = Dataflow((Node("s", "source", (), FLAKY, "h1"),))
    flow.sink("t", flow.operator(Code("__main__:Mine"), "s", on_error="skip"))
    with LocalCluster(1) as cluster, Client(cluster) as client, pytest.raises(UsageError, match="__main__:Mine"):
        client.run(flow, "one-shot")


def test_a_tolerant_operator_has_the_state_and_the_hints_of_the_wrapped_operator() -> None:
    select, window, total = (
        operator("select", **SELECT, share=0.5),
        operator("window", **COUNT),
        operator("fail_codes:Total"),
    )
    assert [keeps_state(wrapper) for wrapper in (select, window, total)] == [False, True, True]
    assert select.output_size_bytes([10.0]) == 5.0
    assert window.on_nothing
    assert window.allows_missing
    assert window.state_version == window.inner.state_version == 2
    best = operator("top-k", by="v", k=1, running=True)
    assert not may_reorder(best), "in another tree another operator would fail"
    assert isinstance(best, Tolerant)


def test_late_rows_are_counted_once_although_a_tolerant_operator_moves() -> None:
    rows = [pa.table({"time": [9.0], "k": ["a"]}), pa.table({"time": [1.0], "k": ["a"]})]
    window = operator("window", **COUNT)
    for index, table in enumerate(rows):
        window.combine([table], index)
    moved = operator("window", **COUNT)
    moved.restore(window.snapshot())
    assert moved.late_rows == window.late_rows == 1


def test_the_example_of_the_page_on_records_gives_the_shown_dead_letter() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/records.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "loads_per_axle" in block)
    names: dict[str, Any] = {}
    exec(compile(block, "records.md", "exec"), names)
    trucks = [Code("fail_codes:Truck", {"number": number}) for number in range(1, 4)]
    came = list(names["loads_per_axle"](trucks, ["fail_codes"]))
    assert sum(len(rows) for sink, rows in came if sink == "good") == 6 * 3 - 1
    ((letter,),) = [rows for sink, rows in came if sink == "failed"]
    assert str(letter) in text


def test_hosts_log_rows_and_partitions_left_out_with_node_and_reason(capfd: pytest.CaptureFixture[str]) -> None:
    for use, params, source, line in (
        ("select", SELECT, FLAKY, "'o' leaves 1 row out of partition 3: divide by zero"),
        (
            "fail_codes:Total",
            {},
            NUMBERS,
            "'o' leaves out partition 3, and gives nothing there: ValueError: the",
        ),
    ):
        with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
            list(client.run(graph(use, params, "skip", source), {"o": "h1"}, partitions=4))
        assert f" WARNING h1: {line}" in capfd.readouterr().err


def test_dead_letters_come_once_when_a_host_is_lost() -> None:
    flow = Dataflow()
    flow.operator(Code("fail_codes:Total"), flow.source(NUMBERS, at="h1"), name="o", on_error="dead-letter")
    flow.sink("t", "o", flow.dead_letters("o"))
    with LocalCluster(3, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        placement = {"o": "h2", "o.dead-letters": "h2"}
        came = []
        with client.run(flow, placement, partitions=PARTS, nothing=True, failover=Failover()) as run:
            for delivered in run:
                came.append((delivered.index, delivered.value))
                if delivered.index == 6:
                    cluster.kill("h2")
    assert [index for index, _ in came] == list(range(PARTS))
    expected = [tuple(map(digest, value)) for value in reference(flow, "t")]
    assert [tuple(map(digest, value)) for _, value in came] == expected
    assert [index for index, (total, letter) in came if total is NOTHING and letter is not NOTHING] == list(BAD)
