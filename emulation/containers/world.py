"""The supervisor's side of a testbed of containers: their links, shaped from outside, through their namespaces.

The containers have no privileges for it: this process enters their network namespaces, which takes root on the engine's
machine. Their processes cannot undo it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping

from thalweg.emulation.kernel import interfaces
from thalweg.emulation.kernel.interfaces import Interface
from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.emulation.kernel.world import HostSpace, Port, World, enter
from thalweg.emulation.supervisor.requests import Container

INTERFACE = "eth0"  # of a container with one network


class ContainerWorld(World):
    """Hosts are containers that run already, on a network that the engine made."""

    def __init__(self, containers: Iterable[Container], layer: int) -> None:
        """Raises OSError where a namespace cannot be entered."""
        super().__init__(layer)
        mine = interfaces.present()
        try:
            for number, one in enumerate(containers, 1):
                self.hosts[one.name] = self._enter(number, one, mine)
        finally:
            enter(self._own_fd)
        for host in self.hosts.values():
            host.netlink.request(interfaces.neighbours(host, self.hosts.values()))

    def _enter(self, number: int, one: Container, mine: Mapping[int, Interface]) -> HostSpace:
        """Raises OSError where the namespace is not that of the container, before anything there is touched."""
        namespace_fd = os.open(f"/proc/{one.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(namespace_fd)
        index = socket.if_nametoindex(INTERFACE)
        found = interfaces.present().get(index)
        if found is None or found.mac != one.mac:
            raise OSError(errno.ENODEV, f"process {one.pid} is not in the container of {one.name}")
        port = self._port(index, found.other_end, mine)
        return HostSpace(one.name, number, one.ip, one.mac, namespace_fd, NetlinkSocket(), index, port)

    def _port(self, interface: int, other_end: int | None, mine: Mapping[int, Interface]) -> Port | None:
        """The other end of a container's cable, if it is in our namespace."""
        ours = None if other_end is None else mine.get(other_end)
        if other_end is None or ours is None or ours.other_end != interface:
            return None
        return Port(other_end, self._own)
