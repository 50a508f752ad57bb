"""When the outputs of nodes are reported in a run with failover: not each one, but when a report is due.

Rules:

R1. Of a node without a date here (``set_due``) every output is reported.
R2. The inputs that it has taken count since its last report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec

from thalweg.middleware.protocol import events as e


class ReportDue(msgspec.Struct, frozen=True):
    """The next report of a node: of partition ``index``, after so many bytes of inputs, or after ``at_s``, whichever is
    first.
    """

    index: int
    size_bytes: int
    at_s: float


class OutputSchedule:
    """When the outputs of each node are reported next."""

    __slots__ = ("_due", "_taken_bytes")

    def __init__(self) -> None:
        self._due: dict[str, ReportDue] = {}
        self._taken_bytes = defaultdict[str, int](int)  # R2: by node

    def take(self, name: str, size_bytes: int) -> None:
        """Count an input of a node (R2)."""
        self._taken_bytes[name] += size_bytes

    def is_due(self, made: e.OperatorFinished, now: float) -> bool:
        """Return whether the output of a node is to be reported."""
        due = self._due.get(made.node)
        if due is None or made.index >= due.index or now >= due.at_s:
            return True
        return self._taken_bytes[made.node] >= due.size_bytes

    def begin_anew(self, name: str) -> int:
        """Return the bytes of inputs since the last report of a node, and count from zero again."""
        return self._taken_bytes.pop(name, 0)

    def set_due(self, name: str, due: ReportDue | None) -> None:
        """Set when a node is reported next. None: with its next output (R1)."""
        if due is None:
            self._due.pop(name, None)
        else:
            self._due[name] = due

    def forget(self, names: Collection[str]) -> None:
        """These nodes are gone."""
        for name in names:
            self._due.pop(name, None)
            self._taken_bytes.pop(name, None)
