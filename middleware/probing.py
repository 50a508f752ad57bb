"""Bandwidth probes on demand: a 16 KB round trip between any two hosts, one at a time from each host.

A probe from *a* to *b* teaches *a -> b*; the echo teaches *b -> a*; each sender tells the requester what it
measured. Source: Ranganathan et al., section 4.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from thalweg.middleware import events as e
from thalweg.middleware import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.host_core import HostCore

PROBE_PAYLOAD = bytes(m.PROBE_BYTES)


class Prober:
    """The probes this host still has to send, and the one under way."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.queue: deque[tuple[str, m.Peer, m.Peer]] = deque()  # (run, target, requester)
        self.under_way: m.Probe | None = None
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
        if message.echo:
            self._send(message.run, message.source.name, message.requester, message.number, echo=False)

    def on_measured(self, peer: str, probe: m.Probe, size_bytes: int, duration_s: float) -> None:
        rate = size_bytes * 8 / duration_s if duration_s > 0 else 0.0
        if rate > 0:
            result = m.ProbeResult(probe.run, self.core.host, peer, rate)
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
            self.under_way = self._send(run, target.name, requester, self.count, echo=True)

    def _send(self, run: str, to: str, requester: m.Peer, number: int, *, echo: bool) -> m.Probe:
        probe = m.Probe(run, number, self.core.me, requester, echo)
        self.core.emit(e.Send(run, to, probe, PROBE_PAYLOAD, len(PROBE_PAYLOAD), bulk=True))
        return probe
