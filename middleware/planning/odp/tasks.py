"""Optimal placement problems made from tasks and from networkx graphs, and their metrics as cost models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from thalweg.middleware.dataflow import check_placement
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.planning.costs.model import CostModel, Position
from thalweg.middleware.planning.odp.instance import Indices, OdpInstance
from thalweg.middleware.planning.odp.objective import NETWORK, Goal, Objective
from thalweg.middleware.planning.odp.solve import OdpLimits, normalised
from thalweg.middleware.planning.problem.problem import NS_PER_S, Nanoseconds, Problem, Where
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import migration_s

ROUND_TRIPS = 4  # longest pause of an operator in a move, in round trips, besides the transfer of the state
LACK = 1e3  # cost of each unit that ``OdpInstance.lacks`` counts, in the unit of the cost


def instance_of(problem: Problem) -> OdpInstance:
    """Return a compiled task as an optimal placement problem.

    R_i and S_u follow from compute times and factors, d_uv from latencies, λ_ij from bytes and rates. Raises
    LatenciesNeeded for unknown latencies, and UsageError for values that do not fit.
    """
    task, names, hosts = problem.task, problem.names, problem.hosts
    quality, hints, view = task.quality.check(task.dataflow, hosts), task.hints, task.view
    nodes = [task.dataflow.by_name[name] for name in names]
    hz: list[float] = []
    for vertex, inputs in zip(nodes, problem.producers, strict=True):  # a node makes as many as its slowest input
        inputs_hz = [hz[producer] for producer in inputs] or [1.0 if vertex.rate is None else vertex.rate]
        hz.append(hints.rates_hz.get(vertex.name, min(inputs_hz)))
    ends = list(zip(problem.producer.tolist(), problem.consumer.tolist(), strict=True))
    rates = [
        hz[a] * hints.input_bytes.get(names[b], {}).get(names[a], hints.output_bytes.get(names[a], 0.0))
        for a, b in ends
    ]
    factors = np.array([task.compute_factor(host) for host in hosts])
    compute = np.array([hints.compute_s.get(name, 0.0) for name in names]) * task.costs.compute_factor
    demand = [quality.demand.get(node.name, float(node.kind == "operator")) for node in nodes]
    instance = OdpInstance(
        names=names,
        hosts=hosts,
        edges=np.array(ends, dtype=np.intp).reshape(-1, 2),
        rate=np.array(rates),
        execution_s=compute,
        demand=np.array(demand),
        capacity=np.array([quality.capacity.get(host, math.inf) for host in hosts]),
        speed=1.0 / np.maximum(factors, 1e-12),
        availability=np.array([quality.availability.get(host, 1.0) for host in hosts]),
        delay_s=np.array(view.latencies_s(hosts), dtype=np.float64),
        link_availability=_of_links(quality.link_availability, hosts, 1.0),
        bandwidth=_of_links(quality.bandwidth, hosts, math.inf),
        candidates=_candidates(problem, quality.candidates),
    )
    unknown = instance.reachable & np.isnan(instance.delay_s)
    view.require_latency([(hosts[a], hosts[b]) for a, b in np.argwhere(unknown).tolist()])
    return instance.check()


def _candidates(problem: Problem, named: Mapping[str, Sequence[str]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return (nodes, hosts) whether a node may be on a host.

    A lost host is no candidate, unless only lost hosts are named.
    """
    hosts, held = problem.hosts, problem.at_sink()
    candidates = np.zeros((len(problem.names), len(hosts)), dtype=bool)
    lost = {host for host in hosts if _is_lost(problem.task, host)}
    for node, name in enumerate(problem.names):
        if problem.movable[node]:
            allowed = named.get(name, hosts)
            allowed = [host for host in allowed if host not in lost] or allowed
            candidates[node, [problem.host_index[host] for host in allowed]] = True
        else:
            candidates[node, held[node]] = True
    return candidates


def _of_links(
    given: Mapping[Any, float], hosts: Sequence[str], default: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[given.get((a, b), default) for b in hosts] for a in hosts])


