"""The planner of shape and placement: what it asks for, what it decides, and that the bytes stay the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_codes import ALLOW

from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree, left_deep_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network_view import LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    CostParameters,
    CriticalPath,
    ExpectedPeriod,
    OneShot,
    Period,
    Problem,
    Thalweg,
    evaluate,
    get_planner,
    plan_with_probes,
    propagate_hints,
)
from thalweg.middleware.planning.registry import get_strategy
from thalweg.operators import Composite
from thalweg.operators.reference import digest, reference_run

COSTS = CostParameters()
CODE = Code("some")


class World:
    """A random network over ``count`` servers and the client, whose links are measured when they are asked for."""

    def __init__(self, seed: int, count: int, *, reorderable: bool = True, source: Code = CODE) -> None:
        self.hosts = ("client", *(f"h{i + 1}" for i in range(count)))
        chance = np.random.default_rng(seed)
        pairs = [(a, b) for a in self.hosts for b in self.hosts if a != b]
        self.rates = {pair: LinkEstimate(float(chance.lognormal(12, 1.2))) for pair in pairs}
        self.flow = complete_binary_tree(dict.fromkeys(self.hosts[1:], CODE), CODE)
        operator = Composite(fit="nested" if reorderable else "nearest", seconds_per_pixel=7e-6)
        self.hints = propagate_hints(self.flow, dict.fromkeys(self.flow.sources, 131_072.0), lambda _: operator)
        self.asked: list[frozenset[tuple[str, str]]] = []

    def probe(self, links):
        self.asked.append(links)
        return {pair: self.rates[pair] for a, b in links for pair in ((a, b), (b, a))}

    def plan(self, planner, model=None, *, known=False):
        return plan_with_probes(
            planner,
            self.flow,
            self.hosts,
            NetworkView(self.rates if known else {}),
            None,
            hints=self.hints,
            costs=COSTS,
            model=model or Period(),
            probe=self.probe,
        ).result

    def period_s(self, result, model=None):
        known = result.hints or self.hints
        problem = Problem(result.dataflow, self.hosts, NetworkView(self.rates), known, COSTS)
        return evaluate(model or Period(), problem, result.placement).cost_s


@pytest.mark.parametrize(
    "model", [Period(), Period("duplex"), Period("independent", node_cycles=False), ExpectedPeriod()]
)
def test_its_periods_are_the_models_and_mostly_half_of_what_moving_operators_alone_gives(model):
    ratios = []
    for seed in range(8):
        world = World(seed, 8)
        result = world.plan(Thalweg(), model, known=True)
        assert result.cost_s == pytest.approx(world.period_s(result, model))
        assert result.initial_cost_s == pytest.approx(world.plan(OneShot(), model, known=True).initial_cost_s)
        assert result.hints is not None and result.dataflow != world.flow
        ratios.append(result.cost_s / world.plan(OneShot(), model, known=True).cost_s)
    assert max(ratios) <= 1.05
    assert float(np.median(ratios)) < 0.75


def test_of_a_small_network_it_asks_for_every_pair_once_and_of_a_large_one_for_a_few_a_host():
    world = World(1, 8)
    result = world.plan(Thalweg())
    assert [len(links) for links in world.asked] == [36]
    assert result == world.plan(Thalweg(), known=True)

    large = World(1, 24)
    few = large.plan(Thalweg())
    asked = frozenset().union(*large.asked)
    assert len({frozenset(link) for link in asked}) == len(asked) == sum(map(len, large.asked))  # no pair twice
    assert len(asked) <= 6 * 25 < 300
    assert large.period_s(few) == pytest.approx(few.cost_s)
    assert few.cost_s < 2 * large.plan(Thalweg(), known=True).cost_s

    thrifty = World(1, 8)
    thrifty.plan(Thalweg(probes=12))
    assert sum(map(len, thrifty.asked)) <= 16


def test_a_plan_over_links_that_are_not_known_is_never_made_and_dead_links_are_left_out():
    world = World(2, 6)
    dead = {link for link in world.rates if "h1" in link and "h2" not in link}
    world.rates |= dict.fromkeys(dead, LinkEstimate(0.0))
    result = world.plan(Thalweg())
    ends = [(result.placement[a], result.placement[node.name]) for node in result.dataflow.nodes for a in node.inputs]
    assert not dead & set(ends)
    assert math.isfinite(result.cost_s)


def sources_at(*hosts: str) -> Dataflow:
    leaves = [Node(f"s{i}", "source", (), CODE, host) for i, host in enumerate(hosts)]
    operator = Node("all", "operator", tuple(leaf.name for leaf in leaves), CODE)
    return Dataflow((*leaves, operator, Node("t", "sink", ("all",), None, "client"))).validate()


@pytest.mark.parametrize(
    ("places", "crossing"),
    [(("h1", "h1", "h2"), 2), (("client", "h1", "h1"), 1), (("client", "client"), 0), (("h1", "h1"), 1)],
)
def test_hosts_with_several_sources_send_one_result_and_hosts_without_are_not_used(places, crossing):
    world = World(3, 3)
    world.flow = sources_at(*places)
    sizes = dict.fromkeys(world.flow.sources, 1e5)
    world.hints = propagate_hints(world.flow, sizes, lambda _: Composite(fit="nested"))
    result = world.plan(Thalweg())
    assert set(result.placement.values()) == {*places, "client"}
    assert result.dataflow.sources == world.flow.sources
    ends = [(result.placement[a], result.placement[node.name]) for node in result.dataflow.nodes for a in node.inputs]
    assert sum(a != b for a, b in ends) == crossing
    assert result.cost_s == pytest.approx(world.period_s(result))


def test_the_same_arguments_give_the_same_plan():
    first, second = (World(5, 12).plan(Thalweg(seed=4), known=True) for _ in range(2))
    assert first.dataflow == second.dataflow and first.placement == second.placement and first.steps == second.steps


@pytest.mark.parametrize("seed", range(4))
def test_where_order_matters_the_tree_stays_and_only_its_operators_move(seed):
    world = World(seed, 8, reorderable=False)
    assert not world.hints.reorderable
    result = world.plan(Thalweg())
    assert result.dataflow == world.flow and result.hints is None
    assert result.cost_s == pytest.approx(world.period_s(result))
    assert result.cost_s <= world.plan(OneShot(), known=True).cost_s


def test_it_goes_by_periods_whatever_the_cost_model_of_the_run():
    assert Thalweg().goes_by(CriticalPath()) == Period()
    assert Thalweg(interface="duplex").goes_by(CriticalPath()) == Period("duplex")
    assert Thalweg().goes_by(ExpectedPeriod(5.0)) == ExpectedPeriod(5.0)
    assert get_planner("thalweg", interface="independent") == Thalweg(interface="independent")
    assert get_strategy("thalweg").initial == Thalweg() and get_strategy("thalweg").adaptation is None


@pytest.mark.parametrize("option", [{"shape": 1.0}, {"shape": 33.0}, {"looks": -1}, {"probes": -1}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(UsageError, match=f"{next(iter(option))}.*must be"):
        get_planner("thalweg", **option)


def scenes(count: int, rule: str, **operator) -> Dataflow:
    """Sites whose images differ in size from index to index, and in their order of size."""
    sources = {
        f"h{site + 1}": Code("scenes", {"site": site, "sites": count, "seed": 4, "length": 4, "mean_bytes": 3000.0})
        for site in range(count)
    }
    return left_deep_tree(sources, Code("composite", {"rule": rule, **operator}))


@given(
    st.integers(0, 10_000), st.integers(2, 9), st.sampled_from(["max", "min"]), st.sampled_from(["pairs", "at-once"])
)
@settings(max_examples=25, deadline=None)
def test_any_tree_it_chooses_gives_the_bytes_of_the_single_machine(seed, count, rule, joining):
    world = World(seed, count)
    world.flow = scenes(count, rule, fit="nested")
    operator = Composite(rule, fit="nested")
    world.hints = propagate_hints(world.flow, dict.fromkeys(world.flow.sources, 3000.0), lambda _: operator)
    result = world.plan(Thalweg(joining=joining, looks=200), known=True)
    expected = [digest(value) for value in reference_run(world.flow, None, ALLOW)]
    assert [digest(value) for value in reference_run(result.dataflow, None, ALLOW)] == expected
    assert len(expected) == 4


def test_a_client_runs_the_tree_that_was_chosen(client):
    flow = complete_binary_tree(
        {f"h{i + 1}": Code("scenes", {"site": i, "sites": 3, "seed": 4, "mean_bytes": 3000.0}) for i in range(3)},
        Code("composite", {"fit": "nested"}),
    )
    with client.run(flow, "thalweg", partitions=20) as run:
        got = [digest(each.value) for each in run]
    assert got == [digest(value) for value in reference_run(flow, 20, ALLOW)]
    assert set(run.placement) == set(run.dataflow.by_name)
    assert all(run.dataflow.by_name[name].code == flow.by_name["op0"].code for name in run.dataflow.operators)
