"""The outputs that an operator keeps in a run with failover, for a consumer that begins anew elsewhere.

Rules:

R1. Every output is kept, from the first that the consumer may still be given: the client says from which partition on
    the consumer would start if hosts were lost now (``CheckpointsObsolete``), and what comes before that is let go.
R2. With more than ``most_bytes`` the oldest go first, but never the last one. A consumer that needs one of these finds
    that it is not there, and the run begins wholly anew. Consumers leave replicas early enough that this is rare.
"""

from __future__ import annotations

from collections import deque

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.flow.actions import Output


class ReplayLog:
    """The newest outputs of one node, one partition after the other."""

    __slots__ = ("most_bytes", "outputs", "size_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.outputs: deque[Output] = deque()
        self.size_bytes = 0

    def add(self, output: Output) -> None:
        """Keep an output that has been dispatched."""
        self.outputs.append(output)
        self.size_bytes += output.size_bytes
        while self.size_bytes > self.most_bytes and len(self.outputs) > 1:
            self.size_bytes -= self.outputs.popleft().size_bytes

    def let_go(self, before: int) -> None:
        """R1: nobody needs the partitions ``before`` that one any more; the last output stays."""
        while len(self.outputs) > 1 and self.outputs[0].index < before:
            self.size_bytes -= self.outputs.popleft().size_bytes

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        indices = [output.index for output in self.outputs]
        assert indices == list(range(indices[0], indices[0] + len(indices))) if indices else True, indices
        assert self.size_bytes == plain_sum(output.size_bytes for output in self.outputs), self.size_bytes
        assert self.size_bytes <= self.most_bytes or len(self.outputs) == 1, self.size_bytes
