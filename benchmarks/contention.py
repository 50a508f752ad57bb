"""Share of a pause that a busy machine has caused: threads that were ready to run waited for a processor.

A pause counts without the longest wait of a thread, but at least for the processor time of the busiest process in it.
So work that an attacker causes is never blamed on the machine. An idle process waits for no processor, so its pause
counts whole. The figures are those of Linux's scheduler (``/proc/PID/task/TID/schedstat``). If the kernel keeps no
figures, pauses count whole.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

EVERY_S = 0.02  # between two samples; one takes about a millisecond

Thread = tuple[int, str]  # numbers of its process and of itself


class Times(NamedTuple):
    """Time for which a thread has run, and has waited for a processor, in seconds."""

    ran_s: float
    waited_s: float


class Sample(NamedTuple):
    """Times of the threads of several processes at one moment."""

    at_s: float
    threads: Mapping[Thread, Times]


def sample(pids: Collection[int]) -> Sample:
    """Return the present times of the processes' threads. Processes and threads that have ended are left out."""
    at_s, threads = time.monotonic(), dict[Thread, Times]()
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    ran_ns, waited_ns, *_ = (task / "schedstat").read_text(encoding="ascii").split()
                    threads[pid, task.name] = Times(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    return Sample(at_s, threads)


def net_pause_s(before: Sample, after: Sample) -> float:
    """Return the time between two samples without the longest wait for a processor."""
    ran_s, waited_s = defaultdict[int, float](float), 0.0
    for thread, times in after.threads.items():
        first = before.threads.get(thread, Times(0.0, 0.0))
        ran_s[thread[0]] += times.ran_s - first.ran_s
        waited_s = max(waited_s, times.waited_s - first.waited_s)
    return max(after.at_s - before.at_s - waited_s, *ran_s.values(), 0.0)


class Pauses:
    """Longest pause between two calls of ``go_on``, by the clock and by ``net_pause_s``."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids
        self._sample = sample(pids)
        self._last_s = self._sample.at_s
        self.longest_s = self.longest_net_s = 0.0

    def go_on(self) -> None:
        """Note the end of a pause, and take a sample if one is due. The time of a sample is not part of a pause."""
        now, before = time.monotonic(), self._sample
        pause_s = now - self._last_s
        self.longest_s = max(self.longest_s, pause_s)
        if now - before.at_s >= EVERY_S:
            self._sample = sample(self._pids)
            if pause_s > self.longest_net_s:
                self.longest_net_s = max(self.longest_net_s, min(pause_s, net_pause_s(before, self._sample)))
        self._last_s = time.monotonic()
