from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from thalweg.emulation.traces import cells, columns, foreign, holes, times
from thalweg.emulation.traces.chosen import chosen, unit_at_end
from thalweg.emulation.traces.files import import_trace, sniff_import
from thalweg.emulation.traces.foreign import Reading
from thalweg.emulation.traces.link import LinkTrace
from thalweg.middleware.errors import TraceError, UsageError

TWO = {"--time": "1:s", "--rate": "2:bit"}


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "apart_s", "order"),
    [
        ("Mon Dec 16 07:22:00 2019", "Mon Dec 16 07:22:01 2019", 1, "named"),
        ("Mon Dec  6 07:22:00 UTC 2019", "Mon Dec  6 08:22:00 UTC 2019", 3600, "named"),
        ("Dec 16, 2019 07:22:00", "Dec 16, 2019 07:22:01", None, ""),
        ("16 Dec 2019 07:22:00", "17 Dec 2019 07:22:00", 86_400, "named"),
        ("16-Dec-2019 07:22:00.5", "16-Dec-2019 07:22:01.0", 0.5, "named"),
        ("Mon, 16 Dec 2019 07:22:00 +0200", "Mon, 16 Dec 2019 07:22:00 -0030", 9000, "named"),
        ("2019-12-16T07:22:00", "2019-12-16T07:22:00.000001", 1e-6, "iso"),
        ("2019-12-16 07:22:00+00:00", "2019-12-16 07:22:00-01:00", 3600, "iso"),
        ("20191216T072200Z", "20191216T072201Z", 1, "iso"),
        ("2019-W51-1T07:22", "2019-W51-2T07:22", 86_400, "iso"),
        ("2019.12.16_07.22.00", "2019.12.16_07.22.00.250", 0.25, "ymd"),
        ("2019/12/16 07:22:00", "2020/1/1 07:22:00", 16 * 86_400, "ymd"),
        ("28.2.2019 23:59:59", "1.3.2019 00:00:00", 1, "dmy"),
        ("02/28/2019 11:59:59 pm", "03/01/2019 12:00:00 a.m.", 1, "mdy"),
        ("07:22", "07:23", 60, "clock"),
        ("7:22:00 PM", "7:22:01 PM", 1, "clock"),
        ("23:59:60", "00:00:01", 1, "clock"),
    ],
)
def test_time_stamps_of_many_forms_are_read_in_seconds(
    first: str, second: str, apart_s: float | None, order: str
) -> None:
    stamps = times.guessed([first, second])
    if apart_s is None:
        assert stamps is None
        return
    assert stamps is not None
    assert stamps.order == order
    assert stamps.seconds(first) == 0.0
    assert stamps.seconds(second) == apart_s


@pytest.mark.parametrize(
    "text",
    ["", "5", "1.5e3", "-", "h1", "2019", "24:00:00", "07:60:00", "2019.13.01_00.00.00", "Mon Foo 16 07:22:00 2019",
     "13:00:00 PM", "1/2/19 07:22:00", "2019-12-16", "٢٣:٠٠:٠٠", "31.2.2019 07:22:00"],
)  # fmt: skip
def test_texts_of_other_forms_are_not_read_as_stamps(text: str) -> None:
    assert not times.is_stamp(text)


def test_a_stamp_of_a_different_form_is_not_read() -> None:
    stamps = times.guessed(["16.12.2019 07:22:00"])
    assert stamps is not None
    assert stamps.seconds("16.12.2019 07:22:00") == 0.0
    assert stamps.seconds("2019-12-16 07:22:00") is None


