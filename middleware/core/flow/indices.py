"""Which partitions of a stream those of one of its stripes are.

Rules:

R1. A stripe (``protocol.stripes``) counts its own partitions from 0. Code runs with the index of the stream that its
    client has given to a partition; a node that comes to one of which it has not heard yet waits until it has.
R2. What was given once stays. Partitions before the first one that the client speaks of have all been delivered, and
    are forgotten.
R3. A node that waits is asked again by whoever has it wait: what it was to run may be nobody's business any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.protocol.messages import MOST_GIVEN


class Indices:
    """The only writer of what one stripe's partitions are, on this host."""

    __slots__ = ("_of", "_waiting")

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._waiting: dict[str, RunCode] = {}

    def of(self, partition: int) -> int | None:
        """The stream's index of a stripe's partition; None where it has not been given."""
        return self._of.get(partition)

    def take(self, node: str, run: RunCode) -> int | None:
        """R1: with which index ``node`` may run; None where it waits for that."""
        index = self._of.get(run.index)
        if index is None:
            self._waiting[node] = run
        return index

    def give(self, first: int, indices: Sequence[int]) -> Iterator[tuple[str, RunCode]]:
        """What partitions are, from ``first`` on; the nodes that have waited for it, and what they are to run."""
        for partition in [partition for partition in self._of if partition < first]:
            del self._of[partition]
        for partition, index in enumerate(indices, first):
            if len(self._of) < MOST_GIVEN:
                self._of.setdefault(partition, index)  # R2: an index that was given once stays
        for node, run in list(self._waiting.items()):
            if run.index in self._of:
                del self._waiting[node]
                yield node, run
