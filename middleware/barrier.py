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

``CHANGE`` is the client's side, ``MEMBER`` every host's (the client is a host, too).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.node import InvalidTransition

if TYPE_CHECKING:
    from thalweg.middleware.host_core import HostCore
    from thalweg.middleware.run_state import RunState


class Phase(StrEnum):
    PROPOSED = "proposed"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OVER = "over"


class News(StrEnum):
    AGREED = "all agreed"
    REFUSED = "refused"
    EXPIRED = "expired"
    LOST = "host lost"
    DONE = "all done"


CHANGE: dict[tuple[Phase, News], Phase] = {
    (Phase.PROPOSED, News.AGREED): Phase.COMMITTED,
    (Phase.PROPOSED, News.REFUSED): Phase.ABORTED,
    (Phase.PROPOSED, News.EXPIRED): Phase.ABORTED,
    (Phase.PROPOSED, News.LOST): Phase.ABORTED,
    (Phase.COMMITTED, News.DONE): Phase.OVER,
    (Phase.ABORTED, News.DONE): Phase.OVER,
}


class Part(StrEnum):
    FREE = "free"
    PREPARING = "preparing"  # suspended; code is being loaded
    VOTED = "voted"  # suspended
    SWITCHING = "switching"  # operators are being handed over


class Word(StrEnum):
    PROPOSED = "proposed"
    READY = "ready"
    UNABLE = "unable"
    COMMITTED = "committed"
    ABORTED = "aborted"
    SETTLED = "settled"


MEMBER: dict[tuple[Part, Word], Part] = {
    (Part.FREE, Word.PROPOSED): Part.PREPARING,
    (Part.FREE, Word.COMMITTED): Part.SWITCHING,  # it had no vote, or has not heard of the proposal
    (Part.PREPARING, Word.READY): Part.VOTED,
    (Part.PREPARING, Word.UNABLE): Part.FREE,
    (Part.PREPARING, Word.ABORTED): Part.FREE,
    (Part.VOTED, Word.COMMITTED): Part.SWITCHING,
    (Part.VOTED, Word.ABORTED): Part.FREE,
    (Part.SWITCHING, Word.SETTLED): Part.FREE,
}


class Change:
    """A proposal as the client sees it."""

    def __init__(self, number: int, moves: tuple[m.Move, ...], voters: set[str], reason: str, now: float) -> None:
        self.number, self.moves, self.reason = number, moves, reason
        self.phase = Phase.PROPOSED
        self.waiting = voters  # for their votes, then for all hosts to be done
        self.iteration = -1
        self.begun_s = now
        self.why = ""

    def move(self, news: News) -> None:
        try:
            self.phase = CHANGE[self.phase, news]
        except KeyError:
            raise InvalidTransition(f"proposal {self.number}, {self.phase}: {news}") from None


class Wish(msgspec.Struct, frozen=True):
    """A placement that waits for the end of the present proposal."""

    placement: dict[str, str]
    reason: str


class Proposer:
    """The client's side of one run."""

    def __init__(self) -> None:
        self.count = 0
        self.change: Change | None = None
        self.next: Wish | None = None


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


