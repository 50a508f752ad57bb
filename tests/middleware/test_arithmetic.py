"""Arithmetic of our own, compared with numpy and the C library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware import arrays
from thalweg.middleware.arithmetic import exp, log, plain_sum, power
from thalweg.middleware.arrays import factorised, whitened


@given(st.floats(-600, 600), st.floats(1e-12, 1e12), st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 2.0, 2.5, 4.0, 7.0, 32.0]))
def test_powers_and_logarithms_match_the_library(x: float, above: float, by: float) -> None:
    assert exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    assert log(above) == pytest.approx(math.log(above), rel=1e-14, abs=1e-15)
    if abs(math.log(above) * by) < 600:
        assert power(above, by) == pytest.approx(above**by, rel=1e-12)
        assert arrays.power(np.array([above, 0.0]), by).tolist() == [power(above, by), power(0.0, by)]
    assert [arrays.exp(np.array([x])), arrays.log(np.array([above]))] == [exp(x), log(above)]


@given(st.lists(st.floats(-1e12, 1e12) | st.integers(-(10**6), 10**6)))
def test_a_sum_equals_the_addition_of_values_in_order(values: list[float]) -> None:
    expected: float = 0
    for value in values:
        expected += value
    assert plain_sum(values) == expected


def test_sums_do_not_depend_on_the_version_of_python() -> None:
    assert plain_sum([0.1] * 10) == 0.9999999999999999, "1.0 by Python's own since 3.12"
    assert plain_sum([]) == 0
    assert isinstance(plain_sum([True, 2]), int)


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_covariances_are_factorised_as_by_lapack(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((5, size, size))
    covariance = drawn @ drawn.transpose(0, 2, 1) + np.eye(size)
    factor = factorised(covariance)
    assert np.allclose(factor, np.linalg.cholesky(covariance), rtol=1e-10, atol=1e-12)
    assert np.allclose(factor @ whitened(factor, drawn), drawn, rtol=1e-10, atol=1e-10)
