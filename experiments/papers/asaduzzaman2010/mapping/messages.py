"""What hosts say to each other while tasks are mapped and resources reserved.

A map grows as a chain of *stops*, the last first: a host, how many components are placed when the map leaves it, and
over which network it does. The rest of a stop sums up the chain, so that the next host need not walk it.
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
CONTROL: Final = "control"  # between any two hosts, for what no task's data takes


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Where a map has been last, and what it comes to on leaving.

    ``empty``: hosts since a component was placed that only pass it on. ``public``, ``dedicated``: hops so far.
    ``links``: the sum of the links' costs. ``load``: the sum of the load factors of ``hosts`` hosts, ``seen`` has a bit
    for each.
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
        """From the last stop to the first."""
        at: Stop | None = self
        while at is not None:
            yield at
            at = at.before


class Leg(msgspec.Struct, frozen=True):
    """A visit of a finished map: the components ``first`` to before ``placed`` are on the host, which sends their
    output on ``via`` a network to the next visit's host (the last visit: to nobody)."""

    host: Host
    first: int
    placed: int
    via: Network


class FinishedMap(msgspec.Struct, frozen=True):
    """A finished map: its visits from source to sink, and what it costs."""

    legs: tuple[Leg, ...]
    cost: float


class Map(msgspec.Struct, frozen=True, gc=False):
    """A map that its receiver may extend; ``number``: the sender's of this task. ``spec``: where the receiver may not
    know it."""

    task: int
    sender: Host
    number: int
    via: Network
    stop: Stop | None
    spec: MappingTask | None


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The answer to the map of that number; ``final``: and its sender has nothing more to do, and may forget."""

    task: int
    sender: Host
    number: int
    via: Network
    final: bool


class _Along(msgspec.Struct, Generic[T], frozen=True):
    """To the hosts of an attempt, visit by visit; ``task``: what it needs, or the number of one that they know; ``at``:
    the receiver's visit."""

    task: T
    attempt: int
    found: FinishedMap
    at: int


class ReservationProbe(_Along[MappingTask], frozen=True):
    """To reserve what the visit needs; it goes from the sink to the source."""


class Renew(_Along[MappingTask], frozen=True):
    """The task runs, or goes on: leases are prolonged; it goes from the source to the sink."""


class Rollback(_Along[int], frozen=True):
    """What was reserved for an attempt is to be released; it goes from where that failed to the sink."""


class Release(_Along[int], frozen=True):
    """The task is over; it goes from the source to the sink."""


class _ToSource(msgspec.Struct, frozen=True):
    """Of an attempt that runs."""

    task: int
    attempt: int


class RenewalDone(_ToSource, frozen=True):
    """The sink has the renewal: every host on the way has what it needs."""


class Broken(_ToSource, frozen=True):
    """A host on the way cannot carry the task any more."""


class Entry(msgspec.Struct, frozen=True):
    """What a host says of itself: its services, and whether it is on the public network."""

    host: Host
    services: frozenset[int]
    public: bool
    version: int = 0


class DirectoryGossip(msgspec.Struct, frozen=True):
    """What a host knows of others and of itself; ``answer``: which its receiver does not, as far as its own showed."""

    sender: Host
    entries: tuple[Entry, ...]
    answer: bool


Message = Map | Ack | DirectoryGossip | ReservationProbe | Rollback | Renew | RenewalDone | Broken | Release


class Transmit(msgspec.Struct, frozen=True, gc=False):
    """A command: a message for a host over a network, after it has waited."""

    to: Host
    via: Network
    wait_s: float
    message: Message


class TaskOutcome(msgspec.Struct, frozen=True):
    """A note: what the sink, or (``running``) the source, knows to have become of a task.

    ``mapped``: how many maps the sink was told of.
    """

    task: int
    state: Literal["mapped", "running", "admitted", "rejected", "ended"]
    attempt: int = 0
    found: FinishedMap | None = None
    mapped: int = 0
