"""One run in virtual time: planned, installed, adapted and delivered by the same core as on sockets.

``thalweg run --testbed sim`` and the simulations of sweeps use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from thalweg.emulation.traces.trace import Rates
from thalweg.emulation.virtual.config import Striped, WorldConfig
from thalweg.emulation.virtual.links import LinkRate, ShapedLink
from thalweg.emulation.virtual.world import CodeBook, World
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.runs.strategies import planned_interface
from thalweg.middleware.arithmetic import exp
from thalweg.middleware.client.steering.replanning import Replanner, first_ways, hints_of_code
from thalweg.middleware.client.stripes.stripes import divided, over_trees, searches_of, trees_of, with_state
from thalweg.middleware.dataflow import FIXED, Code, Dataflow, Node, check_placement
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, keeps_state, load_code, reorderable
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.outlook import Outlook
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView, links_between
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    Hints,
    Planner,
    ProbedPlan,
    SupportsHints,
    Task,
    bound_period_s,
)
from thalweg.middleware.planning.asking import Answers, Unheard, Unplaced, plan_probing
from thalweg.middleware.planning.problem.depth import depth_for, links_of
from thalweg.middleware.planning.problem.routes import HOPS
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell.node_code import ENDED, NodeCode, NodeResult, OwnCode
from thalweg.middleware.shell.values import size_of
from thalweg.operators import Source

Knows = Callable[[e.RequestPlan, float], NetworkView]
"""What a planner is told of the links when it is asked while data flows, at that time (seconds)."""
PATIENCE_S = 36_000.0  # limit of probes before a run, in virtual seconds: only a dead link takes longer


class Work(msgspec.Struct, frozen=True):
    """Dataflow of a run, and the planners' knowledge of it. ``allow``: packages whose code may be named.

    ``networks``, ``wanted_hz``, ``hops``: as for ``client.runs.run``. ``partitions``: length of the stream.
    """

    dataflow: Dataflow
    hosts: tuple[str, ...]
    hints: Hints
    costs: CostParameters
    model: CostModel
    allow: tuple[str, ...] = DEFAULT_ALLOW
    networks: Mapping[str, Network] = {}
    wanted_hz: float | None = None
    hops: int = HOPS
    partitions: int | None = None

    def task(self, view: NetworkView) -> Task:
        """Return the planning problem before a run."""
        task = Task((self.dataflow,), self.hosts, view, self.hints, self.costs, partitions=self.partitions)
        over = {"networks": dict(self.networks), "wanted_hz": self.wanted_hz, "hops": self.hops}
        return task.but(**over) if self.networks else task


def exactly(links: Mapping[Link, LinkRate], startup_s: float = 0.0) -> Knows:
    """Return a view of the true links at the time of the question. ``startup_s``: start-up cost of a message."""

    def knows(command: e.RequestPlan, now: float) -> NetworkView:
        view = _known(command, {link: rates.rate_at(now) for link, rates in links.items()})
        return view.with_latencies(_true_latencies(links, now, startup_s))

    return knows


def _true_latencies(links: Mapping[Link, LinkRate], now: float, startup_s: float) -> dict[Link, Latency]:
    """Return the true latencies of links with delays, for an empty message sent now."""
    return {
        link: Latency(startup_s + shaped.shape_at(now).delay_s, measured_at_s=now)
        for link, shaped in links.items()
        if isinstance(shaped, ShapedLink)
    }


def foreseen(links: Mapping[Link, Rates], horizon_s: float) -> Knows:
    """Return a view of the mean rates of links in the next ``horizon_s`` seconds."""

    def knows(command: e.RequestPlan, now: float) -> NetworkView:
        until_s = now + horizon_s
        return _known(command, {link: rates.bits_between(now, until_s) / horizon_s for link, rates in links.items()})

    return knows


def last_measured(hosts: Collection[str]) -> Knows:
    """Return a view of the last measurement of every link, however old, for a planner that looks ahead.

    Links without a measurement count as the slowest tenth of the measured links.
    """
    links = links_between(hosts)

    def knows(command: e.RequestPlan, now: float) -> NetworkView:
        assert command.past is not None
        last = {link: exp(samples[-1].log_rate) for link, samples in command.past.samples.items() if samples}
        low_bps = sorted(last.values())[len(last) // 10] if last else 1.0
        return _known(command, {link: last.get(link, low_bps) for link in links})

    return knows


def _known(command: e.RequestPlan, rates: Mapping[Link, float]) -> NetworkView:
    """Return rates as a view, with zero doubt for a planner that uses past measurements."""
    estimates = {link: LinkEstimate(rate_bps) for link, rate_bps in rates.items()}
    return NetworkView(estimates) if command.past is None else Outlook(estimates, dict.fromkeys(estimates, 0.0))


def plan_ahead(
    work: Work,
    planner: Planner,
    links: Mapping[Link, LinkRate],
    config: WorldConfig,
    *,
    truth: bool = False,
) -> ProbedPlan:
    """Place the dataflow by measurements before the start, or with ``truth`` by the true links at that time.

    Measurements begin at time 0 of ``links`` and take ``took_s``. The run begins no earlier than at their end.
    """
    planner = over_trees(planner, work.dataflow, work.allow)
    view = NetworkView({})
    if truth:
        view = NetworkView(
            {link: LinkEstimate(rates.rate_at(0.0)) for link, rates in links.items()},
            _true_latencies(links, 0.0, config.startup_s),
        )
    search = plan_probing(planner, work.task(view), work.model)
    world = World(work.hosts, links, _no_code, config)
    try:
        wanted = next(search)
        while True:
            answers: Answers = world.find(wanted, PATIENCE_S) if isinstance(wanted, Unplaced) else {}
            if not isinstance(wanted, Unplaced):
                answers = world.probe(wanted, PATIENCE_S, "latency" if isinstance(wanted, Unheard) else "bandwidth")
            wanted = search.send(answers)
    except StopIteration as done:
        plan: ProbedPlan = done.value
    check_placement(plan.result.dataflow, plan.result.placement, work.hosts)  # a user's planner may err
    return msgspec.structs.replace(plan, took_s=world.now)


def depth_ahead(work: Work, plan: ProbedPlan, links: Mapping[Link, LinkRate], config: WorldConfig) -> int:
    """Return the number of partitions under way over each edge of a plan, as ``Client.run`` measures it."""
    trees = trees_of(plan.result)
    wanted = links_of(trees)
    world = World(work.hosts, links, _no_code, config)
    rates = dict(plan.view.estimates)
    if unknown := wanted - rates.keys():
        rates |= world.probe(unknown, PATIENCE_S)
    view = NetworkView(rates, world.probe(wanted, PATIENCE_S, "latency") if wanted else {})
    all_hints = [part.hints or hints_of_code(part.dataflow, work.allow) for part in (plan.result, *plan.result.beside)]
    return depth_for(trees, all_hints, view)


def run_ahead(
    work: Work,
    strategy: Strategy,
    plan: ProbedPlan,
    partitions: int,
    world: World,
    *,
    label: str = "",
    knows: Knows | None = None,
) -> None:
    """Run a planned placement to its end in ``world``, which must be new.

    Time 0 of the run is the end of planning. ``knows``: view of planners while data flows. None: measurements.
    """
    hints, trees = plan.result.hints or work.hints, trees_of(plan.result)
    trees, above = divided(trees, with_state(work.dataflow, work.allow) if len(trees) > 1 else ())
    dataflow, hints = trees[0].dataflow, hints.of(trees[0].dataflow)
    if isinstance(strategy.adaptation, GlobalMoves):
        moves = strategy.adaptation
        view_of = None if knows is None else lambda command: knows(command, world.now)
        task = work.task(NetworkView({})).but(dataflows=(dataflow,), hints=hints)
        search = Replanner(task, work.model, moves, strategy.again, label, view_of)
        searches = searches_of(search, trees) if len(trees) > 1 else [search]
        world.answer = lambda command: searches[command.run.stripe or 0].answer(command)
    free = FIXED
    if strategy.driver is not None or isinstance(strategy.adaptation, GlobalMoves):
        free = reorderable((dataflow.by_name[name].code for name in dataflow.operators), work.allow)
    if strategy.driver is not None:
        strategy.check(dataflow)
        world.driver = RandomMover(strategy.driver, world, work.hosts, free.codes).on_delivered
    if work.networks:
        task = work.task(plan.view).but(dataflows=(dataflow,), hints=hints)
        placed = {**plan.result.placement, **{node.name: node.pinned for node in dataflow.nodes if node.pinned}}
        world.ways, _ = first_ways(task, placed, lambda wanted: {})
    known = {
        link: msgspec.structs.replace(estimate, measured_at_s=min(0.0, estimate.measured_at_s - plan.took_s))
        for link, estimate in plan.view.estimates.items()
    }
    world.needs = strategy.needs
    if len(trees) > 1:
        shares = tuple(tree.share for tree in trees)
        goes = Striped(tuple((tree.dataflow, tree.placement) for tree in trees), shares, above=above)
        world.run_stripes(goes, partitions, strategy.adaptation, label, known, free)
        return
    world.run(dataflow, plan.result.placement, partitions, strategy.adaptation, label, known, free)


MOST_BOUND = 64  # hosts; with more hosts, the bound takes longer than the run


def bound_s(work: Work, links: Mapping[Link, Rates], until_s: float, interface: str) -> float | None:
    """Return the period that no mixture of trees beats on links with their mean rates until ``until_s``.

    The result is None without a finite bound, if the dataflow is no tree, or with more than ``MOST_BOUND`` hosts. See
    ``planning.bound``: with ``single`` interfaces a run that used each link at its best moments could in principle be
    below.
    """
    if until_s <= 0 or len(work.hosts) > MOST_BOUND or work.dataflow.not_a_tree():
        return None
    means = {link: LinkEstimate(rates.bits_between(0.0, until_s) / until_s) for link, rates in links.items()}
    found_s = bound_period_s(work.task(NetworkView(means)), planned_interface(interface))
    return found_s if math.isfinite(found_s) else None


def _no_code(node: Node) -> NodeCode:
    raise AssertionError(f"{node.name} runs where only links are measured")


# --- code of nodes ------------------------------------------------------------------------------------


class _Sizes:
    """Bytes of a source's partitions, asked for once each, because a source may have no end."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.known: list[int | None] = []

    def at(self, index: int) -> int | None:
        known = self.known
        while len(known) <= index:
            known.append(self.source.partition_bytes(len(known)))
        return known[index]


