"""Bulk transfers: values split into chunks, with credit so that neither end buffers without bound.

A chunk has ``CHUNK_BYTES``, or on a fast line as many bytes as it carries in ``CHUNK_S``, up to ``MAX_CHUNK_BYTES``. A
transfer of one chunk is one frame, which the receiver turns into an array without copying.
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
CHUNK_S = 0.05  # at 40 Mbit/s and below, chunks are of CHUNK_BYTES
WAY_WINDOW_S = 60.0
WINDOW_CHUNKS = 4  # chunks of one transfer that may be under way without credit, but of large ones
LARGE_CHUNKS = 2


class Sending(ABC):
    """A transfer of ``total`` bytes that is being sent on the line ``to``.

    ``busy_s``: for how long the line has been busy with what has arrived. Transfers to one host share one connection,
    first in first out: a chunk's time begins when it is sent or, where others are before it, when the last of them has
    arrived. Both begin too early at most (by the way back of the credit, by an idle spell), so the shorter counts.
    """

    __slots__ = (
        "begun", "busy_s", "chunk_bytes", "credit", "message", "number", "pieces", "progress_s", "sent", "to", "total",
    )  # fmt: skip

    def __init__(
        self, number: int, to: Any, message: Bulk, total: int, now: float,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:  # fmt: skip
        self.number, self.to, self.message, self.total, self.chunk_bytes = number, to, message, total, chunk_bytes
        self.begun = False  # something was sent, perhaps of no bytes
        self.sent = self.credit = 0  # bytes, and those known to have arrived
        self.pieces: deque[tuple[int, float]] = deque()  # chunks under way: where they end, when sent
        self.progress_s = now  # when something was last heard of it
        self.busy_s = 0.0

    @property
    def window_bytes(self) -> int:
        """So many bytes may be under way without credit."""
        return max(WINDOW_CHUNKS * CHUNK_BYTES, LARGE_CHUNKS * self.chunk_bytes)

    @abstractmethod
    def next_chunk(self) -> tuple[Chunk, Any] | None:
        """The next chunk if there is one, and the credit allows it; to be followed by ``advance`` once it was taken."""

    def advance(self, size: int, now: float) -> bool:
        """A chunk was taken; whether it was the last."""
        self.begun = True
        self.sent += size
        self.pieces.append((self.sent, now))
        return self.sent == self.total

    def credited(self, credit: Credit, now: float, arrived_s: float) -> None:
        """Count what has arrived, and the time it took until ``arrived_s`` (as far as that can be known here)."""
        self.progress_s = now
        received, pieces, sent = min(credit.received_bytes, self.sent), self.pieces, []
        if received > self.credit:
            self.credit = received
        while pieces and pieces[0][0] <= received:
            sent.append(pieces.popleft()[1])
        if sent:
            took_s = arrived_s - sent[0]
            if len(sent) == 1 and credit.gap_s < took_s and self.total:  # of an empty one its time is the way
                took_s = credit.gap_s
            if took_s > 0:
                self.busy_s += took_s


class Route(NamedTuple):
    """The hops over relays from host ``source``, and where they end: ``end`` knows which heads are known there."""

    source: str
    hops: tuple[LinkEnd, ...]
    end: Any


class Outgoing(Sending):
    """A transfer of this host's own: all of it is here. It goes straight to its target, or on a ``route``.

    ``end``: the line whose host knows its head once it has arrived.
    """

    __slots__ = ("body", "digest", "dtype", "end", "route", "shape")

    def __init__(
        self, number: int, to: Any, message: Bulk, value: Any, now: float,
        chunk_bytes: int = CHUNK_BYTES, route: Route | None = None,
    ) -> None:  # fmt: skip
        self.route, self.end = route, to if route is None else route.end
        self.dtype, self.shape, self.body = frames_of(value, self.end)
        super().__init__(number, to, message, self.body.nbytes, now, chunk_bytes)
        self.digest = ""  # of a head in it, which others need not have once it has arrived
        if type(value) is Parcel and self.shape[0]:
            self.digest = value.digest

    def begin_again(self, number: int, now: float) -> None:
        """Send all of it once more, as transfer ``number``: what was under way is lost."""
        self.number, self.begun, self.sent, self.credit, self.progress_s = number, False, 0, 0, now
        self.pieces.clear()

    @property
    def peer(self) -> str:
        """The host that it goes to in the end."""
        host: str = self.end.host
        return host

    @property
    def via(self) -> Via:
        """Over what."""
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
    """How large the next chunks may be on a line that was busy for so long with so many bytes."""
    if size_bytes >= MAX_CHUNK_BYTES * busy_s / CHUNK_S:  # also where no time was seen to pass
        return MAX_CHUNK_BYTES
    return max(CHUNK_BYTES, int(size_bytes * CHUNK_S / busy_s))


class ReturnWay:
    """When a peer received something, told on this host's clock.

    A credit says when on the peer's clock. What it takes back here, clocks' difference included, is never less than the
    way itself, and mostly more: a host that has to wait for its processor is late to look. So the least of the
    last minute or two is taken for the way.
    """

    __slots__ = ("_before_s", "_least_s", "_until_s")

    def __init__(self) -> None:
        self._before_s = self._least_s = math.inf
        self._until_s = -math.inf

    def arrived_s(self, credit: Credit, now: float) -> float:
        """Not later than ``now`` less the time the credit was held."""
        if now > self._until_s:
            self._before_s, self._least_s = self._least_s, math.inf
            self._until_s = now + WAY_WINDOW_S
        arrived_s = credit.arrived_s
        self._least_s = least_s = min(self._least_s, now - credit.held_s - arrived_s)
        return arrived_s + (least_s if least_s < self._before_s else self._before_s)


def what_is(message: Bulk) -> tuple[RunId | str, ...]:
    """What a transfer is of, whoever sends it, and however often."""
    if isinstance(message, Partition):
        return message.run, message.producer, message.consumer, str(message.index)
    return message.run, "" if isinstance(message, Probe) else message.node


class Incoming:
    """A transfer of ``what`` being received in several chunks into one buffer."""

    __slots__ = ("buffer", "passing", "received", "seen_s", "what")

    def __init__(self, total_bytes: int, what: tuple[RunId | str, ...] = (), *, passing: bool = False) -> None:
        self.what = what
        self.passing = passing  # its consumer is on another host
        self.buffer = np.empty(total_bytes, np.uint8)
        self.received = 0
        self.seen_s = 0.0

    def add(self, chunk: Chunk, body: memoryview) -> bool:
        """Take a chunk; True when it was the last. Chunks of a connection come in order, so a gap is an error."""
        end = chunk.offset + body.nbytes
        if chunk.offset != self.received or end > self.buffer.nbytes or chunk.total_bytes != self.buffer.nbytes:
            raise ProtocolError(f"chunk at {chunk.offset} does not continue a transfer that has {self.received} bytes")
        self.buffer[chunk.offset : end] = np.frombuffer(body, np.uint8)
        self.received = end
        return end == chunk.total_bytes
