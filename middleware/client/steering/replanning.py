"""What planning goes by that a network view does not tell, and the look for a better placement while data flows."""

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

MEASURED = CostParameters(startup_s=0.0, disk_bytes_per_s=math.inf)  # costs no probe measures are left out
MOST_BPS = 1e15  # that hosts are told
REFILL = 1.0  # partitions, of the present tree's time: what it costs to have both trees and to fill the new one
LEAST_HORIZON = 20.0  # partitions that another tree is for at least: slow flows would else never get one
TYPICAL_BYTES = 131_072.0  # mean image size of the paper, where a source cannot be asked; section 4


def hints_of_code(dataflow: Dataflow, allow: Allow = DEFAULT_ALLOW) -> Hints:
    """Sizes and compute times as the nodes' own code tells them, where this process can load it."""
    sizes: dict[str, float] = {}
    for name in dataflow.sources:
        code = dataflow.by_name[name].code
        assert code is not None
        try:
            sizes[name] = float(load_code(code, allow).size_bytes())
        except (OperatorError, AttributeError):  # its data lies on another host, or it gives no hint
            sizes[name] = TYPICAL_BYTES

    def operator_of(node: Node) -> SupportsHints:
        assert node.code is not None
        code = load_code(node.code, allow)
        return code if isinstance(code, SupportsHints) else Answers(max)  # like the largest input, in no time

    return propagate_hints(dataflow, sizes, operator_of)


def _needing(command: e.RequestPlan, needed: LinksNeeded) -> e.PlanReady:
    """The answer of a planner that asks for links, or for latencies."""
    if isinstance(needed, LatenciesNeeded):
        return e.PlanReady(command.run, latencies=needed.links)
    return e.PlanReady(command.run, needs=needed.links)


class Replanner(msgspec.Struct, frozen=True):
    """What a run's planner goes by, besides what is known of the network, and where operators are.

    ``task``: as the run begins. ``knows``: tells what is known instead, where an emulator can: an ``Outlook`` for a
    planner that looks ahead. ``stripes``: where a stream goes over several trees, all of them by name, as far as those
    who plan them know, who share the mapping; ``stripe``: which is this one.
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
        """The plan, or the links it needs, or why there is neither: planner and cost model may be a user's own."""
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
        """Where the operators of lost hosts go by what is known; what is not counts as unusable."""
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
        """The same on these hosts, which are joined to these networks."""
        return msgspec.structs.replace(self, task=self.task.but(hosts=hosts, networks=networks))

    def of(self, dataflow: Dataflow | None) -> Replanner:
        """The same for another tree of the same sources, whose operators are like those of this one."""
        task = self.task
        old, old_hints = task.dataflow, task.hints
        if dataflow is None or dataflow == old:
            return self
        sizes = {name: old_hints.output_bytes.get(name, TYPICAL_BYTES) for name in dataflow.sources}

        def told(name: str) -> SupportsHints:  # when the run began, of an operator that keeps its inputs
            if name not in old_hints.output_bytes:  # a query's, of which nothing was said
                return Answers(max)
            return Answers(lambda _: old_hints.output_bytes[name], lambda _: old_hints.compute_s.get(name, 0.0))

        def operator_of(node: Node) -> SupportsHints:
            like = (answers for name, answers in old_hints.reorderable.items() if old.by_name[name].code == node.code)
            return next(like, None) or told(node.name)

        hints = propagate_hints(dataflow, sizes, operator_of, disk_bytes=old_hints.disk_bytes)
        return msgspec.structs.replace(self, task=task.but(dataflows=(dataflow,), hints=hints))

    def with_hints(self, hints: Hints, names: Mapping[str, str]) -> Replanner:
        """The same with what a query's nodes mean, which have these names in the run."""
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
        if not past.rounds:  # once a look
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
        """The forecasts that a decision rested on: of the links of both trees, and of those asked for.

        Of each the rate, how many samples it was made from, its spread and the age of the latest one, and the doubt.
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
        """The planner's task at present, with all that the core tells of nodes, hosts and routes."""
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
        """How long states travel to where their operators would be, one after the other."""
        moving_s = 0.0
        for node, host in placement.items():
            was = command.placement.get(node, host)
            if was != host and (target is self or node not in task.hints.reorderable):
                rate_bps = task.view.rate_bps(was, host)
                moving_s += migration_s(command.state_bytes.get(node, 0), math.inf if rate_bps is None else rate_bps)
        return moving_s

    def _judge(self, costs: tuple[float, float], moving_s: float, *, other_tree: bool) -> tuple[bool, str]:
        """Whether a plan is worth its moves, and why. ``costs``: of the present placement and of the plan's, seconds.

        A tree is refilled when it changes, and a change of it has to pay for longer.
        """
        options, (before_s, after_s) = self.options, costs
        horizon_s = options.horizon_s or options.period_s
        if other_tree and math.isfinite(before_s):
            moving_s += REFILL * before_s
            horizon_s = max(horizon_s, LEAST_HORIZON * before_s)
        if worth_moving(before_s, after_s, horizon_s, moving_s, options.hysteresis, options.gain):
            return True, "a better plan"
        cheaper = after_s < before_s  # no figure is cheaper where one is not a number
        if not cheaper:
            return False, "no better plan"
        if after_s >= before_s * (1 - options.gain):
            return False, f"it saves less than {options.gain:.0%}"
        return False, f"it does not repay {moving_s:.3g} s of moving"

    def _ways_of(
        self, task: Task, command: e.RequestPlan, result: Plan, placement: Placement, *, worth: bool
    ) -> tuple[RoutePreference, ...] | UnsetType:
        """Over which networks partitions go: for the plan if it is worth its moves, else where operators are now."""
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
        """The same task where the shared network carries what it does now, between hosts that have another one.

        Networks change at next to no cost, so that what comes in a horizon does not matter. A link that nothing goes
        over is not measured in passing: it is asked for once a look, otherwise no edge would return to it.
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
    """Over which networks a placement's partitions go at first, and what was measured to tell."""
    while True:
        try:
            return ways_of(choose(task, task.dataflow, placement), task), task.view
        except LinksNeeded as needed:
            task = task.but(
                view=task.view.with_estimates({**dict.fromkeys(needed.links, UNUSABLE), **probe(needed.links)})
            )


def ways_of(choice: Choice, task: Task) -> tuple[RoutePreference, ...]:
    """What hosts are told of networks and relays: of links for which there is more than the network that all share."""
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
