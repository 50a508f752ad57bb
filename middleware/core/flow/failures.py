"""Nodes that cannot go on here, and what the client is told of it.

Rules:

R1. It is told again with every demand that comes to this host: who demands waits in vain.
R2. In a run that outlives its hosts the client may not know that the node is here, and believe another host: it is told
    where the node is first.
R3. In such a run it is told of one that lacks what a consumer goes on with: then all begin anew.
"""

from __future__ import annotations

from collections.abc import Collection

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Failures:
    """The only writer of which nodes of a run have failed on this host."""

    __slots__ = ("_directory", "_lasts", "_out", "_to", "said")

    def __init__(self, context: RunContext, directory: Directory) -> None:
        self._out, self._to, self._lasts = context.out, context.install.client, context.fails_over
        self._directory = directory
        self.said: dict[str, m.Failed | m.StateMissing] = {}

    def add(self, event: e.OperatorFailed) -> None:
        """A node's code cannot go on."""
        self.said[event.node] = message = m.Failed(self._out.run, event.node, event.reason[:4000], event.cause)
        self._send(message)

    def repeat(self, here: Collection[str]) -> None:
        """R1: of those nodes that are still ``here``; the query of another has left."""
        for name, message in list(self.said.items()):
            if name in here:
                self._send(message)
            else:
                del self.said[name]

    def lacks(self, name: str, consumer: str, index: int) -> None:
        """R3: a consumer goes on with a partition that its producer has not kept."""
        reason = f"{name!r} has not kept its partition {index}, which {consumer!r} goes on with"
        message = self.said.setdefault(name, m.StateMissing(self._out.run, name, 0, reason))
        self._send(message)

    def _send(self, said: m.Failed | m.StateMissing) -> None:
        here = self._directory.locations.get(said.node)
        if self._lasts and here is not None and here.version > 1:
            # R2: the client may believe that the node is on another host
            self._out.send(self._to, m.Located(self._out.run, (here,)))
        self._out.send(self._to, said)
