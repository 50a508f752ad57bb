"""Open streams of a client: its runs, its subscriptions to runs of other clients, and its feeds."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from thalweg.middleware.client.flow.feeds import Channel
from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.moving.moves import Moves
from thalweg.middleware.client.queries.subscription import Subscription
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.shell import Shell


class OpenStreams:
    """Registry of a client's open streams, and its only writer. ``there``: runs that hosts have not removed yet."""

    def __init__(self, roster: HostRegistry, moves: Moves) -> None:
        self._registry, self.moves = roster, moves
        self.there: set[str] = set()
        self.runs: weakref.WeakValueDictionary[str, Run[Any]] = weakref.WeakValueDictionary()  # a dropped run ends
        self._subscriptions: weakref.WeakValueDictionary[int, Subscription[Any]] = weakref.WeakValueDictionary()
        self._feeds: set[Channel] = set()  # also closed feeds with values that wait

    def begin(self, run: Run[Any]) -> None:
        """Register a run that begins. Raise RunError if the client is closed."""
        with self._registry.news:
            self._registry.check_open()
            self.runs[run.id] = run
            self.there.add(run.id)

    def subscribe(self, subscription: Subscription[Any]) -> None:
        """Register a subscription to the run of a second client. Raise RunError if this client is closed."""
        with self._registry.news:
            self._registry.check_open()
            self._subscriptions[subscription.number] = subscription
            self.there.add(subscription.id)

    def feed(self, channel: Channel) -> None:
        """Register a feed, and forget the feeds that are over."""
        self._feeds = {feed for feed in self._feeds if not feed.over} | {channel}

    def check_not_here(self, run_id: str) -> None:
        """Raise UsageError if the run to be resumed is still open in this client."""
        here = self.runs.get(run_id)
        if here is not None and not here._over:
            raise UsageError(f"run {run_id} goes on in this client; take its partitions there")

    # --- the end ----------------------------------------------------------------------------------------

    def close(self, shell: Shell) -> None:
        """End every stream. Wait until hosts have removed the runs, for 2 s at most and while the shell is alive."""
        self.moves.close(self._registry.closing)
        for run in list(self.runs.values()):
            run.close_all()
        for subscription in list(self._subscriptions.values()):
            subscription.close()
        for channel in self._feeds:
            channel.abandon(self._registry.closing)
        self._wait(shell, 1.5)
        for run_id in list(self.there):  # runs that other clients still consume
            shell.queue_event(e.RunAbandoned(RunId(run_id)))
        self._wait(shell, 0.5)

    def _wait(self, shell: Shell, wall_s: float) -> None:
        with self._registry.news:
            self._registry.news.wait_for(lambda: not self.there or not shell.alive, wall_s)

    def forked(self) -> None:
        """End every stream in a process that was forked from the client's process."""
        self.there = set()
        self.moves.forked(self._registry.closing)
        for stream in (*self.runs.values(), *self._subscriptions.values()):
            stream.forked(self._registry.closing)
        for channel in self._feeds:
            channel.news, channel.unwanted = threading.Condition(), self._registry.closing
            channel.awaiting.clear()

    # --- in the I/O thread ------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Fail every stream after a failure of the client itself."""
        self.moves.close(reason)
        for stream in (*self.runs.values(), *self._subscriptions.values()):
            stream.take(e.Fail(stream._run_id, reason, host=self._registry.name))

    def forgotten(self, run: RunId, *, follows: bool) -> None:
        """Record that hosts have removed a run. ``follows``: a further generation of the run follows."""
        with self._registry.news:
            if not follows and run.stripe is None:
                self.there.discard(run.stream)
            self._registry.news.notify_all()

    def take(self, run: RunId, command: e.Command) -> None:
        """Pass a command for a run to the run, to its subscriptions, or to the moves under way."""
        if isinstance(command, e.MoveEnded):
            self.moves.ended(command)
            return
        if isinstance(command, e.Fail) and command.query is None:
            self.moves.failed(run.stream, f"the run has failed: {command.reason}")
        if (concerned := self.runs.get(run.stream)) is not None:
            concerned.take(command)
        if self._subscriptions:
            first = run.first_generation
            for subscription in [other for other in self._subscriptions.values() if other._run_id == first]:
                subscription.take(command)
