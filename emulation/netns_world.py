"""The supervisor's side of a testbed of network namespaces: hosts, their interfaces, their links' shapes.

One namespace a host, held by an open file descriptor (nothing is bound under /run, so nothing can be left
there); a veth pair from each into a bridge in the supervisor's own namespace. ARP and the bridge's table are filled in
statically, so that no packet travels that no program sent.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from thalweg.emulation import netns_netlink as netlink
from thalweg.emulation import shaping
from thalweg.emulation.shaping import Shape

CLONE_NEWNET = 0x4000_0000
HOST_INTERFACE, HOST_INDEX = "eth0", 2
BRIDGE, BRIDGE_INDEX, FIRST_PORT = "links", 2, 10
MTU = 1500
MAX_HOSTS = 1023  # ports of one Linux bridge (BR_PORT_BITS)

# linux/ethtool.h, linux/sockios.h
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def enter(namespace_fd: int) -> None:
    """Move this thread into a network namespace."""
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "setns")


class HostSpace(NamedTuple):
    """One host: its namespace, and a netlink socket that stays in it. ``number`` counts hosts from 1."""

    name: str
    number: int
    ip: str
    mac: bytes
    namespace_fd: int
    netlink: netlink.NetlinkSocket


class LinkState:
    """What a directed link is set to, and the bits that it would have carried so far at the rates asked."""

    __slots__ = ("_asked_bits", "_since_s", "minor", "shape", "source", "target")

    def __init__(self, source: HostSpace, target: HostSpace, shape: Shape, now_s: float) -> None:
        self.source, self.target, self.minor = source, target, target.number
        self.shape = shape
        self._asked_bits, self._since_s = 0.0, now_s

    def set(self, shape: Shape, now_s: float) -> None:
        self._asked_bits = self.asked_bits(now_s)
        self._since_s, self.shape = now_s, shape

    def asked_bits(self, now_s: float) -> float:
        return self._asked_bits + self.shape.rate_bps * (now_s - self._since_s)


class World:
    """Hosts and links. Every method leaves the thread in the supervisor's own namespace."""

    def __init__(self, hosts: Mapping[str, str], prefix_length: int, layer: int) -> None:
        """``hosts``: name to IPv4 address. Raises OSError (NetlinkError) when the kernel refuses something."""
        self.layer = layer
        self.links: dict[tuple[str, str], LinkState] = {}
        self.hosts: dict[str, HostSpace] = {}
        self._netem_works: bool | None = None
        self._own_fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own = netlink.NetlinkSocket()
        self._own.request([netlink.link_up(1), netlink.bridge(BRIDGE, BRIDGE_INDEX, MTU)])
        try:
            for number, (name, ip) in enumerate(hosts.items(), 1):
                self.hosts[name] = self._new_host(name, number, ip)
        finally:
            enter(self._own_fd)
        self._own.request(self._cables())
        for host in self.hosts.values():
            host.netlink.request(self._furnish(host, prefix_length))
            with self.inside(host.name):
                _offloads_off(HOST_INTERFACE)

    def _new_host(self, name: str, number: int, ip: str) -> HostSpace:
        _check(_libc.unshare(CLONE_NEWNET), "unshare")
        _ipv6_off()
        namespace_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        mac = b"\x02\x00" + socket.inet_aton(ip)
        return HostSpace(name, number, ip, mac, namespace_fd, netlink.NetlinkSocket())

    def _cables(self) -> Iterator[bytes]:
        for host in self.hosts.values():
            port = FIRST_PORT + host.number
            yield netlink.veth_pair(
                f"to{host.number}",
                port,
                HOST_INTERFACE,
                HOST_INDEX,
                host.mac,
                MTU,
                master=BRIDGE_INDEX,
                namespace_fd=host.namespace_fd,
            )
            yield netlink.bridge_entry(port, host.mac)

    def _furnish(self, host: HostSpace, prefix_length: int) -> Iterator[bytes]:
        yield netlink.link_up(1)
        yield netlink.link_up(HOST_INDEX)
        yield netlink.address(HOST_INDEX, socket.inet_aton(host.ip), prefix_length)
        for other in self.hosts.values():
            if other is not host:
                yield netlink.neighbour(HOST_INDEX, socket.inet_aton(other.ip), other.mac)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Sockets opened and processes started here belong to host ``name``."""
        enter(self.hosts[name].namespace_fd)
        try:
            yield
        finally:
            enter(self._own_fd)

    def netem_works(self) -> bool:
        """Whether the kernel has netem; tried once, on an interface that nothing uses."""
        if self._netem_works is None:
            try:
                self._own.request([shaping.netem_alone(1)])
                self._netem_works = True
            except netlink.NetlinkError:
                self._netem_works = False
        return self._netem_works

    def shape(self, shapes: Iterable[tuple[str, str, Shape]]) -> int:
        """Set up the links not yet shaped, change the others in place; the number of those changed or set up.

        One batch a host. The rates are floored (``shaping.RATE_FLOOR_BPS``).
        """
        by_source: dict[str, list[bytes]] = {}
        done: list[tuple[tuple[str, str], Shape]] = []
        rooted = {source for source, _ in self.links}
        for source, target, asked in shapes:
            shape = asked._replace(rate_bps=shaping.floored(asked.rate_bps))
            batch = by_source.setdefault(source, [])
            if source not in rooted:
                rooted.add(source)
                batch.append(shaping.root(HOST_INDEX, self.layer))
            batch += self._messages(source, target, shape)
            done.append(((source, target), shape))
        for source, batch in by_source.items():
            self.hosts[source].netlink.request(batch)
        now_s = time.monotonic()
        for link, shape in done:
            if link in self.links:
                self.links[link].set(shape, now_s)
            else:
                self.links[link] = LinkState(self.hosts[link[0]], self.hosts[link[1]], shape, now_s)
        return len(done)

    def _messages(self, source: str, target: str, shape: Shape) -> Iterator[bytes]:
        state, to = self.links.get((source, target)), self.hosts[target]
        if state is None:
            yield shaping.htb_class(HOST_INDEX, to.number, shape.rate_bps, create=True)
            yield shaping.leaf(HOST_INDEX, to.number, shape, create=True)
            yield shaping.to_class(HOST_INDEX, to.number, socket.inet_aton(to.ip))
            return
        old = state.shape
        if shape.rate_bps != old.rate_bps:
            yield shaping.htb_class(HOST_INDEX, to.number, shape.rate_bps)
        if shape.needs_netem != old.needs_netem:
            yield shaping.leaf(HOST_INDEX, to.number, shape, create=True)
        elif shape[1:] != old[1:] or _limit(shape) != _limit(old):
            yield shaping.leaf(HOST_INDEX, to.number, shape)

    def counters(self, source: str) -> dict[str, shaping.ClassCounters]:
        """For every shaped link out of ``source`` its counters, by target."""
        names = {host.number: host.name for host in self.hosts.values()}
        answers = self.hosts[source].netlink.dump(netlink.RTM_GETTCLASS, shaping.class_dump(HOST_INDEX))
        found = (shaping.class_counters(answer) for answer in answers)
        return {names[one.minor]: one for one in found if one is not None}


def _limit(shape: Shape) -> int:
    return shaping.netem_packets(shape) if shape.needs_netem else shaping.queue_bytes(shape.rate_bps)


def _ipv6_off() -> None:
    """No router solicitations and listener reports on the links; a kernel without IPv6 sends none anyway."""
    with suppress(OSError), open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
        setting.write("1")


def _offloads_off(interface: str) -> None:
    """Segmentation offloads off, so that the shaper sees packets as a wire would; ioctl(SIOCETHTOOL)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def probe_kernel() -> dict[str, str]:
    """What this namespace's kernel can do: for each feature an empty text, or why not. Leaves its devices behind.

    To be called once, in a namespace of its own.
    """
    control = netlink.NetlinkSocket()
    verdict: dict[str, str] = {}

    def attempt(name: str, messages: Sequence[bytes]) -> None:
        try:
            control.request(messages)
            verdict[name] = ""
        except OSError as error:
            verdict[name] = error.strerror or str(error)

    mac = b"\x02\x00\x0a\x00\x00\x01"
    attempt("bridge", [netlink.bridge(BRIDGE, BRIDGE_INDEX, MTU)])
    attempt("veth", [netlink.veth_pair("probe0", 20, "probe1", 21, mac, MTU)])
    attempt("htb", [shaping.root(20, 2), shaping.htb_class(20, 1, 1e6, create=True)])
    attempt("stab", [shaping.root(21, 3), shaping.htb_class(21, 1, 1e6, create=True)])
    attempt("bfifo", [shaping.leaf(20, 1, Shape(1e6), create=True)])
    attempt("u32", [shaping.to_class(20, 1, bytes((10, 0, 0, 1)))])
    attempt("netem", [shaping.leaf(20, 1, Shape(1e6, 0.01), create=True)])
    control.close()
    return verdict
