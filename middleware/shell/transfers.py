"""Bulk transfers: values split into chunks, with credit so that both ends buffer a bounded number of bytes.

A chunk has ``CHUNK_BYTES``. On a fast line it has as many bytes as the line carries in ``CHUNK_S``, up to
``MAX_CHUNK_BYTES``. A transfer of a single chunk is one frame, which the receiver turns into an array without a copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.parcels import Parcel
from thalweg.middleware.protocol.messages import Bulk, Chunk, Credit, LinkEnd, Partition, Probe, RelayedChunk, Via
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.values import frames_of

CHUNK_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_S = 0.05  # at 40 Mbit/s and below, chunks have CHUNK_BYTES
WAY_WINDOW_S = 60.0
WINDOW_CHUNKS = 4  # chunks of one transfer under way without credit; LARGE_CHUNKS if they are larger
LARGE_CHUNKS = 2


class Sending(ABC):
    """Transfer of ``total`` bytes that is being sent on the line ``to``.

    ``busy_s``: time that the line has spent on the bytes that have arrived. Transfers to one host share one connection,
    first in first out. The time of a chunk begins when it is sent, or when the chunks before it have arrived. Both
    times can only be too early, by the way back of the credit or by an idle spell. Therefore the shorter duration
    counts.
    """

    __slots__ = (
        "begun", "busy_s", "chunk_bytes", "credit", "message", "number", "pieces", "progress_s", "sent", "to", "total",
    )  # fmt: skip

    def __init__(
        self, number: int, to: Any, message: Bulk, total: int, now: float,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:  # fmt: skip
        self.number, self.to, self.message, self.total, self.chunk_bytes = number, to, message, total, chunk_bytes
        self.begun = False  # a chunk was sent, perhaps without bytes
        self.sent = self.credit = 0  # bytes sent, and bytes known to have arrived
        self.pieces: deque[tuple[int, float]] = deque()  # chunks under way: end of each, and time of sending
        self.progress_s = now  # time of the last progress
        self.busy_s = 0.0

    @property
    def window_bytes(self) -> int:
        """Number of bytes that may be under way without credit."""
        return max(WINDOW_CHUNKS * CHUNK_BYTES, LARGE_CHUNKS * self.chunk_bytes)

    @abstractmethod
    def next_chunk(self) -> tuple[Chunk, Any] | None:
        """Return the next chunk if the credit allows one, else None.

        When the chunk has been sent, the caller calls ``advance``.
        """

    def advance(self, size: int, now: float) -> bool:
        """Note that a chunk of ``size`` bytes was sent. Return whether the chunk was the last."""
        self.begun = True
        self.sent += size
        self.pieces.append((self.sent, now))
        return self.sent == self.total

    def credited(self, credit: Credit, now: float, arrived_s: float) -> None:
        """Count the bytes that have arrived, and the time until ``arrived_s``, as far as known here."""
        self.progress_s = now
        received, pieces, sent = min(credit.received_bytes, self.sent), self.pieces, []
        if received > self.credit:
            self.credit = received
        while pieces and pieces[0][0] <= received:
            sent.append(pieces.popleft()[1])
        if sent:
            took_s = arrived_s - sent[0]
            if len(sent) == 1 and credit.gap_s < took_s and self.total:  # an empty transfer measures the latency
                took_s = credit.gap_s
            if took_s > 0:
                self.busy_s += took_s


class Route(NamedTuple):
    """Hops over relays from host ``source``, and the end of the route: ``end`` has the heads that are known there."""

    source: str
    hops: tuple[LinkEnd, ...]
    end: Any


class Outgoing(Sending):
    """Transfer from this host, of a complete value, directly to its target or on a ``route``.

    ``end``: line to the target, which knows the head of the value after the arrival.
    """

    __slots__ = ("body", "digest", "dtype", "end", "route", "shape")

    def __init__(
        self, number: int, to: Any, message: Bulk, value: Any, now: float,
        chunk_bytes: int = CHUNK_BYTES, route: Route | None = None,
    ) -> None:  # fmt: skip
        self.route, self.end = route, to if route is None else route.end
        self.dtype, self.shape, self.body = frames_of(value, self.end)
        super().__init__(number, to, message, self.body.nbytes, now, chunk_bytes)
        self.digest = ""  # of a head in the value: later values need not repeat an arrived head
        if type(value) is Parcel and self.shape[0]:
            self.digest = value.digest

    def begin_again(self, number: int, now: float) -> None:
        """Start the transfer once more, as transfer ``number``. Bytes under way are lost."""
        self.number, self.begun, self.sent, self.credit, self.progress_s = number, False, 0, 0, now
        self.pieces.clear()

    @property
    def peer(self) -> str:
        """Target of the transfer."""
        host: str = self.end.host
        return host

    @property
    def via(self) -> Via:
        """Network, or hops, of the transfer."""
        via: str = self.to.via
        return via if self.route is None else self.route.hops

    def next_chunk(self) -> tuple[Chunk, Any] | None:
        sent, total = self.sent, self.total
        if sent == total and self.begun:
            return None
        piece = self.body
        if total > self.chunk_bytes:
            piece = piece[sent : sent + self.chunk_bytes]
            if sent - self.credit + piece.nbytes > self.window_bytes:
                return None
        fields = self.number, total, sent, self.message, self.dtype, self.shape
        if self.route is not None:
            return RelayedChunk(*fields, source=self.route.source, hops=self.route.hops), piece
        return Chunk(*fields), piece


def chunk_bytes_for(size_bytes: int, busy_s: float) -> int:
    """Return the size of the next chunks on a line that has carried ``size_bytes`` in ``busy_s`` seconds."""
    if size_bytes >= MAX_CHUNK_BYTES * busy_s / CHUNK_S:  # also if no time has passed
        return MAX_CHUNK_BYTES
    return max(CHUNK_BYTES, int(size_bytes * CHUNK_S / busy_s))


class ReturnWay:
    """Conversion of a peer's arrival times to the clock of this host.

    A credit has the arrival time on the peer's clock. The apparent time of the credit's way back includes the
    difference of the clocks. The way back never takes less than the link's time, and mostly more, as a busy host reads
    late. Therefore the least value of the last minute or two counts as the way back.
    """

    __slots__ = ("_before_s", "_least_s", "_until_s")

    def __init__(self) -> None:
        self._before_s = self._least_s = math.inf
        self._until_s = -math.inf

    def arrived_s(self, credit: Credit, now: float) -> float:
        """Return the arrival time of a credit on this host's clock, at most ``now`` less the time it was held."""
        if now > self._until_s:
            self._before_s, self._least_s = self._least_s, math.inf
            self._until_s = now + WAY_WINDOW_S
        arrived_s = credit.arrived_s
        self._least_s = least_s = min(self._least_s, now - credit.held_s - arrived_s)
        return arrived_s + (least_s if least_s < self._before_s else self._before_s)


