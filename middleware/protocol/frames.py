"""How messages are put into frames, and read from them.

A control frame is the two bytes ``TW``, one byte protocol version, and one msgpack array of a message. A control
message has one to ``MAX_FRAMES`` such frames: credits may travel with what is sent to the same host anyway. A bulk
message has two frames: a control-style frame with a ``Chunk``, and the chunk's bytes. Nothing executable is ever
decoded, and every size is limited.
"""

from __future__ import annotations

import msgspec

from thalweg.middleware.errors import ProtocolError, UsageError, one_line
from thalweg.middleware.protocol import messages as m

PROTOCOL_VERSION = 4
MAGIC = b"TW"
MAX_CONTROL_BYTES = 4 * 1024 * 1024  # an Install of a tree of thousands of nodes fits
MAX_FRAMES = 16

_PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_control = msgspec.msgpack.Decoder(m.Control)
_chunk = msgspec.msgpack.Decoder(m.Chunk)


def encode(message: m.Control | m.Chunk) -> bytes:
    """One frame."""
    return _PREFIX + _encoder.encode(message)


def _body(frame: memoryview | bytes) -> memoryview | bytes:
    if 3 < len(frame) <= MAX_CONTROL_BYTES and frame[:3] == _PREFIX:
        return frame[3:]
    view = memoryview(frame)
    if len(view) > MAX_CONTROL_BYTES:
        raise ProtocolError(f"a control frame of {len(view)} bytes is over the limit of {MAX_CONTROL_BYTES}")
    if len(view) < 4 or view[:2] != MAGIC:
        raise ProtocolError(f"a frame of {len(view)} bytes is not Thalweg's")
    if view[2] != PROTOCOL_VERSION:
        raise ProtocolError(f"a frame of protocol version {view[2]}; this host speaks {PROTOCOL_VERSION}")
    return view[3:]


def decode_control(frame: memoryview | bytes) -> m.Control:
    """The message of a control frame; ProtocolError when it is not one."""
    try:
        message: m.Control = _control.decode(_body(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise ProtocolError(f"a control frame does not decode: {one_line(error)}") from None
    if isinstance(message, m.Partition) and not message.end:
        raise ProtocolError(f"partition {message.index} of {message.producer!r} came as control, without its bytes")
    if isinstance(message, m.State) and message.inline is None:
        raise ProtocolError(f"the state of {message.node!r} came as control, without its bytes")
    return message


def decode_chunk(frame: memoryview | bytes) -> m.Chunk:
    """The header of a bulk message; ProtocolError when it is not one."""
    try:
        chunk = _chunk.decode(_body(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a bulk header does not decode: {one_line(error)}") from None
    if isinstance(chunk.message, m.Probe):
        if chunk.total_bytes > m.PROBE_BYTES:
            raise ProtocolError(f"a probe of {chunk.total_bytes} bytes; it has at most {m.PROBE_BYTES}")
    elif isinstance(chunk.message, m.State):
        if chunk.message.inline is not None or chunk.dtype or chunk.total_bytes != chunk.message.size_bytes:
            raise ProtocolError(f"the state of {chunk.message.node!r} came as bulk, but says it has other bytes")
    elif chunk.message.end:
        raise ProtocolError(f"the end of {chunk.message.producer!r} came as bulk; it has no bytes")
    return chunk
