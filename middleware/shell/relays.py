"""Relaying: partitions that arrive over one link and are passed on over the next link, chunk by chunk.

Rules:

- R1: A host relays only what the client has announced for the host (``HostCore.passes``). The rest is refused.
- R2: A chunk goes on when the next host's credit allows it, and only then gets its own credit. So a slow link slows the
  links before it, and at most one window of a transfer is here. The last chunk gets its credit when the whole partition
  is at the end of the route. Only then does the source count the partition as arrived.
- R3: A chunk beyond the credit is an error, as is a chunk that does not continue a transfer. So is a chunk below
  ``CHUNK_BYTES`` except the last, as each chunk takes memory of its own. At most ``PASSAGES`` transfers pass at a time,
  and their windows count as room for transfers. Further transfers are refused.
- R4: If the next host refuses a transfer or stalls, the transfer is refused here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.sockets import HostConnections
from thalweg.middleware.shell.transfers import CHUNK_BYTES, LARGE_CHUNKS, MAX_CHUNK_BYTES, WINDOW_CHUNKS, Sending

PASSAGES = 64
WINDOW_BYTES = max(WINDOW_CHUNKS * CHUNK_BYTES, LARGE_CHUNKS * MAX_CHUNK_BYTES)  # the largest window of a sender


class _Piece(NamedTuple):
    """Arrived chunk, with the values for its credit."""

    chunk: m.RelayedChunk
    body: memoryview
    gap_s: float
    came_s: float


class Passage(Sending):
    """Transfer that arrives on connection ``identity`` of ``sender`` and goes on over the line ``to``.

    ``first``: the first chunk. ``credits``: credits for the sender that are still to be sent.
    """

    __slots__ = ("_last", "_waiting", "came", "credits", "first", "identity", "sender")

    def __init__(
        self, number: int, to: HostConnections, first: m.RelayedChunk, sender: str, identity: bytes, now: float
    ) -> None:
        super().__init__(number, to, first.message, first.total_bytes, now)
        self.first, self.sender, self.identity = first, sender, identity
        self.came = 0  # bytes
        self.credits: list[m.Credit] = []
        self._waiting: deque[_Piece] = deque()
        self._last: _Piece | None = None

    @property
    def key(self) -> tuple[bytes, int]:
        """Connection and number by which arriving chunks name the transfer."""
        return self.identity, self.first.transfer

    @property
    def hops(self) -> tuple[m.LinkEnd, ...]:
        """Hops that remain from this host on."""
        return self.first.hops[self.first.at + 1 :]

    @property
    def claimed_bytes(self) -> int:
        """Largest number of bytes that the transfer may hold here."""
        return min(self.total, WINDOW_BYTES)

    def add(self, chunk: m.RelayedChunk, body: memoryview, gap_s: float, now: float) -> None:
        """Add an arrived chunk. Raises ProtocolError for a chunk that does not continue the transfer (R3)."""
        held = self.came - self.sent + body.nbytes
        same = (chunk.source, chunk.hops, chunk.at, chunk.total_bytes) == (
            self.first.source, self.first.hops, self.first.at, self.total
        )  # fmt: skip
        end = self.came + body.nbytes
        small = body.nbytes < CHUNK_BYTES and end != self.total
        over = self.came == self.total and (self.begun or self._waiting)  # the transfer is complete
        if not same or chunk.offset != self.came or end > self.total or held > WINDOW_BYTES or small or over:
            raise ProtocolError(
                f"chunk at {chunk.offset} does not continue a transfer that passes here, and has {self.came} bytes"
            )
        self.came = end
        self.chunk_bytes = max(self.chunk_bytes, body.nbytes)
        self.progress_s = now
        self._waiting.append(_Piece(chunk, body, gap_s, now))

    def next_chunk(self) -> tuple[m.Chunk, memoryview] | None:
        if not self._waiting:
            return None
        chunk, body, _, _ = self._waiting[0]
        if self.begun and self.sent - self.credit + body.nbytes > self.window_bytes:
            return None
        return msgspec.structs.replace(chunk, transfer=self.number, at=chunk.at + 1), body

    def advance(self, size: int, now: float) -> bool:
        """Note that a chunk has gone on, and prepare its credit (R2). Return whether the chunk was the last."""
        self._last = piece = self._waiting.popleft()
        last = super().advance(size, now)
        if not last:
            held_s = min(m.MAX_GAP_S, now - piece.came_s)
            self.credits.append(m.Credit(self.first.transfer, self.sent, False, held_s, piece.gap_s, piece.came_s))
        return last

    @property
    def last_credit(self) -> tuple[int, int, float, float]:
        """Credit of the last chunk in the form of ``Sockets.hold``, for when the partition has arrived (R2)."""
        assert self._last is not None
        return self.first.transfer, self.total, self._last.gap_s, self._last.came_s


def has_room(claimed_bytes: int, passages: Iterable[Passage], limit_bytes: int) -> bool:
    """Return whether a further transfer may pass (R3). ``claimed_bytes``: bytes that it may hold here."""
    here = list(passages)
    if len(here) >= PASSAGES:
        return False
    return claimed_bytes + sum(passage.claimed_bytes for passage in here) <= limit_bytes
