"""Measurements that a client requests of its hosts before and between runs: bandwidth, latencies, coordinates."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.errors import HostLostError, UsageError, nearest, shown, words
from thalweg.middleware.network.at_once import AtOnce, late_from_s
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.place import Place, neighbours
from thalweg.middleware.network.view import NET, Latency, Link, LinkEstimate, Pair
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

PROBE_S = 10.0  # wall-clock seconds without a result before missing probes are requested again
PROBE_TRIES = 3
QUANTITIES: Mapping[type[Any], m.Quantity] = {LinkEstimate: "bandwidth", Latency: "latency", Place: "coordinates"}

Measured = TypeVar("Measured", LinkEstimate, Latency, Place)


class MeasurementRequests:
    """Results of measurements by hosts, and the calls that wait for results.

    ``tell``: takes events for the client's own core, which is the host ``me``.
    """

    def __init__(self, roster: HostRegistry, tell: Callable[[e.Event], None], me: m.Peer) -> None:
        self._registry, self._tell, self._me = roster, tell, me
        self._reports: dict[type[Any], dict[Link, Any]] = {LinkEstimate: {}, Latency: {}, Place: {}}
        self.figures: dict[str, HostFigures] = {}

    def take(self, report: e.Report) -> None:
        """Record the measurement of a host, and wake waiting calls. Called in the I/O thread."""
        source, target, roster = report.source, report.target, self._registry
        if not {source, target} <= roster.peers.keys():
            return  # hosts of no request
        with roster.news:
            self._reports[type(report.estimate)][Link(source, target, report.via)] = report.estimate
            if report.host is not None:
                self.figures[target] = report.host
            roster.news.notify_all()

    def probe(self, links: Iterable[Pair]) -> dict[Link, LinkEstimate]:
        """Measure the bandwidth of links, as ``Client.probe`` does.

        Links ``AtOnce`` whose answers are late are left out.
        """
        return self.measure(links, LinkEstimate)

    def latencies(self, links: Iterable[Pair]) -> dict[Link, Latency]:
        """Measure the latencies of links, as ``Client.latencies`` does."""
        return self.measure(links, Latency)

    def coordinates(self, hosts: Iterable[str] | None = None) -> dict[str, Place]:
        """Return the coordinates of hosts, as ``Client.coordinates`` does."""
        names = tuple(self._registry.hosts if hosts is None else words(hosts, "hosts are names"))
        return self.find([Link(host, other) for host in names for other in neighbours(host, self._registry.hosts)])

    def find(self, links: Iterable[Pair]) -> dict[str, Place]:
        """Have the first host of each link find its coordinates, by measurements to the second hosts."""
        return {link.source: place for link, place in self.measure(links, Place).items()}

    def measure(self, links: Iterable[Pair], kind: type[Measured]) -> dict[Link, Measured]:
        """Have hosts measure a quantity of links, and return the results. Raises the errors of ``Client.probe``."""
        reports: dict[Link, Measured] = self._reports[kind]
        at_once = isinstance(links, AtOnce)
        news, asked = self._registry.news, self._checked(links, kind)
        wanted, both = asked, asked | {Link(link.target, link.source, link.via) for link in asked}
        if kind is Latency:  # a latency holds for both directions
            asked = wanted = {link for link in asked if link.source < link.target or Link(*link[::-1]) not in asked}
        elif kind is Place:
            both = wanted = {Link(link.source, link.source) for link in asked}
        with news:
            for link in wanted if kind is LinkEstimate else both:
                reports.pop(link, None)
            for _ in range(PROBE_TRIES):
                if not self._in_vain(wanted):
                    still = {link for link in asked if not {link, Link(link.source, link.source)} & reports.keys()}
                    self._request_probes(still, "bandwidths" if at_once else QUANTITIES[kind])
                if self._wait(wanted, reports.keys(), at_once=at_once):
                    self._registry.check_open()
                    self._check_there(wanted)
                    return {link: reports[link] for link in both if link in reports}
            raise _unanswered(min(wanted - reports.keys()), kind)

    def _wait(self, wanted: set[Link], reported: Collection[Link], *, at_once: bool) -> bool:
        """Wait for the results of links. Return False if none has arrived for ``PROBE_S`` seconds.

        ``reported``: links with a result, which grows meanwhile. ``at_once``: results that are late are not waited for.
        """
        begun_s, answered_s = time.monotonic(), list[float]()
        while not self._in_vain(wanted):
            known, took_s = len(reported), time.monotonic() - begun_s
            answered = sum(link in reported for link in wanted)
            answered_s += [took_s] * (answered - len(answered_s))
            late_s = late_from_s(answered_s, len(wanted)) if at_once else math.inf
            if answered == len(wanted) or took_s >= late_s:
                return True
            left_s = PROBE_S if late_s == math.inf else late_s - took_s
            more = functools.partial(self._has_more, wanted, reported, known)
            if not self._registry.news.wait_for(more, left_s) and late_s == math.inf:
                return False
        return True

    def _has_more(self, wanted: set[Link], reported: Collection[Link], known: int) -> bool:
        """Return whether there are more than ``known`` results, or no further results are to be expected."""
        return self._in_vain(wanted) or len(reported) > known

    def _checked(self, links: Iterable[Pair], kind: type[Measured]) -> set[Link]:
        """Return the links as a set.

        Raise UsageError for a wrong link, an unknown host or a network without the host.
        """
        peers = self._registry.peers
        pairs = [words(link, "a link is a pair of hosts") for link in links]
        if odd := next((pair for pair in pairs if not 2 <= len(pair) <= (3 if kind is LinkEstimate else 2)), None):
            raise UsageError(f"a link is a pair of hosts, not {shown(odd)}")
        asked = {Link(*pair) for pair in pairs if pair[0] != pair[1]}
        if unknown := sorted({host for link in asked for host in link.hosts} - self._registry.known):
            raise UsageError(f"there is no host {unknown[0]!r}; {nearest(unknown[0], peers)}")
        for host, via in [(host, link.via) for link in asked for host in link.hosts if host in peers]:
            if via not in (ends := peers[host].ends):
                raise UsageError(f"host {host!r} is not joined to a network {via!r}; {nearest(via, ends)}")
        return asked

    def _in_vain(self, wanted: set[Link]) -> bool:
        """Return whether the client is closed, or a host of these links is gone."""
        gone = self._registry.gone
        return bool(self._registry.closing) or any(host in gone for link in wanted for host in link.hosts)

    def _check_there(self, wanted: set[Link]) -> None:
        """Raise HostLostError if a host of these links is gone."""
        gone = self._registry.gone
        for host in sorted({host for link in wanted for host in link.hosts} & gone.keys()):
            raise HostLostError(f"no link of host {host!r} can be measured: it {gone[host]}", host=host)

    def _request_probes(self, links: set[Link], quantity: m.Quantity) -> None:
        peers = self._registry.peers
        by_source: dict[tuple[str, str], list[m.Peer]] = {}
        for link in sorted(links):
            (a, b), via = link.hosts, link.via
            # an echo measures the opposite direction
            alone = quantity in {"bandwidths", "coordinates"}
            if alone or peers[a] not in by_source.get((b, via), ()):
                by_source.setdefault((a, via), []).append(peers[b])
        for (source, via), targets in by_source.items():
            fields = tuple(targets), self._me
            self._tell(e.ProbesRequested(BEFORE_RUNS, peers[source], *fields, quantity, via))


def _unanswered(link: Link, kind: type[Measured]) -> HostLostError:
    """Return the error for a link whose measurement has not arrived."""
    source, target = link.hosts
    if kind is Place:
        return HostLostError(f"host {source!r} did not find its coordinates; is it still there?")
    where = f"from {source!r} to {target!r}" + ("" if link.via == NET else f" over {link.via!r}")
    return HostLostError(f"the link {where} could not be measured; is {source!r} still there?")
