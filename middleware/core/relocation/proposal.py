"""A proposal of the barrier, as the client sees it and as every host does: the states, and what moves between them.

``PROPOSAL`` is the client's side, ``MEMBER`` every host's (the client is a host, too). The rules are the barrier's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from thalweg.middleware.core.machine import Machine
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.protocol import messages as m


class ProposalState(StrEnum):
    PROPOSED = "proposed"
    COMMITTED = "committed"
    RETIRING = "retiring"  # another shape: the old tree is drained
    ABORTED = "aborted"
    OVER = "over"


class ProposalEvent(StrEnum):
    AGREED = "all agreed"
    REFUSED = "refused"
    EXPIRED = "expired"
    LOST = "host lost"
    DRAINED = "drained"  # all have both trees, and the sink has all of the old one's partitions
    DONE = "all done"


PROPOSAL: dict[tuple[ProposalState, ProposalEvent], ProposalState] = {
    (ProposalState.PROPOSED, ProposalEvent.AGREED): ProposalState.COMMITTED,
    (ProposalState.PROPOSED, ProposalEvent.REFUSED): ProposalState.ABORTED,
    (ProposalState.PROPOSED, ProposalEvent.EXPIRED): ProposalState.ABORTED,
    (ProposalState.PROPOSED, ProposalEvent.LOST): ProposalState.ABORTED,
    (ProposalState.COMMITTED, ProposalEvent.DONE): ProposalState.OVER,
    (ProposalState.COMMITTED, ProposalEvent.DRAINED): ProposalState.RETIRING,
    (ProposalState.RETIRING, ProposalEvent.DONE): ProposalState.OVER,
    (ProposalState.ABORTED, ProposalEvent.DONE): ProposalState.OVER,
}


class MemberState(StrEnum):
    FREE = "free"
    PREPARING = "preparing"  # suspended; code is being loaded
    VOTED = "voted"  # suspended
    SWITCHING = "switching"  # operators are being handed over
    BOTH = "both trees"


class MemberEvent(StrEnum):
    PROPOSED = "proposed"
    READY = "ready"
    UNABLE = "unable"
    COMMITTED = "committed"
    RESHAPED = "shape committed"
    ABORTED = "aborted"
    SETTLED = "settled"
    RETIRED = "retired"


MEMBER: dict[tuple[MemberState, MemberEvent], MemberState] = {
    (MemberState.FREE, MemberEvent.PROPOSED): MemberState.PREPARING,
    (
        MemberState.FREE,
        MemberEvent.COMMITTED,
    ): MemberState.SWITCHING,  # it had no vote, or has not heard of the proposal
    (MemberState.PREPARING, MemberEvent.READY): MemberState.VOTED,
    (MemberState.PREPARING, MemberEvent.UNABLE): MemberState.FREE,
    (MemberState.PREPARING, MemberEvent.ABORTED): MemberState.FREE,
    (MemberState.VOTED, MemberEvent.COMMITTED): MemberState.SWITCHING,
    (MemberState.VOTED, MemberEvent.ABORTED): MemberState.FREE,
    (MemberState.SWITCHING, MemberEvent.SETTLED): MemberState.FREE,
    (MemberState.FREE, MemberEvent.RESHAPED): MemberState.BOTH,
    (MemberState.VOTED, MemberEvent.RESHAPED): MemberState.BOTH,
    (MemberState.BOTH, MemberEvent.RETIRED): MemberState.FREE,
}


class Proposal(Machine):
    """A proposal as the client sees it."""

    TABLE = PROPOSAL
    state: ProposalState

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
        self.state = ProposalState.PROPOSED
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
        return "committed" if self.state in (ProposalState.COMMITTED, ProposalState.RETIRING) else "aborted"

    def __repr__(self) -> str:
        return f"proposal {self.number}, {self.state}"


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
        self.change: Proposal | None = None
        self.next: Wish | None = None
        self.delivered_s: float | None = None  # when the application last got something


class Membership(Machine):
    """A host's side of one run."""

    TABLE = MEMBER
    state: MemberState

    def __init__(self) -> None:
        self.state = MemberState.FREE
        self.number = 0  # of the proposal it is in, or was in last
        self.moves: tuple[m.Move, ...] = ()
        self.error = ""  # why it has voted against it

    def __repr__(self) -> str:
        return f"proposal {self.number}, {self.state}"


class Switch(msgspec.Struct, frozen=True):
    """Where operators are for partitions after ``iteration``, unless a newer location than the moves' is known."""

    iteration: int
    moves: dict[str, m.Move]
    commit: m.Commit
