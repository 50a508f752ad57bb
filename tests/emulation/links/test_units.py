"""Rates, times, shares and sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.units import (
    bytes_per_s,
    format_rate,
    format_time,
    loss,
    parse_rate,
    queue,
    rate_bps,
    remark,
    seconds,
    share,
    size_bytes,
)
from thalweg.middleware.errors import UsageError


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (seconds, "20ms", 0.02), (seconds, " 1.5 h ", 5400.0), (seconds, "2MIN", 120.0), (seconds, 3, 3.0),
        (seconds, "3", 3.0), (seconds, "5us", 5e-6), (seconds, "1e-1s", 0.1),
        (seconds, "2d", 172_800.0), (seconds, 0, 0.0),
        (share, "1%", 0.01), (share, 0.25, 0.25), (share, "0.5", 0.5), (share, "0.1 %", 0.001),
        (size_bytes, "16kb", 16_384), (size_bytes, "1g", 2**30), (size_bytes, 1500, 1500), (size_bytes, "0.5k", 512),
        (queue, "100ms", (0.1, "s", "fifo")), (queue, "64 KB", (65_536, "bytes", "fifo")),
        (queue, 50, (50, "packets", "fifo")), (queue, "50", (50, "packets", "fifo")),
        (queue, " FQ_CoDel", (0.1, "s", "fq_codel")), (queue, "red", (0.1, "s", "red")),
        (loss, "1%", (0.01, 0.0)), (loss, 0.25, (0.25, 0.0)), (loss, "1% , burst = 5", (0.01, 5.0)),
        (loss, {"p": 0.5, "burst": "4"}, (0.5, 4.0)), (loss, {"p": "20%", "correlation": 0.5}, (0.2, 2.5)),
        (bytes_per_s, "400mbit", 5e7), (bytes_per_s, "50mbps", 5e7), (bytes_per_s, "5e7", 5e7), (bytes_per_s, 5e7, 5e7),
        (rate_bps, "0.2mbit", 2e5), (rate_bps, 64_000, 64e3),
    ],
)  # fmt: skip
def test_quantities_with_units_are_read(read: Any, value: Any, expected: Any) -> None:
    assert read(value) == (expected if isinstance(expected, tuple) else pytest.approx(expected))


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (seconds, "5m", "write it as 20ms"), (seconds, -1, "at least 0"),
        (seconds, True, "^true is not a time"), (seconds, ["1s"], "not a time"), (seconds, float("nan"), "finite"),
        (seconds, "1e999s", "too large"), (share, "100%", "below 100%"), (share, 1, "below 100%"),
        (share, "1 in 7", "write it as 1%"), (size_bytes, "16 kbit", "write it as 16kb"), (size_bytes, 0, "less than"),
        (loss, "1%,5", "write it as 1%"), (loss, {"burst": 5}, "needs p"),
        (loss, {"p": 0.1, "bursts": 5}, "no 'bursts'"),
        (loss, {"p": 0.1, "burst": 5, "correlation": 0.1}, "burst and correlation exclude each other"),
        (loss, "1%,burst=0.5", "at least 1 packets"),
        (loss, "90%,burst=2", "at least 9 packets"), (loss, "1%,burst=2e6", "at most 1,000,000"),
        (loss, "1%,correlation=100%", "below 100%"), (loss, "p=1%,burst=5", "is not a loss"),
        (loss, "100%", "below 100%"),
        (queue, "64k", "write it as 100ms, 64kb"), (queue, 0, "not a queue"), (queue, 1.5, "not a queue"),
        (rate_bps, "0mbit", "above 0"), (rate_bps, "fast", "not a rate"), (rate_bps, [1], "not a rate"),
    ],
)  # fmt: skip
def test_an_invalid_quantity_is_refused_with_the_cause(read: Any, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(value)


def test_rates_that_count_bytes_are_remarked_on() -> None:
    assert remark("10Mbps") == "10Mbps counts bytes, as tc has it: 80.0 Mbit/s; for bits write 10Mbit"
    assert remark(" 2 KiBps ").endswith("16.4 kbit/s; for bits write 2 Kibit")
    assert [remark(value) for value in ("10mbit", 10, "", "fast", "10", None)] == [""] * 6


@given(st.floats(1e-4, 1e6))
def test_printed_times_read_back(time_s: float) -> None:
    shown = format_time(time_s)
    assert seconds(shown) == pytest.approx(time_s, rel=6e-3)


def test_zero_and_infinite_times_have_fixed_texts() -> None:
    assert [format_time(value) for value in (0.0, float("inf"))] == ["0 s", "for ever"]
    assert seconds("0.5ms") == 0.0005


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("0.2mbit", 200_000.0),
        ("64Kbit", 64_000.0),
        ("1gbit", 1e9),
        (" 12 bit ", 12.0),
        ("9600", 9600.0),
        ("25kbps", 200_000.0),
        ("10bps", 80.0),
        ("1MiBit", 1048576.0),
        ("1e3kbit", 1e6),
        ("0", 0.0),
    ],
)
def test_rates_are_read_with_the_units_of_tc(text: str, rate_bps: float) -> None:
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    "text", ["", "mbit", "-1mbit", "nan", "inf", "1e400", "1_000", "1 mb", "0.2mbit/s", "1,5mbit", "٣mbit"]
)
def test_invalid_rates_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"0\.2mbit|too large"):
        parse_rate(text)


@given(st.floats(0, 1e15), st.sampled_from(["", "bit"]))
def test_printed_floats_read_back_as_rates(rate_bps: float, unit: str) -> None:
    assert parse_rate(f"{rate_bps!r}{unit}") == rate_bps


@pytest.mark.parametrize(
    ("rate_bps", "text"),
    [(84e6, "84.0 Mbit/s"), (999_600, "1.00 Mbit/s"), (123_456, "123 kbit/s"), (0, "0 bit/s"), (1.5e9, "1.50 Gbit/s")],
)
def test_rates_are_printed_to_three_digits(rate_bps: float, text: str) -> None:
    assert format_rate(rate_bps) == text
