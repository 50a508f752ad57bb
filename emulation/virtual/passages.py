"""Partitions that go over relays in virtual time, in pieces. A relay passes a piece on as soon as it arrives. Pure.

The rules of sockets apply (``shell.relays``): on a link at most one window of pieces is under way. A piece stops
counting when the relay at the link's end has passed the piece on. So a slow link holds up the links before it, and
relays hold few pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.transfers import CHUNK_BYTES, WINDOW_CHUNKS


class Passage:
    """Partition, the ``number``-th message, on its way from host ``source`` over the hops of ``what``.

    ``began_s``: time of sending. ``took_s``: by link, the time that the arrived pieces have kept the link busy.
    ``relays``: the hosts at the ends of the links that a piece has passed, in order.
    """

    __slots__ = (
        "began_s", "count", "dropped", "links", "number", "relays", "sent", "source", "there", "took_s", "what",
    )  # fmt: skip

    def __init__(self, number: int, source: str, send: e.Send, began_s: float) -> None:
        self.number, self.source, self.what, self.began_s = number, source, send, began_s
        self.relays: list[Any] = []
        self.links: tuple[Link, ...] = m.links_over(source, send.to, send.via)
        self.count = max(1, -(-send.size_bytes // CHUNK_BYTES))
        self.sent, self.there = [0] * len(self.links), [0] * len(self.links)  # pieces, by link
        self.took_s = [0.0] * len(self.links)
        self.dropped = False

    @property
    def hops(self) -> tuple[m.LinkEnd, ...]:
        """Hops of the route over which the partition is sent."""
        assert isinstance(self.what.via, tuple)
        return self.what.via

    def header(self, hop: int) -> m.RelayedChunk:
        """Return the header of a chunk that the host at the end of a hop gets."""
        assert isinstance(self.what.message, m.Partition)
        size = self.what.size_bytes
        return m.RelayedChunk(0, size, 0, self.what.message, source=self.source, hops=self.hops, at=hop)

    def due(self) -> Iterator[Piece]:
        """Yield the pieces that may go now, and count each piece as sent."""
        for hop in range(len(self.links)):
            while not self.dropped and self.sent[hop] < self._come(hop) and self._under_way(hop) < WINDOW_CHUNKS:
                yield Piece(self, hop, self.sent[hop])
                self.sent[hop] += 1

    def _come(self, hop: int) -> int:
        return self.there[hop - 1] if hop else self.count

    def _under_way(self, hop: int) -> int:
        passed_on = self.sent[hop + 1] if hop + 1 < len(self.links) else self.there[hop]
        return self.sent[hop] - passed_on

    @property
    def over(self) -> bool:
        """Return whether the whole partition has arrived at the end of the route."""
        return self.there[-1] == self.count


class Piece:
    """Piece of a passage on one link of the route."""

    __slots__ = ("hop", "number", "passage")

    def __init__(self, passage: Passage, hop: int, number: int) -> None:
        self.passage, self.hop, self.number = passage, hop, number

    @property
    def size_bytes(self) -> int:
        total = self.passage.what.size_bytes
        return min(CHUNK_BYTES, total - self.number * CHUNK_BYTES)

    @property
    def link(self) -> Link:
        return self.passage.links[self.hop]
