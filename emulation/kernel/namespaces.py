"""Hosts that are network namespaces, made here.

One namespace a host, held by an open file descriptor (nothing is bound under /run, so nothing can be left
there); a cable from each into a bridge in the supervisor's own namespace, and one more for each further network
(``eth1``, …), into a bridge of its own. ARP and the bridges' tables are filled in statically, so that no packet travels
that no program sent. In a further network a host reaches those to which it has a link; there is no way to others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from thalweg.emulation.kernel import htb, interfaces, names
from thalweg.emulation.kernel.interfaces import Peer
from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.emulation.kernel.world import HostSpace, Port, World, enter, unshare
from thalweg.emulation.links.shape import LinkShape
from thalweg.middleware.network.view import NET

HOST_INTERFACE, HOST_INDEX = "eth", 2  # of the first network: eth0
BRIDGE, BRIDGE_INDEX, FIRST_PORT = "links", 2, 10
PORTS = 1 << 10  # numbers of interfaces from one network's first port to the next one's


class NamespaceWorld(World):
    """Hosts are namespaces made here, cables between them go to bridges in the supervisor's own namespace."""

    lead = staticmethod(interfaces.way)

    def __init__(
        self, hosts: Mapping[str, str], prefix_length: int, layer: int, networks: Mapping[str, Mapping[str, str]] = {}
    ) -> None:
        """``hosts``: name to IPv4 address; ``networks``: the same of every further one, by its name.

        Raises OSError (NetlinkError) when the kernel refuses something.
        """
        super().__init__(layer)
        bridges = [interfaces.bridge(f"{BRIDGE}{k or ''}", BRIDGE_INDEX + k) for k in range(1 + len(networks))]
        self._own.request([interfaces.up(1), *bridges])
        try:
            for number, (name, ip) in enumerate(hosts.items(), 1):
                self.ends[name] = self.hosts[name] = self._new_host(name, number, ip)
        finally:
            enter(self._own_fd)
        for k, (via, addresses) in enumerate(networks.items(), 1):
            for host in self.hosts.values():
                ip, port = addresses[host.name], Port(FIRST_PORT + k * PORTS + host.number, self._own)
                end = host._replace(ip=ip, mac=_mac(ip), interface=HOST_INDEX + k, port=port, via=via)
                self.ends[host.name, via] = end
        self._own.request(self._cables())
        for host in self.hosts.values():
            host.netlink.request(self._furnish(host, prefix_length))
        for end in self.ends.values():
            if end.via != NET:
                furnished = interfaces.up(end.interface), interfaces.address(end.interface, end.ip, interfaces.ALONE)
                end.netlink.request(furnished)
        self.unnamed, self._hostname = "", ""
        try:
            names.spread(names.named({cable: end.ip for cable, end in self.ends.items()}))
        except OSError as error:  # as in many containers: hosts are reached by address there
            self.unnamed = error.strerror or str(error)

    def at_home(self, name: str) -> None:
        if name != self._hostname:
            with suppress(OSError):  # it keeps the machine's
                names.take_hostname(name)
            self._hostname = name

    def _new_host(self, name: str, number: int, ip: str) -> HostSpace:
        unshare()
        _ipv6_off()
        namespace_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        port = Port(FIRST_PORT + number, self._own)
        return HostSpace(name, number, ip, _mac(ip), namespace_fd, NetlinkSocket(), HOST_INDEX, port)

    def _cables(self) -> Iterator[bytes]:
        for end in self.ends.values():
            assert end.port is not None
            k, port = end.interface - HOST_INDEX, end.port.interface
            peer = Peer(f"{HOST_INTERFACE}{k}", end.interface, end.mac, end.namespace_fd)
            yield interfaces.cable(f"to{end.number}" + (f".{k}" if k else ""), port, peer, BRIDGE_INDEX + k)
            yield interfaces.bridge_entry(port, end.mac)

    def _furnish(self, host: HostSpace, prefix_length: int) -> Iterator[bytes]:
        yield interfaces.up(1)
        yield interfaces.up(HOST_INDEX)
        yield interfaces.address(HOST_INDEX, host.ip, prefix_length)
        yield from interfaces.neighbours(host, self.hosts.values())


def _mac(ip: str) -> str:
    return ":".join(("02:00", *(f"{int(part):02x}" for part in ip.split("."))))


def _ipv6_off() -> None:
    """No router solicitations and listener reports on the links; a kernel without IPv6 sends none anyway."""
    with suppress(OSError), open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
        setting.write("1")


def probe_kernel() -> dict[str, str]:
    """What this namespace's kernel can do: for each feature an empty text, or why not. Leaves its devices behind.

    To be called once, in a namespace of its own.
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
        attempt(name, [htb.root(index, layer), *both])
    attempt("bfifo", [htb.leaf(20, 1, LinkShape(1e6))])
    attempt("u32", [htb.to_class(20, 1, 1, bytes((10, 0, 0, 1)), urgent=True)])
    attempt("netem", [htb.leaf(20, 1, LinkShape(1e6, 0.01))])
    control.close()
    return verdict
