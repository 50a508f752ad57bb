"""One trial of a fault plan: a small run in virtual time that the plan's seed draws, and what became of it.

The seed draws hosts, links, a tree (or a graph, see ``graphs``), a placement, how operators move, and with what state.
Operators count what they have combined and every output says so: a state that was lost, doubled or mixed up shows in
what is delivered, which has to be what one machine gives.
Operators with states that merge remember all that they have ever been given; what came with an odd partition they show
from the next one on only, so that for a while nobody else has it. A trial is

- *delivered*: all partitions, once, in order, with the right contents;
- *ended*: with one line that names a host which the plan has crashed or cut off from the client for long, or two
  hosts between which it has cut a way for long; what was delivered before is right;
- *abandoned*: the plan has crashed the client itself; what was delivered before is right;
- *failed*: anything else. Also when, afterwards, a host that is up still knows of the run, or a relocation that began
  has come to anything but one "moved" or "stayed".
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Literal

import msgspec
import numpy as np

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.faults import (
    LONGEST_S,
    OVER_ALL,
    Crash,
    Cut,
    FaultPlan,
    FaultyWorld,
    OfMessage,
    Outage,
    Stop,
    draw_plan,
)
from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import WorldConfig
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults.graphs import ALLOW, BROKEN, STATES, Timed, coded, draw_graph
from thalweg.experiments.faults.queries import (
    GUESTS,
    Callers,
    Coming,
    Subscribing,
    draw_death,
    draw_queries,
    draw_subscriptions,
)
from thalweg.middleware.client.replanning import Search
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement, Reorderable
from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.network.view import Link, NetworkView, links_between
from thalweg.middleware.parcels import is_nothing
from thalweg.middleware.planning import CostParameters, Task, get_cost_model
from thalweg.middleware.planning.problem.hints import Hints, propagate_hints
from thalweg.middleware.planning.registry import AGAIN, Driver, RandomMoves, RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves, LocalCost, LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import ENDED, Made, NodeCode
from thalweg.middleware.shell.packing import opened
from thalweg.operators.reference import reference_run

CLIENT = "client"
FREE = Code("free")  # of operators that combine in any order and grouping
MERGING = Code("seen")  # of such that remember, and merge what they do
RESHAPED = (2, 3)  # of every six seeds: in their trials most operators are free, and the tree changes at random
MERGED = (3, 8)  # of every twelve, among these: the free operators have state
ABOUT_S = 25.0  # of most runs; with faults they take longer
RESTLESS_S = 3.0  # between two decisions of an operator that moves for moving's sake
LIMITS = CoreConfig(
    retry_max_s=2.0,
    ping_s=1.0,
    liveness_s=30.0,
    detect_s=30.0,
    lease_s=60.0,
    handoff_s=6.0,
    barrier_s=6.0,
    probe_s=4.0,
    monitor=MonitorConfig(probe_train=False),
)
LONG_CUT_S = LIMITS.liveness_s / 2  # the storm, and what else is cut, can make it the rest
LONG_SILENCE_S = LIMITS.lease_s / 2  # the same between two hosts of which neither is the client
PATIENCE_S = LIMITS.liveness_s + LIMITS.lease_s + 60.0 + 2 * LONGEST_S  # by then a run has ended that is to end
STARTUP_S, DISK_S = 0.005, 0.01
EVERY = (1, 2, 4, 16)  # partitions after which an operator leaves another replica
WAIT_S = 40.0  # for a lost host that has a source
COMING_BYTES = 20_000  # of a partition of a source that came with a query

TOO_LATE = ("has left the run", "the run has no node", "the run is over", "has ended the run")  # for a subscription
GIVEN_UP = ("no vote of", "has ended it", "it was lost", "has not answered for", "has been silent for", "is a way cut?")

LOCAL_COSTS: tuple[LocalCost, ...] = ("critical-path", "period", "expected-period")
Outcome = Literal["delivered", "ended", "abandoned", "failed"]


class Trial(msgspec.Struct, frozen=True):
    """What a seed draws, besides the faults."""

    hosts: tuple[str, ...]
    links: dict[Link, LinkRate]
    dataflow: Dataflow
    placement: Placement
    adaptation: Adaptation | None
    driver: Driver | None  # moves operators at random, or has the tree change
    partitions: int
    lengths: dict[str, int]  # of the sources' streams, where they end
    sizes: dict[str, int]  # bytes of a source's partitions, or of an operator's state
    compute_s: float
    interface: str
    graph: bool
    queries: tuple[Coming, ...]  # that come while the graph runs
    leaves: int | None  # partitions after which the one that began the run does
    subscriptions: tuple[Subscribing, ...]  # of other clients


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trial. ``kind`` and ``what`` say how it failed, or why it ended.

    ``nothing`` counts values of graphs that were delivered as ``NOTHING``, ``moves`` relocations by outcome and
    protocol, ``recoveries`` how often it began anew, ``shapes`` changes of the tree by outcome, ``queries`` those
    that came to a graph by what became of them, ``faults`` what went wrong by kind.
    """

    seed: int
    outcome: Outcome
    kind: str = ""
    what: str = ""
    expected: int = 0
    delivered: int = 0
    nothing: int = 0
    lost: int = 0
    duplicate: int = 0
    out_of_order: int = 0
    moves: dict[str, int] = {}
    recoveries: int = 0
    shapes: dict[str, int] = {}
    queries: dict[str, int] = {}
    faults: dict[str, int] = {}
    events: int = 0
    digest: str = ""


