"""Random shapes of a tree, for tests: every combination of free operators is made some other way, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from thalweg.middleware.core.relocation.shape import is_free
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement

MAX_FAN_IN = 4


def shuffled(
    flow: Dataflow, placement: Placement, free: Collection[Code], hosts: Sequence[str], below: Callable[[int], int]
) -> tuple[Dataflow, Placement]:
    """Another tree that makes the same combinations, and where its operators are to be.

    Args:
        flow, placement: the tree there is; operators that are not free stay.
        free: the codes that are reorderable.
        below: a number at random in ``range(limit)``.
    """
    nodes: list[Node] = []
    where: Placement = {}
    count = 0

    def build(name: str) -> str:
        """The new name of what ``name`` makes."""
        nonlocal count
        node = flow.by_name[name]
        if not is_free(node, free):
            inputs = tuple([build(each) for each in node.inputs])
            nodes.append(msgspec.structs.replace(node, inputs=inputs))
            where[name] = placement[name]
            return name
        assert node.code is not None
        loose = [build(each) for each in _members(flow, name, free)]
        while True:
            picked = [loose.pop(below(len(loose))) for _ in range(min(len(loose), 1 + below(MAX_FAN_IN)))]
            while f"mix{count}" in flow.by_name:
                count += 1
            made = f"mix{count}"
            count += 1
            nodes.append(Node(made, "operator", tuple(picked), node.code))
            where[made] = hosts[below(len(hosts))]
            loose.append(made)
            if len(loose) == 1:
                return made

    build(flow.sink)
    return Dataflow(tuple(nodes)).validate(), where


def _members(flow: Dataflow, root: str, free: Collection[Code]) -> list[str]:
    """What a combination combines: inputs of free operators of one code that feed each other."""
    found: list[str] = []
    queue = [root]
    while queue:
        for name in flow.by_name[queue.pop()].inputs:
            same = is_free(flow.by_name[name], free) and flow.by_name[name].code == flow.by_name[root].code
            (queue if same else found).append(name)
    return found
