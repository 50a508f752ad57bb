"""Supervisor's side of a testbed with links: hosts of every origin, and the shapes of their links."""

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
"""With more hosts, links have no bands. For every new class the kernel searches a list with an entry for every class of
the machine (flow_indr_dev_setup_offload). So three times the classes take nine times as long."""

# linux/ethtool.h, linux/sockios.h
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def unshare() -> None:
    """Move this thread into a new network namespace."""
    calls.unshare(calls.NEWNET)


def enter(namespace_fd: int) -> None:
    """Move this thread into an existing network namespace."""
    calls.enter(namespace_fd, calls.NEWNET)


class LinkState:
    """Shape of a directed link, and the bits that the link would have carried so far at the rates asked.

    ``base``: the link's own shape, the last shape that was not set by a replay. ``had_netem``: the link has needed
    netem. The link then keeps netem, so a change to no delay loses no packets.
    """

    __slots__ = ("_asked_bits", "_since_s", "base", "had_netem", "minor", "shape", "source", "target")

    def __init__(self, source: HostSpace, target: HostSpace, shape: LinkShape, now_s: float) -> None:
        self.source, self.target, self.minor = source, target, target.number
        self.base = self.shape = shape
        self.had_netem = shape.needs_netem
        self._asked_bits, self._since_s = 0.0, now_s

    def set(self, shape: LinkShape, began_s: float, now_s: float) -> None:
        """Record a change of shape between ``began_s`` and ``now_s``. The moment that gives more bits asked counts."""
        at_s = began_s if passing_bps(shape) > passing_bps(self.shape) else now_s
        self._asked_bits = self.asked_bits(at_s)
        self._since_s, self.shape = at_s, shape
        self.had_netem = self.had_netem or shape.needs_netem

    def leaf(self, shape: LinkShape) -> htb.Leaf:
        """Return the kind of queue that the link has with this shape."""
        return htb.leaf_kind(shape, had_netem=self.had_netem)

    def asked_bits(self, now_s: float) -> float:
        return self._asked_bits + passing_bps(self.shape) * (now_s - self._since_s)


def passing_bps(shape: LinkShape) -> float:
    """Return the rate to which a link of this shape is set. The rate is 0 if nothing passes."""
    return shape.set_bps if shape.passes else 0.0


