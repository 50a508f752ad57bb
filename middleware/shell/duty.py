"""Who runs a shell's loop: one thread on duty, which may make short calls itself, and one standing by.

Handing a call of some microseconds to another thread, and its result back, takes longer than the call. So the thread
on duty makes it itself, between ``begin`` and ``end``. When such a call turns out long, the thread that stands by takes
the duty over after ``limit_s``, and the loop goes on; the other finds that out from ``end``, leaves the loop, and
stands by.

Rules:

- R1: Only the thread on duty runs ``loop``. It passes between threads under a lock, so that one sees all the other did.
- R2: Calls are made only while a thread stands by (``present``).
- R3: Nobody wakes up while no calls are made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Duty:
    """Runs ``loop`` in one of two daemon threads until it returns True; False means that it has lost the duty."""

    def __init__(self, loop: Callable[[], bool], name: str, limit_s: float) -> None:
        self.over = threading.Event()
        self.present = False  # a thread stands by
        self._loop = loop
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._serving = threading.Lock()  # held until all is over: looking costs less than an Event's wait
        self._serving.acquire()
        self._calls = 0  # begun so far; the number of the one under way
        self._under_way = False
        self._taken = 0  # the number of the call during which the duty was last taken over
        self._watched = False  # the thread that stands by looks, or is about to
        self._watch = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(on_duty,), name=f"{name}-{number}", daemon=True)
            for number, on_duty in enumerate((True, False))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the loop is over, and its threads have ended (but not for a call that does not return)."""
        if self.over.wait(timeout_s):
            for thread in self._threads:
                thread.join(self._limit_s if not self.present else 1.0)

    def begin(self) -> int:
        """The thread on duty begins a call; give ``end`` what this returns."""
        self._calls += 1  # first: whoever sees one under way must also see its number
        self._under_way = True
        if not self._watched:
            self._watched = True
            self._watch.set()
        return self._calls

    def end(self, call: int) -> bool:
        """Whether the thread that made the call is still on duty; if not, it must return False from ``loop``."""
        with self._lock:
            if self._taken == call:  # R1: the other thread runs the loop now
                return False
            self._under_way = False
            return True

    def _run(self, on_duty: bool) -> None:
        while on_duty or self._stand_by():
            if self._loop():
                self.over.set()
                self._serving.release()
                self._watch.set()
                return
            on_duty = False

    def _stand_by(self) -> bool:
        """True when this thread has taken the duty over, False when all is over."""
        self.present = True
        while True:
            self._watch.wait()  # R3
            if self.over.is_set():
                return False
            looking = True
            while looking:
                seen = self._calls
                if self._serving.acquire(timeout=self._limit_s):
                    return False
                with self._lock:
                    under_way = self._under_way  # before the number: a call seen under way may else be the next one
                    looking = self._calls != seen
                    if under_way and not looking:
                        self._taken = seen
                        self._under_way = False
                        self.present = False  # R2: until the thread in the call is back
                        return True
            self._watch.clear()
            self._watched = False
            if self._calls != seen:  # begun between the look and the clearing
                self._watched = True
                self._watch.set()