# --- what a seed draws --------------------------------------------------------------------------------


def draw_trial(seed: int, *, graph: bool = False) -> Trial:
    """Hosts, links, tree (or graph), placement and moves of a trial; the same for the same seed."""
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
    partitions = dice.randint(15, 45)
    ends = dice.random() < 0.2
    lengths = {name: partitions + (dice.randint(0, 9) if graph else 0) for name in dataflow.sources if ends}
    links = {link: _draw_link(dice, " ".join(link)) for link in links_between(hosts)}
    if graph:
        dataflow = coded(dataflow, seed, sizes, lengths)
    adaptation, driver = _draw_reshapes(trees, seed) if reshaped else _draw_moves(dice, seed)
    queries, leaves = draw_queries(seed, dataflow, hosts, partitions, ends=ends) if graph else ((), None)
    subscriptions = draw_subscriptions(seed, partitions) if graph else ()
    if subscriptions:
        dice = Random(f"{seed} links of guests")
        links |= {
            link: _draw_link(dice, " ".join(link)) for link in links_between((*hosts, *GUESTS)) if link not in links
        }
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


def draw_tree(dice: Random, hosts: Sequence[str], sources: int) -> Dataflow:
    """A tree of any shape with fan-in 1 to 4 over so many sources, which are anywhere."""
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
    """0.4 to 40 Mbit/s, another rate every few seconds."""
    level = dice.uniform(5.6, 7.6)
    rates = np.array([10 ** (level + dice.gauss(0, 0.3)) for _ in range(8)])
    return BandwidthTrace(name, np.arange(8, dtype=np.float64) * dice.uniform(2.0, 12.0), rates)


def freed(dice: Random, node: Node, code: Code) -> Node:
    free = node.kind == "operator" and dice.random() < 0.8
    return msgspec.structs.replace(node, code=code) if free else node


Moving = tuple[Adaptation | None, Driver | None]


def _restless(seed: int) -> LocalMoves:
    """Operators look for a better host all the time, anywhere: what is moved by proposals goes on by itself."""
    return LocalMoves(period_s=RESTLESS_S, k=3, gate=False, seed=seed)


def _draw_reshapes(dice: Random, seed: int) -> Moving:
    """Other trees at random, and nothing else or moves by both protocols between them."""
    moves = dice.choice([0, 1000])
    return _restless(seed) if moves else None, RandomReshapes(1000, moves, seed)


def _draw_moves(dice: Random, seed: int) -> Moving:
    """Moves that make little sense, as there is more of them, or those of either way of deciding."""
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


def drawn_plan(seed: int, *, graph: bool = False) -> FaultPlan:
    """The faults of a seed's trial."""
    plan = draw_plan(seed, draw_trial(seed, graph=graph).hosts, ABOUT_S, graph=graph)
    death = draw_death(seed, ABOUT_S) if graph else ()
    return msgspec.structs.replace(plan, faults=(*plan.faults, *death))


# --- what runs inside nodes ---------------------------------------------------------------------------


Known = dict[tuple[str, int], Any]


