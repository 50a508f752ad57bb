"""All that a host decides, for every node of every run on it: pure, told events, giving commands.

Rules:

- A message for a node goes to the node's newest known location. A host that gets one for a node that is
  elsewhere forwards it (``MAX_HOPS`` times at most) and tells the sender the newer location.
- Locations merge entry by entry, the higher version wins.
- Every demand to another host is repeated, with back-off, until the partition has come.
- A run is opened by ``Install`` and closed by ``Remove`` or when its client has been silent for ``lease_s``.
  Messages of unknown runs change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.coordinator import Coordinator
from thalweg.middleware.node import Action, Ask, Dispatch, Hand, NodeCore, Output, Run
from thalweg.middleware.probing import Prober

MAX_HOPS = 8  # a chain of forwards longer than this means that locations run in a circle


class CoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time limits of the core, in seconds of the shell's (possibly dilated) clock."""

    retry_s: float = 0.5
    retry_max_s: float = 8.0
    ping_s: float = 2.0
    liveness_s: float = 15.0
    lease_s: float = 60.0

    def dilated(self, time_scale: float) -> CoreConfig:
        """The same limits of wall-clock time on a clock that runs ``time_scale`` times as fast."""
        return CoreConfig(**{name: value * time_scale for name, value in msgspec.structs.asdict(self).items()})


class Pending(msgspec.Struct):
    """A demand sent to another host that has not been answered."""

    index: int
    due_s: float
    interval_s: float


