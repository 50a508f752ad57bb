"""Operators over records compared with loops over all rows, while operators move, and states that are restored."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from flows import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from record_codes import Row, trips
from record_flows import ALLOW, joined, moved, records, rows_of, source
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree, left_deep_tree
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators.join import Join
from thalweg.operators.records import Project, Select, TopK
from thalweg.operators.reference import digest, reference_run
from thalweg.operators.windows import Window

MANY = {"n": "count", "total": ["speed", "sum"], "mean": ["speed", "mean"], "top": ["speed", "max"]}


def seconds(row: Row, name: str = "window_start") -> float:
    at = row[name]
    return float(at.timestamp()) if hasattr(at, "timestamp") else float(at)


def told(group: Sequence[Row]) -> tuple[float, ...]:
    """Return the aggregates ``MANY`` of a group of rows."""
    speeds = [row["speed"] for row in group]
    return len(group), pytest.approx(sum(speeds)), pytest.approx(sum(speeds) / len(speeds)), max(speeds)


# --- without memory -----------------------------------------------------------------------------------


def test_select_project_map_union_and_group_by_equal_a_loop_over_rows() -> None:
    stages = [
        records("Select", where=["and", [">", "speed", 30], ["in", "plate", ["p0", "p2"]]]),
        records("Project", columns={"plate": ["utf8_upper", "plate"], "half": ["/", "speed", 2.0], "one": 1}),
        records("Map", function="record_codes:doubled", params={"by": 3}),
        records("GroupBy", by="plate", aggregates={"n": "count", "least": ["half", "min"], "ones": ["one", "sum"]}),
    ]
    got = moved(Dataflow(chain(source(), *stages).nodes), 20)
    expected = []
    for index in range(20):
        rows = [row for row in trips(0, index) if row["speed"] > 30 and row["plate"] in ("p0", "p2")]
        for plate in sorted({row["plate"] for row in rows}):
            own = [row["speed"] / 2 for row in rows if row["plate"] == plate]
            expected.append({"plate": plate.upper(), "n": 3 * len(own), "least": min(own), "ones": 3 * len(own)})
    assert got == expected
    both = moved(joined(source(0), source(1), operator=records("Union")), 8)
    assert [row["speed"] for row in both] == [row["speed"] for i in range(8) for s in (0, 1) for row in trips(s, i)]


@pytest.mark.parametrize("running", [False, True])
def test_the_best_rows_are_the_same_in_any_tree(running: bool) -> None:
    code = records("TopK", by="speed", k=4, running=running)
    sources = {f"h{site + 1}": source(site) for site in range(3)}
    binary, deep = complete_binary_tree(sources, code), left_deep_tree(sources, code)
    got = moved(binary, 9)
    assert got == moved(deep, 9, seed=1)
    best: list[float] = []
    expected = []
    for index in range(9):
        here = [row["speed"] for site in range(3) for row in trips(site, index)]
        best = sorted([*best, *here] if running else here, reverse=True)[:4]
        expected += best if here else []
    assert [row["speed"] for row in got] == expected
    operators = [load_code(code) for _ in range(3)]
    for site, operator in enumerate(operators):
        operator.combine([pa.table({"speed": [float(site), 50.0 - site]})], 0)
    merged = [operators[0].merge([operator.snapshot() for operator in order]) for order in (operators, operators[::-1])]
    assert merged[0] == merged[1] == operators[0].merge([*merged, b""])


# --- windows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "every"), [("us", None), ("s", 5), ("float", 5)])
def test_windows_of_event_time_equal_a_loop_over_rows_and_late_rows_are_counted(unit: str, every: int | None) -> None:
    sites = [source(site, unit=unit, disorder_s=25.0, marks=False) for site in range(2)]
    window = records("Window", window_s=10, every=every, by="plate", aggregates=MANY, lateness_s=3)
    run = Moved(flow := joined(*sites, operator=window), 30, ALLOW)
    assert run.failed is None
    assert rows_of(run.values) == rows_of(reference_run(flow, 30, ("thalweg.operators", *ALLOW)))
    step, windows, late, passed, seen = every or 10, defaultdict(list), 0, -math.inf, [-math.inf] * 2
    order: list[float] = []
    for index in range(30):
        for site in range(2):
            for row in trips(site, index, 6, 25.0):
                begins = {row["time"] // step * step - back for back in range(0, 10, step)}
                late += max(begins) + 10 <= passed
                for start in begins:
                    if start + 10 > passed:
                        windows[start, row["plate"]].append(row)
            seen[site] = max([seen[site], *(row["time"] for row in trips(site, index, 6, 25.0))])
        passed = max(passed, min(seen) - 3)
        order += [key for key in sorted(windows) if key[0] + 10 <= passed and key not in order]
    got = rows_of(run.values)
    assert [(seconds(row), row["plate"]) for row in got] == order
    for row in got:
        assert (row["n"], row["total"], row["mean"], row["top"]) == told(windows[seconds(row), row["plate"]])
    assert late > 0
    assert sum(fields["value"] for fields in run.of_kind("late")) == late


def test_windows_of_a_number_of_rows_equal_a_loop_over_rows() -> None:
    flow = joined(
        source(0),
        source(1),
        operator=records("Window", window_rows=9, every=3, aggregates={"n": "count", "top": ["speed", "max"]}),
    )
    speeds = [row["speed"] for index in range(12) for site in (0, 1) for row in trips(site, index)]
    expected = [{"window_start": at, "n": 9, "top": max(speeds[at : at + 9])} for at in range(0, len(speeds) - 8, 3)]
    assert moved(flow, 12) == expected


def test_watermarks_pass_filters_and_the_end_of_a_stream_completes_the_windows() -> None:
    first = source(0, last=9)
    stages = [
        records("Select", where=[">", "speed", 98]),
        records("Window", window_s=6, aggregates={"n": "count"}),
        records("Window", window_s=30, time="window_start", aggregates={"n": ["n", "sum"]}),
    ]
    run = Moved(chain(first, *stages), 10, ALLOW, moves=4)
    fast = Counter(row["time"] // 30 * 30 for index in range(10) for row in trips(0, index) if row["speed"] > 98)
    assert {seconds(row): row["n"] for row in rows_of(run.values)} == fast
    assert fast
    ends = [index for index, value in enumerate(run.values) if value is not NOTHING]
    assert ends[0] == 4, "as soon as the time is over, also where no row passes the filter"


@pytest.mark.parametrize("how", ["inner", "left semi", "left anti"])
def test_joins_in_windows_of_event_time_equal_a_loop_over_rows(how: str) -> None:
    flow = joined(source(0, last=14), source(1, last=14), operator=records("Join", on="plate", window_s=4, how=how))
    got = moved(flow, 15)
    sides: list[defaultdict[tuple[int, str], list[Row]]] = [defaultdict(list), defaultdict(list)]
    for index in range(15):
        for site, side in enumerate(sides):
            for row in trips(site, index):
                side[row["time"] // 4 * 4, row["plate"]].append(row)
    expected = []
    for (start, plate), lefts in sides[0].items():
        rights = sides[1].get((start, plate), [])
        if how == "inner":
            expected += [(start, plate, a["speed"], b["speed"], b["time"]) for a in lefts for b in rights]
        elif bool(rights) == (how == "left semi"):
            expected += [(start, plate, a["speed"]) for a in lefts]
    names = ("plate", "speed", "speed_2") if how == "inner" else ("plate", "speed")
    keys = [(seconds(row), *(row[name] for name in names)) for row in got]
    if how == "inner":
        keys = [(*row, seconds(record, "time_2")) for row, record in zip(keys, got, strict=True)]
    assert sorted(keys) == sorted(expected)
    assert [row[0] for row in keys] == sorted(row[0] for row in keys)
    assert expected


def test_joins_of_three_inputs_by_count_equal_a_loop_over_rows() -> None:
    flow = joined(*[source(site) for site in range(3)], operator=records("Join", on=["plate"], window_rows=5))
    got = moved(flow, 10)
    sides = [[row for index in range(10) for row in trips(site, index)] for site in range(3)]
    expected = []
    for at in range(0, min(map(len, sides)) - 4, 5):
        first, second, third = (side[at : at + 5] for side in sides)
        for a in first:
            for b in second:
                expected += [
                    (at, a["speed"], b["speed"], c["speed"]) for c in third if a["plate"] == b["plate"] == c["plate"]
                ]
    assert [(row["window_start"], row["speed"], row["speed_2"], row["speed_3"]) for row in got] == expected


MAKES: list[Callable[[], Any]] = [
    lambda: Window({"n": "count", "mean": ["v", "mean"]}, "k", window_s=3, every=1, lateness_s=1),
    lambda: Window({"sum": ["v", "sum"]}, window_rows=4),
    lambda: Join("k", window_s=2),
    lambda: Join("k", window_rows=3),
    lambda: TopK("v", 3, running=True),
]
batches = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.floats(-1e6, 1e6)), max_size=5)


@pytest.mark.parametrize("make", MAKES)
@settings(max_examples=10)
@given(steps=st.lists(st.tuples(batches, batches, st.booleans()), max_size=6))
def test_a_restored_operator_gives_the_same_outputs_as_an_operator_that_stayed(
    make: Callable[[], Any], steps: Any
) -> None:
    stays, moves = make(), make()
    for index, (*sides, leaves) in enumerate(steps):
        inputs = [
            pa.table({"time": t, "k": k, "v": v}) if rows else NOTHING
            for rows in sides
            for t, k, v in [[*zip(*rows, strict=True)] or ((), (), ())]
        ]
        if leaves:
            state = moves.snapshot()
            assert state == moves.snapshot() == stays.snapshot()
            moves = make()
            moves.restore(state)
        stays.watermark_s = moves.watermark_s = None  # as the runtime does
        outputs = [operator.combine(inputs, index) for operator in (stays, moves)]
        assert digest(outputs[0]) == digest(outputs[1])
        assert stays.late_rows == moves.late_rows


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (records("Select", where=True, share=0.5), 15.0),
        (records("Union"), 30.0),
        (records("Join", window_s=5, on="k"), 30.0),
        (records("Join", window_s=5, on="k", how="left anti"), 10.0),
        (records("Window", window_s=5, aggregates=MANY, share=0.1), 3.0),
    ],
)
def test_record_operators_estimate_the_size_of_an_output(code: Code, size: float) -> None:
    assert load_code(code).output_size_bytes([10.0, 20.0]) == pytest.approx(size)


# --- what cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (records("Window", window_s=0, aggregates=MANY), "window: a window has 0 seconds; give seconds above 0"),
        (records("Window", window_rows=0, aggregates=MANY), "window: a window has 0 rows; give rows above 0"),
        (records("Window", window_rows=1.5, aggregates=MANY), "window: a window has 1.5 rows"),
        (records("Window", window_s=float("nan"), aggregates=MANY), "window: a window has nan seconds"),
        (records("Window", window_s=5, every=2, aggregates=MANY), "no multiple of its step of 2"),
        (records("Window", window_rows=5, every=2.5, aggregates=MANY), "a step has 2.5 rows"),
        (records("Window", aggregates=MANY), "give either window_s or window_rows"),
        (records("Window", window_s=5, aggregates={}), "aggregates={}; give at least one"),
        (records("Window", window_s=5, aggregates={"m": ["v", "median"]}), "one of count, sum, product"),
        (records("Window", window_s=5, aggregates=MANY, lateness_s=-1), "lateness_s=-1; give seconds, at least 0"),
        (records("Join", window_s=5, on=[]), "on is empty"),
        (records("Join", window_s=5, on="k", how="outer"), "how='outer'; use inner, left semi or left anti"),
        (records("Select", where=["gt", "v", 1]), "there is no function 'gt'; "),
        (records("Select", where={1: 2}), "is no expression; give a column"),
        (records("Select", where=True, share=2), "share=2; give the share of the rows that pass, 0 to 1"),
        (
            records("Window", window_s=5, aggregates=MANY, share=-1),
            "share=-1; give the share of the bytes that come out",
        ),
        (records("Project", columns=[]), "columns are empty"),
        (records("Project", columns=["a", "a"]), "names a column twice"),
        (records("Map", function="record_codes:trips"), "is no function of a table; define one there, under @as_map"),
        (records("Map", function="os:system"), "does not allow code from 'os'"),
        (records("TopK", by="v", k=0), "k=0; give a whole number of rows, at least 1"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused_in_one_line(code: Code, says: str) -> None:
    with pytest.raises(OperatorError) as caught:
        load_code(code, ("thalweg.operators", *ALLOW))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


TABLE = pa.table({"time": [1, 2], "v": [0.5, 1.5], "k": ["a", "b"]})


@pytest.mark.parametrize(
    ("operator", "inputs", "says"),
    [
        (Select([">", "w", 1]), [TABLE], "select: there is no column 'w'"),
        (Select("v"), [TABLE], "select: where gives double"),
        (
            Select([">", "k", 1]),
            [TABLE],
            "select: 'greater' of 'k' (string) and 1 (int64) cannot be computed",
        ),
        (Select([">", "v", 1]), [b"bytes"], "select: an input of partition 7 is bytes; give a source of records"),
        (Project(["v"]), [TABLE, TABLE.drop_columns(["k"])], "inputs differ in column 'k'"),
        (Window(MANY, window_s=1), [TABLE], "window: there is no column 'speed'"),
        (
            Window({"n": "count"}, window_s=1, time="k"),
            [TABLE],
            "column 'k' of input 0 is string; give times",
        ),
        (
            Window({"n": "count"}, window_s=0.5),
            [TABLE.slice(0, 0), TABLE],
            "column 'time' of input 1 is int64: a step of 0.5 s is not a step in s; choose",
        ),
        (
            Window({"n": "count"}, window_s=1),
            [pa.table({"time": [1, None]})],
            "column 'time' of input 0: 1 of 2 rows have no time",
        ),
        (Join("k", window_s=1), [TABLE], "1 inputs; give two or more"),
        (Join("k", window_s=1), [TABLE, TABLE.drop_columns(["k"])], "there is no column 'k'"),
    ],
)
def test_records_that_do_not_fit_are_refused_in_one_line(operator: Any, inputs: list[Any], says: str) -> None:
    with pytest.raises(OperatorError) as caught:
        operator.combine(inputs, 7)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [b"x", b"\xff\xff\xff\xff", b"\x02\0\0\0\x92\xc0"])
@pytest.mark.parametrize("make", MAKES)
def test_bytes_that_are_no_state_are_refused(make: Callable[[], Any], state: bytes) -> None:
    with pytest.raises(OperatorError, match="no state of this operator"):
        make().restore(state)


def test_the_registered_operator_names_can_be_imported() -> None:
    import tomllib
    from pathlib import Path

    points = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, target in points["thalweg.operators"].items():
        module, _, attribute = target.partition(":")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), name
