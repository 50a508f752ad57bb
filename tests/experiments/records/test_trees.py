"""Trees that change: as one line, in the records, and as operators over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from thalweg.experiments.records.aggregates import RunsSummary
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.moves import TreeChange, read_changes
from thalweg.experiments.records.records import load_run
from thalweg.experiments.records.trees import as_line, ended_as, rows_as_line
from thalweg.experiments.views.plots import RunSeries, plot_run
from thalweg.experiments.views.style import INK
from thalweg.experiments.views.tables import print_runs
from thalweg.experiments.views.timelines import Course, host_colours, lives
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree, star_tree

HOSTS = ("h1", "h2", "h3", "h4")
START = {f"source@{host}": host for host in HOSTS} | {"op0": "h1", "op1": "h3", "op2": "client", "sink": "client"}
BEFORE = [
    ["op0", ["source@h1", "source@h2"], "h1"],
    ["op1", ["source@h3", "source@h4"], "h3"],
    ["op2", ["op0", "op1"], "client"],
    ["sink", ["op2"], "client"],
]
AFTER = [
    ["op0", ["source@h1", "source@h2"], "h1"],
    ["op1~1", ["op0", "source@h3"], "h2"],
    ["op2~1", ["op1~1", "source@h4"], "h4"],
    ["sink", ["op2~1"], "client"],
]


def change(at_s: float, tree: list[list[Any]], outcome: str = "reshaped", pause_s: float = 2.0) -> TreeChange:
    rows = tuple((name, inputs, host) for name, inputs, host in tree)
    return TreeChange("thalweg", at_s, at_s - pause_s, pause_s, outcome, "a better plan", "", rows)


def reshaped_run(new_run: Any) -> Path:
    """Write a run whose tree changes at 40 s and at 80 s under thalweg. A change at 60 s does not happen."""
    run = new_run(images=20)
    run.flow("global", 6.0, link_rows=16)
    run.flow("thalweg", 5.0, link_rows=16, places=START)
    ago = {"proposed": 11.0, "committed": 10.0, "retiring": 2.0, "first": 0.0}
    for at_s, outcome, trees, pause_s in (
        (40.0, "reshaped", (BEFORE, AFTER), 2.0),
        (60.0, "stayed", (AFTER, BEFORE), None),
        (80.0, "reshaped", (AFTER, BEFORE), 4.0),
    ):
        why = "" if outcome == "reshaped" else "no vote of h4"
        detail = {"outcome": outcome, "reason": "a better plan", "why": why, "before": trees[0], "after": trees[1]}
        more = {} if pause_s is None else {"duration_s": pause_s, "index": int(at_s) // 5}
        run.add(at_s, "client", "reshaped", "thalweg", detail=detail | {"ago": ago if more else {}}, **more)
    return run.write()


def test_a_placed_tree_is_written_as_a_single_line() -> None:
    flow = complete_binary_tree(dict.fromkeys(HOSTS, Code("any")), Code("any"))
    assert as_line(flow, START) == "client(h1(h2) h3(h4))"
    assert as_line(flow, {**START, "op0": "client"}) == "client(h1 h2 h3(h4))"
    assert as_line(flow, {**START, "op2": "h1"}) == "client(h1(h2 h3(h4)))"
    assert as_line(flow, {**START, "op2": "h3", "op1": "h1"}) == "client(h3(h1(h2) h1(h3 h4)))"  # two results of h1
    graph = Dataflow((*flow.nodes, Node("more", "sink", ("op0",))))
    assert as_line(graph, {**START, "more": "client"}) == "h2 > h1; h4 > h3; h1 > client; h3 > client"
    assert rows_as_line(change(1.0, AFTER).tree) == "client(h4(h2(h1(h2) h3)))"
    assert ended_as(flow, flow, START) == {"placement": {"op0": "h1", "op1": "h3", "op2": "client"}}
    star = star_tree(dict.fromkeys(HOSTS, Code("any")), Code("any"))
    assert ended_as(flow, star, START) == {"placement": {"op0": "h1"}, "tree": "client(h1(h2 h3 h4))"}


def test_new_operators_take_the_rows_of_operators_that_disappear() -> None:
    changes = [change(40.0, AFTER), change(60.0, BEFORE, "stayed"), change(80.0, BEFORE, pause_s=4.0)]
    lives_found = [
        (life.node, life.host, life.born_s, life.died_s, life.row)
        for life in lives(Course("thalweg", START, [], 100.0, [], changes=changes))
    ]
    assert lives_found == [
        ("op0", "h1", 0.0, 100.0, 0),
        ("op1", "h3", 0.0, 38.0, 1),
        ("op2", "client", 0.0, 38.0, 2),
        ("op1~1", "h2", 40.0, 76.0, 1),
        ("op2~1", "h4", 40.0, 76.0, 2),
        ("op1", "h3", 80.0, 100.0, 1),
        ("op2", "client", 80.0, 100.0, 2),
    ]


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=8))
def test_no_two_operators_share_a_row_at_a_time(trees: list[set[int]]) -> None:
    changes = [
        change(10.0 * number, [*([f"op{operator}", [], "h1"] for operator in sorted(tree)), ["sink", [], "client"]])
        for number, tree in enumerate(trees[1:], 1)
    ]
    start = {f"op{operator}": "h1" for operator in trees[0]}
    lives_found = lives(Course("thalweg", start, [], 100.0, [], changes=changes))
    for number, tree in enumerate(trees):
        at_s = 10.0 * number + 1.0
        alive = [life for life in lives_found if life.born_s <= at_s < life.died_s]
        assert sorted(life.node for life in alive) == sorted(f"op{operator}" for operator in tree)
        assert len({life.row for life in alive}) == len(alive)
    assert max(life.row for life in lives_found) < max(map(len, trees))


def test_changes_of_the_tree_are_read_counted_listed_and_drawn(
    new_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reshaped_run(new_run)
    assert [(change.at_s, change.drained_s, change.outcome) for change in read_changes(folder)] == [
        (40.0, 38.0, "reshaped"), (60.0, 60.0, "stayed"), (80.0, 76.0, "reshaped"),
    ]  # fmt: skip
    summary = summarize_run(folder)
    placement = summary.placements["thalweg"]
    assert (placement.reshapes, placement.unshaped, placement.reshape_pause_p50_s, placement.reshape_pause_max_s) == (
        2,
        1,
        3.0,
        4.0,
    )
    assert (summary.placements["global"].reshapes, summary.placements["global"].reshape_pause_p50_s) == (0, None)
    print_runs(RunsSummary([summary]))
    text = capsys.readouterr().out
    assert "changes of the tree" in text and "client(h1(h2) h3(h4))" in text and "stayed: no vote of h4" in text
    info = load_run(folder)
    series = RunSeries(folder, info)
    assert [change.at_s for change in series.courses["thalweg"].changes] == [40.0, 60.0, 80.0]
    (picture,) = (path for path in plot_run(folder, info) if path.name == "moves.png")
    with Image.open(picture) as image:
        colours = {"#{:02X}{:02X}{:02X}".format(*pixel) for _, pixel in image.convert("RGB").getcolors(1 << 24)}
    assert INK in colours
    assert len(colours & set(host_colours([], HOSTS).values())) >= 3
