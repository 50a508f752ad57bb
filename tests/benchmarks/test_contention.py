"""Share of a pause that a busy machine causes, from samples of threads made by hand and of this process."""

from __future__ import annotations

import os
import threading

import pytest

from benchmarks import contention
from benchmarks.contention import Pauses, Sample, Times, net_pause_s, sample

NEW, DUTY, OTHER = (1, "10"), (1, "11"), (2, "20")
BEFORE = Sample(5.0, {DUTY: Times(1.0, 3.0), OTHER: Times(7.0, 1.0)})


@pytest.mark.parametrize(
    ("after", "net_s"),
    [
        ({}, 2.0),  # all threads have ended, so nothing excuses the pause
        ({DUTY: Times(1.0, 3.0), OTHER: Times(7.0, 1.0)}, 2.0),  # no thread had work
        ({DUTY: Times(1.1, 4.5), OTHER: Times(7.0, 1.1)}, 0.5),  # the thread that waited longest counts
        ({DUTY: Times(1.9, 4.1), OTHER: Times(7.0, 1.0)}, 0.9),  # the work of a host is not the machine's
        (
            {DUTY: Times(1.6, 4.4), NEW: Times(0.7, 0.2)},
            1.3,
        ),  # nor is the work of two threads of a host, one of them new
        ({OTHER: Times(7.0, 3.5)}, 0.0),  # the samples are not taken at exactly the same moment
    ],
)
def test_a_pause_counts_without_the_longest_wait_and_with_all_work(
    after: dict[contention.Thread, Times], net_s: float
) -> None:
    assert net_pause_s(BEFORE, Sample(7.0, after)) == pytest.approx(net_s)


def test_a_sample_has_only_the_threads_of_running_processes() -> None:
    threads = sample((os.getpid(), 2**22 + 1)).threads
    mine = threads[os.getpid(), str(threading.get_native_id())]
    assert mine.ran_s > 0
    assert mine.waited_s >= 0
    assert {pid for pid, _ in threads} == {os.getpid()}


def test_the_longest_net_pause_is_not_the_longest_pause_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest pause by the clock was a wait for a processor."""
    samples = iter(
        (
            Sample(0.0, {DUTY: Times(0.0, 0.0)}),
            Sample(3.0, {DUTY: Times(0.1, 2.8)}),
            Sample(4.0, {DUTY: Times(0.2, 2.9)}),
            Sample(4.5, {DUTY: Times(0.7, 2.9)}),
        )
    )
    times = iter((3.0, 3.0, 4.0, 4.0, 4.01, 4.01, 4.5, 4.5))
    monkeypatch.setattr(contention, "sample", lambda _: next(samples))
    monkeypatch.setattr(contention.time, "monotonic", lambda: next(times))
    pauses = Pauses((1,))
    for _ in range(4):
        pauses.go_on()
    assert (pauses.longest_s, pauses.longest_net_s) == (3.0, pytest.approx(0.9))
