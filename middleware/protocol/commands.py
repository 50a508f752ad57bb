"""What a core wants done: commands (imperative)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.figures import HostFigures, NodeFigures
from thalweg.middleware.network.history import PlanningHistory
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import NET, Latency, Link, LinkEstimate
from thalweg.middleware.protocol.messages import (
    Cause,
    Install,
    Message,
    Peer,
    RoutePreference,
    Via,
)
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class Command(msgspec.Struct, frozen=True, gc=False):
    """What a core wants done: immutable, slotted, compared by value."""


class ResumableRun(msgspec.Struct, frozen=True):
    """What a client has to know to go on with a run that another has begun, which outlives its hosts.

    ``install``: its last generation, with the graph and where its nodes are now; ``known``: by operator and partition,
    the hosts that have a replica; ``stateless``: code without state; ``bases``: where nodes began;
    ``queries``: by number the sinks of those that go on, where that is known.
    """

    install: Install
    known: dict[str, dict[int, tuple[str, ...]]] = {}
    stateless: tuple[Code, ...] = ()
    bases: dict[str, int] = {}
    queries: dict[int, tuple[str, ...]] = {}


class Send(Command, frozen=True):
    """Send ``message`` to host ``to`` of run ``run``. With ``bulk`` its ``payload`` travels in chunks, over ``via``: a
    network, or, of a partition, hops over relays.

    Where the host, or this one, is not joined to that network, it is lost: ``TransferFailed``.
    """

    run: RunId
    to: str
    message: Message
    payload: Any = None
    size_bytes: int = 0
    bulk: bool = False
    via: Via = NET


class TimerKey(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A ``timer`` (``core.context.outbox.Timer``), the run that it is of, and what in the run, as far as there are."""

    timer: str
    run: RunId = NO_RUN
    what: str = ""


class SetTimer(Command, frozen=True):
    """Tell me ``TimerFired(key)`` at ``at_s``; a later SetTimer of the same key replaces it."""

    key: TimerKey
    at_s: float


class Redial(Command, frozen=True):
    """Close the bulk connection to ``host`` over ``via``, and connect anew.

    With ``again`` everything that was under way over it is sent from its first byte. Otherwise it has failed:
    ``TransferFailed``.
    """

    run: RunId
    host: str
    via: str = NET
    again: bool = True


class Meet(Command, frozen=True):
    """In run ``run``, these hosts listen there."""

    run: RunId
    peers: tuple[Peer, ...]


class Watch(Command, frozen=True):
    """Notify this core (``PeerLost``) as soon as the process of ``host`` is gone, if that shows; a guest of ``run``."""

    run: RunId
    host: str


class Unwatch(Command, frozen=True):
    """The process of ``host`` is of no concern to ``run`` any more."""

    run: RunId
    host: str


class Approach(Command, frozen=True):
    """Connect to ``host`` of run ``run``, if that is still to be done: something urgent will go there."""

    run: RunId
    host: str


class OpenRun(Command, frozen=True):
    """Load the code of these nodes of the run; what cannot be loaded comes back as OperatorFailed."""

    install: Install
    nodes: tuple[str, ...]


class RunOperator(Command, frozen=True):
    """Run the code of ``node`` on ``inputs`` (none for a source) for partition ``index``.

    ``stands_for``: in a stripe of a stream the index that the code is to be told, as that of the stream.
    """

    run: RunId
    node: str
    index: int
    inputs: tuple[Any, ...] = ()
    stands_for: int | UnsetType = UNSET

    @property
    def of_stream(self) -> int:
        """The index that the code is told."""
        return self.index if self.stands_for is UNSET else self.stands_for


class OpenNode(Command, frozen=True):
    """Load the code of ``node``, which may come here: ``NodeOpened``. ``fresh``: it is to begin here.

    Code that is not ``reorderable`` cannot, nor code with state but where operators of its kind are ``merging``:
    ``NodeOpened`` with that as its error.
    """

    run: RunId
    node: Node
    fresh: bool = False
    merging: bool = False


class Inherited(msgspec.Struct, frozen=True, gc=False):
    """An operator's state as it came, or what has changed in it."""

    state: bytes
    digest: str
    state_version: int


class TakeState(Command, frozen=True):
    """Ask ``node``, which is between two partitions, for its state: ``StateTaken``, of the same location version.

    For a ``replica`` it is also asked whether its code keeps any, and with ``delta`` only for what has changed since
    the last one, where the code can tell.
    """

    run: RunId
    node: str
    version: int
    replica: bool = False
    delta: bool = False


class RestoreState(Command, frozen=True):
    """Give ``node`` its state, if that is what ``digest`` was taken of: ``StateRestored``, of the same version.

    ``deltas``: what has changed since, one after the other.
    """

    run: RunId
    node: str
    version: int
    state: bytes
    digest: str
    state_version: int
    deltas: tuple[Inherited, ...] = ()


class MergeStates(Command, frozen=True):
    """Give ``node`` these states, merged, if they have their digests: ``StateRestored``."""

    run: RunId
    node: str
    version: int
    states: tuple[Inherited, ...]


class CloseNode(Command, frozen=True):
    """Forget the code of ``node``, which is not here any more."""

    run: RunId
    node: str


class CloseRun(Command, frozen=True):
    """Forget the run's code, transfers and addresses.

    ``follows``: another generation of it, which has the code of the nodes ``kept`` from now on, and of others its own.
    """

    run: RunId
    follows: RunId = NO_RUN
    kept: tuple[str, ...] = ()


