"""Messages by which queries leave a run, and by which subscribers join and leave (``core.queries``)."""

from __future__ import annotations

from thalweg.middleware.protocol.fields import Index, Name, Peer, ProposalMessage, RunMessage, Text
from thalweg.middleware.protocol.hosting import Install


class Detach(ProposalMessage, frozen=True):
    """Request of the client to every host to forget ``nodes``, which no query uses any more.

    ``guests``: subscribers that take no more partitions of the run. Repeated until answered by Detached.
    """

    nodes: tuple[Name, ...]
    guests: tuple[Name, ...] = ()


class Detached(ProposalMessage, frozen=True):
    """Answer to Detach or AddMember: the host has done so. ``error``: the reason if the host could not."""

    error: Text = ""


class Subscribe(RunMessage, frozen=True):
    """Request of a subscriber for the partitions of ``node``, as subscription ``number``. Repeated while it lasts.

    The client answers with InstallSubscriber when the sink is in the run, and with Pong before. If the subscription is
    over or refused, the answer is SubscriptionEnded.
    """

    number: Index
    node: Name
    peer: Peer


class InstallSubscriber(RunMessage, frozen=True, tag="Enrol"):
    """Invitation of a subscriber to the run. Node ``sink`` is the sink of the subscription ``number``.

    ``install``: the present state of the run. Repeated until answered by Installed.
    """

    number: Index
    sink: Name
    install: Install


class Unsubscribe(RunMessage, frozen=True):
    """Request of a subscriber to end subscription ``number``. Repeated until answered by SubscriptionEnded."""

    number: Index


class SubscriptionEnded(RunMessage, frozen=True, tag="Dismiss"):
    """Report to a subscriber that subscription ``number`` is over or unknown, with the reason.

    Number 0: the run is over, and with it every subscription of the subscriber.
    """

    number: Index
    why: Text = ""
