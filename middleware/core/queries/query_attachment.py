"""Another query in a run that goes on, from one partition on, and one that leaves: a host's part in it.

Rules:

R1. A query that begins is proposed as another shape is (``proposal``, R6): its nodes that the run does not have appear,
    and take their inputs from each other or from what is there, which stays as it is. Hosts with sources, and those on
    which nodes appear, vote; the latter load their code before.
R2. Committed, all of these nodes begin with the partition after the change-over iteration: no node can have dispatched
    that yet, and nobody works on it without knowing of the commit, which rides on it. So there are never two graphs,
    nothing has to be drained, and an operator may be on its way meanwhile. One that has dispatched that elsewhere may
    come to a host that has not heard of the commit, if the query takes nothing of it: else its state names who does,
    of whom that host does not know yet (``arrivals``).
R3. A node whose code has state begins with none, as on a machine on which the query begins there.
R4. Nodes that no query uses any more go when the client says so, wherever a host is: what leaves may be what holds up
    all others, and they would wait for ever for an iteration on which to agree. Their names are never used again, so
    what comes late of them is of nobody.

R5. A sink may be another client's, a *guest*, which the client has let in (``AddMember``). It has nothing else. A guest
    is forgotten with what it used; of what the client says of guests the later counts.
R6. A node that has ended as nobody wanted anything more of it begins no more: a query that shares it cannot go on,
    unless it begins where the run's streams end, and so wants nothing of it either. A node that had ended while there
    was one sink, and told nobody that it wants nothing more, says so once there are others: what it took its inputs
    from may go on for these.

What a query shares with the run, and which nodes go with it, the client decides: ``queries``, and ``subscribers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet

from thalweg.middleware.core.context.notes import Notes
from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import Action, Renounce
from thalweg.middleware.core.flow.flow import FlowParts
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.queries.run_subscriptions import RunSubscriptions
from thalweg.middleware.core.reshaping.reshaping import OperatorTransfers
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


def extended(old: Dataflow, grafts: Iterable[m.Graft]) -> Dataflow:
    """The graph with the nodes of another query.

    Raises DataflowError when that is none, or something that is there would change.
    """
    new = []
    for graft in grafts:
        node = graft.like
        if not isinstance(node, Node) or (node.name, node.inputs) != (graft.node, graft.inputs):
            raise DataflowError(f"nothing is said of node {graft.node!r} but its name; a query brings nodes")
        if node.pinned not in (None, graft.host):
            raise DataflowError(f"{node.kind} {node.name!r} is pinned to {node.pinned!r}, not {graft.host!r}")
        new.append(node)
    return Dataflow((*old.nodes, *new)).validate(connected=False)


REMEMBERED = 4096  # nodes of queries that have left: far more than commits that are still on their way


class QueryAttachment(Part):
    """What a host does about queries that begin and leave, told by the barrier and by the client."""

    @classmethod
    def of(cls, parts: RunParts) -> QueryAttachment:
        subscriptions = parts.existing(RunSubscriptions)
        return cls(parts.context, FlowParts.of(parts), OperatorTransfers.of(parts), subscriptions)

    def __init__(
        self, context: RunContext, nodes: FlowParts, ways: OperatorTransfers, visit: RunSubscriptions | None
    ) -> None:
        self._out, self._install, self._max_nodes = context.out, context.install, context.limits.max_nodes
        self._leads, self._visit = context.leads, visit
        self._told = context.install.number  # of what the client said of guests last
        self._gone: dict[str, None] = {}  # nodes that have left, the latest last: a name is given once
        self._tree, self._directory, self._books, self._flow = nodes.tree, nodes.directory, nodes.books, nodes.flow
        self._departures, self._arrivals = ways.departures, ways.arrivals

    def prepare(self, message: m.Propose) -> str:
        """R1: load the code of what would appear here; why this host is against it, or empty."""
        assert message.shape is not None
        grafts, directory = message.shape.grafts, self._directory
        nodes = len(self._tree.dataflow.nodes) + len(grafts)
        if nodes > self._max_nodes:
            return f"the run would have {nodes} nodes, and it takes {self._max_nodes} (its limit max_nodes)"
        try:
            flow = extended(self._tree.dataflow, grafts)
        except DataflowError as error:
            return str(error)
        where = directory.where(directory.locations) | {graft.node: graft.host for graft in grafts}
        for graft in grafts:
            kind = flow.by_name[graft.node].kind
            if graft.host not in (directory.subscribers if kind == "sink" else directory.hosts) | {
                self._install.client
            }:
                return f"{kind} {graft.node!r} is on {graft.host!r}, which has no part in the run, or is not a client"
        mine = [flow.by_name[name] for name in self._coded(message.shape)]
        near = {
            node.name: {where[neighbour] for neighbour in (*node.inputs, *flow.consumers[node.name])} for node in mine
        }
        return self._arrivals.invite_new(mine, message.number, near)

    def _coded(self, shape: m.Shape) -> list[str]:
        """What appears here and has code."""
        here = [graft for graft in shape.grafts if graft.host == self._out.host]
        return [graft.node for graft in here if isinstance(graft.like, Node) and graft.like.kind != "sink"]

    def is_past(self, commit: m.Commit) -> bool:
        """Return whether a query's nodes have left again: its commit rides on partitions, which may be late.

        A host that joined when the nodes were there has not had the commit before.
        """
        return commit.shape is not None and any(graft.node in self._gone for graft in commit.shape.grafts)

    def can_begin(self, commit: m.Commit) -> bool:
        """Whether this host is where the client has to know it is, for a commit that anybody may have passed on."""
        assert commit.shape is not None
        inputs = {name for graft in commit.shape.grafts for name in graft.inputs} & self._flow.nodes.keys()
        nodes = [self._flow.nodes[name] for name in inputs]  # R2: an operator that came since may be further
        furthest = max((node.index for node in nodes if node.state is not NodeState.ENDED), default=0)
        if self._tree.former is not None or furthest > commit.iteration + 1:
            return False
        try:
            extended(self._tree.dataflow, commit.shape.grafts)
        except DataflowError:
            return False
        return self._arrivals.prepared(commit.number) == set(self._coded(commit.shape))

    def begin(self, commit: m.Commit) -> Notes:
        """R2: have the query's nodes from now on."""
        assert commit.shape is not None
        grafts, first, here = commit.shape.grafts, commit.iteration + 1, self._out.host
        new = extended(self._tree.dataflow, grafts)
        self._directory.switch_over(commit)
        names = [graft.node for graft in grafts]
        self._tree.extend(new, names, first)
        for graft in grafts:
            node = new.by_name[graft.node]
            self._directory.appear(graft.node, graft.host, still=node.kind != "operator" or node.pinned is not None)
        self._arrivals.appear()
        yield from self._extend(names, [graft.node for graft in grafts if graft.host == here], first)
        if self._visit is not None:
            self._visit.begun(names, first, new, self._directory.where(new.by_name))

    def _extend(self, names: Collection[str], here: Iterable[str], first: int) -> Notes:
        """Add nodes ``names`` from partition ``first`` on. Those in ``here`` are on this host."""
        tree, flow, limit = self._tree, self._flow, self._install.partitions
        many = len(tree.dataflow.sinks) > 1
        todo: list[tuple[NodeCore, list[Action]]] = []
        for name, node in flow.nodes.items():
            new = [consumer for consumer in tree.consumers[name] if consumer in names]
            if new:
                todo.append((node, node.join(new, first)))
            # R6: a node has ended because no consumer wanted more, and cannot serve a query that wants something
            for consumer in new if node.renounced and (limit is None or first < limit) else ():
                why = (
                    f"nobody wanted anything more of {name!r}, which it shares, and so that had ended; run it by itself"
                )
                flow.failed(e.OperatorFailed(self._out.run, consumer, why))
            if many and node.state is NodeState.ENDED and node.node.inputs:
                # R6: the node told its producers nothing while there was one sink; they may go on for others
                todo.append((node, [Renounce(node.node.inputs)]))
        for name in here:
            begins = dict.fromkeys(tree.consumers[name], first)
            flow.add(NodeCore.begun(tree.dataflow.by_name[name], limit, first, begins))
        self._books.begin_anew(tree.dataflow, flow.nodes)
        for node, actions in todo:
            yield from flow.perform(node, actions)

    def _cut(self, gone: AbstractSet[str]) -> Notes:
        """Remove nodes that no query uses any longer, as ``Tree`` and ``Directory`` know (R4)."""
        flow = self._flow
        for name in flow.forget(gone):
            self._out.emit(e.CloseNode(self._out.run, name))
        flow.tails.cut(gone)
        self._books.begin_anew(self._tree.dataflow, flow.nodes)
        for node in list(flow.nodes.values()):
            if not gone.isdisjoint(node.window.consumers):
                yield from flow.perform(node, node.part(gone))
                yield from flow.recall(node, node.leave_heard())
                if node.state is NodeState.ENDED:  # nobody who is left wants anything of it, so it waits for nothing
                    flow.demands.ended(node.node.name)

    def enrolled(self, sink: str) -> None:
        """Whose a sink is has been said, perhaps after it is here: a late answer of this host counted for this one."""
        flow = self._tree.dataflow
        if self._visit is not None and sink in flow.by_name:
            self._visit.begun((sink,), self._tree.first.get(sink, 0), flow, self._directory.where(flow.by_name))

    def on_admit(self, sender: str, message: m.AddMember) -> None:
        """R5: a guest is let in, or a host joins (``membership``)."""
        out, peer, error = self._out, message.peer, ""
        if message.host:
            if message.number > self._told:
                self._told = message.number
                out.emit(e.Meet(out.run, (peer,)))
                self._directory.join(peer, message.number)
                self._flow.tails.unkeep(peer.name)
        elif peer.name in self._directory.peers:
            error = f"a host of the run is called {peer.name!r}"
        elif message.number > self._told:
            self._told = message.number
            out.emit(e.Meet(out.run, (peer,)))
            if not self._leads:  # else once it has taken its part
                self._directory.admit_guest(peer.name)
                self._flow.laggards.watch()
        out.send(sender, m.Detached(out.run, message.number, error))

    def on_detach(self, sender: str, message: m.Detach) -> Notes:
        """R4: what no query uses any more."""
        tree = self._tree
        gone = frozenset(message.nodes) & tree.dataflow.by_name.keys()
        left = [node for node in tree.dataflow.nodes if node.name not in gone]
        used = {name for node in left for name in node.inputs}
        vain = any(node.kind == "operator" and node.name not in used for node in left)  # no client leaves those
        if tree.former is not None or vain or not gone.isdisjoint(used):
            self._out.record("unexpected", peer=sender, detail={"message": "Detach", "number": message.number})
            return
        self._gone.update(dict.fromkeys(message.nodes))
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        if message.number > self._told:  # R5: the later message about guests counts
            self._told = message.number
            self._directory.dismiss_guests(message.guests)
        if gone:
            tree.cut(gone)
            yield from self._departures.cut(gone)
            self._directory.outlive(gone)
            yield from self._arrivals.cut(gone)
            yield from self._cut(gone)
            if self._visit is not None:
                self._visit.cut(gone)
            if self._leads:
                where = self._directory.where(tree.dataflow.by_name)
                self._out.emit(e.TreeChanged(self._out.run, tree.dataflow, where))
        self._out.send(self._install.client, m.Detached(self._out.run, message.number))

    HANDLERS = Handlers(
        messages={m.Detach: on_detach, m.AddMember: on_admit},
    )
