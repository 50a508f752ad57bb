"""A proposal of the barrier, as the client sees it and as every host does: the states, and what moves between them.

``CHANGE`` is the client's side, ``MEMBER`` every host's (the client is a host, too). The rules are the barrier's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from thalweg.middleware.core.flow.node import InvalidTransition
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.protocol import messages as m


class Phase(StrEnum):
    PROPOSED = "proposed"
    COMMITTED = "committed"
    RETIRING = "retiring"  # another shape: the old tree is drained
    ABORTED = "aborted"
    OVER = "over"


class News(StrEnum):
    AGREED = "all agreed"
    REFUSED = "refused"
    EXPIRED = "expired"
    LOST = "host lost"
    DRAINED = "drained"  # all have both trees, and the sink has all of the old one's partitions
    DONE = "all done"


CHANGE: dict[tuple[Phase, News], Phase] = {
    (Phase.PROPOSED, News.AGREED): Phase.COMMITTED,
    (Phase.PROPOSED, News.REFUSED): Phase.ABORTED,
    (Phase.PROPOSED, News.EXPIRED): Phase.ABORTED,
    (Phase.PROPOSED, News.LOST): Phase.ABORTED,
    (Phase.COMMITTED, News.DONE): Phase.OVER,
    (Phase.COMMITTED, News.DRAINED): Phase.RETIRING,
    (Phase.RETIRING, News.DONE): Phase.OVER,
    (Phase.ABORTED, News.DONE): Phase.OVER,
}


class Part(StrEnum):
    FREE = "free"
    PREPARING = "preparing"  # suspended; code is being loaded
    VOTED = "voted"  # suspended
    SWITCHING = "switching"  # operators are being handed over
    BOTH = "both trees"


class Word(StrEnum):
    PROPOSED = "proposed"
    READY = "ready"
    UNABLE = "unable"
    COMMITTED = "committed"
    RESHAPED = "shape committed"
    ABORTED = "aborted"
    SETTLED = "settled"
    RETIRED = "retired"


MEMBER: dict[tuple[Part, Word], Part] = {
    (Part.FREE, Word.PROPOSED): Part.PREPARING,
    (Part.FREE, Word.COMMITTED): Part.SWITCHING,  # it had no vote, or has not heard of the proposal
    (Part.PREPARING, Word.READY): Part.VOTED,
    (Part.PREPARING, Word.UNABLE): Part.FREE,
    (Part.PREPARING, Word.ABORTED): Part.FREE,
    (Part.VOTED, Word.COMMITTED): Part.SWITCHING,
    (Part.VOTED, Word.ABORTED): Part.FREE,
    (Part.SWITCHING, Word.SETTLED): Part.FREE,
    (Part.FREE, Word.RESHAPED): Part.BOTH,
    (Part.VOTED, Word.RESHAPED): Part.BOTH,
    (Part.BOTH, Word.RETIRED): Part.FREE,
}


class Change:
    """A proposal as the client sees it."""

    def __init__(
        self,
        number: int,
        moves: tuple[m.Move, ...],
        voters: set[str],
        reason: str,
        now: float,
        shape: m.Shape | None = None,
    ) -> None:
        self.number, self.moves, self.reason, self.shape = number, moves, reason, shape
        self.phase = Phase.PROPOSED
        self.waiting = voters  # for their votes, then for all hosts to be done
        self.iteration = -1
        self.begun_s = now
        self.why = ""
        self.phases_s: dict[str, float] = {"proposed": now}
        self.drained_s: float | None = None  # when the sink had got the change-over iteration
        self.trees: dict[str, Any] = {}  # of another shape, for the records
        self.then: dict[str, str] = {}  # where operators that stay in another shape are to go when it is there

    @property
    def outcome(self) -> str:
        """What it has come to so far, for the records."""
        return "committed" if self.phase in (Phase.COMMITTED, Phase.RETIRING) else "aborted"

    def move(self, news: News) -> None:
        try:
            self.phase = CHANGE[self.phase, news]
        except KeyError:
            raise InvalidTransition(f"proposal {self.number}, {self.phase}: {news}") from None


class Wish(msgspec.Struct, frozen=True):
    """A placement that waits for the end of the present proposal."""

    placement: dict[str, str]
    reason: str
    dataflow: Dataflow | None = None  # another tree
    free: tuple[Code, ...] = ()


class Proposer:
    """The client's side of one run."""

    def __init__(self) -> None:
        self.count = 0
        self.change: Change | None = None
        self.next: Wish | None = None
        self.delivered_s: float | None = None  # when the application last got something


class Membership:
    """A host's side of one run."""

    def __init__(self) -> None:
        self.part = Part.FREE
        self.number = 0  # of the proposal it is in, or was in last
        self.moves: tuple[m.Move, ...] = ()
        self.error = ""  # why it has voted against it

    def move(self, word: Word) -> None:
        try:
            self.part = MEMBER[self.part, word]
        except KeyError:
            raise InvalidTransition(f"proposal {self.number}, {self.part}: {word}") from None


class Switch(msgspec.Struct, frozen=True):
    """Where operators are for partitions after ``iteration``, unless a newer location than the moves' is known."""

    iteration: int
    moves: dict[str, m.Move]
    commit: m.Commit
