"""Nodes of a run that leave this host, come to it, appear and disappear; what they demand and send is in ``demands``.

Rules:

R1. A node that has left leaves its tail here, and what was demanded of it is demanded where it went.
R2. One that comes demands its next inputs. What came for it ahead of it is given to it then.
R3. When it has made the last partition of the old tree, a node ends, turns to another consumer, or gathers from others,
    whatever the new tree wants of it. Those that appear gather at once.
R4. Queries may begin and leave while an operator is on its way: what its state does not say of a consumer of a query
    that has begun is as if that had not demanded anything yet. What it says of one that has left is nothing.
R5. A node that had ended while there was one sink, and told nobody that it wants nothing more, says so once there are
    others: what it took its inputs from may go on for these.
R6. A node that has ended as nobody wanted anything more of it begins no more: a query that shares it cannot go on,
    unless it begins where the run's streams end, and so wants nothing of it either.
R7. Operators go on from one generation of a run to the next (``failover.carried_over``), and demand again what they
    wait for. What their code returns of the one before counts. What they hold is dispatched where fewer outputs are
    kept for others than there were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context import notes
from thalweg.middleware.core.context.notes import Note, Notes
from thalweg.middleware.core.context.outbox import Timer
from thalweg.middleware.core.flow.actions import LAST, Action, Ask, Renounce, RunCode
from thalweg.middleware.core.flow.beginning import equip, firsts
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.demands import NO_NOTES, Demands
from thalweg.middleware.core.flow.entries import Expected
from thalweg.middleware.core.flow.newcomers import Newcomer
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import ENDED, GATHERING, IDLE, RUNNING
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class CarriedOver(msgspec.Struct, frozen=True):
    """An operator that goes on in the next generation of a run.

    ``run``: what its code is still to be run on, ``called``: the run of which it has been called already, and not
    returned.
    """

    node: NodeCore
    run: RunCode | None = None
    called: RunId = NO_RUN


class Flow(Demands, Part):
    """The only writer of a run's nodes on this host, and of their demands."""

    __slots__ = ()

    # --- generations ----------------------------------------------------------------------------------

    def survivor(self, name: str, node: Node, install: m.Install) -> CarriedOver | None:
        """R7: an operator here, as it goes on as ``node`` in the next generation of the run; None where it cannot."""
        core, run = self.nodes[name], self._held.get(name)
        if name in self.tails.kept or (self._failures is not None and name in self._failures.said):
            return None
        called = self.called.get(name, self._out.run) if core.state is RUNNING and run is None else NO_RUN
        begins = firsts(install.dataflow.consumers[name], self._tree, install)
        return CarriedOver(core.going_on(node, begins), run, called)

    def take_over(self, survivors: Mapping[str, CarriedOver]) -> None:
        """R7: these have gone on from the generation before."""
        self.kept = tuple([m.Start(name, survivor.node.got) for name, survivor in survivors.items()])
        for name, survivor in survivors.items():
            self.nodes[name] = survivor.node
            if survivor.called:
                self.called[name] = survivor.called

    def go_on(self, survivors: Mapping[str, CarriedOver]) -> None:
        """R7: have them demand what they wait for, and their code run if that is still to be.

        In a graph all say at once where they go on, and those that begin anew gather.
        """
        flow = self._tree.dataflow
        graph = self._install.kept_from is not None and bool(flow.several)
        for name, survivor in survivors.items():
            node = survivor.node
            if survivor.run is not None:
                self._perform(node, [survivor.run])
            # R7: a held output goes out if fewer outputs are kept than before; the loop below demands the inputs
            self._perform(node, [action for action in node.resume() if type(action) is not Ask])
            if graph and node.state is ENDED and len(flow.sinks) > 1:
                self._perform(node, [Renounce(node.node.inputs)])
                continue
            for producer in node.node.inputs:
                if producer in node.received.asked:
                    self._demand_until_answered(name, producer, node.index)
                elif graph:
                    self.skip(name, producer, node.got)
                pending = self.pending.get((name, producer))
                if pending is not None:  # that host may not have begun the generation yet, and not heard of it
                    pending.interval_s = self._limits.retry_s / 4
                    pending.due_s = pending.asked_s + pending.interval_s
                    self._retries.by(pending.due_s)
        for name, node in list(self.nodes.items()):
            if graph and node.node.kind == "operator" and name not in survivors:
                self._perform(node, node.begin())

    def reach(self, index: int) -> None:
        """At the client: an operator has gone on that has got all partitions before that one."""
        self.ahead = max(self.ahead, index)

    def settle(self, lines: Iterable[m.Start]) -> None:
        """No consumer of these begins before that partition any more."""
        for line in lines:
            self._lines[line.node] = max(line.index, self._lines.get(line.node, 0))
            consumer = self._tree.dataflow.by_name.get(line.node)
            for name in () if consumer is None else consumer.inputs:
                node = self.nodes.get(name)
                if node is not None and node.window.log is not None:
                    node.window.log.let_go(self._needed(node))

    def _needed(self, node: NodeCore) -> int:
        """The first partition of a node that a consumer may want."""
        consumers = [self._tree.node_of(name) for name in self._tree.consumers[node.node.name]]
        lines = [self._lines.get(consumer.name, 0) for consumer in consumers if consumer.kind == "operator"]
        return min([*lines, *(consumer.demanded for consumer in node.window.consumers.values())])

    # --- other hosts --------------------------------------------------------------------------------

    def peer_gone(self, lost: notes.HostLost) -> Notes:
        """No transfer to that host is under way any more, and what it kept is gone."""
        self.tails.peer_gone(lost.host)
        for node in self.nodes.values():
            node.window.peer_gone(lost.host)
        if self._shared_transfers is not None:
            self._shared_transfers.peer_gone(lost.host)
        return NO_NOTES

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """A node here that needs the way to ``host``, and what for."""
        for (consumer, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                return consumer, f"which holds {producer!r}"
        waits = self.tails.waits_for(host)
        if waits is not None:
            return waits
        windows = [(name, node.window) for name, node in self.nodes.items()] + [*self.tails.left.items()]
        for name, window in windows:
            for consumer, state in window.consumers.items():
                index = state.demanded
                if window.output(index) is None or state.has(index) or consumer in self.nodes:
                    continue
                if self._directory.whereabouts(consumer, index) == host:
                    return name, f"which holds {consumer!r}"
        return None

    # --- hand-overs -----------------------------------------------------------------------------------

    def leave(self, name: str, after: int, *, recall: bool) -> Iterable[Note]:
        """An operator becomes ``Light`` when it has dispatched partition ``after``; see ``NodeCore.leave``."""
        node = self.nodes[name]
        return self._recall(node, node.leave(after, recall=recall))

    def stay(self, name: str) -> Iterable[Note]:
        """An operator that was to leave goes on here."""
        self._owed.pop(name, None)
        node = self.nodes[name]
        return self._perform(node, node.stay())

    def release(self, name: str) -> None:
        """An operator has left, as ``Directory`` knows; its tail stays."""
        node = self.nodes.pop(name)
        self.tails.leave(name, node.window.split())
        self.tails.forget(name)
        self._forget((name,))
        self._books.forget(name)

    def _forget(self, names: Collection[str]) -> None:
        """Forget nodes that are not on this host any more."""
        if self._newcomers is not None:
            self._newcomers.forget(names)
        if self._schedule is not None:
            self._schedule.forget(names)
        for name in names:
            self._taken_bytes.pop(name, None)

    def follow(self, name: str) -> None:
        """What is wanted of an operator that has left is wanted where it went."""
        owed = self._owed.pop(name, None)
        for consumer in self._tree.consumers[name]:
            here = self.nodes.get(consumer)
            if here is None:
                if owed and consumer in owed:
                    self._out.send(self._directory.locations[name].host, owed[consumer])
            elif name in here.received.asked:  # R1: the demand goes to the operator's new host, and is repeated
                self._demand_until_answered(consumer, name, here.index)
            elif owed and isinstance(owed.get(consumer), m.SkipTo):  # it may have its own end in hand yet
                self.skip(consumer, name, LAST)

    def expect(self, name: str, index: int) -> None:
        """An operator is to come here and begin with partition ``index``."""
        self.expected[name] = Expected(index, self._install.ahead)

    def give_up(self, name: str) -> None:
        """It does not come."""
        self.expected.pop(name, None)

    def adopt(self, state: m.State, came: Newcomer) -> None:
        """An operator has come, with ``state``: it demands its next inputs."""
        name, tree = state.node, self._tree
        consumers = tree.consumers[name]
        last = state.index - 1
        known = {progress.consumer: progress for progress in state.demanded}
        begins: dict[str, ConsumerState] = {}
        for consumer in consumers:  # R4: queries may have begun or left since the state was taken
            first, progress = tree.first.get(consumer, 0), known.get(consumer)
            if progress is not None and state.index < progress.demanded < LAST:  # it goes on there
                first = max(first, progress.demanded)
            demanded = max(first - 1, last) if progress is None else progress.demanded
            begins[consumer] = ConsumerState(demanded, first=first)
        if state.tail:
            waiting = {consumer for consumer, begin in begins.items() if begin.needs <= last}
            if waiting:
                self.tails.keep(name, state.tail, last, waiting)
        node = NodeCore.come(tree.node_of(name), self._install.partitions, state.index, begins)
        equip(node, tree, self._install)
        self.nodes[name] = node
        self.newcomers.come(name, came)
        self._books.keep(tree.dataflow, name, {consumer: progress.book for consumer, progress in known.items()})
        for consumer in consumers:
            pending = self.pending.pop((consumer, name), None)
            if pending is not None:
                (self.skip if pending.skips else self._demand_until_answered)(consumer, name, pending.index)
        for producer in node.node.inputs:
            if producer in self.nodes:
                self.nodes[producer].window.forget(name)
        expected = self.expected.pop(name, None)
        early_inputs = {} if expected is None else expected.early
        if node.window.depth > 1:
            node.received.prefetched = early_inputs
        for action in node.stay():
            # else nobody wanted anything more of it while it was on its way
            if not isinstance(action, Ask) or node.window.depth > 1:
                self._perform(node, [action])
                continue
            for producer in node.node.inputs:
                early = early_inputs.get(action.index, {}).get(producer)
                if early is not None:  # R2: the input has come ahead of the operator
                    part = m.Partition(self._out.run, producer, name, early.index, early.end)
                    self._out.hand_over(part, early.value, early.size_bytes)
                else:
                    self._demand_until_answered(name, producer, action.index)

    # --- proposals ------------------------------------------------------------------------------------

    @property
    def last_sent(self) -> int:
        """The last partition that a source here has dispatched, -1 for none."""
        sources = [node for node in self.nodes.values() if node.node.kind == "source"]
        return max((node.index - 1 for node in sources), default=-1)

    @property
    def operators(self) -> int:
        """How many operators are here."""
        return plain_sum(node.node.kind == "operator" for node in self.nodes.values())

    def suspend(self) -> None:
        """Sources dispatch nothing new until ``resume``."""
        for node in self.nodes.values():
            if node.node.kind == "source":
                node.suspend()

    def resume(self) -> Notes:
        """Sources go on."""
        for node in list(self.nodes.values()):
            if node.suspended:
                yield from self._perform(node, node.resume())

    # --- another tree ---------------------------------------------------------------------------------

    def regrow(self, new_nodes: Iterable[str], held: Iterable[str]) -> Notes:
        """Have the nodes of both trees, as ``Tree`` has them.

        ``held``: those of ``new_nodes`` whose code may not run before ``let_run``.
        """
        tree = self._tree
        todo: list[tuple[NodeCore, list[Action]]] = []
        old, new, turn = tree.former, tree.dataflow, tree.turn
        assert old is not None
        for name, node in self.nodes.items():
            successor = new.by_name.get(name)
            rewired = successor is None or old.by_name[name].inputs != successor.inputs
            if rewired and node.state is GATHERING:  # it has perhaps asked the old tree for too much
                self.call_back(name, turn)
            if successor is None:
                todo.append((node, node.replace(turn)))  # R3: the node ends with the old tree
                continue
            if old.consumers[name] != new.consumers[name]:
                todo.append((node, node.turn(turn, new.consumers[name][0])))
            if old.by_name[name].inputs != successor.inputs:
                todo.append((node, node.rewire(turn, successor)))
        for name in held:
            self.hold(name)
        for name in new_nodes:
            begins = dict.fromkeys(new.consumers[name], turn + 1)
            node = self.nodes[name] = NodeCore.begun(new.by_name[name], self._install.partitions, turn + 1, begins)
            equip(node, tree, self._install)
            todo.append((node, node.begin()))
            self._books.keep(new, name)
        for node, actions in todo:  # not before: what one node does may concern the others
            yield from self._perform(node, actions)

    def hold(self, name: str) -> None:
        """The code of a node may not run before ``let_run``."""
        self._held.setdefault(name)

    def let_run(self, name: str) -> None:
        """The code of a node that was held may run."""
        run = self._held.pop(name, None)
        if run is not None:
            self._perform(self.nodes[name], [run])

    def shrink(self, gone: Collection[str]) -> list[str]:
        """Forget what was of the old tree only, as ``Tree`` has; which nodes that were here."""
        closed = [name for name in self.nodes if name in gone]
        for name in closed:
            del self.nodes[name]
            self._held.pop(name, None)
        for node in self.nodes.values():
            self._perform(node, node.retire())
        self.tails.shrink(self._tree.turn)
        for name in gone:
            self._books.forget(name)
            self.compute_s.pop(name, None)
        if self._newcomers is not None:
            self._newcomers.forget(gone)
        of_edges: tuple[dict[tuple[str, str], Any], ...] = (self.pending, self._answer_s, self.sizes)
        for edges in of_edges:
            for edge in [edge for edge in edges if not self._tree.has_edge(*edge)]:
                del edges[edge]
        return closed

    # --- other queries --------------------------------------------------------------------------------

    def extend(self, names: Collection[str], here: Iterable[str], first: int) -> Notes:
        """Nodes ``names`` are there from partition ``first`` on, as ``Tree`` has them; of these some are ``here``."""
        tree, limit = self._tree, self._install.partitions
        many = len(tree.dataflow.sinks) > 1
        todo: list[tuple[NodeCore, list[Action]]] = []
        for name, node in self.nodes.items():
            new = [consumer for consumer in tree.consumers[name] if consumer in names]
            if new:
                todo.append((node, node.join(new, first)))
            # R6: a node has ended because no consumer wanted more, and cannot serve a query that wants something
            for consumer in new if node.renounced and (limit is None or first < limit) else ():
                why = (
                    f"nobody wanted anything more of {name!r}, which it shares, and so that had ended; run it by itself"
                )
                self.failed(e.OperatorFailed(self._out.run, consumer, why))
            if many and node.state is ENDED and node.node.inputs:
                # R5: the node told its producers nothing while there was one sink; they may go on for others
                todo.append((node, [Renounce(node.node.inputs)]))
        for name in here:
            begins = dict.fromkeys(tree.consumers[name], first)
            self.nodes[name] = NodeCore.begun(tree.dataflow.by_name[name], limit, first, begins)
            equip(self.nodes[name], tree, self._install)
        self._books.begin_anew(tree.dataflow, self.nodes)
        for node, actions in todo:
            yield from self._perform(node, actions)

    def cut(self, gone: AbstractSet[str]) -> Notes:
        """Nodes that no query uses any more are gone, as ``Tree`` and ``Directory`` know."""
        for name in gone & self.nodes.keys():
            del self.nodes[name]
            self._out.emit(e.CloseNode(self._out.run, name))
        tables: tuple[dict[str, Any], ...] = (
            self.expected, self._owed, self._held, self.compute_s, self._taken_bytes,
        )  # fmt: skip
        for table in tables:
            for name in gone & table.keys():
                del table[name]
        self._forget(gone)
        if self._pace is not None:
            self._pace.forget(gone)
        edges: tuple[dict[tuple[str, str], Any], ...] = (self.pending, self._answer_s, self.sizes)
        for by_edge in edges:
            for edge in [edge for edge in by_edge if not gone.isdisjoint(edge)]:
                del by_edge[edge]
        self.tails.cut(gone)
        for owed in self._owed.values():
            for name in gone & owed.keys():
                del owed[name]
        for name in gone:
            self._books.forget(name)
        self._books.begin_anew(self._tree.dataflow, self.nodes)
        for node in list(self.nodes.values()):
            if not gone.isdisjoint(node.window.consumers):
                yield from self._perform(node, node.part(gone))
                yield from self._recall(node, node.leave_heard())
                if node.state is ENDED:  # nobody who is left wants anything of it, so it waits for nothing
                    self._wait_no_more(node.node.name)

    def _wait_no_more(self, name: str) -> None:
        """A node has ended while its inputs were to come: only that it wants nothing more is still to be heard."""
        for edge, pending in list(self.pending.items()):
            if edge[0] == name and not pending.skips:
                del self.pending[edge]

    def lagging(self) -> Iterator[tuple[str, str, int]]:
        """Yield the nodes here that wait for a consumer, the consumer, and the partition that it has not demanded.

        Of a node with several consumers it is one that is behind another. The application, which has no name, takes of
        a sink: the partition is the one that was delivered and that it has not taken.
        """
        for name, node in self.nodes.items():
            if node.node.kind == "sink":
                if node.state is IDLE and node.index > self._tree.first.get(name, 0):
                    yield name, "", node.index - 1
            elif len(node.window.consumers) > 1 and not node.window.unheard:
                demanded = {consumer: state.demanded for consumer, state in node.window.consumers.items()}
                demanded = {consumer: index for consumer, index in demanded.items() if index < LAST}
                least = min(demanded.values(), default=0)
                if any(index > least for index in demanded.values()):
                    yield from ((name, consumer, least + 1) for consumer, at in demanded.items() if at == least)

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        for node in self.nodes.values():
            node.validate()
        for (consumer, producer), pending in self.pending.items():
            assert pending.skips or producer in self.nodes[consumer].received.asked, (consumer, producer)
        for name in self.nodes:
            assert self._directory.locations[name].host == self._host, name
        assert self.expected.keys().isdisjoint(self.nodes), self.expected
        assert self.nodes.keys() >= self._held.keys(), self._held
        if self._tree.former is not None:
            for name in self.nodes.keys() - self._tree.dataflow.by_name.keys():
                assert self.nodes[name].limit == self._tree.turn + 1, self.nodes[name]

    def on_guests_due(self) -> None:
        """Dismiss the guests that other consumers have waited for long enough."""
        self.laggards.on_timer()

    HANDLERS = Handlers(
        messages={
            m.SkipTo: Demands.on_skip,
            m.Skipped: Demands.on_skipped,
            m.ReplayNotNeeded: Demands.on_replay_not_needed,
            m.StripeIndices: Demands.on_given,
        },
        events={e.OperatorFailed: Demands.failed, e.NextRequested: Demands.next},
        notes={notes.HostLost: peer_gone},
        timers={Timer.GUESTS: on_guests_due, Timer.PACE: Demands.on_pace},
    )
