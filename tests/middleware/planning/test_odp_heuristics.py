"""Heuristics compared with all placements of small problems: their placements keep every constraint."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.experiments.papers.cardellini2016.instances import alike, drawn, fat, sequential, table_2, tag_and_count
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.odp.heuristics import HEURISTICS, t_storm
from thalweg.middleware.planning.odp.instance import OdpInstance
from thalweg.middleware.planning.odp.neighbours import Neighbours, excess
from thalweg.middleware.planning.odp.objective import Extremes, Goal, Objective, only, worst_of

MIXED = Objective(0.4, 0.2, 0.4, "energy", "hosts")


def goal_of(instance: OdpInstance, objective: Objective = MIXED) -> Goal:
    return Goal(instance, objective, {m: Extremes(0.0, worst_of(instance, m)) for m in objective.weights})


def everything(instance: OdpInstance) -> np.ndarray:
    return np.array(list(itertools.product(*(np.flatnonzero(row).tolist() for row in instance.candidates))))


@given(st.integers(0, 999))
@settings(max_examples=8)
def test_every_heuristic_keeps_all_constraints_and_local_search_is_nearly_optimal(seed: int) -> None:
    goal = goal_of(drawn(np.random.default_rng(seed), (3, 5), (2, 4)))
    rows = everything(goal.instance)
    broken = excess(goal.instance, rows)
    assert (broken == 0).tolist() == [not goal.instance.shortfall(row) for row in rows]
    least = goal.costs(rows[broken == 0], goal.main).min()
    for name, heuristic in HEURISTICS.items():
        try:
            where = heuristic(goal, seed)
        except PlannerError:
            assert name not in ("local-search", "tabu", "cost-space")
            continue
        assert not goal.instance.shortfall(where)
        assert goal.cost(where) >= least * (1 - 1e-12)
        assert np.array_equal(heuristic(goal, seed), where)
        if name == "local-search":
            assert goal.cost(where) <= least * 1.05


@given(st.integers(0, 999))
@settings(max_examples=15)
def test_the_cost_of_a_move_equals_the_cost_of_the_placement_after_the_move(seed: int) -> None:
    goal = goal_of(drawn(np.random.default_rng(seed), (4, 9), (3, 6)))
    instance, near = goal.instance, Neighbours(goal)
    where = near.packed(np.random.default_rng(seed))
    assert where is not None
    moves = near.moves(where)
    for node, host in itertools.product(range(instance.count), range(len(instance.hosts))):
        row = where.copy()
        row[node] = host
        fits = instance.candidates[node, host] and instance.loads(row)[host] <= instance.capacity[host] + 1e-6
        if host == where[node] or not fits:
            assert math.isinf(moves[node, host])
        else:
            assert moves[node, host] == pytest.approx(near.cost(row), rel=1e-9)
    exchanged, renamed = near.exchanged(where), near.renamed(where)
    assert ((exchanged != where).sum(axis=1) == 2).all() and len(np.unique(renamed, axis=0)) == len(renamed)
    assert near.descended(where)[1] <= near.cost(where)


def test_t_storm_places_heavy_operators_first_and_partners_together() -> None:
    """A chain has rates 1, 9, 5, 1, and hosts have room for two operators. The ends of the stream of 9 are together.

    No host is better than another for the first operator, so it goes where the least room is left.
    """
    made = alike((1, 1, 1, 1, 1), 3, 2, np.ones((3, 3)))
    instance = msgspec.structs.replace(made, rate=np.array([1.0, 9, 5, 1]))
    where = t_storm(goal_of(instance, only("traffic")))
    assert where.tolist() == [1, 0, 0, 1, 2]
    assert instance.metrics(where).traffic == 7
    best = HEURISTICS["local-search"](goal_of(instance, only("traffic")), 0)
    assert instance.metrics(best).traffic == 6


def test_heuristics_with_coordinates_find_the_host_between_pinned_operators() -> None:
    """The hosts are on a line. The operator goes near the pinned operator with which it exchanges most."""
    places = np.array([0.0, 30, 40, 60, 100])
    made = alike((1, 1, 1), 5, 1, np.abs(places[:, None] - places) / 1e3)
    candidates = np.zeros((3, 5), dtype=bool)
    candidates[0, 0], candidates[1, 1:4], candidates[2, 4] = True, True, True
    for rates, hosts in (([1.0, 1.0], {1, 2, 3}), ([1.0, 5.0], {3}), ([5.0, 1.0], {1})):
        goal = Goal(msgspec.structs.replace(made, candidates=candidates, rate=np.array(rates)), only("usage"))
        for name in ("rizou", "relaxation", "cost-space", "local-search"):
            assert HEURISTICS[name](goal, 1)[1] in hosts, (name, rates)


def test_every_heuristic_raises_an_error_if_no_placement_fits() -> None:
    full = table_2(np.random.default_rng(1), fat(9), 3, capacity=2)
    narrow = msgspec.structs.replace(
        table_2(np.random.default_rng(1), sequential(5), 3, capacity=2), bandwidth=np.full((3, 3), 0.5)
    )
    alone = msgspec.structs.replace(
        table_2(np.random.default_rng(1), sequential(1), 1, capacity=2),
        edges=np.zeros((0, 2), dtype=np.intp),
        rate=np.zeros(0),
    )
    for name, heuristic in HEURISTICS.items():
        for instance in (full, narrow):
            with pytest.raises(PlannerError, match=f"{name} finds no "):
                heuristic(Goal(instance, only("usage")), 0)
        assert heuristic(Goal(alone, only("response")), 0).tolist() == [0]


def test_operators_without_streams_are_placed_on_hosts_without_a_limit() -> None:
    made = alike((3,), 3, math.inf, np.ones((3, 3)))
    candidates = np.array([[False, True, True]] * 3)
    goal = goal_of(msgspec.structs.replace(made, candidates=candidates, availability=np.array([1.0, 0.9, 1.0])))
    for name, heuristic in HEURISTICS.items():
        where = heuristic(goal, 1)
        assert set(where.tolist()) <= {1, 2}, name
        if name in ("local-search", "tabu"):
            assert where.tolist() == [2, 2, 2]


def test_a_search_ends_when_the_budget_is_spent() -> None:
    goal = Goal(tag_and_count(np.random.default_rng(1)), only("usage"))
    start = Neighbours(goal).packed(np.random.default_rng(1))
    assert start is not None
    near, all_of_it = Neighbours(goal, 1), Neighbours(goal)
    where, cost = near.descended(start)
    assert near.tired and not all_of_it.tired
    assert all_of_it.descended(start)[1] < cost < near.cost(start)
    assert np.array_equal(near.descended(where)[0], where)