def what_is(message: Bulk) -> tuple[RunId | str, ...]:
    """Return the subject of a transfer. Repeated transfers of the same value have the same subject."""
    if isinstance(message, Partition):
        return message.run, message.producer, message.consumer, str(message.index)
    return message.run, "" if isinstance(message, Probe) else message.node


class Incoming:
    """Transfer of ``what`` that arrives in several chunks, with its buffer."""

    __slots__ = ("buffer", "passing", "received", "seen_s", "what")

    def __init__(self, total_bytes: int, what: tuple[RunId | str, ...] = (), *, passing: bool = False) -> None:
        self.what = what
        self.passing = passing  # its consumer is on another host
        self.buffer = np.empty(total_bytes, np.uint8)
        self.received = 0
        self.seen_s = 0.0

    def add(self, chunk: Chunk, body: memoryview) -> bool:
        """Add a chunk. Return True if the chunk was the last.

        Chunks of a connection arrive in order, so a gap raises ProtocolError.
        """
        end = chunk.offset + body.nbytes
        if chunk.offset != self.received or end > self.buffer.nbytes or chunk.total_bytes != self.buffer.nbytes:
            raise ProtocolError(f"chunk at {chunk.offset} does not continue a transfer that has {self.received} bytes")
        self.buffer[chunk.offset : end] = np.frombuffer(body, np.uint8)
        self.received = end
        return end == chunk.total_bytes
