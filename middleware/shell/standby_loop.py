"""Who runs a shell's loop: one thread on duty, which may make short calls itself, and one standing by.

Handing a call of some microseconds to another thread, and its result back, takes longer than the call. So the thread
on duty makes it itself, between ``begin`` and ``end``. When such a call turns out long, the thread that stands by takes
the duty over after ``limit_s``, and the loop goes on; the other finds that out from ``end``, leaves the loop, and
stands by.

Rules:

- R1: Only the thread on duty runs ``loop``. It passes between threads under a lock, so that one sees all the other did.
- R2: Calls are made only while a thread stands by (``present``).
- R3: Nobody wakes up while no calls are made. While they are, the thread that stands by looks every ``limit_s``, and
  where it finds no long one ever less often: down to every ``PATIENT`` times that. One that it finds under way, and
  that may have just begun, it looks at again after ``limit_s``.
- R4: Who takes the duty over starts another to stand by, for the call may never return. So many as ``MOST_LOST`` are
  replaced at a time; beyond, no calls are made until one of them is back. One that comes back and is not needed ends.
- R5: However the loop ends, ``ended`` is told, once, with what it raised, if it did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENT = 4  # a host of which nothing is long is looked at 12 times a second, not 50
MOST_LOST = 16  # threads in calls that do not return, each in a node of its own


class StandbyLoop:
    """Runs ``loop`` in daemon threads until it returns True; False means that it has lost the duty."""

    def __init__(
        self, loop: Callable[[], bool], ended: Callable[[BaseException | None], None], name: str, limit_s: float
    ) -> None:
        self.over = threading.Event()
        self.present = False  # a thread stands by
        self._loop, self._ended, self._name = loop, ended, name
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._serving = threading.Lock()  # held until all is over: looking costs less than an Event's wait
        self._serving.acquire()
        self._calls = 0  # begun so far; the number of the one under way
        self._under_way = False
        self._taken = 0  # the number of the last call during which the duty was taken over
        self._watched = False  # the thread that stands by looks, or is about to
        self._watch = threading.Event()
        self._look_s = limit_s  # R3: the time between two checks of the thread that stands by
        self._lost = 0  # threads in calls that lost them the duty
        self._standby = False  # a thread stands by, or is about to
        self._started = self._holder = 0
        self._threads: list[threading.Thread] = []
        self._start(True)
        self._start(False)

    def _start(self, on_duty: bool) -> None:
        """Have one more thread; without one that stands by all goes on, but no calls are made here (R2)."""
        self._standby = not on_duty
        thread = threading.Thread(target=self._run, args=(on_duty,), name=f"{self._name}-{self._started}", daemon=True)
        self._started += 1
        self._threads = [runner for runner in self._threads if runner.is_alive()]
        try:
            thread.start()
        except RuntimeError:  # this process may have no more of them
            self._standby = False
            if on_duty:
                raise
        else:
            self._threads.append(thread)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the loop is over, and its threads have ended (but not for a call that does not return)."""
        if self.over.wait(timeout_s):
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(self._limit_s if self._lost else 1.0)

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
            if self._taken >= call:  # R1: another thread runs the loop now
                return False
            self._under_way = False
            return True

    def _run(self, on_duty: bool) -> None:
        while on_duty or self._stand_by():
            error: BaseException | None = None
            me = self._holder = threading.get_ident()
            try:
                on_duty = self._loop()
            except BaseException as raised:
                error, on_duty = raised, self._holder == me
            if on_duty:  # R5: the thread has not lost the duty: the loop itself has ended
                try:
                    self._ended(error)
                finally:
                    self.over.set()
                    self._serving.release()
                    self._watch.set()
                return
            with self._lock:
                self._lost -= 1
                if self._standby:  # R4: another thread stands by, so this one is not needed
                    return
                self._standby = True

    def _stand_by(self) -> bool:
        """True when this thread has taken the duty over, False when all is over."""
        self.present = True
        while True:
            self._watch.wait()  # R3: the thread sleeps while no calls are made
            if self.over.is_set():
                return False
            looking, under_way = True, False
            while looking:
                seen = self._calls
                if self._serving.acquire(timeout=self._limit_s if under_way else self._look_s):
                    return False
                self._look_s = min(2 * self._look_s, PATIENT * self._limit_s)
                with self._lock:
                    under_way = self._under_way  # before the number: a call seen under way may else be the next one
                    looking = self._calls != seen
                    if under_way and not looking:
                        self._taken = seen
                        self._under_way = False
                        self._look_s = self._limit_s
                        self.present = self._standby = False  # R2: no calls are made until another thread stands by
                        self._lost += 1
                        if self._lost <= MOST_LOST:  # R4: the call may never return, so another thread is to stand by
                            self._start(False)
                        return True
            self._watch.clear()
            self._watched = False
            if self._calls != seen:  # begun between the look and the clearing
                self._watched = True
                self._watch.set()
