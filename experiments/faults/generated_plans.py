"""Draw of a fault plan's trial from a seed: hosts, links, a tree or graph, its placement, moves, and the faults."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Container, Iterable, Sequence
from random import Random

import msgspec
import numpy as np

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import Striped
from thalweg.emulation.virtual.faults import FaultPlan, draw_gray, draw_plan
from thalweg.emulation.virtual.links import LinkRate
from thalweg.experiments.faults.graphs import STATES, Timed, coded, draw_graph
from thalweg.experiments.faults.networks import NAMES, Joined, draw_networks
from thalweg.experiments.faults.queries import GUESTS, Coming, Subscribing, draw_death, draw_queries, draw_subscriptions
from thalweg.experiments.faults.stripes import draw_stripes, topped
from thalweg.experiments.faults.trial_code import DISK_S, FREE, MERGING, Counting
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.network.view import Link, links_between
from thalweg.middleware.planning.registry import Driver, RandomMoves, RandomReshapes
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves, LocalCost, LocalMoves

CLIENT = "client"
RESHAPED = (2, 3)  # of every six seeds: most operators are free, and the tree changes at random
MERGED = (3, 8)  # of every twelve seeds, among the reshaped: the free operators have state
ABOUT_S = 25.0  # duration of most runs; faults make runs longer
RESTLESS_S = 3.0  # between two decisions of an operator that moves without need
COMING_BYTES = 20_000  # of a partition of a query's own source
LOCAL_COSTS: tuple[LocalCost, ...] = ("critical-path", "period", "expected-period")


class Trial(msgspec.Struct, frozen=True):
    """Trial that a seed draws, without its faults."""

    hosts: tuple[str, ...]
    links: dict[Link, LinkRate]
    dataflow: Dataflow
    placement: Placement
    adaptation: Adaptation | None
    driver: Driver | None  # moves operators or changes the tree, at random
    partitions: int
    lengths: dict[str, int]  # of the sources' streams that end
    sizes: dict[str, int]  # bytes of a source's partitions, or of an operator's state
    compute_s: float
    interface: str
    graph: bool
    queries: tuple[Coming, ...]  # attached while the graph runs
    leaves: int | None  # partitions after which the first query leaves
    subscriptions: tuple[Subscribing, ...]  # of other clients
    striped: Striped | None = None  # the trees of the stream, and the upper graph
    joined: Joined = Joined()  # further networks


def trial_of(plan: FaultPlan) -> Trial:
    """Draw the trial of a plan, with further networks if the plan has them."""
    drawn = draw_striped_trial(plan.seed, spares=plan.spares) if plan.stripes else draw_trial(
        plan.seed, graph=plan.graph, spares=plan.spares
    )  # fmt: skip
    if not plan.networks:
        return drawn
    joined = draw_networks(plan.seed, drawn.hosts, _draw_link)
    return msgspec.structs.replace(drawn, joined=joined, links={**drawn.links, **joined.links})


def draw_striped_trial(seed: int, *, spares: bool = False) -> Trial:
    """Draw the trial of a stream over several trees. Equal seeds draw equal trials.

    ``spares``: some sources have stand-ins.
    """
    dice = Random(f"{seed} stripes")
    hosts = (*(f"h{i}" for i in range(1, dice.randint(3, 6))), CLIENT)
    tree = draw_tree(dice, hosts, dice.randint(1, 4))
    free = [node if node.kind != "operator" else msgspec.structs.replace(node, code=FREE) for node in tree.nodes]
    dataflow = topped(dice, Dataflow(tuple(free)), CLIENT)
    if spares:
        dataflow = spared(seed, dataflow, hosts, graph=False)
    placement = {node.name: node.pinned or dice.choice(hosts) for node in dataflow.nodes}
    striped = draw_stripes(dice, dataflow, placement, hosts, CLIENT)
    sizes = {name: int(10 ** dice.uniform(3.3, 5)) for name in dataflow.sources}
    sizes |= {name: dice.choice(STATES) for name in dataflow.operators}
    partitions, ends = dice.randint(15, 45), dice.random() < 0.2
    adaptation, driver = _draw_moves_of_stripes(dice, seed)
    return Trial(
        hosts=hosts,
        links={link: _draw_link(dice, " ".join(link)) for link in links_between(hosts)},
        dataflow=dataflow,
        placement=placement,
        adaptation=adaptation,
        driver=driver,
        partitions=10**6 if ends else partitions,
        lengths={name: partitions for name in dataflow.sources if ends},
        sizes=sizes,
        compute_s=round(10 ** dice.uniform(-3, -1), 4),
        interface=dice.choice(["single", "independent"]),
        graph=False,
        queries=(),
        leaves=None,
        subscriptions=(),
        striped=striped,
    )


def draw_trial(seed: int, *, graph: bool = False, spares: bool = False) -> Trial:
    """Draw hosts, links, tree (or graph), placement and moves of a trial. Equal seeds draw equal trials.

    ``spares``: some sources have stand-ins, and some operators of graphs may go on without their sources.
    """
    dice = Random(f"{seed} graph" if graph else f"{seed} trial")
    hosts = (*(f"h{i}" for i in range(1, dice.randint(3, 6))), CLIENT)
    dataflow = draw_graph(dice, hosts, CLIENT) if graph else draw_tree(dice, hosts, dice.randint(1, 5))
    reshaped = not graph and seed % 6 in RESHAPED
    trees = Random(f"{seed} trees")
    if reshaped:
        code = MERGING if seed % 12 in MERGED else FREE
        dataflow = Dataflow(tuple(freed(trees, node, code) for node in dataflow.nodes))
    sizes = {name: int(10 ** dice.uniform(3.3, 5)) for name in dataflow.sources}
    sizes |= {name: dice.choice(STATES) for name in dataflow.operators}
    placement = {node.name: node.pinned or dice.choice(hosts) for node in dataflow.nodes}
    partitions, ends, lengths = _draw_lengths(dice, dataflow.sources, graph=graph)
    links = {link: _draw_link(dice, " ".join(link)) for link in links_between(hosts)}
    if graph:
        dataflow = coded(dataflow, seed, sizes, lengths)
    if spares:
        dataflow = spared(seed, dataflow, hosts, graph=graph)
    adaptation, driver = _draw_reshapes(trees, seed) if reshaped else _draw_moves(dice, seed)
    queries, leaves = draw_queries(seed, dataflow, hosts, partitions, ends=ends) if graph else ((), None)
    subscriptions = draw_subscriptions(seed, partitions) if graph else ()
    if subscriptions:
        dice = Random(f"{seed} links of guests")  # used for the remaining draws as well
        links |= _draw_links_of_guests(dice, hosts, links)
    return Trial(
        hosts=hosts,
        links=links,
        dataflow=dataflow,
        placement=placement,
        adaptation=adaptation,
        driver=driver,
        partitions=10**6 if ends else partitions,
        lengths=lengths,
        sizes=sizes,
        compute_s=round(10 ** dice.uniform(-3, -1), 4),
        interface=dice.choice(["single", "independent"]),
        graph=graph,
        queries=queries,
        leaves=leaves,
        subscriptions=subscriptions,
    )


def _draw_lengths(dice: Random, sources: Iterable[str], *, graph: bool) -> tuple[int, bool, dict[str, int]]:
    """Return the number of partitions, whether the sources' streams end by themselves, and their lengths."""
    partitions = dice.randint(15, 45)
    ends = dice.random() < 0.2
    lengths = {name: partitions + (dice.randint(0, 9) if graph else 0) for name in sources if ends}
    return partitions, ends, lengths


