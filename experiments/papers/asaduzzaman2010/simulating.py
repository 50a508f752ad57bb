"""A stream-processing platform under a workload, in virtual time: Figures 8 and 9 (section 6.1).

Tasks come to their sinks, are mapped and reserved by messages (``exchange``), and run at rates, not by partitions: what
changes a rate is an event. A public edge has of its sender's uplink, and of its receiver's downlink, an equal part with
all others; its mean is the less of both. Every ``reallocation_s`` every host allocates its links anew.
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
ROUNDED = 20  # parts of a share of a downlink: rates are looked up by it


class Simulating(Trial, frozen=True, kw_only=True):
    """A platform and a workload (``pool_seed``, ``configuration``), and how tasks are mapped onto it.

    ``networks``: that tasks may use; ``cost``: the paper's (balanced), or ours (frugal), which is ordered; ``links``:
    dedicated ones; ``per_hour``: tasks that come; ``reallocation``: on or off, every ``reallocation_s``.
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
    """``accepted``, ``finished`` tasks; ``finished_per_hour``, ``server_use``, ``link_use``: until the last task came.
    ``deviation``: of accepted tasks, the mean over windows of (B - B̂) / B, which is that over the run; ``elongation``:
    of their times, above that at their own rate. ``messages``: maps sent, a task; ``mapping_s``: in virtual time."""

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
    """An edge of a running task that is not within a host."""

    __slots__ = ("key", "kind", "mean", "path", "source", "target", "task", "visit")

    def __init__(self, key: int, task: Running, visit: int, kind: Kind, path: list[Host]) -> None:
        self.key, self.task, self.kind, self.path = key, task, kind, path
        self.visit = visit  # the first of those that hold the links of the path
        self.source, self.target = path[0], path[-1]
        self.mean = 1.0  # as a share of the task's rate


