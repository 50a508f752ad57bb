"""Guests that hold up the remaining consumers of a node: slow subscribers, which are reported to the client.

Rules:

R1. If a consumer has demanded a partition that a node holds, and the node waits for guests alone, the guests hold up
    the node. Partitions that the node may keep (``ahead``) hold up no consumer.
R2. While the run has guests, a host checks its nodes ``LOOKS`` times in ``guest_s``. The host adds up the time in which
    a guest holds up a node. The remaining time is subtracted ``FORGIVEN`` times. So a slightly slower guest sets the
    pace of the remaining consumers. A guest is reported if it holds up a node for more than four fifths of the time.
R3. At ``guest_s`` the client is notified (``Failed``, repeated at every check while the guest stays slow), and
    dismisses the guest. With ``guest_s`` 0 no guest is reported.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.protocol import messages as m

LOOKS = 8
FORGIVEN = 4.0


class Laggards:
    """Guests that hold up nodes of a run on this host, and the time that counts against every guest."""

    __slots__ = ("_directory", "_held_up_s", "_install", "_limit_s", "_looked_s", "_nodes", "_out")

    def __init__(self, context: RunContext, directory: Directory, nodes: Mapping[str, NodeCore]) -> None:
        self._out, self._install, self._directory, self._nodes = context.out, context.install, directory, nodes
        self._limit_s = context.limits.guest_s
        self._looked_s: float | None = None  # time of the last check. None: the run has no guests, so no check is due
        self._held_up_s: dict[str, float] = {}

    def watch(self) -> None:
        """Start the periodic checks of the nodes, because the run has a guest."""
        if self._looked_s is None and self._limit_s > 0:
            self._wake()

    def _wake(self) -> None:
        self._looked_s = self._out.now
        self._out.wake(Timer.GUESTS, self._out.now + self._limit_s / LOOKS)

    def on_timer(self) -> None:
        """Check the nodes (R2), and report the guests that have reached the limit (R3)."""
        now, guests, looked_s = self._out.now, self._directory.subscribers, self._looked_s
        self._looked_s = None
        if not guests or looked_s is None:
            self._held_up_s.clear()
            return
        passed_s = min(now - looked_s, 2 * self._limit_s / LOOKS)
        held_up = {guest: name for name, node in self._nodes.items() for guest in self._whom_it_waits_for(node)}
        for guest in guests:
            before_s = self._held_up_s.get(guest, 0.0)
            if guest not in held_up:
                self._held_up_s[guest] = max(0.0, before_s - FORGIVEN * passed_s)
                continue
            self._held_up_s[guest] = before_s + passed_s
            if before_s + passed_s >= self._limit_s:
                self._report(guest, held_up[guest])
        self._held_up_s = {guest: held_up_s for guest, held_up_s in self._held_up_s.items() if guest in guests}
        self._wake()

    def _whom_it_waits_for(self, node: NodeCore) -> set[str]:
        """Return the guests that hold up a node (R1).

        Empty: no consumer waits for the node, or the node also waits for a host of the run.
        """
        hosts = {self._directory.locations[name].host for name in node.late_consumers()}
        return hosts if hosts <= self._directory.subscribers else set()

    def _report(self, guest: str, name: str) -> None:
        run, limit = self._out.run, in_seconds(self._limit_s)
        why = f"it takes {name!r} too slowly: the others have waited for it for {limit} (guest_s)"
        self._out.send(self._install.client, m.Failed(run, name, why, lost=guest))
