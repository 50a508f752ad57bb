"""What a plan's work keeps busy: interfaces or links, processors and disks, and for how long.

Each transfer, computation and read is work on some resources. Which resources a transfer keeps busy is said once, in
``CARRIERS``, for all who add up loads: placements of operators (``LoadModel``), trees of hosts (``shapes.search``)
and linear programs (``bound``). A cost is a reduction of loads: the largest (``Period``), a norm
(``ExpectedPeriod``), and where edges have a network or relays each, what is paid for the bytes as well
(``LinkLoads``).

A host's interface carries one message at a time in either direction (``single``; Ranganathan et al. 1998, section 2,
assumption 2), one in each (``duplex``), or every directed link has its own capacity (``independent``).
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


Slot = tuple[Indices | int, Floats]  # (hosts,) a resource for each, or one for all, and the work on it


class Carrier(NamedTuple):
    """A kind of resource that transfers keep busy: that of the sending host, of the receiving one, or of both."""

    kind: Kind
    sender: bool
    receiver: bool


CARRIERS: Mapping[Interface, tuple[Carrier, ...]] = {
    "single": (Carrier("interface", sender=True, receiver=True),),
    "duplex": (Carrier("out", sender=True, receiver=False), Carrier("in", sender=False, receiver=True)),
    "independent": (Carrier("link", sender=True, receiver=False),),  # one of the sender's, for each receiver
}


def transfer_s(sizes_bytes: Floats, rates_bps: Floats, startup_s: float) -> Floats:
    """(sizes, …) the seconds that messages take over links of these rates: start-up + size / rate, inf where that is 0.

    ``sizes_bytes``: (sizes,); ``rates_bps``: of any shape.
    """
    seconds = np.full((len(sizes_bytes), *rates_bps.shape), np.inf)
    np.divide(sizes_bytes.reshape(-1, *[1] * rates_bps.ndim) * 8, rates_bps, out=seconds, where=rates_bps > 0)
    seconds += startup_s
    return seconds


class Resource(NamedTuple):
    """``hosts``: whose it is, or between which two; ``capacity``: work in a second."""

    kind: Kind
    hosts: tuple[str, ...]
    capacity: float = 1.0


class MoveEffects(NamedTuple):
    """What moving single nodes does to loads.

    ``without``: (nodes, resources) the loads with the node's work taken off. ``places``, ``gains``: (nodes, slots,
    hosts) on which resources the node's work falls on each host, and how much; the resources of a node differ, or gain
    nothing. ``inf`` marks a link that cannot be used.
    """

    without: Floats
    places: Indices
    gains: Floats


class LoadModel:
    """The resources of some hosts, numbered: first what carries transfers, then a processor a host, then a disk a host.

    ``cores``: computations that a processor does at once, of all hosts or of each.
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
        """All of them, in the order of their numbers."""
        own = [(host,) for host in self.hosts]
        owners = list(itertools.product(self.hosts, repeat=2)) if self.of_links else own
        kinds: list[tuple[Kind, Sequence[tuple[str, ...]]]] = [(carrier.kind, owners) for carrier in self.carriers]
        numbered = [(kind, hosts) for kind, of in (*kinds, ("processor", own), ("disk", own)) for hosts in of]
        return tuple(
            Resource(kind, hosts, capacity)
            for (kind, hosts), capacity in zip(numbered, self.capacity.tolist(), strict=True)
        )

    def of_transfers(self, sources: Indices, targets: Indices) -> list[Indices]:
        """The resources that transfers between these hosts keep busy; every transfer has one in each of the arrays."""
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
        """(resources,) the work on each, in the unit of the work: of transfers on what they are ``carried`` by
        (``of_transfers``), and of nodes' computations and reads ``where`` they are.
        """
        places = np.concatenate((*carried, where + self.processors, where + self.disks))
        work = np.concatenate((*[transfers] * len(carried), compute, reads))
        return np.bincount(places, work, self.count).astype(np.float64, copy=False)

    def add_up_many(
        self, carried: Sequence[Indices], transfers: Floats, where: Indices, compute: Floats, reads: Floats
    ) -> Floats:
        """(rows, resources) the same for many placements: (rows, …) of what ``add_up`` is given, but for reads."""
        rows = np.arange(len(where))[:, np.newaxis] * self.count
        read = np.broadcast_to(reads, where.shape)
        places = np.concatenate((*carried, where + self.processors, where + self.disks), axis=1) + rows
        work = np.concatenate((*[transfers] * len(carried), compute, read), axis=1)
        loads = np.bincount(places.ravel(), work.ravel(), len(where) * self.count)
        return loads.reshape(len(where), self.count).astype(np.float64, copy=False)

    def slots(self, arriving: Mapping[int, Floats], leaving: Mapping[int, Floats]) -> list[Slot]:
        """On which resources the transfers of one node fall, and how much, for the node on each host.

        ``arriving``, ``leaving``: (hosts,) the work of all transfers from, and to, one other host.
        """
        count, anywhere = len(self.hosts), self._anywhere
        if self.of_links:
            into = [(source * count + anywhere, work) for source, work in arriving.items()]
            return [*into, *((anywhere * count + target, work) for target, work in leaving.items())]
        slots: list[Slot] = []
        for number, carrier in enumerate(self.carriers):
            first = number * count
            far: dict[int, Floats] = dict(arriving) if carrier.sender else {}  # at the other ends
            own: list[Floats] = list(leaving.values()) if carrier.sender else []  # where the node is
            if carrier.receiver:
                for target, work in leaving.items():
                    far[target] = far[target] + work if target in far else work
                own += arriving.values()
            slots += [(first + host, work) for host, work in far.items()]
            slots.append((first + anywhere, sum(own[1:], own[0]) if own else np.zeros(count)))
        return slots


