"""The supervisor's side of a testbed with links: its hosts, wherever they come from, and their links' shapes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import NamedTuple

from thalweg.emulation.kernel import htb, netlink
from thalweg.emulation.links.shape import LinkShape, floored
from thalweg.middleware.network.view import NET, Cable, Link, cable_of

CLONE_NEWNET = 0x4000_0000
BANDED_HOSTS = 100
"""With more hosts, links have no bands. For each class that is made the kernel searches one list, which has an entry
for every class of the machine (flow_indr_dev_setup_offload): three times the classes take nine times as long."""

# linux/ethtool.h, linux/sockios.h
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare() -> None:
    """Move this thread into a network namespace that is made by it."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare")


def enter(namespace_fd: int) -> None:
    """Move this thread into a network namespace."""
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "setns")


class Port(NamedTuple):
    """The other end of a host's cable: all that the host receives leaves through this interface.

    ``netlink``: a socket of the namespace that the interface (an index) is in.
    """

    interface: int
    netlink: netlink.NetlinkSocket


class HostSpace(NamedTuple):
    """A host's end of a network: its namespace, the interface with its links, and a netlink socket that stays there.

    ``number`` counts hosts from 1; ``interface`` is that interface's index; ``port`` is None where the other end of its
    cable is out of reach, so that what it receives in all cannot be limited. ``via``: the network.
    """

    name: str
    number: int
    ip: str
    mac: str
    namespace_fd: int
    netlink: netlink.NetlinkSocket
    interface: int
    port: Port | None = None
    via: str = NET


class LinkState:
    """What a directed link is set to, and the bits that it would have carried so far at the rates asked.

    ``base``: its own shape, the last it was given but by a replay. ``had_netem``: it needed netem once, and keeps it,
    so that a change to no delay loses nothing.
    """

    __slots__ = ("_asked_bits", "_since_s", "base", "had_netem", "minor", "shape", "source", "target")

    def __init__(self, source: HostSpace, target: HostSpace, shape: LinkShape, now_s: float) -> None:
        self.source, self.target, self.minor = source, target, target.number
        self.base = self.shape = shape
        self.had_netem = shape.needs_netem
        self._asked_bits, self._since_s = 0.0, now_s

    def set(self, shape: LinkShape, began_s: float, now_s: float) -> None:
        """The link has been changed at some moment between the two; what is asked counts as the more of both."""
        at_s = began_s if passing_bps(shape) > passing_bps(self.shape) else now_s
        self._asked_bits = self.asked_bits(at_s)
        self._since_s, self.shape = at_s, shape
        self.had_netem = self.had_netem or shape.needs_netem

    def leaf(self, shape: LinkShape) -> htb.Leaf:
        """The kind of queue that the link has, or would have if it were changed to ``shape``."""
        return htb.leaf_kind(shape, had_netem=self.had_netem)

    def asked_bits(self, now_s: float) -> float:
        return self._asked_bits + passing_bps(self.shape) * (now_s - self._since_s)


def passing_bps(shape: LinkShape) -> float:
    """The rate that a link of this shape is set to; 0 where nothing passes."""
    return shape.set_bps if shape.passes else 0.0


