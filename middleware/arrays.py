"""Arithmetic of arrays whose every bit is the same on any processor: see ``middleware.arithmetic``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thalweg.middleware.arithmetic import HIGHEST, LN2_HIGH, LN2_LOW, LOWEST, SQRT_HALF, exp_near, log_near, raised

Floats = npt.NDArray[np.float64]


def exp(x: Floats) -> Floats:
    """e to the power of ``x``."""
    x = np.clip(x, LOWEST, HIGHEST)
    twos = np.rint(x / (LN2_HIGH + LN2_LOW))
    found: Floats = np.ldexp(exp_near(x, twos), twos.astype(np.int64))
    return found


def log(x: Floats) -> Floats:
    """The natural logarithm of ``x``, which is above 0."""
    part, twos = np.frexp(x)
    low = part < SQRT_HALF
    found: Floats = log_near(part + part * low, twos - low)
    return found


def power(x: Floats, by: float) -> Floats:
    """``x``, at least 0, to the power of ``by``, above 0."""

    def otherwise() -> Floats:
        return np.where(x > 0, exp(by * log(np.where(x > 0, x, 1.0))), 0.0)

    found: Floats = raised(x, by, np.sqrt, otherwise)
    return found


def factorised(covariance: Floats) -> Floats:
    """(matrices, n, n) the lower triangular L with L·Lᵀ = C, of every C, which are positive definite (Cholesky)."""
    left = covariance.copy()
    for i in range(left.shape[1]):
        left[:, i:, i] /= np.sqrt(left[:, i, i])[:, None]
        left[:, i, i + 1 :] = 0.0
        below = left[:, i + 1 :, i]
        left[:, i + 1 :, i + 1 :] -= below[:, :, None] * below[:, None, :]
    return left


def whitened(factor: Floats, given: Floats) -> Floats:
    """(matrices, n, vectors) the L⁻¹·v of every vector v, for ``factorised`` L."""
    found = given.copy()
    for i in range(found.shape[1]):
        found[:, i] /= factor[:, i, i, None]
        found[:, i + 1 :] -= factor[:, i + 1 :, i, None] * found[:, i, None]
    return found
