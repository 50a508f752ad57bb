"""Messages by which an operator changes hosts (``core.moving``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Count, Demanded, Index, Location, Name, NodeMessage, RunMessage, Text
from thalweg.middleware.protocol.states import StateMessage


class BookState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Counts of an operator's epoch (``epochs.EpochBook``), which it takes along when it moves.

    Raises ValueError (on decoding, msgspec.ValidationError) for counts that cannot be.
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
    """What a consumer has demanded of an operator that moves, and the operator's epoch so far for it."""

    consumer: Name
    demanded: Demanded
    book: BookState | None = None


class Offer(NodeMessage, frozen=True):
    """Will you take ``node``, which has its ``version``-th placement here? Repeated, it asks how far you are."""


class Accept(NodeMessage, frozen=True):
    """Answer to Offer: the code of ``node`` is loaded here, there is room, and its state has not come."""


class Refuse(NodeMessage, frozen=True):
    """``node`` cannot run here, or not from that state, for the reason given; nothing is kept."""

    reason: Text


class State(StateMessage, frozen=True):
    """State of an operator that moves, and the demands of its consumers.

    ``tail``: the host that keeps the operator's last output until it is acknowledged, if any.
    """

    demanded: tuple[ConsumerDemand, ...] = ()
    tail: Annotated[str, msgspec.Meta(max_length=128)] = ""


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
