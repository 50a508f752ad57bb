from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.experiments.papers.cardellini2016.instances import (
    drawn,
    fat,
    layered,
    sequential,
    table_2,
    tag_and_count,
)
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import PlannerError, UsageError
from thalweg.middleware.network.view import Latency, LinkEstimate, NetworkView
from thalweg.middleware.planning import Hints, Odp, Period, Plan, Quality, Task, get_strategy
from thalweg.middleware.planning.odp.frontier import Frontier
from thalweg.middleware.planning.odp.heuristics import first_fit
from thalweg.middleware.planning.odp.hubs import through_hubs
from thalweg.middleware.planning.odp.instance import OdpInstance, sampled
from thalweg.middleware.planning.odp.objective import (
    Extremes,
    Goal,
    Metric,
    Objective,
    form_of,
    only,
    value_of,
    worst_of,
)
from thalweg.middleware.planning.odp.program import General
from thalweg.middleware.planning.odp.sharing import costs_as_sent, solve_as_sent
from thalweg.middleware.planning.odp.solve import OdpLimits, normalised, solve
from thalweg.middleware.planning.odp.tasks import from_networkx
from thalweg.middleware.planning.odp.walks import walk
from thalweg.middleware.protocol.adaptation import GlobalMoves

METRICS: tuple[Metric, ...] = ("response", "availability", "traffic", "usage", "energy")


def everything(instance: OdpInstance) -> np.ndarray:
    """Return all placements that keep every constraint, one in a row."""
    rows = np.array(list(itertools.product(*(np.flatnonzero(row).tolist() for row in instance.candidates))))
    return rows[[not instance.shortfall(row) for row in rows]]


def small(seed: int) -> OdpInstance:
    return drawn(np.random.default_rng(seed), (3, 5), (2, 4))


def response_by_paths(instance: OdpInstance, where: np.ndarray) -> float:
    """Return R over all paths, as equations (1) and (2) are printed."""

    def longest(node: int) -> float:
        took = instance.execution_s[node] / instance.speed[where[node]]
        ahead = [0.0, *(
            (instance.delay_s[where[node], where[other]] if where[node] != where[other] else 0.0) + longest(other)
            for other, _ in instance.outputs[node]
        )]  # fmt: skip
        return float(took + max(ahead))

    return max(longest(node) for node in range(instance.count))


