"""One end of a process's standard streams between two kernels. Both ends are alike. Standard library only.

Bytes read at one end are written at the other, with a thread per stream. No stream waits for a different one's reader.
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
    """Number of bytes that may be sent before the other side has consumed earlier bytes."""

    def __init__(self, window: int) -> None:
        self._left, self.closed = window, False
        self._changed = threading.Condition()

    def take(self, most: int) -> int:
        """Wait until bytes may be sent, and take credit for up to ``most`` bytes. Return 0 once closed."""
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
    """Sending side of the line to the other kernel."""

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None: ...


class Streams:
    """Streams of process ``number``: 0 is the input, 1 the output, 2 the errors."""

    def __init__(self, line: Line, number: int, sources: Mapping[int, int], targets: Mapping[int, int]) -> None:
        """Create the streams. ``sources``, ``targets``: descriptors to read and to write, which the streams close."""
        self._line, self.number = line, number
        self._credits = {stream: Credit(STREAM_WINDOW) for stream in sources}
        self._queues: dict[int, SimpleQueue[bytes]] = {stream: SimpleQueue() for stream in targets}
        self._wakes, self._lock = {stream: os.eventfd(0) for stream in sources}, threading.Lock()
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in sources.items()]
        self._writers = [threading.Thread(target=self._write, args=pair, daemon=True) for pair in targets.items()]

    def begin(self) -> None:
        for thread in (*self._readers, *self._writers):
            thread.start()

    def hear(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the other end. Never blocks."""
        stream = payload[0]
        if kind == Kind.DATA:
            self._queues[stream].put(payload[1:])
        elif kind == Kind.TAKEN:
            self._credits[stream].give(COUNT.unpack(payload)[1])
        elif kind == Kind.SHUT:
            self._shut(stream)

    def read_out(self) -> None:
        """Send what can be read now, without waiting for later writes. Wait until it has been sent."""
        for stream in self._credits:
            self._wake(stream)
        for reader in self._readers:
            reader.join()

    def end(self) -> None:
        """End the streams: nothing more is read, and nothing more arrives."""
        for stream in self._credits:
            self._shut(stream)
        for queue in self._queues.values():
            queue.put(b"")

    def join(self) -> None:
        """Wait until every received byte has been written."""
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
        """Send bytes from a source, as far as credit permits, until the source ends."""
        credit, poller = self._credits[which], select.poll()
        for descriptor in (source, self._wakes[which]):
            poller.register(descriptor, select.POLLIN)
        while room := credit.take(PIECE):
            if source not in dict(poller.poll()) or credit.closed:
                break
            try:
                data = os.read(source, room)
            except OSError:  # a terminal without a writer
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
        """Write received bytes to a target. If the target has no reader left, notify the other end."""
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
