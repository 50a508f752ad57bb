"""Indices with which the code of nodes runs, in a run that carries a whole stream."""

from __future__ import annotations

from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId


class Indices:
    """Indices of a run's partitions, equal to the indices of the stream.

    In a stripe the two differ (``stripes.stripe_code``).
    """

    __slots__ = ()

    def of(self, partition: int) -> int | None:
        """Return the stream's index of a partition of the run. None: the host does not know the index yet."""
        return partition

    def call(self, run: RunId, node: str, action: RunCode) -> e.RunOperator | e.OperatorFinished | None:
        """Return the call of a node's code, or the output that replaces it. None: the node waits for its index."""
        return e.RunOperator(run, node, action.index, action.inputs)

    def end(self, made: e.OperatorFinished) -> e.OperatorFinished:
        """Return the output of a node whose code has ended the stream."""
        return made
