"""A lower bound of the period of any tree, and of any mixture of trees: fractional packing of aggregation trees.

What is bounded. Every source makes one partition per period; whatever the shape, the partition of each has to reach the
sink, alone or combined with others. Let y(a, b) be the messages per second from host a to host b, in the long run and
over all trees that may be in use by turns. Then, for a rate of λ partitions per second at the sink:

- every set of hosts that holds a source and not the sink sends at least λ messages per second out of it;
- no interface is busy more than all of the time: with t(a, b) = start-up + smallest message / rate, the sum of
  y(a, b) · t(a, b) over a host's links is at most 1 (``single``), over those out of it and those into it (``duplex``),
  or of each link alone (``independent``).

The largest such λ is a linear program; 1 / λ bounds the period from below. Where every message has the same size and
every host a source, it is that of a mixture of trees (Edmonds 1973: arborescences can be packed up to the smallest
cut), so that nothing better can be said of transfers; of one tree alone it may be well below what can be had. Left out
are computing, disks, node cycles, growth of images, and that links change: rates are those given.

The cuts are too many to write down. They are added as they are found violated: the smallest cut between each source
and the sink is that of a largest flow (Dinic 1970) in the messages of the solution so far.

Source: Legrand, Marchal, Robert (2005), Optimizing the steady-state throughput of scatter and reduce operations on
heterogeneous platforms, J. Parallel Distrib. Comput. 65; the program of cuts is the dual view of theirs of flows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import PlannerError, UsageError
from thalweg.middleware.network.view import LinksNeeded, NetworkView
from thalweg.middleware.planning.costs.period import Interface
from thalweg.middleware.planning.problem.hints import CostParameters, Hints

Floats = npt.NDArray[np.float64]
GAP = 1e-6  # relative; a cut that is violated by less is not
ROUNDS = 1000  # a safeguard: each adds a cut, and mostly a few dozen rounds do


def bound_period_s(
    dataflow: Dataflow,
    hosts: Sequence[str],
    view: NetworkView,
    current: Mapping[str, str] | None,
    *,
    hints: Hints,
    costs: CostParameters,
    interface: Interface = "single",
) -> float:
    """Seconds per partition that no tree over these hosts can beat (see the module); 0 where nothing is sent.

    Infinite where the links that are usable do not join all sources to the sink. It counts for dataflows whose
    combinations are not smaller than their smallest input, as those of pixel selection.

    Raises LinksNeeded with every link that is not known, UsageError when nobody says where the sink is, PlannerError
    when the program cannot be solved.
    """
    sink = dataflow.by_name[dataflow.sink]
    root = sink.pinned or (current or {}).get(sink.name)
    if root is None:
        raise UsageError(f"nobody says where sink {sink.name!r} is; pin it or place it")
    unknown = [(a, b) for a in hosts for b in hosts if view.rate_bps(a, b) is None]
    if unknown:
        raise LinksNeeded(unknown)
    index = {host: number for number, host in enumerate(hosts)}
    places = {index[str(dataflow.by_name[name].pinned)] for name in dataflow.sources} - {index[root]}
    if not places:
        return 0.0
    smallest = min(hints.output_bytes[name] for name in hints.output_bytes if name in dataflow.by_name)
    rates = np.array([[view.rate_bps(a, b) or 0.0 for b in hosts] for a in hosts], dtype=np.float64)
    seconds = np.full(rates.shape, math.inf)
    np.divide(smallest * 8, rates, out=seconds, where=rates > 0)
    seconds += costs.startup_s
    np.fill_diagonal(seconds, math.inf)
    rate = packing_rate(seconds, index[root], sorted(places), interface)
    return 1 / rate if rate > 0 else math.inf


def packing_rate(seconds: Floats, root: int, sources: Sequence[int], interface: Interface) -> float:
    """Partitions per second at ``root``: the optimum of the module's program. ``seconds``: (hosts, hosts) of a message.

    Infinite ``seconds`` are links that cannot be used; inf where messages take no time.
    """
    usable = np.isfinite(seconds)
    edges = np.argwhere(usable)
    if not len(edges):
        return 0.0
    scale = float(seconds[usable].mean())
    if scale == 0:
        return math.inf
    program = _Program(edges, seconds[usable] / scale, len(seconds), interface)
    for source in sources:
        program.add_cut(_side(len(seconds), {source}))
    program.add_cut(~_side(len(seconds), {root}))
    for _ in range(ROUNDS):
        rate, messages = program.solve()
        capacity = np.zeros(seconds.shape)
        capacity[edges[:, 0], edges[:, 1]] = messages
        cuts = {}
        for source in sources:
            flow, side = smallest_cut(capacity, source, root)
            if flow < rate * (1 - GAP) - GAP * GAP:
                cuts[side.tobytes()] = side
        if not cuts:
            return rate / scale
        for side in cuts.values():
            program.add_cut(side)
    raise PlannerError(f"the bound was not found with {ROUNDS} rounds of cuts; leave --bound out")


def _side(count: int, hosts: set[int]) -> npt.NDArray[np.bool_]:
    side = np.zeros(count, dtype=bool)
    side[list(hosts)] = True
    return side


class _Program:
    """Largest λ over messages y of the ``edges``; variable 0 is λ."""

    def __init__(self, edges: npt.NDArray[np.intp], seconds: Floats, hosts: int, interface: Interface) -> None:
        import highspy  # takes a tenth of a second to load, and only a bound needs it

        self._edges = edges
        self._solver = solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        self._ok = highspy.HighsModelStatus.kOptimal
        independent = interface == "independent"
        solver.addVar(0.0, highspy.kHighsInf)
        for busy_s in seconds.tolist():
            solver.addVar(0.0, 1 / busy_s if independent and busy_s > 0 else highspy.kHighsInf)
        solver.changeColCost(0, 1.0)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._low, self._high = -highspy.kHighsInf, highspy.kHighsInf
        for host in range(hosts):
            leaving, arriving = edges[:, 0] == host, edges[:, 1] == host
            rows = {"single": [leaving | arriving], "duplex": [leaving, arriving], "independent": []}[interface]
            for row in rows:
                which = np.flatnonzero(row)
                solver.addRow(self._low, 1.0, len(which), (which + 1).astype(np.int32), seconds[which])

    def add_cut(self, side: npt.NDArray[np.bool_]) -> None:
        """Those of ``side``, which holds a source and not the sink, send at least λ out of it."""
        out = np.flatnonzero(side[self._edges[:, 0]] & ~side[self._edges[:, 1]])
        columns = np.concatenate(([0], out + 1)).astype(np.int32)
        values = np.concatenate(([-1.0], np.ones(len(out))))
        self._solver.addRow(0.0, self._high, len(columns), columns, values)

    def solve(self) -> tuple[float, Floats]:
        """λ and the messages of every edge."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != self._ok:
            raise PlannerError(f"the solver ended the program of the bound as {status}; leave --bound out")
        values = np.array(self._solver.getSolution().col_value)
        return float(values[0]), np.maximum(values[1:], 0.0)


