"""Trial of Tag-and-Count on eight hosts with one scheduler (Cardellini et al. 2016, section 7), for Figures 4 to 7.

Figure 4 is one placement. In Figures 5 to 7 the application runs in virtual time. Delays do not change, but the hosts'
measurements are Gaussian around the delays. Measured rates differ by at most a tuple in ``MEASURED_S``. Central
schedulers know every link by one measurement per second. The operators of decentralised schedulers are considered in
turn, one every ``SLICE_S``. They use coordinates, for which each host measures one peer per second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.experiments.papers.cardellini2016.instances import SPREADS_S, TUPLES_HZ, tag_and_count
from thalweg.experiments.sweeps.trial import Outcome, Trial
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.coordinates import Coordinates
from thalweg.middleware.planning.odp.heuristics import HEURISTICS, geometric_median, query_of
from thalweg.middleware.planning.odp.instance import Floats, Indices, OdpInstance
from thalweg.middleware.planning.odp.neighbours import Neighbours
from thalweg.middleware.planning.odp.objective import Goal, Metric, only, value_of
from thalweg.middleware.planning.odp.solve import solve
from thalweg.middleware.planning.usage.mapping import Mapper
from thalweg.middleware.planning.usage.relaxation import at_rest

SLICE_S, MEASURED_S = 10, 100  # of virtual time: between two turns, and over which rates are counted
RESOLVED_S = 100  # rates are known, and central schedulers plan for the first time
SETTLED_S = 800  # from then on figures are means: "the interval from 800 s to 2000 s"
AGAIN_S: Mapping[str, int] = {"t-storm": 300, "cost-space": 60}  # between two plans; odp plans once
SAVING = 0.05  # the least share that a change of cost-space saves
NEARER = 0.02  # least relative gain, in distance or usage, for which an operator moves
PLACED: Mapping[str, Metric] = {"odp-response": "response", "odp-availability": "availability"}
SOLVED: Mapping[str, Metric] = {"odp-energy": "energy", "odp-usage": "usage", "odp-traffic": "traffic"}
BY_CHANCE = "random-availability"  # any placement of the best availability
HEURISTIC: Mapping[str, Metric] = {
    "relaxation": "energy",
    "rizou": "usage",
    "t-storm": "traffic",
    "cost-space": "usage",
}
GOES_BY: Mapping[str, Metric] = {**SOLVED, **HEURISTIC}
SCHEDULERS = (*PLACED, BY_CHANCE, *GOES_BY)


class Scheduling(Trial, frozen=True, kw_only=True):
    """Draw of delays (``pool_seed``, ``configuration``) and the scheduler. ``until_s``: of virtual time."""

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.cardellini2016.scheduling:schedule"

    scheduler: str = "odp-response"
    until_s: int = 2000


class Scheduled(Outcome, frozen=True, kw_only=True):
    """Metrics of the placement, or their means from ``SETTLED_S`` on.

    ``latency_s``: of a tuple in the mean. ``response_s``: of the longest path. ``network_s``: the same without
    execution. ``lost``: the share of tuples for which an executor is down. ``unreliable``: the number of executors on
    unreliable hosts. ``above``: the scheduler's own metric at the end over its optimum. ``reassignments``,
    ``settled_s``: the number of changes, and the time of the last change.
    """

    latency_s: float | None = None
    response_s: float | None = None
    network_s: float | None = None
    availability: float | None = None
    lost: float | None = None
    unreliable: int = 0
    traffic: float | None = None
    usage: float | None = None
    energy: float | None = None
    above: float | None = None
    reassignments: int = 0
    settled_s: float = 0.0


Scheduling.outcome = Scheduled


def lost(instance: OdpInstance, where: Indices) -> float:
    """Return the mean probability over a tuple's paths that an executor is down, if executors fail independently."""
    arrives = np.zeros(instance.count)
    for node in range(instance.count):
        before = [arrives[producer] for producer, _ in instance.inputs[node]]
        arrives[node] = (np.mean(before) if before else 1.0) * instance.availability[where[node]]
    return 1.0 - float(arrives[-1])