@given(st.integers(0, 99))
@settings(max_examples=20)
def test_metrics_equal_the_equations_and_costs_of_goals_equal_the_metrics(seed: int) -> None:
    instance = small(seed)
    random = np.random.default_rng(seed)
    where = np.array([random.choice(np.flatnonzero(row)) for row in instance.candidates])
    metrics = instance.metrics(where)
    assert metrics.response_s == pytest.approx(response_by_paths(instance, where))
    product = math.prod(instance.availability[where].tolist())
    once = math.prod(instance.availability[np.unique(where)].tolist())
    sums = dict.fromkeys(("traffic", "usage", "energy"), 0.0)
    for (one, other), rate in zip(instance.edges.tolist(), instance.rate.tolist(), strict=True):
        u, v = where[one], where[other]
        if u != v:
            product, once = (each * instance.link_availability[u, v] for each in (product, once))
            for power, what in enumerate(sums):
                sums[what] += rate * instance.delay_s[u, v] ** power
    assert math.exp(metrics.log_availability) == pytest.approx(product)
    assert math.exp(metrics.log_availability_of_hosts) == pytest.approx(once)
    assert [metrics.traffic, metrics.usage, metrics.energy] == pytest.approx(list(sums.values()))
    for metric, counted in [(metric, "operators") for metric in METRICS] + [("availability", "hosts")]:
        goal = Goal(instance, only(metric, availability_of=counted))
        assert goal.cost(where) == pytest.approx(value_of(metrics, metric, counted))
        assert goal.cost(where) <= worst_of(instance, metric, counted) * (1 + 1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_the_utility_of_a_metric_is_one_at_the_best_placement_and_zero_at_the_worst(metric: Metric) -> None:
    instance = small(3)
    rows = everything(instance)
    values = [value_of(instance.metrics(row), metric) for row in rows]
    assert min(values) < max(values)
    goal = Goal(instance, only(metric), {metric: Extremes(min(values), max(values))})
    assert goal.utility(rows[int(np.argmin(values))]) == pytest.approx(1.0)
    assert goal.utility(rows[int(np.argmax(values))]) == pytest.approx(0.0)


def test_the_utility_is_in_the_unit_interval_and_falls_with_the_cost() -> None:
    instance = small(3)
    rows = everything(instance)
    objective = Objective(0.25, 0.25, 0.5, "energy")
    values = {m: [value_of(instance.metrics(row), m) for row in rows] for m in objective.weights}
    goal = Goal(instance, objective, {m: Extremes(min(v), worst_of(instance, m)) for m, v in values.items()})
    utilities = [goal.utility(row) for row in rows]
    assert max(utilities) <= 1 and min(utilities) >= 0
    shifted = {m: goal.extremes[m].best / (goal.extremes[m].worst - goal.extremes[m].best) for m in values}
    offset = sum(objective.weights[m] * shifted[m] for m in values)
    assert 1 + offset - goal.costs(rows, goal.main) == pytest.approx(utilities)
    alone = Goal(instance, only("usage"), {"usage": goal.extremes["energy"]})
    assert alone.utility(rows[0]) <= 1 and math.isnan(Goal(instance, only("usage")).utility(rows[0]))


@pytest.mark.parametrize("metric", ["availability", "traffic", "response"])
def test_the_response_and_then_the_usage_decide_between_equal_placements(metric: Metric) -> None:
    made = small(13)
    instance = msgspec.structs.replace(
        made,
        availability=np.array([1.0, 1.0, 0.9, 1.0]),
        link_availability=np.ones((4, 4)),
        rate=np.ones_like(made.rate),
    )
    rows = everything(instance)
    goal = Goal(instance, only(metric))
    keys = [
        (round(goal.cost(row), 9), round(instance.metrics(row).response_s, 9), instance.metrics(row).usage)
        for row in rows
    ]
    best = int(goal.costs(rows).argmin())
    assert keys[best] == min(keys)
    plain = Goal(instance, only(metric, ties=False))
    assert plain.form is plain.main
    assert np.array_equal(goal.main.node, form_of(instance, metric).node)


def test_the_generated_applications_have_the_sizes_of_the_paper() -> None:
    random = np.random.default_rng(1)
    made = tag_and_count(random)
    assert (made.count, len(made.hosts), len(made.edges)) == (12, 8, 2 + 4 * 4 + 2)
    assert made.rate[:2].tolist() == [5, 5] and made.rate.sum() == pytest.approx(6 * 10)
    assert made.candidates.sum(axis=1).tolist() == [1, *[8] * 10, 1]
    eight = np.array([0] * 2 + [1] * 8 + [0] * 2)
    assert math.exp(made.metrics(eight).log_availability) == pytest.approx(0.9227, abs=1e-4)
    for sizes, hosts, variables in (
        (sequential(50), 20, 19_600),
        (fat(50), 20, 38_400),
        (sequential(20), 100, 190_000),
        (fat(20), 100, 360_000),
    ):
        edges = len(table_2(random, sizes, hosts).edges)
        assert edges * hosts * hosts == pytest.approx(variables)
    few = sampled(table_2(random, fat(10)), 0.2, random)
    assert few.candidates.sum(axis=1).tolist() == [4] * 10


def test_generated_instances_have_a_placement() -> None:
    for seed in range(30):
        assert len(everything(small(seed)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidates": np.zeros((3, 2), dtype=bool)}, "operator 'op1' has no candidate"),
        ({"availability": np.array([1.0, 0.0])}, "availability of host 'h2' is 0; it must be above 0, at most 1"),
        ({"availability": np.array([1.1, 1.0])}, "availability of host 'h1' is 1.1"),
        ({"link_availability": np.array([[1, 0.0], [1, 1]])}, "link_availability of the link from 'h1' to 'h2' is 0"),
        ({"speed": np.array([0.0, 1])}, "speed of host 'h1' is 0; it must be above 0"),
        ({"delay_s": np.array([[0, 1.0], [-1, 0]])}, "delay_s of the link from 'h2' to 'h1' is -1"),
        ({"delay_s": np.array([[0, math.nan], [1, 0]])}, "delay_s of the link from 'h1' to 'h2' is missing"),
        ({"bandwidth": np.array([[0, 1.0], [-2, 0]])}, "bandwidth of the link from 'h2' to 'h1' is -2"),
        ({"demand": np.array([1, math.inf, 1])}, "demand of operator 'op2' is inf"),
        ({"execution_s": np.array([1, -1.0, 1])}, "execution_s of operator 'op2' is -1"),
        ({"rate": np.array([1, math.nan])}, "rate of the stream from 'op2' to 'op3' is missing"),
        ({"capacity": np.array([1.0])}, "capacity has the form (1,); 3 operators on 2 hosts need (2,)"),
        ({"edges": np.array([[1, 0], [1, 2]])}, "a stream goes from operator 1 to 0 of 3"),
        ({"hosts": (), "names": ()}, "there are 0 operators and 0 hosts"),
    ],
)
def test_an_invalid_field_of_an_instance_is_named_in_the_error(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        msgspec.structs.replace(table_2(np.random.default_rng(1), sequential(3), 2), **changes).check()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"response": -1.0, "network": 2.0}, "the weight of response is -1.0"),
        (
            {"response": 0.5, "network": 0.4},
            "the weights of response, availability and network sum to 0.5 + 0 + 0.4; make that 1",
        ),
        ({"metric": "usages"}, "metric of the objective is 'usages'"),
        ({"availability_of": "host"}, "availability_of of the objective is 'host'"),
    ],
)
def test_invalid_weights_and_metrics_of_an_objective_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Objective(**given)


