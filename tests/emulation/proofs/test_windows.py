"""The worst window, compared with a search through all windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.proofs.proof import LinkSample
from thalweg.emulation.proofs.windows import RateChange, worst_sampled, worst_window

GAPS = st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=60)
STEPS = st.lists(st.tuples(st.floats(0.01, 0.2), st.sampled_from([3e6, 8e6, 50e6])), min_size=1, max_size=6)


@given(GAPS, STEPS, st.floats(0.02, 0.2), st.floats(0, 0.005))
def test_no_window_is_overlooked(
    gaps: list[float], steps: list[tuple[float, float]], window_s: float, lasting_s: float
) -> None:
    arrivals, changes, at_s = list[float](), list[RateChange](), 0.0
    for gap in gaps:
        arrivals.append((arrivals[-1] if arrivals else 0.0) + gap)
    changes = [RateChange(-1.0, -1.0, 5e6)]
    for gap, rate_bps in steps:
        at_s += gap
        changes.append(RateChange(at_s, at_s + lasting_s, rate_bps))

    def asked_bits(low_s: float, high_s: float) -> float:
        total, rate_bps, since_s = 0.0, changes[0].rate_bps, changes[0].done_s
        for change in [*changes[1:], None]:
            if change is None:
                until_s = float("inf")
            else:
                until_s = change.asked_s if change.rate_bps > rate_bps else change.done_s
            total += rate_bps * max(0.0, min(until_s, high_s) - max(since_s, low_s))
            if change is not None:
                since_s, rate_bps = until_s, change.rate_bps
        return total

    ratios = []
    for end_s in arrivals:
        bits = sum(8 * 1500 for at_s in arrivals if end_s - window_s < at_s <= end_s)
        ratios.append((bits - 8 * 1500) / asked_bits(end_s - window_s, end_s))
    worst = worst_window(arrivals, [1500] * len(arrivals), changes, granularity_bytes=1500, window_s=window_s)
    assert worst.ratio == pytest.approx(max(ratios), rel=1e-6, abs=1e-9)
    assert worst.end_s in arrivals


def test_a_link_that_keeps_its_old_rate_too_long_is_found() -> None:
    """The asked rate falls from 20 to 5 Mbit/s at 0.5 s, and the link follows 20 ms late."""
    changes = [RateChange(-1, -1, 20e6), RateChange(0.5, 0.5, 5e6)]
    arrivals = [i * 0.0006 for i in range(867)] + [0.52 + i * 0.0024 for i in range(200)]
    worst = worst_window(arrivals, [1500] * len(arrivals), changes, granularity_bytes=1500)
    assert worst.ratio > 1.4
    assert 0.5 < worst.end_s < 0.62


@pytest.mark.parametrize(
    ("arrivals", "changes"), [([], [RateChange(0, 0, 1e6)]), ([1.0], []), ([0.05], [RateChange(0, 0, 1e6)])]
)
def test_a_search_without_packets_or_rates_is_refused(arrivals: list[float], changes: list[RateChange]) -> None:
    with pytest.raises(ValueError, match="there must be packets"):
        worst_window(arrivals, [1500] * len(arrivals), changes, granularity_bytes=0)


def test_the_worst_sample_of_every_link_is_found() -> None:
    samples = [
        LinkSample(1.0, "a", "b", 2e6, 2.2e6, True),
        LinkSample(1.1, "a", "b", 2e6, 2.4e6, True),
        LinkSample(1.1, "b", "a", 8e6, 4e6, False),
        LinkSample(1.2, "a", "b", 0.0, 1e5, False),  # cut
    ]
    worst = worst_sampled(samples, 0.1, 1500)
    assert worst.keys() == {("a", "b"), ("b", "a")}
    assert worst["a", "b"].end_s == 1.1
    assert worst["a", "b"].ratio == pytest.approx((2.4e5 - 12_000) / 2e5)
