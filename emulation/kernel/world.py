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
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property

from thalweg.emulation.kernel import calls, htb, interfaces, mtu, netlink, queues, sockets
from thalweg.emulation.kernel.host_space import HostSpace
from thalweg.emulation.links.shape import LinkShape, Queue, floored
from thalweg.emulation.links.units import Managed
from thalweg.middleware.network.view import NET, Cable, Link, cable_of

BANDED_HOSTS = 100
"""With more hosts, links have no bands. For each class that is made the kernel searches one list, which has an entry
for every class of the machine (flow_indr_dev_setup_offload): three times the classes take nine times as long."""

# linux/ethtool.h, linux/sockios.h
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def unshare() -> None:
    """Move this thread into a network namespace that is made by it."""
    calls.unshare(calls.NEWNET)


def enter(namespace_fd: int) -> None:
    """Move this thread into a network namespace."""
    calls.enter(namespace_fd, calls.NEWNET)


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


class World:
    """Hosts and links. Every method leaves the thread in the supervisor's own namespace."""

    def __init__(self, layer: int, *, control_band: bool = False) -> None:
        """``layer``: what rates count, 2 or 3. Hosts are added by whoever makes them (the subclasses).

        ``control_band``: on every link, what is marked as urgent goes before all else.
        """
        self.layer, self._banded = layer, control_band
        self.links: dict[Link, LinkState] = {}
        self.hosts: dict[str, HostSpace] = {}
        """Their ends of the network that all share."""
        self.ends: dict[Cable, HostSpace] = {}
        """Their ends of all networks."""
        self.up_bps: dict[Cable, float] = {}
        """Rates of all that a host sends over a cable, of those that are limited."""
        self.down_bps: dict[Cable, float] = {}
        """The same of what it receives."""
        self.up_queues: dict[Cable, Queue] = {}
        """What waits at most before a host's sending rate, where that is not the usual queue."""
        self.gone: set[Cable] = set()
        """Ends of hosts that have ended by themselves, as containers may."""
        self.unplugged: set[Cable] = set()
        """Ends whose ports are down, so that they have no carrier."""
        self._rooted: set[Cable] = set()
        self._wanted: dict[Cable, dict[Link, int]] = {}  # the segments that a cable's links let pass at once
        self._known_mtus: dict[Link, int | None] = {}  # those that sources have a route with
        self._filtered: set[Link] = set()  # links that have, or had, a filter by length
        self._segments: dict[Cable, int] = {}  # what the interfaces are set to
        self._unsure: set[Link] = set()  # the kernel refused something of their batch
        self._uplinks: dict[Cable, int] = {}  # ifb devices
        self._uncounted: dict[Cable, int] = {}  # frames that came before the classes of their senders were there
        self._managed: dict[Managed, bool] = {}  # disciplines that were tried
        self.changed: Callable[[Link, LinkShape | None, LinkState], None] = lambda link, before, state: None
        """Called after every change of a link, with its shape before; None if it had none."""
        self.carried: Callable[[Cable, bool], None] = lambda cable, up: None
        """Called after a host has lost its carrier, or has got it back."""
        self._own_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own = netlink.NetlinkSocket()

    private: Sequence[str] = ()
    """Folders of which each host has its own."""
    unnamed = ""
    """Why hosts do not know each other by name; empty where they do."""

    @property
    def bands(self) -> tuple[int, ...]:
        """Of each link: what is added to its number, bulk's first."""
        return (htb.BULK, htb.CONTROL) if self._banded and len(self.hosts) <= BANDED_HOSTS else (0,)

    @contextmanager
    def at_home(self, name: str) -> Iterator[None]:
        """Processes started here are on host ``name``, with its hostname and its folders, if it has its own."""
        with self.inside(name):
            yield

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Sockets opened and processes started here are in the network of host ``name``."""
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

    @cached_property
    def compares_lengths(self) -> bool:
        """Whether the kernel has filters by the length of packets, which an MTU takes."""
        return self._accepts(mtu.alone(1))

    def manages(self, discipline: Managed) -> bool:
        """Whether the kernel has a discipline that keeps queues short."""
        if discipline not in self._managed:
            self._managed[discipline] = self._accepts(htb.managed(1, discipline))
        return self._managed[discipline]

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
        by_target = Counter(link.ends[1] for link in having)
        return [link for link in having if link in doubling and by_target[link.ends[1]] > 1]

    def shape(self, shapes: Iterable[tuple[Link, LinkShape]], *, replayed: bool = False) -> None:
        """Set up the links not yet shaped, change the others in place.

        One batch a port. ``replayed``: by a replay, so that the
        links' own shapes stay what they were. Where the kernel refuses something, the other hosts' links are set all
        the same, the first refusal is raised then, and that host's links are stated whole when they are next shaped.
        """
        by_target: dict[Cable, dict[Link, LinkShape]] = {}
        for link, shape in shapes:
            by_target.setdefault(cable_of(link.target, link.via), {})[link] = shape.settled()
        asked_of_all = {link: shape for asked in by_target.values() for link, shape in asked.items()}
        refusal = self._before_links(asked_of_all)
        for target, asked in by_target.items():
            batch = [message for link, shape in asked.items() for message in self._messages(link, shape)]
            began_s = time.monotonic()
            try:
                self._at_port(target, batch, asked)
            except OSError as error:
                refusal = refusal or error
                self._unsure |= asked.keys()
                continue
            now_s = time.monotonic()
            self._unsure -= asked.keys()
            for link, shape in asked.items():
                state = self.links.get(link)
                before = None if state is None else state.shape
                if state is None:
                    ends = self.ends[cable_of(link.source, link.via)], self.ends[target]
                    state = self.links[link] = LinkState(*ends, shape, now_s)
                else:
                    state.set(shape, began_s, now_s)
                if not replayed:
                    state.base = shape
                self.changed(link, before, state)
        if refusal is not None:
            raise refusal

    def _before_links(self, asked: Mapping[Link, LinkShape]) -> OSError | None:
        """Set the size of TCP's packets at the sources of these links, and give the sources routes to new targets.

        Return the first refusal of the kernel, if any.
        """
        by_source: dict[Cable, dict[Link, LinkShape]] = {}
        for link, shape in asked.items():
            by_source.setdefault(cable_of(link.source, link.via), {})[link] = shape
        refusal: OSError | None = None
        for source, some in by_source.items():
            end = self.ends[source]
            batch = self._segmenting(source, some)
            changed = ((link, _known_mtu(shape)) for link, shape in some.items())
            known = {link: bytes for link, bytes in changed if bytes != self._known_mtus.get(link)}
            for link in some:
                target = self.ends[cable_of(link.target, link.via)]
                if link.via != NET and (link not in self.links or link in self._unsure):
                    batch += interfaces.way(end, target)
                if link in known:
                    batch += interfaces.path_mtu(end, target, known[link])
            try:
                self._ask(end.netlink, source, batch)
            except OSError as error:
                refusal = refusal or error
                self._unsure |= some.keys()
                self._segments.pop(source, None)
            else:
                self._known_mtus |= known
        return refusal

    def _at_port(self, target: Cable, batch: list[bytes], asked: Container[Link] = ()) -> None:
        """Send a batch to a host's port. If the port has no root yet, set it up first.

        ``asked``: the links to which the batch gives classes of their own.
        """
        fresh = target not in self._rooted
        if fresh:
            self._root(target, asked)
        self._request(target, batch)
        if fresh:  # frames of links whose filters came last do not count as strangers
            self._uncounted[target] = self._dropped(target)

    def _request(self, target: Cable, batch: list[bytes]) -> None:
        """Send a batch to a host's port."""
        self._ask(self.ends[target].port.netlink, target, batch)

    def _ask(self, asking: netlink.NetlinkSocket, cable: Cable, batch: list[bytes]) -> None:
        """Send a batch to the kernel. If the interface is absent, the host has ended, and gets no further batches."""
        if cable in self.gone or not batch:
            return
        try:
            asking.request(batch)
        except netlink.NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            self.gone.add(cable)

    def _root(self, target: Cable, asked: Container[Link]) -> None:
        """Create a port's root, its own classes, and the filters of all sources but those of the links ``asked``."""
        end = self.ends[target]
        index = end.port.interface
        try:
            self._request(target, [htb.root(index, self.layer, htb.STRANGERS)])
        except netlink.NetlinkError as error:
            if error.errno != errno.EEXIST:  # a root of others stays, and gets our classes
                raise
        try:
            self._request(target, [*htb.port(index, joins_all=end.via == NET), *self._open(end, asked)])
        except OSError:  # the next attempt begins anew
            self._request(target, [htb.no_root(index)])
            raise
        if target not in self.gone:
            offloads_off(socket.if_indextoname(index))
        self._rooted.add(target)

    def _open(self, target: HostSpace, asked: Container[Link]) -> Iterator[bytes]:
        """Return the filters of sources whose links have no shape, and of the machine if it is on the bridge."""
        index = target.port.interface
        for source in self.ends.values():
            link = Link(source.name, target.name, target.via)
            if source.via == target.via and source is not target and link not in asked:
                minor = htb.OPEN if target.via == NET else htb.CLOSED
                yield htb.to_class(index, source.number, source.mac_bytes, minor)
        if (mac := self.bridge_mac(target)) is not None:
            yield htb.to_class(index, MACHINE, mac, htb.OPEN)

    def close_further_networks(self) -> None:
        """Let nothing pass, of any protocol, between hosts of a further network that have no link there."""
        for cable, end in self.ends.items():
            if end.via != NET:
                self._at_port(cable, [])

    def bridge_mac(self, _: HostSpace) -> bytes | None:
        """The hardware address with which the machine itself speaks to a host; None where it does not."""
        return None

    def _segmenting(self, source: Cable, asked: Mapping[Link, LinkShape] = {}) -> list[bytes]:
        """Let a host send as large packets of TCP as all its links, and all limited interfaces, bear."""
        wanted = self._wanted.setdefault(source, {})
        wanted.update((link, shape.segments) for link, shape in asked.items() if shape.passes or link not in wanted)
        limits = (*self.up_bps.values(), *self.down_bps.values())
        borne = (*wanted.values(), *(LinkShape(limit_bps).segments for limit_bps in limits))
        least = min(borne, default=htb.UNLIMITED_SEGMENTS)
        if self._segments.get(source) == least:
            return []
        self._segments[source] = least
        return [*htb.segments(self.ends[source].interface, least)]

    def _class(self, link: Link, shape: LinkShape) -> bytes:
        source, target = link.ends
        limit_bps, assured_bps = self.down_bps.get(target), shape.set_bps
        if limit_bps is not None:  # an equal part for each: together they may be assured what there is
            assured_bps = min(assured_bps, limit_bps / max(1, len(self.hosts) - 1))
        index, minor = self.ends[target].port.interface, self.ends[source].number
        return htb.htb_class(index, minor, shape.set_bps, burst=shape.burst, assured_bps=assured_bps)

    def _messages(self, link: Link, shape: LinkShape) -> Iterator[bytes]:
        state, source = self.links.get(link), self.ends[link.ends[0]]
        index, number = self.ends[link.ends[1]].port.interface, source.number
        if state is None or link in self._unsure:
            yield self._class(link, shape)
            if len(self.bands) > 1:
                yield from htb.bands(index, number)
            yield from self._leaves(index, number, shape, None if state is None else state.leaf(shape))
            yield from self._filters(index, source, shape)
            yield from self._lengths(link, shape, None)
            return
        old = state.shape
        yield from self._lengths(link, shape, old)
        if (shape.set_bps, shape.burst) != (old.set_bps, old.burst):
            yield self._class(link, shape)
        if _queue(shape, state.leaf(shape)) != _queue(old, state.leaf(old)):
            yield from self._leaves(index, number, shape, state.leaf(shape))
        if len(self.bands) > 1 and bool(shape.duplicate) != bool(old.duplicate):
            yield from self._filters(index, source, shape)

    def _leaves(self, index: int, number: int, shape: LinkShape, kind: htb.Leaf | None) -> Iterator[bytes]:
        bulk, *urgent = (number | band for band in self.bands)
        # a second netem would not let the first one duplicate, on kernels that have no other beside such
        alone = shape.passes and shape.duplicate > 0
        if alone:
            for minor in urgent:
                yield from htb.leaf(index, minor, shape, "fifo")
        yield from htb.leaf(index, bulk, shape, kind)
        if not alone:
            for minor in urgent:
                yield from htb.leaf(index, minor, shape, kind)

    def _filters(self, index: int, source: HostSpace, shape: LinkShape) -> Iterator[bytes]:
        """What is urgent goes the way of all else on a link that duplicates."""
        bulk, *urgent = (source.number | band for band in self.bands)
        for minor in urgent:
            for family in htb.ETHERTYPES:
                chosen = bulk if shape.duplicate else minor
                yield htb.urgent_to_class(index, source.number, source.mac_bytes, chosen, family)
        yield htb.to_class(index, source.number, source.mac_bytes, bulk)

    def _lengths(self, link: Link, shape: LinkShape, old: LinkShape | None) -> Iterator[bytes]:
        """Drop packets that are longer than a link's MTU. ``old``: the shape so far, None if it is not known."""
        limit = shape.path_mtu
        if limit is None and link not in self._filtered:
            return
        most_bytes = mtu.ANY_LENGTH if limit is None else limit.bytes
        if old is not None and most_bytes == (old.path_mtu.bytes if old.path_mtu else mtu.ANY_LENGTH):
            return
        self._filtered.add(link)
        source, index = self.ends[link.ends[0]], self.ends[link.ends[1]].port.interface
        yield from mtu.too_long(index)
        yield mtu.most(index, source.number, source.mac_bytes, most_bytes)

    def set_carrier(self, wanted: Mapping[Cable, bool]) -> None:
        """Set the ports of cables up or down. A host whose port is down has no carrier; what waits there is lost."""
        for cable, up in wanted.items():
            index = self.ends[cable].port.interface
            self._request(cable, [interfaces.up(index) if up else interfaces.down(index)])
            if up is (cable in self.unplugged):
                (self.unplugged.discard if up else self.unplugged.add)(cable)
                self.carried(cable, up)

    def reset(self, links: Iterable[Link]) -> int:
        """Reset the TCP connections from the sources to the targets of these links. Return their number."""
        targets: dict[str, set[str]] = {}
        for link in links:
            end = self.ends[cable_of(link.target, link.via)]
            targets.setdefault(link.source, set()).update(filter(None, (end.ip, end.ip6)))
        found = set[sockets.Connection]()
        for source, addresses in targets.items():
            with self.inside(source):
                found |= sockets.reset(addresses)
        return len(found)

    def limit_hosts(self, up_bps: Mapping[Cable, float | None], down_bps: Mapping[Cable, float | None]) -> None:
        """Set the total rates of hosts in place, for sending (``up_bps``) and receiving (``down_bps``), by cable.

        None removes a limit. Links of a limited host keep their own rates. The packets that the host sends wait in one
        queue before they reach its links. The links to the host share its receiving rate equally. Raises OSError if the
        kernel refuses.
        """
        for name, asked_bps in up_bps.items():
            rate_bps = None if asked_bps is None else floored(asked_bps)
            wanted = name not in self.gone and (rate_bps is not None or name in self._uplinks)
            if wanted and (device := self._uplink(name)) is not None:
                self._request(name, [*htb.uplink(device, rate_bps, self.up_queues.get(name))])
            _keep(self.up_bps, name, rate_bps)
        for name, asked_bps in down_bps.items():
            if asked_bps is None and name not in self.down_bps:
                continue
            before = self.down_bps.get(name)
            _keep(self.down_bps, name, None if asked_bps is None else floored(asked_bps))
            batch = [htb.interface_class(self.ends[name].port.interface, self.down_bps.get(name))]
            batch += [self._class(link, state.shape) for link, state in self.links.items() if link.ends[1] == name]
            try:
                self._at_port(name, batch)
            except OSError:
                _keep(self.down_bps, name, before)
                raise
        for source, end in self.ends.items():  # also those whose links are not shaped send to limited ones
            self._ask(end.netlink, source, self._segmenting(source))

    def _uplink(self, source: Cable) -> int | None:
        """Return the ifb device that limits a host's sending. Create it at the first call.

        Return None if the host has ended.
        """
        if source in self._uplinks:
            return self._uplinks[source]
        port = self.ends[source].port
        name = f"{self.uplink}{len(self._uplinks)}"
        port.netlink.request([interfaces.ifb(name)])
        index = socket.if_nametoindex(name)
        try:
            port.netlink.request([htb.root(index, self.layer, htb.UPLINK), *htb.uplink(index, None)])
            self._ask(port.netlink, source, [*htb.through(port.interface, index)])
        except OSError:  # the next attempt begins anew
            for undo in (htb.not_through(port.interface), interfaces.remove(index)):
                with suppress(OSError):  # it did not come so far
                    port.netlink.request([undo])
            raise
        if source in self.gone:
            port.netlink.request([interfaces.remove(index)])
            return None
        self._uplinks[source] = index
        return index

    uplink = "up"
    """Prefix of the names of ifb devices."""

    def uplink_bytes(self) -> dict[Cable, int]:
        """Return the limits of the queues before the sending rates of hosts."""
        return {end: LinkShape(bps, queue=self.up_queues.get(end)).queue_bytes for end, bps in self.up_bps.items()}

    @property
    def limited(self) -> bool:
        """Whether links share interfaces that have a rate."""
        return bool(self.up_bps or self.down_bps)

    def limit_bps(self, link: Link) -> float:
        """What the interfaces at a link's ends let pass; infinity where neither is limited."""
        source, target = link.ends
        return min(self.up_bps.get(source, math.inf), self.down_bps.get(target, math.inf))

    def shares_bps(self, links: Iterable[Link]) -> dict[Link, float]:
        """Return the rate of each of these links while all of them send at once and share the rates of hosts."""
        chosen = [*links]
        leaving, coming = (Counter(link.ends[i] for link in chosen) for i in (0, 1))
        found = {}
        for link in chosen:
            source, target = link.ends
            up_bps = self.up_bps.get(source, math.inf) / leaving[source]
            down_bps = self.down_bps.get(target, math.inf) / coming[target]
            found[link] = min(self.links[link].shape.set_bps, up_bps, down_bps)
        return found

    def holds_packets(self, links: Iterable[Link]) -> bool:
        """Return whether packets wait at the ports of the targets, or in the uplinks of the sources."""
        ends = [link.ends for link in links]
        if any(one.backlog_bytes for target in {end[1] for end in ends} for one in self.counters(target).values()):
            return True
        for source in {end[0] for end in ends} & self._uplinks.keys():
            body = htb.class_body(self._uplinks[source], htb.UPLINK)
            answers = self.ends[source].port.netlink.get(netlink.RTM_GETTCLASS, body)
            if any(one.backlog_bytes for one in map(htb.class_counters, answers) if one is not None):
                return True
        return False

    def counters(self, target: Cable) -> dict[str, htb.ClassCounters]:
        """For every shaped link to ``target`` its counters, by source."""
        port = self.ends[target].port
        answers = port.netlink.dump(netlink.RTM_GETTCLASS, htb.class_dump(port.interface))
        found = {one.minor: one for one in map(htb.class_counters, answers) if one is not None}
        counted = {}
        for host in self.hosts.values():
            if link := found.get(host.number):
                bands = [one for band in self.bands if (one := found.get(host.number | band))]
                counted[host.name] = link._replace(
                    backlog_bytes=sum(one.backlog_bytes for one in bands), drops=sum(one.drops for one in bands)
                )
        return counted

    def passed(self, target: Cable) -> tuple[int, ...]:
        """Return the bytes and drops that the root of a host's port has counted, and the packets that wait there.

        The port has been set up.
        """
        port = self.ends[target].port
        return htb.root_counters(port.netlink.get(netlink.RTM_GETQDISC, htb.root_body(port.interface)))

    def strangers(self) -> dict[Cable, int]:
        """Return by cable the number of frames that were dropped, as their source address is no host's."""
        told = {cable: self._dropped(cable) - self._uncounted.get(cable, 0) for cable in self._rooted}
        return {cable: frames for cable, frames in told.items() if frames > 0}

    def _dropped(self, cable: Cable) -> int:
        """Return the drops of the class ``STRANGERS`` at a host's port so far."""
        port = self.ends[cable].port
        if cable not in self.gone:
            with suppress(OSError):  # a host that has ended meanwhile
                answers = port.netlink.get(netlink.RTM_GETTCLASS, htb.class_body(port.interface, htb.STRANGERS))
                return sum(one.drops for one in map(htb.class_counters, answers) if one is not None)
        return 0


MACHINE = 1023  # numbers the machine's own address, where it is on a bridge with at most 1000 containers


def _keep(limits_bps: dict[Cable, float], name: Cable, rate_bps: float | None) -> None:
    """Keep a limit, or forget it."""
    if rate_bps is None:
        limits_bps.pop(name, None)
    else:
        limits_bps[name] = rate_bps


def _known_mtu(shape: LinkShape) -> int | None:
    """Return the MTU that the source of a link is to know."""
    limit = shape.path_mtu
    return None if limit is None or limit.silent else limit.bytes


def _queue(shape: LinkShape, kind: htb.Leaf) -> tuple[object, ...]:
    """A queue's kind and what that is set to; a change elsewhere in the shape leaves it alone."""
    if kind == "cut":
        return (kind,)
    waiting = (htb.queue_kind(shape), queues.options(shape))
    if kind != "netem":
        return waiting
    return (kind, *shape[1:8], shape.loss_burst, htb.netem_limit(shape), *waiting)


def offloads_off(interface: str) -> None:
    """Segmentation offloads off, so that the shaper sees packets as a wire would; ioctl(SIOCETHTOOL)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)
