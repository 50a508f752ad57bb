"""How messages are put into frames, and read from them.

A control message is one frame: the two bytes ``TW``, one byte protocol version, and one msgpack array of a message.
With ``TC`` instead, the array holds the message and the credits that ride on it, as it is sent to the same host anyway.
A bulk message has two frames: one of the first kind with a ``Chunk``, and the chunk's bytes. Nothing executable is ever
decoded, and every size is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from thalweg.middleware.errors import ProtocolError, UsageError, one_line
from thalweg.middleware.protocol import messages as m

PROTOCOL_VERSION = 8
MAGIC, RIDING = b"TW", b"TC"
MAX_CONTROL_BYTES = 4 * 1024 * 1024  # an Install of a tree of thousands of nodes fits
MAX_RIDING = 16

_PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
_RIDING_PREFIX = RIDING + bytes([PROTOCOL_VERSION])
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError)
_encoder = msgspec.msgpack.Encoder()
_control = msgspec.msgpack.Decoder(m.Control)
_Riders = Annotated[tuple[m.Credit, ...], msgspec.Meta(max_length=MAX_RIDING)]
_riding = msgspec.msgpack.Decoder(tuple[m.Control, _Riders])
_chunk = msgspec.msgpack.Decoder(m.Chunk | m.RelayedChunk)


def encode(message: m.Message | m.Chunk) -> bytes:
    """One frame."""
    return _PREFIX + _encoder.encode(message)


def encode_riding(message: m.Message, credits: Sequence[m.Credit]) -> bytes:
    """One frame: a message, and at most ``MAX_RIDING`` credits that ride on it."""
    return _RIDING_PREFIX + _encoder.encode((message, credits))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: memoryview | bytes, prefix: bytes, what: str) -> Any:
    """What a frame with this prefix holds; ProtocolError, which names ``what`` it should be, for anything else."""
    size = len(frame)
    if size > MAX_CONTROL_BYTES:
        raise ProtocolError(f"a control frame of {size} bytes is over the limit of {MAX_CONTROL_BYTES}")
    if frame[:3] != prefix or size == 3:
        if size < 4 or frame[:2] not in (MAGIC, RIDING):
            raise ProtocolError(f"a frame of {size} bytes is not Thalweg's")
        raise ProtocolError(f"a frame of protocol version {frame[2]}; this host speaks {PROTOCOL_VERSION}")
    try:
        return decoder.decode(frame[3:])
    except _UNDECODABLE as error:
        raise ProtocolError(f"{what} does not decode: {one_line(error)}") from None


def decode_all(frame: bytes) -> tuple[m.Control, ...]:
    """The credits that ride on a control frame's message, and last the message; ProtocolError for anything else."""
    if not frame.startswith(_RIDING_PREFIX):
        return (decode_control(frame),)
    message, credits = _decoded(_riding, frame, _RIDING_PREFIX, "a control frame")
    return (*credits, message if type(message) is m.Demand else _with_its_bytes(message))


def decode_control(frame: memoryview | bytes) -> m.Control:
    """The message of a control frame without credits; ProtocolError when it is not one."""
    message: m.Control = _decoded(_control, frame, _PREFIX, "a control frame")
    return message if type(message) is m.Demand else _with_its_bytes(message)


def _with_its_bytes(message: m.Control) -> m.Control:
    """What has bytes of its own must not come without them."""
    if isinstance(message, m.Partition) and not message.end:
        raise ProtocolError(f"partition {message.index} of {message.producer!r} came as control, without its bytes")
    if isinstance(message, m.State) and message.inline is None:
        raise ProtocolError(f"the state of {message.node!r} came as control, without its bytes")
    return message


def decode_chunk(frame: memoryview | bytes) -> m.Chunk:
    """The header of a bulk message; ProtocolError when it is not one."""
    chunk: m.Chunk = _decoded(_chunk, frame, _PREFIX, "a bulk header")
    message = chunk.message
    if type(chunk) is m.RelayedChunk and not (isinstance(message, m.Partition) and chunk.at < len(chunk.hops)):
        raise ProtocolError(
            f"hop {chunk.at} of {len(chunk.hops)} of a {type(message).__name__}; relays pass partitions on"
        )
    if isinstance(message, m.Partition):
        if message.end:
            raise ProtocolError(f"the end of {message.producer!r} came as bulk; it has no bytes")
    elif isinstance(message, m.Probe):
        if chunk.total_bytes > m.PROBE_BYTES:
            raise ProtocolError(f"a probe of {chunk.total_bytes} bytes; it has at most {m.PROBE_BYTES}")
    elif message.inline is not None or chunk.dtype or chunk.total_bytes != message.size_bytes:
        raise ProtocolError(f"the state of {message.node!r} came as bulk, but says it has other bytes")
    return chunk
