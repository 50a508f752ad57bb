"""Queries that begin and leave at random in drawn graphs, while operators move and messages get lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import msgspec
import pytest

from thalweg.emulation.virtual.faults import Crash, FaultPlan, FaultyWorld, Hostility
from thalweg.emulation.virtual.world import WorldConfig
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults.trials import (
    CLIENT,
    LIMITS,
    PATIENCE_S,
    STARTUP_S,
    Counting,
    Trial,
    content,
    draw_trial,
    drawn_plan,
)
from thalweg.middleware.core.relocation.sharing import join, shared
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.shell.node_code import Made, NodeCode

SOURCE, OPERATOR, FAILS = Code("source"), Code("operator"), Code("fails")


class Fails(NodeCode):
    def make(self, index: int, inputs: tuple[Any, ...]) -> Made:
        raise ValueError("no")


def plain(flow: Dataflow) -> Dataflow:
    """Nodes that say what they were made of, and how many before."""
    code = {"source": SOURCE, "operator": OPERATOR, "sink": None}
    return Dataflow(tuple(msgspec.structs.replace(node, code=code[node.kind], rate=None) for node in flow.nodes))


def draw_query(dice: Random, flow: Dataflow, hosts: tuple[str, ...], number: int, *, fails: bool) -> Dataflow:
    """Some nodes of ``flow`` and what they are made of, and others on them: none to four, some of which ``fails``."""
    names = [node.name for node in flow.nodes if node.kind != "sink"]
    kept = set(dice.sample(names, min(len(names), dice.randint(1, 3))))
    for name in reversed(flow.upward):
        if name in kept:
            kept.update(flow.by_name[name].inputs)
    nodes = [msgspec.structs.replace(flow.by_name[name], ahead=1) for name in flow.upward if name in kept]
    if dice.random() < 0.3:
        nodes.append(Node(f"z{number}", "source", (), SOURCE, dice.choice(hosts)))
    for count in range(dice.randint(0, 4)):
        inputs = dice.sample([node.name for node in nodes], min(len(nodes), dice.randint(1, 3)))
        code = FAILS if dice.random() < 0.05 and fails else Code("operator", {"of": number})
        nodes.append(Node(f"op{count}", "operator", tuple(inputs), code))
    taken = {name for node in nodes for name in node.inputs}
    loose = tuple(node.name for node in nodes if node.name not in taken)
    again = dice.choice(nodes).name
    nodes.append(Node("t0", "sink", loose, None, CLIENT))
    if dice.random() < 0.4:
        nodes.append(Node("t1", "sink", (again,), None, CLIENT))
    return Dataflow(tuple(nodes)).validate(hosts, connected=False)


class Drawn:
    """What a seed draws: a graph that runs, and queries that come and go; ``wrong`` is what they got that they may not.

    ``first``: of every node that a query brought, its first partition.
    """

    def __init__(self, seed: int, *, faults: bool) -> None:
        drawn = draw_trial(seed, graph=True)
        self.trial: Trial = msgspec.structs.replace(drawn, dataflow=plain(drawn.dataflow))
        plan = drawn_plan(seed, graph=True) if faults else FaultPlan(seed)
        fitting = tuple(fault for fault in plan.faults if not isinstance(fault, Hostility))
        config = WorldConfig(interface=drawn.interface, startup_s=STARTUP_S, core=LIMITS, validate=True)
        plan = msgspec.structs.replace(plan, faults=fitting)
        self.world = world = FaultyWorld(drawn.hosts, drawn.links, self.opened, plan, config)
        world.patience_s = PATIENCE_S
        world.on_delivered, world.driver = self.on_delivered, self.drive
        self.mover = RandomMover(RandomMoves(1000, seed), world, world.names) if seed % 3 else None
        self.dice = Random(f"{seed} queries")
        self.open: set[int] = set()
        self.left: set[int] = set()
        self.count = 0
        self.got: defaultdict[str, list[int]] = defaultdict(list)
        self.first: dict[str, int] = {}
        self.flows = dict.fromkeys(drawn.dataflow.sinks, self.trial.dataflow)  # by sink
        self.query_of = dict.fromkeys(drawn.dataflow.sinks, 0)
        self.known: dict[tuple[str, int], Any] = {}
        self.wrong: list[Any] = []
        restless = drawn.adaptation if isinstance(drawn.adaptation, LocalMoves) else None
        world.run(self.trial.dataflow, drawn.placement, drawn.partitions, restless)

    def opened(self, node: Node) -> NodeCode:
        if node.code == FAILS:
            return Fails()
        name, trial = node.name.partition("~")[0], self.trial
        return Counting(node, trial.sizes.get(name, 1), trial.lengths.get(name, 10**6), trial.compute_s)

    def drive(self) -> None:
        """The application has got a partition."""
        world, dice, flow = self.world, self.dice, self.trial.dataflow
        if self.mover is not None:
            self.mover.on_delivered()
        for number in {0, *world.attached} - self.left:
            if {sink for sink, of in self.query_of.items() if of == number} <= world._ended and self.open & {
                *world.attached
            }:
                self.leave(number)
        luck = dice.random()
        if luck < 0.1 and self.count < 5:
            self.count += 1
            query = draw_query(dice, flow, world.names, self.count, fails=not world.plan.faults)
            where = {node.name: node.pinned or dice.choice(world.names) for node in query.nodes}
            self.open.add(self.count)
            world.attach(self.count, query, where)
        elif luck < 0.17 and self.open:
            self.leave(dice.choice(sorted(self.open)))
        elif luck < 0.18 and self.open & world.attached.keys() - world.queries_failed.keys():
            self.leave(0)

    def leave(self, query: int) -> None:
        self.open.discard(query)
        self.left.add(query)
        self.world.detach(query)

    def on_delivered(self, part: e.Deliver, now: float) -> None:
        self.take_stock()
        flow, got = self.flows[part.sink], self.got[part.sink]
        made = tuple(
            [content(flow, name, part.index, self.known, self.first) for name in flow.by_name[part.sink].inputs]
        )
        expected = made if len(made) > 1 else made[0]
        due = got[-1] + 1 if got else self.first.get(part.sink, 0)
        if (part.index, part.value) != (due, expected):
            self.wrong.append((part.sink, part.index, due, part.value, expected))
        got.append(part.index)

    def take_stock(self) -> None:
        for number, begun in self.world.attached.items():
            for name in begun.names.values():
                if name not in self.trial.dataflow.by_name:
                    self.first.setdefault(name, begun.first_index)
                if begun.dataflow.by_name[name].kind == "sink" and name not in self.flows:
                    self.flows[name], self.query_of[name] = begun.dataflow, number

    def check(self) -> None:
        """Nothing wrong came, and of queries that have not left all that there is."""
        world = self.world
        self.take_stock()
        assert self.wrong == []
        assert not world.stalled, [node for host in world.hosts.values() for node in host.core.runs.values()]
        for host in world.hosts.values():
            assert not (host.core.runs or host.code or host.core.coordinator.led), host.name
        crashed = any(isinstance(fault, Crash) and fault.host == CLIENT for fault in world.plan.faults)
        if world.failed or crashed:
            return
        for sink, number in self.query_of.items():
            if number not in self.left and number not in world.queries_failed:
                length = max(0, self.length(self.flows[sink], sink) - self.first.get(sink, 0))
                assert len(self.got[sink]) == length, (sink, number)

    def length(self, flow: Dataflow, name: str) -> int:
        node, trial = flow.by_name[name], self.trial
        if node.kind == "source":
            return min(trial.partitions, trial.lengths.get(name.partition("~")[0], 10**6))
        return min(self.length(flow, each) for each in node.inputs)


@pytest.mark.parametrize("faults", [False, True], ids=["moves", "faults"])
def test_drawn_queries_get_what_one_machine_gives_and_disturb_nobody(faults: bool) -> None:
    done: Counter[str] = Counter()
    for seed in range(100 * faults, 100 * faults + 12):
        drawn = Drawn(seed, faults=faults)
        drawn.check()
        world = drawn.world
        done["begun"] += len(world.attached)
        done["left"] += len(drawn.left & {0, *world.attached})
        done["failed"] += len(world.queries_failed.keys() & world.attached.keys())
        done["got"] += sum(len(got) for sink, got in drawn.got.items() if drawn.query_of[sink])
        done["moved"] += world.relocations
        assert faults or not world.failed, world.failed
    assert done["begun"] > 20
    assert done["left"] > 10
    assert faults or done["failed"] > 0
    assert done["got"] > 150
    assert done["moved"] > 50


def flow_of(*nodes: Node) -> Dataflow:
    return Dataflow(nodes)


S1, S2 = Node("s1", "source", (), SOURCE, "h1"), Node("s2", "source", (), SOURCE, "h2")
RUN = flow_of(
    S1, S2, Node("o", "operator", ("s1", "s2"), OPERATOR), Node("p", "operator", ("o",), OPERATOR),
    Node("t", "sink", ("p",), None, CLIENT),
)  # fmt: skip


def test_what_is_the_same_is_shared_by_whatever_name() -> None:
    like = [msgspec.structs.replace(node, name=f"my {node.name}") for node in (S1, S2)]
    same = Node("x", "operator", ("my s1", "my s2"), OPERATOR)
    twin, turned = msgspec.structs.replace(same, name="y"), Node("z", "operator", ("my s2", "my s1"), OPERATOR)
    pinned = Node("h", "operator", ("my s1", "my s2"), OPERATOR, "h3")
    sink = Node("t", "sink", ("x", "y", "z", "h"), None, CLIENT)
    query = flow_of(*like, same, twin, turned, pinned, sink)
    assert shared(RUN, query) == {"my s1": "s1", "my s2": "s2", "x": "o"}
    where = {"y": "h1", "z": "h2", "h": "h3", "t": CLIENT}
    joined = join(RUN, query, where, 7, {"y~7"})
    assert joined.names == {"my s1": "s1", "my s2": "s2", "x": "o", "y": "y~7.1", "z": "z~7", "h": "h~7", "t": "t~7"}
    assert [(graft.node, graft.inputs, graft.host) for graft in joined.grafts] == [
        ("y~7.1", ("s1", "s2"), "h1"),
        ("z~7", ("s2", "s1"), "h2"),
        ("h~7", ("s1", "s2"), "h3"),
        ("t~7", ("o", "y~7.1", "z~7", "h~7"), CLIENT),
    ]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (flow_of(Node("s1", "source", (), SOURCE, "h3"), Node("t", "sink", ("s1",))), "nothing in common with the run"),
        (flow_of(S1, Node("o", "operator", ("s1",), FAILS), Node("t", "sink", ("o",))),
         "operator 'o' is not the one of the run: there it runs 'operator', and here 'fails'; give it another name"),
        (flow_of(S1, Node("o", "operator", ("s1",), Code("operator", {"k": 1})), Node("t", "sink", ("o",))),
         "operator 'o' is not the one of the run: its parameters differ"),
        (flow_of(S1, Node("s2", "operator", ("s1",), SOURCE), Node("t", "sink", ("s2",))),
         "operator 's2' is not the one of the run: what it names there is the source"),
    ],
)  # fmt: skip
def test_a_query_that_means_something_else_is_refused(query: Dataflow, why: str) -> None:
    with pytest.raises(DataflowError, match=why):
        shared(RUN, query)


def test_names_that_are_made_up_mean_nothing() -> None:
    run = flow_of(S1, Node("op0", "operator", ("s1",), OPERATOR), Node("t", "sink", ("op0",)))
    query = flow_of(S1, Node("op0", "operator", ("s1",), FAILS), Node("t", "sink", ("op0",)))
    assert shared(run, query) == {"s1": "s1"}
