"""Event log of one process: JSON Lines, written from time to time and when the process ends.

Rules:

- R1: No fault of the log stops the work that it records. Rows that cannot be written are left out and counted, and the
  fault is logged once. After ``AGAIN_S`` writing is tried again.
- R2: The log consists of whole lines. If rows are missing, a row of kind ``missing`` gives their number. If the disk
  has no room for this row, it replaces the last rows, which then are missing, too.
- R3: A separate thread writes, as a disk may be slow. Rows wait for the thread, up to ``WAITING_BYTES``. Further rows
  are missing. The end of the process waits for ``CLOSE_S`` at most.
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
GAP_BYTES = 320  # fixed length of a row about a gap, so that it can be replaced in its place
REASON = 80  # characters at most


class Recorder:
    """Writer of records, which appends to ``path``. Without a path the records are dropped.

    A record has ``t`` (seconds of emulated time since its run's start), ``wall`` (Unix time), ``host``, ``placement``
    (the run's label), ``kind``, and the fields of the kind. With or without a path, ``logbook`` logs the records that
    operators of hosts should see.

    Raises UsageError for a path that cannot be written.
    """

    def __init__(self, host: str, path: Path | None, time_scale: float = 1.0) -> None:
        self._host, self.logbook = host, Logbook(host)
        self._scale = time_scale
        self._log = None if path is None else Log(host, path, self.logbook)
        self._queue: SimpleQueue[tuple[bytes, int, int] | None] = SimpleQueue()
        self._handed_bytes = 0
        self._lost = 0  # rows for which there was no room to wait
        self._rows: list[dict[str, Any]] = []
        self._runs: dict[RunId, tuple[str, float]] = {}
        self._encoder = msgspec.json.Encoder()
        if self._log is not None:  # started now, as the host may get no more threads later
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
        """Log a record, and write the record to the file if there is one."""
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
        """Write a record about the host itself, once for every open run."""
        for run in self._runs:
            self.write(run, kind, fields)

    def flush(self) -> None:
        """Pass the collected records on to the thread that writes."""
        if self._log is None or not (self._rows or self._lost):
            return
        rows, self._rows = self._rows, []
        text = self._encoder.encode_lines(rows)
        # R3: the disk is too slow, and no more rows may wait
        if self._handed_bytes + len(text) - self._log.taken_bytes > WAITING_BYTES:
            self._lost += len(rows)
            self._log.log_missing(TOO_SLOW)
            return
        self._handed_bytes += len(text)
        self._queue.put((text, len(rows), self._lost))
        self._lost = 0

    def close(self) -> None:
        """Write the remaining records, and close the file. May be called again."""
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
        if self._writer.is_alive():  # R3: the disk is too slow, and the process ends without it
            log.log_missing(TOO_SLOW)
            return
        log.close()


class Log:
    """File of a recorder. Raises UsageError for a file that cannot be written."""

    def __init__(self, host: str, path: Path, logbook: Logbook) -> None:
        self._host, self._path, self._logbook = host, path, logbook
        try:  # not in append mode, in which no line can be replaced
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY | NO_WAIT, 0o666)
            self._end = _end_of(self._file)
        except BlockingIOError:
            raise UsageError(
                f"the records {path} cannot be written: another process writes them; choose another file"
            ) from None
        except OSError as error:
            pipe = error.errno in (errno.ENXIO, errno.ESPIPE)  # a pipe without a reader, and with a reader
            why = "it is a pipe or a socket; name a regular file" if pipe else error.strerror
            raise UsageError(f"the records {path} cannot be written: {why}") from None
        self.taken_bytes = 0  # bytes so far, written or given up
        self._last = b""  # the lines that were written last
        self._missing = 0  # rows that could not be written since the last gap
        self._gap = -1  # position of the row about the gap
        self._reason = ""
        self.again_s = -math.inf  # after a failed write, no write is tried before
        self._told = False

    def take(self, queue: SimpleQueue[tuple[bytes, int, int] | None]) -> None:
        """Write lines from the queue until an item is None."""
        while (item := queue.get()) is not None:
            self.write(*item)
            self.taken_bytes += len(item[0])

    def write(self, text: bytes, rows: int, lost: int = 0) -> None:
        """Write lines with a number of ``rows``. ``lost``: number of rows before, which are missing."""
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
        """Write text at a position. Return the number of bytes written."""
        written = 0
        try:
            while written < len(text):
                written += write_at(self._file, text[written:], at + written)
        except OSError as error:  # R1: rows that cannot be written are counted, and the work continues
            self._reason = error.strerror or str(error)
        return written

    def _lose(self, written: bytes, rows: int) -> None:
        """Handle a failed write: keep whole lines, count the missing rows, and write the row about the gap."""
        self.again_s = time.monotonic() + AGAIN_S
        whole = written[: written.rfind(b"\n") + 1]
        self._missing += rows - whole.count(b"\n")
        self._end += len(whole)
        lines, self._last = self._last + whole, b""
        # R2: the last lines, from here on, give room to the row about the gap
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
            problem = f"the records {self._path} cannot be written: {reason}"
            goes_on = "the runs go on, and missing rows are counted"
            self._logbook.write("records-missing", f"{problem}; {goes_on}", reason=reason)

    def _write_gap(self, at: int) -> bool:
        """Write the row with the number of missing rows at a position. Return whether this succeeded."""
        row = {"t": 0.0, "wall": time.time(), "host": self._host, "placement": "", "kind": "missing"}
        detail = {"rows": self._missing, "reason": self._reason[:REASON]}
        line = msgspec.json.encode({**row, "detail": detail}).ljust(GAP_BYTES - 1) + b"\n"
        return len(line) == GAP_BYTES and self._put(line, at) == GAP_BYTES  # else the host's name is too long for a row

    def close(self) -> None:
        if self._gap >= 0:
            self._write_gap(self._gap)
        with contextlib.suppress(OSError):
            os.close(self._file)


def _end_of(file: int) -> int:
    """Return the end of a log, where writing continues.

    Raises OSError for a pipe, or if another process writes to the file.
    """
    if stat.S_ISREG(os.fstat(file).st_mode):
        try:
            lock(file)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
                raise  # other errors: the file system has no locks
    end = os.lseek(file, 0, os.SEEK_END)
    if NO_WAIT:
        os.set_blocking(file, True)
    return end
