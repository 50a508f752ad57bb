"""What this host's application takes of other clients' runs, by run: each is a ``Visit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thalweg.middleware.core.outbox import Outbox
from thalweg.middleware.core.relocation.visit import Visit
from thalweg.middleware.core.run import RunCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig


class Visits:
    """Its subscriptions. ``close`` has a run end here, and with it what is taken of it (``end``)."""

    def __init__(
        self, out: Outbox, me: m.Peer, config: CoreConfig, runs: Mapping[str, RunCore], close: Callable[[str], None]
    ) -> None:
        self._out, self._me, self._config, self._runs, self._close = out, me, config, runs, close
        self._visits: dict[str, Visit] = {}

    def get(self, run_id: str) -> Visit | None:
        """Of that run."""
        return self._visits.get(run_id)

    def request(self, event: e.SubscribeRequested) -> None:
        """The application wants the partitions of a node."""
        out = self._out.of(event.run)
        if event.run not in self._visits:
            if event.run in self._runs:
                why = f"run {event.run} is this host's own, or has a part here; nothing of it can be subscribed to"
                out.fail(why, node=event.node, host=self._me.name, query=event.number)
                return
            self._visits[event.run] = Visit(out, self._me, event.owner, self._config)
        self._visits[event.run].request(event.number, event.node)

    def leave(self, event: e.UnsubscribeRequested) -> None:
        """It wants them no more."""
        if event.run in self._visits:
            self._visits[event.run].leave(event.number)

    def on_timer(self, run_id: str) -> None:
        """Something is to be said again."""
        if run_id in self._visits:
            self._visits[run_id].on_timer(run_id in self._runs)
            self._go_home(run_id)

    def on_dismiss(self, sender: str, message: m.Dismiss) -> None:
        """The run's client says that a subscription is over, or that all are."""
        visit = self._visits.get(message.run)
        if visit is not None and sender == visit.owner.name:
            visit.dismiss(message.number, message.why)
        if not message.number:
            self._out.of(message.run).send(sender, m.Removed(message.run, self._me.name))
        if visit is not None:
            self._go_home(message.run)

    def heard(self, sender: str, run_id: str, now: float) -> None:
        """A sign of life has come from the run's client."""
        visit = self._visits.get(run_id)
        if visit is not None and sender == visit.owner.name:
            visit.heard_s = now

    def refresh(self) -> None:
        """Give all clients of runs a fresh period, as this host did not run."""
        for visit in self._visits.values():
            visit.heard_s = self._out.now

    def _go_home(self, run_id: str) -> None:
        """Have no part in a run any more of which nothing is wanted."""
        if self._visits[run_id].over:
            if run_id in self._runs:
                self._close(run_id)
            else:
                self.end(run_id, "")

    def end(self, run_id: str, why: str) -> None:
        """The run is over here, if anything was taken of it."""
        visit = self._visits.pop(run_id, None)
        if visit is not None:
            visit.end(why)
            self._out.of(run_id).emit(e.Forgotten(run_id))
