"""When the outputs of nodes are reported in a run with failover: not each one, but when a report is due.

Rules:

R1. Of a node without a date here (``set_due``) every output is reported.
R2. The inputs that it has taken count since its last report.
"""

from __future__ import annotations

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

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[str, ReportDue] = {}

    def is_due(self, made: e.OperatorFinished, taken_bytes: int, now: float) -> bool:
        """Return whether an output is reported. ``taken_bytes``: of inputs, since the node's last report (R2)."""
        due = self._due.get(made.node)
        return due is None or made.index >= due.index or now >= due.at_s or taken_bytes >= due.size_bytes

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