class LinkLoads:
    """The bytes of a partition that go over each link, of whatever network: for how long, and at what price.

    ``networks``: what these cost; one that is not among them costs nothing. ``links_bps``: what links carry, bit/s.
    """

    def __init__(self, networks: Mapping[str, Network]) -> None:
        self.links_bps: dict[Link, float] = {}
        self._per_gb = {via: network.tariff.per_gb for via, network in networks.items()}
        self._bytes: dict[Link, float] = {}
        self._routes: dict[tuple[Pair, Over], Route] = {}

    def links(self, pair: Pair, over: Over) -> Route:
        """As ``route_of``, which is asked for often."""
        route = self._routes.get((pair, over))
        if route is None:
            route = self._routes[pair, over] = route_of(pair, over)
        return route

    def put(self, pair: Pair, over: Over, size_bytes: float) -> None:
        """So many more, or fewer."""
        for link in self.links(pair, over):
            self._bytes[link] = self._bytes.get(link, 0.0) + size_bytes

    def rate_bps(self, pair: Pair, over: Over) -> float:
        """What the slowest link carries."""
        return min([self.links_bps[link] for link in self.links(pair, over)])

    def time_s(self, links: Iterable[Link], more_bytes: float = 0.0) -> float:
        """How long the slowest of these links takes, with so many bytes more on each."""
        slowest_s, known, bps = 0.0, self._bytes, self.links_bps
        for link in links:
            size_bytes = known.get(link, 0.0) + more_bytes
            slowest_s = max(slowest_s, size_bytes * 8 / bps[link] if bps[link] else math.inf)
        return slowest_s

    def price_of(self, links: Iterable[Link], size_bytes: float) -> float:
        """Dollars for so many bytes over each of these links; the hours of those that are rented are paid anyway."""
        return plain_sum([self._per_gb.get(link.via, 0.0) for link in links]) * size_bytes / GB

    @property
    def all_s(self) -> float:
        """How long the slowest link of all takes."""
        return self.time_s(self._bytes)

    @property
    def price(self) -> float:
        """Dollars for all bytes."""
        return plain_sum([self.price_of((link,), size_bytes) for link, size_bytes in self._bytes.items()])
