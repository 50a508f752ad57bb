"""Stripes of a stream (``RunId.stripe``): limits of their number, and the indices in the stream of a stripe."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, RunMessage

__all__ = ["MOST_GIVEN", "StripeIndices"]  # names that ``messages`` imports

MOST_STRIPES = 64
MOST_GIVEN = 65_536  # indices in one message
WINDOW = 8  # default window of a stream for each stripe: partitions that wait for earlier partitions. With 2, trees
# with varying rates would wait for each other most of the time


class StripeIndices(RunMessage, frozen=True, tag="Given"):
    """Report of a stripe's client: the indices in the stream of the stripe's partitions from ``first`` on.

    All partitions of the stripe before ``first`` have been delivered.
    """

    first: Index
    indices: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MOST_GIVEN)]
