"""Operators that have come from other hosts, until they have made their first output here: what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.middleware.core.context.outbox import Outbox


class Newcomer(msgspec.Struct, frozen=True):
    """An operator that has come from another host and not dispatched anything yet."""

    source: str
    version: int
    size_bytes: int
    came_s: float
    resumed_s: float


class Newcomers:
    """Those of one run on this host."""

    __slots__ = ("_out", "came")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self.came: dict[str, Newcomer] = {}

    def come(self, name: str, newcomer: Newcomer) -> None:
        """Keep how an operator came, until it has made its first output here."""
        self.came[name] = newcomer

    def record(self, name: str, index: int) -> None:
        """One has made its first output, partition ``index``."""
        came, now = self.came.pop(name), self._out.now
        ago = {"state_in": now - came.came_s, "resumed": now - came.resumed_s}
        self._out.record(
            "arrived", node=name, peer=came.source, index=index, size_bytes=came.size_bytes,
            duration_s=now - came.came_s, detail={"version": came.version, "ago": ago},
        )  # fmt: skip

    def forget(self, names: Iterable[str]) -> None:
        """These are not here any more."""
        for name in names:
            self.came.pop(name, None)
