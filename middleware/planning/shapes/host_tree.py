"""Shapes: trees over hosts, and the dataflows that these trees stand for.

If combining is associative and commutative (the operators are ``reorderable``), every tree gives the same bytes, so a
planner may choose the tree. A shape is a ``HostTree``. Every host combines its own sources with the results of its
children, and sends one result on. This is enough as long as a combination is not larger than the sum of its inputs. A
host that would send two results can combine the two and send one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.planning.problem.hints import SupportsHints, propagate_hints
from thalweg.middleware.planning.problem.task import Task

Joining = Literal["pairs", "at-once"]


class HostTree(msgspec.Struct, frozen=True):
    """Tree over hosts. ``parent``: target of the result of every host but the ``root``, which has the sink.

    The order of ``parent`` is the order in which a host combines the results of its children.
    """

    root: str
    parent: dict[str, str]

    @property
    def children(self) -> dict[str, tuple[str, ...]]:
        """Hosts that send to each host."""
        children: dict[str, list[str]] = {self.root: [], **{host: [] for host in self.parent}}
        for host, parent in self.parent.items():
            children[parent].append(host)
        return {host: tuple(sending) for host, sending in children.items()}

    @property
    def upward(self) -> tuple[str, ...]:
        """Hosts of the tree, children before parents, the root last."""
        children, order, queue = self.children, [], [self.root]
        while queue:
            host = queue.pop()
            order.append(host)
            queue.extend(children[host])
        return tuple(reversed(order))


def host_tree(dataflow: Dataflow, placement: Mapping[str, str]) -> HostTree | None:
    """Return the tree over hosts of a placed dataflow. None: a host sends more than one result."""
    parent: dict[str, str] = {}
    crossing = 0
    for producer, consumer in dataflow.edges:
        source, target = placement[producer], placement[consumer]
        if source != target:
            crossing += 1
            if parent.setdefault(source, target) != target:
                return None
    root = placement[dataflow.sinks[0]]
    return None if root in parent or crossing != len(parent) else HostTree(root, parent)


class Freedom(msgspec.Struct, frozen=True):
    """Part of a dataflow that a planner may rearrange: the operators of one ``code`` that may be combined freely.

    ``answers``: sizes and times of every combination. ``sources``: names of the sources on every host with sources, in
    the dataflow's order.
    """

    code: Code
    answers: SupportsHints
    root: str
    sources: dict[str, tuple[str, ...]]


def freedom(task: Task) -> Freedom | None:
    """Return the freedom to rearrange the task's dataflow. None: the shape is fixed.

    The shape is fixed if the dataflow is no tree, or has no operators or fewer than two sources. The same holds if an
    operator is not reorderable, is pinned, or runs different code than the rest. Raises PlacementError if the host of
    the sink is not given.
    """
    dataflow, reorderable = task.dataflow, task.hints.reorderable
    operators = [dataflow.by_name[name] for name in dataflow.operators]
    if dataflow.not_a_tree() or not operators or len(dataflow.sources) < 2:
        return None
    first = operators[0]
    for node in operators:
        if node.name not in reorderable or node.pinned is not None or node.code != first.code:
            return None
    assert first.code is not None
    sources: dict[str, tuple[str, ...]] = {}
    for name in dataflow.sources:
        host = dataflow.by_name[name].pinned
        assert host is not None
        sources[host] = (*sources.get(host, ()), name)
    return Freedom(first.code, reorderable[first.name], task.root(dataflow.sinks[0]), sources)


def shaped(task: Task, free: Freedom, tree: HostTree, joining: Joining) -> tuple[Task, Placement]:
    """Return the task with the dataflow of ``tree`` over the same sources, and the placement of its nodes.

    The task has new hints. ``joining``: with ``pairs``, a host has one operator for each further input. An operator
    waits for its inputs while the next operator sends its output. With ``at-once``, a host has one operator for all
    inputs. Sources and sink stay as before. New operators do not use names that hints give to nodes outside the
    dataflow.
    """
    dataflow, hints = task.dataflow, task.hints
    reserved = {node.name for node in dataflow.nodes if node.kind != "operator"}
    reserved |= hints.output_bytes.keys() - dataflow.by_name.keys()
    names = (
        name for number in range(len(reserved) + 2 * len(dataflow.nodes)) if (name := f"op{number}") not in reserved
    )
    placement: Placement = {name: host for host, own in free.sources.items() for name in own}
    operators: list[Node] = []
    result: dict[str, str] = {}
    children = tree.children

    def combine(inputs: Sequence[str], host: str) -> str:
        node = Node(next(names), "operator", tuple(inputs), free.code)
        operators.append(node)
        placement[node.name] = host
        return node.name

    for host in tree.upward:
        arriving = [*free.sources.get(host, ()), *(result[child] for child in children[host])]
        if len(arriving) == 1:
            result[host] = arriving[0]
        elif joining == "at-once":
            result[host] = combine(arriving, host)
        else:
            result[host] = arriving[0]
            for producer in arriving[1:]:
                result[host] = combine((result[host], producer), host)
    sink = dataflow.by_name[dataflow.sinks[0]]
    placement[sink.name] = tree.root
    sources = [dataflow.by_name[name] for name in dataflow.sources]
    last = msgspec.structs.replace(sink, inputs=(result[tree.root],))
    reshaped = Dataflow((*sources, *operators, last)).validate()
    sizes = {name: hints.output_bytes[name] for name in dataflow.sources}
    disk = {name: size for name, size in hints.disk_bytes.items() if name in sizes}
    known = propagate_hints(reshaped, sizes, lambda _: free.answers, disk_bytes=disk)
    return task.but(dataflows=(reshaped,), hints=known), placement
