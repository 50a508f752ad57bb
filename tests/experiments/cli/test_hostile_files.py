"""Hostile files from outside: exit status 2, one line, and little memory."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import patience

from thalweg import __version__
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.papers.study import FORMAT
from thalweg.experiments.records.records import EVENTS, SCHEMA
from thalweg.operators import write_image

DEEP = 200_000
PEAK_MB = 400  # of them the interpreter, numpy and pyarrow take 100
MEASURE = """
import sys
from thalweg.experiments.cli.main import invoke
status = invoke(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(status, int(peak.split()[1]) // 1024)
"""


def png(width: int, height: int, bits: int = 8, kind: int = 2, rows: bytes = b"") -> bytes:
    """Return a picture whose header claims this size, and which holds ``rows``, deflated."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def tiff(tile: int) -> bytes:
    """Return a grey picture of ten by ten pixels in one square tile of this size."""
    data = zlib.compress(bytes(tile * tile), 9)
    tags = {256: 10, 257: 10, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 134, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


# What follows makes, in a folder, a hostile input, and gives the command line that reads it. What is large, or takes
# long to make, is made when a test wants it.
Make = Callable[[Path, Any], list[str]]
Data = bytes | str | Callable[[], bytes]


def as_bytes(data: Data) -> bytes:
    if isinstance(data, str):
        return data.encode()
    return data if isinstance(data, bytes) else data()


def text(name: str, data: Data, *command: str) -> Make:
    def make(folder: Path, new_run: Any) -> list[str]:
        (folder / name).write_bytes(as_bytes(data))
        return [*command, str(folder / name)]

    return make


def beside(name: str, data: Data, *command: str) -> Make:
    """Return a maker of a hostile file in a run's folder."""

    def make(folder: Path, new_run: Any) -> list[str]:
        run = new_run(folder / "run")
        run.flow("one-shot", 8.0, link_rows=8)
        run.write()
        (folder / "run/plots").mkdir()
        write_image(np.zeros((4, 4), np.uint8), folder / "run/plots/arrivals.png")  # so that none is drawn
        where = folder / "run" / name
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(as_bytes(data))
        return [*(command or ("report", "--out", str(folder / "page.html"))), str(folder / "run")]

    return make


def sweep(toml: Data | None, figures: Data | None = None) -> Make:
    """Return a maker of a sweep's folder with figures."""
    valid_figures = f'{{"format": {FORMAT}, "version": "{__version__}"}}'

    def make(folder: Path, new_run: Any) -> list[str]:
        for name, data in (("sweep.toml", "" if toml is None else toml), ("figures.json", figures or valid_figures)):
            (folder / name).write_bytes(as_bytes(data))
        return ["report", "--out", str(folder / "page.html"), str(folder)]

    return make


def picture(data: Data, name: str = "a.png") -> Make:
    def make(folder: Path, new_run: Any) -> list[str]:
        for site in ("a", "b"):
            (folder / "pictures" / site).mkdir(parents=True)
            write_image(np.zeros((4, 4), np.uint8), folder / "pictures" / site / "b.png")
        (folder / "pictures/a" / name).write_bytes(as_bytes(data))
        where = str(folder / "pictures")
        out = str(folder / "out")
        return ["run", "--testbed", "loopback", "--servers", "2", "--images", "2", "--folder", where, "--out", out]

    return make


def events(detail: str, rows: int = 3) -> Make:
    """Return a maker of an event log with ``rows`` records of this detail. The text is stored once."""
    plain = {"run": "r", "host": "h1", "t_s": 0.0, "wall_s": 0.0, "kind": "relocated"}

    def make(folder: Path, new_run: Any) -> list[str]:
        command = beside("none", b"")(folder, new_run)
        columns = [pa.array([plain.get(field.name)] * rows, field.type) for field in SCHEMA if field.name != "detail"]
        once = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([detail]))
        fields = [*list(SCHEMA)[:-1], SCHEMA.field("detail").with_type(once.type)]
        table = pa.Table.from_arrays([*columns, once], schema=pa.schema(fields))
        pq.write_table(table, folder / "run" / EVENTS, store_schema=False, dictionary_pagesize_limit=1 << 30)
        return command

    return make


NESTED = "[" * DEEP + "]" * DEEP
TABLES = "{a=" * DEEP + "1" + "}" * DEEP
DOTS = ".".join("a" * 1 for _ in range(DEEP)) + "=1"
DIGITS = "x = " + "9" * 100_000
TOML = {"nested": f"x = {NESTED}", "tables": f"x = {TABLES}", "dots": DOTS, "digits": DIGITS, "bytes": b"\xff\xfe\x00"}
JSON = {"nested": NESTED, "objects": '{"a":' * DEEP + "1" + "}" * DEEP, "digits": '{"rows": ' + "9" * 100_000 + "}"}
LINES: dict[str, Data] = {
    "one line": lambda: b"9" * 80_000_000,
    "columns": lambda: b"time_s,bandwidth_bps\n" + b"," * 30_000_000,
    "lines": lambda: b"time_s,bandwidth_bps\n" + b"\n" * 40_000_000 + b"x",
    "gz": b"\x1f\x8b\x08\x00" + b"\x00\xff" * 500,
}
SITES = "src,dst,rtt_ms\n" + "".join(f"a{i},b{i},1\n" for i in range(30_000))
SQUARE = "node," + ",".join(f"n{i}" for i in range(60_000)) + "\n" + "x\n" * 60_000
PICTURES: dict[str, Data] = {
    "bomb": cache(lambda: png(20_000, 20_000, 8, 0, bytes(20_001 * 20_000))),
    "huge": png(2**31 - 1, 2**31 - 1),
    "header only": png(9_000, 9_000),
    "16 bits a band": png(9_000, 9_000, 16),
    "truncated": cache(lambda: png(4_000, 4_000, 8, 2, bytes(12_001 * 4_000))[:-200]),
    "nothing": b"",
    "tile": cache(lambda: tiff(17_000)),
}
HOSTILE: dict[str, Make] = {
    **{f"scenario, {what}": text("s.toml", data, "testbed", "plan") for what, data in TOML.items()},
    **{f"placement, {what}": text("p.toml", data, "place") for what, data in TOML.items()},
    **{f"trace, {what}": text("t.csv", data, "traces", "describe") for what, data in LINES.items()},
    **{f"mahimahi, {what}": text("t.mahi", data, "traces", "describe") for what, data in LINES.items()},
    "mahimahi, a late stamp": text("t.mahi", "1\n999999999999999\n", "traces", "describe"),
    "grid, sites": text("g.csv", SITES, "traces", "describe"),
    "grid, square": text("g.csv", SQUARE, "traces", "describe"),
    **{f"run.toml, {what}": beside("run.toml", data) for what, data in TOML.items()},
    **{f"comparison, {what}": beside("comparison.json", data) for what, data in JSON.items()},
    **{f"fault plan, {what}": text("p.json", data, "sweep", "--replay-faults") for what, data in JSON.items()},
    **{f"sweep.toml, {what}": sweep(data) for what, data in TOML.items()},
    **{f"figures, {what}": sweep(None, data) for what, data in JSON.items()},
    **{f"picture, {what}": picture(data) for what, data in PICTURES.items()},
    **{f"composite, {what}": beside("images/sheet.png", data) for what, data in PICTURES.items()},
    **{f"plot, {what}": beside("plots/hosts.png", data) for what, data in PICTURES.items()},
    "events, no Parquet": beside(EVENTS, b"PAR1" + b"\xff" * 100 + b"PAR1"),
    "events, detail nested": events(detail='{"x": ' + NESTED + "}"),
    "events, detail is none": events(detail="7"),
    "events, a long text many times": events(detail='{"why": "' + "x" * 1_000_000 + '"}', rows=2_000),
    "place option, nested": lambda folder, _: [
        "place", "docs/examples/placement.toml", "--option", f"k={NESTED[:90_000]}"
    ],
}  # fmt: skip


LARGE = (
    "trace, lines",
    "grid, square",
    "picture, tile",
    "picture, header only",
    "composite, bomb",
    "events, a long text many times",
)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_a_single_line(
    what: str, tmp_path: Path, new_run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(HOSTILE[what](tmp_path, new_run)) == 2
    error = capfd.readouterr().err.strip()
    assert error.startswith("thalweg: ")
    assert error.count("\n") == 0
    assert len(error) < 2_000


@pytest.mark.parametrize("what", LARGE)
def test_a_hostile_file_takes_little_memory(what: str, tmp_path: Path, new_run: Any) -> None:
    command = [sys.executable, "-c", MEASURE, *HOSTILE[what](tmp_path, new_run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=True)
    status, peak_mb = map(int, done.stdout.split())
    assert status == 2
    assert peak_mb < PEAK_MB
