"""Shapes of trees and the search over them: dataflows of shapes, exact changes of costs, and optima of all trees."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree
from thalweg.middleware.errors import PlacementError
from thalweg.middleware.network.view import NetworkView
from thalweg.middleware.planning.costs.period import Interface
from thalweg.middleware.planning.problem.hints import Hints, propagate_hints
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.shapes.host_tree import HostTree, freedom, shaped
from thalweg.middleware.planning.shapes.search import ENOUGH, LoadedTree, TreeLoads, greedy, search_tree

CODE = Code("some")
INTERFACES: tuple[Interface, ...] = ("single", "duplex", "independent")


class Largest:
    """Operator whose output is as large as its largest input."""

    reorderable = True

    def output_size_bytes(self, sizes, /):
        return max(sizes)

    def compute_s(self, sizes, /):
        return 0.25 * (len(sizes) - 1)


def make_loads(seed: int, count: int, interface: Interface = "single", sizes=None, shape: float = 2.0) -> TreeLoads:
    chance = np.random.default_rng(seed)
    per_byte = 8 / chance.lognormal(12, 1.2, (count, count))

    def transfer_s(size):
        seconds = 0.05 + size * per_byte
        np.fill_diagonal(seconds, 0.0)
        return seconds

    own = [[], *([size] for size in (sizes or [131_072.0] * (count - 1)))]
    disk = np.array([0.0, *[0.04] * (count - 1)])
    joint = interface == "single"
    largest = Largest()
    return TreeLoads(
        transfer_s,
        own,
        largest.output_size_bytes,
        lambda _, inputs: largest.compute_s(inputs) if inputs else 0.0,
        disk,
        interface=interface,
        shape=shape,
        joint=joint,
    )


def all_trees(count: int):
    """Yield every tree over hosts 0 (the root) to count - 1, as parents."""
    for parents in itertools.product(range(count), repeat=count - 1):
        parent = [0, *parents]
        reached = all(_leads_to_root(parent, host) for host in range(1, count))
        if reached:
            yield parent


def _leads_to_root(parent, host):
    for _ in parent:
        host = parent[host]
    return host == 0


def random_parent(chance: np.random.Generator, count: int) -> list[int]:
    return [0, *(int(chance.integers(host)) for host in range(1, count))]


# --- the search ---------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from(INTERFACES), st.sampled_from([1.5, 2.0, 8.0]))
def test_the_cost_of_a_change_equals_a_fresh_measurement(seed, count, interface, shape):
    loads = make_loads(seed, count, interface, shape=shape)
    tree = LoadedTree(loads, random_parent(np.random.default_rng(seed), count))
    changes = tree.changes()
    for host, parent in itertools.product(range(count), repeat=2):
        if host == 0 or parent == tree.parent[host] or tree.below[host, parent]:
            assert changes[host, parent] == math.inf
            continue
        other = [*tree.parent]
        other[host] = parent
        measured = pytest.approx(LoadedTree(loads, other).cost, rel=1e-9, abs=1e-12 * tree.cost)  # differences cancel
        assert tree.cost + changes[host, parent] == measured


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_search_mostly_finds_the_best_tree_and_otherwise_a_slightly_worse_tree(interface):
    ratios = []
    for seed in range(12):
        loads = make_loads(seed, 5, interface)
        best = min(LoadedTree(loads, parent).cost for parent in all_trees(5))
        found, looks = search_tree(loads, 1500, seed=1)
        assert looks >= 1500
        ratios.append(math.sqrt(LoadedTree(loads, found).cost / best))
    assert min(ratios) >= 1 - ENOUGH
    assert sum(ratio < 1 + 1e-6 for ratio in ratios) >= 11
    assert max(ratios) < 1.05


def test_sizes_that_grow_towards_the_root_are_counted():
    """The largest image makes every result above it as large."""
    loads = make_loads(3, 4, sizes=[1e5, 1e5, 5e5])
    chain = LoadedTree(loads, [0, 0, 1, 2])  # 3 -> 2 -> 1 -> 0: everyone sends the large one
    assert [float(up) for up in chain.up[1:]] == pytest.approx(
        [float(loads.transfer(5e5)[host, host - 1]) for host in (1, 2, 3)]
    )
    found, _ = search_tree(loads, 2000, seed=1)
    assert LoadedTree(loads, found).cost == pytest.approx(
        min(LoadedTree(loads, parent).cost for parent in all_trees(4))
    )


@given(st.integers(0, 10_000), st.integers(3, 9), st.sampled_from(INTERFACES))
def test_a_tree_with_moved_hosts_equals_a_tree_that_is_built_afresh(seed, count, interface):
    chance = np.random.default_rng(seed)
    loads = make_loads(seed, count, interface, sizes=chance.choice([1e5, 2e5, 3e5], count - 1).tolist())
    tree = LoadedTree(loads, random_parent(chance, count))
    for _ in range(12):
        host = int(chance.integers(1, count))
        tree.hang(host, int(chance.choice(np.flatnonzero(~tree.below[host]))))
        fresh = LoadedTree(loads, tree.parent)
        assert tree.cost == fresh.cost
        np.testing.assert_array_equal(tree.below, fresh.below)
        np.testing.assert_array_equal(tree.changes(), fresh.changes())


def test_the_search_is_deterministic_and_no_worse_with_more_looks():
    loads = make_loads(7, 12)
    assert search_tree(loads, 20_000, seed=3) == search_tree(make_loads(7, 12), 20_000, seed=3)
    few, many = (LoadedTree(loads, search_tree(loads, looks, seed=3)[0]).cost for looks in (2_000, 40_000))
    assert many <= few <= LoadedTree(loads, greedy(loads)).cost


# --- what trees stand for -----------------------------------------------------------------------------


def problem(count: int, **change) -> Task:
    flow = complete_binary_tree({f"h{i}": CODE for i in range(1, count + 1)}, CODE)
    flow = Dataflow(tuple(change.get(node.name, node) for node in flow.nodes))
    sizes = {name: 1e5 + 1e3 * i for i, name in enumerate(flow.sources)}
    return task_of(flow, sizes)


def task_of(flow: Dataflow, sizes) -> Task:
    return Task((flow,), (), NetworkView({}), propagate_hints(flow, sizes, lambda _: Largest()))


@given(st.integers(0, 10_000), st.integers(2, 9), st.sampled_from(["pairs", "at-once"]))
def test_the_dataflow_of_a_shape_has_the_same_sources_and_the_transfers_of_the_host_tree(seed, count, joining):
    task = problem(count)
    flow, free = task.dataflow, freedom(task)
    assert free is not None
    names = ["client", *free.sources]
    parent = random_parent(np.random.default_rng(seed), count + 1)
    tree = HostTree("client", {names[host]: names[parent[host]] for host in range(1, count + 1)})
    other, placement = shaped(task, free, tree, joining)
    made, known = other.dataflow, other.hints
    assert {name: made.by_name[name] for name in made.sources} == {name: flow.by_name[name] for name in flow.sources}
    assert made.by_name[made.sinks[0]].pinned == "client" and set(placement) == set(made.by_name)
    assert known.check(made).reorderable.keys() == set(made.operators)
    assert known.output_bytes[made.by_name[made.sinks[0]].inputs[0]] == max(task.hints.output_bytes.values())
    sent = sorted(
        (placement[name], placement[made.consumers[name][0]])
        for name in made.upward[:-1]
        if placement[name] != placement[made.consumers[name][0]]
    )
    assert sent == sorted(tree.parent.items())
    if joining == "pairs":
        assert len(made.operators) == count - 1
    else:
        assert len({placement[name] for name in made.operators}) == len(made.operators)


def test_names_of_new_operators_differ_from_the_names_of_sources():
    nodes = (
        Node("op0", "source", (), CODE, "a"),
        Node("op2", "source", (), CODE, "b"),
        Node("x", "operator", ("op0", "op2"), CODE),
        Node("t", "sink", ("x",), None, "c"),
    )
    task = task_of(Dataflow(nodes), {"op0": 1.0, "op2": 1.0})
    free = freedom(task)
    assert free is not None
    made = shaped(task, free, HostTree("c", {"a": "c", "b": "a"}), "pairs")[0].dataflow
    assert made.operators == ("op1",) and made.by_name["op1"].inputs == ("op0", "op2")


def test_a_shape_is_fixed_if_an_operator_is_pinned_different_or_not_reorderable():
    task = problem(4)
    assert freedom(task) is not None
    assert freedom(task.but(hints=Hints(task.hints.output_bytes, task.hints.compute_s))) is None
    op1 = task.dataflow.by_name["op1"]
    for other in (Node("op1", "operator", op1.inputs, CODE, "h1"), Node("op1", "operator", op1.inputs, Code("other"))):
        assert freedom(problem(4, op1=other)) is None
    nowhere = problem(4, sink=Node("sink", "sink", ("op2",)))
    with pytest.raises(PlacementError, match="sink 'sink' has no host"):
        freedom(nowhere)
    assert freedom(nowhere.but(current={"sink": "h2"})) is not None


@pytest.mark.parametrize("interface", INTERFACES)
def test_knowing_a_link_is_worth_the_average_saving_of_the_best_change_over_the_link(interface):
    loads = make_loads(4, 6, interface, shape=2.0)
    best, _ = search_tree(loads, 5_000, 0)
    tree = LoadedTree(loads, best)
    nothing = np.zeros((6, 6))
    assert tree.value_of_knowing(nothing, 0.0) == pytest.approx(nothing, abs=1e-9)  # a best tree, and nothing to learn
    worth = [tree.value_of_knowing(nothing + doubt, 0.0) for doubt in (0.3, 1.0, 2.0)]
    assert all((more >= less - 1e-12).all() for less, more in itertools.pairwise(worth))
    assert worth[-1].max() > 0.01 and (worth[-1] == worth[-1].T).all() and (worth[-1] < 1).all()
    assert tree.sends == pytest.approx(LoadedTree(loads, best).sends)  # as they were

    # of one link alone: what a change over it saves, over all that a probe may show
    host, parent = np.unravel_index(np.argmax(worth[-1]), worth[-1].shape)
    alone = nothing.copy()
    alone[host, parent] = 2.0
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    saved = 0.0
    for deviation, weight in zip(nodes, weights / weights.sum(), strict=True):
        other = LoadedTree(loads, best)
        other.sends = other.sends.copy()
        other.sends[host, parent] *= math.exp(-2.0 * deviation)
        saved += weight * max(-other.changes()[host, parent], 0.0)
    assert tree.value_of_knowing(alone, 0.0)[host, parent] == pytest.approx(saved / (2 * tree.cost))
