"""What an application holds that has threads and processes of its own: clients and clusters that it leaves behind.

Rules:

- R1: What is open when the interpreter ends is closed first, the youngest first: later its threads do not run any more,
  and whoever waited for one would wait for ever.
  What daemon threads raise as their clients and clusters are closed under them is of no interest to anybody.
- R2: A forked process has none of these threads, and the hosts are not its own: it is told so, and ends nothing.
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
    """A client, or a cluster."""

    def close(self) -> None: ...

    def forked(self) -> None:
        """This process is a fork of the one that made it, and has its memory alone."""


_numbers = itertools.count()
_open: weakref.WeakValueDictionary[int, ClosedAtExit] = weakref.WeakValueDictionary()


def keep_in_mind(each: ClosedAtExit) -> None:
    """Somebody may leave it open, or fork."""
    _open[next(_numbers)] = each


def weakly(method: Callable[[T], None]) -> Callable[[T], None]:
    """A method for who does not keep its object, as a shell its client: one that is dropped is closed."""
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
        with contextlib.suppress(KeyboardInterrupt):  # the others are to be closed all the same
            resource.close()


def _forked() -> None:
    for resource in list(_open.values()):
        resource.forked()


atexit.register(_close_all)  # R1: close while threads still run
in_forked_children(_forked)  # R2: a child has none of the threads
