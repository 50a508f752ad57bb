"""The duty passes to the standby thread only while a call is long. Two threads are never on duty."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from patience import patience

from thalweg.middleware.shell.standby_loop import MOST_LOST, StandbyLoop

LIMIT_S = 0.02
WAIT_S = 10.0


class Served:
    """Loop that makes queued calls. A call lasts for a number of seconds, or until its event is set."""

    def __init__(self) -> None:
        self.calls: list[threading.Event | float] = []
        self.news = threading.Condition()
        self.stopping = False
        self.on_duty: set[str] = set()
        self.served: list[str] = []
        self.most = 0
        self.ended: list[BaseException | None] = []
        self.duty = StandbyLoop(self.loop, self.ended.append, "test-duty", LIMIT_S)

    def loop(self) -> bool:
        me = threading.current_thread().name
        self.on_duty.add(me)
        while True:
            with self.news:
                assert self.news.wait_for(lambda: bool(self.calls) or self.stopping, WAIT_S)
                if self.stopping:
                    return True
                call = self.calls.pop(0)
            self.most = max(self.most, len(self.on_duty))
            if not self.duty.present:
                self.note("left")
                continue
            number = self.duty.begin()
            if isinstance(call, threading.Event):
                self.on_duty.discard(me)  # from now on the other thread may have the duty
                assert call.wait(patience(WAIT_S))
            elif call:
                time.sleep(call)
            if not self.duty.end(number):
                return False
            self.on_duty.add(me)
            self.note(me)

    def note(self, what: str) -> None:
        with self.news:
            self.served.append(what)
            self.news.notify_all()

    def give(self, *calls: threading.Event | float) -> None:
        with self.news:
            self.calls.extend(calls)
            self.news.notify_all()

    def wait_served(self, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.served) >= count, WAIT_S), self.served


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    with one.news:
        one.stopping = True
        one.news.notify_all()
    assert one.duty.over.wait(patience(WAIT_S))


def wait_present(duty: StandbyLoop) -> None:
    deadline = time.monotonic() + patience(WAIT_S)
    while not duty.present:
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_calls_that_do_not_return_lose_the_duty_and_the_loop_goes_on(served: Served) -> None:
    released = threading.Event()
    for number in range(MOST_LOST):
        wait_present(served.duty)  # the thread that took the duty over is replaced
        served.give(0.0, released)
        served.wait_served(number + 1)
    assert served.served == [f"test-duty-{number}" for number in range(MOST_LOST)]
    wait_present(served.duty)
    served.give(released, 0.0)  # the second is served while the first is still under way, though not as a quick call
    served.wait_served(MOST_LOST + 1)
    assert served.served[-1] == "left"
    assert not served.duty.present  # R4: there are enough
    threads = threading.active_count()
    released.set()
    wait_present(served.duty)
    served.give(0.0)
    served.wait_served(MOST_LOST + 2)
    assert served.served[-1] == f"test-duty-{MOST_LOST + 1}"
    deadline = time.monotonic() + patience(WAIT_S)
    while threading.active_count() > threads - MOST_LOST:  # one of those that came back stands by
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_an_error_of_the_loop_is_reported_when_the_loop_is_over() -> None:
    told: list[BaseException | None] = []

    def loop() -> bool:
        raise MemoryError

    duty = StandbyLoop(loop, told.append, "test-end", LIMIT_S)
    duty.wait(patience(WAIT_S))
    assert duty.over.is_set()
    assert [type(each) for each in told] == [MemoryError]


def test_short_calls_and_idle_time_leave_the_duty_with_the_same_thread(served: Served) -> None:
    wait_present(served.duty)
    for _ in range(5):
        served.give(*[0.0] * 50, 0.001)
        served.wait_served(len(served.served) + 1)
        threading.Event().wait(1.5 * LIMIT_S)
    served.wait_served(255)
    assert set(served.served) == {"test-duty-0"}
    released = threading.Event()
    served.give(released, 0.0)  # long after all: found by a thread that by now looks seldom
    served.wait_served(256)
    assert served.served[-1] != "test-duty-0"
    released.set()


def test_two_threads_are_never_on_duty_when_calls_last_about_the_limit() -> None:
    busy = threading.Lock()
    left = iter(random.Random(1).choices([0.0, 0.5, 1.0, 1.5, 4.0], k=60))
    lost: list[int] = []

    def loop() -> bool:
        assert busy.acquire(blocking=False), "two threads on duty"
        for share in left:
            wait_present(duty)
            number = duty.begin()
            busy.release()  # a call may be under way while another is on duty
            time.sleep(share * 0.005)
            if not duty.end(number):
                lost.append(number)
                return False
            assert busy.acquire(blocking=False), "two threads on duty"
        return True

    duty = StandbyLoop.__new__(StandbyLoop)
    duty.__init__(loop, lambda error: None, "test-limit", 0.005)  # type: ignore[misc]
    assert duty.over.wait(patience(WAIT_S))
    assert lost


def test_a_call_that_began_just_before_a_check_is_soon_checked_again(served: Served) -> None:
    wait_present(served.duty)
    duty, looks, taken = served.duty, [], threading.Event()

    class Serving:
        """Substitute for the lock that is waited for between two checks. There is a call at the end of each wait."""

        def acquire(self, timeout: float) -> bool:
            looks.append(timeout / LIMIT_S)
            number = duty.begin()
            if len(looks) < 5:
                duty.end(number)
            elif len(looks) > 5:
                duty._calls = number - 1  # it is the same
                taken.set()
            return False

        def release(self) -> None: ...

    duty._serving = Serving()  # type: ignore[assignment]
    served.give(0.0)
    assert taken.wait(patience(WAIT_S))
    assert looks[:6] == [1, 2, 4, 4, 4, 1]
