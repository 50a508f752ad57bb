"""Loads of a plan: the time for which the plan's work keeps interfaces or links, processors and disks busy.

Every transfer, computation and disk read is work on some resources. The table ``CARRIERS`` says which resources a
transfer keeps busy. The table serves all code that adds up loads: placements of operators (``LoadModel``), trees of
hosts (``shapes.search``) and linear programs (``bound``). A cost is a reduction of loads: the largest (``Period``) or a
norm (``ExpectedPeriod``). If every edge has a network or relays, the price of the bytes is a further cost
(``LinkLoads``).

A host's interface carries one message at a time in either direction (``single``; Ranganathan et al. 1998, section 2,
assumption 2), or one message in each direction (``duplex``). With ``independent`` interfaces every directed link has
its own capacity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import GB
from thalweg.middleware.network.view import Link, Pair
from thalweg.middleware.planning.problem.routes import Over, Route, route_of

Interface = Literal["single", "duplex", "independent"]
Kind = Literal["interface", "out", "in", "link", "processor", "disk"]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


Slot = tuple[Indices | int, Floats]  # (hosts,) a resource for every host, or one for all hosts, and the work


class Carrier(NamedTuple):
    """Kind of resource that a transfer keeps busy: of the sending host, of the receiving host, or of both."""

    kind: Kind
    sender: bool
    receiver: bool


CARRIERS: Mapping[Interface, tuple[Carrier, ...]] = {
    "single": (Carrier("interface", sender=True, receiver=True),),
    "duplex": (Carrier("out", sender=True, receiver=False), Carrier("in", sender=False, receiver=True)),
    "independent": (Carrier("link", sender=True, receiver=False),),  # a link of the sender for each receiver
}


def transfer_s(sizes_bytes: Floats, rates_bps: Floats, startup_s: float) -> Floats:
    """Return the seconds of messages over links, (sizes, …): start-up + size / rate, or inf if the rate is 0.

    ``sizes_bytes``: (sizes,). ``rates_bps``: rates of the links, of any shape.
    """
    seconds = np.full((len(sizes_bytes), *rates_bps.shape), np.inf)
    np.divide(sizes_bytes.reshape(-1, *[1] * rates_bps.ndim) * 8, rates_bps, out=seconds, where=rates_bps > 0)
    seconds += startup_s
    return seconds


class Resource(NamedTuple):
    """Resource of one host, or of a pair of hosts for a link. ``capacity``: work in a second."""

    kind: Kind
    hosts: tuple[str, ...]
    capacity: float = 1.0


class MoveEffects(NamedTuple):
    """Effects on the loads of moving single nodes.

    ``without``: (nodes, resources) the loads without the work of the node. ``places``, ``gains``: (nodes, slots, hosts)
    the resources on which the node's work falls on each host, and the amount. The resources of one node differ, or gain
    nothing. ``inf`` marks a link that cannot be used.
    """

    without: Floats
    places: Indices
    gains: Floats


class LoadModel:
    """Numbered resources of some hosts: first the carriers of transfers, then the processors, then the disks.

    Every host has one processor and one disk. ``cores``: computations that a processor does at once, for all hosts or
    for each host.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        interface: Interface,
        cores: float | Sequence[float] = 1.0,
    ) -> None:
        self.hosts, self.interface = tuple(hosts), interface
        self.carriers = CARRIERS[interface]
        self.of_links = interface == "independent"
        count = len(hosts)
        self.processors = count * count if self.of_links else len(self.carriers) * count
        self.disks = self.processors + count
        self.count = self.disks + count
        self.capacity = np.ones(self.count)
        self.capacity[self.processors : self.disks] = cores
        self._anywhere = np.arange(count)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Resources in the order of their numbers."""
        own = [(host,) for host in self.hosts]
        owners = list(itertools.product(self.hosts, repeat=2)) if self.of_links else own
        kinds: list[tuple[Kind, Sequence[tuple[str, ...]]]] = [(carrier.kind, owners) for carrier in self.carriers]
        numbered = [(kind, hosts) for kind, of in (*kinds, ("processor", own), ("disk", own)) for hosts in of]
        return tuple(
            Resource(kind, hosts, capacity)
            for (kind, hosts), capacity in zip(numbered, self.capacity.tolist(), strict=True)
        )

    def of_transfers(self, sources: Indices, targets: Indices) -> list[Indices]:
        """Return the resources that transfers between these hosts keep busy. Every array has one for each transfer."""
        count = len(self.hosts)
        if self.of_links:
            return [sources * count + targets]
        resources = []
        for number, carrier in enumerate(self.carriers):
            resources += [sources + number * count] * carrier.sender + [targets + number * count] * carrier.receiver
        return resources

    def add_up(
        self, carried: Sequence[Indices], transfers: Floats, where: Indices, compute: Floats, reads: Floats
    ) -> Floats:
        """Return the work on every resource, (resources,), in the unit of the given work.

        ``carried``: the resources of the transfers (``of_transfers``). ``where``: the hosts of the nodes, on which
        computations and disk reads fall.
        """
        places = np.concatenate((*carried, where + self.processors, where + self.disks))
        work = np.concatenate((*[transfers] * len(carried), compute, reads))
        return np.bincount(places, work, self.count).astype(np.float64, copy=False)

    def add_up_many(
        self, carried: Sequence[Indices], transfers: Floats, where: Indices, compute: Floats, reads: Floats
    ) -> Floats:
        """Return the work on every resource for many placements, (rows, resources).

        The arguments are those of ``add_up`` with one row a placement, (rows, …), except ``reads``, which has no rows.
        """
        rows = np.arange(len(where))[:, np.newaxis] * self.count
        read = np.broadcast_to(reads, where.shape)
        places = np.concatenate((*carried, where + self.processors, where + self.disks), axis=1) + rows
        work = np.concatenate((*[transfers] * len(carried), compute, read), axis=1)
        loads = np.bincount(places.ravel(), work.ravel(), len(where) * self.count)
        return loads.reshape(len(where), self.count).astype(np.float64, copy=False)

    def slots(self, arriving: Mapping[int, Floats], leaving: Mapping[int, Floats]) -> list[Slot]:
        """Return the resources on which the transfers of one node fall, with the work, for the node on every host.

        ``arriving``, ``leaving``: (hosts,) the work of the transfers from, and to, a host with a neighbour, by the
        host's number.
        """
        count, anywhere = len(self.hosts), self._anywhere
        if self.of_links:
            into = [(source * count + anywhere, work) for source, work in arriving.items()]
            return [*into, *((anywhere * count + target, work) for target, work in leaving.items())]
        slots: list[Slot] = []
        for number, carrier in enumerate(self.carriers):
            first = number * count
            far: dict[int, Floats] = dict(arriving) if carrier.sender else {}  # work at the far ends
            own: list[Floats] = list(leaving.values()) if carrier.sender else []  # work at the node's host
            if carrier.receiver:
                for target, work in leaving.items():
                    far[target] = far[target] + work if target in far else work
                own += arriving.values()
            slots += [(first + host, work) for host, work in far.items()]
            slots.append((first + anywhere, sum(own[1:], own[0]) if own else np.zeros(count)))
        return slots


class LinkLoads:
    """Bytes of a partition on every link of every network, with the time and the price of these bytes.

    ``networks``: networks with their tariffs. A network that is left out costs nothing. ``links_bps``: rates of links
    in bit/s.
    """

    def __init__(self, networks: Mapping[str, Network]) -> None:
        self.links_bps: dict[Link, float] = {}
        self._per_gb = {via: network.tariff.per_gb for via, network in networks.items()}
        self._bytes: dict[Link, float] = {}
        self._routes: dict[tuple[Pair, Over], Route] = {}

    def links(self, pair: Pair, over: Over) -> Route:
        """Return the links of a network or route between two hosts (``route_of``, cached for speed)."""
        route = self._routes.get((pair, over))
        if route is None:
            route = self._routes[pair, over] = route_of(pair, over)
        return route

    def put(self, pair: Pair, over: Over, size_bytes: float) -> None:
        """Add ``size_bytes`` to every link of a network or route between two hosts. A negative size removes bytes."""
        for link in self.links(pair, over):
            self._bytes[link] = self._bytes.get(link, 0.0) + size_bytes

    def rate_bps(self, pair: Pair, over: Over) -> float:
        """Return the rate of the slowest link of a network or route between two hosts, in bit/s."""
        return min([self.links_bps[link] for link in self.links(pair, over)])

    def time_s(self, links: Iterable[Link], more_bytes: float = 0.0) -> float:
        """Return the seconds of the slowest of these links, with ``more_bytes`` added to every link."""
        slowest_s, known, bps = 0.0, self._bytes, self.links_bps
        for link in links:
            size_bytes = known.get(link, 0.0) + more_bytes
            slowest_s = max(slowest_s, size_bytes * 8 / bps[link] if bps[link] else math.inf)
        return slowest_s

    def price_of(self, links: Iterable[Link], size_bytes: float) -> float:
        """Return the dollars for bytes over each of these links, without the hours of rented links."""
        return plain_sum([self._per_gb.get(link.via, 0.0) for link in links]) * size_bytes / GB

    @property
    def all_s(self) -> float:
        """Seconds of the slowest link for its bytes."""
        return self.time_s(self._bytes)

    @property
    def price(self) -> float:
        """Dollars for the bytes on all links."""
        return plain_sum([self.price_of((link,), size_bytes) for link, size_bytes in self._bytes.items()])
