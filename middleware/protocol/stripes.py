"""The names of a stream's stripes: runs of their own, so that whatever is said of a run says of which.

A stream that goes over several trees at once (``stripes.striping``) is one run for each of them. Stripe *k* of stream
``r`` is run ``r/k``, and counts its partitions from 0; which of the stream's each of them is, its client says
(``StripeIndices``). Where some of the graph is above its trees (``split_graph``), that is run ``r``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, RunMessage
from thalweg.middleware.protocol.generations import base_of

__all__ = ["MOST_GIVEN", "StripeIndices"]  # what ``messages`` takes

STRIPE = "/"  # between the stream's id and the number of the stripe
MOST_STRIPES = 64
MOST_GIVEN = 65_536  # partitions of a stripe that one message tells of
WINDOW = 8  # times the number of stripes: so many partitions wait at most for those before them, by default; with 2
# trees whose rates vary wait for each other most of the time


def stripe_name(stream: str, number: int) -> str:
    """The id of a stripe's run."""
    return f"{stream}{STRIPE}{number}"


def stream_of(run: str) -> str:
    """The id by which the application knows a run, or the stream that it is a stripe of."""
    return base_of(run).partition(STRIPE)[0]


def trunk_name(stream: str) -> str:
    """As what the stream speaks of itself where its stripes feed a run above them, which has the stream's id."""
    return f"{stream}{STRIPE}"


def asked_as(run: str) -> str:
    """What a run's hosts are asked about together: the stream that it is a stripe of, or the run alone."""
    return run if stripe_of(run) is None else stream_of(run)


def stripe_of(run: str) -> int | None:
    """The number of the stripe that this run is, of whatever generation; None where it is no stripe."""
    number = base_of(run).partition(STRIPE)[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None


class StripeIndices(RunMessage, frozen=True, tag="Given"):
    """From the client of a stripe (``protocol.stripes``): its partitions from ``first`` on are these of the stream.

    Those before ``first`` have all been delivered.
    """

    first: Index
    indices: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MOST_GIVEN)]
