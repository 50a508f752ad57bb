"""The event log of one process: JSON Lines, flushed once in a while and when the process ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from thalweg.middleware.errors import UsageError

_FLUSH_ROWS = 256


class Recorder:
    """Appends records to ``path``; without a path it takes them and forgets them.

    Raises UsageError for one that cannot be written.

    A record has ``t`` (seconds of emulated time since its run's start), ``wall`` (Unix time), ``host``,
    ``placement`` (the run's label), ``kind``, and the kind's own fields.
    """

    def __init__(self, host: str, path: Path | None, time_scale: float = 1.0) -> None:
        self._host = host
        self._scale = time_scale
        try:
            self._file = None if path is None else path.open("ab")
        except OSError as error:
            raise UsageError(f"cannot write the records {path}: {error.strerror}") from None
        self._rows: list[dict[str, Any]] = []
        self._runs: dict[str, tuple[str, float]] = {}
        self._encoder = msgspec.json.Encoder()

    @property
    def active(self) -> bool:
        return self._file is not None

    def open_run(self, run: str, label: str, epoch_s: float) -> None:
        self._runs[run] = (label, epoch_s)

    def close_run(self, run: str) -> None:
        self._runs.pop(run, None)
        self.flush()

    def write(self, run: str, kind: str, fields: dict[str, Any]) -> None:
        if self._file is None:
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
        if self._file is not None and self._rows:
            rows, self._rows = self._rows, []
            self._file.write(self._encoder.encode_lines(rows))
            self._file.flush()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
