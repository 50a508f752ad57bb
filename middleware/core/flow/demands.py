"""Demands and partitions between the nodes of all hosts, and what the nodes of one run here do about them.

Rules:

R1. A message for a node goes to the node's newest known location. A host that gets one for a node that is elsewhere
    forwards it (``MAX_FORWARDS`` times at most) and tells the sender the newer location.
R2. Every demand to another host is repeated, with back-off, until the partition has come.
R3. What a host has to tell (newer locations, measured links) rides on its demands and partitions; a commit rides on
    the first partitions after its change-over, as many as may be under way (``Install.ahead``), and on the first demand
    in another tree, or for another query. From a guest, which nobody would believe, comes the demand alone.
R4. The last output of a node that has left, or has another consumer, is its *tail* (``flow.tails``).
R5. Between two nodes of one host nothing is lost, so nothing is repeated.
R6. A partition that any host of the run would refuse is refused where it is made, wherever its consumer is.
R7. A host that waits for another that keeps a tail repeats the demand to it as any other.
R8. A source with a rate makes a partition when it is due, not before, and makes up for one period of delay at most.
R9. Consumers of a node on one host are sent a partition once: while it is under way to one of them, others there that
    demand it ride along. Their host gives what comes to all there that wait for it; who did not get it demands it again
    and is sent it for itself, as is who demands it from elsewhere by then.
R10. Code here that has failed is told of again (``flow.failures``).
R11. In a stripe of a stream code runs with the stream's index, when that is known (``indices``). What is past the end
    of an input is passed on as such, and ends nothing: the next partition may be one that the stream has.
R12. In a run that outlives its hosts the client is told of an operator that lacks what a consumer goes on with: then
    all begin anew. In a graph a consumer may have all that it wants for long: it says at once with which partition it
    goes on, as nothing is sent to the others before.
R13. With several partitions under way (``Install.ahead``) those that are not acknowledged are sent again where their
    consumer is now, if they went where it was. What comes for one that is to come, within so many, waits for it. A
    node may have its next inputs when it has made a partition: its state is taken first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from thalweg.middleware.core.context import notes
from thalweg.middleware.core.context.notes import Note, Notes
from thalweg.middleware.core.context.outbox import RunContext
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
from thalweg.middleware.core.flow.beginning import begun
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.entries import Expected, Pending
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.failures import Failures
from thalweg.middleware.core.flow.forwards import MAX_FORWARDS, forwarded
from thalweg.middleware.core.flow.indices import Indices
from thalweg.middleware.core.flow.laggards import Laggards
from thalweg.middleware.core.flow.newcomers import Newcomers
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import DRAINING, ENDED, LIGHT, RUNNING
from thalweg.middleware.core.flow.output_schedule import OutputSchedule
from thalweg.middleware.core.flow.pace import Pace
from thalweg.middleware.core.flow.room import Room
from thalweg.middleware.core.flow.send_window import SendWindow
from thalweg.middleware.core.flow.shared_transfers import SharedTransfer, SharedTransfers
from thalweg.middleware.core.flow.tails import Tails
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.flow.uneven import unevenly
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.parcels import PAST_END, is_nothing, is_past_end, past_end_of
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.protocol.split_graph import is_inlet

NO_NOTES: tuple[Note, ...] = ()


class Demands:
    """The nodes of a run on this host, and the demands they have sent; ``Flow`` writes them as well."""

    # of more than 29 attributes in a dict Python 3.11 looks each up anew, for every message
    __slots__ = (
        "_answer_s",
        "_books",
        "_by_epochs",
        "_context",
        "_desk",
        "_directory",
        "_failures",
        "_guest",
        "_held",
        "_host",
        "_indices",
        "_install",
        "_laggards",
        "_lasts",
        "_leads",
        "_limits",
        "_lines",
        "_monitor",
        "_newcomers",
        "_out",
        "_owed",
        "_pace",
        "_retries",
        "_routes",
        "_schedule",
        "_shared_transfers",
        "_silence",
        "_taken_bytes",
        "_telling_down",
        "_telling_up",
        "_tree",
        "_under_way",
        "ahead",
        "called",
        "compute_s",
        "expected",
        "kept",
        "nodes",
        "opened_s",
        "pending",
        "room",
        "sizes",
        "tails",
    )

    def __init__(
        self, context: RunContext, shared: HostServices, tree: Tree, directory: Directory, books: EpochBooks
    ) -> None:
        self._context = context
        self._out, self._limits, self._install = context.out, context.limits, context.install
        self._monitor, self._silence, self._retries = shared.monitor, shared.silence, shared.retries
        self._tree, self._directory, self._books = tree, directory, books
        self._routes = directory.routes
        self._host, self._desk = context.out.host, context.out.context  # whose clock is read for every message
        self._telling_down = context.install.news
        self._telling_up = self._telling_down and context.by_epochs is not None
        self._guest, self._by_epochs = context.only_subscribes, context.by_epochs is not None
        self.opened_s = context.out.now
        self.room = Room(context.install.peers)
        self.nodes: dict[str, NodeCore] = {}
        # created with the first that they are for
        self._laggards: Laggards | None = None
        self._failures: Failures | None = None
        self._newcomers: Newcomers | None = None
        self._pace: Pace | None = None
        self._shared_transfers: SharedTransfers | None = None
        self._under_way: Mapping[tuple[str, int, str], SharedTransfer] = {}
        if directory.subscribers:  # a later generation
            self.laggards.watch()
        self._lasts, self._leads = context.fails_over, context.leads
        for node in tree.dataflow.nodes:
            if directory.locations[node.name].host == self._host:
                self.nodes[node.name] = begun(node, tree, context.install)
        self.kept: tuple[
            m.Start, ...
        ] = ()  # operators that have gone on from the generation before, and how far each was
        self.ahead = 0  # at the client: none of these, wherever it is, was further
        self.called: dict[str, RunId] = {}  # nodes that went on while their code ran: of which run it was called
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self._answer_s: dict[tuple[str, str], float] = {}  # how long the last answer to such a demand took
        self.sizes: dict[tuple[str, str], int] = {}  # (consumer, producer) -> bytes of the last input
        self.compute_s: dict[str, float] = {}  # how long a node's code took last
        self.tails = Tails(context, shared.silence, directory)
        self.expected: dict[str, Expected] = {}
        # what consumers have sent to an operator that is light: where it goes answers that
        self._owed: dict[str, dict[str, m.Demand | m.SkipTo]] = {}
        self._schedule = OutputSchedule() if self._lasts else None
        self._taken_bytes = defaultdict[str, int](int)  # by node, of inputs, since others heard of its outputs last
        self._lines: dict[str, int] = {}  # R12: by consumer, the partition with which it would begin anew
        # R11: only the code of a stripe runs with the stream's indices
        self._indices = None if context.install.run.stripe is None else Indices()
        self._held: dict[str, RunCode | None] = {}  # nodes whose code may not run yet, and what it is to run on

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
    def newcomers(self) -> Newcomers:
        """Operators that have come from other hosts, and have made nothing here yet."""
        if self._newcomers is None:
            self._newcomers = Newcomers(self._out)
        return self._newcomers

    @property
    def pace(self) -> Pace:
        """Sources with a rate that wait until their next partition is due."""
        if self._pace is None:
            self._pace = Pace(self._out)
        return self._pace

    @property
    def schedule(self) -> OutputSchedule:
        """When the outputs of nodes here are reported next, in a run with failover."""
        if self._schedule is None:
            self._schedule = OutputSchedule()
        return self._schedule

    @property
    def shared_transfers(self) -> SharedTransfers:
        """Transfers that several consumers on a host share."""
        if self._shared_transfers is None:
            self._shared_transfers = SharedTransfers()
            self._under_way = self._shared_transfers.under_way
        return self._shared_transfers

    # --- messages -------------------------------------------------------------------------------------

    def demand(self, sender: str, demand: m.Demand) -> Iterable[Note]:
        """``demand.consumer``, which is at ``sender``, wants a partition."""
        name, consumer, index = demand.producer, demand.consumer, demand.index
        if not self._tree.takes(consumer, name, index):
            self._out.record("unexpected", peer=sender, node=name)
            return NO_NOTES
        if demand.again and self._routes.busy:
            for part in self._routes.stuck(demand, self._monitor):
                self.transfer_over(part, arrived=False)
        if demand.version > self._directory.locations[consumer].version:
            self._directory.merge((m.Location(consumer, sender, demand.version),))
        if self.tails.left and (sends := self.tails.wanted(demand)) is not None:
            for send in sends:
                self._was_sent(self.tails.left[name], send, self._send_output(name, consumer, send.output))
                self._out.record("repeated", node=name, index=index)
            return NO_NOTES
        node = self.nodes.get(name)
        if node is None:
            self._forward(sender, name, demand, None, 0)
            return NO_NOTES
        if self._failures is not None:
            self._failures.repeat(self.nodes)
        if self.tails.kept and name in self.tails.kept and (where := self.tails.answers(demand)) != "node":
            if where == "elsewhere":
                self._await_tail(demand)
            return NO_NOTES
        if self._under_way and self.shared_transfers.alight(demand, self._directory.locations[consumer].host):
            # R9: the consumer has moved, and gets nothing of a transfer to its old host that it was to share
            node.window.on_transfer_over(index, consumer, arrived=False)
        state = node.window.consumers.get(consumer)
        if state is None:  # the node has turned since
            return NO_NOTES
        self._see_where(state, demand)
        book = self._books.of.get(name)
        fresh = book is not None and state.demanded < index <= node.index
        unheard = bool(node.window.unheard)
        verdict, actions = node.on_demand(index, demand.again, consumer)
        if verdict != "taken":
            if verdict == "lacking":
                self.failures.lacks(name, consumer, index)
            return self._recall(node, node.leave_heard()) if unheard else NO_NOTES
        if fresh and book is not None:
            book.on_mark(demand.later, demand.critical, consumer)
        if node.state is LIGHT:
            self._owed.setdefault(name, {})[consumer] = forwarded(demand)
        noted = self._perform(node, actions) if actions else NO_NOTES
        return (*noted, *self._recall(node, node.leave_heard())) if unheard else noted

    def _see_where(self, consumer: ConsumerState, demand: m.Demand) -> None:
        """R13: what has come to where the consumer was is to be sent again."""
        for index, sent in consumer.sent.items():
            if not sent.under_way and sent.host != self._directory.host_of(demand.consumer, index):
                sent.due = True

    def on_skip(self, sender: str, message: m.SkipTo) -> Iterable[Note]:
        """Let go of what ``message.consumer`` does not take: all before a partition (R12), or everything."""
        name, consumer = message.producer, message.consumer
        index = LAST if message.index is None else message.index
        if not self._tree.takes(consumer, name, index):
            self._out.record("unexpected", peer=sender, node=name)
            return NO_NOTES
        if message.version > self._directory.locations[consumer].version:
            self._directory.merge((m.Location(consumer, sender, message.version),))
        self.tails.let_go(name, consumer, index)
        node = self.nodes.get(name)
        if node is None:
            self._forward(sender, name, message, None, 0)
            return NO_NOTES
        if self._failures is not None:
            self._failures.repeat(self.nodes)
        if name in self.tails.kept:
            self.tails.acknowledge(name, consumer, index)
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
        noted = self._perform(node, actions) if actions else NO_NOTES
        return (*noted, *self._recall(node, node.leave_heard())) if unheard else noted

    def on_skipped(self, _: str, message: m.Skipped) -> None:
        """Repeat a ``SkipTo`` no more that the producer's host has answered."""
        edge, index = (message.consumer, message.producer), LAST if message.index is None else message.index
        pending = self.pending.get(edge)
        if pending is not None and pending.skips and pending.index == index:
            del self.pending[edge]

    def on_replay_not_needed(self, _: str, message: m.ReplayNotNeeded) -> None:
        """Let go of the last output that an operator has left here: its consumer has demanded a later one."""
        self.tails.let_go(message.producer, message.consumer, message.index)

    def _recall(self, node: NodeCore, actions: list[Action]) -> Iterable[Note]:
        """Perform what leaving asks for; what the node does not wait for any more is not demanded again."""
        noted = self._perform(node, actions)
        if node.state is DRAINING:
            self.call_back(node.node.name)
        return noted

    def call_back(self, name: str, after: int = -1) -> None:
        """Repeat no demand of a node that it does not wait for any more, for a partition after ``after``."""
        node = self.nodes[name]
        if node.index > after:
            for producer in node.node.inputs:
                self.pending.pop((name, producer), None)

    def _may_renounce(self, sender: str, message: m.SkipTo) -> bool:
        """Whether the consumer can have said that it wants nothing more: where nothing is for several, none has to."""
        is_host = sender == self._directory.locations[message.consumer].host
        several = len(self._tree.dataflow.sinks) > 1 or len(self._tree.consumers[message.producer]) > 1
        return several and (is_host or message.forwards > 0)

    def _await_tail(self, demand: m.Demand) -> None:
        """R7: a consumer here waits for what another host keeps."""
        name, consumer = demand.producer, demand.consumer
        here = self.nodes.get(consumer)
        waits = here is not None and name in here.received.asked and here.index == demand.index
        if waits and (consumer, name) not in self.pending:
            self._await(consumer, name, demand.index)

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
        pending = self.pending.get(edge)
        if pending is not None and pending.index == index:
            del self.pending[edge]
            self._answer_s[edge] = self._desk.now - pending.asked_s
        if self._books.of:
            self.sizes[edge] = size_bytes
        if self._lasts:
            self._taken_bytes[name] += size_bytes
        return self._perform(node, actions) if actions else NO_NOTES

    def share(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> Iterable[Note]:
        """R9: what has come is also for others here that wait for it."""
        noted = NO_NOTES
        if sender != self._host and not part.end:
            if self._install.ahead > 1:
                waiting = [name for name in self._tree.consumers[part.producer] if name in self.nodes]
                waiting = [name for name in waiting if self.nodes[name].wants(part.producer, part.index)]
            else:
                waiting = [consumer for (consumer, producer), pending in self.pending.items()
                       if producer == part.producer and pending.index == part.index]  # fmt: skip
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
                noted = (*noted, *self._perform(sink, sink.on_demand(sink.index)[1]))
        return noted

    def finished(self, event: e.OperatorFinished) -> Iterable[Note]:
        """A node's code has made a partition."""
        node = self.nodes.get(event.node)
        if node is None:
            return NO_NOTES
        if event.size_bytes > self.room.size_bytes:  # R6: some host of the run would refuse the partition
            self.failed(e.OperatorFailed(event.run, event.node, self.room.refusal(event.index, event.size_bytes)))
            return NO_NOTES
        if event.end and self._indices is not None:  # R11: in a stripe the end is passed on as a partition
            event = msgspec.structs.replace(event, value=PAST_END, size_bytes=PAST_END.size_bytes, end=False)
        if self._desk.recording or event.late_rows is not UNSET or event.left_out is not UNSET:
            self._record_made(node, event)
        if self._books.of:
            self.compute_s[event.node] = event.duration_s
        if self.called:
            self.called.pop(event.node, None)
        verdict, actions = node.on_finished(Output(event.index, event.value, event.size_bytes, event.end))
        if verdict != "taken":
            return NO_NOTES
        schedule, taken_bytes = self._schedule, self._taken_bytes[event.node] if self._lasts else 0
        due = schedule is not None and node.node.inputs and schedule.is_due(event, taken_bytes, self._desk.now)
        if self._tree.former is None and not due:
            return self._perform(node, actions)
        self._taken_bytes.pop(event.node, None)
        return self._made(node, actions, notes.OutputMade(event.node, event.index, taken_bytes))

    def _record_made(self, node: NodeCore, event: e.OperatorFinished) -> None:
        if is_inlet(node.node):  # it was made in a tree, which has recorded it
            return
        index = event.index if self._indices is None else self._indices.of(event.index)
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

    def _made(self, node: NodeCore, actions: list[Action], made: notes.OutputMade) -> Iterable[Note]:
        """R13: who takes the node's state does so before its code runs again, for which all inputs may be here."""
        if node.window.depth == 1 and node.node.inputs:  # none is before it has demanded them
            return (*self._perform(node, actions), made)
        return self._made_ahead(node, actions, made)

    def _made_ahead(self, node: NodeCore, actions: list[Action], made: notes.OutputMade) -> Notes:
        calls: list[Action] = [action for action in actions if type(action) is RunCode]
        yield from self._perform(node, [action for action in actions if type(action) is not RunCode])
        yield made
        yield from self._perform(node, calls)

    def transfer_over(self, message: m.Partition, *, arrived: bool) -> None:
        """A partition's transfer is over; unless it has ``arrived``, nobody knows what became of it."""
        name, index, consumers = message.producer, message.index, [message.consumer]
        if self._under_way:
            consumers += self.shared_transfers.over(message)
        node, tail = self.nodes.get(name), self.tails.left.get(name)
        for consumer in consumers:
            if node is not None:
                node.window.on_transfer_over(index, consumer, arrived=arrived)
            if tail is not None:
                tail.on_transfer_over(index, consumer, arrived=arrived)

    def check_waiting(self) -> bool:
        """Look which hosts are waited for, in a run that outlives them. Return whether there are any."""
        for (_, producer), pending in self.pending.items():
            self._wait_for(self._greet(producer, pending.index), pending.asked_s)
        return bool(self.pending)

    def _greet(self, producer: str, index: int) -> str:
        """Ask the host of a producer once how long its answers take. Return that host."""
        host = self._directory.whereabouts(producer, index)
        if host in self._directory.hosts:
            self._silence.greet(self._out.run, host, leads=self._leads)
        return host

    def hurry(self, host: str) -> None:
        """R2: repeat at once what that host was asked for: it has perhaps not heard it for long."""
        now = self._out.now
        for (_, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                pending.due_s, pending.interval_s = now, self._limits.retry_s
                self._retries.by(now)

    def retry(self) -> float | None:
        """R2: repeat what is due; when the next is, None when nothing waits."""
        now, earliest_s = self._out.now, None
        for (consumer, producer), pending in self.pending.items():
            if pending.due_s <= now:
                if pending.skips:
                    self._send_skip(consumer, producer, pending.index, again=True)
                else:
                    self._send_demand(consumer, producer, pending.index, again=True)
                pending.interval_s = min(2 * pending.interval_s, self._limits.retry_max_s)
                pending.due_s = now + pending.interval_s
            if earliest_s is None or pending.due_s < earliest_s:
                earliest_s = pending.due_s
        return earliest_s

    # --- what nodes are to do -------------------------------------------------------------------------

    def _perform(self, node: NodeCore, actions: list[Action]) -> Iterable[Note]:
        name, noted = node.node.name, NO_NOTES
        for action in actions:
            if type(action) is Dispatch:  # not match: a class pattern takes three times as long on this hot path
                self._dispatch(node, action)
            elif type(action) is RunCode:
                if self._held and name in self._held:
                    self._held[name] = action
                    continue
                if node.node.rate is not None and not self.pace.is_due(name, node.node.rate, action):
                    continue
                stands_for: int | UnsetType = UNSET
                if self._indices is not None:  # R11: the code waits until the stream's index is known
                    index = self._indices.take(name, action)
                    if index is None:
                        continue
                    stands_for = index
                    if (past := past_end_of(action.inputs)) is not None:
                        event = e.OperatorFinished(self._out.run, name, action.index, past, past.size_bytes)
                        noted = (*noted, *self.finished(event))
                        continue
                run = e.RunOperator(self._out.run, name, action.index, action.inputs, stands_for)
                self._desk.commands.append(run)
            elif type(action) is Ask:
                index = action.index
                for producer in node.node.inputs:
                    if self._send_demand(name, producer, index) and producer in node.received.asked:
                        self._await(name, producer, index)
            elif type(action) is Hand:
                self._deliver(name, action.output)
                if name == self._tree.dataflow.sinks[0]:  # of several sinks one counts
                    noted = (notes.PartitionDelivered(),)
            elif type(action) is Renounce:
                for producer in action.producers if len(self._tree.dataflow.sinks) > 1 else ():
                    self.skip(name, producer, LAST)
            elif type(action) is Turned:
                self.tails.leave(name, node.turned())
                noted = (*noted, *self._perform(node, node.go_on()))
            else:
                noted = (notes.Light(name),)
        if node.state is ENDED:
            noted = (*noted, notes.Ended(name))
        return noted

    def on_given(self, _: str, message: m.StripeIndices) -> None:
        """R11: the client says which partitions of the stream this stripe's are."""
        for name, action in () if self._indices is None else self._indices.give(message.first, message.indices):
            node = self.nodes.get(name)
            if node is not None and node.state is RUNNING and node.index == action.index:
                self._perform(node, [action])

    def on_pace(self, name: str) -> None:
        """R8: a source's next partition is due."""
        action, node = self.pace.take(name), self.nodes.get(name)
        if action is not None and node is not None:
            self._perform(node, [action])

    def _deliver(self, sink: str, output: Output) -> None:
        """Hand a partition to the application, or the end, with what is to be told of it."""
        index, uneven = output.index, ""
        if isinstance(output.end, tuple):
            stream_index = index if self._indices is None else self._indices.of(index)
            uneven = unevenly(self._out, self._tree, sink, output, stream_index)
        about = bool(output.end), uneven, sink, output.sizes
        self._out.emit(e.Deliver(self._out.run, index, output.value, output.size_bytes, *about))

    def _demand_until_answered(self, consumer: str, producer: str, index: int) -> None:
        """Demand a partition, from another host until it comes."""
        if self._send_demand(consumer, producer, index):
            self._await(consumer, producer, index)

    def _send_demand(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Whether the producer is on another host."""
        out, directory, host = self._out, self._directory, self._host
        here = producer in self.nodes
        later = critical = False
        if self._by_epochs:
            node, book = self.nodes[consumer], self._books.of.get(consumer)
            later = node.received.last == producer
            critical = node.node.kind == "sink" if book is None else book.critical
        news = commit = None
        if here:
            again = False  # R5: within a host no demand is lost, so none is repeated
        elif (host := directory.whereabouts(producer, index)) != self._host:
            if directory.changes or self._telling_up:
                news = self._news_for(host, upward=True)
            if again:
                self._wait_for(host, self.pending[consumer, producer].asked_s)
            elif index == self._tree.fresh:  # R3: the first demand in a tree or query carries its commit
                assert directory.switch is not None
                commit = directory.switch.commit
            if self._guest:
                news = commit = None
        # else by a wrong word of others, and this host knows its own news
        version = directory.locations[consumer].version
        out.send(host, m.Demand(out.run, producer, consumer, index, 0, version, later, critical, news, again, commit))
        return not here

    def skip(self, consumer: str, producer: str, index: int) -> None:
        """R12: tell a producer, until it answers, with which partition a consumer here goes on. ``LAST``: with none."""
        if self._send_skip(consumer, producer, index):
            self._await(consumer, producer, index)
            self.pending[consumer, producer].skips = True
        else:  # R5, R7: nor is a last output waited for any more that another host keeps
            self.pending.pop((consumer, producer), None)

    def _send_skip(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Whether the producer is on another host."""
        here, to = producer in self.nodes, self._host
        if not here:
            to = self._directory.whereabouts(producer, index)
            if again and to != self._host:
                self._wait_for(to, self.pending[consumer, producer].asked_s)
        version = self._directory.locations[consumer].version
        first = None if index == LAST else index
        self._out.send(to, m.SkipTo(self._out.run, producer, consumer, first, version=version))
        return not here

    def _await(self, consumer: str, producer: str, index: int) -> None:
        """Repeat a demand until it is answered: not before twice the time that the last answer took."""
        edge, limits, now = (consumer, producer), self._limits, self._desk.now
        wait_s, twice_s = limits.retry_s, 2 * self._answer_s.get(edge, 0.0)
        if twice_s > wait_s:
            wait_s = max(wait_s, min(twice_s, limits.retry_max_s))
        self.pending[edge] = Pending(index, now + wait_s, wait_s, now)
        self._retries.by(now + wait_s)  # those that wait have backed off further
        if self._lasts:
            if not self._silence.watching:
                self._silence.watch()
            self._greet(producer, index)

    def _news_for(self, host: str, *, upward: bool) -> m.Piggyback | None:
        """What ``host`` is to hear of with the next message, if there is anything.

        ``upward``, away from the client, what links carry is told only where hosts decide for themselves.
        """
        telling = self._telling_up if upward else self._telling_down
        estimates = self._monitor.news_for(host, self._desk.now) if telling else ()
        locations = self._directory.news_for(host) if self._directory.changes else None
        return None if locations is None and not estimates else m.Piggyback(locations or (), estimates)

    def _dispatch(self, node: NodeCore, action: Dispatch) -> None:
        name, output, consumer = node.node.name, action.output, action.consumer
        if self._under_way and not action.again and (host := self._boards(name, consumer, output.index)):
            # R9: the output is under way to another consumer on that host, and this consumer shares the transfer
            to = host
        else:
            to = self._send_output(name, consumer, output)
        self._was_sent(node.window, action, to)
        if self._newcomers is not None and name in self._newcomers.came:
            self._newcomers.record(name, output.index)
        if name in self._books.of:
            self._books.of[name].on_sent(output.index, consumer)
        if action.again:
            self._out.record("repeated", node=name, index=output.index)

    def _was_sent(self, window: SendWindow, action: Dispatch, to: str) -> None:
        """R13: where an output went: it is sent again if its consumer is there no longer."""
        consumer, index = action.consumer, action.output.index
        host = to or self._directory.host_of(consumer, index)
        window.consumers[consumer].was_sent(index, host, under_way=bool(to))

    def _boards(self, name: str, consumer: str, index: int) -> str:
        """R9: the host to which this is under way already, and to a consumer there; empty: it is not."""
        host = self._directory.host_of(consumer, index)
        return host if self.shared_transfers.board(name, index, consumer, host) else ""

    def _send_output(self, name: str, consumer: str, output: Output) -> str:
        """Send an output to where it is wanted; the host to which its transfer is under way now, if it is."""
        out, directory, index = self._out, self._directory, output.index
        here, to = consumer in self.nodes, self._host
        if not here:
            to = directory.host_of(consumer, index)
            if to == self._host:  # the consumer is to come here, and has not yet
                expected = self.expected.get(consumer)
                here = expected is not None and expected.takes(index)
                to = directory.locations[consumer].host
        if here or to == self._host:  # the latter by a wrong word of others: nobody takes it here
            out.hand_over(m.Partition(out.run, name, consumer, index, output.end), output.value, output.size_bytes)
            return ""
        news = self._news_for(to, upward=False) if directory.changes or self._telling_down else None
        switch, commit = directory.switch, None
        if switch is not None and 0 < index - switch.iteration <= self._install.ahead:
            # R3: any of the partitions under way may be the first to come after the change-over
            commit = switch.commit
            if commit.shape is not None and not commit.shape.grows and not self._tree.keeps(name):
                commit = None  # a consumer that this node has in the new tree only knows it, or it would not demand
        part = m.Partition(out.run, name, consumer, index, output.end, 0, news, commit)
        if self._routes.table and not output.end:
            via = self._routes.send(to, part, output.size_bytes)
            out.send(to, part, output.value, output.size_bytes, bulk=True, via=via)
        else:
            out.send(to, part, output.value, output.size_bytes, bulk=not output.end)
        if not output.end and name in self._tree.dataflow.several:
            self.shared_transfers.sent(part, to)
        return "" if output.end else to

    def _wait_for(self, host: str, since_s: float) -> None:
        """Something has been expected of ``host``, or been meant for it, since then."""
        if host in self._directory.hosts or host in self._directory.subscribers:
            self._silence.on_waiting(self._out.run, host, since_s, lasts=self._lasts, leads=self._leads)

    def stuck(self, host: str, since_s: float | None = None) -> None:
        """What was meant for ``host`` has not got there, perhaps since then."""
        self._wait_for(host, self.opened_s if since_s is None else since_s)
