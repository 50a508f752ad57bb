from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.records.aggregates import aggregate
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.moves import BIN_S, BINS, SPAN_S, Errors, Spread, around_moves, read_moves
from thalweg.middleware.errors import UsageError

WALL = 1_750_000_000.0  # Unix time


def moved_twice(run: Any) -> Any:
    """Add two moves and a stay with figures that are easy to calculate.

    A delivery comes every half second of wall time, except for one.
    """
    run.placements = ["global", "one-shot"]
    run.deliver("global", [(5.0 * i, i) for i in range(21) if i != 11])
    run.move("global", "op0", "h1", "h2", 50.0, version=1, pause=4.0, size_bytes=1000, reason="h1 is slow")
    run.move("global", "op0", "h2", "h3", 95.0, version=2, pause=8.0, size_bytes=500, protocol="epoch")
    run.stay("global", "op1", "h1", "h9", 60.0, "h9 does not answer", version=1)
    return run


def test_the_summary_has_the_figures_of_moves_plans_and_the_monitor(new_run: Any) -> None:
    run = moved_twice(new_run(images=21, time_scale=10.0))
    run.add(80.0, "h9", "arrived", "global", node="op0", peer="h8", detail={"version": 7, "ago": {"state_in": 1.0}})
    for outcome in ("committed", "committed", "superseded"):
        run.add(50.0, "client", "proposal", "global", detail={"outcome": outcome})
    for took, decision in ((0.5, "propose"), (2.5, "stay"), (1.0, "stay")):
        run.add(50.0, "client", "plan", "global", duration_s=took, detail={"decision": decision})
    run.add(50.0, "h1", "epoch", "global", node="op0", detail={"decision": "move"})
    for host, sent in (("h1", 300_000), ("h2", 100_000)):
        detail = {"news_bytes": 1000, "probe_bytes": 500, "bytes_sent": sent}
        run.add(99.0, host, "monitor", "global", detail=detail)
    summary = summarize_run(run.write())
    moved, still = summary.placements["global"], summary.placements["one-shot"]
    assert (moved.relocations, moved.stayed, moved.state_bytes) == (2, 1, 1500)
    assert (moved.pause_p50_s, moved.pause_max_s) == (6.0, 8.0)
    assert moved.pause_p99_s == pytest.approx(7.96)
    assert moved.protocols == {"barrier": 1, "epoch": 1}
    assert moved.proposals == {"committed": 2, "aborted": 0, "superseded": 1}
    assert msgspec.to_builtins(moved.phases) == {
        "suspended": {"count": 2, "p50_s": 1.0, "p99_s": 1.0},
        "state_out": {"count": 2, "p50_s": 1.5, "p99_s": pytest.approx(1.99)},
        "state_in": {"count": 2, "p50_s": 1.5, "p99_s": pytest.approx(1.99)},
        "resumed": {"count": 2, "p50_s": 1.5, "p99_s": pytest.approx(1.99)},
        "first_output": {"count": 2, "p50_s": 2.0, "p99_s": 2.0},
    }
    timeline = moved.timeline_wall
    assert timeline is not None
    assert (timeline.bin_s, timeline.offset_s[0], timeline.offset_s[-1], timeline.moves) == (0.25, -2.0, 1.75, 2)
    # the second move is half a wall second before the last delivery, so what is later is told by the first alone
    assert timeline.deliveries_per_s == [4.0, 0.0] * 5 + [0.0, 0.0, 4.0, 0.0, 4.0, 0.0]
    assert (moved.plans.count, moved.plans.median_duration_s) == (4, 1.0)
    assert moved.plans.decisions == {"propose": 1, "move": 1, "stay": 2}
    assert msgspec.to_builtins(moved.monitor) == {
        "news_bytes": 2000, "probe_bytes": 1000, "bytes_sent": 400_000, "news_share": 0.005, "probe_share": 0.0025,
    }  # fmt: skip
    assert (still.relocations, still.phases, still.timeline_wall, still.monitor) == (0, {}, None, None)
    together = aggregate([summary, summary])["global"]
    assert (together.relocations, together.stayed) == (4, 2)