def test_the_shortfall_of_a_placement_names_the_broken_constraint() -> None:
    instance = table_2(np.random.default_rng(1), sequential(4), 3, capacity=2)
    assert not instance.shortfall(np.array([0, 0, 1, 1]))
    assert instance.shortfall(np.array([0, 0, 0, 1])) == "host 'h1' has a capacity of 2, 1 short of 3 (11)"
    narrow = msgspec.structs.replace(instance, bandwidth=np.full((3, 3), 0.5))
    assert "bandwidth of 0.5, 0.5 short of 1 (17)" in narrow.shortfall(np.array([0, 0, 1, 1]))
    few = msgspec.structs.replace(instance, candidates=np.tri(4, 3, dtype=bool))
    assert "no candidate" in few.shortfall(np.array([1, 0, 1, 1]))


def test_first_fit_keeps_the_capacities_or_raises_an_error() -> None:
    instance = table_2(np.random.default_rng(1), layered_sizes := (1, 3, 1), 3, capacity=2)
    where = first_fit(Goal(instance, only("response")))
    assert not instance.shortfall(where) and len(where) == sum(layered_sizes)
    assert layered((1, 2, 1)).tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    with pytest.raises(PlannerError, match="no host with room for operator 'op5'"):
        first_fit(Goal(msgspec.structs.replace(instance, capacity=np.array([2.0, 2, 0])), only("response")))


def goals(instance: OdpInstance, random: np.random.Generator) -> list[Goal]:
    """Return goals of every metric alone, and of all with random weights. Draw the count of availability and ties."""
    counted, ties = str(random.choice(["operators", "hosts"])), bool(random.random() < 0.5)
    objectives = [only(metric, availability_of=counted, ties=ties) for metric in METRICS]  # type: ignore[arg-type]
    weights = random.dirichlet([1, 1, 1]).tolist()
    objectives.append(Objective(*weights, str(random.choice(METRICS[2:])), counted, ties))  # type: ignore[arg-type]
    worst = {metric: Extremes(0.0, worst_of(instance, metric)) for metric in METRICS}
    return [Goal(instance, objective, worst) for objective in objectives]


