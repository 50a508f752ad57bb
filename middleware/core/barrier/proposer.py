"""Proposals of this host's application. The rules, and the states with what moves between them, are in ``proposal``."""

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
    """The client's side of one run."""

    NEEDED_FOR = Need.LEADING

    @classmethod
    def of(cls, parts: RunParts) -> Proposer:
        return cls(parts, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, parts: RunParts, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._parts, context = parts, parts.context
        self._newcomers: deque[m.Peer] = deque()  # hosts that wait for the same
        self._joining: deque[QueryToStart] = deque()  # that wait for the end of the present proposal
        self._out, self._limits, self._install = context.out, context.limits, context.install
        self._outcomes = Outcomes(context.out, parts)
        self._tree, self._directory, self._flow = tree, directory, flow
        self.free: tuple[Code, ...] = ()  # codes that are reorderable, as far as this application was asked
        self.merging: tuple[Code, ...] = ()  # those with state among them
        self.proposal: Proposal | None = None
        self.next: WaitingPlacement | None = None
        self._first = 0  # R10: changes that go before the next host
        self._count = 0
        self._lasts = context.fails_over
        # R13: no host has said yet which operators go on
        self._starting = context.install.kept_from is not None
        begin = {start.index for start in context.install.starts if start.index != LAST and not start.free}
        self._lagging = self._starting or len(begin) > 1
        if len(begin) > 1:  # R13: a node that is behind is made for the consumers that the tree has now
            flow.reach(max(begin))
        self._later: list[QueryToStart] = []  # queries of the generation before
        # R11: by drained host, the hosts that refuse its operators, and why
        self._unwilling: dict[str, dict[str, str]] = {}
        self._delivered_s: float | None = None  # when the application last got something

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """This host's application leads the run."""
        if beginning.request is not None:
            self.free, self.merging = beginning.request.free, beginning.request.merging

    def continue_from(self, before: Proposer, change: GenerationChange) -> None:
        """Go on as the next generation of a run: with the queries that have not begun, once all have the run."""
        self.free, self.merging, self._count = before.free, before.merging, before._count
        self._later = before.undecided

    @property
    def undecided(self) -> list[QueryToStart]:
        """This application's queries of which it has not been told yet whether they begin."""
        proposal, waiting = self.proposal, list(self._joining)
        undecided = ProposalState.PROPOSED, ProposalState.ABORTED
        if proposal is not None and proposal.query is not None and proposal.state in undecided:
            waiting.insert(0, proposal.query)
        return [*self._later, *(query for query in waiting if query.number > 0)]

    @property
    def waits(self) -> bool:
        """Whether this application waits for a query to begin."""
        return bool(self.undecided)

    def on_started(self, _: Started) -> None:
        """All hosts that are needed have the run."""
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
        """Change over to ``placement`` as soon as no other change is under way; return why not, or an empty text.

        An application that ``asked`` for it is told what becomes of it. With ``dataflow`` to another tree, in which
        operators whose code is in ``free`` may be others. With ``ways`` to other networks between hosts.
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
        """R13: return whether nothing but another proposal, or a host, could keep a placement waiting."""
        return wish.dataflow is None or not (self._queries.busy or self._catching_up)

    def _start_or_answer(self, wish: WaitingPlacement) -> str:
        """Propose a placement; if that cannot be, tell the application and return why."""
        why, asked = self._start(wish), wish.asked
        if why and asked is not None:
            rest = dict.fromkeys(wish.placement, why) if asked.index is not None and why != SAME else {}
            self._answer(asked, None, {}, rest, "" if why == SAME or asked.index is not None else why)
        return why

    def _give_up_waiting(self, wish: WaitingPlacement, why: str) -> None:
        """Drop a placement that waits."""
        moves = tuple(move for move in self._moves(wish.placement) if wish.dataflow is None)
        self._outcomes.record(0, moves, "superseded", why, wish.reason)
        if wish.asked is not None:
            rest = {} if wish.asked.index is None else dict.fromkeys(wish.placement, why)
            self._answer(wish.asked, None, {}, rest, "" if rest else why)

    def _answer(
        self, asked: ApplicationRequest, index: int | None, moved: dict[str, str], stayed: dict[str, str], why: str = ""
    ) -> None:
        """Tell the application what has become of what it asked for."""
        index, moved = asked.index if index is None else index, asked.moved | moved
        self._out.emit(e.MoveEnded(self._out.run, asked.number, index, moved, stayed, why))

    def _start(self, wish: WaitingPlacement) -> str:
        """Propose it, as no other change is under way; return why not, or an empty text."""
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
        """Return the grafts that make the wanted tree. None: the tree stays. Raise DataflowError if there are none."""
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
        if shape is not None:  # R6: hosts with operators, and those on which some appear, vote on a tree
            voters |= {entry.host for entry in shape.present}
            voters |= {graft.host for graft in shape.grafts if graft.like}
        return voters

    def on_wish(self, sender: str, message: m.MoveRequest) -> None:
        """An operator's host would have it elsewhere (R3 of ``by_coordinates``): one moves at a time."""
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
        """R10: a host is to have a part in the run; one that has said so more than once waits once."""
        remaining = [peer for peer in self._newcomers if peer.name != event.peer.name]
        self._newcomers = deque([*remaining, event.peer])
        self._go_on()

    def on_not_joined(self, _: NotJoined) -> None:
        """R10: a host has kept all other changes waiting in vain: those that wait now go before the next host."""
        self._first = len(self._joining) + (self.next is not None)

    def on_vacating(self, note: Vacating) -> None:
        """R11: move what is on a host beside what it is connected with, or else anywhere."""
        if self.proposal is not None or self._joining or self._queries.busy:
            return  # the host will say so again
        tree, directory, me = self._tree.dataflow, self._directory, self._out.host
        where = directory.where(tree.by_name)
        unwilling = self._unwilling.setdefault(note.host, {})
        candidates = sorted(directory.hosts - directory.vacating - unwilling.keys() - {me})
        last = next((host for host in (*candidates, me) if host not in unwilling), None)
        if last is None:
            directory.stop_vacating(note.host)
            why = "; ".join(f"host {host!r}: {why}" for host, why in self._unwilling.pop(note.host).items())
            self._out.send(
                note.host, m.Stay(self._out.run, f"nobody takes what is on host {note.host!r}: {why}"[:4000])
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
        """A query is to begin when those before it have."""
        self._joining.append(query)
        self._queries.expect(query.number)
        self._go_on()

    def on_detach_requested(self, event: e.DetachRequested) -> None:
        self._leave(event.query)

    def on_leaving(self, note: Leaving) -> None:
        self._leave(note.query)

    def _leave(self, query: int) -> None:
        """A query is to leave, or not to begin."""
        waiting = len(self._joining)
        self._joining = deque([joining for joining in self._joining if joining.number != query])
        self._queries.expect_no_more(query)
        proposal = self.proposal
        begins = proposal is not None and proposal.query is not None and proposal.query.number == query
        if proposal is not None and begins and proposal.state is ProposalState.PROPOSED:
            self._conclude(proposal, ProposalEvent.REFUSED, "the query has left before")
        if waiting == len(self._joining) or query < 0:
            self._queries.leave(query)
        else:
            self._out.fail("the query has left before it began", query=query)

    def on_left(self, _: Left) -> None:
        """What had to wait until every host knows who has left goes on."""
        self._go_on()

    def _go_on(self) -> None:
        """R4: have the next host join, or the next query begin, or else change over to the next placement."""
        while self.proposal is None and self._take_turn():
            self._first = max(0, self._first - 1)

    def _take_turn(self) -> bool:
        """Begin what is due of all that waits, if it can begin now; return whether it has begun, or cannot ever."""
        idle, wish = not self._queries.busy, self.next
        asks = bool(self._joining) and idle and not self._catching_up
        moves = wish is not None and not self._joining and self._may_start(wish)
        first = self._first > 0 and (asks or moves)  # R10: a host that failed to join held these up
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
        """R7: propose another query."""
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
        """R1: tell who has a vote, and those who pass it on."""
        self.proposal, dataflow = proposal, self._tree.dataflow
        since = 0 if proposal.query is None else proposal.query.since
        # R9, R13: not before a query's first partition, nor before one that an operator has got already
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
        """R7: a query begins, as all have agreed."""
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
            if name in locations and locations[name].host != host  # it may have gone with another shape
        )

    def _absent(self, placement: dict[str, str], moves: tuple[m.Move, ...]) -> str:
        """Return why these moves cannot be, as far as the client knows: a node, or a host, has left the run."""
        if gone := placement.keys() - self._directory.locations.keys():
            return f"there is no operator {min(gone)!r} in the run any more"
        if lost := {move.target for move in moves} - self._directory.hosts:
            return f"host {min(lost)!r} has no part in the run"
        return ""

    # --- what hosts say -------------------------------------------------------------------------------

    def on_handed_over(self, note: HandedOver) -> None:
        """Note that an operator has stayed, though its move was committed (R5)."""
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
            self._out.send(sender, m.Abort(self._out.run, message.number))  # of a proposal long over
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
        if proposal.state is ProposalState.RETIRING and not message.retired:  # it says again that it has both trees
            return
        proposal.waiting.discard(sender)
        yield from self._check_done(proposal)

    @property
    def unanswering(self) -> Iterator[tuple[str, float]]:
        """R14: hosts of the run that have not answered a message to all hosts, each with the time of the message."""
        hosts, proposal, queries = self._directory.hosts, self.proposal, self._queries
        for host in sorted(hosts.intersection(queries.awaited)):
            yield host, queries.told_s
        if proposal is not None and proposal.is_answered_at_once:
            for host in sorted(hosts & proposal.waiting):
                yield host, proposal.phases_s[proposal.state.value]

    def _of(self, number: int) -> Proposal | None:
        """The present proposal, if it has this number."""
        return self.proposal if self.proposal is not None and self.proposal.number == number else None

    def on_timer(self) -> Notes:
        """Repeat what has not been answered; give a proposal up that has not got its votes in time."""
        proposal, limit_s = self.proposal, self._limits.barrier_s
        if proposal is None or not proposal.waiting:
            return
        if proposal.state is not ProposalState.PROPOSED:
            # R8: a guest that does not answer is lost in the end
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
        """A host is lost: its vote and its answers are not waited for any more."""
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
        """The application has got a partition; the change of the shape may wait for it."""
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
            proposal.drained_s = proposal.drained_s or before_s  # the one before came while it was only proposed
            proposal.phases_s["first"] = now
        return self._check_done(proposal)

    @property
    def _catching_up(self) -> bool:
        """R13: whether some nodes may not be where those are yet that have gone on when the run began anew."""
        if self._starting or not self._lagging:
            return self._starting
        sink = self._own_sink
        return sink is not None and sink.state is not ENDED and self._delivered < self._flow.ahead

    @property
    def _own_sink(self) -> NodeCore | None:
        """The application's first sink; None where it has left, and the run goes on for other clients."""
        nodes = self._flow.nodes
        return next((nodes[name] for name in self._tree.dataflow.sinks if name in nodes), None)

    @property
    def _delivered(self) -> int:
        """The last partition that the application has got."""
        sink = self._own_sink
        return -1 if sink is None else sink.index - 1

    # --- what comes of it -----------------------------------------------------------------------------

    def _conclude(self, proposal: Proposal, event: ProposalEvent, why: str) -> None:
        """Commit or abort, or retire the old tree, and tell everyone."""
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
        """Return whether partitions of the old tree are still to be delivered (R6)."""
        if not proposal.reshapes or proposal.state is ProposalState.ABORTED:
            return False
        proposal.phases_s.setdefault("switched", self._out.now)
        if proposal.state is not ProposalState.COMMITTED:
            return self._delivered <= proposal.iteration
        if self._delivered >= proposal.iteration:  # the application has all that comes through the old tree
            proposal.drained_s = proposal.drained_s or self._delivered_s  # before it was committed
            self._conclude(proposal, ProposalEvent.DRAINED, "")
        return True

    def _see_who_stayed(self, proposal: Proposal) -> dict[str, str]:
        """Note which operators have stayed (R5), and return where all others are now."""
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
        """End what is proposed, or waits, as the run is over or begins anew: ``why``."""
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
