"""What is said as operators, trees, queries, guests and hosts change while a run goes on."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import (
    INLINE_STATE_BYTES,
    BookState,
    ConsumerDemand,
    Demanded,
    Hops,
    Index,
    Location,
    Move,
    Name,
    NodeMessage,
    Peer,
    ProposalMessage,
    RoutePreference,
    RunMessage,
    Shape,
    Text,
    WireMessage,
)
from thalweg.middleware.protocol.installing import Install

# --- an operator changes hosts (core.moving.handover) -----------------------------------------


class Offer(NodeMessage, frozen=True):
    """Will you take ``node``, which has its ``version``-th placement here? Repeated, it asks how far you are."""


class Accept(NodeMessage, frozen=True):
    """Answer to Offer: the code of ``node`` is loaded here, there is room, and its state has not come."""


class Refuse(NodeMessage, frozen=True):
    """``node`` cannot run here, or not from that state, for the reason given; nothing is kept."""

    reason: Text


class State(NodeMessage, frozen=True):
    """``node`` between two partitions: it needs ``index`` next and was demanded ``demanded``, or what
    ``ConsumerDemand`` says.

    What ``snapshot()`` gave has ``size_bytes``; up to ``INLINE_STATE_BYTES`` it is ``inline`` in a control message,
    else the payload of a bulk message. ``tail`` is the host that keeps the last output until it is acknowledged, if
    any. ``book`` is the operator's epoch so far. With ``heir`` the operator goes nowhere: that one, which appears in
    another tree, takes over what it remembers.
    """

    index: Index
    demanded: Demanded | tuple[ConsumerDemand, ...]
    state_version: Index
    size_bytes: Index
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    tail: Annotated[str, msgspec.Meta(max_length=128)] = ""
    inline: Annotated[bytes, msgspec.Meta(max_length=INLINE_STATE_BYTES)] | None = None
    book: BookState | None = None
    heir: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Claim(RunMessage, frozen=True):
    """``heir``, which appears in another tree, waits for the state of ``node``, which has not come yet."""

    node: Name
    heir: Name


class Restored(NodeMessage, frozen=True):
    """``node`` is here with its state and waits for the word that it has moved."""


class Withdraw(NodeMessage, frozen=True):
    """``node`` stays where it is; forget the offer."""


class Resumed(NodeMessage, frozen=True):
    """``node`` runs here, by its placement after ``version``."""


class MoveRequest(NodeMessage, frozen=True, tag="Wish"):
    """To the client: ``node``, which is here, would be better on ``target``. It may be heard, or not."""

    target: Name


class Relocated(RunMessage, frozen=True):
    """To the client: what became of handing ``node`` over, and why it stayed if it did."""

    node: Name
    moved: bool
    location: Location
    why: Text = ""
    size_bytes: Index = 0


# --- all change over between two iterations (core.barrier.proposal) ----------------------------


class Propose(ProposalMessage, frozen=True):
    """From the client, passed on up the tree: sources suspend, hosts vote on these moves, or on another ``shape``.

    ``ways``: the networks between hosts from then on, the one that all share where none is given; None: as they were.
    """

    moves: tuple[Move, ...]
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Impassable(RunMessage, frozen=True):
    """To the client: what this host sends to ``target`` does not come over these hops, whatever their links carry."""

    target: Name
    hops: Hops


class Vote(ProposalMessage, frozen=True):
    """``host`` is ready for proposal ``number``, or not for the reason in ``error``.

    ``iteration``: the last partition that a source of this host has dispatched, -1 for none.
    """

    host: Name
    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    error: Text = ""


class Commit(ProposalMessage, frozen=True):
    """From the client to all: proposal ``number`` takes place after partition ``iteration``.

    ``ways``: the networks between hosts from then on; None: as they were.
    """

    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    moves: tuple[Move, ...]
    reason: Text = ""
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Abort(ProposalMessage, frozen=True):
    """From the client to all: proposal ``number`` is off, sources resume."""


class Retire(ProposalMessage, frozen=True):
    """From the client to all: all of the old tree's partitions are delivered; forget what is not in the new one."""


class Done(ProposalMessage, frozen=True):
    """``host`` is through with proposal ``number``; ``locations`` are those of the operators it handed over.

    Of another shape it says twice that it is: when it has both trees, and, ``retired``, when it has the new one only.
    """

    host: Name
    locations: tuple[Location, ...] = ()
    retired: bool = False


# --- another query begins, or one leaves (core.queries.query_attachment) ---------------------------------


class Detach(ProposalMessage, frozen=True):
    """From the client to all: no query uses ``nodes`` any more; forget them. Repeated until answered by Detached.

    ``guests``: other clients that take no more of the run's partitions.
    """

    nodes: tuple[Name, ...]
    guests: tuple[Name, ...] = ()


class Detached(ProposalMessage, frozen=True):
    """Answer to Detach, or to Admit: that is so here, but for ``error``."""

    error: Text = ""


# --- a sink of another client (core.queries.subscribers, core.queries.run_subscriptions) ---------------------


class Subscribe(RunMessage, frozen=True):
    """From another client: its subscription ``number`` wants the partitions of ``node``. Repeated while it lasts.

    Answered by InstallSubscriber, by Pong while it lasts, and by SubscriptionEnded when it does not.
    """

    number: Index
    node: Name
    peer: Peer


class AddMember(ProposalMessage, frozen=True, tag="Admit"):
    """From the client to all: this other client may have sinks in the run. Repeated until answered by Detached.

    ``host``: it is a host of the run from now on, to which operators may move.
    """

    peer: Peer
    host: bool = False


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


# --- hosts come and go (core.membership.membership) -----------------------------------------------


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
