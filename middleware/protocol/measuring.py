"""What is said as links are measured: bandwidth, latency, coordinates."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol.fields import Index, Name, Peer, Room, RunMessage
from thalweg.middleware.protocol.routes import LinkEnd

MAX_TARGETS = 4096  # of one request for probes
PROBE_BYTES = 16_384  # round-trip message of the paper's bandwidth study; Ranganathan et al., section 4
MAX_TOLD = 64  # latencies, or nodes, that one message tells of
MAX_PLACES = 16  # hosts' coordinates that one message tells of, some 65 bytes each
MAX_AXES = 16  # dimensions of coordinates
LONGEST_US = 3_600_000_000  # a latency of more than an hour is none
Micros = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_US)]


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
        """Link that the estimate is of."""
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


Quantity = Literal["bandwidth", "latency", "coordinates"]


class ProbeRequest(RunMessage, frozen=True):
    """Asks a host to measure to each of ``targets``, and to answer ``requester`` with a ProbeResult for each.

    ``quantity``: the bandwidth of the link to the target and back over the network ``via`` (a 16 KB round trip each),
    how long empty messages take, or the host's own coordinates by both.
    """

    targets: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_TARGETS)]
    requester: Peer
    quantity: Quantity = "bandwidth"
    via: Name = NET


class Probe(RunMessage, frozen=True):
    """A message of a probe's train (bulk), of at most 16 KB. ``echo``: the target then probes the way back."""

    number: Index
    source: Peer
    echo: bool
    stage: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0


class ProbeResult(RunMessage, frozen=True):
    """One measured figure, for the host that asked. A bandwidth goes to the link's other end as well."""

    estimate: Estimate | None = None
    latency: LinkLatency | None = None
    place: PlaceReport | None = None


class Echo(RunMessage, frozen=True):
    """An almost empty message, or with ``back`` its answer. ``source``: where to answer a host with no run here.

    Where somebody decides by them it tells the ``latencies`` of the sender's links, and of the ``nodes`` there. Where
    coordinates are wanted, the sender's own are among the ``places``, and others that it knows; else these are None.
    """

    number: Index
    back: bool = False
    source: Peer | None = None
    host: HostReport | None = None
    latencies: Annotated[tuple[LinkLatency, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    nodes: Annotated[tuple[NodeReport, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    places: Annotated[dict[Name, PlaceReport], msgspec.Meta(max_length=MAX_PLACES)] | None = None