@pytest.mark.parametrize(
    ("number", "unit", "date"),
    [
        (1.7e9, "s", "2023-11-14 22:13:20"),
        (1.7e12, "ms", "2023-11-14 22:13:20"),
        (1.7e15, "us", "2023-11-14 22:13:20"),
        (1.7e18, "ns", "2023-11-14 22:13:20"),
        (86_400, "", ""),
        (99_999_999, "", ""),
    ],
)
def test_the_unit_of_an_epoch_follows_from_the_size_of_the_number(number: float, unit: str, date: str) -> None:
    assert times.epoch_unit(number) == unit
    if unit:
        assert times.date_of(number, unit) == date
    assert times.date_of(1e18, "s") == "a date beyond the year 9999"


# --- cells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("8.25", 8.25, 8.25),
        ("8,25", None, 8.25),
        ("8,250", 8250, 8.25),
        ("1,234,567.5", 1234567.5, None),
        ("1.234.567,5", None, 1234567.5),
        ("1 234 567", 1234567, 1234567),
        ("1\u202f234", 1234, 1234),
        ("1'234.5", 1234.5, None),
        ("1,23,456", None, None),
        ("1,234 567", None, None),
        ("1_000", None, None),
        ("٣", None, None),
        ("+5.", 5, 5),
        ("1e3", 1000, 1000),
        ("", None, None),
        ("0x10", None, None),
    ],
)
def test_a_number_is_read_by_its_decimal_mark(text: str, point: float | None, comma: float | None) -> None:
    assert cells.number(text, "point") == point
    assert cells.number(text, "comma") == comma


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("dl_mbps", "rate", "mbit"), ("Mbps", "rate", "mbit"), ("MBps", "rate", "mbps"), ("rx (kB/s)", "rate", "kbps"),
        ("tx Mbit/s", "rate", "mbit"), ("bytes/sec", "rate", "bps"), ("bits_per_second", "rate", "bit"),
        ("bytes_sec", "rate", "bps"), ("bandwidth", "rate", ""), ("rttMs", "time", "ms"),
        ("latency [ms]", "time", "ms"), ("rtt_min", "time", ""),
        ("epoch_ns", "time", "ns"), ("millis", "time", "ms"), ("loss (%)", "share", "%"), ("rx_bytes", "size", "b"),
    ],
)  # fmt: skip
def test_the_end_of_a_column_name_gives_the_unit(name: str, kind: columns.Kind, unit: str) -> None:
    assert unit_at_end(name, kind) == unit


# --- files ------------------------------------------------------------------------------------------


def test_plain_lines_of_every_separator_are_read_in_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careful(self: foreign._Table, first: int, block: bytes) -> list[columns.FloatArray]:
        raise AssertionError(f"line {first} is read by itself")

    monkeypatch.setattr(foreign._Table, "_careful", careful)
    forms = [(",", False), (";", True), ("\t", True), ("  ", True), ("\t", False), (" ", False)]
    for number, (separator, comma) in enumerate(forms):
        lines = [f"{n}.5{separator}{n}.25" for n in range(200)]
        text = "\n".join(lines)
        path = put(tmp_path, f"{number}.txt", f"{text.replace('.', ',') if comma else text}\n")
        trace = import_trace(path, "csv", TWO)
        assert trace.times_s.tolist() == list(range(200)), separator
        assert trace.figures["bandwidth_bps"].tolist() == [n + 0.25 for n in range(200)]


def test_only_the_block_of_an_odd_line_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", 1000)
    careful, read = foreign._Table._careful, list[int]()

    def counted(self: foreign._Table, first: int, block: bytes) -> list[columns.FloatArray]:
        read.append(block.count(b"\n") + 1)
        return careful(self, first, block)

    monkeypatch.setattr(foreign._Table, "_careful", counted)
    path = put(tmp_path, "a.csv", "".join(f"{n},{'-' if n == 5000 else n}\n" for n in range(10_000)))
    trace = import_trace(path, None, TWO, reading=Reading(missing="hold"))
    assert trace.figures["bandwidth_bps"][4998:5002].tolist() == [4998, 4999, 4999, 5001]
    assert len(trace.times_s) == 10_000
    assert len(read) == 1
    assert read[0] < 150


