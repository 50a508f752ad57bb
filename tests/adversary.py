"""The virtual world as tests of cores use it: ``FaultyWorld`` by one plan, whose hosts take their time besides.

A ``World`` has a storm of its mood. Every message, timer and call of user code takes a time of the adversary's choice,
and hosts may know older locations than the true ones. In a ``Scripted`` one nothing is left to chance: at the moment
that a script says, the script's faults happen. Operators and what they have to give are those of ``faults.trial_code``:
a state that was lost, doubled or mixed up on a move shows in what the application gets.
"""

from __future__ import annotations

import copy
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec
from run_ids import R

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import Crash, Cut, Drop, Duplicate, Fault, FaultPlan, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.world import VirtualHost
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults import trial_code
from thalweg.experiments.faults.generated_plans import CLIENT, draw_tree, freed
from thalweg.experiments.faults.graphs import STATES
from thalweg.experiments.faults.trial_code import FREE, MERGING, Counting
from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.registry import Driver
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

PADDING = 18_000  # bytes of a state that has to travel as bulk
FOREVER_S = 1e9
PATIENT = CoreConfig(liveness_s=FOREVER_S, lease_s=2000.0)  # the adversary may be silent for long; it is not dead
RATE_BPS = 1e12


class Mood(msgspec.Struct, frozen=True):
    """How bad the adversary is."""

    seed: int
    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.01  # mean; most are shorter, some much longer
    stale: bool = False  # hosts know older locations than the true ones

    def plan(self, faults: Sequence[Fault]) -> FaultPlan:
        storm = Storm(self.loss, self.repeat, unconfirmed=self.loss, delay_s=self.delay_s)
        return FaultPlan(self.seed, (*faults, storm) if self.loss or self.repeat else tuple(faults))


def mixed_tree(
    random: Random, sources: int, hosts: Sequence[str], code: Code = FREE
) -> tuple[Dataflow, dict[str, str]]:
    """A random tree in which most operators are free, of that code, others count, and some are pinned."""
    flow, placement = random_tree(random, sources, hosts)
    nodes = [freed(random, node, code) for node in flow.nodes]
    pinned = [node.code == code and random.random() < 0.1 for node in nodes]
    nodes = [
        msgspec.structs.replace(node, pinned=placement[node.name]) if here else node
        for node, here in zip(nodes, pinned, strict=True)
    ]
    return Dataflow(tuple(nodes)).validate(hosts), placement


def random_tree(random: Random, sources: int, hosts: Sequence[str]) -> tuple[Dataflow, dict[str, str]]:
    """A tree of any shape over so many sources, and a placement of it."""
    flow = draw_tree(random, hosts, sources)
    flow = Dataflow(tuple(random.sample(flow.nodes, len(flow.nodes)))).validate(hosts)
    return flow, {node.name: node.pinned or random.choice(hosts) for node in flow.nodes}


def content(dataflow: Dataflow, name: str, index: int) -> Any:
    """What partition ``index`` of a node has to be."""
    return trial_code.content(dataflow, name, index, {})


def right(dataflow: Dataflow, count: int) -> list[Any]:
    """What the application has to get first."""
    known: trial_code.Known = {}
    return [trial_code.content(dataflow, dataflow.sinks[0], i, known)[3] for i in range(count)]


