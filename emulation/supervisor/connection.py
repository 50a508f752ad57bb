"""Lines and descriptors over a Unix socket, for both sides of a supervisor and for who relays them.

Standard library only, because a User-Mode Linux kernel's first process imports it; see ``uml.inside``.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

MAX_DESCRIPTORS = 8  # in one message
READ_BYTES = 1 << 16
MAX_LINE_BYTES = 16 * 1024 * 1024  # of a request; what is longer travels in parts
MAX_WAITING = 64  # descriptors that no line has claimed


class EndlessLineError(Exception):
    """The other side sends a line, or descriptors, beyond the limit. Its connection is of no more use."""


class Connection:
    """One side: its socket, the bytes of an unfinished line, descriptors that came and nobody has claimed yet."""

    def __init__(self, sock: socket.socket, most_bytes: int = MAX_LINE_BYTES) -> None:
        """``most_bytes``: of a line that is received."""
        self.socket, self._most_bytes = sock, most_bytes
        self._pending = bytearray()
        self.descriptors: deque[int] = deque()

    def read(self) -> list[bytes] | None:
        """Return whole lines received; None when the other side has closed. Raises EndlessLineError."""
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
        """Send a line, with descriptors beside it; nothing happens when the other side is gone, as ``read`` says."""
        data = line + b"\n"
        with suppress(OSError):
            sent = socket.send_fds(self.socket, [data], list(descriptors)) if descriptors else 0
            self.socket.sendall(data[sent:])

    def claim(self, count: int) -> tuple[int, ...]:
        """The next descriptors, which the caller closes. Raises IndexError when fewer have come."""
        if count > len(self.descriptors):
            raise IndexError(f"{count} descriptors are said to be there, but {len(self.descriptors)} came")
        return tuple(self.descriptors.popleft() for _ in range(count))

    def hung_up(self) -> bool:
        """Whether the other side has closed, found out without reading."""
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)
        return bool(poller.poll(0))

    def forget_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.popleft())

    def close(self) -> None:
        self.forget_descriptors()
        self.socket.close()
