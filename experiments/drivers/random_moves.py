"""Moves at random, for tests: a driver of a run from outside, through the calls that any application has.

Rules:

R1. At every partition that is delivered some operators are asked to be elsewhere, or the tree to be another one, unless
    what was asked for last is still to come.
R2. An operator has moved when the run says that it is where it was asked to be.
R3. The run says nothing of what it refuses. What has not come about when the partitions that were in the tree are out
    is asked for again, which changes nothing where it is under way, and given up in the end.
R4. When as many have moved as shall, and the tree has changed as often, nothing more is asked for.
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
GRACE = 2  # partitions, beyond those that are in the tree
TRIES = 4  # to ask for something


class Movable(Protocol):
    """A run as its application has it: ``client.Run``, or one in virtual time."""

    @property
    def tree(self) -> tuple[Dataflow, Placement]: ...

    def move(self, placement: Mapping[str, str]) -> object: ...

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> object: ...


class RandomMover:
    """Moves operators of ``run`` to any of ``hosts``, and has its tree change; ``free``: the reorderable codes."""

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
        self._moves = options.moves  # that are left
        self._reshapes = options.reshapes if isinstance(options, RandomReshapes) else 0
        self._asked: Placement = {}  # where operators are to be
        self._before: Dataflow | None = None  # the tree that is to change
        self._ask: Callable[[], object]
        self._tries = self._wait = 0

    @property
    def _hosts(self) -> Sequence[str]:
        """Those that are there."""
        return self._there()

    @property
    def _open(self) -> bool:
        """Whether something that was asked for is still to come."""
        return bool(self._asked) or self._before is not None

    @property
    def left(self) -> int:
        """How many moves and changes of the tree have still to be seen done."""
        return self._moves + self._reshapes

    def on_delivered(self) -> None:
        """The application has got a partition."""
        flow, placement = self._run.tree
        self._take_stock(flow, placement)
        self._wait -= 1
        if self._open and self._wait > 0:
            return  # R1: the last request has not come about yet
        if not self._open or self._tries == 0:
            self._choose(flow, placement)
        if self._open:
            with suppress(PlacementError):  # a host has gone: it is there again for a later try, or another is chosen
                self._ask()
            self._tries -= 1
            self._wait = max(flow.level.values()) + GRACE

    def _take_stock(self, flow: Dataflow, placement: Placement) -> None:
        for name, host in list(self._asked.items()):
            if placement.get(name, host) == host:  # R2: the run says that the operator is where it was asked to be
                self._moves -= name in placement  # else it has gone with another tree
                del self._asked[name]
        if self._before is not None and self._before is not flow:
            self._reshapes -= 1
            self._before = None

    def _choose(self, flow: Dataflow, placement: Placement) -> None:
        """Something else to ask for, if there is more to be done."""
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
            self._ask = functools.partial(self._run.move, self._asked)  # what of it is still to come

    def _elsewhere(self, host: str) -> str:
        return self._random.choice([each for each in self._hosts if each != host])


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

    build(flow.sinks[0])
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
