"""Schedules made of traces: what they carry, how far apart their changes are, and how they are followed."""

from __future__ import annotations

import os
import tempfile
from array import array
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation import supervisor_replay
from thalweg.emulation.replay import GAP_S, SHARE, ReplayHandle, schedule
from thalweg.emulation.shaping import RATE_FLOOR_BPS, Shape
from thalweg.emulation.supervisor_replay import Schedule, read_schedules
from thalweg.emulation.traces import BandwidthTrace
from thalweg.middleware.errors import UsageError


@st.composite
def traces(draw: st.DrawFn) -> BandwidthTrace:
    gaps = draw(st.lists(st.floats(0.01, 20), min_size=1, max_size=40))
    rates = draw(st.lists(st.floats(RATE_FLOOR_BPS, 1e8), min_size=len(gaps), max_size=len(gaps)))
    edges = np.concatenate(([0.0], np.cumsum(gaps)))
    return BandwidthTrace("t", edges[:-1], np.array(rates), float(edges[-1]))


@given(traces(), st.sampled_from([1.0, 7.0, 120.0]))
def test_a_schedule_carries_the_trace_and_never_hurries(trace: BandwidthTrace, time_scale: float) -> None:
    found = schedule(trace, time_scale, share=0.0)
    times = found.times_s.tolist()
    assert times[0] == 0.0
    period_s = trace.duration_s / time_scale
    assert all(later - earlier >= GAP_S * (1 - 1e-9) for earlier, later in pairwise(times))
    carried = float(np.dot(np.diff([*times, period_s]), found.rates_bps))
    assert carried == pytest.approx(trace.mean_bps * trace.duration_s, rel=1e-6)


@given(traces())
def test_small_changes_are_left_out_and_rates_stay_close(trace: BandwidthTrace) -> None:
    found = schedule(trace, gap_s=0.0)
    rates = found.rates_bps.tolist()
    assert all(abs(later - earlier) >= SHARE * earlier for earlier, later in pairwise(rates))
    for time_s, rate_bps in trace.steps(0.0, trace.duration_s):
        set_to = rates[int(np.searchsorted(found.times_s, time_s, side="right")) - 1]
        assert set_to == pytest.approx(rate_bps, rel=SHARE * 1.02)


def test_outages_become_the_floor_and_constants_have_no_period() -> None:
    trace = BandwidthTrace("t", np.array([0.0, 1.0, 2.0]), np.array([1e6, 0.0, 2e6]), 3.0)
    assert schedule(trace).rates_bps.tolist() == [1e6, RATE_FLOOR_BPS, 2e6]
    assert schedule(trace).period_s == 3.0
    assert schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6]))).period_s == 0.0


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_scale_must_be_above_zero(time_scale: float) -> None:
    with pytest.raises(UsageError, match="time scale"):
        schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6])), time_scale)


def test_schedules_survive_their_journey() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(array("d", [0.0, 1.5, 1e6, 2e6, 0.0, 3e6]).tobytes())
        file.flush()
        heads = [
            {"source": "a", "target": "b", "steps": 2, "period_s": 4.0},
            {"source": "b", "target": "a", "steps": 1, "period_s": 0.0},
        ]
        one, other = read_schedules(os.dup(file.fileno()), heads)
    assert (one.link, other.link) == (("a", "b"), ("b", "a"))
    assert [(one.due_s(step), one.rate_bps(step)) for step in range(4)] == [(0, 1e6), (1.5, 2e6), (4, 1e6), (5.5, 2e6)]


def test_a_player_catches_up_in_one_batch_and_counts_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(supervisor_replay.time, "monotonic", lambda: clock[0])
    batches: list[list[tuple[str, str, float]]] = []

    def shape(shapes) -> int:  # type: ignore[no-untyped-def]
        batches.append([(source, target, one.rate_bps) for source, target, one in shapes])
        return len(batches[-1])

    world = SimpleNamespace(
        links=dict.fromkeys([("a", "b"), ("b", "a")], SimpleNamespace(shape=Shape(1.0))), shape=shape
    )
    plans = [
        Schedule(("a", "b"), array("d", [0, 1, 2]), array("d", [10, 11, 12]), 4.0),
        Schedule(("b", "a"), array("d", [0, 1]), array("d", [20, 21]), 3.0),
    ]
    player = supervisor_replay.Player(world, plans)  # type: ignore[arg-type]
    assert player.start() == 100.0
    assert batches == [[("a", "b", 10), ("b", "a", 20)]]
    assert player.next_due_s() == 101.0
    clock[0] = 101.0
    player.advance()
    assert sorted(batches[-1]) == [("a", "b", 11), ("b", "a", 21)]
    clock[0] = 104.5  # a→b was due at 102 and, in the next lap, 104; b→a at 103 and 104
    player.advance()
    assert sorted(batches[-1]) == [("a", "b", 10), ("b", "a", 21)]
    assert player.statistics() == {"t0_s": 100.0, "steps": 4, "lag_p50_s": 0.5, "lag_p99_s": 0.5, "lag_max_s": 0.5}
    player.stop()
    assert player.next_due_s() is None
    clock[0] = 200.0
    assert player.start() == 200.0
    assert batches[-1] == [("a", "b", 10), ("b", "a", 20)]


