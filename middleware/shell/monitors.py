"""What the monitor of a ZeroMQ socket reports."""

from __future__ import annotations

import struct


def news_of(frames: list[bytes]) -> tuple[int, int, bytes]:
    """Return an event, its value (mostly a descriptor) and its endpoint.

    ``zmq.utils.monitor`` does the same and imports asyncio, which is a tenth of a host's start.
    """
    event, value = struct.unpack("=Hi", frames[0])
    return event, value, frames[1]
