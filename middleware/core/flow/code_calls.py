"""Calls of the code of nodes on this host, and the size limit of their outputs.

Rules:

R1. A source with a rate is called when its partition is due. After a delay, the source catches up by one period at
    most.
R2. While the state of a node has still to arrive, calls of the node wait (``hold``).
R3. In the run of a stripe, code is called with the stream's index, as soon as the host knows the index (``indices``).
R4. If a host of the run would refuse a partition, the host that makes the partition refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import RunCode
from thalweg.middleware.core.flow.indices import Indices
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.pace import Pace
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId


class CodeCalls:
    """Waiting calls of one run on this host, and the size limit of outputs. No other part writes them."""

    __slots__ = ("_desk", "_held", "_narrowest", "_out", "_pace", "called", "indices", "most_bytes")

    def __init__(self, context: RunContext) -> None:
        self._out, self._desk = context.out, context.out.context
        self.most_bytes = m.MAX_PARTITION_BYTES  # size of the largest partition that every host of the run accepts
        self._narrowest: m.Peer | None = None
        self.bound(context.install.peers)
        self._pace: Pace | None = None  # created with the first source that has a rate
        self._held: dict[str, RunCode | None] = {}  # delayed calls, by node
        self.indices = Indices()
        self.called: dict[str, RunId] = {}  # nodes whose running code an earlier generation has called

    @property
    def pace(self) -> Pace:
        """Sources with a rate that wait until their next partition is due."""
        if self._pace is None:
            self._pace = Pace(self._out)
        return self._pace

    def use(self, indices: Indices) -> None:
        """Replace the indices with which code runs, as a stripe's code needs the indices of the stream (R3)."""
        self.indices = indices

    def call(self, node: NodeCore, action: RunCode) -> e.OperatorFinished | None:
        """Call the code of a node, now or as soon as R1 to R3 permit the call.

        Return the output that replaces the call, or None.
        """
        name = node.node.name
        if self._held and name in self._held:
            self._held[name] = action
            return None
        if node.node.rate is not None and not self.pace.is_due(name, node.node.rate, action):
            return None
        call = self.indices.call(self._out.run, name, action)
        if isinstance(call, e.RunOperator):
            self._desk.commands.append(call)
            return None
        return call

    def bound(self, peers: Iterable[m.Peer]) -> None:
        """Lower the size limit of outputs to the limits of ``peers`` (R4). A late message never raises the limit."""
        for peer in peers:
            if self._narrowest is None or peer.max_partition_bytes < self.most_bytes:
                self._narrowest, self.most_bytes = peer, peer.max_partition_bytes

    def refusal(self, index: int, size_bytes: int) -> str:
        """Return why a partition is too large, and the remedy, as one line."""
        assert self._narrowest is not None
        limit = f"host {self._narrowest.name!r} takes at most {self.most_bytes} (its limit max_partition_bytes)"
        return f"partition {index} has {size_bytes} bytes; {limit}: make it smaller, or raise the limit"

    def hold(self, name: str) -> None:
        """Delay calls of the code of a node until ``release`` (R2)."""
        self._held.setdefault(name)

    def held(self, name: str) -> RunCode | None:
        """Return the call of a node that ``hold`` has delayed, or None."""
        return self._held.get(name)

    def release(self, name: str) -> RunCode | None:
        """Permit calls of the code of a node again. Return the delayed call, or None."""
        return self._held.pop(name, None)

    def was_called_by(self, name: str, run: RunId) -> None:
        """Record that an earlier generation, ``run``, called the code of a node, and the code is still running."""
        self.called[name] = run

    def returned(self, name: str) -> None:
        """Record that the code of a node has returned."""
        self.called.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """Remove nodes that the run no longer has."""
        names = [*names]
        for name in names:
            self._held.pop(name, None)
            self.called.pop(name, None)
        if self._pace is not None:
            self._pace.forget(names)

    def validate(self, names: Iterable[str]) -> None:
        """Check the invariants. ``names``: nodes on this host. Raise AssertionError if an invariant is violated."""
        assert {*names} >= self._held.keys(), self._held
