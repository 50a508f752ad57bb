"""Short virtual runs whose behaviour is recorded: one for each capability of the runtime, and some for pairs.

A run is a function that returns a ``Behaviour``. The docstring names the capability that the run covers. ``shows`` has
the least number of lines of each kind, so that a run fails if it does not use the capability. All control messages have
the same size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
from behaviour import Behaviour

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import Striped, WorldConfig
from thalweg.emulation.virtual.faults import BulkOutage, Crash, Cut, Fault, FaultPlan, Hostility, Slow, Stop, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.graphs import ALLOW, Timed, numbers
from thalweg.experiments.faults.stripes import OneStripe
from thalweg.experiments.faults.trial_code import FREE, MERGING, Counting
from thalweg.experiments.simulation.run import Work, plan_ahead, real_code, run_ahead, sized_code
from thalweg.experiments.simulation.virtual_process_events import BefallenWorld
from thalweg.middleware.client.steering.replanning import Replanner, first_ways, hints_of_code
from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable, complete_binary_tree
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Tariff
from thalweg.middleware.network.view import NET, Link, LinkEstimate, NetworkView, links_between
from thalweg.middleware.planning import CostParameters, Hints, Task, get_cost_model
from thalweg.middleware.planning.registry import AGAIN, Driver, RandomMoves, RandomReshapes, get_strategy
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves
from thalweg.middleware.protocol.split_graph import PlacedGraph, parted, split_graph

CONTROL_BYTES = 200
STARTUP_S = 0.005
HOSTS = ("h1", "h2", "h3", "h4", "h5", "h6", "client")  # sources are on the first four
RATES_BPS = (100e3, 250e3, 600e3, 1500e3)
SOURCE_BYTES, STATE_BYTES = 20_000, 18_000
SOURCE, OPERATOR = Code("source"), Code("operator")
SCENES = "thalweg.operators:SceneSource"  # an import path needs no installation


class Golden(NamedTuple):
    """Run with a description, the least number of lines by words, and the function that plays the run."""

    covers: str
    shows: Mapping[str, int]
    play: Callable[[], Behaviour]


RUNS: dict[str, Golden] = {}


def golden(name: str, **shows: int) -> Callable[[Callable[[], Behaviour]], Callable[[], Behaviour]]:
    """Add a run to the table. ``shows``: by words, with an underscore between them."""

    def add(play: Callable[[], Behaviour]) -> Callable[[], Behaviour]:
        assert play.__doc__ is not None and name not in RUNS
        RUNS[name] = Golden(play.__doc__, {words.replace("_", " "): count for words, count in shows.items()}, play)
        return play

    return add


# --- building blocks of the runs ------------------------------------------------------------------------


def links_of(hosts: Sequence[str], seed: int = 1, factor: float = 1.0) -> dict[Link, BandwidthTrace]:
    """Return links whose rates change every four seconds, for 32 s. No figure needs more than one multiplication."""
    dice = Random(seed)
    starts = np.arange(8, dtype=np.float64) * 4.0
    return {
        link: BandwidthTrace(" ".join(link), starts, np.array([dice.choice(RATES_BPS) * factor for _ in starts]))
        for link in links_between(hosts)
    }


def code_of(node: Node, length: int = 10**6) -> Counting:
    """Return code whose values list all inputs that they were made of."""
    return Counting(node, SOURCE_BYTES if node.kind == "source" else STATE_BYTES, length, 0.02)


def tree(code: Code = OPERATOR) -> tuple[Dataflow, dict[str, str]]:
    """Return a tree of four sources and three operators, and the placement at the start."""
    sources = [Node(f"s{i}", "source", (), SOURCE, f"h{i}") for i in range(1, 5)]
    operators = [Node("a", "operator", ("s1", "s2"), code), Node("b", "operator", ("s3", "s4"), code)]
    flow = Dataflow(
        (*sources, *operators, Node("c", "operator", ("a", "b"), code), Node("t", "sink", ("c",), None, "client"))
    )
    return flow, {
        **{source.name: source.pinned or "" for source in sources},
        "a": "h5",
        "b": "h4",
        "c": "h6",
        "t": "client",
    }


def world_of(
    seen: Behaviour,
    code: Callable[[Node], Any] = code_of,
    *faults: Fault,
    hosts: Sequence[str] = HOSTS,
    links: Mapping[Link, Any] | None = None,
    failover: m.Failover | None = None,
    **config: Any,
) -> FaultyWorld:
    """Return a world whose records and deliveries go to ``seen``."""
    settings = WorldConfig("independent", STARTUP_S, core=LIMITS, control_bytes=CONTROL_BYTES)
    settings = msgspec.structs.replace(settings, **config)
    rates = links_of((*hosts, *settings.guests)) if links is None else links
    world = FaultyWorld(hosts, rates, code, FaultPlan(1, faults), settings, on_record=seen.on_record)
    world.on_delivered, world.failover = seen.on_delivered, failover
    return world


WHOLE, ABOVE = -1, -2


def moving(world: FaultyWorld, driver: Driver, *free: Code, stripe: int = WHOLE) -> None:
    """Have the application move operators, or change a tree, at random after each partition."""
    target = world if stripe == WHOLE else OneStripe(world, None if stripe == ABOVE else stripe)
    mover, before = RandomMover(driver, target, HOSTS, free), world.driver
    world.driver = lambda: (before and before(), mover.on_delivered())[1]


class Steps:
    """Steps of the application, each after a number of delivered partitions: ``after_5=step``."""

    def __init__(self, world: FaultyWorld, **steps: Callable[[], object]) -> None:
        self._count, self._steps = 0, {int(name.removeprefix("after_")): step for name, step in steps.items()}
        world.driver = self._on_delivered

    def _on_delivered(self) -> None:
        self._count += 1
        step = self._steps.pop(self._count, None)
        if step is not None:
            step()


def ended(seen: Behaviour, world: FaultyWorld) -> Behaviour:
    """Add the end of a run to its behaviour, and return the behaviour."""
    seen.on_end(world)
    return seen


# --- dataflows ----------------------------------------------------------------------------------------


@golden("trees", delivered=25, transfer=100, over=1)
def trees() -> Behaviour:
    """A tree whose sources end; no operator moves."""
    seen = Behaviour()
    world = world_of(seen, lambda node: code_of(node, 25))
    world.run(*tree(), 10**6)
    return ended(seen, world)


def graph() -> tuple[Dataflow, dict[str, str]]:
    """Return a graph with shared nodes, a filter, a window and two sinks, and the placement at the start."""

    def operator(name: str, *inputs: str, **params: Any) -> Node:
        code = Code(f"{Timed.__module__}:Counting", {"name": name, "state_bytes": STATE_BYTES, **params})
        return Node(name, "operator", inputs, code)

    sources = [
        Node(name, "source", (), numbers(name), host) for name, host in (("s1", "h1"), ("s2", "h2"), ("s3", "h3"))
    ]
    operators = [
        operator("a", "s1", "s2"),
        operator("filter", "a", "s3", passed=60),
        operator("window", "a", rows=3, every=2),
        operator("b", "filter", "window"),
    ]
    sinks = [Node("t", "sink", ("b",), None, "client"), Node("u", "sink", ("a", "window"), None, "client")]
    where = {"s1": "h1", "s2": "h2", "s3": "h3", "a": "h4", "filter": "h5", "window": "h6", "b": "h5"}
    return Dataflow((*sources, *operators, *sinks)), {**where, "t": "client", "u": "client"}


def timed(node: Node) -> Timed:
    """Return the code of a node of a graph."""
    return Timed(node, SOURCE_BYTES, 0.01, 0.02)


def query(*inputs: str, name: str) -> tuple[Dataflow, dict[str, str]]:
    """Return a query with a new operator over nodes of the graph, and a placement."""
    flow, where = graph()
    below = set(inputs)
    for node in reversed(flow.nodes):
        below |= {*node.inputs} if node.name in below else set()
    nodes = [node for node in flow.nodes if node.name in below]
    code = Code(f"{Timed.__module__}:Counting", {"name": name, "state_bytes": STATE_BYTES})
    nodes += [Node(name, "operator", inputs, code), Node("t", "sink", (name,), None, "client")]
    return Dataflow(tuple(nodes)), {node.name: where.get(node.name, "h2") for node in nodes}


@golden("graphs", delivered=60, nothing=20, move_moved=5, over=1)
def graphs() -> Behaviour:
    """A graph with shared operators, a filter, a window and two sinks, whose operators the application moves."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed)
    moving(world, RandomMoves(8, 1))
    world.run(*graph(), 30)
    return ended(seen, world)


