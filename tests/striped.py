"""Streams over several trees in a virtual world: trees, code of nodes, and runs whose values are checked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
from run_ids import run_of

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import Striped, WorldConfig
from thalweg.emulation.virtual.faults import Crash, Cut, Fault, FaultPlan, Outage, Slow, Stop, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.links import LinkRate, ShapedLink
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults.stripes import OneStripe
from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable
from thalweg.middleware.network.view import Link, links_between
from thalweg.middleware.planning.registry import Driver, RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.split_graph import PlacedGraph, parted, split_graph
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "h3", "h4", "client")
CODE, ADDS = Code("composite"), Code("running")
SIZE = 10_000


class Says(NodeCode):
    """Code whose value is the index and the number of sources."""

    reorderable = True

    def __init__(self, length: float = math.inf) -> None:
        self.length = length

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        if index >= self.length:
            return NodeResult(None, 0, 0.0, True)
        assert all(value[0] == index for value in inputs), (index, inputs)
        return NodeResult((index, sum(value[1] for value in inputs) or 1), SIZE, 0.0)


def relay(via: str) -> tuple[Dataflow, dict[str, str]]:
    """Return a tree of two sources on h1 and h2, combined on ``via``."""
    sources = [Node(name, "source", (), CODE, host) for name, host in (("s1", "h1"), ("s2", "h2"))]
    flow = Dataflow((*sources, Node("o", "operator", ("s1", "s2"), CODE), Node("t", "sink", ("o",), None, "client")))
    return flow, {"s1": "h1", "s2": "h2", "o": via, "t": "client"}


def wide(seed: int) -> tuple[Dataflow, dict[str, str]]:
    """Return a tree of four sources on four hosts, combined by two operators."""
    sources = [Node(f"s{i}", "source", (), CODE, HOSTS[i]) for i in range(4)]
    left, right = ("s0", "s1"), ("s2", "s3")
    nodes = (*sources, Node("o", "operator", left, CODE), Node("p", "operator", ("o", *right), CODE))
    where = {"o": HOSTS[seed % 4], "p": HOSTS[(seed + 1) % 4], "t": "client"}
    return Dataflow((*nodes, Node("t", "sink", ("p",), None, "client"))), {s.name: s.pinned for s in sources} | where


class Adds(NodeCode):
    """Code with state that has to get every partition once, in order. Its values depend on all partitions."""

    keeps_state = True

    def __init__(self) -> None:
        self.seen, self.sum = 0, 0

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        assert index == self.seen, (index, self.seen)
        self.seen, self.sum = index + 1, added(self.sum, inputs[0])
        return NodeResult((index, self.sum), SIZE, 0.0)

    def snapshot(self) -> bytes:
        return f"{self.seen} {self.sum}".encode()

    def restore(self, state: bytes) -> None:
        self.seen, self.sum = map(int, state.split())


def added(before: int, value: tuple[int, int]) -> int:
    """Return the sum that ``Adds`` has after ``value``."""
    return (31 * before + value[0] + value[1]) % (1 << 61)


def topped(tree: tuple[Dataflow, dict[str, str]], at: str = "client", more: bool = False) -> PlacedGraph:
    """Return the tree with an operator above that has state, on host ``at``. ``more``: a further operator on top, and a
    second sink for the root and the first source of the tree."""
    flow, where = tree
    root, first = flow.by_name["t"].inputs[0], flow.sources[0]
    nodes = [node for node in flow.nodes if node.kind != "sink"]
    nodes.append(Node("c", "operator", (root,), ADDS))
    if more:
        nodes += [Node("d", "operator", ("c",), CODE), Node("u", "sink", (root, first), None, "client")]
    nodes.append(Node("t", "sink", ("d" if more else "c",), None, "client"))
    over = {"c": at, **({"d": at, "u": "client"} if more else {})}
    return PlacedGraph(Dataflow(tuple(nodes)), {**where, **over})


class Ran:
    """Run of a stream over trees and an upper graph, with delivered indices, times and records."""

    above: PlacedGraph | None = None

    def __init__(
        self,
        *trees: tuple[Dataflow, dict[str, str]],
        partitions: int | None = 40,
        window: int = 0,
        slow: Mapping[Link, float | BandwidthTrace] = {},
        delay_s: float = 0.0,
        plan: FaultPlan | None = None,
        length: float = math.inf,
        moves: Driver | None = None,
        failover: m.Failover | None = None,
        ahead: int = 1,
    ) -> None:
        if remembering := [node.name for node in trees[0][0].nodes if node.code == ADDS]:
            parts = [split_graph(flow, remembering, "client") for flow, _ in trees]
            divided = [parted(PlacedGraph(*tree), part, "client") for tree, part in zip(trees, parts, strict=True)]
            trees, self.above = tuple([(*below,) for below, _ in divided]), divided[0][1]
        rates = {link: slow.get(link, 1e5) for link in links_between(HOSTS)}
        links: dict[Link, LinkRate] = {
            link: BandwidthTrace.constant(" ".join(link), rate) if isinstance(rate, float) else rate
            for link, rate in rates.items()
        }
        if delay_s:
            shapes = [(0.0, LinkShape(1.0, delay_s))]
            links = {link: ShapedLink(rate, shapes, " ".join(link)) for link, rate in links.items()}
        config = WorldConfig("independent", startup_s=0.0, validate=True, ahead=ahead)
        self.records: list[tuple[str, float, e.Record]] = []
        self.got: dict[str, list[int]] = defaultdict(list)
        self.made = len(trees[0][0].sources)
        self.sums: list[int] = []
        self.seconds: list[float] = []
        self.most = 0
        self.world = world = FaultyWorld(
            HOSTS, links, lambda node: Adds() if node.code == ADDS else Says(length), plan or FaultPlan(1, ()), config,
            on_record=lambda *given: self.records.append(given),
        )  # fmt: skip
        world.failover = failover

        def delivered(command: e.Deliver, now: float) -> None:
            assert command.value == self.right(command.sink, command.index)
            self.got[command.sink].append(command.index)
            if command.sink == "t":
                self.seconds.append(now)
            stream = world.hosts["client"].core._stripes.led[run_of("run")]
            self.most = max(self.most, len(stream.held))
            for mover in self.movers:
                mover.on_delivered()

        self.movers: list[RandomMover] = []
        if moves is not None:
            stripes = [OneStripe(world, number) for number in range(len(trees))]
            options = [msgspec.structs.replace(moves, seed=number) for number in range(len(trees))]
            self.movers = [RandomMover(o, stripe, HOSTS, (CODE,)) for o, stripe in zip(options, stripes, strict=True)]
            if self.above is not None and moves.moves:
                self.movers.append(RandomMover(RandomMoves(moves.moves), OneStripe(world, None), HOSTS, ()))
        world.on_delivered = delivered
        striped, free = Striped(trees, window=window, above=self.above), Reorderable((CODE,), ())
        world.run_stripes(striped, partitions, reorderable=free)
        for name, host in world.hosts.items():
            if host.gone_s == math.inf:
                assert not host.core.runs, name
                assert not host.code, name
        assert not world.hosts["client"].core._stripes.led

    def right(self, sink: str, index: int) -> Any:
        """Return the value of a single process for an index of a sink."""
        value = index, self.made
        if self.above is None:
            return value
        if sink == "u":
            return value, (index, 1)
        for number in range(len(self.sums), index + 1):
            self.sums.append(added(self.sums[-1] if number else 0, (number, self.made)))
        return index, self.sums[index]

    @property
    def indices(self) -> list[int]:
        """Return the indices that the first sink got."""
        return self.got["t"]

    @property
    def period_s(self) -> float:
        return (self.seconds[-1] - self.seconds[0]) / (len(self.seconds) - 1)

    def carried(self) -> list[dict[str, Any]]:
        return [record.fields["detail"] | {"index": record.fields["index"]} for _, _, record in self.records
                if record.kind == "carried"]  # fmt: skip


STORM = Storm(drop=0.05, duplicate=0.05, delay=0.1, unconfirmed=0.05)


def drawn(seed: int, *, lasting: bool) -> FaultPlan:
    """Draw faults that a run has to survive. ``lasting``: a crash, also of a host with a source, is among them."""
    dice = Random(f"stripes {seed}")
    hosts = HOSTS[:4]
    faults: list[Fault] = [Storm(0.1 * dice.random(), 0.1 * dice.random(), 0.2 * dice.random(), 0.1 * dice.random())]
    for _ in range(dice.randint(1, 4)):
        at_s, for_s, host = dice.uniform(1, 60), dice.uniform(0.5, 10), dice.choice(hosts)
        kind = dice.randrange(4)
        if kind == 0:
            faults.append(Cut((host,), at_s, for_s))
        elif kind == 1:
            faults.append(Outage(*dice.sample(HOSTS, 2), at_s, for_s))
        elif kind == 2:
            faults.append(Stop(host, at_s, for_s))
        else:
            faults.append(Slow(host, dice.uniform(1, 20), at_s, for_s))
    if lasting:
        faults.append(Crash(dice.choice(hosts), dice.uniform(5, 50), dice.uniform(0.5, 10)))
    return FaultPlan(seed, tuple(faults), lasting=lasting)
