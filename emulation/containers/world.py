"""The supervisor's side of a testbed of containers: their links, shaped from outside, through their namespaces.

The containers have no privileges for it: this process enters their network namespaces, which takes root on the engine's
machine. Their processes cannot undo it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import NamedTuple

from thalweg.emulation import netns_netlink as netlink
from thalweg.emulation.netns_world import HostSpace, Port, World, enter, offloads_off

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
        namespace_fd = os.open(f"/proc/{one.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(namespace_fd)
        offloads_off(INTERFACE)
        mac, interface = bytes.fromhex(one.mac.replace(":", "")), socket.if_nametoindex(INTERFACE)
        there = netlink.NetlinkSocket()
        ends = netlink.cable_ends(there.dump(netlink.RTM_GETLINK, netlink.link_dump()))
        port = Port(ends[interface], self._own) if interface in ends else None
        return HostSpace(one.name, number, one.ip, mac, namespace_fd, there, interface, port)
