"""Processes that a test has started on hosts. Output is printed with the host's name, and the last lines are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from thalweg.emulation.supervisor.client import TestbedProcess

LAST_LINES = 20
MOST_FAILED = 5  # most failed commands that are kept: a test may retry until a server answers
JOIN_S = 1.0  # a child of the ended process may still hold the pipe


class Outputs:
    """Processes of one testbed in the order of their start, with the output of every process that is read here."""

    def __init__(self) -> None:
        self._readers: dict[TestbedProcess, _Reader | None] = {}
        self._printer = _Printer()
        self._failed: dict[TestbedProcess, tuple[str, ...]] = {}
        self.dropped = 0
        """Commands that failed before those that are kept."""

    def add(self, process: TestbedProcess, *, read: bool) -> None:
        """Keep a process. If ``read`` is set, its stdout, which is a pipe, is read and printed."""
        reader = None
        if read and process.stdout is not None:
            reader, process.stdout = _Reader(process.host, process.stdout, self._printer), None
        self._readers[process] = reader

    def hold(self) -> None:
        """Print nothing more until ``release``: between the phases of a test pytest would not capture the output."""
        self._printer.hold()

    def release(self) -> None:
        """Print the lines on hold, and from now on every line at once. Idempotent."""
        self._printer.release()

    def end(self, process: TestbedProcess, stdout: str, stderr: str, *, failed: bool) -> None:
        """Keep the last lines of a finished command if the command has failed. Otherwise forget the command."""
        if not failed:
            self._readers.pop(process, None)
            return
        self._failed[process] = (*stdout.splitlines(), *stderr.splitlines())[-LAST_LINES:]
        if len(self._failed) > MOST_FAILED:
            first = next(iter(self._failed))
            del self._failed[first], self._readers[first]
            self.dropped += 1

    def last_lines(self) -> Iterator[tuple[TestbedProcess, tuple[str, ...]]]:
        """Yield every process with the last lines of its output."""
        for process, reader in [*self._readers.items()]:
            if reader is not None and process.poll() is not None:
                reader.join(JOIN_S)
            yield process, self._failed.get(process, ()) if reader is None else tuple(reader.last)

    def by_pid(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return the last lines of the processes whose output is read, by host and by process number there."""
        return {(item.host, item.inner_pid): lines for item, lines in self.last_lines() if lines and item.inner_pid}

    def close(self) -> None:
        """Read the remaining output, and close the pipes. Call this when the processes have ended."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self.release()


class _Printer:
    """Printer of the lines of a testbed's processes: prints the lines, or holds the lines back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[str] | None = None

    def print(self, line: str) -> None:
        with self._lock:
            if self._held is None:
                print(line, flush=True)
            else:
                self._held.append(line)

    def hold(self) -> None:
        with self._lock:
            self._held = [] if self._held is None else self._held

    def release(self) -> None:
        with self._lock:
            for line in self._held or ():
                print(line, flush=True)
            self._held = None


class _Reader(threading.Thread):
    """Thread for the output of one process. ``last`` has the last lines."""

    def __init__(self, host: str, file: IO[bytes], printer: _Printer) -> None:
        super().__init__(name=f"output-of-{host}", daemon=True)
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._host, self._file, self._printer = host, file, printer
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):  # the pipe was closed
            for line in self._file:
                text = line.decode(errors="replace").rstrip("\r\n")
                self.last.append(text)
                self._printer.print(f"{self._host} | {text}")

    def close(self) -> None:
        self.join(JOIN_S)
        with suppress(OSError):
            self._file.close()
