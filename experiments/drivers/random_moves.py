"""Random moves for tests: a driver of a run that uses the calls of an application.

Rules:

R1. At every delivered partition the driver requests moves of some operators, or a change of the tree. While the last
    request is open, nothing new is requested.
R2. An operator has moved when the run reports the operator at the requested host.
R3. The run does not report refusals. If a request has not come about when the partitions in the tree are delivered, the
    driver repeats the request. The repetition has no effect on a change under way. In the end the driver gives up.
R4. After the set numbers of moves and changes of the tree, the driver requests nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Protocol

import msgspec

from thalweg.middleware.core.reshaping.shape import is_free
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.errors import PlacementError
from thalweg.middleware.planning.registry import Driver, RandomReshapes

MAX_FAN_IN = 4
GRACE = 2  # partitions to wait for beyond the partitions in the tree
TRIES = 4  # number of tries of a request


class Movable(Protocol):
    """Run as its application uses it: ``client.Run``, or a run in virtual time."""

    @property
    def tree(self) -> tuple[Dataflow, Placement]: ...

    def move(self, placement: Mapping[str, str]) -> object: ...

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> object: ...


class RandomMover:
    """Driver that moves operators of ``run`` to random hosts of ``hosts``, and changes the tree.

    ``free``: the reorderable codes.
    """

    def __init__(
        self,
        options: Driver,
        run: Movable,
        hosts: Sequence[str] | Callable[[], Sequence[str]],
        free: Collection[Code] = (),
    ) -> None:
        self._run, self._free = run, free
        self._there = hosts if callable(hosts) else lambda: hosts
        self._random = Random(options.seed)
        self._moves = options.moves  # moves that are left
        self._reshapes = options.reshapes if isinstance(options, RandomReshapes) else 0
        self._asked: Placement = {}  # requested hosts of operators
        self._before: Dataflow | None = None  # tree before the requested change
        self._ask: Callable[[], object]
        self._tries = self._wait = 0

    @property
    def _hosts(self) -> Sequence[str]:
        """Hosts that are present."""
        return self._there()

    @property
    def _open(self) -> bool:
        """Return whether a request is still open."""
        return bool(self._asked) or self._before is not None

    @property
    def left(self) -> int:
        """Number of moves and changes of the tree that have still to come about."""
        return self._moves + self._reshapes

    def on_delivered(self) -> None:
        """Handle the delivery of a partition: check the open requests, and make or repeat a request."""
        flow, placement = self._run.tree
        self._take_stock(flow, placement)
        self._wait -= 1
        if self._open and self._wait > 0:
            return  # R1: the last request has not come about yet
        if not self._open or self._tries == 0:
            self._choose(flow, placement)
        if self._open:
            with suppress(PlacementError):  # a host has gone: a later try finds the host again, or a new one
                self._ask()
            self._tries -= 1
            self._wait = max(flow.level.values()) + GRACE

    def _take_stock(self, flow: Dataflow, placement: Placement) -> None:
        for name, host in list(self._asked.items()):
            if placement.get(name, host) == host:  # R2: the run reports the operator at the requested host
                self._moves -= name in placement  # else the operator is not in the new tree
                del self._asked[name]
        if self._before is not None and self._before is not flow:
            self._reshapes -= 1
            self._before = None

    def _choose(self, flow: Dataflow, placement: Placement) -> None:
        """Choose the next request, if moves or changes of the tree are left."""
        self._asked, self._before, self._tries = {}, None, TRIES
        if len(self._hosts) < 2:
            return
        if self._reshapes > 0 and (not self._moves or self._random.randrange(3)):
            self._before = flow
            tree = shuffled(flow, placement, self._free, self._hosts, self._random.randrange)
            self._ask = functools.partial(self._run.reshape, *tree)
        else:
            free = [name for name in flow.operators if flow.by_name[name].pinned is None]
            some = min(self._moves, max(1, len(free) // 2), len(free))
            self._asked = {name: self._elsewhere(placement[name]) for name in self._random.sample(free, some)}
            self._ask = functools.partial(self._run.move, self._asked)  # only the moves that are still open

    def _elsewhere(self, host: str) -> str:
        return self._random.choice([name for name in self._hosts if name != host])


def shuffled(
    flow: Dataflow, placement: Placement, free: Collection[Code], hosts: Sequence[str], below: Callable[[int], int]
) -> tuple[Dataflow, Placement]:
    """Return a random tree with the same combinations, and a placement of its nodes.

    Args:
        flow, placement: the present tree. Operators that are not free stay.
        free: the codes that are reorderable.
        below: returns a random number in ``range(limit)``.
    """
    nodes: list[Node] = []
    where: Placement = {}
    count = 0

    def build(name: str) -> str:
        """Add the nodes of the new tree for ``name``, and return the name of the node with the same output."""
        nonlocal count
        node = flow.by_name[name]
        if not is_free(node, free):
            inputs = tuple([build(producer) for producer in node.inputs])
            nodes.append(msgspec.structs.replace(node, inputs=inputs))
            where[name] = placement[name]
            return name
        assert node.code is not None
        loose = [build(member) for member in _members(flow, name, free)]
        while True:
            picked = [loose.pop(below(len(loose))) for _ in range(min(len(loose), 1 + below(MAX_FAN_IN)))]
            while f"mix{count}" in flow.by_name:
                count += 1
            mix = f"mix{count}"
            count += 1
            nodes.append(Node(mix, "operator", tuple(picked), node.code))
            where[mix] = hosts[below(len(hosts))]
            loose.append(mix)
            if len(loose) == 1:
                return mix

    build(flow.sinks[0])
    return Dataflow(tuple(nodes)).validate(), where


def _members(flow: Dataflow, root: str, free: Collection[Code]) -> list[str]:
    """Return the inputs of the combination that ends at ``root``."""
    members: list[str] = []
    queue = [root]
    while queue:
        for name in flow.by_name[queue.pop()].inputs:
            same = is_free(flow.by_name[name], free) and flow.by_name[name].code == flow.by_name[root].code
            (queue if same else members).append(name)
    return members
