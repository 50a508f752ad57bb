"""Messages that a host has rejected, because they do not decode or their sender may not send them.

Every rejection is counted. Between two rounds of housekeeping, the records get ``ROWS`` rejections and the number of
the rest. The log gets at most one line a second from all senders together, so a flood of garbage under many names does
not fill the log.
"""

from __future__ import annotations

from typing import Any

from thalweg.middleware.errors import one_line
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.protocol.run_id import NO_RUN, RunId
from thalweg.middleware.shell.recorder import Recorder

ROWS = 10


class Rejections:
    """Count of rejected messages, with their records. ``before``: the ``count`` at the last housekeeping."""

    def __init__(self, recorder: Recorder, logbook: Logbook) -> None:
        self._recorder, self._logbook = recorder, logbook
        self.count = self.before = 0

    def add(self, reason: str, sender: str = "", kind: str = "", run: RunId = NO_RUN) -> None:
        """Count a rejected message. ``sender``: the host, if the message does not decode. ``kind``: message type."""
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
        """Record the number of rejections since the last round that have no record."""
        more = self.count - self.before - ROWS
        if more > 0:
            self._recorder.write_to_all("rejected", {"detail": {"reason": f"{more} more"}})
        self.before = self.count
