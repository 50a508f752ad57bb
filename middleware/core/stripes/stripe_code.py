"""Indices of the stream for the partitions of a stripe, and the calls of code with these indices.

Rules:

R1. A stripe (``protocol.stripes``) counts its own partitions from 0. Its code runs with the stream's index, which the
    client assigns. If a node comes to a partition without an index, the node waits for the index.
R2. An assigned index never changes. Indices of delivered partitions are forgotten.
R3. Before a waiting node is called, its state is checked again, as the call may be obsolete.
R4. If an input is past its end, the node passes the end on as a partition. A later partition may have a value again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.indices import Indices
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Need, Part, RunParts
from thalweg.middleware.parcels import PAST_END, past_end_of
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.messages import MOST_GIVEN
from thalweg.middleware.protocol.run_id import RunId


class GivenIndices(Indices):
    """Indices of one stripe on a host, and the nodes that wait for an index."""

    __slots__ = ("_of", "_waiting")

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._waiting: dict[str, RunCode] = {}

    def of(self, partition: int) -> int | None:
        return self._of.get(partition)

    def call(self, run: RunId, node: str, action: RunCode) -> e.RunOperator | e.OperatorFinished | None:
        index = self._of.get(action.index)
        if index is None:  # R1: the node waits for its index
            self._waiting[node] = action
            return None
        past = past_end_of(action.inputs)
        if past is not None:  # R4: the node passes the end on, and its code does not run
            return e.OperatorFinished(run, node, action.index, past, past.size_bytes)
        return e.RunOperator(run, node, action.index, action.inputs, index)

    def end(self, made: e.OperatorFinished) -> e.OperatorFinished:
        return msgspec.structs.replace(made, value=PAST_END, size_bytes=PAST_END.size_bytes, end=False)

    def give(self, first: int, indices: Sequence[int]) -> Iterator[tuple[str, RunCode]]:
        """Assign indices to the partitions from ``first`` on. Yield the waiting nodes whose call is possible now."""
        for partition in [partition for partition in self._of if partition < first]:
            del self._of[partition]
        for partition, index in enumerate(indices, first):
            if len(self._of) < MOST_GIVEN:
                self._of.setdefault(partition, index)  # R2: an assigned index never changes
        for node, run in list(self._waiting.items()):
            if run.index in self._of:
                del self._waiting[node]
                yield node, run


class StripeCode(Part):
    """Part of a stripe's run on each host: code runs with the indices that the client assigns."""

    NEEDED_FOR = Need.STRIPE

    @classmethod
    def of(cls, parts: RunParts) -> StripeCode:
        return cls(parts.get(Flow), is_stripe=parts.context.install.run.stripe is not None)

    def __init__(self, flow: Flow, *, is_stripe: bool) -> None:
        self._flow = flow
        self._indices = GivenIndices()
        if is_stripe:  # in any other run, indices from the client have no effect
            flow.calls.use(self._indices)

    def on_given(self, _: str, message: m.StripeIndices) -> None:
        """Store the indices assigned by the client, and call the nodes that wait for an index (R1)."""
        for name, action in self._indices.give(message.first, message.indices):
            self._flow.call_again(name, action)

    HANDLERS = Handlers(messages={m.StripeIndices: on_given})
