"""Lines and descriptors over a Unix socket, for both sides of a supervisor and for relays between them.

The module uses the standard library only, because the first process of a User-Mode Linux kernel imports it
(``uml.inside``).
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

MAX_DESCRIPTORS = 8  # limit of descriptors in one message
READ_BYTES = 1 << 16
MAX_LINE_BYTES = 16 * 1024 * 1024  # longest line of a request. Longer requests are divided (``parts``)
MAX_WAITING = 64  # limit of descriptors that no line has claimed


class EndlessLineError(Exception):
    """Error of an unusable connection, whose other side sends a line, or descriptors, beyond the limit."""


class Connection:
    """One side of a connection: the socket, the bytes of an unfinished line, and unclaimed descriptors."""

    def __init__(self, sock: socket.socket, most_bytes: int = MAX_LINE_BYTES) -> None:
        """Wrap a connected socket. ``most_bytes``: limit of a received line."""
        self.socket, self._most_bytes = sock, most_bytes
        self._pending = bytearray()
        self.descriptors: deque[int] = deque()

    def read(self) -> list[bytes] | None:
        """Return the whole lines received, or None if the other side has closed. Raises EndlessLineError."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, READ_BYTES, MAX_DESCRIPTORS)
        except OSError:
            return None
        self.descriptors.extend(descriptors)
        if not data:
            return None
        if len(self.descriptors) > MAX_WAITING:
            raise EndlessLineError(f"more than {MAX_WAITING} descriptors wait for a request that claims them")
        before, ended, after = data.rpartition(b"\n")
        if len(self._pending) + len(before or after) > self._most_bytes:
            raise EndlessLineError(f"a request has more than {self._most_bytes} bytes")
        if not ended:
            self._pending += data
            return []
        lines = (bytes(self._pending) + before).split(b"\n")
        self._pending = bytearray(after)
        return lines

    def send(self, line: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a line, with descriptors beside it. If the other side is gone, nothing is sent and no error raised."""
        data = line + b"\n"
        with suppress(OSError):
            sent = socket.send_fds(self.socket, [data], list(descriptors)) if descriptors else 0
            self.socket.sendall(data[sent:])

    def claim(self, count: int) -> tuple[int, ...]:
        """Return the next descriptors, which the caller must close. Raises IndexError if fewer have come."""
        if count > len(self.descriptors):
            raise IndexError(f"{count} descriptors were announced, but {len(self.descriptors)} came")
        return tuple(self.descriptors.popleft() for _ in range(count))

    def hung_up(self) -> bool:
        """Return whether the other side has closed, without reading."""
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def forget_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.popleft())

    def close(self) -> None:
        self.forget_descriptors()
        self.socket.close()
