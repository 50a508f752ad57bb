"""The supervisor's side of a testbed of containers: their links, shaped from outside, through their namespaces.

The containers have no privileges for it: this process enters their network namespaces, which takes root on the engine's
machine. Their processes cannot undo it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping

from thalweg.emulation.kernel import interfaces
from thalweg.emulation.kernel.interfaces import Interface
from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.emulation.kernel.world import HostSpace, Port, World, enter
from thalweg.emulation.supervisor.requests import Container
from thalweg.middleware.network.view import NET, cable_of


class ContainerWorld(World):
    """Hosts are containers that run already, on networks that the engine made."""

    lead = staticmethod(interfaces.way)

    def __init__(self, containers: Iterable[Container], prefix_length: int, layer: int) -> None:
        """Raises OSError where a namespace cannot be entered."""
        super().__init__(layer)
        mine = interfaces.present()
        try:
            for number, one in enumerate(containers, 1):
                for end in self._enter(number, one, mine):
                    self.ends[cable_of(end.name, end.via)] = end
        finally:
            enter(self._own_fd)
        self.hosts = {end.name: end for end in self.ends.values() if end.via == NET}
        for end in self.ends.values():
            if end.via == NET:
                end.netlink.request(interfaces.neighbours(end, self.hosts.values()))
            else:
                end.netlink.request(interfaces.alone(end.interface, end.ip, prefix_length))

    def _enter(self, number: int, one: Container, mine: Mapping[int, Interface]) -> Iterator[HostSpace]:
        """Raises OSError where the namespace is not that of the container, before anything there is touched."""
        namespace_fd = os.open(f"/proc/{one.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(namespace_fd)
        by_mac = {found.mac: (index, found.other_end) for index, found in interfaces.present().items()}
        if any(plug.mac not in by_mac for plug in one.plugs):
            raise OSError(errno.ENODEV, f"process {one.pid} is not in the container of {one.name}")
        asking = NetlinkSocket()
        for ip, mac, via in one.plugs:
            index, other_end = by_mac[mac]
            port = self._port(index, other_end, mine)
            yield HostSpace(one.name, number, ip, mac, namespace_fd, asking, index, port, via)

    def _port(self, interface: int, other_end: int | None, mine: Mapping[int, Interface]) -> Port | None:
        """The other end of a container's cable, if it is in our namespace."""
        ours = None if other_end is None else mine.get(other_end)
        if other_end is None or ours is None or ours.other_end != interface:
            return None
        return Port(other_end, self._own)
