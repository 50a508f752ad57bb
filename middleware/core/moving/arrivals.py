"""Operators on their way to this host: from an old host, or new in a tree or query.

``handover`` has the rules and the states. ``inheritance`` has the states that new operators take over.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.context.notes import HostLost, Notes, OperatorLocated, Prepared, Unprepared
from thalweg.middleware.core.context.outbox import Alarm, RunContext, Timer
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.flow import FlowParts
from thalweg.middleware.core.flow.newcomers import Newcomer
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.moving.handover import COMING, ArrivalEvent, ArrivalState, MoveAlarm
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


@dataclass(eq=False, repr=False)
class Arrival(Machine):
    """Operator that may come to this host from ``source``. Without ``source``, the operator is new."""

    TABLE = COMING

    node: Node
    source: str
    version: int
    number: int  # of the proposal with the move, 0 for none
    state: ArrivalState = ArrivalState.PREPARING
    came: m.State | None = None
    came_s: float = 0.0

    def __repr__(self) -> str:
        return f"{self.node.name} from {self.source or 'nowhere'}, {self.state}"


class Arrivals(Part):
    """Operators of a run that may come to this host, or appear here."""

    @classmethod
    def of(cls, parts: RunParts) -> Arrivals:
        return cls(parts.context, parts.shared, parts.get(MoveAlarm), FlowParts.of(parts))

    def __init__(self, context: RunContext, shared: HostServices, alarm: Alarm, nodes: FlowParts) -> None:
        self._out, self._limits, self._shared = context.out, context.limits, shared
        self._partitions = context.install.partitions
        self._alarm, self._tree, self._directory = alarm, nodes.tree, nodes.directory
        self._books, self._flow = nodes.books, nodes.flow
        self._bars = "it takes partitions of that run, and has no other part in it" if context.only_subscribes else ""
        self.coming: dict[str, Arrival] = {}

    @property
    def _barred(self) -> str:
        """Return why no operator may come here, or an empty text."""
        return self._bars or ("it is being drained" if self._out.context.draining else "")

    # --- before the decision ---------------------------------------------------------------------------

    def on_offer(self, sender: str, message: m.Offer) -> None:
        name, out = message.node, self._out
        here = self._directory.locations.get(name)
        if here is None or self._tree.former is not None:  # the old tree is retired before the answer
            return
        arrival = self.coming.get(name)
        if arrival is not None and (arrival.source, arrival.version) == (sender, message.version):
            arrival.number = 0  # the sender votes against a proposal that names the operator too
            self._answer(arrival)
        elif here.version > message.version:  # R5: a late offer: the operator has moved or stayed
            out.send(sender, m.Located(out.run, (here,)))
        else:
            error = self.invite(name, sender, message.version, 0)
            if error:
                out.send(sender, m.Refuse(out.run, name, message.version, error))

    def invite(self, name: str, source: str, version: int, number: int) -> str:
        """Prepare for operator ``name``, which may come from ``source``. Return the obstacle, or an empty text.

        ``number``: of the proposal with the move, 0 for none.
        """
        if self._barred:
            return self._barred
        old = self.coming.get(name)
        if old is not None and old.version > version:
            return f"{name!r} has moved since"
        if old is not None and old.version == version and not old.number:
            return f"{name!r} is on its way there"
        if old is not None:
            self.discard(old)
        if name in self._flow.nodes:
            return f"{name!r} is here already"
        node = self._tree.node_of(name)
        if node.kind != "operator":
            return f"{name!r} is no operator"
        room, count = self._limits.max_operators, self._shared.occupied
        if count >= room:
            return f"it has room for {room} operators, and {count} are there or on their way"
        near = self._directory.where((*node.inputs, *self._tree.consumers[name])).values()
        self._prepare(Arrival(node, source, version, number), near)
        self.arm()
        self._out.emit(e.OpenNode(self._out.run, node))
        return ""

    def invite_new(self, nodes: Iterable[Node], number: int, near: dict[str, set[str]], merging: Any = None) -> str:
        """Prepare for new nodes of proposal ``number`` on this host. Return the obstacle, or an empty text.

        ``near``: by node, the hosts of its neighbours. ``merging``: in a new tree, the code whose states are merged.
        """
        new, room, count = list(nodes), self._limits.max_operators, self._shared.occupied
        if new and self._barred:
            return self._barred
        more = plain_sum(node.kind == "operator" for node in new)
        if count + more > room:
            return f"it has room for {room} operators, {count} are there or on their way, and {more} more would be"
        for node in new:
            self._prepare(Arrival(node, "", 0, number), near[node.name])
            merges = merging is not None and node.code in merging
            self._out.emit(e.OpenNode(self._out.run, node, fresh=merging is not None, merging=merges))
        return ""

    def _prepare(self, arrival: Arrival, near: Iterable[str]) -> None:
        self.coming[arrival.node.name] = arrival
        for host in sorted({*near} - {self._out.host}):
            self._out.emit(e.Approach(self._out.run, host))

    def arm(self) -> None:
        """Check arrivals again after ``retry_max_s``, because a withdrawal may be lost."""
        if any(arrival.source for arrival in self.coming.values()):
            self._alarm.by(self._out.now + self._limits.retry_max_s)

    def ready(self, number: int) -> bool:
        """Return whether the code of every arrival by proposal ``number`` is loaded."""
        coming = [arrival for arrival in self.coming.values() if arrival.number == number]
        return all(arrival.state is ArrivalState.PREPARED for arrival in coming)

    def on_opened(self, event: e.NodeOpened) -> Notes:
        arrival = self.coming.get(event.node)
        if arrival is None or arrival.state is not ArrivalState.PREPARING:
            return
        if event.error:
            yield from self._refuse(arrival, event.error)
            return
        arrival.to(ArrivalEvent.OPENED)
        if arrival.number:
            yield Prepared()
        else:
            self._answer(arrival)

    def discard(self, arrival: Arrival, event: ArrivalEvent = ArrivalEvent.WITHDRAWN) -> None:
        """Stop expecting an operator, and close its code."""
        arrival.to(event)
        name = arrival.node.name
        del self.coming[name]
        self._directory.await_no_word(name)
        self._flow.give_up(name)
        self._out.emit(e.CloseNode(self._out.run, name))

    def uninvite(self, number: int) -> None:
        """Discard the arrivals of proposal ``number``, which is not committed."""
        for arrival in [arrival for arrival in self.coming.values() if arrival.number == number]:
            self.discard(arrival)

    def keep_only(self, names: Any) -> None:
        """Discard arrivals that the new tree lacks, and arrivals whose state has come."""
        for arrival in [
            arrival for name, arrival in self.coming.items() if name not in names or arrival.came is not None
        ]:
            self.discard(arrival)

    def cut(self, gone: AbstractSet[str]) -> Notes:
        """Discard operators that no query uses any longer."""
        for name in sorted(gone & self.coming.keys()):
            self.discard(self.coming[name])
        yield Prepared()  # the proposal may have waited for a discarded operator

    def _refuse(self, arrival: Arrival, why: str) -> Notes:
        """Refuse an operator that cannot run here, or not from the sent state (R6)."""
        name, out = arrival.node.name, self._out
        self.discard(arrival, ArrivalEvent.FAILED)
        if arrival.number and arrival.came is None:
            yield Unprepared(arrival.number, f"{name!r} cannot run there: {why}")
        else:
            out.send(arrival.source, m.Refuse(out.run, name, arrival.version, why[:4000]))

    # --- the state ------------------------------------------------------------------------------------

    def wants(self, message: m.State) -> bool:
        """Return whether a state that begins to arrive is of an operator that may come."""
        return message.node in self.coming

    def _fits(self, message: m.State) -> bool:
        """Return whether a state is of a partition of the run, and has the demand of every consumer once.

        Queries may begin and leave meanwhile. A consumer that this host never knew is refused.
        """
        if self._partitions is not None and message.index > self._partitions:
            return False
        consumers = self._tree.consumers[message.node]
        names = [progress.consumer for progress in message.demanded]
        if not all(map(self._directory.had, names)):
            return False
        lasting = [name for name in consumers if name not in self._tree.first]
        return len(set(names)) == len(names) and set(names).issuperset(lasting)

    def on_state(self, sender: str, message: m.State, state: Any) -> None:
        """Restore a state of an offered operator, or refuse the operator."""
        name, out, limit = message.node, self._out, self._limits.max_state_bytes
        here = self._directory.locations.get(name)
        if here is None or self._tree.former is not None:  # no correct host sends a state then
            return
        arrival = self.coming.get(name)
        if arrival is None or (arrival.source, arrival.version) != (sender, message.version):
            if here.version > message.version:
                out.send(sender, m.Located(out.run, (here,)))
            else:
                out.send(sender, m.Refuse(out.run, name, message.version, "it was not offered here"))
        elif arrival.state is ArrivalState.RESTORED:
            self._answer(arrival)
        elif arrival.state is ArrivalState.PREPARED and message.size_bytes > limit:
            self.discard(arrival)
            why = f"its state has {message.size_bytes} bytes; host {out.host!r} takes up to {limit}"
            out.send(sender, m.Refuse(out.run, name, message.version, why))
        elif arrival.state is ArrivalState.PREPARED and not self._fits(message):
            self.discard(arrival)
            why = "its state does not fit its consumers, or this run"
            out.send(sender, m.Refuse(out.run, name, message.version, why))
        elif arrival.state is ArrivalState.PREPARED:
            arrival.to(ArrivalEvent.STATE_CAME)
            arrival.came, arrival.came_s = msgspec.structs.replace(message, inline=None), out.now
            version, digest = arrival.version, message.digest
            out.emit(e.RestoreState(out.run, name, version, state, digest, message.state_version))

    def on_state_restored(self, event: e.StateRestored) -> Notes:
        arrival = self.coming.get(event.node)
        if arrival is None or (arrival.state, arrival.version) != (ArrivalState.RESTORING, event.version):
            return
        if event.error:
            yield from self._refuse(arrival, event.error)
            return
        arrival.to(ArrivalEvent.RESTORED)
        self._directory.await_word(arrival.node.name)
        self._answer(arrival)

    def _answer(self, arrival: Arrival) -> None:
        """Report the progress of an arrival to the old host, if the code is loaded or the state restored."""
        out, name = self._out, arrival.node.name
        if arrival.state is ArrivalState.PREPARED:
            out.send(arrival.source, m.Accept(out.run, name, arrival.version))
        elif arrival.state is ArrivalState.RESTORED:
            out.send(arrival.source, m.Restored(out.run, name, arrival.version))

    def on_timer(self) -> None:
        """Ask the old hosts whether their operators still come (R5)."""
        for name, arrival in self.coming.items():
            if not arrival.number or name in self._flow.expected:  # the end of a proposal is repeated anyway
                self._answer(arrival)
        self.arm()

    # --- after the decision ---------------------------------------------------------------------------

    def on_withdraw(self, sender: str, message: m.Withdraw) -> None:
        arrival = self.coming.get(message.node)
        if arrival is not None and (arrival.source, arrival.version) == (sender, message.version):
            self.discard(arrival)

    def on_located(self, note: OperatorLocated) -> None:
        """Activate or discard an arrival by a new location of the operator.

        Even if the location is known here, ``note.sender`` may wait for ``Resumed``.
        """
        entry, here = note.entry, self._out.host
        arrival = self.coming.get(entry.node)
        if arrival is not None and arrival.source and entry.version > arrival.version:
            if self._directory.locations[entry.node].host == here and arrival.state is ArrivalState.RESTORED:
                self._activate(arrival)
            else:
                self.discard(arrival)
        if entry.host == here and entry.node in self._flow.nodes and note.sender != here:
            self._out.send(note.sender, m.Resumed(self._out.run, entry.node, entry.version - 1))

    def _activate(self, arrival: Arrival) -> None:
        """Start an operator after the commit of the move to this host (R2)."""
        state, now = arrival.came, self._out.now
        assert state is not None
        arrival.to(ArrivalEvent.COMMITTED)
        del self.coming[arrival.node.name]
        self._directory.await_no_word(arrival.node.name)
        came = Newcomer(arrival.source, arrival.version, state.size_bytes, arrival.came_s, now)
        self._adopt(state, came)

    def _adopt(self, state: m.State, came: Newcomer) -> None:
        """Add an operator with the state that has come. Ignore consumers of queries that have left meanwhile."""
        name, tree, flow, last = state.node, self._tree, self._flow, state.index - 1
        known = {progress.consumer: progress for progress in state.demanded}
        consumers = dict[str, ConsumerState]()
        for consumer in tree.consumers[name]:
            consumers[consumer] = self._progress(state, consumer, known.get(consumer))
        waiting = {consumer for consumer, progress in consumers.items() if progress.needs <= last}
        if state.tail and waiting:
            flow.tails.keep(name, state.tail, last, waiting)
        node = flow.add(NodeCore.come(tree.node_of(name), self._partitions, state.index, consumers))
        flow.outputs.newcomers.come(name, came)
        self._books.keep(tree.dataflow, name, {consumer: progress.book for consumer, progress in known.items()})
        flow.begin_adopted(node)

    def _progress(self, state: m.State, consumer: str, known: m.ConsumerDemand | None) -> ConsumerState:
        """Return the progress of a consumer. A consumer of a newer query has demanded nothing yet."""
        first = self._tree.first.get(consumer, 0)
        if known is None:
            return ConsumerState(max(first, state.index) - 1, first=first)
        if state.index < known.demanded < LAST:  # the consumer continues there
            first = max(first, known.demanded)
        return ConsumerState(known.demanded, first=first)

    def on_lost(self, note: HostLost) -> None:
        """Discard the operators that were to come from a host that is lost for good."""
        for arrival in [arrival for arrival in self.coming.values() if arrival.source == note.host]:
            self.discard(arrival)

    # --- what the barrier commits ---------------------------------------------------------------------

    def expect(self, name: str, number: int, index: int) -> None:
        """Expect operator ``name`` to begin here with partition ``index``, by the committed proposal ``number``."""
        arrival = self.coming.get(name)
        if arrival is not None and arrival.number == number:
            self._flow.expect(name, index)

    def prepared(self, number: int) -> set[str]:
        """Return the new operators of proposal ``number`` whose code is loaded here."""
        return {
            name
            for name, arrival in self.coming.items()
            if not arrival.source and arrival.number == number and arrival.state is ArrivalState.PREPARED
        }

    def appear(self) -> list[str]:
        """Return the new operators of the committed tree, and end their arrivals."""
        new = [arrival for arrival in self.coming.values() if not arrival.source]
        for arrival in new:
            arrival.to(ArrivalEvent.APPEARED)
            del self.coming[arrival.node.name]
        return [arrival.node.name for arrival in new]

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        assert self.coming.keys().isdisjoint(self._flow.nodes), self.coming
        assert self.coming.keys() >= self._flow.expected.keys(), self._flow.expected
        assert self._tree.former is None or all(arrival.came is None for arrival in self.coming.values()), self.coming

    HANDLERS = Handlers(
        messages={m.Offer: on_offer, m.State: on_state, m.Withdraw: on_withdraw},
        events={e.NodeOpened: on_opened, e.StateRestored: on_state_restored},
        notes={OperatorLocated: on_located, HostLost: on_lost},
        timers={Timer.MOVE: on_timer},
    )
