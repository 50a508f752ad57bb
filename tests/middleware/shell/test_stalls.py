"""Stalls of connections by the figures of the kernel. Slow connections and starved hosts do not stall."""

from __future__ import annotations

import pytest

from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.stalls import REPORTED_S, Outflow, Stalls

END = "tcp://10.0.0.2:7801", "h2"


class Kernel:
    """Figures of the kernel for one connection, and its idle time at each check."""

    def __init__(self, acked_bytes: int = 10_000) -> None:
        self.flow: Outflow | None = Outflow(acked_bytes, waits=True)
        self.stalls, self.now = Stalls(lambda end: self.flow), 100.0
        self.look(0.0)

    def look(self, after_s: float = 1.0, acked_bytes: int | None = None, *, waits: bool = True) -> float | None:
        self.now += after_s
        if acked_bytes is not None:
            self.flow = Outflow(acked_bytes, waits)
        return self.stalls.check({END}, self.now).get(END)


def test_a_stalled_connection_is_reported_until_bytes_get_through() -> None:
    kernel = Kernel()
    assert [kernel.look() for _ in range(5)] == [None, None, 3.0, 4.0, 5.0]
    assert kernel.look(acked_bytes=10_500) == 0.0
    assert kernel.look(acked_bytes=11_000) is None
    assert kernel.stalls.moves(END)
    assert not kernel.stalls.came(END)


def test_a_connection_that_cannot_be_made_is_reported_as_stalled() -> None:
    kernel = Kernel()
    kernel.flow = None
    assert [kernel.look() for _ in range(3)] == [None, None, 3.0]


@pytest.mark.parametrize("packet_s", [1.5, 3.0, 6.0])
def test_a_slow_link_that_carries_a_packet_now_and_then_is_alive(packet_s: float) -> None:
    """At 8 kbit/s a packet of 1,500 bytes takes 1.5 s, and longer on a shared link."""
    kernel = Kernel()
    for second in range(600):
        idle_s = kernel.look(acked_bytes=10_000 + 1448 * int(second / packet_s))
        assert (idle_s or 0.0) <= packet_s + 1.0 < CoreConfig().stall_s


def test_packets_that_arrive_after_a_lost_packet_show_that_a_route_works() -> None:
    """The acknowledged bytes stay the same until the lost packet has come again, behind a queue of half a minute."""
    kernel = Kernel()
    for second in range(60):
        kernel.flow = Outflow(10_000, waits=True, delivered=10 + second)
        assert kernel.look() is None
    assert [kernel.look() for _ in range(4)] == [None, None, 3.0, 4.0]


def test_a_starved_host_with_a_closed_window_is_not_reported_as_stalled() -> None:
    """All that was sent has arrived, and the window is closed: the process there is starved, or was stopped."""
    kernel = Kernel()
    for _ in range(600):
        assert kernel.look(acked_bytes=10_000, waits=False) is None


def test_the_time_in_which_the_process_did_not_run_does_not_count() -> None:
    kernel = Kernel()
    assert kernel.look(after_s=30.0) is None
    assert kernel.look(after_s=30.0) == 4.0


def test_the_greeting_of_a_new_connection_is_no_sign_that_partitions_pass() -> None:
    kernel = Kernel()
    for _ in range(5):
        kernel.look()
    assert kernel.look(acked_bytes=300) == 5.0  # it passes, slowly perhaps, and no time is counted
    assert kernel.look(acked_bytes=300) == 6.0
    assert kernel.look(acked_bytes=300, waits=False) == 6.0  # nothing is on its way just now
    assert kernel.look(acked_bytes=700) == 6.0
    assert kernel.look() == 7.0
    assert kernel.look(acked_bytes=3000) == 0.0


def test_a_slow_route_has_the_time_of_several_round_trips_even_after_a_redial() -> None:
    """At 8 kbit/s there is a queue of 9 s, in which packets of the connection before wait as well."""
    kernel = Kernel()
    kernel.flow = Outflow(100_000, waits=True, rtt_s=9.0)
    assert kernel.look() is None  # it has carried something
    assert [kernel.look() for _ in range(20)] == [None] * 20
    assert kernel.look() == 3.0
    kernel.flow = None
    assert [kernel.look() for _ in range(9)] == [4.0 + second for second in range(9)]
    fresh = Kernel()
    fresh.flow = Outflow(100_000, waits=True, rtt_s=9.0)
    fresh.look()
    fresh.flow = None
    assert [fresh.look() for _ in range(20)] == [None] * 20


def test_a_credit_for_a_small_transfer_ends_a_stall() -> None:
    kernel = Kernel()
    for _ in range(int(REPORTED_S)):
        kernel.look()
    assert kernel.stalls.came(END)
    assert not kernel.stalls.came(END)
    assert kernel.look() is None


def test_a_new_connection_starts_with_a_new_count() -> None:
    """The kernel counts a new connection from 0. It need not reach the count of the connection before."""
    kernel = Kernel(acked_bytes=5_000_000)
    assert [kernel.look(acked_bytes=each) for each in (2500, 4000, 5500, 7000)] == [None] * 4
    assert kernel.stalls.moves(END)


def test_a_connection_without_data_to_send_is_forgotten() -> None:
    kernel = Kernel()
    for _ in range(5):
        kernel.look()
    assert kernel.stalls.check((), kernel.now + 1.0) == {}
    assert kernel.look() is None
