"""Part of a host in mapping: maps arrive, are extended by components that the host has, and are passed on.

Everything is by neighbours' messages. A host knows its own resources and dedicated links, and the hosts of services.

- R1: A map is extended by no component, and by each further component in turn. The extension ends at a component that
  is not served here, or does not fit beside the map's earlier use of the host.
- R2: A map goes over a dedicated link if it fits beside the map's earlier use of the link. At most ``most_empty`` hosts
  of an edge only pass the map on, and none sends it straight back.
- R3: A map goes over the public network if it was extended here, to hosts with the next service, while the uplink has
  room. A map that came over the public network is extended or ends.
- R4: Pruning compares maps with as many components placed. The table has the least cost of maps that went on from here.
- R5: The sender whose map makes a host busy with a task is the host's ``pred``. The ``pred`` is answered last, when
  every map of the host was answered. Other senders are answered at once. A host that sent nothing answers ``pred`` at
  once.
- R6: The specification goes with the first map to a neighbour over a network, and again after a final answer.
- R7: A repeated message counts once. An answer to no open map is ignored.
- R8: The sink begins, and decides when it is answered, or when its patience ends.
- R9: A host forgets a task after its patience.

Source: Asaduzzaman and Maheswaran, algorithms 1 to 3, with Dijkstra and Scholten's detection of the end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

from thalweg.experiments.papers.asaduzzaman2010.mapping.directory import ServiceDirectory
from thalweg.experiments.papers.asaduzzaman2010.mapping.holdings import SLACK, Resources
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    CONTROL,
    DEDICATED,
    PUBLIC,
    Ack,
    FinishedMap,
    Leg,
    Map,
    Network,
    Stop,
    Transmit,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import COSTS, Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import HOST_LIMIT, SINK, Host, MappingTask
from thalweg.middleware.arithmetic import plain_sum


class Pred(NamedTuple):
    """Sender of the map that made a host busy, with the map's number and network. The sink that began has ``ROOT``."""

    host: Host
    number: int
    via: Network


ROOT: Final = Pred(-1, 0, CONTROL)


class Mapped(NamedTuple):
    """End of a mapping at the sink: the task, and the maps that arrived, the cheapest first."""

    task: MappingTask
    found: list[FinishedMap]


class _State:
    """State of one mapping on a host."""

    __slots__ = ("begun_s", "count", "feasible", "fits", "knows", "pred", "seen", "sent", "table", "task")

    def __init__(self, task: MappingTask, begun_s: float, services: frozenset[int]) -> None:
        self.task = task
        self.fits = (
            *(service in services for service in task.services),
            False,
        )  # by the number of placed components: whether the next is served here
        self.begun_s = begun_s
        self.pred: Pred | None = None
        self.sent = 0
        self.count: set[int] = set()  # numbers of maps that were not answered
        self.knows: dict[Network, set[Host]] = {DEDICATED: set(), PUBLIC: set()}
        self.seen: set[int] = set()  # maps that arrived, by their number and their sender
        self.table = [math.inf] * (len(task.services) + 1)
        self.feasible: list[tuple[float, int, Stop]] = []  # cost, order of arrival, and the last stop, at the sink


