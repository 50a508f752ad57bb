"""What is said as links are measured: bandwidth, latency, coordinates."""

from __future__ import annotations

from typing import Annotated

import msgspec

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


class ProbeRequest(RunMessage, frozen=True):
    """Asks a host to measure the link to each of ``targets`` and back (a 16 KB round trip each)."""

    targets: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_TARGETS)]
    requester: Peer


class ProbeOver(ProbeRequest, frozen=True):
    """The same of the links over the network ``via``."""

    via: Name


class Probe(RunMessage, frozen=True):
    """A message of a probe's train (bulk), of at most 16 KB. ``echo``: the target then probes the way back."""

    number: Index
    source: Peer
    echo: bool
    stage: Annotated[int, msgspec.Meta(ge=0, le=7)] = 0


class ProbeResult(RunMessage, frozen=True):
    """What probing a link gave: to the other end of the link, and to all who asked."""

    estimate: Estimate


class LatencyRequest(ProbeRequest, frozen=True, tag="SoundRequest"):
    """Asks a host how long empty messages take to each of ``targets`` and back."""


class LatencyReply(RunMessage, frozen=True, tag="Sounded"):
    """What came of it, to who asked."""

    latency: LinkLatency


class Echo(RunMessage, frozen=True):
    """Next to nothing, answered at once by the same, ``back``. Before runs its ``source`` says where to.

    Where somebody decides by them it tells the ``latencies`` of the sender's links, and of the ``nodes`` there.
    """

    number: Index
    back: bool = False
    source: Peer | None = None
    host: HostReport | None = None
    latencies: Annotated[tuple[LinkLatency, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    nodes: Annotated[tuple[NodeReport, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()


class CoordinatesRequest(ProbeRequest, frozen=True, tag="FindRequest"):
    """Asks a host to find its coordinates by measuring to ``targets``."""


class CoordinatesReply(RunMessage, frozen=True, tag="Found"):
    """What came of it, to who asked."""

    place: PlaceReport


class Situated(Echo, frozen=True):
    """An Echo where coordinates are wanted: the sender's own are among the ``places``, and others that it knows."""

    places: Annotated[dict[Name, PlaceReport], msgspec.Meta(max_length=MAX_PLACES)] = msgspec.field(
        default_factory=dict
    )