def test_phases_at_a_new_host_without_records_are_not_counted(new_run: Any) -> None:
    run = moved_twice(new_run(images=21, time_scale=10.0))
    del run.lines["h3"]
    run.lines["h2"] = [line for line in run.lines["h2"] if '"arrived"' not in line]
    phases = summarize_run(run.write()).placements["global"].phases
    assert [phases[name].count for name in ("suspended", "state_out")] == [2, 2]
    assert phases["state_in"] == phases["first_output"] == Spread(0, None, None)


def test_hand_overs_are_read_in_order_of_time(new_run: Any) -> None:
    moves = read_moves(moved_twice(new_run(images=21, time_scale=10.0)).write())
    rows = [(move.node, move.source, move.target, move.at_s, move.outcome, move.protocol) for move in moves]
    assert rows == [
        ("op0", "h1", "h2", 50.0, "moved", "barrier"),
        ("op1", "h1", "h9", 60.0, "stayed", "epoch"),
        ("op0", "h2", "h3", 95.0, "moved", "epoch"),
    ]
    first = json.loads(msgspec.json.encode(moves[0]))
    assert (first["from"], first["to"], first["reason"], first["pause_s"]) == ("h1", "h2", "h1 is slow", 4.0)
    assert (moves[1].pause_s, moves[1].why, moves[1].moved) == (None, "h9 does not answer", False)


def test_the_error_of_an_estimate_is_relative_to_the_true_rate(new_run: Any) -> None:
    run = new_run(images=1)
    run.placements = ["global"]
    for rate, truth, how in (
        (110.0, 100.0, "passive"), (80.0, 100.0, "passive"), (150.0, 100.0, "probe"), (130.0, 100.0, None),
        (99.0, None, "passive"), (99.0, 0.0, "passive"),
    ):  # fmt: skip
        run.estimate(1.0, "h1", "h2", rate, truth, how)
    run.lines["h1"][-3] = run.lines["h1"][-3].replace('"placement": "global", ', "")  # probed before any placement
    estimates = summarize_run(run.write()).estimates
    assert (estimates.count, estimates.median_error) == (4, pytest.approx(0.25))
    assert estimates.p95_error == pytest.approx(0.47)  # of 0.1, 0.2, 0.3, 0.5
    assert (estimates.passive.count, estimates.passive.median_error) == (2, pytest.approx(0.15))
    assert (estimates.probe.count, estimates.probe.median_error) == (2, pytest.approx(0.4))


@given(
    st.lists(st.floats(0, 20), max_size=8),
    st.lists(st.floats(0, 20), max_size=60),
)
def test_the_timeline_counts_deliveries_around_moves_in_bins(moves: list[float], deliveries: list[float]) -> None:
    """Compare with the definition, move by move and bin by bin."""
    suspended, came = WALL + np.array(moves), WALL + np.array(deliveries)
    timeline = around_moves(suspended, came)
    expected: list[float | None] = []
    for i in range(BINS):
        counts = []
        for at in suspended:
            begin, end = at + (i * BIN_S - SPAN_S), at + ((i + 1) * BIN_S - SPAN_S)
            if came.size and begin >= came.min() and end <= came.max():
                counts.append(np.count_nonzero(np.floor((came - at + SPAN_S) / BIN_S) == i))
        expected.append(sum(counts) / BIN_S / len(counts) if counts else None)
    if all(rate is None for rate in expected):
        assert timeline is None
    else:
        assert timeline is not None
        assert timeline.deliveries_per_s == pytest.approx(expected)


def test_a_damaged_detail_is_reported_in_a_single_line(new_run: Any) -> None:
    run = new_run(images=1)
    run.placements = ["global"]
    run.add(1.0, "h1", "relocated", "global", detail={"version": "three"})
    with pytest.raises(UsageError, match="a record 'relocated' is damaged") as error:
        summarize_run(run.write())
    assert "\n" not in str(error.value)


def test_a_run_without_estimates_has_no_estimation_errors(new_run: Any) -> None:
    run = new_run(images=1)
    run.deliver("one-shot", [(1.0, 0)])
    assert summarize_run(run.write()).estimates.passive == Errors(0, None, None)
