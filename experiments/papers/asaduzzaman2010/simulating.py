"""Trial of a stream-processing platform under a workload, in virtual time: Figures 8 and 9 (section 6.1).

Tasks arrive at their sinks, are mapped and reserved by messages (``exchange``), and run at rates, not by partitions. A
change of a rate is an event. A public edge shares its sender's uplink and its receiver's downlink equally with the
other public edges. Its mean rate is the smaller of both parts. Every ``reallocation_s`` every host allocates its links
anew.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from thalweg.experiments.papers.asaduzzaman2010.exchange import Exchange, undisturbed
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    DEDICATED,
    PUBLIC,
    FinishedMap,
    Network,
    TaskOutcome,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.reallocation import Kind, OutgoingFlow, reallocate
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host, MappingTask, Platform
from thalweg.experiments.papers.asaduzzaman2010.platforms import RATE_BPS, SIZE_BITS, Networks, platform, task
from thalweg.experiments.papers.asaduzzaman2010.rates import in_lock_step
from thalweg.experiments.sweeps.trial import Outcome, Trial

PATIENCE_S = 60.0  # far more than a mapping takes
VISITS = 1000  # more than a map has
ROUNDED = 20  # steps of an edge's mean rate, which is the key of cached rates


class Simulating(Trial, frozen=True, kw_only=True):
    """Platform and workload (``pool_seed``, ``configuration``), and the way in which tasks are mapped.

    ``networks``: for the tasks. ``cost``: the paper's (balanced), or ours (frugal), which is ordered. ``links``: number
    of dedicated links. ``per_hour``: arriving tasks. ``reallocation``: on or off, every ``reallocation_s``.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str] = "thalweg.experiments.papers.asaduzzaman2010.simulating:simulate"

    networks: Networks = "both"
    cost: Literal["balanced", "frugal"] = "balanced"
    links: int = 99
    per_hour: float = 60.0
    reallocation: Literal["on", "off"] = "on"
    reallocation_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    tasks: int = 200
    hosts: int = 100

    @property
    def kind(self) -> tuple[object, ...]:
        return self.networks, self.cost, self.links, self.per_hour


class Simulated(Outcome, frozen=True, kw_only=True):
    """Results of a run. ``accepted``: the number of tasks. ``finished_per_hour``, ``server_use``, ``link_use``: until
    the last arrival. ``deviation``: of accepted tasks, the mean over windows of (B - B̂) / B, which equals the mean
    over the run. ``elongation``: of the tasks' times, above the time at their own rate. ``messages``: maps sent per
    task. ``mapping_s``: in virtual time.
    """

    accepted: int = 0
    finished_per_hour: float = 0.0
    server_use: float = 0.0
    link_use: float | None = None
    deviation: float | None = None
    elongation: float | None = None
    messages: float = 0.0
    mapping_s: float = 0.0
    public_edges: float | None = None
    moved: int = 0


Simulating.outcome = Simulated


class Edge:
    """Edge of a running task between two hosts."""

    __slots__ = ("key", "kind", "mean", "path", "source", "target", "task", "visit")

    def __init__(self, key: int, task: Running, visit: int, kind: Kind, path: list[Host]) -> None:
        self.key, self.task, self.kind, self.path = key, task, kind, path
        self.visit = visit  # number of the first visit that holds a link of the path
        self.source, self.target = path[0], path[-1]
        self.mean = 1.0  # as a share of the task's rate


class Running:
    """Running task with remaining data and current rate."""

    __slots__ = ("begun_s", "edges", "found", "key", "left_bits", "rate", "since_s", "task", "version")

    def __init__(self, task: MappingTask, key: tuple[int, int], found: FinishedMap, now: float) -> None:
        self.task, self.key, self.found = task, key, found
        self.begun_s = self.since_s = now
        self.left_bits = SIZE_BITS
        self.rate = 1.0
        self.version = 0
        self.edges: list[Edge] = []


def _network(kind: Kind) -> Network:
    return PUBLIC if kind == "public" else DEDICATED


