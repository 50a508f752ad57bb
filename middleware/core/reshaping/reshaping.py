"""Change to another tree from one partition on: part of a host, beside the barrier.

Rules:

R1. The barrier proposes a shape like moves, and commits it with a change-over iteration. Partitions up to there come
    through the old tree, later partitions through the new tree. A host has both trees until the old tree is drained.
R2. A host loads the code of operators that appear there before the vote. Code that is not reorderable is refused. After
    the commit, the new operators gather their first partition at once, while the old tree is still at work.
R3. The states of operators that disappear go to a new operator, which waits for them (``inheritance``).
R4. An operator that disappears ends with the change-over iteration, and keeps this output until the client retires the
    tree.
R5. If a node that stays has a new consumer, its output of the change-over iteration stays for the old consumer, as a
    tail. The tail is kept until the tree is retired. Demands up to this iteration are of the old consumer, later
    demands of the new consumer.
R6. When the sink has got the change-over iteration, the old tree is no longer needed. The client then has the old tree
    retired on every host.
R7. Meanwhile no operator is handed over. A host with both trees begins no hand-over, and answers no offer.

``shape`` says which shapes are possible. The states are those of the barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from thalweg.middleware.core.context.notes import Notes
from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import Action
from thalweg.middleware.core.flow.flow import FlowParts
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.moving.arrivals import Arrivals
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.reshaping.inheritance import Inheritance
from thalweg.middleware.core.reshaping.shape import regrow
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class OperatorTransfers(msgspec.Struct, frozen=True):
    """Parts of a run that move operators and states between hosts."""

    departures: Departures
    arrivals: Arrivals
    inheritance: Inheritance

    @classmethod
    def of(cls, parts: RunParts) -> OperatorTransfers:
        """Return the three parts of a run."""
        return cls(parts.get(Departures), parts.get(Arrivals), parts.get(Inheritance))


class Reshaping(Part):
    """Part of a host that prepares, applies and retires a tree for the barrier."""

    @classmethod
    def of(cls, parts: RunParts) -> Reshaping:
        return cls(parts.context, FlowParts.of(parts), OperatorTransfers.of(parts))

    def __init__(self, context: RunContext, nodes: FlowParts, ways: OperatorTransfers) -> None:
        self._out, self._leads, self._max_nodes = context.out, context.leads, context.limits.max_nodes
        self._partitions = context.install.partitions
        self._tree, self._directory, self._books, self._flow = nodes.tree, nodes.directory, nodes.books, nodes.flow
        self._departures, self._arrivals, self._inheritance = ways.departures, ways.arrivals, ways.inheritance

    def prepare(self, message: m.Propose) -> str:
        """Load the code of operators that are to appear here (R2). Return the obstacle, or an empty text."""
        shape, host = message.shape, self._out.host
        assert shape is not None
        nodes = len(self._tree.dataflow.nodes) + len(shape.grafts)
        if nodes > self._max_nodes:
            return f"the other tree may have {nodes} nodes, and this host takes {self._max_nodes} (its limit max_nodes)"
        try:
            flow = regrow(self._tree.dataflow, shape.grafts)
        except DataflowError as error:
            return str(error)
        local = [graft for graft in shape.grafts if graft.like and graft.host == host]
        why = self._obstacle(shape)
        return self._invite(shape, local, flow, message.number) if local and not why else why

    def _invite(self, shape: m.Shape, mine: Collection[m.Graft], flow: Dataflow, number: int) -> str:
        """Load the code of new operators here (R2), and expect heirs (R3). Return the obstacle, or an empty text."""
        hosts = self._directory.where(self._directory.locations)
        hosts |= {graft.node: graft.host for graft in shape.grafts if graft.like}
        known = {entry.node: entry.host for entry in shape.present}
        merging = [flow.by_name[graft.node].code for graft in shape.grafts if graft.states]
        near = {
            graft.node: {hosts[neighbour] for neighbour in (*graft.inputs, *flow.consumers[graft.node])}
            for graft in mine
        }
        why = self._arrivals.invite_new([flow.by_name[graft.node] for graft in mine], number, near, merging)
        for graft in mine if not why else ():
            if graft.states:
                # R3: the operator waits for the states that it takes over
                self._inheritance.expect(graft.node, {name: known[name] for name in graft.states})
        return why

    def _obstacle(self, shape: m.Shape) -> str:
        host, nodes = self._out.host, self._flow.nodes
        present = {entry.node for entry in shape.present}
        for graft in shape.grafts:
            if graft.host not in self._directory.hosts:
                return f"host {graft.host!r} has no part in the run"
            for name in graft.states:
                if name not in present:
                    return f"the proposal has no location of {name!r}, whose state {graft.node!r} is to take over"
                if name in nodes and graft.host != host:
                    self._out.emit(e.Approach(self._out.run, graft.host))
        for entry in shape.present:
            location = self._directory.locations.get(entry.node)
            if location is None:
                return f"there is no node {entry.node!r}"
            if entry.host not in self._directory.hosts:
                return f"host {entry.host!r} has no part in the run"
            if location.version > entry.version:
                return f"{entry.node!r} has moved to host {location.host!r} meanwhile"
            if entry.host == host and self._departures.going(entry.node):
                # R7: nothing is handed over while there are two trees
                return self._departures.going(entry.node)
            if entry.host == host and entry.node not in nodes:
                return f"{entry.node!r} is not on host {host!r}"
        return ""

    def can_switch(self, commit: m.Commit) -> bool:
        """Return whether a commit, perhaps passed on by a host, fits the state of this host."""
        assert commit.shape is not None
        furthest = max((node.index for node in self._flow.nodes.values()), default=0)
        if self._tree.former is not None or furthest > commit.iteration + 1 or self._departures.undecided:
            return False
        try:
            regrow(self._tree.dataflow, commit.shape.grafts)
        except DataflowError:
            return False
        appear = {graft.node for graft in commit.shape.grafts if graft.like and graft.host == self._out.host}
        return self._arrivals.prepared(commit.number) == appear

    def switch(self, commit: m.Commit) -> Notes:
        """Add the committed tree. This host has both trees from now on (R1)."""
        assert commit.shape is not None
        self._directory.switch_over(commit)
        new = regrow(self._tree.dataflow, commit.shape.grafts)
        yield from self._departures.settle()
        self._tree.grow(new, commit.iteration)
        for graft in commit.shape.grafts:
            if graft.like:
                self._directory.appear(graft.node, graft.host)
        self._arrivals.keep_only(new.by_name)
        if self._leads:
            self._out.emit(e.TreeChanged(self._out.run, new, self._directory.where(new.by_name)))
        yield from self._regrow(self._arrivals.appear())

    def _regrow(self, new_nodes: Iterable[str]) -> Notes:
        """Switch the nodes on this host to the new tree (R4, R5). The operators ``new_nodes`` appear."""
        tree, flow = self._tree, self._flow
        old, new, turn = tree.former, tree.dataflow, tree.turn
        assert old is not None
        todo: list[tuple[NodeCore, list[Action]]] = []
        for name, node in flow.nodes.items():
            successor = new.by_name.get(name)
            rewired = successor is None or old.by_name[name].inputs != successor.inputs
            if rewired and node.state is NodeState.GATHERING:  # the old tree may have got a later demand
                flow.call_back(name, turn)
            if successor is None:
                todo.append((node, node.replace(turn)))
                continue
            if old.consumers[name] != new.consumers[name]:
                todo.append((node, node.turn(turn, new.consumers[name][0])))
            if rewired:
                todo.append((node, node.rewire(turn, successor)))
        for name in self._inheritance.heirs:
            flow.hold(name)
        for name in new_nodes:
            begins = dict.fromkeys(new.consumers[name], turn + 1)
            node = flow.add(NodeCore.begun(new.by_name[name], self._partitions, turn + 1, begins))
            todo.append((node, node.begin()))
            self._books.keep(new, name)
        for node, actions in todo:  # not before: actions may concern further nodes
            yield from flow.perform(node, actions)

    @property
    def drained(self) -> bool:
        """Return whether the nodes here have no work left in the old tree, and no heir waits for states."""
        nodes, turn = self._flow.nodes.values(), self._tree.turn
        return not self._inheritance.heirs and all(n.index > turn or n.state is NodeState.ENDED for n in nodes)

    def retire(self) -> None:
        """Remove the old tree, because the sink has every partition that came through it (R6)."""
        gone, flow = self._tree.shrink(), self._flow
        for name in flow.forget(gone):
            self._out.emit(e.CloseNode(self._out.run, name))
        for node in flow.nodes.values():
            flow.perform(node, node.retire())
        flow.tails.shrink(self._tree.turn)
        self._inheritance.retire()
        self._directory.forget(gone)
        self._departures.forget(gone)
