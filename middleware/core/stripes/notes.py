"""Notes of the parts of a striped stream. The events that these parts yield besides are for the runs of its trees."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.middleware.core.context.notes import Note
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class IndicesAssigned(Note, frozen=True):
    """A stripe has been given indices, of which the hosts of its run are to be told."""

    message: m.StripeIndices


class TreesReplaced(Note, frozen=True):
    """Stripes from number ``first`` on have taken over from those before, or with an ``error`` could not."""

    first: int
    error: str = ""


class PlacesFailed(Note, frozen=True):
    """Queries that take what is made for these ``places`` cannot go on."""

    places: frozenset[int]
    failure: e.Fail


class PartitionNeeded(Note, frozen=True):
    """The run above the trees needs the stream's next partition."""


class StreamRestarted(Note, frozen=True):
    """The run above the trees needs partition ``first`` of the stream again, and all after it."""

    first: int


StreamNotes = Iterator[Note | e.Event]
