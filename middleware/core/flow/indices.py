"""With which indices the code of nodes runs: in a stream's only tree, with those of its partitions."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.protocol import events as e


class Indices:
    """The indices of the partitions of a run that carries a whole stream. A stripe has its own (``stripes``)."""

    __slots__ = ()

    def of(self, partition: int) -> int | None:
        """Return the stream's index of a partition of the run; None where it is not known."""
        return partition

    def begin(self, node: str, run: RunCode) -> int | UnsetType | None:
        """Return with which index code runs, UNSET for that of its partition; None where the node waits for it."""
        return UNSET

    def instead(self, run: RunCode) -> Any:
        """Return what a node passes on instead of running its code; None where it runs that."""
        return None

    def passed_on(self, made: e.OperatorFinished) -> e.OperatorFinished:
        """Return what a node passes on of what its code has made."""
        return made