def least(goal: Goal, rows: np.ndarray) -> float:
    return float(goal.costs(rows).min())


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_states_of_the_frontier_are_enough_for_the_optimum(seed: int) -> None:
    instance = msgspec.structs.replace(small(seed), bandwidth=np.full_like(small(seed).bandwidth, math.inf))
    rows = everything(instance)
    for goal in goals(instance, np.random.default_rng(seed)):
        for widths in ((10_000,), (1, 2, 10_000)):
            found = Frontier(goal).solve(widths=widths)
            assert found is not None and found.proven and not instance.shortfall(found.where)
            assert goal.costs(found.where[None])[0] == pytest.approx(least(goal, rows), rel=1e-12)
        few = Frontier(goal).solve(widths=(1,))
        assert few is None or few.bound <= goal.cost(rows[goal.costs(rows).argmin()]) <= few.cost + 1e-12


def unlike(instance: OdpInstance, random: np.random.Generator) -> OdpInstance:
    """Return the instance with random delays, rates, times and candidates. Many delays are longer than a detour."""
    hosts, count = len(instance.hosts), instance.count
    return msgspec.structs.replace(
        instance,
        delay_s=random.lognormal(0, 1, (hosts, hosts)),
        link_availability=random.uniform(0.9, 1, (hosts, hosts)),
        availability=random.uniform(0.9, 1, hosts),
        rate=random.uniform(0.1, 5, len(instance.edges)),
        execution_s=random.uniform(0, 1, count),
        speed=random.uniform(0.5, 2, hosts),
        capacity=random.integers(1, 4, hosts) + 1.0,
        candidates=(random.random((count, hosts)) < 0.8) | (np.arange(hosts) == random.integers(hosts)),
    )


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_walks_over_hosts_are_enough_for_chains(seed: int, count: int, hosts: int, room: int) -> None:
    random = np.random.default_rng(seed)
    instance = msgspec.structs.replace(
        table_2(random, sequential(count), hosts, room), delay_s=random.lognormal(0, 1.5, (hosts, hosts))
    )
    if count > hosts * room:
        assert walk(Goal(instance, only("response"))) is None
        return
    rows = everything(instance)
    for goal in goals(instance, random):
        if goal.objective.availability_of == "hosts" and goal.form.host.any():
            continue
        found = walk(goal, widths=(2, 1_000))
        if found is None:  # the cheapest walk goes over more hosts than there are operators for
            assert count < 2 * math.ceil(count / room) + hosts
            continue
        assert found.proven and not instance.shortfall(found.where)
        assert goal.costs(found.where[None])[0] == pytest.approx(least(goal, rows), rel=1e-9)
    assert walk(Goal(unlike(instance, random), only("usage"))) is None


def test_a_walk_visits_a_host_twice_if_the_detour_is_shorter() -> None:
    delays = np.array([[0, 1, 9, 9], [1, 0, 1, 1], [9, 1, 0, 9], [9, 1, 9, 0]], dtype=float)
    instance = msgspec.structs.replace(table_2(np.random.default_rng(1), sequential(7), 4, 2), delay_s=delays)
    found = walk(Goal(instance, only("usage", ties=False)))
    assert found is not None and found.proven and found.cost == 4  # over host 1 twice
    assert found.where.tolist().count(1) == 2 and not instance.shortfall(found.where)


@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans())
@settings(max_examples=15, deadline=None)
def test_hosts_of_the_hubs_and_a_threshold_are_enough_for_fat_graphs(seed: int, middle: int, alike: bool) -> None:
    random = np.random.default_rng(seed)
    instance = table_2(random, fat(middle + 2), int(random.integers(2, 4)), int(random.integers(2, 4)))
    if not alike:
        instance = unlike(instance, random)
    rows = everything(instance)
    for goal in goals(instance, random):
        if goal.form.host.any():
            assert through_hubs(goal) is None
            continue
        found = through_hubs(goal)
        assert (found is None) == (not len(rows))
        if found is not None:
            assert found.proven and not instance.shortfall(found.where)
            assert goal.costs(found.where[None])[0] == pytest.approx(least(goal, rows), rel=1e-12)


