"""The period when links vary: the expected load of the busiest link, disk or processor.

What a plan rests on was measured a moment ago, and every link then goes its own way. Let the load of resource *i*
(seconds of work a partition brings it) be *l_i* times a random factor, the factors independent and Fréchet-distributed
with shape *a*. Then the expected maximum over the resources is, up to a constant, the *a*-norm of the loads,

    E[max l_i X_i] = Γ(1 - 1/a) (Σ l_i^a)^(1/a),

because the maximum of Fréchet variables is one again. With *a* growing this is the period itself, the largest load. A
finite *a* also counts the loads next to the largest, so a plan does not rest on one lucky measurement, and a search
that moves one operator at a time sees progress where the maximum alone stays on a plateau.

A move changes few of the loads, so only their terms are exchanged in the sum of a placement without the operator. Sums
are carried in two floats (the second holds what the first rounds away; Knuth, TAOCP 2, 4.2.2, theorem B), so that they
come out as if every term had been added anew, in any order: the same move costs the same from wherever it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs.model import Position
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where, sum_by

LARGEST_PLAIN_SHAPE = 32.0  # up to here a load in seconds, from a nanosecond to a year, keeps its power a float
Floats = npt.NDArray[np.float64]


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
        kind = _SummedPosition if self.shape <= LARGEST_PLAIN_SHAPE else _ScaledPosition
        return kind(self, problem, where)


class _SummedPosition(Position):
    """Loads by resource: a row of links from every host, then a row of processors, then of disks; in nanoseconds."""

    def __init__(self, options: ExpectedPeriod, problem: Problem, where: Where) -> None:
        super().__init__(options, problem, where)
        self._shape = options.shape
        hosts = len(problem.hosts)
        edge = problem.edge_ns(where)
        self._unusable = np.isinf(edge)  # counted apart: a load of inf could not be taken off again
        self._edge = np.where(self._unusable, 0.0, edge)
        self._links = where[:-1] * hosts + where[problem.consumer[:-1]]
        self._compute = problem.compute_ns[np.arange(len(where)), where]
        self._processors = hosts * hosts + where
        places = np.concatenate((self._links, self._processors, self._processors + hosts))
        work = np.concatenate((self._edge, self._compute, problem.disk_ns))
        self._loads = sum_by(places, work, hosts * hosts + 2 * hosts)
        self._shares = np.ones(len(self._loads))  # what one nanosecond of work loads a resource by
        self._shares[hosts * hosts : hosts * hosts + hosts] = problem.costs.cores
        used = np.flatnonzero(self._loads)
        total = math.fsum(self._terms(self._loads[used], self._shares[used]).tolist())
        self.lower_ns = math.inf if self._unusable.any() else float(self._norms(np.array([total]))[0])

    def _terms(self, loads: Nanoseconds, shares: Floats) -> Floats:
        terms: Floats = (loads / (shares * NS_PER_S)) ** self._shape
        return terms

    def _norms(self, sums: Floats) -> Nanoseconds:
        norms: Nanoseconds = np.rint(sums ** (1 / self._shape) * NS_PER_S)
        return norms

    def critical(self) -> tuple[int, ...]:
        """Every node: each resource in use counts."""
        return tuple(range(len(self.where)))

    def moves(self, node: int) -> Nanoseconds:
        costs: Nanoseconds = self.moves_of((node,))[0]
        return costs

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        """Take each node's work off the loads, then lay it on those of every host; only these terms change."""
        row = np.arange(len(nodes))
        without = np.repeat(self._loads[np.newaxis], len(nodes), axis=0)
        for number, node in enumerate(nodes):
            edges = self._edges_of(node)
            np.subtract.at(without[number], self._links[edges], self._edge[edges])
        np.subtract.at(without, (row, self._processors[list(nodes)]), self._compute[list(nodes)])
        used = np.flatnonzero(self._loads)
        remaining = self._terms(without[:, used], self._shares[used]).tolist()
        sums = [math.fsum(terms) for terms in remaining]
        rests = [math.fsum([*terms, -total]) for terms, total in zip(remaining, sums, strict=True)]
        high, low = np.array(sums).reshape(-1, 1), np.array(rests).reshape(-1, 1)

        places, gains = self._gains(nodes)
        before = without[row[:, np.newaxis, np.newaxis], places]
        after = before + np.where(np.isinf(gains), 0.0, gains)
        shares = self._shares[places]
        off, on = -self._terms(before, shares), self._terms(after, shares)
        for slot in range(places.shape[1]):
            for change in (off[:, slot], on[:, slot]):
                total = high + change
                kept = total - high
                low = low + ((high - (total - kept)) + (change - kept))
                high = total
        elsewhere = [[self._unusable.sum() > self._unusable[self._edges_of(node)].sum()] for node in nodes]
        unusable = np.isinf(gains).any(axis=1) | np.array(elsewhere, dtype=bool).reshape(-1, 1)
        return np.where(unusable, np.inf, self._norms(high + low))

    def _edges_of(self, node: int) -> list[int]:
        """The edges into a node, and the one out of it."""
        return [*self.problem.inputs[node], *([node] if self.problem.consumer[node] >= 0 else [])]

    def _gains(self, nodes: Sequence[int]) -> tuple[Where, Nanoseconds]:
        """(nodes, slots, hosts) which resources' loads each node adds to on every host, and by how much.

        As many slots as the busiest node needs; one that is left over gains nothing. A node's resources are distinct.
        """
        problem, hosts = self.problem, len(self.problem.hosts)
        anywhere = np.arange(hosts)
        slots = 1 + max((len(self._edges_of(node)) for node in nodes), default=0)
        places = np.broadcast_to(hosts * hosts + anywhere, (len(nodes), slots, hosts)).copy()
        gains = np.zeros(places.shape)
        for number, node in enumerate(nodes):
            gains[number, 0] = problem.compute_ns[node]
            slot_of: dict[int, int] = {}  # host of producers -> slot: those on one host share a link
            for producer in problem.inputs[node]:
                source = int(self.where[producer])
                slot = slot_of.setdefault(source, len(slot_of) + 1)
                places[number, slot] = source * hosts + anywhere
                gains[number, slot] += problem.edge_from_ns(producer, source)
            if problem.consumer[node] >= 0:
                target = int(self.where[problem.consumer[node]])
                places[number, len(slot_of) + 1] = anywhere * hosts + target
                gains[number, len(slot_of) + 1] = problem.edge_to_ns(node, target)
        return places, gains


class _ScaledPosition(Position):
    """The general way, for any shape: every placement anew, its loads relative to its largest."""

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
        loads[np.isinf(largest)] = 0.0  # their cost is known
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
