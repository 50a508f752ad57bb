"""Heuristics that find good placements, which are not proven best, with one interface.

A heuristic is a function of a goal and a seed that returns the host of every operator. The function raises PlannerError
if it finds no placement that keeps all constraints. Chance depends on the seed alone.

Sources: Xu, Chen, Tang, Su (ICDCS 2014), T-Storm; Rizou, Dürr, Rothermel (ICCCN 2010); Pietzuch et al. (ICDE 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.network.coordinates import embedded
from thalweg.middleware.planning.odp.instance import SLACK, Flags, Floats, Indices, OdpInstance
from thalweg.middleware.planning.odp.neighbours import Neighbours
from thalweg.middleware.planning.odp.objective import Goal, only
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import relaxed
from thalweg.middleware.planning.usage.search import best, descended
from thalweg.middleware.planning.usage.streams import Query, QueryStream

Heuristic = Callable[[Goal, int], Indices]

ROUNDS = 300  # rounds of measurements, from which hosts find their coordinates
SWEEPS, STEPS, STILL_S = 200, 50, 1e-5  # sweeps over operators, steps of one median, and a distance that is no movement
WORK, AGAIN = 12_000_000, 100  # entries that a search evaluates, and the most restarts of local search
NEAREST = 10  # number of central hosts from which descents of cost-space begin


def found(goal: Goal, where: Indices, name: str) -> Indices:
    """Return the placement. Raise PlannerError if the placement breaks a constraint."""
    if shortfall := goal.instance.shortfall(where):
        raise PlannerError(f"{name} finds no placement: {shortfall}")
    return where


class Filling:
    """Hosts that are filled with one operator after the other.

    The pinned operators, which have only one candidate, are placed first.
    """

    def __init__(self, instance: OdpInstance, name: str) -> None:
        self.instance, self.name = instance, name
        self.where = np.full(instance.count, -1, dtype=np.intp)
        self.left = instance.capacity * (1 + SLACK)
        self.pinned = np.flatnonzero(instance.candidates.sum(axis=1) == 1).tolist()
        self._flows = np.zeros(instance.bandwidth.shape)
        for node in self.pinned:
            self.put(node, self.fits(node))

    def free(self) -> list[int]:
        """Return the operators that are not placed yet."""
        return np.flatnonzero(self.where < 0).tolist()

    def fits(self, node: int) -> Flags:
        """Return whether each host may take an operator beside the placed operators, (h,).

        Raise PlannerError if no host may.
        """
        instance = self.instance
        good: Flags = instance.candidates[node] & (self.left >= instance.demand[node])
        if instance.limited:
            for ends, flows, limits in (
                (instance.inputs[node], self._flows, instance.bandwidth),
                (instance.outputs[node], self._flows.T, instance.bandwidth.T),
            ):
                for host in {int(self.where[other]) for other, _ in ends} - {-1}:
                    more = plain_sum(instance.rate[stream] for other, stream in ends if self.where[other] == host)
                    good &= (flows[host] + more <= limits[host] * (1 + SLACK)) | (instance.unlike[host] == 0)
        if not good.any():
            raise PlannerError(f"{self.name} finds no host with room for operator {instance.names[node]!r}")
        return good

    def put(self, node: int, liking: Floats | Flags) -> None:
        """Put an operator on the host with the greatest ``liking``, the first among equals."""
        host = self.where[node] = int(liking.argmax())
        self.left[host] -= self.instance.demand[node]
        for other, stream in self.instance.inputs[node]:
            if self.where[other] >= 0:
                self._flows[self.where[other], host] += self.instance.rate[stream]
        for other, stream in self.instance.outputs[node]:
            if self.where[other] >= 0:
                self._flows[host, self.where[other]] += self.instance.rate[stream]


# --- one operator after the other -------------------------------------------------------------------


def first_fit(goal: Goal, seed: int = 0) -> Indices:
    """Place each operator on the first candidate with room, beginning with the operators with fewest candidates."""
    filling = Filling(goal.instance, "first-fit")
    for node in np.argsort(goal.instance.candidates.sum(axis=1), kind="stable").tolist():
        if filling.where[node] < 0:
            filling.put(node, filling.fits(node))
    return found(goal, filling.where, "first-fit")


def t_storm(goal: Goal, seed: int = 0) -> Indices:
    """Place operators as in T-Storm (Xu), beginning with the operator that sends and receives most.

    Each operator goes to the host where it adds the least traffic between hosts. Among equal hosts, the host with the
    least room left is taken.
    """
    instance, filling = goal.instance, Filling(goal.instance, "t-storm")
    traffic = np.zeros(instance.count)
    np.add.at(traffic, instance.edges, instance.rate[:, None])
    for node in np.argsort(-traffic, kind="stable").tolist():
        if filling.where[node] >= 0:
            continue
        fits, beside = filling.fits(node), np.zeros(len(instance.hosts))
        for other, stream in (*instance.inputs[node], *instance.outputs[node]):
            if filling.where[other] >= 0:
                beside[filling.where[other]] += instance.rate[stream]
        beside = np.where(fits, beside, -1.0)
        options = np.flatnonzero(beside == beside.max())
        filling.put(node, np.arange(len(fits)) == options[filling.left[options].argmin()])
    return found(goal, filling.where, "t-storm")


# --- in a space of coordinates ----------------------------------------------------------------------


def query_of(instance: OdpInstance) -> Query:
    """Return the streams as a query, with the hosts of pinned operators.

    A rate of 0 becomes a very small rate, so that every operator is pulled to a place.
    """
    least = max(float(instance.rate.max(initial=0.0)), 1.0) * SLACK
    pairs = zip(instance.edges.tolist(), instance.rate.tolist(), strict=True)
    streams = (QueryStream(producer, consumer, max(rate, least)) for (producer, consumer), rate in pairs)
    pinned = {node: int(row.argmax()) for node, row in enumerate(instance.candidates) if row.sum() == 1}
    return Query(tuple(streams), pinned)


def _places(instance: OdpInstance, seed: int) -> Floats:
    """Return the coordinates (h, d) that hosts find from the delays between them."""
    both_s = (instance.ways_s + instance.ways_s.T) / 2
    if len(both_s) == 1:
        return np.zeros((1, 1))
    return embedded(both_s, np.random.default_rng((seed, 1)), rounds=ROUNDS).places


def _mapped(goal: Goal, hosts: Floats, places: Mapping[int, Floats], name: str) -> Indices:
    """Return the placement of every operator on the host with room that is nearest to the operator's place."""
    filling, mapper = Filling(goal.instance, name), Mapper(hosts)
    for node in filling.free():
        room = ["room", None]
        lacks = list(map(room.__getitem__, filling.fits(node).tolist()))
        host = mapper.host(places[node], lacks=lacks.__getitem__)
        filling.put(node, np.arange(len(lacks)) == host)
    return found(goal, filling.where, name)


