"""Reuse of a run's operators by a query, within a radius.

An operator of a run is reused if it is near the best place for the query alone. That place is at rest between the
operator's neighbours. If the operator is farther away, the query does better with an operator of its own.

Source: Pietzuch et al. (2006), section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from thalweg.middleware.dataflow import Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.place import Place
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.usage.relaxation import at_rest
from thalweg.middleware.planning.usage.streams import query_of


def too_far(task: Task, there: Placement, places: Mapping[str, Place], radius_s: float) -> dict[str, float]:
    """Return the operators that a query should not share with a run, by name, with their distances in seconds.

    The query's ``task`` has these operators, and the run has them at ``there``. The distance is from the best place for
    the query alone, and above ``radius_s``. Raises UsageError for a radius that is negative or not finite.
    """
    if not 0 <= radius_s < math.inf:
        raise UsageError(f"radius_s is {radius_s}; it must be finite and at least 0 (None shares all equal nodes)")
    problem = Problem(task)
    query = query_of(problem)
    ends = {node: np.array(places[problem.hosts[host]].at) for node, host in query.pinned.items()}
    wanted = at_rest(query, ends) if query.operators else {}
    away = {
        problem.names[node]: math.dist(place, places[there[problem.names[node]]].at)
        for node, place in wanted.items()
        if problem.names[node] in there
    }
    return {name: far_s for name, far_s in away.items() if far_s > radius_s}
