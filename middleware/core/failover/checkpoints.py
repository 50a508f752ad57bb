"""Replicas of operators' states on other hosts, from which a run restarts operators of lost hosts: the part of a host.

Rules:

R1. When an operator has made a partition, and its next replica is due, its state is read. The operator makes nothing
    until then. The first replica is due at once. Later replicas are due as ``Failover`` says, after a multiple of
    ``every``, so that all operators have replicas at the same partitions. No replica is due while the operator is
    handed over, while there are two trees, or while ``MOST`` replicas of the operator are kept here (R10).
R2. The state is kept here, and sent to other hosts like the state of a hand-over. The hosts should not fail together,
    have the fastest links, and take turns (``replica_hosts``). A host reports a replica that has arrived to the client
    (``CheckpointStored``). A replica lost on the way is not repeated, because a newer replica follows.
R3. Replicas belong to the host, not to a generation, so the next generation finds them. They are dropped when the
    client no longer needs them (``CheckpointsObsolete``), and when the run ends for any reason.
R4. In a later generation, an operator that starts with a replica makes nothing before the replica is restored. If the
    replica is on another host, it is requested from there (``awaited_states``).
R5. An operator without state has no replicas. The client is notified of the fact, and whenever a replica would be due,
    because the client then drops old data. If a consumer runs the same code, its notice, which follows soon, is enough.
R6. If a host has dropped its replicas, because the client was silent for long, it reports a replica that is needed as
    missing (``StateMissing``).
R7. A host does the same if a replica arrives damaged, or in a version that the code there does not read. The run then
    begins anew with an older replica. If the code itself fails to restore a replica, the run ends.
R8. Up to ``increments`` replicas after a whole replica hold only the changes since the replica before, their base, if
    the changes are known (``shell.node_code``). They go to the same hosts. A replica counts for a host when all
    replicas that it builds on are there. A base stays as long as a replica that builds on it. The next replica is whole
    if one of the hosts is gone, a transfer has failed, or the changes together are as large as the whole. It is also
    whole after a hand-over, because the code here is new. It is whole as well if its base is no longer here, because an
    operator that restarted is behind the needed partitions. If the base of an incremental replica is not here, a second
    replica of the same partition replaces the incremental one.
R9. A replica that does not arrive counts as damaged (R7). The host that keeps it reports this after ``TRIES`` failed
    transfers.
R10. The newest replica here is sent again if an operator has started with it, if one of its holders is lost, or if a
    new replica has no room. In the last case, the replica or its report has been lost.
R11. If the code answers the request for changes with a whole replica, most of the state changes every time. Then the
    next replica waits until it is at most ``SHARE`` of the input bytes since, for ``every_s`` at most. It also comes
    after a multiple of ``every``. States of up to ``SMALL_BYTES`` cause no wait.
R12. If sources deliver other values than before (``protocol.absent_sources``), replicas of later partitions are
    dropped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.notes import HostLost, OutputMade
from thalweg.middleware.core.failover.replica_placement import domain_of, replica_hosts
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.output_schedule import ReportDue
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Need, Part, RunBeginning, RunParts
from thalweg.middleware.core.parts.replica_table import Replicas
from thalweg.middleware.core.states.awaited_states import AwaitedStates
from thalweg.middleware.core.states.state_transfers import StateTransfer, StateTransfers, fields_of, refusal
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import is_right

TRIES = 3  # transfers of a replica with which an operator is to start
MOST = 5  # whole replicas of an operator on its host. Other hosts keep up to twice as many, as the client may be late
SHARE = 0.05  # of an operator's input bytes, for whole replicas
SMALL_BYTES = 65_536
TURNS = 3  # replicas due within ``retained_bytes`` of inputs: a consumer may start two replicas back


@dataclass
class ReplicaProgress:
    """Progress of an operator since its last replica, which came ``after`` that partition.

    ``index``: of the replica that is being taken. ``last``: possible base of a change, which ``holders`` have, -1 for
    none. ``changes``: number of changes since the last whole replica, which leaves ``room_bytes`` for more. ``delta``:
    a change was requested. ``wait_bytes``: input bytes before the next replica is due.
    """

    after: int = -1
    size_bytes: int = 0
    at_s: float = 0.0
    index: int | None = None
    due: bool = True
    last: int = -1
    holders: tuple[str, ...] = ()
    changes: int = 0
    room_bytes: int = 0
    delta: bool = False
    wait_bytes: float = 0.0


class Checkpoints(Part):
    """Replicas on this host and of its operators, in one generation. Without failover, the part does nothing."""

    NEEDED_FOR = Need.FAILOVER

    @classmethod
    def of(cls, parts: RunParts) -> Checkpoints:
        return cls(parts, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, parts: RunParts, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._parts, context, shared = parts, parts.context, parts.shared
        self._out, self._limits, self._client = context.out, context.limits, context.install.client
        self._tree, self._directory, self._flow = tree, directory, flow
        self._monitor = shared.monitor
        install = context.install
        self._options = options = install.failover
        most = () if options is None else (options.every_bytes, options.retained_bytes // TURNS)
        self._most_bytes = min(most, default=0)
        self.replicas: Replicas = shared.replicas.of(install) if options is not None else {}
        self._since: dict[str, ReplicaProgress] = {}
        self._stateless: set[str] = set()
        self._lines: dict[str, int] = {}  # by consumer, the partition with which it would restart
        self._states, self._awaited_states = parts.get(StateTransfers), parts.get(AwaitedStates)
        self._waiting: dict[str, int] = {}  # by operator here that starts with a replica, the partition
        self._transfers: dict[tuple[str, str, int], StateTransfer] = {}  # by operator, host and ``Checkpoint.since``
        self._cuts = {cut.node: cut for cut in install.history_gaps}
        self._starts: Mapping[str, m.Start] = {start.node: start for start in install.starts}

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Let operators here wait for the replicas with which they start (R4)."""
        self._drop_wrong()
        for name, start in self._starts.items():
            if start.holder and name in self._flow.nodes and name not in beginning.carried_over:
                self._flow.hold(name)
                self._waiting[name] = start.index
                if self._chain(name, start.index):
                    self._restore(name)
                else:
                    self._awaited_states.expect(name, start.holder, at_once=True)

    def _drop_wrong(self) -> None:
        """Drop replicas that are wrong after a gap (R12), and assign the remaining replicas to this generation."""
        for name, replicas in list(self.replicas.items()):
            right = {
                index: msgspec.structs.replace(replica, run=self._out.run)
                for index, replica in replicas.items()
                if is_right(self._cuts.get(name), index, replica.run.generation)
            }
            self.replicas[name] = right
            if not right:
                del self.replicas[name]

    # --- the host of an operator ------------------------------------------------------------------------

    def on_made(self, note: OutputMade) -> None:
        """Read the operator's state if a replica is due (R1)."""
        options, name, now = self._options, note.node, self._out.now
        if options is None:
            return
        since = self._since.get(name)
        if since is None:
            node = self._flow.nodes.get(name)
            if node is None or node.node.kind != "operator":
                return
            since = self._since[name] = ReplicaProgress(at_s=now)
        since.size_bytes += note.size_bytes
        in_time, much = (note.index + 1) % options.every == 0, since.size_bytes >= self._most_bytes
        due = since.due or in_time or much or note.index - since.after >= options.every
        if since.wait_bytes and not much and not (in_time and since.size_bytes >= since.wait_bytes):
            due = since.due  # R11: a large replica makes the next one wait
        due = due or now - since.at_s >= options.every_s
        index = note.index + 1
        if not due or self._act(name, since, index, in_time=in_time):
            index += (options.every - 1 - index) % options.every
        self._flow.schedule.set_due(
            name, ReportDue(index, self._most_bytes - since.size_bytes, since.at_s + options.every_s)
        )

    def _act(self, name: str, since: ReplicaProgress, index: int, *, in_time: bool) -> bool:
        """Take the replica of an operator that is due (R1). Return False if it has to wait."""
        stateless = name in self._stateless
        departures = self._parts.existing(Departures)
        going = departures is not None and departures.going(name)
        if not stateless and (since.index is not None or going or self._tree.former is not None):
            return False
        since.after, since.size_bytes, since.at_s, since.due = index - 1, 0, self._out.now, False
        if stateless:  # R5: there is no replica, and only the progress is reported
            if not in_time or not self._is_followed(name):
                self._out.send(self._client, m.CheckpointStored(self._out.run, name, index))
        elif not self._room(name, MOST):
            self._share(name)
        else:
            since.index = index
            self._flow.hold(name)
            version = self._directory.locations[name].version
            known = bool(self._chain(name, since.last)) and self._directory.hosts.issuperset(since.holders)
            assert self._options is not None
            # R8: the replica is whole after ``increments`` changes, and if a host of the last one is gone
            since.delta = known and since.changes < self._options.increments
            self._out.emit(e.TakeState(self._out.run, name, version, replica=True, delta=since.delta))
        return True

    def _is_followed(self, name: str) -> bool:
        """Return whether a consumer of an operator runs the same code, and so has no state either (R5)."""
        node_of, code = self._tree.node_of, self._tree.node_of(name).code
        consumers = map(node_of, self._tree.consumers.get(name, ()))
        return any(consumer.kind == "operator" and consumer.code == code for consumer in consumers)

    def on_taken(self, event: e.StateTaken) -> None:
        """Keep and send the state that was read for a replica (R2). Then let the operator go on."""
        name, since, out = event.node, self._since.get(event.node), self._out
        if since is None or since.index is None:
            return
        index, since.index = since.index, None
        if name not in self._flow.nodes:
            return
        why = refusal(event, self._limits.max_state_bytes)
        if why:
            since.last = -1
            out.record("fault", node=name, detail={"about": "replica", "what": why})
        elif event.keeps is False:
            self._stateless.add(name)
            out.send(self._client, m.CheckpointStored(out.run, name, index))
        else:
            self._keep(name, index, event)
        self._flow.let_run(name)

    def _keep(self, name: str, index: int, taken: e.StateTaken) -> None:
        since, size_bytes, delta = self._since[name], len(taken.state), taken.delta is True
        message = m.Checkpoint(
            run=self._out.run,
            index=index,
            inline=taken.state,
            since=since.last if delta else -1,
            **fields_of(taken),
        )
        self.replicas.setdefault(name, {})[index] = message
        if delta:
            since.changes, since.room_bytes = since.changes + 1, since.room_bytes - size_bytes
        else:
            since.holders, since.changes, since.room_bytes = self._holders(name), 0, size_bytes
        if delta or since.delta:
            # R11: a whole and large replica in place of a change makes the next one wait
            since.wait_bytes = 0.0 if delta or size_bytes <= SMALL_BYTES else size_bytes / SHARE
        sent = [self._send(host, message) for host in since.holders]
        # R8: after a failed transfer, or if the changes are as large as the whole, the next replica is whole
        since.last = index if all(sent) and since.room_bytes > 0 else -1
        detail = {"detail": {"since": message.since}} if delta else {}
        self._out.record("checkpoint", node=name, index=index, size_bytes=size_bytes, **detail)

    def _share(self, name: str) -> None:
        """Send the newest replica here to the present holders, perhaps once more (R10)."""
        chains = (self._chain(name, index) for index in sorted(self.replicas.get(name, ()), reverse=True))
        for replica in next(filter(None, chains), ()):
            for host in self._holders(name):
                self._send(host, replica)

    def _holders(self, name: str) -> tuple[str, ...]:
        """Return the hosts to which the next replicas of an operator go from here (R2)."""
        assert self._options is not None
        since, start = self._since.get(name), self._starts.get(name)
        before = since.holders if since is not None and since.holders else () if start is None else (start.holder,)
        options, here, directory = self._options, self._out.host, self._directory
        domains = {name: domain_of(name, peer.control, options.domains) for name, peer in directory.peers.items()}
        known = {host: self._monitor.latest((here, host)) for host in directory.hosts}
        rates_bps = {host: estimate.rate_bps for host, estimate in known.items() if estimate is not None}
        return tuple(replica_hosts(here, directory.hosts, options.replicas, self._client, domains, rates_bps, before))

    def _send(self, host: str, kept: m.Checkpoint) -> bool:
        """Send a replica. Return False if it, or a whole replica before it, is under way to that host."""
        transfer = self._transfers.setdefault((kept.node, host, kept.since), StateTransfer(host))
        assert kept.inline is not None
        message = msgspec.structs.replace(kept, run=self._out.run, inline=None)
        return self._states.send(transfer, message, kept.inline)

    def on_transfer_over(self, peer: str, message: m.Checkpoint, *, arrived: bool) -> None:
        """Report a replica that does not arrive to the operator's host (R9)."""
        key = message.node, peer, message.since
        if arrived:
            self._transfers.pop(key, None)
            return
        self._flow.demands.stuck(peer)
        if message.node in self._since:
            self._since[message.node].last = -1  # R8: after a failed transfer the next replica is whole
        transfer = self._transfers.get(key)
        if self.awaits(message) and transfer is not None and transfer.failures >= TRIES:
            why = f"its replica has not got there in {transfer.failures} transfers"
            index = self._starts[message.node].index
            self._out.send(peer, m.StateMissing(self._out.run, message.node, index, why))

    def awaits(self, message: m.Checkpoint) -> bool:
        """Return whether an operator is to start with a replica (R9). The remaining replicas only wait for a loss."""
        start = self._starts.get(message.node)
        return start is not None and message.index <= start.index

    @property
    def awaited(self) -> Collection[str]:
        """Operators here that cannot start yet, because the replica has not come."""
        return [name for name in self._waiting if name in self._flow.nodes]

    def on_lost(self, note: HostLost) -> None:
        """Make replicas due, because the lost host may have had replicas."""
        self._transfers = {key: transfer for key, transfer in self._transfers.items() if transfer.to != note.host}
        for name, since in self._since.items():
            since.due = True
            self._flow.schedule.set_due(name, None)
            if note.host in since.holders:
                self._share(name)

    # --- the host of a replica --------------------------------------------------------------------------

    def _chain(self, name: str, index: int) -> list[m.Checkpoint]:
        """Return a whole replica and the changes up to the replica at ``index`` (R8). Empty: the chain has a gap."""
        replicas, chain = self.replicas.get(name, {}), list[m.Checkpoint]()
        while (replica := replicas.get(index)) is not None:
            chain.append(replica)
            if replica.since < 0:
                return chain[::-1]
            index = replica.since
        return []

    def _room(self, name: str, most: int) -> bool:
        """Return whether there is room for a replica: up to ``most`` whole replicas, and one series of changes."""
        assert self._options is not None
        replicas = self.replicas.get(name, {}).values()
        whole = plain_sum([replica.since < 0 for replica in replicas])
        return whole < most and len(replicas) < most + self._options.increments

    def _has(self, message: m.Checkpoint) -> bool:
        """Return whether a replica is here, or a complete chain to the same partition (R8)."""
        replica = self.replicas.get(message.node, {}).get(message.index)
        return replica is not None and (
            replica.since == message.since or bool(self._chain(message.node, message.index))
        )

    def wants(self, message: m.Checkpoint) -> bool:
        """Return whether a replica that begins to arrive may be kept, or is the start of an operator here."""
        if self._options is None or message.since >= message.index or self._has(message):
            return False
        start = self._waiting.get(message.node)
        if start is not None and message.node in self._flow.nodes:
            return self._awaited_states.missing(message.node) is not None and message.index <= start
        return message.node in self._directory.locations and self._room(message.node, 2 * MOST)

    def on_checkpoint(self, sender: str, message: m.Checkpoint, state: Any) -> None:
        """Keep a replica and report it, or start an operator with it."""
        has = self._has(message)
        if not has and (state is None or not (self.wants(message) and len(state) == message.size_bytes)):
            return
        for name in self.replicas.keys() - self._directory.locations.keys():  # of queries that have left
            del self.replicas[name]
        here = self.replicas.setdefault(message.node, {})
        if not has:
            here[message.index] = msgspec.structs.replace(message, inline=bytes(state or b""))
        start = self._waiting.get(message.node)
        if start is not None and message.node in self._flow.nodes:
            if self._awaited_states.missing(message.node) is not None and self._chain(message.node, start):
                self._restore(message.node)
            return
        hosts, whole = (self._out.host, sender), {message.index} if self._chain(message.node, message.index) else set()
        for index in sorted(here):  # R8: a change may come before its base
            if index in whole or here[index].since in whole:
                whole.add(index)
                self._out.send(self._client, m.CheckpointStored(self._out.run, message.node, index, hosts))

    def on_request(self, sender: str, message: m.StateRequest) -> None:
        """Send the replica with which an operator on another host starts (R4)."""
        start = self._starts.get(message.node)
        chain = [] if start is None else self._chain(message.node, start.index)
        here = self._directory.locations.get(message.node)  # its query may have left
        if start is None or message.heir or here is None or here.host != sender:
            return
        if chain:
            for replica in chain:
                self._send(sender, replica)
        elif start.holder == self._out.host:
            self._miss(message.node, start.index)

    def on_lacking(self, sender: str, message: m.StateMissing) -> None:
        """Notify the client that a replica for which an operator here waits does not come (R9).

        If this host is the client, the report of the host that lacks the replica is enough.
        """
        if self._client == self._out.host:
            return
        missing = self._awaited_states.missing(message.node)
        if missing is not None and (missing.holder, self._waiting[message.node]) == (sender, message.index):
            self._out.send(self._client, message)

    def _miss(self, name: str, index: int) -> None:
        """Notify the client that a replica is not here (R6)."""
        self._out.send(self._client, m.StateMissing(self._out.run, name, index, "its replica is not there any more"))

    def _settle(self, lines: Iterable[m.Start]) -> None:
        """Drop outputs of the replay logs that no consumer needs any longer."""
        dataflow = self._tree.dataflow
        for line in lines:
            self._lines[line.node] = max(line.index, self._lines.get(line.node, 0))
            consumer = dataflow.by_name.get(line.node)
            for name in () if consumer is None else consumer.inputs:
                node = self._flow.nodes.get(name)
                if node is not None and node.window.log is not None:
                    node.window.log.let_go(self._needed(node))

    def _needed(self, node: NodeCore) -> int:
        """Return the first partition of a node that a consumer may still need."""
        consumers = [self._tree.node_of(name) for name in self._tree.consumers[node.node.name]]
        lines = [self._lines.get(consumer.name, 0) for consumer in consumers if consumer.kind == "operator"]
        return min([*lines, *(consumer.demanded for consumer in node.window.consumers.values())])

    def on_settled(self, sender: str, message: m.CheckpointsObsolete) -> None:
        """Drop replicas and outputs that are no longer needed (R3)."""
        self._settle(message.lines)
        least = {line.node: line.index for line in message.lines}
        for name in list(self.replicas):
            line = least.get(name, 0 if name in self._directory.locations else math.inf)
            replicas = self.replicas[name]
            needed = {index for index in replicas if index >= line}
            for index in sorted(needed):  # R8: a replica stays as long as a change builds on it
                if replicas[index].since not in needed:
                    needed.update([replica.index for replica in self._chain(name, index)])
            self.replicas[name] = {index: replica for index, replica in replicas.items() if index in needed}
            if not needed:
                del self.replicas[name]
        self._transfers = {
            (name, host, since): transfer
            for (name, host, since), transfer in self._transfers.items()
            if transfer.under_way or since < 0 or since in self.replicas.get(name, ())
        }

    # --- the host of an operator that restarts ----------------------------------------------------------

    def _restore(self, name: str) -> None:
        self._awaited_states.came(name)
        version = self._directory.locations[name].version
        chain = self._chain(name, self._waiting[name])
        whole, *deltas = [
            e.Inherited(replica.inline or b"", replica.digest, replica.state_version) for replica in chain
        ]
        fields = whole.state, whole.digest, whole.state_version
        self._out.emit(e.RestoreState(self._out.run, name, version, *fields, tuple(deltas)))

    def on_restored(self, event: e.StateRestored) -> None:
        """Let an operator run with its replica, or have the run begin anew with an older replica (R7)."""
        index, missing = self._waiting.get(event.node), self._awaited_states.missing(event.node)
        if index is None or missing is not None or event.node not in self._flow.nodes:
            return
        if event.error and not (event.cause and event.cause.traceback):
            # R7: the replica is damaged or of another version, so the run begins anew with an older one
            for replica in self._chain(event.node, index):
                del self.replicas[event.node][replica.index]
            self._out.send(self._client, m.StateMissing(self._out.run, event.node, index, event.error[:4000]))
            return
        if event.error:
            reason = f"its replica at partition {index} cannot be restored: {event.error}"
            self._flow.failed(e.OperatorFailed(self._out.run, event.node, reason[:4000], event.cause or None))
            return
        del self._waiting[event.node]
        self._share(event.node)
        self._flow.let_run(event.node)

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        for name, replicas in self.replicas.items():
            assert self._options is not None
            assert plain_sum(replica.since < 0 for replica in replicas.values()) <= 2 * MOST, (name, sorted(replicas))
            assert len(replicas) <= 2 * MOST + self._options.increments, (name, sorted(replicas))

    HANDLERS = Handlers(
        messages={
            m.Checkpoint: on_checkpoint,
            m.StateRequest: on_request,
            m.StateMissing: on_lacking,
            m.CheckpointsObsolete: on_settled,
        },
        events={e.StateTaken: on_taken, e.StateRestored: on_restored},
        notes={OutputMade: on_made, HostLost: on_lost},
        transfers={m.Checkpoint: on_transfer_over},
    )
