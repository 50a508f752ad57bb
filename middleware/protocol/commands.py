"""Commands of a core to its shell, and news for the application."""

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
    """Base of commands: immutable, slotted, compared by value."""


class ResumableRun(msgspec.Struct, frozen=True):
    """State of a run with failover that a later client needs to continue the run.

    - ``install``: the last generation, with the present graph and locations.
    - ``known``: hosts that have a replica, by operator and partition.
    - ``stateless``: code without state.
    - ``bases``: partition with which each node began.
    - ``queries``: sinks of the queries that continue, by number, as far as known.
    """

    install: Install
    known: dict[str, dict[int, tuple[str, ...]]] = {}
    stateless: tuple[Code, ...] = ()
    bases: dict[str, int] = {}
    queries: dict[int, tuple[str, ...]] = {}


class Send(Command, frozen=True):
    """Command to send ``message`` to host ``to`` of run ``run``.

    With ``bulk``, ``payload`` is sent in chunks over ``via``: a network, or for a partition the hops over relays. If
    one of the two hosts is not in the network, the message is lost (``TransferFailed``).
    """

    run: RunId
    to: str
    message: Message
    payload: Any = None
    size_bytes: int = 0
    bulk: bool = False
    via: Via = NET


class TimerKey(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """Name of a timer: kind (``core.context.outbox.Timer``), run if there is one, and subject within the run."""

    timer: str
    run: RunId = NO_RUN
    what: str = ""


class SetTimer(Command, frozen=True):
    """Command to send the core ``TimerFired(key)`` at ``at_s``. A later SetTimer of the same key replaces the timer."""

    key: TimerKey
    at_s: float


class Redial(Command, frozen=True):
    """Command to close the bulk connection to ``host`` over ``via`` and to connect again.

    With ``again``, transfers under way are sent again from the first byte. Otherwise they have failed
    (``TransferFailed``).
    """

    run: RunId
    host: str
    via: str = NET
    again: bool = True


class Meet(Command, frozen=True):
    """Command to note the endpoints of hosts in run ``run``."""

    run: RunId
    peers: tuple[Peer, ...]


class Watch(Command, frozen=True):
    """Command to report with ``PeerLost`` when the process of ``host`` ends, as far as its connections show it.

    ``host`` is a subscriber of ``run``.
    """

    run: RunId
    host: str


class Unwatch(Command, frozen=True):
    """Command to stop watching the process of ``host`` for ``run``."""

    run: RunId
    host: str


class Approach(Command, frozen=True):
    """Command to connect to ``host`` of run ``run`` if necessary, as an urgent message will follow."""

    run: RunId
    host: str


class OpenRun(Command, frozen=True):
    """Command to load the code of these nodes of a new run. Code that cannot be loaded leads to OperatorFailed."""

    install: Install
    nodes: tuple[str, ...]


class RunOperator(Command, frozen=True):
    """Command to run the code of ``node`` on ``inputs`` for partition ``index``. A source has no inputs.

    ``stands_for``: in a stripe, the index in the stream, which the code gets in place of ``index``.
    """

    run: RunId
    node: str
    index: int
    inputs: tuple[Any, ...] = ()
    stands_for: int | UnsetType = UNSET

    @property
    def of_stream(self) -> int:
        """Index that the code gets."""
        return self.index if self.stands_for is UNSET else self.stands_for


class OpenNode(Command, frozen=True):
    """Command to load the code of ``node``, which may come to this host. Answered by ``NodeOpened``.

    ``fresh``: the node is new and begins here. Code that is not ``reorderable`` is then refused with an error. Code
    with state is refused too, unless the states of operators of its kind are ``merging``.
    """

    run: RunId
    node: Node
    fresh: bool = False
    merging: bool = False


class Inherited(msgspec.Struct, frozen=True, gc=False):
    """State of an operator as received, or a change of a state."""

    state: bytes
    digest: str
    state_version: int


class TakeState(Command, frozen=True):
    """Command to take the state of ``node``, which is between two partitions. Answered by ``StateTaken``.

    The answer has the same location version. For a ``replica`` the answer also says whether the code keeps state. With
    ``delta`` the answer may have only the changes since the last replica, if the code reports changes.
    """

    run: RunId
    node: str
    version: int
    replica: bool = False
    delta: bool = False


class RestoreState(Command, frozen=True):
    """Command to give ``node`` its state, if the state has this ``digest``. Answered by ``StateRestored``.

    The answer has the same location version. ``deltas``: later changes of the state, in order.
    """

    run: RunId
    node: str
    version: int
    state: bytes
    digest: str
    state_version: int
    deltas: tuple[Inherited, ...] = ()


class MergeStates(Command, frozen=True):
    """Command to give ``node`` the merge of these states, if their digests are right. Answered by ``StateRestored``."""

    run: RunId
    node: str
    version: int
    states: tuple[Inherited, ...]


class CloseNode(Command, frozen=True):
    """Command to forget the code of ``node``, as the node has left the host."""

    run: RunId
    node: str


class CloseRun(Command, frozen=True):
    """Command to forget the code, transfers and endpoints of a run.

    ``follows``: next generation of the run, which takes over the code of the nodes ``kept`` and loads the code of new
    nodes itself.
    """

    run: RunId
    follows: RunId = NO_RUN
    kept: tuple[str, ...] = ()


class Deliver(Command, frozen=True):
    """News for the application: partition ``index`` of ``sink``, or with ``end`` the end of the sink's stream.

    - ``uneven``: says which sources ended and which went on, if sources did not end together.
    - ``sizes``: bytes of each input, for a sink with several inputs.
    - ``places``: within a client, the input of the sink for each inlet of an upper graph, by the inlet's place
      (``protocol.split_graph``). None: every inlet has the input with the number of its place.
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
    """News for the application: every host of the run has installed its nodes."""

    run: RunId


class Fail(Command, frozen=True):
    """News for the application: the run cannot continue. ``reason`` names the node or host.

    ``lost``: the reason is a lost host. ``query``: only this query cannot continue, and the run goes on.
    """

    run: RunId
    reason: str
    node: str = ""
    host: str = ""
    lost: bool = False
    cause: Cause | None = None
    query: int | None = None


class Keep(Command, frozen=True):
    """News for the application: the state that a later client needs to continue the run has changed."""

    run: RunId
    kept: ResumableRun


class Forgotten(Command, frozen=True):
    """News for the application: every host has removed the run or did not answer, or a generation ``follows``."""

    run: RunId
    follows: bool = False


class DrainFinished(Command, frozen=True):
    """News for the application: the host that drains holds nothing any more. ``why``: the reason if the host stays."""

    why: str = ""


class Parted(Command, frozen=True):
    """News for the application: ``host`` was drained and has left the run."""

    run: RunId
    host: str


class Enlisted(Command, frozen=True):
    """News for the application: host ``peer`` is there and offers to take part."""

    peer: Peer


class Report(Command, frozen=True):
    """News for the application's planner: the rate or latency of a link, or the coordinates of a host.

    Coordinates are reported as the link of the host to itself. ``host``: figures that ``target`` reported with it.
    """

    source: str
    target: str
    estimate: LinkEstimate | Latency | Place
    host: HostFigures | None = None
    via: str = NET


class RequestPlan(Command, frozen=True):
    """Command to ask the application's planner for a better placement than ``placement``. Answered by ``PlanReady``.

    The flow continues meanwhile.

    - ``dataflow``: the present tree, if it differs from the first tree of the run.
    - ``past``: all measurements so far, for a planner that looks ahead. ``view`` then has only the links that were
      probed without a result, links over further networks, and links of lost hosts.
    - ``recording``: the answer has to name the forecasts behind the decision.
    - ``latencies``, ``hosts``, ``nodes``, ``places`` (of hosts): known figures, as far as the planner needs them.
    - ``ways``: present routes between hosts. ``shunned``: routes over relays on which nothing has arrived lately.
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
    """Command to ask the planner where the operators of lost hosts go. Answered by ``RecoveryPlanReady``.

    The planner uses the known figures alone. In ``dataflow`` all remaining operators are pinned to their hosts.
    ``placement`` has default hosts for the operators of lost hosts, in case the planner does not answer. ``there``: the
    remaining hosts.
    """

    there: tuple[str, ...] = ()


class OperatorMoved(Command, frozen=True):
    """News for the application: operator ``node`` has moved to ``host``."""

    run: RunId
    node: str
    host: str


class MoveEnded(Command, frozen=True):
    """News for the application: result of the move or new tree that it requested as ``number``.

    From partition ``index`` on, the operators ``moved`` are on these hosts. None: nothing has changed. ``stayed``:
    reason by operator that is not on its requested host. ``why``: the reason if nothing has changed, empty if
    everything was already as requested.
    """

    run: RunId
    number: int
    index: int | None = None
    moved: dict[str, str] = {}
    stayed: dict[str, str] = {}
    why: str = ""


class TreeChanged(Command, frozen=True):
    """News for the application: the run has a new tree, with its nodes on these hosts."""

    run: RunId
    dataflow: Dataflow
    placement: dict[str, str]


class QueryStarted(Command, frozen=True):
    """News for the application: a query has begun with partition ``first_index``. ``dataflow``: the graph of the run
    now.

    ``names``: names in the run by name of the query's node. For a subscription, ``query`` is the subscription's number
    at the subscriber. At the client of the run, subscriptions of other clients have numbers below 0.
    """

    run: RunId
    query: int
    first_index: int
    names: dict[str, str]
    dataflow: Dataflow
    placement: dict[str, str]


class TreesChanged(Command, frozen=True):
    """News for the application: new trees carry the stream, the first of them with stripe number ``first``.

    ``error``: the reason if the trees cannot take over.
    """

    run: RunId
    first: int
    error: str = ""


class Record(Command, frozen=True):
    """Command to write a row of the event log."""

    run: RunId
    kind: str
    fields: dict[str, Any]
