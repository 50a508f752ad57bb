"""Messages of hosts while tasks are mapped and resources are reserved.

A map grows as a chain of *stops*, the last stop first. A stop has a host, the number of placed components when the map
leaves the host, and the network over which it leaves. The remaining fields sum up the chain for the next host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Literal, TypeVar

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host, MappingTask

T = TypeVar("T")
Network = Literal["dedicated", "public", "control"]
DEDICATED: Final = "dedicated"
PUBLIC: Final = "public"
CONTROL: Final = "control"  # between any two hosts, for messages without a task's data


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Last visited host of a map, with the sums of the map when it leaves the host.

    ``empty``: hosts that only pass the map on, since a component was placed. ``public``, ``dedicated``: hops so far.
    ``links``: the sum of the links' costs. ``load``: the sum of the load factors of ``hosts`` hosts. ``seen`` has a bit
    for each host.
    """

    host: Host
    placed: int
    via: Network
    empty: int
    public: int
    dedicated: int
    links: float
    load: float
    hosts: int
    seen: int
    before: Stop | None

    def chain(self) -> Iterator[Stop]:
        """Yield the stops from the last to the first."""
        at: Stop | None = self
        while at is not None:
            yield at
            at = at.before


class Leg(msgspec.Struct, frozen=True):
    """Visit of a finished map. The host has the components ``first`` to before ``placed``, and sends the output over
    ``via`` to the next visit's host. The last visit sends nothing.
    """

    host: Host
    first: int
    placed: int
    via: Network


class FinishedMap(msgspec.Struct, frozen=True):
    """Finished map: the visits from source to sink, and the cost."""

    legs: tuple[Leg, ...]
    cost: float


class Map(msgspec.Struct, frozen=True, gc=False):
    """Map that the receiver may extend. ``number``: of the sender's maps of the task. ``spec``: the task, if the
    receiver may not know it.
    """

    task: int
    sender: Host
    number: int
    via: Network
    stop: Stop | None
    spec: MappingTask | None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Answer to the map ``number``. ``final``: the answering host has nothing left to do, and may forget the task."""

    task: int
    sender: Host
    number: int
    via: Network
    final: bool


class _Along(msgspec.Struct, Generic[T], frozen=True):
    """Message along the hosts of an attempt, visit by visit. ``task``: the specification, or the number of a known
    task. ``at``: the receiver's visit.
    """

    task: T
    attempt: int
    found: FinishedMap
    at: int


class ReservationProbe(_Along[MappingTask], frozen=True):
    """Request to reserve the needs of the visit, from the sink to the source."""


class Renew(_Along[MappingTask], frozen=True):
    """Request to prolong the leases of a running task, from the source to the sink."""


class Rollback(_Along[int], frozen=True):
    """Request to release the reservations of an attempt, from the host where it failed to the sink."""


class Release(_Along[int], frozen=True):
    """Report that the task is over, from the source to the sink."""


class _ToSource(msgspec.Struct, frozen=True):
    """Report to the source about an attempt that runs."""

    task: int
    attempt: int


class RenewalDone(_ToSource, frozen=True):
    """Report that the renewal is at the sink, so that every host on the path holds the needs of the task."""


class Broken(_ToSource, frozen=True):
    """Report that a host on the path can no longer carry the task."""


class Entry(msgspec.Struct, frozen=True):
    """Directory entry of a host: its services, and whether it is on the public network."""

    host: Host
    services: frozenset[int]
    public: bool
    version: int = 0


class DirectoryGossip(msgspec.Struct, frozen=True):
    """Entries that a host knows, of every host. ``answer``: only entries that the receiver's message lacked."""

    sender: Host
    entries: tuple[Entry, ...]
    answer: bool


Message = Map | Ack | DirectoryGossip | ReservationProbe | Rollback | Renew | RenewalDone | Broken | Release


class Transmit(msgspec.Struct, frozen=True, gc=False):
    """Command to send a message to a host over a network, after a wait."""

    to: Host
    via: Network
    wait_s: float
    message: Message


class TaskOutcome(msgspec.Struct, frozen=True):
    """Note about the state of a task, from the sink, or from the source (``running``, ``ended``).

    ``mapped``: the number of maps that arrived at the sink.
    """

    task: int
    state: Literal["mapped", "running", "admitted", "rejected", "ended"]
    attempt: int = 0
    found: FinishedMap | None = None
    mapped: int = 0