def _draw_links_of_guests(dice: Random, hosts: Sequence[str], links: Container[Link]) -> dict[Link, LinkRate]:
    """Return the rates of the guests' links that are not drawn yet."""
    return {link: _draw_link(dice, " ".join(link)) for link in links_between((*hosts, *GUESTS)) if link not in links}


def draw_tree(dice: Random, hosts: Sequence[str], sources: int) -> Dataflow:
    """Draw a tree of any shape with fan-in 1 to 4 over a number of sources on random hosts."""
    nodes = [Node(f"s{i}", "source", (), Code("source"), dice.choice(hosts)) for i in range(sources)]
    loose = [node.name for node in nodes]
    count = itertools.count()
    while len(loose) > 1 or dice.random() < 0.4 or len(nodes) < 3:
        inputs = tuple(dice.sample(loose, min(len(loose), dice.randint(1, 4))))
        name = f"o{next(count)}"
        nodes.append(Node(name, "operator", inputs, Code("operator")))
        loose = [other for other in loose if other not in inputs] + [name]
    nodes.append(Node("t", "sink", (loose[0],), None, CLIENT))
    return Dataflow(tuple(nodes)).validate(hosts)


def _draw_link(dice: Random, name: str) -> LinkRate:
    """Draw the rates of a link: 0.4 to 40 Mbit/s, with a new rate every few seconds."""
    level = dice.uniform(5.6, 7.6)
    rates = np.array([10 ** (level + dice.gauss(0, 0.3)) for _ in range(8)])
    return BandwidthTrace(name, np.arange(8, dtype=np.float64) * dice.uniform(2.0, 12.0), rates)


