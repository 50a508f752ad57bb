"""Replanning while data flows: inputs of the planner beside the network view, and the judgement of its plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from thalweg.middleware.dataflow import Dataflow, Node, Placement, check_placement
from thalweg.middleware.errors import OperatorError, PlacementError, ThalwegError
from thalweg.middleware.loading import DEFAULT_ALLOW, Allow, load_code
from thalweg.middleware.network.history import PlanningHistory
from thalweg.middleware.network.networks import Network, links_of
from thalweg.middleware.network.outlook import Outlook, look_ahead, read_variability
from thalweg.middleware.network.view import NET, LatenciesNeeded, Link, LinkEstimate, LinksNeeded, NetworkView
from thalweg.middleware.planning.asking import UNUSABLE, Probe, plan_probing
from thalweg.middleware.planning.costs.model import CostModel, evaluate
from thalweg.middleware.planning.planners.planner import Planner, ask_planner, is_compared
from thalweg.middleware.planning.problem.choice import Choice, choose, in_order, with_all_networks
from thalweg.middleware.planning.problem.hints import (
    Answers,
    CostParameters,
    Hints,
    SupportsHints,
    propagate_hints,
)
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.routes import route_of
from thalweg.middleware.planning.problem.task import Stripe, Task
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves, migration_s, worth_moving
from thalweg.middleware.protocol.messages import LinkEnd, RoutePreference

MEASURED = CostParameters(startup_s=0.0, disk_bytes_per_s=math.inf)  # without costs that no probe measures
MOST_BPS = 1e15  # greatest rate that is sent to hosts
REFILL = 1.0  # partitions of the present tree: cost of having both trees and of filling the new tree
LEAST_HORIZON = 20.0  # partitions: shortest horizon of a new tree, or slow flows would never get a new tree
TYPICAL_BYTES = 131_072.0  # mean image size of the paper (section 4), if a source cannot be asked


def hints_of_code(dataflow: Dataflow, allow: Allow = DEFAULT_ALLOW) -> Hints:
    """Return sizes and compute times from the nodes' own code, as far as this process can load the code."""
    sizes: dict[str, float] = {}
    for name in dataflow.sources:
        code = dataflow.by_name[name].code
        assert code is not None
        try:
            sizes[name] = float(load_code(code, allow).size_bytes())
        except (OperatorError, AttributeError):  # the data is on another host, or the code gives no hint
            sizes[name] = TYPICAL_BYTES

    def operator_of(node: Node) -> SupportsHints:
        assert node.code is not None
        code = load_code(node.code, allow)
        return code if isinstance(code, SupportsHints) else Answers(max)  # an output like the largest input, in no time

    return propagate_hints(dataflow, sizes, operator_of)


def _needing(command: e.RequestPlan, needed: LinksNeeded) -> e.PlanReady:
    """Return the answer that asks for the links or latencies that a planner needs."""
    if isinstance(needed, LatenciesNeeded):
        return e.PlanReady(command.run, latencies=needed.links)
    return e.PlanReady(command.run, needs=needed.links)


