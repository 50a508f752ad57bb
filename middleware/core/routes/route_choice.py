"""Choice of the routes from one host to the other hosts of a run, and the change to another route if one fails.

Rules:

R1. With a proposal, the client names the routes from every host to every other host, the first choice first. They count
    for partitions after the change-over. A host without named routes is reached over the network that all hosts share.
    A route is a network, or hops over relays. A relay is a host that passes partitions on, and keeps nothing of them.
R2. A route is *stuck* if a partition is under way over it, and nothing has arrived for ``PATIENT`` times the expected
    time of the oldest partition. The wait is at least ``LEAST`` times the wait before a demand is repeated. If a
    consumer then repeats its demand, the route is *down*. The partitions under way are sent again over the next choice.
    Without another choice, the host keeps waiting for the route.
R3. After a failed transfer, the route is down as well. It is up again when something arrives over it, such as a probe
    or a stuck partition. It is tried again after ``max_age_s``. If every choice is down, the choice whose time ends
    first is tried.
R4. A stuck network gives its link a sample of ``STUCK`` times the wait. By this sample the client plans without the
    link. The next wait for the route depends on its rate before, or on the rate that the client has named. Of a route
    over relays, the stuck hop is unknown here, so the client is notified of the whole route.
R5. A relay passes partitions on only if the client has named their source with their hops, now or before the last
    change (``passes``). By the same rule, the host at the last hop accepts partitions as sent by the source.
R6. A route over a lost relay is avoided as long as there is another choice, until the relay has joined again.
R7. Relays may report the arrival of a partition that its consumer still demands. If the partition is sent again for the
    ``DROPPED``-th time, the route is *false*. It is left for ``max_age_s`` at first, and for twice as long each time,
    even if arrivals over it are reported meanwhile. The client is notified.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import messages as m

PATIENT = 4.0  # times the expected time: no estimate is wrong by more for long
LEAST = 4.0  # times CoreConfig.retry_s
STUCK = 10.0
DROPPED = 2
LONGEST = 64.0  # times ``max_age_s``: maximum time for which a false route is left
HostRoute = tuple[str, m.Via]  # target host, route


def route_fields(via: m.Via) -> dict[str, Any]:
    """Return the fields of a record that name a route: the network, and the relays if there are any."""
    if isinstance(via, str):
        return {"via": via}
    return {"via": via[0].via, "relays": [hop.host for hop in via[:-1]]}


@dataclass(slots=True)
class _Busy:
    """Partitions under way over a route, oldest first, and the time since which nothing has arrived."""

    since_s: float
    parts: dict[tuple[str, int, str], tuple[m.Partition, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Landed:
    """Last partition of an edge whose arrival relays have reported, and the number of times it was sent again (R7)."""

    index: int
    again: int = 0


class RouteChoice:
    """Routes from the local host to the remaining hosts in one run, with the failures of every route."""

    def __init__(self, context: RunContext) -> None:
        self._out, self._client, self.least_s = context.out, context.install.client, LEAST * context.limits.retry_s
        self._again_s = context.limits.monitor.max_age_s
        self.table: tuple[m.RoutePreference, ...] = ()  # routes of all hosts, by the last message of the client
        self._former: tuple[m.RoutePreference, ...] = ()  # routes before the last change
        self._over: dict[str, tuple[m.Via, ...]] = {}
        self._before: dict[str, tuple[m.Via, ...]] = {}
        self._told_bps: dict[HostRoute, int] = {}
        self._after = -1  # last partition before the change
        self.gone: set[str] = set()  # lost hosts
        self.busy: dict[HostRoute, _Busy] = {}
        self._down: dict[HostRoute, float] = {}  # time until which a route is left
        self._failing_s: dict[HostRoute, float] = {}  # time since which every transfer has failed
        self._rates_bps: dict[HostRoute, float] = {}  # rates of left routes, before they were stuck
        self._landed: dict[HostRoute, dict[tuple[str, str], _Landed]] = {}  # R7: by producer and consumer
        self._false: dict[HostRoute, tuple[float, float]] = {}  # R7: false routes: end and length of their time

    def change(self, ways: Iterable[m.RoutePreference], after: int) -> None:
        """Use other routes, from the first partition later than ``after`` on (R1)."""
        self._former, self.table, self._before, self._after = self.table, tuple(ways), self._over, after
        own = [way for way in self.table if way.source == self._out.host and way.over]
        self._over = {way.target: way.over for way in own}
        self._told_bps = {
            (way.target, via): bps for way in own for via, bps in zip(way.over, way.rates_bps, strict=False)
        }
        self._forget()

    def _forget(self) -> None:
        """Forget routes outside both tables, the present and the former. Routes that are in use or left are kept."""
        named = {(to, via) for over in (self._over, self._before) for to, vias in over.items() for via in vias}
        now = self._out.now
        self._down = {way: until_s for way, until_s in self._down.items() if way in named or now < until_s}
        self._false = {
            way: (until_s, for_s) for way, (until_s, for_s) in self._false.items() if now < until_s + 2 * for_s
        }
        remembered = named | self.busy.keys() | self._down.keys()
        self._failing_s = {way: since_s for way, since_s in self._failing_s.items() if way in remembered}
        self._rates_bps = {way: bps for way, bps in self._rates_bps.items() if way in remembered}
        self._landed = {way: edges for way, edges in self._landed.items() if way in remembered}

    def lose(self, host: str) -> None:
        """Avoid routes over a lost relay, if there is another choice (R6)."""
        self.gone.add(host)

    def regain(self, host: str) -> None:
        """Use relays on a host that has joined again (R6)."""
        self.gone.discard(host)

    def goes_over(self, ways: Iterable[m.RoutePreference]) -> bool:
        """Return whether ``ways`` names the routes that are used now.

        Rates are not compared. They differ with every planning, and change no route.
        """
        now, then = ([(way.source, way.target, way.over) for way in table] for table in (self.table, ways))
        return now == then

    def passes(self, chunk: m.RelayedChunk, more: Iterable[m.RoutePreference] = ()) -> bool:
        """Return whether the client has named the route of a chunk, in a table or in ``more`` (R5)."""
        return self.names(chunk.source, chunk.hops[-1].host, chunk.hops, more)

    def names(self, source: str, target: str, hops: m.Hops, more: Iterable[m.RoutePreference] = ()) -> bool:
        """Return whether a table of the client, or ``more``, has this route from ``source`` to ``target`` (R5)."""
        tables = itertools.chain(self.table, self._former, more)
        return any((way.source, way.target) == (source, target) and hops in way.over for way in tables)

    def via(self, to: str, index: int) -> m.Via:
        """Return the route for a partition to host ``to``: the first choice that is not down."""
        over = self._choices(to, index)
        if not over:
            return NET
        for via in over:
            if not self.is_down(to, via):
                return via
        # R3, R6: every choice is down: first routes without a lost relay, of these the route whose time ends first
        return min(over, key=lambda via: (self._is_cut(via), self._left_until_s(to, via)))

    def _choices(self, to: str, index: int | None) -> tuple[m.Via, ...]:
        """Return the routes to a host, first choice first; empty if the client has named none (R1).

        ``index``: index of the partition to send, as a change counts from one partition on. None: another message is
        sent.
        """
        before = index is not None and index <= self._after
        return (self._before if before else self._over).get(to, ())

    def is_down(self, to: str, via: m.Via) -> bool:
        """Return whether a route is avoided now, if there is another choice (R3, R6, R7)."""
        return self._out.now < self._left_until_s(to, via) or self._is_cut(via)  # R6: a relay may be lost

    def _left_until_s(self, to: str, via: m.Via) -> float:
        """Return until when a route is left after a failure or false reports (R3, R7); 0 if it never was."""
        return max(self._down.get((to, via), 0.0), self._false.get((to, via), (0.0, 0.0))[0])

    def others(self, to: str, via: m.Via, index: int | None = None) -> list[m.Via]:
        """Return the other choices for a partition, or for another message, without relay routes that are down.

        ``via`` may be a route of an earlier table. If the client has named no routes, the shared network is the only
        choice.
        """
        return [
            other
            for other in self._choices(to, index) or (NET,)
            if other != via and (isinstance(other, str) or not self.is_down(to, other))
        ]

    def _is_cut(self, via: m.Via) -> bool:
        """Return whether a relay of the route is lost (R6)."""
        return not isinstance(via, str) and any(hop.host in self.gone for hop in via)

    def leave(self, to: str, via: m.Via) -> None:
        """Mark a route as down for ``max_age_s``, as nothing arrives over it (R3)."""
        self._down[to, via] = self._out.now + self._again_s

    def send(self, to: str, part: m.Partition, size_bytes: int) -> m.Via:
        """Choose the route for a partition to host ``to``, whose transfer begins now. Return the route."""
        if self._landed:
            self._count_repeat(to, part)
        via = self.via(to, part.index)
        if self._choices(to, part.index):
            busy = self.busy.setdefault((to, via), _Busy(self._out.now))
            busy.parts[part.producer, part.index, part.consumer] = part, size_bytes
        return via

    def _count_repeat(self, to: str, part: m.Partition) -> None:
        """Count a repeated send of a partition with a reported arrival. Leave the route if it is false (R7)."""
        edge = part.producer, part.consumer
        for (host, via), edges in list(self._landed.items()):
            landed = edges.get(edge)
            if host != to or landed is None or landed.index != part.index:
                continue
            landed.again += 1
            if landed.again >= DROPPED:
                del self._landed[host, via]
                for_s = 2 * self._false[host, via][1] if (host, via) in self._false else self._again_s
                for_s = min(LONGEST * self._again_s, for_s)
                self._false[host, via] = self._out.now + for_s, for_s
                self._report_impassable(host, via)
                detail = {"what": "partitions do not arrive, though relays report their arrival", **route_fields(via)}
                self._out.record("fault", peer=to, node=part.producer, index=part.index, detail=detail)

    def _report_impassable(self, to: str, via: m.Via) -> None:
        """Notify the client of a route over relays without arrivals, so that plans avoid the route."""
        assert not isinstance(via, str)
        self._out.send(self._client, m.Impassable(self._out.run, to, via))

    def failing_s(self, to: str, via: m.Via) -> float:
        """Return for how long every transfer over a route has failed; 0 without a failure since the last arrival."""
        return self._out.now - self._failing_s.get((to, via), self._out.now)

    def came_through(self, to: str, via: m.Via, message: m.Bulk) -> None:
        """Record the complete arrival of a message over a route. The route is up again (R3)."""
        self._down.pop((to, via), None)
        self._failing_s.pop((to, via), None)
        self._rates_bps.pop((to, via), None)
        if (busy := self.busy.get((to, via))) is not None:
            busy.since_s = self._out.now
        self._over_with(to, via, message)
        if not isinstance(via, str) and isinstance(message, m.Partition):
            edges, edge = self._landed.setdefault((to, via), {}), (message.producer, message.consumer)
            if edge not in edges or edges[edge].index != message.index:
                edges[edge] = _Landed(message.index)

    def failed(self, to: str, via: m.Via, message: m.Bulk) -> None:
        """Record a failed transfer. The message may have arrived or not. The route of a partition is down (R3)."""
        self._failing_s.setdefault((to, via), self._out.now)
        under_way = self._over_with(to, via, message)
        if under_way and isinstance(message, m.Partition) and self._choices(to, message.index):
            self.leave(to, via)

    def _over_with(self, to: str, via: m.Via, message: m.Bulk) -> bool:
        """Remove a message from the partitions under way over a route. Return whether it was among them."""
        busy = self.busy.get((to, via))
        if busy is None or not isinstance(message, m.Partition):
            return False
        part = busy.parts.pop((message.producer, message.index, message.consumer), None)
        if not busy.parts:
            del self.busy[to, via]
        return part is not None

    def stuck(self, demand: m.Demand, monitor: Monitor) -> list[m.Partition]:
        """Return the partitions of a stuck route to send again, as their consumer has repeated ``demand`` (R2)."""
        for (to, via), busy in list(self.busy.items()):
            asked = any((demand.producer, demand.index) == key[:2] for key in busy.parts)
            if asked and self._give_up(to, via, demand.index, monitor):
                del self.busy[to, via]
                return [part for part, _ in busy.parts.values()]
        return []

    def _give_up(self, to: str, via: m.Via, index: int, monitor: Monitor) -> bool:
        """Leave a route if it is stuck, and the demanded partition has another choice.

        Return whether the route was left.
        """
        now, busy, link = self._out.now, self.busy[to, via], None
        if isinstance(via, str):
            link = Link(self._out.host, to, via)
        if all(self.is_down(to, other) for other in self._choices(to, index) if other != via):
            return False
        size_bytes = next(iter(busy.parts.values()))[1]
        known, waited_s = None if link is None else monitor.latest(link), now - busy.since_s
        rate_bps = self._told_bps.get((to, via), 0) if known is None else known.rate_bps
        rate_bps = self._rates_bps.get((to, via), rate_bps)
        expected_s = size_bytes * 8 / rate_bps if rate_bps > 0 else 0.0
        if waited_s < max(self.least_s, PATIENT * expected_s):
            return False
        self.leave(to, via)
        self._rates_bps[to, via] = rate_bps
        if link is not None:
            # R4: by this sample, the client plans without the link
            monitor.stalled(link, size_bytes, STUCK * waited_s, now)
        else:
            self._report_impassable(to, via)
        detail = {"what": "nothing comes through", **route_fields(via), "parts": len(busy.parts)}
        self._out.record("fault", peer=to, duration_s=waited_s, detail=detail)
        return True
