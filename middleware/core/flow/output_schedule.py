"""Who hears of what nodes have made, where a run outlives its hosts: nobody each time, but when it is due.

Rules:

R1. Of a node of which nothing is said here (``say``) everything that it makes is heard of.
R2. What it has taken of inputs counts since it was heard of last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec

from thalweg.middleware.protocol import events as e


class ReportDue(msgspec.Struct, frozen=True):
    """A node is heard of again when it makes partition ``index``, has taken so many bytes, or after ``at_s``: whichever
    is first.
    """

    index: int
    size_bytes: int
    at_s: float


class OutputSchedule:
    """When each node is heard of next; ``taken_bytes``: of inputs, which whoever hands them to a node adds to."""

    __slots__ = ("_due", "taken_bytes")

    def __init__(self) -> None:
        self.taken_bytes = defaultdict[str, int](int)
        self._due: dict[str, ReportDue] = {}

    def is_due(self, made: e.OperatorFinished, now: float) -> bool:
        """Whether a node is heard of, which has made that partition."""
        due = self._due.get(made.node)
        if due is None or made.index >= due.index or now >= due.at_s:
            return True
        return self.taken_bytes[made.node] >= due.size_bytes

    def reset_taken_bytes(self, name: str) -> int:
        """R2: it is; how many bytes it had taken."""
        return self.taken_bytes.pop(name, 0)

    def set_due(self, name: str, due: ReportDue | None) -> None:
        """When it is heard of next; None: at once (R1)."""
        if due is None:
            self._due.pop(name, None)
        else:
            self._due[name] = due

    def forget(self, names: Collection[str]) -> None:
        """These nodes are gone."""
        for name in names:
            self.taken_bytes.pop(name, None)
            self._due.pop(name, None)
