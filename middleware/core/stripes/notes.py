"""Notes of the parts of a striped stream. The parts also yield events, which are for the runs of the stream's trees."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.middleware.core.context.notes import Note
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class IndicesAssigned(Note, frozen=True):
    """Assignment of the stream's indices to a stripe: a ``message`` for the hosts of the stripe's run."""

    message: m.StripeIndices


class TreesReplaced(Note, frozen=True):
    """Takeover of the stream by the stripes from number ``first`` on, or with an ``error`` the failure to take over."""

    first: int
    error: str = ""


class PlacesFailed(Note, frozen=True):
    """Failure of the queries that take partitions made for any of the ``places``."""

    places: frozenset[int]
    failure: e.Fail


class PartitionNeeded(Note, frozen=True):
    """Demand of the upper graph for the stream's next partition."""


class StreamRestarted(Note, frozen=True):
    """Demand of the upper graph for a restart of the stream with partition ``first``."""

    first: int


StreamNotes = Iterator[Note | e.Event]
