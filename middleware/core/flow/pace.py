"""Due times of the partitions of sources with a rate (R1 of ``code_calls``)."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.flow.actions import RunCode


class Pace:
    """Due times of sources with a rate, and the waiting calls of code. No other part writes them."""

    __slots__ = ("_due_s", "_out", "_waiting")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._due_s: dict[str, float] = {}
        self._waiting: dict[str, RunCode] = {}  # calls that wait, by source

    def is_due(self, name: str, rate: float, action: RunCode) -> bool:
        """Return whether a source may run its code now.

        If not, keep the call ``action``, and set a timer for the due time. ``take`` then returns the call.
        """
        now, period_s = self._out.now, 1.0 / rate
        due_s = self._due_s.get(name, now)
        if now < due_s:
            self._waiting[name] = action
            self._out.wake(Timer.PACE, due_s, name)
            return False
        self._due_s[name] = max(due_s, now - period_s) + period_s
        return True

    def take(self, name: str) -> RunCode | None:
        """Return and remove the waiting call of a source, or None."""
        return self._waiting.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """Remove sources that the run no longer has."""
        for name in names:
            self._waiting.pop(name, None)
            self._due_s.pop(name, None)
