"""What hosts say to each other, and how it is put into frames.

A control frame is the two bytes ``TW``, one byte protocol version, and one msgpack array of a struct below. A
control message has one to ``MAX_FRAMES`` such frames: credits may travel with what is sent to the same host anyway.
A bulk message has two frames: a control-style frame with a ``Chunk``, and the chunk's bytes. Nothing
executable is ever decoded: every field is typed and checked by msgspec, and every size is limited.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import ProtocolError

PROTOCOL_VERSION = 1
MAGIC = b"TW"
MAX_CONTROL_BYTES = 4 * 1024 * 1024  # an Install of a tree of thousands of nodes fits
MAX_FRAMES = 16
MAX_PARTITION_BYTES = 1024 * 1024 * 1024
PROBE_BYTES = 16_384  # round-trip message of the paper's bandwidth study; Ranganathan et al., section 4

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
# What a socket can dial without refusing it at once: a host that is told anything else drops the message.
Endpoint = Annotated[
    str, msgspec.Meta(pattern=r"\Atcp://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Za-z:.%]+\]):[0-9]{1,5}\Z", max_length=300)
]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all wire structs; the tag is the class name."""


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Node ``node`` is on ``host`` since its ``version``-th placement; the higher version is newer."""

    node: Name
    host: Name
    version: Index


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a host listens: its control and bulk endpoints (``tcp://address:port``)."""

    name: Name
    control: Endpoint
    bulk: Endpoint


class Hello(_Message, frozen=True):
    """Asks a host who it is."""


class Welcome(_Message, frozen=True):
    """Answer to Hello, with the endpoints the host listens on and what it knows how to run."""

    host: Name
    control: Endpoint
    bulk: Endpoint
    codes: tuple[Name, ...] = ()


class Ping(_Message, frozen=True):
    """From a run's client: still there, still wants ``run`` (empty when it only asks for a sign of life)."""

    run: str


class Pong(_Message, frozen=True):
    """Answer to Ping; ``known`` is False when the host has no part in that run (any more)."""

    run: str
    known: bool = True


class Install(_Message, frozen=True):
    """Everything a host needs to take part in a run. Repeated until answered by Installed."""

    run: Name
    dataflow: Dataflow
    locations: tuple[Location, ...]
    peers: tuple[Peer, ...]
    client: Name
    partitions: Index | None = None
    label: Annotated[str, msgspec.Meta(max_length=128)] = ""  # stands in every record of the run
    epoch_s: float = 0.0  # Unix time of the run's start, from which its records count


class Installed(_Message, frozen=True):
    """``host`` holds its nodes of ``run``, or cannot for the reason in ``error``."""

    run: Name
    host: Name
    error: Text = ""


class Remove(_Message, frozen=True):
    """The run is over; forget it. Repeated until answered by Removed."""

    run: Name


class Removed(_Message, frozen=True):
    run: Name
    host: Name


class Demand(_Message, frozen=True):
    """``consumer`` wants partition ``index`` of ``producer``; acknowledges all before it."""

    run: Name
    producer: Name
    consumer: Name
    index: Index
    hops: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


class Partition(_Message, frozen=True):
    """Partition ``index`` of ``producer`` for ``consumer`` (bulk); ``end`` says the stream has none and is over."""

    run: Name
    producer: Name
    consumer: Name
    index: Index
    end: bool = False
    hops: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


class Located(_Message, frozen=True):
    """Newer locations for a peer that used older ones."""

    run: Name
    locations: tuple[Location, ...]


class Failed(_Message, frozen=True):
    """A node's code failed; the run cannot go on. To the client."""

    run: Name
    node: str
    reason: Text


class ProbeRequest(_Message, frozen=True):
    """Asks a host to measure the link to each of ``targets`` and back (a 16 KB round trip each)."""

    run: Name
    targets: tuple[Peer, ...]
    requester: Peer


class Probe(_Message, frozen=True):
    """A stage of a probe (bulk); the last carries 16 KB. ``echo``: the target then probes the way back."""

    run: Name
    number: Index
    source: Peer
    requester: Peer
    echo: bool
    stage: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0


class ProbeResult(_Message, frozen=True):
    """Measured bandwidth of the directed link ``source`` to ``target`` in bit/s of emulated time."""

    run: Name
    source: Name
    target: Name
    rate_bps: float


class Credit(_Message, frozen=True):
    """``received_bytes`` of transfer ``transfer`` have arrived (all of it when ``done``).

    ``held_s``: wall-clock seconds it waited for another message to travel with, which the sender does not count.
    """

    transfer: Index
    received_bytes: Index
    done: bool
    held_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0


class Chunk(_Message, frozen=True):
    """Header of one piece of a transfer; the next frame is its bytes, at ``offset`` of ``total_bytes``."""

    transfer: Index
    total_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION_BYTES)]
    offset: Index
    message: Partition | Probe
    dtype: Annotated[str, msgspec.Meta(max_length=64)] = ""
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=8)] = ()


Control = (
    Hello
    | Welcome
    | Ping
    | Pong
    | Install
    | Installed
    | Remove
    | Removed
    | Demand
    | Located
    | Failed
    | ProbeRequest
    | ProbeResult
    | Credit
    | Partition  # only an end-of-stream marker, which has no bytes
)
Message = Control | Probe

_PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_control = msgspec.msgpack.Decoder(Control)
_chunk = msgspec.msgpack.Decoder(Chunk)


def encode(message: Control | Chunk) -> bytes:
    """One frame."""
    return _PREFIX + _encoder.encode(message)


def _one_line(error: Exception) -> str:
    """The decoder's words, which quote what came off the wire."""
    return " ".join(str(error).split())


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


def decode_control(frame: memoryview | bytes) -> Control:
    """The message of a control frame; ProtocolError when it is not one."""
    try:
        message: Control = _control.decode(_body(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a control frame does not decode: {_one_line(error)}") from None
    if isinstance(message, Partition) and not message.end:
        raise ProtocolError(f"partition {message.index} of {message.producer!r} came as control, without its bytes")
    return message


def decode_chunk(frame: memoryview | bytes) -> Chunk:
    """The header of a bulk message; ProtocolError when it is not one."""
    try:
        chunk = _chunk.decode(_body(frame))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a bulk header does not decode: {_one_line(error)}") from None
    if isinstance(chunk.message, Probe):
        if chunk.total_bytes > PROBE_BYTES:
            raise ProtocolError(f"a probe of {chunk.total_bytes} bytes; it has at most {PROBE_BYTES}")
    elif chunk.message.end:
        raise ProtocolError(f"the end of {chunk.message.producer!r} came as bulk; it has no bytes")
    return chunk
