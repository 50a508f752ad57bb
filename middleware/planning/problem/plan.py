"""Results of planners: a plan and the moves that led to the plan."""

from __future__ import annotations

import math

import msgspec

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.problem.hints import Hints


class Step(msgspec.Struct, frozen=True):
    """One accepted move of an operator, with the cost in seconds after the move."""

    node: str
    source: str
    target: str
    cost_s: float


class Plan(msgspec.Struct, frozen=True):
    """Decision of a planner: a placement, and the dataflow that is placed.

    - ``placement``: a host for every node, sources and sinks included.
    - ``dataflow``: the placed dataflow. It is the dataflow of the task, or a different tree from a planner that changes
      shapes.
    - ``cost_s``, ``initial_cost_s``: costs by the model for the placement, and for the start of the search. A cost is
      nan if the planner did not compute it, and inf over an unusable link.
    - ``critical``: nodes that determine the cost, producers first.
    - ``evaluated``: number of placements that were evaluated.
    - ``links_used``: known links whose estimates the decision rests on.
    - ``steps``: moves that led to the placement.
    - ``hints``: hints of ``dataflow`` if it is not the dataflow of the task.
    - ``judged``: costs before and after a change, by which the change is judged. None: ``initial_cost_s`` and
      ``cost_s`` are used.
    - ``routes``: the links of a route, for every link whose transfers go over a different network or over relays. If a
      planner returns no routes, they are chosen after planning (``choice``).
    - ``share``: expected part of the stream's partitions that goes over the plan's tree.
    - ``beside``: plans of the stream's remaining trees with their shares, if a planner plans several trees
      (``stripes``). The ``cost_s`` of every such plan is that of the stream.
    - ``bought``: units to be rented for the plan, by name. Hosts do not rent, so ``ask_planner`` refuses such plans.
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


PlanResult = Plan  # name of the class in planners of applications