def _is_lost(task: Task, host: str) -> bool:
    """Return whether every link to a host with a known rate is unusable, as is reported of lost hosts.

    The result is False if no rate is known.
    """
    rates = [rate for other in task.hosts if other != host and (rate := task.view.rate_bps(other, host)) is not None]
    return bool(rates) and not any(rates)


def present_of(instance: OdpInstance, task: Task) -> Indices | None:
    """Return the present hosts of all operators. None: the run has not begun."""
    if task.current is None:
        return None
    full = check_placement(task.dataflow, task.current, dict.fromkeys(task.hosts, 0))
    return instance.where([full[name] for name in instance.names])


def with_changes(goal: Goal, task: Task, *, weight: float, horizon_s: float) -> Goal:
    """Return the goal in which a change has to repay itself.

    Moving an operator costs ``weight`` times the seconds that the operator is down, divided by the horizon, as a share
    of the cost of the present placement. If several metrics are weighed, the cost is a share of 1. An operator is down
    for the transfer of its state at the measured rate, and for ``ROUND_TRIPS`` round trips, the longest of our moves. A
    host that the state cannot reach is no candidate, unless no candidate can be reached.
    """
    instance, view = goal.instance, task.view
    present = present_of(instance, task)
    if present is None or not weight:
        return goal
    down_s = ROUND_TRIPS * (instance.ways_s[present] + instance.ways_s.T[present])
    for node, name in enumerate(instance.names):
        state = task.quality.state_bytes.get(name, 0.0)
        for host, other in enumerate(instance.hosts):
            rate_bps = view.rate_bps(instance.hosts[present[node]], other)
            down_s[node, host] += migration_s(state, math.inf if rate_bps is None else rate_bps)
    usable = np.isfinite(down_s)
    share = weight * (goal.cost(present) if goal.objective.sole else 1.0) / horizon_s
    allowed = instance.candidates & (usable | ~(instance.candidates & usable).any(axis=1, keepdims=True))
    moving = share * np.where(usable, down_s, 0.0)
    return msgspec.structs.replace(goal, instance=msgspec.structs.replace(instance, candidates=allowed), moving=moving)


