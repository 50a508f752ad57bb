"""Waiting for descriptors, and waking up a waiting thread."""

from __future__ import annotations

import os
import select
import selectors
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

READABLE: int = getattr(select, "EPOLLIN", 1)


class Poller(Protocol):
    """Set of descriptors to wait for, with the interface of ``select.epoll``."""

    def register(self, descriptor: int, events: int, /) -> None: ...

    def unregister(self, descriptor: int, /) -> None: ...

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        """Return pairs of a readable descriptor and READABLE; an empty list after the timeout."""

    def close(self) -> None: ...


def new_poller() -> Poller:
    """Return a poller: epoll, which is quickest, or the default selector of the system."""
    return select.epoll() if hasattr(select, "epoll") else _Selected()


def takes_more(descriptor: int) -> bool:
    """Return whether a few kilobytes can be written to a pipe now, without waiting for its reader.

    A system that cannot tell is assumed to take them.
    """
    if not hasattr(select, "poll"):
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return any(events & select.POLLOUT for _, events in poller.poll(0))


class _Selected:
    """Poller by kqueue, poll or select."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, descriptor: int, _: int) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ)

    def unregister(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return [(key.fd, READABLE) for key, _ in self._selector.select(timeout_s)]

    def close(self) -> None:
        self._selector.close()


class Bell:
    """Descriptor that is readable after ``ring`` until ``hush``. Every thread may call ``ring``.

    Neither call waits. ``ring`` raises OSError if the pipe is full.
    """

    __slots__ = ("_closes", "descriptor", "hush", "ring")

    def __init__(self) -> None:
        self.hush: Callable[[], object]
        self.ring: Callable[[], object]
        self._closes: tuple[Callable[[], object], ...]
        if sys.platform == "win32":  # select waits for sockets alone there
            heard, rung = socket.socketpair()
            for end in (heard, rung):
                end.setblocking(False)
            self.descriptor, self._closes = heard.fileno(), (heard.close, rung.close)
            self.hush, self.ring = partial(heard.recv, 64), partial(rung.send, b"x")
        else:
            self.descriptor, written = os.pipe()
            for number in (self.descriptor, written):
                os.set_blocking(number, False)
            self._closes = partial(os.close, self.descriptor), partial(os.close, written)
            self.hush, self.ring = partial(os.read, self.descriptor, 64), partial(os.write, written, b"x")

    def close(self) -> None:
        """Free both ends."""
        for close in self._closes:
            close()


def signal_pipe() -> tuple[int, int]:
    """Return a pipe for ``signal.set_wakeup_fd``: the end to wait at, and the end to write to without waiting."""
    wake, woken = os.pipe()
    if hasattr(os, "set_blocking"):  # Windows takes a pipe that blocks, and has it only from Python 3.12 on
        os.set_blocking(woken, False)
    return wake, woken


def unix_socket() -> socket.socket:
    """Return a Unix socket. Raises OSError if Python has no Unix sockets on the system."""
    if not UNIX_SOCKETS:
        raise OSError("this system has no Unix sockets")
    return socket.socket(socket.AF_UNIX)


UNIX_SOCKETS = hasattr(socket, "AF_UNIX")
"""True if Python has Unix sockets on the system. False on Windows."""
