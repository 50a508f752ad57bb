"""What hosts say to each other: structs whose every field is typed, and checked by msgspec when they are decoded.

All of them by one name, ``m``: those of one subject are in a file of its own, those of partitions and transfers here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.changes import *
from thalweg.middleware.protocol.fields import *
from thalweg.middleware.protocol.installing import *
from thalweg.middleware.protocol.probing import *

MOST_GIVEN = 65_536  # partitions of a stripe that one message tells of
MOST_BESIDE = 64  # runs that one message is about, beside the first: stripes, and what is above (``protocol.stripes``)


class Hello(WireMessage, frozen=True):
    """Asks a host who it is."""


class Welcome(WireMessage, frozen=True):
    """Answer to Hello, with the endpoints the host listens on, and what it knows how to run and to say."""

    host: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    codes: tuple[Name, ...] = ()
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES
    speaks: Speaks = (8, 8)  # of hosts that do not say


class Lost(RunMessage, frozen=True):
    """From the client: ``host`` is gone for good; ``locations`` are where, as it knows, all that has moved is.

    ``number``: of the last AddMember before. Who was let in by a later one has joined again.
    """

    host: Name
    locations: tuple[Location, ...]
    number: Index = 0


class Ping(WireMessage, frozen=True):
    """From a run's client: still there, still wants ``run``; without a run, from any host that asks for a sign of life.

    ``beside``: further runs that it is about, where the run is a stream's stripe. ``lost``: of hosts that are gone, as
    ``Lost`` says of a run alone.
    """

    run: str
    beside: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_BESIDE)] = ()
    lost: tuple[Lost, ...] = ()


class Pong(WireMessage, frozen=True):
    """Answer to Ping; ``known`` is False when the host has no part in that run (any more).

    Of several runs of a Ping one that the host has a part in answers for all of them.
    """

    run: str
    known: bool = True


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


class Failed(RunMessage, frozen=True):
    """A node's code failed, or waits for ``lost``, a host that is gone; the run cannot go on. To the client.

    Without a node it is the host that cannot; ``led``: as another process leads the run, in that generation of it.
    """

    node: str
    reason: Text
    cause: Cause | None = None
    lost: Annotated[str, msgspec.Meta(max_length=128)] = ""
    led: Generation = 0


class StripeIndices(RunMessage, frozen=True, tag="Given"):
    """From the client of a stripe (``protocol.stripes``): its partitions from ``first`` on are these of the stream.

    Those before ``first`` have all been delivered.
    """

    first: Index
    indices: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MOST_GIVEN)]


class Credit(WireMessage, frozen=True):
    """``received_bytes`` of transfer ``transfer`` have arrived (all of it when ``done``).

    ``held_s``: wall-clock seconds it waited for another message to travel with, which the sender does not count.
    ``gap_s``: wall-clock seconds between the arrival of the bulk message before it on the same connection and its own.
    ``arrived_s``: when that was, on the receiver's own clock, of which only differences are used.
    """

    transfer: Index
    received_bytes: Index
    done: bool
    held_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    gap_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_GAP_S)] = MAX_GAP_S
    arrived_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


AnyState = State | Checkpoint
Bulk = Partition | Probe | State | Checkpoint  # what travels in chunks


class Chunk(WireMessage, frozen=True):
    """Header of one piece of a transfer; the next frame is its bytes, at ``offset`` of ``total_bytes``."""

    transfer: Index
    total_bytes: Room
    offset: Index
    message: Bulk
    dtype: Annotated[str, msgspec.Meta(max_length=64)] = ""
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)] = ()


class RelayedChunk(Chunk, frozen=True, kw_only=True):
    """The same of a partition that host ``source`` sends over relays: this is hop ``at`` of its ``hops``."""

    source: Name
    hops: Hops
    at: Annotated[int, msgspec.Meta(ge=0, lt=MAX_HOPS)] = 0


Control = (
    Hello
    | Welcome
    | Ping
    | Pong
    | Install
    | Checkpoint  # with its bytes in it
    | CheckpointRequest
    | CheckpointStored
    | StateMissing
    | CheckpointsObsolete
    | Installed
    | Remove
    | Removed
    | Demand
    | SkipTo
    | Skipped
    | ReplayNotNeeded
    | Located
    | Failed
    | Lost
    | StripeIndices
    | Offer
    | Accept
    | Refuse
    | State  # with its bytes in it
    | Claim
    | Restored
    | Withdraw
    | Resumed
    | MoveRequest
    | Relocated
    | Propose
    | Vote
    | Commit
    | Impassable
    | Abort
    | Retire
    | Done
    | Detach
    | Detached
    | Subscribe
    | AddMember
    | InstallSubscriber
    | Unsubscribe
    | SubscriptionEnded
    | Enlist
    | Drain
    | Drained
    | Leave
    | Stay
    | ProbeRequest
    | ProbeResult
    | Echo
    | Credit
    | Partition  # only an end-of-stream marker, which has no bytes
)
Message = Control | Probe
