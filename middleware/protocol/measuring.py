"""Messages about measurements of links and hosts: bandwidth, latency, coordinates."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol.fields import Index, Name, Peer, Room, RunMessage
from thalweg.middleware.protocol.routes import LinkEnd

MAX_TARGETS = 4096  # of one request for probes
PROBE_BYTES = 16_384  # round-trip message of the paper's bandwidth study; Ranganathan et al., section 4
MAX_TOLD = 64  # latencies, or nodes, in one message
MAX_PLACES = 16  # coordinates of hosts in one message, about 65 bytes each
MAX_AXES = 16  # dimensions of coordinates
LONGEST_US = 3_600_000_000  # a latency of more than an hour is refused
Micros = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_US)]


class Estimate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Estimate of the rate of the directed link ``source`` to ``target``, in bit/s of emulated time. About 20 bytes.

    ``count``: number of samples that the measuring host has taken so far. Of two estimates the higher count is the
    later. ``age_ms``: emulated time from the last sample until this message was sent.
    """

    source: Name
    target: Name | LinkEnd
    rate_bps: Index
    spread_bps: Index
    count: Index
    age_ms: Index

    @property
    def link(self) -> Link:
        """Link that the estimate is about."""
        end = self.target
        return Link(self.source, end.host, end.via) if isinstance(end, LinkEnd) else Link(self.source, end)


class LinkLatency(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Estimate of the time of an empty message from ``source`` to ``target``, in microseconds of emulated time.

    ``count``, ``age_ms``: as in Estimate.
    """

    source: Name
    target: Name
    latency_us: Micros
    spread_us: Micros
    count: Index
    age_ms: Index


class HostReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Figures that a host reports about itself (``network.figures.HostFigures``), speed and load in thousandths."""

    speed_milli: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    load_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class PlaceReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Coordinates of a host (``network.place.Place``), in seconds, with the figures that the host reports."""

    at: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_AXES)]
    height_s: float
    error: float
    count: Index
    host: HostReport
    memory_bytes: Index = 0
    bandwidth_bps: Index = 0


class NodeReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Figures of ``node`` that its host has measured (``network.figures.NodeFigures``).

    Inputs are in the order of the node's inputs.
    """

    node: Name
    rate_micro_hz: Index
    output_bytes: Room
    call_us: Micros
    count: Index
    input_bytes: Annotated[tuple[Room, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()


Quantity = Literal["bandwidth", "bandwidths", "latency", "coordinates"]


class ProbeRequest(RunMessage, frozen=True):
    """Request to measure from the receiver to each of ``targets``, and to send ``requester`` a ProbeResult for each.

    ``quantity``: bandwidth of the links to and from the target over network ``via`` (a round trip of 16 KB each),
    bandwidths of the links to all targets at the same time, latency, or the coordinates of the receiver, which need
    bandwidth and latency.
    """

    targets: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_TARGETS)]
    requester: Peer
    quantity: Quantity = "bandwidth"
    via: Name = NET


class Probe(RunMessage, frozen=True):
    """Message of a probe train (bulk), of at most 16 KB. ``echo``: the target then probes the opposite direction."""

    number: Index
    source: Peer
    echo: bool
    stage: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0


class ProbeResult(RunMessage, frozen=True):
    """Result of one measurement, for the requester. A bandwidth is also sent to the other end of the link."""

    estimate: Estimate | None = None
    latency: LinkLatency | None = None
    place: PlaceReport | None = None


class Echo(RunMessage, frozen=True):
    """Latency probe, almost empty, or with ``back`` the answer to a probe.

    - ``source``: address for the answer, if the receiver has no run with the sender.
    - ``host``: figures of the sender.
    - ``latencies``, ``nodes``: figures of the sender's links and nodes, for runs in which hosts decide about moves.
    - ``places``: coordinates of the sender and of further hosts. None: coordinates are not needed.
    """

    number: Index
    back: bool = False
    source: Peer | None = None
    host: HostReport | None = None
    latencies: Annotated[tuple[LinkLatency, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    nodes: Annotated[tuple[NodeReport, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    places: Annotated[dict[Name, PlaceReport], msgspec.Meta(max_length=MAX_PLACES)] | None = None
