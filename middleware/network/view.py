"""What a planner knows of the network: one estimate for every directed pair of hosts that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

Link = tuple[str, str]  # (from host, to host)


class LinkEstimate(msgspec.Struct, frozen=True, gc=False):
    """The bandwidth of a directed link in bits per second of emulated time, and how well it is known.

    ``count`` samples with standard deviation ``spread_bps``, the newest taken at ``measured_at_s``.
    """

    rate_bps: float
    count: int = 1
    spread_bps: float = 0.0
    measured_at_s: float = 0.0


class LinksNeeded(Exception):
    """Raised inside a planner by a cost model: these links' bandwidth decides, and nobody knows it."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links = frozenset(links)
        super().__init__(f"bandwidth unknown for {sorted(self.links)}")


class NetworkView:
    """An immutable map from directed link to estimate; a host's link to itself is free."""

    def __init__(self, estimates: Mapping[Link, LinkEstimate]) -> None:
        self.estimates = dict(estimates)

    def rate_bps(self, source: str, target: str) -> float | None:
        """Bandwidth from ``source`` to ``target``; infinite on one host, None when unknown."""
        if source == target:
            return float("inf")
        estimate = self.estimates.get((source, target))
        return None if estimate is None else estimate.rate_bps

    def require(self, links: Iterable[Link]) -> None:
        """Raise LinksNeeded with those of ``links`` that nobody has measured, if there are any."""
        unknown = {(a, b) for a, b in links if self.rate_bps(a, b) is None}
        if unknown:
            raise LinksNeeded(unknown)

    def with_estimates(self, more: Mapping[Link, LinkEstimate]) -> NetworkView:
        return NetworkView({**self.estimates, **more})