def _queries(world: FaultyWorld) -> None:
    """Attach two queries during the run, and detach one of them and the query of the start."""
    Steps(
        world,
        after_5=lambda: world.attach(1, *query("a", "s3", name="x")),
        after_9=lambda: world.attach(2, *query("filter", name="y")),
        after_30=lambda: world.detach(1),
        after_40=lambda: world.detach(0),
    )


@golden("queries", delivered=60, query_begun=2, query_left=2, over=1)
def queries() -> Behaviour:
    """Two queries join a graph and share its nodes; one of them leaves, and so does the query of the start."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed)
    _queries(world)
    world.run(*graph(), 40)
    return ended(seen, world)


def _subscribers(world: FaultyWorld) -> None:
    """Have two other clients subscribe, and one of them unsubscribe."""
    Steps(
        world,
        after_1=lambda: world.allow(world.guests),
        after_4=lambda: world.subscribe("g1", 1, "a"),
        after_8=lambda: world.subscribe("g2", 2, "b"),
        after_40=lambda: world.unsubscribe("g1", 1),
    )


@golden("subscribers", delivered=80, query_begun=2, query_left=1, over=1)
def subscribers() -> Behaviour:
    """Two other clients subscribe to nodes of a graph; one leaves, the other takes all until the end."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed, guests=("g1", "g2"))
    _subscribers(world)
    world.run(*graph(), 40)
    return ended(seen, world)


