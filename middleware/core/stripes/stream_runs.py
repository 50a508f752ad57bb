"""Interface by which the parts of a striped stream read the state of its runs."""

from __future__ import annotations

from typing import Protocol

from thalweg.middleware.protocol.run_id import RunId


class StreamRuns(Protocol):
    """Runs of a striped stream, of its trees and of the graph above, by the ids of their first generations.

    Every method answers for the present generation.
    """

    def current_id(self, run: RunId) -> RunId:
        """Return the id of the present generation of a run."""

    def depth(self, run: RunId) -> int:
        """Return how many partitions a run can have under way."""

    def lives(self, run: RunId, source: str) -> bool:
        """Return whether a source of a run may still need partitions."""
