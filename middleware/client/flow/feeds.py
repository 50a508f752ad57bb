"""Feed of values that an application pushes: a bounded queue between its threads or tasks and a source at its client.

Rules:

- R1: A value is packed when it is pushed. The caller may then use the value's buffers again, and gets the error of a
  value that cannot travel.
- R2: At most ``ahead`` values wait. A caller that pushes a further value waits until the source takes one.
- R3: A feed that is dropped without ``close``, or whose iterator raises, fails its run. If the source takes no further
  value, a push raises the reason.
- R4: The last ``replay`` taken values are kept for a run with failover. A restarted source takes them again, in place
  of the source before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterable, Iterable
from typing import Any

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError, RunError, UsageError, expect, one_line
from thalweg.middleware.shell.packing import marked
from thalweg.middleware.shell.values import returned_by

PUSHED = "thalweg.operators.pushed:Pushed"
MOST_KEPT = 65_536  # values
_numbers = itertools.count()


class Channel:
    """Queue and state that a feed shares with its source.

    ``ended``: None while the feed is open, an empty text after ``close``, or the reason of a failure.
    """

    def __init__(self, name: str, ahead: int, replay: int = 0) -> None:
        self.name, self.ahead = name, ahead
        self.past: deque[Any] = deque(maxlen=replay)  # R4: the last taken values, for a restarted source
        self.values: deque[Any] = deque()
        self.first = 0  # the index of the first value that waits
        self.ended: str | None = None
        self.unwanted = ""  # why the source takes no further value
        self.taker: object = None
        self.news = threading.Condition()
        self.awaiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def wake(self) -> None:
        """Wake every waiting thread and task after a change. The caller holds the lock."""
        self.news.notify_all()
        while self.awaiting:
            loop, changed = self.awaiting.pop()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so has no waiting task
                loop.call_soon_threadsafe(changed.set)

    def end(self, why: str = "") -> None:
        """End the stream after the values that wait. ``why``: the reason of a failure."""
        with self.news:
            if self.ended is None:
                self.ended = why
                self.wake()

    def abandon(self, why: str) -> None:
        """Record why the source takes no further value, and drop the values that wait."""
        with self.news:
            self.unwanted = self.unwanted or why
            self.values.clear()
            self.wake()

    @property
    def over(self) -> bool:
        """Return whether no further value will be taken."""
        return bool(self.unwanted) or (self.ended is not None and self.taker is not None and not self.values)

    def room(self) -> bool:
        """Return whether there is room for a value. Raise if the feed is closed or abandoned.

        The caller holds the lock.
        """
        if self.ended is not None:  # before the end of the run: the application's own end comes first
            raise UsageError(f"nothing can be pushed to {self.name!r}, which is closed")
        if self.unwanted:
            raise RunError(f"nothing can be pushed to {self.name!r}: {self.unwanted}")
        return len(self.values) < self.ahead  # R2: without room, the caller waits

    def take(self, taker: object, index: int) -> Any:
        """Return value ``index`` when it is there, or None after the last value.

        The first value has the index of the first request. Raises OperatorError for a value that was taken and is not
        kept, and for a feed that ends with an error.
        """
        with self.news:
            if self.taker is None and not self.first:
                self.first = index  # a query may begin in mid-stream
            again = self.first - index
            if (self.taker not in (None, taker) and not self.past.maxlen) or not 0 <= again <= len(self.past):
                raise OperatorError(
                    f"value {index} of {self.name!r} has been taken; a pushed value is delivered once, to one run"
                )
            if self.taker is not taker:
                self.taker = taker
                self.wake()
            if again:
                return self.past[-again]
            self.news.wait_for(
                lambda: self.values or self.ended is not None or self.unwanted or self.taker is not taker
            )
            if self.taker is not taker:
                raise OperatorError(f"another generation of the run takes the values of {self.name!r}")
            if self.unwanted:
                raise OperatorError(f"{self.name!r}: {self.unwanted}")
            if self.values:
                self.first += 1
                self.wake()
                value = self.values.popleft()
                self.past.append(value)
                return value
            if self.ended:
                raise OperatorError(self.ended)
            return None


CHANNELS: weakref.WeakValueDictionary[str, Channel] = weakref.WeakValueDictionary()


def channel_of(feed: str) -> Channel:
    """Return the channel of a feed in this process. Raise OperatorError if there is none."""
    channel = CHANNELS.get(feed)
    if channel is None:
        raise OperatorError(
            f"the producer of feed {feed!r} is gone, or in another process: pin its source to the client that pushes"
        )
    return channel


class Feed:
    """Source of values that the application pushes: ``put`` in any thread, or ``await aput``, and then ``close``.

    ``code`` is the code of the source, which must be pinned to the client. As a context manager, the feed is closed at
    the end of the block. An exception in the block fails the run.
    """

    def __init__(self, name: str = "feed", ahead: int = 8, replay: int = 0) -> None:
        expect(ahead, int, "ahead is a number of values")
        expect(replay, int, "replay is a number of values")
        if ahead < 1:
            raise UsageError(f"ahead is {ahead}; give how many values may wait, at least 1")
        if not 0 <= replay <= MOST_KEPT:
            raise UsageError(f"replay is {replay}; give how many values to keep, 0 to {MOST_KEPT}")
        number = f"{name}-{next(_numbers)}"
        self.channel = CHANNELS[number] = Channel(name, ahead, replay)
        self.code = Code(PUSHED, {"feed": number})
        gone = f"the producer of {name!r} is gone: it was dropped before it was closed"
        # R3: a feed that is dropped before it is closed fails the run
        self._dropped = weakref.finalize(self, self.channel.end, gone)
        self._dropped.atexit = False

    def put(self, value: Any, *, watermark_s: float | None = None, timeout_s: float | None = None) -> None:
        """Push a value when there is room.

        Raises OperatorError for a value that cannot travel, RunError if the source takes no further value, TimeoutError
        if there has been no room for ``timeout_s``, UsageError for a closed feed.
        """
        ready, channel = _ready(value, watermark_s), self.channel
        with channel.news:
            if not channel.news.wait_for(channel.room, timeout_s):
                raise TimeoutError(f"{channel.name!r} has had no room for {timeout_s:g} s: {channel.ahead} values wait")
            self._add(ready)

    async def aput(self, value: Any, *, watermark_s: float | None = None) -> None:
        """Push a value when there is room, as a task. A task that is cancelled has pushed nothing."""
        ready, channel, loop = _ready(value, watermark_s), self.channel, asyncio.get_running_loop()
        while True:
            with channel.news:
                if channel.room():
                    self._add(ready)
                    return
                changed = asyncio.Event()
                channel.awaiting.add((loop, changed))
            await changed.wait()

    def _add(self, value: Any) -> None:
        self.channel.values.append(value)
        self.channel.wake()

    def close(self) -> None:
        """End the stream after the pushed values. A second call does nothing."""
        self.channel.end()

    def fail(self, why: str) -> None:
        """Fail the run after the pushed values. ``why``: the reason in the run's error."""
        self.channel.end(f"the producer of {self.channel.name!r} failed: {one_line(why)}")

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or kind is None:
            self.close()
        else:
            self.fail(f"{kind.__name__}: {one_line(error)}")


