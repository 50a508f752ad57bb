from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_traces import traces

from thalweg.emulation.traces.pool import assign_traces, scale_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError

DAY_NIGHT = BandwidthTrace("t", np.array([0.0, 10.0, 20.0]), np.array([8000.0, 0.0, 16000.0]), 25.0)


def rate_by_hand(trace: BandwidthTrace, t_s: float) -> float:
    position = t_s % trace.duration_s
    return [r for t, r in zip(trace.times_s.tolist(), trace.rates_bps.tolist(), strict=True) if t <= position][-1]


def transfer_by_hand(trace: BandwidthTrace, size_bytes: int, start_s: float) -> Fraction:
    """Return the transfer time, row by row in exact arithmetic. Whole periods are skipped at once."""
    edges = [Fraction(t) for t in [*trace.times_s.tolist(), trace.duration_s]]
    rows = [(a, b, Fraction(r)) for a, b, r in zip(edges, edges[1:], trace.rates_bps.tolist(), strict=False)]
    left = Fraction(size_bytes * 8)
    position = Fraction(start_s) % edges[-1]
    waited = Fraction(0)
    per_lap = sum((b - a) * r for a, b, r in rows)
    laps = max(0, math.ceil(left / per_lap) - 1)
    left -= laps * per_lap
    waited += laps * edges[-1]
    while left > 0:
        for a, b, r in rows:
            if position >= b or left == 0:
                continue
            span = b - max(a, position)
            if left <= r * span:
                return waited + left / r
            left -= r * span
            waited += span
        position = Fraction(0)
    return waited


@given(traces(10**9), st.integers(0, 10**11), st.integers(0, 4 * 10**4).map(lambda quarters: quarters / 4))
def test_transfer_time_is_the_exact_integral(trace: BandwidthTrace, size_bytes: int, start_s: float) -> None:
    if trace.rates_bps.max() == 0:
        with pytest.raises(TraceError, match="zero everywhere"):
            trace.transfer_time_s(size_bytes, start_s)
        return
    took = trace.transfer_time_s(size_bytes, start_s)
    assert took == pytest.approx(float(transfer_by_hand(trace, size_bytes, start_s)), rel=1e-9, abs=1e-9)
    carried = trace.bits_between(start_s, start_s + took)
    slack = 1e-9 * trace.rates_bps.max() * (start_s + took + 1.0)  # rounding of the time itself
    assert carried == pytest.approx(size_bytes * 8, rel=1e-9, abs=slack)


@pytest.mark.parametrize(
    ("size_bytes", "start_s", "took_s"),
    [
        (0, 3, 0),
        (1000, 0, 1),
        (10_000, 0, 10),  # arrives with the last moment before the outage
        (10_001, 0, 20 + 8 / 16000),  # one byte has to wait until it is over
        (1, 15, 5 + 8 / 16000),
        (20_000, 0, 25),  # the whole period, to its very end
        (20_001, 0, 25.001),
        (1000, -5, 0.5),
        (20_000_000 + 1000, 25 * 7, 25_001),
    ],
)
def test_a_transfer_waits_through_outages_and_wraps_at_the_end_of_the_period(
    size_bytes: int, start_s: float, took_s: float
) -> None:
    assert DAY_NIGHT.transfer_time_s(size_bytes, start_s) == pytest.approx(took_s, rel=1e-12)


def test_a_transfer_does_not_wait_for_an_outage_at_the_end_of_the_period() -> None:
    trace = BandwidthTrace("t", np.array([0.0, 1.0]), np.array([0.1, 0.0]), 1000.0)
    for laps in (0, 1, 7, 999):
        size_bytes = (laps + 1) * 0.1 / 8
        assert trace.transfer_time_s(size_bytes, 0.0) == pytest.approx(laps * 1000 + 1)


