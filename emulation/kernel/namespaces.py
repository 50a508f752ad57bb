"""Hosts as network namespaces that the supervisor makes.

Every host has one namespace, held by an open file descriptor. Nothing is bound under /run, so nothing can be left
there. A cable leads from every host into a bridge in the supervisor's own namespace. A further network (``eth1``, …)
has further cables, into a bridge of its own. Neighbours and the bridges' tables are filled in statically, and IPv6
keeps quiet (``QUIET``). So only packets of programs travel, except for one IPv6 report of groups from each host as it
comes up. In a further network, a host reaches only hosts to which it has a link.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress

from thalweg.emulation.kernel import folders, htb, interfaces, names
from thalweg.emulation.kernel.folders import Places
from thalweg.emulation.kernel.host_space import HostSpace, Port
from thalweg.emulation.kernel.interfaces import Peer
from thalweg.emulation.kernel.names import SUBNET_6, ipv6_beside
from thalweg.emulation.kernel.netlink import RTMGRP_LINK, NetlinkSocket
from thalweg.emulation.kernel.world import World, enter, unshare
from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.links.units import MANAGED
from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.network.view import NET

HOST_INTERFACE, HOST_INDEX = "eth", 2  # of the first network: eth0
BRIDGE, BRIDGE_INDEX, FIRST_PORT = "links", 2, 10
IPV6, FORWARDING = "/proc/sys/net/ipv6", "/proc/sys/net/ipv4/ip_forward"
FILTERED = [f"/proc/sys/net/bridge/bridge-nf-call-{tables}" for tables in ("iptables", "ip6tables", "arptables")]
PORTS = 1 << 10  # interface numbers between the first ports of two networks
PORTS_READY_S = 60.0  # limit of the wait for carriers


QUIET = {
    "accept_ra": 0, "autoconf": 0, "router_solicitations": 0, "dad_transmits": 0, "accept_dad": 0,
    "mldv1_unsolicited_report_interval": 2**31 - 1, "mldv2_unsolicited_report_interval": 2**31 - 1,
}  # fmt: skip
"""IPv6 settings that stop solicitations of routers and neighbours, and delay reports of groups by weeks."""


class NamespaceWorld(World):
    """World whose hosts are namespaces made here, with cables to bridges in the supervisor's own namespace."""

    def __init__(
        self,
        hosts: Mapping[str, str],
        prefix_length: int,
        layer: int,
        networks: Mapping[str, Mapping[str, str]] = {},
        *,
        ipv6: bool = True,
        control_band: bool = False,
        private: Sequence[str] = (),
    ) -> None:
        """Make hosts and cables. ``hosts``: name to IPv4 address. ``networks``: such maps for further networks.

        ``ipv6``: if the kernel has IPv6, hosts also have IPv6 addresses. ``private``: own folders of every host. Raise
        OSError (NetlinkError) if the kernel refuses a message. Raise CapabilityError for own folders if nothing can be
        mounted.
        """
        super().__init__(layer, control_band=control_band)
        self.ipv6 = ipv6 and os.path.exists(IPV6)
        _set_ipv6({"disable_ipv6": 1})  # for the bridges and their ports
        for filtered in FILTERED:  # else the kernel filters, reassembles and drops frames as a router does
            _write(filtered, 0)
        bridges = [interfaces.bridge(f"{BRIDGE}{k or ''}", BRIDGE_INDEX + k) for k in range(1 + len(networks))]
        detached = [interfaces.detach_senders(BRIDGE_INDEX + k) for k in range(len(bridges))]
        self._own.request([interfaces.up(1), *bridges, *detached])
        addresses_6 = self._addresses_6(hosts, prefix_length)
        try:
            for number, (name, ip) in enumerate(hosts.items(), 1):
                self.ends[name] = self.hosts[name] = self._new_host(name, number, ip, addresses_6.get(name, ""))
        finally:
            enter(self._own_fd)
        for k, (via, addresses) in enumerate(networks.items(), 1):
            addresses_6 = self._addresses_6(addresses, prefix_length)
            for host in self.hosts.values():
                ip, port = addresses[host.name], Port(FIRST_PORT + k * PORTS + host.number, self._own)
                end = host._replace(ip=ip, mac=_mac(ip), interface=HOST_INDEX + k, port=port, via=via)
                self.ends[host.name, via] = end._replace(ip6=addresses_6.get(host.name, ""))
        self._own.request(self._cables())
        for host in self.hosts.values():
            host.netlink.request(self._furnish(host, prefix_length))
        for end in self.ends.values():
            if end.via != NET:
                furnished = [interfaces.up(end.interface), interfaces.address(end.interface, end.ip, interfaces.ALONE)]
                if end.ip6:
                    furnished.append(interfaces.address(end.interface, end.ip6, interfaces.ALONE_6))
                end.netlink.request(furnished)
        self._bring_up_bridges(1 + len(networks))
        self.close_further_networks()
        self.unnamed, self._hostname = "", ""
        self.private, self._places = private, self._new_places(private)

    def _bring_up_bridges(self, count: int) -> None:
        """Bring the bridges up, and wait until all their ports forward frames.

        The kernel looks for news of carriers about once a second. If it looks just before a host's end of a cable is
        up, it closes the port, and opens it a second later. Raise OSError after ``PORTS_READY_S``.
        """
        with closing(NetlinkSocket(groups=RTMGRP_LINK)) as news:
            self._own.request(interfaces.up(BRIDGE_INDEX + k) for k in range(count))
            until_s = time.monotonic() + PORTS_READY_S
            while silent := interfaces.silent_ports(self._own):
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    cable = next(name for name, end in self.ends.items() if end.port.interface in silent)
                    raise OSError(errno.ETIMEDOUT, f"the cable of {cable} has no carrier after {PORTS_READY_S:g} s")
                news.wait_for_news(left_s)

    def _addresses_6(self, addresses: Mapping[str, str], prefix_length: int) -> dict[str, str]:
        return {name: ipv6_beside(ip, prefix_length) for name, ip in addresses.items()} if self.ipv6 else {}

    def _new_places(self, private: Sequence[str]) -> Places | None:
        """Make the names of hosts known on every host, and return the places with the own folders.

        None: mount namespaces are not allowed here.
        """
        try:
            folders.own_mounts()
        except OSError as error:  # as in many containers: hosts are then reached by address
            self.unnamed = why = error.strerror or str(error)
        else:
            try:
                known = {cable: [end.ip, *filter(None, [end.ip6])] for cable, end in self.ends.items()}
                names.spread(names.named(known))
            except OSError as error:
                self.unnamed = error.strerror or str(error)
            try:
                return Places([*self.hosts], private)
            except OSError as error:
                why = error.strerror or str(error)
        if private:
            raise CapabilityError(
                f"hosts cannot have {', '.join(private)} of their own here ({why}); leave private out, or use --kernel"
                " uml or docker"
            )
        return None

    @contextmanager
    def at_home(self, name: str) -> Iterator[None]:
        if name != self._hostname:
            with suppress(OSError):  # if this is not allowed, the machine's hostname stays
                names.take_hostname(name)
            self._hostname = name
        with nullcontext() if self._places is None else self._places.inside(name), self.inside(name):
            yield

    def _new_host(self, name: str, number: int, ip: str, ip6: str) -> HostSpace:
        unshare()
        _set_ipv6(QUIET if self.ipv6 else {"disable_ipv6": 1})
        _write(FORWARDING, 0)  # else the setting of the machine holds
        namespace_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        port = Port(FIRST_PORT + number, self._own)
        return HostSpace(name, number, ip, _mac(ip), namespace_fd, NetlinkSocket(), HOST_INDEX, port, ip6=ip6)

    def _cables(self) -> Iterator[bytes]:
        for end in self.ends.values():
            k, port = end.interface - HOST_INDEX, end.port.interface
            peer = Peer(f"{HOST_INTERFACE}{k}", end.interface, end.mac, end.namespace_fd)
            yield interfaces.cable(f"to{end.number}" + (f".{k}" if k else ""), port, peer, BRIDGE_INDEX + k)
            yield interfaces.bridge_entry(port, end.mac)

    def _furnish(self, host: HostSpace, prefix_length: int) -> Iterator[bytes]:
        yield interfaces.up(1)
        yield interfaces.up(HOST_INDEX)
        yield interfaces.address(HOST_INDEX, host.ip, prefix_length)
        if host.ip6:
            yield interfaces.address(HOST_INDEX, host.ip6, SUBNET_6)
        yield from interfaces.groups(HOST_INDEX)
        yield from interfaces.neighbours(host, self.hosts.values())


