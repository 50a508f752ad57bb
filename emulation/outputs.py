"""Processes that a test has started on hosts: output is printed with the host's name, and the last lines are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from thalweg.emulation.supervisor.client import TestbedProcess

LAST_LINES = 20
JOIN_S = 1.0  # a process that has ended may have left its output to another one


class Outputs:
    """Processes of one testbed in the order of their start, each with its output if that is read here."""

    def __init__(self) -> None:
        self._readers: dict[TestbedProcess, _Reader | None] = {}

    def add(self, process: TestbedProcess, *, read: bool) -> None:
        """Keep a process. Its stdout, which is a pipe, is read and printed if ``read`` is set."""
        reader = None
        if read and process.stdout is not None:
            reader, process.stdout = _Reader(process.host, process.stdout), None
        self._readers[process] = reader

    def last_lines(self) -> Iterator[tuple[TestbedProcess, tuple[str, ...]]]:
        """Yield each process with the last lines of its output."""
        for process, reader in self._readers.items():
            if reader is not None and process.poll() is not None:
                reader.join(JOIN_S)
            yield process, () if reader is None else tuple(reader.last)

    def by_pid(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return the last lines of each process whose output is read, by its host and the number that it has there."""
        return {(one.host, one.inner_pid): lines for one, lines in self.last_lines() if lines and one.inner_pid}

    def close(self) -> None:
        """Read what is left, and close the pipes. To be called when the processes have ended."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()


class _Reader(threading.Thread):
    """Reader of one process's output. ``last`` has its last lines."""

    def __init__(self, host: str, file: IO[bytes]) -> None:
        super().__init__(name=f"output-of-{host}", daemon=True)
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._host, self._file = host, file
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):  # the pipe was closed
            for line in self._file:
                text = line.decode(errors="replace").rstrip("\r\n")
                self.last.append(text)
                print(f"{self._host} | {text}", flush=True)

    def close(self) -> None:
        self.join(JOIN_S)
        with suppress(OSError):
            self._file.close()