class Barrier:
    """Proposals that this host's application makes, and those of others in which it takes part."""

    def __init__(self, core: HostCore) -> None:
        self.core = core

    # --- the client -----------------------------------------------------------------------------------

    def propose(self, run: RunState, placement: dict[str, str], reason: str) -> bool:
        """Change over to ``placement`` as soon as no other change is under way; False when nothing would move."""
        proposer = run.proposer
        if proposer.change is not None:
            if proposer.next is not None:
                self._record(run, 0, (), "superseded", "a later proposal took its place", proposer.next.reason)
            proposer.next = Wish(placement, reason)
            return True
        moves = tuple(
            m.Move(name, run.locations[name].host, host, run.locations[name].version)
            for name, host in placement.items()
            if run.locations[name].host != host
        )
        if not moves:
            return False
        proposer.count += 1
        pins = (run.install.dataflow.by_name[name].pinned for name in run.install.dataflow.sources)
        sources = {host for host in pins if host is not None}
        voters = sources | {move.source for move in moves} | {move.target for move in moves}
        change = proposer.change = Change(proposer.count, moves, voters, reason, self.core.now)
        root = run.install.dataflow.by_name[run.install.dataflow.sink].inputs[0]
        for host in sorted({run.locations[root].host, *voters}):
            self.core.send(run.id, host, m.Propose(run.id, change.number, moves))
        self._arm(run)
        return True

    def on_vote(self, sender: str, message: m.Vote) -> None:
        run, change = self._change(message.run, message.number)
        if run is None or sender not in run.hosts:
            return
        if change is None:
            self.core.send(run.id, sender, m.Abort(run.id, message.number))  # of a proposal long over
            return
        if change.phase is not Phase.PROPOSED:
            self._tell(run, change, sender)
        elif message.error:
            self._end(run, change, News.REFUSED, f"host {sender!r}: {message.error}")
        elif sender in change.waiting:
            change.waiting.discard(sender)
            change.iteration = max(change.iteration, message.iteration)
            if not change.waiting:
                self._end(run, change, News.AGREED, "")

    def on_done(self, sender: str, message: m.Done) -> None:
        run, change = self._change(message.run, message.number)
        if run is None or sender not in run.hosts:
            return
        self.core.locate(run, message.locations)
        if change is not None and change.phase is not Phase.PROPOSED and sender in change.waiting:
            change.waiting.discard(sender)
            self._check_done(run, change)

    def on_timer(self, run_id: str) -> None:
        """Repeat what has not been answered; give a proposal up that has not got its votes in time."""
        run = self.core.runs.get(run_id)
        change = run.proposer.change if run is not None else None
        if run is None or change is None:
            return
        if change.phase is Phase.PROPOSED:
            if self.core.now - change.begun_s >= self.core.config.barrier_s:
                silent = ", ".join(sorted(change.waiting))
                self._end(run, change, News.EXPIRED, f"no vote of {silent} in {self.core.config.barrier_s:g} s")
                return
            for host in sorted(change.waiting):
                self.core.send(run.id, host, m.Propose(run.id, change.number, change.moves))
        else:
            for host in sorted(change.waiting):
                self._tell(run, change, host)
        self._arm(run)

    def on_lost(self, run: RunState, host: str) -> None:
        change = run.proposer.change
        if change is None:
            return
        if change.phase is Phase.PROPOSED:
            if host in change.waiting or any(host in (move.source, move.target) for move in change.moves):
                self._end(run, change, News.LOST, f"host {host!r} went away")
        elif host in change.waiting:
            change.waiting.discard(host)
            self._check_done(run, change)

    def _end(self, run: RunState, change: Change, news: News, why: str) -> None:
        """Commit or abort, and tell everyone."""
        change.move(news)
        change.why = why
        change.waiting = set(run.hosts)
        for host in sorted(change.waiting):
            self._tell(run, change, host)
        self._arm(run)

    def _tell(self, run: RunState, change: Change, host: str) -> None:
        if change.phase is Phase.COMMITTED:
            self.core.send(run.id, host, m.Commit(run.id, change.number, change.iteration, change.moves, change.reason))
        else:
            self.core.send(run.id, host, m.Abort(run.id, change.number))

    def on_close(self, run: RunState) -> None:
        """The run is over in the middle of a proposal."""
        change = run.proposer.change
        if change is not None:
            committed = change.phase is Phase.COMMITTED
            outcome, why = ("committed", "") if committed else ("aborted", change.why or "the run ended before")
            self._record(run, change.number, change.moves, outcome, why, change.reason, change)

    def _check_done(self, run: RunState, change: Change) -> None:
        if change.waiting:
            return
        outcome = change.phase.value
        change.move(News.DONE)
        run.proposer.change = None
        self._record(run, change.number, change.moves, outcome, change.why, change.reason, change)
        self.core.steering.on_change_over(run, change.moves)
        wish, run.proposer.next = run.proposer.next, None
        if wish is not None:
            self.propose(run, wish.placement, wish.reason)

    def _record(
        self,
        run: RunState,
        number: int,
        moves: tuple[m.Move, ...],
        outcome: str,
        why: str,
        reason: str,
        change: Change | None = None,
    ) -> None:
        self.core.record(
            run.id,
            "proposal",
            index=change.iteration if change is not None and outcome == Phase.COMMITTED else None,
            duration_s=None if change is None else self.core.now - change.begun_s,
            detail={
                "number": number,
                "moves": [[move.node, move.source, move.target] for move in moves],
                "outcome": outcome,
                "why": why,
                "reason": reason,
            },
        )

    def _change(self, run_id: str, number: int) -> tuple[RunState | None, Change | None]:
        """The run, if it is this host's own, and its present proposal, if it has this number."""
        run = self.core.runs.get(run_id)
        if run is None or run.install.client != self.core.host:
            return None, None
        change = run.proposer.change
        return run, change if change is not None and change.number == number else None

    def _arm(self, run: RunState) -> None:
        if run.proposer.change is not None:
            self.core.emit(e.SetTimer(f"barrier {run.id}", self.core.now + self.core.config.retry_s))

    # --- every host -----------------------------------------------------------------------------------

    def on_propose(self, sender: str, message: m.Propose) -> None:
        run = self.core.runs.get(message.run)
        if run is None or sender not in run.hosts:
            return
        member = run.member
        if message.number == member.number and (member.part is Part.VOTED or member.error):
            self._vote(run)  # the first one may have been lost
        known = sender == run.install.client or message.number == member.number + 1  # passed on, as others do
        if message.number <= member.number or not known:
            return
        if member.part is not Part.FREE:
            self.core.record(run.id, "unexpected", peer=sender, detail={"message": "Propose", "number": message.number})
            return
        member.number, member.moves, member.error = message.number, message.moves, ""
        member.move(Word.PROPOSED)
        self._pass_on(run, sender, message)
        for node in run.nodes.values():
            if node.node.kind == "source":
                node.suspend()
        for move in message.moves:
            if self.core.host in (move.source, move.target):
                other = move.target if move.source == self.core.host else move.source
                self.core.emit(e.Approach(run.id, other))
        error = self._obstacle(run, message.moves)
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
        if member.part is Part.PREPARING and all(guest.stage == "prepared" for guest in coming):
            member.move(Word.READY)
            self._vote(run)

    def on_unprepared(self, run: RunState, number: int, why: str) -> None:
        if run.member.number == number and run.member.part is Part.PREPARING:
            self._unable(run, why)

    def _unable(self, run: RunState, why: str) -> None:
        """A vote against it is the end of a proposal: there is nothing to wait for."""
        run.member.move(Word.UNABLE)
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
        if message.number < member.number or (message.number == member.number and member.part is Part.FREE):
            self._done(run, message.number)
            return
        if message.number == member.number and member.part is Part.SWITCHING:
            return
        if member.part in (Part.VOTED, Part.FREE):
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
            member.move(Word.COMMITTED)  # not before: a hand-over may be over at once, and is not the last
            self._resume(run)
            self.on_settled(run, message.number)

    def on_abort(self, sender: str, message: m.Abort) -> None:
        run = self.core.runs.get(message.run)
        if run is None:
            return
        member = run.member
        if message.number == member.number and member.part in (Part.PREPARING, Part.VOTED):
            member.move(Word.ABORTED)
            self._release(run)
        member.number = max(member.number, message.number)  # what comes late of it is not news
        if member.part is not Part.SWITCHING:
            self._done(run, message.number)

    def on_settled(self, run: RunState, number: int) -> None:
        """A hand-over of proposal ``number`` is over: when it was the last, this host is done."""
        member = run.member
        if not number or member.number != number or member.part is not Part.SWITCHING:
            return
        if not any(leaving.number == number for leaving in run.leaving.values()):
            member.move(Word.SETTLED)
            self._done(run, number)

    def _done(self, run: RunState, number: int) -> None:
        member = run.member
        mine = [move.node for move in member.moves if move.source == self.core.host] if member.number == number else []
        locations = tuple(run.locations[name] for name in mine)
        self.core.send(run.id, run.install.client, m.Done(run.id, number, self.core.host, locations))

    def _release(self, run: RunState) -> None:
        """Everything as it was before the proposal."""
        self.core.mover.uninvite(run, run.member.number)
        self._resume(run)

    def _resume(self, run: RunState) -> None:
        for node in list(run.nodes.values()):
            if node.suspended:
                self.core.perform(run, node, node.resume())
