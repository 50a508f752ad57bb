"""All operators of a new placement change over together, between two iterations (Ranganathan et al., section 2.2).

Rules:

- The client proposes moves; the proposal goes up the tree, from consumers to producers, and straight to all who have
  a vote: an operator may just be between two hosts, and it is the sooner there. On first seeing it a host's sources
  suspend: they dispatch nothing new. Every host that hears of it votes, and those with sources, or that
  operators leave or come to, are waited for; a vote for it tells the last partition the host's sources have dispatched.
- When all have voted for it, the client commits the highest of these as the change-over iteration: no node can
  have dispatched a later one. Every host then sends what concerns later partitions to the new places, and each operator
  is handed over (``relocation``) when it has dispatched that partition. Sources resume. The commit also rides on
  the first partition after the change-over, so that no host works on that before it knows.
- One vote against it, a host that goes away, or no complete vote in time, and the client aborts: everybody resumes,
  nothing has moved. The client's word is final either way, and repeated until every host says it is done.
- Proposals have increasing numbers, and only the client's count. One at a time: a later one waits for the end of
  the present one, and takes the place of another that waits.
- A hand-over that fails after the commit leaves that one operator where it was; its new location says so.
- Instead of moves a proposal may be another shape (``reshaping``). All hosts with operators, and those on which some
  appear, vote on it, so none is being handed over. Committed, every host has both trees; when all have them, and the
  sink has got the change-over iteration, the client has all hosts retire the old one. It is over when they have, and
  a partition has come through the new one: however fast shapes change, partitions come.

The tables of both sides are in ``proposal``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.middleware.core.relocation.proposal import (
    MemberEvent,
    MemberState,
    Proposal,
    ProposalEvent,
    ProposalState,
    Switch,
    Wish,
)
from thalweg.middleware.core.relocation.shape import Reshaped, as_rows, reshape
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class Barrier:
    """Proposals that this host's application makes, and those of others in which it takes part."""

    def __init__(self, core: HostCore) -> None:
        self.core = core

    # --- the client -----------------------------------------------------------------------------------

    def propose(
        self,
        run: RunState,
        placement: dict[str, str],
        reason: str,
        dataflow: Dataflow | None = None,
        free: tuple[Code, ...] = (),
    ) -> bool:
        """Proposal over to ``placement`` as soon as no other change is under way; False when nothing would change.

        With ``dataflow`` to another tree, in which operators whose code is in ``free`` may be others.
        """
        proposer = run.proposer
        if proposer.change is not None:
            if proposer.next is not None:
                self._record(run, 0, (), "superseded", "a later proposal took its place", proposer.next.reason)
            proposer.next = Wish(placement, reason, dataflow, free)
            return True
        number = proposer.count + 1
        hosts = {name: entry.host for name, entry in run.locations.items()}
        grown: Reshaped | None = None
        if dataflow is not None:
            first = run.install.dataflow.by_name
            try:
                grown = reshape(run.dataflow, dataflow, placement, hosts, free or run.free, number, first, run.merging)
            except DataflowError as error:
                self._record(run, 0, (), "aborted", str(error), reason)
                return False
            if not grown.grafts:
                placement, grown = grown.moves, None
        moves = () if grown is not None else self._moves(run, placement)
        if not moves and grown is None:
            return False
        proposer.count = number
        pins = (run.dataflow.by_name[name].pinned for name in run.dataflow.sources)
        voters = {host for host in pins if host is not None} | {move.source for move in moves}
        voters |= {move.target for move in moves}
        shape = None
        if grown is not None:
            present = tuple(run.locations[name] for name in run.dataflow.operators)
            shape = m.Shape(grown.grafts, present)
            voters |= {entry.host for entry in present} | {graft.host for graft in grown.grafts if graft.like}
        change = proposer.change = Proposal(number, moves, voters, reason, self.core.now, shape)
        if grown is not None:
            where = hosts | {graft.node: graft.host for graft in grown.grafts}
            change.trees = {"before": as_rows(run.dataflow, hosts), "after": as_rows(grown.dataflow, where)}
            change.then = grown.moves
        root = run.dataflow.by_name[run.dataflow.sink].inputs[0]
        for host in sorted({run.locations[root].host, *voters}):
            self.core.send(run.id, host, m.Propose(run.id, number, moves, shape))
        self._arm(run)
        return True

    @staticmethod
    def _moves(run: RunState, placement: dict[str, str]) -> tuple[m.Move, ...]:
        return tuple(
            m.Move(name, run.locations[name].host, host, run.locations[name].version)
            for name, host in placement.items()
            if name in run.locations and run.locations[name].host != host  # it may have gone with another shape
        )

    def on_vote(self, sender: str, message: m.Vote) -> None:
        run, change = self._change(message.run, message.number)
        if run is None or sender not in run.hosts:
            return
        if change is None:
            self.core.send(run.id, sender, m.Abort(run.id, message.number))  # of a proposal long over
            return
        if change.state is not ProposalState.PROPOSED:
            self._tell(run, change, sender)
        elif message.error:
            self._end(run, change, ProposalEvent.REFUSED, f"host {sender!r}: {message.error}")
        elif sender in change.waiting:
            change.waiting.discard(sender)
            change.iteration = max(change.iteration, message.iteration)
            if not change.waiting:
                self._end(run, change, ProposalEvent.AGREED, "")

    def on_done(self, sender: str, message: m.Done) -> None:
        run, change = self._change(message.run, message.number)
        if run is None or sender not in run.hosts:
            return
        self.core.locate(run, message.locations)
        if change is not None and change.state is not ProposalState.PROPOSED and sender in change.waiting:
            if change.state is ProposalState.RETIRING and not message.retired:  # it says again that it has both trees
                return
            change.waiting.discard(sender)
            self._check_done(run, change)

    def on_timer(self, run_id: str) -> None:
        """Repeat what has not been answered; give a proposal up that has not got its votes in time."""
        run = self.core.runs.get(run_id)
        change = run.proposer.change if run is not None else None
        if run is None or change is None or not change.waiting:
            return
        if change.state is ProposalState.PROPOSED:
            if self.core.now - change.begun_s >= self.core.config.barrier_s:
                silent = ", ".join(sorted(change.waiting))
                self._end(
                    run, change, ProposalEvent.EXPIRED, f"no vote of {silent} in {self.core.config.barrier_s:g} s"
                )
                return
            for host in sorted(change.waiting):
                self.core.send(run.id, host, m.Propose(run.id, change.number, change.moves, change.shape))
        else:
            for host in sorted(change.waiting):
                self._tell(run, change, host)
        self._arm(run)

    def on_lost(self, run: RunState, host: str) -> None:
        change = run.proposer.change
        if change is None:
            return
        if change.state is ProposalState.PROPOSED:
            grafts = () if change.shape is None else change.shape.grafts
            concerned = {host for move in change.moves for host in (move.source, move.target)}
            if host in change.waiting or host in concerned or any(graft.host == host for graft in grafts):
                self._end(run, change, ProposalEvent.LOST, f"host {host!r} went away")
        elif host in change.waiting:
            change.waiting.discard(host)
            self._check_done(run, change)

    def _end(self, run: RunState, change: Proposal, news: ProposalEvent, why: str) -> None:
        """Commit or abort, or retire the old tree, and tell everyone."""
        change.to(news)
        change.phases_s[change.state.value] = self.core.now
        change.why = why
        change.waiting = set(run.hosts)
        for host in sorted(change.waiting):
            self._tell(run, change, host)
        self._arm(run)

    def _tell(self, run: RunState, change: Proposal, host: str) -> None:
        word: m.Commit | m.Retire | m.Abort
        if change.state is ProposalState.COMMITTED:
            word = m.Commit(run.id, change.number, change.iteration, change.moves, change.reason, change.shape)
        elif change.state is ProposalState.RETIRING:
            word = m.Retire(run.id, change.number)
        else:
            word = m.Abort(run.id, change.number)
        self.core.send(run.id, host, word)

    def on_delivered(self, run: RunState) -> None:
        """The application has got a partition; the change of the shape may wait for it."""
        change, now = run.proposer.change, self.core.now
        run.proposer.delivered_s = now
        if change is None or change.shape is None or change.state in (ProposalState.PROPOSED, ProposalState.ABORTED):
            return
        delivered = run.nodes[run.dataflow.sink].index - 1
        if delivered == change.iteration:
            change.drained_s = change.drained_s or now
        elif delivered == change.iteration + 1:
            change.phases_s["first"] = now
        self._check_done(run, change)

    def on_close(self, run: RunState) -> None:
        """The run is over in the middle of a proposal."""
        change = run.proposer.change
        if change is not None:
            why = "" if change.outcome == "committed" else change.why or "the run ended before"
            self._record(run, change.number, change.moves, change.outcome, why, change.reason, change)

    def _check_done(self, run: RunState, change: Proposal) -> None:
        if change.waiting:
            return
        if change.shape is not None and change.state is not ProposalState.ABORTED:
            change.phases_s.setdefault("switched", self.core.now)
            delivered = run.nodes[run.dataflow.sink].index - 1
            if change.state is ProposalState.COMMITTED:
                if delivered >= change.iteration:
                    change.drained_s = change.drained_s or run.proposer.delivered_s  # before it was committed
                    self._end(run, change, ProposalEvent.DRAINED, "")
                return
            if delivered <= change.iteration:
                return
        outcome = change.outcome
        change.to(ProposalEvent.DONE)
        run.proposer.change = None
        self._record(run, change.number, change.moves, outcome, change.why, change.reason, change)
        self.core.steering.on_change_over(run, change)
        wish, run.proposer.next = run.proposer.next, None
        if wish is not None:
            self.propose(run, wish.placement, wish.reason, wish.dataflow, wish.free)
        newer = {} if wish is None else wish.placement
        left = {name: host for name, host in change.then.items() if name not in newer}
        if left and outcome == "committed":
            self.propose(run, left, change.reason)

    def _record(
        self,
        run: RunState,
        number: int,
        moves: tuple[m.Move, ...],
        outcome: str,
        why: str,
        reason: str,
        change: Proposal | None = None,
    ) -> None:
        committed = change is not None and outcome == "committed"
        detail = {"number": number, "outcome": outcome, "why": why, "reason": reason}
        if change is not None and change.shape is not None:
            self._record_shape(run, change, detail)
            return
        self.core.record(
            run.id,
            "proposal",
            index=change.iteration if change is not None and committed else None,
            duration_s=None if change is None else self.core.now - change.begun_s,
            detail=detail | {"moves": [[move.node, move.source, move.target] for move in moves]},
        )

    def _record_shape(self, run: RunState, change: Proposal, detail: dict[str, Any]) -> None:
        """The pause: between the last partition of the old tree and the first of the new one, at the application."""
        committed, first_s = detail["outcome"] == "committed", change.phases_s.get("first")
        detail["outcome"] = "reshaped" if committed else "stayed"
        ago = {phase: self.core.now - at for phase, at in change.phases_s.items()}
        self.core.record(
            run.id,
            "reshaped",
            index=change.iteration + 1 if committed else None,
            duration_s=None if first_s is None or change.drained_s is None else first_s - change.drained_s,
            detail=detail | {"ago": ago, **change.trees},
        )

    def _change(self, run_id: str, number: int) -> tuple[RunState | None, Proposal | None]:
        """The run, if it is this host's own, and its present proposal, if it has this number."""
        run = self.core.runs.get(run_id)
        if run is None or run.install.client != self.core.host:
            return None, None
        change = run.proposer.change
        return run, change if change is not None and change.number == number else None

    def _arm(self, run: RunState) -> None:
        if run.proposer.change is not None and run.proposer.change.waiting:
            self.core.emit(e.SetTimer(f"barrier {run.id}", self.core.now + self.core.config.retry_s))

    # --- every host -----------------------------------------------------------------------------------

    def on_propose(self, sender: str, message: m.Propose) -> None:
        run = self.core.runs.get(message.run)
        if run is None or sender not in run.hosts:
            return
        member = run.member
        if message.number == member.number and (member.state is MemberState.VOTED or member.error):
            self._vote(run)  # the first one may have been lost
        known = sender == run.install.client or message.number == member.number + 1  # passed on, as others do
        if message.number <= member.number or not known:
            return
        if member.state is not MemberState.FREE:
            self.core.record(run.id, "unexpected", peer=sender, detail={"message": "Propose", "number": message.number})
            return
        member.number, member.moves, member.error = message.number, message.moves, ""
        member.to(MemberEvent.PROPOSED)
        self._pass_on(run, sender, message)
        for node in run.nodes.values():
            if node.node.kind == "source":
                node.suspend()
        for move in message.moves:
            if self.core.host in (move.source, move.target):
                other = move.target if move.source == self.core.host else move.source
                self.core.emit(e.Approach(run.id, other))
        error = self._obstacle(run, message.moves)
        if message.shape is not None and not error:
            error = self.core.reshaper.prepare(run, message)
        for move in message.moves if not error else ():
            if move.target == self.core.host and not error:
                error = self.core.mover.invite(run, move.node, move.source, move.version, message.number)
        if error:
            self._unable(run, error)
        else:
            self.on_prepared(run)

    def _pass_on(self, run: RunState, sender: str, message: m.Propose) -> None:
        """Up the tree: to the hosts of the producers of the nodes that are here."""
        above = {run.locations[producer].host for node in run.nodes.values() for producer in node.node.inputs}
        for host in sorted(above - {self.core.host, sender}):
            self.core.send(run.id, host, message)

    def _obstacle(self, run: RunState, moves: tuple[m.Move, ...]) -> str:
        """Why this host cannot let its operators go; empty when it can."""
        for move in moves:
            if move.node not in run.locations:
                return f"there is no node {move.node!r}"
            location = run.locations[move.node]
            if location.version > move.version:
                return f"{move.node!r} has moved to host {location.host!r} meanwhile"
            if move.source == self.core.host:
                error = self.core.mover.obstacle(run, move.node, move.target)
                if error:
                    return error
        return ""

    def on_prepared(self, run: RunState) -> None:
        """Vote, if everything that may come here has its code loaded."""
        member = run.member
        coming = [guest for guest in run.guests.values() if guest.number == member.number]
        ready = all(guest.state == "prepared" for guest in coming) and all(bud.ready for bud in run.buds.values())
        if member.state is MemberState.PREPARING and ready:
            member.to(MemberEvent.READY)
            self._vote(run)

    def on_unprepared(self, run: RunState, number: int, why: str) -> None:
        if run.member.number == number and run.member.state is MemberState.PREPARING:
            self._unable(run, why)

    def _unable(self, run: RunState, why: str) -> None:
        """A vote against it is the end of a proposal: there is nothing to wait for."""
        run.member.to(MemberEvent.UNABLE)
        run.member.error = why[:4000]
        self._vote(run)
        self._release(run)

    def _vote(self, run: RunState) -> None:
        sources = [node for node in run.nodes.values() if node.node.kind == "source"]
        iteration = max((node.index - 1 for node in sources), default=-1)
        vote = m.Vote(run.id, run.member.number, self.core.host, iteration, run.member.error)
        self.core.send(run.id, run.install.client, vote)

    def on_commit(self, sender: str, message: m.Commit) -> None:
        run = self.core.runs.get(message.run)
        if run is None:
            return
        member = run.member
        if message.number < member.number or (message.number == member.number and member.state is MemberState.FREE):
            self._done(run, message.number, retired=message.shape is not None)
            return
        if message.number == member.number and member.state in (MemberState.SWITCHING, MemberState.BOTH):
            if member.state is MemberState.BOTH:
                self.on_merged(run)
            return
        if message.shape is not None:
            self._switch(run, sender, message)
            return
        if member.state in (MemberState.VOTED, MemberState.FREE):
            member.number, member.moves, member.error = message.number, message.moves, ""
            run.switch = Switch(message.iteration, {move.node: move for move in message.moves}, message)
            for move in message.moves:
                guest = run.guests.get(move.node)
                if guest is not None and guest.number == message.number:
                    guest.expects = message.iteration + 1
            mover = self.core.mover
            for move in message.moves:
                if move.source == self.core.host and not mover.obstacle(run, move.node, move.target):
                    mover.begin(
                        run, move.node, move.target, protocol="barrier", reason=message.reason,
                        after=message.iteration, number=message.number,
                    )  # fmt: skip
            member.to(MemberEvent.COMMITTED)  # not before: a hand-over may be over at once, and is not the last
            self._resume(run)
            self.on_settled(run, message.number)

    def _switch(self, run: RunState, sender: str, message: m.Commit) -> None:
        """Another shape is committed."""
        member = run.member
        if member.state not in (MemberState.VOTED, MemberState.FREE) or not self.core.reshaper.can_switch(run, message):
            self.core.record(run.id, "unexpected", peer=sender, detail={"message": "Commit", "number": message.number})
            return
        member.number, member.moves, member.error = message.number, message.moves, ""
        run.switch = Switch(message.iteration, {}, message)
        todo = self.core.reshaper.switch(run, message)
        member.to(MemberEvent.RESHAPED)
        for node, actions in todo:
            self.core.flow.perform(run, node, actions)
        self._resume(run)
        self.core.inheritance.begin(run, message)
        self.on_merged(run)

    def on_merged(self, run: RunState) -> None:
        """This host has both trees; it says so when nothing in the new one waits for a state of the old."""
        if not run.heirs:
            self._done(run, run.member.number)

    def on_retire(self, sender: str, message: m.Retire) -> None:
        run = self.core.runs.get(message.run)
        if run is None or message.number > run.member.number:
            return
        if message.number == run.member.number and run.member.state is MemberState.BOTH:
            self.core.reshaper.retire(run)
            run.member.to(MemberEvent.RETIRED)
        self._done(run, message.number, retired=True)

    def on_abort(self, sender: str, message: m.Abort) -> None:
        run = self.core.runs.get(message.run)
        if run is None:
            return
        member = run.member
        if message.number == member.number and member.state in (MemberState.PREPARING, MemberState.VOTED):
            member.to(MemberEvent.ABORTED)
            self._release(run)
        member.number = max(member.number, message.number)  # what comes late of it is not news
        if member.state is not MemberState.SWITCHING:
            self._done(run, message.number)

    def on_settled(self, run: RunState, number: int) -> None:
        """A hand-over of proposal ``number`` is over: when it was the last, this host is done."""
        member = run.member
        if not number or member.number != number or member.state is not MemberState.SWITCHING:
            return
        if not any(leaving.number == number for leaving in run.leaving.values()):
            member.to(MemberEvent.SETTLED)
            self._done(run, number)

    def _done(self, run: RunState, number: int, *, retired: bool = False) -> None:
        member = run.member
        mine = [move.node for move in member.moves if move.source == self.core.host] if member.number == number else []
        locations = tuple(run.locations[name] for name in mine)
        self.core.send(run.id, run.install.client, m.Done(run.id, number, self.core.host, locations, retired))

    def _release(self, run: RunState) -> None:
        """Everything as it was before the proposal."""
        self.core.mover.uninvite(run, run.member.number)
        self.core.reshaper.discard(run)
        self._resume(run)

    def _resume(self, run: RunState) -> None:
        for node in list(run.nodes.values()):
            if node.suspended:
                self.core.flow.perform(run, node, node.resume())
