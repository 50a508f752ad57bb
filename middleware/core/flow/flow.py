"""Demands and partitions between the nodes of all hosts, and what the nodes here do about them.

Rules:

- A message for a node goes to the node's newest known location. A host that gets one for a node that is
  elsewhere forwards it (``MAX_HOPS`` times at most) and tells the sender the newer location.
- Every demand to another host is repeated, with back-off, until the partition has come.
- What a host has to tell (newer locations, measured links) rides on its demands and partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.middleware.core.flow.node import Action, Ask, Dispatch, Hand, NodeCore, NodeState, Output, RunCode, Turned
from thalweg.middleware.core.run import Pending
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState

MAX_HOPS = 8  # a chain of forwards longer than this means that locations run in a circle
LET_GO = MAX_HOPS + 1  # marks a demand that only tells another host that the partitions before it have come


class Flow:
    """The part of a host core that passes data on."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self._retry_at: float | None = None

    # --- messages -------------------------------------------------------------------------------------

    def demand(self, sender: str, demand: m.Demand) -> None:
        run = self.core.runs.get(demand.run)
        if run is None:
            return
        if demand.news is not None and sender != self.core.host:
            self.core.hear(run, sender, demand.news, 0)
        if demand.commit is not None and sender in run.hosts and sender != self.core.host:
            self.core.barrier.on_commit(sender, demand.commit)
        name, consumer = demand.producer, demand.consumer
        node = run.nodes.get(name)
        if not run.takes(consumer, name, demand.index):
            self.core.record(demand.run, "unexpected", peer=sender, node=name)
            return
        if demand.version > run.locations[consumer].version:
            self.core.locate(run, (m.Location(consumer, sender, demand.version),))
        if run.tails and self._tail(run, sender, demand):
            return
        if demand.hops == LET_GO:
            return
        if node is None:
            self._forward(run, sender, name, demand, None, 0)
            return
        if run.tail_hosts and name in run.tail_hosts and not self._before(run, node, demand):
            return
        fresh = demand.index == node.index
        verdict, actions = node.on_demand(demand.index, demand.again)
        if verdict == "taken":
            if fresh and run.books and name in run.books:
                run.books[name].on_mark(demand.later, demand.critical)
            if run.leaving and name in run.leaving and node.state is NodeState.LIGHT:
                run.leaving[name].demand = _passed_on(demand)
            self.perform(run, node, actions)

    def _tail(self, run: RunState, sender: str, demand: m.Demand) -> bool:
        """Whether the demand is answered by what an operator left behind here, or has let go of it."""
        name = demand.producer
        tail = run.tails.get(name)
        if tail is None or demand.index < tail.output.index:
            return False
        if demand.index > tail.output.index:
            if run.former is None or demand.index <= run.turn:  # else it is perhaps another consumer's
                del run.tails[name]
            return False
        if demand.again and tail.landed:
            tail.landed = False
        elif not tail.sending:
            tail.sending = self._dispatch_output(run, name, demand.consumer, tail.output)
            self.core.record(run.id, "repeated", node=name, index=demand.index)
        return True

    def _before(self, run: RunState, node: NodeCore, demand: m.Demand) -> bool:
        """A demand for an operator that has left its last output with another host; False when it went there."""
        name = node.node.name
        host = run.tail_hosts[name]
        if run.former is not None and demand.index > run.turn:  # perhaps of another consumer
            return True
        if demand.index >= node.index:  # which acknowledges it
            del run.tail_hosts[name]
            if host != self.core.host:
                let_go = msgspec.structs.replace(demand, hops=LET_GO, version=0, news=None, commit=None)
                self.core.send(run.id, host, let_go)
            return True
        last = run.former is not None and demand.index == run.turn  # all later ones are for others
        if (demand.index < node.index - 1 and not last) or host == self.core.host:
            return True
        if host not in run.hosts:
            reason = f"its partition {demand.index} was on host {host!r}, which went away"
            self.core.send(run.id, run.install.client, m.Failed(run.id, name, reason))
        elif demand.hops < MAX_HOPS:
            self.core.send(run.id, host, _passed_on(demand))
            here = run.nodes.get(demand.consumer)
            if here is not None and name in here.asked and (demand.consumer, name) not in run.pending:
                self._await(run, demand.consumer, name, demand.index)
        return False

    def partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> None:
        run = self.core.runs.get(part.run)
        if run is None:
            return
        if part.news is not None and sender != self.core.host:
            self.core.hear(run, sender, part.news, size_bytes)
        if part.commit is not None and sender != self.core.host:
            self.core.barrier.on_commit(sender, part.commit)
        node = run.nodes.get(part.consumer)
        output = Output(part.index, value, size_bytes, part.end)
        if node is None:
            guest = run.guests.get(part.consumer)
            if guest is not None and guest.expects == part.index and part.producer in run.inputs_of(part.consumer):
                guest.early[part.producer] = output
            else:
                self._forward(run, sender, part.consumer, part, value, size_bytes)
            return
        verdict, actions = node.on_partition(part.producer, output)
        if verdict == "taken":
            edge = part.consumer, part.producer
            pending = run.pending.pop(edge, None)
            if pending is not None:
                run.answer_s[edge] = self.core.now - pending.asked_s
            if run.books:
                run.sizes[edge] = size_bytes
            self.perform(run, node, actions)
        else:
            self.core.record(part.run, "duplicate", peer=sender, node=part.consumer, index=part.index)

    def _forward(
        self, run: RunState, sender: str, node: str, message: m.Demand | m.Partition, value: Any, size: int
    ) -> None:
        location = run.locations.get(node)
        if location is None or location.host == self.core.host or message.hops >= MAX_HOPS:
            self.core.record(message.run, "undeliverable", peer=sender, node=node, index=message.index)
            return
        if isinstance(message, m.Demand):
            onward: m.Demand | m.Partition = _passed_on(message)
        else:
            onward = msgspec.structs.replace(message, hops=message.hops + 1, news=None)
        bulk = isinstance(message, m.Partition) and not message.end
        self.core.emit(e.Send(message.run, location.host, onward, value, size, bulk))
        self.core.record(message.run, "forwarded", peer=location.host, node=node, index=message.index)
        if sender != self.core.host:
            self.core.send(message.run, sender, m.Located(message.run, (location,)))

    # --- actions of nodes -----------------------------------------------------------------------------

    def perform(self, run: RunState, node: NodeCore, actions: list[Action]) -> None:
        run_id, name = run.install.run, node.node.name
        for action in actions:
            if type(action) is Ask:  # not match: a class pattern takes three times as long, and this is the hot path
                for producer in node.node.inputs:
                    self.ask(run, name, producer, action.index)
            elif type(action) is RunCode:
                if run.heirs and name in run.heirs:  # which has nothing to go by yet
                    run.heirs[name].run = action
                    continue
                self.core.emit(e.RunOperator(run_id, name, action.index, action.inputs))
            elif type(action) is Dispatch:
                self._dispatch(run, node, action.output)
                if action.again:
                    self.core.record(run_id, "repeated", node=name, index=action.output.index)
            elif type(action) is Hand:
                output = action.output
                self.core.emit(e.Deliver(run_id, output.index, output.value, output.size_bytes, output.end))
                self.core.barrier.on_delivered(run)
                self.core.steering.on_delivered(run)
            elif type(action) is Turned:
                self.core.reshaper.on_turned(run, node)
            else:
                self.core.mover.on_light(run, node)
        if run.leaving and node.state is NodeState.ENDED:
            self.core.mover.check_over(run, node)

    def ask(self, run: RunState, consumer: str, producer: str, index: int) -> None:
        """Demand a partition, from another host until it comes."""
        if self._send_demand(run, consumer, producer, index):
            self._await(run, consumer, producer, index)

    def _send_demand(self, run: RunState, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Whether the producer is on another host."""
        if producer in run.nodes:
            self.core.send(run.id, self.core.host, self._demand_for(run, consumer, producer, index, self.core.host))
            return False
        host = self.whereabouts(run, producer, index)
        demand = self._demand_for(run, consumer, producer, index, host)
        if again:
            self.core.silence.on_waiting(run, host, run.pending[consumer, producer].asked_s)
            demand = msgspec.structs.replace(demand, again=True, commit=None)
        self.core.send(run.install.run, host, demand)
        return True

    def whereabouts(self, run: RunState, name: str, index: int) -> str:
        """The host to which goes what concerns partition ``index`` of a node that is not here."""
        host = run.host_of(name, index)
        return host if host != self.core.host else run.locations[name].host  # it is to come here, and has not yet

    def _await(self, run: RunState, consumer: str, producer: str, index: int) -> None:
        """Repeat a demand until it is answered: not before twice the time that the last answer took."""
        config, answer_s = self.core.config, run.answer_s.get((consumer, producer), 0.0)
        wait_s = max(config.retry_s, min(2 * answer_s, config.retry_max_s))
        due = self.core.now + wait_s
        run.pending[consumer, producer] = Pending(index, due, wait_s, self.core.now)
        if self._retry_at is None or due < self._retry_at:  # those that wait have backed off further
            self._retry_at = due
            self.core.emit(e.SetTimer("retry", due))

    def _demand_for(self, run: RunState, consumer: str, producer: str, index: int, host: str) -> m.Demand:
        news = None if host == self.core.host else self.core.news_for(run, host, upward=True)
        version = run.locations[consumer].version
        later = critical = False
        if run.install.moves is not None:
            later, critical = self.core.local.marks(run, consumer, producer)
        commit = None
        if run.former is not None and index == run.turn + 1 and host != self.core.host:
            assert run.switch is not None
            commit = run.switch.commit
        return m.Demand(run.install.run, producer, consumer, index, 0, version, later, critical, news, commit=commit)

    def _dispatch(self, run: RunState, node: NodeCore, output: Output) -> None:
        name = node.node.name
        node.sending = self._dispatch_output(run, name, run.consumer_of(name, output.index), output)
        if run.arrivals and name in run.arrivals:
            self._record_arrival(run, name, output.index)
        if run.books and name in run.books:
            run.books[name].on_sent(output.index)

    def _dispatch_output(self, run: RunState, name: str, consumer: str, output: Output) -> bool:
        """Send an output to where it is wanted; whether its transfer is under way now."""
        here = consumer in run.nodes
        to = self.core.host if here else run.host_of(consumer, output.index)
        if to == self.core.host and not here:  # the consumer is to come here, and has not yet
            guest = run.guests.get(consumer)
            here = guest is not None and guest.expects == output.index
            to = run.locations[consumer].host
        part = m.Partition(run.install.run, name, consumer, output.index, output.end)
        if here:
            self.core.take(part, output)
            return False
        news = self.core.news_for(run, to, upward=False)
        switch = run.switch
        commit = switch.commit if switch is not None and switch.iteration + 1 == output.index else None
        if commit is not None and commit.shape is not None and not run.keeps(name):
            commit = None  # a consumer that this node has in the new tree only knows it, or it would not demand
        if news is not None or commit is not None:
            part = msgspec.structs.replace(part, news=news, commit=commit)
        bulk = not output.end
        self.core.emit(e.Send(run.install.run, to, part, output.value, output.size_bytes, bulk))
        return bulk

    def _record_arrival(self, run: RunState, name: str, index: int) -> None:
        """An operator that came from another host has made its first output here."""
        arrival = run.arrivals.pop(name)
        ago = {"state_in": self.core.now - arrival.came_s, "resumed": self.core.now - arrival.resumed_s}
        self.core.record(
            run.id,
            "arrived",
            node=name,
            peer=arrival.source,
            index=index,
            size_bytes=arrival.size_bytes,
            duration_s=self.core.now - arrival.came_s,
            detail={"version": arrival.version, "ago": ago},
        )

    def transfer_over(self, message: m.Partition, *, arrived: bool) -> None:
        run = self.core.runs.get(message.run)
        if run is None:
            return
        node = run.nodes.get(message.producer)
        if node is not None:
            node.on_transfer_over(message.index, arrived=arrived)
        tail = run.tails.get(message.producer)
        if tail is not None and tail.output.index == message.index:
            tail.sending, tail.landed = False, arrived

    # --- timers ---------------------------------------------------------------------------------------

    def retry(self) -> None:
        """Repeat what is due; demands that were answered meanwhile cost nothing but this pass."""
        self._retry_at = None
        earliest: float | None = None
        for run in self.core.runs.values():
            for (consumer, producer), pending in run.pending.items():
                if pending.due_s <= self.core.now:
                    self._send_demand(run, consumer, producer, pending.index, again=True)
                    pending.interval_s = min(2 * pending.interval_s, self.core.config.retry_max_s)
                    pending.due_s = self.core.now + pending.interval_s
                if earliest is None or pending.due_s < earliest:
                    earliest = pending.due_s
        if earliest is not None:
            self._retry_at = earliest
            self.core.emit(e.SetTimer("retry", earliest))


def _passed_on(demand: m.Demand) -> m.Demand:
    """A demand as another host sends it on: the consumer is not with the sender."""
    return msgspec.structs.replace(demand, hops=demand.hops + 1, version=0, news=None, commit=None)
