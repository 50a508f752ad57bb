"""A network that does its worst to a few host cores: it loses, repeats, delays and reorders everything.

Time is simulated. Every message, timer and call of user code takes a time of the adversary's choice; a message may
be lost (a bounded number of times in a row, or nothing would ever arrive) or come twice. The end of a bulk transfer is
reported late, or reported as failed although the partition arrived.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from random import Random
from typing import Any

import msgspec

from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.host_core import CoreConfig, HostCore

CLIENT = "client"
MAX_LOSSES = 6  # in a row, of messages that say the same
MAX_EVENTS = 60_000
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


def content(dataflow: Dataflow, name: str, index: int) -> Any:
    """What partition ``index`` of a node has to be: everything it was combined from, in order."""
    return (name, index, *(content(dataflow, producer, index) for producer in dataflow.by_name[name].inputs))


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
    ) -> None:
        assert partitions is not None or length is not None
        self.mood = mood
        self.random = Random(mood.seed)
        self.names = [CLIENT, *(f"h{i}" for i in range(1, hosts))]
        self.dataflow, self.placement = random_tree(self.random, sources, self.names)
        self.partitions = partitions
        self.length = length  # of the sources' streams
        self.cores = {
            name: HostCore(m.Peer(name, f"tcp://{name}:1", f"tcp://{name}:2"), core_config) for name in self.names
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
        )

    def _make_stale(self, host: str) -> None:
        """Let a host forget the latest moves, except that one which a node left knows where to."""
        table = self.cores[host].runs["r"].locations
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

    def _schedule(self, at: float, host: str, event: e.Event) -> None:
        heapq.heappush(self._events, (at, self.random.random(), next(self._sequence), host, event))

    def run(self) -> list[Any]:
        """Until nothing is left to happen: the run is over, and every host has forgotten it."""
        self._schedule(0.0, CLIENT, e.RunRequested(self._install()))
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
        nodes = {node for core in self.cores.values() for run in core.runs.values() for node in run.nodes.values()}
        raise AssertionError(f"no end after {MAX_EVENTS} events: delivered {len(self.delivered)}, {nodes}")

    def _tell(self, host: str, event: e.Event) -> None:
        core = self.cores[host]
        known = "r" in core.runs
        commands = core.handle(event, self.now)
        if self.mood.stale and not known and "r" in core.runs:
            self._make_stale(host)
        core.validate()
        self._check_memory(core)
        for command in commands:
            self._obey(host, command)

    @staticmethod
    def _check_memory(core: HostCore) -> None:
        """Per node at most one output held, one retained and one set of inputs; nothing else holds values."""
        assert not core._local
        for run in core.runs.values():
            for node in run.nodes.values():
                assert set(node.inputs) <= set(node.node.inputs)
                if node.output is not None and node.retained is not None:
                    assert node.output.index == node.retained.index + 1
                assert all(output.index == node.index for output in node.inputs.values())

    # --- commands ------------------------------------------------------------------------------------

    def _obey(self, host: str, command: e.Command) -> None:
        match command:
            case e.Send():
                self._send(host, command)
            case e.SetTimer(key, at):
                due = at + (self.random.expovariate(1 / self.mood.delay_s) if self.random.random() < 0.5 else 0)
                self._timers[host, key] = due
                self._schedule(due, host, e.TimerFired(key))
            case e.RunOperator(run, node, index, inputs):
                assert self.placement[node] == host
                if not inputs and self.length is not None and index >= self.length:
                    done = e.OperatorFinished(run, node, index, end=True)
                else:
                    done = e.OperatorFinished(run, node, index, (node, index, *inputs), 8)
                self._schedule(self._later(), host, done)
            case e.Record(_, kind):
                self.counts[kind] += 1
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
                    self._schedule(self._later(), host, e.NextRequested(run))
            case e.Fail(run, reason):
                self.failed = reason
                self._schedule(self._later(), host, e.RunAbandoned(run))
            case e.Forgotten():
                assert not self.forgotten
                self.forgotten = True
            case e.Meet() | e.OpenRun() | e.CloseRun():
                pass
            case _:
                raise AssertionError(f"{host} gave an unexpected command: {command}")

    def _send(self, host: str, send: e.Send) -> None:
        assert send.to in self.cores
        assert send.to != host, f"{host} sends itself {send.message}"
        what = (getattr(send.message, field, "") for field in ("producer", "consumer", "index"))
        said = (host, send.to, type(send.message).__name__, *what)
        lost = self.random.random() < self.mood.loss and self._losses[said] < MAX_LOSSES
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
            if lost or self.random.random() < self.mood.loss:  # the news of its arrival may be lost as well
                over: e.Event = e.TransferFailed(send.to, send.message)
                self._schedule(self._later(max(1.0, self.mood.delay_s)), host, over)
            else:
                over = e.TransferMeasured(send.to, send.message, send.size_bytes, 0.1)
                self._schedule(arrives if self.random.random() < 0.8 else self._later(), host, over)
