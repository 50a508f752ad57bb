"""With which indices the code of nodes runs: in a stream's only tree, with those of its partitions."""

from __future__ import annotations

from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId


class Indices:
    """The indices of the partitions of a run that carries a whole stream. A stripe has its own (``stripes``)."""

    __slots__ = ()

    def of(self, partition: int) -> int | None:
        """Return the stream's index of a partition of the run; None where it is not known."""
        return partition

    def call(self, run: RunId, node: str, action: RunCode) -> e.RunOperator | e.OperatorFinished | None:
        """Return the call of a node's code, or what the node passes on instead; None where it waits for its index."""
        return e.RunOperator(run, node, action.index, action.inputs)

    def end(self, made: e.OperatorFinished) -> e.OperatorFinished:
        """Return what a node passes on where the stream of its code ends."""
        return made
