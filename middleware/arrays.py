"""Arithmetic of arrays that is the same, bit by bit, on every processor. ``middleware.arithmetic`` has the rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thalweg.middleware.arithmetic import HIGHEST, LN2_HIGH, LN2_LOW, LOWEST, SQRT_HALF, exp_near, log_near, raised

Floats = npt.NDArray[np.float64]


def exp(x: Floats) -> Floats:
    """Return e to the power of each element of ``x``."""
    x = np.minimum(np.maximum(x, LOWEST), HIGHEST)  # faster than clip
    twos = np.rint(x / (LN2_HIGH + LN2_LOW))
    powers: Floats = np.ldexp(exp_near(x, twos), twos.astype(np.int64))
    return powers


def log(x: Floats) -> Floats:
    """Return the natural logarithms of the elements of ``x``, which must be above 0."""
    part, twos = np.frexp(x)
    low = part < SQRT_HALF
    logs: Floats = log_near(part + part * low, twos - low)
    return logs


def power(x: Floats, by: float) -> Floats:
    """Return the elements of ``x``, at least 0, to the power of ``by``, above 0."""

    def otherwise() -> Floats:
        return np.where(x > 0, exp(by * log(np.where(x > 0, x, 1.0))), 0.0)

    powers: Floats = raised(x, by, np.sqrt, otherwise)
    return powers


def factorised(covariance: Floats) -> Floats:
    """Return the lower triangular L with L·Lᵀ = C of every positive definite matrix C (Cholesky): (matrices, n, n).

    Elements above the diagonal of C are not read.
    """
    left = _side_by_side(covariance)
    for i in range(len(left)):
        left[i:, i] /= np.sqrt(left[i, i])
        left[i, i + 1 :] = 0.0
        below = left[i + 1 :, i]
        left[i + 1 :, i + 1 :] -= below[:, None] * below
    return np.ascontiguousarray(left.transpose(2, 0, 1))


def whitened(factor: Floats, given: Floats) -> Floats:
    """Return L⁻¹·v for every vector v and the matrix L of ``factorised``: (matrices, n, vectors)."""
    factor, white = _side_by_side(factor), _side_by_side(given)
    for i in range(len(white)):
        white[i] /= factor[i, i]
        white[i + 1 :] -= factor[i + 1 :, i, None] * white[i]
    return np.ascontiguousarray(white.transpose(2, 0, 1))


def _side_by_side(matrices: Floats) -> Floats:
    """Return a copy with the matrices along the last axis, so that a step works on all of them at once."""
    return matrices.transpose(1, 2, 0).copy()
