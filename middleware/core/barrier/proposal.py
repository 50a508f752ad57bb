"""Barrier: rules and states of a change-over of a whole run between two iterations (Ranganathan et al., section 2.2).

Rules:

R1. The client sends a proposal to the hosts that vote, and to the hosts of the operators below the sinks. From there
    the proposal goes up the tree, from consumers to producers. Voters get the proposal directly, because an operator
    may be between two hosts, and because this is faster. A host that receives the proposal suspends its sources, which
    then dispatch nothing new, and votes. The client waits for the votes of hosts with sources, and of the old and new
    hosts of moving operators. A vote in favour has the last partition that the host's sources have dispatched.
R2. When all votes are in favour, the client commits the highest of these partitions as the change-over iteration. No
    node can have dispatched a later partition. Every host then sends messages about later partitions to the new places.
    An operator is handed over (``handover``) when it has dispatched the change-over iteration. Sources resume. The
    commit is also piggybacked on the first partition after the change-over, so no host works on this partition before
    it has the commit.
R3. The client aborts if a vote is against the proposal, if a host goes away, or if a vote is missing after the time
    limit. Then the sources resume, and nothing has moved. The client's decision is final, and is repeated until every
    host has answered ``Done``.
R4. Proposals have increasing numbers, and only proposals of the client count. One proposal is under way at a time. A
    later placement waits for the end of the present proposal, and replaces a placement that waits already.
R5. If a hand-over fails after the commit, the operator stays on its old host. The new location of the operator says so.
R6. A proposal may have another shape (``reshaping``), a new tree, instead of moves. All hosts with operators, and the
    hosts on which operators appear, vote on the new tree, so no operator is being handed over. After the commit every
    host has both trees. When every host has both, and the sink has got the change-over iteration, the client has every
    host retire the old tree. The proposal is over when every host has retired the old tree and a partition has come
    through the new tree. So partitions arrive, however fast the trees change.
R7. A shape may also be the nodes of another query beside the present nodes (``query_attachment``). Then there is
    nothing to drain, and hand-overs go on. The shape says which code is loaded, so the proposal counts only if the
    client itself has sent it.
R8. Guests, which have sinks only, receive every decision. A guest votes only on sinks that it gets. The client does not
    wait for a guest that leaves. A guest that has not answered for ``liveness_s`` times ``patience`` is lost.
R9. The change-over iteration is never before the first partition of a query. The source that was furthest ahead when
    the hosts agreed on this partition may have left since. The nodes of the query cannot be further back.
R10. A host joins (``membership``) while nothing is proposed and every host knows who has left. The host receives the
    run as it is. Joining hosts go before queries and placements. If a host has failed to join, the changes that waited
    then go before the next host.
R11. The operators of a host that is to leave move by proposals, again and again until the host has none. A host that
    has refused some of the operators is not asked again. If every host has refused, the operators stay (``Stay``).
R12. A proposal may name new networks between hosts (``ways``), alone or together with moves or a shape. The networks
    count for partitions after the change-over. A proposal with networks alone moves nothing, and is over when every
    host has answered.
R13. If operators have gone on from a generation before (``carried_over``), they cannot change over at a partition that
    they have already got. A new shape or query waits until every node is where the furthest operator was. It also waits
    if nodes begin anew with different partitions, because their replicas are of different age. A node that is behind
    serves the consumers of the tree in which it began.
R14. Some messages need only an answer: a decision by which nothing moves, and news of who joins or leaves. A host that
    has not answered such a message for ``liveness_s`` times ``patience`` is lost, even if it sends other messages. The
    host would block every later change.

``PROPOSAL`` is the table of the client's side (``proposer``). ``MEMBER`` is the table of every host (``member``),
including the client.
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
    RETIRING = "retiring"  # another shape: the old tree is drained, and hosts forget it
    ABORTED = "aborted"
    OVER = "over"


class ProposalEvent(Term):
    AGREED = "all agreed"
    REFUSED = "refused"
    EXPIRED = "expired"
    LOST = "host lost"
    DRAINED = "drained"  # every host has both trees, and the sink has every partition of the old tree
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
    PREPARING = "preparing"  # sources are suspended, and code is being loaded
    VOTED = "voted"  # sources are suspended
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
    (MemberState.FREE, MemberEvent.COMMITTED): MemberState.SWITCHING,  # the host had no vote, or the proposal was lost
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
    """State of one proposal at the client."""

    TABLE = PROPOSAL

    number: int
    moves: tuple[m.Move, ...]
    waiting: set[str]  # hosts that have to vote, or after the decision to be done
    reason: str
    begun_s: float
    shape: m.Shape | None = None
    state: ProposalState = ProposalState.PROPOSED
    iteration: int = -1
    why: str = ""
    phases_s: dict[str, float] = field(default_factory=dict)
    drained_s: float | None = None  # time at which the sink had got the change-over iteration
    trees: dict[str, Any] = field(default_factory=dict)  # the old and the new tree, for the records
    query: QueryToStart | None = None  # query that begins with the proposal
    names: dict[str, str] = field(default_factory=dict)  # names of the query's nodes in the run
    ways: tuple[m.RoutePreference, ...] | None = None  # new networks between hosts
    then: dict[str, str] = field(default_factory=dict)  # new hosts of operators, proposed after the new tree
    asked: ApplicationRequest | None = None  # request of the application, which is notified of the result
    stayed: dict[str, str] = field(default_factory=dict)  # operators that stay on their hosts, and why

    def __post_init__(self) -> None:
        self.phases_s["proposed"] = self.begun_s

    @property
    def outcome(self) -> str:
        """Outcome of the proposal so far, for the records: committed or aborted."""
        return "committed" if self.state in (ProposalState.COMMITTED, ProposalState.RETIRING) else "aborted"

    @property
    def is_answered_at_once(self) -> bool:
        """Return whether a host answers the decision without further work, by ``Done`` (R14)."""
        return self.state is ProposalState.ABORTED or (
            self.state is ProposalState.COMMITTED and not self.moves and not self.reshapes
        )

    @property
    def reshapes(self) -> bool:
        """Return whether a new tree begins with the proposal."""
        return self.shape is not None and self.query is None

    def __repr__(self) -> str:
        return f"proposal {self.number}, {self.state}"


class QueryToStart(msgspec.Struct, frozen=True):
    """Query that is to begin: its number, its graph in names of its own, and the placement of its nodes.

    ``apart``: nodes that the query does not share with equal nodes of the run, with the distance to these. ``since``:
    the earliest partition with which the query may begin. For the query of a guest, the number (below 0) is enough.
    """

    number: int
    dataflow: Dataflow = Dataflow()
    placement: dict[str, str] = {}
    apart: dict[str, float] = {}
    since: int = 0


class ApplicationRequest(msgspec.Struct, frozen=True):
    """Number of a request of the application, with the result of the first step if the request takes two steps.

    ``index`` and ``moved`` are the result of the first step.
    """

    number: int
    index: int | None = None
    moved: dict[str, str] = {}


class WaitingPlacement(msgspec.Struct, frozen=True):
    """Placement that waits for the end of the present proposal."""

    placement: dict[str, str]
    reason: str
    dataflow: Dataflow | None = None  # new tree
    free: tuple[Code, ...] = ()
    ways: tuple[m.RoutePreference, ...] | None = None  # new networks between hosts
    asked: ApplicationRequest | None = None
