"""Who hears of what nodes have made, where a run outlives its hosts: nobody each time, but when it is due.

Rules:

R1. Of a node of which nothing is said here (``say``) everything that it makes is heard of.
R2. What it has taken of inputs counts since it was heard of last.
"""

from __future__ import annotations

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
    """When each node is heard of next."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[str, ReportDue] = {}

    def is_due(self, made: e.OperatorFinished, taken_bytes: int, now: float) -> bool:
        """Return whether a node is heard of, which has made that partition and taken so many bytes of inputs (R2)."""
        due = self._due.get(made.node)
        return due is None or made.index >= due.index or now >= due.at_s or taken_bytes >= due.size_bytes

    def set_due(self, name: str, due: ReportDue | None) -> None:
        """When it is heard of next; None: at once (R1)."""
        if due is None:
            self._due.pop(name, None)
        else:
            self._due[name] = due

    def forget(self, names: Collection[str]) -> None:
        """These nodes are gone."""
        for name in names:
            self._due.pop(name, None)
