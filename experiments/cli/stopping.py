"""SIGINT and SIGTERM: they unwind a verb, so that all that is up is put away."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(BaseException):
    """SIGINT or SIGTERM: unwinds through everything."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = number

    @property
    def name(self) -> str:
        """``SIGINT`` or ``SIGTERM``."""
        return signal.Signals(self.number).name

    @property
    def status(self) -> int:
        """The exit status of a process that a signal ended, as a shell has it."""
        return 128 + self.number


def stop_on_signals() -> None:
    """From now on either signal raises Stopped in the main thread, once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one does not interrupt the putting away
    raise Stopped(number)
