"""Bandwidth probes on demand: a short train of messages there and a train back.

A host measures one link at a time, unless a request is for bandwidths at the same time.

Rules:

R1. A train begins with empty messages, one after the other. The first opens the connection. The remaining ones measure
    the time of an empty message, which passive measurements need. Then a lead of ``LEAD_BYTES`` and ``PIECES`` messages
    of 16 KB follow without a pause. A message takes the time from the arrival of the previous message to its own
    arrival. So transmission time includes neither the round trip, nor the burst that a link lets pass after idling. The
    median counts: if a receiver sees a message late, the message seems slow and the next message quick. Without
    ``probe_train`` a train is a single message of 16 KB, as in the paper. This is enough if links and hosts are ideal.
R2. A probe from *a* to *b* measures *a -> b*. Then *b* sends a train back, which measures *b -> a*, unless links are
    measured at once. Both hosts send their result to the other end of the link, and to every requester.
R3. If the monitor has a fresh estimate of a link, the host answers without a probe. A link is not probed again within
    ``PROBE_INTERVAL_S``. The result of a probe answers every request that arrives meanwhile. If a probe is lost, the
    requester asks again. A train that takes longer than ``PROBE_PATIENCE_S`` no longer delays the next train.
R4. Within a run, only hosts of the run are probed, at their known endpoints. Before runs, a host may be probed at any
    endpoint that the requester or the prober names. So requests for more than ``MOST`` links, or from more than
    ``MOST`` hosts for one link, are dropped, and the requester asks again. Of trains, and of links measured before, the
    oldest are forgotten.

Source: Ranganathan et al., section 4 (16 KB round trips).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.notes import LinkMeasured, Notes
from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.measuring.monitor import Ends, Monitor, as_link_estimate, as_message, estimate_fields
from thalweg.middleware.network.view import NET, Link, LinkEstimate
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import MIN_PERIOD_S
from thalweg.middleware.protocol.limits import PROBE_PATIENCE_S, T_THRES
from thalweg.middleware.protocol.run_id import RunId

SHARE_WAITING = 0.25  # of a period: time for which a planner waits for the next measurement
MOST = m.MAX_TARGETS  # links to be probed, links probed before, and requesters of one link
PROBE_INTERVAL_S = 5.0  # minimum time between two probes of a link
PROBE_AGE_S = T_THRES / 4  # an estimate younger than this answers a request without a probe
TRIES = 2  # requests for a link, as one may be lost
BEFORE_RUNS = RunId("probe")  # run id of probes for a plan that precedes a run
LEAD_BYTES = 8192  # a millisecond at 64 Mbit/s, the burst that shapers let pass
EMPTIES, PIECES = 4, 3
STAGE_PAYLOADS = (b"",) * EMPTIES + (bytes(LEAD_BYTES),) + (bytes(m.PROBE_BYTES),) * PIECES
LEAD, LAST = EMPTIES, EMPTIES + PIECES
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def too_slow_bps(waited_s: float) -> float:
    """Return the assumed rate of a link that could not be measured in ``waited_s``: one probe in this time.

    The rate is above 0. If two links had infinite costs, a search that moves one operator at a time would find no
    improvement.
    """
    return m.PROBE_BYTES * 8 / max(waited_s, MIN_PERIOD_S)


def _keep(table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Make an entry the latest of a table. If the table is full, remove the oldest entry (R4)."""
    table.pop(key, None)
    table[key] = value
    if len(table) > MOST:
        del table[next(iter(table))]


class _Asker(msgspec.Struct):
    """Requester that waits for a link: the run of the request, and the directions that are still not measured."""

    run: RunId
    there: bool = True
    back: bool = True


class _Train(msgspec.Struct, frozen=True):
    """Train under way that the host has begun itself, and not as an answer, over the link ``way``."""

    way: Link
    number: int
    begun_s: float


