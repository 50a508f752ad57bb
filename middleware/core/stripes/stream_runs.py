"""The runs of a striped stream, as its parts see them."""

from __future__ import annotations

from typing import Protocol

from thalweg.middleware.protocol.run_id import RunId


class StreamRuns(Protocol):
    """Runs of the trees of streams, and above these, by the ids with which they began. Each answers as it is now."""

    def current_id(self, run: RunId) -> RunId:
        """Return the id of the generation that a run is now."""

    def depth(self, run: RunId) -> int:
        """Return how many partitions a run can have under way."""

    def lives(self, run: RunId, source: str) -> bool:
        """Return whether a source of a run may want more."""