def spared(seed: int, flow: Dataflow, hosts: Sequence[str], *, graph: bool) -> Dataflow:
    """Return the dataflow with stand-ins for sources. In a ``graph``, some operators also go on without a source."""
    dice = Random(f"{seed} spares")
    share, missing = dice.choice([0.0, 0.5, 0.9]), dice.choice([0.0, 0.5, 1.0]) if graph else 0.0

    def with_spares(node: Node) -> Node:
        if node.kind == "operator" and dice.random() < missing:
            return msgspec.structs.replace(node, missing="nothing")
        if node.kind == "source" and dice.random() < share:
            candidates = [host for host in hosts if host != node.pinned]
            some = tuple(dice.sample(candidates, min(len(candidates), dice.choice([1, 1, 2]))))
            return msgspec.structs.replace(node, stand_ins=some)
        return node

    return Dataflow(tuple(map(with_spares, flow.nodes))).validate(hosts)


def freed(dice: Random, node: Node, code: Code) -> Node:
    free = node.kind == "operator" and dice.random() < 0.8
    return msgspec.structs.replace(node, code=code) if free else node


Moving = tuple[Adaptation | None, Driver | None]


def _restless(seed: int) -> LocalMoves:
    """Return moves by the operators' own decisions, on any host and all the time.

    Operators that proposals have moved go on to move by themselves.
    """
    return LocalMoves(period_s=RESTLESS_S, k=3, gate=False, seed=seed)


def _draw_reshapes(dice: Random, seed: int) -> Moving:
    """Draw random changes of the tree, alone or with moves by both protocols in between."""
    moves = dice.choice([0, 1000])
    return _restless(seed) if moves else None, RandomReshapes(1000, moves, seed)


def _draw_moves(dice: Random, seed: int) -> Moving:
    """Draw how operators move: at random, so that they move often, or as the client or the hosts decide."""
    kind = dice.random()
    if kind < 0.5:
        return _restless(seed), RandomMoves(1000, seed)
    if kind < 0.7:
        return GlobalMoves(period_s=dice.uniform(3.0, 8.0)), None
    return LocalMoves(
        period_s=dice.uniform(2.0, 6.0),
        k=dice.randint(0, 3),
        gate=dice.random() < 0.3,
        hysteresis=dice.choice([0.0, 0.0, 1.0]),
        seed=seed,
        cost=dice.choice(LOCAL_COSTS),
    ), None


def _draw_moves_of_stripes(dice: Random, seed: int) -> Moving:
    """Draw how the trees of a stream change: at random, by decisions of hosts or the client, or both."""
    kind = dice.random()
    if kind < 0.2:
        return GlobalMoves(period_s=dice.uniform(3.0, 8.0)), None
    if kind < 0.4:
        return _restless(seed), None
    if kind < 0.6:
        return _restless(seed), RandomMoves(1000, seed)
    return None, RandomReshapes(1000, dice.choice([0, 1000]), seed)


def drawn_plan(
    seed: int,
    *,
    graph: bool = False,
    lasting: bool = False,
    stripes: bool = False,
    networks: bool = False,
    gray: bool = False,
) -> FaultPlan:
    """Draw the faults of a seed's trial.

    ``lasting``: the run outlives its hosts, and sources may have stand-ins. ``gray``: some links lose a part of their
    traffic.
    """
    kind = FaultPlan(seed, graph=graph, stripes=stripes, networks=networks)
    trial = trial_of(kind)
    plan = draw_plan(seed, trial.hosts, ABOUT_S, graph=graph, lasting=lasting)
    further = [name for name in NAMES if name in trial.joined.networks]
    faults = [*plan.faults]
    faults += draw_death(seed, ABOUT_S) if graph else ()
    faults += draw_gray(seed, trial.hosts, ABOUT_S, further) if gray else ()
    return msgspec.structs.replace(plan, faults=tuple(faults), stripes=stripes, networks=networks)


def code_of(trial: Trial, node: Node) -> Counting | Timed:
    """Return the code of a node in a trial."""
    if trial.graph:
        return Timed(node, trial.sizes.get(node.name, COMING_BYTES), DISK_S, trial.compute_s)
    length = trial.lengths.get(node.name, 10**6)
    appeared = STATES[zlib.crc32(node.name.encode()) % len(STATES)] if node.code == MERGING else 1
    tells = (len(node.name) + ord(node.name[-1]) + trial.partitions) % 2 == 0
    return Counting(node, trial.sizes.get(node.name, appeared), length, trial.compute_s, tells=tells)