@golden("ahead", delivered=40, over=1)
def ahead(depth: int = 4) -> Behaviour:
    """A tree with four partitions under way over each edge, on links with long delays."""
    seen = Behaviour()
    shapes = [(0.0, LinkShape(1.0, 0.3))]
    links = {link: ShapedLink(rates, shapes, " ".join(link)) for link, rates in links_of(HOSTS).items()}
    world = world_of(seen, links=links, ahead=depth)
    world.run(*tree(), 40)
    return ended(seen, world)


@golden("images", delivered=12, move_moved=2, over=1)
def images() -> Behaviour:
    """Images of three sites, composed by the real code of the operators, two of which have state and move."""
    seen = Behaviour()
    scene = {"sites": 3, "seed": 1, "mean_bytes": 20_000.0, "length": 12}
    sources = {f"h{site + 1}": Code(SCENES, {"site": site, **scene}) for site in range(3)}
    flow = complete_binary_tree(sources, Code("thalweg.operators:Running", {"rule": "max"}), "client")
    where = {node.name: node.pinned or "h5" for node in flow.nodes}
    world = world_of(seen, real_code(seen.allow, 1e6))
    moving(world, RandomMoves(3, 2))
    world.run(flow, where, 12)
    return ended(seen, world)


# --- moves and trees ----------------------------------------------------------------------------------


@golden("moves asked for by the application", delivered=40, move_moved=10, change_committed=4, over=1)
def moves() -> Behaviour:
    """Operators with state move together at a barrier, as the application asks."""
    seen = Behaviour()
    world = world_of(seen)
    moving(world, RandomMoves(12, 3))
    world.run(*tree(), 40)
    return ended(seen, world)


