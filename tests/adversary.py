"""A network that does its worst to a few host cores: it loses, repeats, delays and reorders everything.

Time is simulated. Every message, timer and call of user code takes a time of the adversary's choice; a message may
be lost (a bounded number of times in a row, or nothing would ever arrive) or come twice. The end of a bulk transfer is
reported late, or reported as failed although the partition arrived.

Operators remember how many partitions they have combined, and every output says so: a state that was lost, doubled
or mixed up on a move shows in what the application gets.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

from thalweg.experiments.faults.trials import Seen, seen, shown
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.machine import Machine
from thalweg.middleware.core.run import RunCore
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig

CLIENT = "client"
MAX_LOSSES = 6  # in a row, of messages that say the same
MAX_EVENTS = 60_000
PADDING = 18_000  # bytes of a state that has to travel as bulk
FREE = Code("free")  # of operators that combine in any order and grouping
MERGING = Code("seen")  # of such that remember all that they were given, and merge what they do
PATIENT = CoreConfig(liveness_s=1e9, lease_s=2000.0)  # the adversary may be silent for long; it is not dead


class Mood(msgspec.Struct, frozen=True):
    """How bad the adversary is."""

    seed: int
    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = 0.01  # mean; most are shorter, some much longer
    stale: bool = False  # hosts know older locations than the true ones


def random_tree(random: Random, sources: int, hosts: list[str]) -> tuple[Dataflow, dict[str, str]]:
    """A tree of any shape with fan-in 1 to 4 over so many sources, and a placement of it."""
    nodes = [Node(f"s{i}", "source", (), Code("s"), random.choice(hosts)) for i in range(sources)]
    loose = [node.name for node in nodes]
    count = itertools.count()
    while len(loose) > 1 or random.random() < 0.3:
        inputs = tuple(random.sample(loose, min(len(loose), random.randint(1, 4))))
        name = f"o{next(count)}"
        nodes.append(Node(name, "operator", inputs, Code("o")))
        loose = [other for other in loose if other not in inputs] + [name]
    nodes.append(Node("t", "sink", (loose[0],), None, CLIENT))
    random.shuffle(nodes)
    dataflow = Dataflow(tuple(nodes)).validate(hosts)
    return dataflow, {node.name: node.pinned or random.choice(hosts) for node in nodes}


Known = dict[tuple[str, int], Any]


def content(dataflow: Dataflow, name: str, index: int, known: Known | None = None) -> Any:
    """What partition ``index`` of a node has to be: everything it was combined from, in order.

    The third element is how many partitions an operator had combined before. Those of a free operator have no order.
    ``known``: what was asked for before.
    """
    known = {} if known is None else known
    if (name, index) not in known:
        node = dataflow.by_name[name]
        if node.code == MERGING:
            known[name, index] = shown(index, given_to(dataflow, name, index, known))
            return known[name, index]
        inputs = tuple(content(dataflow, producer, index, known) for producer in node.inputs)
        before = index if node.kind == "operator" else 0
        free = node.kind == "operator" and node.code == FREE
        known[name, index] = mixed(index, inputs) if free else (name, index, before, *inputs)
    return known[name, index]


def given_to(dataflow: Dataflow, name: str, index: int, known: Known) -> set[Seen]:
    """All that an operator that remembers was given up to partition ``index``, itself or those like it below."""
    given: set[Seen] = set()
    for producer in dataflow.by_name[name].inputs:
        if dataflow.by_name[producer].code == MERGING:
            given |= given_to(dataflow, producer, index, known)
        else:
            given |= seen([content(dataflow, producer, i, known) for i in range(index + 1)])
    return given


def right(dataflow: Dataflow, count: int) -> list[Any]:
    """What the application has to get first."""
    known: Known = {}
    return [content(dataflow, dataflow.sink, i, known)[3] for i in range(count)]


def read(state: bytes) -> tuple[int, set[Seen]]:
    """A state: how many partitions were combined, and what was remembered of them."""
    combined, memory = msgspec.json.decode(state, type=tuple[int, list[Seen]])
    return combined, set(memory)


def mixed(index: int, inputs: tuple[Any, ...]) -> Any:
    """What a free operator makes: all that it is given, itself or as other free operators made it, in no order."""
    parts = [part for each in inputs for part in (each[2] if each[0] == "mixed" else (each,))]
    assert len(set(parts)) == len(parts), f"combined twice: {parts}"
    return ("mixed", index, tuple(sorted(parts)))


def mixed_tree(random: Random, sources: int, hosts: list[str], code: Code = FREE) -> tuple[Dataflow, dict[str, str]]:
    """A random tree in which most operators are free, of that code, others count, and some are pinned."""
    flow, placement = random_tree(random, sources, hosts)
    nodes = []
    for node in flow.nodes:
        if node.kind == "operator" and random.random() < 0.8:
            node = msgspec.structs.replace(node, code=code)
            if random.random() < 0.1:
                node = msgspec.structs.replace(node, pinned=placement[node.name])
        nodes.append(node)
    return Dataflow(tuple(nodes)).validate(hosts), placement


class World:
    """Some cores and the adversary between them. ``run()`` returns what the application got."""

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
        tree: tuple[Dataflow, dict[str, str]] | None = None,
    ) -> None:
        assert partitions is not None or length is not None
        self.mood = mood
        self.random = Random(mood.seed)
        self.names = [CLIENT, *(f"h{i}" for i in range(1, hosts))]
        self.dataflow, self.placement = tree or random_tree(self.random, sources, self.names)
        self.partitions = partitions
        self.length = length  # of the sources' streams
        self.adaptation = adaptation
        self.combined: dict[tuple[str, str], int] = {}  # (host, operator): the state of the code there
        self.memory: dict[tuple[str, str], set[Seen]] = {}  # the same, of those that merge it
        self.moves: Counter[str] = Counter()  # outcome and protocol
        self.settled: list[dict[str, Any]] = []  # what hand-overs came to
        self.proposals: list[dict[str, Any]] = []
        self.reshaped: list[dict[str, Any]] = []
        self.tree = self.dataflow  # the present one
        self.codes = {name: node.code for name, node in self.dataflow.by_name.items()}  # of all trees
        self.merged: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.pace_s: float | None = None  # of the application, if not that of messages
        self.cores = {
            name: HostCore(m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2"), copy.copy(core_config))
            for name in self.names
        }
        self.history = {name: self._history(name) for name in self.dataflow.by_name}
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.delivered: list[Any] = []
        self.ended = False
        self.failed: str | None = None
        self.forgotten = False
        self._events: list[tuple[float, float, int, str, e.Event]] = []
        self._sequence = itertools.count()
        self._timers: dict[tuple[str, str], float] = {}
        self._losses: Counter[Any] = Counter()
        self.dead: set[str] = set()
        self.dies: tuple[str, float] = ("", 0.0)  # a host, and when
        self._active: dict[str, set[str]] = {name: set() for name in self.names}  # the nodes on each host

    # --- the truth and what hosts know of it ---------------------------------------------------------

    def _history(self, node: str) -> list[str]:
        """The hosts a node has been on, the present one last: version ``i + 1`` is entry ``i``."""
        members = sorted(set(self.placement.values()))  # the run is installed on no others
        moves = self.random.randint(1, 3) if self.mood.stale else 0
        return [*(self.random.choice(members) for _ in range(moves)), self.placement[node]]

    def _install(self) -> m.Install:
        return m.Install(
            run="r",
            dataflow=self.dataflow,
            locations=tuple(m.Location(node, past[-1], len(past)) for node, past in self.history.items()),
            peers=tuple(core.me for core in self.cores.values()),
            client=CLIENT,
            partitions=self.partitions,
            moves=self.adaptation if isinstance(self.adaptation, LocalMoves) else None,
        )

    def _make_stale(self, host: str) -> None:
        """Let a host forget the latest moves, except that one which a node left knows where to."""
        table = self.cores[host].runs["r"].directory.locations
        for node, past in self.history.items():
            known_from = max((i + 1 for i, where in enumerate(past[:-1]) if where == host), default=0)
            version = self.random.randint(min(known_from, len(past) - 1), len(past) - 1)
            if past[-1] != host:
                table[node] = m.Location(node, past[version], version + 1)

    # --- time ----------------------------------------------------------------------------------------

    def _later(self, mean_s: float | None = None) -> float:
        mean = self.mood.delay_s if mean_s is None else mean_s
        stretch = 20.0 if self.random.random() < 0.05 else 1.0
        return self.now + self.random.expovariate(1 / mean) * stretch

    def _due(self, at_s: float) -> float:
        """When a timer really fires."""
        return at_s + (self.random.expovariate(1 / self.mood.delay_s) if self.random.random() < 0.5 else 0.0)

    def _error(self, host: str, command: type[e.Command]) -> str:
        """What goes wrong where a host's shell does such a command."""
        return ""

    def _padding(self) -> int:
        """States travel as control messages, or filled up to so many bytes as bulk."""
        return 1 if self.random.random() < 0.5 else PADDING

    def _schedule(self, at: float, host: str, event: e.Event) -> None:
        heapq.heappush(self._events, (at, self.random.random(), next(self._sequence), host, event))

    def run(self) -> list[Any]:
        """Until nothing is left to happen: the run is over, and every host has forgotten it."""
        self._schedule(
            0.0, CLIENT, e.RunRequested(self._install(), self.adaptation, (FREE, MERGING), merging=(MERGING,))
        )
        for _ in range(MAX_EVENTS):
            if not self._events:
                return self.delivered
            at, _, _, host, event = heapq.heappop(self._events)
            if isinstance(event, e.TimerFired):
                if self._timers.get((host, event.key)) != at:
                    continue  # replaced meanwhile
                del self._timers[host, event.key]
            self.now = max(self.now, at)
            self._tell(host, event)
        nodes = {node for core in self.cores.values() for run in core.runs.values() for node in run.flow.nodes.values()}
        raise AssertionError(f"no end after {MAX_EVENTS} events: delivered {len(self.delivered)}, {nodes}")

    def _tell(self, host: str, event: e.Event) -> None:
        victim, at_s = self.dies
        if victim and self.now >= at_s:
            self.dies = "", 0.0
            self.kill(victim)
        if host in self.dead:
            return
        core = self.cores[host]
        known = "r" in core.runs
        commands = core.handle(event, self.now)
        if self.mood.stale and not known and "r" in core.runs:
            self._make_stale(host)
        core.validate()
        self._check_memory(core)
        self._check_owners(core)
        for command in commands:
            self._obey(host, command)

    def kill(self, host: str, *, last_words: bool = False) -> None:
        """With ``last_words``, what it has sent still arrives."""
        self.dead.add(host)
        self._active[host] = set()
        if not last_words:
            self._events = [
                each
                for each in self._events
                if not (isinstance(each[-1], e.MessageReceived) and each[-1].sender == host)
            ]
            heapq.heapify(self._events)

    @staticmethod
    def _check_memory(core: HostCore) -> None:
        """Per node at most one output held, one retained and one set of inputs; nothing else holds values."""
        assert not core._desk.local
        for run in core.runs.values():
            for node in run.flow.nodes.values():
                assert set(node.inputs) <= set(node.node.inputs)
                if node.output is not None and node.retained is not None:
                    assert node.output.index == node.retained.index + 1
                assert all(output.index == node.index for output in node.inputs.values())

    def _check_owners(self, core: HostCore) -> None:
        """No node is on two hosts at any time."""
        nodes = {name for run in core.runs.values() for name in run.flow.nodes}
        if nodes != self._active[core.host]:
            self._active[core.host] = nodes
            everywhere = Counter(itertools.chain.from_iterable(self._active.values()))
            assert all(count == 1 for count in everywhere.values()), f"on two hosts: {everywhere}"

    # --- commands ------------------------------------------------------------------------------------

    def _obey(self, host: str, command: e.Command) -> None:
        match command:
            case e.Send():
                self._send(host, command)
            case e.SetTimer(key, at):
                due = self._due(at)
                self._timers[host, key] = due
                self._schedule(due, host, e.TimerFired(key))
            case e.OpenRun(_, nodes):
                self.combined.update(((host, node), 0) for node in nodes)
                self.memory.update(((host, node), set()) for node in nodes)
            case e.OpenNode(run, node, fresh, merging):
                self.combined[host, node.name] = 0
                self.memory[host, node.name] = set()
                assert not fresh or node.code in (FREE, MERGING), f"{node} has to keep its inputs"
                assert merging == (fresh and node.code == MERGING), f"the state of {node} would be lost"
                self.codes[node.name] = node.code
                self._schedule(self._later(), host, e.NodeOpened(run, node.name, self._error(host, e.OpenNode)))
            case e.CloseNode(_, node):
                del self.combined[host, node]
                del self.memory[host, node]
            case e.TakeState(run, node, version):
                error = self._error(host, e.TakeState)
                what = self.combined[host, node], sorted(self.memory[host, node])
                state = b"" if error else msgspec.json.encode(what).ljust(self._padding())
                self._schedule(self._later(), host, e.StateTaken(run, node, version, state, "digest", error=error))
            case e.RestoreState(run, node, version, state, digest):
                assert digest == "digest"
                self.combined[host, node], self.memory[host, node] = read(state)
                error = self._error(host, e.RestoreState)
                self._schedule(self._later(), host, e.StateRestored(run, node, version, error))
            case e.MergeStates(run, node, version, states):
                assert all(each.digest == "digest" for each in states)
                assert not self.memory[host, node], f"{node} has begun without its states"
                self.memory[host, node] = set().union(*(read(each.state)[1] for each in states))
                error = self._error(host, e.MergeStates)
                self._schedule(self._later(), host, e.StateRestored(run, node, version, error))
            case e.RunOperator(run, node, index, inputs):
                before = self.combined[host, node]
                if not inputs and self.length is not None and index >= self.length:
                    done = e.OperatorFinished(run, node, index, end=True)
                elif self.codes[node] == MERGING:
                    self.memory[host, node] |= seen(inputs)
                    done = e.OperatorFinished(run, node, index, shown(index, self.memory[host, node]), 8)
                elif inputs and self.codes[node] == FREE:
                    done = e.OperatorFinished(run, node, index, mixed(index, inputs), 8)
                else:
                    done = e.OperatorFinished(run, node, index, (node, index, before, *inputs), 8)
                if inputs:
                    self.combined[host, node] += 1
                self._schedule(self._later(), host, done)
            case e.Record(_, "relocated", fields):
                self.settled.append(fields)
                self.moves[f"{fields['detail']['outcome']} {fields['detail']['protocol']}"] += 1
            case e.Record(_, "proposal", fields):
                self.proposals.append(fields["detail"])
            case e.Record(_, "reshaped", fields):
                self.reshaped.append({**fields["detail"], **fields})
            case e.Record(_, "merged", fields):
                self.merged.append(fields)
            case e.Record(_, kind, fields):
                self.counts[kind] += 1
                if kind == "fault" and "detail" in fields:
                    self.faults.append(fields["detail"]["what"])
            case e.Ready(run):
                self._schedule(self._later(), host, e.NextRequested(run))
            case e.Deliver(run, index, value, _, end):
                assert not self.ended, f"partition {index} after the end"
                assert index == len(self.delivered), f"partition {index} after {len(self.delivered)} others"
                if end:
                    self.ended = True
                    self._schedule(self._later(), host, e.RunAbandoned(run))
                else:
                    self.delivered.append(value)
                    self._schedule(self._later(self.pace_s), host, e.NextRequested(run))
            case e.Fail(run, reason):
                self.failed = reason
                self._schedule(self._later(), host, e.RunAbandoned(run))
            case e.Forgotten():
                assert not self.forgotten
                self.forgotten = True
            case e.CloseRun():
                self.combined = {key: count for key, count in self.combined.items() if key[0] != host}
                self.memory = {key: past for key, past in self.memory.items() if key[0] != host}
            case e.TreeChanged(_, dataflow):
                self.tree = dataflow
            case e.Meet() | e.Approach() | e.Placed() | e.Report():
                pass
            case _:
                raise AssertionError(f"{host} gave an unexpected command: {command}")

    def _send(self, host: str, send: e.Send) -> None:
        assert send.to in self.cores
        assert send.to != host, f"{host} sends itself {send.message}"
        what = (getattr(send.message, field, "") for field in ("producer", "consumer", "index"))
        said = (host, send.to, type(send.message).__name__, *what)
        lost = (self.random.random() < self.mood.loss and self._losses[said] < MAX_LOSSES) or send.to in self.dead
        self._losses[said] = self._losses[said] + 1 if lost else 0
        arrives = self._later()
        if send.bulk and not lost and self.random.random() < 0.5:  # of many chunks: the first is not let in unasked
            self.now, now = arrives, self.now
            arrives = self._later()
            self.now = now
            lost = not self.cores[send.to].wants(send.message)  # type: ignore[arg-type]
        if not lost:
            for _ in range(1 + (self.random.random() < self.mood.repeat)):
                received = e.MessageReceived(host, send.message, send.payload, send.size_bytes)
                self._schedule(arrives, send.to, received)
                arrives = self._later()
        if send.bulk:
            assert isinstance(send.message, m.Partition | m.Probe | m.State)
            if lost or self.random.random() < self.mood.loss:  # the news of its arrival may be lost as well
                over: e.Event = e.TransferFailed(send.to, send.message)
                self._schedule(self._later(max(1.0, self.mood.delay_s)), host, over)
            else:
                over = e.TransferMeasured(send.to, send.message, send.size_bytes, self.random.uniform(0.01, 0.3))
                self._schedule(arrives if self.random.random() < 0.8 else self._later(), host, over)


