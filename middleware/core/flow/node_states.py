"""States of a node, and the transitions between the states (``TRANSITIONS``), by the rules of ``node``."""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Term


class NodeState(Term):
    IDLE = "idle"  # no consumer has demanded a partition yet
    GATHERING = "gathering"
    RUNNING = "running"
    HOLDING = "holding"
    DRAINING = "draining"  # leaves as soon as the slower consumers were sent the outputs of the fastest consumer
    LIGHT = "light"  # about to leave, or just come
    ENDED = "ended"


class NodeEvent(Term):
    DEMANDED = "demanded"
    GATHERED = "gathered"
    DELIVERED = "delivered"  # a sink has gathered its inputs
    FINISHED = "finished"
    DISPATCHED = "dispatched"
    RECALLED = "recalled"  # the node is to leave, and consumers lag behind
    FROZEN = "frozen"  # the node is to leave, and holds no output
    THAWED = "thawed"  # the node stays, or has come
    EXHAUSTED = "exhausted"  # the last partition, or the end marker, has been dispatched or delivered
    REPLACED = "replaced"  # another node makes the next partitions
    RENOUNCED = "renounced"  # no consumer needs the node any longer


# Names for the members, because a look-up through the class calls Python code (3.11), for every message.
IDLE, GATHERING, RUNNING, HOLDING, DRAINING, LIGHT, ENDED = NodeState
DEMANDED, GATHERED, DELIVERED, FINISHED, DISPATCHED, RECALLED, FROZEN, THAWED, EXHAUSTED, REPLACED, RENOUNCED = (
    NodeEvent
)


TRANSITIONS: dict[tuple[NodeState, NodeEvent], NodeState] = {
    (NodeState.IDLE, NodeEvent.DEMANDED): NodeState.GATHERING,
    (NodeState.GATHERING, NodeEvent.GATHERED): NodeState.RUNNING,
    (NodeState.GATHERING, NodeEvent.DELIVERED): NodeState.IDLE,
    (NodeState.GATHERING, NodeEvent.FINISHED): NodeState.HOLDING,  # an input ended, so there is no call
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