def relaxation(goal: Goal, seed: int = 0) -> Indices:
    """Place operators by relaxation (Pietzuch): bodies between springs come to rest in the space of coordinates.

    Each operator then goes to the nearest host with room.
    """
    instance, hosts, query = goal.instance, _places(goal.instance, seed), query_of(goal.instance)
    pinned = {node: hosts[host] for node, host in query.pinned.items()}
    middle = hosts.mean(axis=0)
    if not pinned:
        return _mapped(goal, hosts, dict.fromkeys(range(instance.count), middle), "relaxation")
    places = relaxed(query, pinned, np.random.default_rng((seed, 2)))
    return _mapped(goal, hosts, {node: places.get(node, middle) for node in range(instance.count)}, "relaxation")


def rizou(goal: Goal, seed: int = 0) -> Indices:
    """Place operators by geometric medians (Rizou), and then on the nearest hosts with room.

    Each operator in turn goes to the median of its neighbours, weighted by rates, until no operator moves. If there
    were hosts everywhere, the network usage would be least at these places.
    """
    instance, hosts, query = goal.instance, _places(goal.instance, seed), query_of(goal.instance)
    places = np.repeat(hosts.mean(axis=0)[None], instance.count, axis=0)
    for node, host in query.pinned.items():
        places[node] = hosts[host]
    free = [node for node in range(query.nodes) if node not in query.pinned and query.beside[node]]
    for _ in range(SWEEPS):
        before = places.copy()
        for node in free:
            neighbours, rates = zip(*query.beside[node], strict=True)
            places[node] = geometric_median(places[list(neighbours)], np.array(rates), places[node])
        if float(np.abs(places - before).max()) < STILL_S:
            break
    return _mapped(goal, hosts, dict(enumerate(places)), "rizou")


