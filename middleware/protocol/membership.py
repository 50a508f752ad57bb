"""Messages by which hosts and subscribers join and leave a run (``core.membership``)."""

from __future__ import annotations

from thalweg.middleware.protocol.fields import Peer, ProposalMessage, RunMessage, Text, WireMessage


class AddMember(ProposalMessage, frozen=True, tag="Admit"):
    """Report of the client to all hosts that subscriber ``peer`` may have sinks in the run.

    ``host``: the peer is a new host of the run, to which operators may move. Repeated until answered by Detached.
    """

    peer: Peer
    host: bool = False


class Enlist(WireMessage, frozen=True):
    """Repeated offer of a host to a client: ``peer`` is here, and takes part if the client needs it."""

    peer: Peer


class Drain(WireMessage, frozen=True):
    """Request to a host to let all operators move away, and to end. Answered by Drained, once."""


class Drained(WireMessage, frozen=True):
    """Answer to Drain: the host holds nothing more and ends. ``why``: the reason if the host stays."""

    why: Text = ""


class Leave(RunMessage, frozen=True):
    """Request to the client for the release of this host from the run. Repeated until answered by Remove or Stay.

    ``empty``: the host has no node, and no output that may be demanded.
    """

    empty: bool


class Stay(RunMessage, frozen=True):
    """Answer to Leave: the host cannot leave the run, for the reason ``why``."""

    why: Text
