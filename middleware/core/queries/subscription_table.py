"""Subscriptions of this host's application to other clients' runs: a ``RunSubscriptions`` for every run.

The id of a run's first generation names the run here, in requests and in news of the application.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.queries.run_subscriptions import RunSubscriptions
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class SubscriptionTable:
    """Table of this application's subscriptions, with the id of every run's first generation as key."""

    def __init__(self, out: Outbox, me: m.Peer, config: CoreConfig, runs: Mapping[RunId, RunCore]) -> None:
        self._out, self._me, self._config, self._runs = out, me, config, runs
        self.known: dict[RunId, RunSubscriptions] = {}

    def get(self, run_id: RunId, owner: str) -> RunSubscriptions | None:
        """Return the subscriptions to a run of ``owner``, whatever the run's generation, or None."""
        visit = self.known.get(run_id.first_generation)
        return visit if visit is not None and visit.owner.name == owner else None

    def here(self, run_id: RunId) -> RunId:
        """Return the generation of a subscribed run that is open here, or ``NO_RUN``."""
        base, visit = run_id.first_generation, self.known.get(run_id.first_generation)
        if visit is None:
            return NO_RUN
        ids = (
            name for name, run in self._runs.items()
            if name.first_generation == base and run.install.client == visit.owner.name
        )  # fmt: skip
        return next(ids, NO_RUN)

    def request(self, event: e.SubscribeRequested) -> None:
        """Subscribe to a node for the application. Report an error if the run has another part on this host."""
        run_id = event.run.first_generation
        out = self._out.of(run_id)
        if run_id not in self.known:
            if any(name.first_generation == run_id for name in self._runs):
                why = f"run {run_id} is this host's own, or has a part here; this host cannot subscribe to its nodes"
                out.fail(why, node=event.node, host=self._me.name, query=event.number)
                return
            self.known[run_id] = RunSubscriptions(out, self._me, event.owner, self._config)
        self.known[run_id].request(event.number, event.node)

    def leave(self, event: e.UnsubscribeRequested) -> None:
        """End a subscription for the application."""
        if event.run.first_generation in self.known:
            self.known[event.run.first_generation].leave(event.number)

    def on_timer(self, run_id: RunId) -> RunId:
        """Repeat due messages to the run's client. Return the run to close here, or ``NO_RUN``."""
        if run_id not in self.known:
            return NO_RUN
        self.known[run_id].on_timer(bool(self.here(run_id)))
        return self._go_home(run_id)

    def on_dismiss(self, sender: str, message: m.SubscriptionEnded) -> RunId:
        """End one subscription, or all subscriptions, to a run, as the run's client says.

        Return the run to close here, or ``NO_RUN``.
        """
        visit = self.get(message.run, sender)
        if visit is None and message.run.first_generation in self.known:  # the sender does not lead the run
            self._out.of(message.run).record("unexpected", peer=sender, detail={"message": "Dismiss"})
            return NO_RUN
        if visit is not None:
            visit.dismiss(message.number, message.why)
        if not message.number:
            self._out.of(message.run).send(sender, m.Removed(message.run, self._me.name))
        return NO_RUN if visit is None else self._go_home(message.run.first_generation)

    def handle_sign_of_life(self, sender: str, run_id: RunId, now: float) -> None:
        """Note a sign of life of the client that leads a run."""
        visit = self.get(run_id, sender)
        if visit is not None:
            visit.handle_sign_of_life(now)

    def refresh(self) -> None:
        """Give the clients of all runs a fresh period of silence, because this host did not run."""
        for visit in self.known.values():
            visit.handle_sign_of_life(self._out.now)

    def _go_home(self, run_id: RunId) -> RunId:
        """Return the run to close here if no subscription to the run is left, or else ``NO_RUN``.

        If the run is not open here, forget the run.
        """
        if not self.known[run_id].over:
            return NO_RUN
        here = self.here(run_id)
        if not here:
            self._end(run_id, "")
        return here

    def end(self, run_id: RunId, why: str, owner: str) -> None:
        """End the subscriptions to a run of ``owner`` that is over on this host."""
        if self.get(run_id, owner) is not None:
            self._end(run_id.first_generation, why)

    def _end(self, run_id: RunId, why: str) -> None:
        self.known.pop(run_id).end(why)
        self._out.of(run_id).emit(e.Forgotten(run_id))
