"""Rate at which a task flows over public links with varying rates, as expected values.

Every 10 ms the rate of a public link is its mean times 2^Z over the mean of 2^Z, Z standard normal. This is the paper's
"one fourth to four times the mean in 95 % of the cases" (section 6.1). A task's hops run in lock step, at the rate of
the slowest and never faster than the task's own. A run has tens of thousands of draws, so the mean is what counts.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

MEAN = math.exp(math.log(2) ** 2 / 2)  # of 2^Z
STEPS = 400  # of the integral over rates
STEP_S = 0.010
_AT = (np.arange(STEPS) + 0.5) / STEPS


@lru_cache(maxsize=100_000)
def in_lock_step(means: tuple[float, ...]) -> float:
    """Return the expected minimum of 1 and of public hops with these means, all as shares of the task's rate."""
    from scipy.special import ndtr

    if not means:
        return 1.0
    over = np.ones(STEPS)  # the chance that all hops are faster than each rate
    for mean in means:
        over *= ndtr(-np.log2(_AT * MEAN / mean))
    return float(over.mean())
