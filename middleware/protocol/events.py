"""Vocabulary of the core, imported as ``e``: the events for the core, and the commands from the core."""

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
    """Base of events, the news for a core: immutable, slotted, compared by value."""


class MessageReceived(Event, frozen=True):
    """Arrival of ``message`` from host ``sender``. ``payload``: the value if the message is a partition.

    ``via``: network on which bulk has arrived. Unset: the shared network.
    """

    sender: str
    message: Message
    payload: Any = None
    size_bytes: int = 0
    via: str | UnsetType = UNSET


class DecodingFailed(Event, frozen=True):
    """Arrival of a message from host ``sender`` that could not be decoded.

    ``run``, ``kind``: run and tag in the message, as far as readable.
    """

    sender: str
    run: RunId = NO_RUN
    kind: str = ""


class CertificateExpired(Event, frozen=True):
    """Expiry of the certificate of ``peer``, which may be this host.

    ``how``: end of a sentence that begins with the name of the peer.
    """

    peer: str
    how: str


class TimerFired(Event, frozen=True):
    """Expiry of the timer with this ``key``."""

    key: TimerKey


class LeftOut(msgspec.Struct, frozen=True):
    """Number of ``rows`` that an operator left out of a partition, and the reason. None: the whole partition."""

    why: str
    rows: int | None = None


class OperatorFinished(Event, frozen=True):
    """Partition ``index`` that the code of ``node`` has produced, or with ``end`` the end of its stream.

    ``late_rows``: number of rows that were left out, as the watermark had passed them. ``left_out``: rows that could
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
    """Failure of the code of ``node``: an exception, or code that could not be loaded. ``reason`` is one line."""

    run: RunId
    node: str
    reason: str
    cause: Cause | None = None


class NodeOpened(Event, frozen=True):
    """Answer to ``OpenNode``: the code of ``node`` is loaded. ``error``: the reason if the code cannot be loaded."""

    run: RunId
    node: str
    error: str = ""


class StateTaken(Event, frozen=True):
    """Answer to ``TakeState``: the result of ``snapshot()`` of ``node``, or the error. ``digest``: digest of ``state``.

    ``delta``: the state is only the changes since the last state taken for a replica.
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
    """Answer to a command that gives ``node`` a state: the node has the state. ``error``: the reason if not."""

    run: RunId
    node: str
    version: int
    error: str = ""
    cause: Cause | UnsetType = UNSET  # of the error


class TransferMeasured(Event, frozen=True, omit_defaults=True):
    """Complete arrival of ``message`` at ``peer`` over ``via``, as a measurement of the link.

    The ``size_bytes`` took ``duration_s`` seconds of emulated time. Over relays the time is that of the first link.
    """

    peer: str
    message: Message
    size_bytes: int
    duration_s: float
    via: Via = NET


class Relayed(Event, frozen=True, omit_defaults=True):
    """Complete arrival of a partition of ``source`` that this host has relayed, at the end of the remaining ``hops``.

    The ``size_bytes`` took ``duration_s`` seconds of emulated time over the first of these hops. ``relays``: the relays
    of the route, in order.
    """

    source: str
    message: Partition
    hops: Annotated[tuple[LinkEnd, ...], msgspec.Meta(min_length=1)]
    size_bytes: int
    duration_s: float
    relays: tuple[str, ...] = ()


class TransferFailed(Event, frozen=True, omit_defaults=True):
    """Failure of the transfer of ``message`` to ``peer``, which got stuck or lost its connection.

    The message may have arrived or not.
    """

    peer: str
    message: Message
    via: Via = NET


class TransferStalled(Event, frozen=True, omit_defaults=True):
    """Stall of transfers to ``peer`` over ``via``: no byte has got through for ``idle_s``. ``message``: one of them.

    The event is repeated while the stall lasts. If bytes get through again, ``idle_s`` is 0.
    """

    peer: str
    message: Bulk
    idle_s: float
    via: str = NET


class PeerReached(Event, frozen=True):
    """Renewed contact with ``peer`` after seconds in which no message got through. Earlier messages may be lost."""

    peer: str


class PeerLost(Event, frozen=True):
    """Loss of ``peer`` for good, noticed by the part that started or watched its process.

    ``how``: end of a sentence that begins with the name of the peer.
    """

    run: RunId
    peer: str
    how: str = "went away"


class PeerJoined(Event, frozen=True):
    """Request of the application to add ``peer`` to a run: a new host, or a host that was started again."""

    run: RunId
    peer: Peer


class DrainRequested(Event, frozen=True):
    """Request of the application to drain this host: nodes move away if they can, and the empty host ends."""


class RunRequested(Event, frozen=True):
    """Request of the application to install a run on its hosts and to start it. This host is the client.

    - ``adaptation``: options of steering.
    - ``free``: codes that are reorderable. ``merging``: reorderable codes with state.
    - ``known``: earlier measurements of links, beyond those of this host's monitor. If links begin anew with the run
      (``Install.afresh``), these measurements count as made now, and no further ones are used.
    - ``journaled``: the application gets the state that a later client needs (``Keep``).
    - ``kept``: that state, if this is the later client.
    """

    install: Install
    adaptation: Adaptation | None = None
    free: tuple[Code, ...] = ()
    known: tuple[tuple[Link, LinkEstimate], ...] = ()
    merging: tuple[Code, ...] = ()
    journaled: bool = False
    kept: ResumableRun | None = None


