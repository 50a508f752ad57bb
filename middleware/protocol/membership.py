"""Messages by which hosts and subscribers come and go (``core.membership``)."""

from __future__ import annotations

from thalweg.middleware.protocol.fields import Peer, ProposalMessage, RunMessage, Text, WireMessage


class AddMember(ProposalMessage, frozen=True, tag="Admit"):
    """From the client to all: this other client may have sinks in the run. Repeated until answered by Detached.

    ``host``: it is a host of the run from now on, to which operators may move.
    """

    peer: Peer
    host: bool = False


class Enlist(WireMessage, frozen=True):
    """From a host to a client, again and again: ``peer`` is here, and takes part if it is wanted."""

    peer: Peer


class Drain(WireMessage, frozen=True):
    """To a host: let all operators move away, and end. Answered by Drained, once."""


class Drained(WireMessage, frozen=True):
    """Answer to Drain: nothing is here any more, and the host ends; or it stays, and why."""

    why: Text = ""


class Leave(RunMessage, frozen=True):
    """To the client: this host is to have no part in the run any more. Repeated until answered by Remove, or by Stay.

    ``empty``: no node is here, and no output that somebody may ask for.
    """

    empty: bool


class Stay(RunMessage, frozen=True):
    """Answer to Leave: that cannot be, and why."""

    why: Text
