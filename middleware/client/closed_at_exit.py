"""Registry of open clients and clusters, which have threads and processes, for the ends and forks of the process.

Rules:

- R1: When the interpreter ends, open clients and clusters are closed first, the youngest first. Later no thread runs,
  and a wait for a thread would last for ever. Errors of Thalweg in daemon threads during this time are not printed.
- R2: A forked process has none of the threads, and the hosts belong to its parent. Its objects are notified, and end
  nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from thalweg.middleware.errors import ThalwegError
from thalweg.middleware.platform.processes import in_forked_children

T = TypeVar("T")


class ClosedAtExit(Protocol):
    """Protocol of a client or cluster that is closed when the interpreter ends."""

    def close(self) -> None: ...

    def forked(self) -> None:
        """Give up threads and hosts in a process that was forked from the object's process."""


_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, ClosedAtExit] = weakref.WeakValueDictionary()


def keep_in_mind(each: ClosedAtExit) -> None:
    """Register a client or cluster, to be closed at the end of the process and notified of a fork."""
    _open[next(_numbers)] = each


def weakly(method: Callable[[T], None]) -> Callable[[T], None]:
    """Return a function that calls ``method`` without keeping its object alive, so that a dropped client is closed."""
    reference = weakref.WeakMethod(method)

    def call(told: T) -> None:
        if (method := reference()) is not None:
            method(told)

    return call


def _close_all() -> None:
    hook = threading.excepthook

    def tell_others(raised: threading.ExceptHookArgs) -> None:
        if not issubclass(raised.exc_type, ThalwegError):
            hook(raised)

    threading.excepthook = tell_others
    for _, resource in sorted(_open.items(), reverse=True):
        with contextlib.suppress(KeyboardInterrupt):  # the remaining objects have to be closed, too
            resource.close()


def _forked() -> None:
    for resource in list(_open.values()):
        resource.forked()


atexit.register(_close_all)  # R1: close while threads still run
in_forked_children(_forked)  # R2: a child has none of the threads
