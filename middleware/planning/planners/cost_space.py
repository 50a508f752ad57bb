"""Planner ``cost-space``: the placement of least network usage, the bytes in transit, by the latencies between hosts.

The usage is the sum over edges of rate times latency (Pietzuch et al., equation 1). Every node makes one partition per
index, so the rate is the bytes of a partition. Bandwidth is not measured for this planner, which is meant for links
that carry the whole traffic. The cost of a placement is then its latency, and the capacity that is left for the
remaining senders.

Rules:

R1. If there are few hosts, or as many known latencies as pairs, latencies of all pairs are asked for. Otherwise all
    hosts are ranked by the usage that their coordinates predict. Latencies are then asked for only between the
    ``measured`` best hosts of each operator.
R2. If the dataflow is a tree, the best of these hosts is found exactly. After a ranking this holds only for ``EXACT``
    pairs at most. Otherwise the search is a coordinate descent, which asks only for latencies on its path. The present
    hosts are always candidates.
R3. The load of a host makes the host farther from all others. A host that lacks room for an operator takes the operator
    only if the operator is there already. If operators fit one by one and not together, the operator with the least
    traffic goes elsewhere first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations, product
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlacementError, UsageError
from thalweg.middleware.network.coordinates import Rows, together
from thalweg.middleware.network.figures import HostFigures, lacks
from thalweg.middleware.network.place import ALIKE_S as LEAST_S
from thalweg.middleware.network.place import UNPLACED
from thalweg.middleware.network.view import LatenciesNeeded, Link, NetworkView
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.usage import search
from thalweg.middleware.planning.usage.room import combined, takings
from thalweg.middleware.planning.usage.search import Floats, Hosts
from thalweg.middleware.planning.usage.streams import Query, query_of
from thalweg.middleware.protocol.adaptation import GlobalMoves, Need

PERIOD_S = 60.0
SAVING = 0.05  # least share of the usage that a change saves: the paper's minimum migration threshold
FEW = 2  # times ``measured`` hosts: asking for all latencies between them costs hardly more
EXACT = 300  # pairs of hosts: enough for three operators with ten hosts each
AGAIN = 100  # most attempts to make operators fit together


class CostSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner that puts every operator where the network usage is least, again every ``period_s`` seconds (None: once).

    For a dataflow that is a tree, with any number of sinks, the result is the optimum over the measured hosts. For
    other dataflows, no move of a single operator improves the result. The cost model is not used.

    - ``saving``: a change is made if it saves this share of the usage.
    - ``measured``: number of hosts for each operator between which true latencies are asked for, if there are many
      hosts.
    - ``load_s``: a host with load 1 is this number of seconds farther from all others.
    """

    compared: ClassVar[bool] = True
    needs: ClassVar[Collection[Need]] = ("latency", "hosts", "work", "coordinates")

    period_s: float | None = PERIOD_S
    saving: float = SAVING
    measured: int = search.MEASURED
    load_s: float = 0.0

    def __post_init__(self) -> None:
        _ = self.adaptation  # the property checks ``period_s`` and ``saving``
        if self.measured < 1:
            raise UsageError(
                f"measured is {self.measured}; give how many hosts are measured for each operator, at least 1"
            )
        if not 0 <= self.load_s < math.inf:
            raise UsageError(f"load_s is {self.load_s}; it must be finite and at least 0 (0 turns it off)")

    @property
    def adaptation(self) -> GlobalMoves | None:
        """Options of moves while data flows. None: operators do not move."""
        moves = GlobalMoves(PERIOD_S if self.period_s is None else self.period_s, gain=self.saving)
        return None if self.period_s is None else moves

    def plan(self, task: Task, model: CostModel) -> Plan:
        problem, hosts = Problem(task), task.hosts
        query, known = query_of(problem), _Known(task.view, hosts)
        present = None if task.current is None else problem.where(task.current).tolist()
        before = problem.at_sink().tolist() if present is None else present
        rooms = _Rooms(problem, query, self.load_s, present)
        # R1: few hosts, or as many known latencies as pairs: use all latencies
        if len(hosts) <= FEW * self.measured or len(task.view.latencies) >= math.comb(len(hosts), 2):
            known.require(combinations(range(len(hosts)), 2))
            chosen = rooms.fitting(lambda: _of_all(query, known, rooms, before))
        else:
            expected = _expected(problem, query)
            if expected is None:
                return Plan(problem.placement(np.array(before)), task.dataflow, cost_s=0.0, initial_cost_s=0.0)
            chosen = rooms.fitting(lambda: _of_few(query, known, rooms, expected, self.measured, present))
        known.require(
            (where[stream.producer], where[stream.consumer]) for where in (chosen, before) for stream in query.streams
        )
        cost, was = (search.cost(query, where, known.between, rooms.burden) for where in (chosen, before))
        if math.isinf(cost) and present is None:
            raise PlacementError(known.parted(query, chosen))
        if not cost < was:
            chosen, cost = before, was
        return Plan(
            placement={name: hosts[host] for name, host in zip(problem.names, chosen, strict=True)},
            dataflow=task.dataflow,
            cost_s=cost,
            initial_cost_s=was,
            evaluated=len(hosts) * len(query.operators),
        )


