"""Events of the monitor of a ZeroMQ socket."""

from __future__ import annotations

import struct


def news_of(frames: list[bytes]) -> tuple[int, int, bytes]:
    """Return an event of a monitor, its value (usually a descriptor) and its endpoint.

    ``zmq.utils.monitor`` does the same, but imports asyncio, a tenth of the start of a host.
    """
    event, value = struct.unpack("=Hi", frames[0])
    return event, value, frames[1]