def geometric_median(points: Floats, weights: Floats, place: Floats) -> Floats:
    """Return the point with the least sum of weighted distances to ``points`` (Weiszfeld).

    ``place``: start of the search, near the result.
    """
    for _ in range(STEPS):
        away = np.maximum(np.sqrt(((points - place) ** 2).sum(axis=1)), 1e-9)
        pull = weights / away
        following = (pull[:, None] * points).sum(axis=0) / pull.sum()
        if float(np.abs(following - place).max()) < STILL_S / 10:
            break
        place = following
    return place


def cost_space(goal: Goal, seed: int = 0) -> Indices:
    """Place operators for the least network usage by the delays themselves, whatever the goal.

    The start is the optimum without capacities if the streams are a tree, or else the result of a descent. An operator
    that has no room on its host goes to the host with the least usage. A descent then goes on from this placement.
    """
    instance, query = goal.instance, query_of(goal.instance)
    delay_s = instance.ways_s
    own = Goal(instance, only("usage"))
    blind = np.zeros(instance.count, dtype=np.intp)
    if len(instance.edges):
        options = {node: np.flatnonzero(instance.candidates[node]) for node in query.operators}
        nearest = np.argsort(delay_s.sum(axis=0) + delay_s.sum(axis=1), kind="stable")[:NEAREST]
        alone = ([host] * query.nodes for host in dict.fromkeys((*query.pinned.values(), *nearest.tolist())))
        chosen = (
            best(query, options, lambda sources, targets: delay_s[np.ix_(sources, targets)])
            if query.tree
            else descended(query, (delay_s + delay_s.T) / 2, alone)
        )
        blind[: query.nodes] = chosen
    filling = Filling(instance, "cost-space")
    try:
        for node in filling.free():
            costs = np.zeros(len(instance.hosts))
            for other, rate in query.beside.get(node, ()):
                costs += rate * delay_s[:, blind[other]]
            costs[blind[node]] = min(costs[blind[node]], float(costs.min()))
            filling.put(node, np.where(filling.fits(node), -costs, -np.inf))
            blind[node] = filling.where[node]
        start = filling.where
    except PlannerError:
        start = _anywhere(own, seed, "cost-space")
    return found(goal, Neighbours(own, WORK).descended(start)[0], "cost-space")


# --- from one placement to another ------------------------------------------------------------------


def _anywhere(goal: Goal, seed: int, name: str) -> Indices:
    """Return a placement that keeps all constraints. Raise PlannerError if none is found."""
    where = Neighbours(goal).packed(np.random.default_rng((seed, 3)))
    if where is None:
        raise PlannerError(f"{name} finds no placement that keeps all constraints")
    return where


def _start(goal: Goal, seed: int, name: str) -> Indices:
    starts = (_tried(way, goal, seed) for way in (t_storm, first_fit))
    start = next((start for start in starts if start is not None), None)
    return _anywhere(goal, seed, name) if start is None else start


def _tried(way: Heuristic, goal: Goal, seed: int) -> Indices | None:
    try:
        return way(goal, seed)
    except PlannerError:
        return None


OTHERS = cost_space, first_fit  # heuristics from whose placements local search begins as well


def local_search(goal: Goal, seed: int = 0) -> Indices:
    """Return the best result of descents, which move an operator, exchange two operators, or exchange two hosts.

    Descents begin at placements of other heuristics, at shaken placements, and at random placements.
    """
    near, random = Neighbours(goal, WORK), np.random.default_rng((seed, 4))
    where, cost = near.descended(_start(goal, seed, "local-search"))
    for number in range(AGAIN):
        if near.tired:
            break
        if number < len(OTHERS):
            start = _tried(OTHERS[number], goal, seed)
        else:
            start = near.packed(random) if number % 4 == 3 else near.shaken(where, random)
        if start is not None:
            other, value = near.descended(start)
            if value < cost:
                where, cost = other, value
    return found(goal, where, "local-search")


def tabu(goal: Goal, seed: int = 0) -> Indices:
    """Return the best placement on a path that always goes on to the best neighbour.

    The path goes on even if this neighbour is worse, and does not go back soon.
    """
    start = _start(goal, seed, "tabu")
    return found(goal, Neighbours(goal, WORK).tabu(start, np.random.default_rng((seed, 5))), "tabu")


HEURISTICS: Mapping[str, Heuristic] = {
    "first-fit": first_fit,
    "t-storm": t_storm,
    "rizou": rizou,
    "relaxation": relaxation,
    "cost-space": cost_space,
    "local-search": local_search,
    "tabu": tabu,
}
