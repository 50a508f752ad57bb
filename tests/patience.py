"""Time limits of tests that follow the speed of the machine: a limit ends a test that hangs, not a slow test."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

REFERENCE_S = 0.013  # processor time of `work` on the machine on which the limits of the tests were chosen
LARGEST = 30.0  # no machine and no load stretches a limit by more than this


def work() -> int:
    """Do a fixed amount of computing."""
    return sum(number * number % 7 for number in range(200_000))


@cache
def slowness() -> float:
    """Return the factor, at least 1, by which this machine's processors are slower than the reference's."""
    took_s = []
    for _ in range(3):
        begun_s = time.process_time()
        work()
        took_s.append(time.process_time() - begun_s)
    return max(1.0, min(took_s) / REFERENCE_S)


def crowding() -> float:
    """Return the processes for each processor, at least 1: now or in the last minute, the larger of the two."""
    try:
        now = float(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
        return max(1.0, now / (os.cpu_count() or 1), os.getloadavg()[0] / (os.cpu_count() or 1))
    except (OSError, AttributeError):  # no such figures on this system
        return 1.0


def patience(seconds: float) -> float:
    """Return a limit in wall-clock seconds for work of far less than ``seconds`` on an idle reference machine."""
    return seconds * min(LARGEST, slowness() * crowding())