class _SizedSource(NodeCode):
    """Source of which only sizes are known."""

    def __init__(self, sizes: _Sizes, bytes_per_s: float) -> None:
        self.sizes, self.bytes_per_s = sizes, bytes_per_s

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        size = self.sizes.at(index)
        return ENDED if size is None else NodeResult(size, size, size / self.bytes_per_s)


class _SizedOperator(NodeCode):
    """Operator of which only sizes and times are known, from its own hints."""

    def __init__(self, hints: SupportsHints, factor: float) -> None:
        self.hints, self.factor = hints, factor
        self.reorderable = bool(getattr(hints, "reorderable", False))

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        size = round(self.hints.output_size_bytes(inputs))
        return NodeResult(size, size, self.hints.compute_s(inputs) * self.factor)


class _Real(OwnCode):
    """Code of a node on real values. Its time is the stated one, because measured times differ from run to run."""

    def __init__(self, node: Node, allow: Collection[str], disk_bytes_per_s: float, factor: float) -> None:
        super().__init__(node, allow)
        self.disk_bytes_per_s, self.factor = disk_bytes_per_s, factor

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        result = super().make(index, inputs)
        seconds = 0.0
        if self.is_source:
            seconds = result.size_bytes / self.disk_bytes_per_s
        elif isinstance(self.code, SupportsHints):
            seconds = self.code.compute_s([float(size_of(value)) for value in inputs]) * self.factor
        return msgspec.structs.replace(result, seconds=seconds)


