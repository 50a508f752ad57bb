"""What this host's application takes of other clients' runs, by run: each is a ``RunSubscriptions``.

A run is known here by its own id, whatever its generation: so it is asked for, and so the application hears of it.
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
    """What this host's application takes of other clients' runs. ``known``: by the run's own id."""

    def __init__(self, out: Outbox, me: m.Peer, config: CoreConfig, runs: Mapping[RunId, RunCore]) -> None:
        self._out, self._me, self._config, self._runs = out, me, config, runs
        self.known: dict[RunId, RunSubscriptions] = {}

    def get(self, run_id: RunId, owner: str) -> RunSubscriptions | None:
        """Return what is taken of a client's run, whatever its generation."""
        visit = self.known.get(run_id.first_generation)
        return visit if visit is not None and visit.owner.name == owner else None

    def here(self, run_id: RunId) -> RunId:
        """The generation of a visited run that is open here; ``NO_RUN`` where none is."""
        base, visit = run_id.first_generation, self.known.get(run_id.first_generation)
        if visit is None:
            return NO_RUN
        mine = (
            name for name, run in self._runs.items()
            if name.first_generation == base and run.install.client == visit.owner.name
        )  # fmt: skip
        return next(mine, NO_RUN)

    def request(self, event: e.SubscribeRequested) -> None:
        """The application wants the partitions of a node."""
        run_id = event.run.first_generation
        out = self._out.of(run_id)
        if run_id not in self.known:
            if any(name.first_generation == run_id for name in self._runs):
                why = f"run {run_id} is this host's own, or has a part here; nothing of it can be subscribed to"
                out.fail(why, node=event.node, host=self._me.name, query=event.number)
                return
            self.known[run_id] = RunSubscriptions(out, self._me, event.owner, self._config)
        self.known[run_id].request(event.number, event.node)

    def leave(self, event: e.UnsubscribeRequested) -> None:
        """It wants them no more."""
        if event.run.first_generation in self.known:
            self.known[event.run.first_generation].leave(event.number)

    def on_timer(self, run_id: RunId) -> RunId:
        """Repeat what is due; return the run that is to be closed here, if there is one."""
        if run_id not in self.known:
            return NO_RUN
        self.known[run_id].on_timer(bool(self.here(run_id)))
        return self._go_home(run_id)

    def on_dismiss(self, sender: str, message: m.SubscriptionEnded) -> RunId:
        """The run's client says that a subscription is over, or that all are; return the run to be closed here."""
        visit = self.get(message.run, sender)
        if visit is None and message.run.first_generation in self.known:  # another client leads the run, and it goes on
            self._out.of(message.run).record("unexpected", peer=sender, detail={"message": "Dismiss"})
            return NO_RUN
        if visit is not None:
            visit.dismiss(message.number, message.why)
        if not message.number:
            self._out.of(message.run).send(sender, m.Removed(message.run, self._me.name))
        return NO_RUN if visit is None else self._go_home(message.run.first_generation)

    def handle_sign_of_life(self, sender: str, run_id: RunId, now: float) -> None:
        """A sign of life has come from the run's client."""
        visit = self.get(run_id, sender)
        if visit is not None:
            visit.handle_sign_of_life(now)

    def refresh(self) -> None:
        """Give all clients of runs a fresh period, as this host did not run."""
        for visit in self.known.values():
            visit.handle_sign_of_life(self._out.now)

    def _go_home(self, run_id: RunId) -> RunId:
        """Return the run that is to be closed here, as nothing of it is wanted. Forget one that is not here."""
        if not self.known[run_id].over:
            return NO_RUN
        here = self.here(run_id)
        if not here:
            self._end(run_id, "")
        return here

    def end(self, run_id: RunId, why: str, owner: str) -> None:
        """The run is over here, if anything was taken of it."""
        if self.get(run_id, owner) is not None:
            self._end(run_id.first_generation, why)

    def _end(self, run_id: RunId, why: str) -> None:
        self.known.pop(run_id).end(why)
        self._out.of(run_id).emit(e.Forgotten(run_id))