# --- knowledge and decisions of schedulers ----------------------------------------------------------


class World:
    """Instance, the hosts' measurements of it, and the placement of executors."""

    def __init__(self, instance: OdpInstance, random: np.random.Generator) -> None:
        self.instance, self.random = instance, random
        spread_s = random.uniform(*SPREADS_S, instance.delay_s.shape)
        self.spread_s = np.sqrt((spread_s**2 + spread_s.T**2) / 2)
        self.coordinates = Coordinates.first(len(instance.hosts), random)
        self.where = np.zeros(instance.count, dtype=np.intp)

    def measure(self, seconds: int) -> None:
        """Measure latencies for some seconds. Every second, each host measures the latency to one peer."""
        own = np.arange(len(self.instance.hosts))
        for _ in range(seconds):
            peers = (own + self.random.integers(1, len(own), len(own))) % len(own)
            seen_s = self.random.normal(self.instance.ways_s[own, peers], self.spread_s[own, peers])
            self.coordinates = self.coordinates.measured(self.coordinates.of(peers), seen_s)

    def measured(self) -> OdpInstance:
        """Return the instance known to central schedulers: links by their last measurements, rates by counts."""
        noise_s = self.random.normal(0.0, self.spread_s / math.sqrt(MEASURED_S))
        delay_s = np.maximum(self.instance.ways_s + (noise_s + noise_s.T) / 2, 0.0)
        return msgspec.structs.replace(self.instance, delay_s=delay_s, rate=self.rates())

    def rates(self) -> Floats:
        """Return (m,) tuples per second, as counted in the last ``MEASURED_S``."""
        counted = np.floor(self.instance.rate * MEASURED_S + self.random.random(len(self.instance.rate)))
        rates: Floats = counted / MEASURED_S
        return rates

    def room(self, node: int) -> Callable[[int], str | None]:
        """Return a function from a host to what the host lacks for an executor, beside the executors on it."""
        rest = np.delete(np.arange(self.instance.count), node)
        loads = np.bincount(self.where[rest], self.instance.demand[rest], len(self.instance.hosts))
        fits = loads + self.instance.demand[node] <= self.instance.capacity
        return lambda host: None if fits[host] else "room"


def spread_out(instance: OdpInstance) -> Indices:
    """Return a placement of executors on hosts by turns, as Storm's first one. Pinned executors stay on their hosts."""
    where = np.arange(instance.count, dtype=np.intp) % len(instance.hosts)
    pinned = instance.candidates.sum(axis=1) == 1
    return np.where(pinned, instance.candidates.argmax(axis=1), where)


def _central(world: World, scheduler: str, at_s: int) -> Indices | None:
    """Return the placement to which a central scheduler changes. None: no change."""
    first, again = at_s == RESOLVED_S, AGAIN_S.get(scheduler)
    if not (first or (again and at_s > RESOLVED_S and (at_s - RESOLVED_S) % again == 0)):
        return None
    goal = Goal(world.measured(), only(GOES_BY[scheduler]))
    if scheduler in SOLVED:
        return solve(goal).where
    placement = HEURISTICS[scheduler](goal, at_s)
    least = 1 - SAVING if scheduler == "cost-space" else 1.0
    return placement if first or goal.cost(placement) < goal.cost(world.where) * least else None


