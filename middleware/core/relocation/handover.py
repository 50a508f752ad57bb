"""One operator changes hosts: a hand-over between the host it leaves and the host it comes to.

Rules:

- The operator leaves when it is *light*: its output has gone, and none of its inputs is in hand (Ranganathan et al.,
  section 2). What travels is what ``snapshot()`` gives then, and the number of its next partition.
- Until the hand-over is committed the operator is where it was, whatever becomes of the other host; from then on
  it is at the other. Only the host it leaves commits, and only when the other has said that the state is restored;
  the commit is the operator's next location version. Nobody else makes one, so knowing it is proof of the commit. An
  operator that stays gets a new version as well, so that every hand-over has one of its own.
- The host it leaves keeps the operator's last output (its *tail*) until a later partition is demanded, and answers
  demands for it.
- Every message may be lost or come twice: an offer is repeated until it is answered, a state until it is restored, a
  commit until the operator has resumed. What is late is answered with the newer location.
- The operator's code is never sent. A host that does not have it, has no room, or is given a state that fails its
  digest, refuses, and the operator stays.

``LEAVING`` are the steps of the host the operator leaves, ``COMING`` those of the host it comes to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.middleware.core.flow.node import Ask, NodeCore, NodeState, Output
from thalweg.middleware.core.machine import Machine
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class DepartureState(StrEnum):
    OFFERED = "offered"
    AGREED = "agreed"  # the other host is ready; the operator works on until it is light
    SUSPENDED = "suspended"  # light; its state is being taken
    SENT = "sent"
    COMMITTED = "committed"
    MOVED = "moved"
    STAYED = "stayed"


class DepartureEvent(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LIGHTENED = "lightened"
    TAKEN = "taken"
    FAILED = "failed"  # no state, or one that is too large
    RESTORED = "restored"
    RESUMED = "resumed"
    EXPIRED = "expired"  # no answer in time
    LOST = "lost"  # the other host is gone for good
    ENDED = "ended"  # the stream was over before the operator was light


LEAVING: dict[tuple[DepartureState, DepartureEvent], DepartureState] = {
    (DepartureState.OFFERED, DepartureEvent.ACCEPTED): DepartureState.AGREED,
    (DepartureState.OFFERED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.EXPIRED): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.ENDED): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.LIGHTENED): DepartureState.SUSPENDED,
    (DepartureState.AGREED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.ENDED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.TAKEN): DepartureState.SENT,
    (DepartureState.SUSPENDED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.FAILED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.RESTORED): DepartureState.COMMITTED,
    (DepartureState.SENT, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.EXPIRED): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.COMMITTED, DepartureEvent.RESUMED): DepartureState.MOVED,
    (DepartureState.COMMITTED, DepartureEvent.LOST): DepartureState.MOVED,
}


class ArrivalState(StrEnum):
    PREPARING = "preparing"  # the code is being loaded
    PREPARED = "prepared"
    RESTORING = "restoring"
    RESTORED = "restored"  # waits for the commit
    ACTIVE = "active"
    DISCARDED = "discarded"


class ArrivalEvent(StrEnum):
    OPENED = "opened"
    STATE_CAME = "state came"
    RESTORED = "restored"
    COMMITTED = "committed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  # the operator stays, or has gone elsewhere


COMING: dict[tuple[ArrivalState, ArrivalEvent], ArrivalState] = {
    (ArrivalState.PREPARING, ArrivalEvent.OPENED): ArrivalState.PREPARED,
    (ArrivalState.PREPARING, ArrivalEvent.FAILED): ArrivalState.DISCARDED,
    (ArrivalState.PREPARING, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.PREPARED, ArrivalEvent.STATE_CAME): ArrivalState.RESTORING,
    (ArrivalState.PREPARED, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.RESTORING, ArrivalEvent.RESTORED): ArrivalState.RESTORED,
    (ArrivalState.RESTORING, ArrivalEvent.FAILED): ArrivalState.DISCARDED,
    (ArrivalState.RESTORING, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.RESTORED, ArrivalEvent.COMMITTED): ArrivalState.ACTIVE,
    (ArrivalState.RESTORED, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
}


class Tail(msgspec.Struct):
    """The last output of an operator that has left, until it is acknowledged."""

    output: Output
    sending: bool
    landed: bool = False  # it has arrived, and was not asked for again since


class Arrival(msgspec.Struct, frozen=True):
    """An operator that has come and not dispatched anything yet."""

    source: str
    version: int
    size_bytes: int
    came_s: float
    resumed_s: float


class Leaving(Machine):
    """A hand-over as the host sees it that the operator leaves."""

    TABLE = LEAVING
    state: DepartureState

    def __init__(self, node: str, target: str, version: int, protocol: str, reason: str, number: int) -> None:
        self.node, self.target, self.version = node, target, version
        self.protocol, self.reason = protocol, reason
        self.number = number  # of the barrier's proposal, 0 for none
        self.state = DepartureState.OFFERED
        self.begun_s: dict[str, float] = {}  # phase -> when it began
        self.expires_s = 0.0
        self.sending = False  # a bulk transfer of the state is under way
        self.taken: e.StateTaken | None = None
        self.size_bytes = 0  # of the state
        self.index = 0  # of the operator's next partition, once it is light
        self.demand: m.Demand | None = None  # for that partition, which the other host is to answer

    def __repr__(self) -> str:
        return f"{self.node} on its way to {self.target}, {self.state}"


class Guest(Machine):
    """An operator that may come, as the host sees it that it would come to."""

    TABLE = COMING
    state: ArrivalState

    def __init__(self, node: str, source: str, version: int, number: int) -> None:
        self.node, self.source, self.version, self.number = node, source, version, number
        self.state = ArrivalState.PREPARING
        self.came: m.State | None = None
        self.came_s = 0.0
        self.expects: int | None = None  # the partition a committed barrier says it will begin with
        self.early: dict[str, Output] = {}  # its inputs for that, which came before it

    def __repr__(self) -> str:
        return f"{self.node} from {self.source}, {self.state}"


class Mover:
    """The hand-overs of one host's operators, in both directions."""

    def __init__(self, core: HostCore) -> None:
        self.core = core

    # --- the host an operator leaves ------------------------------------------------------------------

    def obstacle(self, run: RunState, name: str, target: str) -> str:
        """Why ``name`` cannot be handed over from here to ``target`` now; empty when it can."""
        node = run.nodes.get(name)
        if node is None:
            return f"{name!r} is not on host {self.core.host!r}"
        if node.node.kind != "operator" or node.node.pinned is not None:
            return f"{node.node.kind} {name!r} is pinned to {self.core.host!r}"
        if target not in run.hosts:
            return f"host {target!r} has no part in the run"
        if target == self.core.host:
            return f"{name!r} is on host {target!r} already"
        if name in run.leaving:
            return f"{name!r} is on its way to host {run.leaving[name].target!r}"
        return ""

    def begin(
        self,
        run: RunState,
        name: str,
        target: str,
        *,
        protocol: str,
        reason: str,
        after: int = -1,
        number: int = 0,
    ) -> None:
        """Hand ``name`` over to ``target`` after partition ``after``; ``obstacle`` has said that it can be.

        With ``number`` a barrier's proposal has been agreed upon by ``target``, else it is offered first.
        """
        leaving = Leaving(name, target, run.locations[name].version, protocol, reason, number)
        leaving.begun_s["decided"] = self.core.now
        run.leaving[name] = leaving
        if number:
            leaving.to(DepartureEvent.ACCEPTED)
            self._agreed(run, leaving, after, recall=True)
        else:
            leaving.expires_s = self.core.now + self.core.config.handoff_s
            self.core.emit(e.Approach(run.id, target))
            self._offer(run, leaving)
            self._arm(run)

    def _offer(self, run: RunState, leaving: Leaving) -> None:
        self.core.send(run.id, leaving.target, m.Offer(run.id, leaving.node, leaving.version))

    def _agreed(self, run: RunState, leaving: Leaving, after: int, *, recall: bool) -> None:
        node = run.nodes[leaving.node]
        self.core.flow.perform(run, node, node.leave(after, recall=recall))
        self.check_over(run, node)

    def check_over(self, run: RunState, node: NodeCore) -> None:
        """An operator whose stream is over never becomes light."""
        leaving = run.leaving.get(node.node.name)
        if leaving is not None and node.state is NodeState.ENDED and leaving.can(DepartureEvent.ENDED):
            self._stay(run, leaving, DepartureEvent.ENDED, "the stream ended first")

    def on_light(self, run: RunState, node: NodeCore) -> None:
        leaving = run.leaving[node.node.name]
        leaving.to(DepartureEvent.LIGHTENED)
        leaving.begun_s["suspended"] = self.core.now
        leaving.index = node.index
        for producer in node.node.inputs:
            run.pending.pop((node.node.name, producer), None)
        self.core.emit(e.TakeState(run.id, node.node.name, leaving.version))

    def on_taken(self, event: e.StateTaken) -> None:
        run = self.core.runs.get(event.run)
        leaving = run.leaving.get(event.node) if run is not None else None
        if (
            run is None
            or leaving is None
            or (leaving.state, leaving.version) != (DepartureState.SUSPENDED, event.version)
        ):
            return
        limit = self.core.config.max_state_bytes
        if event.error:
            self._stay(run, leaving, DepartureEvent.FAILED, event.error)
        elif len(event.state) > limit:
            why = f"its state has {len(event.state)} bytes; this host sends up to {limit}"
            self._stay(run, leaving, DepartureEvent.FAILED, why)
        else:
            leaving.taken = event
            leaving.size_bytes = run.state_bytes[event.node] = len(event.state)
            leaving.begun_s["state_out"] = self.core.now
            leaving.expires_s = self.core.now + self.core.config.handoff_s
            leaving.to(DepartureEvent.TAKEN)
            self._send_state(run, leaving)
            self._arm(run)

    def _send_state(self, run: RunState, leaving: Leaving) -> None:
        node, taken = run.nodes[leaving.node], leaving.taken
        assert taken is not None
        size = len(taken.state)
        book = run.books.get(leaving.node)
        inline = taken.state if size <= m.INLINE_STATE_BYTES else None
        message = m.State(
            run=run.id,
            node=leaving.node,
            version=leaving.version,
            index=node.index,
            demanded=node.demanded,
            state_version=taken.state_version,
            size_bytes=size,
            digest=taken.digest,
            tail=self.core.host if node.retained is not None else run.tail_hosts.get(leaving.node, ""),
            inline=inline,
            book=None if book is None else book.to_state(),
        )
        if inline is not None:
            self.core.send(run.id, leaving.target, message)
        else:
            leaving.sending = True
            self.core.emit(e.Send(run.id, leaving.target, message, taken.state, size, bulk=True))

    def on_transfer_over(self, message: m.State, *, arrived: bool) -> None:
        """The transfer of a state is over; only one that has arrived gives the other host time to restore it."""
        run = self.core.runs.get(message.run)
        leaving = run.leaving.get(message.node) if run is not None else None
        if leaving is not None and leaving.version == message.version:
            leaving.sending = False
            if arrived:
                leaving.expires_s = self.core.now + self.core.config.handoff_s

    def on_accept(self, sender: str, message: m.Accept) -> None:
        run, leaving = self._leaving(sender, message)
        if run is None:
            return
        if leaving is None:
            if run.locations[message.node].version > message.version:  # else a barrier's commit is still to come here
                self.core.send(run.id, sender, m.Withdraw(run.id, message.node, message.version))
        elif leaving.state is DepartureState.OFFERED:
            leaving.to(DepartureEvent.ACCEPTED)
            self._agreed(run, leaving, -1, recall=False)
        elif leaving.state is DepartureState.SENT and not leaving.sending:
            self._send_state(run, leaving)

    def on_refuse(self, sender: str, message: m.Refuse) -> None:
        run, leaving = self._leaving(sender, message)
        if run is not None and leaving is not None and leaving.can(DepartureEvent.REFUSED):
            self._stay(run, leaving, DepartureEvent.REFUSED, f"host {sender!r} refuses it: {message.reason}")

    def on_restored(self, sender: str, message: m.Restored) -> None:
        run, leaving = self._leaving(sender, message)
        if run is None:
            return
        if leaving is not None and leaving.state is DepartureState.SENT:
            self._commit(run, leaving)
        elif leaving is None:  # it stayed, or this is an echo
            self.core.send(run.id, sender, m.Located(run.id, (run.locations[message.node],)))

    def on_resumed(self, sender: str, message: m.Resumed) -> None:
        run, leaving = self._leaving(sender, message)
        if run is not None and leaving is not None and leaving.can(DepartureEvent.RESUMED):
            leaving.to(DepartureEvent.RESUMED)
            self._settle(run, leaving, "")

    def settle(self, run: RunState) -> None:
        """All that has left is where it went: a proposal of another shape that says so has been agreed upon there."""
        for leaving in list(run.leaving.values()):
            if leaving.can(DepartureEvent.RESUMED):
                leaving.to(DepartureEvent.RESUMED)
                self._settle(run, leaving, "")

    def _check_moved_on(self, run: RunState, location: m.Location) -> bool:
        """A version after the commit's shows that the other host has resumed: nobody else can have made it."""
        leaving = run.leaving.get(location.node)
        if leaving is None or leaving.state is not DepartureState.COMMITTED or location.version <= leaving.version + 1:
            return False
        leaving.to(DepartureEvent.RESUMED)
        self._settle(run, leaving, "")
        return True

    def _leaving(self, sender: str, message: Any) -> tuple[RunState | None, Leaving | None]:
        """The run, and the hand-over this message is about; None for one that is over, or another."""
        run = self.core.runs.get(message.run)
        if run is None or message.node not in run.locations:
            return None, None
        leaving = run.leaving.get(message.node)
        if leaving is None or leaving.version != message.version or leaving.target != sender:
            return run, None
        return run, leaving

    def _commit(self, run: RunState, leaving: Leaving) -> None:
        """From here on the operator is at the other host."""
        name, core = leaving.node, self.core
        leaving.to(DepartureEvent.RESTORED)
        leaving.taken = None
        node = run.nodes.pop(name)
        location = m.Location(name, leaving.target, leaving.version + 1)
        core.locate(run, (location,))
        if node.retained is not None:
            run.tails[name] = Tail(node.retained, node.sending, node.landed == node.retained.index)
        run.tail_hosts.pop(name, None)
        run.books.pop(name, None)
        run.arrivals.pop(name, None)
        core.emit(e.CloseNode(run.id, name))
        self._tell(run, leaving, location)
        consumer = run.consumers[name][0]
        here = run.nodes.get(consumer)
        if here is not None:
            if name in here.asked:  # a demand between nodes of one host is not repeated; one to another host is
                core.flow.ask(run, consumer, name, here.index)
        elif leaving.demand is not None:
            core.send(run.id, leaving.target, leaving.demand)
        self._arm(run)

    def _tell(self, run: RunState, leaving: Leaving, location: m.Location) -> None:
        """The new location, to those who need it first: the other host, and who talks to the operator."""
        node = run.node_of(leaving.node)
        near = [run.locations[name].host for name in (*run.consumers[leaving.node], *node.inputs)]
        for host in dict.fromkeys((leaving.target, *near, run.install.client)):
            if host != self.core.host:
                self.core.send(run.id, host, m.Located(run.id, (location,)))

    def _stay(self, run: RunState, leaving: Leaving, sign: DepartureEvent, why: str) -> None:
        leaving.to(sign)
        core, name = self.core, leaving.node
        core.send(run.id, leaving.target, m.Withdraw(run.id, name, leaving.version))
        location = m.Location(name, core.host, leaving.version + 1)  # so that this hand-over is over for everyone
        core.locate(run, (location,))
        self._tell(run, leaving, location)
        node = run.nodes[name]
        core.flow.perform(run, node, node.stay())
        self._settle(run, leaving, why)

    def _settle(self, run: RunState, leaving: Leaving, why: str) -> None:
        core, name = self.core, leaving.node
        del run.leaving[name]
        self._record(run, leaving, why)
        moved, location, why = leaving.state is DepartureState.MOVED, run.locations[name], why[:4000]
        core.send(run.id, run.install.client, m.Relocated(run.id, name, moved, location, why, leaving.size_bytes))
        core.barrier.on_settled(run, leaving.number)

    def _record(self, run: RunState, leaving: Leaving, why: str) -> None:
        core, suspended_s = self.core, leaving.begun_s.get("suspended")
        core.record(
            run.id,
            "relocated",
            node=leaving.node,
            peer=leaving.target,
            index=leaving.index if leaving.state is DepartureState.MOVED else run.nodes[leaving.node].index,
            size_bytes=leaving.size_bytes,
            duration_s=None if suspended_s is None else core.now - suspended_s,
            detail={
                "outcome": leaving.state.value,
                "protocol": leaving.protocol,
                "reason": leaving.reason,
                "why": why,
                "version": leaving.version,
                "ago": {phase: core.now - at for phase, at in leaving.begun_s.items()},
            },
        )

    # --- the host it comes to -------------------------------------------------------------------------

    def on_offer(self, sender: str, message: m.Offer) -> None:
        run = self.core.runs.get(message.run)
        if run is None or message.node not in run.locations or run.former is not None:  # once that is retired
            return
        name, here = message.node, run.locations[message.node]
        guest = run.guests.get(name)
        if guest is not None and (guest.source, guest.version) == (sender, message.version):
            guest.number = 0  # a proposal that names it as well is voted down by the sender
            if guest.state is ArrivalState.PREPARED:
                self.core.send(run.id, sender, m.Accept(run.id, name, message.version))
            elif guest.state is ArrivalState.RESTORED:
                self.core.send(run.id, sender, m.Restored(run.id, name, message.version))
            return
        if here.version > message.version:  # late: it has moved, or stayed, since
            self.core.send(run.id, sender, m.Located(run.id, (here,)))
            return
        error = self.invite(run, name, sender, message.version, 0)
        if error:
            self.core.send(run.id, sender, m.Refuse(run.id, name, message.version, error))

    def invite(self, run: RunState, name: str, source: str, version: int, number: int) -> str:
        """Prepare for ``name``, which may come from ``source``; why not, or empty (``number`` as in ``begin``)."""
        old = run.guests.get(name)
        if old is not None and old.version > version:
            return f"{name!r} has moved since"
        if old is not None and old.version == version and not old.number:
            return f"{name!r} is on its way there"
        if old is not None:
            self.discard(run, old, ArrivalEvent.WITHDRAWN)
        if name in run.nodes:
            return f"{name!r} is here already"
        if run.node_of(name).kind != "operator":
            return f"{name!r} is no operator"
        room = self.core.config.max_operators
        count = sum(len(each.guests) + each.operators() for each in self.core.runs.values())
        if count >= room:
            return f"it has room for {room} operators, and {count} are there or on their way"
        run.guests[name] = Guest(name, source, version, number)
        node = run.node_of(name)
        near = {run.locations[other].host for other in (*node.inputs, *run.consumers[name])}
        for host in sorted(near - {self.core.host}):
            self.core.emit(e.Approach(run.id, host))
        self._arm(run)
        self.core.emit(e.OpenNode(run.id, run.node_of(name)))
        return ""

    def on_opened(self, event: e.NodeOpened) -> None:
        run = self.core.runs.get(event.run)
        guest = run.guests.get(event.node) if run is not None else None
        if run is not None and event.node in run.buds:
            self.core.reshaper.on_opened(run, event)
            return
        if run is None or guest is None or guest.state is not ArrivalState.PREPARING:
            return
        if event.error:
            self._refuse(run, guest, event.error)
            return
        guest.to(ArrivalEvent.OPENED)
        if guest.number:
            self.core.barrier.on_prepared(run)
        else:
            self.core.send(run.id, guest.source, m.Accept(run.id, guest.node, guest.version))

    def on_state(self, sender: str, message: m.State, payload: Any) -> None:
        run = self.core.runs.get(message.run)
        if run is None or message.node not in run.locations:
            return
        guest = run.guests.get(message.node)
        if guest is None or (guest.source, guest.version) != (sender, message.version):
            here = run.locations[message.node]
            if here.version > message.version:
                self.core.send(run.id, sender, m.Located(run.id, (here,)))
            else:
                why = "it was not offered here"
                self.core.send(run.id, sender, m.Refuse(run.id, message.node, message.version, why))
        elif guest.state is ArrivalState.RESTORED:
            self.core.send(run.id, sender, m.Restored(run.id, message.node, message.version))
        elif guest.state is ArrivalState.PREPARED and message.size_bytes > self.core.config.max_state_bytes:
            limit = self.core.config.max_state_bytes
            self.discard(run, guest, ArrivalEvent.WITHDRAWN)
            why = f"its state has {message.size_bytes} bytes; host {self.core.host!r} takes up to {limit}"
            self.core.send(run.id, sender, m.Refuse(run.id, message.node, message.version, why))
        elif guest.state is ArrivalState.PREPARED:
            guest.to(ArrivalEvent.STATE_CAME)
            guest.came, guest.came_s = msgspec.structs.replace(message, inline=None), self.core.now
            state = payload if message.inline is None else message.inline
            self.core.emit(
                e.RestoreState(run.id, guest.node, guest.version, state, message.digest, message.state_version)
            )

    def on_state_restored(self, event: e.StateRestored) -> None:
        run = self.core.runs.get(event.run)
        guest = run.guests.get(event.node) if run is not None else None
        if run is None or guest is None or (guest.state, guest.version) != (ArrivalState.RESTORING, event.version):
            return
        if event.error:
            self._refuse(run, guest, event.error)
            return
        guest.to(ArrivalEvent.RESTORED)
        self.core.send(run.id, guest.source, m.Restored(run.id, guest.node, guest.version))

    def on_withdraw(self, sender: str, message: m.Withdraw) -> None:
        run = self.core.runs.get(message.run)
        guest = run.guests.get(message.node) if run is not None else None
        if run is not None and guest is not None and (guest.source, guest.version) == (sender, message.version):
            self.discard(run, guest, ArrivalEvent.WITHDRAWN)

    def on_located(self, run: RunState, sender: str, news: tuple[m.Location, ...]) -> None:
        """Locations that are new here, or repeated by ``sender``, who may wait for what follows from them."""
        for entry in news:
            self._check_moved_on(run, entry)
            guest = run.guests.get(entry.node)
            if guest is not None and entry.version > guest.version:
                if entry.host == self.core.host and guest.state is ArrivalState.RESTORED:
                    self._activate(run, guest, entry)
                else:
                    self.discard(run, guest, ArrivalEvent.WITHDRAWN)
            if entry.host == self.core.host and entry.node in run.nodes and sender != self.core.host:
                self.core.send(run.id, sender, m.Resumed(run.id, entry.node, entry.version - 1))

    def _activate(self, run: RunState, guest: Guest, location: m.Location) -> None:
        """The operator has moved here: it demands its next inputs."""
        core, state, name = self.core, guest.came, guest.node
        assert state is not None
        guest.to(ArrivalEvent.COMMITTED)
        del run.guests[name]
        node = NodeCore.come(run.node_of(name), run.install.partitions, state.index, state.demanded)
        run.nodes[name] = node
        if state.tail:
            run.tail_hosts[name] = state.tail
        run.arrivals[name] = Arrival(guest.source, guest.version, state.size_bytes, guest.came_s, core.now)
        core.keep_book(run, name, state.book)
        consumer = run.consumers[name][0]
        if run.pending.pop((consumer, name), None) is not None:
            core.flow.ask(run, consumer, name, run.nodes[consumer].index)
        for producer in node.node.inputs:
            if producer in run.nodes:
                run.nodes[producer].sending = False
        actions = node.stay()
        for action in actions:
            assert isinstance(action, Ask)
            for producer in node.node.inputs:
                early = guest.early.get(producer)
                if early is not None and early.index == action.index:
                    core.take(m.Partition(run.id, producer, name, early.index, early.end), early)
                else:
                    core.flow.ask(run, name, producer, action.index)

    def _refuse(self, run: RunState, guest: Guest, why: str) -> None:
        self.discard(run, guest, ArrivalEvent.FAILED)
        if guest.number and guest.came is None:
            self.core.barrier.on_unprepared(run, guest.number, f"{guest.node!r} cannot run there: {why}")
        else:
            refusal = m.Refuse(run.id, guest.node, guest.version, why[:4000])
            self.core.send(run.id, guest.source, refusal)

    def discard(self, run: RunState, guest: Guest, cue: ArrivalEvent) -> None:
        guest.to(cue)
        del run.guests[guest.node]
        self.core.emit(e.CloseNode(run.id, guest.node))

    def uninvite(self, run: RunState, number: int) -> None:
        """Proposal ``number`` is off: what would have come by it does not."""
        for guest in [each for each in run.guests.values() if each.number == number]:
            self.discard(run, guest, ArrivalEvent.WITHDRAWN)

    # --- both -----------------------------------------------------------------------------------------

    def on_lost(self, run: RunState, host: str) -> None:
        """``host`` is gone for good: what was on its way there stays, or is lost with it."""
        for leaving in [each for each in run.leaving.values() if each.target == host]:
            if leaving.state is DepartureState.COMMITTED:
                leaving.to(DepartureEvent.LOST)
                self._settle(run, leaving, f"host {host!r} went away")
            else:
                self._stay(run, leaving, DepartureEvent.LOST, f"host {host!r} went away")
        for guest in [each for each in run.guests.values() if each.source == host]:
            self.discard(run, guest, ArrivalEvent.WITHDRAWN)

    def on_timer(self, run_id: str) -> None:
        """Ask again where an answer is due, and give up where it is overdue."""
        run = self.core.runs.get(run_id)
        if run is None:
            return
        run.move_due_s = None
        for guest in run.guests.values():
            self._remind(run, guest)
        for leaving in list(run.leaving.values()):
            if self._check_moved_on(run, run.locations[leaving.node]):
                continue
            if leaving.state is DepartureState.COMMITTED:
                located = m.Located(run_id, (run.locations[leaving.node],))
                self.core.send(run_id, leaving.target, located)
            elif leaving.state in (DepartureState.OFFERED, DepartureState.SENT) and not leaving.sending:
                if self.core.now >= leaving.expires_s:
                    limit_s = self.core.config.handoff_s
                    self._stay(
                        run, leaving, DepartureEvent.EXPIRED, f"host {leaving.target!r} did not answer in {limit_s:g} s"
                    )
                else:
                    self._offer(run, leaving)
        self._arm(run)

    def _remind(self, run: RunState, guest: Guest) -> None:
        """Ask the host that an operator was to come from whether it still is: the word that it is not may be lost."""
        if guest.number and guest.expects is None:  # a proposal's end is told until it is heard
            return
        if guest.state is ArrivalState.PREPARED:
            self.core.send(run.id, guest.source, m.Accept(run.id, guest.node, guest.version))
        elif guest.state is ArrivalState.RESTORED:
            self.core.send(run.id, guest.source, m.Restored(run.id, guest.node, guest.version))

    def on_close(self, run: RunState) -> None:
        """The run is over in the middle of hand-overs: what is committed has moved."""
        for leaving in list(run.leaving.values()):
            moved = leaving.state is DepartureState.COMMITTED
            leaving.state = DepartureState.MOVED if moved else DepartureState.STAYED
            self._record(run, leaving, "" if moved else "the run ended before")

    def _arm(self, run: RunState) -> None:
        """Look after the hand-overs again: soon where this host has begun them, else now and then."""
        waiting = (DepartureState.OFFERED, DepartureState.SENT, DepartureState.COMMITTED)
        config = self.core.config
        if any(leaving.state in waiting for leaving in run.leaving.values()):
            due_s = self.core.now + config.retry_s
        elif run.guests:
            due_s = self.core.now + config.retry_max_s
        else:
            return
        if run.move_due_s is None or due_s < run.move_due_s:
            run.move_due_s = due_s
            self.core.emit(e.SetTimer(f"move {run.id}", due_s))
