"""Messages of the flow: demands, partitions, and the information piggybacked on both (``core.flow``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.barrier import Commit
from thalweg.middleware.protocol.fields import Index, Location, Name, RunMessage
from thalweg.middleware.protocol.measuring import Estimate

End = bool | tuple[Name, ...]


class Piggyback(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Newer locations and estimates of links, piggybacked on a message that is sent anyway."""

    locations: tuple[Location, ...] = ()
    estimates: tuple[Estimate, ...] = ()


class Demand(RunMessage, frozen=True):
    """Request of ``consumer`` for partition ``index`` of ``producer``. All partitions before are acknowledged.

    - ``version``: location version of the consumer on the sending host. 0 in a forwarded demand.
    - ``later``: of all producers of the consumer, this producer delivered the previous partition last.
    - ``critical``: the consumer is on the critical path (Ranganathan et al., section 2.3).
    - ``again``: the demand is repeated, as no answer came in time.
    - ``commit``: sent with the first demand in another tree, so that the producer's host knows the consumer.
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
    """Report of ``consumer`` that it continues with partition ``index`` of ``producer``, and needs none before.

    None: the consumer needs no partition at all. Repeated until answered by Skipped. ``forwards``, ``version``: as in
    Demand.
    """

    producer: Name
    consumer: Name
    index: Index | None
    forwards: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    version: Index = 0


class Skipped(RunMessage, frozen=True):
    """Answer to SkipTo: ``producer`` keeps no partition before ``index`` for ``consumer``. None: no partition."""

    producer: Name
    consumer: Name
    index: Index | None


class ReplayNotNeeded(RunMessage, frozen=True):
    """Report to the host with the tail of ``producer``, which has moved: ``consumer`` has demanded ``index``.

    The demand acknowledges all partitions before, so the tail may be dropped.
    """

    producer: Name
    consumer: Name
    index: Index


class Partition(RunMessage, frozen=True):
    """Partition ``index`` of ``producer`` for ``consumer`` (bulk), or the end of the stream.

    ``end``: the stream ends before this partition, which has no bytes. If only some inputs ended there, ``end`` names
    the nodes that had this partition. ``commit``: sent with the first partitions after a change-over, so that the
    receiver applies the commit before it handles the partition.
    """

    producer: Name
    consumer: Name
    index: Index
    end: End = False
    forwards: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    news: Piggyback | None = None
    commit: Commit | None = None


class Located(RunMessage, frozen=True):
    """Newer locations, sent to a host that used older locations."""

    locations: tuple[Location, ...]
