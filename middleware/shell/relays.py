"""What this host passes on for others: partitions that come over one link, and go on over another, chunk by chunk.

Rules:

- R1: What is passed on is what the client has said that comes so (``HostCore.passes``). All else is refused.
- R2: A chunk goes on as soon as the next host's credit allows it, and only then gets its own: so a slow link on the
  way holds up those before it, and of a transfer no more is here than one window. The credit of the last chunk is given
  when all is at the end of the route, so that its source hears of that, and of nothing less.
- R3: Whoever sends more than it was given credit for, or what does not continue a transfer, is not listened to: nor
  are chunks below ``CHUNK_BYTES`` but for the last, as each takes memory of its own, whatever is in it. There
  are ``PASSAGES`` at most, which claim their windows of what the host has for transfers; what is over is refused.
- R4: What the next host refuses, or does not go on with, is refused here.
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
WINDOW_BYTES = max(WINDOW_CHUNKS * CHUNK_BYTES, LARGE_CHUNKS * MAX_CHUNK_BYTES)  # the largest that a sender has


class _Piece(NamedTuple):
    """A chunk that has come, and what its credit says."""

    chunk: m.RelayedChunk
    body: memoryview
    gap_s: float
    came_s: float


class Passage(Sending):
    """A transfer that comes on the connection ``identity`` of ``sender``, and goes on over the line ``to``.

    ``first``: its first chunk. ``credits``: what is still to be said to its sender.
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
        """What its chunks say that they are of."""
        return self.identity, self.first.transfer

    @property
    def hops(self) -> tuple[m.LinkEnd, ...]:
        """What is still to go from here."""
        return self.first.hops[self.first.at + 1 :]

    @property
    def claimed_bytes(self) -> int:
        """What it may come to hold."""
        return min(self.total, WINDOW_BYTES)

    def add(self, chunk: m.RelayedChunk, body: memoryview, gap_s: float, now: float) -> None:
        """R3: take a chunk; ProtocolError for one that does not belong here."""
        held = self.came - self.sent + body.nbytes
        same = (chunk.source, chunk.hops, chunk.at, chunk.total_bytes) == (
            self.first.source, self.first.hops, self.first.at, self.total
        )  # fmt: skip
        end = self.came + body.nbytes
        small = body.nbytes < CHUNK_BYTES and end != self.total
        over = self.came == self.total and (self.begun or self._waiting)  # all has come
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
        """R2: a chunk has gone on, and gets its credit."""
        self._last = piece = self._waiting.popleft()
        last = super().advance(size, now)
        if not last:
            held_s = min(m.MAX_GAP_S, now - piece.came_s)
            self.credits.append(m.Credit(self.first.transfer, self.sent, False, held_s, piece.gap_s, piece.came_s))
        return last

    @property
    def last_credit(self) -> tuple[int, int, float, float]:
        """R2: of the last chunk, as ``Sockets.hold`` takes it, once all is at the end of the route."""
        assert self._last is not None
        return self.first.transfer, self.total, self._last.gap_s, self._last.came_s


def has_room(claimed_bytes: int, passages: Iterable[Passage], limit_bytes: int) -> bool:
    """R3: whether one that claims so much may begin."""
    here = list(passages)
    if len(here) >= PASSAGES:
        return False
    return claimed_bytes + sum(passage.claimed_bytes for passage in here) <= limit_bytes