class RunState:
    """One run as this host sees it."""

    def __init__(self, install: m.Install, host: str) -> None:
        self.install = install
        self.consumers = install.dataflow.consumers
        self.locations = {location.node: location for location in install.locations}
        self.nodes: dict[str, NodeCore] = {}
        for node in install.dataflow.nodes:
            if self.locations[node.name].host == host:
                self.nodes[node.name] = NodeCore(node, install.partitions)
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self.heard_s = 0.0  # from the client


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
        self.prober = Prober(self)
        self.recording = True  # a shell that keeps no records spares the core their making
        self._out: list[e.Command] = []
        self._local: deque[m.Demand | tuple[m.Partition, Any, int]] = deque()
        self._retry_at: float | None = None
        self._lease_at: float | None = None

    def handle(self, event: e.Event, now: float) -> list[e.Command]:
        """What to do about ``event``, which happened at ``now`` (seconds, never decreasing)."""
        self.now = now
        self._HANDLERS[type(event)](self, event)
        while self._local:
            item = self._local.popleft()
            if isinstance(item, m.Demand):
                self._demand(self.host, item)
            else:
                self._partition(self.host, *item)
        out, self._out = self._out, []
        return out

    def wants(self, message: m.Partition | m.Probe) -> bool:
        """Whether a partition that begins to arrive has been demanded and not come yet.

        A shell takes no memory for one that has not.
        """
        if isinstance(message, m.Probe):
            return True
        run = self.runs.get(message.run)
        if run is None:
            return False
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

    # --- used by coordinator and prober ---------------------------------------------------------------

    def emit(self, command: e.Command) -> None:
        self._out.append(command)

    def send(self, run: str, to: str, message: m.Message) -> None:
        self._out.append(e.Send(run, to, message))

    def record(self, run: str, kind: str, **fields: Any) -> None:
        if self.recording:
            self._out.append(e.Record(run, kind, fields))

    def open(self, install: m.Install) -> RunState:
        """Begin to take part in a run."""
        run = self.runs[install.run] = RunState(install, self.host)
        run.heard_s = self.now
        self.emit(e.Meet(install.run, install.peers))
        if run.nodes:
            self.emit(e.OpenRun(install, tuple(run.nodes)))
        return run

    def close(self, run_id: str) -> None:
        if self.runs.pop(run_id, None) is not None:
            self.emit(e.CloseRun(run_id))

    # --- events ---------------------------------------------------------------------------------------

    def _on_message(self, event: e.MessageReceived) -> None:
        message = event.message
        self.coordinator.heard(event.sender)
        kind = type(message)
        if kind is m.Demand:
            self._demand(event.sender, message)  # type: ignore[arg-type]
        elif kind is m.Partition:
            self._partition(event.sender, message, event.payload, event.size_bytes)  # type: ignore[arg-type]
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
            self.coordinator.on_timer(event.key)

    def _on_finished(self, event: e.OperatorFinished) -> None:
        run = self.runs.get(event.run)
        node = run.nodes.get(event.node) if run is not None else None
        if run is None or node is None:
            return
        output = Output(event.index, event.value, event.size_bytes, event.end)
        verdict, actions = node.on_finished(output)
        if verdict == "taken":
            self._perform(run, node, actions)

    def _on_failed(self, event: e.OperatorFailed) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        failed = m.Failed(event.run, event.node, event.reason[:4000])
        if run.install.client == self.host:
            self.coordinator.on_failed(self.host, failed)
        else:
            self.send(event.run, run.install.client, failed)

    def _on_measured(self, event: e.TransferMeasured) -> None:
        message = event.message
        if isinstance(message, m.Probe):
            self.prober.on_measured(event.peer, message, event.size_bytes, event.duration_s)
        elif isinstance(message, m.Partition):
            self._transfer_over(message)
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

    def _on_transfer_failed(self, event: e.TransferFailed) -> None:
        if isinstance(event.message, m.Probe):
            self.prober.on_failed(event.peer, event.message)
        elif isinstance(event.message, m.Partition):
            self._transfer_over(event.message)
            self.record(event.message.run, "fault", peer=event.peer, node=event.message.producer)

    def _transfer_over(self, message: m.Partition) -> None:
        run = self.runs.get(message.run)
        node = run.nodes.get(message.producer) if run is not None else None
        if node is not None:
            node.on_transfer_over(message.index)

    def _on_peer_lost(self, event: e.PeerLost) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        for node in run.nodes.values():
            consumer = run.consumers[node.node.name]
            if consumer and run.locations[consumer[0]].host == event.peer:
                node.sending = False
        self.coordinator.on_peer_lost(event.run, event.peer)

    def _on_run_requested(self, event: e.RunRequested) -> None:
        self.coordinator.start(event.install)

    def _on_next_requested(self, event: e.NextRequested) -> None:
        run = self.runs.get(event.run)
        sink = run.nodes.get(run.install.dataflow.sink) if run is not None else None
        if run is None or sink is None:
            return
        verdict, actions = sink.on_demand(sink.index)
        if verdict == "taken":
            self._perform(run, sink, actions)

    def _on_abandoned(self, event: e.RunAbandoned) -> None:
        self.coordinator.stop(event.run)

    def _on_probes_requested(self, event: e.ProbesRequested) -> None:
        self.prober.request(event)

    # --- messages -------------------------------------------------------------------------------------

    def _on_hello(self, sender: str, message: m.Hello) -> None:
        self.send("", sender, m.Welcome(self.host, self.me.control, self.me.bulk, self.codes))

    def _on_ping(self, sender: str, message: m.Ping) -> None:
        run = self.runs.get(message.run)
        if run is not None:
            run.heard_s = self.now
        self.send(message.run, sender, m.Pong(message.run, run is not None or not message.run))

    def _on_install(self, sender: str, message: m.Install) -> None:
        error = ""
        if message.run not in self.runs:
            try:
                message.dataflow.validate()
                missing = message.dataflow.by_name.keys() - {entry.node for entry in message.locations}
                if missing:
                    error = f"no location for node {min(missing)!r}"
            except Exception as problem:  # whatever is wrong with it, the client is told, not this host
                error = str(problem)[:4000]
            if not error:
                self.open(message)
                if self._lease_at is None:
                    self._set_lease()
        else:
            self.emit(e.Meet(message.run, message.peers))
        self.send(message.run, sender, m.Installed(message.run, self.host, error))

    def _on_remove(self, sender: str, message: m.Remove) -> None:
        self.send(message.run, sender, m.Removed(message.run, self.host))
        run = self.runs.get(message.run)
        if run is not None and run.install.client == sender:
            self.close(message.run)

    def _on_located(self, sender: str, message: m.Located) -> None:
        run = self.runs.get(message.run)
        if run is not None:
            merge_locations(run.locations, message.locations)

    def _demand(self, sender: str, demand: m.Demand) -> None:
        run = self.runs.get(demand.run)
        if run is None:
            return
        node = run.nodes.get(demand.producer)
        if node is None:
            self._forward(run, sender, demand.producer, demand, None, 0)
            return
        if demand.consumer not in run.consumers[demand.producer]:
            self.record(demand.run, "unexpected", peer=sender, node=demand.producer)
            return
        verdict, actions = node.on_demand(demand.index)
        if verdict == "taken":
            self._perform(run, node, actions)

    def _partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> None:
        run = self.runs.get(part.run)
        if run is None:
            return
        node = run.nodes.get(part.consumer)
        if node is None:
            self._forward(run, sender, part.consumer, part, value, size_bytes)
            return
        verdict, actions = node.on_partition(part.producer, Output(part.index, value, size_bytes, part.end))
        if verdict == "taken":
            run.pending.pop((part.consumer, part.producer), None)
            self._perform(run, node, actions)
        else:
            self.record(part.run, "duplicate", peer=sender, node=part.consumer, index=part.index)

    def _forward(
        self, run: RunState, sender: str, node: str, message: m.Demand | m.Partition, value: Any, size: int
    ) -> None:
        location = run.locations.get(node)
        if location is None or location.host == self.host or message.hops >= MAX_HOPS:
            self.record(message.run, "undeliverable", peer=sender, node=node, index=message.index)
            return
        onward = msgspec.structs.replace(message, hops=message.hops + 1)
        bulk = isinstance(message, m.Partition) and not message.end
        self.emit(e.Send(message.run, location.host, onward, value, size, bulk))
        self.record(message.run, "forwarded", peer=location.host, node=node, index=message.index)
        if sender != self.host:
            self.send(message.run, sender, m.Located(message.run, (location,)))

    # --- actions of nodes -----------------------------------------------------------------------------

    def _perform(self, run: RunState, node: NodeCore, actions: list[Action]) -> None:
        run_id, name = run.install.run, node.node.name
        for action in actions:
            if type(action) is Ask:  # not match: a class pattern takes three times as long, and this is the hot path
                for producer in node.node.inputs:
                    self._ask(run, name, producer, action.index)
            elif type(action) is Run:
                self._out.append(e.RunOperator(run_id, name, action.index, action.inputs))
            elif type(action) is Dispatch:
                self._dispatch(run, node, action.output)
                if action.again:
                    self.record(run_id, "repeated", node=name, index=action.output.index)
            elif type(action) is Hand:
                output = action.output
                self._out.append(e.Deliver(run_id, output.index, output.value, output.size_bytes, output.end))

    def _ask(self, run: RunState, consumer: str, producer: str, index: int) -> None:
        demand = m.Demand(run.install.run, producer, consumer, index)
        if producer in run.nodes:
            self._local.append(demand)
            return
        self.send(run.install.run, run.locations[producer].host, demand)
        due = self.now + self.config.retry_s
        run.pending[consumer, producer] = Pending(index, due, self.config.retry_s)
        if self._retry_at is None or due < self._retry_at:  # those that wait have backed off further
            self._retry_at = due
            self.emit(e.SetTimer("retry", due))

    def _dispatch(self, run: RunState, node: NodeCore, output: Output) -> None:
        consumer = run.consumers[node.node.name][0]
        part = m.Partition(run.install.run, node.node.name, consumer, output.index, output.end)
        if consumer in run.nodes:
            self._local.append((part, output.value, output.size_bytes))
            return
        bulk = not output.end
        node.sending = bulk
        to = run.locations[consumer].host
        self.emit(e.Send(run.install.run, to, part, output.value, output.size_bytes, bulk))

    # --- timers ---------------------------------------------------------------------------------------

    def _retry(self) -> None:
        """Repeat what is due; demands that were answered meanwhile cost nothing but this pass."""
        self._retry_at = None
        earliest: float | None = None
        for run in self.runs.values():
            for (consumer, producer), pending in run.pending.items():
                if pending.due_s <= self.now:
                    demand = m.Demand(run.install.run, producer, consumer, pending.index)
                    self.send(run.install.run, run.locations[producer].host, demand)
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
        m.Ping: _on_ping,
        m.Pong: lambda self, sender, message: self.coordinator.on_pong(sender, message),
        m.Install: _on_install,
        m.Installed: lambda self, sender, message: self.coordinator.on_installed(sender, message),
        m.Remove: _on_remove,
        m.Removed: lambda self, sender, message: self.coordinator.on_removed(sender, message),
        m.Located: _on_located,
        m.Failed: lambda self, sender, message: self.coordinator.on_failed(sender, message),
        m.ProbeRequest: lambda self, sender, message: self.prober.on_request(message),
        m.Probe: lambda self, sender, message: self.prober.on_probe(sender, message),
        m.ProbeResult: lambda self, sender, message: self.prober.on_result(message),
    }


def merge_locations(table: dict[str, m.Location], news: tuple[m.Location, ...]) -> None:
    """Take over every entry whose version is higher; entries of unknown nodes are ignored."""
    for entry in news:
        known = table.get(entry.node)
        if known is not None and entry.version > known.version:
            table[entry.node] = entry