def from_networkx(application: Any, resources: Any) -> OdpInstance:
    """Return the placement problem of two directed networkx graphs. Attributes are named as fields of ``OdpInstance``.

    - Nodes of ``application``: ``execution_s`` (0), ``demand`` (1), ``candidates`` (all) or ``host`` (a pin).
    - Edges of ``application``: ``rate`` (1).
    - Nodes of ``resources``: ``capacity`` (inf), ``speed`` (1), ``availability`` (1).
    - Edges of ``resources``: ``delay_s``, ``availability`` (1), ``bandwidth`` (inf).

    A missing attribute has the value in brackets. Raises UsageError for a circle, for a candidate that is no host, and
    for the faults that ``OdpInstance.check`` finds.
    """
    hosts = list(resources.nodes)
    number = {host: at for at, host in enumerate(hosts)}
    inputs = {node: set(application.predecessors(node)) for node in application.nodes}
    names: list[Any] = []
    while inputs.keys() - set(names):
        ready = [node for node in inputs if node not in names and inputs[node] <= set(names)]
        if not ready:
            raise UsageError("the application has streams in a circle; only graphs without a circle are placed")
        names.append(ready[0])
    place = {node: at for at, node in enumerate(names)}
    candidates = np.zeros((len(names), len(hosts)), dtype=bool)
    for node in names:
        own = application.nodes[node]
        for host in [own["host"]] if "host" in own else own.get("candidates", hosts):
            if host not in number:
                raise UsageError(f"operator {node!r} may be on {host!r}, which is no host of the resources")
            candidates[place[node], number[host]] = True
    ends = [(place[a], place[b]) for a, b in application.edges]

    def of_nodes(graph: Any, which: Sequence[Any], what: str, default: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([graph.nodes[node].get(what, default) for node in which], dtype=np.float64)

    def of_links(what: str, default: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        edges: Any = resources.edges
        return np.array(
            [[edges[a, b].get(what, default) if resources.has_edge(a, b) else default for b in hosts] for a in hosts],
            dtype=np.float64,
        )

    return OdpInstance(
        names=tuple(map(str, names)),
        hosts=tuple(map(str, hosts)),
        edges=np.array(ends, dtype=np.intp).reshape(-1, 2),
        rate=np.array([data.get("rate", 1.0) for *_, data in application.edges(data=True)], dtype=np.float64),
        execution_s=of_nodes(application, names, "execution_s", 0.0),
        demand=of_nodes(application, names, "demand", 1.0),
        capacity=of_nodes(resources, hosts, "capacity", math.inf),
        speed=of_nodes(resources, hosts, "speed", 1.0),
        availability=of_nodes(resources, hosts, "availability", 1.0),
        delay_s=of_links("delay_s", math.nan),
        link_availability=of_links("availability", 1.0),
        bandwidth=of_links("bandwidth", math.inf),
        candidates=candidates,
    ).check()


def objective_of(given: str | Mapping[str, float], counted: str = "operators", *, ties: bool = True) -> Objective:
    """Return the objective of one metric alone, or of several metrics with these weights.

    Raise UsageError for an unknown metric, a weight that is no number, or a second network metric.
    """
    weights = {given: 1.0} if isinstance(given, str) else dict(given)
    known = ("response", "availability", *NETWORK)
    for metric, weight in weights.items():
        if metric not in known:
            raise UsageError(f"the objective has no {metric!r}; {nearest(metric, known)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UsageError(f"the weight of {metric} is {weight!r}; give a number, at least 0")
    network = [metric for metric in NETWORK if metric in weights]
    if len(network) > 1:
        raise UsageError(f"the objective has both {network[0]} and {network[1]}; one of {', '.join(NETWORK)} at most")
    fields: dict[str, Any] = {
        "response": weights.get("response", 0.0),
        "availability": weights.get("availability", 0.0),
        "network": weights.get(network[0], 0.0) if network else 0.0,
        "metric": network[0] if network else "usage",
        "availability_of": counted,
        "ties": ties,
    }
    return Objective(**fields)


class QualityCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost model of one metric or of the task's objective: the cost that ``Goal`` minimises, without decisions of ties.

    R is in seconds. -log A and 1 - F have no unit. T is in the unit of rates, N in this unit times seconds, EE in this
    unit times seconds squared. Missing room on hosts and links adds so high a cost that every planner avoids the
    placement.
    """

    metric: str = "objective"

    def __post_init__(self) -> None:
        if self.metric != "objective":
            objective_of(self.metric)

    @property
    def name(self) -> str:
        return self.metric

    def at(self, problem: Problem, where: Where) -> Position:
        return QualityPosition(self, problem, where)

    def costs_of(self, problem: Problem, where: Where) -> Nanoseconds:
        """Return the costs (rows,) of many placements, times ``NS_PER_S``."""
        goal = goal_of(problem, self.metric)
        return (goal.costs(where, goal.main) + LACK * goal.instance.lacks(where)) * NS_PER_S


class QualityPosition(Position):
    """Placement under a ``QualityCost``, in which every operator counts as critical."""

    def __init__(self, model: CostModel, problem: Problem, where: Where) -> None:
        super().__init__(model, problem, where)
        assert isinstance(model, QualityCost)
        self.lower_ns = float(model.costs_of(problem, where[None])[0])

    def critical(self) -> tuple[int, ...]:
        return tuple(range(len(self.where)))

    def moves_of(self, nodes: Sequence[int]) -> Nanoseconds:
        hosts, model = len(self.problem.hosts), self.model
        assert isinstance(model, QualityCost)
        rows: Indices = np.repeat(self.where[None], len(nodes) * hosts, axis=0)
        rows[np.arange(len(rows)), np.repeat(nodes, hosts)] = np.tile(np.arange(hosts), len(nodes))
        return model.costs_of(self.problem, rows).reshape(len(nodes), hosts)


@lru_cache(maxsize=4)
def goal_of(problem: Problem, metric: str) -> Goal:
    """Return the goal by which a task's placements are judged.

    ``metric``: a metric, or ``objective`` for the task's own objective.
    """
    quality = problem.task.quality
    choice = (quality.objective or "response") if metric == "objective" else metric
    return normalised(instance_of(problem), objective_of(choice, quality.counted), OdpLimits())
