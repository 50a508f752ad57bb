"""The host's side of a command inside a User-Mode Linux kernel: its streams, relayed, and its end."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from thalweg.emulation.uml.wire import COUNT, PIECE, STATUS, STREAM_WINDOW, Kind
from thalweg.middleware.errors import TestbedError, UsageError


class Credit:
    """How many bytes may be sent before the other side has taken some."""

    def __init__(self, window: int) -> None:
        self._left, self._closed = window, False
        self._changed = threading.Condition()

    def take(self, most: int) -> int:
        """Wait until something may be sent, and take up to ``most`` of it; 0 once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or self._closed)
            if self._closed:
                return 0
            count = min(most, self._left)
            self._left -= count
            return count

    def give(self, count: int) -> None:
        with self._changed:
            self._left += count
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Line(Protocol):
    """The way into a kernel (``uml.kernel``)."""

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None: ...
    def last_words(self) -> str: ...


class InsideProcess:
    """A command inside the kernel. ``wait`` gives its status, negative for a signal, when all its output has gone."""

    def __init__(self, line: Line, number: int, stdin: int | None, stdout: int, stderr: int) -> None:
        self._line, self.number = line, number
        self._input = Credit(STREAM_WINDOW)
        self._queues: dict[int, SimpleQueue[bytes]] = {1: SimpleQueue(), 2: SimpleQueue()}
        self._ended, self._ending = threading.Event(), threading.Lock()
        self._status: int | None = None
        self._refused: str | None = None
        self._stop_read, self._stop_write = os.pipe()
        self._own = [os.dup(one) for one in (stdout, stderr, *(() if stdin is None else (stdin,)))]
        source = None if stdin is None else self._own[2]
        jobs: list[tuple[Callable[..., None], tuple[int | None, ...]]] = [
            (self._write, (1, self._own[0])),
            (self._write, (2, self._own[1])),
            (self._read, (source,)),
        ]
        self._threads = [threading.Thread(target=do, args=given, name="uml", daemon=True) for do, given in jobs]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens when the command has ended."""
        self._line.send(Kind.SIGNAL, self.number, bytes([number]))

    def wait(self) -> int:
        """Its status. Raises UsageError when it could not be run, TestbedError when the kernel ended before it."""
        self._ended.wait()
        for thread in self._threads:
            thread.join()
        while self._own:
            os.close(self._own.pop())
        if self._refused is not None:
            raise UsageError(self._refused)
        if self._status is None:
            raise TestbedError(f"the User-Mode Linux kernel ended: {self._line.last_words()}")
        return self._status

    def hear(self, kind: int, payload: bytes) -> None:
        """What the kernel says of it; never blocks."""
        if kind == Kind.TAKEN:
            self._input.give(COUNT.unpack(payload)[1])
        elif kind in (Kind.OUTPUT, Kind.ERRORS):
            self._queues[1 if kind == Kind.OUTPUT else 2].put(payload)
        elif kind == Kind.ENDED:
            (self._status,) = STATUS.unpack(payload)
            self.end()
        elif kind == Kind.REFUSED:
            self._refused = payload.decode()
            self.end()

    def end(self) -> None:
        """Nothing more will come: let the threads finish."""
        with self._ending:
            if self._ended.is_set():
                return
            self._input.close()
            for queue in self._queues.values():
                queue.put(b"")
            os.close(self._stop_write)
            self._ended.set()

    def _write(self, which: int, target: int) -> None:
        """Pass on what it writes; when nobody reads it any more, let it know."""
        whole = True
        while data := self._queues[which].get():
            if whole:
                try:
                    _write_all(target, data)
                except OSError:
                    whole = False
                    self._line.send(Kind.SHUT, self.number, bytes([which]))
            self._line.send(Kind.TAKEN, self.number, COUNT.pack(which, len(data)))

    def _read(self, source: int | None) -> None:
        """Pass on what it is given to read, only as much as it takes, until its end."""
        while source is not None and (room := self._input.take(PIECE)):
            select.select([source, self._stop_read], [], [])
            if select.select([self._stop_read], [], [], 0)[0]:
                break
            try:
                data = os.read(source, room)
            except OSError:
                data = b""
            if not data:
                break
            self._input.give(room - len(data))
            self._line.send(Kind.INPUT, self.number, data)
        self._line.send(Kind.INPUT, self.number)
        self._ended.wait()
        os.close(self._stop_read)


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])