def test_special_solvers_return_nothing_for_instances_of_other_forms() -> None:
    random = np.random.default_rng(1)
    narrow = {"bandwidth": np.full((4, 4), 0.5)}
    for sizes, way in ((sequential(5), walk), (fat(5), through_hubs)):
        other = walk if way is through_hubs else through_hubs
        instance = table_2(random, sizes, 4)
        assert way(Goal(instance, only("usage"))) and other(Goal(instance, only("usage"))) is None
        assert way(Goal(msgspec.structs.replace(instance, **narrow), only("usage"))) is None
        assert way(Goal(msgspec.structs.replace(instance, demand=np.arange(1.0, 6)), only("usage"))) is None
    wide = table_2(random, (1, 9, 9, 1), 20)
    assert not Frontier(Goal(wide, only("usage"))).fits


@given(st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_every_solver_finds_the_optimum_of_a_random_graph(seed: int) -> None:
    instance = small(seed)
    rows = everything(instance)
    for made in goals(instance, np.random.default_rng(seed)):
        counted = made.objective.availability_of
        goal = normalised(instance, made.objective)
        for metric, ends in goal.extremes.items():
            best = min(value_of(instance.metrics(row), metric, counted) for row in rows)
            assert ends.proven and ends.best == pytest.approx(best, abs=1e-12)
        best = float(goal.costs(rows, goal.main).min())
        for structure in (True, False):
            found = solve(goal, OdpLimits(structure=structure))
            assert found.proven and not instance.shortfall(found.where)
            assert found.cost == pytest.approx(best, rel=2e-6, abs=1e-8)


def test_a_solution_keeps_the_bandwidths_of_narrow_links() -> None:
    """The best of all placements breaks (17). The solver finds the best placement that keeps it."""
    made = table_2(np.random.default_rng(3), (1, 2, 1), 3, 2)
    wide = solve(Goal(made, only("traffic")))
    assert wide.cost == 2
    instance = msgspec.structs.replace(made, bandwidth=np.full((3, 3), 1.0))
    assert instance.shortfall(wide.where)
    rows = everything(instance)
    goal = Goal(instance, only("traffic"))
    found = solve(goal, start=rows[0])
    assert found.way == "program" and not instance.shortfall(found.where)
    assert found.cost == pytest.approx(least(Goal(instance, only("traffic", ties=False)), rows))


@pytest.mark.parametrize("structure", [True, False])
@pytest.mark.matrix
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("sizes", "changes"),
    [
        ((1, 1, 1), {"capacity": np.full(3, math.inf)}),
        ((1, 1, 1), {"demand": np.full(3, 0.1), "capacity": np.array([0, 0.3, 0])}),  # 0.1 + 0.1 + 0.1 > 0.3
        ((1, 1, 1, 1), {"demand": np.array([0.1, 0.1, 0.1, 1e-7]), "capacity": np.array([0.3, 0.3, 0])}),
        ((1, 1, 1), {"demand": np.full(3, 2e-8), "capacity": np.full(3, 4e-8)}),
        ((1, 2, 1), {"rate": np.full(4, 1e-9), "bandwidth": np.array([[0, 0, 9], [1e-9, 0, 9], [9, 0, 0]])}),
        ((1, 1, 1), {"availability": 1 - np.array([1e-9, 1e-8, 0.9]), "delay_s": np.array([[0, 1, 9]] * 3) * 1e3}),
        ((1, 1, 1), {"delay_s": np.array([[0, 1e-7, 1e3], [2e-7, 0, 1e3], [1e3, 1e3, 0]])}),
        ((1, 1, 1), {"edges": np.array([[0, 1], [0, 1], [1, 2]]), "rate": np.array([1.0, 2, 3])}),
    ],
)
def test_solutions_are_exact_for_numbers_of_every_magnitude(
    sizes: tuple[int, ...], changes: dict[str, Any], metric: Metric, structure: bool
) -> None:
    made = table_2(np.random.default_rng(3), sizes, 3, 2)
    instance = msgspec.structs.replace(made, execution_s=0 * made.demand, **changes)
    goal = normalised(instance, only(metric))
    found = solve(goal, OdpLimits(structure=structure))
    assert found.proven and not instance.shortfall(found.where)
    best = float(goal.costs(everything(instance), goal.main).min())
    assert found.cost == pytest.approx(best, rel=1e-6, abs=0) and found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"capacity": np.full(3, 0.5)}, "operator 'op1' needs 1, and of its candidates the largest has 0.5: 0.5 are"),
        ({"capacity": np.ones(3)}, "the operators need 4 together, and the hosts have 3: 1 are short (11)"),
        ({"capacity": np.full(3, 1.9)}, "lacks least, host 'h"),
        ({"candidates": np.eye(3, dtype=bool)[[0, 0, 0, 1]]}, "host 'h1' has a capacity of 2, 1 short of 3 (11)"),
        (
            {"bandwidth": np.zeros((3, 3))},
            "has a bandwidth of 0, 1 short of 1 (17)",
        ),
    ],
)
def test_the_error_of_an_unsolvable_instance_names_the_shortage(changes: dict[str, Any], said: str) -> None:
    instance = msgspec.structs.replace(table_2(np.random.default_rng(3), sequential(4), 3, 2), **changes)
    for structure in (True, False):
        with pytest.raises(UsageError, match=re.escape(said)):
            solve(Goal(instance, only("response")), OdpLimits(structure=structure))