class StripesRequested(Event, frozen=True):
    """Request of the application to send a stream over several trees, each a run of its own (``stripes.striping``).

    - ``shares``: expected share of the partitions for each tree.
    - ``partitions``: number of partitions to deliver from ``start`` on. None: until the sources end.
    - ``window``: largest number of partitions that wait for earlier partitions.
    - ``above``: upper graph with the id of the stream (``protocol.split_graph``). Unset: there is no upper graph.
    """

    run: RunId
    stripes: tuple[RunRequested, ...]
    shares: tuple[float, ...]
    window: int
    partitions: int | None = None
    start: int = 0
    above: RunRequested | UnsetType = UNSET


class AttachRequested(Event, frozen=True, omit_defaults=True):
    """Request of the application to add query number ``query`` to a run. Answered by ``QueryStarted``.

    Nodes have the names of the query's own graph.

    - ``placement``: hosts of the nodes that the run lacks or that are ``apart``.
    - ``apart``: nodes that are in the run, but too far away to share, with their distance in seconds.
    - ``since``: first partition with which the query may begin.
    """

    run: RunId
    query: int
    dataflow: Dataflow
    placement: dict[str, str]
    apart: dict[str, float] = {}
    since: int = 0


class TreesRequested(Event, frozen=True):
    """Request of the application to continue a stream over new trees, which make more or fewer nodes than before.

    - ``stripes``: the run of each tree, as it would be installed.
    - ``places``: by tree, the inputs of its sink that feed inlets, by the place of the inlet
      (``protocol.split_graph``).
    - ``theirs``: by tree, the nodes that only queries use, with the places of the inlets that they feed.
    - ``query``: query that begins above with the first partition from the new trees alone. Unset: no query begins.
    """

    run: RunId
    stripes: tuple[RunRequested, ...]
    places: tuple[dict[int, int], ...]
    theirs: tuple[dict[str, tuple[int, ...]], ...]
    query: AttachRequested | UnsetType = UNSET


class NextRequested(Event, frozen=True, omit_defaults=True):
    """Request of the application, which has consumed a partition, for the next of ``sink``, or of every sink."""

    run: RunId
    sink: str = ""


class RunAbandoned(Event, frozen=True):
    """End of the application's interest in a run, which has finished, failed or was closed early."""

    run: RunId


class PlacementProposed(Event, frozen=True):
    """Request of the application to move these operators to these hosts, together at one iteration.

    - ``dataflow``: a new tree, in which operators with codes in ``free`` may differ. Codes in ``merging`` have state.
    - ``ways``: routes between hosts from then on. Unset: routes stay.
    - ``number``: number of the request, which is then answered by ``MoveEnded``.
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
    """Request of the application to end a query. Query 0 is the query with which the run began."""

    run: RunId
    query: int


class OutputCommitted(Event, frozen=True):
    """Acknowledgement of the application for the partitions of a sink up to ``index``, recorded in its journal."""

    run: RunId
    sink: str
    index: int


class SubscribersAllowed(Event, frozen=True):
    """Permission of the application to subscribe to nodes of a query, for exactly the clients with these names.

    Clients with permission for query 0, with which the run began, may subscribe to every node.
    """

    run: RunId
    query: int
    names: frozenset[str]


class SubscribeRequested(Event, frozen=True):
    """Request of the application for the partitions of ``node`` in a run of client ``owner``.

    Answered by ``QueryStarted``.
    """

    run: RunId
    number: int
    node: str
    owner: Peer


class UnsubscribeRequested(Event, frozen=True):
    """Request of the application to end subscription ``number`` to a run of another client."""

    run: RunId
    number: int


class PlanReady(Event, frozen=True):
    """Answer to ``RequestPlan``: a placement, or the links that must be measured before.

    - ``needs``, ``latencies``: links with an unknown rate or latency.
    - ``worth``: whether the placement is worth its moves. ``detail``: content of the records.
    - ``failed``: reason if the planner failed.
    - ``dataflow``: a new tree for the placement. ``free``: codes of the operators that may differ in the new tree.
    - ``variability``: how links vary, as read from the measurements.
    - ``ways``: routes between hosts. If the placement is not worth its moves, they are for the present placement.
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
    """Answer to ``RequestRecoveryPlan``: a placement of the operators of lost hosts, or why there is none."""


class Woke(Event, frozen=True):
    """End of ``slept_s`` seconds in which this host did not run: its process was stopped, or its machine suspended."""

    slept_s: float


class RunBroken(Event, frozen=True):
    """Defect in the runtime: an exception in the core over an event of ``run``, or in the execution of a command.

    The core's state of the run may be inconsistent. ``sender``: sender of the message that was handled.
    """

    run: RunId
    reason: str
    sender: str = ""


class ProbesRequested(Event, frozen=True, omit_defaults=True):
    """Request of the application's planner for measurements of the links from ``source`` to each of ``targets``.

    ``quantity``: the figure, over network ``via``, or the coordinates of ``source``, which measures to the targets.
    """

    run: RunId
    source: Peer
    targets: tuple[Peer, ...]
    requester: Peer
    quantity: Quantity = "bandwidth"
    via: str = NET
