"""Shapes: trees over hosts, and the dataflows that they stand for.

Where combining is associative and commutative (the operators say so: ``reorderable``) any tree gives the same bytes,
so a planner may choose it. A shape is a :class:`HostTree`: every host combines its own sources with what other hosts
send it and sends one result on. More is not needed as long as a combination is not larger than its inputs together:
whatever a host would send twice, it sends once when it combines it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.planning.problem.hints import Hints, SupportsHints, propagate_hints

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
        found: dict[str, list[str]] = {self.root: [], **{host: [] for host in self.parent}}
        for host, parent in self.parent.items():
            found[parent].append(host)
        return {host: tuple(sending) for host, sending in found.items()}

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
    root = placement[dataflow.sink]
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


def freedom(dataflow: Dataflow, hints: Hints, current: Mapping[str, str] | None = None) -> Freedom | None:
    """What of ``dataflow`` may be rearranged; None where its shape is fixed.

    It is where an operator does not say that it is reorderable, is pinned, or runs other code than the rest, and where
    the dataflow is no tree.
    ``current`` says where a sink without a pin is.
    """
    operators = [dataflow.by_name[name] for name in dataflow.operators]
    sink = dataflow.by_name[dataflow.sink]
    root = sink.pinned or (current or {}).get(sink.name)
    if root is None or len(operators) < 1 or len(dataflow.sources) < 2:
        return None
    if len(dataflow.edges) != len(dataflow.nodes) - 1:  # no tree
        return None
    first = operators[0]
    for node in operators:
        if node.name not in hints.reorderable or node.pinned is not None or node.code != first.code:
            return None
    assert first.code is not None
    sources: dict[str, tuple[str, ...]] = {}
    for name in dataflow.sources:
        host = dataflow.by_name[name].pinned
        assert host is not None
        sources[host] = (*sources.get(host, ()), name)
    return Freedom(first.code, hints.reorderable[first.name], root, sources)


def shaped(
    dataflow: Dataflow, hints: Hints, free: Freedom, tree: HostTree, joining: Joining
) -> tuple[Dataflow, Placement, Hints]:
    """The dataflow of ``tree`` over the sources of ``dataflow``, where its nodes are, and what is known of them.

    ``joining``: whether a host combines its inputs with one operator each (``pairs``: one waits for its inputs while
    the next sends its output) or with one for all (``at-once``). Sources and sink stay as they are.
    """
    taken = {node.name for node in dataflow.nodes if node.kind != "operator"}
    names = (name for number in range(len(taken) + 2 * len(dataflow.nodes)) if (name := f"op{number}") not in taken)
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
            for each in arriving[1:]:
                result[host] = combine((result[host], each), host)
    sink = dataflow.by_name[dataflow.sink]
    placement[sink.name] = tree.root
    sources = [dataflow.by_name[name] for name in dataflow.sources]
    last = msgspec.structs.replace(sink, inputs=(result[tree.root],))
    made = Dataflow((*sources, *operators, last)).validate()
    sizes = {name: hints.output_bytes[name] for name in dataflow.sources}
    disk = {name: size for name, size in hints.disk_bytes.items() if name in sizes}
    return made, placement, propagate_hints(made, sizes, lambda _: free.answers, disk_bytes=disk)
