"""Nodes for playbooks: a source, an operator of two inputs and a sink. The nodes record their transitions."""

from __future__ import annotations

from typing import Any

from playbook import Arrived, Demanded, Finished, NodePlaybook

from thalweg.middleware.core.flow.actions import Ask, Dispatch, Output, RunCode
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.node_states import NodeEvent, NodeState
from thalweg.middleware.dataflow import Code, Node
from thalweg.middleware.protocol import messages as m

CODE = Code("some")
SOURCE = Node("s", "source", (), CODE, "h1")


class Traced(NodeCore):
    """Node that records the table entries of its transitions."""

    def __init__(self, node: Node, limit: int | None = None, *others: Any, **more: Any) -> None:
        self.used: list[tuple[NodeState, NodeEvent]] = []
        super().__init__(node, limit, *others, **more)

    def to(self, trigger: NodeEvent) -> None:
        entry = (self.state, trigger)
        super().to(trigger)
        self.used.append(entry)


def source(limit: int | None = None) -> NodePlaybook:
    return NodePlaybook(Traced(SOURCE, limit))


def operator(limit: int | None = None) -> NodePlaybook:
    return NodePlaybook(Traced(Node("o", "operator", ("a", "b"), CODE), limit))


def sink(limit: int | None = None) -> NodePlaybook:
    return NodePlaybook(Traced(Node("t", "sink", ("o",)), limit))


def out(index: int, value: object = None, *, end: m.End = False) -> Output:
    return Output(index, value, 0, end)


def shared(node: Node = SOURCE) -> NodePlaybook:
    """Return a node with the consumers x and y."""
    return NodePlaybook(Traced.begun(node, None, 0, {"x": 0, "y": 0}))


def ahead(of: int) -> NodePlaybook:
    """Return an operator with consumers x and y that keeps ``of`` outputs. All of them have been sent to x."""
    book = shared(Node("o", "operator", ("a",), CODE, ahead=of))
    book << Demanded(0, by="x") >> [Ask(0)]
    for index in range(of):
        book << Arrived("a", index) >> [RunCode(index, (None,))]
        book << Finished(index, f"o{index}") >> [Dispatch(out(index, f"o{index}"), consumer="x"), Ask(index + 1)]
        book << Demanded(index + 1, by="x") >> []
    return book


def under_way(book: NodePlaybook, index: int, consumer: str = "") -> None:
    """Record that a transfer of output ``index`` to a consumer has begun and is not over."""
    book.node.window.consumers[consumer].was_sent(index, "h2", under_way=True)


def deep(book: NodePlaybook, depth: int = 3) -> NodePlaybook:
    """Return the playbook with ``depth`` partitions under way."""
    book.node.window.depth = depth
    return book
