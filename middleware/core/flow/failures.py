"""Nodes on this host that cannot continue, and the reports of the failures to the client.

Rules:

R1. Reports are repeated with every demand for a node on this host, because a consumer may wait in vain.
R2. In a run with failover, the client may believe that the node is on another host. The host then sends the location of
    the node before the report.
R3. In a run with failover, a node may lack the partition with which a consumer continues. The host reports the missing
    partition, and every node restarts.
"""

from __future__ import annotations

from collections.abc import Collection

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Failures:
    """Failed nodes of one run on this host, with the reports (``said``). No other part writes the table."""

    __slots__ = ("_directory", "_lasts", "_out", "_to", "said")

    def __init__(self, context: RunContext, directory: Directory) -> None:
        self._out, self._to, self._lasts = context.out, context.install.client, context.fails_over
        self._directory = directory
        self.said: dict[str, m.Failed | m.StateMissing] = {}

    def add(self, event: e.OperatorFailed) -> None:
        """Record that the code of a node has failed, and report the failure to the client."""
        self.said[event.node] = message = m.Failed(self._out.run, event.node, event.reason[:4000], event.cause)
        self._send(message)

    def repeat(self, here: Collection[str]) -> None:
        """Report the failed nodes in ``here`` again (R1). Remove the remaining nodes, as the queries have left."""
        for name, message in list(self.said.items()):
            if name in here:
                self._send(message)
            else:
                del self.said[name]

    def lacks(self, name: str, consumer: str, index: int) -> None:
        """Report that a node no longer has the partition with which a consumer continues (R3)."""
        reason = f"{name!r} has not kept its partition {index}, which {consumer!r} goes on with"
        message = self.said.setdefault(name, m.StateMissing(self._out.run, name, 0, reason))
        self._send(message)

    def _send(self, said: m.Failed | m.StateMissing) -> None:
        here = self._directory.locations.get(said.node)
        if self._lasts and here is not None and here.version > 1:
            # R2: the client may believe that the node is on another host
            self._out.send(self._to, m.Located(self._out.run, (here,)))
        self._out.send(self._to, said)