def real_code(allow: Collection[str], disk_bytes_per_s: float, factor: float = 1.0) -> CodeBook:
    """Return the nodes' own code. ``factor``: virtual seconds for each stated second of computing."""
    return lambda node: _Real(node, allow, disk_bytes_per_s, factor)


def sized_code(allow: Collection[str], disk_bytes_per_s: float, factor: float = 1.0) -> CodeBook:
    """Return code that only has the sizes and times that the nodes' code states without running.

    Raises UsageError for a source without partition sizes, and for an operator with state, which only real values give.
    """

    def open_node(node: Node) -> NodeCode:
        code = node.code
        assert code is not None
        if node.kind == "source":
            return _SizedSource(_sizes(code.use, msgspec.json.encode(code.params), tuple(allow)), disk_bytes_per_s)
        return _SizedOperator(_operator(code, allow), factor)

    return open_node


def _operator(code: Code, allow: Collection[str]) -> SupportsHints:
    operator = load_code(code, allow)
    if not isinstance(operator, SupportsHints):
        raise UsageError(f"operator {code.use!r} does not tell sizes (output_size_bytes, compute_s); add --bytes")
    if keeps_state(operator):
        raise UsageError(f"operator {code.use!r} has state, which only real values give; add --bytes")
    return operator


@lru_cache(maxsize=512)
def _sizes(use: str, params: bytes, allow: tuple[str, ...]) -> _Sizes:
    """Return the sizes of a source's partitions, which are the same under every placement."""
    source = load_code(Code(use, msgspec.json.decode(params)), allow)
    if not isinstance(source, Source):
        raise UsageError(f"source {use!r} does not tell the sizes of its partitions (partition_bytes); add --bytes")
    sizes = _Sizes(source)
    try:
        sizes.at(0)
    except OperatorError as error:
        raise UsageError(f"{error}; add --bytes") from None
    return sizes
