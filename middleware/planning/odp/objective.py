"""What makes a placement the best one: metrics, weighed and normalised, and what decides among equals.

The utility F (9), (22) is the weighted sum of metrics, each 1 at its best and 0 at its worst (simple additive
weighting). The paper does not say where the two lie. Here the best of a metric is that of the placement which is best
by it alone, proven, or else its bound; the worst is what every operator and every stream has at its worst host or link,
whatever the others have. Maximising F is minimising a ``Form``, which is what solvers and heuristics are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, get_args

import msgspec
import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.planning.odp.instance import Floats, Indices, Metrics, OdpInstance

Network = Literal["traffic", "usage", "energy"]
Metric = Literal["response", "availability", "traffic", "usage", "energy"]
Counted = Literal["operators", "hosts"]
NETWORK: tuple[Network, ...] = get_args(Network)
# Shares of a cost that are a tie. What decides ties counts for so much less that it changes nothing else, and
# sums in double precision still tell the second from the third.
TIE, SECOND_TIE = 1e-7, 1e-12


class Objective(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """The weights w_r, w_a and w_z, which sum to 1, and what they weigh.

    - ``metric``: Z, the inter-node traffic T, the network usage N or the elastic energy EE
    - ``availability_of``: whether A has a factor for every operator (5), or for every host in use, once
    - ``ties``: among equals the least R is taken, and then the least N; else any

    Raises UsageError for weights that are negative, or sum to something else.
    """

    response: float = 1.0
    availability: float = 0.0
    network: float = 0.0
    metric: Network = "usage"
    availability_of: Counted = "operators"
    ties: bool = True

    def __post_init__(self) -> None:
        for name, options in (("metric", NETWORK), ("availability_of", get_args(Counted))):
            if (choice := getattr(self, name)) not in options:
                raise UsageError(f"{name} of the objective is {choice!r}; {nearest(str(choice), options)}")
        weights = {name: getattr(self, name) for name in ("response", "availability", "network")}
        for name, weight in weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise UsageError(f"the weight of {name} is {weight}; it must be finite and at least 0")
        if not math.isclose(plain_sum(weights.values()), 1.0, abs_tol=1e-9):
            terms = " + ".join(f"{weight:g}" for weight in weights.values())
            raise UsageError(f"the weights of response, availability and network sum to {terms}; make that 1")

    @cached_property
    def weights(self) -> Mapping[Metric, float]:
        """Those above 0, by metric."""
        weights: dict[Metric, float] = {"response": self.response, "availability": self.availability}
        return {metric: weight for metric, weight in {**weights, self.metric: self.network}.items() if weight > 0}

    @property
    def sole(self) -> Metric | None:
        """The only metric with a weight; None where there are several."""
        return next(iter(self.weights)) if len(self.weights) == 1 else None


def only(metric: Metric, *, availability_of: Counted = "operators", ties: bool = True) -> Objective:
    """The objective that is this metric alone."""
    if metric in NETWORK:
        return Objective(0.0, 0.0, 1.0, metric, availability_of, ties)
    return Objective(float(metric == "response"), float(metric == "availability"), 0.0, "usage", availability_of, ties)


class Form(msgspec.Struct, frozen=True, dict=True):
    """A figure of placements that is to be small: ``response`` · R + ``node`` of every operator on its host + ``edge``
    of every stream on its link + ``host`` of every host in use.

    ``node``: (n, h), ``edge``: (m, h, h), ``host``: (h,); all at least 0.
    """

    response: float
    node: Floats
    edge: Floats
    host: Floats

    def plus(self, other: Form, share: float) -> Form:
        """This figure and ``share`` of another."""
        return Form(
            self.response + share * other.response,
            self.node + share * other.node,
            self.edge + share * other.edge,
            self.host + share * other.host,
        )


class Extremes(msgspec.Struct, frozen=True):
    """Between which values a metric is normalised, each as a figure to be small: R, -log A, T, N or EE.

    ``proven``: whether some placement has ``best``; else no placement can be better.
    """

    best: float
    worst: float
    proven: bool = True


def form_of(instance: OdpInstance, metric: Metric, availability_of: Counted = "operators") -> Form:
    """A metric as a form: R, -log A, T, N or EE."""
    nodes, hosts, streams = instance.count, len(instance.hosts), len(instance.edges)
    node, edge, host = np.zeros((nodes, hosts)), np.zeros((streams, hosts, hosts)), np.zeros(hosts)
    if metric == "response":
        return Form(1.0, node, edge, host)
    if metric == "availability":
        edge = edge - instance.log_links
        lost = 0.0 - np.log(instance.availability)
        return Form(0.0, node, edge, lost) if availability_of == "hosts" else Form(0.0, node + lost, edge, host)
    powers = {"traffic": instance.unlike, "usage": instance.ways_s, "energy": instance.ways_s**2}
    return Form(0.0, node, instance.rate[:, None, None] * powers[metric], host)


def value_of(metrics: Metrics, metric: Metric, availability_of: Counted = "operators") -> float:
    """The same of a placement that was evaluated."""
    if metric == "response":
        return metrics.response_s
    if metric == "availability":
        return 0.0 - (metrics.log_availability_of_hosts if availability_of == "hosts" else metrics.log_availability)
    return float(getattr(metrics, metric))


def worst_of(instance: OdpInstance, metric: Metric, availability_of: Counted = "operators") -> float:
    """A metric with every operator and every stream at its worst, whatever the others have."""
    form = form_of(instance, metric, availability_of)
    allowed = instance.candidates
    node = np.where(allowed, form.node, 0.0).max(axis=1)
    total = float(node.sum())
    took = np.where(allowed, instance.execution_s[:, None] / instance.speed, 0.0).max(axis=1)
    done = took.copy()
    for consumer, inputs in enumerate(instance.inputs):
        for producer, stream in inputs:
            both = allowed[producer][:, None] & allowed[consumer]
            total += float(form.edge[stream][both].max())
            done[consumer] = max(done[consumer], took[consumer] + done[producer] + instance.ways_s[both].max())
    usable = np.sort(form.host[allowed.any(axis=0)])[::-1]
    return total + float(usable[: instance.count].sum()) + form.response * float(done.max())


class Goal(msgspec.Struct, frozen=True, dict=True):
    """An instance and what makes its placements good.

    ``extremes``: of every metric with a weight; none are needed where one has all of it, whose placements are in the
    same order however it is normalised. ``moving``: (n, h) what it costs besides to move an operator to a host, in the
    unit of what is minimised.
    """

    instance: OdpInstance
    objective: Objective
    extremes: Mapping[Metric, Extremes] = {}
    moving: Floats | None = None

    @cached_property
    def main(self) -> Form:
        """What is minimised: 1 - F, or the metric itself where there is but one, and what moving costs."""
        form = self._weighed
        return form if self.moving is None else msgspec.structs.replace(form, node=form.node + self.moving)

    @cached_property
    def _weighed(self) -> Form:
        weights, counted = self.objective.weights, self.objective.availability_of
        if self.objective.sole:
            return form_of(self.instance, self.objective.sole, counted)
        total = form_of(self.instance, "response").plus(form_of(self.instance, "response"), -1.0)
        for metric, weight in weights.items():
            ends = self.extremes[metric]
            if ends.worst > ends.best:
                total = total.plus(form_of(self.instance, metric, counted), weight / (ends.worst - ends.best))
        return total

    @cached_property
    def form(self) -> Form:
        """``main``, and so little of R and then N that they only decide among equals: what exact ways minimise."""
        if not self.objective.ties:
            return self.main
        total, scale, sole = self.main, 1.0, self.objective.sole
        if sole:
            scale = self._least(sole)
        deciding: tuple[tuple[Metric, float], ...] = (("response", TIE), ("usage", SECOND_TIE))
        for metric, share in deciding:
            if metric != sole and (most := worst_of(self.instance, metric)) > 0:
                total = total.plus(form_of(self.instance, metric), share * scale / most)
        return total

    def _least(self, sole: Metric) -> float:
        """What the least difference that matters is a share of: the optimum, where it is known, else what is above it;
        the worst, where it is not."""
        ends = self.extremes.get(sole)
        if ends is not None and ends.proven:
            above = (values[values > 0] for values in (self.main.node, self.main.edge, self.main.host))
            return ends.best or min((float(costs.min()) for costs in above if costs.size), default=1.0)
        return worst_of(self.instance, sole, self.objective.availability_of) or 1.0

    def utility(self, where: Indices) -> float:
        """F of a placement, 1 at its best; with one metric and no extremes nan."""
        metrics, total = self.instance.metrics(where), 0.0
        for metric, weight in self.objective.weights.items():
            if metric not in self.extremes:
                return math.nan
            ends = self.extremes[metric]
            value = value_of(metrics, metric, self.objective.availability_of)
            total += weight * ((ends.worst - value) / (ends.worst - ends.best) if ends.worst > ends.best else 1.0)
        return total

    def costs(self, where: Indices, form: Form | None = None) -> Floats:
        """(rows,) ``form``, by default that with what decides ties, of many placements (rows, n)."""
        form = self.form if form is None else form
        instance = self.instance
        total = form.node[np.arange(instance.count), where].sum(axis=1)
        if len(instance.edges):
            ends = where[:, instance.edges[:, 0]], where[:, instance.edges[:, 1]]
            total += form.edge[np.arange(len(instance.edges)), *ends].sum(axis=1)
        if form.host.any():
            used = np.zeros((len(where), len(instance.hosts)), dtype=bool)
            used[np.arange(len(where))[:, None], where] = True
            total += used @ form.host
        if form.response:
            total += form.response * instance.responses_s(where)
        costs: Floats = total
        return costs

    def cost(self, where: Indices) -> float:
        """What is minimised, of one placement, without what decides ties."""
        return float(self.costs(where[None], self.main)[0])
