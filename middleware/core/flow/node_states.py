"""The states of a node, and what moves between them: ``TRANSITIONS``, by the rules of ``node``."""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Term


class NodeState(Term):
    IDLE = "idle"  # nothing has been demanded of it yet
    GATHERING = "gathering"
    RUNNING = "running"
    HOLDING = "holding"
    DRAINING = "draining"  # to leave as soon as the slower consumers have been sent what the faster ones were
    LIGHT = "light"  # about to leave, or just come
    ENDED = "ended"


class NodeEvent(Term):
    DEMANDED = "demanded"
    GATHERED = "gathered"
    DELIVERED = "delivered"  # the sink's gathering is complete
    FINISHED = "finished"
    DISPATCHED = "dispatched"
    RECALLED = "recalled"  # it is to leave, and some consumers lag behind
    FROZEN = "frozen"  # nothing in hand, and it is to leave
    THAWED = "thawed"  # it stays, or it has come
    EXHAUSTED = "exhausted"  # the last partition, or the end marker, has been dispatched or delivered
    REPLACED = "replaced"  # another node makes what is next
    RENOUNCED = "renounced"  # nobody wants anything of it any more


# Members by names of their own: through their class each look-up is a call of Python code (3.11), for every message.
IDLE, GATHERING, RUNNING, HOLDING, DRAINING, LIGHT, ENDED = NodeState
DEMANDED, GATHERED, DELIVERED, FINISHED, DISPATCHED, RECALLED, FROZEN, THAWED, EXHAUSTED, REPLACED, RENOUNCED = (
    NodeEvent
)


TRANSITIONS: dict[tuple[NodeState, NodeEvent], NodeState] = {
    (NodeState.IDLE, NodeEvent.DEMANDED): NodeState.GATHERING,
    (NodeState.GATHERING, NodeEvent.GATHERED): NodeState.RUNNING,
    (NodeState.GATHERING, NodeEvent.DELIVERED): NodeState.IDLE,
    (NodeState.GATHERING, NodeEvent.FINISHED): NodeState.HOLDING,  # an input ended: nothing is left to run
    (NodeState.RUNNING, NodeEvent.FINISHED): NodeState.HOLDING,
    (NodeState.HOLDING, NodeEvent.DISPATCHED): NodeState.GATHERING,
    (NodeState.HOLDING, NodeEvent.EXHAUSTED): NodeState.ENDED,
    (NodeState.IDLE, NodeEvent.EXHAUSTED): NodeState.ENDED,
    (NodeState.IDLE, NodeEvent.FROZEN): NodeState.LIGHT,
    (NodeState.GATHERING, NodeEvent.FROZEN): NodeState.LIGHT,
    (NodeState.HOLDING, NodeEvent.FROZEN): NodeState.LIGHT,
    (NodeState.GATHERING, NodeEvent.RECALLED): NodeState.DRAINING,
    (NodeState.DRAINING, NodeEvent.FROZEN): NodeState.LIGHT,
    (NodeState.DRAINING, NodeEvent.THAWED): NodeState.GATHERING,
    (NodeState.LIGHT, NodeEvent.THAWED): NodeState.GATHERING,
    (NodeState.IDLE, NodeEvent.REPLACED): NodeState.ENDED,
    (NodeState.GATHERING, NodeEvent.REPLACED): NodeState.ENDED,
    (NodeState.IDLE, NodeEvent.RENOUNCED): NodeState.ENDED,
    (NodeState.GATHERING, NodeEvent.RENOUNCED): NodeState.ENDED,
    (NodeState.RUNNING, NodeEvent.RENOUNCED): NodeState.ENDED,
    (NodeState.HOLDING, NodeEvent.RENOUNCED): NodeState.ENDED,
}
