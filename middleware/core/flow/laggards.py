"""Guests that hold up the others: a subscriber that takes far more slowly than who waits for it is reported.

Rules:

R1. A guest holds up a node if the node holds a partition that a consumer has demanded, and all consumers that it
    waits for are guests. Partitions that the node may keep (``ahead``) hold up nobody.
R2. While the run has guests, a host looks at its nodes ``LOOKS`` times in ``guest_s``. The time in which a guest holds
    up a node here adds up. Time in which it does not counts against that ``FORGIVEN`` times. So a guest that is a
    little slower than the others sets their pace, and one for which they wait four fifths of the time is reported.
R3. At ``guest_s`` the client is notified (``Failed``, with each look for as long as that is so), and dismisses the
    guest. With ``guest_s`` 0 no guest is reported.
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
    """The guests that hold up nodes of one run on this host."""

    __slots__ = ("_directory", "_held_up_s", "_install", "_limit_s", "_looked_s", "_nodes", "_out")

    def __init__(self, context: RunContext, directory: Directory, nodes: Mapping[str, NodeCore]) -> None:
        self._out, self._install, self._directory, self._nodes = context.out, context.install, directory, nodes
        self._limit_s = context.limits.guest_s
        self._looked_s: float | None = None  # None: the run has no guests, and nobody looks
        self._held_up_s: dict[str, float] = {}

    def watch(self) -> None:
        """Look at the nodes from now on, as the run has a guest."""
        if self._looked_s is None and self._limit_s > 0:
            self._wake()

    def _wake(self) -> None:
        self._looked_s = self._out.now
        self._out.wake(Timer.GUESTS, self._out.now + self._limit_s / LOOKS)

    def on_timer(self) -> None:
        """Look at the nodes (R2)."""
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
        """Return the guests that a node waits for, if others wait for the node and it waits for guests alone (R1)."""
        hosts = {self._directory.locations[name].host for name in node.late_consumers()}
        return hosts if hosts <= self._directory.subscribers else set()

    def _report(self, guest: str, name: str) -> None:
        run, limit = self._out.run, in_seconds(self._limit_s)
        why = f"it takes {name!r} too slowly: the others have waited for it for {limit} (guest_s)"
        self._out.send(self._install.client, m.Failed(run, name, why, lost=guest))
