"""SIGINT and SIGTERM as an exception, which unwinds a verb and so removes processes and networks."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(BaseException):
    """SIGINT or SIGTERM as an exception. Handlers of ``Exception`` do not catch it."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = number

    @property
    def name(self) -> str:
        """Name of the signal: ``SIGINT`` or ``SIGTERM``."""
        return signal.Signals(self.number).name

    @property
    def status(self) -> int:
        """Exit status of a process after the signal, as a shell has it."""
        return 128 + self.number


def stop_on_signals() -> None:
    """Make SIGINT and SIGTERM raise Stopped in the main thread. Each signal raises Stopped once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal does not interrupt the clean-up
    raise Stopped(number)
