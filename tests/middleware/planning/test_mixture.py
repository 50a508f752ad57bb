"""Several trees at once: their joint rates, compared with the bound of all mixtures."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.middleware.planning.test_shape_search import INTERFACES, make_loads, random_parent
from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.outlook import Outlook
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView, links_between
from thalweg.middleware.planning import Period, Task, Thalweg
from thalweg.middleware.planning.bound import packing_rate
from thalweg.middleware.planning.planners.striping import rates_of, several
from thalweg.middleware.planning.problem.hints import Answers, CostParameters, propagate_hints
from thalweg.middleware.planning.problem.task import Stripe
from thalweg.middleware.planning.shapes.host_tree import host_tree
from thalweg.middleware.planning.shapes.mixture import Mixture, fair_rates
from thalweg.middleware.planning.shapes.search import LoadedTree, idle, search_tree

CODE = Code("some")
SERVERS = tuple(f"h{i}" for i in range(1, 9))
HOSTS = (*SERVERS, "client")


def without_work(loads):
    """Return the loads with transfers alone, as the bound assumes."""
    return replace(loads, compute_s=lambda host, inputs: 0.0, disk_s=np.zeros(loads.count))


# --- loads ----------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(2, 7), st.sampled_from(INTERFACES), st.sampled_from([2.0, 4.0]))
def test_the_cost_of_a_change_beside_a_second_tree_equals_a_fresh_measurement(seed, count, interface, shape):
    chance = np.random.default_rng(seed)
    alone = make_loads(seed, count, interface, shape=shape)
    other = LoadedTree(replace(alone, share=0.7), random_parent(chance, count))
    loads = replace(alone, share=0.3, beside=other.busy)
    tree = LoadedTree(loads, random_parent(chance, count))
    changes = tree.changes()
    for host, parent in itertools.product(range(1, count), range(count)):
        if parent == tree.parent[host] or tree.below[host, parent]:
            assert changes[host, parent] == math.inf
            continue
        moved = [*tree.parent]
        moved[host] = parent
        measured = pytest.approx(LoadedTree(loads, moved).cost, rel=1e-9, abs=1e-9 * tree.cost)
        assert tree.cost + changes[host, parent] == measured


@given(st.integers(0, 10_000), st.integers(2, 7), st.sampled_from(INTERFACES))
def test_two_halves_of_a_tree_cost_as_much_as_the_tree(seed, count, interface):
    loads = make_loads(seed, count, interface)
    parent = random_parent(np.random.default_rng(seed), count)
    half = LoadedTree(replace(loads, share=0.5), parent)
    both = LoadedTree(replace(loads, share=0.5, beside=half.busy), parent)
    assert both.cost == pytest.approx(LoadedTree(loads, parent).cost)
    nothing = half.busy.less(half.busy)
    assert all(not each.any() for each in (*nothing.carried, nothing.work))
    assert both.loads.below.plus(idle(count, interface)).carried[0] == pytest.approx(half.busy.carried[0])


# --- rates ----------------------------------------------------------------------------------------------


def test_trees_share_a_resource_and_use_the_rest_that_a_limited_tree_leaves():
    """Both trees use the first resource for a second. One of them also uses a second resource for four seconds."""
    assert fair_rates(np.array([[1.0, 4.0], [1.0, 0.0]])).tolist() == pytest.approx([0.25, 0.75])
    assert fair_rates(np.array([[2.0, 0.0], [0.0, 5.0]])).tolist() == pytest.approx([0.5, 0.2])
    assert fair_rates(np.zeros((1, 2))).tolist() == [math.inf]


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 8))
def test_no_rate_can_rise_without_lowering_an_equal_or_lower_rate(seed, trees, resources):
    chance = np.random.default_rng(seed)
    work = chance.exponential(1.0, (trees, resources)) * (chance.random((trees, resources)) < 0.7)
    work[:, 0] += 0.1
    rates = fair_rates(work)
    busy = rates @ work
    assert busy.max() <= 1 + 1e-6
    for tree, rate in enumerate(rates):
        full = (busy > 1 - 1e-6) & (work[tree] > 0)
        others = [rates[work[:, each] > 0].max() for each in np.flatnonzero(full)]
        assert any(rate >= most - 1e-6 for most in others)


# --- mixtures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interface", "least"), [("independent", 0.65), ("single", 0.75), ("duplex", 0.7)])
def test_eight_trees_come_near_the_bound_of_all_mixtures(interface, least):
    parts = []
    for seed in range(6):
        loads = without_work(make_loads(seed, 9, interface))
        seconds = loads.transfer(131_072.0).copy()
        np.fill_diagonal(seconds, math.inf)
        bound = packing_rate(seconds, 0, range(1, 9), interface)
        alone, _ = search_tree(loads, 4860, 0)
        one = sum(rates_of(loads, [alone]))
        eight = several(loads, alone, 8, 4860)
        assert len(eight.parents) == 8
        assert one * (1 - 1e-9) <= sum(eight.rates) <= bound * (1 + 1e-6)
        parts.append(sum(eight.rates) / bound)
    assert float(np.mean(parts)) > least


def test_further_trees_raise_the_rate_on_independent_links():
    loads = make_loads(4, 9, "independent")
    mixture = Mixture(loads, [search_tree(loads, 4860, 0)[0]])
    rates, norms = [], []
    for count in (1, 2, 4, 8):
        mixture.grow(count, 20_000)
        assert len(mixture.trees) == count
        rates.append(sum(rates_of(loads, mixture.trees)))
        norms.append(mixture.norm())
    assert norms == sorted(norms, reverse=True)
    assert rates[1] > 1.4 * rates[0]
    assert rates[3] > 2.5 * rates[0]


def test_a_mixture_grows_without_a_budget_for_the_search():
    loads = make_loads(2, 9, "independent")
    mixture = Mixture(loads, [[0] * 9])
    mixture.grow(2, 0)
    assert mixture.spent == 0
    assert len(mixture.trees) == 2


# --- the planner ----------------------------------------------------------------------------------------


def make_task(seed: int = 1, spread: float = 1.2, unknown: bool = False) -> Task:
    dataflow = complete_binary_tree(dict.fromkeys(SERVERS, CODE), CODE, "client")
    chance = np.random.default_rng(seed)
    links = links_between(HOSTS)
    view = NetworkView({} if unknown else {link: LinkEstimate(chance.lognormal(12, spread)) for link in links})
    largest = Answers(max, lambda sizes: 0.9 * (len(sizes) - 1), reorderable=True)
    hints = propagate_hints(dataflow, dict.fromkeys(dataflow.sources, 131_072.0), lambda _: largest)
    return Task((dataflow,), HOSTS, view, hints, CostParameters(startup_s=0.05))


INDEPENDENT = Period(interface="independent", node_cycles=False)


def test_a_plan_has_the_requested_number_of_different_trees_over_the_same_sources():
    task = make_task()
    plan = Thalweg(stripes=4).plan(task, INDEPENDENT)
    trees = (plan, *plan.beside)
    assert len(trees) == 4
    assert sum(tree.share for tree in trees) == pytest.approx(1)
    shapes = [host_tree(tree.dataflow, tree.placement) for tree in trees]
    assert len({str(shape) for shape in shapes}) == 4
    for tree in trees:
        assert tree.dataflow.sources == task.dataflow.sources
        assert tree.placement["sink"] == "client"
        assert tree.cost_s == plan.cost_s
    one = Thalweg().plan(task, INDEPENDENT)
    assert plan.cost_s < 0.5 * one.cost_s
    assert Thalweg(stripes=4).plan(task, INDEPENDENT) == plan


def test_a_single_stripe_is_planned_like_a_plain_tree():
    task = make_task()
    assert Thalweg(stripes=1).plan(task, INDEPENDENT) == Thalweg().plan(task, INDEPENDENT)
    assert not Thalweg().plan(task, INDEPENDENT).beside


def test_auto_plans_as_many_trees_as_repay():
    """Independent links carry many trees. A slow disk, which every tree needs, is as slow for one tree."""
    task = make_task()
    many = Thalweg(stripes="auto").plan(task, INDEPENDENT)
    assert len(many.beside) >= 3
    slow = task.but(hints=msgspec.structs.replace(task.hints, disk_bytes={task.dataflow.sources[0]: 1e9}))
    for model in (INDEPENDENT, Period()):
        assert not Thalweg(stripes="auto").plan(slow, model).beside
        assert Thalweg(stripes="auto").plan(slow, model).placement == Thalweg().plan(slow, model).placement


def test_unknown_links_are_requested_before_a_plan():
    with pytest.raises(LinksNeeded) as needed:
        Thalweg(stripes=4).plan(make_task(unknown=True), INDEPENDENT)
    assert len(needed.value.links) >= 36


def test_a_dataflow_with_a_fixed_tree_gets_a_single_tree():
    task = make_task()
    fixed = task.but(hints=propagate_hints(task.dataflow, task.hints.output_bytes, lambda _: Answers(max)))
    assert not Thalweg(stripes=8).plan(fixed, INDEPENDENT).beside


@pytest.mark.parametrize("stripes", [0, -1, 65])
def test_stripes_out_of_range_are_refused(stripes):
    with pytest.raises(UsageError, match="stripes of thalweg"):
        Thalweg(stripes=stripes)


# --- while data flows -----------------------------------------------------------------------------------


def look(task: Task, here: Stripe, beside: tuple[Stripe, ...], planner: Thalweg):
    view = Outlook(task.view.estimates, dict.fromkeys(task.view.estimates, 0.0))
    now = task.but(dataflows=(here.dataflow,), view=view, current=here.placement, share=here.share, beside=beside)
    sizes = dict.fromkeys(here.dataflow.sources, 131_072.0)
    hints = propagate_hints(here.dataflow, sizes, lambda _: next(iter(task.hints.reorderable.values())))
    return planner.plan(now.but(hints=hints), INDEPENDENT)


def test_replanning_a_tree_takes_the_loads_of_the_other_trees_into_account():
    """The stream has the best single tree twice. One of them changes to links that the other leaves free."""
    task, planner = make_task(), Thalweg(stripes=2, probes_again=0)
    best = planner.plan(task, INDEPENDENT)
    alone = Thalweg().plan(task, INDEPENDENT)
    same = Stripe(alone.dataflow, alone.placement, 0.5)
    found = look(task, same, (same,), planner)
    shapes = [host_tree(each.dataflow, each.placement) for each in (alone, found)]
    assert shapes[0] != shapes[1]
    before_s, after_s = found.judged
    assert after_s < 0.7 * before_s
    both = best, best.beside[0]
    stay = [Stripe(each.dataflow, each.placement, 0.5) for each in both]
    again = look(task, stay[0], (stay[1],), planner)
    assert again.judged[1] > 0.9 * again.judged[0]


def test_the_saving_of_a_tree_is_judged_by_the_partitions_of_that_tree():
    """One of four equal trees lowers the stream's period from 10 to 9 s. The tree's own falls from 40 to 27.7 s."""
    from thalweg.middleware.planning.planners.frame import Frame
    from thalweg.middleware.planning.shapes.host_tree import freedom

    task = make_task().but(share=0.25)
    free = freedom(task)
    assert free is not None
    frame = Frame(free, task, INDEPENDENT, 4.0)
    assert frame.judged(10.0, 9.0) == pytest.approx((40.0, 1 / (1 / 9 - 0.075)))
    assert frame.judged(10.0, 12.0) == (40.0, 48.0)
    assert frame.judged(math.inf, 9.0) == (math.inf, 9.0)
