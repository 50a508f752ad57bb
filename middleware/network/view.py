"""View of the network for a planner: bandwidth and latency of every measured directed link.

A link is a ``Link``. A plain pair of hosts stands for their link over the network that all hosts share, here and
wherever applications name links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec

from thalweg.middleware.network.place import Place, neighbours

NET = "net"  # the network that all hosts share
Pair = tuple[str, str]  # (from host, to host), equal to a Link over ``net``
_Known = TypeVar("_Known")


class _Ends(NamedTuple):
    source: str
    target: str


class Link(_Ends):
    """Directed link from host ``source`` to host ``target``, over the network ``via``.

    Over the network that all hosts share, a link *is* the pair of its hosts. It is equal to a plain pair, and is
    hashed, unpacked, ordered and encoded like one. So pairs in applications, files, messages and records keep their
    form. Over a further network, the network's name is the third item. Such a link equals no pair, and cannot be
    unpacked into a pair.
    """

    __slots__ = ()

    def __new__(cls, source: str, target: str, via: str = NET) -> Link:
        return tuple.__new__(cls, (source, target) if via == NET else (source, target, via))

    @property
    def via(self) -> str:
        """Name of the link's network."""
        return NET if len(self) == 2 else tuple.__getitem__(self, 2)

    @property
    def hosts(self) -> Pair:
        """Pair of the two hosts, without the network."""
        return self[:2]

    @property
    def back(self) -> Link:
        """Link in the opposite direction."""
        return Link(self.target, self.source, self.via)

    @property
    def ends(self) -> tuple[Cable, Cable]:
        """Cables at both ends of the link."""
        return cable_of(self.source, self.via), cable_of(self.target, self.via)

    @property
    def goal(self) -> str:
        """Target as a text for people: ``b``, or ``b over NETWORK``."""
        return self.target if len(self) == 2 else f"{self.target} over {self.via}"

    @property
    def text(self) -> str:
        """Link as a text for people: ``a → b``, or ``a → b over NETWORK``."""
        return f"{self.source} → {self.goal}"

    @property
    def row(self) -> dict[str, str]:
        """Link as fields for programs: ``src`` and ``dst``, and ``via`` unless all hosts share the network."""
        return {"src": self.source, "dst": self.target} | ({} if len(self) == 2 else {"via": self.via})

    def __repr__(self) -> str:
        return f"Link({', '.join(map(repr, self))})"


Cable = str | tuple[str, str]
"""Cable of a host to a network: the host's name for the network that all hosts share, else the names of both."""


def cable_of(host: str, via: str) -> Cable:
    """Return the cable that joins ``host`` to the network ``via``."""
    return host if via == NET else (host, via)


def link_of(row: Mapping[str, Any]) -> Link:
    """Return the link of a row with ``src``, ``dst`` and perhaps ``via``, from a log or other output for programs."""
    return Link(row["src"], row["dst"], row.get("via") or NET)


def as_link(link: tuple[str, ...]) -> Link:
    """Return a link as a ``Link``. A plain pair stands for the link over the network that all hosts share."""
    return link if type(link) is Link else Link(*link)


def links_between(hosts: Iterable[str], via: str = NET) -> list[Link]:
    """Return every directed link between two of ``hosts`` over a network, in the order of the hosts."""
    names, new = tuple(hosts), tuple.__new__  # as Link() does, in a third of the time
    if via != NET:
        return [new(Link, (source, target, via)) for source in names for target in names if source != target]
    return [new(Link, (source, target)) for source in names for target in names if source != target]


class LinkEstimate(msgspec.Struct, frozen=True, gc=False):
    """Estimate of a directed link's bandwidth, in bits per second of emulated time.

    ``count``: the number of samples. ``spread_bps``: their standard deviation. ``measured_at_s``: the time of the
    newest.
    """

    rate_bps: float
    count: int = 1
    spread_bps: float = 0.0
    measured_at_s: float = 0.0


class Latency(msgspec.Struct, frozen=True, gc=False):
    """Time of an empty message in one direction, in seconds of emulated time: half of the shortest recent round trip.

    ``count``: the number of round trips so far. ``spread_s``: the standard deviation of half of the recent ones.
    ``measured_at_s``: the time of the newest.
    """

    latency_s: float
    count: int = 1
    spread_s: float = 0.0
    measured_at_s: float = 0.0


class LinksNeeded(Exception):
    """Exception of a cost model within a planner: the plan depends on unknown bandwidths of these links.

    ``at_once``: the links share no interface, so all of them are measured at the same time.
    """

    what: ClassVar[str] = "bandwidth"

    def __init__(self, links: Iterable[Pair], *, at_once: bool = False) -> None:
        self.links = frozenset(Link(*link) for link in links)
        self.at_once = at_once
        super().__init__(f"{self.what} unknown for {sorted(tuple(link) for link in self.links)}")


