"""Search of hosts for their own coordinates before a run, requested by a planning host. Pure.

Rules:

R1. On request, a host measures to the targets repeatedly and in parallel, until it has made ``ENOUGH`` measurements. A
    single target gets at most twice its share, because some targets may be silent. Then the host answers its
    requesters.
R2. If a requester asks again, the host answers with its present coordinates. A host with recent coordinates answers at
    once. If an answer of a target is late (R2 of ``latency_prober``), the target is sounded again only after a repeated
    request.
R3. At most ``MOST`` requesters and ``MOST`` targets are kept. The oldest are forgotten first, as their hosts may not
    exist.
"""

from __future__ import annotations

from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.measuring.coordinate_table import CoordinateTable, as_message, as_place
from thalweg.middleware.core.measuring.latency_prober import TIMES, LatencyProber
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS, MOST
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import MonitorConfig

ENOUGH = 192  # measurements; more of them improve the coordinates very little


class CoordinateSearch:
    """Coordinate search of one host, as the requester or as the host that measures."""

    def __init__(
        self, out: Outbox, me: m.Peer, config: MonitorConfig, places: CoordinateTable, soundings: LatencyProber
    ) -> None:
        self._out, self._me, self._config = out, me, config
        self._table, self._latency_prober = places, soundings
        self.waiting: dict[str, None] = {}  # names of the requesters, in the order of their requests
        self.left: dict[str, int] = {}  # by target: number of soundings that are still allowed
        self.made = 0

    def request(self, event: e.ProbesRequested) -> None:
        """Ask the host ``event.source`` to find its coordinates.

        ``event.source`` may be the local host.
        """
        request = m.ProbeRequest(event.run, event.targets, event.requester, "coordinates")
        if event.source.name == self._out.host:
            self.on_request(request)
        else:
            self._out.emit(e.Meet(event.run, (event.source,)))
            self._out.of(event.run).send(event.source.name, request)

    def on_request(self, message: m.ProbeRequest) -> None:
        """Begin to measure to the targets (R1).

        If a request is repeated, or the coordinates are recent, answer (R2).
        """
        asker, places = message.requester.name, self._table
        self._out.emit(e.Meet(BEFORE_RUNS, (*message.targets, message.requester)))
        lately = places.own.count >= ENOUGH and self._out.now - places.moved_s < self._config.max_age_s
        targets = [target.name for target in message.targets if target.name != self._out.host]
        if asker in self.waiting or lately:
            self._answer(asker)
            for name in targets:
                if self.left.get(name):
                    self._latency_prober.sound(BEFORE_RUNS, name, situated=True)
            return
        if len(self.waiting) >= MOST:  # R3: the first requester is forgotten
            del self.waiting[next(iter(self.waiting))]
        self.waiting[asker] = None
        for name in targets:
            if name not in self.left and len(self.left) >= MOST:  # R3: the first target is forgotten
                del self.left[next(iter(self.left))]
            self.left[name] = -(-2 * ENOUGH // (TIMES * len(targets)))
            self._latency_prober.sound(BEFORE_RUNS, name, situated=True)

    def on_answer(self, host: str) -> None:
        """Count a complete sounding of ``host``. Sound the host again, or answer the requesters after the last."""
        series = self._latency_prober.own.get(host)
        late = series is None or series.latency.measured_at_s < self._out.now
        if not self.left.get(host) or host in self._latency_prober.under_way or late:
            return
        self.made += 1
        self.left[host] -= 1
        if self.made * TIMES >= ENOUGH:
            for asker in sorted(self.waiting):
                self._answer(asker)
            self.waiting.clear()
            self.left.clear()
            self.made = 0
        elif self.left[host]:
            self._latency_prober.sound(BEFORE_RUNS, host, situated=True)

    def _answer(self, asker: str) -> None:
        me = self._out.host
        if asker == me:
            self._out.emit(e.Report(me, me, self._table.own))
        else:
            self._out.of(BEFORE_RUNS).send(asker, m.ProbeResult(BEFORE_RUNS, place=as_message(self._table.own)))

    def on_found(self, sender: str, report: m.PlaceReport) -> None:
        """Report the coordinates of another host to the application. Invalid coordinates are recorded as unexpected."""
        place = as_place(report)
        if why := place.odd(self._config.dimensions):
            detail = {"message": "ProbeResult", "what": f"coordinates: {why}"}
            self._out.record("unexpected", peer=sender, detail=detail)
        else:
            self._out.emit(e.Report(sender, sender, place))
