"""Frames on the serial line into a User-Mode Linux kernel and out of it. Standard library only.

Frames: ``HEAD``, then the payload.

    host → inside   SETUP {modules, limit, name}; for process n: START {argv, env, cwd, umask, terminals}, SIGNAL
                    number; for connection n to a supervisor: CONNECT path, SPAWN (process, line), a line whose
                    descriptors are the streams of the process
    inside → host   HELLO; READY, or FAILED text; RECEIVED count; for process n: REFUSED text, ENDED status
    either way      for process n: DATA (stream, bytes, none at its end), TAKEN (stream, count), SHUT stream, which
                    has no reader left; for connection n: LINE, HANGUP

No byte may be lost on the way, and no stream may wait for a different stream's reader:
 - The line's own buffer overflows for good if more than 4 KB wait in it. The kernel's serial driver throttles, and
   never wakes again. The host therefore sends at most ``LINE_WINDOW`` bytes that have not been ``RECEIVED``.
 - A stream sends at most ``STREAM_WINDOW`` bytes that its reader has not ``TAKEN``.
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEAD = struct.Struct(">BII")  # kind, process or connection, length of the payload
COUNT = struct.Struct(">BI")  # a stream (0 input, 1 output, 2 errors) and bytes
STATUS = struct.Struct(">i")
PROCESS = struct.Struct(">I")
LINE_WINDOW = 2048  # bytes; N_TTY_BUF_SIZE is 4096 (linux/drivers/tty/n_tty.c)
STREAM_WINDOW = 65_536
PIECE = 16_384
PRIVATE = "/dev/shm/private"  # inside: a folder in memory, for temporary files


class Kind(IntEnum):
    """Kind of a frame."""

    HELLO = 0
    SETUP = 1
    READY = 2
    FAILED = 3
    RECEIVED = 4
    START = 5
    SIGNAL = 6
    DATA = 7
    TAKEN = 8
    SHUT = 9
    REFUSED = 10
    ENDED = 11
    CONNECT = 12
    SPAWN = 13
    LINE = 14
    HANGUP = 15


class Frames:
    """Assembly of whole frames from bytes as they arrive."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return the frames that ``data`` completes: kind, number, payload."""
        self._pending += data
        frames = []
        while len(self._pending) >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self._pending)
            if len(self._pending) < HEAD.size + length:
                break
            frames.append((kind, number, bytes(self._pending[HEAD.size : HEAD.size + length])))
            del self._pending[: HEAD.size + length]
        return frames
