"""Notes: messages from a part of a run to the parts above it. A part calls the parts below it.

A part lists in its ``HANDLERS`` the notes that it handles, and ``PARTS`` in ``hosting.runs`` gives the order of the
parts. A note is handled where a part yields it, before that part goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.middleware.network.view import Latency, Link, LinkEstimate
from thalweg.middleware.protocol import messages as m


class Note(msgspec.Struct, frozen=True, gc=False):
    """Base of the notes."""


Notes = Iterable[Note]


class PartitionDelivered(Note, frozen=True):
    """Delivery of a partition of the first sink to the application."""


class Light(Note, frozen=True):
    """Light operator ``node``: the operator is to leave, and is between two partitions now."""

    node: str


class Ended(Note, frozen=True):
    """End of the stream of ``node``."""

    node: str


class OutputMade(Note, frozen=True):
    """Partition ``index``, made by ``node`` after ``size_bytes`` of inputs since the last note of this kind.

    The note is yielded while there are two trees, and in a run with failover when a report is due.
    """

    node: str
    index: int = -1
    size_bytes: int = 0


class OperatorLocated(Note, frozen=True):
    """Location of an operator, as ``sender`` reports it.

    ``sender`` is this host itself if the location is new here and came within another message.
    """

    entry: m.Location
    sender: str


class Misplaced(Note, frozen=True):
    """Wrong location that ``sender`` has for an operator of this host: another host, with a version not known here."""

    entry: m.Location
    sender: str


class HandoverFinished(Note, frozen=True):
    """End of a hand-over from this host. ``number``: of the proposal, 0 for none."""

    number: int


class HandedOver(Note, frozen=True):
    """At the client: result of a hand-over, reported by ``sender``. ``why``: the reason if the operator has stayed."""

    sender: str
    location: m.Location
    moved: bool
    why: str


class Prepared(Note, frozen=True):
    """Progress in preparing a proposal: the code of an operator is loaded, or an operator is no longer to come."""


class Unprepared(Note, frozen=True):
    """Obstacle to proposal ``number``: an operator that is to come cannot run on this host."""

    number: int
    why: str


class Merged(Note, frozen=True):
    """Merge of the states that a new operator takes over, now complete."""


class ChangedOver(Note, frozen=True):
    """At the client: end of a proposal, whatever its outcome."""


class Left(Note, frozen=True):
    """At the client: last answer to a message about queries, guests or a joining host. Every host knows of them now."""


class Invited(Note, frozen=True):
    """At the client: request of another client for query ``query`` in the run."""

    query: int


class Leaving(Note, frozen=True):
    """At the client: request to end query ``query`` of another client, or to cancel the query before it begins."""

    query: int


class Vacating(Note, frozen=True):
    """At the client: request to move the operators of ``host`` to other hosts."""

    host: str


class Refused(Note, frozen=True):
    """At the client: refusal of ``host`` to let another client in."""

    host: str
    why: str


class NotJoined(Note, frozen=True):
    """At the client: failure of a host to join the run, which it was asked to join while the run goes on."""

    peer: m.Peer


class Started(Note, frozen=True):
    """At the client: installation of the run on every host that is needed."""


class HostInstalled(Note, frozen=True):
    """At the client: answer of a host to ``Install``. The host has taken its part in the run, or cannot."""

    host: str
    message: m.Installed


class HostTakesPart(Note, frozen=True):
    """At the client: start of the part of ``host`` in the run. The client counts it among the hosts of the run."""

    host: str


class HostLost(Note, frozen=True):
    """Loss of ``host`` for good. ``how``: the reason for the application of a guest, as "has been silent for 15 s"."""

    host: str
    how: str = "was lost"


class HostsPinged(Note, frozen=True):
    """At the client: ping of the hosts of the run, which asks for signs of life."""


class LinkMeasured(Note, frozen=True):
    """Estimate of a link that a probe has measured."""

    link: Link
    estimate: LinkEstimate


class LatencyMeasured(Note, frozen=True):
    """Latency of a link, known after a request."""

    link: Link
    latency: Latency
