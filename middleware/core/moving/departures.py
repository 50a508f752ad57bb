"""Operators on their way from this host. ``handover`` has the rules and the states."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.context.notes import (
    Ended,
    HandedOver,
    HandoverFinished,
    HostLost,
    Light,
    Misplaced,
    Note,
    Notes,
    OperatorLocated,
)
from thalweg.middleware.core.context.outbox import Alarm, RunContext, Timer
from thalweg.middleware.core.flow.directory import FAR, Directory
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.moving.handover import LEAVING, DepartureEvent, DepartureState, MoveAlarm
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.states.state_transfers import StateTransfer, StateTransfers, fields_of, refusal
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

WAITING = (DepartureState.OFFERED, DepartureState.SENT, DepartureState.COMMITTED)  # for the new host


@dataclass(eq=False, repr=False)
class Departure(Machine):
    """Hand-over of an operator, on the host that the operator leaves."""

    TABLE = LEAVING

    node: str
    target: str
    version: int
    protocol: str
    reason: str
    number: int  # of the barrier's proposal, 0 for none
    state: DepartureState = DepartureState.OFFERED
    begun_s: dict[str, float] = field(default_factory=dict)  # phase -> time of its beginning
    expires_s: float = 0.0
    taken: e.StateTaken | None = None
    transfer: StateTransfer = field(init=False)
    size_bytes: int = 0  # of the state
    index: int = 0  # next partition of the operator, known when it is light

    def __post_init__(self) -> None:
        self.transfer = StateTransfer(self.target)

    def __repr__(self) -> str:
        return f"{self.node} on its way to {self.target}, {self.state}"


class Departures(Part):
    """Operators of a run that are to leave this host."""

    @classmethod
    def of(cls, parts: RunParts) -> Departures:
        return cls(
            parts.context,
            parts.get(MoveAlarm),
            parts.get(Tree),
            parts.get(Directory),
            parts.get(EpochBooks),
            parts.get(Flow),
            parts.get(StateTransfers),
        )

    def __init__(
        self,
        context: RunContext,
        alarm: Alarm,
        tree: Tree,
        directory: Directory,
        books: EpochBooks,
        flow: Flow,
        states: StateTransfers,
    ) -> None:
        self._out, self._limits, self._install = context.out, context.limits, context.install
        self._alarm, self._tree, self._directory, self._books, self._flow = alarm, tree, directory, books, flow
        self._states = states
        self.leaving: dict[str, Departure] = {}
        self.state_bytes: dict[str, int] = {}  # of operators when they last left, at their host and at the client

    def obstacle(self, name: str, target: str) -> str:
        """Return why ``name`` cannot be handed over to ``target`` now, or an empty text."""
        here, node = self._out.host, self._flow.nodes.get(name)
        if node is None:
            return f"{name!r} is not on host {here!r}"
        if node.node.kind != "operator" or node.node.pinned is not None:
            return f"{node.node.kind} {name!r} is pinned to {here!r}"
        if target not in self._directory.hosts:
            return f"host {target!r} has no part in the run"
        if target == here:
            return f"{name!r} is on host {target!r} already"
        return self.going(name)

    def going(self, name: str) -> str:
        """Return that ``name`` is on its way to a host, as a line. Empty: it is not."""
        departure = self.leaving.get(name)
        return "" if departure is None else f"{name!r} is on its way to host {departure.target!r}"

    @property
    def undecided(self) -> bool:
        """Return whether the commit of a hand-over from this host is still open."""
        return any(departure.state is not DepartureState.COMMITTED for departure in self.leaving.values())

    def begin(self, name: str, target: str, *, protocol: str, reason: str, after: int = -1, number: int = 0) -> Notes:
        """Hand ``name`` over to ``target`` after partition ``after``. The caller has checked ``obstacle``.

        With ``number``, ``target`` has agreed to this proposal of a barrier. Else the operator is offered first.
        """
        version = self._directory.locations[name].version
        departure = self.leaving[name] = Departure(name, target, version, protocol, reason, number)
        departure.begun_s["decided"] = self._out.now
        if number:
            departure.to(DepartureEvent.ACCEPTED)
            yield from self._agreed(departure, after, recall=True)
        else:
            departure.expires_s = self._out.now + self._limits.handoff_s
            self._out.emit(e.Approach(self._out.run, target))
            self._offer(departure)
            self.arm()

    def arm(self) -> None:
        """Set the timer for the next check, if a hand-over waits for the new host."""
        if any(departure.state in WAITING for departure in self.leaving.values()):
            self._alarm.by(self._out.now + self._limits.retry_s)

    def _offer(self, departure: Departure) -> None:
        self._out.send(departure.target, m.Offer(self._out.run, departure.node, departure.version))

    def _agreed(self, departure: Departure, after: int, *, recall: bool) -> Notes:
        node = self._flow.nodes[departure.node]
        yield from self._flow.recall(node, node.leave(after, recall=recall))
        yield from self.on_ended(Ended(departure.node))

    # --- events of the operator -----------------------------------------------------------------------

    def on_ended(self, note: Ended) -> Notes:
        """Let an operator stay if its stream has ended before the operator was light."""
        departure, node = self.leaving.get(note.node), self._flow.nodes.get(note.node)
        if departure is None or node is None or node.state is not NodeState.ENDED:
            return
        if departure.can(DepartureEvent.ENDED):
            yield from self._stay(departure, DepartureEvent.ENDED, "the stream ended first")

    def take_state(self, note: Light) -> None:
        """Read the state of an operator that is light now (R1)."""
        departure = self.leaving[note.node]
        departure.to(DepartureEvent.LIGHTENED)
        departure.begun_s["suspended"] = self._out.now
        departure.index = self._flow.nodes[note.node].index
        self._flow.call_back(note.node)
        self._out.emit(e.TakeState(self._out.run, note.node, departure.version))

    def on_taken(self, event: e.StateTaken) -> Notes:
        departure = self.leaving.get(event.node)
        if departure is None or (departure.state, departure.version) != (DepartureState.SUSPENDED, event.version):
            return
        if event.delta is True:  # the state was requested earlier, for a replica
            return
        error = refusal(event, self._limits.max_state_bytes)
        if error:
            yield from self._stay(departure, DepartureEvent.FAILED, error)
            return
        departure.taken = event
        departure.size_bytes = self.state_bytes[event.node] = len(event.state)
        departure.begun_s["state_out"] = self._out.now
        departure.expires_s = self._out.now + self._limits.handoff_s
        departure.to(DepartureEvent.TAKEN)
        self._send_state(departure)
        self.arm()

    def _send_state(self, departure: Departure) -> None:
        name, snapshot = departure.node, departure.taken
        node, holder, consumers = self._flow.nodes[name], self._flow.tails.kept.get(name), self._tree.consumers[name]
        books = self._books.states(name, consumers)
        assert snapshot is not None
        demanded = [
            m.ConsumerDemand(consumer, state.demanded, books.get(consumer))
            for consumer, state in node.window.consumers.items()
        ]
        message = m.State(
            run=self._out.run,
            index=node.index,
            demanded=tuple(demanded),
            tail=self._out.host if node.window.unacked else "" if holder is None else holder.host,
            **fields_of(snapshot),
        )
        self._states.send(departure.transfer, message, snapshot.state)

    # --- messages of the new host ---------------------------------------------------------------------

    def on_transfer_over(self, _: str, message: m.State, *, arrived: bool) -> None:
        """Give the new host time to restore a state that has arrived."""
        departure = self.leaving.get(message.node)
        if departure is not None and departure.version == message.version and arrived:
            departure.expires_s = self._out.now + self._limits.handoff_s

    def on_accept(self, sender: str, message: m.Accept) -> Notes:
        departure = self._of(sender, message)
        if departure is None:
            here = self._directory.locations.get(message.node)
            if here is not None and here.version > message.version:  # else a commit is still to come here
                self._out.send(sender, m.Withdraw(self._out.run, message.node, message.version))
        elif departure.state is DepartureState.OFFERED:
            departure.to(DepartureEvent.ACCEPTED)
            yield from self._agreed(departure, -1, recall=False)
        elif departure.state is DepartureState.SENT:
            self._send_state(departure)  # R5: the state is sent again, unless it is under way

    def on_refuse(self, sender: str, message: m.Refuse) -> Notes:
        departure = self._of(sender, message)
        if departure is not None and departure.can(DepartureEvent.REFUSED):
            # R6: the operator stays, because the new host refuses it
            why = f"host {sender!r} refuses it: {message.reason}"
            yield from self._stay(departure, DepartureEvent.REFUSED, why)

    def on_restored(self, sender: str, message: m.Restored) -> None:
        departure = self._of(sender, message)
        if departure is not None and departure.state is DepartureState.SENT:
            self._commit(departure)
        elif departure is None and message.node in self._directory.locations:  # it stayed, or the message is late
            self._out.send(sender, m.Located(self._out.run, (self._directory.locations[message.node],)))

    def on_resumed(self, sender: str, message: m.Resumed) -> Notes:
        departure = self._of(sender, message)
        if departure is not None and departure.can(DepartureEvent.RESUMED):
            yield from self._over(departure, DepartureEvent.RESUMED, "")

    def on_located(self, note: OperatorLocated) -> Generator[Note, None, bool]:
        """End a hand-over if a version after the commit shows that the new host has resumed (R3)."""
        departure = self.leaving.get(note.entry.node)
        if departure is None or departure.state is not DepartureState.COMMITTED:
            return False
        if note.entry.version <= departure.version + 1:
            return False
        yield from self._over(departure, DepartureEvent.RESUMED, "")
        return True

    def _of(self, sender: str, message: Any) -> Departure | None:
        """Return the hand-over of a message. None: the hand-over is over, or a different one."""
        departure = self.leaving.get(message.node)
        if departure is None or departure.version != message.version or departure.target != sender:
            return None
        return departure

    # --- the end --------------------------------------------------------------------------------------

    def _commit(self, departure: Departure) -> None:
        """Commit a hand-over: from here on the operator is on the new host (R2)."""
        name = departure.node
        departure.to(DepartureEvent.RESTORED)
        departure.taken = None
        self._flow.release(name)  # R4: the tail of the operator stays here
        location = m.Location(name, departure.target, departure.version + 1)
        self._directory.settle((location,))
        self._out.emit(e.CloseNode(self._out.run, name))
        self._announce(location, departure.target)
        self._flow.follow(name)
        self.arm()

    def insist(self, note: Misplaced) -> None:
        """Give an operator here a version above that of a wrong location on a second host."""
        sender, entry = note.sender, note.entry
        movable = self._tree.node_of(entry.node).kind == "operator" and entry.node not in self.leaving
        if movable and entry.version <= self._directory.locations[entry.node].version + FAR:
            location = m.Location(entry.node, self._out.host, entry.version + 1)  # R3: no other host makes a version
            self._directory.settle((location,))
            self._announce(location, sender)

    def _announce(self, location: m.Location, other: str) -> None:
        """Send a new location to host ``other``, to the hosts of the operator's neighbours, and to the client."""
        name, tree = location.node, self._tree
        near = self._directory.where((*tree.consumers[name], *tree.node_of(name).inputs)).values()
        for host in dict.fromkeys((other, *near, self._install.client)):
            if host != self._out.host:
                self._out.send(host, m.Located(self._out.run, (location,)))

    def _stay(self, departure: Departure, event: DepartureEvent, why: str) -> Notes:
        """End a hand-over without a move. The operator goes on here, with a new version."""
        name, out = departure.node, self._out
        departure.to(event)
        out.send(departure.target, m.Withdraw(out.run, name, departure.version))
        location = m.Location(name, out.host, departure.version + 1)  # R3: the version ends the hand-over on every host
        self._directory.settle((location,))
        self._announce(location, departure.target)
        yield from self._flow.stay(name)
        yield from self._settled(departure, why)

    def _over(self, departure: Departure, event: DepartureEvent, why: str) -> Notes:
        """End a committed hand-over: the operator has resumed, or is lost with the new host."""
        departure.to(event)
        yield from self._settled(departure, why)

    def _settled(self, departure: Departure, why: str) -> Notes:
        name, out = departure.node, self._out
        del self.leaving[name]
        self._record(departure, why)
        moved, location = departure.state is DepartureState.MOVED, self._directory.locations[name]
        message = m.Relocated(out.run, name, moved, location, why[:4000], departure.size_bytes)
        out.send(self._install.client, message)
        yield HandoverFinished(departure.number)

    def _record(self, departure: Departure, why: str) -> None:
        now, suspended_s = self._out.now, departure.begun_s.get("suspended")
        moved = departure.state is DepartureState.MOVED
        self._out.record(
            "relocated",
            node=departure.node,
            peer=departure.target,
            index=departure.index if moved else self._flow.nodes[departure.node].index,
            size_bytes=departure.size_bytes,
            duration_s=None if suspended_s is None else now - suspended_s,
            detail={
                "outcome": departure.state.value,
                "protocol": departure.protocol,
                "reason": departure.reason,
                "why": why,
                "version": departure.version,
                "ago": {phase: now - at for phase, at in departure.begun_s.items()},
            },
        )

    def settle(self) -> Notes:
        """End the committed hand-overs, because the hosts have agreed on a new shape with their locations."""
        for departure in list(self.leaving.values()):
            if departure.can(DepartureEvent.RESUMED):
                yield from self._over(departure, DepartureEvent.RESUMED, "")

    def on_lost(self, note: HostLost) -> Notes:
        """End the hand-overs to a host that is lost for good. A committed operator is lost too."""
        why = f"host {note.host!r} went away"
        for departure in [departure for departure in self.leaving.values() if departure.target == note.host]:
            if departure.state is DepartureState.COMMITTED:
                yield from self._over(departure, DepartureEvent.LOST, why)
            else:
                yield from self._stay(departure, DepartureEvent.LOST, why)

    def on_timer(self) -> Notes:
        """Repeat messages without an answer, and end hand-overs that have expired (R5)."""
        for departure in list(self.leaving.values()):
            location = self._directory.locations[departure.node]
            moved_on = yield from self.on_located(OperatorLocated(location, self._out.host))
            if moved_on:
                continue
            if departure.state is DepartureState.COMMITTED:
                self._out.send(departure.target, m.Located(self._out.run, (location,)))
            elif departure.transfer.under_way:
                self._send_state(departure)  # sent again only if the transfer is stuck
            elif departure.state in WAITING:
                if self._out.now >= departure.expires_s:
                    why = f"host {departure.target!r} did not answer in {self._limits.handoff_s:g} s"
                    yield from self._stay(departure, DepartureEvent.EXPIRED, why)
                else:
                    self._offer(departure)
        self.arm()

    def on_relocated(self, sender: str, message: m.Relocated) -> Notes:
        """At the client: record the result of a hand-over, and pass it on."""
        self._directory.merge((message.location,))
        self.state_bytes[message.node] = message.size_bytes
        yield HandedOver(sender, message.location, message.moved, message.why)

    def forget(self, gone: Any) -> None:
        """Remove nodes that no tree contains any longer."""
        for name in gone & self.state_bytes.keys():
            del self.state_bytes[name]

    def on_run_over(self, _: str) -> None:
        """Record the open hand-overs of a run that is over. Committed operators have moved."""
        for departure in list(self.leaving.values()):
            self._close(departure, "the run ended before")

    def _close(self, departure: Departure, why: str) -> None:
        moved = departure.state is DepartureState.COMMITTED
        departure.state = DepartureState.MOVED if moved else DepartureState.STAYED
        self._record(departure, "" if moved else why)

    def cut(self, gone: AbstractSet[str]) -> Notes:
        """End the hand-overs of nodes ``gone``, which no query uses any longer."""
        for name in sorted(gone & self.leaving.keys()):
            departure = self.leaving.pop(name)
            self._close(departure, "its query has left")
            yield HandoverFinished(departure.number)
        self.forget(gone)

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        for name, departure in self.leaving.items():
            assert (name in self._flow.nodes) == (departure.state is not DepartureState.COMMITTED), name
        assert self._tree.former is None or not self.leaving, self.leaving

    HANDLERS = Handlers(
        messages={
            m.Accept: on_accept,
            m.Refuse: on_refuse,
            m.Restored: on_restored,
            m.Resumed: on_resumed,
            m.Relocated: on_relocated,
        },
        events={e.StateTaken: on_taken},
        notes={Misplaced: insist, Light: take_state, Ended: on_ended, OperatorLocated: on_located, HostLost: on_lost},
        timers={Timer.MOVE: on_timer},
        transfers={m.State: on_transfer_over},
    )
