"""Virtual worlds for tests of cores: ``FaultyWorld`` with a fault plan, and with delays that an adversary chooses.

A ``World`` has a storm according to its mood. Every message, timer and call of user code takes a time that the
adversary chooses, and hosts may know outdated locations. A ``Scripted`` world leaves nothing to chance: its faults
happen at the moment that the script names. Operators are those of ``faults.trial_code``. A state that is lost, doubled
or mixed up by a move shows in the values that the application gets.
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

PADDING = 18_000  # bytes of a state that travels as bulk
FOREVER_S = 1e9
PATIENT = CoreConfig(liveness_s=FOREVER_S, lease_s=2000.0)  # a host that is silent for long is not lost
RATE_BPS = 1e12


class Mood(msgspec.Struct, frozen=True):
    """Seed of an adversary, and the strength of its faults."""

    seed: int
    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.01  # mean; most are shorter, some much longer
    stale: bool = False  # hosts know outdated locations

    def plan(self, faults: Sequence[Fault]) -> FaultPlan:
        storm = Storm(self.loss, self.repeat, unconfirmed=self.loss, delay_s=self.delay_s)
        return FaultPlan(self.seed, (*faults, storm) if self.loss or self.repeat else tuple(faults))


def mixed_tree(
    random: Random, sources: int, hosts: Sequence[str], code: Code = FREE
) -> tuple[Dataflow, dict[str, str]]:
    """Return a random tree and a placement. Most operators are free and have ``code``. Some count or are pinned."""
    flow, placement = random_tree(random, sources, hosts)
    nodes = [freed(random, node, code) for node in flow.nodes]
    pinned = [node.code == code and random.random() < 0.1 for node in nodes]
    nodes = [
        msgspec.structs.replace(node, pinned=placement[node.name]) if here else node
        for node, here in zip(nodes, pinned, strict=True)
    ]
    return Dataflow(tuple(nodes)).validate(hosts), placement


def random_tree(random: Random, sources: int, hosts: Sequence[str]) -> tuple[Dataflow, dict[str, str]]:
    """Return a tree of random shape over ``sources`` sources, and a placement of the tree."""
    flow = draw_tree(random, hosts, sources)
    flow = Dataflow(tuple(random.sample(flow.nodes, len(flow.nodes)))).validate(hosts)
    return flow, {node.name: node.pinned or random.choice(hosts) for node in flow.nodes}


def content(dataflow: Dataflow, name: str, index: int) -> Any:
    """Return the right content of partition ``index`` of a node."""
    return trial_code.content(dataflow, name, index, {})


def right(dataflow: Dataflow, count: int) -> list[Any]:
    """Return the first ``count`` values that the application has to get."""
    known: trial_code.Known = {}
    return [trial_code.content(dataflow, dataflow.sinks[0], i, known)[3] for i in range(count)]


class Paced(Counting):
    """Code whose times and partition sizes come from the world."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(node, world.state_bytes(), world.length, 0.0)
        self.world = world

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        result = super().make(index, inputs)
        return msgspec.structs.replace(result, size_bytes=self.world.output_bytes(), seconds=self.world.takes_s())