@golden("reshaping", delivered=60, tree_reshaped=4, over=1)
def reshaping() -> Behaviour:
    """The tree is replaced by others that combine the same sources, and operators move in between."""
    seen = Behaviour()
    world = world_of(seen)
    moving(world, RandomReshapes(5, 4, 4), FREE)
    world.run(*tree(FREE), 60, reorderable=Reorderable((FREE,), ()))
    return ended(seen, world)


@golden("reshaping of operators with state", delivered=60, tree_reshaped=4, merge=4, over=1)
def merging() -> Behaviour:
    """The tree is replaced by others whose operators take over the merged states of those before."""
    seen = Behaviour()
    world = world_of(seen)
    moving(world, RandomReshapes(5, 4, 5), MERGING)
    world.run(*tree(MERGING), 60, reorderable=Reorderable((MERGING,), (MERGING,)))
    return ended(seen, world)


# --- planners, and who decides on moves ---------------------------------------------------------------


def delayed(hosts: Sequence[str], later_s: float = 0.0, rate_bps: float = 2e6) -> dict[Link, ShapedLink]:
    """Return links with a random delay for each pair of hosts. Delays of h5 grow by ``later_s`` after half a minute."""
    dice = Random(7)
    rates, delays_s = BandwidthTrace.constant("steady", rate_bps), {}
    for near, far in itertools.combinations(hosts, 2):
        delays_s[near, far] = delays_s[far, near] = dice.choice((0.01, 0.03, 0.06, 0.1, 0.15))
    links = {}
    for (source, target), delay_s in delays_s.items():
        more_s = later_s if "h5" in (source, target) else 0.0
        shapes = [(0.0, LinkShape(rate_bps, delay_s)), (30.0, LinkShape(rate_bps, delay_s + more_s))]
        links[Link(source, target)] = ShapedLink(rates, shapes, f"{source} {target}")
    return links


def planned(
    name: str,
    partitions: int = 12,
    *,
    cost: str = "critical-path",
    links: Mapping[Link, Any] | None = None,
    servers: int = 6,
    bytes_per_image: float = 40_000.0,
    **options: Any,
) -> Behaviour:
    """Plan and run the composition of images of four sites by a strategy, with the hosts' measurements. Sizes only."""
    seen, hosts = Behaviour(), (*HOSTS[:servers], "client")
    scene = {"sites": 4, "seed": 2, "mean_bytes": bytes_per_image, "length": partitions}
    sources = {f"h{site + 1}": Code(SCENES, {"site": site, **scene}) for site in range(4)}
    flow = complete_binary_tree(
        sources, Code("thalweg.operators:Composite", {"rule": "max", "fit": "nested"}), "client"
    )
    costs = CostParameters(startup_s=STARTUP_S, disk_bytes_per_s=3e6)
    work = Work(flow, hosts, hints_of_code(flow), costs, get_cost_model(cost))
    strategy = get_strategy(name, **options)
    rates = links_of(hosts, 5) if links is None else links
    config = WorldConfig("independent", STARTUP_S, core=LIMITS, control_bytes=CONTROL_BYTES)
    plan = plan_ahead(work, strategy.initial, rates, config)
    seen.on_plan(plan.result.dataflow, plan.result.placement, plan.result.cost_s)
    world = world_of(seen, sized_code(seen.allow, 3e6), hosts=hosts, links=rates)
    run_ahead(work, strategy, plan, partitions, world)
    assert world.planner_failed is None, world.planner_failed
    return ended(seen, world)


@golden("steering by the client", delivered=40, plan=6, plan_propose=1, move_moved=1, over=1)
def global_() -> Behaviour:
    """The client plans again every 5 s, and operators move at a barrier (``global``)."""
    return planned("global", 40, period_s=5.0)


@golden("steering by epochs", delivered=60, epoch=20, move_moved=2, over=1)
def local() -> Behaviour:
    """The host of each operator decides at the end of an epoch, also on hosts at random (``local``)."""
    return planned("local", 60, period_s=3.0, k=2, gate=False, seed=3)


