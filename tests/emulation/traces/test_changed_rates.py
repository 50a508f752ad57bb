"""Rates in pieces: bits of a link and times of transfers across events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_traces import traces

from thalweg.emulation.links.effects import NEUTRAL, Effect
from thalweg.emulation.traces.changed import ChangedRates, changed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError

TRACE = BandwidthTrace("a → b", np.array([0.0, 10.0, 25.0]), np.array([1e6, 3e6, 5e5]), 40.0)
EFFECTS = st.sampled_from(
    [NEUTRAL, Effect(0.5), Effect(cut=True), Effect(rate_bps=2e6, factor=0.25), Effect(0.1, floor_bps=2e5)]
)
TIMELINES = st.lists(st.tuples(st.floats(0, 150), EFFECTS), max_size=6).map(
    lambda pairs: sorted(pairs, key=lambda pair: pair[0])
)


def at(timeline: list[tuple[float, Effect]], t_s: float) -> float:
    """Return the rate at a moment by a slow and simple search."""
    effect = next((effect for at_s, effect in reversed(timeline) if at_s <= t_s), NEUTRAL)
    return 0.0 if effect.cut else effect.rate(TRACE.rate_at(t_s))


@given(TIMELINES, st.floats(0, 120), st.floats(0, 120))
def test_a_changed_link_carries_the_integral_of_the_rates(
    timeline: list[tuple[float, Effect]], start_s: float, length_s: float
) -> None:
    rates = changed(TRACE, timeline)
    moments = np.linspace(start_s, start_s + length_s, 4001)
    middles = ((moments[:-1] + moments[1:]) / 2).tolist()
    assert [rates.rate_at(t_s) for t_s in middles[::400]] == [at(timeline, t_s) for t_s in middles[::400]]
    summed = sum(at(timeline, t_s) for t_s in middles) * length_s / 4000
    carried = rates.bits_between(start_s, start_s + length_s)
    assert carried == pytest.approx(summed, rel=1e-9, abs=1.0 + 3e6 * length_s / 4000 * 20)
    until = rates.bits_until(np.array([start_s, start_s + length_s]))
    assert float(until[1] - until[0]) == pytest.approx(carried, rel=1e-9, abs=1e-3)


@given(st.just(TRACE) | traces(10**6), TIMELINES, st.floats(0, 200), st.floats(1, 1e7))
def test_a_transfer_ends_exactly_when_all_bits_have_passed(
    trace: BandwidthTrace, timeline: list[tuple[float, Effect]], start_s: float, size_bytes: float
) -> None:
    rates = changed(trace, timeline)
    last = timeline[-1][1] if timeline else NEUTRAL
    assume(not last.cut and trace.mean_bps > 0.0)
    took_s = rates.transfer_time_s(size_bytes, start_s)
    assert rates.bits_between(start_s, start_s + took_s) == pytest.approx(size_bytes * 8, rel=1e-6, abs=1e-2)
    if took_s > 1e-3:
        assert rates.bits_between(start_s, start_s + took_s - 1e-3) < size_bytes * 8 + 1e-3


def test_an_unchanged_trace_stays_the_same_and_a_floor_spares_only_cuts() -> None:
    assert changed(TRACE, []) is TRACE
    slow = TRACE.scaled(1e-3)
    floored = changed(slow, [(5.0, Effect(0.1)), (7.0, Effect(cut=True)), (9.0, NEUTRAL)], floor_bps=800.0)
    assert [floored.rate_at(t_s) for t_s in (0.0, 5.0, 7.0, 9.0, 12.0, 30.0)] == [1000, 800, 0, 1000, 3000, 800]


def test_a_transfer_over_a_link_that_is_cut_for_good_is_refused() -> None:
    rates = changed(TRACE, [(10.0, Effect(cut=True))])
    assert isinstance(rates, ChangedRates)
    assert rates.transfer_time_s(1e6, 0.0) == pytest.approx(8.0)
    with pytest.raises(TraceError, match="link a → b is cut for good"):
        rates.transfer_time_s(2e6, 0.0)
    with pytest.raises(UsageError, match="not negative"):
        rates.transfer_time_s(-1.0, 0.0)
    assert rates.transfer_time_s(0.0, 50.0) == 0.0