class Replanner(msgspec.Struct, frozen=True):
    """Inputs of a run's planner beside the view of the network and the present placement.

    ``task``: the task at the start of the run. ``knows``: function of an emulator that returns the view instead, or an
    ``Outlook`` for a planner that looks ahead. ``stripes``: for a striped stream, the planned trees by name. The
    replanners of the trees share this mapping. ``stripe``: name of this replanner's tree.
    """

    task: Task
    model: CostModel
    options: GlobalMoves
    planner: Planner
    label: str = "global"
    knows: Callable[[e.RequestPlan], NetworkView] | None = None
    stripes: dict[str, Stripe] = {}
    stripe: str = ""

    def answer(self, command: e.RequestPlan) -> e.PlanReady:
        """Return the plan, the links that the planner needs, or the reason of a failure.

        Planner and cost model may be a user's own code.
        """
        try:
            if isinstance(command, e.RequestRecoveryPlan):
                return self._anew(command)
            return self._answer(command)
        except LinksNeeded as needed:
            return _needing(command, needed)
        except Exception as error:
            why = str(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {error}"
            kind = e.RecoveryPlanReady if isinstance(command, e.RequestRecoveryPlan) else e.PlanReady
            return kind(command.run, detail={"planner": self.label, "why": why}, failed=why)

    def _anew(self, command: e.RequestRecoveryPlan) -> e.RecoveryPlanReady:
        """Return hosts for the operators of lost hosts, from present knowledge. Unknown links count as unusable."""
        task = self.of(command.dataflow).task
        hints = msgspec.structs.replace(task.hints.measured(command.nodes, command.hosts), reorderable={})
        view = NetworkView(command.view, command.latencies, command.places)
        task = task.but(hosts=command.there, view=view, current=command.placement, hints=hints)
        steps = plan_probing(self.planner, task, self.model)
        try:
            next(steps)
            while True:
                steps.send({})
        except StopIteration as done:
            plan = done.value.result
        if plan.dataflow != task.dataflow:
            raise PlacementError("the planner has changed the tree")
        return e.RecoveryPlanReady(
            command.run, check_placement(task.dataflow, plan.placement, command.there), detail={"planner": self.label}
        )

    def among(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> Replanner:
        """Return a copy of the replanner for these hosts and networks."""
        return msgspec.structs.replace(self, task=self.task.but(hosts=hosts, networks=networks))

    def of(self, dataflow: Dataflow | None) -> Replanner:
        """Return a replanner for another tree of the same sources, with hints of operators of the same code."""
        task = self.task
        old, old_hints = task.dataflow, task.hints
        if dataflow is None or dataflow == old:
            return self
        sizes = {name: old_hints.output_bytes.get(name, TYPICAL_BYTES) for name in dataflow.sources}

        def told(name: str) -> SupportsHints:  # hints at the start, for an operator that keeps its inputs
            if name not in old_hints.output_bytes:  # a node of a query without hints
                return Answers(max)
            return Answers(lambda _: old_hints.output_bytes[name], lambda _: old_hints.compute_s.get(name, 0.0))

        def operator_of(node: Node) -> SupportsHints:
            like = (answers for name, answers in old_hints.reorderable.items() if old.by_name[name].code == node.code)
            return next(like, None) or told(node.name)

        hints = propagate_hints(dataflow, sizes, operator_of, disk_bytes=old_hints.disk_bytes)
        return msgspec.structs.replace(self, task=task.but(dataflows=(dataflow,), hints=hints))

    def with_hints(self, hints: Hints, names: Mapping[str, str]) -> Replanner:
        """Return a copy with the hints of a query. ``names``: the run's names of the query's nodes."""
        old_hints = self.task.hints

        def both(known: dict[str, float], more: dict[str, float]) -> dict[str, float]:
            return {names[name]: value for name, value in more.items() if name in names} | known

        hints = msgspec.structs.replace(
            old_hints,
            output_bytes=both(old_hints.output_bytes, hints.output_bytes),
            compute_s=both(old_hints.compute_s, hints.compute_s),
            disk_bytes=both(old_hints.disk_bytes, hints.disk_bytes),
        )
        return msgspec.structs.replace(self, task=self.task.but(hints=hints))

    def _answer(self, command: e.RequestPlan) -> e.PlanReady:
        if self.knows is not None:
            view = self.knows(command)
            view = view if view.latencies else view.with_latencies(command.latencies).with_places(command.places)
            return self.of(command.dataflow)._plan(command, view)
        if command.past is None or self.options.horizon_s is None:
            view = NetworkView(command.view, command.latencies, command.places)
            return self.of(command.dataflow)._plan(command, view)
        past = command.past
        variability = past.variability
        if not past.rounds:  # only in the first round of a replanning
            variability = read_variability(past.samples, variability)
        if variability is None:
            nothing = {"planner": self.label, "why": "nothing was measured yet"}
            return e.PlanReady(command.run, worth=False, detail=nothing)
        past = msgspec.structs.replace(past, variability=variability)
        view = look_ahead(past, self.task.hosts, self.options.horizon_s).with_estimates(command.view)
        view = view.with_latencies(command.latencies).with_places(command.places)
        try:
            answer = self.of(command.dataflow)._plan(command, view)
        except LinksNeeded as needed:
            return msgspec.structs.replace(_needing(command, needed), variability=variability)
        detail: dict[str, Any] = {**answer.detail, "weather": msgspec.to_builtins(variability)}
        if command.recording:
            detail["links"] = self._decisive(command, answer, view)
        return msgspec.structs.replace(answer, variability=variability, detail=detail)

    def _decisive(self, command: e.RequestPlan, answer: e.PlanReady, view: Outlook) -> dict[str, list[float | None]]:
        """Return the forecasts behind a decision: of the links of both trees, and of the links that were asked for.

        Each forecast has the rate, the number of samples, the spread, the age of the latest sample, and the doubt.
        """
        assert command.past is not None
        links = set(command.past.asked)
        trees = [(self.of(command.dataflow).task.dataflow, command.placement)]
        if answer.placement is not None:
            trees.append((answer.dataflow or trees[0][0], answer.placement))
        for dataflow, where in trees:
            links |= {Link(where[producer], where[consumer]) for producer, consumer in dataflow.edges}
        forecasts: dict[str, list[float | None]] = {}
        for link in sorted(links & view.estimates.keys()):
            estimate = view.estimates[link]
            age_s = round(command.past.now_s - estimate.measured_at_s, 1) if estimate.count else None
            figures = [round(estimate.rate_bps), estimate.count, round(estimate.spread_bps), age_s]
            forecasts[">".join(tuple(link))] = [*figures, round(view.doubt[link], 3)]
        return forecasts

    def _plan(self, command: e.RequestPlan, view: NetworkView) -> e.PlanReady:
        task = self._task_of(command, view)
        result = ask_planner(self.planner, task, self.model)
        sink = task.dataflow.sinks[0]
        placement = {sink: command.placement[sink], **result.placement}
        target = self.of(result.dataflow)
        placement = check_placement(result.dataflow, placement, task.hosts)
        now_s, then_s = result.initial_cost_s, result.cost_s
        if math.isnan(then_s) or math.isnan(now_s):
            fastest = with_all_networks(task)
            now_s = evaluate(self.model, Problem(fastest), command.placement)
            then_s = evaluate(self.model, Problem(target.task.but(view=fastest.view)), placement)
        costs = (now_s, then_s) if result.judged is None else result.judged
        moving_s = self._moving_s(command, task, target, placement)
        worth, why = self._judge(costs, moving_s, other_tree=target is not self)
        if not is_compared(self.planner):
            moves = any(command.placement.get(name) != host for name, host in placement.items())
            worth = moves or target is not self or bool(result.routes)
            why = "the planner says so" if worth else "operators are there already"
        if worth and (own := self.stripes.get(self.stripe)):
            self.stripes[self.stripe] = Stripe(result.dataflow, placement, own.share)
        figures = {"predicted_s": then_s, "current_s": now_s}
        detail: dict[str, Any] = {"planner": self.label, "why": why}
        detail |= {key: value for key, value in figures.items() if math.isfinite(value)}
        ways = self._ways_of(task, command, result, placement, worth=worth)
        if target is self:
            return e.PlanReady(command.run, placement, worth=worth, detail=detail, ways=ways)
        codes = [task.dataflow.by_name[name].code for name in task.hints.reorderable]
        free = tuple(code for code in codes if code is not None)
        tree = target.task.dataflow
        return e.PlanReady(command.run, placement, worth=worth, detail=detail, dataflow=tree, free=free, ways=ways)

    def _task_of(self, command: e.RequestPlan, view: NetworkView) -> Task:
        """Return the planner's present task, with the core's figures of nodes, hosts and routes."""
        task = self.task.but(view=view, current=command.placement)
        if command.nodes or command.hosts:
            task = task.but(hints=task.hints.measured(command.nodes, command.hosts))
        if command.ways:
            task = task.but(
                routes={Link(way.source, way.target): way.links[0] for way in command.ways if way.over[0] != NET}
            )
        if command.shunned:
            task = task.but(shunned=command.shunned)
        if command.state_bytes:
            states = {name: float(size) for name, size in command.state_bytes.items() if name in task.dataflow.by_name}
            task = task.but(quality=msgspec.structs.replace(task.quality, state_bytes=states))
        if own := self.stripes.get(self.stripe):
            beside = tuple(stripe for name, stripe in self.stripes.items() if name != self.stripe)
            task = task.but(share=own.share, beside=beside)
            self.stripes[self.stripe] = Stripe(task.dataflow, command.placement, own.share)
        return task

    def _moving_s(self, command: e.RequestPlan, task: Task, target: Replanner, placement: Placement) -> float:
        """Return the time in which states travel to the operators' new hosts, one after the other."""
        moving_s = 0.0
        for node, host in placement.items():
            was = command.placement.get(node, host)
            if was != host and (target is self or node not in task.hints.reorderable):
                rate_bps = task.view.rate_bps(was, host)
                moving_s += migration_s(command.state_bytes.get(node, 0), math.inf if rate_bps is None else rate_bps)
        return moving_s

    def _judge(self, costs: tuple[float, float], moving_s: float, *, other_tree: bool) -> tuple[bool, str]:
        """Return whether a plan is worth its moves, and the reason.

        ``costs``: seconds of the present placement and of the plan. A new tree has to be filled, so a change of the
        tree has a further cost and a longer horizon.
        """
        options, (before_s, after_s) = self.options, costs
        horizon_s = options.horizon_s or options.period_s
        if other_tree and math.isfinite(before_s):
            moving_s += REFILL * before_s
            horizon_s = max(horizon_s, LEAST_HORIZON * before_s)
        if worth_moving(before_s, after_s, horizon_s, moving_s, options.hysteresis, options.gain):
            return True, "a better plan"
        cheaper = after_s < before_s  # false if a figure is not a number
        if not cheaper:
            return False, "no better plan"
        if after_s >= before_s * (1 - options.gain):
            return False, f"it saves less than {options.gain:.0%}"
        return False, f"it does not repay {moving_s:.3g} s of moving"

    def _ways_of(
        self, task: Task, command: e.RequestPlan, result: Plan, placement: Placement, *, worth: bool
    ) -> tuple[RoutePreference, ...] | UnsetType:
        """Return the networks for the placement of a plan that is worth its moves, or for the present placement."""
        if not task.networks:
            return UNSET
        if not worth:
            now = self._as_measured(task, command, task.dataflow, command.placement)
            return ways_of(choose(now, task.dataflow, command.placement), now)
        now = self._as_measured(task, command, result.dataflow, placement)
        choice = choose(now, result.dataflow, placement, result.hints)
        return ways_of(in_order(choice, result.routes) if result.routes else choice, now)

    def _is_old(self, known: LinkEstimate | None, past: PlanningHistory) -> bool:
        """Return whether the estimate of a working link is older than half a period."""
        if known is None or not known.rate_bps:
            return False
        return past.now_s - known.measured_at_s > self.options.period_s / 2

    def _as_measured(self, task: Task, command: e.RequestPlan, dataflow: Dataflow, placement: Placement) -> Task:
        """Return the task with present rates of the shared network between hosts that have a further network.

        A change of networks costs next to nothing, so the forecast for a horizon does not matter. A link without
        traffic is not measured in passing. The link is asked for once in each replanning, or no edge would return to
        the link.
        """
        past = command.past
        if past is None or self.knows is not None:
            return task
        latest: dict[Link, LinkEstimate] = {}
        needed = set()
        pairs = {(placement[producer], placement[consumer]) for producer, consumer in dataflow.edges}
        for link in (Link(*pair) for pair in sorted(pairs) if pair[0] != pair[1]):
            estimate = command.view.get(link)
            lost = estimate is not None and not estimate.rate_bps
            if lost or not any(via != NET and network.joins(*link.hosts) for via, network in task.networks.items()):
                continue
            measured = past.latest.get(link)
            if measured is not None and past.now_s - measured.measured_at_s <= self.options.period_s / 2:
                latest[link] = measured
            elif link not in past.asked:
                needed.add(link)
            alternatives = {Link(*link.hosts, via) for via in task.networks if via != NET}
            needed |= {other for other in alternatives - set(past.asked) if self._is_old(command.view.get(other), past)}
        if needed:
            raise LinksNeeded(needed)
        return task.but(view=task.view.with_estimates(latest))


def first_ways(task: Task, placement: Placement, probe: Probe) -> tuple[tuple[RoutePreference, ...], NetworkView]:
    """Return the first networks of a placement's partitions, and the view with the measurements for the choice."""
    while True:
        try:
            return ways_of(choose(task, task.dataflow, placement), task), task.view
        except LinksNeeded as needed:
            task = task.but(
                view=task.view.with_estimates({**dict.fromkeys(needed.links, UNUSABLE), **probe(needed.links)})
            )


def ways_of(choice: Choice, task: Task) -> tuple[RoutePreference, ...]:
    """Return the networks and relays that hosts are to use on each link, best first.

    A link is left out if there is only the network that all hosts share.
    """
    agreed, known = links_of(task.networks), task.view.estimates
    ways = []

    def bps(link: Link) -> int:
        return int(min(known[link].rate_bps if link in known else agreed.get(link, 0.0), MOST_BPS))

    for pair, over in sorted(choice.items()):
        if len(over) > 1:
            routes = [route_of(pair, via) for via in over]
            vias = [
                via if isinstance(via, str) else tuple(LinkEnd(link.target, link.via) for link in via) for via in over
            ]
            rates_bps = tuple(min(bps(link) for link in route) for route in routes)
            ways.append(RoutePreference(*pair, tuple(vias), rates_bps))
    return tuple(ways)
