"""All that a host decides, for every node of every run on it: pure, told events, giving commands.

Rules:

- A message for a node goes to the node's newest known location. A host that gets one for a node that is
  elsewhere forwards it (``MAX_HOPS`` times at most) and tells the sender the newer location.
- Locations merge entry by entry, the higher version wins.
- Every demand to another host is repeated, with back-off, until the partition has come.
- What a host has to tell (newer locations, measured links) rides on its demands and partitions.
- A run is opened by ``Install`` (one that was sent before this host was restarted opens none) and closed by
  ``Remove`` or when its client has been silent for ``lease_s``. Messages of unknown runs change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import msgspec

from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.barrier import Barrier, Part
from thalweg.middleware.coordinator import Coordinator
from thalweg.middleware.epoch import BookState
from thalweg.middleware.monitor import Monitor, estimate_fields
from thalweg.middleware.network_view import Link, LinkEstimate
from thalweg.middleware.node import Action, Ask, Dispatch, Hand, NodeCore, Output, Phase, Run
from thalweg.middleware.probing import Prober
from thalweg.middleware.relocation import Mover
from thalweg.middleware.run_state import CoreConfig, Pending, RunState
from thalweg.middleware.steering import LocalSteering, Steering

MAX_HOPS = 8  # a chain of forwards longer than this means that locations run in a circle
LET_GO = MAX_HOPS + 1  # marks a demand that only tells another host that the partitions before it have come


class HostCore:
    """The pure core of one host. ``handle`` is its only mutator."""

    def __init__(self, me: m.Peer, config: CoreConfig | None = None, codes: tuple[str, ...] = ()) -> None:
        self.me = me
        self.host = me.name
        self.config = config or CoreConfig()
        self.codes = codes
        self.runs: dict[str, RunState] = {}
        self.now = 0.0
        self.coordinator = Coordinator(self)
        self.monitor = Monitor(self.host, self.config.monitor)
        self.prober = Prober(self)
        self.mover = Mover(self)
        self.barrier = Barrier(self)
        self.steering = Steering(self)
        self.local = LocalSteering(self)
        self.sent_bytes = 0  # as bulk
        self.probe_bytes = 0
        self.recording = True  # a shell that keeps no records spares the core their making
        self._out: list[e.Command] = []
        self._local: deque[m.Message | tuple[m.Partition, Any, int]] = deque()
        self._retry_at: float | None = None
        self._lease_at: float | None = None

    def handle(self, event: e.Event, now: float) -> list[e.Command]:
        """What to do about ``event``, which happened at ``now`` (seconds, never decreasing)."""
        self.now = now
        self._HANDLERS[type(event)](self, event)
        while self._local:
            item = self._local.popleft()
            if type(item) is m.Demand:
                self._demand(self.host, item)
            elif type(item) is tuple:
                self._partition(self.host, *item)
            else:
                self._MESSAGES[type(item)](self, self.host, item)
        out, self._out = self._out, []
        return out

    def wants(self, message: m.Partition | m.Probe | m.State) -> bool:
        """Whether a partition or state that begins to arrive has been asked for and not come yet.

        A shell takes no memory for one that has not.
        """
        if isinstance(message, m.Probe):
            return True
        run = self.runs.get(message.run)
        if run is None:
            return False
        if isinstance(message, m.State):
            return message.node in run.guests and message.size_bytes <= self.config.max_state_bytes
        node = run.nodes.get(message.consumer)
        if node is None:
            return message.consumer in run.locations  # to be forwarded
        return message.producer in node.asked and message.index == node.index

    def validate(self) -> None:
        """Check the invariants of every node and demand; for tests and the virtual shell."""
        for run in self.runs.values():
            for node in run.nodes.values():
                node.validate()
            for consumer, producer in run.pending:
                assert producer in run.nodes[consumer].asked, (consumer, producer)
            for name in run.leaving:
                assert (name in run.nodes) == (run.leaving[name].step != "committed"), name
            assert run.guests.keys().isdisjoint(run.nodes), run.guests
            for name in run.nodes:
                assert run.locations[name].host == self.host, name

    # --- used by the other parts of the core ----------------------------------------------------------

    def emit(self, command: e.Command) -> None:
        self._out.append(command)
        if type(command) is e.Send:
            self.sent_bytes += command.size_bytes
            if type(command.message) is m.Probe:
                self.probe_bytes += command.size_bytes

    def send(self, run: str, to: str, message: m.Message) -> None:
        """A control message, to this host as well."""
        if to == self.host:
            self._local.append(message)
        else:
            self._out.append(e.Send(run, to, message))

    def record(self, run: str, kind: str, **fields: Any) -> None:
        if self.recording:
            self._out.append(e.Record(run, kind, fields))

    def open(self, install: m.Install) -> RunState:
        """Begin to take part in a run."""
        run = self.runs[install.run] = RunState(install, self.host, self.now)
        run.spent = self._spent()
        self.emit(e.Meet(install.run, install.peers))
        self.emit(e.OpenRun(install, tuple(run.nodes)))
        for name in run.nodes:
            self.keep_book(run, name, None)
        return run

    def locate(self, run: RunState, news: Iterable[m.Location]) -> tuple[m.Location, ...]:
        """Take over every location whose version is higher; those that were."""
        taken = merge_locations(run.locations, news)
        for entry in taken:
            run.changes += 1
            run.changed[entry.node] = run.changes
            if run.install.client == self.host:
                self.emit(e.Placed(run.id, entry.node, entry.host))
                self.coordinator.on_placed(run.id, entry)
        return taken

    def news_for(self, run: RunState, to: str, *, upward: bool) -> m.News | None:
        """What host ``to`` is to hear of with the next message, if there is anything.

        ``upward``, away from the client, what links carry is told only where hosts decide for themselves.
        """
        install = run.install
        telling = install.news and not (upward and install.moves is None)
        estimates = self.monitor.news_for(to, self.now) if telling else ()
        told = run.told.get(to, 0)
        if told == run.changes:
            return m.News((), estimates) if estimates else None
        run.told[to] = run.changes
        news = tuple(run.locations[name] for name, number in run.changed.items() if number > told)
        return m.News(news, estimates)

    def keep_book(self, run: RunState, name: str, state: BookState | None) -> None:
        """Count an operator's epochs where operators decide for themselves."""
        if run.install.moves is not None:
            self.local.keep(run, name, state)

    def close(self, run_id: str) -> None:
        run = self.runs.pop(run_id, None)
        if run is not None:
            news, probes, sent = (now - then for now, then in zip(self._spent(), run.spent, strict=True))
            self.mover.on_close(run)
            self.barrier.on_close(run)
            self.record(run_id, "monitor", detail={"news_bytes": news, "probe_bytes": probes, "bytes_sent": sent})
            self.steering.close(run_id)
            self.local.close(run_id)
            self.emit(e.CloseRun(run_id))

    def _spent(self) -> tuple[int, int, int]:
        """Bytes of news, of probes, and of all that was sent, since the host began."""
        return self.monitor.news_bytes, self.probe_bytes, self.sent_bytes + self.monitor.news_bytes

    def report(self, link: Link, estimate: LinkEstimate) -> None:
        """A probe has measured a link; somebody here may wait for it."""
        self.emit(e.Report(*link, estimate))
        self.steering.on_estimate(link, estimate)
        self.local.on_estimate(link)

    # --- events ---------------------------------------------------------------------------------------

    def _on_message(self, event: e.MessageReceived) -> None:
        message = event.message
        self.coordinator.heard(event.sender)
        kind = type(message)
        if kind is m.Demand:
            self._demand(event.sender, message)  # type: ignore[arg-type]
        elif kind is m.Partition:
            self._partition(event.sender, message, event.payload, event.size_bytes)  # type: ignore[arg-type]
        elif kind is m.State:
            self.mover.on_state(event.sender, message, event.payload)  # type: ignore[arg-type]
        else:
            handler = self._MESSAGES.get(kind)
            if handler is not None:
                handler(self, event.sender, message)
            else:
                self.record("", "unexpected", peer=event.sender, detail={"message": kind.__name__})

    def _on_timer(self, event: e.TimerFired) -> None:
        if event.key == "retry":
            self._retry()
        elif event.key == "lease":
            self._check_leases()
        else:
            what, _, rest = event.key.partition(" ")
            self._TIMERS[what](self, rest)

    def _on_finished(self, event: e.OperatorFinished) -> None:
        run = self.runs.get(event.run)
        node = run.nodes.get(event.node) if run is not None else None
        if run is None or node is None:
            return
        if run.books:
            run.compute_s[event.node] = event.duration_s
        output = Output(event.index, event.value, event.size_bytes, event.end)
        verdict, actions = node.on_finished(output)
        if verdict == "taken":
            self.perform(run, node, actions)

    def _on_failed(self, event: e.OperatorFailed) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        self.send(event.run, run.install.client, m.Failed(event.run, event.node, event.reason[:4000]))

    def _on_node_opened(self, event: e.NodeOpened) -> None:
        self.mover.on_opened(event)

    def _on_state_taken(self, event: e.StateTaken) -> None:
        self.mover.on_taken(event)

    def _on_state_restored(self, event: e.StateRestored) -> None:
        self.mover.on_state_restored(event)

    def _on_placement_proposed(self, event: e.PlacementProposed) -> None:
        run = self.runs.get(event.run)
        if run is not None:
            self.barrier.propose(run, event.placement, event.reason)

    def _on_planned(self, event: e.Planned) -> None:
        self.steering.on_planned(event)

    def _on_measured(self, event: e.TransferMeasured) -> None:
        message = event.message
        if isinstance(message, m.Probe):
            self.prober.on_measured(event.peer, message, event.size_bytes, event.duration_s)
        elif isinstance(message, m.State):
            self.mover.on_transfer_over(message, arrived=True)
        elif isinstance(message, m.Partition):
            self._transfer_over(message, arrived=True)
            self._learn(event, message.run)
            if not self.recording:
                return
            rate = event.size_bytes * 8 / event.duration_s if event.duration_s > 0 else 0.0
            self.record(
                message.run,
                "transfer",
                peer=event.peer,
                node=message.producer,
                index=message.index,
                size_bytes=event.size_bytes,
                duration_s=event.duration_s,
                value=rate,
            )

    def _learn(self, event: e.TransferMeasured, run: str) -> None:
        """A partition's transfer also measured the link (passive monitoring)."""
        busy_s = self.prober.busy_s(event.peer, event.duration_s)
        estimate = self.monitor.measured(self.host, event.peer, event.size_bytes, busy_s, self.now, "passive")
        if estimate is not None and self.recording:
            fields = estimate_fields((self.host, event.peer), estimate, event.size_bytes, busy_s, "passive")
            self.record(run, "estimate", **fields)

    def _on_transfer_failed(self, event: e.TransferFailed) -> None:
        if isinstance(event.message, m.Probe):
            self.prober.on_failed(event.peer, event.message)
        elif isinstance(event.message, m.State):
            self.mover.on_transfer_over(event.message, arrived=False)
        elif isinstance(event.message, m.Partition):
            self._transfer_over(event.message, arrived=False)
            self.record(event.message.run, "fault", peer=event.peer, node=event.message.producer)

    def _transfer_over(self, message: m.Partition, *, arrived: bool) -> None:
        run = self.runs.get(message.run)
        if run is None:
            return
        node = run.nodes.get(message.producer)
        if node is not None:
            node.on_transfer_over(message.index, arrived=arrived)
        tail = run.tails.get(message.producer)
        if tail is not None and tail.output.index == message.index:
            tail.sending, tail.landed = False, arrived

    def _on_peer_lost(self, event: e.PeerLost) -> None:
        self.coordinator.on_peer_lost(event.run, event.peer)

    def lose(self, run: RunState, host: str) -> None:
        """``host`` is gone for good: nothing is on its way there any more."""
        run.hosts.discard(host)
        for node in run.nodes.values():
            consumer = run.consumers[node.node.name]
            if consumer and run.locations[consumer[0]].host == host:
                node.sending = False
        self.mover.on_lost(run, host)
        self.barrier.on_lost(run, host)

    def _on_run_requested(self, event: e.RunRequested) -> None:
        self.coordinator.start(event.install, event.adaptation)

    def _on_next_requested(self, event: e.NextRequested) -> None:
        run = self.runs.get(event.run)
        sink = run.nodes.get(run.install.dataflow.sink) if run is not None else None
        if run is None or sink is None:
            return
        verdict, actions = sink.on_demand(sink.index)
        if verdict == "taken":
            self.perform(run, sink, actions)

    def _on_abandoned(self, event: e.RunAbandoned) -> None:
        self.coordinator.stop(event.run)

    def _on_probes_requested(self, event: e.ProbesRequested) -> None:
        self.prober.request(event)

    # --- messages -------------------------------------------------------------------------------------

    def _on_hello(self, sender: str, message: m.Hello) -> None:
        self.send("", sender, self._welcome())

    def _welcome(self) -> m.Welcome:
        return m.Welcome(self.host, self.me.control, self.me.bulk, self.codes, self.me.instance)

    def _on_ping(self, sender: str, message: m.Ping) -> None:
        run = self.runs.get(message.run)
        if run is not None:
            run.heard_s = self.now
        self.send(message.run, sender, m.Pong(message.run, run is not None or not message.run))

    def _on_install(self, sender: str, message: m.Install) -> None:
        error = ""
        if any(peer.name == self.host and self._before_me(peer) for peer in message.peers):
            self.emit(e.Meet("", tuple(peer for peer in message.peers if peer.name == sender)))
            self.send("", sender, self._welcome())
            return
        if message.run not in self.runs:
            try:
                message.dataflow.validate()
                located = {entry.node for entry in message.locations}
                missing, unknown = message.dataflow.by_name.keys() - located, located - message.dataflow.by_name.keys()
                if missing:
                    error = f"no location for node {min(missing)!r}"
                elif unknown:
                    error = f"a location for {min(unknown)!r}, which is no node"
            except Exception as problem:  # whatever is wrong with it, the client is told, not this host
                error = str(problem)[:4000]
            if not error:
                self.open(message)
                if self._lease_at is None:
                    self._set_lease()
        else:
            self.emit(e.Meet(message.run, message.peers))
        self.send(message.run, sender, m.Installed(message.run, self.host, error))

    def _before_me(self, peer: m.Peer) -> bool:
        """Whether what was sent is for the host that was here before this one was started."""
        return bool(peer.instance and self.me.instance) and peer.instance != self.me.instance

    def _on_remove(self, sender: str, message: m.Remove) -> None:
        self.send(message.run, sender, m.Removed(message.run, self.host))
        run = self.runs.get(message.run)
        if run is not None and run.install.client == sender:
            self.close(message.run)

    def _on_located(self, sender: str, message: m.Located) -> None:
        run = self.runs.get(message.run)
        if run is not None:
            self.locate(run, message.locations)
            self.mover.on_located(run, sender, message.locations)

    def _on_news(self, run: RunState, sender: str, news: m.News, size_bytes: int) -> None:
        """What rode on a message of ``size_bytes``."""
        if news.estimates:
            self.monitor.heard(news.estimates, self.now, sender, size_bytes)
        if news.locations:
            self.mover.on_located(run, self.host, self.locate(run, news.locations))

    def _on_lost(self, sender: str, message: m.Lost) -> None:
        run = self.runs.get(message.run)
        if run is not None and sender == run.install.client:
            self.mover.on_located(run, self.host, self.locate(run, message.locations))
            if message.host in run.hosts:
                self.lose(run, message.host)
            held = tuple(entry for entry in run.locations.values() if entry.host == message.host)
            if held:  # which the client did not know
                self.send(run.id, sender, m.Located(run.id, held))

    def _on_relocate(self, sender: str, message: m.Relocate) -> None:
        run = self.runs.get(message.run)
        if run is None or message.node not in run.locations or sender != run.install.client:
            return
        here = run.locations[message.node]
        why = self.mover.obstacle(run, message.node, message.target)
        if not why and here.version != message.version:
            why = f"{message.node!r} has moved since"
        if not why and run.member.part is not Part.FREE:
            why = "a proposal is under way"
        if why:
            self.send(run.id, sender, m.Relocated(run.id, message.node, False, here, why))
        else:
            self.mover.begin(run, message.node, message.target, protocol="epoch", reason=message.reason)

    def _on_last_word(self, sender: str, message: m.Commit | m.Abort) -> None:
        """Only the client has it; a commit that rides on a partition was the client's."""
        run = self.runs.get(message.run)
        if run is None or sender != run.install.client:
            return
        if isinstance(message, m.Commit):
            self.barrier.on_commit(sender, message)
        else:
            self.barrier.on_abort(sender, message)

    def _on_relocated(self, sender: str, message: m.Relocated) -> None:
        run = self.runs.get(message.run)
        if run is not None and run.install.client == self.host:
            self.locate(run, (message.location,))
            run.state_bytes[message.node] = message.size_bytes
            self.steering.on_relocated(run, message)

    def _demand(self, sender: str, demand: m.Demand) -> None:
        run = self.runs.get(demand.run)
        if run is None:
            return
        if demand.news is not None and sender != self.host:
            self._on_news(run, sender, demand.news, 0)
        name, consumer = demand.producer, demand.consumer
        node = run.nodes.get(name)
        if consumer not in run.consumers.get(name, ()):
            self.record(demand.run, "unexpected", peer=sender, node=name)
            return
        if demand.version > run.locations[consumer].version:
            self.locate(run, (m.Location(consumer, sender, demand.version),))
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
            if run.leaving and name in run.leaving and node.phase is Phase.LIGHT:
                run.leaving[name].demand = _passed_on(demand)
            self.perform(run, node, actions)

    def _tail(self, run: RunState, sender: str, demand: m.Demand) -> bool:
        """Whether the demand is answered by what an operator left behind here, or has let go of it."""
        name = demand.producer
        tail = run.tails.get(name)
        if tail is None or demand.index < tail.output.index:
            return False
        if demand.index > tail.output.index:
            del run.tails[name]
            return False
        if demand.again and tail.landed:
            tail.landed = False
        elif not tail.sending:
            tail.sending = self._dispatch_output(run, name, demand.consumer, tail.output)
            self.record(run.id, "repeated", node=name, index=demand.index)
        return True

    def _before(self, run: RunState, node: NodeCore, demand: m.Demand) -> bool:
        """A demand for an operator that has left its last output with another host; False when it went there."""
        name = node.node.name
        host = run.tail_hosts[name]
        if demand.index >= node.index:  # which acknowledges it
            del run.tail_hosts[name]
            if host != self.host:
                self.send(run.id, host, msgspec.structs.replace(demand, hops=LET_GO, version=0, news=None))
            return True
        if demand.index < node.index - 1 or host == self.host:
            return True
        if host not in run.hosts:
            reason = f"its partition {demand.index} was on host {host!r}, which went away"
            self.send(run.id, run.install.client, m.Failed(run.id, name, reason))
        elif demand.hops < MAX_HOPS:
            self.send(run.id, host, _passed_on(demand))
            here = run.nodes.get(demand.consumer)
            if here is not None and name in here.asked and (demand.consumer, name) not in run.pending:
                self._await(run, demand.consumer, name, demand.index)
        return False

    def _partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> None:
        run = self.runs.get(part.run)
        if run is None:
            return
        if part.news is not None and sender != self.host:
            self._on_news(run, sender, part.news, size_bytes)
        if part.commit is not None and sender != self.host:
            self.barrier.on_commit(sender, part.commit)
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
                run.answer_s[edge] = self.now - pending.asked_s
            if run.books:
                run.sizes[edge] = size_bytes
            self.perform(run, node, actions)
        else:
            self.record(part.run, "duplicate", peer=sender, node=part.consumer, index=part.index)

    def _forward(
        self, run: RunState, sender: str, node: str, message: m.Demand | m.Partition, value: Any, size: int
    ) -> None:
        location = run.locations.get(node)
        if location is None or location.host == self.host or message.hops >= MAX_HOPS:
            self.record(message.run, "undeliverable", peer=sender, node=node, index=message.index)
            return
        if isinstance(message, m.Demand):
            onward: m.Demand | m.Partition = _passed_on(message)
        else:
            onward = msgspec.structs.replace(message, hops=message.hops + 1, news=None)
        bulk = isinstance(message, m.Partition) and not message.end
        self.emit(e.Send(message.run, location.host, onward, value, size, bulk))
        self.record(message.run, "forwarded", peer=location.host, node=node, index=message.index)
        if sender != self.host:
            self.send(message.run, sender, m.Located(message.run, (location,)))

    # --- actions of nodes -----------------------------------------------------------------------------

    def perform(self, run: RunState, node: NodeCore, actions: list[Action]) -> None:
        run_id, name = run.install.run, node.node.name
        for action in actions:
            if type(action) is Ask:  # not match: a class pattern takes three times as long, and this is the hot path
                for producer in node.node.inputs:
                    self.ask(run, name, producer, action.index)
            elif type(action) is Run:
                self._out.append(e.RunOperator(run_id, name, action.index, action.inputs))
            elif type(action) is Dispatch:
                self._dispatch(run, node, action.output)
                if action.again:
                    self.record(run_id, "repeated", node=name, index=action.output.index)
            elif type(action) is Hand:
                output = action.output
                self._out.append(e.Deliver(run_id, output.index, output.value, output.size_bytes, output.end))
                self.steering.on_delivered(run)
            else:
                self.mover.on_light(run, node)
        if run.leaving and node.phase is Phase.ENDED:
            self.mover.check_over(run, node)

    def take(self, part: m.Partition, output: Output) -> None:
        """A partition that is here already."""
        self._local.append((part, output.value, output.size_bytes))

    def ask(self, run: RunState, consumer: str, producer: str, index: int) -> None:
        """Demand a partition, from another host until it comes."""
        if self._send_demand(run, consumer, producer, index):
            self._await(run, consumer, producer, index)

    def _send_demand(self, run: RunState, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Whether the producer is on another host."""
        if producer in run.nodes:
            self._local.append(self._demand_for(run, consumer, producer, index, self.host))
            return False
        host = run.host_of(producer, index)
        if host == self.host:  # it is to come here, and has not yet
            host = run.locations[producer].host
        demand = self._demand_for(run, consumer, producer, index, host)
        self.send(run.install.run, host, msgspec.structs.replace(demand, again=True) if again else demand)
        return True

    def _await(self, run: RunState, consumer: str, producer: str, index: int) -> None:
        """Repeat a demand until it is answered: not before twice the time that the last answer took."""
        wait_s = max(self.config.retry_s, min(2 * run.answer_s.get((consumer, producer), 0.0), self.config.retry_max_s))
        due = self.now + wait_s
        run.pending[consumer, producer] = Pending(index, due, wait_s, self.now)
        if self._retry_at is None or due < self._retry_at:  # those that wait have backed off further
            self._retry_at = due
            self.emit(e.SetTimer("retry", due))

    def _demand_for(self, run: RunState, consumer: str, producer: str, index: int, host: str) -> m.Demand:
        news = None if host == self.host else self.news_for(run, host, upward=True)
        version = run.locations[consumer].version
        if run.install.moves is None:
            return m.Demand(run.install.run, producer, consumer, index, 0, version, news=news)
        later, critical = self.local.marks(run, consumer, producer)
        return m.Demand(run.install.run, producer, consumer, index, 0, version, later, critical, news)

    def _dispatch(self, run: RunState, node: NodeCore, output: Output) -> None:
        name = node.node.name
        node.sending = self._dispatch_output(run, name, run.consumers[name][0], output)
        if run.arrivals and name in run.arrivals:
            self._record_arrival(run, name, output.index)
        if run.books and name in run.books:
            run.books[name].on_sent(output.index)

    def _dispatch_output(self, run: RunState, name: str, consumer: str, output: Output) -> bool:
        """Send an output to where it is wanted; whether its transfer is under way now."""
        here = consumer in run.nodes
        to = self.host if here else run.host_of(consumer, output.index)
        if to == self.host and not here:  # the consumer is to come here, and has not yet
            guest = run.guests.get(consumer)
            here = guest is not None and guest.expects == output.index
            to = run.locations[consumer].host
        part = m.Partition(run.install.run, name, consumer, output.index, output.end)
        if here:
            self._local.append((part, output.value, output.size_bytes))
            return False
        news = self.news_for(run, to, upward=False)
        switch = run.switch
        commit = switch.commit if switch is not None and switch.iteration + 1 == output.index else None
        if news is not None or commit is not None:
            part = msgspec.structs.replace(part, news=news, commit=commit)
        bulk = not output.end
        self.emit(e.Send(run.install.run, to, part, output.value, output.size_bytes, bulk))
        return bulk

    def _record_arrival(self, run: RunState, name: str, index: int) -> None:
        """An operator that came from another host has made its first output here."""
        arrival = run.arrivals.pop(name)
        ago = {"state_in": self.now - arrival.came_s, "resumed": self.now - arrival.resumed_s}
        self.record(
            run.id,
            "arrived",
            node=name,
            peer=arrival.source,
            index=index,
            size_bytes=arrival.size_bytes,
            duration_s=self.now - arrival.came_s,
            detail={"version": arrival.version, "ago": ago},
        )

    # --- timers ---------------------------------------------------------------------------------------

    def _retry(self) -> None:
        """Repeat what is due; demands that were answered meanwhile cost nothing but this pass."""
        self._retry_at = None
        earliest: float | None = None
        for run in self.runs.values():
            for (consumer, producer), pending in run.pending.items():
                if pending.due_s <= self.now:
                    self._send_demand(run, consumer, producer, pending.index, again=True)
                    pending.interval_s = min(2 * pending.interval_s, self.config.retry_max_s)
                    pending.due_s = self.now + pending.interval_s
                if earliest is None or pending.due_s < earliest:
                    earliest = pending.due_s
        if earliest is not None:
            self._retry_at = earliest
            self.emit(e.SetTimer("retry", earliest))

    def _set_lease(self) -> None:
        self._lease_at = self.now + self.config.lease_s / 2
        self.emit(e.SetTimer("lease", self._lease_at))

    def _check_leases(self) -> None:
        self._lease_at = None
        for run_id, run in list(self.runs.items()):
            if run.install.client != self.host and self.now - run.heard_s > self.config.lease_s:
                self.record(run_id, "fault", peer=run.install.client, detail={"what": "client silent, run dropped"})
                self.close(run_id)
        if any(run.install.client != self.host for run in self.runs.values()):
            self._set_lease()

    _HANDLERS: ClassVar[dict[type[Any], Callable[[HostCore, Any], None]]] = {
        e.MessageReceived: _on_message,
        e.TimerFired: _on_timer,
        e.OperatorFinished: _on_finished,
        e.OperatorFailed: _on_failed,
        e.NodeOpened: _on_node_opened,
        e.StateTaken: _on_state_taken,
        e.StateRestored: _on_state_restored,
        e.PlacementProposed: _on_placement_proposed,
        e.Planned: _on_planned,
        e.TransferMeasured: _on_measured,
        e.TransferFailed: _on_transfer_failed,
        e.PeerLost: _on_peer_lost,
        e.RunRequested: _on_run_requested,
        e.NextRequested: _on_next_requested,
        e.RunAbandoned: _on_abandoned,
        e.ProbesRequested: _on_probes_requested,
    }
    _MESSAGES: ClassVar[dict[type[Any], Callable[[HostCore, str, Any], None]]] = {
        m.Hello: _on_hello,
        m.Welcome: lambda self, sender, message: self.coordinator.on_welcome(sender, message),
        m.Ping: _on_ping,
        m.Pong: lambda self, sender, message: self.coordinator.on_pong(sender, message),
        m.Install: _on_install,
        m.Installed: lambda self, sender, message: self.coordinator.on_installed(sender, message),
        m.Remove: _on_remove,
        m.Removed: lambda self, sender, message: self.coordinator.on_removed(sender, message),
        m.Located: _on_located,
        m.Failed: lambda self, sender, message: self.coordinator.on_failed(sender, message),
        m.Lost: _on_lost,
        m.Relocate: _on_relocate,
        m.Relocated: _on_relocated,
        m.Offer: lambda self, sender, message: self.mover.on_offer(sender, message),
        m.Accept: lambda self, sender, message: self.mover.on_accept(sender, message),
        m.Refuse: lambda self, sender, message: self.mover.on_refuse(sender, message),
        m.Restored: lambda self, sender, message: self.mover.on_restored(sender, message),
        m.Withdraw: lambda self, sender, message: self.mover.on_withdraw(sender, message),
        m.Resumed: lambda self, sender, message: self.mover.on_resumed(sender, message),
        m.Propose: lambda self, sender, message: self.barrier.on_propose(sender, message),
        m.Vote: lambda self, sender, message: self.barrier.on_vote(sender, message),
        m.Commit: _on_last_word,
        m.Abort: _on_last_word,
        m.Done: lambda self, sender, message: self.barrier.on_done(sender, message),
        m.ProbeRequest: lambda self, sender, message: self.prober.on_request(message),
        m.Probe: lambda self, sender, message: self.prober.on_probe(sender, message),
        m.ProbeResult: lambda self, sender, message: self.prober.on_result(message),
    }
    _TIMERS: ClassVar[dict[str, Callable[[HostCore, str], None]]] = {
        "install": lambda self, run: self.coordinator.on_timer("install", run),
        "remove": lambda self, run: self.coordinator.on_timer("remove", run),
        "ping": lambda self, run: self.coordinator.on_timer("ping", run),
        "move": lambda self, run: self.mover.on_timer(run),
        "barrier": lambda self, run: self.barrier.on_timer(run),
        "plan": lambda self, run: self.steering.on_timer(run),
        "probe": lambda self, _: self.prober.on_timer(),
        "epoch": lambda self, rest: self.local.on_timer(rest),
        "decide": lambda self, rest: self.local.on_expired(rest),
    }


def _passed_on(demand: m.Demand) -> m.Demand:
    """A demand as another host sends it on: the consumer is not with the sender."""
    return msgspec.structs.replace(demand, hops=demand.hops + 1, version=0, news=None)


def merge_locations(table: dict[str, m.Location], news: Iterable[m.Location]) -> tuple[m.Location, ...]:
    """Take over every entry whose version is higher, and return these; entries of unknown nodes are ignored."""
    taken = []
    for entry in news:
        if entry.node in table and entry.version > table[entry.node].version:
            table[entry.node] = entry
            taken.append(entry)
    return tuple(taken)
