"""Hosts that are network namespaces, made here.

One namespace a host, held by an open file descriptor (nothing is bound under /run, so nothing can be left
there); a cable from each into a bridge in the supervisor's own namespace. ARP and the bridge's table are filled in
statically, so that no packet travels that no program sent.
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

HOST_INTERFACE, HOST_INDEX = "eth0", 2
BRIDGE, BRIDGE_INDEX, FIRST_PORT = "links", 2, 10


class NamespaceWorld(World):
    """Hosts are namespaces made here, cables between them go to one bridge in the supervisor's own namespace."""

    def __init__(self, hosts: Mapping[str, str], prefix_length: int, layer: int) -> None:
        """``hosts``: name to IPv4 address. Raises OSError (NetlinkError) when the kernel refuses something."""
        super().__init__(layer)
        self._own.request([interfaces.up(1), interfaces.bridge(BRIDGE, BRIDGE_INDEX)])
        try:
            for number, (name, ip) in enumerate(hosts.items(), 1):
                self.hosts[name] = self._new_host(name, number, ip)
        finally:
            enter(self._own_fd)
        self._own.request(self._cables())
        for host in self.hosts.values():
            host.netlink.request(self._furnish(host, prefix_length))
        self.unnamed, self._hostname = "", ""
        try:
            names.spread(hosts)
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
        mac = ":".join(("02:00", *(f"{int(part):02x}" for part in ip.split("."))))
        port = Port(FIRST_PORT + number, self._own)
        return HostSpace(name, number, ip, mac, namespace_fd, NetlinkSocket(), HOST_INDEX, port)

    def _cables(self) -> Iterator[bytes]:
        for host in self.hosts.values():
            port = FIRST_PORT + host.number
            peer = Peer(HOST_INTERFACE, HOST_INDEX, host.mac, host.namespace_fd)
            yield interfaces.cable(f"to{host.number}", port, peer, BRIDGE_INDEX)
            yield interfaces.bridge_entry(port, host.mac)

    def _furnish(self, host: HostSpace, prefix_length: int) -> Iterator[bytes]:
        yield interfaces.up(1)
        yield interfaces.up(HOST_INDEX)
        yield interfaces.address(HOST_INDEX, host.ip, prefix_length)
        yield from interfaces.neighbours(host, self.hosts.values())


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