def smallest_cut(capacity: Floats, source: int, sink: int) -> tuple[float, npt.NDArray[np.bool_]]:
    """The largest flow from ``source`` to ``sink``, and the hosts on the source's side of a smallest cut."""
    rest = capacity.copy()
    enough = 1e-12 * max(1.0, float(capacity.max(initial=0.0)))
    flow = 0.0
    while True:
        level = _levels(rest, source, enough)
        if level[sink] < 0:
            return flow, level >= 0
        open_to = [np.flatnonzero((rest[a] > enough) & (level == level[a] + 1)).tolist() for a in range(len(rest))]
        path = [source]
        while path:
            here = path[-1]
            if here == sink:
                steps = list(pairwise(path))
                amount = min(float(rest[a, b]) for a, b in steps)
                for a, b in steps:
                    rest[a, b] -= amount
                    rest[b, a] += amount
                flow += amount
                path = [source]
            elif open_to[here] and rest[here, open_to[here][-1]] > enough:
                path.append(open_to[here][-1])
            elif open_to[here]:
                open_to[here].pop()
            else:
                path.pop()
                if path:
                    open_to[path[-1]].pop()


def _levels(rest: Floats, source: int, enough: float) -> npt.NDArray[np.intp]:
    """Steps from ``source`` over links with something left; -1 where there is no way."""
    level = np.full(len(rest), -1, dtype=np.intp)
    level[source] = 0
    queue = deque([source])
    while queue:
        here = queue.popleft()
        for there in np.flatnonzero((rest[here] > enough) & (level < 0)).tolist():
            level[there] = level[here] + 1
            queue.append(there)
    return level