def _mac(ip: str) -> str:
    return ":".join(("02:00", *(f"{int(part):02x}" for part in ip.split("."))))


def _set_ipv6(settings: Mapping[str, int]) -> None:
    """Set defaults of IPv6 for interfaces that are created later in this thread's namespace."""
    for name, value in settings.items():
        _write(f"{IPV6}/conf/default/{name}", value)


def _write(setting: str, value: int) -> None:
    """Write a setting of this thread's network namespace, unless the kernel lacks or protects the setting."""
    with suppress(OSError), open(setting, "w") as file:
        file.write(str(value))


def probe_kernel() -> dict[str, str]:
    """Test features of the kernel. Return for every feature an empty text, or why the kernel lacks the feature.

    Call this once, in an own namespace, because the devices of the test stay.
    """
    control = NetlinkSocket()
    verdict: dict[str, str] = {}

    def attempt(name: str, messages: Sequence[bytes]) -> None:
        try:
            control.request(messages)
            verdict[name] = ""
        except OSError as error:
            verdict[name] = error.strerror or str(error)

    attempt("bridge", [interfaces.bridge(BRIDGE, BRIDGE_INDEX)])
    attempt("veth", [interfaces.cable("probe0", 20, Peer("probe1", 21, "02:00:0a:00:00:01"))])
    for name, index, layer in (("htb", 20, 2), ("stab", 21, 3)):
        both = (htb.interface_class(index, None), htb.htb_class(index, 1, 1e6))
        attempt(name, [htb.root(index, layer, 0), *both])
    attempt("bfifo", [*htb.leaf(20, 1, LinkShape(1e6))])
    mac = bytes((2, 0, 10, 0, 0, 1))
    attempt("u32", [*htb.port(20), htb.to_class(20, 1, mac, 1), htb.urgent_to_class(20, 1, mac, 1, 4)])
    attempt("netem", [*htb.leaf(20, 1, LinkShape(1e6, 0.01))])
    for discipline in MANAGED:
        attempt(discipline, [*htb.leaf(21, 1, LinkShape(1e6, queue=Queue(0.1, "s", discipline)))])
    attempt("ifb", [interfaces.ifb("probe2")])
    if not verdict["ifb"]:
        attempt("ifb", [*htb.through(20, socket.if_nametoindex("probe2"))])
    control.close()
    return verdict
