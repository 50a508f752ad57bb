"""Optimum of any graph: the paper's integer program with stronger rows, solved by HiGHS.

x_iu, whether operator *i* is on host *u*, is an integer variable. y, whether a stream goes from *u* to *v*, follows
from (13), (14). R follows from the times at which operators are done, not from paths, of which a graph may have 2²⁴.
The bound of the printed program is 0 if nothing is pinned: x may be spread evenly over all hosts, and every stream
stays on each host. An additional variable z_u therefore states whether a host is in use.

R1. z_u >= x_iu, and the operators on a host need at most C_u · z_u.
R2. On a host, at most as many streams of a forest stay as the host has operators, minus one if the host is in use.
R3. At least so many hosts are in use that the largest hosts, in this number, have room for all operators.
R4. HiGHS takes a violation of a millionth for none. Costs, times, needs and rates are therefore shares of their typical
    values. If a placement breaks a constraint by less, a row excludes the placement, and the next best placement is
    found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.planning.odp.instance import SLACK, Floats, Indices, OdpInstance
from thalweg.middleware.planning.odp.objective import Goal, worst_of
from thalweg.middleware.planning.odp.solved import Solved
from thalweg.middleware.planning.solver.program import Program, Solution

SCALE = 1_000.0  # scale of the objective: HiGHS is exact to a ten-millionth


class General:
    """Integer program of one goal."""

    def __init__(
        self, goal: Goal, start: Indices | None = None, *, gap: float = 0.0, time_limit_s: float = math.inf
    ) -> None:
        self.goal, self.instance, self._start = goal, goal.instance, start
        instance, hosts = self.instance, len(self.instance.hosts)
        self._program = program = Program(gap=gap, time_limit_s=time_limit_s)
        form = goal.main
        # R4: scale by the known placement, or else by the worst values
        known = (0.0, 0.0) if start is None else (goal.cost(start), float(instance.responses_s(start[None])[0]))
        most_s = worst_of(instance, "response")
        most = form.response * most_s + plain_sum(
            float(values.max(axis=axes).sum())
            for values, axes in ((form.node, 1), (form.edge, (1, 2)), (form.host, ()))
        )
        self._scale, self._time_s = SCALE / (known[0] or most or 1.0), known[1] or most_s or 1.0
        self._demand = instance.demand / (float(instance.demand.max()) or 1.0)
        node, host = np.nonzero(instance.candidates)
        self._x = np.full(instance.candidates.shape, -1, dtype=np.intp)
        self._x[node, host] = program.variables(len(node), high=1.0, integer=True)
        self._node, self._host = node, host
        self._z = program.variables(hosts, high=1.0, integer=True)
        none = np.zeros(0, dtype=np.intp)
        self._stream, self._u, self._v = (
            np.concatenate([none, *(pairs[part] for pairs in self._pairs())]) for part in range(3)
        )
        self._y = program.variables(len(self._stream), high=1.0)
        self._done = program.variables(instance.count)
        self._r = program.variables(1)
        self._one_host_each()
        self._streams_follow()
        self._capacities()
        self._responses()
        self._bandwidths()
        self._price()

    def _pairs(self) -> list[tuple[Indices, Indices, Indices]]:
        """Return three arrays for every stream: its number, repeated, and both hosts of each pair that may be its
        ends.
        """
        allowed = [np.flatnonzero(row) for row in self.instance.candidates]
        pairs = []
        for stream, (producer, consumer) in enumerate(self.instance.edges.tolist()):
            u, v = (grid.ravel() for grid in np.meshgrid(allowed[producer], allowed[consumer], indexing="ij"))
            pairs.append((np.full(len(u), stream), u, v))
        return pairs

    def _one_host_each(self) -> None:
        """Add the rows that put every operator on one host, (12)."""
        columns = self._x[self._node, self._host]
        self._program.rows(self._node, columns, np.ones(len(columns)), low=1.0, high=1.0)

    def _streams_follow(self) -> None:
        """Add the rows that have streams go between the hosts of their operators, (13) and (14)."""
        instance, hosts = self.instance, len(self.instance.hosts)
        for end, own in ((0, self._u), (1, self._v)):
            nodes = instance.edges[:, end] if len(instance.edges) else np.zeros(0, dtype=np.intp)
            stream, host = np.nonzero(instance.candidates[nodes])
            at = np.full(len(nodes) * hosts, -1, dtype=np.intp)
            at[stream * hosts + host] = np.arange(len(stream))
            rows = np.concatenate((at[self._stream * hosts + own], np.arange(len(stream))))
            columns = np.concatenate((self._y, self._x[nodes[stream], host]))
            values = np.concatenate((np.ones(len(self._y)), -np.ones(len(stream))))
            self._program.rows(rows, columns, values, low=0.0, high=0.0)

    def _capacities(self) -> None:
        """Add the rows for the capacities of hosts (11), and the stronger rows (R1 to R3)."""
        instance, program, hosts = self.instance, self._program, len(self.instance.hosts)
        columns, count = self._x[self._node, self._host], len(self._node)
        every = np.arange(hosts)
        unit = float(instance.demand.max()) or 1.0  # R4: capacities and needs are shares of the largest need
        capacity = np.minimum(instance.capacity / unit, self._demand.sum())
        rows, z = np.concatenate((self._host, every)), self._z
        needs = np.concatenate((self._demand[self._node], -capacity))
        program.rows(rows, np.concatenate((columns, z)), needs, low=-math.inf, high=0.0)
        assignments = np.arange(count)
        pairs = np.concatenate((assignments, assignments))
        both = np.concatenate((columns, z[self._host]))
        program.rows(pairs, both, np.repeat([-1.0, 1.0], count), low=0.0, high=math.inf)
        stay = np.isin(self._stream, self._forest()) & (self._u == self._v)
        rows = np.concatenate((self._u[stay], self._host, every))
        used = np.concatenate((self._y[stay], columns, z))
        values = np.concatenate((np.ones(int(stay.sum())), -np.ones(count), np.ones(hosts)))
        program.rows(rows, used, values, low=-math.inf, high=0.0)
        enough = np.cumsum(np.sort(instance.capacity)[::-1]) * (1 + SLACK) >= instance.demand.sum()
        program.row(z, np.ones(hosts), low=float(min(int(enough.argmax()) + 1, instance.count)))

    def _forest(self) -> list[int]:
        """Return the streams of a forest, none of which closes a circle, the heaviest first."""
        instance, root = self.instance, list(range(self.instance.count))

        def rooted(node: int) -> int:
            while root[node] != node:
                node = root[node]
            return node

        forest = []
        for stream in np.argsort(-instance.rate, kind="stable").tolist():
            first, second = (rooted(node) for node in instance.edges[stream].tolist())
            if first != second:
                root[first] = second
                forest.append(stream)
        return forest

    def _responses(self) -> None:
        """Add the rows by which R is at least the time at which every operator is done, (10)."""
        instance = self.instance
        took = (instance.execution_s[:, None] / instance.speed)[self._node, self._host] / self._time_s
        x = self._x[self._node, self._host]
        for node, (inputs, outputs) in enumerate(zip(instance.inputs, instance.outputs, strict=True)):
            own = self._node == node
            runs = [self._done[node : node + 1], x[own]], [np.ones(1), -took[own]]
            if not inputs:
                self._sum(*runs)
            for producer, stream in inputs:
                on = np.flatnonzero(self._stream == stream)
                ways = instance.ways_s[self._u[on], self._v[on]] / self._time_s
                self._sum(
                    [*runs[0], self._done[producer : producer + 1], self._y[on]],
                    [*runs[1], -np.ones(1), -ways],
                )
            if not outputs:
                self._sum([self._r, self._done[node : node + 1]], [np.ones(1), -np.ones(1)])

    def _sum(self, columns: Sequence[Indices], values: Sequence[Floats]) -> None:
        self._program.row(np.concatenate(columns), np.concatenate(values), low=0.0)

    def _bandwidths(self) -> None:
        """Add the rows for the bandwidths of links (17)."""
        instance, hosts = self.instance, len(self.instance.hosts)
        if not instance.limited:
            return
        on = self._u != self._v
        links, at = np.unique(self._u[on] * hosts + self._v[on], return_inverse=True)
        unit = float(instance.rate.max()) or 1.0
        rates, limits = instance.rate[self._stream[on]] / unit, instance.bandwidth.ravel()[links] / unit
        self._program.rows(at, self._y[on], rates, low=-math.inf, high=limits)

    def _price(self) -> None:
        form = self.goal.main
        program, scale = self._program, self._scale
        program.price(self._x[self._node, self._host], scale * form.node[self._node, self._host])
        program.price(self._z, scale * form.host)
        program.price(self._y, scale * form.edge[self._stream, self._u, self._v])
        program.price(self._r, scale * form.response * self._time_s)

    def _values(self, where: Indices) -> Floats:
        """Return the values of the variables for a placement."""
        instance = self.instance
        variables = np.zeros(int(self._r[0]) + 1)
        variables[self._x[np.arange(instance.count), where]] = 1.0
        variables[self._z[np.unique(where)]] = 1.0
        if len(instance.edges):
            ends = where[instance.edges]
            variables[self._y[(ends[self._stream, 0] == self._u) & (ends[self._stream, 1] == self._v)]] = 1.0
        done = np.zeros(instance.count)
        for node, inputs in enumerate(instance.inputs):
            ready = [done[other] + instance.ways_s[where[other], where[node]] for other, _ in inputs]
            done[node] = max(ready, default=0.0) + instance.execution_s[node] / instance.speed[where[node]]
        variables[self._done], variables[self._r] = done / self._time_s, done.max() / self._time_s
        return variables

    def write(self, path: str) -> None:
        """Write the program to a file, for example as ``.mps``."""
        self._program.write(path)

    def solve(self) -> Solved:
        """Return the optimum, or the best placement found in time.

        Raise NoSolutionError if there is no placement, and PlannerError if no placement was found in time.
        """
        start = self._start
        while True:
            if start is not None:
                self._program.start(self._values(start))
            solution = self._program.solve()
            where = self._where(solution)
            if start is not None and self.goal.cost(start) <= self.goal.cost(where):
                where = start
            if not self._too_many(where):
                break
        cost = self.goal.cost(where)
        return Solved(where, cost, min(cost, max(0.0, solution.bound / self._scale)), "program")

    def _too_many(self, where: Indices) -> bool:
        """Return whether a host or link lacks so little that the solver takes the lack for rounding.

        Every such lack is excluded by a row: the operators or streams there must not all be there again (R4).
        """
        instance, lacking = self.instance, False
        for host in np.flatnonzero(instance.loads(where) > instance.capacity * (1 + SLACK)).tolist():
            present = np.flatnonzero(where == host)
            self._program.row(self._x[present, host], np.ones(len(present)), high=len(present) - 1.0)
            lacking = True
        for u, v in np.argwhere(instance.flows(where) > instance.bandwidth * (1 + SLACK)).tolist():
            streams = np.flatnonzero((where[instance.edges] == (u, v)).all(axis=1))
            present = np.flatnonzero(np.isin(self._stream, streams) & (self._u == u) & (self._v == v))
            self._program.row(self._y[present], np.ones(len(present)), high=len(present) - 1.0)
            lacking = True
        return lacking

    def _where(self, found: Solution) -> Indices:
        chosen = np.where(self._x >= 0, found.variables[self._x], -1.0)
        where: Indices = chosen.argmax(axis=1)
        return where


def shortage(instance: OdpInstance, time_limit_s: float = 60.0) -> str:
    """Return which constraint no placement keeps, and the shortage in the placement that lacks least.

    Empty: a placement keeps all constraints. Raises PlannerError if the solver finds no answer in time.
    """
    names = instance.names
    largest = np.where(instance.candidates, instance.capacity, 0.0).max(axis=1)
    for node in np.flatnonzero(instance.demand > largest * (1 + SLACK))[:1].tolist():
        fault = f"operator {names[node]!r} needs {instance.demand[node]:g}, and of its candidates the largest has"
        return f"{fault} {largest[node]:g}: {instance.demand[node] - largest[node]:g} are short (11)"
    need, room = float(instance.demand.sum()), float(instance.capacity[instance.candidates.any(axis=0)].sum())
    if need > room * (1 + SLACK):
        return f"the operators need {need:g} together, and the hosts have {room:g}: {need - room:g} are short (11)"
    where = _least_lack(instance, time_limit_s)
    if fault := instance.shortfall(where):
        return f"in the placement that lacks least, {fault}"
    return ""


def _least_lack(instance: OdpInstance, time_limit_s: float) -> Indices:
    """Return the placement that lacks the least room, and among equals the least bandwidth."""
    program = Program(time_limit_s=time_limit_s)
    node, host = np.nonzero(instance.candidates)
    x = program.variables(len(node), high=1.0, integer=True)
    program.rows(node, x, np.ones(len(x)), low=1.0, high=1.0)
    hosts = len(instance.hosts)
    capacity = np.minimum(instance.capacity, instance.demand.sum())
    lacks = program.variables(hosts, cost=1.0 / max(float(instance.demand.max()), 1e-12))
    rows = np.concatenate((host, np.arange(hosts)))
    values = np.concatenate((instance.demand[node], -np.ones(hosts)))
    program.rows(rows, np.concatenate((x, lacks)), values, low=-math.inf, high=capacity)
    number = np.full(instance.candidates.shape, -1, dtype=np.intp)
    number[node, host] = x
    if instance.limited:
        flows: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for (producer, consumer), rate in zip(instance.edges.tolist(), instance.rate.tolist(), strict=True):
            for u in np.flatnonzero(instance.candidates[producer]).tolist():
                for v in np.flatnonzero(instance.candidates[consumer]).tolist():
                    if u != v and np.isfinite(instance.bandwidth[u, v]):
                        (y,) = program.variables(1, high=1.0)
                        both = np.array([y, number[producer, u], number[consumer, v]])
                        program.row(both, np.array([1.0, -1.0, -1.0]), low=-1.0)
                        flows.setdefault((u, v), []).append((int(y), rate))
        least = 1e-3 / max(float(instance.rate.max()), 1e-12)  # missing room counts for more
        for (u, v), streams in flows.items():
            (lack,) = program.variables(1, cost=least)
            columns, rates = zip(*streams, strict=True)
            program.row(np.array([*columns, lack]), np.array([*rates, -1.0]), high=float(instance.bandwidth[u, v]))
    variables = program.solve().variables
    where: Indices = np.where(number >= 0, variables[number], -1.0).argmax(axis=1)
    return where
