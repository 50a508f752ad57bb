"""Frames: encoding of messages as bytes, and decoding with limits on every size.

A control message is a single frame: the two bytes ``TW``, one byte with the protocol version, and a msgpack array of
the message. With ``TC`` in place of ``TW``, the array holds a message and the credits that are piggybacked on it. A
bulk message has two frames: a frame of the first kind with a ``Chunk``, and the chunk's bytes. Nothing executable is
ever decoded.

Hosts of several versions work together. Each host reports its versions (``Welcome``). A run uses the newest version
that all its hosts speak (``agreed``), and the first frame of the run states that version. ``Hello`` and ``Welcome`` are
the same in every version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from thalweg.middleware.errors import ProtocolError, UsageError, one_line
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

PROTOCOL_VERSION = 13
SPEAKS = (13, PROTOCOL_VERSION)  # the oldest and the newest version that a host of this code speaks
MAGIC, PIGGYBACKING = b"TW", b"TC"
MAX_CONTROL_BYTES = 4 * 1024 * 1024  # an Install of a tree of thousands of nodes fits
MAX_PIGGYBACKED = 16

_PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
_RIDING_PREFIX = PIGGYBACKING + bytes([PROTOCOL_VERSION])
_greeting = msgspec.msgpack.Decoder(m.Hello | m.Welcome)
_UNDECODABLE = (msgspec.DecodeError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError, UsageError)
_encoder = msgspec.msgpack.Encoder()
_control = msgspec.msgpack.Decoder(m.Control)
_Riders = Annotated[tuple[m.Credit, ...], msgspec.Meta(max_length=MAX_PIGGYBACKED)]
_riding = msgspec.msgpack.Decoder(tuple[m.Control, _Riders])
_chunk = msgspec.msgpack.Decoder(m.Chunk | m.RelayedChunk)


def agreed(ranges: Iterable[m.Speaks]) -> int:
    """Return the newest version that lies in all ranges, each from an oldest to a newest version. 0: there is none."""
    oldest, newest = zip(*ranges, strict=True)
    return min(newest) if max(oldest) <= min(newest) else 0


def spoken(speaks: m.Speaks) -> str:
    """Return a range of versions as text for messages to people."""
    oldest, newest = speaks
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def encode(message: m.Message | m.Chunk, version: int = PROTOCOL_VERSION) -> bytes:
    """Return the frame of a message in a protocol version."""
    prefix = _PREFIX if version == PROTOCOL_VERSION else MAGIC + bytes([version])
    return prefix + _encoder.encode(message)


def encode_piggybacking(message: m.Message, credits: Sequence[m.Credit], version: int = PROTOCOL_VERSION) -> bytes:
    """Return a frame with a message and at most ``MAX_PIGGYBACKED`` credits that are piggybacked on the message."""
    prefix = _RIDING_PREFIX if version == PROTOCOL_VERSION else PIGGYBACKING + bytes([version])
    return prefix + _encoder.encode((message, credits))


def _decoded(
    decoder: msgspec.msgpack.Decoder[Any], frame: memoryview | bytes, magic: bytes, what: str, speaks: m.Speaks
) -> Any:
    """Return the message or messages in a frame of this kind. ``what`` names the expected kind for errors.

    Raises ProtocolError for a frame that is too large, has a version outside ``speaks``, or does not decode. A greeting
    is decoded in any version.
    """
    size = len(frame)
    if size < 4 or size > MAX_CONTROL_BYTES or frame[:2] != magic:
        if size > MAX_CONTROL_BYTES:
            raise ProtocolError(f"a control frame of {size} bytes is over the limit of {MAX_CONTROL_BYTES}")
        if size < 4 or frame[:2] not in (MAGIC, PIGGYBACKING):
            raise ProtocolError(f"a frame of {size} bytes is not Thalweg's")
        raise ProtocolError(f"{what} does not decode: the frame carries credits")
    if not speaks[0] <= frame[2] <= speaks[1]:
        if decoder is _control:
            with contextlib.suppress(*_UNDECODABLE):
                return _greeting.decode(frame[3:])
        raise ProtocolError(f"a frame has protocol version {frame[2]}; this host speaks {spoken(speaks)}")
    try:
        return decoder.decode(frame[3:])
    except _UNDECODABLE as error:
        raise ProtocolError(f"{what} does not decode: {one_line(error)}") from None


def decode_all(frame: bytes, speaks: m.Speaks = SPEAKS) -> tuple[m.Control, ...]:
    """Return the messages of a control frame: first the piggybacked credits, last the message.

    Raises ProtocolError for any other frame.
    """
    if not frame.startswith(PIGGYBACKING):
        return (decode_control(frame, speaks),)
    message, credits = _decoded(_riding, frame, PIGGYBACKING, "a control frame", speaks)
    return (*credits, message if type(message) is m.Demand else _with_its_bytes(message))


def decode_control(frame: memoryview | bytes, speaks: m.Speaks = SPEAKS) -> m.Control:
    """Return the message of a control frame without credits. Raises ProtocolError for any other frame."""
    message: m.Control = _decoded(_control, frame, MAGIC, "a control frame", speaks)
    return message if type(message) is m.Demand else _with_its_bytes(message)


def _with_its_bytes(message: m.Control) -> m.Control:
    """Return the message. Raises ProtocolError for a partition or state that lacks its bytes."""
    if isinstance(message, m.Partition) and not message.end:
        raise ProtocolError(f"partition {message.index} of {message.producer!r} came as control, without its bytes")
    if isinstance(message, m.AnyState) and message.inline is None:
        raise ProtocolError(f"the state of {message.node!r} came as control, without its bytes")
    return message


def subject_of(frame: memoryview | bytes) -> tuple[str, RunId]:
    """Return the type and the run that a frame names in its first bytes, even if the frame does not decode.

    Bytes after the run are not read, so a damaged or hostile frame takes no memory. For the header of a bulk message
    the result is the type and run of the partition, probe or state inside. If the type cannot be read, it is an empty
    text. If the run cannot be read, it is ``NO_RUN``.
    """
    head = bytes(frame[3 : 3 + _SUBJECT_BYTES])
    try:
        at = _past_array(head, 0)
        if frame[:2] == PIGGYBACKING:
            at = _past_array(head, at)
        kind, at = _read_text(head, at)
        if kind in _IN_BULK:
            for _ in range(3):  # the transfer's number, size and offset
                at = _past_integer(head, at)
            kind, at = _read_text(head, _past_array(head, at))
    except (ValueError, IndexError):
        return "", NO_RUN
    if not kind.isidentifier() or len(kind) > _LONGEST_KIND:
        return "", NO_RUN
    try:
        _, end = _read_text(head, _past_array(head, at))
        end = end + 1 if head[end] == _NIL else _past_integer(head, end)  # no stripe, or its number
        return kind, msgspec.msgpack.decode(head[at : _past_integer(head, end)], type=RunId)
    except (ValueError, IndexError, msgspec.DecodeError):  # a message of no run, or a damaged one
        return kind, NO_RUN


_SUBJECT_BYTES = 512
_NIL = 0xC0
_LONGEST_KIND = 64
_IN_BULK = frozenset({m.tag_of(m.Chunk), m.tag_of(m.RelayedChunk)})


def _past_array(head: bytes, at: int) -> int:
    """Return the position of the first item of the msgpack array at ``at``. Raises ValueError if there is no array."""
    if head[at] & 0xF0 == 0x90:
        return at + 1
    if head[at] == 0xDC:
        return at + 3
    raise ValueError


def _past_integer(head: bytes, at: int) -> int:
    """Return the position after the msgpack integer at ``at``. Raises ValueError for no or a negative integer."""
    if head[at] < 0x80:
        return at + 1
    if 0xCC <= head[at] <= 0xCF:
        return at + 1 + (1 << head[at] - 0xCC)
    raise ValueError


def _read_text(head: bytes, at: int) -> tuple[str, int]:
    """Return the short msgpack text at ``at``, and the position after the text. Raises ValueError if there is none."""
    if head[at] & 0xE0 == 0xA0:
        begin, size = at + 1, head[at] & 0x1F
    elif head[at] == 0xD9:
        begin, size = at + 2, head[at + 1]
    else:
        raise ValueError
    if begin + size > len(head):
        raise ValueError
    return head[begin : begin + size].decode(), begin + size


def decode_chunk(frame: memoryview | bytes, speaks: m.Speaks = SPEAKS) -> m.Chunk:
    """Return the header of a bulk message. Raises ProtocolError for any other frame, or a header that contradicts
    itself.
    """
    chunk: m.Chunk = _decoded(_chunk, frame, MAGIC, "a bulk header", speaks)
    message = chunk.message
    if type(chunk) is m.RelayedChunk and not (isinstance(message, m.Partition) and chunk.at < len(chunk.hops)):
        raise ProtocolError(
            f"a {type(message).__name__} came at hop {chunk.at} of {len(chunk.hops)}; relays pass partitions on"
        )
    if isinstance(message, m.Partition):
        if message.end:
            raise ProtocolError(f"the end of {message.producer!r} came as bulk; it has no bytes")
    elif isinstance(message, m.Probe):
        if chunk.total_bytes > m.PROBE_BYTES:
            raise ProtocolError(f"a probe has {chunk.total_bytes} bytes; it may have {m.PROBE_BYTES} at most")
    elif message.inline is not None or chunk.dtype or chunk.total_bytes != message.size_bytes:
        raise ProtocolError(f"the state of {message.node!r} came as bulk, but names another size")
    return chunk
