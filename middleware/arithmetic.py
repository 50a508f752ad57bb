"""Powers and logarithms of numbers that are the same, bit by bit, on every processor.

LAPACK adds in a different order on a different processor, and numpy and the C library take different code paths for
``exp``, ``log`` and ``pow``. So the last bits differ, and in time also the decisions that depend on them. Python's own
sum of floats differs between its versions.

Rules:

- R1: Only operations that IEEE 754 rounds exactly are used: sums, products, quotients, square roots and changes of the
  exponent. Each is a single operation, in the order that the code has.
- R2: For numbers of ordinary size, a result differs from the true value by a few units in the last place.

``middleware.arrays`` has the same functions for arrays, with the same bits, and covariances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import add
from typing import Any, overload

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # ln 2, the first with 32 zero bits
SQRT_HALF = math.sqrt(0.5)
LOWEST, HIGHEST = -700.0, 700.0  # beyond them, exp has the value of the nearer limit
_EXP = tuple(1 / math.factorial(n) for n in range(13, -1, -1))  # factors of the series up to r^13; |r| < 0.35
_LOG = tuple(2 / n for n in range(21, 0, -2))  # factors of the series of atanh up to s^21; |s| < 0.172


@overload
def plain_sum(values: Iterable[int]) -> int: ...
@overload
def plain_sum(values: Iterable[float]) -> float: ...
def plain_sum(values: Iterable[float]) -> float:
    """Return the sum of numbers, added from the first to the last.

    Python's ``sum`` does the same up to 3.11. Since 3.12 it compensates the rounding of floats, so a decision could
    depend on the version of Python.
    """
    return reduce(add, values, 0)


def exp(x: float) -> float:
    """Return e to the power of ``x``."""
    x = min(max(x, LOWEST), HIGHEST)
    twos = round(x / (LN2_HIGH + LN2_LOW))
    return math.ldexp(exp_near(x, twos), twos)


def log(x: float) -> float:
    """Return the natural logarithm of ``x``, which must be above 0."""
    part, twos = math.frexp(x)
    low = part < SQRT_HALF
    return float(log_near(part + part * low, twos - low))


def power(x: float, by: float) -> float:
    """Return ``x``, at least 0, to the power of ``by``, above 0."""
    return float(raised(x, by, math.sqrt, lambda: exp(by * log(x)) if x > 0 else 0.0))


# --- for numbers and arrays alike -----------------------------------------------------------------------


def exp_near(x: Any, twos: Any) -> Any:
    """Return e to the power of ``x``, divided by 2 to the power of ``twos``. The result must be near to 1."""
    return _horner(_EXP, (x - twos * LN2_HIGH) - twos * LN2_LOW)


def log_near(part: Any, twos: Any) -> Any:
    """Return the natural logarithm of ``part · 2^twos``. ``part`` must be near to 1."""
    share = (part - 1.0) / (part + 1.0)
    return (twos * LN2_HIGH + share * _horner(_LOG, share * share)) + twos * LN2_LOW


def _horner(factors: tuple[float, ...], x: Any) -> Any:
    total = x * factors[0]
    for factor in factors[1:-1]:
        total += factor
        total *= x
    total += factors[-1]
    return total


def raised(x: Any, by: float, root: Callable[[Any], Any], otherwise: Callable[[], Any]) -> Any:
    """Return ``x`` to the power of ``by``.

    A whole ``by`` is computed by squaring, and 1/2, 1/4, … by roots. For every further ``by``, ``otherwise`` is called.
    """
    if by == int(by):
        whole, product, square = int(by), None, x
        while True:
            if whole & 1:
                product = square if product is None else product * square
            whole >>= 1
            if not whole:
                return product
            square = square * square
    if by < 1 and math.frexp(by)[0] == 0.5:
        for _ in range(round(-math.log2(by))):
            x = root(x)
        return x
    return otherwise()
