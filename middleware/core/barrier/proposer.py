"""Proposals of this host's application: the client's side of the barrier. The rules and states are in ``proposal``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from msgspec import UNSET

from thalweg.middleware.core.barrier.outcomes import Outcomes
from thalweg.middleware.core.barrier.proposal import (
    ApplicationRequest,
    Proposal,
    ProposalEvent,
    ProposalState,
    QueryToStart,
    WaitingPlacement,
)
from thalweg.middleware.core.context.notes import (
    ChangedOver,
    HandedOver,
    HostLost,
    Invited,
    Leaving,
    Left,
    Notes,
    NotJoined,
    PartitionDelivered,
    Started,
    Vacating,
)
from thalweg.middleware.core.context.outbox import Timer
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import ENDED
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.membership.membership import Membership
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import GenerationChange, Need, Part, RunBeginning, RunParts
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.queries.query_attachment import extended
from thalweg.middleware.core.queries.sharing import join
from thalweg.middleware.core.queries.subscribers import Subscribers
from thalweg.middleware.core.reshaping.shape import Reshaped, as_rows, reshape
from thalweg.middleware.dataflow import Code, Dataflow, Reorderable
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

DRAINED = "its host is drained"
SAME = "nothing would change"
LATER = "a later proposal took its place"
BUSY = "another change is under way"
NEARER = "nearer to its neighbours"


class Proposer(Part):
    """Client's side of the barrier in one run: the present proposal, and the changes that wait for its end."""

    NEEDED_FOR = Need.LEADING

    @classmethod
    def of(cls, parts: RunParts) -> Proposer:
        return cls(parts, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, parts: RunParts, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._parts, context = parts, parts.context
        self._newcomers: deque[m.Peer] = deque()  # hosts that wait to join the run
        self._joining: deque[QueryToStart] = deque()  # queries that wait for the end of the present proposal
        self._out, self._limits, self._install = context.out, context.limits, context.install
        self._outcomes = Outcomes(context.out, parts)
        self._tree, self._directory, self._flow = tree, directory, flow
        self.free: tuple[Code, ...] = ()  # reorderable codes, by the request of the run
        self.merging: tuple[Code, ...] = ()  # reorderable codes with state
        self.proposal: Proposal | None = None
        self.next: WaitingPlacement | None = None
        self._first = 0  # R10: number of changes that go before the next host
        self._count = 0
        self._lasts = context.fails_over
        # R13: no host has said yet which operators go on
        self._starting = context.install.kept_from is not None
        begin = {start.index for start in context.install.starts if start.index != LAST and not start.free}
        self._lagging = self._starting or len(begin) > 1
        if len(begin) > 1:  # R13: a node that is behind serves the consumers of the present tree
            flow.reach(max(begin))
        self._later: list[QueryToStart] = []  # undecided queries of the generation before
        # R11: by drained host, the hosts that refuse its operators, and why
        self._unwilling: dict[str, dict[str, str]] = {}
        self._delivered_s: float | None = None  # time of the last partition of the application

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Take the reorderable codes from the request of the run, which this host's application leads."""
        if beginning.request is not None:
            self.free, self.merging = beginning.request.free, beginning.request.merging

    def continue_from(self, before: Proposer, change: GenerationChange) -> None:
        """Go on as the next generation of a run.

        Queries that have not begun wait until every needed host has the run.
        """
        self.free, self.merging, self._count = before.free, before.merging, before._count
        self._later = before.undecided

    @property
    def undecided(self) -> list[QueryToStart]:
        """Queries of this application whose result the application does not know yet: begun or failed."""
        proposal, waiting = self.proposal, list(self._joining)
        undecided = ProposalState.PROPOSED, ProposalState.ABORTED
        if proposal is not None and proposal.query is not None and proposal.state in undecided:
            waiting.insert(0, proposal.query)
        return [*self._later, *(query for query in waiting if query.number > 0)]

    @property
    def waits(self) -> bool:
        """Return whether this application waits for a query to begin."""
        return bool(self.undecided)

    def on_started(self, _: Started) -> None:
        """Let the queries of the generation before wait for their turn, as every needed host has the run."""
        self._starting, later, self._later = False, self._later, []
        for query in later:
            self._wait(query)

    def on_placement_proposed(self, event: e.PlacementProposed) -> None:
        self.merging += tuple(code for code in event.merging if code not in self.merging)
        ways = None if event.ways is UNSET else event.ways
        asked = None if event.number is UNSET else ApplicationRequest(event.number)
        self.propose(event.placement, event.reason, event.dataflow, event.free, ways, asked)

    def propose(
        self,
        placement: dict[str, str],
        reason: str,
        dataflow: Dataflow | None = None,
        free: tuple[Code, ...] = (),
        ways: tuple[m.RoutePreference, ...] | None = None,
        asked: ApplicationRequest | None = None,
    ) -> str:
        """Propose ``placement`` as soon as no other change is under way. Return why not, or an empty text.

        ``dataflow``: a new tree, in which operators with code in ``free`` may be replaced. ``ways``: new networks
        between hosts. ``asked``: the request of the application, which is notified of the result.
        """
        wish = WaitingPlacement(placement, reason, dataflow, free, ways, asked)
        if self.proposal is not None or self._newcomers or not self._may_start(wish):
            # R4, R10: the placement waits for the present change, or for hosts that join, and replaces one that waits
            if self.next is not None:
                self._give_up_waiting(self.next, LATER)
            self.next = wish
            return ""
        return self._start_or_answer(wish)

    def _may_start(self, wish: WaitingPlacement) -> bool:
        """Return whether only another proposal or a joining host can keep a placement waiting (R13)."""
        return wish.dataflow is None or not (self._queries.busy or self._catching_up)

    def _start_or_answer(self, wish: WaitingPlacement) -> str:
        """Propose a placement. If it cannot be proposed, notify the application and return why."""
        why, asked = self._start(wish), wish.asked
        if why and asked is not None:
            rest = dict.fromkeys(wish.placement, why) if asked.index is not None and why != SAME else {}
            self._answer(asked, None, {}, rest, "" if why == SAME or asked.index is not None else why)
        return why

    def _give_up_waiting(self, wish: WaitingPlacement, why: str) -> None:
        """Drop a placement that waits. Record it as superseded, and notify the application."""
        moves = tuple(move for move in self._moves(wish.placement) if wish.dataflow is None)
        self._outcomes.record(0, moves, "superseded", why, wish.reason)
        if wish.asked is not None:
            rest = {} if wish.asked.index is None else dict.fromkeys(wish.placement, why)
            self._answer(wish.asked, None, {}, rest, "" if rest else why)

    def _answer(
        self, asked: ApplicationRequest, index: int | None, moved: dict[str, str], stayed: dict[str, str], why: str = ""
    ) -> None:
        """Notify the application of the result of its request."""
        index, moved = asked.index if index is None else index, asked.moved | moved
        self._out.emit(e.MoveEnded(self._out.run, asked.number, index, moved, stayed, why))

    def _start(self, wish: WaitingPlacement) -> str:
        """Propose a placement now, as no other change is under way. Return why not, or an empty text."""
        placement, reason, ways = wish.placement, wish.reason, wish.ways
        if ways is not None and self._directory.routes.goes_over(ways):
            ways = None
        tree, directory, number = self._tree, self._directory, self._count + 1
        hosts = directory.where(directory.locations)
        try:
            grown = self._grown(wish, hosts, number)
        except DataflowError as error:
            self._outcomes.record(0, (), "aborted", str(error), reason)
            return str(error)
        if grown is not None and not grown.grafts:
            placement, grown = grown.moves, None
        moves = () if grown is not None else self._moves(placement)
        why = self._absent(placement if wish.asked is not None else {}, moves) if grown is None else ""
        if why:
            self._outcomes.record(0, moves, "aborted", why, reason)
            return why
        if not moves and grown is None and ways is None:
            return SAME
        self._count = number
        present = tuple(directory.locations[name] for name in tree.dataflow.operators)
        shape = None if grown is None else m.Shape(grown.grafts, present)
        voters = self._voters(moves, shape)
        if self._lasts and (gone := voters - directory.hosts):
            why = f"host {min(gone)!r} has no part in the run"
            self._outcomes.record(0, (), "aborted", why, reason)
            return why
        proposal = Proposal(number, moves, voters, reason, self._out.now, shape, ways=ways, asked=wish.asked)
        if grown is not None:
            where = hosts | {graft.node: graft.host for graft in grown.grafts}
            proposal.trees = {"before": as_rows(tree.dataflow, hosts), "after": as_rows(grown.dataflow, where)}
            proposal.then = grown.moves
        self._begin(proposal)
        return ""

    def _grown(self, wish: WaitingPlacement, hosts: Mapping[str, str], number: int) -> Reshaped | None:
        """Return grafts that make the wanted tree. None: the tree stays. Raise DataflowError if no grafts make it."""
        if wish.dataflow is None:
            return None
        reorderable, first = Reorderable(wish.free or self.free, self.merging), self._install.dataflow.by_name
        return reshape(self._tree.dataflow, wish.dataflow, wish.placement, hosts, reorderable, number, first)

    def _voters(self, moves: Iterable[m.Move], shape: m.Shape | None) -> set[str]:
        """Return the voters: hosts of sources, and the old and new hosts of moving operators."""
        dataflow = self._tree.dataflow
        pins = {dataflow.by_name[name].pinned for name in dataflow.sources} - {None}
        voters = {host for host in pins if host is not None}
        voters |= {host for move in moves for host in (move.source, move.target)}
        if shape is not None:  # R6: hosts with operators, and hosts on which operators appear, vote on a tree
            voters |= {entry.host for entry in shape.present}
            voters |= {graft.host for graft in shape.grafts if graft.like}
        return voters

    def on_wish(self, sender: str, message: m.MoveRequest) -> None:
        """Propose the move that an operator's host requests (R3 of ``by_coordinates``).

        If another change is under way, the request is only recorded as superseded.
        """
        location = self._directory.locations.get(message.node)
        is_current = location is not None and (location.host, location.version) == (sender, message.version)
        node = self._tree.dataflow.by_name.get(message.node)
        free = node is not None and node.kind == "operator" and node.pinned is None
        idle = self.proposal is None and not self._joining and not self._queries.busy
        if not (is_current and free and message.target in self._directory.hosts):
            return
        if idle:
            self.propose({message.node: message.target}, NEARER)
        else:
            self._outcomes.record(0, self._moves({message.node: message.target}), "superseded", BUSY, NEARER)

    # --- queries --------------------------------------------------------------------------------------

    def on_attach_requested(self, event: e.AttachRequested) -> None:
        self._wait(QueryToStart(event.query, event.dataflow, event.placement, event.apart, event.since))

    def on_peer_joined(self, event: e.PeerJoined) -> None:
        """Let a host wait until it can join the run (R10). A host that asks more than once waits once."""
        remaining = [peer for peer in self._newcomers if peer.name != event.peer.name]
        self._newcomers = deque([*remaining, event.peer])
        self._go_on()

    def on_not_joined(self, _: NotJoined) -> None:
        """Let the changes that wait now go before the next host, as a host has failed to join (R10)."""
        self._first = len(self._joining) + (self.next is not None)

    def on_vacating(self, note: Vacating) -> None:
        """Propose to move the operators of a leaving host to hosts of neighbours, or else to any host (R11)."""
        if self.proposal is not None or self._joining or self._queries.busy:
            return  # the host repeats its request
        tree, directory, me = self._tree.dataflow, self._directory, self._out.host
        where = directory.where(tree.by_name)
        unwilling = self._unwilling.setdefault(note.host, {})
        candidates = sorted(directory.hosts - directory.vacating - unwilling.keys() - {me})
        last = next((host for host in (*candidates, me) if host not in unwilling), None)
        if last is None:
            directory.stop_vacating(note.host)
            why = "; ".join(f"host {host!r}: {why}" for host, why in self._unwilling.pop(note.host).items())
            self._out.send(
                note.host,
                m.Stay(self._out.run, f"no other host takes the operators of host {note.host!r}: {why}"[:4000]),
            )
            return
        placement: dict[str, str] = {}
        for name in reversed(tree.upward):
            if where[name] == note.host and tree.by_name[name].kind == "operator":
                near = [where[neighbour] for neighbour in (*tree.consumers[name], *tree.by_name[name].inputs)]
                where[name] = placement[name] = next((host for host in near if host in candidates), last)
        self.propose(placement, DRAINED)

    def on_invited(self, note: Invited) -> None:
        self._wait(QueryToStart(note.query))

    def _wait(self, query: QueryToStart) -> None:
        """Let a query wait until the queries before it have begun."""
        self._joining.append(query)
        self._queries.expect(query.number)
        self._go_on()

    def on_detach_requested(self, event: e.DetachRequested) -> None:
        self._leave(event.query)

    def on_leaving(self, note: Leaving) -> None:
        self._leave(note.query)

    def _leave(self, query: int) -> None:
        """End a query, or cancel a query that has not begun."""
        waiting = len(self._joining)
        self._joining = deque([joining for joining in self._joining if joining.number != query])
        self._queries.expect_no_more(query)
        proposal = self.proposal
        begins = proposal is not None and proposal.query is not None and proposal.query.number == query
        if proposal is not None and begins and proposal.state is ProposalState.PROPOSED:
            self._conclude(proposal, ProposalEvent.REFUSED, "the query has left before it began")
        if waiting == len(self._joining) or query < 0:
            self._queries.leave(query)
        else:
            self._out.fail("the query has left before it began", query=query)

    def on_left(self, _: Left) -> None:
        """Begin the waiting changes, as every host knows who has left."""
        self._go_on()

    def _go_on(self) -> None:
        """Begin the changes that wait, until a proposal is under way (R4): the next host, query or placement."""
        while self.proposal is None and self._take_turn():
            self._first = max(0, self._first - 1)

    def _take_turn(self) -> bool:
        """Begin the next of the waiting changes, if it can begin now. Return whether it has begun, or never can."""
        idle, wish = not self._queries.busy, self.next
        asks = bool(self._joining) and idle and not self._catching_up
        moves = wish is not None and not self._joining and self._may_start(wish)
        first = self._first > 0 and (asks or moves)  # R10: a host that failed to join has held up these changes
        if self._newcomers and idle and not first:
            self._parts.get(Membership).enter(self._newcomers.popleft())
            return True
        if asks:
            query = self._joining[0]
            if query.number < 0 and self._parts.get(Subscribers).enter(query.number):
                return False
            self._joining.popleft()
            self._queries.expect_no_more(query.number)
            try:
                self._join(query)
            except DataflowError as error:
                self._queries.failed(query.number, str(error))
            return True
        if wish is not None and moves and (first or not self._newcomers):
            self.next = None
            self._start_or_answer(wish)
            return True
        return False

    def _join(self, query: QueryToStart) -> None:
        """Propose a query (R7). Raise DataflowError if the query cannot begin in the present graph."""
        tree, directory, number = self._tree, self._directory, self._count + 1
        if query.number < 0:
            joined = self._parts.get(Subscribers).joined(query.number)
        else:
            arguments = query.dataflow, query.placement, number, self._install.dataflow.by_name, query.apart
            joined = join(tree.dataflow, *arguments)
        extended(tree.dataflow, joined.grafts)
        for graft in joined.grafts:
            if graft.host not in directory.everyone:
                raise DataflowError(f"host {graft.host!r}, where {graft.node!r} is to be, has no part in the run")
        self._count = number
        voters = {node.pinned for node in tree.dataflow.nodes if node.kind == "source" and node.pinned is not None}
        voters |= {graft.host for graft in joined.grafts}
        proposal = Proposal(number, (), voters, "a query", self._out.now, m.Shape(joined.grafts, ()))
        proposal.query, proposal.names = query, joined.names
        self._queries.begin_joining()
        self._begin(proposal)

    def _begin(self, proposal: Proposal) -> None:
        """Send a proposal to its voters, and to the hosts of the operators below the sinks (R1)."""
        self.proposal, dataflow = proposal, self._tree.dataflow
        since = 0 if proposal.query is None else proposal.query.since
        # R9, R13: neither before the first partition of a query nor before a partition that an operator has got
        proposal.iteration = max([*self._tree.first.values(), self._flow.ahead, since]) - 1
        roots = {name for sink in dataflow.sinks for name in dataflow.by_name[sink].inputs}
        propose = self._proposal_message(proposal)
        for host in sorted({*self._directory.where(roots).values(), *proposal.waiting}):
            self._out.send(host, propose)
        self._arm()

    def _proposal_message(self, proposal: Proposal) -> m.Propose:
        fields = self._out.run, proposal.number, proposal.moves, proposal.shape
        return m.Propose(*fields, proposal.ways)

    def _attached(self, proposal: Proposal, query: QueryToStart) -> None:
        """Begin a query, as all voters have agreed (R7). Notify the application of the first partition."""
        assert proposal.shape is not None
        grown, names = extended(self._tree.dataflow, proposal.shape.grafts), proposal.names
        sinks = query.dataflow.sinks if query.number > 0 else names
        self._queries.begin(query.number, tuple([names[name] for name in sinks]))
        where = self._directory.where(self._tree.dataflow.by_name)
        where |= {graft.node: graft.host for graft in proposal.shape.grafts}
        first = proposal.iteration + 1
        self._out.emit(e.QueryStarted(self._out.run, query.number, first, names, grown, where))

    def _moves(self, placement: dict[str, str]) -> tuple[m.Move, ...]:
        locations = self._directory.locations
        return tuple(
            m.Move(name, locations[name].host, host, locations[name].version)
            for name, host in placement.items()
            if name in locations and locations[name].host != host  # the operator may have gone with the old tree
        )

    def _absent(self, placement: dict[str, str], moves: tuple[m.Move, ...]) -> str:
        """Return why the moves cannot be made: a node or a host has left the run. Empty: the client knows no reason."""
        if gone := placement.keys() - self._directory.locations.keys():
            return f"there is no operator {min(gone)!r} in the run any more"
        if lost := {move.target for move in moves} - self._directory.hosts:
            return f"host {min(lost)!r} has no part in the run"
        return ""

    # --- messages of hosts ----------------------------------------------------------------------------

    def on_handed_over(self, note: HandedOver) -> None:
        """Note an operator that has stayed on the old host after a committed move (R5)."""
        proposal, location = self.proposal, note.location
        for move in () if proposal is None or note.moved else proposal.moves:
            if (move.node, move.source, move.version + 1) == (location.node, note.sender, location.version):
                assert proposal is not None
                proposal.stayed[move.node] = f"it stays on host {note.sender!r}: {note.why}"

    def on_vote(self, sender: str, message: m.Vote) -> None:
        if sender not in self._directory.everyone:
            return
        proposal = self._of(message.number)
        if proposal is None:
            self._out.send(sender, m.Abort(self._out.run, message.number))  # the proposal is long over
        elif proposal.state is not ProposalState.PROPOSED:
            self._send(proposal, sender)
        elif sender not in self._directory.hosts and sender not in proposal.waiting:
            return  # R8: a guest votes only on its own sinks
        elif message.error:
            if proposal.reason == DRAINED:
                for move in proposal.moves:
                    if move.target == sender:
                        self._unwilling.setdefault(move.source, {})[sender] = message.error
            self._conclude(proposal, ProposalEvent.REFUSED, f"host {sender!r}: {message.error}")
        elif sender in proposal.waiting:
            proposal.waiting.discard(sender)
            if sender in self._directory.hosts:  # a guest has no sources
                proposal.iteration = max(proposal.iteration, message.iteration)
            if not proposal.waiting:
                self._conclude(proposal, ProposalEvent.AGREED, "")

    def on_done(self, sender: str, message: m.Done) -> Notes:
        if sender not in self._directory.everyone:
            return
        if sender in self._directory.hosts:
            self._directory.merge(message.locations)
        proposal = self._of(message.number)
        if proposal is None or proposal.state is ProposalState.PROPOSED or sender not in proposal.waiting:
            return
        if proposal.state is ProposalState.RETIRING and not message.retired:  # the host repeats that it has both trees
            return
        proposal.waiting.discard(sender)
        yield from self._check_done(proposal)

    @property
    def unanswering(self) -> Iterator[tuple[str, float]]:
        """Hosts of the run that have not answered a message to every host, each with the time of the message (R14)."""
        hosts, proposal, queries = self._directory.hosts, self.proposal, self._queries
        for host in sorted(hosts.intersection(queries.awaited)):
            yield host, queries.told_s
        if proposal is not None and proposal.is_answered_at_once:
            for host in sorted(hosts & proposal.waiting):
                yield host, proposal.phases_s[proposal.state.value]

    def _of(self, number: int) -> Proposal | None:
        """Return the present proposal if it is number ``number``, else None."""
        return self.proposal if self.proposal is not None and self.proposal.number == number else None

    def on_timer(self) -> Notes:
        """Repeat messages without an answer. Abort a proposal that lacks votes after the time limit."""
        proposal, limit_s = self.proposal, self._limits.barrier_s
        if proposal is None or not proposal.waiting:
            return
        if proposal.state is not ProposalState.PROPOSED:
            # R8: a guest that has not answered for too long is lost
            yield from self._parts.get(Subscribers).give_up(proposal.waiting, proposal.phases_s[proposal.state.value])
            if parted := proposal.waiting - self._directory.everyone:  # R8: a guest that has left is not waited for
                proposal.waiting -= parted
                yield from self._check_done(proposal)
            for host in sorted(proposal.waiting):
                self._send(proposal, host)
        elif self._out.waited_s(proposal.begun_s) >= limit_s:
            silent = ", ".join(sorted(proposal.waiting))
            self._conclude(proposal, ProposalEvent.EXPIRED, f"no vote of {silent} in {limit_s:g} s")
            return
        else:
            for host in sorted(proposal.waiting):
                self._out.send(host, self._proposal_message(proposal))
        self._arm()

    def on_lost(self, note: HostLost) -> Notes:
        """Stop waiting for the vote and the answers of a lost host."""
        yield from self._do_without(note.host)
        if (queries := self._parts.existing(Queries)) is not None:
            yield from queries.answered(note.host)

    def _do_without(self, host: str) -> Notes:
        proposal = self.proposal
        self._unwilling.pop(host, None)
        known = self._directory.peers.get(host)  # R10: a host that was lost does not wait to join; it asks again
        self._newcomers = deque([peer for peer in self._newcomers if peer != known])
        if proposal is None:
            return
        if proposal.state is ProposalState.PROPOSED:
            grafts = () if proposal.shape is None else proposal.shape.grafts
            concerned = {end for move in proposal.moves for end in (move.source, move.target)}
            if host in proposal.waiting or host in concerned or any(graft.host == host for graft in grafts):
                self._conclude(proposal, ProposalEvent.LOST, f"host {host!r} went away")
        elif host in proposal.waiting:
            proposal.waiting.discard(host)
            yield from self._check_done(proposal)

    def on_delivered(self, _: PartitionDelivered) -> Notes:
        """Note that the application has got a partition, for which a change of the tree may wait."""
        proposal, now, before_s = self.proposal, self._out.now, self._delivered_s
        self._delivered_s = now
        if self._lagging and not self._catching_up:
            self._lagging = False
            self._go_on()
        if proposal is None or not proposal.reshapes:
            return ()
        if proposal.state in (ProposalState.PROPOSED, ProposalState.ABORTED):
            return ()
        if self._delivered == proposal.iteration:
            proposal.drained_s = proposal.drained_s or now
        elif self._delivered == proposal.iteration + 1:
            proposal.drained_s = proposal.drained_s or before_s  # the previous partition came before the commit
            proposal.phases_s["first"] = now
        return self._check_done(proposal)

    @property
    def _catching_up(self) -> bool:
        """Return whether some nodes may still be behind the nodes that went on when the run began anew (R13)."""
        if self._starting or not self._lagging:
            return self._starting
        sink = self._own_sink
        return sink is not None and sink.state is not ENDED and self._delivered < self._flow.ahead

    @property
    def _own_sink(self) -> NodeCore | None:
        """First sink of the application. None: the sink has left, and the run goes on for other clients."""
        nodes = self._flow.nodes
        return next((nodes[name] for name in self._tree.dataflow.sinks if name in nodes), None)

    @property
    def _delivered(self) -> int:
        """Last partition that the application has got. -1: none."""
        sink = self._own_sink
        return -1 if sink is None else sink.index - 1

    # --- results of proposals -------------------------------------------------------------------------

    def _conclude(self, proposal: Proposal, event: ProposalEvent, why: str) -> None:
        """Commit or abort a proposal, or retire the old tree. Send the decision to every host and guest."""
        proposal.to(event)
        proposal.phases_s[proposal.state.value] = self._out.now
        proposal.why = why
        if proposal.query is not None and event is ProposalEvent.AGREED:
            self._attached(proposal, proposal.query)
        proposal.waiting = self._directory.everyone
        for host in sorted(proposal.waiting):
            self._send(proposal, host)
        self._arm()

    def _send(self, proposal: Proposal, host: str) -> None:
        run, number = self._out.run, proposal.number
        word: m.Commit | m.Retire | m.Abort
        if proposal.state is ProposalState.COMMITTED:
            fields = run, number, proposal.iteration, proposal.moves, proposal.reason, proposal.shape
            word = m.Commit(*fields, proposal.ways)
        elif proposal.state is ProposalState.RETIRING:
            word = m.Retire(run, number)
        else:
            word = m.Abort(run, number)
        self._out.send(host, word)

    def _check_done(self, proposal: Proposal) -> Notes:
        if proposal.waiting or self._is_draining(proposal):
            return
        outcome = proposal.outcome
        proposal.to(ProposalEvent.DONE)
        self.proposal = None
        moved = self._see_who_stayed(proposal) if outcome == "committed" else {}
        self._outcomes.record(proposal.number, proposal.moves, outcome, proposal.why, proposal.reason, proposal)
        if proposal.query is not None:
            if outcome == "aborted":
                self._queries.failed(proposal.query.number, f"the query cannot begin: {proposal.why}")
            self._queries.joined()
        yield ChangedOver()
        newer = {} if self.next is None else self.next.placement
        left = {name: host for name, host in proposal.then.items() if name not in newer}
        asked = proposal.asked
        if asked is not None and left and outcome == "committed":
            asked = ApplicationRequest(asked.number, proposal.iteration + 1, moved)
        elif asked is not None:
            index = proposal.iteration + 1 if outcome == "committed" else None
            self._answer(asked, index, moved, proposal.stayed, proposal.why if index is None else "")
        self._go_on()
        if left and outcome == "committed":
            self.propose(left, proposal.reason, asked=asked)

    def _is_draining(self, proposal: Proposal) -> bool:
        """Return whether a change of the tree waits for partitions (R6). Retire the old tree when it is drained."""
        if not proposal.reshapes or proposal.state is ProposalState.ABORTED:
            return False
        proposal.phases_s.setdefault("switched", self._out.now)
        if proposal.state is not ProposalState.COMMITTED:
            return self._delivered <= proposal.iteration
        if self._delivered >= proposal.iteration:  # the application has every partition of the old tree
            proposal.drained_s = proposal.drained_s or self._delivered_s  # the last of these came before the commit
            self._conclude(proposal, ProposalEvent.DRAINED, "")
        return True

    def _see_who_stayed(self, proposal: Proposal) -> dict[str, str]:
        """Note operators that have stayed (R5). Return the present hosts of operators that have moved or appeared."""
        locations, moved = self._directory.locations, dict[str, str]()
        if proposal.reshapes and proposal.shape is not None:
            sinks = self._tree.dataflow.sinks
            return {graft.node: graft.host for graft in proposal.shape.grafts if graft.node not in sinks}
        for move in proposal.moves:
            here = locations.get(move.node)
            if here is None:
                proposal.stayed[move.node] = "it has left with its query"
            elif move.node not in proposal.stayed and move.target != here.host and here.version <= move.version + 1:
                proposal.stayed[move.node] = f"it stays on host {here.host!r}, which could not hand it over"
            elif move.node not in proposal.stayed:
                moved[move.node] = move.target
        return moved

    def _moved_by_now(self, proposal: Proposal) -> dict[str, str]:
        """Return the operators that have moved, as far as the client knows, while some hosts are not done."""
        if proposal.reshapes:
            return self._see_who_stayed(proposal)
        locations, hosts = self._directory.locations, self._directory.hosts
        moves = [move for move in proposal.moves if move.node in locations and move.target in hosts]
        return {move.node: move.target for move in moves if locations[move.node].host == move.target}

    def on_run_over(self, why: str) -> None:
        """End the present proposal and the waiting placement, as the run is over or begins anew (``why``)."""
        if self.next is not None:
            wish, self.next = self.next, None
            self._give_up_waiting(wish, why)
        proposal = self.proposal
        if proposal is None:
            return
        committed = proposal.outcome == "committed"
        reason = "" if committed else proposal.why or why
        self._outcomes.record(proposal.number, proposal.moves, proposal.outcome, reason, proposal.reason, proposal)
        if proposal.asked is not None:
            moved = self._moved_by_now(proposal) if committed else {}
            rest = [move.node for move in proposal.moves if committed and move.node not in moved]
            stayed = {name: proposal.stayed.get(name, why) for name in rest}
            index = proposal.iteration + 1 if committed else None
            self._answer(proposal.asked, index, moved, stayed, reason)

    def _arm(self) -> None:
        if self.proposal is not None and self.proposal.waiting:
            self._out.wake(Timer.BARRIER, self._out.now + self._limits.retry_s)

    @property
    def _queries(self) -> Queries:
        return self._parts.get(Queries)

    HANDLERS = Handlers(
        messages={m.Vote: on_vote, m.Done: on_done, m.MoveRequest: on_wish},
        events={
            e.PlacementProposed: on_placement_proposed,
            e.AttachRequested: on_attach_requested,
            e.DetachRequested: on_detach_requested,
            e.PeerJoined: on_peer_joined,
        },
        notes={
            PartitionDelivered: on_delivered,
            HandedOver: on_handed_over,
            Started: on_started,
            Left: on_left,
            Invited: on_invited,
            Vacating: on_vacating,
            Leaving: on_leaving,
            NotJoined: on_not_joined,
            HostLost: on_lost,
        },
        timers={Timer.BARRIER: on_timer},
    )
