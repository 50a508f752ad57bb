"""Dispatch of the commands of a client's own core, in the I/O thread, to the parts of the client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from thalweg.middleware.client.failover.journal import Journal
from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.open_streams import OpenStreams
from thalweg.middleware.errors import HostAbsentError, RunError, UsageError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class CommandDispatcher:
    """Dispatcher of each command to a part of the client. ``join``: adds a host that announces itself.

    None: none is added.
    """

    def __init__(
        self, roster: HostRegistry, opened: OpenStreams, journal: Journal | None, join: Callable[[m.Peer], None] | None
    ) -> None:
        self._registry, self._open_streams, self._journal, self._join = roster, opened, journal, join

    def take(self, command: e.Command) -> None:
        match command:
            case e.Enlisted(peer):
                self._take_in(peer)
            case e.Parted(_, host):
                self._registry.lose(host, "was drained")
            case e.Keep(run, kept):
                if self._journal is not None:
                    self._journal.keep(run.stream, kept)
            case e.Forgotten(run, follows):
                self._open_streams.forgotten(run, follows=follows)
            case e.Fail(run, reason) if not run:
                self._registry.close_to(reason)
                self._open_streams.fail(reason)
            case (
                e.Ready(run)
                | e.Deliver(run)
                | e.Fail(run)
                | e.OperatorMoved(run)
                | e.MoveEnded(run)
                | e.TreeChanged(run)
                | e.QueryStarted(run)
                | e.TreesChanged(run)
                | e.RequestPlan(run)
            ):
                self._open_streams.take(run, command)

    def _take_in(self, peer: m.Peer) -> None:
        join = self._join
        if join is None or not self._registry.enlists(peer):
            return

        def add() -> None:
            try:
                with contextlib.suppress(HostAbsentError, UsageError, RunError):  # the host announces itself again
                    join(peer)
            finally:
                self._registry.joining.discard(peer.name)

        threading.Thread(target=add, name="thalweg-join", daemon=True).start()
