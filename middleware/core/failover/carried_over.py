"""Operators that go on as they are when a run begins anew without a host that it has lost: a host's part in it.

Rules:

R1. Only what the lost host had begins anew: its operators from their replicas (``recovery``), and all sources, which
    make again whatever is wanted of them. Every other operator goes on as it is: with its state, the inputs that it has
    got, the output that it holds, and its code, even while that runs. Its host closes the generation before and opens
    the next one in the same event, so nothing of the one before is heard any more, as ever.
R2. An operator here goes on if the next generation has it here, with the same inputs and consumer, and if it is as far
    as it would start; not if it still waits for a replica or for states that it takes over, if its last output is on
    another host, or if it has not begun. Else it begins like those that were lost: each of the two is sound, whatever
    the others do, so nobody has to agree on it.
R3. An operator keeps its outputs from where its consumer would start (``flow.replay_log``). So whoever begins anew,
    with whatever has gone on around it, is given what it wants again, and its consumer's first demand tells how far it
    is. The client lets the next generation be of this kind only if no operator would start before what it has had
    dropped (``CheckpointsObsolete``); that is so as long as no state is lost with all its replicas.
R4. Where an output is not there nevertheless (there were too many bytes of them, or the operator has come from another
    host since, where they stayed), the host says so (``StateMissing``), and the run begins wholly anew. What was in a
    generation before that one does not go on in a later one (``Install.kept_from``).
R5. Where nodes have several consumers, each of these goes on with a partition of its own. So that nobody waits for the
    word of who has all that it wants, all say it at once (R6 of ``flow.flow``), and what begins anew gathers at once.
R6. What takes from a source that is missing, or is back, begins anew (``protocol.absent_sources``): the rest goes on.
R7. Hand-overs, proposals and other trees that are under way are over with the generation: an operator that was to leave
    goes on where it is, one that was to come is not there. While the client has two trees, all nodes begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import LAST, Ask, Renounce
from thalweg.middleware.core.flow.beginning import firsts
from thalweg.middleware.core.flow.entries import CarriedOver
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import ENDED, IDLE, RUNNING
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.part import Need, Part, RunBeginning, RunParts
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import NO_RUN


def carried_over(before: RunCore, install: m.Install) -> dict[str, CarriedOver]:
    """R2: return the operators here that go on in the next generation, which begins with ``install``."""
    context, tree, flow = before.context, before.tree, before.flow
    if install.kept_from is None or tree.former is not None:
        return {}
    if not install.kept_from <= context.install.run.generation < install.run.generation:
        return {}
    where = {entry.node: entry.host for entry in install.locations}
    starts = {start.node: start.index for start in install.starts}
    # R6: operators whose source is absent now, or is back, begin anew
    changed = {cut.node for cut in install.history_gaps if cut.generation > context.install.run.generation}
    waiting = {name for part in before.parts for name in part.awaited}  # their state is still to come
    staying: dict[str, CarriedOver] = {}
    for name, core in flow.nodes.items():
        node, consumers = install.dataflow.by_name.get(name), install.dataflow.consumers.get(name, ())
        if node is None or where[name] != context.out.host or node.kind != "operator":
            continue
        same = (node.inputs, node.code) == (core.node.inputs, core.node.code)
        known = set(consumers) <= set(tree.consumers[name])  # others may have left
        as_far = core.state is not IDLE and core.index >= starts.get(name, LAST)
        if same and known and as_far and name not in waiting | changed:
            survivor = _survivor(before, core, node, install)
            if survivor is not None:
                staying[name] = survivor
    return staying


def _survivor(before: RunCore, core: NodeCore, node: Node, install: m.Install) -> CarriedOver | None:
    """Return an operator of this host, as it goes on as ``node`` (R2). None: it begins anew."""
    name, flow = node.name, before.flow
    if name in flow.tails.kept or flow.has_failed(name):
        return None
    run = flow.calls.held(name)
    called = flow.calls.called.get(name, before.id) if core.state is RUNNING and run is None else NO_RUN
    begins = firsts(install.dataflow.consumers[name], before.tree, install)
    return CarriedOver(core.going_on(node, begins), run, called)


class CarriedNodes(Part):
    """Operators on this host that have gone on from the generation before."""

    NEEDED_FOR = Need.FAILOVER

    @classmethod
    def of(cls, parts: RunParts) -> CarriedNodes:
        return cls(parts.context, parts.get(Tree), parts.get(Flow))

    def __init__(self, context: RunContext, tree: Tree, flow: Flow) -> None:
        self._install, self._tree, self._flow = context.install, tree, flow

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Repeat the open demands and calls of these operators. In a graph, announce where each goes on (R5)."""
        dataflow, flow = self._tree.dataflow, self._flow
        graph = self._install.kept_from is not None and bool(dataflow.several)
        survivors: Mapping[str, CarriedOver] = beginning.carried_over
        for name, survivor in survivors.items():
            node = survivor.node
            if survivor.run is not None:
                flow.perform(node, [survivor.run])
            # what was held goes out if fewer outputs are kept than before; the loop below demands the inputs
            flow.perform(node, [action for action in node.resume() if type(action) is not Ask])
            if graph and node.state is ENDED and len(dataflow.sinks) > 1:
                flow.perform(node, [Renounce(node.node.inputs)])
                continue
            for producer in node.node.inputs:
                if producer in node.received.asked:
                    flow.demands.demand(name, producer, node.index)
                elif graph:
                    flow.demands.skip(name, producer, node.got)
                flow.demands.begin_soon(name, producer)
        for name, node in list(flow.nodes.items()):
            if graph and node.node.kind == "operator" and name not in survivors:
                flow.perform(node, node.begin())
