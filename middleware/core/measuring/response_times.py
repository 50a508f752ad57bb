"""How long a host may be silent before it is taken for lost, by how long its answers have taken so far.

An accrual detector: Hayashibara et al. (2004), The phi accrual failure detector, sections 3 and 4. Silence is worth as
much suspicion (phi) as the chance that an answer still comes is small. There the time that an answer takes is normal;
on links whose rates vary some take many times as long as most, so it is the logarithm that is taken for normal here,
with the mean and the deviation of the last ones. Answers that take a small part of the least time are alike: whether
one takes 1 ms or 30 ms says nothing about seconds, and counted as different they would add minutes on a busy machine.

Rules:

R1. Who has not answered yet may be silent for as long as any host may.
R2. Nobody is suspected before a least time, however regular its answers, nor spared beyond the longest.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 64  # answers
PHI_8 = 5.61  # deviations beyond the mean at which the chance of a later answer is 1e-8
SOON_S = 1e-3  # what takes less is as good
ALIKE = 30.0  # answers that take less than this part of the least time are alike


class ResponseTimes:
    """When a host was asked, and how long its last answers took. Seconds."""

    __slots__ = ("_asked_s", "_took")

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=WINDOW)  # logarithms
        self._asked_s: float | None = None

    def pinged(self, now: float) -> None:
        """A ping goes there; of several without an answer the first counts."""
        if self._asked_s is None:
            self._asked_s = now

    def came(self, now: float) -> None:
        """It has answered."""
        if self._asked_s is not None:
            self._took.append(math.log(max(SOON_S, now - self._asked_s)))
            self._asked_s = None

    def forget_asked(self) -> None:
        """Leave the answer that is awaited out of the times, as this host did not run meanwhile."""
        self._asked_s = None

    def waited_s(self, now: float) -> float:
        """For how long an answer has been waited for."""
        return 0.0 if self._asked_s is None else now - self._asked_s

    @property
    def longest_s(self) -> float:
        """How long the longest of the last ones took."""
        return math.exp(max(self._took)) if self._took else 0.0

    def silence_s(self, interval_s: float, least_s: float, most_s: float) -> float:
        """How long nothing may come from there, which is asked every ``interval_s``."""
        took = self._took
        if not took:
            return most_s  # R1: there is no answer yet to judge the host by
        floor = math.log(max(SOON_S, least_s / ALIKE))
        took_long = [max(floor, logarithm) for logarithm in took]
        mean = math.fsum(took_long) / len(took)
        deviation = math.sqrt(math.fsum([(logarithm - mean) ** 2 for logarithm in took_long]) / len(took))
        return min(most_s, max(least_s, interval_s + math.exp(mean + PHI_8 * deviation)))
