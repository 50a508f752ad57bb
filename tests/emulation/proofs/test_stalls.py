"""Separation of stalls of the machine from errors of a link."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.proofs.stalls import Pace, steady


def token_bucket(count: int, packet_ns: int, burst_ns: int, still: Callable[[int], int]) -> list[int]:
    """Return the times at which packets pass a full link. ``still`` returns the end of a sleep of the machine."""
    times, tokens_ns, now_ns = list[int](), burst_ns, 0
    for _ in range(count):
        if tokens_ns < 0:
            woken_ns = still(now_ns - tokens_ns)
            tokens_ns = min(burst_ns, tokens_ns + woken_ns - now_ns)
            now_ns = woken_ns
        times.append(now_ns)
        tokens_ns -= packet_ns
    return times


PACE = Pace(400_000, 1_000_000, 3)


@given(st.integers(0, 1000), st.floats(0.1, 1.5), st.floats(0.0, 0.3))
def test_the_measured_rate_of_a_link_is_right_even_if_the_machine_stalls(
    seed: int, factor: float, stalled: float
) -> None:
    """``factor`` is the true rate as a share of the asked rate. The proof measures the factor despite stalls."""

    def still(at_ns: int) -> int:
        """In every 20 ms the machine sleeps for up to twice ``stalled`` of it, at the end."""
        at, length_ns = divmod(at_ns, 20_000_000)
        begin_ns = 20_000_000 - round(sleeps.setdefault(at, random.uniform(0, 2 * stalled)) * 20_000_000)
        return at_ns if length_ns < begin_ns else (at + 1) * 20_000_000

    random, sleeps = Random(seed), dict[int, float]()
    packet_ns = round(PACE.packet_ns / factor)
    times = token_bucket(1000, packet_ns, PACE.burst_ns, still)
    steps, full_ns, stalled_ns = steady(times, PACE)
    delivered = steps * PACE.packet_ns / full_ns
    slept = 1 - len(times) * packet_ns / times[-1]
    if packet_ns + 100_000 < PACE.pause_ns:
        assert delivered == pytest.approx(factor, rel=0.02)
        if 0.9 < factor < 1.1:
            assert stalled_ns / (times[-1] - times[0]) == pytest.approx(max(slept, 0.0), abs=0.1 * stalled + 0.01)
    else:  # as slow as that, and it is the link
        assert delivered < 0.6


def test_constantly_late_timers_are_not_counted_as_stalls() -> None:
    times = token_bucket(1000, PACE.packet_ns, PACE.burst_ns, lambda at_ns: -(-at_ns // 4_000_000) * 4_000_000)
    steps, full_ns, stalled_ns = steady(times, PACE)
    assert (steps * PACE.packet_ns / full_ns, stalled_ns) == (pytest.approx(0.3, rel=0.02), 0)


def test_a_pause_within_the_slack_of_a_link_is_not_a_stall() -> None:
    times = token_bucket(1000, PACE.packet_ns, PACE.burst_ns, lambda at_ns: at_ns + 3_000_000 * (at_ns % 7 == 0))
    assert steady(times, PACE)[2] > 0
    patient = PACE._replace(slack_ns=3_000_000)
    assert patient.pause_ns == PACE.pause_ns + 3_000_000
    assert steady(times, patient) == (len(times) - 1 - PACE.burst_packets, times[-1] - times[PACE.burst_packets], 0)


def test_a_link_that_is_off_for_most_of_the_time_is_measured_as_stalled() -> None:
    """The link is on for 8 ms and off for 60 ms. The measured rate is right and the stalls show the pauses."""

    def still(at_ns: int) -> int:
        at, length_ns = divmod(at_ns, 68_000_000)
        return at_ns if length_ns < 8_000_000 else (at + 1) * 68_000_000

    times = token_bucket(1000, PACE.packet_ns, PACE.burst_ns, still)
    steps, full_ns, stalled_ns = steady(times, PACE)
    assert steps * PACE.packet_ns / full_ns == pytest.approx(1, rel=0.01)
    assert stalled_ns / (times[-1] - times[0]) == pytest.approx(59 / 68, abs=0.02)


def test_too_few_packets_give_no_measurement() -> None:
    assert steady([], PACE) == steady([1, 2, 3, 4, 5, 6, 7], PACE) == (0, 0, 0)
