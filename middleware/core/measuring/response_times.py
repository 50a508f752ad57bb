"""Response times of a host, and the silence after which the host counts as lost.

An accrual detector: Hayashibara et al. (2004), The phi accrual failure detector, sections 3 and 4. The suspicion (phi)
grows as the chance of a later answer falls. In the paper, response times have a normal distribution. On links with
varying rates, some answers take many times as long as most. So here the logarithms of the response times have a normal
distribution, with the mean and deviation of the last answers. Answers that take a small part of the least time count as
alike, because 1 ms or 30 ms says nothing about seconds. Counted as different, they would add minutes on a busy machine.

Rules:

R1. A host without an answer so far may be silent for the maximum time.
R2. A host is never suspected before a minimum time, even if its answers are regular. It is suspected after a maximum
    time at the latest.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 64  # answers
PHI_8 = 5.61  # deviations beyond the mean at which the chance of a later answer is 1e-8
SOON_S = 1e-3  # shorter times count as this time
ALIKE = 30.0  # answers quicker than the least time divided by this are alike


class ResponseTimes:
    """Response times of one host to pings, in seconds, and the time of the unanswered ping."""

    __slots__ = ("_asked_s", "_took")

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=WINDOW)  # logarithms of response times
        self._asked_s: float | None = None

    def pinged(self, now: float) -> None:
        """Record a ping to the host. Of several pings without an answer, the first counts."""
        if self._asked_s is None:
            self._asked_s = now

    def came(self, now: float) -> None:
        """Record an answer of the host to the awaited ping."""
        if self._asked_s is not None:
            self._took.append(math.log(max(SOON_S, now - self._asked_s)))
            self._asked_s = None

    def forget_asked(self) -> None:
        """Exclude the awaited answer from the response times, because the local host did not run meanwhile."""
        self._asked_s = None

    def waited_s(self, now: float) -> float:
        """Return how long an answer has been awaited; 0 if no answer is."""
        return 0.0 if self._asked_s is None else now - self._asked_s

    @property
    def longest_s(self) -> float:
        """Longest of the last response times; 0 without an answer."""
        return math.exp(max(self._took)) if self._took else 0.0

    def silence_s(self, interval_s: float, least_s: float, most_s: float) -> float:
        """Return how long the host may be silent, if it is pinged every ``interval_s``.

        The result is at least ``least_s`` (unless ``most_s`` is less) and at most ``most_s``.
        """
        took = self._took
        if not took:
            return most_s  # R1: there is no answer yet to judge the host by
        floor = math.log(max(SOON_S, least_s / ALIKE))
        took_long = [max(floor, logarithm) for logarithm in took]
        mean = math.fsum(took_long) / len(took)
        deviation = math.sqrt(math.fsum([(logarithm - mean) ** 2 for logarithm in took_long]) / len(took))
        return min(most_s, max(least_s, interval_s + math.exp(mean + PHI_8 * deviation)))