class Simulation:
    """Platform with arriving and running tasks."""

    def __init__(self, trial: Simulating, world: Platform, tasks: list[tuple[float, MappingTask]]) -> None:
        rules = Rules(cost=trial.cost, ordered=trial.cost == "frugal")
        self.trial, self.world = trial, world
        self.exchange = Exchange(world, undisturbed(rules, PATIENCE_S))
        self.running: dict[int, Running] = {}
        self.ends: list[tuple[float, bool]] = []  # when a task ended
        self.done: list[tuple[float, float]] = []  # time taken and its own time
        self.accepted = self.finished = self.moved = 0
        self.begun: dict[int, float] = {}
        self.mapping_s: list[float] = []
        self._tasks = {mapping_task.number: mapping_task for _, mapping_task in tasks}
        self._queue: list[tuple[float, int, str, int, int]] = []
        self._number, self._keys = itertools.count(), itertools.count(1)
        self._edges: dict[int, Edge] = {}
        self._sending: list[dict[int, Edge]] = [{} for _ in world.servers]  # edges by the host that sends them
        self._public_from: list[dict[int, Edge]] = [{} for _ in world.servers]  # public edges, by the host at each end
        self._public_to: list[dict[int, Edge]] = [{} for _ in world.servers]
        self.last_s = tasks[-1][0]
        for at_s, mapping_task in tasks:
            self._put(at_s, "come", mapping_task.number)
        if trial.reallocation == "on" and trial.networks != "public":
            self._put(trial.reallocation_s, "period")
        self._capacity = sum(server.capacity for server in world.servers)
        self._link_bps = 2 * sum(link.rate_bps for link in world.links)
        self._counted_s = 0.0
        self._used = self._used_bits = 0.0
        self.public, self.edges = 0, 0

    def run(self) -> None:
        """Run until all tasks have ended."""
        coming = len(self._tasks)
        while self._queue and (coming or self.running or self.exchange.busy):
            at_s, _, event, number, version = self._queue[0]
            notes = self.exchange.run(at_s)
            if notes:
                for _, note in notes:
                    self._told(note)
                continue
            heapq.heappop(self._queue)
            if event == "come":
                coming -= 1
                self._count()
                self.begun[number] = at_s
                self.exchange.tick()  # mappings that have ended are forgotten
                self.exchange.begin(self._tasks[number])
                if not coming:
                    self._put(at_s + 60.0, "wait")
            elif event == "end" and (running := self.running.get(number)) and running.version == version:
                self._end(running)
            elif event == "period":
                self._period()
                self._put(at_s + self.trial.reallocation_s, "period")
            elif event == "reserved" and number in self._edges:
                self._search(self._edges[number], reserve=True)
            elif event == "wait" and (self.exchange.busy or self.running):
                self._put(at_s + 60.0, "wait")

    # --- tasks ----------------------------------------------------------------------------------------

    def _told(self, note: TaskOutcome) -> None:
        now = self.exchange.now
        if note.state == "mapped":
            self.mapping_s.append(now - self.begun[note.task])
        elif note.state == "running":
            assert note.found is not None
            self._begin(note.task, note.attempt, note.found)

    def _begin(self, number: int, attempt: int, found: FinishedMap) -> None:
        now = self.exchange.now
        self._count()
        self.accepted += 1
        running = self.running[number] = Running(self._tasks[number], (number, attempt), found, now)
        legs, at = found.legs, 0
        while at + 1 < len(legs):
            path = [legs[at].host]
            kind: Kind = "public" if legs[at].via == PUBLIC else "direct"
            upto = at + 1
            path.append(legs[upto].host)
            while upto + 1 < len(legs) and legs[upto].first == legs[upto].placed:
                upto += 1
                path.append(legs[upto].host)
            if kind == "direct" and len(path) > 2:
                kind = "relayed"
            edge = Edge(next(self._keys), running, at, kind, path)
            running.edges.append(edge)
            self._edges[edge.key] = self._sending[edge.source][edge.key] = edge
            if kind == "public":
                self._go_public(edge)
            at = upto
        public = [edge for edge in running.edges if edge.kind == "public"]
        self.edges += len(running.edges)
        self.public += len(public)
        self._rerate({running, *self._shared(public)})

    def _end(self, one: Running) -> None:
        now = self.exchange.now
        self._count()
        del self.running[one.task.number]
        if now <= self.last_s:
            self.finished += 1
        self.done.append((now - one.begun_s, SIZE_BITS / RATE_BPS))
        touched = []
        for edge in one.edges:
            del self._edges[edge.key], self._sending[edge.source][edge.key]
            if edge.kind == "public":
                self._leave_public(edge)
                touched.append(edge)
        legs = one.found.legs
        for host in set[Host]().union(*(edge.path for edge in one.edges)) - {leg.host for leg in legs}:
            self.exchange.hosts[host].resources.release(one.key)
        self.exchange.post(legs[0].host, self.exchange.hosts[legs[0].host].end(one.task.number, now))
        self._rerate(self._shared(touched))

    # --- rates ----------------------------------------------------------------------------------------

    def _go_public(self, edge: Edge) -> None:
        self._public_from[edge.source][edge.key] = self._public_to[edge.target][edge.key] = edge

    def _leave_public(self, edge: Edge) -> None:
        del self._public_from[edge.source][edge.key], self._public_to[edge.target][edge.key]

    def _shared(self, edges: Iterable[Edge]) -> set[Running]:
        """Update the means of public edges that share an uplink or a downlink with ``edges``. Return the tasks that
        changed.
        """
        servers, tasks = self.world.servers, set()
        beside: dict[int, Edge] = {}
        for edge in edges:
            beside |= self._public_from[edge.source] | self._public_to[edge.target]
        for edge in beside.values():
            share = min(
                servers[edge.source].uplink_bps / len(self._public_from[edge.source]),
                servers[edge.target].downlink_bps / len(self._public_to[edge.target]),
            )
            mean = max(1, min(ROUNDED, int(share / RATE_BPS * ROUNDED + 1e-9))) / ROUNDED
            if edge.mean != mean or edge.task.version == 0:
                edge.mean = mean
                tasks.add(edge.task)
        return tasks

    def _rerate(self, tasks: Iterable[Running]) -> None:
        now = self.exchange.now
        for running in sorted(tasks, key=lambda one: one.task.number):
            running.left_bits -= (now - running.since_s) * running.rate * RATE_BPS
            running.since_s = now
            running.rate = in_lock_step(tuple(sorted(edge.mean for edge in running.edges if edge.kind == "public")))
            running.version += 1
            self._put(
                now + max(0.0, running.left_bits) / (running.rate * RATE_BPS),
                "end",
                running.task.number,
                running.version,
            )

    # --- re-allocation --------------------------------------------------------------------------------

    def _period(self) -> None:
        """Reallocate the links of every host in turn (Algorithm 4). The tasks of changed edges get new rates."""
        now = self.exchange.now
        self._count()
        for host, sending in enumerate(self._sending):
            resources = self.exchange.hosts[host].resources
            flows, room = [], dict(resources.free_bps)
            for edge in sending.values():
                running = edge.task
                sent = SIZE_BITS - running.left_bits + (now - running.since_s) * running.rate * RATE_BPS
                behind = max(0.0, (now - running.begun_s) * RATE_BPS - sent)
                if edge.kind == "direct":
                    room[edge.target] += RATE_BPS
                flows.append(OutgoingFlow(edge.key, edge.target, RATE_BPS, behind, edge.kind, running.task.most_empty))
            chosen = reallocate(flows, room, self.trial.reallocation_s)
            for key, choice in sorted(chosen.items(), key=lambda item: item[1] == "direct"):  # leavers first
                edge = self._edges[key]
                if choice in ("search", "public") and edge.kind == "direct":
                    self._switch(edge, "public", [edge.source, edge.target])
                if choice == "direct" and edge.kind != "direct":
                    self._switch(edge, "direct", [edge.source, edge.target])
                if choice == "search":
                    self._search(edge, reserve=False)

    def _search(self, edge: Edge, *, reserve: bool) -> None:
        """Search a dedicated path with room. The path is reserved after the round trip of a probe."""
        if edge.kind != "public":
            return
        path = self._path(edge.source, edge.target, edge.task.task.most_empty + 1)
        if path is None:
            return
        if reserve:
            self._switch(edge, "relayed", path)
        else:
            delay_s = sum(self.exchange.delay_s(a, b) for a, b in itertools.pairwise(path))
            self._put(self.exchange.now + 2 * delay_s, "reserved", edge.key)

    def _path(self, source: Host, target: Host, most: int) -> list[Host] | None:
        """Return the dedicated path of the fewest hops with room, at most ``most``. None: there is no such path."""
        before, reached = {source: source}, [source]
        for _ in range(most):
            reached_next = []
            for host in reached:
                for neighbour, free_bps in self.exchange.hosts[host].resources.free_bps.items():
                    if neighbour not in before and free_bps >= RATE_BPS:
                        before[neighbour] = host
                        reached_next.append(neighbour)
            reached = reached_next
            if target in before:
                path = [target]
                while path[-1] != source:
                    path.append(before[path[-1]])
                return path[::-1]
        return None

    def _switch(self, edge: Edge, kind: Kind, path: list[Host]) -> None:
        """Move an edge to other links from now on."""
        self._count()
        hosts, key = self.exchange.hosts, edge.task.key
        for number, (sender, receiver) in enumerate(itertools.pairwise(edge.path)):
            hosts[sender].resources.drop(key, edge.visit + number, _network(edge.kind), receiver)
        touched = [edge] if "public" in (edge.kind, kind) else []
        if edge.kind == "public":
            self._leave_public(edge)
        edge.kind, edge.path, edge.visit = kind, path, VISITS * next(self._keys)
        edge.mean = 1.0
        if kind == "public":
            self._go_public(edge)
        for number, (sender, receiver) in enumerate(itertools.pairwise(path)):
            hosts[sender].resources.hold(key, edge.visit + number, _network(kind), receiver, RATE_BPS)
        self.moved += 1
        self._rerate({edge.task, *self._shared(touched)})

    # --- counting -------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Add the use of servers and links since the last count, until the arrival of the last task."""
        now = min(self.exchange.now, self.last_s)
        took_s, self._counted_s = now - self._counted_s, now
        if took_s > 0:
            self._used += took_s * sum(len(running.task.services) for running in self.running.values())
            hops = sum((len(edge.path) - 1) * edge.task.rate for edge in self._edges.values() if edge.kind != "public")
            self._used_bits += took_s * hops * RATE_BPS

    def _put(self, at_s: float, what: str, number: int = 0, version: int = 0) -> None:
        heapq.heappush(self._queue, (at_s, next(self._number), what, number, version))

    def outcome(self) -> Simulated:
        """Return the results of the run."""
        slower = [max(1.0, took_s / own_s) for took_s, own_s in self.done]  # rounding may give less than 1
        return Simulated(
            accepted=self.accepted,
            finished_per_hour=3600 * self.finished / self.last_s,
            server_use=self._used / (self._capacity * self.last_s),
            link_use=self._used_bits / (self._link_bps * self.last_s) if self._link_bps else None,
            deviation=float(np.mean([1 - 1 / factor for factor in slower])) if slower else None,
            elongation=float(np.mean(slower)) - 1 if slower else None,
            messages=self.exchange.sent / len(self._tasks),
            mapping_s=float(np.mean(self.mapping_s)),
            public_edges=self.public / self.edges if self.edges else None,
            moved=self.moved,
        )


def workload(trial: Simulating) -> list[tuple[float, MappingTask]]:
    """Return the arrival times and the tasks."""
    seed = trial.pool_seed, trial.configuration
    random = np.random.default_rng((*seed, 5))
    gaps = np.random.default_rng((*seed, 6)).exponential(3600.0 / trial.per_hour, trial.tasks)
    return [(float(at_s), task(number, random, trial.hosts)) for number, at_s in enumerate(np.cumsum(gaps))]


def simulate(trial: Simulating) -> Simulated:
    """Run one trial."""
    world = platform((trial.pool_seed, trial.configuration), trial.hosts, trial.links, trial.networks)
    simulation = Simulation(trial, world, workload(trial))
    simulation.run()
    return simulation.outcome()
