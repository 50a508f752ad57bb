"""What hosts say to each other: structs whose every field is typed, and checked by msgspec when they are decoded."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol.adaptation import LocalMoves, Need, SpaceMoves

MAX_PARTITION_BYTES = 1024 * 1024 * 1024  # of any host
DEFAULT_PARTITION_BYTES = 256 * 1024 * 1024
MAX_DIMENSIONS = 8  # of an array
INLINE_STATE_BYTES = 16_384  # a state up to this travels as control, ahead of all bulk
MAX_GAP_S = 3600.0  # between two bulk messages; an hour stands for longer ones, and for none before
MAX_TARGETS = 4096  # of one request for probes
PROBE_BYTES = 16_384  # round-trip message of the paper's bandwidth study; Ranganathan et al., section 4
MAX_TOLD = 64  # latencies, or nodes, that one message tells of
MAX_PLACES = 16  # hosts' coordinates that one message tells of, some 65 bytes each
MAX_AXES = 16  # dimensions of coordinates
MAX_NETWORKS = 16  # that a host is joined to
LONGEST_US = 3_600_000_000  # a latency of more than an hour is none

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0)]
End = bool | tuple[Name, ...]
Micros = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_US)]
Demanded = Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
Room = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION_BYTES)]  # bytes of a transfer
# What a socket can dial without refusing it at once: a host that is told anything else drops the message.
_TCP = r"tcp://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Za-z:.%]+\]):[0-9]{1,5}"
_UNIX = r"ipc:///[!-~]{1,106}"  # with the slash, what fits into sockaddr_un; no abstract name, which any user can dial
Endpoint = Annotated[str, msgspec.Meta(pattern=rf"\A({_TCP}|{_UNIX})\Z", max_length=300)]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all wire structs; the tag is the class name."""


class _OfRun(_Message, frozen=True):
    """What is said of a run."""

    run: Name


class _OfNode(_OfRun, frozen=True):
    """What is said of operator ``node``, which changes hosts, in its ``version``-th placement."""

    node: Name
    version: Index


class _OfProposal(_OfRun, frozen=True):
    """What is said of proposal ``number``."""

    number: Index


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Node ``node`` is on ``host`` since its ``version``-th placement; the higher version is newer."""

    node: Name
    host: Name
    version: Index


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Operator ``node``, since its ``version``-th placement on ``source``, is to go to ``target``."""

    node: Name
    source: Name
    target: Name
    version: Index


class Way(msgspec.Struct, frozen=True, array_like=True):
    """What host ``source`` sends to ``target`` goes ``over`` the first of these networks in which it gets there."""

    source: Name
    target: Name
    over: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_NETWORKS)]


class Graft(msgspec.Struct, frozen=True, array_like=True):
    """In another tree ``node`` takes these ``inputs``: one that is there already, or with ``like`` one that appears.

    An operator that appears has the code of operator ``like`` and is on ``host``. It begins with the ``states`` of
    these operators of the present tree, merged. A node of another query appears ``like`` what is written there.
    """

    node: Name
    inputs: tuple[Name, ...]
    host: Name
    like: Annotated[str, msgspec.Meta(max_length=128)] | Node = ""
    states: tuple[Name, ...] = ()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """Another tree (``reshaping``): what is grafted, and where the operators of the present one are thought to be.

    Or what the nodes of another query are (``growth``), beside all that is there.
    """

    grafts: tuple[Graft, ...]
    present: tuple[Location, ...]

    @property
    def grows(self) -> bool:
        """Whether another query begins, and all that is there stays as it is."""
        return any(isinstance(graft.like, Node) for graft in self.grafts)


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """The bulk endpoints of a host that is joined to several networks, by their names.

    Raises ValueError (on decoding, msgspec.ValidationError) where the network that all share is left out.
    """

    ends: Annotated[dict[Name, Endpoint], msgspec.Meta(max_length=MAX_NETWORKS)]

    def __post_init__(self) -> None:
        if NET not in self.ends:
            raise ValueError(f"a host without a bulk endpoint in network {NET!r}, which all share")


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a host listens: its control and bulk endpoints (``tcp://address:port``, or ``ipc:///path``).

    ``bulk``: where it is joined to further networks, its endpoints in all of them. ``instance`` is another one each
    time the host is started; empty where that is not known. The host takes no partition of more than
    ``max_partition_bytes``.
    """

    name: Name
    control: Endpoint
    bulk: Endpoint | Joined
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES

    @property
    def ends(self) -> dict[str, str]:
        """Its bulk endpoints, by network."""
        return self.bulk.ends if isinstance(self.bulk, Joined) else {NET: self.bulk}


class Over(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a link over another network than the one that all share."""

    host: Name
    via: Name


class Estimate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of the directed link ``source`` to ``target``, in bit/s of emulated time; about 20 bytes.

    ``count``: samples its measurer has taken so far, so that of two estimates the later is known; ``age_ms``:
    emulated time since the last of them, when this was sent.
    """

    source: Name
    target: Name | Over
    rate_bps: Index
    spread_bps: Index
    count: Index
    age_ms: Index

    @property
    def link(self) -> Link:
        """The link that it is of."""
        end = self.target
        return Link(self.source, end.host, end.via) if isinstance(end, Over) else Link(self.source, end)


class LinkLatency(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of an empty message's way from ``source`` to ``target``, in microseconds of emulated time.

    ``count``, ``age_ms``: as of an Estimate.
    """

    source: Name
    target: Name
    latency_us: Micros
    spread_us: Micros
    count: Index
    age_ms: Index


class HostTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a host says of itself (``network.figures.HostFigures``), speed and load in thousandths."""

    speed_milli: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    load_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class PlaceTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A host's coordinates (``network.place.Place``), in seconds, and what it says of itself besides."""

    at: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_AXES)]
    height_s: float
    error: float
    count: Index
    host: HostTold
    memory_bytes: Index = 0
    bandwidth_bps: Index = 0


class NodeTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the host of ``node`` has measured of it (``network.figures.NodeFigures``), inputs in the node's order."""

    node: Name
    rate_micro_hz: Index
    output_bytes: Room
    call_us: Micros
    count: Index
    input_bytes: Annotated[tuple[Room, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()


class News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What rides on a message that is sent anyway: newer locations, and measured links."""

    locations: tuple[Location, ...] = ()
    estimates: tuple[Estimate, ...] = ()


class BookState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an operator takes along when it moves: what its host has counted (``epochs.EpochBook``).

    Raises ValueError (on decoding, msgspec.ValidationError) for counts that cannot be.
    """

    round: Count
    sends: Count
    later: Count
    unmarked: bool
    last: Annotated[int, msgspec.Meta(ge=-1)]
    mostly_later: bool
    consumer_critical: bool

    def __post_init__(self) -> None:
        if self.later > self.sends or (self.unmarked and self.last < 0):
            raise ValueError(f"a book cannot have {self.later} of {self.sends} sends later, the last {self.last}")


class Taken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one of several consumers has demanded of an operator that moves, and the operator's epoch so far for it."""

    consumer: Name
    demanded: Demanded
    book: BookState | None = None


class Hello(_Message, frozen=True):
    """Asks a host who it is."""


class Welcome(_Message, frozen=True):
    """Answer to Hello, with the endpoints the host listens on and what it knows how to run."""

    host: Name
    control: Endpoint
    bulk: Endpoint | Joined
    codes: tuple[Name, ...] = ()
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES


class Ping(_Message, frozen=True):
    """From a run's client: still there, still wants ``run``; empty, from any host that asks for a sign of life."""

    run: str


class Pong(_Message, frozen=True):
    """Answer to Ping; ``known`` is False when the host has no part in that run (any more)."""

    run: str
    known: bool = True


class Install(_OfRun, frozen=True):
    """Everything a host needs to take part in a run. Repeated until answered by Installed."""

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
    number: Index = 0  # of the Admit by which the others hear of a host that joins


class Failover(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a run outlives its hosts: what ``Client.run(…, failover=Failover())`` says.

    An operator with state leaves a replica of it with ``replicas`` other hosts whenever it has made ``every``
    partitions since the last one, or has taken ``every_bytes`` of inputs, or ``every_s`` have passed. A lost host that
    has a source is waited for as long as ``wait_s`` (seconds of the hosts' clocks); then the run ends. ``domains``: by
    host, what it fails together with, as a rack or a site: replicas go to others; of a host that is not in it, its
    machine.
    """

    every: Annotated[int, msgspec.Meta(ge=1)] = 16
    every_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 1024 * 1024
    every_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    domains: dict[Name, Name] = {}


class Start(msgspec.Struct, frozen=True, array_like=True):
    """In a later generation of a run ``node`` begins with partition ``index``, from its replica at ``holder`` if any.

    ``LAST`` says that nothing more is wanted of it.
    """

    node: Name
    index: Index
    holder: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Lasting(Install, frozen=True):
    """The Install of a run that outlives its hosts; of a later generation with where each node starts."""

    failover: Failover = Failover()
    starts: tuple[Start, ...] = ()

    @classmethod
    def of(cls, install: Install, failover: Failover) -> Lasting:
        """The same run, to outlive its hosts."""
        return cls(**{name: getattr(install, name) for name in install.__struct_fields__}, failover=failover)


class Stable(_OfRun, frozen=True):
    """To the client: ``hosts`` have a replica of ``node`` at partition ``index``; with none of them it has no state."""

    node: Name
    index: Index
    hosts: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()


class Settled(_OfRun, frozen=True):
    """From the client: of these nodes no replica is needed that is older, and none of nodes that are gone."""

    lines: tuple[Start, ...]


class Installed(_OfRun, frozen=True):
    """``host`` holds its nodes of ``run``, or cannot for the reason in ``error``; ``number``: of the Install."""

    host: Name
    error: Text = ""
    number: Index = 0


class Remove(_OfRun, frozen=True):
    """The run is over; forget it. Repeated until answered by Removed."""


class Removed(_OfRun, frozen=True):
    host: Name


class Demand(_OfRun, frozen=True):
    """``consumer`` wants partition ``index`` of ``producer``; acknowledges all before it.

    ``version``: the consumer is with the sender since its ``version``-th placement, 0 in a forwarded demand.
    ``later``: of all producers this one delivered last time's partition last; ``critical``: the consumer is on the
    critical path (Ranganathan et al., section 2.3). ``again``: it was not answered in time. ``commit`` is with the
    first demand in another tree, so that the producer knows the consumer.
    """

    producer: Name
    consumer: Name
    index: Index
    hops: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    version: Index = 0
    later: bool = False
    critical: bool = False
    news: News | None = None
    again: bool = False
    commit: Commit | CommitWays | None = None


class Partition(_OfRun, frozen=True):
    """Partition ``index`` of ``producer`` for ``consumer`` (bulk); ``end`` says the stream has none and is over.

    Where only some of what is combined there ended, ``end`` names the nodes that had this partition.
    ``commit`` is with the first partition after a change-over, so that nobody works on it unknowing.
    """

    producer: Name
    consumer: Name
    index: Index
    end: End = False
    hops: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    news: News | None = None
    commit: Commit | CommitWays | None = None


class Located(_OfRun, frozen=True):
    """Newer locations for a peer that used older ones."""

    locations: tuple[Location, ...]


class Cause(msgspec.Struct, frozen=True):
    """What a node's code raised: the class, where in that code, and at which partition, as far as that is known."""

    index: Index | None = None
    kind: Annotated[str, msgspec.Meta(max_length=256)] = ""
    traceback: Annotated[str, msgspec.Meta(max_length=8_192)] = ""


class Failed(_OfRun, frozen=True):
    """A node's code failed, or waits for ``lost``, a host that is gone; the run cannot go on. To the client."""

    node: str
    reason: Text
    cause: Cause | None = None
    lost: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Lost(_OfRun, frozen=True):
    """From the client: ``host`` is gone for good; ``locations`` are where, as it knows, all that has moved is.

    ``number``: of the last Admit before. Who was let in by a later one has joined again.
    """

    host: Name
    locations: tuple[Location, ...]
    number: Index = 0


# --- an operator changes hosts (core.relocation.handover) -------------------------------------------


class Offer(_OfNode, frozen=True):
    """Will you take ``node``, which has its ``version``-th placement here? Repeated, it asks how far you are."""


class Accept(_OfNode, frozen=True):
    """Answer to Offer: the code of ``node`` is loaded here, there is room, and its state has not come."""


class Refuse(_OfNode, frozen=True):
    """``node`` cannot run here, or not from that state, for the reason given; nothing is kept."""

    reason: Text


class State(_OfNode, frozen=True):
    """``node`` between two partitions: it needs ``index`` next and was demanded ``demanded``, or what ``Taken`` says.

    What ``snapshot()`` gave has ``size_bytes``; up to ``INLINE_STATE_BYTES`` it is ``inline`` in a control message,
    else the payload of a bulk message. ``tail`` is the host that keeps the last output until it is acknowledged, if
    any. ``book`` is the operator's epoch so far. With ``heir`` the operator goes nowhere: that one, which appears in
    another tree, takes over what it remembers; its own heir it is where this is a replica (``checkpoints``).
    """

    index: Index
    demanded: Demanded | tuple[Taken, ...]
    state_version: Index
    size_bytes: Index
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    tail: Annotated[str, msgspec.Meta(max_length=128)] = ""
    inline: Annotated[bytes, msgspec.Meta(max_length=INLINE_STATE_BYTES)] | None = None
    book: BookState | None = None
    heir: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Claim(_OfRun, frozen=True):
    """``heir``, which appears in another tree, waits for the state of ``node``, which has not come yet.

    Its own heir waits for the replica with which it starts.
    """

    node: Name
    heir: Name


class Restored(_OfNode, frozen=True):
    """``node`` is here with its state and waits for the word that it has moved."""


class Withdraw(_OfNode, frozen=True):
    """``node`` stays where it is; forget the offer."""


class Resumed(_OfNode, frozen=True):
    """``node`` runs here, by its placement after ``version``."""


class Wish(_OfNode, frozen=True):
    """To the client: ``node``, which is here, would be better on ``target``. It may be heard, or not."""

    target: Name


class Relocated(_OfRun, frozen=True):
    """To the client: what became of handing ``node`` over, and why it stayed if it did."""

    node: Name
    moved: bool
    location: Location
    why: Text = ""
    size_bytes: Index = 0


# --- all change over between two iterations (core.relocation.proposal) ------------------------------


class Propose(_OfProposal, frozen=True):
    """From the client, passed on up the tree: sources suspend, hosts vote on these moves, or on another ``shape``."""

    moves: tuple[Move, ...]
    shape: Shape | None = None

    @property
    def ways(self) -> tuple[Way, ...] | None:
        """The networks between hosts from then on, the one that all share where none is told; None: as they were."""
        return None


class ProposeWays(Propose, frozen=True):
    """The same, with other networks between hosts."""

    ways: tuple[Way, ...] = ()


class Vote(_OfProposal, frozen=True):
    """``host`` is ready for proposal ``number``, or not for the reason in ``error``.

    ``iteration``: the last partition that a source of this host has dispatched, -1 for none.
    """

    host: Name
    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    error: Text = ""


class Commit(_OfProposal, frozen=True):
    """From the client to all: proposal ``number`` takes place after partition ``iteration``."""

    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    moves: tuple[Move, ...]
    reason: Text = ""
    shape: Shape | None = None

    @property
    def ways(self) -> tuple[Way, ...] | None:
        """As of Propose."""
        return None


class CommitWays(Commit, frozen=True):
    """The same, with other networks between hosts."""

    ways: tuple[Way, ...] = ()


class Abort(_OfProposal, frozen=True):
    """From the client to all: proposal ``number`` is off, sources resume."""


class Retire(_OfProposal, frozen=True):
    """From the client to all: all of the old tree's partitions are delivered; forget what is not in the new one."""


class Done(_OfProposal, frozen=True):
    """``host`` is through with proposal ``number``; ``locations`` are those of the operators it handed over.

    Of another shape it says twice that it is: when it has both trees, and, ``retired``, when it has the new one only.
    """

    host: Name
    locations: tuple[Location, ...] = ()
    retired: bool = False


# --- another query begins, or one leaves (core.relocation.growth) ------------------------------------


class Detach(_OfProposal, frozen=True):
    """From the client to all: no query uses ``nodes`` any more; forget them. Repeated until answered by Detached.

    ``guests``: other clients that take no more of the run's partitions.
    """

    nodes: tuple[Name, ...]
    guests: tuple[Name, ...] = ()


class Detached(_OfProposal, frozen=True):
    """Answer to Detach, or to Admit: that is so here, but for ``error``."""

    error: Text = ""


# --- a sink of another client (core.relocation.guests, core.relocation.visit) -------------------------


class Subscribe(_OfRun, frozen=True):
    """From another client: its subscription ``number`` wants the partitions of ``node``. Repeated while it lasts.

    Answered by Enrol, by Pong while it lasts, and by Dismiss when it does not.
    """

    number: Index
    node: Name
    peer: Peer


class Admit(_OfProposal, frozen=True):
    """From the client to all: this other client may have sinks in the run. Repeated until answered by Detached.

    ``host``: it is a host of the run from now on, to which operators may move.
    """

    peer: Peer
    host: bool = False


class Enrol(_OfRun, frozen=True):
    """To another client: the run as it is, in which ``sink`` is to be for its subscription ``number``.

    Repeated until answered by Installed.
    """

    number: Index
    sink: Name
    install: Install


class Unsubscribe(_OfRun, frozen=True):
    """From another client: its subscription ``number`` is over. Repeated until answered by Dismiss."""

    number: Index


class Dismiss(_OfRun, frozen=True):
    """To another client: its subscription ``number`` is over, or there is none, and why; 0: all are, with the run."""

    number: Index
    why: Text = ""


# --- hosts come and go (core.relocation.membership) ---------------------------------------------------


class Enlist(_Message, frozen=True):
    """From a host to a client, again and again: ``peer`` is here, and takes part if it is wanted."""

    peer: Peer


class Drain(_Message, frozen=True):
    """To a host: let all operators move away, and end. Answered by Drained, once."""


class Drained(_Message, frozen=True):
    """Answer to Drain: nothing is here any more, and the host ends; or it stays, and why."""

    why: Text = ""


class Leave(_OfRun, frozen=True):
    """To the client: this host is to have no part in the run any more. Repeated until answered by Remove, or by Stay.

    ``empty``: no node is here, and no output that somebody may ask for.
    """

    empty: bool


class Stay(_OfRun, frozen=True):
    """Answer to Leave: that cannot be, and why."""

    why: Text


class ProbeRequest(_OfRun, frozen=True):
    """Asks a host to measure the link to each of ``targets`` and back (a 16 KB round trip each)."""

    targets: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_TARGETS)]
    requester: Peer


class ProbeOver(ProbeRequest, frozen=True):
    """The same of the links over the network ``via``."""

    via: Name


class Probe(_OfRun, frozen=True):
    """A message of a probe's train (bulk), of at most 16 KB. ``echo``: the target then probes the way back."""

    number: Index
    source: Peer
    echo: bool
    stage: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0


class ProbeResult(_OfRun, frozen=True):
    """What probing a link gave: to the other end of the link, and to all who asked."""

    estimate: Estimate


class SoundRequest(ProbeRequest, frozen=True):
    """Asks a host how long empty messages take to each of ``targets`` and back."""


class Sounded(_OfRun, frozen=True):
    """What came of it, to who asked."""

    latency: LinkLatency


class Echo(_OfRun, frozen=True):
    """Next to nothing, answered at once by the same, ``back``. Before runs its ``source`` says where to.

    Where somebody decides by them it tells the ``latencies`` of the sender's links, and of the ``nodes`` there.
    """

    number: Index
    back: bool = False
    source: Peer | None = None
    host: HostTold | None = None
    latencies: Annotated[tuple[LinkLatency, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    nodes: Annotated[tuple[NodeTold, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()


class FindRequest(ProbeRequest, frozen=True):
    """Asks a host to find its coordinates by measuring to ``targets``."""


class Found(_OfRun, frozen=True):
    """What came of it, to who asked."""

    place: PlaceTold


class Situated(Echo, frozen=True):
    """An Echo where coordinates are wanted: the sender's own are among the ``places``, and others that it knows."""

    places: Annotated[dict[Name, PlaceTold], msgspec.Meta(max_length=MAX_PLACES)] = {}


class Credit(_Message, frozen=True):
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


class Chunk(_Message, frozen=True):
    """Header of one piece of a transfer; the next frame is its bytes, at ``offset`` of ``total_bytes``."""

    transfer: Index
    total_bytes: Room
    offset: Index
    message: Partition | Probe | State
    dtype: Annotated[str, msgspec.Meta(max_length=64)] = ""
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)] = ()


Control = (
    Hello
    | Welcome
    | Ping
    | Pong
    | Install
    | Lasting
    | Stable
    | Settled
    | Installed
    | Remove
    | Removed
    | Demand
    | Located
    | Failed
    | Lost
    | Offer
    | Accept
    | Refuse
    | State  # with its bytes in it
    | Claim
    | Restored
    | Withdraw
    | Resumed
    | Wish
    | Relocated
    | Propose
    | ProposeWays
    | Vote
    | Commit
    | CommitWays
    | Abort
    | Retire
    | Done
    | Detach
    | Detached
    | Subscribe
    | Admit
    | Enrol
    | Unsubscribe
    | Dismiss
    | Enlist
    | Drain
    | Drained
    | Leave
    | Stay
    | ProbeRequest
    | ProbeOver
    | ProbeResult
    | SoundRequest
    | Sounded
    | Echo
    | FindRequest
    | Found
    | Situated
    | Credit
    | Partition  # only an end-of-stream marker, which has no bytes
)
Message = Control | Probe
