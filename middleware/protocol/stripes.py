"""Stripes of a stream (``RunId.stripe``): how many there may be, and which partitions of the stream each has."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, RunMessage

__all__ = ["MOST_GIVEN", "StripeIndices"]  # what ``messages`` takes

MOST_STRIPES = 64
MOST_GIVEN = 65_536  # partitions of a stripe that one message tells of
WINDOW = 8  # times the number of stripes: so many partitions wait at most for those before them, by default; with 2
# trees whose rates vary wait for each other most of the time


class StripeIndices(RunMessage, frozen=True, tag="Given"):
    """From the client of a stripe (``protocol.stripes``): its partitions from ``first`` on are these of the stream.

    Those before ``first`` have all been delivered.
    """

    first: Index
    indices: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MOST_GIVEN)]
