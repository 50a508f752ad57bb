"""Messages that a host has not taken, as they do not decode, or are not what their sender may say.

All are counted. The records have ``ROWS`` of them between two rounds of housekeeping, and the number of the others. The
log has one a second at most, whoever sends them, so a flood of garbage under many names fills no log.
"""

from __future__ import annotations

from typing import Any

from thalweg.middleware.errors import one_line
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.protocol.run_id import NO_RUN, RunId
from thalweg.middleware.shell.recorder import Recorder

ROWS = 10


class Rejections:
    """The account of them. ``count``: so many so far, ``before``: when the house was kept last."""

    def __init__(self, recorder: Recorder, logbook: Logbook) -> None:
        self._recorder, self._logbook = recorder, logbook
        self.count = self.before = 0

    def add(self, reason: str, sender: str = "", kind: str = "", run: RunId = NO_RUN) -> None:
        """Count one more. ``sender``: the host that it came from, where it does not decode; ``kind``: its type."""
        self.count += 1
        if self.count - self.before <= ROWS:
            detail: dict[str, Any] = {"reason": reason}
            about = {"message": kind, "run": str(run)}
            detail |= {name: value for name, value in about.items() if value}
            self._recorder.write_to_all("rejected", ({"peer": sender} if sender else {}) | {"detail": detail})
        subject = f"a message of type {kind}" if kind else "a message"
        of_run = f" of run {one_line(str(run))}" if run else ""
        of_sender = f" from {sender!r}" if sender else ""
        text = f"{subject}{of_run}{of_sender} was dropped: {reason}"
        self._logbook.write("message-refused", text, about="dropped", peer=sender, run=str(run), reason=reason)

    def keep_house(self) -> None:
        """Record how many more there were since the last round."""
        more = self.count - self.before - ROWS
        if more > 0:
            self._recorder.write_to_all("rejected", {"detail": {"reason": f"{more} more"}})
        self.before = self.count
