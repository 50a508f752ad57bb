"""A log that cannot be written stops no run, consists of whole lines, and counts its missing rows."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows import chain
from hypothesis import given
from hypothesis import strategies as st
from patience import patience

from thalweg.middleware.client.client import Client
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol.run_id import NO_RUN
from thalweg.middleware.shell import recorder as module
from thalweg.middleware.shell.recorder import GAP_BYTES, Recorder
from thalweg.middleware.shell.shell import Shell, ShellConfig

TOLD = re.compile(r"^the records .* cannot be written: .*; the runs go on, and missing rows are counted$")


class Disk:
    """Disk with ``room`` bytes for a file. A write beyond them fails as on a full disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._write = os.pwrite
        patch.setattr(module.os, "pwrite", self.pwrite)
        patch.setattr(module, "AGAIN_S", 0.0)

    def pwrite(self, file: int, text: bytes, offset: int) -> int:
        room = max(self.room, os.fstat(file).st_size) - offset  # what is written already can be written over
        if room <= 0:
            raise OSError(28, "No space left on device")
        return self._write(file, text[:room], offset)


def slow_disk(patch: pytest.MonkeyPatch) -> threading.Event:
    """Have the disk write nothing until the returned event is set."""
    ready, write = threading.Event(), os.pwrite

    def slow(file: int, text: bytes, offset: int) -> int:
        assert ready.wait(patience(30))
        return write(file, text, offset)

    patch.setattr(module.os, "pwrite", slow)
    return ready


def settle(log: Recorder) -> None:
    """Flush the log. Wait until all of its rows are written or given up."""
    log.flush()
    until_s = time.monotonic() + patience(10)
    while log._log is not None and log._log.taken_bytes < log._handed_bytes:
        assert time.monotonic() < until_s


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert not text or text.endswith(b"\n")
    return [msgspec.json.decode(line) for line in text.splitlines()]


def told(rows: list[dict[str, Any]]) -> int:
    return sum(row["detail"]["rows"] for row in rows if row["kind"] == "missing")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 4_000)), min_size=1, max_size=8), st.integers(0, 60))
def test_rows_are_written_or_counted_on_a_disk_of_random_size(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], width: int
) -> None:
    path = tmp_path_factory.mktemp("disk") / "log"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        log, written = Recorder("h1", path), 0
        for count, room in steps:
            disk.room = room
            for _ in range(count):
                log.write(NO_RUN, "row", {"index": written, "node": "x" * width})
                written += 1
            settle(log)
            rows_of(path)
        log.close()
    rows = rows_of(path)
    indices = [row["index"] for row in rows if row["kind"] == "row"]
    assert indices == sorted(set(indices))
    if len(indices) + told(rows) != written:  # there has never been room for a line that says so
        assert not told(rows)
        assert path.stat().st_size < GAP_BYTES


def test_missing_rows_are_reported_once_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "log"
    log = Recorder("h1", path)
    for room in (1 << 30, 5_000, 5_000, 1 << 30, 20_000, 1 << 30):
        disk.room = room
        for _ in range(100):
            log.write(NO_RUN, "row", {})
        settle(log)
    log.close()
    rows = rows_of(path)
    missing = [row for row in rows if row["kind"] == "missing"]
    assert [row["detail"]["reason"] for row in missing] == ["No space left on device"] * 2
    assert sum(row["kind"] == "row" for row in rows) + told(rows) == 600
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert TOLD.match(said)
    assert said.count("\n") == 0


def test_a_slow_disk_holds_up_no_run_and_rows_that_cannot_wait_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, ready = tmp_path / "log", slow_disk(monkeypatch)
    monkeypatch.setattr(module, "WAITING_BYTES", 5_000)
    monkeypatch.setattr(module, "_FLUSH_ROWS", 16)
    shell = Shell(ShellConfig("h1", insecure=True, records=str(path)))
    try:
        with Client({"h1": shell.me.control}, insecure=True) as client:
            flow = chain(Code("scenes", {"site": 0, "sites": 1, "seed": 1}), Code("composite"))
            taken = client.run(flow, {"o": "h1"}, partitions=60)
            assert [each.index for each in taken] == list(range(60))
        ready.set()
    finally:
        shell.close()
    rows = rows_of(path)
    assert told(rows) > 0
    assert {row["detail"]["reason"] for row in rows if row["kind"] == "missing"} == {module.TOO_SLOW}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert TOLD.match(said)


def test_rows_that_cannot_wait_at_the_end_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ready = tmp_path / "log", slow_disk(monkeypatch)
    monkeypatch.setattr(module, "WAITING_BYTES", 1_000)
    log = Recorder("h1", path)
    assert log._log is not None
    monkeypatch.setattr(log._log, "log_missing", lambda reason: ready.set())
    log.write(NO_RUN, "row", {})
    log.flush()
    for _ in range(20):
        log.write(NO_RUN, "row", {})
    log.close()
    rows = rows_of(path)
    assert [row["kind"] for row in rows] == ["row", "missing"]
    assert told(rows) == 20


def test_closing_a_log_does_not_wait_for_a_hanging_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(module.os, "pwrite", lambda *_: hangs.wait(30) * 0 or 1_000_000)
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    log = Recorder("h1", tmp_path / "log")
    log.write(NO_RUN, "row", {})
    begun_s = time.monotonic()
    log.close()
    assert time.monotonic() - begun_s < 5
    hangs.set()


def test_a_process_that_cannot_start_threads_writes_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = Recorder("h1", tmp_path / "log")
    monkeypatch.setattr(threading.Thread, "start", none)
    log.write(NO_RUN, "row", {})
    log.flush()
    log.close()
    assert [row["kind"] for row in rows_of(tmp_path / "log")] == ["row"]


def test_two_processes_do_not_write_to_the_same_log(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from thalweg.middleware.shell.recorder import Recorder\n"
        "log = Recorder('h1', Path(sys.argv[1])); print('up', flush=True); sys.stdin.read(); log.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        with pytest.raises(UsageError, match=r"log cannot be written: another process writes them; choose another"):
            Recorder("h2", tmp_path / "log")
        other.communicate(timeout=patience(20))
    assert other.returncode == 0
    Recorder("h2", tmp_path / "log").close()


def test_two_recorders_do_not_write_to_the_same_log(tmp_path: Path) -> None:
    log = Recorder("h1", tmp_path / "log")
    with pytest.raises(UsageError, match=r"log cannot be written: another process writes them; choose another file$"):
        Recorder("h2", tmp_path / "log")
    log.close()
    Recorder("h2", tmp_path / "log").close()


@pytest.mark.parametrize("how", ["full", "closed", "limit"])
def test_a_log_that_can_no_longer_be_written_raises_no_error(how: str, tmp_path: Path) -> None:
    path = Path("/dev/full") if how == "full" else tmp_path / "log"
    code = f"""
import logging, os, resource
from pathlib import Path
from thalweg.middleware.protocol.run_id import NO_RUN
from thalweg.middleware.shell.recorder import Recorder
logging.basicConfig(format="%(message)s")
log = Recorder("h1", Path({str(path)!r}))
if {how!r} == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
for number in range(1000):
    if {how!r} == "closed" and number == 600:
        os.close(log._log._file)
    log.write("", "row", {{"index": number}})
log.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(30), check=True
    )
    assert TOLD.match(done.stderr.strip()), done.stderr
    assert done.stderr.count("\n") == 1
    if how == "limit":
        rows = rows_of(path)
        assert path.stat().st_size <= 10_000
        assert sum(row["kind"] == "row" for row in rows) + told(rows) == 1000
