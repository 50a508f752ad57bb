"""The event log of one process: JSON Lines, written once in a while and when the process ends.

Rules:

- R1: Nothing that happens to the log stops what it is about. What cannot be written is left out and counted, which is
  logged once; after ``AGAIN_S`` it is tried again.
- R2: The log consists of whole lines. Where rows are missing one of kind ``missing`` says how many, also when there is
  no room for anything more: it is written over the last ones, which then are missing, too.
- R3: A thread of its own writes, as a disk may take its time: what is recorded waits for it, up to ``WAITING_BYTES``,
  and beyond that is missing. An end waits for ``CLOSE_S`` at most.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.logbook import WORDS, Logbook
from thalweg.middleware.platform.files import BINARY, NO_WAIT, lock, write_at
from thalweg.middleware.protocol.run_id import RunId

_FLUSH_ROWS = 256
WAITING_BYTES = 16 * 1024 * 1024
CLOSE_S = 5.0
TOO_SLOW = "the disk is too slow"
AGAIN_S = 1.0
GAP_BYTES = 320  # of a line that tells of a gap, whatever it says, so that it can be written again in its place
REASON = 80  # characters at most


class Recorder:
    """Appends records to ``path``; without a path it takes them and forgets them.

    Raises UsageError for one that cannot be written.

    A record has ``t`` (seconds of emulated time since its run's start), ``wall`` (Unix time), ``host``,
    ``placement`` (the run's label), ``kind``, and the kind's own fields. ``logbook`` logs what an operator should know
    of it, with or without a path.
    """

    def __init__(self, host: str, path: Path | None, time_scale: float = 1.0) -> None:
        self._host, self.logbook = host, Logbook(host)
        self._scale = time_scale
        self._log = None if path is None else Log(host, path, self.logbook)
        self._queue: SimpleQueue[tuple[bytes, int, int] | None] = SimpleQueue()
        self._handed_bytes = 0
        self._lost = 0  # rows that could not wait
        self._rows: list[dict[str, Any]] = []
        self._runs: dict[RunId, tuple[str, float]] = {}
        self._encoder = msgspec.json.Encoder()
        if self._log is not None:  # now, as a host that may have no more threads later is to go on
            take = self._log.take
            self._writer = threading.Thread(target=take, args=(self._queue,), name="thalweg-records", daemon=True)
            self._writer.start()

    @property
    def active(self) -> bool:
        return self._log is not None

    def open_run(self, run: RunId, label: str, epoch_s: float) -> None:
        self._runs[run] = (label, epoch_s)

    def close_run(self, run: RunId) -> None:
        self._runs.pop(run, None)
        self.flush()

    def write(self, run: RunId, kind: str, fields: dict[str, Any]) -> None:
        """Log a record, and write it to the file if there is one."""
        if kind in WORDS:
            self.logbook.record(str(run), kind, fields)
        if self._log is None:
            return
        wall = time.time()
        label, epoch_s = self._runs.get(run, ("", wall))
        t = (wall - epoch_s) * self._scale
        self._rows.append({"t": t, "wall": wall, "host": self._host, "placement": label, "kind": kind, **fields})
        if len(self._rows) >= _FLUSH_ROWS:
            self.flush()

    def write_to_all(self, kind: str, fields: dict[str, Any]) -> None:
        """A record of the host as such: once for every run open now."""
        for run in self._runs:
            self.write(run, kind, fields)

    def flush(self) -> None:
        """Have what is recorded written soon."""
        if self._log is None or not (self._rows or self._lost):
            return
        rows, self._rows = self._rows, []
        text = self._encoder.encode_lines(rows)
        # R3: the disk is too slow, and no more may wait
        if self._handed_bytes + len(text) - self._log.taken_bytes > WAITING_BYTES:
            self._lost += len(rows)
            self._log.log_missing(TOO_SLOW)
            return
        self._handed_bytes += len(text)
        self._queue.put((text, len(rows), self._lost))
        self._lost = 0

    def close(self) -> None:
        """Write what is left, and free the file; idempotent."""
        log = self._log
        if log is None:
            return
        log.again_s = -math.inf
        self.flush()
        self._log = None
        if self._lost:
            self._queue.put((b"", 0, self._lost))
        self._queue.put(None)
        self._writer.join(CLOSE_S)
        if self._writer.is_alive():  # R3: the disk is too slow, and the end does not wait for it
            log.log_missing(TOO_SLOW)
            return
        log.close()


class Log:
    """The file of a recorder. UsageError for one that cannot be written."""

    def __init__(self, host: str, path: Path, logbook: Logbook) -> None:
        self._host, self._path, self._logbook = host, path, logbook
        try:  # not for appending, by which no line can be written over
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY | NO_WAIT, 0o666)
            self._end = _end_of(self._file)
        except BlockingIOError:
            raise UsageError(f"cannot write the records {path}: another process does; choose another file") from None
        except OSError as error:
            pipe = error.errno in (errno.ENXIO, errno.ESPIPE)  # with nobody who reads from it, and with somebody
            why = "it is a pipe or a socket; name a regular file" if pipe else error.strerror
            raise UsageError(f"cannot write the records {path}: {why}") from None
        self.taken_bytes = 0  # so far; written, or given up
        self._last = b""  # the lines that were written last
        self._missing = 0  # rows, since some could not be written
        self._gap = -1  # where the line is that says so
        self._reason = ""
        self.again_s = -math.inf  # what cannot be written is not tried again before
        self._told = False

    def take(self, queue: SimpleQueue[tuple[bytes, int, int] | None]) -> None:
        """Write lines as they come, until there is None."""
        while (item := queue.get()) is not None:
            self.write(*item)
            self.taken_bytes += len(item[0])

    def write(self, text: bytes, rows: int, lost: int = 0) -> None:
        """Write lines of so many rows, of which ``lost`` others that came before them are missing."""
        if lost:
            self._missing += lost
            self._reason = TOO_SLOW
        if self._missing:
            if time.monotonic() < self.again_s:
                self._missing += rows
                return
            if self._gap < 0:
                if not self._write_gap(self._end):
                    self._lose(b"", rows)
                    return
                self._gap = self._end
                self._end += GAP_BYTES
        written = self._put(text, self._end)
        if written < len(text):
            self._lose(text[:written], rows)
            return
        self._end += written
        self._last = text
        if self._missing:
            self._write_gap(self._gap)
            self._missing, self._gap = 0, -1

    def _put(self, text: bytes, at: int) -> int:
        """How many bytes of it could be written there."""
        written = 0
        try:
            while written < len(text):
                written += write_at(self._file, text[written:], at + written)
        except OSError as error:  # R1: what is not written is counted, and nothing stops
            self._reason = error.strerror or str(error)
        return written

    def _lose(self, written: bytes, rows: int) -> None:
        """Only so much of ``rows`` could be written: leave whole lines, and the line that tells of the others."""
        self.again_s = time.monotonic() + AGAIN_S
        whole = written[: written.rfind(b"\n") + 1]
        self._missing += rows - whole.count(b"\n")
        self._end += len(whole)
        lines, self._last = self._last + whole, b""
        # R2: the last lines, from here on, have room for the line about the gap
        start = lines.rfind(b"\n", 0, max(0, len(lines) - GAP_BYTES)) + 1
        if self._gap >= 0:
            self._write_gap(self._gap)
        elif len(lines) - start >= GAP_BYTES:
            self._missing += lines.count(b"\n", start)
            self._end -= len(lines) - start
            if self._write_gap(self._end):
                self._gap = self._end
                self._end += GAP_BYTES
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._end)
        self.log_missing(self._reason)

    def log_missing(self, reason: str) -> None:
        """Log, once, why records are missing."""
        if not self._told:
            self._told = True
            problem = f"cannot write the records {self._path}: {reason}"
            goes_on = "the runs go on, and what is missing is counted"
            self._logbook.write("records-missing", f"{problem}; {goes_on}", reason=reason)

    def _write_gap(self, at: int) -> bool:
        """Say there how many rows are missing, if that can be."""
        row = {"t": 0.0, "wall": time.time(), "host": self._host, "placement": "", "kind": "missing"}
        detail = {"rows": self._missing, "reason": self._reason[:REASON]}
        line = msgspec.json.encode({**row, "detail": detail}).ljust(GAP_BYTES - 1) + b"\n"
        return len(line) == GAP_BYTES and self._put(line, at) == GAP_BYTES  # else the host's name is longer than a line

    def close(self) -> None:
        if self._gap >= 0:
            self._write_gap(self._gap)
        with contextlib.suppress(OSError):
            os.close(self._file)


def _end_of(file: int) -> int:
    """Where a log goes on; OSError where that is a pipe, or another process writes to the same file."""
    if stat.S_ISREG(os.fstat(file).st_mode):
        try:
            lock(file)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
                raise  # else the file system has no locks
    end = os.lseek(file, 0, os.SEEK_END)
    if NO_WAIT:
        os.set_blocking(file, True)
    return end