@golden("steering by coordinates", delivered=60, look=6, move_moved=1, over=1)
def space() -> Behaviour:
    """The host of each operator looks for a better one by coordinates, as delays change (``cost-space-local``)."""
    return planned(
        "cost-space-local", 120, links=delayed(HOSTS, 1.0, 2e5), period_s=10.0, displacement_s=0.005, saving=0.05
    )


@golden("planner download-all", delivered=12, plan_first=1, over=1)
def download_all() -> Behaviour:
    """All operators run at the client."""
    return planned("download-all")


@golden("planner fixed", delivered=12, plan_first=1, over=1)
def fixed() -> Behaviour:
    """All operators run where a placement says."""
    flow = complete_binary_tree(dict.fromkeys(HOSTS[:4], SOURCE), OPERATOR, "client")
    return planned("fixed", placement={node.name: node.pinned or "h3" for node in flow.nodes})


@golden("planner one-shot", delivered=12, plan_first=1, over=1)
def one_shot() -> Behaviour:
    """The search of the critical path before the run."""
    return planned("one-shot")


@golden("planner exhaustive", delivered=12, plan_first=1, over=1)
def exhaustive() -> Behaviour:
    """The best of all placements on four hosts and the client, by the expected period."""
    return planned("exhaustive", cost="expected-period", servers=4)


@golden("planner cost-space", delivered=100, plan=3, over=1)
def cost_space() -> Behaviour:
    """Placement by latencies, again while they change."""
    return planned("cost-space", 100, links=delayed(HOSTS, 1.0), period_s=10.0, saving=0.05)


@golden("planner cost-space-once", delivered=12, plan_first=1, over=1)
def cost_space_once() -> Behaviour:
    """Placement by latencies before the run."""
    return planned("cost-space-once", links=delayed(HOSTS))


@golden("planner odp", delivered=60, plan=2, over=1)
def odp() -> Behaviour:
    """The optimal placement by usage, solved again with the rates that hosts measure."""
    return planned("odp", 60, links=delayed(HOSTS), period_s=10.0, looks=2)


@golden("planner thalweg", delivered=60, plan=3, tree_reshaped=1, over=1)
def thalweg() -> Behaviour:
    """Shape and placement for the shortest period, planned again by forecasts while data flows."""
    return planned("thalweg", 60, cost="period", period_s=8.0, horizon_s=30.0)


@golden("planner thalweg-once", delivered=12, plan_first=1, over=1)
def thalweg_once() -> Behaviour:
    """Shape and placement for the shortest period, before the run."""
    return planned("thalweg-once", cost="period")


@golden("planner thalweg over several trees", delivered=60, carried=60, over=1)
def thalweg_stripes() -> Behaviour:
    """Two trees that share the links, planned before the run."""
    return planned("thalweg-once", 60, cost="period", stripes=2)


# --- several trees ------------------------------------------------------------------------------------


def striped(seen: Behaviour, world: FaultyWorld, partitions: int, *, above: bool = False) -> Behaviour:
    """Run three trees with operators on other hosts. With ``above`` an operator with state runs above the trees."""
    flow, where = tree(FREE)
    if above:
        nodes = [node for node in flow.nodes if node.kind != "sink"]
        nodes += [Node("top", "operator", ("c",), OPERATOR), Node("t", "sink", ("top",), None, "client")]
        flow, where = Dataflow(tuple(nodes)), where | {"top": "h5"}
    spread = [where | dict(zip("abc", hosts, strict=True)) for hosts in (("h5", "h6", "h5"), ("h1", "h3", "h6"))]
    placed = [PlacedGraph(flow, placement) for placement in (where, *spread)]
    top = None
    if above:
        divided = [parted(tree, split_graph(tree.dataflow, ["top"], "client"), "client") for tree in placed]
        placed, top = [below for below, _ in divided], divided[0][1]
    trees = tuple((tree.dataflow, tree.placement) for tree in placed)
    free = Reorderable((FREE,), ())
    world.run_stripes(Striped(trees, above=top and (top.dataflow, top.placement)), partitions, reorderable=free)
    return ended(seen, world)


