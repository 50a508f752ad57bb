"""What a host remembers of demands and partitions between nodes: the entries of the tables of ``flow.demands``."""

from __future__ import annotations

import msgspec

from thalweg.middleware.core.flow.actions import Output


class Pending(msgspec.Struct):
    """A demand that another host has not answered. ``skips``: it is a ``SkipTo``; ``LAST`` is its index None."""

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # when it was demanded first
    skips: bool = False


class Expected(msgspec.Struct):
    """An operator that is to come here and begin with partition ``index``.

    ``early``: inputs for that, and ``depth`` - 1 later ones, by partition and producer, that have come before it.
    """

    index: int
    depth: int
    early: dict[int, dict[str, Output]] = {}

    def takes(self, index: int) -> bool:
        """Whether an input for that partition is to wait for it."""
        return self.index <= index < self.index + self.depth
