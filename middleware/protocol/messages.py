"""What hosts say to each other: structs whose every field is typed, and checked by msgspec when they are decoded.

All of them by one name, ``m``: each capability has a file, named as in the core; transfers are here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.barrier import *
from thalweg.middleware.protocol.failover import *
from thalweg.middleware.protocol.fields import *
from thalweg.middleware.protocol.flow import *
from thalweg.middleware.protocol.hosting import *
from thalweg.middleware.protocol.measuring import *
from thalweg.middleware.protocol.membership import *
from thalweg.middleware.protocol.moving import *
from thalweg.middleware.protocol.queries import *
from thalweg.middleware.protocol.reshaping import *
from thalweg.middleware.protocol.routes import *
from thalweg.middleware.protocol.states import *
from thalweg.middleware.protocol.stripes import *


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


AnyState = State | InheritedState | Checkpoint

Bulk = Partition | Probe | State | InheritedState | Checkpoint  # what travels in chunks


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
    | InheritedState  # with its bytes in it
    | StateRequest
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
