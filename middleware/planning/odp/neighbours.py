"""Neighbours of a placement: one operator moved, two operators exchanged, or two hosts exchanged.

The costs of all moves are computed together, as an array. Additive figures follow from the hosts of the neighbours in
the graph. R follows from the longest paths to and from each operator, and from the longest path that avoids the
operator. Exchanges are evaluated together, a row each. A search goes from placement to placement, and every placement
keeps all constraints. A first such placement is found by reducing the excess step by step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thalweg.middleware.planning.odp.instance import SLACK, Flags, Floats, Indices, OdpInstance
from thalweg.middleware.planning.odp.objective import Goal

GAIN = 1e-12  # share of a cost: less is rounding
FLOWS = 1 << 22  # entries of flows over links that are evaluated together
ENTRIES = 60_000  # entries of exchanges that are evaluated together
PACKING = 400  # steps of the search for a placement that keeps all constraints, at most
TENURE = 7  # steps for which an operator does not go back to a host
PATIENCE = 60  # steps without a better placement after which a tabu search ends


def excess(instance: OdpInstance, rows: Indices) -> Floats:
    """Return by how much placements break constraints, (rows,). 0: all constraints are kept.

    Missing room and bandwidth count as shares of the sum of demands and of rates. An operator on a host that is no
    candidate counts 1.
    """
    hosts, number = len(instance.hosts), np.arange(len(rows))[:, None]
    shares: Floats = (~instance.candidates[np.arange(instance.count), rows]).sum(axis=1).astype(np.float64)
    asked = np.broadcast_to(instance.demand, rows.shape).ravel()
    loads = np.bincount((number * hosts + rows).ravel(), asked, len(rows) * hosts).reshape(-1, hosts)
    over = np.maximum(loads - instance.capacity * (1 + SLACK), 0.0)
    shares += over.sum(axis=1) / max(float(instance.demand.sum()), GAIN)
    if instance.limited:
        most = max(1, FLOWS // hosts**2)
        limits, rate = (instance.bandwidth * (1 + SLACK)).ravel(), instance.rate
        apart = instance.unlike.ravel() > 0
        for begin in range(0, len(rows), most):
            part = rows[begin : begin + most]
            ends = part[:, instance.edges[:, 0]] * hosts + part[:, instance.edges[:, 1]]
            at = (np.arange(len(part))[:, None] * hosts**2 + ends).ravel()
            flows = np.bincount(at, np.broadcast_to(rate, ends.shape).ravel(), len(part) * hosts**2)
            over = np.where(apart, np.maximum(flows.reshape(-1, hosts**2) - limits, 0.0), 0.0)
            shares[begin : begin + most] += over.sum(axis=1) / rate.sum()
    return shares


class Neighbours:
    """Neighbourhood of placements for one goal. Placements that callers pass keep all constraints.

    ``most``: about this number of array entries is evaluated until the search is tired, and ends.
    """

    def __init__(self, goal: Goal, most: int | None = None) -> None:
        self._most, self._work = most, 0
        self.goal, self.instance, self.form = goal, goal.instance, goal.form
        count, streams = self.instance.count, len(self.instance.edges)
        self._streams = np.arange(streams)
        ends = self.instance.edges.T
        self._by = [(order, *np.unique(end[order], return_index=True)) for end in ends if len(order := np.argsort(end))]
        self._took_s = self.instance.execution_s[:, None] / self.instance.speed
        self._rows = max(1, ENTRIES // (count + streams))
        self._pairs = np.stack(np.triu_indices(count, 1))

    @property
    def tired(self) -> bool:
        """Return whether the search has evaluated more than ``most`` entries."""
        return self._most is not None and self._work > self._most

    def cost(self, where: Indices) -> float:
        """Return the cost of a placement, with the terms that decide ties."""
        return float(self.goal.costs(where[None])[0])

    def moves(self, where: Indices) -> Floats:
        """Return the costs (n, h) with each operator on each host, while the remaining operators stay.

        inf: the host has no room, is no candidate, or is the operator's present host.
        """
        instance, form, operators = self.instance, self.form, np.arange(self.instance.count)
        producers, consumers = instance.edges.T
        self._work += (instance.count + len(self._streams)) * len(instance.hosts)
        costs: Floats = form.node.copy()
        if len(self._streams):
            beside = form.edge[self._streams, :, where[consumers]], form.edge[self._streams, where[producers], :]
            for values, (order, nodes, begins) in zip(beside, self._by, strict=True):
                costs[nodes] += np.add.reduceat(values[order], begins)
            total = float(form.edge[self._streams, where[producers], where[consumers]].sum())
        else:
            total = 0.0
        costs += total + float(form.node[operators, where].sum()) - costs[operators, where][:, None]
        if form.host.any():
            on = np.bincount(where, minlength=len(instance.hosts))
            costs += form.host @ (on > 0) + np.where(on > 0, 0.0, form.host)
            costs -= np.where(on == 1, form.host, 0.0)[where][:, None]
        if form.response:
            costs += form.response * self._responses_s(where)
        room = instance.capacity * (1 + SLACK) - instance.loads(where)
        costs[~instance.candidates | (room < instance.demand[:, None])] = np.inf
        costs[operators, where] = np.inf
        return costs

    def _responses_s(self, where: Indices) -> Floats:
        """Return R (n, h) with each operator on each host.

        R is the longest path through the operator there, or the longest path without the operator if that path is
        longer.
        """
        instance, count = self.instance, self.instance.count
        took = self._took_s[np.arange(count), where]
        done = np.repeat(took[:, None], count + 1, axis=1)  # (n, n + 1) without each operator, and with all operators
        apart = np.full((count + 1, count), 0.0)
        apart[np.arange(count), np.arange(count)] = -np.inf
        ready = np.zeros((count, len(instance.hosts)))
        for node, inputs in enumerate(instance.inputs):
            if inputs:
                before = [other for other, _ in inputs]
                ways = instance.ways_s[where[before]]
                ready[node] = (done[before, -1][:, None] + ways).max(axis=0)
                done[node] += (done[before] + ways[:, where[node], None]).max(axis=0)
            done[node] += apart[:, node]
        ahead = np.zeros_like(ready)
        for node in reversed(range(count)):
            if outputs := instance.outputs[node]:
                after = [other for other, _ in outputs]
                rest = took[after] + ahead[after, where[after]]
                ahead[node] = (instance.ways_s[:, where[after]] + rest).max(axis=1)
        responses_s: Floats = np.maximum(ready + self._took_s + ahead, done[:, :-1].max(axis=0)[:, None])
        return responses_s

    def exchanged(self, where: Indices) -> Indices:
        """Return the placements (rows, n) in which two operators have exchanged their hosts."""
        first, second = self._pairs[:, where[self._pairs[0]] != where[self._pairs[1]]]
        rows, number = np.repeat(where[None], len(first), axis=0), np.arange(len(first))
        rows[number, first], rows[number, second] = where[second], where[first]
        return rows

    def renamed(self, where: Indices) -> Indices:
        """Return the placements (rows, n) in which two hosts have exchanged all their operators.

        One of the two hosts may be without operators.
        """
        used = np.unique(where)
        pairs = [(u, v) for u in used.tolist() for v in range(len(self.instance.hosts)) if u < v or v not in used]
        to = np.repeat(np.arange(len(self.instance.hosts))[None], len(pairs), axis=0)
        for row, (u, v) in enumerate(pairs):
            to[row, u], to[row, v] = v, u
        return to[:, where]

    def better(self, where: Indices, cost: float) -> tuple[Indices, float] | None:
        """Return a better neighbour of a placement, with the cost. None: none is better, or the search is tired.

        The best move is taken. If no move is better, exchanges of operators and then of hosts are evaluated in batches.
        The best exchange of the first batch with a better placement is taken.
        """
        for row, _ in self._moved(where, self.moves(where), cost - GAIN * abs(cost)):
            return row, self.cost(row)
        for rows in (self.exchanged(where), self.renamed(where)):
            for begin in range(0, len(rows), self._rows):
                row, value = self._best(rows[begin : begin + self._rows])
                if value < cost - GAIN * abs(cost):
                    return row, value
                if self.tired:
                    return None
        return None

    def _best(self, rows: Indices, forbidden: Flags | None = None, least: float = np.inf) -> tuple[Indices, float]:
        """Return the best of ``rows`` that keeps all constraints, with the cost. inf: there is no such placement.

        ``forbidden``: (n, h) hosts on which operators must not be, unless the placement costs less than ``least``.
        """
        self._work += len(rows) * (self.instance.count + len(self._streams))
        costs = np.where(excess(self.instance, rows) == 0, self.goal.costs(rows), np.inf)
        if forbidden is not None:
            back = forbidden[np.arange(self.instance.count), rows].any(axis=1)
            costs[back & (costs >= least)] = np.inf
        at = int(costs.argmin())
        return rows[at], float(costs[at])

    def descended(self, where: Indices) -> tuple[Indices, float]:
        """Return the placement at the end of a descent over better neighbours, with the cost."""
        cost = self.cost(where)
        while not self.tired and (neighbour := self.better(where, cost)) is not None and neighbour[1] < cost:
            where, cost = neighbour
        return where, cost

    def shaken(self, where: Indices, random: np.random.Generator) -> Indices:
        """Return a placement with some operators on random hosts. All constraints are kept."""
        row = where.copy()
        for node in random.permutation(self.instance.count)[: max(2, self.instance.count // 4)].tolist():
            room = self.instance.capacity * (1 + SLACK) - self.instance.loads(row)
            fits = self.instance.candidates[node] & (room >= self.instance.demand[node])
            if fits.any():
                before, row[node] = row[node], random.choice(np.flatnonzero(fits))
                if self.instance.limited and self.instance.shortfall(row):
                    row[node] = before
        return row

    def packed(self, random: np.random.Generator) -> Indices | None:
        """Return a placement that keeps all constraints, whatever the cost. None: no placement was found."""
        instance, hosts = self.instance, len(self.instance.hosts)
        where = np.array([random.choice(np.flatnonzero(row)) for row in instance.candidates], dtype=np.intp)
        until = np.zeros((instance.count, hosts), dtype=np.intp)
        for step in range(PACKING):
            if not float(excess(instance, where[None])[0]):
                return where
            if self.tired:
                break
            nodes, targets = np.nonzero(instance.candidates)
            rows = np.repeat(where[None], len(nodes), axis=0)
            rows[np.arange(len(nodes)), nodes] = targets
            rows = np.concatenate((rows, self.exchanged(where)))
            self._work += rows.size
            changed = rows != where
            forbidden = ((until[np.arange(instance.count), rows] > step) & changed).any(axis=1) | ~changed.any(axis=1)
            broken = excess(instance, rows) + random.random(len(rows)) * GAIN
            at = int(np.where(forbidden & (broken > GAIN), np.inf, broken).argmin())
            moved = np.flatnonzero(changed[at])
            until[moved, where[moved]] = step + TENURE
            where = rows[at]
        return None

    def tabu(self, where: Indices, random: np.random.Generator) -> Indices:
        """Return the best placement of a search that always goes on to the best neighbour, even to a worse placement.

        An operator does not return soon to a host that the operator has left.
        """
        instance, cost = self.instance, self.cost(where)
        best, least, since, step = where, cost, 0, 0
        until = np.zeros((instance.count, len(instance.hosts)), dtype=np.intp)
        while since < PATIENCE and not self.tired:
            step, since = step + 1, since + 1
            neighbour = self._next(where, cost, least, until > step)
            if neighbour is None:
                break
            moved = np.flatnonzero(neighbour[0] != where)
            until[moved, where[moved]] = step + TENURE + int(random.integers(1 + instance.count // 4))
            where, cost = neighbour
            if cost < least - GAIN * abs(least):
                best, least, since = where, cost, 0
        return best

    def _next(self, where: Indices, cost: float, least: float, forbidden: Flags) -> tuple[Indices, float] | None:
        """Return the best neighbour that is not forbidden, or costs less than ``least``, with the cost.

        Exchanges are evaluated if no move lowers the cost. None: there is no such neighbour.
        """
        moves = self.moves(where)
        moves[forbidden & (moves >= least)] = np.inf
        neighbour = next(self._moved(where, moves, np.inf), None)
        if neighbour is None or neighbour[1] >= cost:
            rows = self.exchanged(where)
            if len(rows):
                forbidden = forbidden.copy()
                forbidden[np.arange(self.instance.count), where] = False  # an operator that stays does not go back
                row, value = self._best(rows, forbidden, least)
                if value < (np.inf if neighbour is None else neighbour[1]):
                    neighbour = row, value
        return neighbour

    def _moved(self, where: Indices, moves: Floats, below: float) -> Iterator[tuple[Indices, float]]:
        """Yield the placements after moves that cost less than ``below`` and keep all constraints, the best first.

        If no bandwidth is limited, only the best placement is yielded.
        """
        good = np.flatnonzero(moves.ravel() < below)
        limited = self.instance.limited
        if len(good) and not limited:
            good = good[[moves.ravel()[good].argmin()]]
        for at in good[np.argsort(moves.ravel()[good], kind="stable")].tolist():
            row = where.copy()
            row[at // moves.shape[1]] = at % moves.shape[1]
            if not (limited and self.instance.shortfall(row)):
                yield row, float(moves.ravel()[at])
