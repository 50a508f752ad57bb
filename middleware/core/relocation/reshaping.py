"""Another tree from one partition on: a host's part, beyond that in the barrier.

Rules:

- The barrier proposes another shape as it proposes moves, and commits it with a change-over iteration. Partitions up to
  that come through the old tree, later ones through the new. A host has both until the old one is drained.
- Hosts on which operators appear load their code before they vote (``Bud``); code that is not reorderable is refused.
  At the commit they have them, and these gather their first partition at once, while the old tree is still at work.
- What operators that disappear remember goes to one that appears, which waits for it (``inheritance``).
- Operators that disappear end with the change-over iteration, and keep that output until they are told to retire.
- A node that stays and has another consumer keeps its output of the change-over iteration for the old consumer
  beside what it makes for the new (a ``Tail``, as one that has left), until then. Demands count by their
  partition: up to the change-over iteration the old consumer's, later the new one's.
- When the sink has got the change-over iteration, nobody needs the old tree: the client has all hosts retire it.
- Nothing is handed over meanwhile: a host with both trees begins no hand-over, and answers no offer.

What another shape may be is in ``shape``; the states are the barrier's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from thalweg.middleware.core.flow.node import Action, NodeCore, NodeState
from thalweg.middleware.core.relocation.handover import ArrivalEvent, Tail
from thalweg.middleware.core.relocation.inheritance import Heir
from thalweg.middleware.core.relocation.shape import regrow
from thalweg.middleware.dataflow import Node
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class Bud(msgspec.Struct):
    """An operator that may appear here, by proposal ``number``; ``ready``: its code is loaded.

    ``heir``: the states that it takes over, where it does.
    """

    node: Node
    number: int
    heir: Heir | None = None
    ready: bool = False


class Reshaper:
    """What a host does about another shape, told by the barrier."""

    def __init__(self, core: HostCore) -> None:
        self.core = core

    # --- before the commit ----------------------------------------------------------------------------

    def prepare(self, run: RunState, message: m.Propose) -> str:
        """Load the code of what would appear here; why this host is against it, or empty."""
        shape = message.shape
        assert shape is not None
        try:
            flow = regrow(run.dataflow, shape.grafts)
        except DataflowError as error:
            return str(error)
        mine = [graft for graft in shape.grafts if graft.like and graft.host == self.core.host]
        why = self._obstacle(run, shape)
        if why or not mine:
            return why
        room = self.core.config.max_operators
        count = sum(len(each.guests) + each.operators() for each in self.core.runs.values())
        if count + len(mine) > room:
            return f"it has room for {room} operators, {count} are there or on their way, and {len(mine)} more would be"
        hosts = {name: entry.host for name, entry in run.locations.items()}
        hosts |= {graft.node: graft.host for graft in shape.grafts if graft.like}
        known = {entry.node: entry.host for entry in shape.present}
        merging = [flow.by_name[graft.node].code for graft in shape.grafts if graft.states]
        for graft in mine:
            node = flow.by_name[graft.node]
            heir = Heir(node.name, {name: known[name] for name in graft.states}) if graft.states else None
            run.buds[graft.node] = Bud(node, message.number, heir)
            for host in sorted({hosts[other] for other in (*graft.inputs, *flow.consumers[graft.node])}):
                if host != self.core.host:
                    self.core.emit(e.Approach(run.id, host))
            self.core.emit(e.OpenNode(run.id, node, fresh=True, merging=node.code in merging))
        return ""

    def _obstacle(self, run: RunState, shape: m.Shape) -> str:
        for graft in shape.grafts:
            if graft.host not in run.hosts:
                return f"host {graft.host!r} has no part in the run"
            for name in graft.states:
                if not any(entry.node == name for entry in shape.present):
                    return f"nobody says where {name!r} is, whose state {graft.node!r} is to take over"
                if name in run.nodes and graft.host != self.core.host:
                    self.core.emit(e.Approach(run.id, graft.host))
        for entry in shape.present:
            location = run.locations.get(entry.node)
            if location is None:
                return f"there is no node {entry.node!r}"
            if location.version > entry.version:
                return f"{entry.node!r} has moved to host {location.host!r} meanwhile"
            if entry.host == self.core.host and entry.node in run.leaving:
                return f"{entry.node!r} is on its way to host {run.leaving[entry.node].target!r}"
            if entry.host == self.core.host and entry.node not in run.nodes:
                return f"{entry.node!r} is not on host {self.core.host!r}"
        return ""

    def on_opened(self, run: RunState, event: e.NodeOpened) -> None:
        bud = run.buds[event.node]
        if event.error:
            self.core.barrier.on_unprepared(run, bud.number, f"{event.node!r} cannot run there: {event.error}")
        else:
            bud.ready = True
            self.core.barrier.on_prepared(run)

    def discard(self, run: RunState) -> None:
        """Nothing appears here after all."""
        for name in run.buds:
            self.core.emit(e.CloseNode(run.id, name))
        run.buds.clear()

    # --- the commit -----------------------------------------------------------------------------------

    def can_switch(self, run: RunState, commit: m.Commit) -> bool:
        """Whether this host is where the client has to know it is, for a commit that anybody may have passed on."""
        assert commit.shape is not None
        if run.former is not None:
            return False
        try:
            regrow(run.dataflow, commit.shape.grafts)
        except DataflowError:
            return False
        appear = [graft.node for graft in commit.shape.grafts if graft.like and graft.host == self.core.host]
        buds = {name for name, bud in run.buds.items() if bud.ready and bud.number == commit.number}
        return buds == set(appear)

    def switch(self, run: RunState, commit: m.Commit) -> list[tuple[NodeCore, list[Action]]]:
        """Have both trees from now on; what the nodes here are to do about it."""
        assert commit.shape is not None
        core, turn, old = self.core, commit.iteration, run.dataflow
        new = regrow(old, commit.shape.grafts)
        core.mover.settle(run)
        run.grow(new, turn)
        for graft in commit.shape.grafts:
            if graft.like:
                run.locations[graft.node] = m.Location(graft.node, graft.host, 1)
        for guest in [each for name, each in run.guests.items() if name not in new.by_name]:
            core.mover.discard(run, guest, ArrivalEvent.WITHDRAWN)
        todo: list[tuple[NodeCore, list[Action]]] = []
        for name, node in run.nodes.items():
            kept = new.by_name.get(name)
            if kept is None:
                self._forget_demands(run, node, turn)
                todo.append((node, node.replace(turn)))
                continue
            if old.consumers[name] != new.consumers[name]:
                todo.append((node, node.turn(turn)))
            if old.by_name[name].inputs != kept.inputs:
                self._forget_demands(run, node, turn)
                todo.append((node, node.rewire(turn, kept)))
        for name, bud in run.buds.items():
            node = run.nodes[name] = NodeCore.fresh(bud.node, run.install.partitions, turn + 1)
            todo.append((node, node.begin()))
            if bud.heir is not None:
                run.heirs[name] = bud.heir
        for name in run.buds:
            core.keep_book(run, name, None)
        run.buds.clear()
        if run.install.client == core.host:
            placement = {name: run.locations[name].host for name in new.by_name}
            core.emit(e.TreeChanged(run.id, new, placement))
        return todo

    @staticmethod
    def _forget_demands(run: RunState, node: NodeCore, turn: int) -> None:
        """What a node has asked of the old tree for a partition of the new one."""
        if node.index > turn and node.state is NodeState.GATHERING:
            for producer in node.node.inputs:
                run.pending.pop((node.node.name, producer), None)

    def on_turned(self, run: RunState, node: NodeCore) -> None:
        """Keep its last output for the old consumer, which may not have got it."""
        output = node.retained
        if output is not None:
            run.tails[node.node.name] = Tail(output, node.sending, node.landed == output.index)
            node.release()

    # --- afterwards -----------------------------------------------------------------------------------

    def retire(self, run: RunState) -> None:
        """Forget the old tree: the sink has all that has come through it."""
        assert run.former is not None
        gone = run.former.by_name.keys() - run.dataflow.by_name.keys()
        for name in [name for name in run.nodes if name in gone]:
            del run.nodes[name]
            self.core.emit(e.CloseNode(run.id, name))
        for node in run.nodes.values():
            node.forget_inputs()
        for name in [name for name, tail in run.tails.items() if tail.output.index <= run.turn]:
            del run.tails[name]
        run.legacies.clear()
        run.tail_hosts.clear()  # nothing was handed over meanwhile, so these are all of before
        run.shrink(gone)
