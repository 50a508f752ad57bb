"""All operators of a new placement change over together, between two iterations (Ranganathan et al., section 2.2).

Rules of the barrier:

R1. The client proposes moves; the proposal goes up the tree, from consumers to producers, and straight to all who have
    a vote: an operator may just be between two hosts, and it is the sooner there. On first seeing it a host's sources
    suspend: they dispatch nothing new. Every host that hears of it votes, and those with sources, or that operators
    leave or come to, are waited for; a vote for it tells the last partition the host's sources have dispatched.
R2. When all have voted for it, the client commits the highest of these as the change-over iteration: no node can have
    dispatched a later one. Every host then sends what concerns later partitions to the new places, and each operator
    is handed over (``handover``) when it has dispatched that partition. Sources resume. The commit also rides on the
    first partition after the change-over, so that no host works on that before it knows.
R3. One vote against it, a host that goes away, or no complete vote in time, and the client aborts: everybody resumes,
    nothing has moved. The client's word is final either way, and repeated until every host says it is done.
R4. Proposals have increasing numbers, and only the client's count. One at a time: a later one waits for the end of the
    present one, and takes the place of another that waits.
R5. A hand-over that fails after the commit leaves that one operator where it was; its new location says so.
R6. Instead of moves a proposal may be another shape (``reshaping``). All hosts with operators, and those on which some
    appear, vote on it, so none is being handed over. Committed, every host has both trees; when all have them, and the
    sink has got the change-over iteration, the client has all hosts retire the old one. It is over when they have, and
    a partition has come through the new one: however fast shapes change, partitions come.

R7. A shape may also be another query's nodes beside all others (``query_attachment``): there is nothing to drain then,
    and nobody is hindered from being handed over. It says what code is loaded, so it counts only where the client
    itself says it.
R8. Guests, which have sinks only, are told what takes place as all are, and vote on nothing but the sinks they get. One
    that leaves is not waited for, and one that has not answered for ``liveness_s``, times ``patience``, is lost.
R9. The change-over iteration is never before the first partition of a query: the source that was ahead of all others
    when that was agreed on may have left since, and its nodes can be no further back.
R10. A host joins (``membership``) while nothing is proposed and everybody knows who has left: it is told the run as it
    is. Hosts go before queries and placements, but for those that wait when a host has failed to join: these go before
    the next host.
R11. What is on a host that is to leave moves like all else, by a proposal, again and again until nothing is there.
     Who has refused some of it is not asked again; where all have, it has to stay (``Stay``).
R12. With moves, a shape, or alone, a proposal may name other networks between hosts (``ways``): they count from the
    partition after the change-over on. Alone it moves nothing, and is over when all hosts have heard of it.
R13. Where operators have gone on from a generation before (``carried_over``), none can change over at a partition that
    it has got; another shape, or a query, waits until all are where the furthest was. It also waits where nodes begin
    anew with different partitions, as their replicas are of different age: a node that is behind serves the consumers
    of the tree that it began in.
R14. A host that has not answered for ``liveness_s``, times ``patience``, what needs no more than to be heard, is lost,
    whatever else it says: a word that ended a proposal without moves, or who joins or leaves. It would keep all later
    changes waiting.

``PROPOSAL`` is the client's side (``proposer``), ``MEMBER`` every host's (``member``; the client is a host, too).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from thalweg.middleware.core.context.machine import Machine, Term
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.protocol import messages as m


class ProposalState(Term):
    PROPOSED = "proposed"
    COMMITTED = "committed"
    RETIRING = "retiring"  # another shape: the old tree is drained
    ABORTED = "aborted"
    OVER = "over"


class ProposalEvent(Term):
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


class MemberState(Term):
    FREE = "free"
    PREPARING = "preparing"  # suspended; code is being loaded
    VOTED = "voted"  # suspended
    SWITCHING = "switching"  # operators are being handed over
    BOTH = "both trees"


class MemberEvent(Term):
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
    (MemberState.FREE, MemberEvent.COMMITTED): MemberState.SWITCHING,  # it had no vote, or has not heard of it
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


@dataclass(eq=False, repr=False)
class Proposal(Machine):
    """A proposal as the client sees it."""

    TABLE = PROPOSAL

    number: int
    moves: tuple[m.Move, ...]
    waiting: set[str]  # for their votes, then for all hosts to be done
    reason: str
    begun_s: float
    shape: m.Shape | None = None
    state: ProposalState = ProposalState.PROPOSED
    iteration: int = -1
    why: str = ""
    phases_s: dict[str, float] = field(default_factory=dict)
    drained_s: float | None = None  # when the sink had got the change-over iteration
    trees: dict[str, Any] = field(default_factory=dict)  # of another shape, for the records
    query: QueryToStart | None = None  # that begins with it
    names: dict[str, str] = field(default_factory=dict)  # of the query's nodes in the run
    ways: tuple[m.RoutePreference, ...] | None = None  # that there are to be between hosts
    then: dict[str, str] = field(default_factory=dict)  # where operators of another shape are to go when it is there
    asked: ApplicationRequest | None = None  # by the application, which is told what becomes of it
    stayed: dict[str, str] = field(default_factory=dict)  # operators whose hosts say that they stay, and why

    def __post_init__(self) -> None:
        self.phases_s["proposed"] = self.begun_s

    @property
    def outcome(self) -> str:
        """What it has come to so far, for the records."""
        return "committed" if self.state in (ProposalState.COMMITTED, ProposalState.RETIRING) else "aborted"

    @property
    def is_answered_at_once(self) -> bool:
        """R14: return whether a host needs no more than to hear how it ended, to be done."""
        return self.state is ProposalState.ABORTED or (
            self.state is ProposalState.COMMITTED and not self.moves and not self.reshapes
        )

    @property
    def reshapes(self) -> bool:
        """Whether another tree begins with it."""
        return self.shape is not None and self.query is None

    def __repr__(self) -> str:
        return f"proposal {self.number}, {self.state}"


class QueryToStart(msgspec.Struct, frozen=True):
    """A query that is to begin: its number, its graph in names of its own, and where its nodes are to be.

    ``apart``: those that it does not share, though the run has the same, and how far away that is. It begins with
    partition ``since`` at the earliest. Of a guest's the number, below 0, tells it all.
    """

    number: int
    dataflow: Dataflow = Dataflow()
    placement: dict[str, str] = {}
    apart: dict[str, float] = {}
    since: int = 0


class ApplicationRequest(msgspec.Struct, frozen=True):
    """A request of the application, by its number.

    ``index`` and ``moved``: the result of the first step, of a request that takes two steps.
    """

    number: int
    index: int | None = None
    moved: dict[str, str] = {}


class WaitingPlacement(msgspec.Struct, frozen=True):
    """A placement that waits for the end of the present proposal."""

    placement: dict[str, str]
    reason: str
    dataflow: Dataflow | None = None  # another tree
    free: tuple[Code, ...] = ()
    ways: tuple[m.RoutePreference, ...] | None = None  # other networks between hosts
    asked: ApplicationRequest | None = None