def _expected(problem: Problem, query: Query) -> search.Between | None:
    """Return distances by coordinates; None if data flows and the coordinates of a pinned node's host are unknown.

    Raises PlacesNeeded for hosts whose coordinates are to be measured before the run. Raises PlacementError if the host
    of a pinned node found none.
    """
    task, hosts = problem.task, problem.hosts
    if task.current is None:
        task.view.require_places(hosts)
    places = [task.view.places.get(host, UNPLACED) for host in hosts]
    lost = [hosts[host] for host in sorted(set(query.pinned.values())) if not places[host].at]
    if lost and task.current is not None:
        return None
    if lost:
        raise PlacementError(f"host {lost[0]!r} did not find its coordinates; is it still there?")
    nowhere = msgspec.structs.replace(UNPLACED, at=(0.0,) * max(len(place.at) for place in places))
    coordinates = together([place if place.at else nowhere for place in places])

    def between(ones: Rows, others: Rows) -> Floats:
        apart = np.maximum(coordinates.distances_s(ones, others), LEAST_S)
        return np.where(np.equal.outer(np.asarray(ones), np.asarray(others)), 0.0, apart)

    return between


def _of_all(query: Query, known: _Known, rooms: _Rooms, before: Sequence[int]) -> list[int]:
    """Return the best placement over all hosts, by known latencies (R2)."""
    hosts = np.arange(rooms.count)
    latency_s = known.between(hosts, hosts)
    if query.tree:
        everywhere = dict.fromkeys(query.operators, hosts)
        return search.best(query, everywhere, search.between_all(latency_s), rooms.burden)
    alone = ([host] * query.nodes for host in range(len(hosts)))
    return search.descended(query, latency_s, [before, *alone], rooms.burden)


def _of_few(
    query: Query,
    known: _Known,
    rooms: _Rooms,
    expected: search.Between,
    measured: int,
    present: Sequence[int] | None,
) -> list[int]:
    """Return the best placement over the present hosts, and the hosts that coordinates predict to be best (R1, R2)."""
    hosts = np.arange(rooms.count)
    everywhere = dict.fromkeys(query.operators, hosts)
    if query.tree:
        costs = search.usages(query, everywhere, expected, rooms.burden)
    else:
        ends = ([host] * query.nodes for host in dict.fromkeys(query.pinned.values()))
        start = search.descended_among(query, everywhere, expected, ends, rooms.burden)
        costs = {
            node: search.alone(query, node, start, hosts, expected) + rooms.burden(node, hosts)
            for node in query.operators
        }
    few = {node: np.argsort(costs[node], kind="stable")[:measured] for node in query.operators}
    few = {node: candidates[np.isfinite(costs[node][candidates])] for node, candidates in few.items()}
    starts = [[query.pinned.get(node, int(few[node][0]) if node in few else 0) for node in range(query.nodes)]]
    if present is not None:
        few = {node: np.union1d(candidates, [present[node]]) for node, candidates in few.items()}
        starts.append([*present])
    allowed = {node: [host] for node, host in query.pinned.items()} | {
        node: candidates.tolist() for node, candidates in few.items()
    }
    pairs = {pair for stream in query.streams for pair in product(allowed[stream.producer], allowed[stream.consumer])}
    if query.tree and len(pairs) <= EXACT:
        known.require(pairs)
        return search.best(query, few, known.between, rooms.burden)

    def ahead(where: Sequence[int]) -> None:
        known.require((host, where[other]) for node in few for other, _ in query.beside[node] for host in allowed[node])

    return search.descended_among(query, few, known.between, starts, rooms.burden, ahead)