def content(dataflow: Dataflow, name: str, index: int, known: Known) -> Any:
    """What partition ``index`` of a node has to be: all that it was combined from, in order.

    The third element is how many partitions an operator had combined before. ``known``: what was asked for before.
    """
    if (name, index) not in known:
        node = dataflow.by_name[name]
        if node.code == MERGING:
            known[name, index] = shown(index, _given(dataflow, name, index, known))
        else:
            inputs = tuple(content(dataflow, producer, index, known) for producer in node.inputs)
            before = index if node.kind == "operator" else 0
            known[name, index] = mixed(index, inputs) if node.code == FREE else (name, index, before, *inputs)
    return known[name, index]


def _given(dataflow: Dataflow, name: str, index: int, known: Known) -> set[Seen]:
    """All that an operator that remembers has been given, itself or those like it below, up to partition ``index``."""
    given: set[Seen] = set()
    for producer in dataflow.by_name[name].inputs:
        if dataflow.by_name[producer].code == MERGING:
            given |= _given(dataflow, producer, index, known)
        else:
            given |= seen([content(dataflow, producer, i, known) for i in range(index + 1)])
    return given


Seen = tuple[int, int]  # a partition's index, and what it is recognised by


def seen(values: Iterable[Any]) -> set[Seen]:
    """What an operator remembers of its inputs; of one like it, what that shows."""
    found: set[Seen] = set()
    for value in values:
        found |= set(value[2]) if value[0] == "seen" else {(value[1], zlib.crc32(repr(value).encode()))}
    return found


def shown(index: int, past: set[Seen]) -> Any:
    """What such an operator makes: all that it has been given, but for that of an odd partition at once."""
    return ("seen", index, tuple(sorted(each for each in past if each[0] <= index - index % 2)))


def mixed(index: int, inputs: tuple[Any, ...]) -> Any:
    """What a free operator makes: all that it is given, itself or as other free operators made it, in no order."""
    parts = [part for each in inputs for part in (each[2] if each[0] == "mixed" else (each,))]
    return ("mixed", index, tuple(sorted(parts)))


class Counting(NodeCode):
    """Makes partitions that say what they were made of, and how many before them; that number is its state.

    The state of one that merges is all that it was given. One that ``tells`` says what has changed in it.
    ``size_bytes``: of its state, or of a source's partitions; ``length``: of its stream; ``takes_s``: an operator for
    a partition.
    """

    def __init__(self, node: Node, size_bytes: int, length: int, takes_s: float, *, tells: bool = False) -> None:
        self.node, self.size_bytes, self.length, self.takes_s = node, size_bytes, length, takes_s
        self.keeps_state = node.code == MERGING  # that it could lose
        self.reorderable = self.keeps_state or node.code == FREE
        self.before = 0
        self.seen: set[Seen] = set()
        self.told: tuple[int, set[Seen]] | None = (0, set()) if tells else None

    def make(self, index: int, inputs: tuple[Any, ...]) -> Made:
        if not inputs:
            if index >= self.length:
                return ENDED
            return Made((self.node.name, index, 0), self.size_bytes, DISK_S)
        if self.keeps_state:
            self.seen |= seen(inputs)
            value: Any = shown(index, self.seen)
        else:
            value = mixed(index, inputs) if self.reorderable else (self.node.name, index, self.before, *inputs)
        self.before += 1
        return Made(value, 20_000, self.takes_s)

    def snapshot(self) -> bytes:
        self._tell()
        what = sorted(self.seen) if self.keeps_state else self.before
        return msgspec.json.encode(what).ljust(self.size_bytes)

    def restore(self, state: bytes) -> None:
        if self.keeps_state:
            self.seen = set(msgspec.json.decode(state, type=list[Seen]))
        else:
            self.before = int(state)
        self._tell()

    def _tell(self) -> None:
        if self.told is not None:
            self.told = self.before, set(self.seen)

    def delta(self) -> bytes | None:
        if self.told is None:
            return None
        before, seen = self.told
        self._tell()
        return msgspec.json.encode((self.before - before, sorted(self.seen - seen)))

    def apply(self, delta: bytes) -> None:
        more, seen = msgspec.json.decode(delta, type=tuple[int, list[Seen]])
        self.before += 0 if self.keeps_state else more
        self.seen |= set(seen)
        self._tell()

    def merge(self, states: Sequence[bytes]) -> bytes:
        merged: set[Seen] = set()
        for state in states:
            merged |= set(msgspec.json.decode(state, type=list[Seen]))
        return msgspec.json.encode(sorted(merged))

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return 20_000.0

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return self.takes_s


