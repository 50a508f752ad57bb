"""What a part of a run tells those above it: a part calls what lies below, and yields notes to what lies above.

Each part says in its ``HANDLERS`` which notes it hears, and ``PARTS`` in ``hosting.runs`` gives the order. A note is
heard where it is yielded, before its part goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.middleware.network.view import Latency, Link, LinkEstimate
from thalweg.middleware.protocol import messages as m


class Note(msgspec.Struct, frozen=True, gc=False):
    """Base of all notes."""


Notes = Iterable[Note]


class PartitionDelivered(Note, frozen=True):
    """The application has got a partition."""


class Light(Note, frozen=True):
    """Operator ``node``, which is to leave, is between two partitions."""

    node: str


class Ended(Note, frozen=True):
    """The stream of ``node`` is over."""

    node: str


class OutputMade(Note, frozen=True):
    """``node`` has made partition ``index``: while there are two trees, or, where the run outlives its hosts, when that
    is due. It has taken ``size_bytes`` of inputs since that was said last.
    """

    node: str
    index: int = -1
    size_bytes: int = 0


class OperatorLocated(Note, frozen=True):
    """``sender`` says where an operator is; this host itself where that rode on a message and is new."""

    entry: m.Location
    sender: str


class Misplaced(Note, frozen=True):
    """``sender`` says, with a newer version than this host knows, that an operator of this host is on another one."""

    entry: m.Location
    sender: str


class HandoverFinished(Note, frozen=True):
    """A hand-over from here is over, which was of proposal ``number``, 0 for none."""

    number: int


class HandedOver(Note, frozen=True):
    """At the client: ``sender`` says what became of handing an operator over, and ``why`` it stayed if it did."""

    sender: str
    location: m.Location
    moved: bool
    why: str


class Prepared(Note, frozen=True):
    """What may come here by a proposal has its code loaded, or some of it."""


class Unprepared(Note, frozen=True):
    """What would come by proposal ``number`` cannot run here."""

    number: int
    why: str


class Merged(Note, frozen=True):
    """An operator that has appeared has the states that it takes over."""


class ChangedOver(Note, frozen=True):
    """At the client: a proposal is over, whatever became of it."""


class Left(Note, frozen=True):
    """At the client: every host knows that a query has left."""


class Invited(Note, frozen=True):
    """At the client: another one wants to have query ``query`` in the run."""

    query: int


class Leaving(Note, frozen=True):
    """At the client: a query of another one is to leave, or not to begin."""

    query: int


class Vacating(Note, frozen=True):
    """At the client: what is on ``host`` is to move away from there."""

    host: str


class Refused(Note, frozen=True):
    """At the client: ``host`` does not let another client in."""

    host: str
    why: str


class NotJoined(Note, frozen=True):
    """At the client: a host was asked to join the run while it goes on, and did not take its part."""

    peer: m.Peer


class Started(Note, frozen=True):
    """At the client: every host that is needed has installed the run."""


class HostInstalled(Note, frozen=True):
    """At the client: a host has taken its part in the run, or cannot."""

    host: str
    message: m.Installed


class HostTakesPart(Note, frozen=True):
    """At the client: a host of the run has its part in it, as all others know by now."""

    host: str


class HostLost(Note, frozen=True):
    """``host`` is gone for good. ``how``: the reason for a guest's application, as "has been silent for 15 s"."""

    host: str
    how: str = "was lost"


class HostsPinged(Note, frozen=True):
    """At the client: the hosts of the run have been asked whether they are there."""


class LinkMeasured(Note, frozen=True):
    """A probe has measured a link."""

    link: Link
    estimate: LinkEstimate


class LatencyMeasured(Note, frozen=True):
    """The latency of a link that was asked for is known."""

    link: Link
    latency: Latency
