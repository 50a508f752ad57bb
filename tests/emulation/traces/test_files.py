from __future__ import annotations

import csv
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from thalweg.emulation.traces.chosen import chosen
from thalweg.emulation.traces.files import (
    HEADER,
    MAHIMAHI_PACKET_BYTES,
    load_pool,
    pool_files,
    read_csv,
    read_link_trace,
    read_mahimahi,
    read_trace,
    write_csv,
)
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError

positive = st.floats(1e-3, 1e6)


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- CSV --------------------------------------------------------------------------------------------


def test_a_csv_file_is_read(tmp_path: Path) -> None:
    trace = read_csv(put(tmp_path, "lab.csv", f"{HEADER}\n0,84000000\n540,5.9e7\n660,0\n"))
    assert trace == BandwidthTrace("lab", np.array([0.0, 540, 660]), np.array([84e6, 59e6, 0]), 660 + 330)


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\r\n0,5\r\n1,6\r\n",
        f"\ufeff{HEADER}\n0,5\n1,6",
        f"{HEADER}\n 0 , 5\n1,6\n\n\n",
        f"{HEADER} \n0.0,+5.\n1e0,6E+0\n",
    ],
)
def test_harmless_differences_of_writing_are_accepted(tmp_path: Path, content: str) -> None:
    trace = read_csv(put(tmp_path, "a.csv", content))
    assert (trace.times_s.tolist(), trace.rates_bps.tolist()) == ([0.0, 1.0], [5.0, 6.0])


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ("0,5\n1,fast\n", 3, "bandwidth_bps is 'fast', not a number"),
        ("zero,5\n", 2, "time_s is 'zero', not a number"),
        ("0,1_000\n", 2, "'1_000', not a number"),
        ("0,٣\n", 2, "not a number"),
        ("0,\n", 2, "bandwidth_bps is '', not a number"),
        ("0,5\n1,-6\n2,x\n", 3, "bandwidth_bps is -6, below 0"),
        ("0,5\n1,nan\n", 3, "'nan'; it must be finite"),
        ("0,5\ninf,6\n", 3, "'inf'; it must be finite"),
        ("0,1e999\n", 2, "'1e999'; it must be finite"),
        ("0,5\n2,5\n1,5\n", 4, "time_s 1 is earlier than the row before's"),
        ("0,5\n1,5\n1,5\n", 4, "time_s 1 repeats the row before's"),
        ("-1,5\n0,5\n", 2, "the first time is -1, not 0"),
        ("7,5\n8,5\n", 2, "the first time is 7, not 0"),
        ("0,5,6\n", 2, "has 3 column(s)"),
        ("0,1,2\n3\n", 2, "has 3 column(s)"),  # right in the number of values, wrong in their rows
        ("0,5\n\n1,6\n", 3, "has 1 column(s)"),
        ("0;5\n", 2, "has 1 column(s)"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, rows: str, line: int, words: str) -> None:
    path = put(tmp_path, "bad.csv", f"{HEADER}\n{rows}")
    with pytest.raises(TraceError) as caught:
        read_csv(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{HEADER}\n", "no rows"),
        (b"", ":1: the header is ''"),
        (b"0,5\n1,6\n", ":1: the header is '0,5', not 'time_s,bandwidth_bps'"),
        (b"src,dst,rtt_ms\na,b,3\n", ":1: the header is"),
        (f"{HEADER}\n0,5\n".encode() + b"1,\xff\n", ":3: not UTF-8"),
        (f"{HEADER}\n0,5\n".encode("utf-16"), ":1: not UTF-8"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_csv(put(tmp_path, "bad.csv", content))
    assert words in str(caught.value)


@example(data=b"\x1c0")  # white space to str.strip, not to int
@given(data=st.one_of(st.binary(max_size=60), st.text("0123456789.,-+eE_ nainf\n\r", max_size=60).map(str.encode)))
def test_all_bytes_give_a_sound_trace_or_a_trace_error(tmp_path: Path, data: bytes) -> None:
    for path, read in (
        (put(tmp_path, "a.csv", HEADER.encode() + b"\n" + data), read_csv),
        (put(tmp_path, "a.up", data), read_mahimahi),
    ):
        try:
            trace = read(path)
        except TraceError as error:
            trace, text = None, str(error)
        if trace is None:
            assert text.startswith((f"{path}:", "trace 'a"))
            assert len(text.splitlines()) == 1
        else:
            assert trace.duration_s > 0


@given(st.lists(st.tuples(positive, st.floats(0, 1e12)), min_size=1, max_size=12), positive)
def test_written_traces_read_back_the_same(tmp_path: Path, rows: list[tuple[float, float]], start: float) -> None:
    edges = np.cumsum([0.0, *(step for step, _ in rows)])
    trace = BandwidthTrace("a", edges[:-1], np.array([rate for _, rate in rows]), float(edges[-1]))
    write_csv(trace, tmp_path / "a.csv")
    back = read_csv(tmp_path / "a.csv")
    assert back.duration_s == pytest.approx(trace.duration_s, rel=1e-11)
    assert np.array_equal(back.times_s[: len(trace)], trace.times_s)
    assert np.array_equal(back.rates_bps[: len(trace)], trace.rates_bps)
    assert (back.rates_bps[len(trace) :] == trace.rates_bps[-1]).all()


def test_a_regular_trace_is_written_row_by_row_and_leaves_no_other_file(tmp_path: Path) -> None:
    trace = BandwidthTrace("a", np.arange(3) * 0.5, np.array([1e6, 0, 2.5]))
    write_csv(trace, tmp_path / "new" / "a.csv")
    assert (tmp_path / "new" / "a.csv").read_text() == f"{HEADER}\n0,1000000\n0.5,0\n1,2.5\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.csv"]
    put(tmp_path, "file", "")
    with pytest.raises(UsageError, match="cannot be written"):
        write_csv(trace, tmp_path / "file" / "a.csv")


# --- Mahimahi ---------------------------------------------------------------------------------------


def test_a_mahimahi_file_is_binned_and_starts_over_at_its_last_stamp(tmp_path: Path) -> None:
    trace = read_mahimahi(put(tmp_path, "lte.up", "0\n999\n1000\n1000\n1000\n2600\n3000\n"))
    packet_bits = MAHIMAHI_PACKET_BYTES * 8
    assert trace.name == "lte.up"
    assert trace.duration_s == 3.0
    assert trace.rates_bps.tolist() == [2 * packet_bits, 3 * packet_bits, 2 * packet_bits]
    finer = read_mahimahi(tmp_path / "lte.up", step_s=0.5)
    assert finer.rates_bps.tolist() == [24000, 24000, 72000, 0, 0, 48000]


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=50), st.sampled_from([0.1, 0.25, 1.0, 7.0]))
def test_no_mahimahi_packet_is_lost(tmp_path: Path, stamps: list[int], step_s: float) -> None:
    stamps = sorted([*stamps, max(stamps) + 1])
    path = put(tmp_path, "a.down", "".join(f"{stamp}\n" for stamp in stamps))
    trace = read_mahimahi(path, step_s=step_s)
    assert trace.duration_s == stamps[-1] / 1000
    packets = trace.bits_between(0.0, trace.duration_s - 1e-9) / (MAHIMAHI_PACKET_BYTES * 8)
    assert packets == pytest.approx(len(stamps), rel=1e-5)
    write_csv(trace, tmp_path / "a.csv")
    assert read_csv(tmp_path / "a.csv").duration_s == pytest.approx(trace.duration_s, rel=1e-11)


