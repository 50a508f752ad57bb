"""Lower bound of the period of every tree, and of every mixture of trees: fractional packing of aggregation trees.

Quantities. Every source makes one partition per period. Whatever the shape, the partition of every source has to reach
the sink, alone or combined with other partitions. Let y(a, b) be the messages per second from host a to host b, in the
long run and summed over all trees that are used by turns. For a rate of λ partitions per second at the sink, two
conditions hold.

- Every set of hosts that holds a source and not the sink sends at least λ messages per second out of the set.
- No interface is busy more than all of the time. With t(a, b) = start-up + smallest message / rate, busy times
  y(a, b) · t(a, b) sum to at most 1. The sum is over all links of a host (``single``), or over the links out of a host
  and over the links into a host (``duplex``). If links are ``independent``, the busy time of each link is at most 1.

The largest such λ is a linear program, and 1 / λ bounds the period from below. If all messages have the same size and
every host has a source, a mixture of trees reaches this λ, so no better bound on transfers exists. (Edmonds 1973:
arborescences can be packed up to the smallest cut.) A single tree may need a period well above the bound. The bound
leaves out computation, disks, node cycles and growth of images. Rates of links are constant.

The cuts are too many to write down. A cut is added when a solution violates the cut. The smallest cut between a source
and the sink is found as a largest flow in the messages of the latest solution.

Source: Legrand, Marchal, Robert (2005), Optimizing the steady-state throughput of scatter and reduce operations on
heterogeneous platforms, J. Parallel Distrib. Comput. 65. The program of cuts is the dual view of the paper's program of
flows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import PlannerError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.problem.loads import Floats, Interface, LoadModel, transfer_s
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.solver.cuts import smallest_cut
from thalweg.middleware.planning.solver.program import Program

GAP = 1e-6  # relative; a cut that is violated by less counts as kept
ROUNDS = 1000  # a safeguard: each round adds cuts, and a few dozen rounds mostly suffice


def bound_period_s(task: Task, interface: Interface = "single") -> float:
    """Return the seconds per partition that no tree over these hosts can beat (see the module).

    The result is 0 if nothing is sent. The result is infinite if the usable links do not join all sources to the sink.
    The bound is valid for dataflows whose combinations are not smaller than their smallest input, as in pixel
    selection.

    Raises LinksNeeded with every link that is not known. Raises PlacementError if the sink has neither a pin nor a
    current host. Raises PlannerError if the dataflow is no tree, or if the program cannot be solved.
    """
    dataflow, hosts, hints = task.dataflow.validate(), task.hosts, task.hints
    if why := dataflow.not_a_tree():
        raise PlannerError(f"the bound holds for trees, and {why}; leave --bound out")
    root = task.root(dataflow.sinks[0])
    task.view.require(links_between(hosts))
    index = {host: number for number, host in enumerate(hosts)}
    places = {index[str(dataflow.by_name[name].pinned)] for name in dataflow.sources} - {index[root]}
    if not places:
        return 0.0
    smallest = min(hints.output_bytes[name] for name in hints.output_bytes if name in dataflow.by_name)
    (seconds,) = transfer_s(np.array([smallest]), np.array(task.view.rates_bps(hosts)), task.costs.startup_s)
    np.fill_diagonal(seconds, math.inf)
    rate = packing_rate(seconds, index[root], sorted(places), interface)
    return 1 / rate if rate > 0 else math.inf


def packing_rate(seconds: Floats, root: int, sources: Sequence[int], interface: Interface) -> float:
    """Return the partitions per second at ``root``: the optimum of the module's linear program.

    ``seconds``: (hosts, hosts) time of a message. Infinite ``seconds`` are links that cannot be used. The result is inf
    if messages take no time. Raises PlannerError if the cuts do not end.
    """
    usable = np.isfinite(seconds)
    edges = np.argwhere(usable)
    if not len(edges):
        return 0.0
    scale = float(seconds[usable].mean())
    if scale == 0:
        return math.inf
    program = _Packing(edges, seconds[usable] / scale, len(seconds), interface)
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


class _Packing:
    """Linear program that finds the largest λ over the messages y of the ``edges``."""

    def __init__(self, edges: npt.NDArray[np.intp], seconds: Floats, hosts: int, interface: Interface) -> None:
        self._edges, self._program = edges, Program(maximise=True)
        resources = LoadModel(tuple(map(str, range(hosts))), interface)
        (self._rate,) = self._program.variables(1, cost=1.0)
        most = np.full(len(edges), math.inf)
        if resources.of_links:
            np.divide(1.0, seconds, out=most, where=seconds > 0)
        self._messages = self._program.variables(len(edges), high=most)
        if resources.of_links:
            return
        carried = resources.of_transfers(edges[:, 0], edges[:, 1])
        for resource in np.arange(resources.processors).reshape(-1, hosts).T.ravel():  # rows host by host
            busy = np.flatnonzero(np.any([places == resource for places in carried], axis=0))
            self._program.row(self._messages[busy], seconds[busy], high=1.0)

    def add_cut(self, side: npt.NDArray[np.bool_]) -> None:
        """Require that the hosts of ``side`` send at least λ messages per second out of ``side``.

        ``side`` holds a source and not the sink.
        """
        out = np.flatnonzero(side[self._edges[:, 0]] & ~side[self._edges[:, 1]])
        columns = np.concatenate(([self._rate], self._messages[out]))
        self._program.row(columns, np.concatenate(([-1.0], np.ones(len(out)))), low=0.0)

    def solve(self) -> tuple[float, Floats]:
        """Return λ, and the messages per second of every edge."""
        try:
            variables = self._program.solve().variables
        except PlannerError as error:
            raise PlannerError(f"the bound was not found: {error}; leave --bound out") from None
        return float(variables[self._rate]), np.maximum(variables[self._messages], 0.0)
