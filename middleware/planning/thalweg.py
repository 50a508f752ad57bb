"""Our own planner: the tree's shape and its placement together, for the shortest period.

A pipeline's rate is bounded by its busiest interface, link or processor (see ``period``), and where combining is
associative and commutative the order is free. So the planner looks for the tree over hosts whose busiest resource
is least busy (``shape_search``), and only where operators do not say that they may be reordered does it keep the
tree it was given and move its operators (:class:`OneShot`, by the same cost).

Knowledge is fetched in two steps. Nobody knows anything at first, so that as many links are asked for as tell good
from bad: all of a small network, of a larger one those from each host to a few others. Then the planner takes unknown
links for as fast as good ones among those known, and asks for what the tree it finds would use: only these can change
the decision. It ends when such a tree has none, or ``probes`` are used up.

Hosts without sources are left out of trees that are chosen: their only use would be to pass results on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network_view import LinksNeeded, NetworkView
from thalweg.middleware.planning.costs import CostModel, CriticalPath
from thalweg.middleware.planning.expected_period import LARGEST_PLAIN_SHAPE, ExpectedPeriod
from thalweg.middleware.planning.hints import CostParameters, Hints
from thalweg.middleware.planning.period import Interface, Period
from thalweg.middleware.planning.planners import OneShot, PlanResult, plan_result
from thalweg.middleware.planning.problem import Problem
from thalweg.middleware.planning.shape_search import UNKNOWN_S, Floats, Loads, search_tree
from thalweg.middleware.planning.shapes import Freedom, HostTree, Joining, freedom, shaped

PROBES_PER_HOST = 6  # at 8 servers and a client that is each of the 36 pairs of hosts
FIRST_SHARE = 0.5  # of the probes are asked for before anything is known
HOPE = 0.8  # the quantile of known rates that an unknown link is taken for


class Thalweg(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape and placement for the shortest period (see the module).

    - ``interface``: what a host sends and receives at once, as :class:`Period`'s; a cost model of periods that the
      planner is called with says it itself and is used instead
    - ``shape``: of the norm that is minimised (see :class:`ExpectedPeriod`, whose own is used where it is the model)
    - ``joining``: how a host combines its inputs (see :func:`shaped`)
    - ``looks``: how many trees are looked at; None: as many as take about 20 ms at 8 servers and 200 ms at 32
    - ``probes``: how many pairs of hosts may be measured; None: six a host
    - ``seed``: of the search

    Raises UsageError for a shape that is not above 1 and at most 32, and numbers below 0.
    """

    reshapes: ClassVar[bool] = True

    interface: Interface = "single"
    shape: float = 2.0
    joining: Joining = "pairs"
    looks: int | None = None
    probes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 < self.shape <= LARGEST_PLAIN_SHAPE:
            raise UsageError(
                f"the shape of thalweg is {self.shape}; it must be above 1, at most {LARGEST_PLAIN_SHAPE:g}"
            )
        for what in ("looks", "probes"):
            if (value := getattr(self, what)) is not None and value < 0:
                raise UsageError(f"{what} of thalweg is {value}; it must be at least 0")

    def plan(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult:
        model = self.goes_by(model)
        free = freedom(dataflow, hints, current)
        if free is None:
            return self._placed(dataflow, hosts, view, current, hints=hints, costs=costs, model=model)
        given = Problem(dataflow, hosts, view, hints, costs)
        start = given.at_sink(current)
        names = [free.root, *(host for host in free.sources if host != free.root)]
        knowledge = _Knowledge(names, view, self.probes)
        if wanted := knowledge.first():
            raise LinksNeeded(wanted)
        looks = _looks(len(names)) if self.looks is None else self.looks
        interface = "independent" if isinstance(model, ExpectedPeriod) else model.interface
        loads = Loads(
            knowledge.transfers(costs),
            [[hints.output_bytes[name] for name in free.sources.get(host, ())] for host in names],
            free.answers.output_size_bytes,
            lambda host, inputs: _compute_s(free, costs, names[host], inputs),
            np.array([_disk_s(free, hints, costs, host) for host in names]),
            interface=interface,
            shape=min(model.shape, LARGEST_PLAIN_SHAPE) if isinstance(model, ExpectedPeriod) else self.shape,
            joint=interface == "single",
        )
        parent, spent = search_tree(loads, looks, self.seed)
        if wanted := knowledge.open(parent):
            raise LinksNeeded(wanted)
        tree = HostTree(free.root, {names[host]: names[parent[host]] for host in range(1, len(names))})
        made, placement, known = shaped(dataflow, hints, free, tree, self.joining)
        problem = Problem(made, hosts, view, known, costs)
        where = problem.where(placement)
        problem.require(where)
        initial_ns = math.nan if given.missing(start) else model.at(given, start).lower_ns
        result = plan_result(problem, model.at(problem, where), initial_ns=initial_ns, evaluated=spent)
        return msgspec.structs.replace(result, hints=known)

    def goes_by(self, model: CostModel) -> Period | ExpectedPeriod:
        """The cost model that plans are made and told by: the given one, if it is of periods."""
        return model if isinstance(model, Period | ExpectedPeriod) else Period(self.interface)

    def _placed(
        self,
        dataflow: Dataflow,
        hosts: Sequence[str],
        view: NetworkView,
        current: Placement | None,
        *,
        hints: Hints,
        costs: CostParameters,
        model: CostModel,
    ) -> PlanResult:
        """The best of two searches that keep the tree: by periods alone, and by periods from where the critical path
        leads, as a largest load has plateaus that single moves do not leave."""

        def search(start: OneShot, current: Placement | None, model: CostModel) -> PlanResult:
            return start.plan(dataflow, hosts, view, current, hints=hints, costs=costs, model=model)

        alone = search(OneShot(), current, model)
        path = search(OneShot(), current, CriticalPath())
        after = search(OneShot(start="current"), path.placement, model)
        best = min(alone, after, key=lambda result: result.cost_s)
        looks = alone.evaluated + path.evaluated + after.evaluated
        steps = best.steps if best is alone else (*path.steps, *after.steps)
        links = alone.links_used | path.links_used | after.links_used
        return msgspec.structs.replace(
            best, initial_cost_s=alone.initial_cost_s, evaluated=looks, links_used=links, steps=steps
        )


def _looks(hosts: int) -> int:
    """As many as make 60 steps at 9 hosts and 300 from 33 on: one looks at every host below every other, and takes
    0.3 to 0.6 ms there (on a 2-core virtual machine).
    """
    steps = min(10 * max(hosts - 3, 1), 300)
    return steps * hosts**2


def _compute_s(free: Freedom, costs: CostParameters, host: str, inputs: Sequence[float]) -> float:
    if len(inputs) < 2:
        return 0.0
    factor = costs.compute_factor * costs.host_compute_factor.get(host, 1.0) / costs.cores
    return free.answers.compute_s(inputs) * factor


def _disk_s(free: Freedom, hints: Hints, costs: CostParameters, host: str) -> float:
    read = sum(hints.disk_bytes.get(name, hints.output_bytes[name]) for name in free.sources.get(host, ()))
    return read / costs.disk_bytes_per_s


class _Knowledge:
    """What is known of the links between ``names``, the client first, and what more should be."""

    def __init__(self, names: Sequence[str], view: NetworkView, probes: int | None) -> None:
        self.names, self.count = names, len(names)
        rates = [[view.rate_bps(a, b) for b in names] for a in names]
        self.unknown: npt.NDArray[np.bool_] = np.array([[rate is None for rate in row] for row in rates])
        self.rates = np.array([[math.nan if rate is None else rate for rate in row] for row in rates])
        pairs = self.count * (self.count - 1) // 2
        most = PROBES_PER_HOST * self.count if probes is None else probes
        self.left = min(pairs, most) - (pairs - self._pairs_unknown())

    def _pairs_unknown(self) -> int:
        return int(np.triu(self.unknown & self.unknown.T, 1).sum())

    def _links(self, pairs: Sequence[tuple[int, int]]) -> frozenset[tuple[str, str]]:
        return frozenset((self.names[a], self.names[b]) for a, b in pairs)

    def first(self) -> frozenset[tuple[str, str]]:
        """What to ask for when next to nothing is known: rings of all hosts, each with larger steps."""
        pairs = self.count * (self.count - 1) // 2
        known = pairs - self._pairs_unknown()
        budget = self.left + known
        if known * 4 >= budget:
            return frozenset()
        wanted: list[tuple[int, int]] = []
        most = budget if budget >= pairs else int(budget * FIRST_SHARE)
        for step in range(1, self.count // 2 + 1):
            for a in range(self.count):
                b = (a + step) % self.count
                if self.unknown[a, b] and self.unknown[b, a] and (b, a) not in wanted and len(wanted) < most - known:
                    wanted.append((a, b))
        return self._links(wanted)

    def open(self, parent: Sequence[int]) -> frozenset[tuple[str, str]]:
        """The unknown links of a tree, as far as probes are left; all of them where none are."""
        used = [(host, parent[host]) for host in range(1, self.count) if self.unknown[host, parent[host]]]
        return self._links(used[: self.left] if self.left > 0 else used)

    def transfers(self, costs: CostParameters) -> Callable[[float], Floats]:
        """For a size in bytes the (hosts, hosts) seconds of a transfer; unknown links as fast as hoped, or unusable."""
        rates = self.rates.copy()
        known = rates[np.isfinite(rates) & (rates > 0)]
        hoped = float(np.quantile(known, HOPE)) if self.left > 0 and len(known) else 0.0
        rates[self.unknown] = hoped
        per_byte = np.divide(8.0, rates, out=np.full(rates.shape, math.inf), where=rates > 0)

        def transfer_s(size: float) -> Floats:
            seconds: Floats = np.minimum(costs.startup_s + size * per_byte, UNKNOWN_S)
            np.fill_diagonal(seconds, 0.0)
            return seconds

        return transfer_s
