"""The cost-space planner: the least usage there is, of dataflows of any form, and by latencies that change."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from flows import chain
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.emulation.virtual.world import World, WorldConfig
from thalweg.experiments.simulation.run import Work, plan_ahead, run_ahead
from thalweg.middleware.dataflow import Code, Dataflow, Placement, sinks_at
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LatenciesNeeded, Latency, Link, NetworkView, links_between
from thalweg.middleware.planning import CostParameters, CriticalPath, Hints, Plan, Task, get_strategy
from thalweg.middleware.planning.planners.cost_space import LEAST_S, CostSpace
from thalweg.middleware.shell.node_code import Made, NodeCode

HOSTS = ("h1", "h2", "h3", "client")
MODEL = CriticalPath()


def drawn(seed: int, *, tree: bool) -> Task:
    """Two sources, three operators; as a tree with one sink, or with fan-out and two."""
    random, graph = Random(seed), Dataflow()
    sources = [graph.source(Code("scenes"), at=host) for host in random.sample(HOSTS[:3], 2)]
    one = graph.operator(Code("composite"), sources[0], name="one")
    two = graph.operator(Code("composite"), sources[1] if tree else one, name="two")
    three = graph.operator(Code("composite"), one, two, name="three")
    graph.sink("map", three)
    if not tree:
        graph.sink("archive", three, sources[1])
    sizes = {name: random.uniform(10, 1000) for name in (*sources, one, two, three)}
    latencies = {link: Latency(random.uniform(0.005, 0.3)) for link in links_between(HOSTS) if link[0] < link[1]}
    return Task((sinks_at(graph, "client"),), HOSTS, NetworkView({}, latencies), Hints(sizes))


def usage(task: Task, placement: Placement) -> float:
    return sum(
        task.hints.output_bytes[one] * max(task.view.latency_s(placement[one], placement[node.name]) or 0.0,
                                           LEAST_S * (placement[one] != placement[node.name]))
        for node in task.dataflow.nodes
        for one in node.inputs
    )  # fmt: skip


def planned(task: Task) -> Plan:
    return CostSpace().plan(task, MODEL)


def everywhere(task: Task, plan: Plan) -> dict[tuple[str, ...], float]:
    names = ("one", "two", "three")
    return {
        hosts: usage(task, plan.placement | dict(zip(names, hosts, strict=True)))
        for hosts in itertools.product(HOSTS, repeat=3)
    }


@given(st.integers(0, 10_000))
def test_of_a_tree_it_is_the_least_usage_there_is(seed: int) -> None:
    task = drawn(seed, tree=True)
    plan = planned(task)
    assert plan.cost_s == pytest.approx(min(everywhere(task, plan).values()))
    assert plan.cost_s == pytest.approx(usage(task, plan.placement))


@given(st.integers(0, 10_000))
def test_of_a_graph_no_operator_alone_improves_it(seed: int) -> None:
    task = drawn(seed, tree=False)
    plan = planned(task)
    assert plan.cost_s == pytest.approx(usage(task, plan.placement))
    for name, host in itertools.product(("one", "two", "three"), HOSTS):
        assert usage(task, plan.placement | {name: host}) >= plan.cost_s * (1 - 1e-6)
    assert plan.cost_s <= 1.2 * min(everywhere(task, plan).values())


def test_latencies_are_asked_for_and_what_is_there_stays_where_nothing_is_better() -> None:
    task = drawn(1, tree=False)
    with pytest.raises(LatenciesNeeded) as needed:
        planned(task.but(view=NetworkView({}, {})))
    assert {frozenset(link) for link in needed.value.links} == set(map(frozenset, itertools.combinations(HOSTS, 2)))
    plan = planned(task)
    again = CostSpace().plan(task.but(current=plan.placement), MODEL)
    assert (again.placement, again.cost_s, again.initial_cost_s) == (plan.placement, plan.cost_s, plan.cost_s)
    alike = {
        link: Latency(random_s)
        for link, random_s in zip(links_between(HOSTS), itertools.count(1e-6, 1e-7), strict=False)
    }
    view = NetworkView({}, alike)  # below a millisecond all are as far
    near = CostSpace().plan(task.but(view=view), MODEL)
    assert near.cost_s == pytest.approx(usage(task.but(view=view), near.placement))


def test_how_it_moves_operators_is_said_by_its_options() -> None:
    strategy = get_strategy("cost-space", period_s=30.0, saving=0.2)
    assert strategy.adaptation is not None
    assert (strategy.adaptation.period_s, strategy.adaptation.gain) == (30.0, 0.2)
    assert strategy.needs == ("latency", "work")
    assert get_strategy("cost-space", period_s=None).adaptation is None
    with pytest.raises(UsageError, match=r"gain is 1\.5; it must be at least 0 and below 1"):
        get_strategy("cost-space", saving=1.5)


class Sized(NodeCode):
    """Partitions of 100 KB."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> Made:
        return Made(index, 100_000, 0.0)


def test_an_operator_moves_while_latencies_change_and_nothing_is_lost() -> None:
    """The way from the source to the client takes half a second more from 300 s on, and by another host it does not."""
    hosts, flow = ("h1", "h2", "client"), chain(Code("composite"), Code("composite"), client="client")
    rate, links = BandwidthTrace.constant("fast", 1e8), dict[Link, ShapedLink]()
    for one, other in itertools.permutations(hosts, 2):
        delays_s = [(0.0, 0.05), *([(300.0, 0.55)] if {one, other} == {"h1", "client"} else [])]
        links[Link(one, other)] = ShapedLink(
            rate, [(at_s, LinkShape(1e8, delay_s)) for at_s, delay_s in delays_s], f"{one} {other}"
        )
    config = WorldConfig("independent", startup_s=0.0, validate=True)
    strategy = get_strategy("cost-space", period_s=30.0)
    work = Work(flow, hosts, Hints({"s": 1e5, "o": 1e5}), CostParameters(), MODEL)
    plan = plan_ahead(work, strategy.initial, links, config)
    assert plan.result.placement["o"] in ("h1", "client")
    world = World(hosts, links, lambda _: Sized(), config)
    indices: list[int] = []
    world.on_delivered = lambda delivered, _: indices.append(delivered.index)
    run_ahead(work, strategy, plan, 4000, world)
    assert world.failed is None and world.planner_failed is None
    assert world.placement["o"] == "h2"
    assert indices == list(range(4000))