class World:
    """Hosts and links of a testbed. Every method leaves the thread in the supervisor's own namespace."""

    def __init__(self, layer: int, *, control_band: bool = False) -> None:
        """Make a world without hosts. Subclasses add the hosts. ``layer``: layer at which rates count, 2 or 3.

        ``control_band``: on every link, packets that are marked as urgent go first.
        """
        self.layer, self._banded = layer, control_band
        self.links: dict[Link, LinkState] = {}
        self.hosts: dict[str, HostSpace] = {}
        """Ends of hosts in the network that all share."""
        self.ends: dict[Cable, HostSpace] = {}
        """Ends of hosts in all networks."""
        self.up_bps: dict[Cable, float] = {}
        """Limits of the total rate that a host sends over a cable."""
        self.down_bps: dict[Cable, float] = {}
        """Limits of the total rate that a host receives over a cable."""
        self.up_queues: dict[Cable, Queue] = {}
        """Queues before the sending rates of hosts, if not the usual queue."""
        self.gone: set[Cable] = set()
        """Ends of hosts that have ended by themselves, as containers may."""
        self.unplugged: set[Cable] = set()
        """Ends whose ports are down, so that they have no carrier."""
        self._rooted: set[Cable] = set()
        self._wanted: dict[Cable, dict[Link, int]] = {}  # TCP segments that a cable's links let pass at once
        self._known_mtus: dict[Link, int | None] = {}  # MTUs in the routes of sources
        self._filtered: set[Link] = set()  # links that have, or had, a filter by length
        self._segments: dict[Cable, int] = {}  # TCP segments to which the interfaces are set
        self._unsure: set[Link] = set()  # links of batches that the kernel has refused
        self._uplinks: dict[Cable, int] = {}  # ifb devices
        self._uncounted: dict[Cable, int] = {}  # frames that came before their senders' classes existed
        self._managed: dict[Managed, bool] = {}  # whether the kernel has a discipline
        self.changed: Callable[[Link, LinkShape | None, LinkState], None] = lambda link, before, state: None
        """Called after every change of a link, with its shape before. None: the link had no shape."""
        self.carried: Callable[[Cable, bool], None] = lambda cable, up: None
        """Called after a host has lost or regained its carrier."""
        self._own_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own = netlink.NetlinkSocket()

    private: Sequence[str] = ()
    """Own folders of every host."""
    unnamed = ""
    """Reason for which hosts do not know hosts by name, or an empty text."""

    @property
    def bands(self) -> tuple[int, ...]:
        """Return the numbers that are added to a link's number for its bands, bulk's first. Without bands: only 0."""
        return (htb.BULK, htb.CONTROL) if self._banded and len(self.hosts) <= BANDED_HOSTS else (0,)

    @contextmanager
    def at_home(self, name: str) -> Iterator[None]:
        """Put processes started in this context on host ``name``, with the host's hostname and own folders, if any."""
        with self.inside(name):
            yield

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put sockets opened and processes started in this context into the network of host ``name``."""
        enter(self.hosts[name].namespace_fd)
        try:
            yield
        finally:
            enter(self._own_fd)

    @cached_property
    def netem_works(self) -> bool:
        """Return whether the kernel has netem."""
        return self._accepts([htb.netem_alone(1)])

    @cached_property
    def duplicates_anywhere(self) -> bool:
        """Return whether a link may duplicate, whatever the target's remaining links have (see ``crowded``)."""
        return self._accepts(htb.two_netems(1))

    @cached_property
    def compares_lengths(self) -> bool:
        """Return whether the kernel has filters by the length of packets, which an MTU needs."""
        return self._accepts(mtu.alone(1))

    def manages(self, discipline: Managed) -> bool:
        """Return whether the kernel has a discipline that keeps queues short."""
        if discipline not in self._managed:
            self._managed[discipline] = self._accepts(htb.managed(1, discipline))
        return self._managed[discipline]

    def _accepts(self, messages: Iterable[bytes]) -> bool:
        """Return whether the kernel executes these messages, in a namespace that nothing uses."""
        unshare()
        try:
            with closing(netlink.NetlinkSocket()) as probe:
                probe.request(messages)
        except netlink.NetlinkError:
            return False
        finally:
            enter(self._own_fd)
        return True

    def crowded(self, shapes: Iterable[tuple[Link, LinkShape]]) -> list[Link]:
        """Return links that could not duplicate with ``shapes`` set, because their port has a second netem.

        Kernels since 2025 (also 6.1.176) let a netem duplicate only if the interface has no second netem.
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
        """Set up links that are not shaped yet, and change the remaining links in place, with one batch a port.

        ``replayed``: a replay changes the links, so their own shapes stay. If the kernel refuses a batch, the links to
        the remaining hosts are set all the same, and the first refusal is raised then. The links of the refused batch
        are stated whole when they are next shaped.
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

        Return the first refusal of the kernel, or None.
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
        """Send a batch of messages about a host's port to the kernel. Without a root, the port is set up first.

        ``asked``: the links to which the batch gives classes of their own.
        """
        fresh = target not in self._rooted
        if fresh:
            self._root(target, asked)
        self._request(target, batch)
        if fresh:  # frames of links whose filters came last do not count as strangers
            self._uncounted[target] = self._dropped(target)

    def _request(self, target: Cable, batch: list[bytes]) -> None:
        """Send a batch of messages about a host's port to the kernel."""
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
        """Create a port's root, its own classes, and the filters of sources except those of the links ``asked``."""
        end = self.ends[target]
        index = end.port.interface
        try:
            self._request(target, [htb.root(index, self.layer, htb.STRANGERS)])
        except netlink.NetlinkError as error:
            if error.errno != errno.EEXIST:  # an existing root stays, and gets our classes
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
        """Return filters for sources whose links have no shape, and for the machine if it is on the bridge."""
        index = target.port.interface
        for source in self.ends.values():
            link = Link(source.name, target.name, target.via)
            if source.via == target.via and source is not target and link not in asked:
                minor = htb.OPEN if target.via == NET else htb.CLOSED
                yield htb.to_class(index, source.number, source.mac_bytes, minor)
        if (mac := self.bridge_mac(target)) is not None:
            yield htb.to_class(index, MACHINE, mac, htb.OPEN)

    def close_further_networks(self) -> None:
        """Block traffic of every protocol between hosts of a further network that have no link there."""
        for cable, end in self.ends.items():
            if end.via != NET:
                self._at_port(cable, [])

    def bridge_mac(self, _: HostSpace) -> bytes | None:
        """Return the machine's own hardware address on a host's bridge. None: the machine is not on the bridge."""
        return None

    def _segmenting(self, source: Cable, asked: Mapping[Link, LinkShape] = {}) -> list[bytes]:
        """Return messages that set the largest TCP packets that a host's links and the limited interfaces bear.

        The list is empty if the size stays.
        """
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
        if limit_bps is not None:  # equal parts, so the assured rates add up to at most the limit
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
        # some kernels do not let a netem duplicate while the interface has a second netem
        alone = shape.passes and shape.duplicate > 0
        if alone:
            for minor in urgent:
                yield from htb.leaf(index, minor, shape, "fifo")
        yield from htb.leaf(index, bulk, shape, kind)
        if not alone:
            for minor in urgent:
                yield from htb.leaf(index, minor, shape, kind)

    def _filters(self, index: int, source: HostSpace, shape: LinkShape) -> Iterator[bytes]:
        """Return the filters of a source. Urgent packets go to their band, or with bulk on a link that duplicates."""
        bulk, *urgent = (source.number | band for band in self.bands)
        for minor in urgent:
            for family in htb.ETHERTYPES:
                chosen = bulk if shape.duplicate else minor
                yield htb.urgent_to_class(index, source.number, source.mac_bytes, chosen, family)
        yield htb.to_class(index, source.number, source.mac_bytes, bulk)

    def _lengths(self, link: Link, shape: LinkShape, old: LinkShape | None) -> Iterator[bytes]:
        """Return messages that drop packets longer than a link's MTU. ``old``: the shape so far, None if unknown."""
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
        """Set the ports of cables up or down. A host whose port is down has no carrier, and packets there are lost."""
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
        connections = set[sockets.Connection]()
        for source, addresses in targets.items():
            with self.inside(source):
                connections |= sockets.reset(addresses)
        return len(connections)

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
        for source, end in self.ends.items():  # sources without shaped links also send to limited hosts
            self._ask(end.netlink, source, self._segmenting(source))

    def _uplink(self, source: Cable) -> int | None:
        """Return the ifb device that limits a host's sending. Create the device at the first call.

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
                with suppress(OSError):  # the step was not reached
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
        """Return the limits, in bytes, of the queues before the sending rates of hosts."""
        return {end: LinkShape(bps, queue=self.up_queues.get(end)).queue_bytes for end, bps in self.up_bps.items()}

    @property
    def limited(self) -> bool:
        """Return whether a host has a limited rate, which its links share."""
        return bool(self.up_bps or self.down_bps)

    def limit_bps(self, link: Link) -> float:
        """Return the rate that the interfaces at a link's ends let pass. It is infinite if neither end is limited."""
        source, target = link.ends
        return min(self.up_bps.get(source, math.inf), self.down_bps.get(target, math.inf))

    def shares_bps(self, links: Iterable[Link]) -> dict[Link, float]:
        """Return the rates of links that send at the same time and share the rates of hosts."""
        chosen = [*links]
        leaving, coming = (Counter(link.ends[i] for link in chosen) for i in (0, 1))
        rates_bps = {}
        for link in chosen:
            source, target = link.ends
            up_bps = self.up_bps.get(source, math.inf) / leaving[source]
            down_bps = self.down_bps.get(target, math.inf) / coming[target]
            rates_bps[link] = min(self.links[link].shape.set_bps, up_bps, down_bps)
        return rates_bps

    def holds_packets(self, links: Iterable[Link]) -> bool:
        """Return whether packets wait at the ports of the targets, or in the uplinks of the sources."""
        ends = [link.ends for link in links]
        if any(row.backlog_bytes for target in {end[1] for end in ends} for row in self.counters(target).values()):
            return True
        for source in {end[0] for end in ends} & self._uplinks.keys():
            body = htb.class_body(self._uplinks[source], htb.UPLINK)
            answers = self.ends[source].port.netlink.get(netlink.RTM_GETTCLASS, body)
            if any(row.backlog_bytes for row in map(htb.class_counters, answers) if row is not None):
                return True
        return False

    def counters(self, target: Cable) -> dict[str, htb.ClassCounters]:
        """Return the counters of every shaped link to ``target``, by source."""
        port = self.ends[target].port
        answers = port.netlink.dump(netlink.RTM_GETTCLASS, htb.class_dump(port.interface))
        by_minor = {row.minor: row for row in map(htb.class_counters, answers) if row is not None}
        counted = {}
        for host in self.hosts.values():
            if link := by_minor.get(host.number):
                bands = [row for band in self.bands if (row := by_minor.get(host.number | band))]
                counted[host.name] = link._replace(
                    backlog_bytes=sum(row.backlog_bytes for row in bands), drops=sum(row.drops for row in bands)
                )
        return counted

    def passed(self, target: Cable) -> tuple[int, ...]:
        """Return the bytes and drops counted by the root of a host's port, and the packets that wait there.

        The port must have been set up.
        """
        port = self.ends[target].port
        return htb.root_counters(port.netlink.get(netlink.RTM_GETQDISC, htb.root_body(port.interface)))

    def strangers(self) -> dict[Cable, int]:
        """Return by cable the number of frames that were dropped because no host has their source address."""
        dropped = {cable: self._dropped(cable) - self._uncounted.get(cable, 0) for cable in self._rooted}
        return {cable: frames for cable, frames in dropped.items() if frames > 0}

    def _dropped(self, cable: Cable) -> int:
        """Return the number of frames that the class ``STRANGERS`` of a host's port has dropped."""
        port = self.ends[cable].port
        if cable not in self.gone:
            with suppress(OSError):  # the host has ended meanwhile
                answers = port.netlink.get(netlink.RTM_GETTCLASS, htb.class_body(port.interface, htb.STRANGERS))
                return sum(row.drops for row in map(htb.class_counters, answers) if row is not None)
        return 0


MACHINE = 1023  # number of the machine's own address, on a bridge with at most 1000 containers


def _keep(limits_bps: dict[Cable, float], name: Cable, rate_bps: float | None) -> None:
    """Store the limit of a cable. None removes the limit."""
    if rate_bps is None:
        limits_bps.pop(name, None)
    else:
        limits_bps[name] = rate_bps


def _known_mtu(shape: LinkShape) -> int | None:
    """Return the MTU that the source of a link is to know. None: the MTU of the interfaces, or a silent link."""
    limit = shape.path_mtu
    return None if limit is None or limit.silent else limit.bytes


def _queue(shape: LinkShape, kind: htb.Leaf) -> tuple[object, ...]:
    """Return the kind and settings of a queue. A change elsewhere in the shape leaves the result equal."""
    if kind == "cut":
        return (kind,)
    waiting = (htb.queue_kind(shape), queues.options(shape))
    if kind != "netem":
        return waiting
    return (kind, *shape[1:8], shape.loss_burst, htb.netem_limit(shape), *waiting)


def offloads_off(interface: str) -> None:
    """Switch an interface's segmentation offloads off (SIOCETHTOOL), so the shaper sees packets as on a wire."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)