class Paced(Counting):
    """Takes as long, and makes partitions as large, as its world says."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(node, world.state_bytes(), world.length, 0.0)
        self.world = world

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        made = super().make(index, inputs)
        return msgspec.structs.replace(made, size_bytes=self.world.output_bytes(), seconds=self.world.takes_s())


class World(FaultyWorld):
    """Some cores and the adversary between them. ``run()`` returns what the application got."""

    run_id, patience_s, message_s = R, FOREVER_S, 0.0
    depth = 1  # partitions under way over an edge

    def __init__(
        self,
        mood: Mood,
        hosts: int,
        sources: int,
        *,
        partitions: int | None,
        length: int | None,
        core_config: CoreConfig = PATIENT,
        adaptation: Adaptation | None = None,
        driver: Driver | None = None,
        tree: tuple[Dataflow, dict[str, str]] | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        assert partitions is not None or length is not None
        self.mood, self.random = mood, Random(mood.seed)
        self.stuck_s = max(1.0, mood.delay_s)
        names = [*(f"h{i}" for i in range(1, hosts)), CLIENT]
        links = {link: BandwidthTrace.constant(" ".join(link), RATE_BPS) for link in links_between(names)}
        config = WorldConfig("independent", self.message_s, core=core_config, validate=True)
        super().__init__(names, links, self._paced, mood.plan(faults), config, on_record=self._record)
        for host in self.hosts.values():  # each its own limits
            host.core = HostCore(host.core.me, copy.copy(core_config))
            host.core.context.recording = True
        self.trees = {None: tree or random_tree(self.random, sources, names)}
        self.dataflow = self.tree[0]  # the first, which says what is delivered
        self._reorderable = Reorderable((FREE, MERGING), (MERGING,))
        if driver is not None:
            self.driver = RandomMover(driver, self, names, self._reorderable.codes).on_delivered
        self.partitions = partitions
        self.length = 10**6 if length is None else length  # of the sources' streams
        self.adaptation = adaptation
        self.history = {name: self._history(name) for name in self.dataflow.by_name}
        self.pace_s: float | None = None  # of the application, if not that of all else
        self.delivered: list[Any] = []
        self.others: defaultdict[str, list[tuple[float, int, Any]]] = defaultdict(list)  # of queries' sinks, with when
        self.ended = self.forgotten = False
        self.asked: list[e.PlacementProposed] = []  # by the application
        self.answers: list[e.MoveEnded] = []
        self.records: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)  # by kind: the fields

    # --- what came of it -----------------------------------------------------------------------------

    @property
    def cores(self) -> dict[str, HostCore]:
        return {name: host.core for name, host in self.hosts.items()}

    @property
    def combined(self) -> set[tuple[str, str]]:
        """The hosts that have code, and of which nodes."""
        return {(name, node) for name, host in self.hosts.items() for _, node in host.code}

    @property
    def counts(self) -> Counter[str]:
        return Counter({kind: len(rows) for kind, rows in self.records.items()})

    @property
    def settled(self) -> list[dict[str, Any]]:
        """What hand-overs came to."""
        return self.records["relocated"]

    @property
    def moves(self) -> Counter[str]:
        """By outcome and protocol."""
        return Counter(f"{each['detail']['outcome']} {each['detail']['protocol']}" for each in self.settled)

    @property
    def proposals(self) -> list[dict[str, Any]]:
        return [each["detail"] for each in self.records["proposal"]]

    @property
    def reshaped(self) -> list[dict[str, Any]]:
        return [{**each["detail"], **each} for each in self.records["reshaped"]]

    @property
    def merged(self) -> list[dict[str, Any]]:
        return self.records["merged"]

    @property
    def faults(self) -> list[str]:
        return [each["detail"]["what"] for each in self.records["fault"] if "detail" in each]

    def _record(self, host: str, now: float, record: e.Record) -> None:
        self.records[record.kind].append(record.fields)

    # --- the truth and what hosts know of it ---------------------------------------------------------

    def _history(self, node: str) -> list[str]:
        """The hosts a node has been on, the present one last: version ``i + 1`` is entry ``i``."""
        members = sorted(set(self.placement.values()))  # the run is installed on no others
        here = self.dataflow.by_name[node]
        moves = self.random.randint(1, 3) if self.mood.stale and here.kind == "operator" and not here.pinned else 0
        return [*(self.random.choice(members) for _ in range(moves)), self.placement[node]]

    def _install(self) -> m.Install:
        install = m.Install(
            run=R,
            dataflow=self.dataflow,
            locations=tuple(m.Location(node, past[-1], len(past)) for node, past in self.history.items()),
            peers=self.peers,
            client=CLIENT,
            partitions=self.partitions,
            moves=self.adaptation if isinstance(self.adaptation, LocalMoves) else None,
        )
        return msgspec.structs.replace(install, ahead=self.depth)

    def _make_stale(self, host: str) -> None:
        """Let a host forget the latest moves, except that one which a node left knows where to."""
        table = self.cores[host].runs[R].directory.locations
        for node, past in self.history.items():
            known_from = max((i + 1 for i, where in enumerate(past[:-1]) if where == host), default=0)
            version = self.random.randint(min(known_from, len(past) - 1), len(past) - 1)
            if past[-1] != host:
                table[node] = m.Location(node, past[version], version + 1)

    # --- what the adversary chooses -------------------------------------------------------------------

    def takes_s(self) -> float:
        """What anything takes."""
        stretch = 20.0 if self.random.random() < 0.05 else 1.0
        return self.random.expovariate(1 / self.mood.delay_s) * stretch

    def state_bytes(self) -> int:
        """Inline, as bulk, or as bulk of several chunks, which is let in only where it is wanted."""
        return self.random.choice(STATES)

    def output_bytes(self) -> int:
        return self.random.choice((8, STATES[-1]))

    def _paced(self, node: Node) -> NodeCode:
        return Paced(self, node)

    def _late_s(self, name: str) -> float:
        return self.takes_s()

    def _soon(self, host: VirtualHost, event: e.Event) -> None:
        paced = self.pace_s is not None and self.delivered and isinstance(event, e.NextRequested)
        self._schedule(self.now + (self.pace_s if paced else self.takes_s()), self._tell, (host, event))

    # --- time ----------------------------------------------------------------------------------------

    def at(self, at_s: float, host: str, event: e.Event) -> World:
        if isinstance(event, e.PlacementProposed) and host == CLIENT:
            event = msgspec.structs.replace(event, number=len(self.asked))
            self.asked.append(event)
        self._schedule(at_s, self._tell_whoever_is, (host, event))
        return self

    def run(self) -> list[Any]:
        """Until nothing is left to happen: the run is over, and every host has forgotten it."""
        codes, merging = self._reorderable
        self.open, self._sinks = {0}, {0: {*self.dataflow.sinks}}
        self.at(0.0, CLIENT, e.RunRequested(self._install(), self.adaptation, codes, merging=merging))
        self._until(lambda: False)
        assert not self.stalled, f"no end after {self.events} events: delivered {len(self.delivered)}"
        self._check_answers()
        return self.delivered

    def _check_answers(self) -> None:
        """The application is told once what has become of all that it asked for, unless the run failed, or it did."""
        lost = self.failed is not None or CLIENT in self.down
        for number, asked in enumerate(self.asked):
            answers = [each for each in self.answers if each.number == number]
            assert len(answers) == 1 or (lost and not answers), (asked, answers)
            for answer in answers:
                wanted = answer.moved.keys() | answer.stayed.keys()
                assert not (answer.moved.keys() & answer.stayed.keys()), answer
                assert (answer.index is None) == (not wanted or bool(answer.why)), answer
                if asked.dataflow is None:
                    assert answer.moved.items() <= asked.placement.items(), answer
                    assert answer.stayed.keys() <= asked.placement.keys(), answer

    def _handle(self, host: VirtualHost, event: e.Event) -> None:
        known = R in host.core.runs
        super()._handle(host, event)
        if self.mood.stale and not known and R in host.core.runs:
            self._make_stale(host.name)

    def _delivered(self, host: VirtualHost, command: e.Deliver) -> None:
        if command.sink not in self.dataflow.sinks:
            self.others[command.sink].append((self.now, command.index, command.value))
            super()._delivered(host, command)
            return
        assert not self.ended, f"partition {command.index} after the end"
        assert command.index == len(self.delivered), f"partition {command.index} after {len(self.delivered)} others"
        self.ended = command.end
        if not command.end:
            self.delivered.append(command.value)
        super()._delivered(host, command)

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        forgotten = isinstance(command, e.Forgotten) and not command.follows
        assert not (self.forgotten and forgotten)
        self.forgotten = self.forgotten or forgotten
        if isinstance(command, e.MoveEnded):
            assert host.name == CLIENT
            self.answers.append(command)
        super()._rare(host, command)


# --- a network that does what a script says ---------------------------------------------------------

SCRIPTED = CoreConfig(ping_s=0.5, liveness_s=3.0, lease_s=6.0, handoff_s=2.0, barrier_s=2.0)
SCRIPTED_PLACEMENT = {"s1": "h1", "s2": "h2", "o": "h3", "r": "h5", "q": "h1", "j": "h5", "t": CLIENT}
SCRIPTED_DATAFLOW = Dataflow(
    (
        Node("s1", "source", (), Code("s"), "h1"),
        Node("s2", "source", (), Code("s"), "h2"),
        Node("o", "operator", ("s1", "s2"), Code("o")),
        Node("r", "operator", ("o",), Code("o")),
        Node("t", "sink", ("r",), None, CLIENT),
    )
)
GRAPH_DATAFLOW = Dataflow(  # its consumers are on two hosts, and what they make comes together again
    (
        *SCRIPTED_DATAFLOW.nodes[:4],
        Node("q", "operator", ("o",), Code("o")),
        Node("j", "operator", ("r", "q"), Code("o")),
        Node("t", "sink", ("j",), None, CLIENT),
    )
)
FREE_DATAFLOW, MERGING_DATAFLOW = (
    Dataflow(
        tuple(msgspec.structs.replace(n, code=code) if n.kind == "operator" else n for n in SCRIPTED_DATAFLOW.nodes)
    )
    for code in (FREE, MERGING)
)
BEGINS_S, MESSAGE_S, PACE_S = 1.0, 0.01, 0.1


def another_tree(name: str = "n", code: Code = FREE) -> Dataflow:
    """One operator where ``FREE_DATAFLOW`` has two."""
    node = Node(name, "operator", ("s2", "s1"), code)
    sources = FREE_DATAFLOW.nodes[:2]
    return Dataflow((*sources, node, Node("t", "sink", (name,), None, CLIENT))).validate()


class Scripted(World):
    """No chance and no fault but those of the script: at the moment that ``when`` says, ``then`` is done, once.

    Hosts h4 and h6 hold nothing. ``errors``: the commands that the code on a host answers with an error. What is sent
    on a link that is ``cut``, in its one direction, is lost, and what ``loses`` says; a state that comes as bulk is let
    in only where it is wanted.
    """

    message_s = MESSAGE_S

    def __init__(
        self,
        when: Callable[[Scripted], bool] | None = None,
        then: Callable[[Scripted], None] | None = None,
        *,
        partitions: int = 10**6,
        last_s: float = 6.0,
        dataflow: Dataflow = SCRIPTED_DATAFLOW,
        placement: Mapping[str, str] = SCRIPTED_PLACEMENT,
    ) -> None:
        tree = (dataflow.validate(), {name: placement[name] for name in dataflow.by_name})
        super().__init__(Mood(0), 7, 0, partitions=partitions, length=None, core_config=SCRIPTED, tree=tree)
        self.pace_s = PACE_S
        self.when, self.then = when, then
        self.last_s = last_s  # the application goes on for so long after the moment
        self.reached_s: float | None = None
        self.cut: set[tuple[str, str]] = set()
        self.errors: dict[type[e.Command], tuple[str, str]] = {}  # -> (host, error)
        self.loses: Callable[[str, e.Send], bool] | None = None
        self.again_s: tuple[float, ...] = ()  # every message comes again, so much later
        self.padding = 1
        self.delivered_s: list[float] = []
        self.last_seen: dict[str, set[tuple[RunId, str]]] = {}
        self.target = ""  # where the operator that moves is to go

    # --- for scripts ---------------------------------------------------------------------------------

    def run_at(self, host: str) -> RunCore | None:
        return self.cores[host].runs.get(R)

    def tell(self, host: str, sender: str, message: m.Message, payload: Any = None) -> None:
        """A message that nobody of these sent."""
        self.ahead(host, e.MessageReceived(sender, message, payload))

    def ahead(self, host: str, event: e.Event) -> None:
        """It happens ahead of all else that comes now."""
        self._number += 1
        heapq.heappush(self._queue, (self.now, self._number - 10**9, self._tell_whoever_is, (host, event)))

    def on(self, node: str) -> set[str]:
        """The hosts that a node was on when the application had enough."""
        return {name for name, nodes in self.last_seen.items() if any(node == each for _, each in nodes)}

    def limit(self, host: str, **limits: Any) -> None:
        """Another configuration for one host from now on."""
        for name, value in limits.items():
            msgspec.structs.force_setattr(self.cores[host].config, name, value)

    def kill(self, host: str, *, last_words: bool = False) -> None:
        """With ``last_words``, what it has sent still arrives."""
        self._crash(Crash(host, self.now))
        if not last_words:
            self._prepare(Cut((host,), self.now, FOREVER_S))

    # --- the network ----------------------------------------------------------------------------------

    def takes_s(self) -> float:
        return MESSAGE_S

    def state_bytes(self) -> int:
        return self.padding

    def output_bytes(self) -> int:
        return 8

    def _late_s(self, name: str) -> float:
        return 0.0

    def _code_of(self, host: VirtualHost, command: Any) -> NodeCode:
        where, error = self.errors.get(type(command), ("", ""))
        if where == host.name:
            raise OperatorError(error)
        return super()._code_of(host, command)

    def _handle(self, host: VirtualHost, event: e.Event) -> None:
        if isinstance(event, e.RunAbandoned):
            self.last_seen = dict(self._nodes)
        delivered = len(self.delivered)
        super()._handle(host, event)
        self.delivered_s += [self.now] * (len(self.delivered) - delivered)
        if self.reached_s is None and self.when is not None and self.when(self):
            self.reached_s = self.now
            self.at(self.now + self.last_s, CLIENT, e.RunAbandoned(R))
            if self.then is not None:
                self.then(self)

    def _send(self, host: VirtualHost, send: e.Send) -> None:
        if send.to not in self.hosts:
            return
        kind = host.name, send.to, type(send.message).__name__
        number = self._counts[kind] + 1
        lost = kind[:2] in self.cut or (self.loses is not None and self.loses(host.name, send))
        state = send.bulk and isinstance(send.message, m.AnyState)
        if lost or (state and not self.cores[send.to].wants(host.name, send.message)):
            self._prepare(Drop(*kind, number))
        for after_s in self.again_s:
            self._prepare(Duplicate(*kind, number, after_s))
        super()._send(host, send)


def reshaped(then: Callable[[Scripted], None] | None = None) -> Scripted:
    """Operator ``n`` on h4 is to take the place of two others; h6 holds nothing, and hears of it by the commit."""
    world = Scripted(lambda world: bool(world.reshaped), then, dataflow=FREE_DATAFLOW)
    wish = e.PlacementProposed(R, {"n": "h4"}, "a test", another_tree(), (FREE,))
    return world.at(BEGINS_S, CLIENT, wish)


@contextmanager
def traced(machine: type[Machine]) -> Iterator[set[tuple[Any, Any]]]:
    """The entries of its table that all such machines used."""
    used: set[tuple[Any, Any]] = set()
    to = machine.to

    def traced_to(self: Machine, event: Any) -> None:
        entry = (self.state, event)
        to(self, event)
        used.add(entry)

    machine.to = traced_to  # type: ignore[method-assign]
    try:
        yield used
    finally:
        machine.to = to  # type: ignore[method-assign]


def missed(world: Scripted) -> None:
    """h4 ends, and the client learns of it."""
    world.kill("h4")
    world.at(world.now, CLIENT, e.PeerLost(R, "h4"))