class World(ABC):
    """Hosts and links. Every method leaves the thread in the supervisor's own namespace."""

    def __init__(self, layer: int) -> None:
        """``layer``: what rates count, 2 or 3. Hosts are added by whoever makes them (the subclasses)."""
        self.layer = layer
        self.links: dict[Link, LinkState] = {}
        self.hosts: dict[str, HostSpace] = {}
        """Their ends of the network that all share."""
        self.ends: dict[Cable, HostSpace] = {}
        """Their ends of all networks."""
        self.limits: dict[Cable, float] = {}
        """Rates of whole interfaces, of those that have one: of all that a host sends there, and of all it receives."""
        self.gone: set[Cable] = set()
        """Ends of hosts that have ended by themselves, as containers may."""
        self._rooted: set[Cable] = set()
        self._wanted: dict[Cable, dict[Link, int]] = {}  # the segments that a cable's links let pass at once
        self._segments: dict[Cable, int] = {}  # what the interfaces are set to
        self._unsure: set[Link] = set()  # the kernel refused something of their batch
        self._ported: set[Cable] = set()
        self._own_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own = netlink.NetlinkSocket()

    @staticmethod
    @abstractmethod
    def lead(host: HostSpace, other: HostSpace) -> Iterator[bytes]:
        """The way to another host where not all are joined; of whoever makes them."""

    unnamed = ""
    """Why hosts do not know each other by name; empty where they do."""

    @property
    def bands(self) -> tuple[int, ...]:
        """Of each link: what is added to its number, bulk's first."""
        return (htb.BULK, htb.CONTROL) if len(self.hosts) <= BANDED_HOSTS else (0,)

    def at_home(self, name: str) -> None:  # noqa: B027  (most hosts are the machine they are on)
        """What is started next is on host ``name``, and is to see its hostname."""

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Sockets opened and processes started here belong to host ``name``."""
        enter(self.hosts[name].namespace_fd)
        try:
            yield
        finally:
            enter(self._own_fd)

    @cached_property
    def netem_works(self) -> bool:
        """Whether the kernel has netem."""
        return self._accepts([htb.netem_alone(1)])

    @cached_property
    def duplicates_anywhere(self) -> bool:
        """Whether a link may duplicate whatever the host's other links have (see ``crowded``)."""
        return self._accepts(htb.two_netems(1))

    def _accepts(self, messages: Iterable[bytes]) -> bool:
        """Whether the kernel does that, in a namespace that nothing uses."""
        unshare()
        try:
            with closing(netlink.NetlinkSocket()) as there:
                there.request(messages)
        except netlink.NetlinkError:
            return False
        finally:
            enter(self._own_fd)
        return True

    def crowded(self, shapes: Iterable[tuple[Link, LinkShape]]) -> list[Link]:
        """Links that this kernel would not let duplicate with ``shapes`` set, because netem stands beside them.

        Kernels since 2025 (also 6.1.176) let a netem duplicate only when it is the interface's only one.
        """
        asked = list(shapes)
        named = {link for link, _ in asked}
        doubling = {link for link, shape in asked if shape.duplicate}
        doubling |= {link for link, state in self.links.items() if state.shape.duplicate and link not in named}
        if not doubling or self.duplicates_anywhere:
            return []
        having = {link: None for link, state in self.links.items() if state.had_netem}
        having |= {link: None for link, shape in asked if shape.needs_netem}
        by_source = Counter(link.ends[0] for link in having)
        return [link for link in having if link in doubling and by_source[link.ends[0]] > 1]

    def shape(self, shapes: Iterable[tuple[Link, LinkShape]], *, replayed: bool = False) -> None:
        """Set up the links not yet shaped, change the others in place.

        One batch a cable. ``replayed``: by a replay, so that the
        links' own shapes stay what they were. Where the kernel refuses something, the other hosts' links are set all
        the same, the first refusal is raised then, and that host's links are stated whole when they are next shaped.
        """
        by_source: dict[Cable, dict[Link, LinkShape]] = {}
        for link, shape in shapes:
            by_source.setdefault(cable_of(link.source, link.via), {})[link] = shape
        refusal: OSError | None = None
        for source, asked in by_source.items():
            batch = [message for link, shape in asked.items() for message in self._messages(link, shape)]
            began_s = time.monotonic()
            try:
                self._root(source)
                self._request(source, [*self._segmenting(source, asked), *batch])
            except OSError as error:
                refusal = refusal or error
                self._unsure |= asked.keys()
                self._segments.pop(source, None)
                continue
            now_s = time.monotonic()
            self._unsure -= asked.keys()
            for link, shape in asked.items():
                if link in self.links:
                    self.links[link].set(shape, began_s, now_s)
                else:
                    ends = self.ends[source], self.ends[cable_of(link.target, link.via)]
                    self.links[link] = LinkState(*ends, shape, now_s)
                if not replayed:
                    self.links[link].base = shape
        if refusal is not None:
            raise refusal

    def _request(self, source: Cable, batch: list[bytes]) -> None:
        """Have a host's kernel side do it. A host without its interface has ended: it is asked nothing any more."""
        if source in self.gone:
            return
        try:
            self.ends[source].netlink.request(batch)
        except netlink.NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            self.gone.add(source)

    def _root(self, source: Cable) -> None:
        """Give an interface what it needs before its first link."""
        if source not in self._rooted:
            index = self.ends[source].interface
            with _there_already():
                self._request(source, [htb.root(index, self.layer)])
            self._request(source, [htb.interface_class(index, self.limits.get(source))])
            if source not in self.gone:
                with self.inside(self.ends[source].name):
                    offloads_off(socket.if_indextoname(index))
            self._rooted.add(source)

    def _segmenting(self, source: Cable, asked: Mapping[Link, LinkShape] = {}) -> list[bytes]:
        """Let an interface have as large packets of TCP as all its links, and all limited interfaces, bear."""
        wanted = self._wanted.setdefault(source, {})
        wanted.update((link, shape.segments) for link, shape in asked.items() if shape.passes or link not in wanted)
        borne = (*wanted.values(), *(LinkShape(limit_bps).segments for limit_bps in self.limits.values()))
        least = min(borne, default=htb.UNLIMITED_SEGMENTS)
        if self._segments.get(source) == least:
            return []
        self._segments[source] = least
        return [*htb.segments(self.ends[source].interface, least)]

    def _class(self, link: Link, shape: LinkShape) -> bytes:
        source, target = link.ends
        limit_bps, assured_bps = self.limits.get(source), shape.set_bps
        if limit_bps is not None:  # an equal part for each: together they may be assured what there is
            assured_bps = min(assured_bps, limit_bps / max(1, len(self.hosts) - 1))
        host, minor = self.ends[source], self.ends[target].number
        return htb.htb_class(host.interface, minor, shape.set_bps, burst=shape.burst, assured_bps=assured_bps)

    def _messages(self, link: Link, shape: LinkShape) -> Iterator[bytes]:
        state, target = self.links.get(link), self.ends[cable_of(link.target, link.via)]
        index, number = self.ends[cable_of(link.source, link.via)].interface, target.number
        if state is None or link in self._unsure:
            if link.via != NET:
                yield from self.lead(self.ends[cable_of(link.source, link.via)], target)
            yield self._class(link, shape)
            if len(self.bands) > 1:
                yield from htb.bands(index, number)
            yield from self._leaves(index, number, shape, None if state is None else state.leaf(shape))
            yield from self._filters(index, number, target, shape)
            return
        old = state.shape
        if (shape.set_bps, shape.burst) != (old.set_bps, old.burst):
            yield self._class(link, shape)
        if _queue(shape, state.leaf(shape)) != _queue(old, state.leaf(old)):
            yield from self._leaves(index, number, shape, state.leaf(shape))
        if bool(shape.duplicate) != bool(old.duplicate):
            yield from self._filters(index, number, target, shape)

    def _leaves(self, index: int, number: int, shape: LinkShape, kind: htb.Leaf | None) -> Iterator[bytes]:
        bulk, *urgent = (number | band for band in self.bands)
        # a second netem would not let the first one duplicate, on kernels that have no other beside such
        alone = shape.passes and shape.duplicate > 0
        if alone:
            yield from (htb.leaf(index, minor, shape, "fifo") for minor in urgent)
        yield htb.leaf(index, bulk, shape, kind)
        if not alone:
            yield from (htb.leaf(index, minor, shape, kind) for minor in urgent)

    def _filters(self, index: int, number: int, target: HostSpace, shape: LinkShape) -> Iterator[bytes]:
        """What is urgent goes the way of all else on a link that duplicates."""
        ip = socket.inet_aton(target.ip)
        bulk, *urgent = (number | band for band in self.bands)
        for minor in urgent:
            yield htb.to_class(index, 2 * number, bulk if shape.duplicate else minor, ip, urgent=True)
        yield htb.to_class(index, 2 * number + 1, bulk, ip)

    def limit_interfaces(self, limits_bps: Mapping[Cable, float | None]) -> None:
        """Limit, in place, all that these cables send together and all that they receive together; None lifts it.

        Links of a limited host still have their own rates. Those that compete for what it sends get equal parts; what
        it receives waits in one queue, in which each link has the share of packets that it brings. Raises ValueError
        for a host whose port is out of reach.
        """
        for name, asked_bps in limits_bps.items():
            host = self.ends[name]
            if host.port is None:
                raise ValueError(f"what {host.name} receives cannot be limited")
            rate_bps = None if asked_bps is None else floored(asked_bps)
            if rate_bps is None:
                self.limits.pop(name, None)
            else:
                self.limits[name] = rate_bps
            self._root(name)
            batch = [htb.interface_class(host.interface, rate_bps)]
            batch += [self._class(link, state.shape) for link, state in self.links.items() if link.ends[0] == name]
            host.netlink.request(batch)
            if name not in self._ported:
                with _there_already():
                    host.port.netlink.request([htb.root(host.port.interface, self.layer, htb.PORT_MINOR | htb.BULK)])
                self._ported.add(name)
            host.port.netlink.request(htb.port(host.port.interface, rate_bps))
        for source in self.ends:  # also those whose links are not shaped send to limited ones
            self._root(source)
            self._request(source, self._segmenting(source))

    def limit_bps(self, link: Link) -> float:
        """What the interfaces at a link's ends let pass; infinity where neither is limited."""
        return min(self.limits.get(cable, math.inf) for cable in link.ends)

    def counters(self, source: Cable) -> dict[str, htb.ClassCounters]:
        """For every shaped link out of ``source`` its counters, by target."""
        end = self.ends[source]
        answers = end.netlink.dump(netlink.RTM_GETTCLASS, htb.class_dump(end.interface))
        found = {one.minor: one for one in map(htb.class_counters, answers) if one is not None}
        counted = {}
        for host in self.hosts.values():
            if link := found.get(host.number):
                bands = (found.get(host.number | band) for band in self.bands)
                counted[host.name] = link._replace(backlog_bytes=sum(one.backlog_bytes for one in bands if one))
        return counted


def _queue(shape: LinkShape, kind: htb.Leaf) -> tuple[object, ...]:
    """A queue's kind and what that is set to; a change elsewhere in the shape leaves it alone."""
    if kind == "netem":
        return (kind, *shape[1:8], htb.limit(shape, kind))
    return (kind,) if kind == "cut" else (kind, htb.limit(shape, kind))


@contextmanager
def _there_already() -> Iterator[None]:
    """What is to be created may have been, by an attempt that failed later."""
    try:
        yield
    except netlink.NetlinkError as error:
        if error.errno != errno.EEXIST:
            raise


def offloads_off(interface: str) -> None:
    """Segmentation offloads off, so that the shaper sees packets as a wire would; ioctl(SIOCETHTOOL)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)
