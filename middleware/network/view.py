"""What a planner knows of the network: bandwidth and latency of every directed link that was measured.

A link is a ``Link``. A plain pair of hosts stands for the link between them over the network that all share, here
and wherever applications name links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec

from thalweg.middleware.network.place import Place, neighbours

NET = "net"  # the network that all hosts share
Pair = tuple[str, str]  # (from host, to host), which a Link over that network is equal to
_Known = TypeVar("_Known")


class _Ends(NamedTuple):
    source: str
    target: str


class Link(_Ends):
    """The directed link from host ``source`` to host ``target``, over the network ``via``.

    Over the network that all hosts share a link *is* the pair of its hosts: equal to a plain pair, hashed, unpacked,
    ordered and encoded like one. Pairs that applications make, files, messages and records therefore keep their form.
    Over another network its name is the third item; such a link equals no pair, and cannot be unpacked into one.
    """

    __slots__ = ()

    def __new__(cls, source: str, target: str, via: str = NET) -> Link:
        return tuple.__new__(cls, (source, target) if via == NET else (source, target, via))

    @property
    def via(self) -> str:
        """The name of the link's network."""
        return NET if len(self) == 2 else tuple.__getitem__(self, 2)

    @property
    def hosts(self) -> Pair:
        """Its two hosts, whatever the network."""
        return self[:2]

    @property
    def back(self) -> Link:
        """The way back."""
        return Link(self.target, self.source, self.via)

    @property
    def ends(self) -> tuple[Cable, Cable]:
        """The cables that it joins."""
        return cable_of(self.source, self.via), cable_of(self.target, self.via)

    @property
    def goal(self) -> str:
        """For people: ``b``, or ``b over NETWORK``."""
        return self.target if len(self) == 2 else f"{self.target} over {self.via}"

    @property
    def text(self) -> str:
        """For people: ``a → b``, or ``a → b over NETWORK``."""
        return f"{self.source} → {self.goal}"

    @property
    def row(self) -> dict[str, str]:
        """For machines: ``src`` and ``dst``, and ``via`` where not all hosts share the network."""
        return {"src": self.source, "dst": self.target} | ({} if len(self) == 2 else {"via": self.via})

    def __repr__(self) -> str:
        return f"Link({', '.join(map(repr, self))})"


Cable = str | tuple[str, str]
"""A host's end of a network: its name, where that is the network that all share, or its name and the network's."""


def cable_of(host: str, via: str) -> Cable:
    """What plugs ``host`` into the network ``via``."""
    return host if via == NET else (host, via)


def link_of(row: Mapping[str, Any]) -> Link:
    """The link that a row of a log, or of what is told machines, is of: ``src``, ``dst`` and perhaps ``via``."""
    return Link(row["src"], row["dst"], row.get("via") or NET)


def as_link(link: tuple[str, ...]) -> Link:
    """The link that is named: a plain pair stands for the link over the network that all share."""
    return link if type(link) is Link else Link(*link)


def links_between(hosts: Iterable[str], via: str = NET) -> list[Link]:
    """Every directed link between two of ``hosts`` over a network, in their order."""
    names, new = tuple(hosts), tuple.__new__  # as Link makes them, at a third of the time
    if via != NET:
        return [new(Link, (source, target, via)) for source in names for target in names if source != target]
    return [new(Link, (source, target)) for source in names for target in names if source != target]


class LinkEstimate(msgspec.Struct, frozen=True, gc=False):
    """The bandwidth of a directed link in bits per second of emulated time, and how well it is known.

    ``count`` samples with standard deviation ``spread_bps``, the newest taken at ``measured_at_s``.
    """

    rate_bps: float
    count: int = 1
    spread_bps: float = 0.0
    measured_at_s: float = 0.0


class Latency(msgspec.Struct, frozen=True, gc=False):
    """What an empty message takes one way, in seconds of emulated time: half of the shortest round trip lately.

    ``count`` round trips so far, the newest at ``measured_at_s``; halves of the latest have the standard deviation
    ``spread_s``.
    """

    latency_s: float
    count: int = 1
    spread_s: float = 0.0
    measured_at_s: float = 0.0


