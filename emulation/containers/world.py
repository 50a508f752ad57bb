"""Links of a testbed of containers, on the supervisor's side: shaped from outside, through the containers' namespaces.

The containers get no privileges. This process enters their network namespaces and therefore needs root on the engine's
machine. Processes in the containers cannot undo the shaping.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from thalweg.emulation.containers import machine
from thalweg.emulation.kernel import interfaces
from thalweg.emulation.kernel.host_space import HostSpace, Port
from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.emulation.kernel.world import World, enter
from thalweg.emulation.supervisor.requests import Container
from thalweg.middleware.network.view import NET, cable_of


class ContainerWorld(World):
    """World with running containers as hosts, on networks of the engine."""

    def __init__(
        self,
        containers: Iterable[Container],
        prefix_length: int,
        layer: int,
        *,
        run_id: str = "",
        control_band: bool = False,
    ) -> None:
        """Enter the containers and prepare their links. ``run_id``: the testbed, after which devices are named.

        Raises OSError if a namespace cannot be entered.
        """
        super().__init__(layer, control_band=control_band)
        self.uplink = f"{machine.mark(run_id)}."
        self._mine = interfaces.present()
        try:
            for number, container in enumerate(containers, 1):
                for end in self._enter(number, container):
                    self.ends[cable_of(end.name, end.via)] = end
        finally:
            enter(self._own_fd)
        self.hosts = {end.name: end for end in self.ends.values() if end.via == NET}
        for end in self.ends.values():
            if end.via == NET:
                known = interfaces.neighbours(end, self.hosts.values())
                end.netlink.request([*interfaces.groups(end.interface), *known])
                continue
            end.netlink.request(interfaces.alone(end.interface, end.ip, prefix_length))
            if end.ip6:
                end.netlink.request(interfaces.alone_6(end.interface, end.ip6))
        self.close_further_networks()
        bridges = {self._mine[end.port.interface].bridge for end in self.ends.values()}
        self._own.request(interfaces.detach_senders(index) for index in bridges if index is not None)
        machine.let_pass(run_id, [self._mine[index].name for index in bridges if index is not None])

    def _enter(self, number: int, one: Container) -> Iterator[HostSpace]:
        """Enter a container's namespace and yield its interfaces.

        Raises OSError, before any change, if the namespace is not the container's.
        """
        namespace_fd = os.open(f"/proc/{one.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        enter(namespace_fd)
        by_mac = {interface.mac: (index, interface.other_end) for index, interface in interfaces.present().items()}
        if any(plug.mac not in by_mac for plug in one.plugs):
            raise OSError(errno.ENODEV, f"process {one.pid} is not in the container of {one.name}")
        asking = NetlinkSocket()
        for ip, mac, via, ip6 in one.plugs:
            index, other_end = by_mac[mac]
            port = self._port(one.name, index, other_end)
            yield HostSpace(one.name, number, ip, mac, namespace_fd, asking, index, port, via, ip6)

    def _port(self, name: str, interface: int, other_end: int | None) -> Port:
        """Return the other end of a container's cable. Raises OSError if the end is not in this namespace."""
        port = None if other_end is None else self._mine.get(other_end)
        if other_end is None or port is None or port.other_end != interface:
            raise OSError(
                errno.ENODEV,
                f"the bridge of host {name!r} is not in this machine's network namespace, so its links cannot be"
                " shaped; use an engine that runs as root",
            )
        return Port(other_end, self._own)

    def bridge_mac(self, end: HostSpace) -> bytes | None:
        """Return the address of the engine's bridge, from which the machine itself speaks to containers."""
        bridge = self._mine[end.port.interface].bridge
        interface = None if bridge is None else self._mine.get(bridge)
        return None if interface is None else bytes.fromhex(interface.mac.replace(":", ""))
