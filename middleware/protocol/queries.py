"""Messages by which queries leave, and by which other clients subscribe (``core.queries``)."""

from __future__ import annotations

from thalweg.middleware.protocol.fields import Index, Name, Peer, ProposalMessage, RunMessage, Text
from thalweg.middleware.protocol.hosting import Install


class Detach(ProposalMessage, frozen=True):
    """From the client to all: no query uses ``nodes`` any more; forget them. Repeated until answered by Detached.

    ``guests``: other clients that take no more of the run's partitions.
    """

    nodes: tuple[Name, ...]
    guests: tuple[Name, ...] = ()


class Detached(ProposalMessage, frozen=True):
    """Answer to Detach, or to Admit: that is so here, but for ``error``."""

    error: Text = ""


class Subscribe(RunMessage, frozen=True):
    """From another client: its subscription ``number`` wants the partitions of ``node``. Repeated while it lasts.

    Answered by InstallSubscriber, by Pong while it lasts, and by SubscriptionEnded when it does not.
    """

    number: Index
    node: Name
    peer: Peer


class InstallSubscriber(RunMessage, frozen=True, tag="Enrol"):
    """To another client: the run as it is, in which ``sink`` is to be for its subscription ``number``.

    Repeated until answered by Installed.
    """

    number: Index
    sink: Name
    install: Install


class Unsubscribe(RunMessage, frozen=True):
    """From another client: its subscription ``number`` is over. Repeated until answered by SubscriptionEnded."""

    number: Index


class SubscriptionEnded(RunMessage, frozen=True, tag="Dismiss"):
    """To another client: its subscription ``number`` is over, or there is none, and why; 0: all are, with the run."""

    number: Index
    why: Text = ""
