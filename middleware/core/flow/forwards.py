"""How often a demand is passed on from host to host, and what it says instead where its hops are more."""

from __future__ import annotations

import msgspec

from thalweg.middleware.protocol import messages as m

MAX_FORWARDS = 8  # a chain of forwards longer than this means that locations run in a circle
LET_GO = MAX_FORWARDS + 1  # marks a demand that only tells another host that the partitions before it have come
GOES_ON = (
    MAX_FORWARDS + 2
)  # marks one that only says with which partition a consumer goes on (``relocation.carried_over``)


def forwarded(demand: m.Demand) -> m.Demand:
    """A demand as another host sends it on: the consumer is not with the sender."""
    return msgspec.structs.replace(demand, forwards=demand.forwards + 1, version=0, news=None, commit=None)
