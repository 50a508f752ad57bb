"""Schedules made of traces: the bits that they carry, the gaps between changes, and the player."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.effects import NEUTRAL, Effect, LinkChange
from thalweg.emulation.links.shape import RATE_FLOOR_BPS, LinkShape
from thalweg.emulation.server.supervisor import LONGEST_S, due_in_s
from thalweg.emulation.supervisor import player as players
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.player import Lags, Player, Schedule
from thalweg.emulation.testbeds.replay import GAP_S, SHARE, ReplayHandle, check_changes, schedule
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError


@st.composite
def traces(draw: st.DrawFn) -> BandwidthTrace:
    gaps = draw(st.lists(st.floats(0.01, 20), min_size=1, max_size=40))
    rates = draw(st.lists(st.floats(RATE_FLOOR_BPS, 1e8), min_size=len(gaps), max_size=len(gaps)))
    edges = np.concatenate(([0.0], np.cumsum(gaps)))
    return BandwidthTrace("t", edges[:-1], np.array(rates), float(edges[-1]))


@given(traces(), st.sampled_from([1.0, 7.0, 120.0]))
def test_a_schedule_carries_the_bits_of_the_trace_and_keeps_a_gap_between_changes(
    trace: BandwidthTrace, time_scale: float
) -> None:
    plan = schedule(trace, time_scale, share=0.0)
    times = plan.times_s.tolist()
    assert times[0] == 0.0
    period_s = trace.duration_s / time_scale
    assert all(later - earlier >= GAP_S * (1 - 1e-9) for earlier, later in pairwise(times))
    carried = float(np.dot(np.diff([*times, period_s]), plan.rates_bps))
    assert carried == pytest.approx(trace.mean_bps * trace.duration_s, rel=1e-6)


@given(traces())
def test_small_changes_are_left_out_and_rates_stay_close(trace: BandwidthTrace) -> None:
    plan = schedule(trace, gap_s=0.0)
    rates = plan.rates_bps.tolist()
    assert all(abs(later - earlier) >= SHARE * earlier for earlier, later in pairwise(rates))
    for time_s, rate_bps in trace.steps():
        set_to = rates[int(np.searchsorted(plan.times_s, time_s, side="right")) - 1]
        assert set_to == pytest.approx(rate_bps, rel=SHARE * 1.02)


def test_an_outage_is_a_single_step_and_a_constant_trace_has_no_period() -> None:
    trace = BandwidthTrace("t", np.arange(5.0), np.array([1e6, 0.0, 0.0, 3e3, 2e6]), 5.0)
    assert schedule(trace).rates_bps.tolist() == [1e6, 0.0, 3e3, 2e6]
    assert schedule(trace).period_s == 5.0
    assert schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6]))).period_s == 0.0


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_scale_must_be_above_zero(time_scale: float) -> None:
    with pytest.raises(UsageError, match="time scale"):
        schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6])), time_scale)


def floats(*values: float) -> bytes:
    return array("d", values).tobytes()


def test_a_schedule_starts_over_after_its_period() -> None:
    plan = Schedule(("a", "b"), floats(0.0, 1.5), floats(1e6, 2e6), 4.0)
    assert [(plan.due_s(step), plan.rate_bps(step)) for step in range(4)] == [
        (0, 1e6),
        (1.5, 2e6),
        (4, 1e6),
        (5.5, 2e6),
    ]


def test_a_late_player_catches_up_in_a_single_batch_and_counts_the_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(players.time, "monotonic", lambda: clock[0])
    world = World(("a", "b"), ("b", "a"))
    plans = [
        Schedule(("a", "b"), floats(0, 1, 2), floats(10, 11, 12), 4.0),
        Schedule(("b", "a"), floats(0, 1), floats(20, 21), 3.0),
    ]
    player = players.Player(world, plans)  # type: ignore[arg-type]
    assert player.start() == 100.0
    assert world.batches == [LINKS[:2]]
    assert world.rates == [10, 20]
    assert player.next_due_s() == 101.0
    clock[0] = 101.0
    player.advance()
    assert sorted(world.batches[-1]) == LINKS[:2]
    assert world.rates == [11, 21]
    clock[0] = 104.5  # a→b was due at 102 and, in the next lap, 104; b→a at 103 and 104
    player.advance()
    assert (len(world.batches), world.rates) == (3, [10, 21])
    expected = {"t0_s": 100.0, "steps": 4, "lag_p50_s": 0.5, "lag_p99_s": 0.5, "lag_max_s": 0.5}
    assert player.statistics() == pytest.approx(expected, rel=0.03)
    player.stop()
    assert player.next_due_s() is None
    clock[0] = 200.0
    assert player.start() == 200.0
    assert world.rates == [10, 20]


class World:
    """Stand-in for a world that keeps the shapes and the order of the batches."""

    def __init__(self, *links: tuple[str, ...]) -> None:
        own = LinkShape(1.0, 0.02)
        self.links: dict[tuple[str, ...], Any] = {link: SimpleNamespace(shape=own, base=own) for link in links}
        self.batches: list[list[tuple[str, ...]]] = []

    def shape(self, shapes: Iterable[tuple[tuple[str, ...], LinkShape]], *, replayed: bool = False) -> None:
        batch = list(shapes)
        for link, shape in batch:
            self.links[link].shape = shape
            if not replayed:
                self.links[link].base = shape
        self.batches.append([link for link, _ in batch])

    @property
    def rates(self) -> list[float]:
        return [state.shape.rate_bps for state in self.links.values()]


LINKS = [("a", "b"), ("b", "a"), ("a", "c")]
PLANS = [
    Schedule(("a", "b"), floats(0, 2), floats(10, 20), 4.0),
    Schedule(("b", "a"), floats(0), floats(30), 0.0),
    Schedule(("a", "c"), floats(0), floats(50), 0.0),
]


def playing(monkeypatch: pytest.MonkeyPatch) -> tuple[Player, World, list[float]]:
    clock = [100.0]
    monkeypatch.setattr(players.time, "monotonic", lambda: clock[0])
    world = World(*LINKS)
    return Player(world, PLANS), world, clock  # type: ignore[arg-type]


def test_scaled_links_keep_a_factor_through_steps_and_laps_until_the_next_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    player, world, clock = playing(monkeypatch)
    with pytest.raises(ValueError, match="no schedule 3"):
        player.change([(1.0, 0, Effect(0.5)), (1.0, 3, Effect(0.5))])
    player.change([(3.0, 0, Effect(0.1)), (3.0, 1, Effect(0.1))])
    player.change([(9.0, 0, NEUTRAL), (9.0, 1, NEUTRAL)])
    for _ in range(2):  # every start begins unscaled
        t0 = player.start()
        seen = []
        for at_s in (0.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 10.0):
            clock[0] = t0 + at_s
            player.advance()
            seen.append(world.rates)
        assert seen == [
            [10, 30, 50], [20, 30, 50], [2, 3, 50], [1, 3, 50], [2, 3, 50], [1, 3, 50], [10, 30, 50], [20, 30, 50],
        ]  # fmt: skip
        assert player.next_due_s() == t0 + 12.0
    clock[0] += 100.0  # long behind: the latest step, and the last factor
    player.start()
    clock[0] += 6.5
    player.advance()
    assert world.rates == [2, 3, 50]


def test_an_effect_changes_all_figures_of_a_shape_and_a_neutral_effect_restores_the_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    player, world, clock = playing(monkeypatch)
    slow = Effect(factor=0.5, rate_bps=8.0, delay_s=0.3, loss=0.1, distribution="normal")
    player.change([(5.0, 0, NEUTRAL), (0.0, 0, slow), (1.0, 1, Effect(cut=True)), (1.0, 0, Effect(cut=True))])
    t0 = player.start()
    first = world.links["a", "b"]
    assert first.shape == LinkShape(4.0, 0.3, 0.0, 0.1, "normal")  # what holds from 0 on is set before anything runs
    clock[0] = t0 + 1.0
    player.advance()
    assert world.batches[-1] == LINKS[:2]  # one batch
    assert [state.shape.cut for state in world.links.values()] == [True, True, False]
    assert first.shape == LinkShape(10.0, 0.02, cut=True)  # an effect replaces the one before it
    player.stop()
    player.start()
    assert [state.shape.cut for state in world.links.values()] == [False, False, False]
    clock[0] = t0 + 6.5
    player.advance()
    assert first.shape == LinkShape(10.0, 0.02)
    world.shape([(("a", "b"), LinkShape(1.0, 0.07))])  # by somebody else: this is what is changed from now on
    player.start()
    assert first.shape == slow.shape(LinkShape(1.0, 0.07), 10.0) == LinkShape(4.0, 0.3, 0.0, 0.1, "normal")
    clock[0] += 5.0
    player.advance()
    assert first.shape.delay_s == 0.07


def test_lifting_a_player_removes_the_effects_and_keeps_shapes_that_were_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    player, world, clock = playing(monkeypatch)
    everything = [(0.0, number, Effect(0.5, cut=True, delay_s=0.3)) for number in range(3)]
    player.change(everything)
    clock[0] = player.start() + 2.0
    player.advance()
    assert all(state.shape.cut and state.shape.delay_s == 0.3 for state in world.links.values())
    world.shape([(("a", "c"), LinkShape(7.0, 0.3, cut=True))])  # asked for by somebody since: that stays
    player.lift()
    assert not player.running
    assert [world.links[link].shape for link in LINKS] == [
        LinkShape(20.0, 0.02), LinkShape(30.0, 0.02), LinkShape(7.0, 0.3, cut=True),
    ]  # fmt: skip
    with pytest.raises(KeyError):
        Player(world, [Schedule(("a", "x"), floats(0), floats(1), 0.0)])  # type: ignore[arg-type]


def test_a_player_lists_every_shape_that_planned_changes_can_produce(monkeypatch: pytest.MonkeyPatch) -> None:
    player, _, _ = playing(monkeypatch)
    assert not player.delays
    player.change([(1.0, 0, Effect(2.0)), (2.0, 0, Effect(2.0)), (3.0, 1, Effect(delay_s=0.0))])
    assert not player.delays
    assert set(player.shapes([(1.0, 2, Effect(duplicate=0.1))])) == {
        *((("a", "b"), LinkShape(rate, 0.02)) for rate in (20.0, 40.0)),
        *((("b", "a"), LinkShape(30.0, delay)) for delay in (0.02, 0.0)),
        *((("a", "c"), LinkShape(50.0, 0.02, duplicate=share)) for share in (0.0, 0.1)),
    }
    player.change([(5.0, 0, Effect(delay_s=0.1))])
    assert player.delays


@given(st.lists(st.floats(0, 1e4), max_size=200))
def test_lag_quantiles_are_reported_within_three_percent(lags_s: list[float]) -> None:
    lags = Lags()
    for lag_s in lags_s:
        lags.add(lag_s)
    ranked = sorted(lags_s) or [0.0]
    assert lags.max_s == ranked[-1]
    for share in (0.5, 0.99):
        true = ranked[min(len(ranked) - 1, int(len(ranked) * share))]
        assert lags.at(share) == pytest.approx(true, rel=0.03, abs=Lags.LEAST_S)


def test_the_wait_for_an_event_weeks_away_is_capped() -> None:
    assert due_in_s(1e15, None) == LONGEST_S
    assert due_in_s(None, float("inf")) is None


def test_the_change_added_last_wins_among_changes_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    player, world, clock = playing(monkeypatch)
    player.change([(2.5, 2, Effect(0.5)), (0.0, 1, Effect(0.5)), (0.0, 1, Effect(0.1))])
    player.change([(2.5, 2, Effect(2.0))])
    clock[0] = player.start() + 2.5
    player.advance()
    assert world.rates == [20, 3, 100]


def test_a_scaled_rate_stops_at_the_floor_and_a_rate_below_the_floor_stays() -> None:
    effect = Effect(0.1, 50.0)
    assert [effect.rate(rate) for rate in (1000.0, 500.0, 200.0, 50.0, 20.0)] == [100.0, 50.0, 50.0, 50.0, 20.0]
    assert NEUTRAL.rate(7.0) == 7.0


class Calls:
    """Stand-in for a supervisor that keeps the requests, and the changes as the supervisor reads them."""

    def __init__(self) -> None:
        self.made: list[requests.Request] = []
        self.changes: list[tuple[float, int, Effect]] = []

    def call(self, request: requests.Request) -> dict[str, object]:
        self.made.append(request)
        if isinstance(request, requests.ReplayChange):
            heard = msgspec.json.decode(msgspec.json.encode(request), type=requests.ReplayChange)
            self.changes += players.read_changes(heard.rows, heard.effects)
        return {}


def test_a_replay_handle_sends_changes_in_wall_time_and_refuses_invalid_changes() -> None:
    calls = Calls()
    known = {("a", "b"): schedule(BandwidthTrace("c", np.array([0.0]), np.array([5e6])))}
    handle = ReplayHandle(calls, known, 120.0)  # type: ignore[arg-type]
    handle.change([LinkChange(300.0, ("a", "b"), Effect(factor=0.1, floor_bps=1e4))])
    late = Effect(rate_bps=1e5, delay_s=0.6, jitter_s=0.06, loss=0.01, distribution="normal")
    handle.change([LinkChange(600.0, ("a", "b"), late), LinkChange(720.0, ("a", "b"), Effect(cut=True))])
    assert calls.changes == [
        (2.5, 0, Effect(0.1, 1.2e6)),
        (5.0, 0, Effect(rate_bps=1.2e7, delay_s=0.005, jitter_s=0.0005, loss=0.01, distribution="normal")),
        (6.0, 0, Effect(cut=True)),
    ]
    for links, factor, from_s, says in [
        ([("b", "a")], 0.1, 0.0, "b → a is not replayed"),
        ([("a", "b")], 0.0, 0.0, "factor"),
        ([("a", "b")], float("nan"), 0.0, "factor"),
        ([("a", "b")], 0.5, -1.0, "at least 0"),
    ]:
        with pytest.raises(UsageError, match=says):
            handle.change([LinkChange(from_s, link, Effect(factor=factor)) for link in links])
    for effect, says in [(Effect(loss=1.0), "loss"), (Effect(delay_s=-1.0), "delay_s")]:
        with pytest.raises(UsageError, match=says):
            handle.change([LinkChange(0.0, ("a", "b"), effect)])
    assert len(calls.made) == 3
    assert handle.delays


def test_an_impossible_change_names_the_link_and_half_a_million_changes_are_checked() -> None:
    shapes = {("a", "b"): LinkShape(1e6), ("b", "a"): LinkShape(1e6, 0.01)}
    traces = {("b", "a"): BandwidthTrace("t", np.array([0.0, 5.0]), np.array([1e6, 9e6]), 10.0)}
    reorder = Effect(reorder=0.1)
    for link, effect, says in [
        (("b", "a"), Effect(30.0), r"link b → a.*2700 Mbit/s of wall time"),
        (("a", "b"), Effect(rate_bps=1e9), r"link a → b.*10000 Mbit/s"),
        (("a", "b"), reorder, r"link a → b.*give the link a delay_s"),
        (("a", "b"), Effect(delay_s=601.0), "between 0 and 60 s"),
        (("a", "b"), Effect(jitter_s=30.0), "jitter_s is 3; netem"),
        (("a", "b"), Effect(burst_bytes=100), "a frame"),
        (("a", "b"), Effect(distribution="gamma"), "no distribution 'gamma'"),
    ]:
        with pytest.raises(UsageError, match=says):
            check_changes([LinkChange(1.0, link, effect)], shapes, traces, 10.0)
    fine = [LinkChange(1.0, ("b", "a"), effect) for effect in (reorder, Effect(20.0), Effect(delay_s=600.0))]
    check_changes(fine * 170_000, shapes, traces, 10.0)


@given(traces(), st.sampled_from([1.0, 7.0, 120.0]))
def test_a_replay_handle_reports_rates_in_emulated_time(trace: BandwidthTrace, time_scale: float) -> None:
    plan = schedule(trace, time_scale)
    handle = ReplayHandle(Calls(), {("a", "b"): plan}, time_scale)  # type: ignore[arg-type]
    emulated = handle.emulated()["a", "b"]
    for at_s, rate_bps in zip(plan.times_s.tolist(), plan.rates_bps.tolist(), strict=True):
        assert emulated.rate_at((at_s + 1e-6) * time_scale) * time_scale == pytest.approx(rate_bps)
    if len(plan.times_s) > 1:
        assert emulated.duration_s == pytest.approx(trace.duration_s)
