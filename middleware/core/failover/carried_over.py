"""Operators of a host that continue in the next generation of a run, which has lost a host.

Rules:

R1. Only the operators of the lost host restart, from replicas (``recovery``), and all sources, which make the demanded
    partitions again. The remaining operators continue with their state, inputs, held output and code, even during a
    call. The host closes the old generation and opens the new generation in the same event. So messages of the old
    generation are ignored, as always.
R2. An operator continues if the new generation has it on this host, with the same inputs and consumer, and if the
    operator has got as far as its start. It restarts if it waits for a replica or for states, if its last output is on
    a second host, or if it has not begun. Both are sound, whatever the remaining hosts do, so the hosts need not agree.
R3. An operator keeps its outputs from the start of its consumer on (``flow.replay_log``). So a restarted node gets its
    inputs again, and the first demand of its consumer shows the progress of the consumer. The client begins a
    generation of this kind only if no operator would start before outputs that have been dropped
    (``CheckpointsObsolete``). This holds unless a state is lost with all its replicas.
R4. An output may be missing even so: there were too many bytes, or the output stayed on an earlier host of the
    operator. The host reports the missing output (``StateMissing``), and every node restarts. Nodes of earlier
    generations do not continue after that (``Install.kept_from``).
R5. If nodes have several consumers, every consumer continues with a partition of its own. The consumers announce the
    partition at once (R6 of ``flow.flow``), and restarted nodes gather at once. So no node waits for a consumer that
    needs nothing.
R6. Consumers of a source that is absent, or is back, restart (``protocol.absent_sources``). The remaining nodes
    continue.
R7. Hand-overs, proposals and new trees end with the generation. An operator that was to leave continues on its host. An
    operator that was to come is not there. While the client has two trees, every node restarts.
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
    """Return the operators here that continue in the generation of ``install`` (R2)."""
    context, tree, flow = before.context, before.tree, before.flow
    if install.kept_from is None or tree.former is not None:
        return {}
    if not install.kept_from <= context.install.run.generation < install.run.generation:
        return {}
    where = {entry.node: entry.host for entry in install.locations}
    starts = {start.node: start.index for start in install.starts}
    # R6: operators whose source is absent now, or is back, restart
    changed = {cut.node for cut in install.history_gaps if cut.generation > context.install.run.generation}
    waiting = {name for part in before.parts for name in part.awaited}  # operators without their state
    staying: dict[str, CarriedOver] = {}
    for name, core in flow.nodes.items():
        node, consumers = install.dataflow.by_name.get(name), install.dataflow.consumers.get(name, ())
        if node is None or where[name] != context.out.host or node.kind != "operator":
            continue
        same = (node.inputs, node.code) == (core.node.inputs, core.node.code)
        known = set(consumers) <= set(tree.consumers[name])  # further consumers may have left
        as_far = core.state is not IDLE and core.index >= starts.get(name, LAST)
        if same and known and as_far and name not in waiting | changed:
            survivor = _survivor(before, core, node, install)
            if survivor is not None:
                staying[name] = survivor
    return staying


def _survivor(before: RunCore, core: NodeCore, node: Node, install: m.Install) -> CarriedOver | None:
    """Return the entry of an operator that continues as ``node`` (R2). None: the operator restarts."""
    name, flow = node.name, before.flow
    if name in flow.tails.kept or flow.has_failed(name):
        return None
    run = flow.calls.held(name)
    called = flow.calls.called.get(name, before.id) if core.state is RUNNING and run is None else NO_RUN
    begins = firsts(install.dataflow.consumers[name], before.tree, install)
    return CarriedOver(core.going_on(node, begins), run, called)


class CarriedNodes(Part):
    """Operators on this host since the previous generation."""

    NEEDED_FOR = Need.FAILOVER

    @classmethod
    def of(cls, parts: RunParts) -> CarriedNodes:
        return cls(parts.context, parts.get(Tree), parts.get(Flow))

    def __init__(self, context: RunContext, tree: Tree, flow: Flow) -> None:
        self._install, self._tree, self._flow = context.install, tree, flow

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Repeat the open demands and calls of the operators. In a graph, announce the next partitions (R5)."""
        dataflow, flow = self._tree.dataflow, self._flow
        graph = self._install.kept_from is not None and bool(dataflow.several)
        survivors: Mapping[str, CarriedOver] = beginning.carried_over
        for name, survivor in survivors.items():
            node = survivor.node
            if survivor.run is not None:
                flow.perform(node, [survivor.run])
            # a held output is dispatched if fewer outputs are kept than before. The loop below demands the inputs
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
