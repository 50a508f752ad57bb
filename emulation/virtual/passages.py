"""What goes over relays in virtual time: in pieces, each of which a relay passes on as it comes. Pure.

As sockets have it (``shell.relays``): of a link no more pieces are under way than a window, and one counts no more once
the relay at the link's end has passed it on. So a slow link holds up those before it, and relays hold little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.transfers import CHUNK_BYTES, WINDOW_CHUNKS


class Passage:
    """A partition, the ``number``-th message, on its way from host ``source`` over the hops of ``what``.

    ``began_s``: when it was sent. ``took_s``: by link, how long it was busy with the pieces that have come.
    ``relays``: the hosts that have begun to pass it on.
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
        """What it is sent over."""
        assert isinstance(self.what.via, tuple)
        return self.what.via

    def header(self, hop: int) -> m.RelayedChunk:
        """What the host at the end of a hop is told of it."""
        assert isinstance(self.what.message, m.Partition)
        size = self.what.size_bytes
        return m.RelayedChunk(0, size, 0, self.what.message, source=self.source, hops=self.hops, at=hop)

    def due(self) -> Iterator[Piece]:
        """The pieces that go now, which count as sent then."""
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
        """Whether all of it is at the end of the route."""
        return self.there[-1] == self.count


class Piece:
    """A piece of a passage on one of its links."""

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
