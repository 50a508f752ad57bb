"""What planners answer."""

from __future__ import annotations

import math

import msgspec

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.problem.hints import Hints


class Step(msgspec.Struct, frozen=True):
    """One accepted move, and the cost in seconds after it."""

    node: str
    source: str
    target: str
    cost_s: float


class Plan(msgspec.Struct, frozen=True):
    """What a planner decided.

    - ``placement``: a host for every node, sources and sinks included
    - ``dataflow``: what is placed: the task's, or from a planner that changes shapes another tree
    - ``cost_s``, ``initial_cost_s``: the model's figures for the placement and for where the search started; nan where
      the planner did not look for them, inf over an unusable link
    - ``critical``: the nodes that determine the cost, producers first
    - ``evaluated``: placements looked at
    - ``links_used``: the known links whose estimates the decision rests on
    - ``steps``: the moves that led to it
    - ``hints``: those of ``dataflow``, where it is not the task's
    - ``judged``: the costs before and after that tell whether a change is worth it, where the planner goes by others
      than those two (None)
    - ``routes``: for links whose transfers go over another network the link there; where a planner says nothing of
      them they are chosen for it (``choice``)
    - ``share``: the part of the stream's partitions that is thought to go over it; ``beside``: the plans of the other
      trees that the stream goes over at once, each with its share, where a planner plans several (``stripes``);
      ``cost_s`` of each of them is that of the stream
    - ``bought``: what is to be rented for it, units by name; as hosts do not rent, ``ask_planner`` refuses such plans
    """

    placement: Placement
    dataflow: Dataflow
    cost_s: float = math.nan
    initial_cost_s: float = math.nan
    critical: tuple[str, ...] = ()
    evaluated: int = 1
    links_used: frozenset[Link] = frozenset()
    steps: tuple[Step, ...] = ()
    hints: Hints | None = None
    judged: tuple[float, float] | None = None
    routes: dict[Link, tuple[Link, ...]] = {}
    bought: dict[str, float] = {}
    share: float = 1.0
    beside: tuple[Plan, ...] = ()


PlanResult = Plan  # the name that planners of applications know