class Deliver(Command, frozen=True):
    """Hand partition ``index`` of ``sink`` to the application; ``end`` when the sink's stream is over (no value).

    ``uneven``: that sources did not end together, which ones ended and which went on. ``sizes``: of a sink with several
    inputs the bytes of each. ``places``: within a client, which of its inputs feed which sources above the trees of a
    stream (``protocol.split_graph``), by their places, where it is not each that of its own.
    """

    run: RunId
    index: int
    value: Any = None
    size_bytes: int = 0
    end: bool = False
    uneven: str = ""
    sink: str = ""
    sizes: tuple[int, ...] = ()
    places: dict[int, int] | None = None


class Ready(Command, frozen=True):
    """Every host of the run has installed its nodes."""

    run: RunId


class Fail(Command, frozen=True):
    """The run cannot go on; ``reason`` names the node or host. ``lost``: the host is gone, which is why.

    With ``query`` that one alone cannot, and all others go on.
    """

    run: RunId
    reason: str
    node: str = ""
    host: str = ""
    lost: bool = False
    cause: Cause | None = None
    query: int | None = None


class Keep(Command, frozen=True):
    """What another client would need to go on with the run has changed."""

    run: RunId
    kept: ResumableRun


class Forgotten(Command, frozen=True):
    """Every host has removed the run, or was asked often enough; or another generation ``follows`` on it."""

    run: RunId
    follows: bool = False


class DrainFinished(Command, frozen=True):
    """Nothing is on this host any more that was to be drained; or it stays, and why."""

    why: str = ""


class Parted(Command, frozen=True):
    """``host`` has no part in the run any more, as it was drained; news for the application."""

    run: RunId
    host: str


class Enlisted(Command, frozen=True):
    """A host has said that it is there, and would take part; news for the application."""

    peer: Peer


class Report(Command, frozen=True):
    """A link's bandwidth, or its latency, was measured for the application's planner, or a host's place found, which
    is its link to itself.

    ``host``: what ``target`` said of itself on that occasion.
    """

    source: str
    target: str
    estimate: LinkEstimate | Latency | Place
    host: HostFigures | None = None
    via: str = NET


class RequestPlan(Command, frozen=True):
    """Let the application's planner look for a better placement than ``placement``, beside the flow: ``PlanReady``.

    ``dataflow``: the present tree, where it is not the one that the run began with. ``past``: what was measured so far,
    for a planner that looks ahead; ``view`` holds then only what was asked for in vain. ``recording``: the answer is to
    tell by what forecasts it was decided. ``latencies``, ``hosts``, ``nodes``, ``places`` (of hosts): what is known of
    them, where the planner needs that. ``ways``: the networks between hosts at present; ``shunned``: the routes over
    relays that nothing came over lately.
    """

    run: RunId
    placement: dict[str, str]
    view: dict[Link, LinkEstimate]
    state_bytes: dict[str, int] = {}
    dataflow: Dataflow | None = None
    past: PlanningHistory | None = None
    recording: bool = False
    latencies: dict[Link, Latency] = {}
    hosts: dict[str, HostFigures] = {}
    nodes: dict[str, NodeFigures] = {}
    places: dict[str, Place] = {}
    ways: tuple[RoutePreference, ...] = ()
    shunned: frozenset[tuple[Link, ...]] = frozenset()


class RequestRecoveryPlan(RequestPlan, frozen=True):
    """Let it say, by what it knows, where the operators of lost hosts go: ``RecoveryPlanReady``.

    ``dataflow`` has all other operators pinned to the hosts that they are on; ``placement`` has these where they go
    if it does not say. ``there``: the hosts that are left.
    """

    there: tuple[str, ...] = ()


class OperatorMoved(Command, frozen=True):
    """Operator ``node`` has moved to ``host``; news for the application."""

    run: RunId
    node: str
    host: str


class MoveEnded(Command, frozen=True):
    """What has become of the move, or of the other tree, that the application asked for as ``number``.

    From partition ``index`` on, the operators ``moved`` are on these hosts; None: nothing has changed. ``stayed``: by
    operator why it is not where it was to be. ``why``: the reason where nothing has changed, empty if everything was
    as wanted.
    """

    run: RunId
    number: int
    index: int | None = None
    moved: dict[str, str] = {}
    stayed: dict[str, str] = {}
    why: str = ""


class TreeChanged(Command, frozen=True):
    """The run has another tree, and its nodes are there; news for the application."""

    run: RunId
    dataflow: Dataflow
    placement: dict[str, str]


class QueryStarted(Command, frozen=True):
    """A query has begun: with partition ``first_index``, in a run that has this graph now; news for the application.

    ``names``: what the query's nodes are called in the run. Of a subscription, ``query`` is its number, at who
    subscribed; at the run's own client the queries of others have numbers below 0.
    """

    run: RunId
    query: int
    first_index: int
    names: dict[str, str]
    dataflow: Dataflow
    placement: dict[str, str]


class TreesChanged(Command, frozen=True):
    """Other trees carry a stream from now on, the first of them with that number; or cannot, for a reason."""

    run: RunId
    first: int
    error: str = ""


class Record(Command, frozen=True):
    """A row of the event log."""

    run: RunId
    kind: str
    fields: dict[str, Any]
