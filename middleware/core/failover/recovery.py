"""Recovery of a run that has lost a host: the client begins the next generation of the run from replicas.

Rules:

R1. The client knows the existing replicas (``CheckpointStored``) and the progress of its sinks. The start of every node
    follows (``restart``). A sink starts with the first partition that the application lacks. A source, or an operator
    without state, starts with the first partition that a consumer needs. An operator with state starts with its newest
    replica up to there. Without a replica, it starts where it began first. Partitions in between are made again with
    the same values, because sources deliver a partition whenever it is demanded. Sinks do not get partitions twice.
R2. Replicas that no later restart can need are dropped. The client computes where the nodes would start after the loss
    of the operator's host and the only host with its newest replica (``replica_placement``, R3). Hosts are notified of
    these starts. If the application keeps a journal, the starts are those under a later client, which begins with the
    first uncommitted partition (``OutputCommitted``). Of replicas later than that, ``LATER`` are kept. Outputs of
    operators are kept in the same way.
R13. Sinks of other clients go on with the run. The client knows only the least partition of such a sink, because no
    producer is further ahead of a consumer than ``FURTHER``. The sink itself announces its partition.
R3. If the tree changes, the old tree begins anew until the application has its last partition. Then the new tree begins
    anew. Hand-overs, proposals and queries that have not begun may begin again, as if they were new.
R4. If the planner of the run plans while data flows, it places the operators of lost hosts. Otherwise an operator goes
    to the host of its replica, to the host of a neighbour, or to any host, in this order.
R5. A source of a lost host starts on its first present stand-in. Without a stand-in, the run waits for the host. If the
    host does not install the run within ``wait_s``, the run ends and names the host.
R6. Lost hosts are asked to take part again as long as the run goes on. Exceptions are hosts that have refused a
    generation, and hosts that could reach the client, but not a second host. A host that has failed to join later rests
    (``rejoin_policy``).
R7. If the application keeps a journal, it gets the records that a later client would need. The later client begins the
    run anew (``resumed``), as a generation after all generations of the client before.
R8. A report of a host lets the run begin anew only if the report can be true. So no host can cause restarts for ever. A
    report of lost outputs is true if the client lost their host in this generation. A report that a host does not
    answer needs ``detect_s``, and removes this host from the run. If the sender has reported a different host before,
    the sender is removed instead. The sender is removed at once if the run needs the reported host, and does not need
    the sender. A missing replica is reported by its host, or by the host that starts with it. The replica then no
    longer counts, so there are fewer each time. A host that reports missing replicas too often is removed.
R9. A host with a replica reports it for itself, and for the operator's host, from which it came. The operator's host
    reports that an operator has no state.
R10. Only nodes of lost hosts restart, and the remaining nodes continue (``carried_over``), under these conditions. The
    graph is no stripe, and there is one tree. Nodes with several consumers send one partition at a time. No operator
    would start before dropped outputs (R2), and no operator has reported missing outputs. After such a report, every
    node restarts in later generations until a further host is lost. So there is one such report for every loss.
R11. A source without which the run may go on (``protocol.absent_sources``) is not waited for. It is absent until it is
    back, and then the run begins anew. Operators that remember its values begin with the same partition. From there on,
    the source delivers nothing, or delivers again. Later replicas of these operators are not right any more
    (``HistoryGap``).
R12. A silent host may be gone or late. It is lost, but its replicas count again when it has taken a part, or when the
    run has to wait for it (R5). They do not count if the host was restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.context.notes import (
    ChangedOver,
    HostInstalled,
    HostLost,
    HostsPinged,
    HostTakesPart,
    Left,
    Notes,
    NotJoined,
    PartitionDelivered,
    Started,
)
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.failover.generation_states import RecoveryEvent, RecoveryPhase, RunGeneration
from thalweg.middleware.core.failover.rejoin_policy import RejoinPolicy
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import ENDED, GATHERING
from thalweg.middleware.core.flow.tree import Tree, without
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import GenerationChange, Need, Part, RunParts
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import (
    above,
    all_gaps,
    back,
    follows,
    gap_at,
    gaps_of,
    is_absent,
    may_miss,
    spared,
    without_source,
)

LATER = 3  # replicas of an operator before the newest: its host makes no further replica while it has ``MOST``
FURTHER = 3  # partitions that a node can be ahead of its consumer: a held output, an output on its way, gathered inputs
KNOWN = 64  # replicas of an operator that the client remembers
Known = dict[str, dict[int, set[str]]]  # by operator and partition, the hosts with the replica


def restart(
    flow: Dataflow,
    sinks: Mapping[str, int],
    bases: Mapping[str, int],
    known: Mapping[str, Mapping[int, Collection[str]]],
    stateless: Collection[Code],
    there: Collection[str],
) -> dict[str, m.Start]:
    """Return the start of every node (R1).

    Args:
        sinks: next partition of every sink, ``LAST`` for a sink that has ended.
        bases: first partition of every node that began after the run.
        known, stateless: existing replicas, and code without state.
        there: hosts with usable replicas.
    """
    starts: dict[str, m.Start] = {}
    for name in reversed(flow.upward):
        node = flow.by_name[name]
        index = (
            sinks[name] if node.kind == "sink" else min([starts[consumer].index for consumer in flow.consumers[name]])
        )
        starts[name] = m.Start(name, index)
        if node.kind == "operator" and index < LAST and node.code not in stateless:
            base, replicas = bases.get(name, 0), known.get(name, {})
            latest = max(
                (partition for partition, hosts in replicas.items() if partition <= index and {*hosts} & {*there}),
                default=base,
            )
            holder = min({*replicas[latest]} & {*there}) if latest > base else ""
            starts[name] = m.Start(name, latest, holder)
    return starts


def resumed(
    kept: e.ResumableRun,
    sinks: Mapping[str, int],
    peers: Mapping[str, m.Peer],
    client: str,
    process: int = 0,
    term: int = 0,
) -> m.Install:
    """Return the generation with which a later client continues a run (R7).

    Args:
        peers: the present hosts.
        process: the number of the client's process, which no other process has.
        term: the latest known term of the run.
    """
    install = kept.install
    flow, where = install.dataflow, {entry.node: entry.host for entry in install.locations}
    starts = restart(flow, sinks, kept.bases, kept.known, kept.stateless, peers)
    for name in reversed(flow.upward):
        if where[name] not in peers and flow.by_name[name].pinned is None:
            where[name] = place(flow, name, where, starts, peers, client)
    awaited = {*where.values()}.union(*(node.stand_ins for node in flow.nodes))
    away = [peer for peer in install.peers if peer.name not in peers and peer.name in awaited]
    return msgspec.structs.replace(
        install,
        run=install.run.taken_over(process, term),
        client=client,
        locations=tuple([m.Location(name, where[name], 1) for name in flow.by_name]),
        peers=(*peers.values(), *away),
        starts=tuple([starts[name] for name in flow.by_name]),
        kept_from=None,
        afresh=False,
    )


def place(
    flow: Dataflow,
    name: str,
    where: Mapping[str, str],
    starts: Mapping[str, m.Start],
    there: Collection[str],
    client: str,
) -> str:
    """Return the host for an operator of a lost host, without a planner (R4)."""
    near = [
        starts[name].holder,
        *(where[neighbour] for neighbour in (*flow.consumers[name], *flow.by_name[name].inputs)),
    ]
    candidates = [host for host in (*near, *sorted(there)) if host in there and host != client]
    return candidates[0] if candidates else client


class _Draft(msgspec.Struct):
    """Draft of a generation: its ``nodes``, and their hosts (``where``).

    ``able``: hosts with usable replicas. ``gone``, ``regained``: sources that become absent or come back (R11), with
    their new hosts.
    """

    nodes: dict[str, Node]
    where: dict[str, str]
    able: set[str]
    gone: dict[str, str] = {}
    regained: dict[str, str] = {}


class Recovery(Part):
    """Recovery of one generation of a run at its client.

    On a host that is not the client, and in a run without failover, the part does nothing.
    """

    NEEDED_FOR = Need.RECOVERY

    @classmethod
    def of(cls, parts: RunParts) -> Recovery:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._out, self._context, self._client = context.out, context, context.install.client
        self._tree, self._directory, self._flow = tree, directory, flow
        self.known: Known = {}
        self.stateless: list[Code] = []
        self.keeps = False  # R7: the application keeps a journal
        self.had: dict[str, int] = {}  # by sink, the last partition that the application has committed
        self.bases: dict[str, int] = {}
        self.rejoin_policy = RejoinPolicy()
        starts = context.install.starts
        self._leaning = {start.node: start.holder for start in starts if start.holder}  # until the first new replica
        self._begun_s = context.out.now
        self._fallen_s: float | None = None  # time at which the loss of a needed host was noticed
        self._late: dict[str, str] = {}  # R12: silent hosts that were lost, and their instances
        self._lines: dict[str, int] = {}
        self._told: dict[str, int] = {}  # R2: by operator, the latest start of which hosts were notified
        self._missed: frozenset[str] = frozenset()  # hosts that were lost when this generation began
        self._wary = False  # R10: an operator lacks outputs that a consumer needs
        self._demanded: list[str] = []  # sinks with an open request of the application
        # R11: sources without which this generation goes on
        self._absent = [node for node in tree.dataflow.nodes if is_absent(node)]
        self.asking: bool | None = None  # R4: the planner is asked. None: not yet. False: no longer
        self._chosen: dict[str, str] = {}
        self._begun: dict[str, Any] | None = None  # record of the beginning of this generation, until it is written
        self._phases_s: dict[str, float] = {}
        self.generation = RunGeneration(context.out.run)
        self._wanted = 0  # next partition of the application when this generation began
        self._kept: set[str] = set()  # R10: operators that have continued

    # --- replicas -------------------------------------------------------------------------------------

    def on_stable(self, sender: str, message: m.CheckpointStored) -> None:
        node = self._tree.dataflow.by_name.get(message.node)
        if node is None and self._tree.former is not None:
            node = self._tree.former.by_name.get(message.node)
        if not self._context.fails_over or node is None or node.code is None:
            return
        owner = self._directory.locations[message.node].host
        # R9: only a host with the replica, or the operator's own host, is believed
        if sender not in (message.hosts or (owner,)) or sender not in self._directory.hosts:
            self._out.record("unexpected", peer=sender, detail={"message": "Stable", "node": message.node})
            return
        self._leaning.pop(message.node, None)
        if not message.hosts:
            if node.code not in self.stateless:
                self.stateless.append(node.code)
        elif message.index >= self._lines.get(message.node, 0):
            replicas = self.known.setdefault(message.node, {})
            replicas.setdefault(message.index, set()).update({sender, *message.hosts} & {sender, owner})
            if len(replicas) > KNOWN:
                del replicas[max(replicas)]  # a false report of a far partition displaces no true report
        self.settle()
        self.emit_resumable()

    def emit_resumable(self) -> None:
        """Give the application the records that a later client would need (R7)."""
        install = self._context.install
        if not self.keeps or install.failover is None:
            return
        flow = self._based(own=True)
        now = msgspec.structs.replace(
            install, dataflow=flow, locations=tuple([self._directory.locations[name] for name in flow.by_name])
        )
        known = {
            name: {index: tuple(sorted(hosts)) for index, hosts in replicas.items()}
            for name, replicas in self.known.items()
        }
        self._out.emit(
            e.Keep(install.run.first_generation, e.ResumableRun(now, known, tuple(self.stateless), dict(self.bases)))
        )

    def on_changed(self, _: ChangedOver | Left) -> None:
        """Renew the records for a later client, because the graph or locations may have changed (R7)."""
        self.emit_resumable()

    def keep_journal(self) -> None:
        """Give the application the records for its journal from now on (R7)."""
        self.keeps = True

    def adopt(self, kept: e.ResumableRun) -> None:
        """Take over the records of an earlier client (R7)."""
        self.known = {
            name: {index: set(hosts) for index, hosts in replicas.items()} for name, replicas in kept.known.items()
        }
        self.stateless, self.bases = [*kept.stateless], dict(kept.bases)

    def settle(self, *, again: bool = False) -> None:
        """Notify hosts of replicas and outputs that are no longer needed (R2).

        Unless ``again``, only hosts for which the notice is new are notified.
        """
        if not self._context.fails_over or not self._context.leads or not (self.known or self.stateless):
            return
        flow, locations, lines = self._graph(), self._directory.locations, self._least_needed()
        words: dict[str, list[m.Start]] = {}
        for name, least in lines.items():
            if least > self._lines.get(name, 0) or (again and least):
                holders = {host for hosts in self.known.get(name, {}).values() for host in hosts}
                holders |= {locations[node].host for node in (name, *flow.by_name[name].inputs) if node in lines}
                for host in holders:
                    words.setdefault(host, []).append(m.Start(name, least))
                self._told[name] = max(least, self._told.get(name, 0))
        self._lines = lines
        self.known = {
            name: {index: hosts for index, hosts in replicas.items() if index >= lines[name]}
            for name, replicas in self.known.items()
            if name in lines
        }
        for host in sorted(words.keys() & self._directory.hosts):
            self._out.send(host, m.CheckpointsObsolete(self._out.run, tuple(words[host])))

    def _least_needed(self) -> dict[str, int]:
        """Return, by operator, the first partition for which a replica or outputs may be needed (R2)."""
        flow = self._graph()
        starts = self._restart(self._directory.hosts, known=self._behind())
        lines = {name: starts[name].index for name, node in flow.by_name.items() if node.kind == "operator"}
        if self.keeps:
            after = self._restart(self._directory.hosts, self._not_done(), own=True)
            for name, newest in lines.items():
                later = sorted(index for index in self.known.get(name, {}) if index <= newest)[-LATER:]
                if name in after:
                    lines[name] = min(newest, max([after[name].index, *later[:1]]))
        return lines

    def on_pinged(self, _: HostsPinged) -> None:
        """Repeat the notices of ``settle`` with every ping, because a notice may be lost (R2)."""
        self.settle(again=True)

    def _behind(self) -> Known:
        """Return the replicas without the newest of an operator if the replica before is on a further host (R2)."""
        present, locations, behind = self._directory.hosts, self._directory.locations, self.known.copy()
        for name in self.known.keys() & locations.keys():
            replicas = self.known[name]
            *_, before, newest = (-1, -1, *sorted(index for index, hosts in replicas.items() if hosts & present))
            if before >= 0 and (replicas[before] & present) - replicas[newest] - {locations[name].host}:
                behind[name] = {index: hosts for index, hosts in replicas.items() if index != newest}
        return behind

    def on_lacking(self, sender: str, message: m.StateMissing) -> None:
        """Begin anew, because a node lacks the replica for its start, or outputs for its consumer."""
        install, directory = self._context.install, self._directory
        here = directory.locations.get(message.node)
        if install.failover is None or not self._context.leads or here is None or sender not in directory.hosts:
            return
        if install.kept_from is not None and not message.index and sender == here.host:
            # R10: an operator that has continued lacks outputs that its consumer needs
            if self._wary:
                return  # a report has ended this generation already
            self._wary = True
        else:
            named = (start for start in install.starts if (start.node, start.index) == (message.node, message.index))
            start = next((start for start in named if start.holder and sender in (start.holder, here.host)), None)
            if start is None:  # R8: only a host that keeps the replica, or starts with it, may report it
                return
            if sender == start.holder:
                self._forget(sender)
            else:  # the replica from this holder cannot be used
                self.known.get(start.node, {}).get(start.index, set()).discard(start.holder)
        directory.doom()
        if sender != self._client and self.rejoin_policy.lacks(sender, self._had_by_now):
            self.rejoin_policy.bar(sender)
            directory.lose(sender, "has reported too often that it lacks data that it had reported before")

    def judge(self, sender: str, host: str) -> str:
        """Return the host without which the run begins anew, as ``sender`` reports that ``host`` is lost (R8).

        The result may be a host that is lost already. Empty: the report is ignored.
        """
        hosts, limits = self._directory.hosts, self._context.limits
        if host in self._directory.fell:
            return host
        found_s = limits.patience * min(limits.detect_s, limits.lease_s)
        if host == sender or not hosts >= {host, sender} or self._out.now - self._begun_s < found_s:
            return ""
        if host != self._client and self._needs(host) and not self._needs(sender):
            return sender  # R8: the run needs the reported host, and not the sender
        if sender == self._client or (host != self._client and self.rejoin_policy.accuse(sender, host)):
            return host
        return sender

    def _needs(self, host: str) -> bool:
        """Return whether the run cannot go on without a host: the client, or the only host of a needed source."""
        flow, remaining = self._tree.dataflow, self._directory.hosts - {host}  # the client may be a stand-in too
        fixed = [node for node in flow.nodes if node.kind == "source" and node.pinned == host]
        alone = [node for node in fixed if not (remaining.intersection(node.stand_ins) or may_miss(flow, node.name))]
        return host == self._client or bool(alone)

    def on_lost(self, note: HostLost) -> None:
        self._forget_of((note.host,))

    def _forget_of(self, lost: Iterable[str]) -> None:
        """Forget the replicas of lost hosts, except late hosts (R12)."""
        for host in lost:
            if host not in self._late:
                self._forget(host)

    def _forget(self, host: str) -> None:
        for replicas in self.known.values():
            for hosts in replicas.values():
                hosts.discard(host)

    def leans_on(self, host: str) -> bool:
        """Return whether an operator starts with a replica on ``host``, and has no newer replica yet."""
        return host in self._leaning.values()

    def give_up(self, host: str, *, again: bool, wait: bool) -> None:
        """Begin anew without a host (R5, R6).

        Without ``again``, the host is not asked to take part again. Without ``wait``, the run does not wait for the
        host.
        """
        if not again:
            self.rejoin_policy.bar(host)
        if not wait:
            self.rejoin_policy.wait_no_more(host)
        if self._fallen_s is None:
            self._fallen_s = self._out.now

    @property
    def has_fallen(self) -> bool:
        """Return whether a host is lost without which this generation cannot go on."""
        return self._fallen_s is not None

    def begin_anew(self) -> float:
        """Clear and return the time at which the loss was noticed, because the run begins anew now."""
        detected_s, self._fallen_s = self._fallen_s, None
        return self._out.now if detected_s is None else detected_s

    def put_off(self, detected_s: float) -> None:
        """Begin anew later, after the answer of the planner (R4). ``detected_s``: when the loss was noticed."""
        self._fallen_s = detected_s

    def fell(self, host: str, *, late: bool, blamed: bool) -> int:
        """Record the loss of a host. Return the number of its losses in a row without progress.

        ``late``: the host was silent, and may still be there with its replicas. Without ``blamed``, the loss does not
        count, because further hosts were missing.
        """
        self._late.pop(host, None)
        if late and host in self._directory.peers:
            self._late[host] = self._directory.peers[host].instance
        if not blamed:
            return 0
        limits, failover = self._context.limits, self._context.install.failover
        wait_s = 0.0 if failover is None else failover.wait_s
        return self.rejoin_policy.lost(host, self._had_by_now, self._out.now, limits.retry_s, wait_s)

    def on_not_joined(self, note: NotJoined) -> None:
        """Let a host that did not join rest before it is asked again."""
        within_s = self._context.limits.patience * self._context.limits.liveness_s
        self.rejoin_policy.not_joined(note.peer.name, note.peer.instance, self._out.now, within_s)

    def rests(self, host: str, instance: str) -> bool:
        """Return whether a host, as this process, is not let in yet."""
        return self.rejoin_policy.rests(host, instance, self._out.now)

    @property
    def _had_by_now(self) -> int:
        """Number of partitions that the application has got from the sink that is furthest."""
        return max((node.index for node in self._flow.nodes.values() if node.node.kind == "sink"), default=0)

    # --- where to begin anew --------------------------------------------------------------------------

    def _graph(self, *, own: bool = False) -> Dataflow:
        """Return the graph that begins anew (R3). ``own``: without nodes that only sinks of other clients need."""
        tree = self._tree
        flow = tree.dataflow
        if tree.former is not None and self._flow.nodes[flow.sinks[0]].index <= tree.turn:
            flow = tree.former
        local = [name for name in flow.sinks if name in self._flow.nodes or not own]
        used = {node for name in local for node in flow.below(name)}
        gone = flow.by_name.keys() - used
        return without(flow, gone) if gone else flow

    def _based(self, *, own: bool = False) -> Dataflow:
        """Return ``_graph``, and record where its nodes began."""
        flow = self._graph(own=own)
        for name in flow.by_name:
            self.bases.setdefault(name, self._tree.first.get(name, 0))
        return flow

    def _sinks(self, flow: Dataflow) -> dict[str, int]:
        nodes = self._flow.nodes
        return {
            name: self._latest(flow, name) if name not in nodes
            else LAST if nodes[name].state is ENDED else nodes[name].index
            for name in flow.sinks
        }  # fmt: skip

    def _latest(self, flow: Dataflow, guest: str) -> int:
        """Return the least partition with which the sink of another client may continue (R13)."""
        nodes, inputs, below = self._flow.nodes, {*flow.by_name[guest].inputs}, flow.below(guest)
        further = FURTHER + self._context.install.ahead - 1
        far = [nodes[name].index for name in flow.sinks if name in nodes]
        near = [nodes[name].index for name in flow.sinks if name in nodes and inputs <= flow.below(name)]
        least = max(near) - further if near else max(far, default=0) - further * len(below)
        return max(0, least, self._tree.first.get(guest, 0))

    def on_had(self, event: e.OutputCommitted) -> None:
        """Record that the application has committed a partition (R2)."""
        self.had[event.sink] = max(event.index, self.had.get(event.sink, -1))

    def _not_done(self) -> dict[str, int]:
        """Return, by sink, the first partition that a later client would get (R2)."""
        sinks = self._sinks(self._graph(own=True))
        return {name: min(index, self.had.get(name, self.bases.get(name, 0) - 1) + 1) for name, index in sinks.items()}

    def _restart(
        self,
        there: Collection[str],
        sinks: Mapping[str, int] | None = None,
        known: Known | None = None,
        *,
        own: bool = False,
    ) -> dict[str, m.Start]:
        flow = self._based(own=own)
        all_replicas = self.known if known is None else known
        return restart(flow, sinks or self._sinks(flow), self.bases, all_replicas, self.stateless, there)

    def on_taking_part(self, note: HostTakesPart) -> None:
        """Record that a host has taken its part. Begin anew if the host can have an absent source (R11)."""
        host = note.host
        self.rejoin_policy.came(host, self._had_by_now)
        self._see_again((self._directory.peers[host],))
        self._late.pop(host, None)
        if any(host in node.stand_ins for node in self._absent) and host not in self.rejoin_policy.barred:
            self._directory.doom()

    def _see_again(self, peers: Iterable[m.Peer]) -> None:
        """Forget the replicas of late hosts that were restarted meanwhile (R12)."""
        for peer in peers:
            if self._late.get(peer.name, peer.instance) != peer.instance:
                del self._late[peer.name]
                self._forget(peer.name)

    @property
    def over(self) -> bool:
        """Return whether the application has got its last partition."""
        return all(index == LAST for index in self._sinks(self._graph(own=True)).values())

    def plan(self, lost: Mapping[str, str], peers: tuple[m.Peer, ...]) -> m.Install | str:
        """Return the next generation without the ``lost`` hosts, or the reason why there can be none."""
        install, directory = self._context.install, self._directory
        self._see_again(peers)
        remaining = directory.hosts - lost.keys()
        stays = remaining - directory.vacating  # hosts that may get nodes
        flow, starts = self._graph(), self._restart(remaining)
        draft = _Draft(dict(flow.by_name), directory.where(flow.by_name), {*remaining})
        if why := self._find_homes(draft, flow, starts, lost, remaining, stays):
            return why
        cuts = {cut.node: cut for cut in install.history_gaps if cut.node in draft.nodes}
        if draft.gone or draft.regained:
            cuts |= self._change_sources(draft, flow, cuts)
            starts = self._restart(draft.able)
        elif draft.able > remaining:
            starts = self._restart(draft.able)
        for name in reversed(flow.upward):
            if draft.where[name] not in remaining and draft.nodes[name].pinned is None:
                chosen = self._chosen.get(name, "")
                if chosen not in stays:
                    chosen = place(flow, name, draft.where, starts, stays, self._client)
                draft.where[name] = chosen
        flow = Dataflow(tuple(draft.nodes.values()))
        kept_from = self._kept_from(starts)
        if kept_from is not None:
            free = {name: self._free(node) for name, node in draft.nodes.items()}
            starts = {name: msgspec.structs.replace(start, free=free[name]) for name, start in starts.items()}
        return msgspec.structs.replace(
            install,
            run=install.run.next_generation,
            dataflow=flow,
            locations=tuple([m.Location(name, draft.where[name], 1) for name in flow.by_name]),
            peers=tuple([peer for peer in peers if peer.name not in self.rejoin_policy.barred]),
            starts=tuple([starts[name] for name in flow.by_name]),
            kept_from=kept_from,
            history_gaps=tuple(cuts.values()),
            afresh=False,
        )

    def _find_homes(
        self,
        draft: _Draft,
        flow: Dataflow,
        starts: Mapping[str, m.Start],
        lost: Mapping[str, str],
        remaining: Collection[str],
        stays: Collection[str],
    ) -> str:
        """Find hosts for pinned nodes of lost hosts (R5, R11). Return why the run cannot go on, or an empty text."""
        install, barred, nodes, where = self._context.install, self.rejoin_policy.barred, draft.nodes, draft.where
        assert install.failover is not None
        for name, node in flow.by_name.items():
            node = nodes[name] = spared(node, barred)
            if is_absent(node):
                self._return_or_leave(draft, node, starts[name].index, remaining)
                continue
            if where[name] in remaining or node.pinned is None or node.kind == "sink":
                continue
            stand_ins = (*node.stand_ins, self._client) if starts[name].index == LAST else node.stand_ins
            stand_in = next((host for group in (stays, remaining) for host in stand_ins if host in group), None)
            if stand_in is not None:
                fallbacks = [host for host in (*node.stand_ins, node.pinned) if host not in (stand_in, *barred)]
                nodes[name] = msgspec.structs.replace(node, pinned=stand_in, stand_ins=tuple(fallbacks))
                where[name] = stand_in
            elif may_miss(Dataflow(tuple(nodes.values())), name):
                draft.gone[name] = self._client
                nodes[name] = without_source(node, LAST, self._client)
            elif install.failover.wait_s <= 0 or where[name] in barred | self.rejoin_policy.waited:
                return f"host {where[name]!r}, which holds {name}, {lost.get(where[name], 'is gone')}"
            elif where[name] in self._late:  # R12: the host is waited for, so its replicas count
                draft.able.add(where[name])
        return ""

    def _return_or_leave(self, draft: _Draft, node: Node, index: int, remaining: Collection[str]) -> None:
        """Bring back an absent source if one of its hosts is there (R11).

        Otherwise, if the source would start before its gap, begin the gap earlier.
        """
        home = next((host for host in node.stand_ins if host in remaining), None)
        if home is not None:
            draft.regained[node.name] = home
        elif index < gaps_of(node)[-1][0]:
            draft.gone[node.name] = self._client

    def _change_sources(
        self, draft: _Draft, flow: Dataflow, cuts: Mapping[str, m.HistoryGap]
    ) -> dict[str, m.HistoryGap]:
        """Let operators that remember sources that go or come back begin with the same partition (R11).

        Return the gaps in the history of these operators.
        """
        gone, regained, nodes = draft.gone, draft.regained, draft.nodes
        first, taking = self._cut(flow, {*gone, *regained}, draft.able)
        barred = self.rejoin_policy.barred
        nodes |= {name: spared(without_source(nodes[name], first, host), barred) for name, host in gone.items()}
        nodes |= {name: back(nodes[name], first, host) for name, host in regained.items()}
        draft.where |= gone | regained
        number = self._context.install.run.next_generation.generation
        return {name: follows(cuts.get(name), name, first, number) for name in taking}

    def _kept_from(self, starts: Mapping[str, m.Start]) -> int | None:
        """Return the generation since which continuing operators may exist (R10). None: every node restarts."""
        install = self._context.install
        early = any(start.index < self._told.get(name, 0) for name, start in starts.items())
        flow = self._tree.dataflow
        deep = install.ahead > 1 and bool(flow.several or len(flow.sinks) > 1)  # the consumers' progress is unknown
        if self._tree.former is not None or early or self._wary or deep or install.run.stripe is not None:
            return None
        return install.run.generation if install.kept_from is None else install.kept_from

    def _free(self, node: Node) -> bool:
        """Return whether a node can begin with any partition (R10)."""
        return node.kind == "source" or (node.kind == "operator" and node.code in self.stateless)

    def await_plan(self, *, asked: bool) -> None:
        """Wait for the planner if it was ``asked`` (R4). It is asked once in a generation."""
        self.asking = asked

    def on_planned_anew(self, event: e.RecoveryPlanReady) -> None:
        """Record the planner's hosts for operators of lost hosts (R4)."""
        if self.asking:
            self.asking, self._chosen = False, event.placement or {}
            self._out.record("replaced", detail={"placement": self._chosen, **event.detail})

    def _cut(self, flow: Dataflow, changed: Collection[str], there: Collection[str]) -> tuple[int, list[str]]:
        """Return the partition from which sources deliver other values, and the operators that consume them (R11)."""
        takers = above(flow, changed)
        wanted = [index for sink, index in self._sinks(flow).items() if sink in takers]
        remember = [name for name in flow.operators if name in takers and flow.by_name[name].code not in self.stateless]
        known = {name: self.known.get(name, {}) for name in remember}
        usable = {name: [i for i, hosts in replicas.items() if {*hosts} & {*there}] for name, replicas in known.items()}
        first = gap_at(min(wanted, default=LAST), usable, {name: self.bases[name] for name in remember})
        for name, replicas in known.items():
            self.known[name] = {index: hosts for index, hosts in replicas.items() if index <= first}
        return first, [name for name in flow.operators if name in takers]

    # --- the next generation --------------------------------------------------------------------------

    def continue_from(self, before: Recovery, change: GenerationChange) -> None:
        """Take over the records of the generation before, as the next generation of the run."""
        lost, detected_s = change
        self.stateless, self.bases, self.keeps, self.had = before.stateless, before.bases, before.keeps, before.had
        self.rejoin_policy, self._late = before.rejoin_policy, before._late
        names = self._tree.dataflow.by_name
        self.known = {name: replicas for name, replicas in before.known.items() if name in names}
        self._forget_of(lost)
        nodes, install = before._flow.nodes, self._context.install
        self._missed = frozenset(lost)
        self._wary = before._wary and self._missed <= before._missed
        if install.kept_from is not None:
            self._told = {name: index for name, index in before._told.items() if name in names}
        self._demanded = [*before._demanded, *(n for n, node in nodes.items() if node.state is GATHERING)]
        self._demanded = [name for name in dict.fromkeys(self._demanded) if name in self._tree.dataflow.sinks]
        self._begun = self._record_of_beginning(before, lost)
        self._wanted = max((index for index in before._sinks(before._graph()).values() if index < LAST), default=0)
        if before.over:  # new queries begin after all partitions so far
            ended = (nodes[name].index for name in before._tree.dataflow.sinks if name in nodes)
            self._flow.reach(max(before._flow.ahead, *ended))
        self._went_on(self._flow.kept)
        self.generation.to(RecoveryEvent.LOST)
        self._phases_s = {"detected": detected_s, "decided": self._out.now}
        self.emit_resumable()

    def _record_of_beginning(self, before: Recovery, lost: Mapping[str, str]) -> dict[str, Any]:
        """Return the record of a new generation: lost hosts, moved operators and absent sources."""
        install, directory = self._context.install, before._directory
        moved = {entry.node: entry.host for entry in install.locations
                 if directory.locations[entry.node].host != entry.host}  # fmt: skip
        fell = {host: how for host, how in lost.items() if host in directory.fell}
        record: dict[str, Any] = {"generation": install.run.restarts, "hosts": fell, "moved": moved}
        if missing := all_gaps(self._tree.dataflow):
            record["missing"] = missing
        return record

    def go_on(self) -> Notes:
        """Demand again from nodes that have continued, which may have the outputs for the application (R10)."""
        install = self._context.install
        if install.kept_from is not None:
            yield from self._demand()

    def _demand(self) -> Notes:
        names, self._demanded = self._demanded, []
        for name in names:
            yield from self._flow.next(e.NextRequested(self._out.run, name))

    def on_installed(self, note: HostInstalled) -> None:
        """Record the operators that have continued on a host, which has installed this generation."""
        if note.host in self._directory.members:
            self._went_on(note.message.carried_over)

    def _went_on(self, nodes: Iterable[m.Start]) -> None:
        """Record nodes that have continued from the generation before."""
        most = self._wanted + (FURTHER + self._context.install.ahead - 1) * len(self._tree.dataflow.nodes)
        for start in nodes:
            self._kept.add(start.node)
            self._flow.reach(min(start.index, most))

    def _again(self) -> dict[str, int]:
        """Return how many partitions of every node are made again, up to the sinks' next partitions."""
        install = self._context.install
        flow = install.dataflow
        starts, least = {start.node: start for start in install.starts}, dict.fromkeys(flow.sinks, self._wanted)
        for name in reversed(flow.upward):
            if name in self._kept:
                least[name] = self._wanted
            elif name not in least:
                start = starts.get(name, m.Start(name, LAST))
                free = [least[consumer] for consumer in flow.consumers[name]] if start.free else []
                least[name] = min(free, default=start.index)
        return {name: max(0, self._wanted - index) for name, index in least.items()}

    def on_started(self, _: Started) -> Notes:
        """Demand the partitions for the application again, because every needed host has the run."""
        self._phases_s["ready"] = self._out.now
        self._to(RecoveryEvent.STARTED)
        yield from self._demand()

    def on_delivered(self, _: PartitionDelivered) -> None:
        if self.generation.state is not RecoveryPhase.WHOLE:
            self._phases_s.setdefault("first", self._out.now)
            self._to(RecoveryEvent.DELIVERED)

    def on_run_over(self, _: str) -> None:
        """Close this generation, because the next generation follows or the run is over."""
        self._to(RecoveryEvent.CLOSED)

    def _to(self, event: RecoveryEvent) -> None:
        """Apply an event. When the generation is whole, record once how it began."""
        self.generation.to(event)
        if self.generation.state is not RecoveryPhase.WHOLE:
            return
        begun, now, phases_s = self._begun, self._out.now, self._phases_s
        if begun is not None:
            self._begun = None
            ago = {phase: now - at_s for phase, at_s in phases_s.items()}
            first_s = phases_s.get("first")
            pause_s = None if first_s is None else first_s - phases_s["detected"]
            detail = begun | {"again": self._again(), "went_on": sorted(self._kept), "ago": ago}
            self._out.record("recovered", duration_s=pause_s, detail=detail)

    def on_timer(self) -> None:
        """Begin anew without the answer of the planner, which is too late (R4)."""
        self.asking = False

    HANDLERS = Handlers(
        messages={m.CheckpointStored: on_stable, m.StateMissing: on_lacking},
        events={e.RecoveryPlanReady: on_planned_anew, e.OutputCommitted: on_had},
        notes={
            PartitionDelivered: on_delivered,
            ChangedOver: on_changed,
            Started: on_started,
            Left: on_changed,
            NotJoined: on_not_joined,
            HostLost: on_lost,
            HostInstalled: on_installed,
            HostTakesPart: on_taking_part,
            HostsPinged: on_pinged,
        },
        timers={Timer.PLACE: on_timer},
    )
