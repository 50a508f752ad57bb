"""Side of a host in the proposals of a run. The rules and the states are in ``proposal``."""

from __future__ import annotations

from thalweg.middleware.core.barrier.proposal import MEMBER, MemberEvent, MemberState
from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.context.notes import HandoverFinished, Merged, Notes, Prepared, Unprepared
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.moving.arrivals import Arrivals
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.queries.query_attachment import QueryAttachment
from thalweg.middleware.core.reshaping.inheritance import Inheritance
from thalweg.middleware.core.reshaping.reshaping import Reshaping
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Member(Machine, Part):
    """State of this host in the present proposal of one run, from the vote to the end of the change-over."""

    TABLE = MEMBER
    state: MemberState

    @classmethod
    def of(cls, parts: RunParts) -> Member:
        return cls(parts, parts.get(Directory), parts.get(Flow))

    def __init__(self, parts: RunParts, directory: Directory, flow: Flow) -> None:
        self.state = MemberState.FREE
        self.number = 0  # of the present proposal, or of the last
        self.moves: tuple[m.Move, ...] = ()
        self.ways: tuple[m.RoutePreference, ...] | None = None
        self.shape: m.Shape | None = None
        self.error = ""  # why the host has voted against the proposal
        self._parts, self._out, self._install = parts, parts.context.out, parts.context.install
        self._directory, self._flow = directory, flow
        self._departures, self._arrivals = parts.get(Departures), parts.get(Arrivals)

    def __repr__(self) -> str:
        return f"proposal {self.number}, {self.state}"

    @property
    def busy(self) -> bool:
        """Return whether a proposal is under way on this host."""
        return self.state is not MemberState.FREE

    # --- before the client's decision -----------------------------------------------------------------

    def on_propose(self, sender: str, message: m.Propose) -> Notes:
        if sender not in self._directory.hosts:
            return
        if message.number == self.number and (self.state is MemberState.VOTED or self.error):
            self._vote()  # the first vote may have been lost
        grows = message.shape is not None and message.shape.grows
        known = sender == self._install.client or (message.number == self.number + 1 and not grows)  # forwarded
        if message.number <= self.number or not known:
            return  # R4: the proposal is old, or cannot be the client's
        if self.busy:
            self._unexpected(sender, "Propose", message.number)
            return
        self._enter(message)
        self.to(MemberEvent.PROPOSED)
        if not grows:
            self._pass_on(sender, message)
        self._flow.suspend()
        error = self._prepare(message)
        if error:
            yield from self._unable(error)
        else:
            self.on_prepared(Prepared())

    def _prepare(self, message: m.Propose) -> str:
        """Load the code of operators that are to come or appear. Return the obstacle, or an empty text."""
        host, out = self._out.host, self._out
        for move in message.moves:
            if host in (move.source, move.target):
                out.emit(e.Approach(out.run, move.target if move.source == host else move.source))
        error = self._obstacle(message.moves)
        if message.shape is not None and not error:
            error = (self._query_attachment if message.shape.grows else self._reshaping).prepare(message)
        for move in self._directory.there(message.moves) if not error else ():
            if move.target == host and not error:
                error = self._arrivals.invite(move.node, move.source, move.version, message.number)
        return error

    def _enter(self, message: m.Propose | m.Commit) -> None:
        """Make a proposal the present proposal of this host."""
        self.number, self.moves, self.shape, self.error = message.number, message.moves, message.shape, ""
        self.ways = message.ways

    def _pass_on(self, sender: str, message: m.Propose) -> None:
        """Send a proposal up the tree, to the hosts of the producers of the nodes on this host (R1)."""
        producers = {producer for node in self._flow.nodes.values() for producer in node.node.inputs}
        above = set(self._directory.where(producers).values())
        for host in sorted(above - {self._out.host, sender}):
            self._out.send(host, message)

    def _obstacle(self, moves: tuple[m.Move, ...]) -> str:
        """Return why moves cannot be made, or why this host cannot let its operators go. Empty: they are possible."""
        if wrong := self._directory.wrong(moves):
            return wrong
        for move in self._directory.there(moves):
            location = self._directory.locations[move.node]
            if location.version > move.version:
                return f"{move.node!r} has moved to host {location.host!r} meanwhile"
            if move.source == self._out.host:
                error = self._departures.obstacle(move.node, move.target)
                if error:
                    return error
        return ""

    def on_prepared(self, _: Prepared) -> None:
        """Vote if the code of every operator that may come to this host is loaded."""
        if self.state is MemberState.PREPARING and self._arrivals.ready(self.number):
            self.to(MemberEvent.READY)
            self._vote()

    def on_unprepared(self, note: Unprepared) -> Notes:
        if self.number == note.number and self.state is MemberState.PREPARING:
            yield from self._unable(note.why)

    def _unable(self, why: str) -> Notes:
        """Vote against the present proposal and leave it. The vote ends the proposal, so the host does not wait."""
        self.to(MemberEvent.UNABLE)
        self.error = why[:4000]
        self._vote()
        yield from self._release()

    def _vote(self) -> None:
        out = self._out
        vote = m.Vote(out.run, self.number, out.host, self._flow.last_sent, self.error)
        out.send(self._install.client, vote)

    # --- the client's decision ------------------------------------------------------------------------

    def on_commit(self, sender: str, message: m.Commit) -> Notes:
        """Apply a commit, which the client has sent or a host has piggybacked on a partition."""
        if not self._credible(sender, message):
            self._unexpected(sender, "Commit", message.number)
        elif message.number < self.number or (message.number == self.number and not self.busy):
            self._done(message.number, retired=message.shape is not None and not message.shape.grows)
        elif message.number == self.number and self.state in (MemberState.SWITCHING, MemberState.BOTH):
            if self.state is MemberState.BOTH:
                self.on_merged(Merged())
        elif message.shape is not None and message.shape.grows:
            if self._query_attachment.is_past(message):
                self._done(message.number)
            else:
                yield from self._grow(sender, message)
        elif message.shape is not None:
            yield from self._switch_trees(sender, message)
        elif self.state in (MemberState.VOTED, MemberState.FREE):
            yield from self._switch(message)

    def _credible(self, sender: str, commit: m.Commit) -> bool:
        """Return whether a commit can be from the client, although a host may have passed it on."""
        number, me = self.number, self._out.host
        if commit.number < number or (commit.number == number and self.state is not MemberState.VOTED):
            return True  # the commit changes nothing
        if commit.number == number:
            return (commit.moves, commit.shape, commit.ways) == (self.moves, self.shape, self.ways)
        if self.busy:  # R4: the client concludes the present proposal first
            return False
        if sender != self._install.client:  # passed on: can only be of the next proposal, without a vote of this host
            grafts = commit.shape.grafts if commit.shape is not None and commit.shape.grows else ()
            voter = any(me in (move.source, move.target) for move in commit.moves) or self._flow.last_sent >= 0
            voter = voter or any(me == graft.host for graft in grafts)
            if commit.number != number + 1 or voter:
                return False
        return not self._directory.wrong(commit.moves)

    def routes_by(self, sender: str, commit: m.Commit) -> tuple[m.RoutePreference, ...]:
        """Return the networks between hosts by a commit that is piggybacked on an arriving partition.

        The result is empty if the host knows the commit already, or if the commit cannot be from the client.
        """
        if commit.ways is None or commit.number < self.number:
            return ()
        known = commit.number == self.number and self.state is not MemberState.VOTED
        return commit.ways if not known and self._credible(sender, commit) else ()

    def _switch(self, message: m.Commit) -> Notes:
        """Apply the committed placement (R2).

        Update the locations, expect arriving operators, hand over leaving operators, and resume the sources.
        """
        host, departures = self._out.host, self._departures
        self._enter(message)
        self._directory.switch_over(message)
        for move in message.moves:
            self._arrivals.expect(move.node, message.number, message.iteration + 1)
        for move in message.moves:
            # R5: an operator that cannot leave stays on its host
            if move.source == host and not departures.obstacle(move.node, move.target):
                yield from departures.begin(
                    move.node, move.target, protocol="barrier", reason=message.reason,
                    after=message.iteration, number=message.number,
                )  # fmt: skip
        self.to(MemberEvent.COMMITTED)  # not before: a hand-over that is over at once need not be the last
        yield from self._flow.resume()
        self.on_settled(HandoverFinished(message.number))

    def _grow(self, sender: str, message: m.Commit) -> Notes:
        """Begin the committed query (R7), and resume the sources. An impossible commit is only recorded."""
        if self.state not in (MemberState.VOTED, MemberState.FREE) or not self._query_attachment.can_begin(message):
            self._unexpected(sender, "Commit", message.number)
            return
        self._enter(message)
        self.to(MemberEvent.COMMITTED)
        yield from self._query_attachment.begin(message)
        yield from self._flow.resume()
        self.on_settled(HandoverFinished(message.number))

    def _switch_trees(self, sender: str, message: m.Commit) -> Notes:
        """Add the committed tree to the old one (R6), and resume the sources. An impossible commit is only recorded."""
        if self.state not in (MemberState.VOTED, MemberState.FREE) or not self._reshaping.can_switch(message):
            self._unexpected(sender, "Commit", message.number)
            return
        self._enter(message)
        self.to(MemberEvent.RESHAPED)
        yield from self._reshaping.switch(message)
        yield from self._flow.resume()
        self._inheritance.begin(message)
        self.on_merged(Merged())

    def on_merged(self, _: Merged) -> None:
        """Answer that this host has both trees, when no operator here waits for a state of the old tree."""
        if not self._inheritance.heirs:
            self._done(self.number)

    def on_retire(self, sender: str, message: m.Retire) -> None:
        both = message.number == self.number and self.state is MemberState.BOTH
        if message.number > self.number or (both and not self._reshaping.drained):
            self._unexpected(sender, "Retire", message.number)
            return
        if both:
            self._reshaping.retire()
            self.to(MemberEvent.RETIRED)
        self._done(message.number, retired=True)

    def on_abort(self, _: str, message: m.Abort) -> Notes:
        """End a proposal without moves (R3): resume the sources and answer ``Done``."""
        if message.number == self.number and self.state in (MemberState.PREPARING, MemberState.VOTED):
            self.to(MemberEvent.ABORTED)
            yield from self._release()
        self.number = max(self.number, message.number)  # late messages of the proposal change nothing
        if self.state is not MemberState.SWITCHING:
            self._done(message.number)

    def on_settled(self, note: HandoverFinished) -> None:
        """Answer ``Done`` when the last hand-over of the present proposal from this host is over."""
        number = note.number
        if not number or self.number != number or self.state is not MemberState.SWITCHING:
            return
        if not any(departure.number == number for departure in self._departures.leaving.values()):
            self.to(MemberEvent.SETTLED)
            self._done(number)

    def _done(self, number: int, *, retired: bool = False) -> None:
        out, locations = self._out, self._directory.locations
        left = [move.node for move in self.moves if move.source == out.host] if self.number == number else []
        where = tuple(locations[name] for name in left if name in locations)  # refused moves may name anything
        out.send(self._install.client, m.Done(out.run, number, out.host, where, retired))

    def _release(self) -> Notes:
        """Undo the preparation of a proposal: forget operators that were to come or appear, and resume the sources."""
        self._arrivals.uninvite(self.number)
        if (inheritance := self._parts.existing(Inheritance)) is not None:
            inheritance.give_up()
        yield from self._flow.resume()

    def _unexpected(self, sender: str, kind: str, number: int) -> None:
        self._out.record("unexpected", peer=sender, detail={"message": kind, "number": number})

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError for an invariant that does not hold."""
        two_trees = self._parts.get(Tree).former is not None
        assert two_trees == (self.state is MemberState.BOTH), self.state
        new = [name for name, arrival in self._arrivals.coming.items() if not arrival.source]
        assert not new or self.state in (MemberState.PREPARING, MemberState.VOTED), self.state

    @property
    def _query_attachment(self) -> QueryAttachment:
        return self._parts.get(QueryAttachment)

    @property
    def _reshaping(self) -> Reshaping:
        return self._parts.get(Reshaping)

    @property
    def _inheritance(self) -> Inheritance:
        return self._parts.get(Inheritance)

    HANDLERS = Handlers(
        messages={m.Propose: on_propose, m.Commit: on_commit, m.Abort: on_abort, m.Retire: on_retire},
        notes={HandoverFinished: on_settled, Prepared: on_prepared, Unprepared: on_unprepared, Merged: on_merged},
    )
