"""History of a run's links: few samples that have the mean of many."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.network.history import KEPT, SLOT_S, History
from thalweg.middleware.network.view import LinkEstimate

LINK = ("a", "b")


def estimate(rate_bps: float, at_s: float, count: int = 1) -> LinkEstimate:
    return LinkEstimate(rate_bps, count, 0.0, at_s)


def test_samples_are_logarithms_of_rates_in_the_order_of_time() -> None:
    history = History({LINK: estimate(1e6, 0.0)})
    history.add(LINK, estimate(1e3, 60.0))
    assert history.samples() == {LINK: ((0.0, math.log(1e6), 1), (60.0, math.log(1e3), 1))}


def test_samples_within_seconds_are_merged_and_old_or_invalid_samples_are_dropped() -> None:
    history = History()
    history.add(LINK, estimate(1e6, 100.0))
    history.add(LINK, estimate(1e8, 100.0 + SLOT_S / 2))
    (sample,) = history.samples()[LINK]
    assert sample == pytest.approx((100.0 + SLOT_S / 4, math.log(1e7), 2))  # the geometric mean
    assert history.latest() == {LINK: estimate(1e8, 100.0 + SLOT_S / 2)}
    before = history.samples()
    history.add(LINK, estimate(5e6, 100.0 + SLOT_S / 2))  # as old as the last
    history.add(LINK, estimate(5e6, 50.0))  # older
    history.add(LINK, estimate(0.0, 200.0))  # unusable
    history.add(LINK, estimate(5e6, 200.0, count=0))  # nobody measured it
    assert history.samples() == before


@given(st.lists(st.floats(0.6, 300.0), min_size=1, max_size=80), st.integers(2, 2 * KEPT))
def test_a_history_keeps_few_samples_with_the_mean_of_all_samples(gaps: list[float], kept: int) -> None:
    history = History(kept=kept)
    now, logs = 0.0, []
    for number, gap in enumerate(gaps):
        now += gap
        logs.append(math.log(1e5 * (number + 1)))
        history.add(LINK, estimate(1e5 * (number + 1), now))
    samples = history.samples()[LINK]
    assert len(samples) <= kept
    assert [each.at_s for each in samples] == sorted(each.at_s for each in samples)
    assert sum(each.number for each in samples) == len(gaps)
    mean = sum(each.number * each.log_rate for each in samples) / len(gaps)
    assert mean == pytest.approx(sum(logs) / len(logs))


def test_the_latest_samples_stay_apart_and_old_samples_are_merged() -> None:
    history = History(kept=6)
    for number in range(60):
        history.add(LINK, estimate(1e6, 10.0 * number))
    samples = history.samples()[LINK]
    gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(samples)]
    assert gaps == sorted(gaps, reverse=True) and gaps[0] > 10 * gaps[-1]


def test_a_full_history_accepts_no_further_links() -> None:
    history = History(most=2)
    for name in "abc":
        history.add((name, "z"), estimate(1e6, 1.0))
    assert set(history.samples()) == {("a", "z"), ("b", "z")}
