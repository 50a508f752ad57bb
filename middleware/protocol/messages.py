"""Messages between hosts: structs with typed fields, which msgspec checks when a message is decoded.

Other modules import this module as ``m``. Every capability has a file of messages, named as in the core. Messages about
transfers are defined here.
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
    """Report to the sender of a transfer that ``received_bytes`` have arrived. ``done``: the transfer is complete.

    - ``held_s``: wall-clock seconds that the credit waited to be piggybacked. The sender subtracts them.
    - ``gap_s``: wall-clock seconds between the arrivals of the previous bulk message on the connection and of this
      message.
    - ``arrived_s``: time of the arrival, on the receiver's own clock. Only differences of times are used.
    """

    transfer: Index
    received_bytes: Index
    done: bool
    held_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    gap_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_GAP_S)] = MAX_GAP_S
    arrived_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


AnyState = State | InheritedState | Checkpoint

Bulk = Partition | Probe | State | InheritedState | Checkpoint  # messages that are sent in chunks


class Chunk(WireMessage, frozen=True):
    """Header of a piece of a transfer. The next frame has the bytes, which begin at ``offset`` of ``total_bytes``."""

    transfer: Index
    total_bytes: Room
    offset: Index
    message: Bulk
    dtype: Annotated[str, msgspec.Meta(max_length=64)] = ""
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)] = ()


class RelayedChunk(Chunk, frozen=True, kw_only=True):
    """Header of a piece of a partition that host ``source`` sends over relays. This is hop ``at`` of ``hops``."""

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
