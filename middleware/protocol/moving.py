"""Messages by which an operator moves to another host (``core.moving``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Count, Demanded, Index, Location, Name, NodeMessage, RunMessage, Text
from thalweg.middleware.protocol.states import StateMessage


class BookState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Counts of an operator's epoch (``epochs.EpochBook``), which move with the operator.

    Raises ValueError (on decoding, msgspec.ValidationError) for impossible counts.
    """

    round: Count
    sends: Count
    later: Count
    unmarked: bool
    last: Annotated[int, msgspec.Meta(ge=-1)]
    mostly_later: bool
    consumer_critical: bool

    def __post_init__(self) -> None:
        if self.later > self.sends or (self.unmarked and self.last < 0):
            raise ValueError(f"a book cannot have {self.later} of {self.sends} sends later, the last {self.last}")


class ConsumerDemand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Last demand of a consumer to an operator that moves, and the counts of the operator's epoch for the consumer."""

    consumer: Name
    demanded: Demanded
    book: BookState | None = None


class Offer(NodeMessage, frozen=True):
    """Offer of ``node`` in its ``version``-th placement to a host. Repeated, it asks for the host's progress."""


class Accept(NodeMessage, frozen=True):
    """Answer to ``Offer``: the sender has the code of ``node`` and room for the node, but not the state."""


class Refuse(NodeMessage, frozen=True):
    """Refusal of ``node``, which cannot run on the sender, or not with the sent state. The sender keeps nothing."""

    reason: Text


class State(StateMessage, frozen=True):
    """State of an operator that moves, and the demands of the operator's consumers.

    ``tail``: host that keeps the operator's last output until the output is acknowledged. Empty: no output is kept.
    """

    demanded: tuple[ConsumerDemand, ...] = ()
    tail: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Restored(NodeMessage, frozen=True):
    """Report that ``node`` is restored on the sender, and waits for the commit of the move."""


class Withdraw(NodeMessage, frozen=True):
    """Withdrawal of the offer of ``node``, which stays on its host."""


class Resumed(NodeMessage, frozen=True):
    """Report that ``node`` runs on the sender, by the placement after ``version``."""


class MoveRequest(NodeMessage, frozen=True, tag="Wish"):
    """Request to the client to move ``node`` from the sender to ``target``. The client may ignore the request."""

    target: Name


class Relocated(RunMessage, frozen=True):
    """Report to the client on the end of a hand-over of ``node``. ``why``: the reason, if the operator has stayed."""

    node: Name
    moved: bool
    location: Location
    why: Text = ""
    size_bytes: Index = 0
