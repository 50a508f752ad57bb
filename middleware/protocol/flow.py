"""Demands and partitions, and what rides on them (``core.flow``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.barrier import Commit
from thalweg.middleware.protocol.fields import Index, Location, Name, RunMessage
from thalweg.middleware.protocol.measuring import Estimate

End = bool | tuple[Name, ...]


class Piggyback(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What rides on a message that is sent anyway: newer locations, and measured links."""

    locations: tuple[Location, ...] = ()
    estimates: tuple[Estimate, ...] = ()


class Demand(RunMessage, frozen=True):
    """``consumer`` wants partition ``index`` of ``producer``; acknowledges all before it.

    ``version``: the consumer is with the sender since its ``version``-th placement, 0 in a forwarded demand.
    ``later``: of all producers this one delivered last time's partition last; ``critical``: the consumer is on the
    critical path (Ranganathan et al., section 2.3). ``again``: it was not answered in time. ``commit`` is with the
    first demand in another tree, so that the producer knows the consumer.
    """

    producer: Name
    consumer: Name
    index: Index
    forwards: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    version: Index = 0
    later: bool = False
    critical: bool = False
    news: Piggyback | None = None
    again: bool = False
    commit: Commit | None = None


class SkipTo(RunMessage, frozen=True):
    """``consumer`` goes on with partition ``index`` of ``producer``, and takes none before; None: it takes none at all.

    Repeated until answered by Skipped. ``forwards``, ``version``: as of Demand.
    """

    producer: Name
    consumer: Name
    index: Index | None
    forwards: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    version: Index = 0


class Skipped(RunMessage, frozen=True):
    """Answer to SkipTo: ``producer`` keeps nothing for ``consumer`` from before that partition."""

    producer: Name
    consumer: Name
    index: Index | None


class ReplayNotNeeded(RunMessage, frozen=True):
    """To a host that keeps the last output of ``producer``, which has moved: ``consumer`` has demanded ``index``.

    A demand for a partition says that all before it have come.
    """

    producer: Name
    consumer: Name
    index: Index


class Partition(RunMessage, frozen=True):
    """Partition ``index`` of ``producer`` for ``consumer`` (bulk); ``end`` says the stream has none and is over.

    Where only some of what is combined there ended, ``end`` names the nodes that had this partition.
    ``commit`` is with the first partition after a change-over, so that nobody works on it unknowing.
    """

    producer: Name
    consumer: Name
    index: Index
    end: End = False
    forwards: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    news: Piggyback | None = None
    commit: Commit | None = None


class Located(RunMessage, frozen=True):
    """Newer locations for a peer that used older ones."""

    locations: tuple[Location, ...]
