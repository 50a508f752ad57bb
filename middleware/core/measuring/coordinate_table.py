"""Network coordinates of the local host, computed from latencies, and coordinates reported by remote hosts. Pure.

Rules (Pietzuch et al., section 3.1.1):

R1. Every answer to a latency measurement moves the coordinates of the local host. The move depends on the 20th
    percentile of the link's last ``SAMPLES`` latencies, and on the coordinates of the remote host.
R2. The messages of latency measurements carry coordinates: the sender's own and, in turn, those of further hosts, at
    most ``MAX_PLACES`` in total. A report of a host about itself overrides reports of third hosts for ``max_age_s``.
    Later the report with more measurements counts.
R3. Coordinates that are not finite, or have other dimensions, are dropped and recorded.

The memory is bounded: ``MOST`` hosts, and the latencies of ``LINKS`` links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import msgspec

from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.measuring.prober import MOST
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.place import Place, baseline
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import MonitorConfig

SAMPLES = 10  # latencies of a link that count: section 3.1.1
LINKS = 256  # number of links with samples: to the hosts measured last


class CoordinateTable:
    """Coordinates of one host and of its known hosts, shared by the runs of the host."""

    def __init__(self, out: Outbox, config: MonitorConfig, meters: Meters) -> None:
        self._out, self._config, self._meters = out, config, meters
        self._own = Place.first(out.host, config.dimensions)
        self.moved_s = 0.0  # time of the last move
        self.reported: dict[str, Place] = {}
        self._said_s: dict[str, float] = {}  # by host: time of its last report about itself
        self._samples: dict[str, deque[float]] = {}  # latencies by host, the host measured last at the end
        self._first = 0  # position in ``reported`` of the next host to report

    @property
    def own(self) -> Place:
        """Own coordinates of the host, with its present figures such as the load."""
        return msgspec.structs.replace(self._own, host=self._meters.host(self._out.now))

    def known(self, hosts: Collection[str]) -> dict[str, Place]:
        """Return the known coordinates among ``hosts``. The host's own coordinates are always known."""
        known = {**self.reported, self._out.host: self.own}
        return {host: known[host] for host in hosts if host in known}

    def measured(self, host: str, latency_s: float) -> None:
        """Add a latency of the link to ``host``.

        If the coordinates of ``host`` are known, update the host's own coordinates (R1).
        """
        samples = self._samples.pop(host, None) or deque(maxlen=SAMPLES)
        samples.append(latency_s)
        if len(self._samples) >= LINKS:
            del self._samples[next(iter(self._samples))]
        self._samples[host] = samples
        if host in self.reported:
            self._own = self._own.measured(self.reported[host], baseline(samples))
            self.moved_s = self._out.now

    def own_news(self) -> dict[str, m.PlaceReport]:
        """Return the host's own coordinates alone, in message form."""
        return {self._out.host: as_message(self.own)}

    def news(self) -> dict[str, m.PlaceReport]:
        """Return the host's own coordinates, and coordinates of further hosts in turn, in message form (R2)."""
        names = list(self.reported)
        count = min(len(names), m.MAX_PLACES - 1)
        first, self._first = self._first, self._first + count
        chosen = [names[(first + number) % len(names)] for number in range(count)]
        return self.own_news() | {name: as_message(self.reported[name]) for name in chosen}

    def handle_reports(self, sender: str, places: Mapping[str, m.PlaceReport], hosts: Collection[str]) -> None:
        """Store coordinates reported by ``sender``: its own, and coordinates of hosts among ``hosts`` (R2, R3)."""
        now = self._out.now
        for name, report in places.items():
            if name == self._out.host or (name != sender and name not in hosts):
                continue
            place = as_place(report)
            if why := place.odd(self._config.dimensions):  # R3: not finite, or of other dimensions
                problem = f"coordinates of {name}: {why}"
                self._out.record("unexpected", peer=sender, detail={"message": "Echo", "what": problem})
            elif name == sender:
                self._said_s[name] = now
                self._keep(name, place)
            elif self._said_s.get(name, -self._config.max_age_s) + self._config.max_age_s <= now:
                # R2: the host has sent no report of itself lately, so the report with more measurements counts
                known = self.reported.get(name)
                if known is None or place.count > known.count:
                    self._keep(name, place)

    def _keep(self, name: str, place: Place) -> None:
        if name not in self.reported and len(self.reported) >= MOST:
            oldest = next(iter(self.reported))
            del self.reported[oldest]
            self._said_s.pop(oldest, None)
        self.reported[name] = place

    def forget(self) -> None:
        """Reset the host's own coordinates. Forget the remaining hosts, and the samples.

        Earlier measurements no longer hold.
        """
        self._own = Place.first(self._out.host, self._config.dimensions)
        for table in (self.reported, self._said_s, self._samples):
            table.clear()


def host_told(host: HostFigures) -> m.HostReport:
    """Return the figures of a host in message form."""
    return m.HostReport(round(host.speed * 1000), host.cores, round(host.load * 1000))


def as_message(place: Place) -> m.PlaceReport:
    """Return coordinates in message form."""
    host = place.host
    coordinates = place.at, place.height_s, place.error, place.count
    return m.PlaceReport(*coordinates, host_told(host), host.memory_bytes, host.bandwidth_bps)


def as_figures(told: m.HostReport, memory_bytes: int = 0, bandwidth_bps: int = 0) -> HostFigures:
    """Return the figures of a host from a received report."""
    return HostFigures(told.speed_milli / 1000, told.cores, told.load_milli / 1000, memory_bytes, bandwidth_bps)


def as_place(told: m.PlaceReport) -> Place:
    """Return coordinates from a received report."""
    host = as_figures(told.host, told.memory_bytes, told.bandwidth_bps)
    return Place(told.at, told.height_s, told.error, told.count, host)
