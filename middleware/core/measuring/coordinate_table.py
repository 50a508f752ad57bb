"""Where a host is among others, by latencies: its own coordinates, and those that others tell. Pure.

Rules (Pietzuch et al., section 3.1.1):

R1. Each answer to a message that was sent to measure a latency moves this host: by the 20th percentile of the link's
    last ``SAMPLES`` latencies, from where the other says that it is.
R2. A host tells with such messages where it is, and of others in turn, ``MAX_PLACES`` in all. What a host says of
    itself counts for ``max_age_s``, whatever others say of it; else who knows of more measurements.
R3. Coordinates that are not finite, or of other dimensions, are dropped and recorded.

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

SAMPLES = 10  # of a link: section 3.1.1
LINKS = 256  # to hosts that were measured last


class CoordinateTable:
    """A host's, and what it knows of others; shared by all its runs."""

    def __init__(self, out: Outbox, config: MonitorConfig, meters: Meters) -> None:
        self._out, self._config, self._meters = out, config, meters
        self._own = Place.first(out.host, config.dimensions)
        self.moved_s = 0.0  # when it was measured last
        self.reported: dict[str, Place] = {}
        self._said_s: dict[str, float] = {}  # by host: when it said so itself
        self._samples: dict[str, deque[float]] = {}  # by host, the latest measured last
        self._first = 0  # of those that are told next

    @property
    def own(self) -> Place:
        """Where this host is, and its load."""
        return msgspec.structs.replace(self._own, host=self._meters.host(self._out.now))

    def known(self, hosts: Collection[str]) -> dict[str, Place]:
        """Of those of these hosts of which anything is known; this one's as well."""
        known = {**self.reported, self._out.host: self.own}
        return {host: known[host] for host in hosts if host in known}

    def measured(self, host: str, latency_s: float) -> None:
        """R1: a host has answered, and said where it is."""
        samples = self._samples.pop(host, None) or deque(maxlen=SAMPLES)
        samples.append(latency_s)
        if len(self._samples) >= LINKS:
            del self._samples[next(iter(self._samples))]
        self._samples[host] = samples
        if host in self.reported:
            self._own = self._own.measured(self.reported[host], baseline(samples))
            self.moved_s = self._out.now

    def own_news(self) -> dict[str, m.PlaceReport]:
        """Where this host is."""
        return {self._out.host: as_message(self.own)}

    def news(self) -> dict[str, m.PlaceReport]:
        """R2: where this host is, and some of the others."""
        names = list(self.reported)
        count = min(len(names), m.MAX_PLACES - 1)
        first, self._first = self._first, self._first + count
        chosen = [names[(first + number) % len(names)] for number in range(count)]
        return self.own_news() | {name: as_message(self.reported[name]) for name in chosen}

    def handle_reports(self, sender: str, places: Mapping[str, m.PlaceReport], hosts: Collection[str]) -> None:
        """What another host says of itself, and of those of ``hosts``."""
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
                # R2: the host itself has said nothing lately, so the report with more measurements counts
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
        """Begin anew: what was measured before says nothing."""
        self._own = Place.first(self._out.host, self._config.dimensions)
        for table in (self.reported, self._said_s, self._samples):
            table.clear()


def host_told(host: HostFigures) -> m.HostReport:
    """What a host says of itself, as it travels."""
    return m.HostReport(round(host.speed * 1000), host.cores, round(host.load * 1000))


def as_message(place: Place) -> m.PlaceReport:
    """Coordinates as they travel."""
    host = place.host
    coordinates = place.at, place.height_s, place.error, place.count
    return m.PlaceReport(*coordinates, host_told(host), host.memory_bytes, host.bandwidth_bps)


def as_figures(told: m.HostReport, memory_bytes: int = 0, bandwidth_bps: int = 0) -> HostFigures:
    """What has come of a host."""
    return HostFigures(told.speed_milli / 1000, told.cores, told.load_milli / 1000, memory_bytes, bandwidth_bps)


def as_place(told: m.PlaceReport) -> Place:
    """Coordinates that have come."""
    host = as_figures(told.host, told.memory_bytes, told.bandwidth_bps)
    return Place(told.at, told.height_s, told.error, told.count, host)
