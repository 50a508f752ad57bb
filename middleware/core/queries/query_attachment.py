"""Start and end of queries on one host, while the run goes on.

Rules:

R1. A query is proposed like another shape (``proposal``, R6). Nodes of the query that the run lacks appear. Their
    inputs are new nodes or nodes of the run, which stay as they are. Hosts with sources, and hosts on which nodes
    appear, vote. The latter load the nodes' code before they vote.
R2. When a query is committed, its nodes begin with the partition after the change-over iteration. No node can have
    dispatched that partition. The commit is piggybacked on it, so no host works on the partition without the commit. So
    there are never two graphs, nothing has to be drained, and operators may move meanwhile. An operator that has
    dispatched the partition elsewhere may come to a host without the commit, if the query takes nothing from the
    operator. Otherwise the operator's state names consumers that the host does not know yet (``arrivals``).
R3. A node whose code has state begins without state, as on a machine on which the query begins there.
R4. Nodes that no query uses are removed when the client says so, whatever partition a host is at. Hosts do not agree on
    an iteration first. If the leaving nodes hold up the rest, the hosts would wait for ever. Names are never used
    again, so a late message about a removed node concerns no node.

R5. A sink may belong to another client, a *guest*, that the client has let in (``AddMember``). A guest has only sinks,
    and is forgotten together with the nodes that it used. Of the client's messages about guests the later counts.
R6. A node that has ended because no consumer wanted more does not begin again. A query that shares the node fails,
    unless the query begins at the end of the run's streams. A node that ended while the run had one sink has not
    renounced its inputs. When the run has several sinks, the node renounces them, because the producers may go on for
    the remaining sinks.

The client decides which nodes a query shares with the run, and which nodes leave with a query (``queries``,
``subscribers``).
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
    """Return the graph with the nodes of another query.

    Raises DataflowError if a graft is no node of a query, or if a present node would change.
    """
    new = []
    for graft in grafts:
        node = graft.like
        if not isinstance(node, Node) or (node.name, node.inputs) != (graft.node, graft.inputs):
            raise DataflowError(f"the query does not define node {graft.node!r}; a query brings its nodes")
        if node.pinned not in (None, graft.host):
            raise DataflowError(f"{node.kind} {node.name!r} is pinned to {node.pinned!r}, not {graft.host!r}")
        new.append(node)
    return Dataflow((*old.nodes, *new)).validate(connected=False)


REMEMBERED = 4096  # removed nodes: far more than late commits can name


class QueryAttachment(Part):
    """Host's side of queries that begin and leave. The barrier and the client start every step."""

    @classmethod
    def of(cls, parts: RunParts) -> QueryAttachment:
        subscriptions = parts.existing(RunSubscriptions)
        return cls(parts.context, FlowParts.of(parts), OperatorTransfers.of(parts), subscriptions)

    def __init__(
        self, context: RunContext, nodes: FlowParts, ways: OperatorTransfers, visit: RunSubscriptions | None
    ) -> None:
        self._out, self._install, self._max_nodes = context.out, context.install, context.limits.max_nodes
        self._leads, self._visit = context.leads, visit
        self._told = context.install.number  # number of the latest ``AddMember`` or ``Detach``
        self._gone: dict[str, None] = {}  # removed nodes, the latest last: no name is used twice
        self._tree, self._directory, self._books, self._flow = nodes.tree, nodes.directory, nodes.books, nodes.flow
        self._departures, self._arrivals = ways.departures, ways.arrivals

    def prepare(self, message: m.Propose) -> str:
        """Load the code of nodes that would appear here (R1). Return the reason to vote against them, or ""."""
        assert message.shape is not None
        grafts, directory = message.shape.grafts, self._directory
        nodes = len(self._tree.dataflow.nodes) + len(grafts)
        if nodes > self._max_nodes:
            return f"the run would have {nodes} nodes, and this host takes {self._max_nodes} (its limit max_nodes)"
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
        new = [flow.by_name[name] for name in self._coded(message.shape)]
        near = {
            node.name: {where[neighbour] for neighbour in (*node.inputs, *flow.consumers[node.name])} for node in new
        }
        return self._arrivals.invite_new(new, message.number, near)

    def _coded(self, shape: m.Shape) -> list[str]:
        """Return the names of nodes that appear here and have code."""
        here = [graft for graft in shape.grafts if graft.host == self._out.host]
        return [graft.node for graft in here if isinstance(graft.like, Node) and graft.like.kind != "sink"]

    def is_past(self, commit: m.Commit) -> bool:
        """Return whether the nodes of a committed query have left again.

        A commit is piggybacked on partitions, so it may be late. A host that joined while the nodes existed has not had
        the commit before.
        """
        return commit.shape is not None and any(graft.node in self._gone for graft in commit.shape.grafts)

    def can_begin(self, commit: m.Commit) -> bool:
        """Return whether this host is as far as the client knows. Any host may have passed the commit on.

        The host has one tree and the code of the query's nodes. No input is past the query's first partition.
        """
        assert commit.shape is not None
        inputs = {name for graft in commit.shape.grafts for name in graft.inputs} & self._flow.nodes.keys()
        # R2: an operator that came since may be further, if it is no input
        nodes = [self._flow.nodes[name] for name in inputs]
        furthest = max((node.index for node in nodes if node.state is not NodeState.ENDED), default=0)
        if self._tree.former is not None or furthest > commit.iteration + 1:
            return False
        try:
            extended(self._tree.dataflow, commit.shape.grafts)
        except DataflowError:
            return False
        return self._arrivals.prepared(commit.number) == set(self._coded(commit.shape))

    def begin(self, commit: m.Commit) -> Notes:
        """Add the nodes of a committed query to the graph, the locations and the flow (R2)."""
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
        """Add nodes ``names`` from partition ``first`` on. The nodes in ``here`` are on this host."""
        tree, flow, limit = self._tree, self._flow, self._install.partitions
        many = len(tree.dataflow.sinks) > 1
        todo: list[tuple[NodeCore, list[Action]]] = []
        for name, node in flow.nodes.items():
            new = [consumer for consumer in tree.consumers[name] if consumer in names]
            if new:
                todo.append((node, node.join(new, first)))
            # R6: the node ended because no consumer wanted more, and cannot serve a query that wants a partition
            for consumer in new if node.renounced and (limit is None or first < limit) else ():
                why = (
                    f"nobody wanted anything more of {name!r}, which it shares, and so that had ended; run it by itself"
                )
                flow.failed(e.OperatorFailed(self._out.run, consumer, why))
            if many and node.state is NodeState.ENDED and node.node.inputs:
                # R6: with one sink the node renounced nothing; its producers may go on for more sinks
                todo.append((node, [Renounce(node.node.inputs)]))
        for name in here:
            begins = dict.fromkeys(tree.consumers[name], first)
            flow.add(NodeCore.begun(tree.dataflow.by_name[name], limit, first, begins))
        self._books.begin_anew(tree.dataflow, flow.nodes)
        for node, actions in todo:
            yield from flow.perform(node, actions)

    def _cut(self, gone: AbstractSet[str]) -> Notes:
        """Remove nodes from the flow that no query uses, and that ``Tree`` and ``Directory`` have removed (R4)."""
        flow = self._flow
        for name in flow.forget(gone):
            self._out.emit(e.CloseNode(self._out.run, name))
        flow.tails.cut(gone)
        self._books.begin_anew(self._tree.dataflow, flow.nodes)
        for node in list(flow.nodes.values()):
            if not gone.isdisjoint(node.window.consumers):
                yield from flow.perform(node, node.part(gone))
                yield from flow.recall(node, node.leave_heard())
                if node.state is NodeState.ENDED:  # no consumer wants more, so no input is awaited
                    flow.demands.ended(node.node.name)

    def enrolled(self, sink: str) -> None:
        """Report a subscription as begun if its sink is here already.

        A late answer of this host may have counted as the answer to a later ``InstallSubscriber``.
        """
        flow = self._tree.dataflow
        if self._visit is not None and sink in flow.by_name:
            self._visit.begun((sink,), self._tree.first.get(sink, 0), flow, self._directory.where(flow.by_name))

    def on_admit(self, sender: str, message: m.AddMember) -> None:
        """Admit a guest (R5), or a host that joins (``membership``), and answer with ``Detached``."""
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
            if not self._leads:  # the client does so after the guest's answer
                self._directory.admit_guest(peer.name)
                self._flow.laggards.watch()
        out.send(sender, m.Detached(out.run, message.number, error))

    def on_detach(self, sender: str, message: m.Detach) -> Notes:
        """Remove nodes that no query uses, dismiss guests that have left, and answer with ``Detached`` (R4, R5)."""
        tree = self._tree
        gone = frozenset(message.nodes) & tree.dataflow.by_name.keys()
        left = [node for node in tree.dataflow.nodes if node.name not in gone]
        used = {name for node in left for name in node.inputs}
        vain = any(node.kind == "operator" and node.name not in used for node in left)  # an honest client leaves none
        if tree.former is not None or vain or not gone.isdisjoint(used):
            self._out.record("unexpected", peer=sender, detail={"message": "Detach", "number": message.number})
            return
        self._gone.update(dict.fromkeys(message.nodes))
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        if message.number > self._told:  # R5: of two messages about guests the later counts
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
