"""Virtual shell: the pure cores of many hosts, a simulated clock, and links that follow traces.

A host is the same ``HostCore`` that the ZeroMQ shell runs. This module adds a queue of events, the times that links,
disks and processors take, and an application at the client that accepts partitions as they come.

Rules:

- One queue holds the events, ordered by time and then by the order of their entry. So the same world gives the same
  events, byte for byte.
- A source reads from its host's disk, and an operator computes on its host's processor. A device does one thing at a
  time, a processor as many as it has cores.
- A message to a second host goes over the link model (``virtual.links``). The sender is notified of the arrival and its
  duration at once. Over relays a message goes in pieces (``virtual.passages``).
- The code of nodes comes from a ``CodeBook``: sizes only, or real values.

Source of the resources: Ranganathan et al. (1998), section 4.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from thalweg.emulation.virtual.config import Striped, WorldConfig
from thalweg.emulation.virtual.links import BULK, CONTROL, MODELS, PROBE, LinkRate, Transfer
from thalweg.emulation.virtual.passages import Passage, Piece
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.dataflow import FIXED, Dataflow, Node, Placement, Reorderable
from thalweg.middleware.errors import RunError
from thalweg.middleware.network.at_once import AtOnce, late_from_s
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import NET, Latency, Link, LinkEstimate
from thalweg.middleware.parcels import Parcel
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, ByHosts, Need
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.protocol.split_graph import PlacedGraph, whole
from thalweg.middleware.protocol.stripes import WINDOW
from thalweg.middleware.shell import node_code
from thalweg.middleware.shell.node_code import NodeCode, NodeResult, StateCall

MAX_EVENTS = 200_000_000  # hours of computing: a simulation with more events has an endless loop


CodeBook = Callable[[Node], NodeCode]


class VirtualHost:
    """State of one host: its core, devices and timers, and the code of its nodes. ``gone_s``: time of its crash.

    ``cores_free_s``: heap of the times from which the cores of the processor are free.
    """

    __slots__ = ("code", "core", "cores_free_s", "disk_free_s", "factor", "gone_s", "met", "name", "timers")

    def __init__(self, name: str, core: HostCore, factor: float) -> None:
        self.name, self.core, self.factor = name, core, factor
        self.cores_free_s = [0.0] * core.config.capacity.cores
        self.disk_free_s = 0.0
        self.gone_s = math.inf
        self.timers: dict[e.TimerKey, float] = {}
        self.met: dict[RunId, set[str]] = {}  # by run: the hosts that this host is connected to
        self.code: dict[tuple[RunId, str], NodeCode] = {}  # by run and node


class World:
    """Virtual WAN of ``hosts``, of which the last is the client, on links that follow ``links``.

    ``on_record`` is called with every record of a core (host, seconds, record). Without it cores keep no records.
    ``digest``: keep a digest of the events. ``answer``: planner of a run whose operators the client moves.
    """

    run_id = RunId("run")

    def __init__(
        self,
        hosts: Sequence[str],
        links: Mapping[Link, LinkRate],
        code: CodeBook,
        config: WorldConfig | None = None,
        *,
        on_record: Callable[[str, float, e.Record], None] | None = None,
        digest: bool = False,
    ) -> None:
        self.config = config or WorldConfig()
        self.names, guests = tuple(hosts), self.config.guests
        self.client = self.names[-1]
        self.now = 0.0
        self.events = 0
        limit = self.config.core.max_partition_bytes
        joined: dict[str, dict[str, str]] = {name: {NET: f"tcp://{name}:2"} for name in (*hosts, *guests)}
        for source, target, via in sorted(tuple(link) for link in links if len(link) > 2):
            for name in (source, target):
                joined[name][via] = f"tcp://{name}.{via}:2"
        members = tuple(
            m.Peer(name, f"tcp://{name}:1", m.NetworkEndpoints(ends) if len(ends) > 1 else ends[NET], "1", limit)
            for name, ends in joined.items()
        )
        self.peers, self.guests = members[: len(hosts)], frozenset(guests)
        self.hosts = {
            peer.name: VirtualHost(
                peer.name, HostCore(peer, self.config.core_of(peer.name)), self.config.factor_of(peer.name)
            )
            for peer in members
        }
        for host in self.hosts.values():
            host.core.context.recording = on_record is not None
        arrived = self._lies if self.config.take_up_s else self._arrived
        self.links = MODELS[self.config.interface](links, self.config, self._schedule, arrived)
        self.answer: Callable[[e.RequestPlan], e.PlanReady] | None = None
        self.on_delivered: Callable[[e.Deliver, float], None] | None = None
        self.on_attached: Callable[[e.QueryStarted], None] | None = None
        self.driver: Callable[[], None] | None = None  # called at each delivery, for example to move operators
        self.ways: tuple[m.RoutePreference, ...] = ()  # networks of the edges at the start of a run
        self.needs: tuple[Need, ...] = ()  # measurements of hosts besides bandwidth during a run
        self.failover: m.Failover | None = None  # of the runs, or None
        self.failed: str | None = None
        self.planner_failed: str | None = None  # while data flowed; the run went on
        self.trees: dict[int | None, tuple[Dataflow, Placement]] = {}  # by stripe; None: else
        self.attached: dict[int, e.QueryStarted] = {}  # by number: further queries that have begun
        self.queries_failed: dict[int, str] = {}
        self.queries_failed_s: dict[int, float] = {}  # time of the failure
        self.open: set[int] = set()  # queries that the application still uses, as in ``client.Run``
        self.subscribed: dict[tuple[str, int], e.QueryStarted] = {}  # by guest and number
        self.dismissed: dict[tuple[str, int], str] = {}
        self.relocations = 0
        self.reshapings = 0
        self.plans = 0
        self.planning_s = 0.0  # processor time of this machine
        self._code = code
        self._reorderable = FIXED
        self._on_record = on_record
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._sent = 0
        self.carried_bytes: dict[tuple[str, ...], int] = {}  # by link, of messages
        self._over = False
        self._sinks: dict[int, set[str]] = {}  # by query: the sinks that have not ended
        self._reports: dict[Link, LinkEstimate | Latency | Place] = {}
        self._digest = hashlib.sha256() if digest else None
        self._encode = msgspec.msgpack.Encoder(enc_hook=_as_bytes, order="deterministic").encode

    # --- time -------------------------------------------------------------------------------------------

    def _schedule(self, at_s: float, call: Callable[[Any], None], what: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_s, self._number, call, what))

    def _until(self, over: Callable[[], bool]) -> None:
        """Let time pass until ``over`` returns true, or until no event is left."""
        queue = self._queue
        pop = heapq.heappop
        while queue and not over():
            self.now, _, call, argument = pop(queue)
            call(argument)
            if self.events > MAX_EVENTS:
                raise RunError(f"the simulation did not end within {MAX_EVENTS} events")

    def _tell(self, told: tuple[VirtualHost, e.Event]) -> None:
        self._handle(*told)

    def _handle(self, host: VirtualHost, event: e.Event) -> None:
        """Have a core handle one event, and carry out the resulting commands."""
        self.events += 1
        if self._digest is not None:
            self._digest.update(self._encode((self.now, host.name, _digest_name(type(event)), event)))
        core = host.core
        for command in core.handle(event, self.now):
            if type(command) is e.Send:
                if self.config.validate:
                    self._check_way(host, event, command)
                self._send(host, command)
            elif type(command) is e.RunOperator:
                self._run_operator(host, command)
            elif type(command) is e.SetTimer:
                host.timers[command.key] = command.at_s
                self._schedule(command.at_s, self._fire, (host, command.key, command.at_s))
            elif type(command) is e.Record:
                if self._on_record is not None:
                    self._on_record(host.name, self.now, command)
            else:
                self._rare(host, command)
        if self.config.validate:
            core.validate()

    def _fire(self, timer: tuple[VirtualHost, e.TimerKey, float]) -> None:
        host, key, at_s = timer
        if host.timers.get(key) == at_s:
            del host.timers[key]
            self._handle(host, e.TimerFired(key))

    # --- commands ---------------------------------------------------------------------------------------

    @staticmethod
    def _check_way(host: VirtualHost, event: e.Event, send: e.Send) -> None:
        """Check that a host with sockets could send this control message.

        A host reaches the peers that it has met in the run, and the sender of the message that it handles. Sockets lose
        other messages. If the run is over here, its probe's result may be lost: no host waits for the result.
        """
        asker = event.sender if isinstance(event, e.MessageReceived) else ""
        heard = send.to == asker or send.to in host.met.get(send.run, ())
        assert heard or send.bulk or isinstance(send.message, m.ProbeResult), f"{host.name} cannot reach: {send}"

    def _send(self, host: VirtualHost, send: e.Send) -> None:
        self._sent += 1
        if not isinstance(send.via, str):
            self._pass_on(Passage(self._sent, host.name, send, self.now))
            return
        if send.bulk:
            size, rank = send.size_bytes, PROBE if type(send.message) is m.Probe else BULK
        else:
            size, rank = self._control_bytes(send.message), CONTROL
        self._carry(Transfer(self._sent, host.name, send.to, size, rank, send, send.via))

    def _control_bytes(self, message: m.Message) -> int:
        """Return the size of a control message on a link."""
        flat = self.config.control_bytes
        return len(frames.encode(message)) if flat is None else flat

    def _carry(self, transfer: Transfer) -> None:
        self.carried_bytes[transfer.link] = self.carried_bytes.get(transfer.link, 0) + transfer.size_bytes
        self.links.send(transfer, self.now)

    def _pass_on(self, passage: Passage) -> None:
        """Send the pieces of a passage that may go now."""
        for piece in passage.due():
            self._sent += 1
            link = piece.link
            transfer = Transfer(self._sent, link.source, link.target, piece.size_bytes, BULK, piece, link.via)
            transfer.follows = piece.number > 0
            self._carry(transfer)

    def _piece_arrived(self, transfer: Transfer) -> None:
        """Handle a piece at the end of its link: pass it on, and deliver the partition after the last piece.

        A passage is dropped if the host there refuses it.
        """
        piece: Piece = transfer.item
        passage, hop = piece.passage, piece.hop
        if passage.dropped:
            return
        if not piece.number:
            target = self.hosts[transfer.target]
            if not target.core.passes(transfer.source, passage.header(hop), transfer.via):
                self._drop(passage, 0.0)
                return
            passage.relays.append(target)
        startup_s = 0.0 if transfer.follows else self.config.startup_s
        passage.took_s[hop] += max(0.0, transfer.took_s - startup_s)
        passage.there[hop] += 1
        self._pass_on(passage)
        if not passage.over:
            return
        send, part = passage.what, passage.what.message
        assert isinstance(part, m.Partition)
        on, relays = passage.hops, tuple(relay.name for relay in passage.relays[:-1])
        for number, relay in enumerate(passage.relays[:-1], 1):
            took_s = passage.took_s[number]
            self._handle(relay, e.Relayed(passage.source, part, on[number:], send.size_bytes, took_s, relays))
        whole = Transfer(passage.number, passage.source, send.to, send.size_bytes, BULK, send, transfer.via)
        whole.took_s, whole.began_s = passage.took_s[0] + self.config.startup_s, passage.began_s
        self._arrived(whole)

    def _drop(self, passage: Passage, after_s: float) -> None:
        """Drop a passage that is refused or stuck on its way. The source is notified after ``after_s``."""
        self._drop_at(self.hosts[passage.source], passage, after_s)

    def _drop_at(self, source: VirtualHost, passage: Passage, after_s: float) -> None:
        passage.dropped = True
        failed = e.TransferFailed(passage.what.to, passage.what.message, passage.what.via)
        self._schedule(self.now + after_s, self._tell, (source, failed))

    def _lies(self, transfer: Transfer) -> None:
        self._schedule(self.now + self.config.take_up_s, self._arrived, transfer)

    def _arrived(self, transfer: Transfer) -> None:
        if type(transfer.item) is Piece:
            self._piece_arrived(transfer)
            return
        send: e.Send = transfer.item
        target, source = self.hosts[transfer.target], self.hosts[transfer.source]
        via = UNSET if transfer.via == NET else transfer.via
        self._handle(target, e.MessageReceived(transfer.source, send.message, send.payload, send.size_bytes, via))
        if transfer.rank == CONTROL:
            return
        if transfer.back_s:
            self._schedule(self.now + transfer.back_s, self._tell, (source, self._measured(transfer)))
        else:
            self._handle(source, self._measured(transfer))

    def _measured(self, transfer: Transfer) -> e.TransferMeasured:
        """Return the sender's measurement of a transfer: the time of its bytes, without the known start-up cost."""
        send: e.Send = transfer.item
        busy_s = max(0.0, transfer.took_s - self.config.startup_s)
        return e.TransferMeasured(transfer.target, send.message, send.size_bytes, busy_s, send.via)

    def _run_operator(self, host: VirtualHost, command: e.RunOperator) -> None:
        code = host.code.get((command.run.first_generation, command.node))
        if code is None:
            return
        outcome = node_code.make(code, command)
        if not isinstance(outcome, NodeResult):
            self._soon(host, outcome)
            return
        seconds = outcome.seconds * host.factor if command.inputs else outcome.seconds
        answer: e.Event = node_code.finished(command, outcome, seconds)
        limit_s = self.config.call_timeout_s
        if limit_s is not None and seconds > limit_s:
            seconds, why = limit_s, f"{node_code.name_of(command)} {node_code.not_within(limit_s)}"
            answer = node_code.overdue(command.run, command.node, command.of_stream, why)
        if command.inputs:
            done_s = max(self.now, host.cores_free_s[0]) + seconds
            heapq.heapreplace(host.cores_free_s, done_s)
        else:
            done_s = host.disk_free_s = max(self.now, host.disk_free_s) + seconds
        self._schedule(done_s, self._tell, (host, answer))

    def _soon(self, host: VirtualHost, event: e.Event) -> None:
        self._schedule(self.now, self._tell, (host, event))

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        match command:
            case e.Meet(run, peers):
                host.met.setdefault(run, set()).update([peer.name for peer in peers])
            case e.OpenRun(install, nodes):
                run, coded = install.run.first_generation, [install.dataflow.by_name[name] for name in nodes]
                host.code |= {(run, node.name): self._code(node) for node in coded if node.code is not None}
            case e.OpenNode():
                self._soon(host, node_code.open_node(lambda: self._code_of(host, command), command))
            case e.CloseNode(run, name):
                host.code.pop((run.first_generation, name), None)
            case e.CloseRun(run, _, keep):
                self._drop_code(host, run.first_generation, keep)
                if run not in host.core.coordinator.led:
                    host.met.pop(run, None)
            case e.TakeState() | e.RestoreState() | e.MergeStates():
                if (command.run.first_generation, command.node) in host.code:
                    self._soon(host, node_code.take_or_give(lambda: self._code_of(host, command), command))
            case e.Ready(run):
                if self.ways:
                    self._soon(host, e.PlacementProposed(run, {}, "networks", ways=self.ways))
                self._soon(host, e.NextRequested(run))
            case e.Deliver(run):
                self._delivered(host, command)
            case e.Fail(_, reason, query=int(query)) if host.name in self.guests:
                self.dismissed[host.name, query] = reason
            case e.Fail(_, reason, query=int(query)):
                self.queries_failed[query] = reason
                self.queries_failed_s.setdefault(query, self.now)
                self.detach(query)
            case e.Fail(run, reason):
                self.failed = self.failed or reason
                self._soon(host, e.RunAbandoned(run))
            case e.Forgotten(run, follows):
                host.met.pop(run, None)
                over = run.first_generation == self.run_id and not (follows or host.name in self.guests)
                self._over = self._over or over
            case e.OperatorMoved(run, name, new_host):
                placement = self.trees[run.stripe][1]
                self.relocations += placement[name] != new_host  # an operator that stays may get a new version too
                placement[name] = new_host
            case e.TreeChanged(run, dataflow, placement):
                self.trees[run.stripe] = dataflow, placement
                self.reshapings += 1
            case e.QueryStarted(run, number, _, names) if host.name in self.guests:
                self.subscribed[host.name, number] = command
                for name in names.values():
                    self._soon(host, e.NextRequested(run, name))
            case e.QueryStarted(run, query, _, names, dataflow, placement):
                self.trees[None] = dataflow, placement
                if query > 0:
                    self.attached[query] = command
                    self._sinks[query] = {name for name in names.values() if name in dataflow.sinks}
                    for name in sorted(self._sinks[query]):
                        self._soon(host, e.NextRequested(run, name))
                if self.on_attached is not None:
                    self.on_attached(command)
            case e.RequestPlan():
                assert self.answer is not None
                self.plans += 1
                begun_s = time.thread_time()
                answer = self.answer(command)
                self.planning_s += time.thread_time() - begun_s
                self.planner_failed = self.planner_failed or answer.failed or None
                self._soon(host, answer)
            case e.Report(source, target, estimate):
                self._reports[Link(source, target)] = estimate

    def _code_of(self, host: VirtualHost, command: e.OpenNode | StateCall) -> NodeCode:
        """Return the code of a node that a command concerns. An ``OpenNode`` opens the code first."""
        run = command.run.first_generation
        if not isinstance(command, e.OpenNode):
            return host.code[run, command.node]
        code = host.code[run, command.node.name] = self._code(command.node)
        return code

    @staticmethod
    def _drop_code(host: VirtualHost, run: RunId, kept: Collection[str] = ()) -> None:
        for key in [key for key in host.code if key[0] == run and key[1] not in kept]:
            del host.code[key]

    def _delivered(self, host: VirtualHost, command: e.Deliver) -> None:
        if not command.end and self.on_delivered is not None:
            self.on_delivered(command, self.now)
        if not command.end and self.driver is not None:
            self.driver()
        sinks = self._top.sinks
        if not command.end:
            self._soon(host, e.NextRequested(command.run, command.sink if len(sinks) > 1 else ""))
            return
        if host.name in self.guests:
            for (guest, number), begun in self.subscribed.items():
                if guest == host.name and command.sink in begun.names.values():
                    self._soon(host, e.UnsubscribeRequested(self.run_id, number))
            return
        for query, left in self._sinks.items():
            if command.sink in left:
                left.discard(command.sink)
                if not left:
                    self.detach(query)

    # --- actions of the application -----------------------------------------------------------------------

    def find(self, wanted: Iterable[Link], patience_s: float) -> dict[str, Place]:
        """Return the network coordinates of the hosts at the start of these links, measured to the links' ends."""
        return {link.source: place for link, place in self.probe(wanted, patience_s, "coordinates").items()}

    def probe(self, wanted: Iterable[Link], patience_s: float, quantity: m.Quantity = "bandwidth") -> dict[Link, Any]:
        """Measure links before a run, and return their estimates, latencies or coordinates.

        Links of further networks, and links that took longer than ``patience_s``, are left out. So are links ``AtOnce``
        whose answers are late.
        """
        at_once = isinstance(wanted, AtOnce)
        client = self.hosts[self.client]
        peers = {peer.name: peer for peer in self.peers}
        by_source: dict[str, list[m.Peer]] = {}
        links = {link for link in wanted if len(link) == 2}
        self._reports.clear()
        for source, target in sorted(links):
            measured = target in by_source and peers[source] in by_source[target]  # an echo measures both directions
            if at_once or quantity == "coordinates" or not measured:
                by_source.setdefault(source, []).append(peers[target])
        for source, targets in by_source.items():
            ends = tuple(targets), peers[self.client]
            self._soon(
                client, e.ProbesRequested(BEFORE_RUNS, peers[source], *ends, "bandwidths" if at_once else quantity)
            )
        until_s = self.now + patience_s
        self._schedule(until_s, lambda _: None, None)  # an event at the end of the wait
        if quantity == "latency":
            links = {link for link in links if peers[link[1]] in by_source.get(link[0], ())}
        if quantity == "coordinates":
            links = {Link(source, source) for source in by_source}
        answered = self._most_answered(links) if at_once else lambda: links <= self._reports.keys()
        self._until(lambda: answered() or self.now >= until_s)
        return dict(self._reports)

    def _most_answered(self, links: set[Link]) -> Callable[[], bool]:
        """Return a function that says whether links that are measured at once have answered, or are late."""
        answered_s: list[float] = []
        begun_s, late_s, known = self.now, math.inf, 0

        def over() -> bool:
            nonlocal late_s, known
            if len(self._reports) > known:
                known = len(self._reports)
                answered_s.extend([self.now - begun_s] * (len(links & self._reports.keys()) - len(answered_s)))
                if late_s == math.inf and (late_s := begun_s + late_from_s(answered_s, len(links))) < math.inf:
                    self._schedule(late_s, lambda _: None, None)  # an event at the end of the wait
            return len(answered_s) == len(links) or self.now >= late_s

        return over

    def run(
        self,
        dataflow: Dataflow,
        placement: Mapping[str, str],
        partitions: int,
        adaptation: Adaptation | None = None,
        label: str = "",
        known: Mapping[Link, LinkEstimate] | None = None,
        reorderable: Reorderable = FIXED,
    ) -> None:
        """Run a dataflow until every host has forgotten the run. ``failed`` has the reason if the run ended early.

        ``reorderable``: for an adaptation or a driver that changes the tree. ``known``: earlier measurements of links.
        """
        self.trees, self._reorderable = {None: (dataflow, dict(placement))}, reorderable
        self._run_until_over(self._request(self.run_id, partitions, adaptation, label, known))

    def run_stripes(
        self,
        stripes: Striped,
        partitions: int | None,
        adaptation: Adaptation | None = None,
        label: str = "",
        known: Mapping[Link, LinkEstimate] | None = None,
        reorderable: Reorderable = FIXED,
    ) -> None:
        """Run a stream over several trees, as ``run`` does over one tree."""
        self.trees = {number: (dataflow, dict(placement)) for number, (dataflow, placement) in enumerate(stripes.trees)}
        self._reorderable = reorderable
        requests = [
            self._request(self.run_id.of_stripe(number), None, adaptation, label, known)
            for number in range(len(stripes.trees))
        ]
        above: e.RunRequested | UnsetType = UNSET
        if stripes.above is not None:
            self.trees[None] = stripes.above[0], dict(stripes.above[1])
            above = self._request(self.run_id, partitions, None, label, None)
        shares = stripes.shares or (1.0 / len(requests),) * len(requests)
        window = stripes.window or WINDOW * len(requests)
        asked = e.StripesRequested(self.run_id, tuple(requests), shares, window, partitions, above=above)
        self._run_until_over(asked)

    def _request(
        self,
        run: RunId,
        partitions: int | None,
        adaptation: Adaptation | None,
        label: str,
        known: Mapping[Link, LinkEstimate] | None,
    ) -> e.RunRequested:
        """Return the request to the client's core for a run over the run's tree."""
        dataflow, placement = self.trees[run.stripe]
        install = m.Install(
            run=run,
            dataflow=dataflow,
            locations=tuple(m.Location(node, host, 1) for node, host in placement.items()),
            peers=self.peers,
            client=self.client,
            partitions=partitions,
            label=label,
            epoch_s=0.0,
            moves=adaptation if isinstance(adaptation, ByHosts) else None,
            news=self.needs or isinstance(adaptation, Adaptation),
            call_timeout_s=self.config.call_timeout_s,
        )
        install = msgspec.structs.replace(install, ahead=self.config.ahead, failover=self.failover)
        free = self._reorderable
        return e.RunRequested(install, adaptation, free.codes, tuple((known or {}).items()), free.merging)

    def _run_until_over(self, request: e.RunRequested | e.StripesRequested) -> None:
        self._over = False
        self.open, self._sinks = {0}, {0: {*self._top.sinks}}
        self._soon(self.hosts[self.client], request)
        self._until(self._is_over)

    def begin(self, call: Callable[[], None]) -> None:
        """Have the application call ``call`` as soon as it has requested the run."""
        self._schedule(self.now, lambda _: call(), None)

    def _is_over(self) -> bool:
        return self._over

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """Graph and placement of the run, as the client knows them.

        For several trees: the first tree and the upper graph.
        """
        below, above = self.trees.get(0), self.trees.get(None)
        if below is not None and above is not None:
            return whole(PlacedGraph(*below), PlacedGraph(*above))
        return below or above or (Dataflow(()), {})

    @property
    def _top(self) -> Dataflow:
        """Graph that contains the sinks."""
        return self.trees[None if None in self.trees else 0][0]

    @property
    def placement(self) -> Placement:
        """Placement of the nodes, as the client knows it."""
        return self.tree[1]

    def move(self, placement: Mapping[str, str], stripe: int | None = None) -> None:
        """Request moves of operators of the run, or of a stripe, as ``client.Run.move`` does."""
        wish = e.PlacementProposed(self._run_of(stripe), dict(placement), "asked for")
        self._soon(self.hosts[self.client], wish)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str], stripe: int | None = None) -> None:
        """Request that the run, or a stripe, continue with a new tree, as ``client.Run.reshape`` does."""
        run = self._run_of(stripe)
        wish = e.PlacementProposed(run, dict(placement), "asked for", dataflow, *self._reorderable)
        self._soon(self.hosts[self.client], wish)

    def reroute(self, ways: tuple[m.RoutePreference, ...]) -> None:
        """Request that partitions go over other networks from a later partition on, as the client's planner does."""
        self._soon(self.hosts[self.client], e.PlacementProposed(self.run_id, {}, "networks", ways=ways))

    def _run_of(self, stripe: int | None) -> RunId:
        return self.run_id if stripe is None else self.run_id.of_stripe(stripe)

    def attach(
        self, query: int, dataflow: Dataflow, placement: Mapping[str, str], apart: Mapping[str, float] | None = None
    ) -> None:
        """Request that a query join the run, as ``client.Run.attach`` does.

        The query does not share the nodes in ``apart``.
        """
        self.open.add(query)
        wish = e.AttachRequested(self.run_id, query, dataflow, dict(placement), dict(apart or {}))
        self._soon(self.hosts[self.client], wish)

    def detach(self, query: int) -> None:
        """Have a query leave, as ``client.Run.detach`` does. With the last query the run is over."""
        if query in self.open:
            self.open.discard(query)
            leaves = e.DetachRequested(self.run_id, query) if self.open else e.RunAbandoned(self.run_id)
            self._soon(self.hosts[self.client], leaves)

    def allow(self, names: Iterable[str]) -> None:
        """Let these guests subscribe, and no further guests, as ``client.Run.allow`` does."""
        self._soon(self.hosts[self.client], e.SubscribersAllowed(self.run_id, 0, frozenset(names)))

    def subscribe(self, guest: str, number: int, node: str) -> None:
        """Have a guest subscribe to the partitions of a node, as ``client.Client.subscribe`` does."""
        owner = next(peer for peer in self.peers if peer.name == self.client)
        self._soon(self.hosts[guest], e.SubscribeRequested(self.run_id, number, node, owner))

    def unsubscribe(self, guest: str, number: int) -> None:
        """End a guest's subscription, as ``client.Subscription.detach`` does."""
        self._soon(self.hosts[guest], e.UnsubscribeRequested(self.run_id, number))

    @property
    def log_digest(self) -> str:
        """Digest of every event that a core has handled, in order, with its time and host."""
        assert self._digest is not None
        return f"sha256:{self._digest.hexdigest()}"


# Events with a new name. Digests of events keep the original name (``tests/test_golden.py``).
_RENAMED: Mapping[type[e.Event], str] = {
    e.OutputCommitted: "Had",
    e.PlanReady: "Planned",
    e.RecoveryPlanReady: "PlannedAnew",
}


def _digest_name(kind: type[e.Event]) -> str:
    """Return the name of a kind of event in digests of events."""
    return _RENAMED.get(kind, kind.__name__)


def _as_bytes(value: Any) -> Any:
    """Return the form in which a value goes into the digest of events."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).data).digest()
    if isinstance(value, Parcel):
        return value.kind, value.watermark_s, value.head, hashlib.sha256(value.body).digest()
    return repr(value)
