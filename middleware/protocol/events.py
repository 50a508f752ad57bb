"""The core's vocabulary: events it is told of (past tense), and the commands it gives, by one name, ``e``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.network.history import Variability
from thalweg.middleware.network.view import NET, Link, LinkEstimate
from thalweg.middleware.protocol.adaptation import Adaptation
from thalweg.middleware.protocol.commands import *
from thalweg.middleware.protocol.messages import (
    Bulk,
    Cause,
    Install,
    LinkEnd,
    Message,
    Partition,
    Peer,
    Quantity,
    RoutePreference,
    Via,
)
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class Event(msgspec.Struct, frozen=True, gc=False):
    """What a core is told of: immutable, slotted, compared by value."""


class MessageReceived(Event, frozen=True):
    """``message`` came from host ``sender``; ``payload`` is a partition's value.

    ``via``: of bulk, the network that it came over, where that is not the one that all share.
    """

    sender: str
    message: Message
    payload: Any = None
    size_bytes: int = 0
    via: str | UnsetType = UNSET


class DecodingFailed(Event, frozen=True):
    """A message from host ``sender`` could not be decoded.

    ``run``, ``kind``: the run that it names, and the tag of its type, if they can be read.
    """

    sender: str
    run: RunId = NO_RUN
    kind: str = ""


class CertificateExpired(Event, frozen=True):
    """The certificate of ``peer``, which may be this host, has expired. ``how`` goes on a sentence that begins so."""

    peer: str
    how: str


class TimerFired(Event, frozen=True):
    """The timer set under ``key`` is due."""

    key: TimerKey


class LeftOut(msgspec.Struct, frozen=True):
    """Number of ``rows`` that an operator left out of a partition, and why. None: all of the partition."""

    why: str
    rows: int | None = None


class OperatorFinished(Event, frozen=True):
    """The code of ``node`` produced partition ``index``; ``end`` when its stream is over (no value).

    ``late_rows``: so many rows came after the watermark had passed them, and were left out. ``left_out``: what could
    not be computed.
    """

    run: RunId
    node: str
    index: int
    value: Any = None
    size_bytes: int = 0
    end: bool = False
    duration_s: float = 0.0
    late_rows: int | UnsetType = UNSET
    left_out: LeftOut | UnsetType = UNSET


class OperatorFailed(Event, frozen=True):
    """The code of ``node`` raised, or could not be loaded; ``reason`` is one line."""

    run: RunId
    node: str
    reason: str
    cause: Cause | None = None


class NodeOpened(Event, frozen=True):
    """The code of ``node``, which may come here, is loaded, or cannot be for the reason in ``error``."""

    run: RunId
    node: str
    error: str = ""


class StateTaken(Event, frozen=True):
    """What ``snapshot()`` of ``node`` gave, or why it gave nothing; ``digest`` is over ``state``.

    ``delta``: it is what has changed since what was taken for the last replica.
    """

    run: RunId
    node: str
    version: int
    state: bytes = b""
    digest: str = ""
    state_version: int = 1
    error: str = ""
    cause: Cause | UnsetType = UNSET  # of the error
    keeps: bool | UnsetType = UNSET  # False: the code keeps no state
    delta: bool | UnsetType = UNSET


class StateRestored(Event, frozen=True):
    """``node`` has taken its state over here, or why it could not."""

    run: RunId
    node: str
    version: int
    error: str = ""
    cause: Cause | UnsetType = UNSET  # of the error


class TransferMeasured(Event, frozen=True, omit_defaults=True):
    """All of ``message`` is at ``peer``, over ``via``: ``size_bytes`` in ``duration_s`` seconds (emulated time).

    Over relays these are the seconds of the first link.
    """

    peer: str
    message: Message
    size_bytes: int
    duration_s: float
    via: Via = NET


class Relayed(Event, frozen=True, omit_defaults=True):
    """A partition of ``source`` was passed on from here, and is at the end of the ``hops`` that were still to go.

    Its ``size_bytes`` took ``duration_s`` seconds (emulated time) over the first of these. ``relays``: all hosts that
    passed it on, in the order of its way.
    """

    source: str
    message: Partition
    hops: Annotated[tuple[LinkEnd, ...], msgspec.Meta(min_length=1)]
    size_bytes: int
    duration_s: float
    relays: tuple[str, ...] = ()


class TransferFailed(Event, frozen=True, omit_defaults=True):
    """The transfer of ``message`` to ``peer`` got stuck or lost its connection; nothing is known of its fate."""

    peer: str
    message: Message
    via: Via = NET


class TransferStalled(Event, frozen=True, omit_defaults=True):
    """No byte of what is being sent to ``peer`` over ``via`` has got through for ``idle_s``; ``message`` is part of it.

    It is told again while that lasts. ``idle_s`` is 0 when bytes get through again.
    """

    peer: str
    message: Bulk
    idle_s: float
    via: str = NET


class PeerReached(Event, frozen=True):
    """Messages get through to ``peer`` again, after seconds in which none did: what it was told may be lost."""

    peer: str


class PeerLost(Event, frozen=True):
    """``peer`` is gone for good, as whoever started it knows: ``how`` goes on a sentence that begins with its name."""

    run: RunId
    peer: str
    how: str = "went away"


class PeerJoined(Event, frozen=True):
    """The application has ``peer`` take part in its run: a host that it had not, or that has been started again."""

    run: RunId
    peer: Peer


class DrainRequested(Event, frozen=True):
    """This host is to end when nothing is on it any more, to which all is moved that can be."""


class RunRequested(Event, frozen=True):
    """The application at this host (the client) wants a run installed on all its hosts and started.

    ``adaptation``: what decides on moves while it runs; ``free``: the codes that are reorderable, where it asks, and
    ``merging``: those with state among them. ``known``: what was measured of links before, beyond what this host's
    monitor knows; where links begin anew with the run (``Install.afresh``) it is of now, and all there is.
    ``journaled``: the application is told what another client would need (``Keep``). ``kept``: this is that client.
    """

    install: Install
    adaptation: Adaptation | None = None
    free: tuple[Code, ...] = ()
    known: tuple[tuple[Link, LinkEstimate], ...] = ()
    merging: tuple[Code, ...] = ()
    journaled: bool = False
    kept: ResumableRun | None = None


class StripesRequested(Event, frozen=True):
    """The application wants a stream to go over several trees at once, each a run of its own (``stripes.striping``).

    ``shares``: what each is thought to carry of the partitions. ``partitions``: how many are to be delivered, from
    ``start`` on; None: until the sources end. ``window``: so many wait at most for those before them. ``above``: what
    runs once above the trees (``protocol.split_graph``), of the stream's own id; unset where nothing does.
    """

    run: RunId
    stripes: tuple[RunRequested, ...]
    shares: tuple[float, ...]
    window: int
    partitions: int | None = None
    start: int = 0
    above: RunRequested | UnsetType = UNSET


class AttachRequested(Event, frozen=True, omit_defaults=True):
    """The application wants another query in the run, of this number and with names of its own: ``QueryStarted``.

    ``placement``: where its nodes are to be that the run does not have, or that are to be ``apart``: in
    seconds how far away those are that the run has. ``since``: the first partition that it may begin with.
    """

    run: RunId
    query: int
    dataflow: Dataflow
    placement: dict[str, str]
    apart: dict[str, float] = {}
    since: int = 0


class TreesRequested(Event, frozen=True):
    """The application wants a stream to go on over as many other trees, which make more than those before, or less.

    ``stripes``: the run of each, as it would be installed. By tree, ``places``: which of its sink's inputs feed which
    sources above, by their places (``protocol.split_graph``); ``theirs``: by node that only queries use, for which
    places. ``query`` is to begin above with the first partition of which they carry all; unset, where nothing is to
    begin.
    """

    run: RunId
    stripes: tuple[RunRequested, ...]
    places: tuple[dict[int, int], ...]
    theirs: tuple[dict[str, tuple[int, ...]], ...]
    query: AttachRequested | UnsetType = UNSET


class NextRequested(Event, frozen=True, omit_defaults=True):
    """The application took what was delivered and wants the next partition of ``sink``, or of every sink."""

    run: RunId
    sink: str = ""


class RunAbandoned(Event, frozen=True):
    """The application is done with the run (finished, failed or closed early)."""

    run: RunId


class PlacementProposed(Event, frozen=True):
    """The application wants these operators on these hosts, all from one iteration on.

    With ``dataflow`` it wants another tree, in which operators of codes ``free`` may be others; those of codes
    ``merging`` have state. ``ways``: the networks between hosts from then on, if these are to be others. With a
    ``number`` the application is told what becomes of it: ``MoveEnded``.
    """

    run: RunId
    placement: dict[str, str]
    reason: str = ""
    dataflow: Dataflow | None = None
    free: tuple[Code, ...] = ()
    merging: tuple[Code, ...] = ()
    ways: tuple[RoutePreference, ...] | UnsetType = UNSET
    number: int | UnsetType = UNSET


class DetachRequested(Event, frozen=True):
    """The application wants a query no more; number 0 is that with which the run began."""

    run: RunId
    query: int


class OutputCommitted(Event, frozen=True):
    """The application is done with partition ``index`` of a sink, and all before: its journal says so."""

    run: RunId
    sink: str
    index: int


class SubscribersAllowed(Event, frozen=True):
    """The application lets clients of these names, and no others, subscribe to the nodes of a query.

    Those of query 0, with which the run began, may subscribe to any.
    """

    run: RunId
    query: int
    names: frozenset[str]


class SubscribeRequested(Event, frozen=True):
    """The application wants the partitions of ``node`` of a run that the client ``owner`` leads: ``QueryStarted``."""

    run: RunId
    number: int
    node: str
    owner: Peer


class UnsubscribeRequested(Event, frozen=True):
    """The application wants no more of these."""

    run: RunId
    number: int


class PlanReady(Event, frozen=True):
    """The planner's answer to ``RequestPlan``: a placement, or the links it needs to know first.

    ``latencies``: links whose latency it needs. ``worth``: whether the moves pay; ``detail`` goes into the records.
    ``failed``: why there is neither, where the planner failed. ``dataflow``: another tree, to which the placement
    belongs, and ``free`` the codes of which operators may be others in it. ``variability``: how links vary, as it was
    read from what was measured. ``ways``: the networks between hosts, for the placement if it is worth its moves, else
    for the present one.
    """

    run: RunId
    placement: dict[str, str] | None = None
    needs: frozenset[Link] = frozenset()
    worth: bool = True
    detail: dict[str, Any] = {}
    failed: str = ""
    dataflow: Dataflow | None = None
    free: tuple[Code, ...] = ()
    variability: Variability | None = msgspec.field(name="weather", default=None)
    latencies: frozenset[Link] | UnsetType = UNSET
    ways: tuple[RoutePreference, ...] | UnsetType = UNSET


class RecoveryPlanReady(PlanReady, frozen=True):
    """The answer to ``RequestRecoveryPlan``: a placement of what is to be placed, or why there is none."""


class Woke(Event, frozen=True):
    """This host did not run for ``slept_s`` until now, as it was stopped or its machine suspended."""

    slept_s: float


class RunBroken(Event, frozen=True):
    """Something raised that never should, in the core over an event of the run, or in doing what it commanded.

    What the core knows of ``run`` may contradict itself. ``sender``: who sent the message over which it was.
    """

    run: RunId
    reason: str
    sender: str = ""


class ProbesRequested(Event, frozen=True, omit_defaults=True):
    """The application's planner needs a ``quantity`` of the links from ``source`` to each of ``targets`` over ``via``,
    or the coordinates of ``source``, which measures to these.
    """

    run: RunId
    source: Peer
    targets: tuple[Peer, ...]
    requester: Peer
    quantity: Quantity = "bandwidth"
    via: str = NET