@golden("stripes", delivered=60, carried=60, over=1)
def stripes() -> Behaviour:
    """A stream goes over three trees at once."""
    seen = Behaviour()
    return striped(seen, world_of(seen), 60)


@golden("stripes with an operator above", delivered=60, carried=60, move_moved=1, over=1)
def stripes_above() -> Behaviour:
    """An operator with state runs once above three trees, and moves."""
    seen = Behaviour()
    world = world_of(seen)
    moving(world, RandomMoves(2, 1), stripe=ABOVE)
    return striped(seen, world, 60, above=True)


@golden("stripes and reshaping", delivered=80, carried=80, tree_reshaped=2, over=1)
def stripes_reshaped() -> Behaviour:
    """Two of three trees are replaced while the stream goes on."""
    seen = Behaviour()
    world = world_of(seen)
    for stripe in range(2):
        moving(world, RandomReshapes(2, 0, stripe), FREE, stripe=stripe)
    return striped(seen, world, 80)


# --- networks -----------------------------------------------------------------------------------------

CHAIN = Dataflow(
    (
        Node("s", "source", (), SOURCE, "h1"),
        Node("o", "operator", ("s",), OPERATOR, "h2"),
        Node("t", "sink", ("o",), None, "client"),
    )
)
CHAINED = {"s": "h1", "o": "h2", "t": "client"}
NETWORKS = {
    NET: Network(TARIFFS["public"]),
    "fast": Network(Tariff("dedicated", per_gb=0.2), {("h2", "client"): 1.2e6, ("client", "h2"): 1.2e6}),
}


def over_networks(
    seen: Behaviour,
    world: FaultyWorld,
    flow: Dataflow,
    where: dict[str, str],
    networks: Mapping[str, Network],
    partitions: int,
    hops: int = 2,
) -> Behaviour:
    """Run a dataflow whose client chooses networks every 10 s."""
    known = {link: LinkEstimate(rates.rate_at(0.0)) for link, rates in world.links.links.items()}
    view = NetworkView({Link(*link): estimate for link, estimate in known.items()})
    hints = Hints({name: float(SOURCE_BYTES) for name in (*flow.sources, *flow.operators)})
    task = Task((flow,), world.names, view, hints, networks=networks, hops=hops)
    moves = GlobalMoves(period_s=10.0)
    world.answer = Replanner(task, get_cost_model("period"), moves, AGAIN).answer
    world.ways, _ = first_ways(task, where, lambda links: {})
    world.run(flow, where, partitions, moves)
    return ended(seen, world)


def steady(rate_bps: float) -> BandwidthTrace:
    """Return a link with a constant rate."""
    return BandwidthTrace.constant("steady", rate_bps)


def public_and_rented() -> dict[Link, BandwidthTrace]:
    """Return links of three hosts, and a rented link to the client. The public link is slow from 30 s to 60 s."""
    falls = BandwidthTrace("falls", np.array([0.0, 30.0, 60.0]), np.array([1e6, 5e3, 1e6]), 10_000.0)
    links: dict[Link, BandwidthTrace] = {link: steady(1e6) for link in links_between(("h1", "h2", "client"))}
    return links | {
        Link("h2", "client"): falls,
        Link("h2", "client", "fast"): steady(1e6),
        Link("client", "h2", "fast"): steady(1e6),
    }


@golden("two networks", delivered=300, transfer_fast=50, change_committed=2, over=1)
def networks() -> Behaviour:
    """Partitions change to a rented network while the public one is slow, and back."""
    seen = Behaviour()
    world = world_of(seen, hosts=("h1", "h2", "client"), links=public_and_rented())
    return over_networks(seen, world, CHAIN, CHAINED, NETWORKS, 400)