@given(
    rows=st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e12)), min_size=2, max_size=30),
    separator=st.sampled_from([",", ";", "\t", " ", "   "]),
    comma=st.booleans(),
    shuffled=st.randoms(use_true_random=False),
)
def test_every_separator_decimal_mark_and_order_gives_the_same_figures(
    tmp_path: Path, rows: list[tuple[int, float]], separator: str, comma: bool, shuffled: object
) -> None:
    stamps = np.cumsum([step for step, _ in rows]).tolist()
    comma = comma and separator != ","
    lines = []
    for stamp, (_, rate) in zip(stamps, rows, strict=True):
        line = f"{stamp}.0{separator}{rate!r}"
        lines.append(line.replace(".", ",") if comma else line)
    shuffled.shuffle(lines)  # type: ignore[attr-defined]
    path = put(tmp_path, "a.txt", "\n".join(["# made", *lines, ""]))
    trace = import_trace(path, "csv", TWO, reading=Reading(sort=True, decimal="comma" if comma else "point"))
    assert trace.times_s == pytest.approx(np.array(stamps) - stamps[0])
    assert trace.figures["bandwidth_bps"].tolist() == [rate for _, rate in rows]


@example(data=b"0,-\n1,-\n", sort=False, missing=None, form="csv")
@example(data=b"0,1\n\xff\xfe", sort=False, missing=None, form="csv")
@example(data=b"\xff\xfe0", sort=False, missing=None, form=None)
@example(data=b"1 1\n1 1e300\n", sort=True, missing=None, form=None)
@example(data=b"1,1,1\n2,3\n4", sort=False, missing=None, form="csv")
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.text("0123456789.,;:-+eE_ \t\"'#nainfTZ\n\r", max_size=60).map(str.encode),
        st.text("0123456789-:T ,\n", max_size=60).map(str.encode),
    ),
    sort=st.booleans(),
    missing=st.sampled_from([None, "drop", "hold", "zero"]),
    form=st.sampled_from([None, "csv", "pensieve", "iperf3", "mahimahi"]),
)
def test_all_bytes_give_a_sound_trace_or_a_single_line_error(
    tmp_path: Path, data: bytes, sort: bool, missing: foreign.Missing | None, form: str | None
) -> None:
    path = put(tmp_path, "a.txt", data)
    words = {"--time": "1", "--rate": "2"} if form == "csv" else None
    message = ""
    try:
        trace = import_trace(path, form, words, reading=Reading(missing, sort))  # type: ignore[arg-type]
        trace = holes.filled(trace, "outage", None, path)
    except (TraceError, UsageError) as error:
        message = str(error)
    if message:
        assert len(message.splitlines()) == 1
        assert str(path) in message
    else:
        rate = trace.rate
        assert rate is not None
        assert rate.duration_s > 0


def test_a_rate_from_byte_counts_carries_the_same_bytes(tmp_path: Path) -> None:
    lines = [f"{1000 * (n + 1) + n % 3} {1000 * n} {1000 + n % 3 - (n - 1) % 3}" for n in range(50)]
    path = put(tmp_path, "ghent.log", "\n".join(lines))
    trace = import_trace(path, None, {"--time": "1:ms", "--bytes": "2:b", "--per": "3:ms"})
    rate = trace.rate
    assert rate is not None
    assert rate.bits_between(0.0, rate.duration_s - 1e-9) == pytest.approx(8000 * sum(range(50)), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a.csv", "time_s,loss\n", "csv"), ("a.csv", "1 2\n", "pensieve"), ("a", "# x\n\n0.5\t2e0\n", "pensieve"),
        ("a", "1\n2\n", "mahimahi"), ("a.up", "one two\n", "mahimahi"), ("a.txt", "t r\n", "csv"),
        ("a", "t;r\n", "csv"),
        ("a", '\ufeff {"start": 1}', "iperf3"), ("a", "", "mahimahi"), ("a.csv", "", "csv"), ("a.csv", "5\n", "csv"),
    ],
)  # fmt: skip
def test_the_file_name_and_the_first_line_give_the_format(tmp_path: Path, name: str, content: str, form: str) -> None:
    assert sniff_import(put(tmp_path, name, content)) == form
    if content:
        assert sniff_import(put(tmp_path, name, content.encode("utf-16"))) == form


