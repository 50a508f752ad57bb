"""The expected period: its definition, its limit, and its purpose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, complete_binary_tree, left_deep_tree, star_tree
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    CostParameters,
    ExpectedPeriod,
    Hints,
    OneShot,
    Period,
    Problem,
    Task,
    get_cost_model,
)

COSTS = CostParameters(startup_s=0.0, disk_bytes_per_s=1e18)
TREES = (complete_binary_tree, left_deep_tree, star_tree)


def problem(servers: int, seed: int, tree: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    hosts = [*(f"h{i}" for i in range(servers)), "client"]
    dataflow = TREES[tree]({host: Code("s") for host in hosts[:-1]}, Code("c"))
    view = NetworkView({(a, b): LinkEstimate(float(rng.lognormal(12, 1))) for a, b in itertools.permutations(hosts, 2)})
    names = [node.name for node in dataflow.nodes if node.kind != "sink"]
    sizes = {name: float(rng.integers(1_000, 200_000)) for name in names}
    compute = {name: float(rng.random()) for name in dataflow.operators}
    return Problem(Task((dataflow,), tuple(hosts), view, Hints(sizes, compute), COSTS))


def loads(given: Problem, where: np.ndarray) -> list[float]:
    """Return the seconds of work of every link, processor and disk."""
    work: dict[object, float] = {}
    for i, name in enumerate(given.names):
        host = given.hosts[where[i]]
        seconds = given.task.hints.compute_s.get(name, 0.0)
        work["cpu", host] = work.get(("cpu", host), 0.0) + seconds
        for edge in given.leaving[i]:
            target = given.hosts[where[given.consumer[edge]]]
            if target != host:
                rate = given.task.view.rate_bps(host, target)
                assert rate is not None
                work[host, target] = work.get((host, target), 0.0) + given.task.hints.output_bytes[name] * 8 / rate
    return list(work.values())


@given(st.integers(2, 9), st.integers(0, 10**6), st.integers(0, 2), st.sampled_from([1.5, 4.0, 9.0]))
def test_the_expected_period_is_the_norm_of_the_loads_before_and_after_a_move(
    servers: int, seed: int, tree: int, shape: float
) -> None:
    given = problem(servers, seed, tree)
    rng = np.random.default_rng(seed)
    where = given.at_sink()
    for i in np.flatnonzero(given.movable):
        where[i] = rng.integers(len(given.hosts))
    model = ExpectedPeriod(shape)
    position = model.at(given, where)
    naive = sum(load**shape for load in loads(given, where)) ** (1 / shape)
    assert position.lower_ns / 1e9 == pytest.approx(naive, rel=1e-6)
    node = int(rng.choice(np.flatnonzero(given.movable)))
    for host, cost in enumerate(position.moves_of((node,))[0]):
        moved = where.copy()
        moved[node] = host
        assert cost == model.at(given, moved).lower_ns


def test_the_expected_period_of_a_large_shape_is_the_period_over_independent_links() -> None:
    for seed in range(20):
        given = problem(5, seed)
        where = given.at_sink()
        period = Period(interface="independent", node_cycles=False).at(given, where).lower_ns
        assert ExpectedPeriod(400.0).at(given, where).lower_ns == pytest.approx(period, rel=0.02)


def test_plans_by_the_expected_period_have_lower_periods_than_plans_by_the_period() -> None:
    """The expected period leaves plateaus where the maximum alone stays. Its plans are better over many networks."""
    period = Period(interface="independent", node_cycles=False)
    ratios = []
    for seed in range(25):
        given = problem(8, seed)
        found = []
        for model in (ExpectedPeriod(), period):
            result = OneShot().plan(given.task, model)
            found.append(period.at(given, given.where(result.placement)).lower_ns)
        ratios.append(found[0] / found[1])
    assert np.median(ratios) <= 1.0
    assert np.exp(np.mean(np.log(ratios))) < 1.0


def test_a_shape_without_an_expectation_is_refused() -> None:
    with pytest.raises(UsageError, match="above 1"):
        ExpectedPeriod(1.0)
    with pytest.raises(UsageError, match="above 1"):
        get_cost_model("expected-period", shape=0.5)


@pytest.mark.parametrize("shape", [1.5, 4.0, 31.0])
def test_moving_a_dominating_load_away_leaves_no_rounding_error(shape: float) -> None:
    """The links to one host are slow. Rounding beside their load would have lost the other loads."""
    model = ExpectedPeriod(shape)
    for seed in range(4):
        fast = problem(9, seed, seed % 2)
        links = fast.task.view.estimates.items()
        slow = {link: LinkEstimate(of.rate_bps * (1e-5 if link.target == "h1" else 1)) for link, of in links}
        given = Problem(fast.task.but(view=NetworkView(slow)))
        where = given.at_sink()
        nodes = np.flatnonzero(given.movable).tolist()
        where[nodes[-1]] = given.host_index["h1"]
        costs = model.at(given, where).moves_of(nodes)
        assert costs[-1].max() > 1e3 * costs[-1].min()
        for node, of in zip(nodes, costs, strict=True):
            for host, cost in enumerate(of):
                moved = where.copy()
                moved[node] = host
                assert cost == model.at(given, moved).lower_ns
                naive = sum((load / 1e6) ** shape for load in loads(given, moved)) ** (1 / shape) * 1e6
                assert cost / 1e9 == pytest.approx(naive, rel=1e-6)
