"""A host's part in mapping: maps come in, are extended by components that the host has, and are passed on.

All is by neighbours' messages; a host knows its own resources, its dedicated links, and who has which service.

- R1: a map is extended by no component, and by each further one, as long as every one of them is served here and fits
  beside what the map has here already;
- R2: over a dedicated link goes what fits it beside what the map has on it already; at most ``most_empty`` hosts of an
  edge do nothing but pass it on, and none sends it straight back;
- R3: over the public network goes what was extended by a component here, to hosts that have the next service, while the
  uplink has room for it; what came over it is extended or ends;
- R4: pruning compares maps with as many components placed; the table has the least cost of maps that went on from here;
- R5: whoever makes a host busy with a task is its ``pred``, and is answered last, when all that the host sent was
  answered; all others at once. A host that sent nothing answers its ``pred`` at once;
- R6: the specification goes with the first map to a neighbour over a network, and again after a final answer;
- R7: a message that comes twice counts once; an answer that nobody waits for is passed over;
- R8: the sink begins, and decides when it is answered, or when its patience ends;
- R9: after its patience a host has forgotten what it knew of a task.

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
    """Who made a host busy, by which of its maps, over which network; the sink that began was made busy by itself."""

    host: Host
    number: int
    via: Network


ROOT: Final = Pred(-1, 0, CONTROL)


class Mapped(NamedTuple):
    """The end of a mapping at its sink: the task, and all maps that came, the cheapest first."""

    task: MappingTask
    found: list[FinishedMap]


class _State:
    """What a host knows of one mapping."""

    __slots__ = ("begun_s", "count", "feasible", "fits", "knows", "pred", "seen", "sent", "table", "task")

    def __init__(self, task: MappingTask, begun_s: float, services: frozenset[int]) -> None:
        self.task = task
        self.fits = (*(service in services for service in task.services), False)  # whether the next is served here
        self.begun_s = begun_s
        self.pred: Pred | None = None
        self.sent = 0
        self.count: set[int] = set()  # the numbers of maps that were not answered
        self.knows: dict[Network, set[Host]] = {DEDICATED: set(), PUBLIC: set()}
        self.seen: set[int] = set()  # maps that came, by their sender's number and the sender's
        self.table = [math.inf] * (len(task.services) + 1)
        self.feasible: list[tuple[float, int, Stop]] = []  # cost, order of coming, and a last stop at the sink


class MapManager:
    """Of one host. ``links``: what a dedicated link to a neighbour costs; ``directory``: who has which service."""

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
        self._lax = rules.pruning in ("exact", "annealed")  # passes on what others would prune
        self._random = random.Random(f"{seed} {host}")
        self._states: dict[int, _State] = {}

    @property
    def tasks(self) -> set[int]:
        """The tasks that it remembers."""
        return set(self._states)

    def begin(self, task: MappingTask, now: float) -> list[Transmit]:
        """Map a task whose sink is here (R8)."""
        state = self._states[task.number] = _State(task, now, self._directory.services)
        state.pred = ROOT
        state.sent = 1
        state.count.add(1)
        return [Transmit(task.source, CONTROL, 0.0, Map(task.number, self.host, 1, CONTROL, None, task))]

    def tick(self, now: float) -> list[Mapped]:
        """End and forget what takes too long (R8, R9)."""
        late = [state for state in self._states.values() if now - state.begun_s >= self.rules.patience_s]
        for state in late:
            del self._states[state.task.number]
        return [self._mapped(state) for state in late if state.pred is ROOT]

    def on_map(self, message: Map, now: float, out: list[Transmit]) -> bool:
        """Extend a map, and pass it on; whether its sender is to be told at once that it came (R5)."""
        state = self._states.get(message.task)
        sender, number = message.sender, message.number
        if state is None:
            if message.spec is None:  # R6: forgotten, or it has not come; the sender sends it again
                out.append(Transmit(sender, message.via, 0.0, Ack(message.task, self.host, number, message.via, True)))
                return False
            state = self._states[message.task] = _State(message.spec, now, self._directory.services)
        key = number * HOST_LIMIT + sender
        if key in state.seen:
            return False  # R7: the map has come before
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
        """Count an answer; what came of a mapping that has ended here."""
        state = self._states.get(message.task)
        if state is None:
            return None
        if message.final and message.via != CONTROL:
            # R6: the sender may forget now, so its next map has the specification again
            state.knows[message.via].discard(message.sender)
        return self._count(state, (message.number,), out)

    def on_answers(self, task: int, numbers: Iterable[int], out: list[Transmit]) -> Mapped | None:
        """The same of answers that are not final, to maps of these numbers."""
        state = self._states.get(task)
        return None if state is None else self._count(state, numbers, out)

    def unanswered(self, task: int) -> Set[int]:
        """The numbers of its maps of a task that were not answered, as they come and go while it knows the task."""
        state = self._states.get(task)
        return frozenset() if state is None else state.count

    def _count(self, state: _State, numbers: Iterable[int], out: list[Transmit]) -> Mapped | None:
        before = len(state.count)
        state.count.difference_update(numbers)
        if len(state.count) == before or state.count or state.pred is None:
            return None  # R7: nothing waited for these answers, or further ones are to come
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
        """Whether a map goes on that is no cheaper than those before, where some do."""
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
        """Send a map to all neighbours that it may go to."""
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
        """Return the neighbours but ``back`` whose dedicated links have room beside what the map has on them (R2)."""
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
        """Return the other hosts on the public network that have the next service, or the task's sink (R3)."""
        if placed < len(task.services):
            return [host for host in self._directory.having(task.services[placed]) if host != self.host]
        reached = task.sink in self._directory.having(SINK) and task.sink != self.host
        return [task.sink] if reached else []

    def _some_of(self, ways: list[tuple[Stop, list[Host]]]) -> list[tuple[Stop, list[Host]]]:
        """Return as many of the hosts that a map may go to as the rules say, drawn at random."""
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
    """What a map has on a host: capacity, and bits per second to a neighbour, or to the public network (-1)."""
    need, used, after = 0.0, dict[tuple[Network, Host], float](), host
    for at in stop.chain():
        if at.host == host:
            first = 0 if at.before is None else at.before.placed
            need += plain_sum(task.needs[first : at.placed])
            way = (at.via, -1 if at.via == PUBLIC else after)
            used[way] = used.get(way, 0.0) + task.rates_bps[at.placed]
        after = at.host
    return need, used
