"""The period when links vary: the expected load of the busiest link, disk or processor.

What a plan rests on was measured a moment ago, and every link then goes its own way. Let the load of resource *i*
(seconds of work a partition brings it) be *l_i* times a random factor, the factors independent and Fréchet-distributed
with shape *a*. Then the expected maximum over the resources is, up to a constant, the *a*-norm of the loads,

    E[max l_i X_i] = Γ(1 - 1/a) (Σ l_i^a)^(1/a),

because the maximum of Fréchet variables is one again. With *a* growing this is the period itself, the largest load. A
finite *a* also counts the loads next to the largest, so a plan does not rest on one lucky measurement, and a search
that moves one operator at a time sees progress where the maximum alone stays on a plateau.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs import Position
from thalweg.middleware.planning.problem import Nanoseconds, Problem, Where


class ExpectedPeriod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected time per partition of a saturated pipeline over independent links (see the module).

    ``shape``: of the links' variation; lower is wilder. The default lies between what single minutes of inter-cloud
    links vary by and what their means do. The constant Γ(1 - 1/a) is left out, as it is the same for all plans.
    """

    shape: float = 4.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > 1):
            raise UsageError(f"the shape of expected-period is {self.shape}; it must be above 1")

    @property
    def name(self) -> str:
        return "expected-period"

    def at(self, problem: Problem, where: Where) -> Position:
        return _ExpectedPosition(self, problem, where)


class _ExpectedPosition(Position):
    def __init__(self, options: ExpectedPeriod, problem: Problem, where: Where) -> None:
        super().__init__(options, problem, where)
        self._shape = options.shape
        self.lower_ns = float(self._costs(where[np.newaxis])[0])

    def _costs(self, wheres: Where) -> Nanoseconds:
        """(rows,) the cost of each placement of ``wheres`` (rows, nodes); every row is computed alike."""
        problem = self.problem
        rows, hosts = len(wheres), len(problem.hosts)
        nodes = np.arange(wheres.shape[1])
        sources, targets = wheres[:, :-1], wheres[:, problem.consumer[:-1]]
        edges = problem.edges_ns(sources, targets)
        width = hosts * hosts + 2 * hosts
        first = np.arange(rows)[:, np.newaxis] * width
        places = np.concatenate(
            (first + sources * hosts + targets, first + hosts * hosts + wheres, first + hosts * hosts + hosts + wheres),
            axis=1,
        )
        processing = problem.compute_ns[nodes, wheres] / problem.costs.cores
        reading = np.broadcast_to(problem.disk_ns, wheres.shape)
        work = np.concatenate((edges, processing, reading), axis=1)
        loads = np.bincount(places.ravel(), work.ravel(), rows * width).reshape(rows, width)
        largest = loads.max(axis=1)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
        norm = ((loads / scale[:, np.newaxis]) ** self._shape).sum(axis=1) ** (1 / self._shape)
        costs: Nanoseconds = np.rint(np.where(np.isfinite(largest), scale * norm, np.inf))
        return costs

    def critical(self) -> tuple[int, ...]:
        """Every node: each resource in use counts."""
        return tuple(range(len(self.where)))

    def moves(self, node: int) -> Nanoseconds:
        hosts = len(self.problem.hosts)
        wheres = np.repeat(self.where[np.newaxis], hosts, axis=0)
        wheres[:, node] = np.arange(hosts)
        return self._costs(wheres)
