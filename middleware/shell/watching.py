"""Connections to other clients that show at once when the process at the other end has ended.

If a process ends and its machine keeps running, the kernel closes the connections of the process and refuses new ones.
Rules:

- R1: A process is gone if its connection has closed and the next attempt to connect fails. A closed connection alone
  shows nothing: it may have been cut, and then the next attempt succeeds.
- R2: A crash of the machine, or a cut path, closes no connection. Silence shows both.
- R3: Nothing is sent or read here. Bytes that arrive anyway are bounded as on every dialled connection (R6 of
  ``guard``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import zmq

from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.monitors import news_of

if TYPE_CHECKING:
    from thalweg.middleware.shell.guard import Guard

EVENTS = int(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
Socket = zmq.Socket[bytes]


class _Watched:
    """Connection to a watched process. ``closed``: the connection has closed, and no new one was made since."""

    __slots__ = ("closed", "host", "monitor", "run", "socket")

    def __init__(self, run: RunId, host: str, socket: Socket, monitor: Socket) -> None:
        self.run, self.host, self.socket, self.monitor = run, host, socket, monitor
        self.closed = False


class Watching:
    """Watched processes, by run and host. Only the host's thread on duty uses it."""

    def __init__(self, context: zmq.Context[Socket]) -> None:
        self._context = context
        self._watched: dict[tuple[RunId, str], _Watched] = {}
        self._count = 0
        self.descriptors: dict[int, _Watched] = {}

    def begin(self, run: RunId, host: str, socket: Socket, connect: Callable[[], object]) -> int | None:
        """Watch the process to which ``connect`` connects ``socket``.

        Return the descriptor to wait for, or None if the process is watched already.
        """
        if (run, host) in self._watched:
            socket.close(0)
            return None
        self._count += 1
        name = f"inproc://watched-{self._count}"
        socket.monitor(name, EVENTS)
        monitor = self._context.socket(zmq.PULL)
        monitor.connect(name)
        connect()
        watched = self._watched[run, host] = _Watched(run, host, socket, monitor)
        descriptor = int(monitor.get(zmq.FD))
        self.descriptors[descriptor] = watched
        return descriptor

    def handle(self, descriptor: int, guard: Guard | None) -> tuple[RunId, str] | None:
        """Handle events of a watched process. Return the process's run and host if the process is gone (R1)."""
        watched = self.descriptors[descriptor]
        with contextlib.suppress(zmq.Again):
            while True:
                event, number, endpoint = news_of(watched.monitor.recv_multipart(zmq.NOBLOCK))
                if event == zmq.EVENT_CONNECTED:
                    watched.closed = False
                    if guard is not None:  # R3: bound the bytes that arrive anyway
                        guard.dialled(number, endpoint)
                elif event == zmq.EVENT_DISCONNECTED:
                    watched.closed = True
                elif watched.closed:
                    return watched.run, watched.host
        return None

    def end(self, run: RunId, host: str | None = None) -> Iterator[int]:
        """Stop watching a process, or every process of a run. Yield the descriptors to stop waiting for.

        Each descriptor is closed after the caller has got it.
        """
        for descriptor, watched in list(self.descriptors.items()):
            if watched.run == run and host in (None, watched.host):
                yield descriptor
                self._close(descriptor)

    def stop(self) -> None:
        """Stop watching every process."""
        for descriptor in list(self.descriptors):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        watched = self.descriptors.pop(descriptor)
        del self._watched[watched.run, watched.host]
        watched.socket.monitor(None, 0)
        watched.socket.close(0)
        watched.monitor.close(0)
