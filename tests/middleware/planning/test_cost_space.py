"""The cost-space planner: the least usage for dataflows of any form, and moves when latencies change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from flows import chain
from hypothesis import given
from hypothesis import strategies as st
from virtual_runs import plane, shaped

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import Work, plan_ahead, run_ahead
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement, sinks_at
from thalweg.middleware.errors import PlacementError, UsageError
from thalweg.middleware.network.coordinates import embedded
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.place import UNPLACED, Place
from thalweg.middleware.network.view import LatenciesNeeded, Latency, Link, NetworkView, links_between
from thalweg.middleware.planning import CostParameters, CriticalPath, Hints, Plan, Task, get_strategy
from thalweg.middleware.planning.asking import plan_with_probes
from thalweg.middleware.planning.planners.cost_space import LEAST_S, CostSpace
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "h3", "client")
MODEL, PLAIN = CriticalPath(), CostSpace()


def drawn(seed: int, *, tree: bool) -> Task:
    """Return a task of two sources and three operators: a tree with one sink, or a graph with fan-out and two."""
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
def test_the_plan_of_a_tree_has_the_least_usage(seed: int) -> None:
    task = drawn(seed, tree=True)
    plan = planned(task)
    assert plan.cost_s == pytest.approx(min(everywhere(task, plan).values()))
    assert plan.cost_s == pytest.approx(usage(task, plan.placement))


@given(st.integers(0, 10_000))
def test_no_move_of_a_single_operator_improves_the_plan_of_a_graph(seed: int) -> None:
    task = drawn(seed, tree=False)
    plan = planned(task)
    assert plan.cost_s == pytest.approx(usage(task, plan.placement))
    for name, host in itertools.product(("one", "two", "three"), HOSTS):
        assert usage(task, plan.placement | {name: host}) >= plan.cost_s * (1 - 1e-6)
    assert plan.cost_s <= 1.2 * min(everywhere(task, plan).values())


def test_a_plan_requests_missing_latencies_and_keeps_an_optimal_placement() -> None:
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


def test_options_of_the_strategy_set_the_period_and_the_gain_of_moves() -> None:
    strategy = get_strategy("cost-space", period_s=30.0, saving=0.2)
    assert strategy.adaptation is not None
    assert (strategy.adaptation.period_s, strategy.adaptation.gain) == (30.0, 0.2)
    assert strategy.needs == ("latency", "hosts", "work", "coordinates")
    assert get_strategy("cost-space", period_s=None).adaptation is None
    with pytest.raises(UsageError, match=r"gain is 1\.5; it must be at least 0 and below 1"):
        get_strategy("cost-space", saving=1.5)


class Sized(NodeCode):
    """Partitions of 100 KB."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, 100_000, 0.0)


@pytest.mark.long
def test_an_operator_moves_while_latencies_change_and_nothing_is_lost() -> None:
    """From 300 s on, the source's link to the client takes half a second more. A route over the other host does not."""
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


def fan(client: str = "client") -> Dataflow:
    """Return a dataflow of four sources, two operators on two sources each, and a third operator on both."""
    graph = Dataflow()
    seen = [graph.source(Code("scenes"), at=f"h{number}") for number in (3, 7, 19, 29)]
    one = graph.operator(Code("composite"), *seen[:2], name="one")
    two = graph.operator(Code("composite"), *seen[2:], name="two")
    graph.sink("map", graph.operator(Code("composite"), one, two, name="three"))
    return sinks_at(graph, client)


SIZES = {**{f"source@h{number}": 2e4 for number in (3, 7, 19, 29)}, "one": 1e4, "two": 1e4, "three": 5e3}


def situated(
    hosts: tuple[str, ...], latency_s: np.ndarray, figures: Mapping[str, HostFigures] = {}
) -> dict[str, Place]:
    """Return the coordinates that these hosts find."""
    found = embedded(latency_s, np.random.default_rng(1), rounds=200, heights=True)
    return {
        host: Place(
            tuple(found.places[at].tolist()), float(found.heights[at]), 0.1, 200, figures.get(host, HostFigures())
        )
        for at, host in enumerate(hosts)
    }


def asked_of(task: Task, latency_s: np.ndarray, planner: CostSpace = PLAIN) -> tuple[Plan, set[Link]]:
    """Return the plan, and the links whose latency was requested."""
    truth = {link: Latency(float(latency_s[task.hosts.index(link[0]), task.hosts.index(link[1])]))
             for link in links_between(task.hosts)}  # fmt: skip
    found = plan_with_probes(
        planner, task, MODEL, lambda _: {}, sound=lambda links: {link: truth[link] for link in links}
    )
    return found.result, set(found.asked)


@pytest.mark.long
def test_a_plan_for_hundreds_of_hosts_requests_the_latencies_of_few_pairs() -> None:
    """The requests of 300 hosts are as few as those of 100, and the plan is nearly optimal. Descent requests fewer."""
    asked, worse = {}, []
    for count in (100, 300):
        hosts, latency_s = plane(count)
        task = Task((fan(),), hosts, NetworkView({}, {}, situated(hosts, latency_s)), Hints(SIZES))
        plan, links = asked_of(task, latency_s)
        asked[count] = len(links)
        all_known = {link: Latency(float(latency_s[hosts.index(link[0]), hosts.index(link[1])]))
                     for link in links_between(hosts) if link[0] < link[1]}  # fmt: skip
        optimum = planned(task.but(view=NetworkView({}, all_known)))
        worse.append(plan.cost_s / optimum.cost_s)
        graph = fan().by_name
        joined = (*graph.values(), Node("archive", "sink", ("one", "three"), None, "client"))
        descent, links = asked_of(task.but(dataflows=(Dataflow(joined).validate(hosts),)), latency_s)
        assert len(links) < 200 and descent.cost_s < descent.initial_cost_s
    assert all(count < 320 for count in asked.values())
    assert max(worse) < 1.05


