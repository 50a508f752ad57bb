"""How large the partitions of a run may be (R6 of ``demands``)."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.protocol import messages as m


class Room:
    """The most that every host of a run takes; the only writer of it."""

    __slots__ = ("_narrowest", "size_bytes")

    def __init__(self, peers: Iterable[m.Peer]) -> None:
        self.size_bytes = m.MAX_PARTITION_BYTES
        self._narrowest: m.Peer | None = None
        self.bound(peers)

    def bound(self, peers: Iterable[m.Peer]) -> None:
        """Make nothing that one of these hosts does not take: a word that comes late bounds no less."""
        for peer in peers:
            if self._narrowest is None or peer.max_partition_bytes < self.size_bytes:
                self._narrowest, self.size_bytes = peer, peer.max_partition_bytes

    def refusal(self, index: int, size_bytes: int) -> str:
        """Why a partition is too large, and what to do."""
        assert self._narrowest is not None
        limit = f"host {self._narrowest.name!r} takes at most {self.size_bytes} (its limit max_partition_bytes)"
        return f"partition {index} has {size_bytes} bytes; {limit}: make it smaller, or raise the limit"