@pytest.mark.parametrize(
    ("content", "at", "words"),
    [
        ("", "", "no time stamps"),
        ("1\n2.5\n", ":2", "'2.5' is not a time stamp in whole milliseconds"),
        ("1\n-2\n", ":2", "'-2' is not a time stamp"),
        ("1\n\n2\n", ":2", "'' is not a time stamp"),
        ("1\nx\n", ":2", "'x' is not a time stamp"),
        ("5\n9\n7\n", ":3", "time stamp 7 is earlier than the one before, 9"),
        ("0\n0\n", ":2", "the last time stamp is 0 ms"),
        ("1\n" + "9" * 5000 + "\n", ":2", "is not a time stamp"),
        ("999999999999999\n", ":1", "too many"),
        (b"1\n\xff\n", ":2", "not UTF-8"),
    ],
)
def test_a_bad_mahimahi_line_is_named(tmp_path: Path, content: str | bytes, at: str, words: str) -> None:
    path = put(tmp_path, "bad.mahi", content)
    with pytest.raises(TraceError) as caught:
        read_mahimahi(path)
    assert str(caught.value).startswith(f"{path}{at}: ")
    assert words in str(caught.value)


# --- pools ------------------------------------------------------------------------------------------


def test_a_folder_is_loaded_with_all_subfolders_sorted_by_name(tmp_path: Path) -> None:
    put(tmp_path, "b/one.csv", f"{HEADER}\n0,5\n1,0\n")
    put(tmp_path, "a.CSV", f"{HEADER}\n0,6\n")
    for name in ("b/lte.up", "b/lte.down", "c/d/x.mahi", "c/y.trace"):
        put(tmp_path, name, "1\n500\n1000\n")
    put(tmp_path, "csv-inside.trace", f"{HEADER}\n0,7\n")
    put(tmp_path, "README.md", "not a trace")
    put(tmp_path, "b/._one.csv", b"\xff")
    pool = load_pool(tmp_path)
    assert [trace.name for trace in pool] == [
        "a", "b/lte.down", "b/lte.up", "b/one", "c/d/x.mahi", "c/y.trace", "csv-inside.trace",
    ]  # fmt: skip
    assert pool[3].rates_bps.tolist() == [5.0, 0.0]
    assert [trace.name for trace in load_pool(tmp_path / "b" / "one.csv")] == ["one"]
    assert read_trace(tmp_path / "c" / "y.trace", step_s=0.5).rates_bps.tolist() == [24000.0, 48000.0]


