"""All that a host decides, for every node of every run on it: pure, told events, giving commands.

Rules:

- Locations merge entry by entry, the higher version wins.
- A run is opened by ``Install`` (one that was sent before this host was restarted opens none) and closed by
  ``Remove`` or when its client has been silent for ``lease_s``. Messages of unknown runs change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node import Output
from thalweg.middleware.core.monitoring.coordinator import Coordinator
from thalweg.middleware.core.monitoring.monitor import Monitor, estimate_fields
from thalweg.middleware.core.monitoring.prober import Prober
from thalweg.middleware.core.monitoring.silence import Suspicions
from thalweg.middleware.core.relocation.barrier import Barrier
from thalweg.middleware.core.relocation.handover import Mover
from thalweg.middleware.core.relocation.inheritance import Inheritance
from thalweg.middleware.core.relocation.proposal import MemberState
from thalweg.middleware.core.relocation.reshaping import Reshaper
from thalweg.middleware.core.run import RunState
from thalweg.middleware.core.steering.local import LocalSteering
from thalweg.middleware.core.steering.planned import Steering
from thalweg.middleware.network.view import Link, LinkEstimate
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.messages import BookState


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
        self.reshaper = Reshaper(self)
        self.inheritance = Inheritance(self)
        self.steering = Steering(self)
        self.local = LocalSteering(self)
        self.flow = Flow(self)
        self.silence = Suspicions(self)
        self.sent_bytes = 0  # as bulk
        self.probe_bytes = 0
        self.recording = True  # a shell that keeps no records spares the core their making
        self._out: list[e.Command] = []
        self._local: deque[m.Message | tuple[m.Partition, Any, int]] = deque()
        self._lease_at: float | None = None

    def handle(self, event: e.Event, now: float) -> list[e.Command]:
        """What to do about ``event``, which happened at ``now`` (seconds, never decreasing)."""
        self.now = now
        self._HANDLERS[type(event)](self, event)
        while self._local:
            item = self._local.popleft()
            if type(item) is m.Demand:
                self.flow.demand(self.host, item)
            elif type(item) is tuple:
                self.flow.partition(self.host, *item)
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
        if isinstance(message, m.State) and message.heir:
            return self.inheritance.wants(run, message)
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
                assert (name in run.nodes) == (run.leaving[name].state != "committed"), name
            assert run.guests.keys().isdisjoint(run.nodes), run.guests
            for name in run.nodes:
                assert run.locations[name].host == self.host, name
            self._validate_trees(run)

    @staticmethod
    def _validate_trees(run: RunState) -> None:
        """One tree, or two while a host has both; what is only in the old one ends with it."""
        assert (run.former is not None) == (run.member.state is MemberState.BOTH), run.member.state
        assert run.buds.keys().isdisjoint(run.nodes), run.buds
        assert not run.buds or run.member.state in (MemberState.PREPARING, MemberState.VOTED), run.member.state
        assert run.former is not None or not (run.heirs or run.legacies), (run.heirs, run.legacies)
        assert run.nodes.keys() >= run.heirs.keys() | run.legacies.keys(), (run.heirs, run.legacies)
        known = set(run.dataflow.by_name)
        if run.former is not None:
            known |= run.former.by_name.keys()
            assert not run.leaving, run.leaving
            assert all(guest.came is None for guest in run.guests.values()), run.guests
            for name in run.nodes.keys() - run.dataflow.by_name.keys():
                assert run.nodes[name].limit == run.turn + 1, run.nodes[name]
        assert run.locations.keys() == known, run.locations.keys() ^ known
        for node in run.nodes.values():
            assert known.issuperset(node.node.inputs), node

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

    def take(self, part: m.Partition, output: Output) -> None:
        """A partition that is here already."""
        self._local.append((part, output.value, output.size_bytes))

    def record(self, run: str, kind: str, **fields: Any) -> None:
        if self.recording:
            self._out.append(e.Record(run, kind, fields))

    def open(self, install: m.Install) -> RunState:
        """Begin to take part in a run."""
        run = self.runs[install.run] = RunState(install, self.host, self.now)
        run.spent = self._spent()
        if install.afresh:
            self.monitor.forget()
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

    def hear(self, run: RunState, sender: str, news: m.News, size_bytes: int) -> None:
        """What rode on a message of ``size_bytes``."""
        if news.estimates:
            self.monitor.heard(news.estimates, self.now, sender, size_bytes)
        if news.locations:
            self.mover.on_located(run, self.host, self.locate(run, news.locations))

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
            self.flow.demand(event.sender, message)  # type: ignore[arg-type]
        elif kind is m.Partition:
            self.flow.partition(event.sender, message, event.payload, event.size_bytes)  # type: ignore[arg-type]
        elif kind is m.State and message.heir:  # type: ignore[union-attr]
            self.inheritance.on_state(event.sender, message, event.payload)  # type: ignore[arg-type]
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
            self.flow.retry()
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
            self.flow.perform(run, node, actions)
            if event.node in run.legacies:
                self.inheritance.check_made(run, event.node)

    def _on_failed(self, event: e.OperatorFailed) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        self.send(event.run, run.install.client, m.Failed(event.run, event.node, event.reason[:4000]))

    def _on_node_opened(self, event: e.NodeOpened) -> None:
        self.mover.on_opened(event)

    def _on_state_taken(self, event: e.StateTaken) -> None:
        run = self.runs.get(event.run)
        if run is not None and event.node in run.legacies:
            self.inheritance.on_taken(run, event)
        else:
            self.mover.on_taken(event)

    def _on_state_restored(self, event: e.StateRestored) -> None:
        run = self.runs.get(event.run)
        if run is not None and event.node in run.heirs:
            self.inheritance.on_merged(run, event)
        else:
            self.mover.on_state_restored(event)

    def _on_placement_proposed(self, event: e.PlacementProposed) -> None:
        run = self.runs.get(event.run)
        if run is not None:
            run.merging += tuple(code for code in event.merging if code not in run.merging)
            self.barrier.propose(run, event.placement, event.reason, event.dataflow, event.free)

    def _on_planned(self, event: e.Planned) -> None:
        self.steering.on_planned(event)

    def _on_measured(self, event: e.TransferMeasured) -> None:
        message = event.message
        if isinstance(message, m.Probe):
            self.prober.on_measured(event.peer, message, event.size_bytes, event.duration_s)
        elif isinstance(message, m.State):
            self._state_sent(event.peer, message, arrived=True)
        elif isinstance(message, m.Partition):
            self.flow.transfer_over(message, arrived=True)
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
            self._state_sent(event.peer, event.message, arrived=False)
        elif isinstance(event.message, m.Partition):
            self.flow.transfer_over(event.message, arrived=False)
            run = self.runs.get(event.message.run)
            if run is not None:
                self.silence.on_waiting(run, event.peer, run.opened_s)
            self.record(event.message.run, "fault", peer=event.peer, node=event.message.producer)

    def _state_sent(self, peer: str, message: m.State, *, arrived: bool) -> None:
        if message.heir:
            self.inheritance.on_transfer_over(peer, message, arrived=arrived)
        else:
            self.mover.on_transfer_over(message, arrived=arrived)

    def _on_peer_lost(self, event: e.PeerLost) -> None:
        self.coordinator.on_peer_lost(event.run, event.peer)

    def lose(self, run: RunState, host: str) -> None:
        """``host`` is gone for good: nothing is on its way there any more."""
        run.hosts.discard(host)
        for node in run.nodes.values():
            name = node.node.name
            if run.consumers[name] and run.locations[run.consumer_of(name, node.index - 1)].host == host:
                node.sending = False
        self.mover.on_lost(run, host)
        self.barrier.on_lost(run, host)
        self.steering.on_lost(run, host)

    def _on_run_requested(self, event: e.RunRequested) -> None:
        self.coordinator.start(event)

    def _on_next_requested(self, event: e.NextRequested) -> None:
        run = self.runs.get(event.run)
        sink = run.nodes.get(run.dataflow.sink) if run is not None else None
        if run is None or sink is None:
            return
        verdict, actions = sink.on_demand(sink.index)
        if verdict == "taken":
            self.flow.perform(run, sink, actions)

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

    def _on_pong(self, sender: str, message: m.Pong) -> None:
        self.silence.on_pong(sender)
        self.coordinator.on_pong(sender, message)

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
        if not why and run.member.state is not MemberState.FREE:
            why = "a proposal is under way"
        if why:
            self.send(run.id, sender, m.Relocated(run.id, message.node, False, here, why))
        else:
            self.mover.begin(run, message.node, message.target, protocol="epoch", reason=message.reason)

    def _on_last_word(self, sender: str, message: m.Commit | m.Abort | m.Retire) -> None:
        """Only the client has it; a commit that rides on a partition was the client's."""
        run = self.runs.get(message.run)
        if run is None or sender != run.install.client:
            return
        if isinstance(message, m.Commit):
            self.barrier.on_commit(sender, message)
        elif isinstance(message, m.Retire):
            self.barrier.on_retire(sender, message)
        else:
            self.barrier.on_abort(sender, message)

    def _on_relocated(self, sender: str, message: m.Relocated) -> None:
        run = self.runs.get(message.run)
        if run is not None and run.install.client == self.host:
            self.locate(run, (message.location,))
            run.state_bytes[message.node] = message.size_bytes
            self.steering.on_relocated(run, message)

    # --- timers ---------------------------------------------------------------------------------------

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
        m.Pong: _on_pong,
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
        m.Claim: lambda self, sender, message: self.inheritance.on_claim(sender, message),
        m.Restored: lambda self, sender, message: self.mover.on_restored(sender, message),
        m.Withdraw: lambda self, sender, message: self.mover.on_withdraw(sender, message),
        m.Resumed: lambda self, sender, message: self.mover.on_resumed(sender, message),
        m.Propose: lambda self, sender, message: self.barrier.on_propose(sender, message),
        m.Vote: lambda self, sender, message: self.barrier.on_vote(sender, message),
        m.Commit: _on_last_word,
        m.Abort: _on_last_word,
        m.Retire: _on_last_word,
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
        "claims": lambda self, run: self.inheritance.on_timer(run),
        "barrier": lambda self, run: self.barrier.on_timer(run),
        "plan": lambda self, run: self.steering.on_timer(run),
        "probe": lambda self, _: self.prober.on_timer(),
        "silence": lambda self, _: self.silence.on_timer(),
        "epoch": lambda self, rest: self.local.on_timer(rest),
        "decide": lambda self, rest: self.local.on_expired(rest),
    }


def merge_locations(table: dict[str, m.Location], news: Iterable[m.Location]) -> tuple[m.Location, ...]:
    """Take over every entry whose version is higher, and return these; entries of unknown nodes are ignored."""
    taken = []
    for entry in news:
        if entry.node in table and entry.version > table[entry.node].version:
            table[entry.node] = entry
            taken.append(entry)
    return tuple(taken)