class LinksNeeded(Exception):
    """Raised inside a planner by a cost model: these links' bandwidth decides, and nobody knows it."""

    what: ClassVar[str] = "bandwidth"

    def __init__(self, links: Iterable[Pair]) -> None:
        self.links = frozenset(Link(*link) for link in links)
        super().__init__(f"{self.what} unknown for {sorted(tuple(link) for link in self.links)}")


class LatenciesNeeded(LinksNeeded):
    """The same of these links' latency."""

    what = "latency"


class PlacesNeeded(LinksNeeded):
    """The same of the places of the hosts at the beginning of these links, which they find by measuring to the ends."""

    what = "coordinates"


class NetworkView:
    """An immutable map from directed link to what is known of it; a host's link to itself is free.

    A round trip says nothing of how it divides, so that a latency which was measured from the other end does as well.
    ``places``: the coordinates of hosts.
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
        self._at: Mapping[Any, LinkEstimate] = self.estimates  # asked for by pairs, which are made faster

    def rate_bps(self, source: str, target: str, via: str = NET) -> float | None:
        """Bandwidth from ``source`` to ``target``, bits per second; infinite on one host, None when unknown."""
        if source == target:
            return math.inf
        estimate = self._at.get((source, target) if via == NET else (source, target, via))
        return None if estimate is None else estimate.rate_bps

    def rates_bps(self, hosts: Sequence[str]) -> list[list[float]]:
        """(hosts, hosts) the bandwidth from one to another, bits per second; infinite on one host, nan when unknown."""
        unknown, known = LinkEstimate(math.nan), self._at
        return [[math.inf if a == b else known.get((a, b), unknown).rate_bps for b in hosts] for a in hosts]

    def latency(self, source: str, target: str, via: str = NET) -> Latency | None:
        """How long an empty message takes, how well that is known and since when; None when it is unknown."""
        forward = self.latencies.get(Link(source, target, via))
        return self.latencies.get(Link(target, source, via)) if forward is None else forward

    def latency_s(self, source: str, target: str, via: str = NET) -> float | None:
        """Seconds that an empty message takes from ``source`` to ``target``; 0 on one host, None when unknown."""
        if source == target:
            return 0.0
        known = self.latency(source, target, via)
        return None if known is None else known.latency_s

    def latencies_s(self, hosts: Sequence[str]) -> list[list[float]]:
        """(hosts, hosts) the seconds from one to another; 0 on one host, nan when unknown."""
        known = [[self.latency_s(a, b) for b in hosts] for a in hosts]
        return [[math.nan if latency_s is None else latency_s for latency_s in row] for row in known]

    def require(self, links: Iterable[Pair]) -> None:
        """Raise LinksNeeded with those of ``links`` that nobody has measured, if there are any."""
        unknown = [link for link in links if self.rate_bps(*link) is None]
        if unknown:
            raise LinksNeeded(unknown)

    def require_latency(self, links: Iterable[Pair]) -> None:
        """Raise LatenciesNeeded with those of ``links`` whose latency nobody has measured, if there are any."""
        unknown = [link for link in links if self.latency_s(*link) is None]
        if unknown:
            raise LatenciesNeeded(unknown)

    def with_estimates(self, more: Mapping[Link, LinkEstimate]) -> NetworkView:
        """Return a view with further estimates, which replace those of the same links."""
        return NetworkView({**self.estimates, **more}, self.latencies, self.places)

    def with_latencies(self, more: Mapping[Link, Latency]) -> Self:
        """The same where these latencies are known as well."""
        other = copy(self)
        other.latencies = {**self.latencies, **_by_link(more)}
        return other

    def require_places(self, hosts: Iterable[str]) -> None:
        """Raise PlacesNeeded for those of ``hosts`` whose coordinates nobody knows, if there are any."""
        names = tuple(hosts)
        unknown = [Link(host, other) for host in names if host not in self.places for other in neighbours(host, names)]
        if unknown:
            raise PlacesNeeded(unknown)

    def with_places(self, more: Mapping[str, Place]) -> Self:
        """The same where these hosts' coordinates are known as well."""
        other = copy(self)
        other.places = {**self.places, **more}
        return other


def _by_link(known: Mapping[Any, _Known]) -> dict[Link, _Known]:
    return {as_link(link): entry for link, entry in known.items()}