@golden("relays", delivered=60, relay_fast=60, transfer_fast=30, over=1)
def relays() -> Behaviour:
    """Partitions go over two relays on rented links, faster than on the public network."""
    seen, hosts = Behaviour(), ("h1", "h2", "h3", "client")
    way = [("h1", "h2"), ("h2", "h3"), ("h3", "client")]
    rented = {pair: 2e6 for link in way for pair in (link, link[::-1])}
    links = {link: steady(2e5) for link in links_between(hosts)}
    links |= {Link(*pair, "fast"): steady(rate_bps) for pair, rate_bps in rented.items()}
    known = {NET: Network(TARIFFS["public"]), "fast": Network(TARIFFS["dedicated"], rented)}
    flow = Dataflow((CHAIN.nodes[0], Node("t", "sink", ("s",), None, "client")))
    world = world_of(seen, hosts=hosts, links=links)
    return over_networks(seen, world, flow, {"s": "h1", "t": "client"}, known, 60, hops=3)


# --- faults, and hosts that come and go ---------------------------------------------------------------

FAILOVER = m.Failover(every=4, wait_s=5.0)


@golden("faults that end", delivered=60, fault=2, move_moved=5, over=1)
def faults() -> Behaviour:
    """Messages are lost, late and doubled, a host is cut off, one stops, one is slow; nothing is lost or doubled."""
    seen = Behaviour()
    storm = Storm(drop=0.1, duplicate=0.1, delay=0.1, unconfirmed=0.1)
    cuts = Cut(("h5",), 10.0, 6.0), BulkOutage("h6", "client", 20.0, 5.0)
    world = world_of(seen, code_of, storm, *cuts, Stop("h4", 30.0, 3.0), Slow("h3", 5.0, 10.0, 20.0))
    moving(world, RandomMoves(8, 6))
    world.run(*tree(), 60)
    return ended(seen, world)


@golden("a host is lost", delivered=5, failed=1)
def lost() -> Behaviour:
    """Without failover the run ends when the host of an operator is lost, and says which."""
    seen = Behaviour()
    world = world_of(seen, code_of, Crash("h6", 15.0))
    world.run(*tree(), 60)
    return ended(seen, world)


@golden("a hostile host", delivered=60, move_moved=4, over=1)
def hostile(every_s: float = 0.2) -> Behaviour:
    """A host that has no part in the run sends the others messages of all kinds, and nothing changes."""
    seen = Behaviour()
    world = world_of(seen, code_of, Hostility("stranger", 1.0, 60.0, every_s))
    moving(world, RandomMoves(5, 7))
    world.run(*tree(), 60)
    return ended(seen, world)


@golden("failover", delivered=40, checkpoint=5, recovery=1, over=1)
def failover() -> Behaviour:
    """A host with an operator crashes for good: the run goes on from replicas, as another generation."""
    seen = Behaviour()
    world = world_of(seen, code_of, Crash("h6", 15.0), failover=FAILOVER)
    world.run(*tree(), 40)
    return ended(seen, world)


@golden("failover with a host that returns", delivered=60, recovery=2, host_joined=1, over=1)
def failover_returns() -> Behaviour:
    """A host with a source crashes and is back, and later one with an operator."""
    seen = Behaviour()
    crashes = Crash("h2", 12.0, 3.0), Crash("h6", 60.0, 20.0)
    world = world_of(seen, code_of, *crashes, failover=FAILOVER)
    world.run(*tree(), 60)
    return ended(seen, world)


@golden("failover without a source", delivered=60, recovery=2, over=1)
def failover_absent() -> Behaviour:
    """Two hosts with sources crash for good: a stand-in takes the place of one source, and the other is missing."""
    seen = Behaviour(ALLOW)
    flow, where = graph()
    changed = {"s1": {"stand_ins": ("h4",)}, "filter": {"missing": "nothing"}}
    nodes = [msgspec.structs.replace(node, **changed.get(node.name, {})) for node in flow.nodes]
    world = world_of(seen, timed, Crash("h1", 10.0), Crash("h3", 60.0), failover=FAILOVER)
    world.run(Dataflow(tuple(nodes)), where, 40)
    return ended(seen, world)


