from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_traces import steps, traces

from thalweg.emulation.traces.generator import KB_BITS
from thalweg.emulation.traces.pool import (
    Window,
    check_hosts,
    fetch_s,
    scale_pool_to_fetch,
    two_draws,
)
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError

quarters = st.integers(0, 4 * 10**4).map(lambda count: count / 4)  # exact sums: both ways see the same rows


@given(traces(10**6), quarters, quarters, quarters, st.integers(0, 10**8))
def test_a_window_is_the_offset_trace(
    trace: BandwidthTrace, start_s: float, at_s: float, for_s: float, size_bytes: int
) -> None:
    window, shifted = Window(trace, start_s), trace.offset(start_s)
    assert window.cut() == shifted
    assert window.rate_at(at_s) == shifted.rate_at(at_s)
    assert window.bits_between(at_s, at_s + for_s) == pytest.approx(shifted.bits_between(at_s, at_s + for_s), abs=1e-3)
    if trace.mean_bps > 0:
        took_s = window.transfer_time_s(size_bytes, at_s)
        carried = shifted.bits_between(at_s, at_s + shifted.transfer_time_s(size_bytes, at_s))
        assert window.bits_between(at_s, at_s + took_s) == pytest.approx(carried, abs=1e-3)
        # a last bit that rounding puts beyond an outage waits for its end: such times differ, their bits do not
        if not (trace.rates_bps == 0).any():
            assert took_s == pytest.approx(shifted.transfer_time_s(size_bytes, at_s), abs=1e-6)


def test_windows_of_a_trace_share_the_trace_and_are_immutable() -> None:
    trace = steps((10.0, 8000.0), (10.0, 16000.0))
    assert Window(trace, 3.0).trace is Window(trace, 7.0).trace
    assert not hasattr(Window(trace, 3.0), "__dict__")
    with pytest.raises(AttributeError):
        Window(trace, 3.0).start_s = 4.0  # type: ignore[misc]


def test_a_fetch_uses_the_links_in_turn_on_a_common_clock() -> None:
    slow_later = Window(steps((10.0, 8000.0), (10.0, 4000.0)), 0.0)
    steady = Window(steps((5.0, 8000.0)), 0.0)
    assert fetch_s([slow_later, steady], 5000.0, 1) == pytest.approx(5.0 + 5.0)
    assert fetch_s([slow_later, steady], 5000.0, 2) == pytest.approx((10.0 + 10.0 + 5.0) / 2)
    assert fetch_s([steady], 1000.0, 3, startup_s=0.5) == pytest.approx(1.5)


def test_a_pool_is_scaled_by_one_constant_and_keeps_its_outages() -> None:
    pool = [steps((10.0, KB_BITS), (10.0, 0.0)), steps((5.0, 7.0 * KB_BITS))]
    networks = [[Window(trace, start_s) for trace in pool] for start_s in (0.0, 4.0)]
    scaled = scale_pool_to_fetch(pool, 30.0, networks, 10_000.0, 5, 0.1)
    factors = [new.mean_bps / old.mean_bps for new, old in zip(scaled, pool, strict=True)]
    assert factors[0] == pytest.approx(factors[1])
    assert scaled[0].rate_at(12.0) == 0.0
    again = [[Window(trace, start_s) for trace in scaled] for start_s in (0.0, 4.0)]
    took_s = [fetch_s(links, 10_000.0, 5, 0.1) for links in again]
    assert sum(took_s) / 2 == pytest.approx(30.0, rel=0.01)


@pytest.mark.parametrize("target", [0.0, -1.0, 0.2, math.inf, math.nan])
def test_a_pool_is_not_scaled_to_an_impossible_time(target: float) -> None:
    pool = [steps((1.0, 1.0))]
    with pytest.raises(UsageError, match="give a longer time"):
        scale_pool_to_fetch(pool, target, [[Window(pool[0], 0.0)]], 1000.0, 1, 0.2)


def test_scaling_an_empty_pool_is_refused() -> None:
    with pytest.raises(TraceError, match="holds no traces"):
        scale_pool_to_fetch([], 0.1, [], 1.0, 1)


def test_seeded_draws_are_the_same_in_every_version() -> None:
    assert two_draws(1, "a", "b") == (0x5AA56B50C0873E9F, 0x2FE036CCD49EFF08)
    assert len({two_draws(1, 2, "a", "b"), two_draws(1, "2", "a", "b"), two_draws(12, "a", "b")}) == 3


def test_a_host_that_is_named_twice_is_refused() -> None:
    check_hosts(["a", "b"])
    with pytest.raises(UsageError, match="'a' is named twice"):
        check_hosts(["a", "b", "a"])