def test_holes_are_steps_of_more_than_five_medians() -> None:
    rates = {"bandwidth_bps": np.arange(6.0)}
    trace = LinkTrace("a", np.array([0.0, 1, 2, 7, 8, 13.5]), rates)
    steps = holes.steps(trace)
    assert (steps.median_s, steps.longest_s, steps.longest_at_s, steps.holes) == (1.0, 5.5, 8.0, 1)
    filled = holes.filled(trace, "outage", None, Path("a.csv"))
    assert filled.times_s.tolist() == [0, 1, 2, 7, 8, 9, 13.5]
    assert filled.figures["bandwidth_bps"].tolist() == [0, 1, 2, 3, 4, 0, 5]
    assert filled.duration_s == trace.duration_s
    assert holes.steps(trace, 4.0).holes == 2
    assert holes.filled(trace, "hold", None, Path("a.csv")) is trace


def test_a_report_of_iperf3_lasts_until_its_last_interval_ends(tmp_path: Path) -> None:
    spans = [(0, 1.0001), (1.0001, 2.0002), (2.0002, 2.5)]
    sums = [{"sum": {"start": start, "end": end, "bits_per_second": 8e6}} for start, end in spans]
    trace = import_trace(put(tmp_path, "a.json", json.dumps({"intervals": sums})))
    assert trace.name == "a"
    assert trace.duration_s == 2.5
    assert trace.times_s.tolist() == [0, 1.0001, 2.0002]


def test_reading_a_file_twice_gives_the_same_trace_and_notes(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "Time;rate\n16.12.2019 07:22:00;1,5 Mbps\n16.12.2019 07:22:01;2 Mbps\n")
    all_notes = [list[str](), list[str]()]
    traces = [import_trace(path, None, {"--time": "Time", "--rate": "rate"}, note=notes.append) for notes in all_notes]
    assert all_notes[0] == all_notes[1] == [
        f"{path}: semicolons separate its columns, commas are decimal",
        f"{path}: column 'Time' is read as day, month, year, and starts with 16.12.2019 07:22:00",
        f"{path}: 'Mbps' in cells of 'rate' is read as mbit",
    ]  # fmt: skip
    assert traces[0].figures["bandwidth_bps"].tolist() == traces[1].figures["bandwidth_bps"].tolist() == [1.5e6, 2e6]


def test_a_column_may_be_chosen_by_number_even_if_the_file_has_names(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "t,2\n0,7\n1,8\n")
    for word in ("1", "t"):
        trace = foreign.read(path, chosen({"--time": f"{word}:s", "--rate": "2:bit"}, foreign.quiet))
        assert trace.figures["bandwidth_bps"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([(0, 0), (0, 1)], "interval 1 starts at 0 s and ends at 0 s; each interval must take time"),
        ([(0, 1), (1, 0.5)], "interval 2 starts at 1 s and ends at 0.5 s; each interval must take time"),
        ([(0, 1), (0.5, 2)], "interval 2 starts at 0.5 s, before interval 1 ends"),
    ],
)
def test_an_interval_of_iperf3_that_cannot_be_is_named_with_its_times(
    tmp_path: Path, spans: list[tuple[float, float]], says: str
) -> None:
    sums = [{"sum": {"start": start, "end": end, "bits_per_second": 8e6}} for start, end in spans]
    with pytest.raises(TraceError, match=re.escape(says)):
        import_trace(put(tmp_path, "a.json", json.dumps({"intervals": sums})))