def test_scaled_links_keep_their_factor_through_steps_and_laps_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(supervisor_replay.time, "monotonic", lambda: clock[0])
    rates: dict[tuple[str, str], float] = {}

    def shape(shapes) -> int:  # type: ignore[no-untyped-def]
        found = [((source, target), one.rate_bps) for source, target, one in shapes]
        rates.update(found)
        return len(found)

    links = [("a", "b"), ("b", "a"), ("a", "c")]
    world = SimpleNamespace(links=dict.fromkeys(links, SimpleNamespace(shape=Shape(1.0))), shape=shape)
    plans = [
        Schedule(("a", "b"), array("d", [0, 2]), array("d", [10, 20]), 4.0),
        Schedule(("b", "a"), array("d", [0]), array("d", [30]), 0.0),
        Schedule(("a", "c"), array("d", [0]), array("d", [50]), 0.0),
    ]
    player = supervisor_replay.Player(world, plans)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not replayed"):
        player.scale([("a", "b"), ("c", "a")], supervisor_replay.Scaling(0.5, 0.0), 1.0)
    player.scale(links[:2], supervisor_replay.Scaling(0.1, 0.0), 3.0)
    player.scale(links[:2], supervisor_replay.UNSCALED, 9.0)
    for _ in range(2):  # every start begins unscaled
        t0 = player.start()
        seen = []
        for at_s in (0.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 10.0):
            clock[0] = t0 + at_s
            player.advance()
            seen.append([rates[link] for link in links])
        assert seen == [
            [10, 30, 50], [20, 30, 50], [2, 3, 50], [1, 3, 50], [2, 3, 50], [1, 3, 50], [10, 30, 50], [20, 30, 50],
        ]  # fmt: skip
        assert player.next_due_s() == t0 + 12.0
    clock[0] += 100.0  # long behind: the latest step, and the last factor
    player.start()
    clock[0] += 6.5
    player.advance()
    assert [rates[link] for link in links] == [2, 3, 50]


def test_a_scaled_rate_stops_at_its_floor_and_one_below_it_stays() -> None:
    scaling = supervisor_replay.Scaling(0.1, 50.0)
    assert [scaling.of(rate) for rate in (1000.0, 500.0, 200.0, 50.0, 20.0)] == [100.0, 50.0, 50.0, 50.0, 20.0]
    assert supervisor_replay.UNSCALED.of(7.0) == 7.0


class Calls:
    """Stands in for a supervisor."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, object]]] = []

    def call(self, op: str, descriptors: tuple[int, ...] = (), **given: object) -> dict[str, object]:
        self.made.append((op, given))
        return {}


def test_a_scaling_is_told_in_wall_time_and_checked() -> None:
    calls = Calls()
    known = {("a", "b"): schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6])))}
    handle = ReplayHandle(calls, known, 120.0, None)  # type: ignore[arg-type]
    handle.scale([("a", "b")], 0.1, 300.0, 1e4)
    told = {"links": [["a", "b"]], "factor": 0.1, "floor_bps": 1.2e6, "from_s": 2.5}
    assert calls.made[-1] == ("replay_scale", told)
    for links, factor, from_s, says in [
        ([("b", "a")], 0.1, 0.0, "b → a is not replayed"),
        ([("a", "b")], 0.0, 0.0, "factor"),
        ([("a", "b")], float("nan"), 0.0, "factor"),
        ([("a", "b")], 0.5, -1.0, "at least 0"),
    ]:
        with pytest.raises(UsageError, match=says):
            handle.scale(links, factor, from_s)
    assert len(calls.made) == 2


@given(traces(), st.sampled_from([1.0, 7.0, 120.0]))
def test_what_is_emulated_is_told_in_emulated_time(trace: BandwidthTrace, time_scale: float) -> None:
    found = schedule(trace, time_scale)
    handle = ReplayHandle(Calls(), {("a", "b"): found}, time_scale, None)  # type: ignore[arg-type]
    told = handle.emulated()["a", "b"]
    for at_s, rate_bps in zip(found.times_s.tolist(), found.rates_bps.tolist(), strict=True):
        assert told.rate_at((at_s + 1e-6) * time_scale) * time_scale == pytest.approx(rate_bps)
    if len(found.times_s) > 1:
        assert told.duration_s == pytest.approx(trace.duration_s)
