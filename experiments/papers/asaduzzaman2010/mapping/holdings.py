"""Resources of a host, and the holdings of tasks with their leases.

- R1: The holdings of a key are given back once: when the key is released, or when its lease ends.
- R2: A visit that already holds its share does not get the share again. Its lease is prolonged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import DEDICATED, PUBLIC, Network
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host
from thalweg.middleware.arithmetic import plain_sum

Key = tuple[int, int]  # task and attempt
SLACK = 1e-9  # tolerance for rounding, as a share of the amount


class Held(msgspec.Struct):
    """Holdings of a key, by visit: capacity, and bits per second over a network to a host. ``until_s``: end of the
    lease.
    """

    until_s: float
    context: Any
    capacity: dict[int, float] = {}
    rates: dict[tuple[int, Network, Host], float] = {}


class Resources:
    """Capacity of a host, its direction of dedicated links, and its uplink, with the holdings."""

    def __init__(self, capacity: float, links: dict[Host, float], uplink_bps: float) -> None:
        self.capacity = capacity
        self.used = 0.0
        self.free_bps = dict(links)
        self.uplink_bps = uplink_bps
        self.held: dict[Key, Held] = {}

    @property
    def load(self) -> float:
        """Load factor of the host."""
        return self.used / self.capacity if self.capacity else 1.0

    def room(self) -> float:
        """Return the free capacity."""
        return self.capacity * (1 + SLACK) - self.used

    def room_bps(self, via: Network, to: Host) -> float:
        return self.uplink_bps if via == PUBLIC else self.free_bps.get(to, 0.0)

    def take(
        self,
        key: Key,
        visit: int,
        need: float,
        ways: Iterable[tuple[Network, Host, float]],
        until_s: float,
        context: Any,
    ) -> bool:
        """Hold the needs of a visit. If there is no room, return False and hold nothing for the visit."""
        held = self.held.get(key)
        if held is not None and visit in held.capacity:  # R2: the visit holds its share already: prolong the lease
            held.until_s = until_s
            return True
        ways = [way for way in ways if way[2]]
        if need > self.room():
            return False
        if any(rate_bps * (1 - SLACK) > self.room_bps(via, to) for via, to, rate_bps in ways):
            return False
        if held is None:
            held = self.held[key] = Held(until_s, context)
        held.until_s = until_s
        held.capacity[visit] = need
        self.used += need
        for via, to, rate_bps in ways:
            self.hold(key, visit, via, to, rate_bps)
        return True

    def hold(self, key: Key, visit: int, via: Network, to: Host, rate_bps: float) -> None:
        """Hold more over a network to a host, with or without room, and without a lease if the key held nothing."""
        held = self.held.setdefault(key, Held(math.inf, None))
        held.rates[visit, via, to] = held.rates.get((visit, via, to), 0.0) + rate_bps
        self._give(via, to, -rate_bps)

    def drop(self, key: Key, visit: int, via: Network, to: Host) -> None:
        """Give back the holding of a visit over a network to a host."""
        if (held := self.held.get(key)) is not None:
            self._give(via, to, held.rates.pop((visit, via, to), 0.0))
            if not held.rates and not held.capacity:
                del self.held[key]

    def release(self, key: Key) -> None:
        """Give back all holdings of a key."""
        held = self.held.pop(key, None)
        if held is None:
            return  # R1: the key holds nothing, or was released before
        self.used -= plain_sum(held.capacity.values())
        if not self.held:
            self.used = 0.0  # removes the error of rounding
        for (_, via, to), rate_bps in held.rates.items():
            self._give(via, to, rate_bps)

    def expired(self, now: float) -> Iterator[Key]:
        """Return the keys whose leases have ended."""
        return iter([key for key, held in self.held.items() if held.until_s <= now])

    def cut(self, to: Host) -> list[Key]:
        """Remove a dedicated link. Return the keys that held a part of the link."""
        self.free_bps.pop(to, None)
        return [key for key, held in self.held.items() if any(at[1:] == (DEDICATED, to) for at in held.rates)]

    def _give(self, via: Network, to: Host, rate_bps: float) -> None:
        if via == PUBLIC:
            self.uplink_bps += rate_bps
        elif to in self.free_bps:
            self.free_bps[to] += rate_bps
