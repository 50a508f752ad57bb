"""Latencies between hosts: half of the shortest of the latest round trips of control messages. Pure.

Rules:

R1. A *sounding* of a host is ``TIMES`` messages, sent one by one after the answer to the message before. The latency is
    half of the shortest of the last ``WINDOW`` round trips, of at most two minutes. A longer round trip has only waited
    behind other messages, or for a processor. Clocks of hosts are not compared, so both directions of a link count as
    equal.
R2. Only the first answer to a message counts, and only from the host that was asked. A sounding without an answer for
    ``PROBE_PATIENCE_S`` is over, and a later answer is ignored. The requester has to ask again.
R3. A host reports only on itself and on its own links, of these the latest. Receivers ignore everything else. A host's
    own measurement of a link overrides the report of the other end.
R4. Within a run, only the run's hosts are sounded and answered. Before runs every host may be, as with probes. Requests
    for more than ``MOST`` hosts, or by more than ``MOST`` hosts for the same host, are dropped. Of soundings and
    latencies the oldest are forgotten.
R5. While ``AT_ONCE`` soundings are under way, requested soundings wait until one ends or is given up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from thalweg.middleware.core.context.notes import LatencyMeasured, Notes
from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.measuring.coordinate_table import CoordinateTable, as_figures, host_told
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS, MOST
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.forecasting import Window
from thalweg.middleware.network.view import Latency, Link, Pair
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import PROBE_PATIENCE_S, T_THRES, MonitorConfig
from thalweg.middleware.protocol.run_id import RunId

TIMES = 3
AT_ONCE = 64
_size = msgspec.msgpack.Encoder()
LATENCY_AGE_S = 15 * T_THRES  # maximum age of a latency in the view
WINDOW = 30  # with fewer round trips, each may have waited if the link is always full
MOST_TOLD = 16  # latencies in a message; few are new since the last message to the same host


class _Series:
    """Latest round trips to one host, and the resulting latency."""

    __slots__ = ("latency", "window")

    def __init__(self) -> None:
        self.window = Window(WINDOW)
        self.latency = Latency(0.0, 0)

    def add(self, took_s: float, now: float) -> Latency:
        window = self.window
        window.add(took_s, now)
        # R1: the shortest round trip is the one that waited least
        self.latency = Latency(min(window.values) / 2, self.latency.count + 1, window.spread() / 2, now)
        return self.latency


class _Sounding(msgspec.Struct):
    """Sounding under way: the number of the awaited message, and the number of answers still missing."""

    run: RunId
    number: int
    sent_s: float
    left: int = TIMES
    situated: bool = False  # the messages carry coordinates


class PiggybackedFigures(NamedTuple):
    """Figures that a sounding carries to the other host: latencies of links, and figures of nodes."""

    latencies: tuple[m.LinkLatency, ...] = ()
    nodes: tuple[m.NodeReport, ...] = ()


class LatencyProber:
    """Latencies measured by one host, and latencies reported by remote hosts of their own links."""

    def __init__(self, out: Outbox, me: m.Peer, config: MonitorConfig, meters: Meters, places: CoordinateTable) -> None:
        self._out, self._me, self._config, self._meters, self._table = out, me, config, meters, places
        self.own: dict[str, _Series] = {}  # by host, the host measured last at the end
        self.reported: dict[Pair, Latency] = {}
        self.hosts: dict[str, HostFigures] = {}  # figures that hosts report of themselves, the latest at the end
        self.under_way: dict[str, _Sounding] = {}
        self.queue: dict[str, RunId] = {}  # by host the run, in the order of the soundings
        self.waiting: dict[str, dict[str, RunId]] = {}  # by host its requesters, with the run of each request
        self.turns: dict[RunId, list[RunId]] = {}  # by stream, the runs that sound hosts for it in turn
        self.sent_bytes = 0
        self._count = 0

    def take_turn(self, stream: RunId, run: RunId) -> int:
        """Add a run to the runs that sound hosts in turn for a stream. Return the number of earlier runs."""
        runs = self.turns.setdefault(stream, [])
        runs.append(run)
        return len(runs) - 1

    def drop_turn(self, stream: RunId, run: RunId) -> None:
        """Remove an ended run from the runs that sound hosts in turn for a stream."""
        runs = self.turns.get(stream, [])
        if run in runs:
            runs.remove(run)
            if not runs:
                del self.turns[stream]

    # --- requests -------------------------------------------------------------------------------------

    def request(self, event: e.ProbesRequested) -> None:
        """Ask the host ``event.source`` to measure its latency to the targets.

        ``event.source`` may be the local host.
        """
        request = m.ProbeRequest(event.run, event.targets, event.requester, "latency")
        if event.source.name == self._out.host:
            self.on_request(request)
        else:
            self._out.emit(e.Meet(event.run, (event.source,)))
            self._out.of(event.run).send(event.source.name, request)

    def measure(self, run: RunId, peers: Mapping[str, m.Peer], links: Collection[Link]) -> None:
        """Request the latencies of ``links`` from the hosts at their beginnings.

        Both directions of a link need one request. A link with an end outside ``peers`` is left out.
        """
        targets: dict[str, list[m.Peer]] = {}
        for source, target in sorted(links):
            if source in peers and target in peers and not (source > target and (target, source) in links):
                targets.setdefault(source, []).append(peers[target])
        for source, receivers in targets.items():
            self.request(e.ProbesRequested(run, peers[source], tuple(receivers), self._me, "latency"))

    def on_request(self, message: m.ProbeRequest, hosts: Collection[str] | None = None) -> None:
        """Queue soundings of the requested targets. ``hosts``: the hosts of the run, if another host asks."""
        if message.run == BEFORE_RUNS:
            hosts = None
            self._out.emit(e.Meet(message.run, (*message.targets, message.requester)))
        for target in message.targets:
            name = target.name
            if name == self._out.host or (hosts is not None and name not in hosts):
                continue  # R4: within a run only its hosts are sounded
            waiting = self.waiting.get(name, {})
            if len(waiting if waiting else self.waiting) >= MOST and message.requester.name not in waiting:
                continue  # R4: a request too many is dropped, and the requester asks again
            waiting[message.requester.name] = message.run
            self.waiting[name] = waiting
            self.queue.setdefault(name, message.run)
        self._next()

    def _next(self) -> None:
        """Start queued soundings that a requester still waits for, up to ``AT_ONCE`` (R5)."""
        if len(self.under_way) >= AT_ONCE:
            late_s = self._out.now - PROBE_PATIENCE_S
            for host in [host for host, sounding in self.under_way.items() if sounding.sent_s <= late_s]:
                del self.under_way[host]  # R2: a sounding without an answer is over
        while self.queue and len(self.under_way) < AT_ONCE:
            host = next(iter(self.queue))
            run = self.queue.pop(host)
            if host in self.waiting:
                self.sound(run, host)

    # --- soundings ------------------------------------------------------------------------------------

    def sound(self, run: RunId, host: str, told: PiggybackedFigures | None = None, *, situated: bool = False) -> None:
        """Start a sounding of ``host``, unless one is under way.

        ``told``: figures that its first message carries. ``situated``: the two hosts exchange coordinates as well.
        """
        before = self.under_way.get(host)
        if before is not None and self._out.now - before.sent_s < PROBE_PATIENCE_S:
            return
        if before is None and len(self.under_way) >= MOST:
            del self.under_way[next(iter(self.under_way))]  # R4: the oldest sounding is forgotten
        self._send_probe(host, _Sounding(run, 0, 0.0, situated=situated), told)

    def _send_probe(self, host: str, sounding: _Sounding, told: PiggybackedFigures | None = None) -> None:
        self._count += 1
        sounding.number, sounding.sent_s = self._count, self._out.now
        self.under_way[host] = sounding
        source = self._me if sounding.run == BEFORE_RUNS else None
        me = None if told is None else self._reports_of_me()
        latencies, nodes = told or PiggybackedFigures()
        places = None
        if sounding.situated:
            places = self._table.news() if told is not None else self._table.own_news()
        self._send(host, m.Echo(sounding.run, self._count, False, source, me, latencies, nodes, places))

    def _send(self, to: str, message: m.Echo) -> None:
        if message.run != BEFORE_RUNS:
            self.sent_bytes += len(_size.encode(message))
        self._out.of(message.run).send(to, message)

    def _reports_of_me(self) -> m.HostReport:
        return host_told(self._meters.host(self._out.now))

    def on_echo(self, sender: str, message: m.Echo, hosts: Collection[str] = ()) -> Notes:
        """Answer a message of a sounding, or evaluate an answer (R2).

        ``hosts``: the run's hosts. The sender may report their coordinates besides its own.
        """
        out = self._out.of(message.run)
        if message.run != BEFORE_RUNS:  # R4: before a run any host may answer, so its latencies do not count
            self._handle_reports(sender, message.latencies)
        if message.host is not None:
            self.hosts.pop(sender, None)
            if len(self.hosts) >= MOST:
                del self.hosts[next(iter(self.hosts))]  # R4: the oldest entry is forgotten
            self.hosts[sender] = as_figures(message.host)
        if message.places is not None:
            self._table.handle_reports(sender, message.places, hosts)
        if not message.back:
            if message.source is not None and message.run == BEFORE_RUNS and message.source.name == sender:
                out.emit(e.Meet(message.run, (message.source,)))
            own = None if message.places is None else self._table.own_news()
            self._send(sender, m.Echo(message.run, message.number, True, host=self._reports_of_me(), places=own))
            return
        sounding = self.under_way.get(sender)
        if sounding is None or (sounding.run, sounding.number) != (message.run, message.number):
            return  # R2: only the first answer to the present message counts
        took_s = self._out.now - sounding.sent_s
        if took_s > PROBE_PATIENCE_S:
            del self.under_way[sender]  # R2: a late answer is ignored
            self._next()
            return
        latency = self._measured(sender, took_s)
        if message.places is not None:
            self._table.measured(sender, took_s / 2)
        sounding.left -= 1
        if sounding.left:
            self._send_probe(sender, sounding)
            return
        del self.under_way[sender]
        link = Link(out.host, sender)
        out.record("latency", **_fields(link, latency, took_s))
        for name, run in self.waiting.pop(sender, {}).items():
            if name == out.host:
                yield from self._report(link, latency)
            else:
                self._out.of(run).send(name, m.ProbeResult(run, latency=as_message(link, latency, out.now)))
        self._next()

    def _measured(self, host: str, took_s: float) -> Latency:
        series = self.own.pop(host, None) or _Series()
        if len(self.own) >= MOST:
            del self.own[next(iter(self.own))]  # R4: the oldest series is forgotten
        self.own[host] = series  # the host measured last is at the end
        return series.add(took_s, self._out.now)

    def on_sounded(self, sender: str, report: m.LinkLatency) -> Notes:
        """Handle a requested latency of a link, measured by ``sender`` at the beginning of the link."""
        if report.source == sender:  # R3: a host is believed about its own links only
            self._handle_reports(sender, (report,))
            yield from self._report(Link(report.source, report.target), as_latency(report, self._out.now))

    def _report(self, link: Link, latency: Latency) -> Notes:
        """Report a requested latency to the application and to the runs. Either may wait for it."""
        self._out.emit(e.Report(*link, latency, self.hosts.get(link.target)))
        yield LatencyMeasured(link, latency)

    # --- known latencies ------------------------------------------------------------------------------

    def latest(self) -> tuple[m.LinkLatency, ...]:
        """Return the latest latencies of links from the local host, in message form (R3)."""
        latest = [(host, series.latency) for host, series in self.own.items()][-MOST_TOLD:]
        return tuple(as_message(Link(self._out.host, host), latency, self._out.now) for host, latency in latest)

    def _handle_reports(self, sender: str, news: tuple[m.LinkLatency, ...]) -> None:
        for report in news:
            if report.source != sender or report.target == sender:
                continue  # R3: a host is believed about its own links only
            self.reported.pop((report.source, report.target), None)
            if len(self.reported) >= self._config.max_links:
                del self.reported[next(iter(self.reported))]
            self.reported[report.source, report.target] = as_latency(report, self._out.now)

    def view(self, age_s: float = math.inf) -> dict[Link, Latency]:
        """Return the known latencies that are at most ``age_s`` old, and at most ``LATENCY_AGE_S``."""
        oldest_s = self._out.now - min(age_s, LATENCY_AGE_S)
        known: dict[Pair, Latency] = {**self.reported}
        for host, series in self.own.items():  # R3: an own measurement goes before that of the other end
            known.pop((host, self._out.host), None)
            known[self._out.host, host] = series.latency
        return {Link(*link): latency for link, latency in known.items() if latency.measured_at_s >= oldest_s}

    def forget(self) -> None:
        """Forget the latencies of all links, as at the beginning."""
        self.own.clear()
        self.reported.clear()


def as_message(link: Pair, latency: Latency, now: float) -> m.LinkLatency:
    """Return a latency in message form, with its age at ``now``."""
    age_ms = max(0, round((now - latency.measured_at_s) * 1000))
    return m.LinkLatency(*link, _in_us(latency.latency_s), _in_us(latency.spread_s), latency.count, age_ms)


def _in_us(seconds: float) -> int:
    return min(round(seconds * 1e6), m.LONGEST_US)


def as_latency(told: m.LinkLatency, now: float) -> Latency:
    """Return a latency from a report that arrives at ``now``."""
    return Latency(told.latency_us / 1e6, told.count, told.spread_us / 1e6, now - told.age_ms / 1000)


def _fields(link: Link, latency: Latency, took_s: float) -> dict[str, Any]:
    """Return the fields of a ``latency`` record."""
    detail = {"src": link[0], "dst": link[1], "count": latency.count, "spread_s": latency.spread_s}
    return {"peer": link[1], "value": latency.latency_s, "duration_s": took_s, "detail": detail}