@pytest.mark.long
def test_operators_move_among_a_hundred_hosts_with_few_measured_latencies() -> None:
    """An operator leaves a host that has become far from all others. The 101 hosts have 5,050 pairs."""
    hosts, latency_s = plane(101)
    core = CoreConfig(monitor=MonitorConfig(sound_interval_s=15.0))
    strategy, config = get_strategy("cost-space"), WorldConfig("independent", startup_s=0.0, core=core)
    work = Work(fan(), hosts, Hints(SIZES), CostParameters(), MODEL)
    plan = plan_ahead(work, strategy.initial, shaped(hosts, latency_s), config)
    assert len(plan.asked) < 320 and plan.complete
    left = plan.result.placement["three"]
    records = list[e.Record]()
    world = World(
        hosts, shaped(hosts, latency_s, later={left: 0.5}), lambda _: Sized(), config,
        on_record=lambda _, __, each: records.append(each),
    )  # fmt: skip
    run_ahead(work, strategy, plan, 250, world)
    assert world.failed is None and world.planner_failed is None
    assert left not in {world.placement[name] for name in ("one", "two", "three")}
    looks = [each.fields["detail"] for each in records if each.kind == "plan"]
    assert looks and all(look.get("sounded", 0) < 400 for look in looks)
    (spent,) = {max(each.fields["detail"]["news_bytes"] for each in records if each.kind == "monitor")}
    assert spent / world.now < 20_000  # bytes a second, of the client, which all tell


def test_operators_avoid_loaded_hosts_and_hosts_without_room() -> None:
    hosts, latency_s = plane(60)
    work = {
        "rates_hz": {"one": 10.0, "two": 10.0, "three": 10.0},
        "compute_s": {"one": 0.05, "two": 0.05, "three": 0.05},
    }

    def placed(figures: Mapping[str, HostFigures], **options: float) -> Placement:
        view = NetworkView({}, {}, situated(hosts, latency_s, figures))
        task = Task((fan(),), hosts, view, Hints(SIZES, **work))
        return asked_of(task, latency_s, CostSpace(**options))[0].placement  # type: ignore[arg-type]

    roomy = dict.fromkeys(hosts, HostFigures(1.0, 8))
    where = placed(roomy)
    busy = {**roomy, where["one"]: HostFigures(1.0, 8, 0.5)}
    assert placed(busy)["one"] == where["one"]
    assert placed(busy, load_s=1.0)["one"] != where["one"]  # a half of it is half a second more to everywhere
    for short in (
        HostFigures(0.4),
        HostFigures(1.0, 8, memory_bytes=50_000),
        HostFigures(1.0, 8, bandwidth_bps=3_900_000),
    ):
        assert placed({**roomy, where["one"]: short})["one"] != where["one"]
    both = dict.fromkeys(hosts, HostFigures(0.9))  # each has room for one operator
    assert len({placed(both)[name] for name in ("one", "two", "three")}) == 3
    for figures, says in (
        (
            HostFigures(0.25),
            "'one' fits on none of 60 hosts: 'h1' lacks 0.25 of a processor: it has 0.25 to spare of 0.25",
        ),
        (
            HostFigures(1.0, 8, memory_bytes=50_000),
            r"lacks 1e\+04 bytes of memory: it has 5e\+04, and 6e\+04 are taken",
        ),
        (HostFigures(1.0, 8, bandwidth_bps=3_000_000), r"lacks 1e\+06 bit/s of bandwidth"),
    ):
        with pytest.raises(PlacementError, match=says):
            placed(dict.fromkeys(hosts, figures))


def test_an_impossible_task_is_refused_with_the_reason() -> None:
    task = drawn(1, tree=True)
    ends = {link: each for link, each in task.view.latencies.items() if "client" not in link}
    away = {Link(host, "client"): Latency(math.inf, 0) for host in HOSTS[:3]}
    with pytest.raises(PlacementError, match=r"no placement: hosts 'h\d' and 'client' do not reach each other"):
        planned(task.but(view=NetworkView({}, {**ends, **away})))
    for bad in (math.nan, -1.0):
        odd = {**task.view.latencies, Link("h1", "h2"): Latency(bad)}
        with pytest.raises(UsageError, match=rf"the latency between 'h1' and 'h2' is {bad} s; it must be at least 0"):
            planned(task.but(view=NetworkView({}, odd)))
        with pytest.raises(UsageError, match=rf"output_bytes of node 'one' is {bad}"):
            planned(task.but(hints=Hints({**task.hints.output_bytes, "one": bad})))
    hosts, latency_s = plane(30)
    places = situated(hosts, latency_s)
    silent = Task((fan("h1"),), hosts, NetworkView({}, {}, {**places, "h3": UNPLACED}), Hints(SIZES))
    with pytest.raises(PlacementError, match="host 'h3' did not find its coordinates; is it still there"):
        planned(silent)