def _ready(value: Any, watermark_s: float | None) -> Any:
    """Return a value packed for its journey, with its watermark (R1). Raise OperatorError for None."""
    if value is None:
        raise OperatorError("None is no value; push NOTHING for an index without one, and close() at the end")
    return marked(returned_by(lambda: value, ()), watermark_s)


def fill(feed: Feed, values: Any) -> None:
    """Push every value of an iterable, an asynchronous iterable or a queue. A queue ends with None.

    Raises UsageError for an object of a different kind.
    """
    if isinstance(values, queue.Queue | queue.SimpleQueue):
        values = iter(values.get, None)
    if isinstance(values, AsyncIterable):
        task = asyncio.get_running_loop().create_task(_drain(feed, values))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
    elif isinstance(values, Iterable):
        threading.Thread(target=_pour, args=(feed, iter(values)), name="thalweg-feed", daemon=True).start()
    else:
        raise UsageError(f"{type(values).__name__} gives no values; push an iterable, an async iterator, or a queue")


_tasks: set[asyncio.Task[None]] = set()


def _pour(feed: Feed, values: Iterable[Any]) -> None:
    with contextlib.suppress(Exception), feed:  # an error is the run's, and is not raised in this thread
        for value in values:
            feed.put(value)


async def _drain(feed: Feed, values: AsyncIterable[Any]) -> None:
    with contextlib.suppress(Exception), feed:
        async for value in values:
            await feed.aput(value)