def test_the_program_reports_the_gap_or_raises_an_error_without_a_solution(tmp_path: Path) -> None:
    instance = table_2(np.random.default_rng(3), sequential(20), 20)
    goal = Goal(instance, only("usage"))
    start = first_fit(goal)
    found = General(goal, start, time_limit_s=0.01).solve()
    assert found.cost <= goal.cost(start) and 0 < found.gap <= 1 and not found.proven
    with pytest.raises(PlannerError, match="found no solution in time"):
        General(goal, time_limit_s=1e-9).solve()
    written = tmp_path / "odp.mps"
    General(goal).write(str(written))
    assert written.read_text().startswith("NAME")
    with pytest.raises(UsageError, match="name a file in an existing folder"):
        General(goal).write(str(tmp_path / "none" / "odp.mps"))


@pytest.mark.parametrize(("given", "said"), [({"time_limit_s": 0}, "time limit is 0"), ({"gap": 1}, "gap is 1")])
def test_invalid_limits_of_the_solver_are_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        OdpLimits(**given)  # type: ignore[arg-type]


def test_networkx_graphs_are_converted_to_instances() -> None:
    application, resources = networkx.DiGraph(), networkx.DiGraph()
    application.add_node("in", host="a", demand=0)
    application.add_node("work", execution_s=0.5, candidates=["b", "c"])
    application.add_edge("work", "out", rate=3)
    application.add_edge("in", "work")
    resources.add_node("a", availability=0.9)
    resources.add_nodes_from(["b", "c"], capacity=2, speed=2)
    for one, other in itertools.permutations("abc", 2):
        resources.add_edge(one, other, delay_s=0.1 * ord(other) - 9, bandwidth=5)
    made = from_networkx(application, resources)
    assert made.names == ("in", "work", "out") and made.edges.tolist() == [[0, 1], [1, 2]]
    assert made.rate.tolist() == [1, 3] and made.demand.tolist() == [0, 1, 1]
    assert made.candidates.tolist() == [[True, False, False], [False, True, True], [True] * 3]
    assert made.capacity.tolist() == [math.inf, 2, 2] and made.bandwidth[0, 1] == 5
    found = solve(Goal(made, only("response")))
    assert found.proven and found.cost == pytest.approx(0.1 * ord("b") - 9 + 0.25)
    application.add_edge("out", "in")
    with pytest.raises(UsageError, match="streams in a circle"):
        from_networkx(application, resources)
    application.remove_edge("out", "in")
    application.nodes["in"]["host"] = "d"
    with pytest.raises(UsageError, match="operator 'in' may be on 'd', which is no host"):
        from_networkx(application, resources)
    application.nodes["in"]["host"] = "a"
    resources.remove_edge("a", "b")
    with pytest.raises(UsageError, match="delay_s of the link from 'a' to 'b' is missing"):
        from_networkx(application, resources)


