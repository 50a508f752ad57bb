"""When the code of nodes here runs, and how large what it makes may be.

Rules:

R1. A source with a rate makes a partition when it is due, not before, and makes up for one period of delay at most.
R2. The code of a node whose state is still to come waits for that (``hold``).
R3. In a stripe of a stream code runs with the stream's index, when that is known (``indices``).
R4. A partition that any host of the run would refuse is refused where it is made, wherever its consumer is.
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
    """The only writer of which nodes here wait until they may run their code."""

    __slots__ = ("_desk", "_held", "_narrowest", "_out", "_pace", "called", "indices", "most_bytes")

    def __init__(self, context: RunContext) -> None:
        self._out, self._desk = context.out, context.out.context
        self.most_bytes = m.MAX_PARTITION_BYTES  # that every host of the run takes
        self._narrowest: m.Peer | None = None
        self.bound(context.install.peers)
        self._pace: Pace | None = None  # created with the first source that has a rate
        self._held: dict[str, RunCode | None] = {}  # nodes whose code may not run yet, and what it is to run on
        self.indices = Indices()
        self.called: dict[str, RunId] = {}  # nodes that went on while their code ran: of which run it was called

    @property
    def pace(self) -> Pace:
        """Sources with a rate that wait until their next partition is due."""
        if self._pace is None:
            self._pace = Pace(self._out)
        return self._pace

    def use(self, indices: Indices) -> None:
        """Have code run with these indices."""
        self.indices = indices

    def call(self, node: NodeCore, action: RunCode) -> e.OperatorFinished | None:
        """Run the code of a node as soon as it may. Return what the node passes on instead of running its code."""
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
        """R4: make nothing that one of these hosts does not take: a word that comes late bounds no less."""
        for peer in peers:
            if self._narrowest is None or peer.max_partition_bytes < self.most_bytes:
                self._narrowest, self.most_bytes = peer, peer.max_partition_bytes

    def refusal(self, index: int, size_bytes: int) -> str:
        """Return why a partition is too large, and what to do."""
        assert self._narrowest is not None
        limit = f"host {self._narrowest.name!r} takes at most {self.most_bytes} (its limit max_partition_bytes)"
        return f"partition {index} has {size_bytes} bytes; {limit}: make it smaller, or raise the limit"

    def hold(self, name: str) -> None:
        """R2: the code of a node may not run before ``release``."""
        self._held.setdefault(name)

    def held(self, name: str) -> RunCode | None:
        """Return what the code of a node that is held is to run on."""
        return self._held.get(name)

    def release(self, name: str) -> RunCode | None:
        """The code of a node may run. Return on what, if it was to."""
        return self._held.pop(name, None)

    def was_called_by(self, name: str, run: RunId) -> None:
        """A node has gone on from the generation before while its code ran, which that run had called."""
        self.called[name] = run

    def returned(self, name: str) -> None:
        """The code of a node has returned."""
        self.called.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """These nodes are gone."""
        names = [*names]
        for name in names:
            self._held.pop(name, None)
        if self._pace is not None:
            self._pace.forget(names)

    def validate(self, names: Iterable[str]) -> None:
        """The invariants; AssertionError tells which does not hold. ``names``: of the nodes here."""
        assert {*names} >= self._held.keys(), self._held
