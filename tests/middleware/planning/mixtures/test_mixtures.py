"""Trees of a stream: stars, trees made of stars, and the choice by rehearsals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.middleware.planning.test_mixture import HOSTS, INDEPENDENT, make_task
from tests.middleware.planning.test_shape_search import make_loads, random_parent
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning import Period, get_planner, get_strategy
from thalweg.middleware.planning.mixtures.choice import REPAYS, Chooser
from thalweg.middleware.planning.mixtures.hanging import hung, stars
from thalweg.middleware.planning.mixtures.pipelines import pipeline_of
from thalweg.middleware.planning.mixtures.rehearsal import Rehearsal
from thalweg.middleware.planning.planners.stars import Stars
from thalweg.middleware.planning.shapes.search import search_tree


def heights(tree: list[int]) -> list[int]:
    heights = [0] * len(tree)
    for host in range(1, len(tree)):
        above = host
        while above:
            above, heights[host] = tree[above], heights[host] + 1
            assert heights[host] < len(tree), "a tree has no circles"
    return heights


def loads_of_links(trees, transfer_s):
    loads = np.zeros_like(transfer_s)
    for tree in trees:
        for host in range(1, len(tree)):
            loads[host, tree[host]] += transfer_s[host, tree[host]]
    return loads


def test_a_star_has_every_other_host_below_its_host():
    assert stars(4) == [[0, 0, 0, 0], [0, 0, 1, 1], [0, 2, 0, 2], [0, 3, 3, 0]]


@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(2, 5))
def test_trees_made_of_stars_are_no_deeper_and_no_slower_than_asked(seed, count, deepest):
    transfer_s = make_loads(seed, count, "independent").transfer(131_072.0)
    before = stars(count)
    after = hung(before, transfer_s, 0.0, deepest)
    assert before == stars(count), "the stars stay"
    assert max(max(heights(tree)) for tree in after) <= max(deepest, 2)
    slowest = [loads_of_links(trees, transfer_s).max() for trees in (before, after)]
    assert slowest[1] <= slowest[0] * (1 + 1e-9)


def test_a_host_behind_a_slow_link_is_hung_elsewhere_unless_its_combinations_would_take_longer():
    transfer_s = np.ones((4, 4))
    transfer_s[3, 1] = 50.0
    star = [[0, 0, 1, 1]]
    assert hung(star, transfer_s, 0.0, 3) != star
    assert hung(star, transfer_s, 0.0, 3)[0][3] != 1
    assert hung(star, transfer_s, 60.0, 3) == star


@given(st.integers(0, 10_000), st.integers(2, 7), st.sampled_from(["pairs", "at-once"]))
def test_a_pipeline_has_every_source_and_sends_every_result_once(seed, count, joining):
    loads = make_loads(seed, count, "independent")
    parent = random_parent(np.random.default_rng(seed), count)
    pipe = pipeline_of(loads, parent, joining)
    assert sum(not inputs for inputs in pipe.inputs) == count - 1
    crossing = [place for place, seconds in enumerate(pipe.sends_s) if seconds]
    assert sorted((pipe.host[place], pipe.host[pipe.consumer[place]]) for place in crossing) == sorted(
        (host, parent[host]) for host in range(1, count)
    )
    assert [place for place, consumer in enumerate(pipe.consumer) if consumer < 0] == [len(pipe.host) - 1]


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(["single", "duplex", "independent"]))
def test_a_rehearsed_tree_delivers_no_faster_than_its_slowest_link(seed, count, interface):
    loads = make_loads(seed, count, interface)
    parent = random_parent(np.random.default_rng(seed), count)
    times = Rehearsal([pipeline_of(loads, parent, "pairs")], count, interface, 0.05).run(20)
    slowest_s = max(loads.transfer(131_072.0)[host, parent[host]] for host in range(1, count))
    assert len(times) == 20
    assert times == sorted(times)
    assert (times[-1] - times[9]) / 10 >= slowest_s * (1 - 1e-9)


def test_the_chosen_trees_are_predicted_to_be_no_slower_than_stars_and_one_tree():
    for seed in range(4):
        loads = make_loads(seed, 7, "independent")
        alone, _ = search_tree(loads, 2000, 0)
        chooser = Chooser(loads, "pairs", 0.05, 100)
        chosen = chooser.choose(alone, 2000)
        assert chosen == Chooser(loads, "pairs", 0.05, 100).choose(alone, 2000)
        chosen_s = chooser.expected_s(chosen.parents)
        for simple in ([alone], stars(7)):
            same = sorted(chosen.parents) == sorted(simple)
            assert same or chosen_s * (1 - REPAYS) <= chooser.expected_s(simple)
        assert sum(chosen.shares) == pytest.approx(1)


@pytest.mark.parametrize("interface", ["single", "independent"])
def test_one_tree_is_enough_where_a_disk_is_the_bottleneck(interface):
    loads = make_loads(1, 7, interface)
    slow = replace(loads, disk_s=np.array([0.0, 1000.0, *[0.0] * 5]))
    alone, _ = search_tree(slow, 2000, 0)
    assert Chooser(slow, "pairs", 0.05, 100).choose(alone, 2000).parents == [alone]


@pytest.mark.parametrize(("stripes", "count"), [("auto", len(HOSTS)), (3, 3), (64, len(HOSTS))])
def test_stars_plans_a_tree_for_every_host_with_all_operators_there(stripes, count):
    task = make_task(unknown=True)
    plan = get_planner("stars", stripes=stripes).plan(task, INDEPENDENT)
    plans = (plan, *plan.beside)
    assert len(plans) == count
    assert all(tree.dataflow == task.dataflow for tree in plans)
    places = [{tree.placement[name] for name in task.dataflow.operators} for tree in plans]
    assert places == [{host} for host in ("client", *HOSTS[:-1])[:count]]
    assert {plan.share for plan in plans} == {1 / count}
    assert get_strategy("stars").initial == Stars()
    assert get_strategy("stars").adaptation is None


@pytest.mark.parametrize("stripes", [0, 65])
def test_a_number_of_stars_out_of_range_is_refused(stripes):
    with pytest.raises(UsageError, match=f"stripes of stars is {stripes}; give 1 to 64 trees, or auto"):
        get_planner("stars", stripes=stripes)
    assert not get_planner("stars", stripes=1).plan(make_task(), Period()).beside
