"""Threads that run a shell's loop: a thread on duty, which may make short calls itself, and a standby thread.

To hand a call of some microseconds to a second thread and to return the result takes longer than the call. Therefore
the thread on duty makes such a call itself, between ``begin`` and ``end``. If the call takes longer than ``limit_s``,
the standby thread takes the duty over, and the loop continues. The first thread learns this from ``end``, leaves the
loop, and stands by.

Rules:

- R1: Only the thread on duty runs ``loop``. The duty passes between threads under a lock, so the next thread sees
  everything that the last thread did.
- R2: Calls are made only while a standby thread is ``present``.
- R3: While no calls are made, no thread wakes up. While calls are made, the standby thread checks every ``limit_s``. If
  no call is long, the interval grows, up to ``PATIENT`` times ``limit_s``. If a call is under way at a check, the next
  check follows after ``limit_s``, as the call may have just begun.
- R4: A thread that takes the duty over starts a new standby thread, as the long call may never return. At most
  ``MOST_LOST`` threads are replaced at a time. Beyond that, no calls are made until such a thread returns. A returning
  thread that is not needed ends.
- R5: However the loop ends, ``ended`` is called once, with the exception if there was one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENT = 4  # a host without long calls is checked 12 times a second, not 50
MOST_LOST = 16  # threads in calls that do not return, each of a different node


class StandbyLoop:
    """Runner of ``loop`` in daemon threads until ``loop`` returns True. False: the thread has lost the duty."""

    def __init__(
        self, loop: Callable[[], bool], ended: Callable[[BaseException | None], None], name: str, limit_s: float
    ) -> None:
        self.over = threading.Event()
        self.present = False  # a thread stands by
        self._loop, self._ended, self._name = loop, ended, name
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._serving = threading.Lock()  # held until the loop is over: a check costs less than an Event's wait
        self._serving.acquire()
        self._calls = 0  # calls begun so far, which is the number of the call under way
        self._under_way = False
        self._taken = 0  # the number of the last call during which the duty was taken over
        self._watched = False  # the standby thread checks, or is about to
        self._watch = threading.Event()
        self._look_s = limit_s  # R3: the time between two checks of the thread that stands by
        self._lost = 0  # threads in calls over which they have lost the duty
        self._standby = False  # a thread stands by, or is about to
        self._started = self._holder = 0
        self._threads: list[threading.Thread] = []
        self._start(True)
        self._start(False)

    def _start(self, on_duty: bool) -> None:
        """Start a thread, on duty or standby. If no standby thread can start, no calls are made in the loop (R2)."""
        self._standby = not on_duty
        thread = threading.Thread(target=self._run, args=(on_duty,), name=f"{self._name}-{self._started}", daemon=True)
        self._started += 1
        self._threads = [runner for runner in self._threads if runner.is_alive()]
        try:
            thread.start()
        except RuntimeError:  # the process may have no more threads
            self._standby = False
            if on_duty:
                raise
        else:
            self._threads.append(thread)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the loop is over and its threads have ended. A call that does not return is not waited for."""
        if self.over.wait(timeout_s):
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(self._limit_s if self._lost else 1.0)

    def begin(self) -> int:
        """Note that the thread on duty begins a call. Return the number of the call, for ``end``."""
        self._calls += 1  # first: a thread that sees a call under way must also see its number
        self._under_way = True
        if not self._watched:
            self._watched = True
            self._watch.set()
        return self._calls

    def end(self, call: int) -> bool:
        """Note the end of a call. Return whether the calling thread is still on duty.

        If not, the thread must return False from ``loop``.
        """
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
        """Wait as the standby thread. Return True after a take-over of the duty, False if the loop is over."""
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
                    under_way = self._under_way  # before the number: otherwise the call under way may be the next call
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
            if self._calls != seen:  # a call has begun between the check and the clearing
                self._watched = True
                self._watch.set()
