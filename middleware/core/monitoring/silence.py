"""A way between two hosts that is dead though both hear the client: who waits finds it out, and the run ends.

Rules:

- A host waits for another where it repeats a demand or a claim, or where a transfer to it has failed. One that has not
  answered a ``Ping`` for ``liveness_s`` is then pinged every ``ping_s``. Only its ``Pong`` shows that both directions
  work.
- The suspicion is over when that comes, or when nothing is waited for there any more, as after a move.
- When it has lasted for ``lease_s`` the client is told (``Failed``, as often as the other is pinged), and ends the run
  with both names. A host that the client itself does not hear, it gives up sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class Suspicions:
    """The hosts that this one waits for in vain."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.since_s: dict[tuple[str, str], float] = {}  # (run, host) -> when it was pinged first
        self._answered_s: dict[str, float] = {}

    def on_waiting(self, run: RunState, host: str, since_s: float) -> None:
        """Something has been expected of ``host``, or been meant for it, since then."""
        now, liveness_s = self.core.now, self.core.config.liveness_s
        key = run.id, host
        if key in self.since_s or host not in run.hosts or host == self.core.host:
            return
        if now - max(since_s, self._answered_s.get(host, since_s)) < liveness_s:
            return
        if not self.since_s:
            self.core.emit(e.SetTimer("silence", now + self.core.config.ping_s))
        self.since_s[key] = now
        self._ping(run, host)

    def on_pong(self, sender: str) -> None:
        self._answered_s[sender] = self.core.now
        for key in [key for key in self.since_s if key[1] == sender]:
            del self.since_s[key]

    def on_timer(self) -> None:
        core = self.core
        for (run_id, host), since_s in list(self.since_s.items()):
            run = core.runs.get(run_id)
            waits = self._waits(run, host) if run is not None and host in run.hosts else None
            if run is None or waits is None:
                del self.since_s[run_id, host]
                continue
            self._ping(run, host)
            if core.now - since_s >= core.config.lease_s:
                name, part = waits
                why = f"host {host!r}, {part}, has not answered it for {core.config.lease_s:g} s; is a way cut?"
                core.send(run_id, run.install.client, m.Failed(run_id, name, why))
        if self.since_s:
            core.emit(e.SetTimer("silence", core.now + core.config.ping_s))

    def _ping(self, run: RunState, host: str) -> None:
        self.core.emit(e.Send(run.id, host, m.Ping("")))

    def _waits(self, run: RunState, host: str) -> tuple[str, str] | None:
        """A node here that needs the way to ``host``, and what for."""
        for (consumer, producer), pending in run.pending.items():
            if self.core.flow.whereabouts(run, producer, pending.index) == host:
                return consumer, f"which holds {producer!r}"
        outputs = [(name, node.retained, node.landed) for name, node in run.nodes.items()]
        outputs += [(name, tail.output, tail.output.index if tail.landed else -1) for name, tail in run.tails.items()]
        for name, output, landed in outputs:
            if output is None or landed == output.index:
                continue
            consumer = run.consumer_of(name, output.index)
            if consumer not in run.nodes and self.core.flow.whereabouts(run, consumer, output.index) == host:
                return name, f"which holds {consumer!r}"
        return self.core.inheritance.needs(run, host)
