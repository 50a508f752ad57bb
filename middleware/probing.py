"""Bandwidth probes on demand: a 16 KB round trip between any two hosts, one at a time from each host.

A probe from *a* to *b* teaches *a -> b*; the echo teaches *b -> a*; each sender tells the requester what it
measured. Two empty probes go first: one opens the connection, one measures what an empty message takes, so that
neither the hand-shake nor the round trip is taken for transmission. Source: Ranganathan et al., section 4.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from thalweg.middleware import events as e
from thalweg.middleware import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.host_core import HostCore

PROBE_PAYLOAD = bytes(m.PROBE_BYTES)
LAST_STAGE = 2  # of a probe: the one that carries bytes, after two empty ones


class Prober:
    """The probes this host still has to send, and the one under way."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.queue: deque[tuple[str, m.Peer, m.Peer]] = deque()  # (run, target, requester)
        self.under_way: m.Probe | None = None
        self.empty_s: dict[str, float] = {}  # the least that an empty probe to a host took
        self.count = 0

    def request(self, event: e.ProbesRequested) -> None:
        request = m.ProbeRequest(event.run, event.targets, event.requester)
        if event.source.name == self.core.host:
            self.on_request(request)
        else:
            self.core.emit(e.Meet(event.run, (event.source,)))
            self.core.send(event.run, event.source.name, request)

    def on_request(self, message: m.ProbeRequest) -> None:
        self.core.emit(e.Meet(message.run, (*message.targets, message.requester)))
        for target in message.targets:
            if (message.run, target, message.requester) not in self.queue:  # a repeated request
                self.queue.append((message.run, target, message.requester))
        self._next()

    def on_probe(self, sender: str, message: m.Probe) -> None:
        self.core.emit(e.Meet(message.run, (message.source, message.requester)))
        if message.echo and message.stage == LAST_STAGE:
            self._send(message.run, message.source.name, message.requester, message.number, 0, echo=False)

    def on_measured(self, peer: str, probe: m.Probe, size_bytes: int, duration_s: float) -> None:
        if probe.stage < LAST_STAGE:
            self.empty_s[peer] = min(self.empty_s.get(peer, math.inf), duration_s)
            after = self._send(probe.run, peer, probe.requester, probe.number, probe.stage + 1, echo=probe.echo)
            if self.under_way == probe:
                self.under_way = after
            return
        busy_s = duration_s - min(self.empty_s.get(peer, 0.0), duration_s / 2)
        if busy_s > 0:
            result = m.ProbeResult(probe.run, self.core.host, peer, size_bytes * 8 / busy_s)
            if probe.requester.name == self.core.host:
                self.on_result(result)
            else:
                self.core.send(probe.run, probe.requester.name, result)
        self._over(probe)

    def on_failed(self, peer: str, probe: m.Probe) -> None:
        self._over(probe)

    def on_result(self, message: m.ProbeResult) -> None:
        self.core.emit(e.Report(message.source, message.target, message.rate_bps))

    def _over(self, probe: m.Probe) -> None:
        if self.under_way == probe:
            self.under_way = None
            self._next()

    def _next(self) -> None:
        if self.under_way is None and self.queue:
            run, target, requester = self.queue.popleft()
            self.count += 1
            self.under_way = self._send(run, target.name, requester, self.count, 0, echo=True)

    def _send(self, run: str, to: str, requester: m.Peer, number: int, stage: int, *, echo: bool) -> m.Probe:
        probe = m.Probe(run, number, self.core.me, requester, echo, stage)
        payload = PROBE_PAYLOAD if stage == LAST_STAGE else b""
        self.core.emit(e.Send(run, to, probe, payload, len(payload), bulk=True))
        return probe
