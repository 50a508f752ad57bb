"""Options of every queue discipline on slow and fast links, decoded by pyroute2 if possible."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyroute2  # noqa: F401  (as a whole: others may have imported parts of it)
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from thalweg.emulation.kernel import htb, queues
from thalweg.emulation.kernel.netlink import attributes
from thalweg.emulation.links.shape import FRAME_BYTES, RATE_FLOOR_BPS, LinkShape, Queue
from thalweg.emulation.links.units import MANAGED, Managed

RATES = st.floats(RATE_FLOOR_BPS, 2e9)
PACKET_BITS = 8 * FRAME_BYTES


def managed(rate_bps: float, discipline: Managed) -> LinkShape:
    return LinkShape(rate_bps, queue=Queue(0.1, "s", discipline))


def decoded(shape: LinkShape) -> Any:
    (message,) = htb.leaf(2, 7, shape)
    result = tcmsg(message)
    result.decode()
    return result


class Times(NamedTuple):
    """Parameters of CoDel, with times in microseconds."""

    target: int
    interval: int
    limit: int
    ecn: int


def codel(rate_bps: float, discipline: Managed) -> Times:
    queue = decoded(managed(rate_bps, discipline))
    assert queue.get_attr("TCA_KIND") == discipline
    options = queue.get_attr("TCA_OPTIONS")
    names = ("TARGET", "INTERVAL", "LIMIT", "ECN")
    return Times(*(options.get_attr(f"TCA_{discipline.upper()}_{name}") for name in names))


@pytest.mark.parametrize("discipline", ["codel", "fq_codel"])
def test_codel_has_its_usual_times_and_marks_on_a_fast_link(discipline: Managed) -> None:
    assert codel(100e6, discipline) == Times(5_000, 100_000, queues.LIMIT_PACKETS, 1)
    assert codel(2e9, discipline) == codel(100e6, discipline)


@given(RATES, st.sampled_from(("codel", "fq_codel")))
def test_codels_target_on_slow_links_is_the_time_of_a_packet_and_a_half(rate_bps: float, discipline: Managed) -> None:
    """RFC 8289, section 4.4: with a shorter target CoDel would drop the only packet of a queue."""
    times = codel(rate_bps, discipline)
    packet_us = PACKET_BITS / rate_bps * 1e6
    assert times.target == pytest.approx(max(5_000, 1.5 * packet_us), abs=1)
    assert times.interval == pytest.approx(max(100_000, 20 * times.target), abs=20)


@pytest.mark.parametrize(("rate_bps", "target_us"), [(100e6, 15_000), (2e6, 15_000), (64e3, 283_875), (8e3, 2_271_000)])
def test_pies_target_is_15_ms_or_the_time_of_a_packet_and_a_half(rate_bps: float, target_us: int) -> None:
    """RFC 8033, section 4.2."""
    (message,) = htb.leaf(2, 7, managed(rate_bps, "pie"))
    assert attributes(message[36:])[htb.TCA_KIND] == b"pie\0"
    options = {kind: struct.unpack("=I", value)[0] for kind, value in attributes(_payload(message)).items()}
    # TCA_PIE_TARGET, TCA_PIE_LIMIT, TCA_PIE_ECN (linux/pkt_sched.h)
    assert options == {1: pytest.approx(target_us, abs=1), 2: queues.LIMIT_PACKETS, 6: 1}


def _payload(message: bytes) -> bytes:
    return attributes(message[36:])[htb.TCA_OPTIONS]


class Red(NamedTuple):
    """Parameters of RED: sizes in bytes, logarithms of the average's weight and the table's steps, flags and so on."""

    limit: int
    least: int
    most: int
    w_log: int
    cell_log: int
    flags: int
    table: bytes
    probability: float


def red(rate_bps: float) -> Red:
    (message,) = htb.leaf(2, 7, managed(rate_bps, "red"))
    assert attributes(message[36:])[htb.TCA_KIND] == b"red\0"
    options = attributes(_payload(message))
    assert options.keys() == {1, 2, 3}  # TCA_RED_PARMS, TCA_RED_STAB, TCA_RED_MAX_P
    limit, least, most, w_log, _, cell_log, flags = struct.unpack("=IIIBBBB", options[1])
    probability = struct.unpack("=I", options[3])[0] / 2**32
    return Red(limit, least, most, w_log, cell_log, flags, options[2], probability)


@given(RATES)
def test_red_marks_a_share_of_packets_from_a_third_of_the_usual_queue_on(rate_bps: float) -> None:
    parameters, usual = red(rate_bps), LinkShape(rate_bps).queue_bytes
    assert parameters.most == usual
    assert parameters.least == usual // 3
    assert parameters.limit == 4 * usual
    assert parameters.flags == 1  # TC_RED_ECN
    assert parameters.probability == pytest.approx(0.02, rel=1e-6)


@given(RATES)
@example(1e9)
@example(2e9)
def test_the_kernel_accepts_red_at_every_rate(rate_bps: float) -> None:
    """The kernel requires that an average of the limits fits into 32 bits (red_check_params in include/net/red.h)."""
    parameters = red(rate_bps)
    assert len(parameters.table) == 256
    assert max(parameters.table) < 32
    assert parameters.cell_log < 32
    assert parameters.most >= parameters.least
    for size in (parameters.least, parameters.most):
        assert size.bit_length() + parameters.w_log < 32, (rate_bps, parameters)


@given(st.floats(RATE_FLOOR_BPS, 2e8))
def test_reds_average_lets_a_burst_pass_and_no_larger_burst(rate_bps: float) -> None:
    """During a burst of (least + least + most) / 3 packets the average stays below the least (tc-red(8))."""
    parameters = red(rate_bps)
    burst = (2 * parameters.least + parameters.most) / (3 * FRAME_BYTES)

    def average(w_log: int) -> float:
        """Return the average, in packets, after a burst of packets that all wait."""
        weight = 1 / (1 << w_log)
        return float(burst + 1 - (1 - (1 - weight) ** burst) / weight)

    assert average(parameters.w_log) <= parameters.least / FRAME_BYTES
    assert parameters.w_log == 1 or average(parameters.w_log - 1) > parameters.least / FRAME_BYTES


@given(st.floats(RATE_FLOOR_BPS, 2e8))
def test_reds_average_falls_on_an_idle_link_as_if_small_queues_were_measured(rate_bps: float) -> None:
    """The table has the number of halvings, as if the average fell at every packet that the link had time for."""
    parameters = red(rate_bps)
    packet_us = PACKET_BITS / rate_bps * 1e6
    assert parameters.table[0] == 0
    assert parameters.table[255] == 31
    for i in range(1, 255):
        left = (1 - 2.0**-parameters.w_log) ** ((i << parameters.cell_log) / packet_us)
        if parameters.table[i] < 31:
            assert left == pytest.approx(2.0 ** -parameters.table[i], rel=0.5)
        else:
            assert left < 2.0**-30.4
    assert any(0 < halvings < 31 for halvings in parameters.table)  # neither too fine nor too coarse


@pytest.mark.parametrize("discipline", MANAGED)
def test_disciplines_that_keep_a_queue_short_ignore_the_length(discipline: Managed) -> None:
    some = [LinkShape(4e6, queue=queue._replace(discipline=discipline)) for queue in (Queue(0.01), Queue(9, "packets"))]
    assert queues.options(some[0]) == queues.options(some[1])
    assert [htb.queue_kind(shape) for shape in some] == [discipline] * 2
    assert [shape.segments for shape in some] == [1, 1]  # it drops packets, and one of 16 segments would be 16


def test_a_rate_below_the_least_has_the_queue_of_the_least() -> None:
    for queue in (None, *(Queue(0.1, "s", discipline) for discipline in MANAGED)):
        assert queues.options(LinkShape(1.0, queue=queue)) == queues.options(LinkShape(RATE_FLOOR_BPS, queue=queue))


def test_the_limit_of_a_fifo_is_in_bytes_or_packets_as_asked() -> None:
    for queue, limit in (
        (None, 100_000),
        (Queue(0.02), 20_000),
        (Queue(65_536, "bytes"), 65_536),
        (Queue(50, "packets"), 50),
    ):
        assert queues.options(LinkShape(8e6, queue=queue)) == struct.pack("=I", limit)
    packets = decoded(LinkShape(8e6, queue=Queue(50, "packets")))
    assert (packets.get_attr("TCA_KIND"), packets.get_attr("TCA_OPTIONS")["limit"]) == ("pfifo", 50)
