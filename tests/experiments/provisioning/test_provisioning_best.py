"""The cheapest machines: equality with an exhaustive search, all constraints, and answers whenever time ends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.experiments.papers.benoit2008.instances import Drawing
from thalweg.experiments.papers.benoit2008.instances import drawn as paper
from thalweg.experiments.provisioning.annealing import anneal
from thalweg.experiments.provisioning.answer import NOWHERE, Answer, cost, needed, violations
from thalweg.experiments.provisioning.arborescence import busiest_s, cheapest_tree
from thalweg.experiments.provisioning.best import ProvisioningLimits, Rented, best
from thalweg.experiments.provisioning.cover import cover
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import Egress, ProvisioningInstance
from thalweg.experiments.provisioning.parts import parts_of
from thalweg.middleware.errors import PlannerError, UsageError
from thalweg.middleware.planning.solver.program import NoSolutionError

QUICK = ProvisioningLimits(steps=2, runs=1)  # so that the program has something to do


def drawn(seed: int, most: int, *, alike: bool, priced: bool = False) -> ProvisioningInstance:
    """Draw a problem of few operators in which any constraint may bind.

    ``alike``: all links are equal, and the number of machines is unlimited.
    """
    random = np.random.default_rng(seed)
    n, k, servers, c = int(random.integers(1, most + 1)), 3, 2, int(random.integers(1, 4))
    holds = random.random((k, servers)) < 0.7
    holds[np.arange(k), random.integers(servers, size=k)] = True
    links = np.full((c, c), 12.0) if alike else np.maximum.outer(*[random.integers(4, 20, c).astype(float)] * 2)
    egress = None
    if priced:
        egress = Egress(*(random.integers(0, 3, form).astype(float) for form in ((servers, c), (c, c), c)), paid_s=1e9)
    return ProvisioningInstance(
        operators=tuple(f"op{at}" for at in range(n)),
        parent=np.array([*(int(random.integers(at + 1, n)) for at in range(n - 1)), -1]),
        leaves=tuple(tuple(random.integers(k, size=random.integers(0, 3)).tolist()) for _ in range(n)),
        work_mop=random.integers(1, 10, n).astype(float),
        output_bytes=random.integers(1, 8, n).astype(float),
        objects=("a", "b", "c"),
        object_bytes=random.integers(1, 6, k).astype(float),
        frequency_hz=np.ones(k),
        servers=("s", "t"),
        holds=holds,
        server_card_bytes_s=random.integers(8, 25, servers).astype(float),
        server_link_bytes_s=np.full((servers, c), 7.0) if alike else random.integers(4, 12, (servers, c)).astype(float),
        classes=tuple(f"c{at}" for at in range(c)),
        speed_mop_s=random.integers(9, 25, c).astype(float),
        card_bytes_s=random.integers(8, 30, c).astype(float),
        price=random.integers(5, 20, c).astype(float),
        limit=np.full(c, math.inf) if alike else random.integers(1, 4, c).astype(float),
        machine_link_bytes_s=links,
        throughput_hz=1.0,
        egress=egress,
    ).check()


def partitions(count: int) -> Iterator[list[int]]:
    """Yield every partition of ``count`` items into groups, as the group of each item."""
    rows: list[list[int]] = [[]]
    for _ in range(count):
        rows = [[*row, part] for row in rows for part in range(max(row, default=-1) + 2)]
    yield from rows


def cheapest_of_all(instance: ProvisioningInstance) -> float:
    """Return the least cost over all groups, classes and servers, or inf if no answer keeps all constraints."""
    least = math.inf
    for row in partitions(instance.count):
        machine_of, machines = np.array(row), max(row) + 1
        needs = np.argwhere(needed(instance, machine_of, machines)).tolist()
        holders = [np.flatnonzero(instance.holds[item]).tolist() for _, item in needs]
        for classes in itertools.product(*_able(instance, machine_of)):
            if instance.price[list(classes)].sum() >= least:
                continue
            for servers in itertools.product(*holders):
                server_of = np.full((machines, len(instance.objects)), NOWHERE)
                for (at, item), server in zip(needs, servers, strict=True):
                    server_of[at, item] = server
                answer = Answer(machine_of, np.array(classes), server_of)
                if cost(instance, answer) < least and not violations(instance, answer):
                    least = cost(instance, answer)
                    if instance.egress is None:
                        break
    return least


def _able(instance: ProvisioningInstance, machine_of: np.ndarray) -> list[list[int]]:
    """Return the classes that carry each group. If classes differ only in price, return the cheapest."""
    count = int(machine_of.max()) + 1
    mop_s = np.bincount(machine_of, instance.asked_mop_s, count)
    card = needed(instance, machine_of, count) @ instance.rate_bytes_s
    for node, parent in enumerate(instance.parent[:-1].tolist()):
        if machine_of[node] != machine_of[parent]:
            card[machine_of[[node, parent]]] += instance.sent_bytes_s[node]
    able = []
    for asked, carried in zip(mop_s, card, strict=True):
        classes = np.flatnonzero((instance.speed_mop_s >= asked) & (instance.card_bytes_s >= carried))
        order: list[int] = classes[np.argsort(instance.price[classes])].tolist()
        alone = instance.overlap and instance.egress is None and np.isinf(instance.limit).all()
        able.append(order[:1] if alone else order)
    return able


def agrees(instance: ProvisioningInstance) -> None:
    least = cheapest_of_all(instance)
    try:
        rented_answer = best(instance, QUICK)
    except PlannerError:
        assert least == math.inf
        return
    assert violations(instance, rented_answer.answer) == []
    assert rented_answer.cost == pytest.approx(least)
    assert rented_answer.proven


@pytest.mark.long
@settings(max_examples=12)  # of up to 4,140 ways to part operators
@given(st.integers(0, 2**32))
def test_the_best_answer_for_unlimited_machines_is_the_cheapest(seed: int) -> None:
    agrees(drawn(seed, 8, alike=True))


@given(st.integers(0, 2**32), st.booleans())
def test_the_best_answer_for_limited_machines_and_unequal_links_is_the_cheapest(seed: int, priced: bool) -> None:
    agrees(drawn(seed, 4, alike=False, priced=priced))


@pytest.fixture(scope="module")
def several() -> list[tuple[ProvisioningInstance, Rented]]:
    """Return problems of the paper with several machines, and their best answers."""
    draws = (paper(Drawing(nodes=30, alpha=1.8), np.random.default_rng(seed)) for seed in (3, 4, 6))
    return [(instance, best(instance, ProvisioningLimits(steps=250, runs=1))) for instance in draws]


def test_annealing_finds_the_best_answer_if_no_class_is_both_fastest_and_widest() -> None:
    everywhere = {"server_link_bytes_s": np.full((1, 2), 100.0), "machine_link_bytes_s": np.full((2, 2), 100.0)}
    instance = ProvisioningInstance(
        operators=("a", "b"),
        parent=np.array([1, -1]),
        leaves=((0,), (0,)),
        work_mop=np.array([10.0, 10.0]),
        output_bytes=np.array([1.0, 1.0]),
        objects=("x",),
        object_bytes=np.array([1.0]),
        frequency_hz=np.array([1.0]),
        servers=("s",),
        holds=np.array([[True]]),
        server_card_bytes_s=np.array([100.0]),
        classes=("fast", "wide"),
        speed_mop_s=np.array([40.0, 20.0]),
        card_bytes_s=np.array([10.0, 20.0]),
        price=np.array([3.0, 5.0]),
        limit=np.full(2, math.inf),
        throughput_hz=1.0,
        **everywhere,
    ).check()
    annealed = anneal(parts_of(instance), runs=1)
    assert annealed is not None and annealed[0] == cheapest_of_all(instance) == 3.0


@pytest.mark.long
def test_answers_to_the_papers_problems_are_proven(several: list[tuple[ProvisioningInstance, Rented]]) -> None:
    ratios = []
    for instance, answer in several:
        assert answer.proven and violations(instance, answer.answer) == [] and answer.answer.machines > 1
        starts = [cost(instance, rented(instance, name)) for name in HEURISTICS if name != "random"]
        assert cover(parts_of(instance), answer.answer.machines) <= answer.bound <= answer.cost <= min(starts)
        annealed = anneal(parts_of(instance), runs=2)
        assert annealed is not None and annealed[0] == cost(instance, annealed[1])
        ratios.append(annealed[0] / answer.cost)
    assert np.mean(ratios) <= 1.03


def test_an_answer_with_a_bound_exists_whenever_time_ends(
    several: list[tuple[ProvisioningInstance, Rented]],
) -> None:
    for instance, known in several:
        early = best(instance, ProvisioningLimits(time_limit_s=1e-6, steps=1, runs=1))
        assert violations(instance, early.answer) == [] and early.bound <= known.cost <= early.cost
        near = best(instance, ProvisioningLimits(gap=0.2, steps=1, runs=1))
        assert near.bound <= known.cost <= near.cost and near.gap <= 0.2 + 1e-9


def test_a_throughput_that_no_machine_can_carry_is_refused(several: list[tuple[ProvisioningInstance, Rented]]) -> None:
    slow = msgspec.structs.replace(several[0][0], throughput_hz=100.0)
    with pytest.raises(PlannerError, match="no machines"):
        best(slow)


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_the_best_answer_for_machines_without_overlap_is_the_cheapest(seed: int, alike: bool, priced: bool) -> None:
    problem = drawn(seed, 4 if alike else 3, alike=alike, priced=priced)
    cores = np.random.default_rng(seed).integers(1, 3, len(problem.classes)).astype(float)
    work = 3 * problem.work_mop
    agrees(msgspec.structs.replace(problem, overlap=False, cores=cores, throughput_hz=0.25, work_mop=work))


def test_a_server_that_is_too_slow_for_an_operator_is_not_chosen_though_cheaper() -> None:
    problem = msgspec.structs.replace(
        drawn(1, 1, alike=True),
        overlap=False,
        leaves=((0, 1),),
        holds=np.ones((3, 2), dtype=bool),
        object_bytes=np.array([3.0, 4.0, 0.0]),
        work_mop=np.zeros(1),
        output_bytes=np.zeros(1),
        classes=("c",),
        server_card_bytes_s=np.array([4.0, 100.0]),
        server_link_bytes_s=np.full((2, 1), 100.0),
        **{name: np.full(1, 100.0) for name in ("speed_mop_s", "card_bytes_s")},
        **{name: np.ones(1) for name in ("price", "limit")},
        machine_link_bytes_s=np.ones((1, 1)),
        egress=Egress(np.array([[0.0], [1.0]]), np.zeros((1, 1)), np.zeros(1), paid_s=1e9),
    ).check()
    answer = best(problem, QUICK)  # from the first server 3 bytes and 4 take 0.75 and 1 s, of 1
    assert (answer.cost, answer.proven, answer.answer.server_of.tolist()) == (1 + 4, True, [[0, 1, NOWHERE]])


@pytest.mark.parametrize("seed", [683, 1031, 1860])  # HiGHS 1.16 ends with "Solve error" unless presolve is off
def test_the_optimum_is_proven_even_if_the_solver_fails(seed: int) -> None:
    problem = drawn(seed, 4, alike=False, priced=True)
    prices = np.round(problem.price / 12) * (np.arange(len(problem.price)) % 2)
    agrees(msgspec.structs.replace(problem, price=prices))


@given(st.integers(0, 2**32), st.floats(0.4, 3.0))
def test_no_tree_over_hosts_within_the_period_is_cheaper(seed: int, period_s: float) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 6))
    price, took_s = random.integers(0, 10, (count, count)).astype(float), random.random((count, count))
    costs = []
    for parents in itertools.product(range(count), repeat=count - 1):
        tree = dict(enumerate(parents, 1))
        reached = [tree]
        for _ in range(count):
            reached.append({host: reached[-1].get(to, 0) for host, to in tree.items()})
        if not any(reached[-1].values()) and busiest_s(tree, took_s) <= period_s:
            costs.append(sum(price[ends] for ends in tree.items()))
    if not costs:
        with pytest.raises(NoSolutionError):
            cheapest_tree(price, took_s, 0, period_s)
        return
    cheapest = cheapest_tree(price, took_s, 0, period_s)
    assert sum(price[ends] for ends in cheapest.items()) == pytest.approx(min(costs))
    assert busiest_s(cheapest, took_s) <= period_s * (1 + 1e-6)


@pytest.mark.parametrize("overlap", [True, False])
def test_unlimited_or_free_machines_are_rented(overlap: bool) -> None:
    problem = msgspec.structs.replace(drawn(7, 6, alike=True), overlap=overlap, throughput_hz=0.2)
    endless = {
        name: np.full_like(getattr(problem, name), math.inf)
        for name in ("card_bytes_s", "machine_link_bytes_s", "server_card_bytes_s", "server_link_bytes_s")
    }
    assert best(msgspec.structs.replace(problem, **endless), QUICK).proven
    free = best(msgspec.structs.replace(problem, price=0 * problem.price), QUICK)
    assert (free.cost, free.proven) == (0, True)
    with pytest.raises(NoSolutionError, match="limit of every class is below 1"):
        best(msgspec.structs.replace(problem, limit=0 * problem.price), QUICK)
    with pytest.raises(UsageError, match="0 servers"):
        msgspec.structs.replace(problem, servers=()).check()
