"""Messages by which a run begins, is watched and ends, and messages between hosts without a run (``core.hosting``)."""

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

Padding = Annotated[bytes, msgspec.Meta(max_length=32_768)]  # an answer has ``shell.bounds.ANSWER_BYTES`` at most
MOST_BESIDE = 64  # runs in one message, beside the first: stripes and an upper graph (``protocol.stripes``)


class Hello(WireMessage, frozen=True):
    """Request for a ``Welcome``."""


class Welcome(WireMessage, frozen=True):
    """Answer to Hello: endpoints of the host, names of its code, and its versions of the protocol."""

    host: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    codes: tuple[Name, ...] = ()
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES
    speaks: Speaks = (8, 8)  # of hosts that do not report their versions


Ahead = Annotated[int, msgspec.Meta(ge=1, le=MOST_AHEAD)]


class Install(RunMessage, frozen=True):
    """Request of the client to take part in a run, with everything a host needs. Repeated until answered by Installed.

    - ``failover``: options of failover. None: the run ends with a lost host.
    - ``starts``: where each node starts, in a later generation of the run.
    - ``kept_from``: a host that has this generation of the run, or a later one, carries its operators over as they are.
      None: every node begins anew.
    - ``version``: version of the protocol, also required of hosts that rejoin. 0: any.
    """

    dataflow: Dataflow
    locations: tuple[Location, ...]
    peers: tuple[Peer, ...]
    client: Name
    partitions: Index | None = None
    label: Annotated[str, msgspec.Meta(max_length=128)] = ""  # part of every record of the run
    epoch_s: float = 0.0  # Unix time of the run's start, from which its records count
    moves: LocalMoves | SpaceMoves | None = None  # the hosts of operators decide about moves
    news: bool | tuple[Need, ...] = True  # figures that hosts pass on for moves while data flows: rates, and these
    afresh: bool = False  # links begin anew with this run: earlier measurements do not count
    call_timeout_s: Annotated[float, msgspec.Meta(ge=0)] | None = None  # limit of a call of a node's code
    number: Index = 0  # number of the AddMember that announces a joining host
    ahead: Ahead = 1  # largest number of partitions under way over an edge
    failover: Failover | None = None
    starts: tuple[Start, ...] = ()
    kept_from: Annotated[int, msgspec.Meta(ge=0)] | None = None
    history_gaps: tuple[HistoryGap, ...] = ()
    version: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


class Installed(RunMessage, frozen=True):
    """Answer to Install ``number``: ``host`` has installed its nodes of the run, or ``error`` says why not.

    ``carried_over``: in a later generation, the operators that continue there from the generation before. Each has
    received all partitions before its ``index``.
    """

    host: Name
    error: Text = ""
    number: Index = 0
    carried_over: tuple[Start, ...] = ()


class Remove(RunMessage, frozen=True):
    """Request of the client to forget the run, which is over. Repeated until answered by Removed."""


class Removed(RunMessage, frozen=True):
    """Answer to Remove: the host has no run with this id.

    If a generation of the run belongs to another client, the host does not answer.
    """

    host: Name


class Lost(RunMessage, frozen=True):
    """Report of the client that ``host`` is gone for good. ``locations``: known locations of operators that have moved.

    ``number``: number of the last AddMember before the loss. A host in a later AddMember has joined again.
    """

    host: Name
    locations: tuple[Location, ...]
    number: Index = 0


class Ping(WireMessage, frozen=True):
    """Sign of life from the client of ``run``, which still needs the run. Without a run: request for a sign of life.

    - ``beside``: further runs of the ping, if the run is a stripe.
    - ``lost``: lost hosts, as in ``Lost``.
    - ``padding``: without a run, bytes for the answer to return.
    """

    run: RunId | None
    beside: Annotated[tuple[RunId, ...], msgspec.Meta(max_length=MOST_BESIDE)] = ()
    lost: tuple[Lost, ...] = ()
    padding: Padding = b""


class Pong(WireMessage, frozen=True):
    """Answer to Ping. ``known`` is False if the host has no part in the run.

    For a Ping about several runs, a single Pong about a known run answers for all.
    """

    run: RunId | None
    known: bool = True
    padding: Padding = b""


class Failed(RunMessage, frozen=True):
    """Report to the client that a run cannot continue: the code of ``node`` failed, or waits for the host ``lost``.

    Without a node, the host itself cannot continue. ``led``: generation in which another process of the client leads
    the run.
    """

    node: str
    reason: Text
    cause: Cause | None = None
    lost: Annotated[str, msgspec.Meta(max_length=128)] = ""
    led: Generation = 0
