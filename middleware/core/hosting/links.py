"""Measurements of links by a host, for every run: from transfers, probes, soundings and searches for coordinates.

A message about a run counts only if the run is on this host, and only from hosts of the run. A message for a plan
before a run counts from every host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any, ClassVar

from thalweg.middleware.core.context.notes import Notes
from thalweg.middleware.core.context.outbox import HostContext, Outbox
from thalweg.middleware.core.measuring.coordinate_search import CoordinateSearch
from thalweg.middleware.core.measuring.coordinate_table import CoordinateTable
from thalweg.middleware.core.measuring.latency_prober import LatencyProber
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.measuring.monitor import LONG_S, Ends, Monitor, estimate_fields
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS, Prober
from thalweg.middleware.core.routes.route_choice import route_fields
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId


class Links:
    """Measuring parts of a host, and the check of who may use them. Results go to every run."""

    def __init__(
        self, out: Outbox, desk: HostContext, me: m.Peer, config: CoreConfig, runs: Mapping[RunId, RunCore]
    ) -> None:
        self._out, self._desk, self._host, self._runs = out, desk, me.name, runs
        self.monitor = Monitor(me.name, config.monitor)
        self.prober = Prober(out, me, self.monitor)
        self.meters = Meters(config.capacity)
        self.coordinate_table = CoordinateTable(out, config.monitor, self.meters)
        self.latency_prober = LatencyProber(out, me, config.monitor, self.meters, self.coordinate_table)
        self.coordinate_search = CoordinateSearch(out, me, config.monitor, self.coordinate_table, self.latency_prober)

    def forget(self) -> None:
        """Forget the measurements so far, because they say nothing about the links from now on."""
        self.monitor.forget()
        self.latency_prober.forget()
        self.coordinate_table.forget()

    def drop(self, run: RunId) -> None:
        """Forget the history and meters of a run that was dropped, as the run cannot do so itself."""
        self.monitor.drop_history(run)
        self.meters.drop(run)

    def costs(self) -> tuple[int, int, int]:
        """Return the bytes of news, of probes, and of everything sent, since the host began."""
        news = self.monitor.news_bytes + self.latency_prober.sent_bytes
        return news, self.prober.sent_bytes, self._desk.sent_bytes + news

    def request(self, event: e.ProbesRequested) -> Notes:
        """Begin a measurement of links for the application or for a run."""
        if event.source.name == self._host and not self._known(event.run):
            return
        if event.quantity == "coordinates":
            self.coordinate_search.request(event)
        elif event.quantity == "latency":
            self.latency_prober.request(event)
        else:
            yield from self.prober.request(event)

    def probed(self, event: e.TransferMeasured, message: m.Probe) -> Notes:
        """Handle the transfer of a probe message, which measures a link and shows that the link carries messages."""
        for run in self._runs.values():
            if run.directory.chosen_routes is not None:
                run.directory.chosen_routes.came_through(event.peer, event.via, message)
        return self.prober.on_measured(event, message)

    def carried(self, event: e.TransferMeasured, message: m.Partition, run: RunCore | None) -> None:
        """Measure a link by a partition's transfer (passive monitoring). Of several links, take the first."""
        link: Ends = (self._host, event.peer)
        if event.via != NET:
            link = m.links_over(self._host, event.peer, event.via)[0]
        known = self.monitor.knows(link, self._desk.now)
        if not known or self._desk.recording:
            self._learn(event, link, message, run, known=known)

    def passed_on(self, event: e.Relayed, message: m.Partition, run: RunCore | None) -> None:
        """Measure a link by the transfer of a partition that this host has passed on."""
        link = m.links_over(self._host, event.hops[-1].host, event.hops)[0]
        self._learn(event, link, message, run, known=self.monitor.knows(link, self._desk.now))

    def _learn(
        self, event: e.TransferMeasured | e.Relayed, link: Ends, message: m.Partition, run: RunCore | None, *,
        known: bool,
    ) -> None:  # fmt: skip
        relayed, now = isinstance(event, e.Relayed), self._desk.now
        peer, via = (event.hops[-1].host, event.hops) if isinstance(event, e.Relayed) else (event.peer, event.via)
        out = self._out.of(message.run) if run is None else run.out
        size, duration_s = event.size_bytes, event.duration_s
        if not known:
            busy_s = self.prober.busy_s(link, duration_s)
            graph = run is not None and bool(run.tree.dataflow.several)
            long_s = LONG_S if graph else math.inf
            estimate = self.monitor.measured(link, size, busy_s, now, "passive", long_s=long_s)
            if estimate is not None:
                out.record("estimate", **estimate_fields(link, estimate, size, busy_s, "passive"))
        if not self._desk.recording:
            return
        rate = size * 8 / duration_s if duration_s > 0 else 0.0
        detail = {} if via == NET else route_fields(via)
        if isinstance(event, e.Relayed):
            detail = {"via": event.hops[0].via, "source": event.source, "target": peer, "relays": event.relays}
        out.record(
            "relayed" if relayed else "transfer", peer=link[1] if relayed else peer, node=message.producer,
            index=message.index, size_bytes=size, duration_s=duration_s, value=rate,
            **({"detail": detail} if detail else {}),
        )  # fmt: skip

    def _known(self, run: RunId) -> bool:
        """Return whether a probe belongs to a run on this host, or to a plan before a run."""
        return run == BEFORE_RUNS or run in self._runs

    def _hosts_of(self, run: RunId) -> Set[str]:
        known = self._runs.get(run)
        return frozenset() if known is None else known.members

    # --- messages -------------------------------------------------------------------------------------

    def handle_message(self, sender: str, message: Any) -> Notes:
        """Handle a message of a class in ``MESSAGES``."""
        return self.MESSAGES[type(message)](self, sender, message)

    def _on_probe_request(self, sender: str, message: m.ProbeRequest) -> Notes:
        if message.requester.name != sender or not self._known(message.run):
            return
        if message.quantity == "coordinates":
            if message.run == BEFORE_RUNS:
                self.coordinate_search.on_request(message)
        elif message.quantity == "latency":
            self.latency_prober.on_request(message, self._hosts_of(message.run))
        else:
            yield from self.prober.on_request(message, self._hosts_of(message.run))

    def on_probe(self, sender: str, message: m.Probe, via: str = NET) -> None:
        if message.source.name == sender and (message.run == BEFORE_RUNS or sender in self._hosts_of(message.run)):
            self.prober.on_probe(sender, message, via)

    def _on_probe(self, sender: str, message: m.Probe) -> Notes:
        self.on_probe(sender, message)
        return ()

    def _on_probe_result(self, sender: str, message: m.ProbeResult) -> Notes:
        if message.estimate is not None and sender in message.estimate.link.hosts:
            yield from self.prober.on_result(message.estimate)
        if message.latency is not None:
            yield from self.latency_prober.on_sounded(sender, message.latency)
        if message.place is not None and message.run == BEFORE_RUNS:
            self.coordinate_search.on_found(sender, message.place)

    def _on_echo(self, sender: str, message: m.Echo) -> Notes:
        if message.run == BEFORE_RUNS or sender in self._hosts_of(message.run):
            if message.nodes and message.run in self._runs:
                self._runs[message.run].parts.get(Gossip).handle_reports(sender, message.nodes)
            yield from self.latency_prober.on_echo(sender, message, self._hosts_of(message.run))
            if message.back:
                self.coordinate_search.on_answer(sender)

    MESSAGES: ClassVar[dict[type[Any], Callable[[Links, str, Any], Notes]]] = {
        m.ProbeRequest: _on_probe_request,
        m.Probe: _on_probe,
        m.ProbeResult: _on_probe_result,
        m.Echo: _on_echo,
    }
