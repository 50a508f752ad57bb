"""The supervisor's side of a testbed of containers: their links, shaped from outside, through their namespaces.

The containers have no privileges for it: this process enters their network namespaces, which takes root on the engine's
machine. Their processes cannot undo it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

from thalweg.emulation.kernel import netlink as netlink
from thalweg.emulation.kernel.world import HostSpace, Port, World, enter, offloads_off

INTERFACE = "eth0"  # of a container with one network


class Container(NamedTuple):
    """One host: its name, address, hardware address, and its first process's number here."""

    name: str
    ip: str
    mac: str
    pid: int


class ContainerWorld(World):
    """Hosts are containers that run already, on a network that the engine made."""

    def __init__(self, containers: Iterable[Container], layer: int) -> None:
        """Raises OSError where a namespace cannot be entered."""
        super().__init__(layer)
        self._mine: dict[int, netlink.Interface] | None = None
        try:
            for number, one in enumerate(containers, 1):
                self.hosts[one.name] = self._enter(number, one)
        finally:
            enter(self._own_fd)
        for host in self.hosts.values():
            others = (other for other in self.hosts.values() if other is not host)
            host.netlink.request(
                [
                    netlink.single_segments(host.interface),
                    *(netlink.neighbour(host.interface, socket.inet_aton(one.ip), one.mac) for one in others),
                ]
            )

    def _enter(self, number: int, one: Container) -> HostSpace:
        """Raises OSError where the namespace is not that of the container, before anything there is touched."""
        namespace_fd = os.open(f"/proc/{one.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(namespace_fd)
        there, mac = netlink.NetlinkSocket(), bytes.fromhex(one.mac.replace(":", ""))
        interface = socket.if_nametoindex(INTERFACE)
        found = netlink.interfaces(there.dump(netlink.RTM_GETLINK, netlink.link_dump())).get(interface)
        if found is None or found.mac != mac:
            raise OSError(errno.ENODEV, f"process {one.pid} is not in the container of {one.name}")
        offloads_off(INTERFACE)
        return HostSpace(
            one.name, number, one.ip, mac, namespace_fd, there, interface, self._port(interface, found.other_end)
        )

    def _port(self, interface: int, other_end: int | None) -> Port | None:
        """The other end of a container's cable, if it is in our namespace."""
        if other_end is None:
            return None
        if self._mine is None:
            self._mine = netlink.interfaces(self._own.dump(netlink.RTM_GETLINK, netlink.link_dump()))
        ours = self._mine.get(other_end)
        return Port(other_end, self._own) if ours is not None and ours.other_end == interface else None