# --- a network that does what a script says ---------------------------------------------------------

SCRIPTED = CoreConfig(ping_s=0.5, liveness_s=3.0, lease_s=6.0, handoff_s=2.0, barrier_s=2.0)
SCRIPTED_PLACEMENT = {"s1": "h1", "s2": "h2", "o": "h3", "r": "h5", "t": CLIENT}
SCRIPTED_DATAFLOW = Dataflow(
    (
        Node("s1", "source", (), Code("s"), "h1"),
        Node("s2", "source", (), Code("s"), "h2"),
        Node("o", "operator", ("s1", "s2"), Code("o")),
        Node("r", "operator", ("o",), Code("o")),
        Node("t", "sink", ("r",), None, CLIENT),
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

    Hosts h4 and h6 hold nothing. ``commands`` that the shell answers with an error are listed in ``errors``. A
    dead host hears and says nothing any more; so does a link that is ``cut``, in its one direction. A state that comes
    as bulk is let in only where it is wanted.
    """

    def __init__(
        self,
        when: Callable[[Scripted], bool] | None = None,
        then: Callable[[Scripted], None] | None = None,
        *,
        partitions: int = 10**6,
        last_s: float = 6.0,
        dataflow: Dataflow = SCRIPTED_DATAFLOW,
    ) -> None:
        tree = (dataflow.validate(), dict(SCRIPTED_PLACEMENT))
        mood = Mood(0, delay_s=MESSAGE_S)
        super().__init__(mood, 7, 0, partitions=partitions, length=None, core_config=SCRIPTED, tree=tree)
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
        self.last_seen: dict[str, set[str]] = {}
        self.target = ""  # where the operator that moves is to go
        self.placed: dict[str, str] = dict(SCRIPTED_PLACEMENT)  # as the client says

    # --- for scripts ---------------------------------------------------------------------------------

    def run_at(self, host: str) -> RunCore | None:
        return self.cores[host].runs.get("r")

    def tell(self, host: str, sender: str, message: m.Message, payload: Any = None) -> None:
        """A message that nobody of these sent."""
        self._schedule(self.now, host, e.MessageReceived(sender, message, payload))

    def on(self, node: str) -> set[str]:
        """The hosts that a node was on when the application had enough."""
        return {name for name, nodes in self.last_seen.items() if node in nodes}

    def at(self, at_s: float, host: str, event: e.Event) -> Scripted:
        self._schedule(at_s, host, event)
        return self

    def configure(self, host: str, **limits: Any) -> None:
        """Another configuration for one host, before anything has happened."""
        config = msgspec.structs.replace(SCRIPTED, **limits)
        self.cores[host] = HostCore(self.cores[host].me, config)

    def limit(self, host: str, **limits: Any) -> None:
        """Another configuration for one host from now on."""
        for name, value in limits.items():
            msgspec.structs.force_setattr(self.cores[host].config, name, value)

    # --- the network ----------------------------------------------------------------------------------

    def _later(self, mean_s: float | None = None) -> float:
        return self.now + (self.mood.delay_s if mean_s is None else mean_s)

    def _due(self, at_s: float) -> float:
        return at_s

    def _error(self, host: str, command: type[e.Command]) -> str:
        where, error = self.errors.get(command, ("", ""))
        return error if where == host else ""

    def _padding(self) -> int:
        return self.padding

    def _obey(self, host: str, command: e.Command) -> None:
        if isinstance(command, e.Placed):
            self.placed[command.node] = command.host
        elif isinstance(command, e.TreeChanged):
            self.placed = command.placement
        super()._obey(host, command)

    def _tell(self, host: str, event: e.Event) -> None:
        if isinstance(event, e.RunAbandoned):
            self.last_seen = dict(self._active)
        delivered = len(self.delivered)
        super()._tell(host, event)
        self.delivered_s += [self.now] * (len(self.delivered) - delivered)
        if self.reached_s is None and self.when is not None and self.when(self):
            self.reached_s = self.now
            self._schedule(self.now + self.last_s, CLIENT, e.RunAbandoned("r"))
            if self.then is not None:
                self.then(self)

    def _send(self, host: str, send: e.Send) -> None:
        assert send.to != host, f"{host} sends itself {send.message}"
        lost = send.to not in self.cores or send.to in self.dead or (host, send.to) in self.cut
        lost = lost or (self.loses is not None and self.loses(host, send))
        if send.bulk and isinstance(send.message, m.State):
            lost = lost or not self.cores[send.to].wants(send.message)
        received = e.MessageReceived(host, send.message, send.payload, send.size_bytes)
        for after_s in () if lost else (0.0, *self.again_s):
            self._schedule(self._later() + after_s, send.to, received)
        if send.bulk and lost:
            self._schedule(self.now + 1.0, host, e.TransferFailed(send.to, send.message))
        elif send.bulk:
            self._schedule(self._later(), host, e.TransferMeasured(send.to, send.message, send.size_bytes, MESSAGE_S))


def reshaped(then: Callable[[Scripted], None] | None = None) -> Scripted:
    """Operator ``n`` on h4 is to take the place of two others; h6 holds nothing, and hears of it by the commit."""
    world = Scripted(lambda world: bool(world.reshaped), then, dataflow=FREE_DATAFLOW)
    wish = e.PlacementProposed("r", {"n": "h4"}, "a test", another_tree(), (FREE,))
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
    world.at(world.now, CLIENT, e.PeerLost("r", "h4"))
