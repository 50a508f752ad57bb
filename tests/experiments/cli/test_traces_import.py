"""Files of field tools are imported with the expected figures, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from thalweg.experiments.cli.traces import app
from thalweg.middleware.errors import TraceError, UsageError

TR = "--time t --rate r:bit"
READ_IN_S = "column 't' is read in s; else write --time t:UNIT"
G_NET_TRACK = (
    "Timestamp,Longitude,Latitude,Operatorname,NetworkMode,RSSI,DL_bitrate,UL_bitrate,State\n"
    "2019.12.16_07.22.43,-8.4,51.8,B,LTE,-,0,0,I\n"
    "2019.12.16_07.22.44,-8.4,51.8,B,LTE,-,12024,201,D\n"
    "2019.12.16_07.22.44,-8.4,51.8,B,LTE,-,12026,201,D\n"
    "2019.12.16_07.22.46,-8.4,51.8,B,5G,-,81000,201,D\n"
)
HSDPA = (  # Riiser et al. (MMSys 2013) and van der Hooft et al. (2016): s, ms, place, bytes, ms
    "1284389033 122453 59.84 10.78 78000 1000\n"
    "1284389034 123453 59.84 10.78 90000 1000\n"
    "1284389036 125453 59.84 10.78 0 2000\n"
)
PENSIEVE = "0.0\t4.03\n0.5\t3\n1.0\t0\n"


def sums(*intervals: dict[str, Any]) -> str:
    return json.dumps({"start": {}, "intervals": [{"streams": [], "sum": values} for values in intervals], "end": {}})


def interval(start: float, rate: float, **more: Any) -> dict[str, Any]:
    return {"start": start, "end": start + 1, "seconds": 1, "bytes": rate / 8, "bits_per_second": rate, **more}


GOOD: dict[str, tuple[str, str | bytes, str, Sequence[tuple[float, ...]], Sequence[str]]] = {
    # --- public forms
    "G-NetTrack (UCC 4G and 5G data sets)": (
        "a.csv", G_NET_TRACK, "--time Timestamp --rate DL_bitrate:kbit --sort",
        [(0, 0), (1, 12_025_000), (3, 81_000_000)],
        ["read as year, month, day, and starts with 2019.12.16_07.22.43", "1 row left out by the mean"]),
    "HSDPA logs of Norway, 4G logs of Ghent": (
        "bus.log", HSDPA, "--time 2:ms --bytes 5:b --per 6:ms", [(0, 624_000), (1, 720_000), (2, 0), (3, 0)],
        ["blanks separate", "the interval '6' of a row is taken to end at its time"]),
    "Pensieve": ("norway_bus_1", PENSIEVE, "", [(0, 4.03e6), (0.5, 3e6), (1, 0)],
                 ["pairs are read as seconds and Mbit/s", "tabs separate"]),
    "Pensieve, from another time on, CSV by name": (
        "oboe.csv", "0.474 3.5\n1.474 2\n", "", [(0, 3.5e6), (1, 2e6)], ["seconds and Mbit/s", "blanks"]),
    "Pensieve by option": ("x.up", "7 1\n8 2\n", "--format pensieve", [(0, 1e6), (1, 2e6)], ["blanks separate"]),
    "iperf3": ("i.json", sums(interval(0, 8e6), interval(1, 9e6)), "", [(0, 8e6), (1, 9e6)], []),
    "iperf3, UDP, omitted": (
        "i.json", sums(interval(0, 1, omitted=True), interval(0, 8e6, lost_percent=25), interval(1, 9e6,
        lost_percent=0)),
        "", [(0, 8e6, 0.25), (1, 9e6, 0)], ["1 interval omitted by iperf3"]),
    "iperf3, a stream of events": (
        "i.txt", "\n".join(json.dumps({"event": kind, "data": data}) for kind, data in [
            ("start", {}), ("interval", {"sum": interval(0, 5)}), ("interval", {"sum": interval(1.0004, 6)}), ("end",
            {})]),
        "", [(0, 5), (1, 6)], []),
    "Mahimahi": ("lte.up", "500\n1000\n1500\n2000\n", "", [(0, 12_000), (1, 36_000)], []),
    "FCC (webget)": (
        "a.csv", "unit_id,dtime,bytes_sec\n386,2016-01-01 00:00:39,1022096\n386,2016-01-01 00:00:49,981123\n",
        "--time dtime --rate bytes_sec", [(0, 8_176_768), (10, 7_848_984)],
        ["as ISO 8601", "'bytes_sec' is read in bps; for bits write --rate bytes_sec:bit"]),
    "iperf3, both directions": (
        "i.json", json.dumps({"intervals": [{"sum": interval(n, 8e6), "sum_bidir_reverse": {}} for n in (0, 1)]}), "",
        [(0, 8e6), (1, 8e6)], ["the reverse direction of --bidir is left out"]),
    "rows of Mahimahi": ("a.up", "1000\n2000\n", "--sort", [(0, 0), (1, 24_000)],
                         ["read as mahimahi, which has no cells; --missing, --sort and --decimal are without effect"]),
    # --- times
    "ctime": ("a.csv", "t,r\nMon Dec 16 07:22:00 2019,1\nMon Dec 16 07:22:02 2019,2\n", TR, [(0, 1), (2, 2)],
              ["dates with the month's name, and starts with Mon Dec 16 07:22:00 2019"]),
    "ctime in blanks": ("a.txt", "Mon Dec 16 07:22:00 2019 1\nTue Dec 17 07:22:00 2019 2\n",
                        "--format csv --time 1+2+3+4+5 --rate 6:bit", [(0, 1), (86_400, 2)], ["blanks",
                        "month's name"]),
    "date of mail": ("a.csv", 't;r\nMon, 16 Dec 2019 07:22:00 +0100;1\nMon, 16 Dec 2019 07:22:00 +0000;2\n', TR,
                     [(0, 1), (3600, 2)], ["semicolons", "month's name"]),
    "ISO 8601": ("a.csv", "t,r\n2019-12-16T07:22:00.250Z,1\n2019-12-16T08:22:01.500+01:00,2\n", TR, [(0, 1), (1.25,
        2)],
                 ["as ISO 8601"]),
    "ISO 8601 without a header": ("a.csv", "2019-12-16 07:22:00,1\n2019-12-16 07:23:00,2\n", "--time 1 --rate 2:bit",
                                  [(0, 1), (60, 2)], ["as ISO 8601"]),
    "day, month, year": ("a.csv", "t,r\n16.12.2019 07:22,1\n16.12.2019 07:23,2\n", TR, [(0, 1), (60, 2)],
                         ["as day, month, year"]),
    "month, day, year": ("a.csv", "t,r\n1/2/2019 11:59:59 PM,1\n1/3/2019 12:00:01 AM,2\n", TR, [(0, 1), (2, 2)],
                         ["as month, day, year"]),
    "a day above 12 after a slash": ("a.csv", "t,r\n31/1/2019 23:59:59,1\n1/2/2019 00:00:00,2\n", TR, [(0, 1), (1, 2)],
                                     ["as day, month, year"]),
    "clock times": ("a.csv", "t,r\n23:59:58.5,1\n23:59:59.0,2\n00:00:01,3\n", TR, [(0, 1), (0.5, 2), (2.5, 3)],
                    ["as times of day", "passes 1 midnight"]),
    "date and clock in two columns": ("a.csv", "Date,Clock,r\n2019-12-16,07:22:00,1\n2019-12-16,07:22:05,2\n",
                                      "--time Date+Clock --rate r:bit", [(0, 1), (5, 2)], ["as ISO 8601"]),
    "epoch in ms": ("a.csv", "t,r\n1700000000000,1\n1700000060000,2\n", TR, [(0, 1), (60, 2)],
                    ["read in ms, as 1700000000000 is then 2023-11-14 22:13:20"]),
    "epoch in us": ("a.csv", "t,r\n1700000000000000,1\n1700000000500000,2\n", TR, [(0, 1), (0.5, 2)], ["read in us"]),
    "epoch in ns": ("a.csv", "t,r\n1700000000000000000,1\n1700000001000000000,2\n", TR, [(0, 1), (1, 2)],
        ["read in ns"]),
    "epoch in s with a fraction": ("a.csv", "t,r\n1700000000.1,1\n1700000000.3,2\n", TR, [(0, 1), (0.2, 2)],
                                   ["read in s, as 1700000000.1 is then"]),
    "a name that contradicts the epoch": (
        "a.csv", "t_s,r\n1700000000000,1\n1700000060000,2\n", "--time t_s --rate r:bit", [(0, 1), (60_000, 2)],
        ["read in s by its name, but 1700000000000 is a date in ms: 2023-11-14 22:13:20; else write --time t_s:ms"]),
    "our header with an epoch in ms": (
        "a.csv", "time_s,bandwidth_bps\n1700000000000,1\n1700000060000,2\n", "", [(0, 1), (60_000, 2)],
        ["time_s is in s, but 1700000000000 is a date in ms"]),
    # --- separators and decimal marks
    "semicolons and decimal commas": ("a.csv", "t;r\n0,5;1,25\n1,5;2\n", TR, [(0, 1.25), (1, 2)],
                                      ["semicolons separate its columns, commas are decimal", READ_IN_S]),
    "semicolons and an unclear comma": ("a.csv", "t;r\n0;8,200\n1;9,000\n", TR, [(0, 8.2), (1, 9)],
                                        ["'8,200' is read as 8.2; else write --decimal point", "semicolons",
                                        READ_IN_S]),
    "semicolons and points": ("a.csv", "t;r\n0;8,200.5\n1;9\n", TR, [(0, 8200.5), (1, 9)],
                              ["semicolons", READ_IN_S,
                              "marks between thousands are left out, as in '8,200.5' (8200.5)"]),
    "tabs": ("a.tsv", "t\tr\n0\t1\n1\t2\n", TR, [(0, 1), (1, 2)], ["tabs separate", READ_IN_S]),
    "blanks": ("a.txt", "  t   r\n  0   1\n 10   2\n", TR, [(0, 1), (10, 2)], ["blanks separate", READ_IN_S]),
    "blanks and decimal commas": ("a.txt", "t r\n0,5 1,5\n1,5 2,5\n", TR, [(0, 1.5), (1, 2.5)],
                                  ["blanks separate its columns, commas are decimal", READ_IN_S]),
    "decimal commas in quotes": ("a.csv", 't,r\n"0,5","1,5"\n"1,5",2\n', TR, [(0, 1.5), (1, 2)],
                                 ["commas in its cells are decimal; else write --decimal point", READ_IN_S]),
    "blanks beside commas": ("a.csv", " 0 , 5\n 1, 6\n2 ,7\n", "--time 1:s --rate 2:bit", [(0, 5), (1, 6), (2, 7)], []),
    "commas in text": ("a.csv", 't,"place, roughly",r\n0,"a, b",5\n1,c,6\n', TR, [(0, 5), (1, 6)], [READ_IN_S]),
    # --- lines
    "comments and blank lines": ("a.csv", "# made by x\n\nt,r\n0,1\n\n# pause\n1,2\n\n", TR, [(0, 1), (1, 2)],
        [READ_IN_S]),
    "a header in a comment": ("a.csv", "# t, r\n0,1\n1,2\n", TR, [(0, 1), (1, 2)], [READ_IN_S]),
    "a header that is repeated": ("a.csv", "t,r\n0,1\nt,r\n1,2\n", TR, [(0, 1), (1, 2)], [READ_IN_S,
        "1 repeated header"]),
    "a short last row": ("a.csv", "t,r,x\n0,1,a\n1,2,b\n2,", TR, [(0, 1), (1, 2)],
                         [READ_IN_S,
                         "a.csv:4: '2,' has 2 column(s), not the 3 of the header; as the last line it is left out"]),
    "a last row with an open quote": ("a.csv", 't,r,x\n0,1,a\n1,2,b\n2,3,"c', TR, [(0, 1), (1, 2)],
                                      [READ_IN_S, "a.csv:4: '2,3,\"c' is not a line of a CSV file; as the last line"]),
    "separators at the end": ("a.csv", "t,r\n0,1,\n1,2,,\n", TR, [(0, 1), (1, 2)], [READ_IN_S]),
    "Windows": ("a.csv", b"\xef\xbb\xbft,r\r\n0,1\r\n1,2\r\n", TR, [(0, 1), (1, 2)], [READ_IN_S]),
    "UTF-16": ("a.csv", "t\tr\tplace\n0\t1\tKöln\n1\t2\tKøge\n".encode("utf-16"), TR, [(0, 1), (1, 2)], ["tabs",
        READ_IN_S]),
    "UTF-16 without a mark": ("a.csv", "t,r\n0,1\n1,2\n".encode("utf-16-le"), TR, [(0, 1), (1, 2)],
                              ["read as UTF-16-LE, by its zero bytes", READ_IN_S]),
    "Latin-1": ("a.csv", "t,r,place\n0,1,Köln\n1,2,Køge\n".encode("latin-1"), TR, [(0, 1), (1, 2)],
                [READ_IN_S, "not UTF-8 from line 2 on; read as Latin-1"]),
    # --- cells
    "missing cells are dropped": ("a.csv", "t,r\n0,1\n1,-\n2,NaN\n3,\n4,5\n", f"{TR} --missing drop", [(0, 1), (4, 5)],
                                  [READ_IN_S, "3 missing cells; such rows are left out"]),
    "missing cells hold": ("a.csv", "t,r\n0,-\n1,4\n2,n/a\n3,5\n", f"{TR} --missing hold", [(0, 4), (1, 4), (2, 5)],
                           [READ_IN_S, "2 missing cells; the value before holds"]),
    "missing cells are zero": ("a.csv", "t,r\n0,-\n1,4\n2,null\n", f"{TR} --missing zero", [(0, 0), (1, 4), (2, 0)],
                               [READ_IN_S, "2 missing cells; read as 0"]),
    "missing cells that hold in sorted rows": ("a.csv", "t,r\n2,-\n0,4\n1,6\n", f"{TR} --missing hold --sort",
                                               [(0, 4), (1, 6), (2, 6)], [READ_IN_S, "1 missing cell",
                                               "1 row came after"]),
    "thousands": ("a.csv", 't,r\n0,"1,234,567"\n1,"2,000.5"\n2,3 000\n', TR, [(0, 1_234_567), (1, 2000.5), (2, 3000)],
                  [READ_IN_S, "marks between thousands are left out, as in '1,234,567' (1234567)"]),
    "thousands with points": ("a.csv", "t;r\n0;1.234,5\n1;2\n", TR, [(0, 1234.5), (1, 2)],
                              ["commas are decimal", READ_IN_S, "as in '1.234,5' (1234.5)"]),
    "units in cells": (
        "a.csv", "t,r,d\n0 ms,8.5 Mbps,40 ms\n500 ms,900 kbit/s,0.1 s\n1000 ms,1 MB/s,50ms\n",
        "--time t --rate r --delay d",
        [(0, 8.5e6, 0.04), (0.5, 9e5, 0.1), (1, 8e6, 0.05)],
        ["'ms' in cells of 't' is read as ms", "'Mbps' in cells of 'r' is read as mbit",
        "'ms' in cells of 'd' is read as ms",
         "'kbit/s' in cells of 'r' is read as kbit", "'s' in cells of 'd' is read as s",
         "'MB/s' in cells of 'r' is read as mbps"]),
    "units in cells of round trips and losses": (
        "a.csv", "t,p,l\n0,40 ms,5%\n1,80 ms,0 %\n", "--time t:s --rtt p --loss l", [(0, 0.02, 0.05), (1, 0.04, 0)],
        ["'ms' in cells of 'p' is read as ms", "'%' in cells of 'l' is read as %"]),
    "bytes per second by name": ("a.csv", "t,rx [MB/s]\n0,1\n1,2\n", "--time t:s --rate rx|[MB/s]", [(0, 8e6), (1,
        16e6)],
                                 ["column 'rx [MB/s]' is read in mbps; for bits write"]),
    "a guessed rate": ("a.csv", "t,bandwidth\n0,1\n1,2\n", "--time t:s --rate bandwidth", [(0, 1), (1, 2)],
                       ["column 'bandwidth' is read in bit; else write --rate bandwidth:UNIT"]),
    # --- rows
    "unsorted rows": ("a.csv", "t,r\n2,3\n0,1\n1,2\n", f"{TR} --sort", [(0, 1), (1, 2), (2, 3)],
                      [READ_IN_S, "rows are sorted, since 1 row came after a later one"]),
    "rows of one time": ("a.csv", "t,r\n0,1\n0,3\n1,4\n1,4\n", f"{TR} --sort", [(0, 2), (1, 4)],
                         [READ_IN_S, "2 rows left out by the mean"]),
    "bytes in a fixed interval": ("a.csv", "t,n\n0,1000\n30,2000\n", "--time t:s --bytes n:b --per 30s",
                                  [(0, 8000 / 30), (30, 16_000 / 30)], []),
    "bytes with a gap": ("a.csv", "t,n,i\n1,1000,1\n2,2000,1\n5,3000,1\n6,0,1\n", "--time t:s --bytes n:b --per i:s",
                         [(0, 8000), (1, 16_000), (4, 24_000), (5, 0)], ["is taken to end"]),
    "a hole is held": ("a.csv", "t,r\n0,1\n1,2\n2,3\n12,4\n", f"{TR} --hole hold", [(0, 1), (1, 2), (2, 3), (12, 4)],
        [READ_IN_S]),
    "a hole is an outage": ("a.csv", "t,r\n0,1\n1,2\n2,3\n12,4\n", f"{TR} --hole outage",
                            [(0, 1), (1, 2), (2, 3), (3, 0), (12, 4)], [READ_IN_S]),
    "a hole of losses is an outage": ("a.csv", "t,l\n0,0\n1,0.5\n2,0\n12,0\n", "--time t:s --loss l:% --hole outage",
                                      [(0, 0), (1, 0.005), (2, 0), (3, 1), (12, 0)], []),
    "a short hole by option": ("a.csv", "t,r\n0,1\n1,2\n3,3\n4,4\n", f"{TR} --hole outage --hole-over 1.5s",
                               [(0, 1), (1, 2), (2, 0), (3, 3), (4, 4)], [READ_IN_S]),
}  # fmt: skip


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def words(arguments: str) -> list[str]:
    return [word.replace("|", " ") for word in arguments.split()]


@pytest.mark.parametrize("case", GOOD)
def test_an_odd_file_is_imported_with_the_right_figures_and_every_guess_is_noted(tmp_path: Path, case: str) -> None:
    name, content, arguments, rows, notes = GOOD[case]
    path, out = write(tmp_path, name, content), tmp_path / "out"
    result = CliRunner().invoke(
        app, ["import", str(path), *words(arguments), "--out", str(out)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    (imported,) = out.iterdir()
    lines = imported.read_text().splitlines()[1:]
    got = [tuple(map(float, line.split(","))) for line in lines]
    assert got == [pytest.approx(row, rel=1e-9) for row in rows]
    stderr_lines = result.stderr.splitlines()
    assert [note for note, line in zip(notes, stderr_lines, strict=True) if note not in line] == [], stderr_lines
    assert all(line.startswith(f"note: {path}") for line in stderr_lines)


BAD: dict[str, tuple[str, str | bytes, str, str]] = {
    "an empty file": ("a.csv", "", TR, r"a\.csv:1: there is no one column 't'"),
    "comments alone": ("a.csv", "# t,r\n\n", TR, r"a\.csv:1: there is no one column 't'"),
    "a header alone": ("a.csv", "t,r\n", TR, r"a\.csv: no rows after the header"),
    "our header is absent": ("a.csv", "0,1\n1,2\n", "", r"a\.csv:1: the header is absent; name columns by number"),
    "a missing cell": ("a.csv", "t,r\n0,1\n1,-\n", TR,
        r"a\.csv:3: r is '-', not a number; .* --missing drop, hold or zero"),
    "a missing time": ("a.csv", "t,r\n0,1\n,2\n", f"{TR} --missing hold",
        r"a\.csv:3: t is '', .*`--missing drop` leaves"),
    "all cells missing": ("a.csv", "t,r\n0,-\n1,-\n", f"{TR} --missing hold", "no value at all to hold"),
    "all rows dropped": ("a.csv", "t,r\n0,-\n1,-\n", f"{TR} --missing drop", r"a\.csv: no rows"),
    "text in a number": ("a.csv", "t,r\n0,1\n1,fast\n", TR, r"a\.csv:3: r is 'fast', not a number"),
    "a decimal comma late": ("a.csv", 't,r\n' + "".join(f"{n},1\n" for n in range(200)) + '200,"1,5"\n', TR,
                             r"a\.csv:202: r is '1,5', not a number; write --decimal comma"),
    "an unknown unit in a cell": ("a.csv", "t,r\n0,1 furlong\n", TR,
        r"a\.csv:2: r is '1 furlong': 'furlong' is no unit"),
    "infinity": ("a.csv", "t,r\n0,1\n1,inf\n", TR, r"a\.csv:3: r is 'inf'; it must be finite"),
    "a negative rate": ("a.csv", "t;r\n0;1\n1;-2\n", TR, r"a\.csv:3: r is -2, below 0; an outage is 0"),
    "unsorted rows": ("a.csv", "t,r\n0,1\n2,1\n1,1\n", TR, r"a\.csv:4: t 1 is earlier than .*`--sort` sorts rows"),
    "rows of one time": ("a.csv", "t,r\n0,1\n0,1\n", TR, r"a\.csv:3: t 0 repeats the row before's; `--sort`"),
    "a short row in the middle": ("a.csv", "t,r,x\n0,1,a\n1,2\n2,3,a\n", TR,
        r"a\.csv:3: '1,2' has 2 column\(s\), not the 3"),
    "a long row": ("a.csv", "t,r\n0,1,7\n", TR,
        r"a\.csv:2: '0,1,7' has 3 column\(s\), not the 2 of the header; correct or"),
    "two forms of times": ("a.csv", "t,r\n" + "".join(f"07:22:{n % 60:02},1\n" for n in range(101)) + "noon,2\n",
        f"{TR} --sort",
                           r"a\.csv:103: t is 'noon', but the first times are read as times of day"),
    "no form of time": ("a.csv", "t,r\nyesterday,1\n", TR, "a.csv:2: t is 'yesterday', not a number and no known form"),
    "a bad date among good ones": ("a.csv", "t,r\n2019.02.28_07.22.00,1\n2019.02.30_07.22.00,2\n", TR,
        r"a\.csv:3: t is '2019.02.30_07.22.00', but the first times are read as year, month, day"),
    "an impossible date": ("a.csv", "t,r\n2019.02.30_07.22.00,1\n", TR,
        r"a\.csv:2: t is '2019.02.30_07.22.00', not a"),
    "a unit for dates": ("a.csv", "t,r\n07:22:00,1\n", "--time t:ms --rate r",
        r"--time t:ms has a unit, but 't' has dates"),
    "two columns that are no time": ("a.csv", "a,b,r\nx,y,1\n", "--time a+b --rate r",
        r"a\+b is to be dates .* begins with 'x y'"),
    "an interval of 0": ("a.csv", "t,n,i\n1,1,1\n2,1,0\n", "--time t --bytes n --per i",
        r"a\.csv:3: the interval i is 0"),
    "an interval in another unit": ("a.csv", "t,n,i\n1,1,1000\n2,1,1000\n", "--time t --bytes n --per i:s",
                                    r"add up to 1000 s, but the rows span 1 s; is the unit of --per right"),
    "bytes alone": ("a.csv", "t,n\n1,1\n", "--time t --bytes n", "--bytes needs --per"),
    "bytes and rates": ("a.csv", "t,n\n1,1\n", "--time t --bytes n --rate n --per 1s",
        "both name the column of rates"),
    "an interval of 0 s": ("a.csv", "t,n\n1,1\n", "--time t --bytes n --per 0s", "must be longer than 0"),
    "a refused hole": ("a.csv", "t,r\n0,1\n1,2\n2,3\n12,4\n", f"{TR} --hole refuse",
                       r"a\.csv: a hole, the longest of 10 s from 2 s on; write --hole outage or hold"),
    "an outage of delays": ("a.csv", "t,r\n0,1\n1,2\n2,3\n12,4\n", "--time t --delay r:ms --hole outage",
                            "neither rates nor losses"),
    "broken UTF-16": ("a.csv", "t,r\n0,1\n".encode("utf-16") + b"\x00", TR, r"a\.csv: not UTF-16 text"),
    "JSON cut short": ("a.json", '{"start": {},\n"intervals": [', "", r"a\.json:2: not JSON: .*was iperf3 stopped"),
    "JSON of another tool": ("a.json", '{"traces": []}', "", "no list 'intervals'; is this a report of iperf3"),
    "JSON nested too deep": ("a.json", '{"a":' * 100_000, "", "nested too deep|not JSON"),
    "iperf3 that failed": ("a.json", '{"intervals": [], "error": "unable to connect\\nto server"}', "",
                           "iperf3 failed: unable to connect to server; measure again"),
    "iperf3 without intervals": ("a.json", '{"intervals": []}', "", "no intervals; run iperf3 with --json"),
    "iperf3 without a rate": ("a.json", sums({"start": 0, "end": 1}), "", "interval 1 has no 'bits_per_second'"),
    "two runs of iperf3": ("a.json", sums(interval(0, 1), interval(1, 1), interval(0, 2)), "",
        "interval 3 starts at 0 s, before"),
    "columns of iperf3": ("a.json", sums(interval(0, 1)), "--rate x --format iperf3",
        "a report of iperf3 has no columns"),
    "Mahimahi with text": ("a.up", "1\nx\n", "", r"a\.up:2: 'x' is not a time stamp"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_single_line(tmp_path: Path, case: str) -> None:
    name, content, arguments, says = BAD[case]
    path, out = write(tmp_path, name, content), tmp_path / "out"
    with pytest.raises((TraceError, UsageError), match=says) as caught:
        CliRunner().invoke(app, ["import", str(path), *words(arguments), "--out", str(out)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not out.exists()


@pytest.mark.parametrize(
    ("rows", "arguments", "last"),
    [
        ("0,1\n1,2\n2,3\n", "", "duration 3 s, median step 1 s, no hole (longest step 1 s)"),
        ("0,1\n1,2\n2,3\n12,4\n", "", "duration 13 s, median step 1 s, longest hole 10 s from 2 s on, held"),
        ("0,1\n1,2\n2,3\n12,4\n", "--hole outage",
        "duration 13 s, median step 1 s, longest hole 10 s from 2 s on, an outage"),
        ("0,1\n1,2\n2,3\n12,4\n", "--hole-over 1min", "duration 13 s, median step 1 s, no hole (longest step 10 s)"),
        ("0,1\n", "", "duration 1 s, no hole"),
    ],
)  # fmt: skip
def test_the_last_line_has_duration_median_step_and_longest_hole(
    tmp_path: Path, rows: str, arguments: str, last: str
) -> None:
    path = write(tmp_path, "a.csv", f"time_s,bandwidth_bps\n{rows}")
    result = CliRunner().invoke(app, ["import", str(path), *words(arguments), "--out", str(tmp_path / "out")])
    assert result.stdout.splitlines()[-1] == last


def test_the_last_line_of_several_files_has_ranges_and_names_the_longest_hole(tmp_path: Path) -> None:
    first = write(tmp_path, "one.csv", "time_s,loss\n0,0\n1,0\n2,0\n")
    second = write(tmp_path, "two", "0 1\n2 1\n4 1\n64 1\n")
    arguments = ["import", str(first), str(second), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    says = "duration 3 s to 66 s, median step 1 s to 2 s, longest hole 60 s from 4 s on in two, held"
    assert result.stdout.splitlines()[-1] == says
    result = CliRunner().invoke(app, [*arguments, "--force", "--json"], catch_exceptions=False)
    steps = json.loads(result.stdout.splitlines()[-1])["steps"]
    assert [(step["name"], step["duration_s"], step["median_s"], step["holes"]) for step in steps] == [
        ("one", 3.0, 1.0, 0), ("two", 66.0, 2.0, 1),
    ]  # fmt: skip


def test_a_note_on_several_files_is_printed_once(tmp_path: Path) -> None:
    files = [str(write(tmp_path, f"trace{n}", "0 1\n1 2\n")) for n in range(3)]
    result = CliRunner().invoke(app, ["import", *files, "--out", str(tmp_path / "out")], catch_exceptions=False)
    notes = result.stderr.splitlines()
    assert len(notes) == 2
    assert all(note.startswith(f"note: {files[0]} and 2 more files: ") for note in notes)


def test_describe_says_that_quantiles_are_of_averages_over_10_s(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "time_s,bandwidth_bps\n0,1\n1,2\n")
    shown = CliRunner().invoke(app, ["describe", str(path)]).stdout
    assert "median, p5 and p95 rates, and changes: those of 10 s averages" in " ".join(shown.split())
    asked = CliRunner().invoke(app, ["describe", str(path), "--json"]).stdout
    assert json.loads(asked.splitlines()[-1])["averages_s"] == 10.0
