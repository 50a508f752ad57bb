"""Tasks to map, and platforms of hosts that dedicated links and the public network join.

A task is a path. The source's data goes through components, each with a required *service*, to the sink. *Edge* ``i``
leads to component ``i``, counted from 0, and the last edge leads to the sink. Hosts and services are numbers. A
dedicated link has a rate in each direction, of which the sending host gives parts away. On the public network a host
gives away only the uplink.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import msgspec

from thalweg.middleware.errors import UsageError

Host = int
HOST_LIMIT = 1_000_000  # a map has a bit for each visited host
SINK = -1  # in a directory, the service of every host on the public network


class MappingTask(msgspec.Struct, frozen=True):
    """Specification of a task.

    ``services``, ``needs``: of every component, the service and the required host capacity. ``rates_bps``: of every
    edge, one more than components. ``budget``: what a component may pay for a byte on the way to the next.
    ``forwarding``: the price of a host for passing on a byte without processing.
    """

    number: int
    source: Host
    sink: Host
    services: tuple[int, ...]
    needs: tuple[float, ...]
    rates_bps: tuple[float, ...]
    budget: float = 2.0
    forwarding: float = 1.0

    @property
    def most_empty(self) -> int:
        """Number of hosts on an edge that only pass data on, at most (``max_null``)."""
        return int(min(HOST_LIMIT, self.budget / self.forwarding + 1e-9))

    def check(self) -> MappingTask:
        """Return self. Raise UsageError for an invalid task."""
        label = f"task {self.number}"
        if self.source == self.sink:
            raise UsageError(f"{label} has its source and its sink on host {self.source}; give it two hosts")
        if not self.services or len(self.needs) != len(self.services) or len(self.rates_bps) != len(self.services) + 1:
            raise UsageError(
                f"{label} needs a component or more, a need for each component, and one rate more than needs"
            )
        for name, values in (("need", self.needs), ("rate", self.rates_bps)):
            if bad := [value for value in values if not (math.isfinite(value) and value > 0)]:
                raise UsageError(f"{label} has a {name} of {bad[0]:g}; it must be above 0 and finite")
        if not (math.isfinite(self.forwarding) and self.forwarding > 0 and math.isfinite(self.budget)):
            raise UsageError(f"{label} has budget {self.budget:g}, forwarding {self.forwarding:g}; give finite prices")
        if self.budget != 0 and self.budget < self.forwarding:
            raise UsageError(
                f"the budget of {label}, {self.budget:g} a byte, is below one hop's, {self.forwarding:g};"
                f" give at least that, or 0 for no hosts in between"
            )
        return self


class Dedicated(msgspec.Struct, frozen=True):
    """Dedicated link between two hosts. ``cost``: of its use by an edge, for costs that are sums over links."""

    one: Host
    other: Host
    rate_bps: float
    delay_s: float = 0.0
    cost: float = 1.0


class Server(msgspec.Struct, frozen=True):
    """Host with capacity, services, and rates on the public network (0: not on the public network)."""

    capacity: float
    services: frozenset[int]
    uplink_bps: float = 0.0
    downlink_bps: float = 0.0


class Platform(msgspec.Struct, frozen=True):
    """Hosts by number, and dedicated links. ``public_s``: delays over the public network, by the two hosts' numbers,
    the smaller first, and 0 by default.
    """

    servers: tuple[Server, ...]
    links: tuple[Dedicated, ...] = ()
    public_s: Mapping[tuple[Host, Host], float] = {}

    def check(self, *tasks: MappingTask) -> Platform:
        """Return self. Raise UsageError for an invalid platform, and for tasks that name unknown hosts or services."""
        if len(self.servers) > HOST_LIMIT:
            raise UsageError(f"a platform has {len(self.servers)} hosts; give at most {HOST_LIMIT}")
        for number, server in enumerate(self.servers):
            if not all(
                math.isfinite(figure) and figure >= 0
                for figure in msgspec.structs.astuple(server)
                if figure.__class__ is float
            ):
                raise UsageError(f"host {number} has a capacity, an uplink or a downlink below 0 or without end")
        known: set[tuple[Host, Host]] = set()
        for link in self.links:
            pair, name = ends(link.one, link.other), f"the dedicated link {link.one} - {link.other}"
            if link.one == link.other or not (pair[0] >= 0 and pair[1] < len(self.servers)):
                raise UsageError(f"{name} does not join two hosts of 0 to {len(self.servers) - 1}")
            if not (math.isfinite(link.rate_bps) and link.rate_bps > 0):
                raise UsageError(f"{name} has the rate {link.rate_bps:g}; say how many bits per second it carries")
            if pair in known:
                raise UsageError(f"{name} is there twice; add up its rates")
            known.add(pair)
        available = frozenset(itertools.chain.from_iterable(server.services for server in self.servers))
        for task in tasks:
            task.check()
            if lost := {task.source, task.sink} - {*range(len(self.servers))}:
                raise UsageError(f"task {task.number} names host {min(lost)}; there are 0 to {len(self.servers) - 1}")
            if unknown := [service for service in task.services if service not in available]:
                raise UsageError(f"task {task.number} needs service {unknown[0]}, which no host has")
        return self


def ends(one: Host, other: Host) -> tuple[Host, Host]:
    """Return a pair of hosts, the smaller first."""
    return (one, other) if one < other else (other, one)
