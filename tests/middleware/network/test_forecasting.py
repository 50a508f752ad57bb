"""Forecasters of a link's bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.forecasting import (
    FORECASTERS,
    HORIZON_S,
    Best,
    Exponential,
    Forecaster,
    Last,
    Mean,
    Median,
    Window,
    make_forecaster,
)

rates = st.floats(min_value=1e3, max_value=1e9)


def fed(forecaster: Forecaster, values: list[float], step_s: float = 1.0) -> Forecaster:
    for i, value in enumerate(values):
        forecaster.add(value, i * step_s)
    return forecaster


@pytest.mark.parametrize(
    ("forecaster", "expected"),
    [
        (Last(), 1.0),
        (Mean(3), 4.0),
        (Mean(2), 5.0),
        (Median(3), 2.0),
        (Median(4), 5.0),
        (Exponential(1.0), 1.0),
        (Exponential(0.5), ((((8 + 8) / 2 + 2) / 2 + 9) / 2 + 1) / 2),
    ],
)
def test_every_forecaster_gives_the_expected_forecast(forecaster: Forecaster, expected: float) -> None:
    assert fed(forecaster, [8.0, 8.0, 2.0, 9.0, 1.0]).forecast() == pytest.approx(expected)


@pytest.mark.parametrize("name", FORECASTERS)
@given(values=st.lists(rates, min_size=1, max_size=30))
def test_a_forecast_is_within_the_range_of_the_samples(name: str, values: list[float]) -> None:
    forecast = fed(make_forecaster(name), values).forecast()
    assert min(values) * (1 - 1e-9) <= forecast <= max(values) * (1 + 1e-9)


@pytest.mark.parametrize("name", FORECASTERS)
def test_samples_older_than_the_horizon_do_not_count(name: str) -> None:
    forecaster = fed(make_forecaster(name), [1.0, 1.0, 1.0, 1.0])
    forecaster.add(100.0, 3.5 + HORIZON_S)
    assert forecaster.forecast() == pytest.approx(100.0)


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_forecast_without_samples_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="add a sample first"):
        make_forecaster(name).forecast()


@pytest.mark.parametrize(
    ("samples", "trusted"),
    [
        ([5.0], "last"),
        ([float(i) for i in range(1, 20)], "last"),  # a trend
        ([10.0, 10.0, 10.0, 90.0, 10.0, 10.0, 90.0, 10.0, 10.0, 90.0, 10.0, 10.0], "median"),  # single odd ones
    ],
)
def test_the_best_forecaster_trusts_the_member_with_the_least_error(samples: list[float], trusted: str) -> None:
    best = Best()
    fed(best, samples)
    assert best.trusted == trusted
    alone = fed(make_forecaster(trusted), samples)
    assert best.forecast() == alone.forecast()


@given(st.lists(rates, min_size=2, max_size=40))
def test_no_member_has_a_smaller_error_than_the_trusted_member(values: list[float]) -> None:
    best, errors = Best(), dict.fromkeys(("last", "mean", "median", "exponential"), 0.0)
    members = {name: make_forecaster(name) for name in errors}
    for i, value in enumerate(values):
        for name, member in members.items():
            if i:
                errors[name] += abs(member.forecast() - value)
            member.add(value, i)
        best.add(value, i)
    assert errors[best.trusted] == min(errors.values())


def test_the_spread_is_the_standard_deviation() -> None:
    window = Window(10)
    window.add(3.0, 0.0)
    assert window.spread() == 0
    window.add(5.0, 1.0)
    assert window.spread() == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("meen", "unknown forecaster 'meen'; did you mean 'mean'"),
        ("oracle", "known are last, mean, median, exponential, best"),
    ],
)
def test_an_unknown_forecaster_is_refused_with_suggestions(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_forecaster(name)
