"""The nodes of a run on this host: what is demanded of them, what comes for them, and what they do about it.

Rules:

R1. A message for a node goes to the node's newest known location. A host that gets one for a node that is elsewhere
    forwards it (``MAX_FORWARDS`` times at most) and tells the sender the newer location.
R2. ``Demands`` repeats what nodes here have demanded, ``Outputs`` sends what they make, and ``CodeCalls`` says when
    their code runs.
R3. The last output of a node that has left, or has another consumer, is its *tail* (``flow.tails``). What is demanded
    of an operator that has left is demanded where it went.
R4. A partition that any host of the run would refuse is refused where it is made (``CodeCalls``).
R5. Code here that has failed is told of again (``flow.failures``).
R6. In a run that outlives its hosts the client is told of an operator that lacks what a consumer goes on with: then all
    begin anew. In a graph a consumer may have all that it wants for long: it says at once with which partition it goes
    on, as nothing is sent to the others before.
R7. A node may have its next inputs when it has made a partition: who takes its state does so first.
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
from thalweg.middleware.core.parts.part import Part
from thalweg.middleware.parcels import is_nothing, is_past_end
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.split_graph import is_inlet

NO_NOTES: tuple[Note, ...] = ()


class Flow(Part):
    """The only writer of a run's nodes on this host."""

    # of more than 29 attributes in a dict Python 3.11 looks each up anew, for every message
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
        self._host, self._desk = context.out.host, context.out.context  # whose clock is read for every message
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
        # created with the first that they are for
        self._tails: Tails | None = None
        self._laggards: Laggards | None = None
        self._failures: Failures | None = None
        if directory.subscribers:  # a later generation
            self.laggards.watch()
        # operators that have gone on from the generation before, and how far each was
        self.kept: tuple[m.Start, ...] = ()
        self.ahead = 0  # at the client: none of these, wherever it is, was further
        self.sizes: dict[tuple[str, str], int] = {}  # (consumer, producer) -> bytes of the last input
        self.compute_s: dict[str, float] = {}  # how long a node's code took last
        # what consumers have sent to an operator that is light: where it goes answers that
        self._owed: dict[str, dict[str, m.Demand | m.SkipTo]] = {}

    @property
    def tails(self) -> Tails:
        """Last outputs of nodes that have left here, or that other hosts keep for nodes here."""
        if self._tails is None:
            self._tails = Tails(self._context, self._silence, self._directory)
        return self._tails

    @property
    def has_tails(self) -> bool:
        """Whether this host keeps the last output of a node that has left."""
        return self._tails is not None and bool(self._tails.left)

    @property
    def laggards(self) -> Laggards:
        """Guests that hold up nodes here."""
        if self._laggards is None:
            self._laggards = Laggards(self._context, self._directory, self.nodes)
        return self._laggards

    @property
    def failures(self) -> Failures:
        """Nodes here that cannot go on."""
        if self._failures is None:
            self._failures = Failures(self._context, self._directory)
        return self._failures

    @property
    def schedule(self) -> OutputSchedule:
        """When the outputs of nodes here are reported next, in a run with failover."""
        assert self._schedule is not None
        return self._schedule

    # --- messages -------------------------------------------------------------------------------------

    def demand(self, sender: str, demand: m.Demand) -> Iterable[Note]:
        """``demand.consumer``, which is at ``sender``, wants a partition."""
        name, consumer, index = demand.producer, demand.consumer, demand.index
        node = self._addressed(sender, demand, index)
        if node is None or (self._tails is not None and self._is_of_tail(demand)):
            return NO_NOTES
        state = node.window.consumers.get(consumer)
        if state is None:  # the node has turned since
            return NO_NOTES
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
        """Return the node here that a consumer's message is for; None where there is none, or a tail has answered."""
        name, consumer = message.producer, message.consumer
        if not self._tree.takes(consumer, name, index):
            self._out.record("unexpected", peer=sender, node=name)
            return None
        routes = self._directory.chosen_routes
        if isinstance(message, m.Demand) and message.again and routes is not None and routes.busy:
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
        """R3: whether the tail of a node that has left answers a consumer."""
        if isinstance(message, m.SkipTo):
            self.tails.let_go(message.producer, message.consumer, index)
            return False
        sends = self.tails.wanted(message)
        for send in sends or ():
            self.outputs.send_tail(message.producer, self.tails.left[message.producer], send)
        return sends is not None

    def _is_of_tail(self, demand: m.Demand) -> bool:
        """R3: whether another host keeps what is demanded, or kept it; a consumer here waits for that host."""
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
        """Let go of what ``message.consumer`` does not take: all before a partition (R6), or everything."""
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
        if light and index == LAST:  # who goes on as this node is to know of it
            self._owed.setdefault(name, {})[consumer] = forwarded(message)
        elif consumer not in self.nodes:
            to = self._directory.host_of(consumer, index)
            self._out.send(to, m.Skipped(self._out.run, name, consumer, message.index))
        noted = self.perform(node, actions) if actions else NO_NOTES
        return (*noted, *self.recall(node, node.leave_heard())) if unheard else noted

    def on_skipped(self, _: str, message: m.Skipped) -> None:
        """The producer's host has answered a ``SkipTo``."""
        self.demands.skipped(message)

    def on_replay_not_needed(self, _: str, message: m.ReplayNotNeeded) -> None:
        """Let go of the last output that an operator has left here: its consumer has demanded a later one."""
        self.tails.let_go(message.producer, message.consumer, message.index)

    def _may_renounce(self, sender: str, message: m.SkipTo) -> bool:
        """Whether the consumer can have said that it wants nothing more: where nothing is for several, none has to."""
        is_host = sender == self._directory.locations[message.consumer].host
        several = len(self._tree.dataflow.sinks) > 1 or len(self._tree.consumers[message.producer]) > 1
        return several and (is_host or message.forwards > 0)

    def partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> Iterable[Note]:
        """A partition for ``part.consumer`` has come from ``sender``."""
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
        """What has come is also for others here that wait for it (R3 of ``outputs``)."""
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
        """R1: to where the node is, as far as this host knows."""
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
        """A partition's transfer is over; unless it has ``arrived``, nobody knows what became of it."""
        node = self.nodes.get(message.producer)
        tail = None if self._tails is None else self._tails.left.get(message.producer)
        for consumer in self.outputs.consumers_of(message):
            if node is not None:
                node.window.on_transfer_over(message.index, consumer, arrived=arrived)
            if tail is not None:
                tail.on_transfer_over(message.index, consumer, arrived=arrived)

    # --- events ---------------------------------------------------------------------------------------

    def failed(self, event: e.OperatorFailed) -> None:
        """A node's code cannot go on, and so the run, or the queries that use it, cannot."""
        self.failures.add(event)

    def next(self, event: e.NextRequested) -> Iterable[Note]:
        """The application wants the next partition of a sink, or of all."""
        noted: Iterable[Note] = NO_NOTES
        for name in (event.sink,) if event.sink else self._tree.dataflow.sinks:
            sink = self.nodes.get(name)
            if sink is not None:
                noted = (*noted, *self.perform(sink, sink.on_demand(sink.index)[1]))
        return noted

    def finished(self, event: e.OperatorFinished) -> Iterable[Note]:
        """A node's code has made a partition."""
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
        if is_inlet(node.node):  # it was made in a tree, which has recorded it
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
        """R7: who takes the node's state does so before its code runs again."""
        calls: list[Action] = [action for action in actions if type(action) is RunCode]
        yield from self.perform(node, [action for action in actions if type(action) is not RunCode])
        yield made
        yield from self.perform(node, calls)

    def on_pace(self, name: str) -> None:
        """A source's next partition is due."""
        action = self.calls.pace.take(name)
        if action is not None:
            self.call_again(name, action)

    def on_guests_due(self) -> None:
        """Dismiss the guests that other consumers have waited for long enough."""
        self.laggards.on_timer()

    # --- what nodes are to do -------------------------------------------------------------------------

    def perform(self, node: NodeCore, actions: list[Action]) -> Iterable[Note]:
        """Do what a node has returned, in order."""
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
                if name == self._tree.dataflow.sinks[0]:  # of several sinks one counts
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
        """Perform what leaving asks for; what the node does not wait for any more is not demanded again."""
        noted = self.perform(node, actions)
        if node.state is DRAINING:
            self.call_back(node.node.name)
        return noted

    def call_back(self, name: str, after: int = -1) -> None:
        """Repeat no demand of a node that it does not wait for any more, for a partition after ``after``."""
        node = self.nodes[name]
        if node.index > after:
            self.demands.withdraw(name, node.node.inputs)

    def call_again(self, name: str, action: RunCode) -> None:
        """Run the code of a node that has waited, if the node is still at that."""
        node = self.nodes.get(name)
        if node is not None and node.state is RUNNING and node.index == action.index:
            self.perform(node, [action])

    def hold(self, name: str) -> None:
        """The code of a node may not run before ``let_run``."""
        self.calls.hold(name)

    def let_run(self, name: str) -> None:
        """The code of a node that was held may run."""
        run = self.calls.release(name)
        if run is not None:
            self.perform(self.nodes[name], [run])

    def _deliver(self, sink: str, output: Output) -> None:
        """Hand a partition to the application, or the end, with what is to be told of it."""
        index, uneven = output.index, ""
        if isinstance(output.end, tuple):
            uneven = unevenly(self._out, self._tree, sink, output, self.calls.indices.of(index))
        about = bool(output.end), uneven, sink, output.sizes
        self._out.emit(e.Deliver(self._out.run, index, output.value, output.size_bytes, *about))

    def has_failed(self, name: str) -> bool:
        """Whether a node here cannot go on."""
        return self._failures is not None and name in self._failures.said

    # --- nodes that leave, and come -------------------------------------------------------------------

    def add(self, node: NodeCore) -> NodeCore:
        """A node is here from now on."""
        equip(node, self._tree, self._install)
        self.nodes[node.node.name] = node
        return node

    def take_over(self, survivors: Mapping[str, CarriedOver]) -> None:
        """These have gone on from the generation before."""
        self.kept = tuple([m.Start(name, survivor.node.got) for name, survivor in survivors.items()])
        for name, survivor in survivors.items():
            self.nodes[name] = survivor.node
            if survivor.called:
                self.calls.was_called_by(name, survivor.called)

    def stay(self, name: str) -> Iterable[Note]:
        """An operator that was to leave goes on here."""
        self._owed.pop(name, None)
        node = self.nodes[name]
        return self.perform(node, node.stay())

    def release(self, name: str) -> None:
        """R3: an operator has left, as ``Directory`` knows; its tail stays."""
        node = self.nodes.pop(name)
        self.tails.leave(name, node.window.split())
        self.tails.forget(name)
        self.outputs.forget((name,))
        if self._schedule is not None:
            self._schedule.forget((name,))
        self._books.forget(name)

    def follow(self, name: str) -> None:
        """R3: what is wanted of an operator that has left is wanted where it went."""
        owed = self._owed.pop(name, None)
        for consumer in self._tree.consumers[name]:
            here = self.nodes.get(consumer)
            if here is None:
                if owed and consumer in owed:
                    self._out.send(self._directory.locations[name].host, owed[consumer])
            elif name in here.received.asked:  # R1: the demand goes to the operator's new host, and is repeated
                self.demands.demand(consumer, name, here.index)
            elif owed and isinstance(owed.get(consumer), m.SkipTo):  # it may have its own end in hand yet
                self.demands.skip(consumer, name, LAST)

    def expect(self, name: str, index: int) -> None:
        """An operator is to come here and begin with partition ``index``."""
        self.expected[name] = Expected(index, self._install.ahead)

    def give_up(self, name: str) -> None:
        """It does not come."""
        self.expected.pop(name, None)

    def begin_adopted(self, node: NodeCore) -> None:
        """An operator has come from another host: it demands its next inputs. What came ahead of it is given to it."""
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
            # else nobody wanted anything more of it while it was on its way
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
        """Forget nodes that the run has no more, as ``Tree`` knows. Return those that were here."""
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
        self.demands.forget(lambda edge: not self._tree.has_edge(*edge))
        self.outputs.forget(gone)
        self.calls.forget(gone)
        if self._schedule is not None:
            self._schedule.forget(gone)
        for name in gone:
            self._books.forget(name)
        return here

    # --- what others ask of all nodes -----------------------------------------------------------------

    def reach(self, index: int) -> None:
        """At the client: an operator has gone on that has got all partitions before that one."""
        self.ahead = max(self.ahead, index)

    def peer_gone(self, lost: notes.HostLost) -> Notes:
        """No transfer to that host is under way any more, and what it kept is gone."""
        if self._tails is not None:
            self._tails.peer_gone(lost.host)
        for node in self.nodes.values():
            node.window.peer_gone(lost.host)
        self.outputs.peer_gone(lost.host)
        return NO_NOTES

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """A node here that needs the way to ``host``, and what for."""
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
                yield from self.perform(node, node.resume())

    def lagging(self) -> Iterator[tuple[str, str, int]]:
        """Yield the nodes here that wait for a consumer, the consumer, and the partition that it has not demanded.

        Of a node with several consumers it is one that is behind another. The application, which has no name, takes of
        a sink: the partition is the one that was delivered and that it has not taken.
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
        """The invariants; AssertionError tells which does not hold."""
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