def test_the_pool_of_a_data_collection_is_the_bandwidth_folder(tmp_path: Path) -> None:
    put(tmp_path, "bandwidth/set/one.csv", f"{HEADER}\n0,5\n")
    put(tmp_path, "latency/rtt.csv", "a,b\n1,2\n")
    assert list(pool_files(tmp_path)) == ["set/one"]


def test_a_pool_without_traces_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "README.md", "")
    with pytest.raises(TraceError, match=r"there are no traces under .* expected"):
        load_pool(tmp_path)
    with pytest.raises(TraceError, match="there is no trace file or folder"):
        load_pool(tmp_path / "missing")
    with pytest.raises(TraceError, match=r"cannot read .*missing"):
        read_trace(tmp_path / "missing.up")


# --- the real ones ----------------------------------------------------------------------------------


def real_traces() -> Path:
    if "THALWEG_TRACES" not in os.environ:
        reason = "THALWEG_TRACES is not set: no real traces"
        if "traces" in os.environ.get("THALWEG_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(os.environ["THALWEG_TRACES"])


def test_all_real_traces_are_sound(tmp_path: Path) -> None:
    pool = load_pool(real_traces())
    for trace in pool:
        assert trace.bits_between(0.0, trace.duration_s * 3) == pytest.approx(3 * trace.mean_bps * trace.duration_s)
        assert trace.transfer_time_s(16_384, 12.0) > 0
    longest = max(pool, key=len)
    write_csv(longest, tmp_path / "copy.csv")
    assert np.array_equal(read_csv(tmp_path / "copy.csv").rates_bps, longest.rates_bps)


def test_summaries_of_real_traces_match_the_bandwidth_index() -> None:
    root = real_traces()
    index = next((up / "bandwidth_index.csv" for up in [root, *root.absolute().parents[:2]]
                  if (up / "bandwidth_index.csv").is_file()), None)  # fmt: skip
    if index is None:
        pytest.skip("no bandwidth_index.csv near THALWEG_TRACES")
    with index.open() as file:
        known = {(row["dataset"], row["series"]): row for row in csv.DictReader(file)}
    compared = 0
    for path in pool_files(root).values():
        row = known.get((path.parent.name, path.stem))
        if row is None:
            continue
        compared += 1
        summary = read_trace(path).summary()
        change_s = float(row["median_s_between_10pct_changes"] or "nan")
        assert summary.median_change_s == pytest.approx(change_s) or (np.isnan(change_s) and summary.changes == 0)
        # How long the last row of an irregular series holds is a convention, which moves quantiles a little.
        loose = 0.05 if path.parent.name == "wanify_aws" else 1e-3
        assert summary.median_bps == pytest.approx(float(row["median_bps"]), rel=loose, abs=1)
    assert compared > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["own", "columns", "mahimahi"])
def test_reading_many_rows_takes_little_memory_and_reports_progress(tmp_path: Path, kind: str) -> None:
    rows = 200_000
    kinds = {
        "own": (f"{HEADER}\r\n", lambda i: f"{i},{1000 + i % 7}\r\n"),
        "columns": ("x,at,rate\r\n", lambda i: f"a,{i},{1000 + i % 7}\r\n"),
        "mahimahi": ("", lambda i: f"{10 * i + 10}\r\n"),
    }
    head, row = kinds[kind]
    path = put(tmp_path, "long.up" if kind == "mahimahi" else "long.csv", head + "".join(map(row, range(rows))))
    reports: list[tuple[int, int]] = []

    def read(path: Path) -> BandwidthTrace:
        def tell(done: int, total: int) -> None:
            reports.append((done, total))

        if kind == "mahimahi":
            return read_mahimahi(path, tell=tell)
        choose = chosen({"--time": "at", "--rate": "rate"}, lambda note: None) if kind == "columns" else None
        rate = read_link_trace(path, choose, tell=tell).rate
        assert rate is not None
        return rate

    tracemalloc.start()
    try:
        trace = read(path)
        write_csv(trace, tmp_path / "again.csv")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40 * len(trace) + 24e6  # of which blocks of lines take the most
    assert len(trace) == (rows // 100 if kind == "mahimahi" else rows)
    assert len(reports) > 1
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] <= reports[-1][1] == path.stat().st_size
    assert read_csv(tmp_path / "again.csv", name=trace.name) == trace
    late = {
        "own": (f"\n{rows - 5},", f"\n{rows - 7},", f":{rows - 3}: time_s {rows - 7} is earlier than the row before's"),
        "columns": (f",{rows - 5},", f",{rows - 7},", f":{rows - 3}: at {rows - 7} is earlier than the row before's"),
        "mahimahi": (f"\n{10 * rows - 50}\n", f"\n{10 * rows - 70}\n", f":{rows - 5}: time stamp {10 * rows - 70} is "),
    }
    before, after, says = late[kind]
    with pytest.raises(TraceError, match=says):
        read(put(tmp_path, f"bad{path.suffix}", path.read_text().replace(before, after)))
