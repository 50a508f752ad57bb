"""Arrival records of operators, which are written when an operator dispatches its first output on the new host."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.middleware.core.context.outbox import Outbox


class Newcomer(msgspec.Struct, frozen=True):
    """Operator that has come from host ``source``, and has dispatched no output here yet."""

    source: str
    version: int
    size_bytes: int
    came_s: float
    resumed_s: float


class Newcomers:
    """Newly arrived operators of a run on the host, by name."""

    __slots__ = ("_out", "came")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self.came: dict[str, Newcomer] = {}

    def come(self, name: str, newcomer: Newcomer) -> None:
        """Keep the data of an operator's arrival until ``record``."""
        self.came[name] = newcomer

    def record(self, name: str, index: int) -> None:
        """Record the arrival of an operator, as its first output, partition ``index``, is dispatched."""
        came, now = self.came.pop(name), self._out.now
        ago = {"state_in": now - came.came_s, "resumed": now - came.resumed_s}
        self._out.record(
            "arrived", node=name, peer=came.source, index=index, size_bytes=came.size_bytes,
            duration_s=now - came.came_s, detail={"version": came.version, "ago": ago},
        )  # fmt: skip

    def forget(self, names: Iterable[str]) -> None:
        """Remove operators that have left the host."""
        for name in names:
            self.came.pop(name, None)
