"""Schedule of the reports of outputs in a run with failover. An output is reported when a report is due.

Rules:

R1. If a node has no due report (``set_due``), its next output is reported.
R2. The bytes of a node's inputs are counted from its last report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec

from thalweg.middleware.protocol import events as e


class ReportDue(msgspec.Struct, frozen=True):
    """Time of the next report of a node: partition ``index``, ``size_bytes`` of inputs, or time ``at_s``.

    The report is due at the first of the three.
    """

    index: int
    size_bytes: int
    at_s: float


class OutputSchedule:
    """Next reports of the nodes of a run on this host, and the input bytes since the last reports."""

    __slots__ = ("_due", "_taken_bytes")

    def __init__(self) -> None:
        self._due: dict[str, ReportDue] = {}
        self._taken_bytes = defaultdict[str, int](int)  # R2: bytes of inputs since the last report, by node

    def take(self, name: str, size_bytes: int) -> None:
        """Count the bytes of an input of a node (R2)."""
        self._taken_bytes[name] += size_bytes

    def is_due(self, made: e.OperatorFinished, now: float) -> bool:
        """Return whether the output ``made`` of a node is to be reported."""
        due = self._due.get(made.node)
        if due is None or made.index >= due.index or now >= due.at_s:
            return True
        return self._taken_bytes[made.node] >= due.size_bytes

    def begin_anew(self, name: str) -> int:
        """Return the bytes of inputs since the last report of a node, and count from zero again."""
        return self._taken_bytes.pop(name, 0)

    def set_due(self, name: str, due: ReportDue | None) -> None:
        """Set when a node is reported next. None: the next output is reported (R1)."""
        if due is None:
            self._due.pop(name, None)
        else:
            self._due[name] = due

    def forget(self, names: Collection[str]) -> None:
        """Remove nodes that have left the host or the run."""
        for name in names:
            self._due.pop(name, None)
            self._taken_bytes.pop(name, None)
