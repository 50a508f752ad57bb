"""Virtual WAN with the faults of a plan (``faults``): the effects on messages, links and hosts.

Rules:

- A plan is a seed and a list of faults. A fault of a message names the message: the *n*-th of its kind from one host to
  another. So the name keeps its meaning, more or less, when other faults are left out. ``Storm`` and ``Late`` stand for
  very many of these faults: the plan's seed decides for every message. ``FaultyWorld.done`` lists the resulting faults
  message by message, so an explicit list, or a part of it, can repeat the run.
- A lost message is lost on its way, after its usual time. The sender of a lost partition, state or probe is notified
  ``STUCK_S`` later, as by a shell that has long had no answer. No sender is notified of a lost control message.
- A copy of a message, or a late message, reaches a host that was restarted meanwhile.
- A cut link loses the messages on their way over the link: every message, only bulk, or only large messages. While bulk
  is lost, the sender is notified every second that nothing gets through, as in a shell. A crashed host loses its core,
  its code, its timers, and the messages that are on their way to the host or wait to be sent. After the restart the
  host has its name and knows of no run.
- A slow host takes longer to compute, and handles messages and timers late. A stopped host handles its messages in
  order when it continues.
- A hostile host is outside the run. Its messages to hosts of the run, under its own name, arrive at once. Answers are
  dropped. No partition or state may go to the hostile host.
- After every event the world checks three rules. No node of a generation of the run is on two hosts. No node holds more
  than its rules allow. A run, or a generation, that is over on a host has not come back there. A run is over on a host
  when the host has closed the run, or was notified of its removal by the client. With ``WorldConfig.validate`` the
  checks of a core's own ``validate`` are done too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import (
    BulkOutage,
    Crash,
    Cut,
    Delay,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    Hostility,
    Kind,
    LargeOutage,
    Late,
    OfMessage,
    Outage,
    Slow,
    Stop,
    Storm,
    Unconfirmed,
)
from thalweg.emulation.virtual.hostile import Hostile
from thalweg.emulation.virtual.links import CONTROL, LinkRate, Transfer
from thalweg.emulation.virtual.passages import Passage, Piece
from thalweg.emulation.virtual.world import CodeBook, VirtualHost, World
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET, Link, Pair
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import NO_RUN, RunId
from thalweg.middleware.shell.transfers import CHUNK_BYTES

STUCK_S = 5.0  # time until the sender of a lost bulk message is notified
HANDLING_S = 0.002  # time of a host to open code, take or restore a state, or deliver to the application
LOST_IN_A_ROW = 3  # most messages of a link that a storm drops in a row; a link that loses more is cut
MANY_EVENTS = 200_000  # limit of a trial; a run of this kind has some thousands


class _Cut(NamedTuple):
    """Time in which one direction of a link loses messages.

    ``bulk``: control messages pass. ``above_bytes``: messages of at most this size pass.
    """

    from_s: float
    until_s: float
    bulk: bool = False
    above_bytes: int = -1

    def loses(self, transfer: Transfer, since_s: float, now: float) -> bool:
        """Return whether a message like ``transfer``, on its way from ``since_s`` to ``now``, is lost to the cut."""
        met = since_s < self.until_s and self.from_s <= now
        return met and transfer.size_bytes > self.above_bytes and not (self.bulk and transfer.rank == CONTROL)


class FaultyWorld(World):
    """World with the faults of ``plan``. ``done`` lists the faults that single messages had.

    ``patience_s``: time after which a run without deliveries has ``stalled``, counted from the last time in the plan.
    ``crashed_s``, ``back_s``: by host, the time of the first crash, and of the last restart if the host is up.
    ``fallen``: nodes that were on a host when it crashed, for hosts with a part in a run. ``begun``: hosts that began
    to hand over a node, by generation, node and version of the location. ``left``: last generation that is over, by
    host and run. ``failed_s``: time at which the run ended early. ``at_failure``: by node, the host of the node at that
    time, first as the client knew, then by the newest location on a host. ``there_at_failure``: the hosts that the
    client had at that time.

    Raises UsageError for a plan that names an unknown host, AssertionError for a broken invariant.
    """

    patience_s, stuck_s = 100.0, STUCK_S

    def __init__(
        self,
        hosts: Sequence[str],
        links: Mapping[Link, LinkRate],
        code: CodeBook,
        plan: FaultPlan,
        config: WorldConfig,
        *,
        on_record: Callable[[str, float, e.Record], None] | None = None,
        digest: bool = False,
    ) -> None:
        super().__init__(hosts, links, code, config, on_record=on_record, digest=digest)
        if unknown := plan.hosts() - self.hosts.keys():
            raise UsageError(f"the plan names host {min(unknown)!r}; the hosts are {', '.join(self.hosts)}")
        self.plan = plan
        self.down: set[str] = set()
        self.done: list[OfMessage] = []
        self.fallen: dict[str, set[str]] = {}
        self.crashed_s: dict[str, float] = {}
        self.back_s: dict[str, float] = {}
        self.begun: dict[tuple[RunId, str, int], set[VirtualHost]] = {}
        self.left: dict[tuple[VirtualHost, RunId], int] = {}
        self.failed_s: float | None = None
        self.at_failure: dict[str, tuple[str, str]] = {}
        self.there_at_failure: set[str] = set()
        self.on_tree: Callable[[Dataflow], None] = lambda flow: None
        self.stalled = False
        self.progress_s = plan.over_s
        self._storms = [fault for fault in plan.faults if isinstance(fault, Storm)]
        self._lates = [fault for fault in plan.faults if isinstance(fault, Late)]
        self._dice: dict[tuple[str, *Kind], Random] = {}
        self._in_a_row: defaultdict[Pair, int] = defaultdict(int)
        self._counts: defaultdict[Kind, int] = defaultdict(int)
        self._of_message: defaultdict[tuple[Kind, int], list[OfMessage]] = defaultdict(list)
        self._cuts: defaultdict[tuple[str, str, str], list[_Cut]] = defaultdict(list)  # network "": any
        # by message under way: its source and target at the time of sending, and its faults
        self._under_way: dict[int, tuple[VirtualHost, VirtualHost, Collection[OfMessage]]] = {}
        self._still_s: dict[tuple[str, str, str], float] = {}  # by link: since when no bulk has got through
        self._slow: defaultdict[str, list[float]] = defaultdict(list)
        self._hostile: dict[str, Hostile] = {}
        self._networks = {NET, *(Link(*link).via for link in links)}
        self._stopped: dict[VirtualHost, float] = {}  # until this time
        self._nodes: dict[str, set[tuple[RunId, str]]] = {name: set() for name in self.hosts}
        for fault in plan.faults:
            self._prepare(fault)

    def _prepare(self, fault: Fault) -> None:
        match fault:
            case Drop() | Duplicate() | Delay() | Unconfirmed():
                self._of_message[(fault.source, fault.target, fault.message), fault.number].append(fault)
            case Outage() | BulkOutage() | LargeOutage():
                cut = _Cut(fault.at_s, fault.until_s, isinstance(fault, BulkOutage))
                if isinstance(fault, LargeOutage):
                    cut = cut._replace(above_bytes=fault.above_bytes)
                self._cuts[fault.source, fault.target, fault.via].append(cut)
            case Cut(hosts, at_s, for_s):
                rest = [name for name in self.hosts if name not in hosts]
                for inside, outside in itertools.product(hosts, rest):
                    self._cuts[inside, outside, ""].append(_Cut(at_s, at_s + for_s))
                    self._cuts[outside, inside, ""].append(_Cut(at_s, at_s + for_s))
            case Crash():
                self._schedule(fault.at_s, self._crash, fault)
            case Stop():
                self._schedule(fault.at_s, self._stop, fault)
            case Hostility():
                self._schedule(fault.at_s, self._attack, fault)
            case Slow(host, factor, at_s, for_s):
                self._schedule(at_s, self._slow_down, (host, factor, True))
                self._schedule(at_s + for_s, self._slow_down, (host, factor, False))

    # --- time -----------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Return False: after the run's end, time goes on until no event is left, or until the run has stalled."""
        return False

    def _until(self, over: Callable[[], bool]) -> None:
        super()._until(lambda: over() or self._beyond())

    def _beyond(self) -> bool:
        self.stalled = self.stalled or self.now > self.progress_s + self.patience_s or self.events > MANY_EVENTS
        return self.stalled

    def _handle(self, host: VirtualHost, event: e.Event) -> None:
        if self.hosts[host.name] is not host or host.name in self.down:
            return  # the event was for the process before the crash
        if self._stopped and self.now < self._stopped.get(host, 0.0):
            self._schedule(self._stopped[host], self._tell, (host, event))
            return
        super()._handle(host, event)
        if isinstance(event, e.MessageReceived) and isinstance(event.message, m.Remove) and event.sender == self.client:
            self._leave(host, event.message.run)
        self._check(host)

    def _leave(self, host: VirtualHost, run: RunId, *, joins: bool = False) -> None:
        """Record that a run is over on a host. With ``joins`` the host may join this generation again."""
        key = host, run.first_generation
        self.left[key] = max(self.left.get(key, -1), run.generation - joins)

    def _soon(self, host: VirtualHost, event: e.Event) -> None:
        self._schedule(self.now + HANDLING_S * host.factor, self._tell, (host, event))

    def _fire(self, timer: tuple[VirtualHost, e.TimerKey, float]) -> None:
        late_s = self._late_s(timer[0].name)
        if late_s:
            self._schedule(self.now + late_s, super()._fire, timer)
        else:
            super()._fire(timer)

    def _late_s(self, name: str) -> float:
        """Return the time by which a slow host handles messages and timers late."""
        return HANDLING_S * max(self._slow[name], default=0.0)

    def _run_operator(self, host: VirtualHost, command: e.RunOperator) -> None:
        if command.run.stream_id == self.run_id:
            super()._run_operator(host, command)

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        if (
            self._hostile
            and _run_of(command).stream_id not in (self.run_id, NO_RUN)
            and not isinstance(command, e.Meet)
        ):
            return  # of a run that a hostile host began, only connections are opened
        if isinstance(command, e.Fail) and command.query is None and self.failed is None:
            self.failed_s = self.now
            cores = [member.core.runs for member in self.hosts.values()]
            tables = [runs[command.run].directory.locations for runs in cores if command.run in runs]
            failed = host.core.runs.get(command.run)  # None: a lingering run that is over with its failure
            self.there_at_failure = set() if failed is None else {*failed.directory.hosts}
            for name, location in failed.directory.locations.items() if failed else ():
                entries = [table[name] for table in tables if name in table]  # of one tree or two
                newest = max(entries, key=lambda entry: entry.version)
                self.at_failure[name] = location.host, newest.host
        elif isinstance(command, e.TreeChanged):
            self.on_tree(command.dataflow)
        elif isinstance(command, e.Forgotten):
            self.progress_s = max(self.progress_s, self.now)
        elif isinstance(command, e.CloseRun) and host.name not in self.guests:
            self._leave(host, command.run, joins=self.failover is not None)
        super()._rare(host, command)

    def _delivered(self, host: VirtualHost, command: e.Deliver) -> None:
        self.progress_s = max(self.progress_s, self.now)
        super()._delivered(host, command)

    # --- messages -------------------------------------------------------------------------------------

    def _send(self, host: VirtualHost, send: e.Send) -> None:
        source, target = host.name, send.to
        assert source != target, f"host {source} sends itself {send.message}"
        if target in self._hostile or target not in self.hosts:  # a hostile host has invented this target
            for_data = isinstance(send.message, m.Partition | m.AnyState)
            assert not for_data, f"host {source} sends {target} {send.message}"
            return
        if isinstance(send.via, str) and send.via not in self._networks:  # a hostile host has invented this network
            failed = e.TransferFailed(target, send.message, send.via)
            self._schedule(self.now + self.stuck_s, self._tell, (host, failed))
            return
        for hostile in self._hostile.values():
            hostile.overhear(send.message)
        kind = source, target, self._name_of(send)
        number = self._counts[kind] = self._counts[kind] + 1
        fates = [*self._of_message.get((kind, number), ()), *self._drawn(kind, number, send.bulk)]
        self.done += fates
        self._under_way[self._sent + 1] = host, self.hosts[target], fates
        super()._send(host, send)

    def _name_of(self, send: e.Send) -> str:
        """Return the name of a message in faults: its tag, or with ``control_bytes`` "bulk" or "control"."""
        if self.config.control_bytes is None:
            return m.tag_of(type(send.message))
        return "bulk" if send.bulk else "control"

    def _drawn(self, kind: Kind, number: int, bulk: bool) -> Collection[OfMessage]:
        """Return the faults that storms and ``Late`` draw for a message. A message always gets the same faults."""
        fates: list[OfMessage] = []
        for late in self._lates:
            dice = self._of_kind("late", kind)
            again, slow, after_s = dice.random(), dice.random(), max(0.001, round(dice.uniform(0.0, late.within_s), 3))
            if again < late.duplicate:
                fates.append(Duplicate(*kind, number, after_s))
            elif slow < late.delay:
                fates.append(Delay(*kind, number, after_s))
        link = kind[:2]
        for storm in self._storms:
            dice = self._of_kind("weather", kind)
            drop, duplicate, delay, unconfirmed = dice.random(), dice.random(), dice.random(), dice.random()
            after_s, late_s = (max(0.001, round(dice.expovariate(1 / storm.delay_s), 3)) for _ in range(2))
            if drop < storm.drop and self._in_a_row[link] < LOST_IN_A_ROW:
                fates.append(Drop(*kind, number))
                continue
            if duplicate < storm.duplicate:
                fates.append(Duplicate(*kind, number, after_s))
            if delay < storm.delay:
                fates.append(Delay(*kind, number, late_s))
            if bulk and unconfirmed < storm.unconfirmed:
                fates.append(Unconfirmed(*kind, number))
        lost = any(isinstance(fate, Drop) for fate in fates)
        self._in_a_row[link] = self._in_a_row[link] + 1 if lost else 0
        return fates

    def _of_kind(self, what: str, kind: Kind) -> Random:
        """Return the random generator for messages of a kind."""
        dice = self._dice.get((what, *kind))
        if dice is None:
            dice = self._dice[what, *kind] = Random(f"{self.plan.seed} {what} {' '.join(kind)}")
        return dice

    def _arrived(self, transfer: Transfer) -> None:
        """Handle a message at the end of its link: apply its faults, deliver the message, and confirm bulk."""
        if type(transfer.item) is Piece:
            self._piece_arrived(transfer)
            return
        source, target, fates = self._under_way.pop(transfer.number)
        send: e.Send = transfer.item
        straight = isinstance(send.via, str)  # else each of its pieces has met the faults of its link
        if source.gone_s < transfer.began_s:
            return  # the message never left its host
        gone = self.hosts[target.name] is not target or target.name in self.down
        cut = straight and self._is_cut(transfer)
        if gone or cut:
            self._lose(source, transfer, cut=cut)
            return
        late_s, again_s, confirmed = self._late_s(target.name), [0.0], True
        for fate in fates:
            match fate:
                case Drop():
                    self._fail(source, transfer)
                    return
                case Delay():
                    late_s += fate.for_s
                case Duplicate():
                    again_s.append(fate.after_s)
                case Unconfirmed():
                    confirmed = False
        via = UNSET if transfer.via == NET else transfer.via
        received = e.MessageReceived(transfer.source, send.message, send.payload, send.size_bytes, via)
        message: Any = send.message
        large = transfer.rank != CONTROL and send.size_bytes > CHUNK_BYTES
        if large and not target.core.wants(source.name, message):
            self._refuse(source, target, transfer, received, late_s)
            return
        for after_s in again_s:  # a copy may reach a restarted host
            self._schedule(self.now + late_s + after_s, self._tell_whoever_is, (target.name, received))
        if transfer.rank == CONTROL:
            return  # only bulk messages are confirmed
        key = transfer.source, transfer.target, transfer.via
        if key in self._still_s:
            del self._still_s[key]
            self._at(late_s, source, e.TransferStalled(transfer.target, message, 0.0, transfer.via))
        if confirmed:
            measured = self._measured(transfer)
            late = msgspec.structs.replace(measured, duration_s=measured.duration_s + late_s)
            self._at(late_s, source, late)
        else:
            self._fail(source, transfer)

    def _lose(self, source: VirtualHost, transfer: Transfer, *, cut: bool) -> None:
        """Lose a message because its target is gone, or its link is cut."""
        if cut and transfer.rank != CONTROL:
            self._stand(source, transfer)
        self._fail(source, transfer)

    def _refuse(
        self, source: VirtualHost, target: VirtualHost, transfer: Transfer, received: e.MessageReceived, late_s: float
    ) -> None:
        """Drop a large message that its target does not want. The target of a state answers with the reason."""
        send: e.Send = transfer.item
        if isinstance(send.message, m.AnyState):
            self._at(late_s, target, msgspec.structs.replace(received, payload=None))
        self._at(late_s, source, e.TransferFailed(transfer.target, send.message, send.via))

    def _tell_whoever_is(self, told: tuple[str, e.Event]) -> None:
        name, event = told
        self._handle(self.hosts[name], event)

    def _at(self, after_s: float, host: VirtualHost, event: e.Event) -> None:
        if after_s:
            self._schedule(self.now + after_s, self._tell, (host, event))
        else:
            self._handle(host, event)

    def _fail(self, source: VirtualHost, transfer: Transfer) -> None:
        """Schedule ``TransferFailed`` for the sender of a bulk message. A control message fails without notice."""
        if transfer.rank != CONTROL:
            failed = e.TransferFailed(transfer.target, transfer.item.message, transfer.item.via)
            self._schedule(self.now + self.stuck_s, self._tell, (source, failed))

    def _stand(self, source: VirtualHost, transfer: Transfer) -> None:
        """Notify the sender every second that nothing gets through a link.

        The notices end when a message gets through, or the transfer has failed.
        """
        key = transfer.source, transfer.target, transfer.via
        since_s = self._still_s.setdefault(key, self.now)
        for second in range(1, int(self.stuck_s) + 1):
            self._schedule(self.now + second, self._tell_of_stall, (source, transfer, since_s))

    def _tell_of_stall(self, told: tuple[VirtualHost, Transfer, float]) -> None:
        source, transfer, since_s = told
        key = transfer.source, transfer.target, transfer.via
        if self._still_s.get(key) != since_s:
            return
        idle_s = self.now - since_s
        if not self._is_lost(transfer, self.now):  # in a shell, which goes on sending, bytes get through by now
            del self._still_s[key]
            idle_s = 0.0
        self._handle(source, e.TransferStalled(transfer.target, transfer.item.message, idle_s, transfer.via))

    def _piece_arrived(self, transfer: Transfer) -> None:
        """Handle a piece at the end of its link, on a route over relays.

        If its sender or a relay is gone, or the link is cut, the passage is dropped.
        """
        piece: Piece = transfer.item
        passage, target = piece.passage, self.hosts[transfer.target]
        if passage.dropped:
            return
        sender = passage.relays[piece.hop - 1] if piece.hop else self._under_way[passage.number][0]
        never_left = sender.gone_s < transfer.began_s
        begun = passage.relays[piece.hop : piece.hop + 1] or [target]
        if never_left or begun != [target] or target.name in self.down or self._is_cut(transfer):
            self._drop(passage, self.stuck_s)
        else:
            super()._piece_arrived(transfer)

    def _drop(self, passage: Passage, after_s: float) -> None:
        source, _, _ = self._under_way.pop(passage.number)
        self._drop_at(source, passage, after_s)

    def _is_cut(self, transfer: Transfer) -> bool:
        """Return whether a message's link was cut for such messages while the message was on its way."""
        return self._is_lost(transfer, transfer.began_s)

    def _is_lost(self, transfer: Transfer, since_s: float) -> bool:
        """Return whether the link loses such a message, on its way since ``since_s``."""
        cuts = [
            cut for via in ("", transfer.via) for cut in self._cuts.get((transfer.source, transfer.target, via), ())
        ]
        return any(cut.loses(transfer, since_s, self.now) for cut in cuts)

    def _attack(self, fault: Hostility) -> None:
        """Have a random host of the run handle the next message of a hostile host, and schedule the next attack."""
        if self.now > fault.at_s + fault.for_s:
            return
        if fault.host not in self._hostile:
            dice = Random(f"{self.plan.seed} hostile {fault.host}")
            apart = self.config.control_bytes is not None
            self._hostile[fault.host] = Hostile(fault.host, self.names, self.run_id, self.tree[0], dice, apart=apart)
        hostile = self._hostile[fault.host]
        message, payload, size_bytes = hostile.says()
        host = self.hosts[hostile.dice.choice(self.names)]
        self._handle(host, e.MessageReceived(fault.host, message, payload, size_bytes))
        self._schedule(self.now + fault.every_s, self._attack, fault)

    # --- hosts ----------------------------------------------------------------------------------------

    def _crash(self, fault: Crash) -> None:
        name = fault.host
        if name in self.down:
            return
        old = self.hosts[name]
        old.gone_s = self.now
        started = str(int(old.core.me.instance) + 1)
        core = HostCore(msgspec.structs.replace(old.core.me, instance=started), self.config.core_of(name))
        core.context.recording = old.core.context.recording
        self.hosts[name] = VirtualHost(name, core, self.config.factor_of(name))
        self.crashed_s.setdefault(name, self.now)
        self.back_s.pop(name, None)
        if old.core.runs:
            self.fallen[name] = self.fallen.get(name, set()) | {node for _, node in self._nodes[name]}
        self._nodes[name] = set()
        self.down.add(name)
        self._set_factor(name)
        if fault.restart_after_s is not None:
            self._schedule(self.now + fault.restart_after_s, self._restart, name)

    def _stop(self, fault: Stop) -> None:
        host = self.hosts[fault.host]
        self._stopped[host] = until_s = max(self._stopped.get(host, 0.0), fault.at_s + fault.for_s)
        if fault.for_s >= host.core.config.liveness_s / 3:  # as ``WOKE_S`` on sockets: a third
            self._schedule(until_s, self._tell, (host, e.Woke(fault.for_s)))  # before the events that came meanwhile

    def _restart(self, name: str) -> None:
        self.down.discard(name)
        self.back_s[name] = self.now

    def _slow_down(self, told: tuple[str, float, bool]) -> None:
        name, factor, begins = told
        if begins:
            self._slow[name].append(factor)
        else:
            self._slow[name].remove(factor)
        self._set_factor(name)

    def _set_factor(self, name: str) -> None:
        self.hosts[name].factor = self.config.factor_of(name) * max(self._slow[name], default=1.0)

    # --- invariants -----------------------------------------------------------------------------------

    def _check(self, host: VirtualHost) -> None:
        """Check that no node is on two hosts, and that a finished run stays away from the host.

        A node may hold one output, retain one, and have one set of inputs.
        """
        runs = [run for run in host.core.runs.values() if run.id.stream_id == self.run_id]  # no hostile ones
        nodes: set[tuple[RunId, str]] = set()
        for run in runs:
            left = self.left.get((host, run.id.first_generation), -1)
            assert run.id.generation > left, f"the run is back on host {host.name}"
            nodes.update((run.id, name) for name in run.flow.nodes)
            departures = run.parts.existing(Departures)
            for name, leaving in ({} if departures is None else departures.leaving).items():
                self.begun.setdefault((run.id, name, leaving.version), set()).add(host)
            for name, node in run.flow.nodes.items():
                version = run.directory.locations[name].version
                if version > 1:  # a hand-over, perhaps begun and over in one event
                    self.begun.setdefault((run.id, name, version - 1), {host})
                held, sent = node.output, node.window.last
                if held is not None and sent is not None:
                    assert held.index == sent.index + 1, f"host {host.name}: {node!r} holds {held.index}"
                for output in node.received.inputs.values():
                    assert output.index == node.index, f"host {host.name}: {node!r} has input {output.index}"
        if nodes != self._nodes[host.name]:
            self._nodes[host.name] = nodes
            for name in self.hosts:
                twice = nodes & self._nodes[name] if name != host.name else ()
                assert not twice, f"{min(twice)[1]} is on hosts {host.name} and {name}"


def _run_of(command: e.Command) -> RunId:
    """Return the run of a command. A command without a run has ``NO_RUN``."""
    run: RunId = command.install.run if isinstance(command, e.OpenRun) else getattr(command, "run", NO_RUN)
    return run