class LatenciesNeeded(LinksNeeded):
    """Exception of a cost model within a planner: the plan depends on unknown latencies of these links."""

    what = "latency"


class PlacesNeeded(LinksNeeded):
    """Exception of a cost model within a planner: the coordinates of these links' sources are unknown.

    A source finds its coordinates by measurements to the targets.
    """

    what = "coordinates"


class NetworkView:
    """Immutable map from directed links to their estimates. The link of a host to itself is free.

    A latency holds for both directions, because a round trip does not show its parts. ``places``: the coordinates of
    hosts.
    """

    def __init__(
        self,
        estimates: Mapping[Link, LinkEstimate] | Mapping[Pair, LinkEstimate],
        latencies: Mapping[Link, Latency] | Mapping[Pair, Latency] = {},
        places: Mapping[str, Place] = {},
    ) -> None:
        self.places = dict(places)
        self.estimates: dict[Link, LinkEstimate] = _by_link(estimates)
        self.latencies: dict[Link, Latency] = _by_link(latencies)
        self._at: Mapping[Any, LinkEstimate] = self.estimates  # queried with pairs, which are made faster than links

    def rate_bps(self, source: str, target: str, via: str = NET) -> float | None:
        """Return the bandwidth of a link in bits per second. It is infinite within a host, and None if unknown."""
        if source == target:
            return math.inf
        estimate = self._at.get((source, target) if via == NET else (source, target, via))
        return None if estimate is None else estimate.rate_bps

    def rates_bps(self, hosts: Sequence[str]) -> list[list[float]]:
        """Return the bandwidths between hosts in bit/s: (hosts, hosts), infinite within a host, nan if unknown."""
        unknown, known = LinkEstimate(math.nan), self._at
        return [[math.inf if a == b else known.get((a, b), unknown).rate_bps for b in hosts] for a in hosts]

    def latency(self, source: str, target: str, via: str = NET) -> Latency | None:
        """Return the latency of a link, measured from either end, or None if unknown."""
        forward = self.latencies.get(Link(source, target, via))
        return self.latencies.get(Link(target, source, via)) if forward is None else forward

    def latency_s(self, source: str, target: str, via: str = NET) -> float | None:
        """Return the seconds of an empty message from ``source`` to ``target``: 0 within a host, None if unknown."""
        if source == target:
            return 0.0
        known = self.latency(source, target, via)
        return None if known is None else known.latency_s

    def latencies_s(self, hosts: Sequence[str]) -> list[list[float]]:
        """Return the latencies between hosts in seconds: (hosts, hosts), 0 within a host, nan if unknown."""
        known = [[self.latency_s(a, b) for b in hosts] for a in hosts]
        return [[math.nan if latency_s is None else latency_s for latency_s in row] for row in known]

    def require(self, links: Iterable[Pair]) -> None:
        """Raise LinksNeeded for the links without a measured bandwidth, if there are such links."""
        unknown = [link for link in links if self.rate_bps(*link) is None]
        if unknown:
            raise LinksNeeded(unknown)

    def require_latency(self, links: Iterable[Pair]) -> None:
        """Raise LatenciesNeeded for the links without a measured latency, if there are such links."""
        unknown = [link for link in links if self.latency_s(*link) is None]
        if unknown:
            raise LatenciesNeeded(unknown)

    def with_estimates(self, more: Mapping[Link, LinkEstimate]) -> NetworkView:
        """Return a view with further estimates, which replace estimates of the same links."""
        return NetworkView({**self.estimates, **more}, self.latencies, self.places)

    def with_latencies(self, more: Mapping[Link, Latency]) -> Self:
        """Return a view with further latencies, which replace latencies of the same links."""
        other = copy(self)
        other.latencies = {**self.latencies, **_by_link(more)}
        return other

    def require_places(self, hosts: Iterable[str]) -> None:
        """Raise PlacesNeeded for the hosts without known coordinates, if there are such hosts."""
        names = tuple(hosts)
        unknown = [Link(host, other) for host in names if host not in self.places for other in neighbours(host, names)]
        if unknown:
            raise PlacesNeeded(unknown)

    def with_places(self, more: Mapping[str, Place]) -> Self:
        """Return a view with the coordinates of further hosts."""
        other = copy(self)
        other.places = {**self.places, **more}
        return other


def _by_link(known: Mapping[Any, _Known]) -> dict[Link, _Known]:
    return {as_link(link): entry for link, entry in known.items()}