def _in_turn(world: World, scheduler: str, at_s: int) -> Indices | None:
    """Return the placement after one operator has searched, by coordinates, for a nearer host with room. None: no
    change.
    """
    instance = world.instance
    query = query_of(msgspec.structs.replace(instance, rate=world.rates()))
    node = query.operators[at_s // SLICE_S % len(query.operators)]
    hosts, now = world.coordinates.places, int(world.where[node])
    neighbours, rates = (np.array(column) for column in zip(*query.beside[node], strict=True))
    if scheduler == "relaxation":
        place = at_rest(query, {pinned: hosts[host] for pinned, host in query.pinned.items()})[node]
        away = np.sqrt(((hosts - place) ** 2).sum(axis=1))
    else:
        points = hosts[world.where[neighbours]]
        place = geometric_median(points, rates, points.mean(axis=0))
        away = np.sqrt(((hosts[:, None] - points) ** 2).sum(axis=2)) @ rates
    host = Mapper(hosts).host(place, lacks=world.room(node))
    if host == now or not away[host] < away[now] * (1 - NEARER):
        return None
    where = world.where.copy()
    where[node] = host
    return where


# --- trials -----------------------------------------------------------------------------------------


def schedule(trial: Scheduling) -> Scheduled:
    """Run one trial. Raise UsageError for an unknown scheduler."""
    if trial.scheduler not in SCHEDULERS:
        raise UsageError(f"{trial.scheduler!r} is no scheduler of this study; {nearest(trial.scheduler, SCHEDULERS)}")
    random = np.random.default_rng((trial.pool_seed, trial.configuration))
    one_placement = trial.scheduler not in GOES_BY
    instance = tag_and_count(random, unreliable=one_placement)
    return _placed(trial, instance, random) if one_placement else _run(trial, instance, random)


def _placed(trial: Scheduling, instance: OdpInstance, random: np.random.Generator) -> Scheduled:
    if trial.scheduler == BY_CHANCE:
        best = instance.candidates & (instance.availability == 1.0)
        goal = Goal(msgspec.structs.replace(instance, candidates=best), only("availability"))
        where = Neighbours(goal).packed(random)
        assert where is not None
    else:
        where = solve(Goal(instance, only(PLACED[trial.scheduler]))).where
    metrics, took_s = instance.metrics(where), _execution_s(instance)
    return Scheduled(
        latency_s=metrics.usage / TUPLES_HZ + took_s,
        response_s=metrics.response_s,
        network_s=metrics.response_s - took_s,
        availability=math.exp(metrics.log_availability),
        lost=lost(instance, where),
        unreliable=int((instance.availability[where] < 1).sum()),
        traffic=metrics.traffic,
        usage=metrics.usage,
        energy=metrics.energy,
    )


def _execution_s(instance: OdpInstance) -> float:
    """Return the execution time of a path's executors, on alike hosts."""
    return float(instance.responses_s(np.zeros((1, instance.count), dtype=np.intp))[0])


def _run(trial: Scheduling, instance: OdpInstance, random: np.random.Generator) -> Scheduled:
    world, metric = World(instance, random), GOES_BY[trial.scheduler]
    decide = _in_turn if trial.scheduler in ("relaxation", "rizou") else _central
    solved = trial.scheduler in SOLVED
    world.where = solve(Goal(instance, only("availability"))).where if solved else spread_out(instance)
    optimum = solve(Goal(instance, only(metric))).cost
    seen, changed = [], list[int]()
    for at_s in itertools.takewhile(lambda at_s: at_s <= trial.until_s, itertools.count(0, SLICE_S)):
        placement = decide(world, trial.scheduler, at_s)
        if placement is not None and (placement != world.where).any():
            world.where = placement
            changed.append(at_s)
        if at_s >= min(SETTLED_S, trial.until_s):
            seen.append(instance.metrics(world.where))
        world.measure(SLICE_S)
    traffic, usage, energy, response_s = (
        float(np.mean([getattr(metrics, name) for metrics in seen]))
        for name in ("traffic", "usage", "energy", "response_s")
    )
    return Scheduled(
        latency_s=usage / TUPLES_HZ + _execution_s(instance),
        response_s=response_s,
        network_s=response_s - _execution_s(instance),
        traffic=traffic,
        usage=usage,
        energy=energy,
        above=value_of(instance.metrics(world.where), metric) / optimum,
        reassignments=len(changed),
        settled_s=float(max(changed, default=0)),
    )