class World(FaultyWorld):
    """Several cores, and the adversary between them. ``run()`` returns the values that the application got."""

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
        for host in self.hosts.values():  # each host has limits of its own
            host.core = HostCore(host.core.me, copy.copy(core_config))
            host.core.context.recording = True
        self.trees = {None: tree or random_tree(self.random, sources, names)}
        self.dataflow = self.tree[0]  # the first tree, which decides which values are right
        self._reorderable = Reorderable((FREE, MERGING), (MERGING,))
        if driver is not None:
            self.driver = RandomMover(driver, self, names, self._reorderable.codes).on_delivered
        self.partitions = partitions
        self.length = 10**6 if length is None else length  # of the sources' streams
        self.adaptation = adaptation
        self.history = {name: self._history(name) for name in self.dataflow.by_name}
        self.pace_s: float | None = None  # pace of the application, if it differs from all else
        self.delivered: list[Any] = []
        self.others: defaultdict[str, list[tuple[float, int, Any]]] = defaultdict(list)  # by sink of a query
        self.ended = self.forgotten = False
        self.asked: list[e.PlacementProposed] = []  # proposals of the application
        self.answers: list[e.MoveEnded] = []
        self.records: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)  # by kind: the fields

    # --- results -----------------------------------------------------------------------------

    @property
    def cores(self) -> dict[str, HostCore]:
        return {name: host.core for name, host in self.hosts.items()}

    @property
    def combined(self) -> set[tuple[str, str]]:
        """Return pairs of a host and a node whose code the host has."""
        return {(name, node) for name, host in self.hosts.items() for _, node in host.code}

    @property
    def counts(self) -> Counter[str]:
        return Counter({kind: len(rows) for kind, rows in self.records.items()})

    @property
    def settled(self) -> list[dict[str, Any]]:
        """Return the records of finished hand-overs."""
        return self.records["relocated"]

    @property
    def moves(self) -> Counter[str]:
        """Return the number of hand-overs by outcome and protocol."""
        return Counter(f"{record['detail']['outcome']} {record['detail']['protocol']}" for record in self.settled)

    @property
    def proposals(self) -> list[dict[str, Any]]:
        return [record["detail"] for record in self.records["proposal"]]

    @property
    def reshaped(self) -> list[dict[str, Any]]:
        return [{**record["detail"], **record} for record in self.records["reshaped"]]

    @property
    def merged(self) -> list[dict[str, Any]]:
        return self.records["merged"]

    @property
    def faults(self) -> list[str]:
        return [record["detail"]["what"] for record in self.records["fault"] if "detail" in record]

    def _record(self, host: str, now: float, record: e.Record) -> None:
        self.records[record.kind].append(record.fields)

    # --- true locations, and locations that hosts know ---------------------------------------------------------

    def _history(self, node: str) -> list[str]:
        """Return the hosts that a node has been on, the present host last. Version ``i + 1`` is entry ``i``."""
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
        """Have a host forget the latest moves. A host that a node has left still knows the move from there."""
        table = self.cores[host].runs[R].directory.locations
        for node, past in self.history.items():
            known_from = max((i + 1 for i, where in enumerate(past[:-1]) if where == host), default=0)
            version = self.random.randint(min(known_from, len(past) - 1), len(past) - 1)
            if past[-1] != host:
                table[node] = m.Location(node, past[version], version + 1)

    # --- choices of the adversary -------------------------------------------------------------------

    def takes_s(self) -> float:
        """Return the time that the next message, timer or call takes."""
        stretch = 20.0 if self.random.random() < 0.05 else 1.0
        return self.random.expovariate(1 / self.mood.delay_s) * stretch

    def state_bytes(self) -> int:
        """Return a state's size: inline, bulk, or bulk of several chunks, which only a host in need of it accepts."""
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
        """Run until no event is left: the run is over, and every host has forgotten the run. Return the values."""
        codes, merging = self._reorderable
        self.open, self._sinks = {0}, {0: {*self.dataflow.sinks}}
        self.at(0.0, CLIENT, e.RunRequested(self._install(), self.adaptation, codes, merging=merging))
        self._until(lambda: False)
        assert not self.stalled, f"no end after {self.events} events: delivered {len(self.delivered)}"
        self._check_answers()
        return self.delivered

    def _check_answers(self) -> None:
        """Check that each request of the application has one answer, or at most one if run or client are lost."""
        lost = self.failed is not None or CLIENT in self.down
        for number, asked in enumerate(self.asked):
            answers = [answer for answer in self.answers if answer.number == number]
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
GRAPH_DATAFLOW = Dataflow(  # the consumers of o are on two hosts, and their outputs are combined again
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
    """Return a tree with one operator in place of the two of ``FREE_DATAFLOW``."""
    node = Node(name, "operator", ("s2", "s1"), code)
    sources = FREE_DATAFLOW.nodes[:2]
    return Dataflow((*sources, node, Node("t", "sink", (name,), None, CLIENT))).validate()


class Scripted(World):
    """World without chance, with the faults of a script only. ``then`` is called once, as soon as ``when`` is true.

    Hosts h4 and h6 hold nothing. ``errors``: the commands that the code on a host answers with an error. Messages on a
    directed link in ``cut`` are lost, and so are messages for which ``loses`` is true. A state that comes as bulk is
    accepted only by a host that wants it.
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
        self.last_s = last_s  # time for which the application continues after the moment
        self.reached_s: float | None = None
        self.cut: set[tuple[str, str]] = set()
        self.errors: dict[type[e.Command], tuple[str, str]] = {}  # -> (host, error)
        self.loses: Callable[[str, e.Send], bool] | None = None
        self.again_s: tuple[float, ...] = ()  # every message is repeated after these delays
        self.padding = 1
        self.delivered_s: list[float] = []
        self.last_seen: dict[str, set[tuple[RunId, str]]] = {}
        self.target = ""  # host to which the operator is to move

    # --- for scripts ---------------------------------------------------------------------------------

    def run_at(self, host: str) -> RunCore | None:
        return self.cores[host].runs.get(R)

    def tell(self, host: str, sender: str, message: m.Message, payload: Any = None) -> None:
        """Deliver a message in the name of ``sender``, which has not sent it."""
        self.ahead(host, e.MessageReceived(sender, message, payload))

    def ahead(self, host: str, event: e.Event) -> None:
        """Deliver an event before all other events of this moment."""
        self._number += 1
        heapq.heappush(self._queue, (self.now, self._number - 10**9, self._tell_whoever_is, (host, event)))

    def on(self, node: str) -> set[str]:
        """Return the hosts that had a node when the application abandoned the run."""
        return {name for name, nodes in self.last_seen.items() if any(node == placed for _, placed in nodes)}

    def limit(self, host: str, **limits: Any) -> None:
        """Change limits of one host from now on."""
        for name, value in limits.items():
            msgspec.structs.force_setattr(self.cores[host].config, name, value)

    def kill(self, host: str, *, last_words: bool = False) -> None:
        """Crash a host for good. With ``last_words``, messages that the host has sent still arrive."""
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
    """Return a world in which ``n`` on h4 replaces two operators. h6 holds nothing, and learns of it by the commit."""
    world = Scripted(lambda world: bool(world.reshaped), then, dataflow=FREE_DATAFLOW)
    wish = e.PlacementProposed(R, {"n": "h4"}, "a test", another_tree(), (FREE,))
    return world.at(BEGINS_S, CLIENT, wish)


@contextmanager
def traced(machine: type[Machine]) -> Iterator[set[tuple[Any, Any]]]:
    """Collect the table entries that machines of this class use, until the block ends."""
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
    """Kill h4, and report the loss to the client."""
    world.kill("h4")
    world.at(world.now, CLIENT, e.PeerLost(R, "h4"))