def moving(state: float, rate_bps: float, **options: Any) -> tuple[Plan, Task]:
    """Return a plan and its task: an operator on b, between a source on a and a sink on c, would save a link on c."""
    dataflow = Dataflow()
    cam = dataflow.source(Code("cam"), at="a", name="cam")
    dataflow.sink("out", dataflow.operator(Code("work"), cam, name="work"))
    dataflow = Dataflow(
        tuple(msgspec.structs.replace(n, pinned="c") if n.kind == "sink" else n for n in dataflow.nodes)
    )
    links = [(a, b) for a, b in itertools.permutations("abc", 2)]
    view = NetworkView({pair: LinkEstimate(rate_bps) for pair in links}, {pair: Latency(0.1) for pair in links})
    task = Task((dataflow,), ("a", "b", "c"), view, Hints({"cam": 1e3, "work": 1e3}))
    task = task.but(current={"cam": "a", "work": "b", "out": "c"}, quality=Quality(state_bytes={"work": state}))
    return Odp(objective="usage", **options).plan(task, Period()), task


@pytest.mark.parametrize(
    ("state", "rate_bps", "options", "moves"),
    [
        (0, 1e6, {}, True),  # down for four round trips of 0.2 s; half of the usage is saved for 600 s
        (1e6, 1e6, {}, True),  # 8 s more
        (1e8, 1e6, {}, False),  # 800 s
        (1e8, 1e6, {"change": 0.0}, True),
        (1e8, 1e6, {"horizon_s": 2000.0}, True),
        (0, 1e6, {"horizon_s": 1.0}, False),
        (1e3, 0, {}, False),  # nothing can be carried
    ],
)
def test_a_change_is_made_if_the_saving_repays_the_move(
    state: float, rate_bps: float, options: dict[str, float], moves: bool
) -> None:
    plan, _ = moving(state, rate_bps, **options)
    assert (plan.placement["work"] != "b") == moves
    assert (plan.cost_s < plan.initial_cost_s) == moves


def test_operators_leave_a_lost_host_and_a_run_starts_by_availability() -> None:
    _, task = moving(0, 1e6)
    links = {pair: LinkEstimate(0.0 if "c" in pair else 1e6) for pair in itertools.permutations("abc", 2)}
    lost = task.but(view=NetworkView(links, task.view.latencies))
    assert Odp(objective="usage", change=0.0).plan(lost, Period()).placement["work"] == "a"
    strategy = get_strategy("odp", objective={"usage": 1.0}, period_s=50.0)
    assert isinstance(strategy.initial, Odp) and strategy.initial.objective == "availability"
    assert strategy.adaptation == GlobalMoves(50.0, gain=0.05, looks=1) and strategy.needs == ("latency", "work")
    assert isinstance(strategy.again, Odp) and strategy.again.objective == {"usage": 1.0}
    later = get_strategy("odp").again
    assert isinstance(later, Odp) and later.objective == "usage"
    assert later.goal(task).instance.delay_s.min() == pytest.approx(1e-3) == later.least_s
    assert get_strategy("odp", period_s=None).adaptation is None
    reliable = task.but(current=None, quality=Quality(availability={"a": 0.9, "c": 0.9}))
    assert strategy.initial.plan(reliable, Period()).placement["work"] == "b"


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_a_stream_that_is_sent_once_counts_once(seed: int) -> None:
    instance = small(seed)
    rows, random = everything(instance), np.random.default_rng(seed)
    for goal in goals(instance, random):
        found = solve_as_sent(goal, OdpLimits(), rows[0])
        costs = costs_as_sent(goal, rows, goal.main)
        best = float(costs.min())
        assert not instance.shortfall(found.where) and found.bound <= best * (1 + 1e-9) + 1e-12
        assert found.cost <= best * (1.1 if not found.proven else 1 + 2e-6) + 1e-12
        if goal.objective.sole == "traffic":
            ends = [{(a, row[b]): rate for (a, b), rate in rated(instance) if row[a] != row[b]} for row in rows[:9]]
            assert costs[:9] == pytest.approx([sum(each.values()) for each in ends])


