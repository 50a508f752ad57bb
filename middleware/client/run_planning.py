"""Planning of a client, and the checks, placement and completion of a dataflow before its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from thalweg.middleware.client.checks import check_failover, check_mapping, check_told
from thalweg.middleware.client.flow.stream import PreparedQuery, QueryRequest
from thalweg.middleware.client.measuring import MeasurementRequests
from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.steering.replanning import MEASURED, Replanner, first_ways, hints_of_code
from thalweg.middleware.client.steering.run_options import Networks, Planning
from thalweg.middleware.client.stripes.stripes import (
    StripedGraph,
    Stripes,
    alike,
    check_below,
    divided,
    located,
    over_trees,
    strategy_of,
    trees_of,
)
from thalweg.middleware.core.queries.sharing import join, shared
from thalweg.middleware.dataflow import FIXED, Dataflow, Placement, Reorderable, check_codes, check_placement, sinks_at
from thalweg.middleware.errors import DataflowError, PlacementError, UsageError, expect
from thalweg.middleware.loading import Allow, reorderable
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    Hints,
    Planner,
    ProbedPlan,
    Stripe,
    Task,
    get_cost_model,
    get_planner,
    get_strategy,
    plan_with_probes,
)
from thalweg.middleware.planning.planners.planner import needs_of
from thalweg.middleware.planning.problem.depth import depth_for, links_of
from thalweg.middleware.planning.usage.reuse import too_far
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.protocol.split_graph import SplitGraph


def cost_model_of(model: str | CostModel) -> CostModel:
    """Return a cost model that is given by name, by import path or as an object."""
    return get_cost_model(model) if isinstance(model, str) else model


@dataclass(frozen=True)
class PlanRequest:
    """Options of ``Client.run`` that the first plan depends on.

    ``joined``: the requested networks, restricted to the hosts joined to them. ``lasting``: the run has failover.
    """

    dataflow: Dataflow
    placement: Mapping[str, str] | str
    planning: Planning
    adaptation: Adaptation | None
    stripes: Stripes
    requested: Networks
    joined: dict[str, Network]
    partitions: int | None
    lasting: bool

    @property
    def name(self) -> str:
        """Name of the placement, or an empty text for a mapping."""
        return self.placement if isinstance(self.placement, str) else ""


class PlannedRun(NamedTuple):
    """First plan of a run: graph, placement, further trees, and the options of the moves while data flows."""

    dataflow: Dataflow
    placement: Mapping[str, str]
    beside: tuple[Stripe, ...]
    hints: Hints | None
    measured: Mapping[Link, LinkEstimate]
    adaptation: Adaptation | None
    planner: Planner


class RunPlanning:
    """Planner of placements on a client's hosts. ``allow``: packages whose code may be asked for hints.

    ``capacity``: the declared figures of the client as a host.
    """

    def __init__(
        self, roster: HostRegistry, measuring: MeasurementRequests, allow: Allow, capacity: HostFigures
    ) -> None:
        self._registry, self._measuring, self._allow, self._capacity = roster, measuring, allow, capacity

    def plan(
        self, planner: str | Planner, task: Task, model: str | CostModel, stripes: Stripes | None = None
    ) -> ProbedPlan:
        planner = get_planner(planner) if isinstance(planner, str) else planner
        planner = over_trees(planner, task.dataflow, self._allow, stripes)
        if "hosts" in needs_of(planner):
            self._measuring.latencies([(self._registry.name, host) for host in self._registry.hosts])
            own = {self._registry.name: self._capacity}
            task = task.but(hints=task.hints.measured({}, {**self._measuring.figures, **own}))
        return plan_with_probes(
            planner,
            task,
            cost_model_of(model),
            self._measuring.probe,
            sound=self._measuring.latencies,
            find=self._measuring.find,
        )

    def first_plan(self, request: PlanRequest) -> PlannedRun:
        """Return the first plan of a run. A mapping needs no plan.

        Raises UsageError for the name of a placement that an application cannot use.
        """
        dataflow, placement, options = request.dataflow, request.placement, request.planning
        adaptation, planner, hints = request.adaptation, options.planner, options.hints
        measured: Mapping[Link, LinkEstimate] = options.known or {}
        if not isinstance(placement, str):
            return PlannedRun(dataflow, placement, (), hints, measured, adaptation, planner)
        strategy = strategy_of(placement, request.stripes)
        if strategy.driver is not None:
            raise UsageError(
                f"operators under strategy {placement!r} are moved from outside, by thalweg run; an application calls"
                " Run.move"
            )
        if adaptation is None:
            adaptation, planner = strategy.adaptation, strategy.again
        task = self.task_of(request, self.begin(dataflow, lasting=request.lasting), hints)
        plan = self.plan(strategy.initial, task, options.model, request.stripes)
        result = plan.result
        if options.known is None:
            measured = plan.view.estimates
        if result.dataflow != dataflow:  # the planner chose the tree as well
            dataflow, hints = result.dataflow.validate(self._registry.peers), result.hints
        _, *beside = trees_of(result)
        return PlannedRun(dataflow, result.placement, tuple(beside), hints, measured, adaptation, planner)

    def first_ways(
        self, request: PlanRequest, planned: PlannedRun, graph: Dataflow, placement: Placement
    ) -> tuple[tuple[m.RoutePreference, ...], Mapping[Link, LinkEstimate]]:
        """Return the first networks of a run's partitions, and the known rates, with those measured for the choice."""
        if not request.joined:
            return (), planned.measured
        task = self._task_while(request, planned, graph).but(view=NetworkView(planned.measured))
        ways, view = first_ways(task, placement, self._measuring.probe)
        return ways, view.estimates if request.planning.known is None else planned.measured

    def replanner(
        self, request: PlanRequest, planned: PlannedRun, graph: Dataflow, label: str
    ) -> tuple[Replanner | None, Reorderable]:
        """Return the planner while data flows, with the operators that it may reorder. None: only hosts decide."""
        if not isinstance(planned.adaptation, GlobalMoves):
            return None, FIXED
        name, cost = label or request.name or "global", cost_model_of(request.planning.model)
        task = self._task_while(request, planned, graph)
        free = reorderable((graph.by_name[operator].code for operator in graph.operators), self._allow)
        return Replanner(task, cost, planned.adaptation, planned.planner, name), free

    def _task_while(self, request: PlanRequest, planned: PlannedRun, graph: Dataflow) -> Task:
        """Return the planning task of a run while data flows."""
        return self.task_of(request, graph, planned.hints and planned.hints.of(graph))

    def task_of(self, request: PlanRequest, dataflow: Dataflow, hints: Hints | None) -> Task:
        """Return the planning task of a run's graph, with the run's networks and an empty view."""
        asked = request.requested
        task = self.task(dataflow, hints, request.planning.costs)
        ways = {"networks": request.joined, "wanted_hz": asked.wanted_hz, "hops": asked.hops}
        return task.but(partitions=request.partitions, **ways)

    def begin(self, dataflow: Dataflow, *, lasting: bool = False) -> Dataflow:
        """Check a dataflow, and return it with its sinks pinned to the client. ``lasting``: its run has failover.

        Raises DataflowError or UsageError for a wrong dataflow, HostAbsentError if a pinned host is absent, RunError if
        the client is closed.
        """
        self._registry.check_open()
        expect(dataflow, Dataflow, "the argument dataflow is a Dataflow")
        check_codes(dataflow)
        dataflow.validate(self._registry.known)
        if lasting:
            self._registry.await_sources(dataflow)
        self._registry.check_there({node.name: node.pinned for node in dataflow.nodes if node.pinned}, lasting=lasting)
        return sinks_at(dataflow, self._registry.name)

    def outlasting(self, install: m.Install, failover: m.Failover | None, start: int) -> m.Install:
        """Return ``install`` with options of failover, for a run whose nodes begin with partition ``start``."""
        asked = check_failover(failover or m.Failover(), len(install.peers), self._registry.known)
        install = msgspec.structs.replace(install, failover=asked, version=self._registry.version)
        if not start:
            return install
        first = tuple([m.Start(node.name, start) for node in install.dataflow.nodes])
        most = None if install.partitions is None else start + install.partitions
        return msgspec.structs.replace(install, starts=first, partitions=most)

    def begin_here(self, dataflow: Dataflow, *, lasting: bool = False) -> Dataflow:
        """Check a dataflow as ``begin`` does.

        Raise UsageError also for a sink that is pinned to a host besides the client.
        """
        dataflow = self.begin(dataflow, lasting=lasting)
        for sink in dataflow.sinks:
            if dataflow.by_name[sink].pinned != self._registry.name:
                raise UsageError(f"sink {sink!r} is pinned to another host than this client {self._registry.name!r}")
        return dataflow

    def placed(self, dataflow: Dataflow, placement: Mapping[str, str], *, lasting: bool = False) -> Placement:
        """Return the placement completed with pins.

        Raise PlacementError for a wrong one, or for a sink away from the client.

        ``lasting``: the run has failover, and may begin without some hosts.
        """
        for sink in dataflow.sinks:
            if (where := placement.get(sink, self._registry.name)) != self._registry.name:
                raise PlacementError(f"the sink {sink!r} is placed on {where!r}; a sink is always at the client")
        sinks = dict.fromkeys(dataflow.sinks, self._registry.name)
        full = check_placement(dataflow, sinks | dict(placement), self._registry.known)
        self._registry.check_there(full, lasting=lasting)
        return full

    def going(self, stripes: Sequence[Stripe], parts: SplitGraph, *, lasting: bool = False) -> StripedGraph:
        """Return the completed trees of a stream and the graph above. ``parts``: the parts of the first tree's graph.

        Raises DataflowError if the trees do not have the same sources and sinks.
        """
        if len(stripes) == 1:
            return StripedGraph(tuple(stripes))
        first = stripes[0].dataflow
        trees = []
        upper = () if parts.upper is None else parts.upper.operators
        for tree in alike(stripes, upper):
            dataflow = self.begin_here(tree.dataflow, lasting=lasting)
            if dataflow.sources != first.sources or dataflow.sinks != first.sinks:
                raise DataflowError("stripes of a stream have the same sources and the same sink")
            check_below(dataflow, first, upper, self._allow)
            trees.append(Stripe(dataflow, self.placed(dataflow, tree.placement, lasting=lasting), tree.share))
        return divided(trees, upper)

    def above(
        self, install: m.Install, going: StripedGraph, failover: m.Failover | None, start: int
    ) -> m.Install | None:
        """Return the installation of the graph above the trees, or None without such a graph.

        ``install``: of the trees.

        No planner moves the operators of the graph above.
        """
        if going.upper is None:
            return None
        dataflow, placement = going.upper
        above = msgspec.structs.replace(
            install, dataflow=dataflow, locations=located(placement), moves=None, news=False, afresh=False
        )
        check_told(above)
        return self.outlasting(above, failover, start) if failover is not None or start else above

    def depth(self, trees: Sequence[Stripe], hints: Hints | None, known: Mapping[Link, LinkEstimate]) -> int:
        """Return the number of partitions under way over each edge of these trees (``planning.problem.depth``).

        Rates are those in ``known``, or are measured now. Latencies are measured now. Links of absent hosts are left
        out.
        """
        hosts = {self._registry.name, *self._registry.hosts}
        links = {link for link in links_of(trees) if hosts.issuperset(link)}
        unknown = links - known.keys()
        rates = {**known, **(self._measuring.probe(unknown) if unknown else {})}
        view = NetworkView(rates, self._measuring.latencies(links) if links else {})
        all_hints = []
        for tree in trees:
            full = hints is not None and {*tree.dataflow.sources, *tree.dataflow.operators} <= hints.output_bytes.keys()
            all_hints.append(hints if hints is not None and full else hints_of_code(tree.dataflow, self._allow))
        return depth_for(trees, all_hints, view)

    def task(self, dataflow: Dataflow, hints: Hints | None, costs: CostParameters | None) -> Task:
        """Return the planning task for a dataflow, with an empty view of the network."""
        known = hints or hints_of_code(dataflow, self._allow)
        return Task((dataflow,), self._registry.hosts, NetworkView({}), known, costs or MEASURED)

    def prepare(self, offered: QueryRequest, tree: tuple[Dataflow, Placement]) -> PreparedQuery:
        """Check a query for the run with the graph and placement ``tree``, and place the nodes that the run lacks.

        Raises UsageError for options that only the start of a run can have.
        """
        dataflow, hints = self.begin_here(offered.dataflow), offered.hints
        present, where = tree
        fixed = {name: where[run_name] for name, run_name in shared(present, dataflow).items()}
        apart: dict[str, float] = {}
        expect(0 if offered.radius_s is None else offered.radius_s, int | float, "radius_s is a number of seconds")
        if offered.radius_s is not None:
            hints = hints or hints_of_code(dataflow, self._allow)
            apart = too_far(self.task(dataflow, hints, None), fixed, self._measuring.coordinates(), offered.radius_s)
            fixed = {name: where[run_name] for name, run_name in shared(present, dataflow, apart).items()}
        placement = check_mapping(offered.placement)
        if isinstance(placement, str):
            strategy = get_strategy(placement)
            if strategy.driver is not None or strategy.adaptation is not None:
                raise UsageError(
                    f"strategy {placement!r} moves operators while a run goes on, and a run chooses such a strategy at"
                    " its start, for all of its queries; attach the query with a planner's name, as 'one-shot', or a"
                    " mapping"
                )
        if offered.hints is None and set(fixed) >= {*dataflow.operators}:
            placement = {} if isinstance(placement, str) else placement
        elif isinstance(placement, str):
            hints = hints or hints_of_code(dataflow, self._allow)
            still = [msgspec.structs.replace(node, pinned=fixed.get(node.name, node.pinned)) for node in dataflow.nodes]
            task = self.task(self.begin(Dataflow(tuple(still))), hints, None)
            plan = self.plan(strategy.initial, task, "critical-path").result
            if [node.inputs for node in plan.dataflow.nodes] != [node.inputs for node in still]:
                raise UsageError(
                    f"planner {placement!r} changes the tree, and the tree of a query stays; attach the query with a"
                    " mapping"
                )
            placement = plan.placement
        full = self.placed(dataflow, {**placement, **fixed})
        grafts = join(present, dataflow, full, 0, (), apart).grafts
        check_told(m.Propose(RunId("run"), 1, (), m.Shape(grafts, ())))
        return PreparedQuery(dataflow, full, hints, apart)
