"""What messages are made of: bounds, checked types, and the structs that ride in several messages."""

from __future__ import annotations

import itertools
from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Node
from thalweg.middleware.network.view import NET, Link

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
MAX_HOPS = 8  # links of a route over relays
LONGEST_US = 3_600_000_000  # a latency of more than an hour is none

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Generation = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # ``protocol.generations``
Count = Annotated[int, msgspec.Meta(ge=0)]
Version = Annotated[int, msgspec.Meta(ge=1, le=255)]  # of the protocol
Speaks = tuple[Version, Version]  # the oldest and the newest that a host speaks
End = bool | tuple[Name, ...]
Micros = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_US)]
Demanded = Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
Room = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION_BYTES)]  # bytes of a transfer
# What a socket can dial without refusing it at once: a host that is told anything else drops the message.
_TCP = r"tcp://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Za-z:.%]+\]):[0-9]{1,5}"
_UNIX = r"ipc:///[!-~]{1,106}"  # with the slash, what fits into sockaddr_un; no abstract name, which any user can dial
Endpoint = Annotated[str, msgspec.Meta(pattern=rf"\A({_TCP}|{_UNIX})\Z", max_length=300)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all wire structs.

    The tag is the class name. A class that was renamed keeps its tag, so hosts before and after it understand each
    other.
    """


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the tag of a kind of message, which names the kind in frames, records and fault plans."""
    return str(kind.__struct_config__.tag)


class RunMessage(WireMessage, frozen=True):
    """What is said of a run."""

    run: Name


class NodeMessage(RunMessage, frozen=True):
    """What is said of operator ``node``, which changes hosts, in its ``version``-th placement."""

    node: Name
    version: Index


class ProposalMessage(RunMessage, frozen=True):
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


class LinkEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a link over another network than the one that all share; of a hop over relays, of any link."""

    host: Name
    via: Name


Hops = Annotated[tuple[LinkEnd, ...], msgspec.Meta(min_length=2, max_length=MAX_HOPS)]
Via = str | Hops  # a network, or the hops over relays, of which the last one ends at the target


def links_over(source: str, target: str, via: Via) -> tuple[Link, ...]:
    """The links that what ``source`` sends to ``target`` takes."""
    if isinstance(via, str):
        return (Link(source, target, via),)
    hosts = [source, *(hop.host for hop in via)]
    return tuple(Link(*pair, hop.via) for pair, hop in zip(itertools.pairwise(hosts), via, strict=True))


class RoutePreference(msgspec.Struct, frozen=True, array_like=True):
    """What host ``source`` sends to ``target`` goes ``over`` the first of these in which it gets there: networks, or
    routes over relays.

    ``rates_bps``: what each of them carries, as far as the client knows (0: it does not).
    Raises ValueError (on decoding, msgspec.ValidationError) for a route that ends elsewhere, or meets a host twice.
    """

    source: Name
    target: Name
    over: Annotated[tuple[Name | Hops, ...], msgspec.Meta(max_length=MAX_NETWORKS)]
    rates_bps: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_NETWORKS)] = ()

    def __post_init__(self) -> None:
        for hops in self.over:
            if not isinstance(hops, str):
                met = [self.source, *(hop.host for hop in hops)]
                if met[-1] != self.target or len({*met}) < len(met):
                    raise ValueError(f"a route from {self.source!r} to {self.target!r} over {met[1:]}")

    @property
    def links(self) -> list[tuple[Link, ...]]:
        """The links of each of them."""
        return [links_over(self.source, self.target, via) for via in self.over]


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

    Or what the nodes of another query are (``query_attachment``), beside all that is there.
    """

    grafts: tuple[Graft, ...]
    present: tuple[Location, ...]

    @property
    def grows(self) -> bool:
        """Whether another query begins, and all that is there stays as it is."""
        return any(isinstance(graft.like, Node) for graft in self.grafts)


class NetworkEndpoints(msgspec.Struct, frozen=True, array_like=True):
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
    time the host is started; empty where that is not known. A client's also names its process. The host takes no
    partition of more than ``max_partition_bytes``.
    """

    name: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES

    @property
    def process(self) -> str:
        """The process that listens there, as "process 123 on machine", if it says so: behind what tells it apart."""
        return self.instance.partition(" ")[2]

    @property
    def ends(self) -> dict[str, str]:
        """Its bulk endpoints, by network."""
        return self.bulk.ends if isinstance(self.bulk, NetworkEndpoints) else {NET: self.bulk}


class Estimate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of the directed link ``source`` to ``target``, in bit/s of emulated time; about 20 bytes.

    ``count``: samples its measurer has taken so far, so that of two estimates the later is known; ``age_ms``:
    emulated time since the last of them, when this was sent.
    """

    source: Name
    target: Name | LinkEnd
    rate_bps: Index
    spread_bps: Index
    count: Index
    age_ms: Index

    @property
    def link(self) -> Link:
        """The link that it is of."""
        end = self.target
        return Link(self.source, end.host, end.via) if isinstance(end, LinkEnd) else Link(self.source, end)


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


class HostReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a host says of itself (``network.figures.HostFigures``), speed and load in thousandths."""

    speed_milli: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    load_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class PlaceReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A host's coordinates (``network.place.Place``), in seconds, and what it says of itself besides."""

    at: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_AXES)]
    height_s: float
    error: float
    count: Index
    host: HostReport
    memory_bytes: Index = 0
    bandwidth_bps: Index = 0


class NodeReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the host of ``node`` has measured of it (``network.figures.NodeFigures``), inputs in the node's order."""

    node: Name
    rate_micro_hz: Index
    output_bytes: Room
    call_us: Micros
    count: Index
    input_bytes: Annotated[tuple[Room, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()


class Piggyback(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


class ConsumerDemand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one of several consumers has demanded of an operator that moves, and the operator's epoch so far for it."""

    consumer: Name
    demanded: Demanded
    book: BookState | None = None


class Cause(msgspec.Struct, frozen=True):
    """What a node's code raised: the class, where in that code, and at which partition, as far as that is known."""

    index: Index | None = None
    kind: Annotated[str, msgspec.Meta(max_length=256)] = ""
    traceback: Annotated[str, msgspec.Meta(max_length=8_192)] = ""
