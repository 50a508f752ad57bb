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
R3. An operator keeps its outputs from where its consumer would start (``flow.replay_log``). So whoever begins anew, with
    whatever has gone on around it, is given what it wants again, and its consumer's first demand tells how far it is.
    The client lets the next generation be of this kind only if no operator would start before what it has had
    dropped (``CheckpointsObsolete``); that is so as long as no state is lost with all its replicas.
R4. Where an output is not there nevertheless (there were too many bytes of them, or the operator has come from another
    host since, where they stayed), the host says so (``StateMissing``), and the run begins wholly anew. What was in a
    generation before that one does not go on in a later one (``Install.kept_from``).
R5. Where nodes have several consumers, each of these goes on with a partition of its own. So that nobody waits for the
    word of who has all that it wants, all say it at once (``flow.demands``), and what begins anew gathers at once.
R6. What takes from a source that is missing, or is back, begins anew (``protocol.absent_sources``): the rest goes on.
R7. Hand-overs, proposals and other trees that are under way are over with the generation: an operator that was to leave
    goes on where it is, one that was to come is not there. While the client has two trees, all nodes begin anew.
"""

from __future__ import annotations

from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.flow import CarriedOver
from thalweg.middleware.core.flow.node_states import IDLE
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.protocol import messages as m


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
        if node is None or where[name] != context.out.host or node.kind != "operator" or core.state is IDLE:
            continue
        same = (node.inputs, node.code) == (core.node.inputs, core.node.code) and name not in changed
        known = set(consumers) <= set(tree.consumers[name])  # others may have left
        if same and known and name not in waiting and core.index >= starts.get(name, LAST):
            survivor = flow.survivor(name, node, install)
            if survivor is not None:
                staying[name] = survivor
    return staying
