"""Output of processes on hosts that tests start: printed with the host's name, and kept for the report of a failure."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import IO

LAST_LINES = 20
JOIN_S = 1.0


class Output(threading.Thread):
    """Reader of one process's output. ``last`` has its last lines."""

    def __init__(self, host: str, file: IO[bytes]) -> None:
        super().__init__(name=f"output-of-{host}", daemon=True)
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._host, self._file = host, file
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):  # the testbed has ended
            for line in self._file:
                text = line.decode(errors="replace").rstrip("\r\n")
                self.last.append(text)
                print(f"{self._host} | {text}", flush=True)

    def close(self) -> None:
        """Read what is left of a process that has ended, and close the pipe."""
        self.join(JOIN_S)
        with suppress(OSError):
            self._file.close()