class MapManager:
    """Mapping part of one host. ``links``: costs of dedicated links by neighbour. ``directory``: of services."""

    def __init__(
        self,
        host: Host,
        resources: Resources,
        rules: Rules,
        links: Mapping[Host, float],
        directory: ServiceDirectory,
        seed: int,
    ) -> None:
        self.host, self.rules = host, rules
        self._resources, self._links, self._directory = resources, links, directory
        self._weigh, _ = COSTS[rules.cost]
        self._waits = rules.waits
        self._lax = rules.pruning in ("exact", "annealed")  # may pass on a map that is no cheaper
        self._random = random.Random(f"{seed} {host}")
        self._states: dict[int, _State] = {}

    @property
    def tasks(self) -> set[int]:
        """Tasks that the host remembers."""
        return set(self._states)

    def begin(self, task: MappingTask, now: float) -> list[Transmit]:
        """Map a task whose sink is here (R8)."""
        state = self._states[task.number] = _State(task, now, self._directory.services)
        state.pred = ROOT
        state.sent = 1
        state.count.add(1)
        return [Transmit(task.source, CONTROL, 0.0, Map(task.number, self.host, 1, CONTROL, None, task))]

    def tick(self, now: float) -> list[Mapped]:
        """Forget tasks whose patience has ended (R9). Return the results of mappings from here (R8)."""
        late = [state for state in self._states.values() if now - state.begun_s >= self.rules.patience_s]
        for state in late:
            del self._states[state.task.number]
        return [self._mapped(state) for state in late if state.pred is ROOT]

    def on_map(self, message: Map, now: float, out: list[Transmit]) -> bool:
        """Extend a map, and pass it on. Return whether its sender is to be answered at once (R5)."""
        state = self._states.get(message.task)
        sender, number = message.sender, message.number
        if state is None:
            if message.spec is None:  # R6: the specification is forgotten or has not arrived; the sender sends it again
                out.append(Transmit(sender, message.via, 0.0, Ack(message.task, self.host, number, message.via, True)))
                return False
            state = self._states[message.task] = _State(message.spec, now, self._directory.services)
        key = number * HOST_LIMIT + sender
        if key in state.seen:
            return False  # R7: the map has arrived before
        state.seen.add(key)
        if state.pred is not None:
            self._extend(state, message, out)
            return True
        state.pred = Pred(sender, number, message.via)  # R5: the sender makes this host busy, and is answered last
        self._extend(state, message, out)
        if not state.count:
            self._answer_pred(state, out)
        return False

    def on_ack(self, message: Ack, out: list[Transmit]) -> Mapped | None:
        """Count an answer. Return the result if a mapping that began here has ended."""
        state = self._states.get(message.task)
        if state is None:
            return None
        if message.final and message.via != CONTROL:
            # R6: the sender may forget now, so its next map has the specification again
            state.knows[message.via].discard(message.sender)
        return self._count(state, (message.number,), out)

    def on_answers(self, task: int, numbers: Iterable[int], out: list[Transmit]) -> Mapped | None:
        """Count answers that are not final, to maps ``numbers``. Return a result as ``on_ack`` does."""
        state = self._states.get(task)
        return None if state is None else self._count(state, numbers, out)

    def unanswered(self, task: int) -> Set[int]:
        """Return the numbers of the host's open maps of a task. The set is live while the host knows the task."""
        state = self._states.get(task)
        return frozenset() if state is None else state.count

    def _count(self, state: _State, numbers: Iterable[int], out: list[Transmit]) -> Mapped | None:
        before = len(state.count)
        state.count.difference_update(numbers)
        if len(state.count) == before or state.count or state.pred is None:
            return None  # R7: no map waited for these answers, or further answers are to come
        if state.pred is ROOT:
            del self._states[state.task.number]
            return self._mapped(state)
        self._answer_pred(state, out)
        return None

    def _answer_pred(self, state: _State, out: list[Transmit]) -> None:
        pred, state.pred = state.pred, None
        assert pred is not None
        out.append(Transmit(pred.host, pred.via, 0.0, Ack(state.task.number, self.host, pred.number, pred.via, True)))

    # --- maps -----------------------------------------------------------------------------------------

    def _extend(self, state: _State, message: Map, out: list[Transmit]) -> None:
        task, stop, resources, table, weigh = state.task, message.stop, self._resources, state.table, self._weigh
        capacity, needs, fits = resources.capacity, task.needs, state.fits
        room, used_before = resources.room(), None
        if stop is None:  # the source
            placed, links, load, hosts, seen = 0, 0.0, 0.0, 0, 0
            public = dedicated = 0
        else:
            placed, links, load, hosts, seen = stop.placed, stop.links, stop.load, stop.hosts, stop.seen
            public, dedicated = stop.public, stop.dedicated
            if stop.via == DEDICATED:
                links += self._links.get(message.sender, 0.0)
        bit = 1 << self.host
        if seen & bit:
            assert stop is not None
            need, used_before = _used(task, stop, self.host)
            room -= need
        else:
            seen |= bit
            hosts += 1
            load += resources.used / capacity if capacity else 1.0
        before_load, total = 0.0 if stop is None else load / hosts, len(needs)
        extended, may_pass = stop is None, stop is None or stop.via != PUBLIC
        while True:
            cost = weigh(public, dedicated, links, load / hosts)
            if placed == total and self.host == task.sink:
                end = Stop(self.host, placed, CONTROL, 0, public, dedicated, links, load, hosts, seen, stop)
                state.feasible.append((cost, len(state.feasible), end))
                return
            cheaper = cost < table[placed]
            # R3: a map that came over the public network goes on only if it was extended here.
            # R4: pruning compares maps with as many components placed.
            if may_pass and (cheaper or (self._lax and self._passes(placed))):
                if cheaper:
                    table[placed] = cost
                sums = public, dedicated, links, load, hosts, seen
                grown = load / hosts - before_load
                empty = 0 if extended or stop is None else stop.empty + 1
                self._pass_on(state, stop, placed, empty, sums, grown, used_before, out)
            if not fits[placed] or needs[placed] > room:
                return  # R1: the next component is not served here, or does not fit
            room -= needs[placed]
            load += needs[placed] / capacity
            placed += 1
            extended = may_pass = True

    def _passes(self, placed: int) -> bool:
        """Return whether a map goes on that is no cheaper than earlier maps, under lax pruning."""
        return self.rules.pruning == "exact" or self._random.random() < self.rules.extend * math.exp(-placed)

    def _pass_on(
        self,
        state: _State,
        before: Stop | None,
        placed: int,
        empty: int,
        sums: tuple[int, int, float, float, int, int],
        grown: float,
        used: dict[tuple[Network, Host], float] | None,
        out: list[Transmit],
    ) -> None:
        """Send a map to every permitted neighbour."""
        if state.sent >= self.rules.limit:
            return
        task, resources, waits, me = state.task, self._resources, self._waits, self.host
        rate_bps = task.rates_bps[placed]
        public, dedicated, links, load, hosts, seen = sums
        wait_s = waits.load_s * grown if grown > 0 else 0.0
        ways: list[tuple[Stop, list[Host]]] = []
        before_placed = 0 if before is None else before.placed
        if empty <= task.most_empty:  # R2: at most ``most_empty`` hosts of the edge only pass the map on
            back = before.host if empty and before is not None else -1
            stop = Stop(me, placed, DEDICATED, empty, public, dedicated + 1, links, load, hosts, seen, before)
            ways.append((stop, self._dedicated_hosts(rate_bps, used, back)))
        if before_placed < placed:  # R3: only a map that was extended here goes over the public network
            rate_bps += used.get((PUBLIC, -1), 0.0) if used else 0.0
            if rate_bps * (1 - SLACK) <= resources.uplink_bps:
                stop = Stop(me, placed, PUBLIC, 0, public + 1, dedicated, links, load, hosts, seen, before)
                ways.append((stop, self._public_hosts(task, placed)))
        if self.rules.pruning == "random-neighbor":
            ways = self._some_of(ways)
        number, name, before_sent = state.sent, task.number, state.sent
        for stop, receivers in ways:
            via, known = stop.via, state.knows[stop.via]
            hold_s = wait_s + (waits.public_s if via is PUBLIC else waits.dedicated_s)
            links_s = 0.0 if via is PUBLIC else waits.link_s
            for host in receivers:
                number += 1
                spec = None
                if host not in known:  # R6: the first map to a neighbour has the specification
                    known.add(host)
                    spec = task
                held_s = hold_s + links_s * self._links[host] if links_s else hold_s
                out.append(Transmit(host, via, held_s, Map(name, me, number, via, stop, spec)))
        state.count.update(range(before_sent + 1, number + 1))
        state.sent = number

    def _dedicated_hosts(
        self, rate_bps: float, used: Mapping[tuple[Network, Host], float] | None, back: Host
    ) -> list[Host]:
        """Return the neighbours but ``back`` whose dedicated links fit the map beside its earlier use (R2)."""
        free_bps = self._resources.free_bps.items()
        if used:
            return [
                host
                for host, bps in free_bps
                if (rate_bps + used.get((DEDICATED, host), 0.0)) * (1 - SLACK) <= bps and host != back
            ]
        least_bps = rate_bps * (1 - SLACK)
        return [host for host, bps in free_bps if bps >= least_bps and host != back]

    def _public_hosts(self, task: MappingTask, placed: int) -> list[Host]:
        """Return the other hosts on the public network with the next service, or the task's sink (R3)."""
        if placed < len(task.services):
            return [host for host in self._directory.having(task.services[placed]) if host != self.host]
        reached = task.sink in self._directory.having(SINK) and task.sink != self.host
        return [task.sink] if reached else []

    def _some_of(self, ways: list[tuple[Stop, list[Host]]]) -> list[tuple[Stop, list[Host]]]:
        """Return ``neighbours`` random hosts among the permitted hosts of a map."""
        targets = [(stop, host) for stop, receivers in ways for host in receivers]
        if len(targets) <= self.rules.neighbours:
            return ways
        return [(stop, [host]) for stop, host in self._random.sample(targets, self.rules.neighbours)]

    def _mapped(self, state: _State) -> Mapped:
        maps = []
        for cost, _, end in sorted(state.feasible, key=lambda entry: entry[:2]):
            stops = [*end.chain()][::-1]
            placed = [0, *(stop.placed for stop in stops)]
            legs = (Leg(stop.host, first, stop.placed, stop.via) for stop, first in zip(stops, placed, strict=False))
            maps.append(FinishedMap(tuple(legs), cost))
        return Mapped(state.task, maps)


def _used(task: MappingTask, stop: Stop, host: Host) -> tuple[float, dict[tuple[Network, Host], float]]:
    """Return a map's use of a host: capacity, and bits per second to a neighbour, or to the public network (-1)."""
    need, used, after = 0.0, dict[tuple[Network, Host], float](), host
    for at in stop.chain():
        if at.host == host:
            first = 0 if at.before is None else at.before.placed
            need += plain_sum(task.needs[first : at.placed])
            way = (at.via, -1 if at.via == PUBLIC else after)
            used[way] = used.get(way, 0.0) + task.rates_bps[at.placed]
        after = at.host
    return need, used
