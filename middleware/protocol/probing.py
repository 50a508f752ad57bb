"""What is said as links are measured: bandwidth, latency, coordinates."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol.fields import (
    MAX_PLACES,
    MAX_TARGETS,
    MAX_TOLD,
    Estimate,
    HostReport,
    Index,
    LinkLatency,
    Name,
    NodeReport,
    Peer,
    PlaceReport,
    RunMessage,
)

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
    """What measuring gave: of a link's bandwidth to its other end and to all who asked, else to who asked."""

    estimate: Estimate | None = None
    latency: LinkLatency | None = None
    place: PlaceReport | None = None


class Echo(RunMessage, frozen=True):
    """Next to nothing, answered at once by the same, ``back``. Before runs its ``source`` says where to.

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