class Running:
    """A task that runs: what it has sent, and how fast it is."""

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
    """A platform while tasks come and run."""

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
        self._tasks = {one.number: one for _, one in tasks}
        self._queue: list[tuple[float, int, str, int, int]] = []
        self._number, self._keys = itertools.count(), itertools.count(1)
        self._edges: dict[int, Edge] = {}
        self._sending: list[dict[int, Edge]] = [{} for _ in world.servers]  # edges by the host that sends them
        self._public_from: list[dict[int, Edge]] = [{} for _ in world.servers]  # public ones, by the host at each end
        self._public_to: list[dict[int, Edge]] = [{} for _ in world.servers]
        self.last_s = tasks[-1][0]
        for at_s, one in tasks:
            self._put(at_s, "come", one.number)
        if trial.reallocation == "on" and trial.networks != "public":
            self._put(trial.reallocation_s, "period")
        self._capacity = sum(server.capacity for server in world.servers)
        self._link_bps = 2 * sum(link.rate_bps for link in world.links)
        self._counted_s = 0.0
        self._used = self._used_bits = 0.0
        self.public, self.edges = 0, 0

    def run(self) -> None:
        """Until all tasks have ended."""
        coming = len(self._tasks)
        while self._queue and (coming or self.running or self.exchange.busy):
            at_s, _, what, number, version = self._queue[0]
            notes = self.exchange.run(at_s)
            if notes:
                for _, note in notes:
                    self._told(note)
                continue
            heapq.heappop(self._queue)
            if what == "come":
                coming -= 1
                self._count()
                self.begun[number] = at_s
                self.exchange.tick()  # mappings that have ended are forgotten
                self.exchange.begin(self._tasks[number])
                if not coming:
                    self._put(at_s + 60.0, "wait")
            elif what == "end" and (one := self.running.get(number)) and one.version == version:
                self._end(one)
            elif what == "period":
                self._period()
                self._put(at_s + self.trial.reallocation_s, "period")
            elif what == "reserved" and number in self._edges:
                self._search(self._edges[number], reserve=True)
            elif what == "wait" and (self.exchange.busy or self.running):
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
        one = self.running[number] = Running(self._tasks[number], (number, attempt), found, now)
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
            edge = Edge(next(self._keys), one, at, kind, path)
            one.edges.append(edge)
            self._edges[edge.key] = self._sending[edge.source][edge.key] = edge
            if kind == "public":
                self._go_public(edge)
            at = upto
        public = [edge for edge in one.edges if edge.kind == "public"]
        self.edges += len(one.edges)
        self.public += len(public)
        self._rerate({one, *self._shared(public)})

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
        """The tasks of public edges that share an uplink or a downlink with these, whose means are made anew."""
        servers, found = self.world.servers, set()
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
                found.add(edge.task)
        return found

    def _rerate(self, tasks: Iterable[Running]) -> None:
        now = self.exchange.now
        for one in sorted(tasks, key=lambda one: one.task.number):
            one.left_bits -= (now - one.since_s) * one.rate * RATE_BPS
            one.since_s = now
            one.rate = in_lock_step(tuple(sorted(edge.mean for edge in one.edges if edge.kind == "public")))
            one.version += 1
            self._put(now + max(0.0, one.left_bits) / (one.rate * RATE_BPS), "end", one.task.number, one.version)

    # --- re-allocation --------------------------------------------------------------------------------

    def _period(self) -> None:
        """Every host in turn (Algorithm 4); the tasks whose edges changed have other rates then."""
        now = self.exchange.now
        self._count()
        for host, sending in enumerate(self._sending):
            resources = self.exchange.hosts[host].resources
            flows, room = [], dict(resources.free_bps)
            for edge in sending.values():
                one = edge.task
                sent = SIZE_BITS - one.left_bits + (now - one.since_s) * one.rate * RATE_BPS
                behind = max(0.0, (now - one.begun_s) * RATE_BPS - sent)
                if edge.kind == "direct":
                    room[edge.target] += RATE_BPS
                flows.append(OutgoingFlow(edge.key, edge.target, RATE_BPS, behind, edge.kind, one.task.most_empty))
            chosen = reallocate(flows, room, self.trial.reallocation_s)
            for key, choice in sorted(chosen.items(), key=lambda item: item[1] == "direct"):  # first those that leave
                edge = self._edges[key]
                if choice in ("search", "public") and edge.kind == "direct":
                    self._switch(edge, "public", [edge.source, edge.target])
                if choice == "direct" and edge.kind != "direct":
                    self._switch(edge, "direct", [edge.source, edge.target])
                if choice == "search":
                    self._search(edge, reserve=False)

    def _search(self, edge: Edge, *, reserve: bool) -> None:
        """Look for a dedicated path that has room; after a probe has gone there and back it is reserved."""
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
        """The dedicated path of the fewest hops with room, of those with at most so many."""
        before, reached = {source: source}, [source]
        for _ in range(most):
            reached_next = []
            for host in reached:
                for other, free_bps in self.exchange.hosts[host].resources.free_bps.items():
                    if other not in before and free_bps >= RATE_BPS:
                        before[other] = host
                        reached_next.append(other)
            reached = reached_next
            if target in before:
                path = [target]
                while path[-1] != source:
                    path.append(before[path[-1]])
                return path[::-1]
        return None

    def _switch(self, edge: Edge, kind: Kind, path: list[Host]) -> None:
        """An edge goes over other links from now on."""
        self._count()
        hosts, key = self.exchange.hosts, edge.task.key
        for number, (one, other) in enumerate(itertools.pairwise(edge.path)):
            hosts[one].resources.drop(key, edge.visit + number, _network(edge.kind), other)
        touched = [edge] if "public" in (edge.kind, kind) else []
        if edge.kind == "public":
            self._leave_public(edge)
        edge.kind, edge.path, edge.visit = kind, path, VISITS * next(self._keys)
        edge.mean = 1.0
        if kind == "public":
            self._go_public(edge)
        for number, (one, other) in enumerate(itertools.pairwise(path)):
            hosts[one].resources.hold(key, edge.visit + number, _network(kind), other, RATE_BPS)
        self.moved += 1
        self._rerate({edge.task, *self._shared(touched)})

    # --- counting -------------------------------------------------------------------------------------

    def _count(self) -> None:
        """What was in use since it was looked at last, until the last task came."""
        now = min(self.exchange.now, self.last_s)
        took_s, self._counted_s = now - self._counted_s, now
        if took_s > 0:
            self._used += took_s * sum(len(one.task.services) for one in self.running.values())
            hops = sum((len(edge.path) - 1) * edge.task.rate for edge in self._edges.values() if edge.kind != "public")
            self._used_bits += took_s * hops * RATE_BPS

    def _put(self, at_s: float, what: str, number: int = 0, version: int = 0) -> None:
        heapq.heappush(self._queue, (at_s, next(self._number), what, number, version))

    def outcome(self) -> Simulated:
        """What came of it."""
        slower = [max(1.0, took_s / own_s) for took_s, own_s in self.done]  # no rounding below it
        return Simulated(
            accepted=self.accepted,
            finished_per_hour=3600 * self.finished / self.last_s,
            server_use=self._used / (self._capacity * self.last_s),
            link_use=self._used_bits / (self._link_bps * self.last_s) if self._link_bps else None,
            deviation=float(np.mean([1 - 1 / each for each in slower])) if slower else None,
            elongation=float(np.mean(slower)) - 1 if slower else None,
            messages=self.exchange.sent / len(self._tasks),
            mapping_s=float(np.mean(self.mapping_s)),
            public_edges=self.public / self.edges if self.edges else None,
            moved=self.moved,
        )


def workload(trial: Simulating) -> list[tuple[float, MappingTask]]:
    """When tasks come, and which."""
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
