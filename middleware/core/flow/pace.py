"""When sources with a rate make their partitions (R1 of ``code_calls``)."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.flow.actions import RunCode


class Pace:
    """The only writer of which sources wait until their next partition is due, and when it is."""

    __slots__ = ("_due_s", "_out", "_waiting")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._due_s: dict[str, float] = {}
        self._waiting: dict[str, RunCode] = {}  # and what they are to run

    def is_due(self, name: str, rate: float, action: RunCode) -> bool:
        """Whether a source may run its code now; if not, it will when it may (``take``, as its timer rings)."""
        now, period_s = self._out.now, 1.0 / rate
        due_s = self._due_s.get(name, now)
        if now < due_s:
            self._waiting[name] = action
            self._out.wake(Timer.PACE, due_s, name)
            return False
        self._due_s[name] = max(due_s, now - period_s) + period_s
        return True

    def take(self, name: str) -> RunCode | None:
        """What a source that has waited is to run."""
        return self._waiting.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """These sources are gone."""
        for name in names:
            self._waiting.pop(name, None)
            self._due_s.pop(name, None)
