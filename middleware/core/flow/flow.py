"""Nodes of a run on one host: demands for outputs, arriving inputs, and the actions that follow.

Rules:

R1. A message for a node goes to the newest known location of the node. If the node is elsewhere, the host forwards the
    message, ``MAX_FORWARDS`` times at most, and sends the newer location to the sender.
R2. ``Demands`` repeats the demands of nodes here, ``Outputs`` sends the outputs of nodes, and ``CodeCalls`` calls the
    code of nodes.
R3. The last output of a node that has left, or has a new consumer, is the node's *tail* (``tails``). Open demands for
    an operator that has left are repeated at the operator's new host.
R4. If a host of the run would refuse a partition, the host that makes the partition refuses it (``CodeCalls``).
R5. The failure of code is reported again with later messages (``failures``).
R6. In a run with failover, an operator may lack the partition with which a consumer continues. Then the client is
    notified, and every node restarts. In a graph, every consumer announces its next partition at once, because
    producers send nothing before the announcement.
R7. A node may have its next inputs when it has made a partition. The state of the node is taken before its code runs
    again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from msgspec import UNSET

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context import notes
from thalweg.middleware.core.context.notes import Note, Notes
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.actions import (
    LAST,
    Action,
    Ask,
    Dispatch,
    Hand,
    Output,
    Renounce,
    RunCode,
    Turned,
)
from thalweg.middleware.core.flow.beginning import begun, equip
from thalweg.middleware.core.flow.code_calls import CodeCalls
from thalweg.middleware.core.flow.demands import Demands
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.entries import CarriedOver, Expected
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.failures import Failures
from thalweg.middleware.core.flow.forwards import MAX_FORWARDS, forwarded
from thalweg.middleware.core.flow.laggards import Laggards
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import DRAINING, ENDED, IDLE, LIGHT, RUNNING
from thalweg.middleware.core.flow.output_schedule import OutputSchedule
from thalweg.middleware.core.flow.outputs import Outputs
from thalweg.middleware.core.flow.tails import Tails
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.flow.uneven import unevenly
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.parcels import is_nothing, is_past_end
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.split_graph import is_inlet

NO_NOTES: tuple[Note, ...] = ()


class Flow(Part):
    """Nodes of one run on this host. No other part writes the table of nodes."""

    # slots: in a dict of more than 29 attributes, Python 3.11 looks every attribute up anew, for every message
    __slots__ = (
        "_books",
        "_context",
        "_desk",
        "_directory",
        "_failures",
        "_host",
        "_install",
        "_laggards",
        "_monitor",
        "_out",
        "_owed",
        "_schedule",
        "_silence",
        "_tails",
        "_tree",
        "ahead",
        "calls",
        "compute_s",
        "demands",
        "expected",
        "kept",
        "nodes",
        "outputs",
        "sizes",
    )

    def __init__(
        self, context: RunContext, shared: HostServices, tree: Tree, directory: Directory, books: EpochBooks
    ) -> None:
        self._context, self._out, self._install = context, context.out, context.install
        self._host, self._desk = context.out.host, context.out.context  # with the clock, read for every message
        self._tree, self._directory, self._books = tree, directory, books
        self._monitor, self._silence = shared.monitor, shared.silence
        self.nodes: dict[str, NodeCore] = {}
        for node in tree.dataflow.nodes:
            if directory.locations[node.name].host == self._host:
                self.nodes[node.name] = begun(node, tree, context.install)
        self.expected: dict[str, Expected] = {}
        self.demands = Demands(context, shared, tree, directory, books, self.nodes)
        self.outputs = Outputs(context, tree, directory, books, self.nodes, self.expected)
        self.calls = CodeCalls(context)
        self._schedule = OutputSchedule() if context.fails_over else None
        # created on first use
        self._tails: Tails | None = None
        self._laggards: Laggards | None = None
        self._failures: Failures | None = None
        if directory.subscribers:  # a later generation
            self.laggards.watch()
        # operators that have continued from the previous generation, with their next partition to consume
        self.kept: tuple[m.Start, ...] = ()
        self.ahead = 0  # at the client: highest partition that a node has got to, on the hosts of the run
        self.sizes: dict[tuple[str, str], int] = {}  # (consumer, producer) -> bytes of the last input
        self.compute_s: dict[str, float] = {}  # duration of the newest call, by node
        # messages of consumers to a light operator, which its new host answers
        self._owed: dict[str, dict[str, m.Demand | m.SkipTo]] = {}

    @property
    def tails(self) -> Tails:
        """Tails on this host, and records of the tails that other hosts keep for operators here."""
        if self._tails is None:
            self._tails = Tails(self._context, self._silence, self._directory)
        return self._tails

    @property
    def has_tails(self) -> bool:
        """Return whether this host keeps the last output of a node that has left."""
        return self._tails is not None and bool(self._tails.left)

    @property
    def laggards(self) -> Laggards:
        """Guests that hold up nodes on this host."""
        if self._laggards is None:
            self._laggards = Laggards(self._context, self._directory, self.nodes)
        return self._laggards

    @property
    def failures(self) -> Failures:
        """Nodes on this host that cannot continue."""
        if self._failures is None:
            self._failures = Failures(self._context, self._directory)
        return self._failures

    @property
    def schedule(self) -> OutputSchedule:
        """Schedule of the reports of outputs, in a run with failover."""
        assert self._schedule is not None
        return self._schedule

    # --- messages -------------------------------------------------------------------------------------

    def demand(self, sender: str, demand: m.Demand) -> Iterable[Note]:
        """Handle a demand of ``demand.consumer``, which is on host ``sender``."""
        name, consumer, index = demand.producer, demand.consumer, demand.index
        node = self._addressed(sender, demand, index)
        if node is None or (self._tails is not None and self._is_of_tail(demand)):
            return NO_NOTES
        state = node.window.consumers.get(consumer)
        if state is None:  # the node has turned to another consumer since
            return NO_NOTES
        if index < node.index:  # else nothing from there on has been sent
            self.outputs.on_demand(state, demand, node.window)
        book = self._books.of.get(name)
        fresh = book is not None and state.demanded < index <= node.index
        unheard = bool(node.window.unheard)
        verdict, actions = node.on_demand(index, demand.again, consumer)
        if verdict == "taken":
            if fresh and book is not None:
                book.on_mark(demand.later, demand.critical, consumer)
            if node.state is LIGHT:
                self._owed.setdefault(name, {})[consumer] = forwarded(demand)
        elif verdict == "lacking":
            self.failures.lacks(name, consumer, index)
        noted = self.perform(node, actions) if actions else NO_NOTES
        return (*noted, *self.recall(node, node.leave_heard())) if unheard else noted

    def _addressed(self, sender: str, message: m.Demand | m.SkipTo, index: int) -> NodeCore | None:
        """Return the node to which a consumer's message is addressed.

        None: the node is on another host, a tail has answered, or the tree has no such edge.
        """
        name, consumer = message.producer, message.consumer
        if not self._tree.takes(consumer, name, index):
            self._out.record("unexpected", peer=sender, node=name)
            return None
        routes = self._directory.chosen_routes
        if routes is not None and routes.busy and isinstance(message, m.Demand) and message.again:
            for part in routes.stuck(message, self._monitor):
                self.transfer_over(part, arrived=False)
        if message.version > self._directory.locations[consumer].version:
            self._directory.merge((m.Location(consumer, sender, message.version),))
        if self._tails is not None and self._answer_by_tail(message, index):
            return None
        node = self.nodes.get(name)
        if node is None:
            self._forward(sender, name, message, None, 0)
        elif self._failures is not None:
            self._failures.repeat(self.nodes)
        return node

    def _answer_by_tail(self, message: m.Demand | m.SkipTo, index: int) -> bool:
        """Answer a consumer from a tail on this host (R3). Return whether a tail answers."""
        if isinstance(message, m.SkipTo):
            self.tails.let_go(message.producer, message.consumer, index)
            return False
        sends = self.tails.wanted(message)
        for send in sends or ():
            self.outputs.send_tail(message.producer, self.tails.left[message.producer], send)
        return sends is not None

    def _is_of_tail(self, demand: m.Demand) -> bool:
        """Return whether the demanded partition is a tail on another host, or a lost tail (R3)."""
        name, consumer, index = demand.producer, demand.consumer, demand.index
        if name not in self.tails.kept:
            return False
        where = self.tails.answers(demand)
        here = self.nodes.get(consumer) if where == "elsewhere" else None
        waits = here is not None and name in here.received.asked and here.index == index
        if waits and (consumer, name) not in self.demands.pending:
            self.demands.wait(consumer, name, index)
        return where != "node"

    def on_skip(self, sender: str, message: m.SkipTo) -> Iterable[Note]:
        """Handle a ``SkipTo``: the consumer needs no partition before ``index`` (R6).

        An ``index`` of None: the consumer needs no further partition.
        """
        name, consumer = message.producer, message.consumer
        index = LAST if message.index is None else message.index
        node = self._addressed(sender, message, index)
        if node is None:
            return NO_NOTES
        if self._tails is not None and name in self._tails.kept:
            self._tails.acknowledge(name, consumer, index)
        if index == LAST and not self._may_renounce(sender, message):
            return NO_NOTES
        unheard, light = bool(node.window.unheard), node.state is LIGHT
        can, actions = node.on_skip(index, consumer)
        if not can:
            self.failures.lacks(name, consumer, index)
            return NO_NOTES
        if light and index == LAST:  # the operator's new host needs the message
            self._owed.setdefault(name, {})[consumer] = forwarded(message)
        elif consumer not in self.nodes:
            to = self._directory.host_of(consumer, index)
            self._out.send(to, m.Skipped(self._out.run, name, consumer, message.index))
        noted = self.perform(node, actions) if actions else NO_NOTES
        return (*noted, *self.recall(node, node.leave_heard())) if unheard else noted

    def on_skipped(self, _: str, message: m.Skipped) -> None:
        """Handle the answer to a ``SkipTo``."""
        self.demands.skipped(message)

    def on_replay_not_needed(self, _: str, message: m.ReplayNotNeeded) -> None:
        """Drop a tail for a consumer that has demanded a later partition."""
        self.tails.let_go(message.producer, message.consumer, message.index)

    def _may_renounce(self, sender: str, message: m.SkipTo) -> bool:
        """Return whether a consumer may renounce its producer.

        The graph has to have several sinks, or the producer several consumers. The message has to come from the
        consumer's host, or be forwarded.
        """
        is_host = sender == self._directory.locations[message.consumer].host
        several = len(self._tree.dataflow.sinks) > 1 or len(self._tree.consumers[message.producer]) > 1
        return several and (is_host or message.forwards > 0)

    def partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> Iterable[Note]:
        """Handle a partition from host ``sender`` for ``part.consumer``."""
        edge = name, producer = part.consumer, part.producer
        index = part.index
        node = self.nodes.get(name)
        output = Output(index, value, size_bytes, part.end)
        if node is None:
            expected = self.expected.get(name)
            if expected is not None and expected.takes(index) and producer in self._tree.node_of(name).inputs:
                expected.early.setdefault(index, {})[producer] = output
            else:
                self._forward(sender, name, part, value, size_bytes)
            return NO_NOTES
        verdict, actions = node.on_partition(producer, output)
        if verdict != "taken":
            self._out.record("duplicate", peer=sender, node=name, index=index)
            return NO_NOTES
        self.demands.answered(edge, index)
        if self._books.of:
            self.sizes[edge] = size_bytes
        if self._schedule is not None:
            self._schedule.take(name, size_bytes)
        return self.perform(node, actions) if actions else NO_NOTES

    def share(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> Iterable[Note]:
        """Give a partition to every consumer on this host that waits for the partition (R3 of ``outputs``)."""
        noted = NO_NOTES
        if sender != self._host and not part.end:
            consumers = [name for name in self._tree.consumers[part.producer] if name in self.nodes]
            waiting = [name for name in consumers if self.nodes[name].wants(part.producer, part.index)]
            for consumer in waiting:
                alike = msgspec.structs.replace(part, consumer=consumer)
                noted = (*noted, *self.partition(sender, alike, value, size_bytes))
        return noted

    def _forward(
        self, sender: str, node: str, message: m.Demand | m.SkipTo | m.Partition, value: Any, size_bytes: int
    ) -> None:
        """Forward a message to the location of its node (R1)."""
        location = self._directory.locations.get(node)
        if location is None or location.host == self._host or message.forwards >= MAX_FORWARDS:
            self._out.record("undeliverable", peer=sender, node=node, index=message.index)
            return
        if not isinstance(message, m.Partition):
            self._out.send(location.host, forwarded(message))
        else:
            onward = msgspec.structs.replace(message, forwards=message.forwards + 1, news=None)
            self._out.send(location.host, onward, value, size_bytes, bulk=not message.end)
        self._out.record("forwarded", peer=location.host, node=node, index=message.index)
        if sender != self._host:
            self._out.send(sender, m.Located(self._out.run, (location,)))

    def transfer_over(self, message: m.Partition, *, arrived: bool) -> None:
        """Record the end of a transfer. Without ``arrived``, the partition may be lost."""
        node = self.nodes.get(message.producer)
        tail = None if self._tails is None else self._tails.left.get(message.producer)
        for consumer in self.outputs.consumers_of(message):
            if node is not None:
                node.window.on_transfer_over(message.index, consumer, arrived=arrived)
            if tail is not None:
                tail.on_transfer_over(message.index, consumer, arrived=arrived)

    # --- events ---------------------------------------------------------------------------------------

    def failed(self, event: e.OperatorFailed) -> None:
        """Handle the failure of a node's code."""
        self.failures.add(event)

    def next(self, event: e.NextRequested) -> Iterable[Note]:
        """Handle the application's request for the next partition of a sink, or of every sink."""
        noted: Iterable[Note] = NO_NOTES
        for name in (event.sink,) if event.sink else self._tree.dataflow.sinks:
            sink = self.nodes.get(name)
            if sink is not None:
                noted = (*noted, *self.perform(sink, sink.on_demand(sink.index)[1]))
        return noted

    def finished(self, event: e.OperatorFinished) -> Iterable[Note]:
        """Handle a partition that a node's code has made."""
        node = self.nodes.get(event.node)
        if node is None:
            return NO_NOTES
        if event.size_bytes > self.calls.most_bytes:  # R4: some host of the run would refuse the partition
            self.failed(e.OperatorFailed(event.run, event.node, self.calls.refusal(event.index, event.size_bytes)))
            return NO_NOTES
        if event.end:
            event = self.calls.indices.end(event)
        if self._desk.recording or event.late_rows is not UNSET or event.left_out is not UNSET:
            self._record_made(node, event)
        if self._books.of:
            self.compute_s[event.node] = event.duration_s
        if self.calls.called:
            self.calls.returned(event.node)
        verdict, actions = node.on_finished(Output(event.index, event.value, event.size_bytes, event.end))
        if verdict != "taken":
            return NO_NOTES
        schedule, taken_bytes, due = self._schedule, 0, False
        if schedule is not None:
            due = bool(node.node.inputs) and schedule.is_due(event, self._desk.now)
            if due or self._tree.former is not None:
                taken_bytes = schedule.begin_anew(event.node)
        if self._tree.former is None and not due:
            return self.perform(node, actions)
        return self._made(node, actions, notes.OutputMade(event.node, event.index, taken_bytes))

    def _record_made(self, node: NodeCore, event: e.OperatorFinished) -> None:
        if is_inlet(node.node):  # a tree has made and recorded the partition
            return
        index = self.calls.indices.of(event.index)
        past = is_past_end(event.value)
        if node.node.kind == "source" and not (event.end or past):
            self._out.record("produced", node=event.node, index=index)
        if is_nothing(event.value) and not past:
            self._out.record("nothing", node=event.node, index=index)
        if event.late_rows is not UNSET:
            self._out.record("late", node=event.node, index=index, value=event.late_rows)
        if event.left_out is not UNSET:
            why = {"why": event.left_out.why}
            self._out.record("left-out", node=event.node, index=index, value=event.left_out.rows, detail=why)

    def _made(self, node: NodeCore, actions: list[Action], made: notes.OutputMade) -> Notes:
        """Perform the actions of a node, so that the state can be taken before the code runs again (R7)."""
        calls: list[Action] = [action for action in actions if type(action) is RunCode]
        yield from self.perform(node, [action for action in actions if type(action) is not RunCode])
        yield made
        yield from self.perform(node, calls)

    def on_pace(self, name: str) -> None:
        """Call a source whose next partition is due."""
        action = self.calls.pace.take(name)
        if action is not None:
            self.call_again(name, action)

    def on_guests_due(self) -> None:
        """Check for guests that hold up nodes, and report the guests at the limit."""
        self.laggards.on_timer()

    # --- actions of nodes -----------------------------------------------------------------------------

    def perform(self, node: NodeCore, actions: list[Action]) -> Iterable[Note]:
        """Perform the actions of a node, in their order."""
        name, noted = node.node.name, NO_NOTES
        for action in actions:
            if type(action) is Dispatch:  # not match: a class pattern takes three times as long on this hot path
                self.outputs.dispatch(node, action)
            elif type(action) is RunCode:
                instead = self.calls.call(node, action)
                if instead is not None:
                    noted = (*noted, *self.finished(instead))
            elif type(action) is Ask:
                self.demands.ask(node, action.index)
            elif type(action) is Hand:
                self._deliver(name, action.output)
                if name == self._tree.dataflow.sinks[0]:  # with several sinks, the first sink counts
                    noted = (notes.PartitionDelivered(),)
            elif type(action) is Renounce:
                for producer in action.producers if len(self._tree.dataflow.sinks) > 1 else ():
                    self.demands.skip(name, producer, LAST)
            elif type(action) is Turned:
                self.tails.leave(name, node.turned())
                noted = (*noted, *self.perform(node, node.go_on()))
            else:
                noted = (notes.Light(name),)
        if node.state is ENDED:
            noted = (*noted, notes.Ended(name))
        return noted

    def recall(self, node: NodeCore, actions: list[Action]) -> Iterable[Note]:
        """Perform the actions of a node that is to leave. Remove its demands if the node is draining."""
        noted = self.perform(node, actions)
        if node.state is DRAINING:
            self.call_back(node.node.name)
        return noted

    def call_back(self, name: str, after: int = -1) -> None:
        """Remove the demands of a node, if the node has dispatched partition ``after``."""
        node = self.nodes[name]
        if node.index > after:
            self.demands.withdraw(name, node.node.inputs)

    def call_again(self, name: str, action: RunCode) -> None:
        """Call the code of a node that has waited, if the node is still at the partition of the call."""
        node = self.nodes.get(name)
        if node is not None and node.state is RUNNING and node.index == action.index:
            self.perform(node, [action])

    def hold(self, name: str) -> None:
        """Delay calls of the code of a node until ``let_run``."""
        self.calls.hold(name)

    def let_run(self, name: str) -> None:
        """Permit calls of the code of a node again, and make the call that ``hold`` has delayed."""
        run = self.calls.release(name)
        if run is not None:
            self.perform(self.nodes[name], [run])

    def _deliver(self, sink: str, output: Output) -> None:
        """Deliver a partition, or the end of the stream, to the application."""
        index, uneven = output.index, ""
        if isinstance(output.end, tuple):
            uneven = unevenly(self._out, self._tree, sink, output, self.calls.indices.of(index))
        about = bool(output.end), uneven, sink, output.sizes
        self._out.emit(e.Deliver(self._out.run, index, output.value, output.size_bytes, *about))

    def has_failed(self, name: str) -> bool:
        """Return whether a failure of a node on this host has been reported."""
        return self._failures is not None and name in self._failures.said

    # --- nodes that leave, and come -------------------------------------------------------------------

    def add(self, node: NodeCore) -> NodeCore:
        """Add a node to this host."""
        equip(node, self._tree, self._install)
        self.nodes[node.node.name] = node
        return node

    def take_over(self, survivors: Mapping[str, CarriedOver]) -> None:
        """Take over the operators that continue from the previous generation."""
        self.kept = tuple([m.Start(name, survivor.node.got) for name, survivor in survivors.items()])
        for name, survivor in survivors.items():
            self.nodes[name] = survivor.node
            if survivor.called:
                self.calls.was_called_by(name, survivor.called)

    def stay(self, name: str) -> Iterable[Note]:
        """Resume an operator that was to leave."""
        self._owed.pop(name, None)
        node = self.nodes[name]
        return self.perform(node, node.stay())

    def release(self, name: str) -> None:
        """Remove an operator that has left for a new host. Keep the tail of the operator (R3)."""
        node = self.nodes.pop(name)
        self.tails.leave(name, node.window.split())
        self.tails.forget(name)
        self.outputs.forget((name,))
        if self._schedule is not None:
            self._schedule.forget((name,))
        self._books.forget(name)

    def follow(self, name: str) -> None:
        """Repeat the open demands for an operator that has left, at the new host of the operator (R3)."""
        owed = self._owed.pop(name, None)
        for consumer in self._tree.consumers[name]:
            here = self.nodes.get(consumer)
            if here is None:
                if owed and consumer in owed:
                    self._out.send(self._directory.locations[name].host, owed[consumer])
            elif name in here.received.asked:  # R1: the demand goes to the operator's new host, and is repeated
                self.demands.demand(consumer, name, here.index)
            elif owed and isinstance(owed.get(consumer), m.SkipTo):  # the consumer may still hold its own end
                self.demands.skip(consumer, name, LAST)

    def expect(self, name: str, index: int) -> None:
        """Expect an operator that is to begin here with partition ``index``."""
        self.expected[name] = Expected(index, self._install.ahead)

    def give_up(self, name: str) -> None:
        """Stop expecting an operator."""
        self.expected.pop(name, None)

    def begin_adopted(self, node: NodeCore) -> None:
        """Let an operator that has come from another host demand its inputs.

        An input that came before the operator is handed over instead.
        """
        name, depth = node.node.name, node.window.depth
        self.demands.redirect(name, self._tree.consumers[name])
        for producer in node.node.inputs:
            if producer in self.nodes:
                self.nodes[producer].window.forget(name)
        expected = self.expected.pop(name, None)
        early_inputs = {} if expected is None else expected.early
        if depth > 1:
            node.received.prefetched = early_inputs
        for action in node.stay():
            # no ``Ask``: every consumer renounced while the operator moved
            if not isinstance(action, Ask) or depth > 1:
                self.perform(node, [action])
                continue
            for producer in node.node.inputs:
                early = early_inputs.get(action.index, {}).get(producer)
                if early is not None:
                    part = m.Partition(self._out.run, producer, name, early.index, early.end)
                    self._out.hand_over(part, early.value, early.size_bytes)
                else:
                    self.demands.demand(name, producer, action.index)

    def forget(self, gone: AbstractSet[str]) -> list[str]:
        """Remove nodes ``gone``, after ``Tree`` has removed them. Return the nodes that were on this host."""
        here = [name for name in self.nodes if name in gone]
        tables: tuple[dict[str, Any], ...] = (self.nodes, self.expected, self._owed, self.compute_s)
        for table in tables:
            for name in gone & table.keys():
                del table[name]
        for owed in self._owed.values():
            for name in gone & owed.keys():
                del owed[name]
        for edge in [edge for edge in self.sizes if not self._tree.has_edge(*edge)]:
            del self.sizes[edge]
        self.demands.forget_edges()
        self.outputs.forget(gone)
        self.calls.forget(gone)
        if self._schedule is not None:
            self._schedule.forget(gone)
        for name in gone:
            self._books.forget(name)
        return here

    # --- requests to all nodes ------------------------------------------------------------------------

    def reach(self, index: int) -> None:
        """At the client: record that a node of the run has got to partition ``index``."""
        self.ahead = max(self.ahead, index)

    def peer_gone(self, lost: notes.HostLost) -> Notes:
        """Record the loss of a host: transfers to the host have ended, and its tails are lost."""
        if self._tails is not None:
            self._tails.peer_gone(lost.host)
        for node in self.nodes.values():
            node.window.peer_gone(lost.host)
        self.outputs.peer_gone(lost.host)
        return NO_NOTES

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node that needs the route to ``host``, and the reason, or None."""
        windows = [(name, node.window) for name, node in self.nodes.items()]
        waits = self.demands.waits_for(host)
        if waits is None and self._tails is not None:
            waits = self._tails.waits_for(host)
            windows += self._tails.left.items()
        if waits is not None:
            return waits
        for name, window in windows:
            for consumer, state in window.consumers.items():
                index = state.demanded
                wanted = index >= state.first and window.output(index) is not None
                if not wanted or state.has(index) or consumer in self.nodes:
                    continue
                if self._directory.whereabouts(consumer, index) == host:
                    return name, f"which holds {consumer!r}"
        return None

    @property
    def last_sent(self) -> int:
        """Last partition that a source on this host has dispatched. -1: none."""
        sources = [node for node in self.nodes.values() if node.node.kind == "source"]
        return max((node.index - 1 for node in sources), default=-1)

    @property
    def operators(self) -> int:
        """Number of operators on this host."""
        return plain_sum(node.node.kind == "operator" for node in self.nodes.values())

    def suspend(self) -> None:
        """Let sources dispatch nothing new until ``resume``."""
        for node in self.nodes.values():
            if node.node.kind == "source":
                node.suspend()

    def resume(self) -> Notes:
        """Let sources dispatch again."""
        for node in list(self.nodes.values()):
            if node.suspended:
                yield from self.perform(node, node.resume())

    def lagging(self) -> Iterator[tuple[str, str, int]]:
        """Yield the nodes that wait for a consumer, the consumer, and the partition that the consumer has not demanded.

        If a node has several consumers, the slowest are yielded, unless the consumers are equally far. The consumer of
        a sink is the application, with an empty name. The partition of a sink is delivered, but the application has not
        consumed it.
        """
        for name, node in self.nodes.items():
            consumers = node.window.consumers
            if node.node.kind == "sink":
                if node.state is IDLE and node.index > self._tree.first.get(name, 0):
                    yield name, "", node.index - 1
            elif len(consumers) > 1 and node.turns is None and not node.window.unheard:
                demanded = {consumer: state.demanded for consumer, state in consumers.items() if state.demanded < LAST}
                least = min(demanded.values(), default=0)
                if any(index > least for index in demanded.values()):
                    yield from ((name, consumer, least + 1) for consumer, at in demanded.items() if at == least)

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        for node in self.nodes.values():
            node.validate()
        self.demands.validate()
        for name in self.nodes:
            assert self._directory.locations[name].host == self._host, name
        assert self.expected.keys().isdisjoint(self.nodes), self.expected
        self.calls.validate(self.nodes)
        if self._tree.former is not None:
            for name in self.nodes.keys() - self._tree.dataflow.by_name.keys():
                assert self.nodes[name].limit == self._tree.turn + 1, self.nodes[name]

    HANDLERS = Handlers(
        messages={m.SkipTo: on_skip, m.Skipped: on_skipped, m.ReplayNotNeeded: on_replay_not_needed},
        events={e.OperatorFailed: failed, e.NextRequested: next},
        notes={notes.HostLost: peer_gone},
        timers={Timer.GUESTS: on_guests_due, Timer.PACE: on_pace},
    )


class FlowParts(msgspec.Struct, frozen=True):
    """Parts of one run that every change of the run's nodes needs."""

    tree: Tree
    directory: Directory
    books: EpochBooks
    flow: Flow

    @classmethod
    def of(cls, parts: RunParts) -> FlowParts:
        """Return the four parts from the parts of a run."""
        return cls(parts.get(Tree), parts.get(Directory), parts.get(EpochBooks), parts.get(Flow))