def rated(instance: OdpInstance) -> list[tuple[list[int], float]]:
    """Return the streams with their rates, from the lowest rate on."""
    return sorted(zip(instance.edges.tolist(), instance.rate.tolist(), strict=True), key=lambda each: each[1])


def test_consumers_on_the_same_host_keep_the_producer_at_the_source_while_data_flows() -> None:
    """Three consumers take the same small part of a source's output. In the paper's streams it counts three times."""
    dataflow = Dataflow()
    cam = dataflow.source(Code("cam"), at="a", name="cam", rate=1.0)
    found = dataflow.operator(Code("found"), cam, name="found")
    dataflow.sink("out", dataflow.operator(Code("all"), found, *(
        dataflow.operator(Code("work"), found, name=name) for name in ("one", "two", "three")
    ), name="all"), at="c")  # fmt: skip
    links = list(itertools.permutations("abc", 2))
    view = NetworkView({pair: LinkEstimate(1e6) for pair in links}, {pair: Latency(0.1) for pair in links})
    sizes = {"cam": 3e3, "found": 1.2e3, "one": 1e3, "two": 1e3, "three": 1e3, "all": 3e3}
    here = dict.fromkeys(["one", "two", "three", "all", "out"], "c") | {"cam": "a", "found": "a"}
    task = Task((dataflow,), ("a", "b", "c"), view, Hints(sizes)).but(current=here)
    strategy = get_strategy("odp")
    assert isinstance(strategy.again, Odp)
    plan = strategy.again.plan(task, Period())
    assert plan.cost_s == plan.initial_cost_s == pytest.approx(120) and plan.placement == here
    apart = task.but(current=here | {"found": "c", "all": "b"})
    better = strategy.again.plan(apart, Period())
    assert better.cost_s < better.initial_cost_s and better.placement["found"] == "a"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"change": -1.0}, "change is -1.0"),
        ({"horizon_s": 0.0}, "horizon_s is 0.0"),
        ({"least_s": -1.0}, "least_s is -1.0"),
        ({"candidates": 0.0}, "candidates is 0.0"),
        ({"saving": 1.0}, "gain is 1.0"),
        ({"looks": 0}, "looks is 0; it must be at least 1"),
        ({"objective": "speed"}, "the objective has no 'speed'"),
        ({"availability": "links"}, "availability_of of the objective is 'links'"),
    ],
)
def test_invalid_options_of_the_planner_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Odp(**{"objective": "usage", **given})


@pytest.mark.parametrize("seed", [67, *range(12)])
def test_the_bound_of_shared_transfers_holds_for_the_availability_of_links(seed: int) -> None:
    """The first seed has an optimum that was called proven and was none: availability does not depend on rates."""
    random = np.random.default_rng(seed)
    instance = drawn(random, (3, 5), (2, 4))
    links = random.uniform(0.5, 1.0, instance.delay_s.shape)
    instance = msgspec.structs.replace(instance, link_availability=links)
    rows = everything(instance)
    goal = Goal(instance, only("availability"))
    best = float(costs_as_sent(goal, rows, goal.main).min())
    solved = solve_as_sent(goal, OdpLimits(), rows[0])
    assert solved.bound <= best * (1 + 1e-9) + 1e-12
    assert not solved.proven or solved.cost == pytest.approx(best)
