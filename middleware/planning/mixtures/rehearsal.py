"""Rehearsal of a stream over several trees: the deliveries of its partitions in discrete events, on constant links.

The model has what decides the pace of a stream at the runtime. A node gathers the inputs of one partition, runs its
code once, and holds the output until its consumer demands it (``core.flow.node``). A link carries one output after the
other, and a single interface one message after the other. A processor runs one call after the other, and a disk reads
one partition after the other. A tree has only a few partitions under way (``core.stripes.striping``, R1). Trees share
links, processors and disks. So the time in which deep trees fill, idle links between two partitions, and the slowest
part of each tree all have their effect, which rates alone do not have.

Left out are the order of the stream, partitions that are carried twice, and the change of links and sizes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

from thalweg.middleware.core.stripes.striping import UNKNOWN, most_open
from thalweg.middleware.planning.mixtures.pipelines import Pipeline
from thalweg.middleware.planning.problem.loads import Interface

KNOWN = 2  # deliveries of a tree until its pace is known
Call = Callable[[float], None]


class _Links:
    """Independent links. Each carries one output after the other. A demand waits for no output."""

    def __init__(self, rehearsal: Rehearsal, startup_s: float) -> None:
        self._at, self._startup_s = rehearsal.at, startup_s
        self._queues: dict[tuple[int, int], deque[tuple[float, Call]]] = {}

    def send(self, now: float, source: int, target: int, seconds: float, then: Call) -> None:
        queue = self._queues.setdefault((source, target), deque())
        queue.append((seconds, then))
        if len(queue) == 1:
            self._next(now, queue)

    def demand(self, now: float, source: int, target: int, then: Call) -> None:
        self._at(now + self._startup_s, then)

    def _next(self, now: float, queue: deque[tuple[float, Call]]) -> None:
        self._at(now + queue[0][0], lambda now: self._through(now, queue))

    def _through(self, now: float, queue: deque[tuple[float, Call]]) -> None:
        _, then = queue.popleft()
        if queue:
            self._next(now, queue)
        then(now)


class _Interfaces:
    """Interfaces of hosts. Each carries one message at a time: demands before outputs, then the oldest.

    With ``duplex``, a host has an interface for sending and an interface for receiving.
    """

    def __init__(self, rehearsal: Rehearsal, startup_s: float, hosts: int, *, duplex: bool) -> None:
        self._at, self._startup_s, self._duplex = rehearsal.at, startup_s, duplex
        self._busy = [False] * (2 * hosts)
        self._waiting: tuple[list[tuple[int, int, float, Call]], ...] = ([], [])  # demands, outputs

    def send(self, now: float, source: int, target: int, seconds: float, then: Call) -> None:
        self._waiting[1].append((*self._ends(source, target), seconds, then))
        self._start(now)

    def demand(self, now: float, source: int, target: int, then: Call) -> None:
        self._waiting[0].append((*self._ends(source, target), self._startup_s, then))
        self._start(now)

    def _ends(self, source: int, target: int) -> tuple[int, int]:
        return (2 * source, 2 * target + 1) if self._duplex else (2 * source, 2 * target)

    def _start(self, now: float) -> None:
        busy = self._busy
        for rank in self._waiting:
            gone = []
            for message in rank:
                source, target, _, _ = message
                if not (busy[source] or busy[target]):
                    busy[source] = busy[target] = True
                    gone.append(message)
            for message in gone:
                rank.remove(message)
                self._begin(now, *message)

    def _begin(self, now: float, source: int, target: int, seconds: float, then: Call) -> None:
        def through(now: float) -> None:
            then(now)
            self._busy[source] = self._busy[target] = False
            self._start(now)

        self._at(now + seconds, through)


class _Tree:
    """State of one tree: by node, its next partition and the demands and outputs that have arrived."""

    def __init__(self, number: int, pipe: Pipeline) -> None:
        count = len(pipe.host)
        self.number, self.pipe = number, pipe
        self.next = [0] * count  # number of outputs that the node has dispatched
        self.gathers = [False] * count  # the node has demanded the inputs of its next partition
        self.runs = [False] * count
        self.holds = [False] * count  # the next output is made, and not dispatched
        self.wanted = [0] * count  # number of outputs that the consumer has demanded
        self.came = [0] * count  # number of outputs that have arrived at the consumer
        self.given = 0  # number of partitions with an index
        self.done = 0
        self.sources = [place for place, inputs in enumerate(pipe.inputs) if not inputs]


class Rehearsal:
    """Deliveries of a stream over ``trees``, which all begin at time 0.

    ``hosts``: number of hosts. ``startup_s``: seconds of an empty message. One partition is under way over every edge.
    """

    def __init__(self, trees: Sequence[Pipeline], hosts: int, interface: Interface, startup_s: float) -> None:
        self._trees = [_Tree(number, pipe) for number, pipe in enumerate(trees)]
        self._events: list[tuple[float, int, Call]] = []
        self._number = 0
        self._processor_s, self._disk_s = [0.0] * hosts, [0.0] * hosts
        self._startup_s = startup_s
        self._links: _Links | _Interfaces
        if interface == "independent":
            self._links = _Links(self, startup_s)
        else:
            self._links = _Interfaces(self, startup_s, hosts, duplex=interface == "duplex")
        self.delivered_s: list[float] = []
        self.by_tree = [0] * len(trees)
        self.first_s = [math.inf] * len(trees)  # first delivery of every tree

    def at(self, time_s: float, call: Call) -> None:
        """Call ``call`` at a time."""
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, call))

    def run(self, partitions: int) -> list[float]:
        """Return the times of the first ``partitions`` deliveries. To be called once."""
        for tree in self._trees:
            tree.given = UNKNOWN if len(self._trees) > 1 else partitions  # a single tree is no stripe
            self._gather(0.0, tree, len(tree.pipe.host) - 1)
        events, delivered = self._events, self.delivered_s
        while len(delivered) < partitions:
            now, _, call = heapq.heappop(events)
            call(now)
        return delivered

    def _gather(self, now: float, tree: _Tree, node: int) -> None:
        """Have a node gather for its next partition: it demands the inputs."""
        tree.gathers[node] = True
        for producer in tree.pipe.inputs[node]:
            self._demand(now, tree, node, producer)
        self._run(now, tree, node)

    def _demand(self, now: float, tree: _Tree, node: int, producer: int) -> None:
        host, source, upto = tree.pipe.host[node], tree.pipe.host[producer], tree.next[node] + 1
        if host == source:
            self._demanded(now, tree, producer, upto)
        else:
            self._links.demand(now, host, source, lambda now: self._demanded(now, tree, producer, upto))

    def _demanded(self, now: float, tree: _Tree, node: int, upto: int) -> None:
        tree.wanted[node] = max(tree.wanted[node], upto)
        if not tree.gathers[node]:
            self._gather(now, tree, node)
        self._dispatch(now, tree, node)

    def _run(self, now: float, tree: _Tree, node: int) -> None:
        """Run a node's code if the inputs of its next partition are here."""
        if tree.runs[node] or tree.holds[node] or not tree.gathers[node]:
            return
        pipe, index = tree.pipe, tree.next[node]
        inputs = pipe.inputs[node]
        if not inputs and index >= tree.given:
            return
        for producer in inputs:
            if tree.came[producer] <= index:
                return
        if pipe.consumer[node] < 0:
            self._deliver(now, tree, node)
            return
        free_s, host = self._processor_s if inputs else self._disk_s, pipe.host[node]
        free_s[host] = max(now, free_s[host]) + pipe.works_s[node]
        tree.runs[node] = True
        self.at(free_s[host], lambda now: self._made(now, tree, node))

    def _made(self, now: float, tree: _Tree, node: int) -> None:
        tree.runs[node], tree.holds[node] = False, True
        self._dispatch(now, tree, node)

    def _dispatch(self, now: float, tree: _Tree, node: int) -> None:
        """Dispatch a node's output if its consumer has demanded it."""
        if not tree.holds[node] or tree.wanted[node] <= tree.next[node]:
            return
        tree.holds[node] = False
        tree.next[node] += 1
        pipe, consumer = tree.pipe, tree.pipe.consumer[node]
        if pipe.sends_s[node]:
            self._links.send(
                now, pipe.host[node], pipe.host[consumer], pipe.sends_s[node],
                lambda now: self._arrived(now, tree, node, consumer),
            )  # fmt: skip
        else:
            self._arrived(now, tree, node, consumer)
        self._gather(now, tree, node)

    def _arrived(self, now: float, tree: _Tree, node: int, consumer: int) -> None:
        tree.came[node] += 1
        self._run(now, tree, consumer)

    def _deliver(self, now: float, tree: _Tree, sink: int) -> None:
        self.delivered_s.append(now)
        self.by_tree[tree.number] += 1
        self.first_s[tree.number] = min(now, self.first_s[tree.number])
        tree.done += 1
        tree.next[sink] += 1
        given = tree.done + self._under_way(tree)
        self.at(now + self._startup_s, lambda now: self._given(now, tree, given))
        self._gather(now, tree, sink)

    def _given(self, now: float, tree: _Tree, given: int) -> None:
        tree.given = max(tree.given, given)
        for source in tree.sources:
            self._run(now, tree, source)

    def _under_way(self, tree: _Tree) -> int:
        """Return how many partitions a tree may have under way (``core.stripes.striping``, R1)."""
        if tree.done < KNOWN:
            return UNKNOWN
        return most_open(tree.pipe.levels, len(self._trees))