class _Rooms:
    """Burden of operators on hosts, by the load and the room of the hosts (R3). Hosts and nodes are numbers."""

    def __init__(self, problem: Problem, query: Query, load_s: float, present: Sequence[int] | None) -> None:
        task, self._names, self._hosts = problem.task, problem.names, problem.hosts
        declared = {**task.hints.hosts, **{host: place.host for host, place in task.view.places.items()}}
        self._figures = [declared.get(host, HostFigures()) for host in self._hosts]
        self._takings, self._present, self._query = takings(problem), present, query
        self.count = len(self._hosts)
        load = load_s * np.array([figures.load for figures in self._figures])
        self._rates = {node: plain_sum(rate for _, rate in query.beside[node]) for node in query.operators}
        self._burden = {node: self._rates[node] * load + self._short(node) for node in query.operators}

    def _short(self, node: int) -> Floats:
        """Return an array of hosts: infinite if the host lacks room for an operator that is not there yet, else 0."""
        taking, here = self._takings[node], None if self._present is None else self._present[node]
        return np.array(
            [math.inf if host != here and lacks(figures, taking) else 0.0 for host, figures in enumerate(self._figures)]
        )

    def burden(self, node: int, hosts: Hosts) -> Floats:
        """Return the burden of an operator on each of ``hosts``."""
        return self._burden[node][hosts]

    def fitting(self, choose: Callable[[], list[int]]) -> list[int]:
        """Return a choice in which the operators also fit together.

        Raises PlacementError if an operator fits on no host, or if no choice fits.
        """
        for _ in range(AGAIN):
            for node, burden in self._burden.items():
                if np.isinf(burden).all():
                    raise PlacementError(self._nowhere(node))
            chosen = choose()
            crowded = self._crowded(chosen)
            if crowded is None:
                return chosen
            self._burden[crowded][chosen[crowded]] = math.inf
        raise PlacementError("there is no placement: operators fit on hosts one by one, and not together")

    def _crowded(self, chosen: Sequence[int]) -> int | None:
        """Return the operator with the least traffic among operators that come to one host and do not fit there
        together.

        None: no host is short.
        """
        for host in dict.fromkeys(chosen):
            new = [
                node
                for node in self._query.operators
                if chosen[node] == host and not (self._present is not None and self._present[node] == host)
            ]
            if len(new) > 1 and lacks(self._figures[host], combined(self._takings[node] for node in new)):
                return min(new, key=self._rates.__getitem__)
        return None

    def _nowhere(self, node: int) -> str:
        """Return the message why an operator fits on no host, with the first host that lacks a resource."""
        shortages = (
            (host, lacks(figures, self._takings[node]))
            for host, figures in zip(self._hosts, self._figures, strict=True)
        )
        why = next(
            (f"{host!r} lacks {shortage}" for host, shortage in shortages if shortage),
            "other operators take all of the room",
        )
        return f"operator {self._names[node]!r} fits on none of {self.count} hosts: {why}"


class _Known:
    """Known latencies between hosts, by the numbers of the hosts."""

    def __init__(self, view: NetworkView, hosts: Sequence[str]) -> None:
        self._view, self._hosts = view, hosts
        self._found: dict[tuple[int, int], float | None] = {}

    def _at(self, one: int, other: int) -> float | None:
        pair = min(one, other), max(one, other)
        if pair not in self._found:
            latency_s = self._view.latency_s(self._hosts[pair[0]], self._hosts[pair[1]])
            if latency_s is not None and not latency_s >= 0:
                ends = " and ".join(repr(self._hosts[end]) for end in pair)
                raise UsageError(f"the latency between {ends} is {latency_s} s; it must be at least 0")
            self._found[pair] = latency_s if not latency_s or one == other else max(latency_s, LEAST_S)
        return self._found[pair]

    def require(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Raise LatenciesNeeded with the pairs whose latency is unknown, if there are any."""
        unknown = {(min(pair), max(pair)) for pair in pairs if self._at(*pair) is None}
        if unknown:
            raise LatenciesNeeded(
                [Link(self._hosts[source], self._hosts[target]) for source, target in sorted(unknown)]
            )

    def between(self, ones: Rows, others: Rows) -> Floats:
        """Return the latencies between two lists of hosts, (ones, others). Every latency must be known."""
        return np.array([[self._at(int(a), int(b)) for b in others] for a in ones], dtype=np.float64)

    def parted(self, query: Query, hosts: Sequence[int]) -> str:
        """Return the message that names two hosts without a path."""
        for stream in query.streams:
            ends = hosts[stream.producer], hosts[stream.consumer]
            if math.isinf(self._at(*ends) or 0.0):
                a, b = (self._hosts[end] for end in ends)
                return (
                    f"there is no placement: hosts {a!r} and {b!r} do not reach each other, nor do other hosts;"
                    " is a link down?"
                )
        return "there is no placement: no host has room for all of the operators"
