"""Messages by which a run begins, is watched and ends, and those between hosts without a run (``core.hosting``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import MOST_AHEAD, Dataflow
from thalweg.middleware.protocol.adaptation import LocalMoves, Need, SpaceMoves
from thalweg.middleware.protocol.failover import Failover, HistoryGap, Start
from thalweg.middleware.protocol.fields import (
    DEFAULT_PARTITION_BYTES,
    Cause,
    Endpoint,
    Index,
    Location,
    Name,
    NetworkEndpoints,
    Peer,
    Room,
    RunMessage,
    Speaks,
    Text,
    WireMessage,
)
from thalweg.middleware.protocol.run_id import Generation, RunId

Padding = Annotated[bytes, msgspec.Meta(max_length=32_768)]  # an answer has at most ``shell.bounds.ANSWER_BYTES``
MOST_BESIDE = 64  # runs that one message is about, beside the first: stripes, and what is above (``protocol.stripes``)


class Hello(WireMessage, frozen=True):
    """Request for a ``Welcome``."""


class Welcome(WireMessage, frozen=True):
    """Answer to Hello: the host's endpoints, the code that it has, and the versions of the protocol that it speaks."""

    host: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    codes: tuple[Name, ...] = ()
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES
    speaks: Speaks = (8, 8)  # of hosts that do not say


Ahead = Annotated[int, msgspec.Meta(ge=1, le=MOST_AHEAD)]


class Install(RunMessage, frozen=True):
    """Everything a host needs to take part in a run. Repeated until answered by Installed.

    ``failover``: how the run outlives its hosts; None: the run does not. In a later generation of the run ``starts``
    says where each node starts. ``kept_from``: operators go on as they are where they are, if they were so in that
    generation or a later one. ``version``: of the protocol, which hosts that come back have to speak as well; 0: any.
    """

    dataflow: Dataflow
    locations: tuple[Location, ...]
    peers: tuple[Peer, ...]
    client: Name
    partitions: Index | None = None
    label: Annotated[str, msgspec.Meta(max_length=128)] = ""  # stands in every record of the run
    epoch_s: float = 0.0  # Unix time of the run's start, from which its records count
    moves: LocalMoves | SpaceMoves | None = None  # operators decide for themselves where they run
    news: bool | tuple[Need, ...] = True  # somebody decides on moves meanwhile: bandwidth is passed on, and these
    afresh: bool = False  # links begin anew with this run: what was measured of them before says nothing
    call_timeout_s: Annotated[float, msgspec.Meta(ge=0)] | None = None  # of a call of a node's code
    number: Index = 0  # of the AddMember by which the others hear of a host that joins
    ahead: Ahead = 1  # partitions that are under way over an edge at most
    failover: Failover | None = None
    starts: tuple[Start, ...] = ()
    kept_from: Annotated[int, msgspec.Meta(ge=0)] | None = None
    history_gaps: tuple[HistoryGap, ...] = ()
    version: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class Installed(RunMessage, frozen=True):
    """``host`` holds its nodes of ``run``, or cannot for the reason in ``error``; ``number``: of the Install.

    ``carried_over``: in a later generation the operators that go on there as they were in the one before. Each has got
    all partitions before its ``index``.
    """

    host: Name
    error: Text = ""
    number: Index = 0
    carried_over: tuple[Start, ...] = ()


class Remove(RunMessage, frozen=True):
    """The run is over; forget it. Repeated until answered by Removed."""


class Removed(RunMessage, frozen=True):
    """No run of that id is on the host. It is not sent while one of another client is there, in any generation."""

    host: Name


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
    ``Lost`` says of a run alone. ``padding``: without a run, this comes back.
    """

    run: RunId | None
    beside: Annotated[tuple[RunId, ...], msgspec.Meta(max_length=MOST_BESIDE)] = ()
    lost: tuple[Lost, ...] = ()
    padding: Padding = b""


class Pong(WireMessage, frozen=True):
    """Answer to Ping; ``known`` is False when the host has no part in that run (any more).

    Of several runs of a Ping one that the host has a part in answers for all of them.
    """

    run: RunId | None
    known: bool = True
    padding: Padding = b""


class Failed(RunMessage, frozen=True):
    """A node's code failed, or waits for ``lost``, a host that is gone; the run cannot go on. To the client.

    Without a node it is the host that cannot; ``led``: as another process leads the run, in that generation of it.
    """

    node: str
    reason: Text
    cause: Cause | None = None
    lost: Annotated[str, msgspec.Meta(max_length=128)] = ""
    led: Generation = 0
