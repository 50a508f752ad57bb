"""Objective of a placement: metrics, weighed and normalised, and the rule that decides among equals.

The utility F (9), (22) is the weighted sum of metrics, each 1 at its best and 0 at its worst (simple additive
weighting). The paper does not define these extremes. Here the best value of a metric belongs to the placement that is
proven best by the metric alone. If no placement is proven best, a bound replaces the value. For the worst value, every
operator and every stream is on its own worst host or link. Maximising F is minimising a ``Form``, and solvers and
heuristics minimise forms.
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
# Shares of a cost that count as a tie. The terms that decide ties have such small shares that they change nothing else.
# Sums in double precision still distinguish the first of these terms from the second.
TIE, SECOND_TIE = 1e-7, 1e-12


class Objective(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Objective of a placement: the weights w_r, w_a and w_z, which sum to 1, and the metrics that they weigh.

    - ``metric``: Z. This is the inter-node traffic T, the network usage N or the elastic energy EE.
    - ``availability_of``: whether A has a factor for every operator (5), or one for every host in use.
    - ``ties``: among equals the least R wins, and then the least N. False: any of the equals may win.

    Raises UsageError for weights that are negative, or do not sum to 1.
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
        """Weights above 0, by metric."""
        weights: dict[Metric, float] = {"response": self.response, "availability": self.availability}
        return {metric: weight for metric, weight in {**weights, self.metric: self.network}.items() if weight > 0}

    @property
    def sole(self) -> Metric | None:
        """Only metric with a weight. None: several metrics have a weight."""
        return next(iter(self.weights)) if len(self.weights) == 1 else None


def only(metric: Metric, *, availability_of: Counted = "operators", ties: bool = True) -> Objective:
    """Return the objective in which one metric has all the weight."""
    if metric in NETWORK:
        return Objective(0.0, 0.0, 1.0, metric, availability_of, ties)
    return Objective(float(metric == "response"), float(metric == "availability"), 0.0, "usage", availability_of, ties)


class Form(msgspec.Struct, frozen=True, dict=True):
    """Figure of placements that is to be small, a sum of four terms.

    The terms are ``response`` · R, ``node`` of every operator on its host, ``edge`` of every stream on its link, and
    ``host`` of every host in use. ``node``: (n, h), ``edge``: (m, h, h), ``host``: (h,). No value is below 0.
    """

    response: float
    node: Floats
    edge: Floats
    host: Floats

    def plus(self, other: Form, share: float) -> Form:
        """Return the sum of this figure and ``share`` times another figure."""
        return Form(
            self.response + share * other.response,
            self.node + share * other.node,
            self.edge + share * other.edge,
            self.host + share * other.host,
        )


class Extremes(msgspec.Struct, frozen=True):
    """Best and worst value of a metric (R, -log A, T, N or EE, which are to be small), for its normalisation.

    ``proven``: whether a placement has the value ``best``. If not, no placement can be better than ``best``.
    """

    best: float
    worst: float
    proven: bool = True


def form_of(instance: OdpInstance, metric: Metric, availability_of: Counted = "operators") -> Form:
    """Return a metric as a form: R, -log A, T, N or EE."""
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
    """Return one metric of an evaluated placement as a figure that is to be small: R, -log A, T, N or EE."""
    if metric == "response":
        return metrics.response_s
    if metric == "availability":
        return 0.0 - (metrics.log_availability_of_hosts if availability_of == "hosts" else metrics.log_availability)
    return float(getattr(metrics, metric))


def worst_of(instance: OdpInstance, metric: Metric, availability_of: Counted = "operators") -> float:
    """Return the worst value of a metric: every operator and every stream is on its own worst host or link."""
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
    """Placement problem together with the objective for its placements.

    - ``extremes``: extremes of every metric with a weight. No extremes are needed if one metric has all the weight,
      because normalisation then does not change the order of placements.
    - ``moving``: (n, h) additional cost of a move of an operator to a host, in the unit of the minimised form.
    - ``shares``: (m,) factor of the cost of every stream on its link.
    """

    instance: OdpInstance
    objective: Objective
    extremes: Mapping[Metric, Extremes] = {}
    moving: Floats | None = None
    shares: Floats | None = None

    @cached_property
    def main(self) -> Form:
        """Form that is minimised, with the cost of moves.

        The form is 1 - F up to a constant, or the metric itself if only one metric has a weight.
        """
        form = self._shared(self._weighed)
        return form if self.moving is None else msgspec.structs.replace(form, node=form.node + self.moving)

    def _shared(self, form: Form) -> Form:
        """Return a form with the shares of the streams."""
        if self.shares is None:
            return form
        return msgspec.structs.replace(form, edge=form.edge * self.shares[:, None, None])

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
        """Form that exact methods minimise: ``main``, with very small shares of R and then N.

        The shares only decide among equals.
        """
        if not self.objective.ties:
            return self.main
        total, scale, sole = self.main, 1.0, self.objective.sole
        if sole:
            scale = self._least(sole)
        deciding: tuple[tuple[Metric, float], ...] = (("response", TIE), ("usage", SECOND_TIE))
        for metric, share in deciding:
            if metric != sole and (most := worst_of(self.instance, metric)) > 0:
                total = total.plus(self._shared(form_of(self.instance, metric)), share * scale / most)
        return total

    def _least(self, sole: Metric) -> float:
        """Return the cost that the shares of ties refer to, if one metric has all the weight.

        The cost is the proven optimum, or the least cost above 0 if the optimum is 0. If no optimum is proven, the cost
        is the worst value.
        """
        ends = self.extremes.get(sole)
        if ends is not None and ends.proven:
            above = (values[values > 0] for values in (self.main.node, self.main.edge, self.main.host))
            return ends.best or min((float(costs.min()) for costs in above if costs.size), default=1.0)
        return worst_of(self.instance, sole, self.objective.availability_of) or 1.0

    def utility(self, where: Indices) -> float:
        """Return F of a placement, 1 at its best. nan: a metric with a weight has no extremes."""
        metrics, total = self.instance.metrics(where), 0.0
        for metric, weight in self.objective.weights.items():
            if metric not in self.extremes:
                return math.nan
            ends = self.extremes[metric]
            value = value_of(metrics, metric, self.objective.availability_of)
            total += weight * ((ends.worst - value) / (ends.worst - ends.best) if ends.worst > ends.best else 1.0)
        return total

    def costs(self, where: Indices, form: Form | None = None) -> Floats:
        """Return the costs (rows,) of many placements (rows, n) by ``form``.

        By default the form includes the terms that decide ties.
        """
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
        """Return the minimised cost of one placement, without the terms that decide ties."""
        return float(self.costs(where[None], self.main)[0])