@given(traces(10**9), st.integers(-4000, 40_000).map(lambda quarters: quarters / 4), st.integers(1, 2000))
def test_rates_steps_and_offsets_agree_across_wrap_arounds(trace: BandwidthTrace, start_s: float, span: int) -> None:
    stop_s, shifted = start_s + span, trace.offset(start_s)
    laps = range(int(start_s // trace.duration_s), int(stop_s // trace.duration_s) + 1)
    rows = [lap * trace.duration_s + time_s for lap in laps for time_s in trace.times_s.tolist()]
    steps = [(time_s, rate_by_hand(trace, time_s)) for time_s in (start_s, *rows) if start_s <= time_s < stop_s]
    for (time_s, rate), (later_s, _) in itertools.pairwise([*steps, (stop_s, -1.0)]):
        assert rate == trace.rate_at(time_s) == trace.rate_at((time_s + later_s) / 2)
        assert rate == shifted.rate_at(time_s - start_s) == shifted.rate_at((time_s + later_s) / 2 - start_s)
    bits = sum(r * (b - a) for (a, r), (b, _) in itertools.pairwise([*steps, (stop_s, 0.0)]))
    assert trace.bits_between(start_s, stop_s) == pytest.approx(bits, rel=1e-9, abs=1e-3)
    assert shifted.mean_bps == pytest.approx(trace.mean_bps)


@given(traces(10**9))
def test_steps_are_the_changes_of_a_single_period(trace: BandwidthTrace) -> None:
    rows = zip(trace.times_s.tolist(), trace.rates_bps.tolist(), strict=True)
    assert trace.steps() == [next(group) for _, group in itertools.groupby(rows, key=lambda row: row[1])]


def test_the_summary_of_a_trace_equals_the_values_worked_out_by_hand() -> None:
    # 10-s averages: 100, 100, 109, 110, 0, 0, 50 (the half window at the end does not count)
    rows = [100.0, 100.0, 109.0, 110.0, 0.0, 0.0, 50.0, 900.0]
    summary = BandwidthTrace("t", np.arange(8) * 10.0, np.array(rows), 75.0).summary()
    assert (summary.rows, summary.duration_s, summary.changes) == (8, 75.0, 3)  # at 30, 40 and 60 s
    assert (summary.mean_change_s, summary.median_change_s) == (20.0, 20.0)
    assert summary.median_bps == 100.0
    assert summary.p95_bps == pytest.approx(109.7)
    assert summary.mean_bps == pytest.approx((4690 + 4500) / 75)
    assert summary.zero_share == pytest.approx(20 / 75)


def test_the_summary_of_a_constant_trace_has_no_changes() -> None:
    summary = BandwidthTrace("t", np.array([0.0]), np.array([5.0])).summary()
    assert (summary.changes, summary.mean_change_s, summary.median_change_s) == (0, None, None)
    assert (summary.median_bps, summary.mean_bps) == (5.0, 5.0)


def test_the_default_duration_adds_the_median_step() -> None:
    assert BandwidthTrace("t", np.array([0.0, 1.0, 2.0, 9.0]), np.ones(4)).duration_s == 10.0


@pytest.mark.parametrize(
    ("times", "rates", "duration_s", "words"),
    [
        ([], [], 1, "at least one"),
        ([0, 1], [1], 2, "as many times as rates"),
        ([1, 2], [1, 1], 3, "start at 0"),
        ([0, 1, 1], [1, 1, 1], 3, "rise strictly"),
        ([0, math.inf], [1, 1], 3, "rise strictly"),
        ([0, math.nan], [1, 1], 3, "rise strictly"),
        ([0, 1], [1, -1], 3, "not negative"),
        ([0, 1], [1, math.nan], 3, "not negative"),
        ([0, 1], [1, 1], 1, "cannot last 1 s"),
        ([0, 1], [1, 1], math.nan, "cannot last"),
    ],
)
def test_an_invalid_trace_is_refused_with_the_name_of_the_trace(
    times: list[float], rates: list[float], duration_s: float, words: str
) -> None:
    with pytest.raises(TraceError, match=f"'bad'.*{words}") as caught:
        BandwidthTrace("bad", np.array(times), np.array(rates), duration_s)
    assert "\n" not in str(caught.value)


def test_a_trace_is_immutable_even_through_the_source_array() -> None:
    source = np.array([1.0, 2.0])
    trace = BandwidthTrace("t", np.array([0.0, 1.0]), source)
    source[0] = 99.0
    assert trace.rate_at(0) == 1.0
    with pytest.raises(ValueError, match="read-only"):
        trace.rates_bps[0] = 5.0
    with pytest.raises(AttributeError):
        trace.duration_s = 5.0  # type: ignore[misc]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_factors_must_be_above_zero(bad: float) -> None:
    for call in (DAY_NIGHT.scaled, lambda bps: scale_pool([DAY_NIGHT], bps)):
        with pytest.raises(UsageError, match="above 0"):
            call(bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_sizes_must_be_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(UsageError, match="not negative"):
        DAY_NIGHT.transfer_time_s(bad, 0.0)


# --- pools and rates --------------------------------------------------------------------------------


def pool_of(*means: float) -> list[BandwidthTrace]:
    return [
        BandwidthTrace(f"t{i}", np.array([0.0, 30.0, 40.0]), np.array([1.0, 0.0, 3.0]) * mean / 1.5, 60.0)
        for i, mean in enumerate(means)
    ]


def test_a_pool_is_scaled_by_one_constant_to_the_mean_of_time_weighted_means() -> None:
    pool = pool_of(1e6, 2e6, 6e6)
    scaled = scale_pool(pool, 2e5)
    assert np.mean([trace.mean_bps for trace in scaled]) == pytest.approx(2e5)
    factors = {round(new.mean_bps / old.mean_bps, 12) for new, old in zip(scaled, pool, strict=True)}
    assert factors == {round(2e5 / 3e6, 12)}
    with pytest.raises(TraceError, match="all zero"):
        scale_pool(pool_of(0.0, 0.0), 1.0)
    with pytest.raises(TraceError, match="no traces"):
        scale_pool([], 1.0)


def test_links_are_drawn_by_seed_and_name_alone() -> None:
    pool = pool_of(*range(1, 21))
    hosts = [f"h{i}" for i in range(9)]
    links = assign_traces(pool, hosts, 1)
    assert set(links) == {(a, b) for a in hosts for b in hosts if a != b}
    more = assign_traces(pool, ["new", *reversed(hosts)], 1)
    assert all(more[link] == trace for link, trace in links.items())
    assert assign_traces(pool, hosts, 2) != links
    assert links["h0", "h1"] != links["h1", "h0"]
    with pytest.raises(UsageError, match="'h3' is named twice"):
        assign_traces(pool, [*hosts, "h3"], 1)
    with pytest.raises(TraceError, match="no traces"):
        assign_traces([], hosts, 1)


def test_links_are_spread_uniformly_over_pool_and_time() -> None:
    pool = [BandwidthTrace(f"t{i}", np.arange(100.0), np.arange(100.0), 100.0) for i in range(10)]
    links = assign_traces(pool, [f"h{i}" for i in range(60)], 11)
    drawn = np.bincount([int(trace.name[1:]) for trace in links.values()], minlength=10)
    starts = np.bincount([int(trace.rate_at(0.0)) // 10 for trace in links.values()], minlength=10)
    for counts in (drawn, starts):  # chi-squared with 9 degrees of freedom: 27.9 is exceeded once in 1000
        assert ((counts - 354.0) ** 2 / 354.0).sum() < 27.9
