"""Placements that are good, not proven best: one interface for all ways to find one.

A heuristic is a function of a goal and a seed that returns the host of every operator, or raises PlannerError where it
finds no placement that keeps all constraints. What depends on chance depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.odp.instance import SLACK, Indices
from thalweg.middleware.planning.odp.objective import Goal

Heuristic = Callable[[Goal, int], Indices]


def first_fit(goal: Goal, seed: int = 0) -> Indices:
    """Operators in their order, those with fewest candidates first: each on the first of its candidates with room."""
    instance = goal.instance
    where, left = np.zeros(instance.count, dtype=np.intp), instance.capacity * (1 + SLACK)
    for node in np.argsort(instance.candidates.sum(axis=1), kind="stable").tolist():
        fits = instance.candidates[node] & (left >= instance.demand[node])
        if not fits.any():
            raise PlannerError(f"first-fit finds no host with room for operator {instance.names[node]!r}")
        where[node] = int(fits.argmax())
        left[where[node]] -= instance.demand[node]
    return found(goal, where, "first-fit")


def found(goal: Goal, where: Indices, name: str) -> Indices:
    """The placement; PlannerError where it breaks a constraint."""
    if said := goal.instance.shortfall(where):
        raise PlannerError(f"{name} finds no placement: {said}")
    return where


HEURISTICS: Mapping[str, Heuristic] = {"first-fit": first_fit}