@golden("hosts join and are drained", delivered=60, host_joined=1, host_drained=1, move_moved=1, over=1)
def membership() -> Behaviour:
    """A host joins the run, another one is drained, and a third is killed and started again."""
    seen = Behaviour()
    deeds = [Deed(8.0, "h6", "join"), Deed(15.0, "h5", "drain"), Deed(40.0, "h4", "crash"), Deed(45.0, "h4", "restart")]
    flow, where = tree()
    settings = WorldConfig("independent", STARTUP_S, core=LIMITS, control_bytes=CONTROL_BYTES)
    world = BefallenWorld(
        HOSTS, links_of(HOSTS), code_of, settings, deeds=deeds, told=lambda *deed: None, on_record=seen.on_record
    )
    world.on_delivered, world.failover = seen.on_delivered, FAILOVER
    world.run(flow, where | {"c": "h5"}, 60)
    return ended(seen, world)


# --- pairs --------------------------------------------------------------------------------------------


@golden("failover and queries", delivered=60, query_begun=2, query_left=2, recovery=1, over=1)
def failover_queries() -> Behaviour:
    """A host crashes while two queries share a graph, and both go on."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed, Crash("h4", 18.0), failover=FAILOVER)
    _queries(world)
    world.run(*graph(), 40)
    return ended(seen, world)


@golden("failover and subscribers", delivered=80, query_begun=2, recovery=1, over=1)
def failover_subscribers() -> Behaviour:
    """A host crashes while two other clients subscribe, and they go on."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed, Crash("h4", 12.0), failover=FAILOVER, guests=("g1", "g2"))
    _subscribers(world)
    world.run(*graph(), 40)
    return ended(seen, world)


@golden("failover and stripes", delivered=80, carried=80, recovery=1, over=1)
def failover_stripes() -> Behaviour:
    """A host with an operator above three trees crashes, and so does one with operators of one tree."""
    seen = Behaviour()
    world = world_of(seen, code_of, Crash("h5", 12.0), Crash("h6", 70.0, 5.0), failover=FAILOVER)
    return striped(seen, world, 80, above=True)


@golden("failover and two networks", delivered=150, transfer_fast=20, recovery=1, over=1)
def failover_networks() -> Behaviour:
    """A host that a rented link leads to crashes and is back while data goes over two networks."""
    seen = Behaviour()
    crash = Crash("h2", 40.0, 3.0)
    world = world_of(seen, code_of, crash, hosts=("h1", "h2", "client"), links=public_and_rented(), failover=FAILOVER)
    return over_networks(seen, world, CHAIN, CHAINED, NETWORKS, 200)


@golden("ahead and reshaping", delivered=60, tree_reshaped=3, merge=3, over=1)
def ahead_reshaping() -> Behaviour:
    """Trees of operators with state are replaced with four partitions under way over each edge."""
    seen = Behaviour()
    world = world_of(seen, ahead=4)
    moving(world, RandomReshapes(4, 2, 8), MERGING)
    world.run(*tree(MERGING), 80, reorderable=Reorderable((MERGING,), (MERGING,)))
    return ended(seen, world)


@golden("failover and ahead", delivered=60, recovery=1, checkpoint=5, move_moved=1, over=1)
def failover_ahead() -> Behaviour:
    """A host crashes with four partitions under way over each edge, while operators move."""
    seen = Behaviour()
    world = world_of(seen, code_of, Crash("h6", 15.0, 4.0), failover=FAILOVER, ahead=4)
    moving(world, RandomMoves(6, 9))
    world.run(*tree(), 60)
    return ended(seen, world)


@golden("queries and moves", delivered=60, query_begun=2, move_moved=4, over=1)
def queries_moves() -> Behaviour:
    """Operators move by epochs and as the application asks, while two queries share the graph."""
    seen = Behaviour(ALLOW)
    world = world_of(seen, timed)
    _queries(world)
    moving(world, RandomMoves(6, 2))
    world.run(*graph(), 40, LocalMoves(period_s=3.0, k=2, gate=False, seed=1))
    return ended(seen, world)
