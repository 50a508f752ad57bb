"""Over which network goes what this host sends to others of a run, and what becomes of it where a link fails.

Rules:

R1. The client says with a proposal over which networks every host is to send to every other, the first choice first.
    That counts for partitions after the change-over. Of hosts that it does not name the network is the one that all
    share. Instead of a network it may name hops over relays: hosts that pass on what comes, and hold nothing of it.
R2. A link is *stuck* when something is under way over it and nothing has come through for ``PATIENT`` times as long as
    the first of that should take, and for ``LEAST`` times the wait before a demand is repeated. When a consumer then
    asks again, the link is *down*: what is under way is to be sent again, over the next choice. Where there is no other
    choice, it is waited for.
R3. Down is also a link that a transfer has failed on. It is up again when something comes through, be it a probe, or
    what was stuck, and is tried again when what was known of it has timed out. Where all are down, that is tried whose
    time ends first.
R4. That a link is stuck is a sample of it, of ``STUCK`` times as long as was waited: so the client hears, and plans
    without it. How long the link is waited for next time still goes by what it carried before, or by what the client
    said that it does. Of hops over relays it is not known here which one is stuck: the client hears that they are.
R5. A relay passes on what comes from where, and over what, the client's word has it come, now or before the last
    change: ``passes``. The same word has the host at the last hop take it as what the host at the first one sent.
R6. Over a relay that is lost nothing goes, as long as there is another choice, until it has joined again.
R7. What relays say is at the end of the route is not, where it was asked for again so that it is sent again for the
    ``DROPPED``-th time. The route is left then, the first time as long as a link that a transfer failed on, and twice
    as long each time, whatever is said to have come over it meanwhile. The client hears.
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

PATIENT = 4.0  # times what the estimate says: more than any estimate is wrong by for long
LEAST = 4.0  # times CoreConfig.retry_s
STUCK = 10.0
DROPPED = 2
LONGEST = 64.0  # times what a link is left for: a route whose relay says what is not so
HostRoute = tuple[str, m.Via]  # to which host, over what


def route_fields(via: m.Via) -> dict[str, Any]:
    """How records say over what something goes."""
    if isinstance(via, str):
        return {"via": via}
    return {"via": via[0].via, "relays": [hop.host for hop in via[:-1]]}


@dataclass(slots=True)
class _Busy:
    """What is under way over a link, oldest first, and since when nothing has come through."""

    since_s: float
    parts: dict[tuple[str, int, str], tuple[m.Partition, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Landed:
    """R7: the last partition of an edge that is said to have come over relays, and how often it was sent again."""

    index: int
    again: int = 0


class RouteChoice:
    """The networks from this host to others, in one run."""

    def __init__(self, context: RunContext) -> None:
        self._out, self._client, self.least_s = context.out, context.install.client, LEAST * context.limits.retry_s
        self._again_s = context.limits.monitor.max_age_s
        self.table: tuple[m.RoutePreference, ...] = ()  # of all hosts, as the client said last
        self._former: tuple[m.RoutePreference, ...] = ()  # and before that
        self._over: dict[str, tuple[m.Via, ...]] = {}
        self._before: dict[str, tuple[m.Via, ...]] = {}
        self._told_bps: dict[HostRoute, int] = {}
        self._after = -1  # which partition the change was
        self.gone: set[str] = set()  # hosts that are lost
        self.busy: dict[HostRoute, _Busy] = {}
        self._down: dict[HostRoute, float] = {}  # until when
        self._failing_s: dict[HostRoute, float] = {}  # since when all that went that way has failed
        self._rates_bps: dict[HostRoute, float] = {}  # of those that were left: what they carried
        self._landed: dict[HostRoute, dict[tuple[str, str], _Landed]] = {}  # R7: by producer and consumer
        self._false: dict[HostRoute, tuple[float, float]] = {}  # R7: false routes, left until when and for how long

    def change(self, ways: Iterable[m.RoutePreference], after: int) -> None:
        """R1: other networks, from the partition after that one on."""
        self._former, self.table, self._before, self._after = self.table, tuple(ways), self._over, after
        mine = [way for way in self.table if way.source == self._out.host and way.over]
        self._over = {way.target: way.over for way in mine}
        self._told_bps = {
            (way.target, via): bps for way in mine for via, bps in zip(way.over, way.rates_bps, strict=False)
        }
        self._forget()

    def _forget(self) -> None:
        """What was known of ways that the client has named neither now nor before, and nothing is left of."""
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
        """R6: send nothing over a relay on a lost host where there is another network or route."""
        self.gone.add(host)

    def regain(self, host: str) -> None:
        """R6: use relays on a host that has joined."""
        self.gone.discard(host)

    def goes_over(self, ways: Iterable[m.RoutePreference]) -> bool:
        """Whether that is what counts now; what links carry is another with every look, and changes nothing."""
        now, then = ([(way.source, way.target, way.over) for way in table] for table in (self.table, ways))
        return now == then

    def passes(self, chunk: m.RelayedChunk, more: Iterable[m.RoutePreference] = ()) -> bool:
        """R5: whether the client has said, or with ``more`` says, that this comes so."""
        return self.names(chunk.source, chunk.hops[-1].host, chunk.hops, more)

    def names(self, source: str, target: str, hops: m.Hops, more: Iterable[m.RoutePreference] = ()) -> bool:
        """Whether the client has said that what goes from the one host to the other may go over these hops."""
        tables = itertools.chain(self.table, self._former, more)
        return any((way.source, way.target) == (source, target) and hops in way.over for way in tables)

    def via(self, to: str, index: int) -> m.Via:
        """Over what a partition goes to that host."""
        over = self._choices(to, index)
        if not over:
            return NET
        for via in over:
            if not self.is_down(to, via):
                return via
        # R3, R6: all are down: a route without a lost relay goes first, then the one whose time ends first
        return min(over, key=lambda via: (self._is_cut(via), self._left_until_s(to, via)))

    def _choices(self, to: str, index: int | None) -> tuple[m.Via, ...]:
        """Return the networks and routes to a host, first choice first; empty if the client has named none (R1).

        ``index``: of the partition that is sent, as a change counts from one partition on. None: for other messages.
        """
        before = index is not None and index <= self._after
        return (self._before if before else self._over).get(to, ())

    def is_down(self, to: str, via: m.Via) -> bool:
        """Whether nothing is sent over that link for now, where there is another."""
        return self._out.now < self._left_until_s(to, via) or self._is_cut(via)  # R6: a relay may be lost

    def _left_until_s(self, to: str, via: m.Via) -> float:
        """R3, R7: until when a link is left after a failure or a false report; 0 if it never was."""
        return max(self._down.get((to, via), 0.0), self._false.get((to, via), (0.0, 0.0))[0])

    def others(self, to: str, via: m.Via, index: int | None = None) -> list[m.Via]:
        """Return the other choices for a partition, or another message, without routes that are down.

        A route of an earlier table may be none of the choices. If there are no choices, the network that all share is.
        """
        return [
            other
            for other in self._choices(to, index) or (NET,)
            if other != via and (isinstance(other, str) or not self.is_down(to, other))
        ]

    def _is_cut(self, via: m.Via) -> bool:
        """R6: whether a relay on the way is lost."""
        return not isinstance(via, str) and any(hop.host in self.gone for hop in via)

    def leave(self, to: str, via: m.Via) -> None:
        """R3: nothing comes through that link."""
        self._down[to, via] = self._out.now + self._again_s

    def send(self, to: str, part: m.Partition, size_bytes: int) -> m.Via:
        """Over what a partition goes to that host, whose transfer begins."""
        if self._landed:
            self._count_repeat(to, part)
        via = self.via(to, part.index)
        if self._choices(to, part.index):
            busy = self.busy.setdefault((to, via), _Busy(self._out.now))
            busy.parts[part.producer, part.index, part.consumer] = part, size_bytes
        return via

    def _count_repeat(self, to: str, part: m.Partition) -> None:
        """R7: a partition is sent that is perhaps said to be there already."""
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
                detail = {"what": "does not come, though relays say so", **route_fields(via)}
                self._out.record("fault", peer=to, node=part.producer, index=part.index, detail=detail)

    def _report_impassable(self, to: str, via: m.Via) -> None:
        """To the client, which plans without it."""
        assert not isinstance(via, str)
        self._out.send(self._client, m.Impassable(self._out.run, to, via))

    def failing_s(self, to: str, via: m.Via) -> float:
        """Return for how long every message that went that way has failed; 0 if none has since one came through."""
        return self._out.now - self._failing_s.get((to, via), self._out.now)

    def came_through(self, to: str, via: m.Via, message: m.Bulk) -> None:
        """R3: all of a message is there."""
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
        """R3: nobody knows what became of it."""
        self._failing_s.setdefault((to, via), self._out.now)
        under_way = self._over_with(to, via, message)
        if under_way and isinstance(message, m.Partition) and self._choices(to, message.index):
            self.leave(to, via)

    def _over_with(self, to: str, via: m.Via, message: m.Bulk) -> bool:
        """Whether it was a partition under way, and has not been given up before."""
        busy = self.busy.get((to, via))
        if busy is None or not isinstance(message, m.Partition):
            return False
        part = busy.parts.pop((message.producer, message.index, message.consumer), None)
        if not busy.parts:
            del self.busy[to, via]
        return part is not None

    def stuck(self, demand: m.Demand, monitor: Monitor) -> list[m.Partition]:
        """R2: what is to be sent again, as this is asked for again."""
        for (to, via), busy in list(self.busy.items()):
            asked = any((demand.producer, demand.index) == key[:2] for key in busy.parts)
            if asked and self._give_up(to, via, demand.index, monitor):
                del self.busy[to, via]
                return [part for part, _ in busy.parts.values()]
        return []

    def _give_up(self, to: str, via: m.Via, index: int, monitor: Monitor) -> bool:
        """Leave a link that is stuck, if there is another for the partition that is asked for. Return whether it is."""
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
            # R4: by this sample the client plans without the link
            monitor.stalled(link, size_bytes, STUCK * waited_s, now)
        else:
            self._report_impassable(to, via)
        detail = {"what": "nothing comes through", **route_fields(via), "parts": len(busy.parts)}
        self._out.record("fault", peer=to, duration_s=waited_s, detail=detail)
        return True
