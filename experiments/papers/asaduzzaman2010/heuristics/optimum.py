"""Lower bound of the cost of maps, and the cost of the best map, for Figure 7.

The *bound* is the paper's. Links have room for everything, so an edge takes the cheapest path. Of capacity, only the
need of consecutive components on one host counts, which every map has to fit. The *optimum* is an integer program for
the hosts of components and the links of edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thalweg.experiments.papers.asaduzzaman2010.mapping.task import MappingTask, Platform
from thalweg.middleware.planning.solver.program import NoSolutionError, Program

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


def ways(platform: Platform) -> Floats:
    """Return (hosts, hosts) the cost of the cheapest path over dedicated links."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    ends = np.array([(link.one, link.other) for link in platform.links])
    costs = np.array([link.cost for link in platform.links])
    hosts = len(platform.servers)
    cheapest: Floats = dijkstra(csr_array((costs, (ends[:, 0], ends[:, 1])), shape=(hosts, hosts)), directed=False)
    return cheapest


def bound(platform: Platform, task: MappingTask) -> float:
    """Return a lower bound of the cost of a task's maps. The bound is inf if there can be no map."""
    cost, total = ways(platform), len(task.services)
    capacity = np.array([server.capacity for server in platform.servers])
    has = np.array([[service in server.services for server in platform.servers] for service in task.services])
    at = np.full(
        (total + 1, len(capacity)), np.inf
    )  # cost by the number of placed components, with the last of them on a host
    reach = np.full_like(at, np.inf)  # cost by the number of placed components, with the map at a host
    reach[0] = cost[task.source]
    reach[0, task.source] = 0.0
    for last in range(1, total + 1):
        for first in range(last):
            fits = (sum(task.needs[first:last]) <= capacity) & has[first:last].all(axis=0)
            at[last] = np.minimum(at[last], np.where(fits, reach[first], np.inf))
        reach[last] = (at[last][:, None] + cost).min(axis=0)
    return float(reach[total, task.sink])


def optimum(platform: Platform, task: MappingTask, time_limit_s: float = 60.0) -> tuple[float, bool] | None:
    """Return the cost of the best map, and whether it is proven. None: there is no map."""
    hosts, total = len(platform.servers), len(task.services)
    arcs = [(a, b, link) for link in platform.links for a, b in ((link.one, link.other), (link.other, link.one))]
    program = Program(gap=1e-6, time_limit_s=time_limit_s)
    has = np.array([[float(service in server.services) for server in platform.servers] for service in task.services])
    placed = program.variables(total * hosts, high=has.ravel(), integer=True).reshape(total, hosts)
    rate, price = (np.array([getattr(link, name) for _, _, link in arcs]) for name in ("rate_bps", "cost"))
    flow = np.array([
        program.variables(len(arcs), high=(rate >= bps).astype(float), cost=price, integer=True)
        for bps in task.rates_bps
    ])  # fmt: skip
    units = np.ones
    for component in range(total):
        program.row(placed[component], units(hosts), low=1, high=1)
    for host, server in enumerate(platform.servers):
        program.row(placed[:, host], np.array(task.needs), high=server.capacity)
    for number in range(len(arcs)):
        program.row(flow[:, number], np.array(task.rates_bps), high=rate[number])
    _conserve(program, task, flow, placed, [(a, b) for a, b, _ in arcs])
    try:
        solved = program.solve()
    except NoSolutionError:
        return None
    return solved.value, solved.optimal


def _conserve(
    program: Program, task: MappingTask, flow: Indices, placed: Indices, arcs: Sequence[tuple[int, int]]
) -> None:
    """Add the constraints that every edge leads from its component's host to the next component's, over few hosts.

    ``flow``: (edges, arcs) the variables of edges on arcs. ``placed``: (components, hosts) the variables of components
    on hosts.
    """
    total, hosts = placed.shape
    leaving = [[number for number, arc in enumerate(arcs) if arc[0] == host] for host in range(hosts)]
    coming = [[number for number, arc in enumerate(arcs) if arc[1] == host] for host in range(hosts)]
    for edge in range(total + 1):
        program.row(flow[edge], np.ones(len(arcs)), high=task.most_empty + 1)
        for host in range(hosts):
            columns = [*flow[edge, leaving[host]], *flow[edge, coming[host]]]
            values = [1.0] * len(leaving[host]) + [-1.0] * len(coming[host])
            known = 0.0
            if edge:
                columns.append(placed[edge - 1, host])
                values.append(-1.0)
            else:
                known += host == task.source
            if edge < total:
                columns.append(placed[edge, host])
                values.append(1.0)
            else:
                known -= host == task.sink
            program.row(np.array(columns), np.array(values), low=known, high=known)
