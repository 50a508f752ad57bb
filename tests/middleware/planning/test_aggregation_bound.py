"""The bound: below every tree, attained where theory says so, and the program with all cuts written down."""

from __future__ import annotations

import itertools
import math

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.network.view import LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning import CostParameters, Task, bound_period_s, propagate_hints
from thalweg.middleware.planning.bound import packing_rate
from thalweg.middleware.planning.solver.cuts import smallest_cut
from thalweg.middleware.planning.solver.program import Program

INTERFACES = ("single", "duplex", "independent")
CODE = Code("some")


def random_seconds(seed: int, count: int):
    seconds = np.random.default_rng(seed).lognormal(1, 1, (count, count))
    np.fill_diagonal(seconds, math.inf)
    return seconds


def busiest(seconds, parent, interface):
    """Return the period of a tree: its transfers at the busiest interface or link."""
    count = len(seconds)
    out, into = np.zeros(count), np.zeros(count)
    for host in range(1, count):
        out[host] = seconds[host, parent[host]]
        into[parent[host]] += out[host]
    return {"single": (out + into).max(), "duplex": max(out.max(), into.max()), "independent": out.max()}[interface]


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(INTERFACES))
def test_no_tree_has_a_shorter_period_than_the_bound(seed, count, interface):
    seconds = random_seconds(seed, count)
    bound_s = 1 / packing_rate(seconds, 0, range(1, count), interface)
    chance = np.random.default_rng(seed)
    for _ in range(20):
        parent = [0, *(int(chance.integers(host)) for host in range(1, count))]
        assert bound_s <= busiest(seconds, parent, interface) * (1 + 1e-6)
    assert 1 / packing_rate(seconds / 2, 0, range(1, count), interface) == pytest.approx(bound_s / 2, rel=1e-5)


def test_the_bound_equals_known_optima():
    one = np.full((2, 2), 4.0)
    np.fill_diagonal(one, math.inf)
    for interface in INTERFACES:
        assert packing_rate(one, 0, [1], interface) == pytest.approx(1 / 4)
    # Three equal hosts, single interfaces: a tree has two messages with two ends each, and its busiest host two ends.
    # The three trees by turns share them out evenly.
    three = np.ones((3, 3))
    np.fill_diagonal(three, math.inf)
    assert 1 / packing_rate(three, 0, [1, 2], "single") == pytest.approx(4 / 3)
    assert min(busiest(three, parent, "single") for parent in ([0, 0, 0], [0, 0, 1], [0, 2, 0])) == 2
    # Independent links: both directly half of the time, each through the other half of the time.
    assert packing_rate(three, 0, [1, 2], "independent") == pytest.approx(2)
    assert packing_rate(np.full((3, 3), math.inf), 0, [1, 2], "single") == 0.0


@given(st.integers(0, 10_000), st.sampled_from(INTERFACES))
def test_the_cuts_that_were_found_give_the_optimum_of_all_cuts(seed, interface):
    """Two hosts and a relay without a source: no cut of the answer's own messages is below the rate."""
    seconds = random_seconds(seed, 4)
    found = packing_rate(seconds, 0, [1, 2], interface)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    links = [(a, b) for a in range(4) for b in range(4) if a != b]
    messages = {link: solver.addVariable(lb=0) for link in links}
    rate = solver.addVariable(lb=0)
    for size in (1, 2, 3):
        for side in itertools.combinations([1, 2, 3], size):
            if set(side) & {1, 2}:
                solver.addConstr(sum(messages[a, b] for a, b in links if a in side and b not in side) - rate >= 0)
    for host in range(4):
        out = sum(messages[a, b] * seconds[a, b] for a, b in links if a == host)
        into = sum(messages[a, b] * seconds[a, b] for a, b in links if b == host)
        if interface == "single":
            solver.addConstr(out + into <= 1)
        elif interface == "duplex":
            solver.addConstr(out <= 1)
            solver.addConstr(into <= 1)
    if interface == "independent":
        for a, b in links:
            solver.addConstr(messages[a, b] * seconds[a, b] <= 1)
    solver.maximize(rate)
    assert found == pytest.approx(solver.val(rate), rel=1e-5)


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_the_largest_flow_equals_the_smallest_cut(seed, count):
    chance = np.random.default_rng(seed)
    capacity = chance.integers(0, 4, (count, count)).astype(float)
    np.fill_diagonal(capacity, 0)
    flow, side = smallest_cut(capacity, 1, 0)
    others = list(range(2, count))
    cuts = []
    for size in range(len(others) + 1):
        for chosen in itertools.combinations(others, size):
            inside = np.isin(np.arange(count), [1, *chosen])
            cuts.append(capacity[np.ix_(inside, ~inside)].sum())
    assert flow == pytest.approx(min(cuts))
    assert side[1] and not side[0] and capacity[np.ix_(side, ~side)].sum() == pytest.approx(flow)


def test_a_program_with_whole_numbers_reports_the_bound_and_the_gap():
    """In a knapsack of 8, the fractions 1, 1, 2/5 are worth 9.6 and whole numbers 8. Further rows make it less."""
    weights = np.array([3.0, 3.0, 5.0])
    for integer, value, chosen in ((False, 9.6, [1, 1, 0.4]), (True, 8.0, [1, 1, 0])):
        program = Program(maximise=True, time_limit_s=60.0)
        things = [program.variables(1, high=1.0, cost=worth, integer=integer)[0] for worth in (4.0, 4.0, 4.0)]
        program.row(np.array(things), weights, high=8.0)
        found = program.solve()
        assert found.value == pytest.approx(value) and found.variables == pytest.approx(chosen)
        assert found.optimal and found.bound == pytest.approx(value) and found.gap < 1e-6
        program.row(np.array(things), np.ones(3), high=1.0)
        assert program.solve().value == pytest.approx(4.0)
        program.row(np.array(things), np.ones(3), low=2.0)
        with pytest.raises(PlannerError, match="the solver ended as Infeasible"):
            program.solve()


class Largest:
    def output_size_bytes(self, sizes, /):
        return max(sizes)

    def compute_s(self, sizes, /):
        return 1.0


def test_the_bound_of_a_dataflow_uses_the_smallest_message_and_all_links():
    hosts = ("client", "a", "b")
    flow = complete_binary_tree({"a": CODE, "b": CODE}, CODE)
    hints = propagate_hints(flow, {"source@a": 125_000, "source@b": 250_000}, lambda _: Largest())
    costs = CostParameters(startup_s=0.5)
    rates = {(a, b): LinkEstimate(1e6) for a in hosts for b in hosts if a != b}
    task = Task((flow,), hosts, NetworkView(rates), hints, costs)
    found = bound_period_s(task)
    assert found == pytest.approx(4 / 3 * (0.5 + 1.0))
    assert bound_period_s(task.but(view=NetworkView(dict.fromkeys(rates, LinkEstimate(0.0))))) == math.inf
    del rates["a", "b"]
    with pytest.raises(LinksNeeded, match="'a', 'b'"):
        bound_period_s(task.but(view=NetworkView(rates)))
    at_home = complete_binary_tree({"a": CODE}, CODE, client="a")
    alone = propagate_hints(at_home, {"source@a": 1.0}, lambda _: Largest())
    assert bound_period_s(Task((at_home,), ("a",), NetworkView({}), alone, costs)) == 0.0


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    program = Program(maximise=True)
    program.row(program.variables(2, cost=1.0, high=3.0, integer=True), np.ones(2), high=4.0)
    assert program.solve().value == 4.0
    assert capfd.readouterr() == ("", "")
