"""Shapes: trees over hosts, and the dataflows that they stand for.

Where combining is associative and commutative (the operators say so: ``reorderable``) any tree gives the same bytes,
so a planner may choose it. A shape is a ``HostTree``: every host combines its own sources with what other hosts
send it and sends one result on. More is not needed as long as a combination is not larger than its inputs together:
whatever a host would send twice, it sends once when it combines it first.
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
    """A tree over hosts: ``parent`` says for each host but the ``root`` where its result goes; the sink is there.

    The order of ``parent`` is the order in which a host combines what comes from its children.
    """

    root: str
    parent: dict[str, str]

    @property
    def children(self) -> dict[str, tuple[str, ...]]:
        """For every host the hosts that send to it."""
        children: dict[str, list[str]] = {self.root: [], **{host: [] for host in self.parent}}
        for host, parent in self.parent.items():
            children[parent].append(host)
        return {host: tuple(sending) for host, sending in children.items()}

    @property
    def upward(self) -> tuple[str, ...]:
        """All hosts, children before parents, the root last."""
        children, order, queue = self.children, [], [self.root]
        while queue:
            host = queue.pop()
            order.append(host)
            queue.extend(children[host])
        return tuple(reversed(order))


def host_tree(dataflow: Dataflow, placement: Mapping[str, str]) -> HostTree | None:
    """The tree over hosts that a placed dataflow is; None where a host sends more than one result."""
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
    """What a planner may rearrange: all of a dataflow's operators, which run one ``code`` and may be combined anyhow.

    ``answers``: tells sizes and times of any combination; ``sources``: the names of the sources on every host that has
    some, in the dataflow's order.
    """

    code: Code
    answers: SupportsHints
    root: str
    sources: dict[str, tuple[str, ...]]


def freedom(task: Task) -> Freedom | None:
    """What of the task's dataflow may be rearranged; None where its shape is fixed.

    It is where an operator does not say that it is reorderable, is pinned, or runs other code than the rest, and where
    the dataflow is no tree. Raises PlacementError when nobody says where the sink is.
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
    """The task with the dataflow of ``tree`` over the same sources, and what is known of it; and where its nodes are.

    ``joining``: whether a host combines its inputs with one operator each (``pairs``: one waits for its inputs while
    the next sends its output) or with one for all (``at-once``). Sources and sink stay as they are. Names that hints
    give to nodes which are no part of the dataflow are left to them.
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
