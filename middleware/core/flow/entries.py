"""What a host remembers of demands and partitions between nodes: the entries of the tables of ``flow.demands``."""

from __future__ import annotations

import msgspec

from thalweg.middleware.core.flow.actions import (
    Output,
    Taker,
)


class Pending(msgspec.Struct):
    """A demand sent to another host that has not been answered."""

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # when it was demanded first
    hops: int = 0  # ``GOES_ON`` of a word


class Tail(msgspec.Struct):
    """The last output of a node for consumers that it does not serve from here any more, until they acknowledge it."""

    output: Output
    takers: dict[str, Taker]


class Kept(msgspec.Struct):
    """Another host that keeps the last output of an operator here, and who may not have got it from there."""

    host: str
    index: int
    takers: set[str]
    gone: bool = False  # that host was lost, and may have joined again without it


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


class Passed(msgspec.Struct):
    """Demands that only the host which keeps a last output can answer, first and last passed on to it then."""

    index: int
    first_s: float
    last_s: float


class Newcomer(msgspec.Struct, frozen=True):
    """An operator that has come from another host and not dispatched anything yet."""

    source: str
    version: int
    size_bytes: int
    came_s: float
    resumed_s: float
