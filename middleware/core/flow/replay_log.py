"""Log of an operator's outputs in a run with failover, for a consumer that restarts on another host.

Rules:

R1. The log begins with the first partition that a consumer may still need. The client names the partition from which
    the consumer would start if hosts were lost now (``CheckpointsObsolete``). Earlier outputs are dropped.
R2. Above ``most_bytes`` the oldest outputs are dropped, but never the last output. If a consumer needs a dropped
    output, every node of the run restarts. Checkpoints are frequent enough to make the case rare.
"""

from __future__ import annotations

from collections import deque

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.flow.actions import Output


class ReplayLog:
    """Newest outputs of one node, in the order of their partitions."""

    __slots__ = ("most_bytes", "outputs", "size_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.outputs: deque[Output] = deque()
        self.size_bytes = 0

    def add(self, output: Output) -> None:
        """Append an output that has been dispatched, and drop the oldest outputs above ``most_bytes`` (R2)."""
        self.outputs.append(output)
        self.size_bytes += output.size_bytes
        while self.size_bytes > self.most_bytes and len(self.outputs) > 1:
            self.size_bytes -= self.outputs.popleft().size_bytes

    def let_go(self, before: int) -> None:
        """Drop the outputs before a partition, but never the last output (R1)."""
        while len(self.outputs) > 1 and self.outputs[0].index < before:
            self.size_bytes -= self.outputs.popleft().size_bytes

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        indices = [output.index for output in self.outputs]
        assert indices == list(range(indices[0], indices[0] + len(indices))) if indices else True, indices
        assert self.size_bytes == plain_sum(output.size_bytes for output in self.outputs), self.size_bytes
        assert self.size_bytes <= self.most_bytes or len(self.outputs) == 1, self.size_bytes