def _opened(trial: Trial, node: Node) -> Counting | Timed:
    if trial.graph:
        return Timed(node, trial.sizes.get(node.name, COMING_BYTES), DISK_S, trial.compute_s)
    length = trial.lengths.get(node.name, 10**6)
    appeared = STATES[zlib.crc32(node.name.encode()) % len(STATES)] if node.code == MERGING else 1
    tells = (len(node.name) + ord(node.name[-1]) + trial.partitions) % 2 == 0
    return Counting(node, trial.sizes.get(node.name, appeared), length, trial.compute_s, tells=tells)


# --- a trial ------------------------------------------------------------------------------------------


class _Log:
    """What the application got, and what the hosts recorded."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.indices: defaultdict[str, list[int]] = defaultdict(list)  # by sink
        self.known: Known = {}
        self.flows: dict[str, Dataflow] = {}  # by sink, all that leads to it
        self.queries: dict[str, int] = {}  # by sink
        self.first = dict.fromkeys(trial.dataflow.by_name, 0)  # partitions
        self.reference: dict[str, Iterator[Any]] = {}
        self._begin(0, trial.dataflow, trial.dataflow.by_name)
        self.right: defaultdict[str, list[Any]] = defaultdict(list)  # what these gave
        self.nothing = 0
        self.wrong = ""
        self.moves: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.recoveries = 0
        self.settled: defaultdict[tuple[str, str, int], list[str]] = defaultdict(list)  # outcomes, by generation,
        # operator and version
        self.odd = ""

    def _begin(self, query: int, flow: Dataflow, names: Iterable[str]) -> None:
        for sink in [name for name in names if name in flow.sinks]:
            below = flow.below(sink)
            self.flows[sink] = Dataflow(tuple([node for node in flow.nodes if node.name in below]))
            self.queries[sink] = query
            if self.trial.graph:
                self.reference[sink] = reference_run(self.flows[sink], allow=ALLOW, first=self.first)

    def on_attached(self, begun: e.Attached) -> None:
        new = [name for name in begun.names.values() if name not in self.first]
        self.first |= dict.fromkeys(new, begun.first_index)
        self._begin(begun.query, begun.dataflow, new)

    def on_delivered(self, partition: e.Deliver, now: float) -> None:
        expected, value = self._expected(partition.sink, partition.index), partition.value
        if self.trial.graph:
            values = value if isinstance(value, tuple) else (value,)
            self.nothing += sum(map(is_nothing, values))
            value = tuple(map(opened, values)) if isinstance(value, tuple) else opened(value)
        if value != expected and not self.wrong:
            self.wrong = f"partition {partition.index} of {partition.sink} is {value}, not {expected}"
        self.indices[partition.sink].append(partition.index)

    def _expected(self, sink: str, index: int) -> Any:
        if not self.trial.graph:
            return content(self.trial.dataflow, self.trial.dataflow.by_name[sink].inputs[0], index, self.known)
        right = self.right[sink]
        place = index - self.first[sink]
        right += itertools.islice(self.reference[sink], max(0, place + 1 - len(right)))
        return right[place] if 0 <= place < len(right) else "the end"

    def on_record(self, host: str, now: float, record: e.Record) -> None:
        if record.kind == "relocated":
            detail = record.fields["detail"]
            node, version, outcome = record.fields["node"], detail["version"], detail["outcome"]
            self.moves[f"{outcome} {detail['protocol']}"] += 1
            if outcome not in ("moved", "stayed"):
                self.odd = f"{node} on its way from {host} ended as {outcome!r}"
            self.settled[record.run, node, version].append(outcome)
        elif record.kind == "recovered":
            self.recoveries += 1
        elif record.kind == "reshaped":
            self.shapes[record.fields["detail"]["outcome"]] += 1
        elif record.kind == "proposal" and record.fields["detail"]["outcome"] not in (
            "committed",
            "aborted",
            "superseded",
        ):
            self.odd = f"a proposal ended as {record.fields['detail']['outcome']!r}"

    def check_settled(self, world: FaultyWorld) -> str:
        """What is wrong with the outcomes of the hand-overs that have begun; one goes with a host that crashes."""
        for (run, node, version), hosts in world.begun.items():
            outcomes = self.settled[run, node, version]
            if len(outcomes) > 1:
                return f"{node}, version {version}, is recorded {len(outcomes)} times: {', '.join(outcomes)}"
            alive = [host.name for host in hosts if world.hosts[host.name] is host]
            if not outcomes and alive:
                return f"{node}, version {version}, began to leave host {alive[0]} and neither moved nor stayed"
        return ""


def run_trial(plan: FaultPlan, *, digest: bool = False) -> tuple[TrialResult, tuple[OfMessage, ...]]:
    """Run the trial that the plan's seed draws, with the plan's faults; also what became of single messages.

    Raises UsageError for a plan that does not fit its trial.
    """
    trial = draw_trial(plan.seed, graph=plan.graph)
    log = _Log(trial)
    config = WorldConfig(
        interface=trial.interface,
        startup_s=STARTUP_S,
        core=LIMITS,
        guests=GUESTS if trial.subscriptions else (),
        validate=True,
    )
    world = FaultyWorld(
        trial.hosts,
        trial.links,
        partial(_opened, trial),
        plan,
        config,
        on_record=log.on_record,
        digest=digest,
    )
    world.patience_s = PATIENCE_S
    if plan.lasting:
        world.failover = m.Failover(every=EVERY[plan.seed % len(EVERY)], wait_s=WAIT_S)
    world.on_delivered, world.on_attached = log.on_delivered, log.on_attached
    callers = Callers(trial.queries, trial.leaves, trial.subscriptions, world)
    drivers = [callers.on_delivered]
    if trial.driver is not None:
        drivers.append(RandomMover(trial.driver, world, world.names, (FREE, MERGING)).on_delivered)
    world.driver = partial(_each, drivers)
    if isinstance(trial.adaptation, GlobalMoves):
        search = _search(trial, trial.adaptation)
        world.answer = lambda command: _with_queries(search, trial, world.attached).answer(command)
    world.begin(callers.begin)
    problem: tuple[str, str] | None = None
    try:
        world.run(
            trial.dataflow,
            trial.placement,
            trial.partitions,
            trial.adaptation,
            reorderable=Reorderable((FREE, MERGING), (MERGING,)),
        )
    except UsageError:
        raise
    except Exception as error:  # whatever a core raises is what the trial was for
        problem = type(error).__name__, f"{one_line(error)[:500]} (at {world.now:.3f} s)"
    return _result(plan, trial, world, log, callers, problem), tuple(world.done)


def _each(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _hints(trial: Trial, dataflow: Dataflow) -> Hints:
    sizes = {name: float(trial.sizes.get(name, COMING_BYTES)) for name in dataflow.sources}
    return propagate_hints(dataflow, sizes, partial(_opened, trial))


def _with_queries(search: Search, trial: Trial, attached: Mapping[int, e.Attached]) -> Search:
    """The same with what is known of the queries that have begun, as ``client.Run`` does."""
    for query, begun in attached.items():
        search = search.with_hints(_hints(trial, trial.queries[query - 1].dataflow), begun.names)
    return search


def _search(trial: Trial, options: GlobalMoves) -> Search:
    dataflow, hints = trial.dataflow, _hints(trial, trial.dataflow)
    model = get_cost_model("critical-path")
    task = Task((dataflow,), trial.hosts, NetworkView({}), hints, CostParameters(startup_s=STARTUP_S))
    return Search(task, model, options, AGAIN)


def _result(
    plan: FaultPlan, trial: Trial, world: FaultyWorld, log: _Log, callers: Callers, problem: tuple[str, str] | None
) -> TrialResult:
    expected, missing, delivered, duplicate, out_of_order = 0, 0, 0, 0, 0
    stayed = {0, *callers.asked} - callers.left - world.queries_failed.keys()
    stayed |= {log.queries[sink] for sink in callers.lasting}
    for sink, flow in log.flows.items():
        high = log.first[sink]
        again, end = 0, max(high, _length(trial, flow))
        for index in log.indices[sink]:
            again += index < high
            out_of_order += index != high
            high = max(high, index + 1)
        here = len(log.indices[sink]) - again
        length = end - log.first[sink] if log.queries[sink] in stayed else here
        expected += length
        missing += abs(length - here)
        delivered, duplicate = delivered + here, duplicate + again
    gone = CLIENT in {fault.host for fault in plan.faults if isinstance(fault, Crash)} and delivered < expected
    problem = problem or _problem(plan, world, log, expected, expected - missing, duplicate, out_of_order)
    if problem is None and not world.failed and not gone:
        problem = _problem_of_queries(plan, world, callers)
    outcome: Outcome = "failed" if problem else "ended" if world.failed else "abandoned" if gone else "delivered"
    kind, what = problem or (_how_ended(world), world.failed or "")
    timed = [fault for fault in plan.faults if not isinstance(fault, OfMessage | OVER_ALL)]
    counts = Counter(fault.kind for fault in (*timed, *world.done))
    return TrialResult(
        seed=plan.seed,
        outcome=outcome,
        kind=kind,
        what=what,
        expected=expected,
        delivered=delivered,
        nothing=log.nothing,
        lost=expected - delivered if outcome in ("delivered", "failed") else 0,
        duplicate=duplicate,
        out_of_order=out_of_order,
        moves=dict(sorted(log.moves.items())),
        recoveries=log.recoveries,
        shapes=dict(sorted(log.shapes.items())),
        queries=callers.counts(),
        faults=dict(sorted(counts.items())),
        events=world.events,
        digest=world.log_digest if world._digest is not None else "",
    )


def _length(trial: Trial, flow: Dataflow) -> int:
    """How many partitions a sink has: as many as the shortest of the sources that it is made of."""
    codes = [(name, flow.by_name[name].code) for name in flow.sources]
    told = [trial.lengths.get(name) or (code.params.get("length") if code else None) for name, code in codes]
    return min([trial.partitions, *[length for length in told if length]])


def _excused(plan: FaultPlan, world: FaultyWorld, why: str, suspects: Collection[str]) -> bool:
    """Whether a failure names a host that is rightly given up, or two between which a way is cut."""
    dead = any(f"host {one!r}" in why and f"host {other!r}" in why for one, other in may_be_dead(plan, world.names))
    return dead or any(f"host {name!r}" in why for name in suspects)


def _problem_of_queries(plan: FaultPlan, world: FaultyWorld, callers: Callers) -> tuple[str, str] | None:
    """What queries that came did that they may not."""
    suspects = may_be_lost(plan, world.names)
    for query, why in world.queries_failed.items():
        lost = _excused(plan, world, why, suspects) or (plan.faults and "no vote of" in why)
        alone = "nothing in common" in why and 0 not in world.open  # what it shared has left with the first
        if not (BROKEN in why or lost or alone or query in callers.left):
            return "query", f"query {query} failed: {why}"
    for query in callers.asked - callers.left - world.queries_failed.keys() - world.attached.keys():
        return "query", f"query {query} never began"
    for (guest, number), why in world.dismissed.items():
        lost = _excused(plan, world, why, suspects) or (plan.faults and any(each in why for each in GIVEN_UP))
        if not (BROKEN in why or lost or any(each in why for each in TOO_LATE) or (plan.lasting and "anew" in why)):
            return "query", f"subscription {number} of {guest} failed: {why}"
    for guest, number in callers.subscribed - callers.parted - world.dismissed.keys() - world.subscribed.keys():
        if guest not in world.crashed_s:
            return "query", f"subscription {number} of {guest} never began"
    return None


def _problem(
    plan: FaultPlan, world: FaultyWorld, log: _Log, expected: int, delivered: int, duplicate: int, out_of_order: int
) -> tuple[str, str] | None:
    """What a trial did that it may not: its kind and a line."""
    suspects = may_be_lost(plan, world.names) - _to_be_asked_again(plan, world)
    if plan.lasting:
        suspects = _may_be_missed(plan, world)
    if log.wrong:
        return "contents", log.wrong
    if duplicate or out_of_order:
        return "order", f"{duplicate} partitions came twice, {out_of_order} out of order"
    if world.stalled:
        runs = [run for host in world.hosts.values() for run in host.core.runs.values()]
        nodes = sorted(repr(node) for run in runs for node in run.flow.nodes.values())
        return "stalled", f"no end at {world.now:.0f} s, after {delivered} of {expected} partitions: {' '.join(nodes)}"
    broken = BROKEN in (world.failed or "") and 0 not in world.open  # in what only other queries use
    if world.failed and not broken and not _excused(plan, world, world.failed, suspects):
        return "ended", f"ended though no such host had gone: {world.failed}"
    if not world.failed and delivered < expected and CLIENT not in _crashed(plan):
        return "lost", f"delivered {delivered} of {expected} partitions"
    for host in world.hosts.values():
        core = host.core
        kept = {
            "the run": core.runs,
            "the run's end": core.coordinator.led,
            "links' pasts": core.links.monitor.histories,
        }
        left = [name for name, table in kept.items() if table]
        if left or host.code:
            return "left", f"host {host.name} still has {', '.join(left) or 'code'}"
    odd = log.odd or log.check_settled(world)
    return ("relocation", odd) if odd else None


def _how_ended(world: FaultyWorld) -> str:
    """``unheard`` where the client ended the run for a host that held nothing any more: it had not heard of a move."""
    for name in world.fallen:
        held = [newest for known, newest in world.at_failure.values() if known == name]
        if world.failed and world.failed.startswith(f"host {name!r}, which holds") and held and name not in held:
            return "unheard"
    return ""


def _to_be_asked_again(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """Hosts that crashed before they had a part in the run and were back in time, or crash after its end."""
    cut = may_be_lost(
        msgspec.structs.replace(plan, faults=tuple(each for each in plan.faults if not isinstance(each, Crash))),
        world.names,
    )
    failed_s = world.now if world.failed_s is None else world.failed_s
    late = {name for name in _crashed(plan) if world.crashed_s.get(name, math.inf) > failed_s}
    back = {name for name, at_s in world.back_s.items() if name not in world.fallen and failed_s - at_s >= LONG_CUT_S}
    return (late | back) - cut


def _may_be_missed(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """The hosts without which a run that outlives its hosts may end: they have sources, and are gone for long."""
    pinned = {node.pinned for node in world.tree[0].nodes if node.kind == "source" and node.pinned}
    gone = {fault.host for fault in plan.faults
            if (isinstance(fault, Crash) and (fault.restart_after_s or math.inf) > WAIT_S / 2)
            or (isinstance(fault, Stop) and fault.for_s > WAIT_S / 2)}  # fmt: skip
    others = tuple(fault for fault in plan.faults if not isinstance(fault, Crash))
    return pinned & (gone | may_be_lost(msgspec.structs.replace(plan, faults=others), world.names))


def _crashed(plan: FaultPlan) -> set[str]:
    return {fault.host for fault in plan.faults if isinstance(fault, Crash)}


def may_be_lost(plan: FaultPlan, hosts: Sequence[str]) -> set[str]:
    """The hosts that the client may rightly give up: they crash, or one way between them and it is cut for long."""
    links = itertools.chain.from_iterable((Link(name, CLIENT), Link(CLIENT, name)) for name in hosts if name != CLIENT)
    return _crashed(plan) | {name for link in links if _cut_s(plan, link) >= LONG_CUT_S for name in link} - {CLIENT}


def may_be_dead(plan: FaultPlan, hosts: Sequence[str]) -> list[Link]:
    """The ways between two hosts that either of them may rightly take for dead: they are cut for long."""
    return [link for link in links_between(hosts) if _cut_s(plan, link) >= LONG_SILENCE_S]


def _cut_s(plan: FaultPlan, link: Link) -> float:
    """The longest time that a link is cut; cuts with little between them are one."""
    source, target = link
    spans = [(each.at_s, each.until_s) for each in plan.faults
             if isinstance(each, Outage) and (each.source, each.target) == link]  # fmt: skip
    spans += [(each.at_s, each.at_s + each.for_s) for each in plan.faults
              if isinstance(each, Cut) and (source in each.hosts) != (target in each.hosts)]  # fmt: skip
    longest_s, begun_s, until_s = 0.0, -1.0, -1.0
    for from_s, to_s in sorted(spans):
        begun_s = from_s if from_s > until_s + LIMITS.ping_s else begun_s
        until_s = max(until_s, to_s)
        longest_s = max(longest_s, until_s - begun_s)
    return longest_s