class Prober:
    """Bandwidth probes of one host: the queue of links, the train under way, and the waiting requesters."""

    def __init__(self, out: Outbox, me: m.Peer, monitor: Monitor) -> None:
        self._out, self._me, self._monitor = out, me, monitor
        self.sent_bytes = 0
        self.queue: dict[Link, RunId] = {}  # by link from the local host the run, in the order of the probes
        self.under_way: _Train | None = None
        self.waiting: dict[Link, dict[str, _Asker]] = {}  # by link from the local host, its requesters by name
        self.empty_s: dict[Ends, float] = {}  # shortest time of an empty message
        self.count = 0
        self._first = 0 if monitor.config.probe_train else LAST
        self._took_s: dict[tuple[str, int, bool], list[float]] = {}  # times of the lead and the pieces of a train
        self._begun_s: dict[Link, float] = {}  # by link, the start of the last probe by either end

    # --- requests -------------------------------------------------------------------------------------

    def request(self, event: e.ProbesRequested) -> Notes:
        """Ask the host ``event.source`` to measure its links to the targets. ``event.source`` may be the local host."""
        request = m.ProbeRequest(event.run, event.targets, event.requester, event.quantity, event.via)
        if event.source.name == self._out.host:
            yield from self.on_request(request)
        else:
            self._out.emit(e.Meet(event.run, (event.source,)))
            self._out.of(event.run).send(event.source.name, request)

    def measure(
        self, run: RunId, peers: Mapping[str, m.Peer], links: Collection[Link], *, pairs: bool = False
    ) -> Notes:
        """Request measurements of ``links`` from the hosts at their beginnings.

        A link with an end outside ``peers`` is left out. ``pairs``: one probe measures both directions of a link.
        """
        targets: dict[tuple[str, str], list[m.Peer]] = {}
        for source, target, via in [(*link[:2], Link(*link).via) for link in sorted(links)]:
            if pairs and source > target and Link(target, source, via) in links:
                continue  # one probe measures both
            if source in peers and target in peers:
                targets.setdefault((source, via), []).append(peers[target])
        for (source, via), receivers in targets.items():
            yield from self.request(e.ProbesRequested(run, peers[source], tuple(receivers), self._me, via=via))

    def on_request(self, message: m.ProbeRequest, hosts: Collection[str] | None = None) -> Notes:
        """Answer or queue a request for links from the local host. ``hosts``: the run's hosts, if another host asks."""
        if message.run == BEFORE_RUNS:
            hosts = None
            self._out.emit(e.Meet(message.run, (*message.targets, message.requester)))
        at_once = message.quantity == "bandwidths"
        for target in message.targets:
            if target.name != self._out.host and (hosts is None or target.name in hosts):
                # R4: within a run only its hosts are probed
                way = self._to(target.name, message.via)
                yield from self._request_probe(message.run, way, message.requester.name, back=not at_once)
                if at_once and way in self.queue:
                    self._begin(self.queue.pop(way), way, echo=False)
        self._next()

    def _to(self, host: str, via: str) -> Link:
        return Link(self._out.host, host, via)

    def _request_probe(self, run: RunId, there: Link, requester: str, *, back: bool) -> Notes:
        asker = _Asker(run, back=back)
        for link in (there, there.back)[: 1 + back]:
            known = self._fresh(link)
            if known is not None:
                yield from self._answer(run, requester, link, known)
                asker = _Asker(run, asker.there and link != there, asker.back and link == there)
        if not (asker.there or asker.back):
            return
        waiting = self.waiting.get(there, {})
        if len(waiting if waiting else self.waiting) >= MOST and requester not in waiting:
            return  # R4: a request too many is dropped, and the requester asks again
        waiting[requester] = asker
        self.waiting[there] = waiting
        again_s = self._begun_s.get(there, -math.inf) + PROBE_INTERVAL_S
        if self._out.now >= again_s:
            self.queue.setdefault(there, run)

    def _fresh(self, link: Link) -> LinkEstimate | None:
        known = self._monitor.estimate(link, self._out.now)  # R3: a fresh link is answered, not probed
        young = known is not None and self._out.now - known.measured_at_s < PROBE_AGE_S
        return known if young else None

    def _answer(self, run: RunId, requester: str, link: Link, estimate: LinkEstimate) -> Notes:
        if requester == self._out.host:
            yield from self._report(link, estimate)
        else:
            self._out.of(run).send(requester, m.ProbeResult(run, as_message(link, estimate, self._out.now)))

    def _report(self, link: Link, estimate: LinkEstimate) -> Notes:
        """Report a probed link to the application and to the runs. Either may wait for it."""
        self._out.emit(e.Report(*link.hosts, estimate, via=link.via))
        yield LinkMeasured(link, estimate)

    def _answer_waiting(self, way: Link, link: Link, estimate: LinkEstimate) -> Notes:
        """Answer every requester that waits for ``link``, except its two ends, which get the result anyway.

        ``way``: the link from the local host, which is ``link`` or the opposite direction.
        """
        askers = self.waiting.get(way, {})
        for name, asker in list(askers.items()):
            is_forward = link == way
            if (asker.there if is_forward else asker.back) and name not in link.hosts:
                yield from self._answer(asker.run, name, link, estimate)
            if is_forward:
                asker.there = False
            else:
                asker.back = False
            if not (asker.there or asker.back):
                del askers[name]
        if not askers:
            self.waiting.pop(way, None)

    # --- trains ---------------------------------------------------------------------------------------

    def on_probe(self, sender: str, message: m.Probe, via: str = NET) -> None:
        if message.run == BEFORE_RUNS:
            self._out.emit(e.Meet(message.run, (message.source,)))
        if message.echo and message.stage == self._first:
            _keep(self._begun_s, self._to(sender, via), self._out.now)
        if message.echo and message.stage == LAST:  # R2: a train back measures the other direction
            self._send(message.run, self._to(sender, via), message.number, self._first, echo=False)

    def on_measured(self, measured: e.TransferMeasured, probe: m.Probe) -> Notes:
        """Handle the arrival of a message of a train: send the next messages, or evaluate the complete train."""
        peer, size_bytes, duration_s = measured.peer, measured.size_bytes, measured.duration_s
        if not isinstance(measured.via, str):  # no probe goes over relays
            return
        way = self._to(peer, measured.via)
        train = (peer, probe.number, probe.echo)
        if probe.stage >= LEAD:
            took_s = self._took_s.pop(train, [])
            took_s.append(duration_s)
            if probe.stage == LAST:
                yield from self._train_over(way, probe, size_bytes, took_s)
            elif len(took_s) < LAST - LEAD + 1:
                _keep(self._took_s, train, took_s)  # an unfinished train stays until it is the oldest
            return
        if probe.stage > 0:
            _keep(self.empty_s, way, min(self.empty_s.get(way, math.inf), duration_s))
        following = probe.stage + 1
        # R1: empty messages go one after the other, the lead and its pieces all at once
        for stage in (following,) if following < LEAD else range(LEAD, LAST + 1):
            self._send(probe.run, way, probe.number, stage, echo=probe.echo)

    def _train_over(self, link: Link, probe: m.Probe, size_bytes: int, took_s: list[float]) -> Notes:
        lead_s, *pieces_s = took_s
        # R1: a piece that is seen late makes the next one quick, so the median counts
        busy_s = statistics.median(pieces_s or took_s)
        # If a receiver sees the lead and all pieces at once, each piece seems quick, but their total time is right.
        share = size_bytes / (LEAD_BYTES + PIECES * size_bytes)
        mean_s = share * (self.busy_s(link, lead_s) + plain_sum(pieces_s))
        if busy_s < mean_s / 2:
            busy_s = mean_s
        estimate = self._monitor.measured(link, size_bytes, busy_s, self._out.now, "probe")
        if estimate is not None:
            self._out.of(probe.run).record("estimate", **estimate_fields(link, estimate, size_bytes, busy_s, "probe"))
            message = m.ProbeResult(probe.run, as_message(link, estimate, self._out.now))
            self._out.of(probe.run).send(link.target, message)
            yield from self._report(link, estimate)
            yield from self._answer_waiting(link, link, estimate)
        self._over(link, probe)

    def busy_s(self, way: Ends, duration_s: float) -> float:
        """Return the time of a transfer without the time of an empty message, if the latter is known.

        At most half is subtracted, because an empty message may have become quicker since then.
        """
        return duration_s - min(self.empty_s.get(way, 0.0), duration_s / 2)

    def on_failed(self, way: Link, probe: m.Probe) -> None:
        self._took_s.pop((way.target, probe.number, probe.echo), None)
        self.waiting.pop(way, None)
        self._over(way, probe)

    def on_result(self, report: m.Estimate) -> Notes:
        link, estimate = report.link, as_link_estimate(report, self._out.now)
        self._monitor.handle_estimates((report,), self._out.now, report.source)
        yield from self._report(link, estimate)
        if link.target == self._out.host:
            yield from self._answer_waiting(self._to(link.source, link.via), link, estimate)

    def _over(self, way: Link, probe: m.Probe) -> None:
        current = self.under_way
        if current is not None and probe.echo and (current.way, current.number) == (way, probe.number):
            self.under_way = None
            self._next()

    def _next(self) -> None:
        """Begin the next queued train that a requester still waits for, unless a train is under way."""
        patience_s = PROBE_PATIENCE_S
        if self.under_way is not None and self._out.now - self.under_way.begun_s < patience_s:
            return  # R3: the train under way still has time
        while self.queue:
            way = next(iter(self.queue))
            run = self.queue.pop(way)
            if way in self.waiting:
                self._begin(run, way, echo=True)
                self.under_way = _Train(way, self.count, self._out.now)
                self._out.wake(Timer.PROBE, self._out.now + patience_s)
                return

    def _begin(self, run: RunId, way: Link, *, echo: bool) -> None:
        self.count += 1
        _keep(self._begun_s, way, self._out.now)
        self._send(run, way, self.count, self._first, echo=echo)

    def on_timer(self) -> None:
        """Begin the next train, as the time of the train under way is over (R3)."""
        self._next()

    def _send(self, run: RunId, way: Link, number: int, stage: int, *, echo: bool) -> None:
        payload = STAGE_PAYLOADS[stage]
        self.sent_bytes += len(payload)
        message = m.Probe(run, number, self._me, echo, stage)
        self._out.of(run).send(way.target, message, payload, len(payload), bulk=True, via=way.via)
