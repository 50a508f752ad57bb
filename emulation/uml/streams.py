"""One end of a process's standard streams between two kernels; both ends are alike. Standard library only.

What is read at one end is written at the other, with a thread for each stream, so that none waits for another's reader.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Protocol

from thalweg.emulation.uml.wire import COUNT, PIECE, STREAM_WINDOW, Kind


class Credit:
    """How many bytes may be sent before the other side has taken some."""

    def __init__(self, window: int) -> None:
        self._left, self.closed = window, False
        self._changed = threading.Condition()

    def take(self, most: int) -> int:
        """Wait until something may be sent, and take up to ``most`` of it; 0 once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or self.closed)
            if self.closed:
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
            self.closed = True
            self._changed.notify_all()


class Line(Protocol):
    """The way to the other kernel."""

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None: ...


class Streams:
    """The streams of process ``number``: 0 its input, 1 its output, 2 its errors."""

    def __init__(self, line: Line, number: int, sources: Mapping[int, int], targets: Mapping[int, int]) -> None:
        """``sources``, ``targets``: descriptors to read from and to write to, by stream; each is closed at its end."""
        self._line, self.number = line, number
        self._credits = {which: Credit(STREAM_WINDOW) for which in sources}
        self._queues: dict[int, SimpleQueue[bytes]] = {which: SimpleQueue() for which in targets}
        self._wakes, self._lock = {which: os.eventfd(0) for which in sources}, threading.Lock()
        self._readers = [threading.Thread(target=self._read, args=one, daemon=True) for one in sources.items()]
        self._writers = [threading.Thread(target=self._write, args=one, daemon=True) for one in targets.items()]

    def begin(self) -> None:
        for thread in (*self._readers, *self._writers):
            thread.start()

    def hear(self, kind: int, payload: bytes) -> None:
        """What the other end says; never blocks."""
        which = payload[0]
        if kind == Kind.DATA:
            self._queues[which].put(payload[1:])
        elif kind == Kind.TAKEN:
            self._credits[which].give(COUNT.unpack(payload)[1])
        elif kind == Kind.SHUT:
            self._shut(which)

    def read_out(self) -> None:
        """Pass on what there is to be read, without waiting for what others may still write; wait until it has gone."""
        for which in self._credits:
            self._wake(which)
        for reader in self._readers:
            reader.join()

    def end(self) -> None:
        """Nothing more is read, and nothing more will come."""
        for which in self._credits:
            self._shut(which)
        for queue in self._queues.values():
            queue.put(b"")

    def join(self) -> None:
        """Wait until all that came has been written."""
        for thread in (*self._readers, *self._writers):
            thread.join()

    def _shut(self, which: int) -> None:
        self._credits[which].close()
        self._wake(which)

    def _wake(self, which: int) -> None:
        with self._lock:
            if which in self._wakes:
                os.eventfd_write(self._wakes[which], 1)

    def _read(self, which: int, source: int) -> None:
        """Pass on what comes, only as much as is taken, until its end."""
        credit, poller = self._credits[which], select.poll()
        for descriptor in (source, self._wakes[which]):
            poller.register(descriptor, select.POLLIN)
        while room := credit.take(PIECE):
            if source not in dict(poller.poll()) or credit.closed:
                break
            try:
                data = os.read(source, room)
            except OSError:  # a terminal that nobody writes to any more
                data = b""
            if not data:
                break
            credit.give(room - len(data))
            self._line.send(Kind.DATA, self.number, bytes([which]) + data)
        os.close(source)
        with self._lock:
            os.close(self._wakes.pop(which))
        self._line.send(Kind.DATA, self.number, bytes([which]))

    def _write(self, which: int, target: int) -> None:
        """Write what comes; when nobody reads it any more, let the other end know."""
        whole = True
        while data := self._queues[which].get():
            if whole:
                try:
                    _write_all(target, data)
                except OSError:
                    whole = False
                    self._line.send(Kind.SHUT, self.number, bytes([which]))
            self._line.send(Kind.TAKEN, self.number, COUNT.pack(which, len(data)))
        os.close(target)


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            select.select([], [target], [])
