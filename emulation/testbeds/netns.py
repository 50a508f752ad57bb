"""Netns testbed, launcher's side: hosts are network namespaces, and tc shapes the links."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Unpack

from thalweg.emulation.kernel.folders import Folders, usable_private, within
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import StartedSupervisor, start_isolated
from thalweg.emulation.testbeds.testbed import NetworkOptions, Testbed
from thalweg.middleware.errors import UsageError

MAX_HOSTS = 1023  # ports of one Linux bridge (BR_PORT_BITS)
SUBNET = "10.77.0.0/16"  # seen only inside the testbed's own namespaces


def host_addresses(names: Sequence[str], subnet: str) -> dict[str, str]:
    """Return an address of ``subnet`` for every name. Raises UsageError if the subnet has too few."""
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise UsageError(f"bad subnet {subnet!r}: {error}") from None
    room = min(max(network.num_addresses - 2, 0), MAX_HOSTS)
    if len(names) > room:
        holder, remedy = f"subnet {subnet}", "ask for fewer, or a wider subnet"
        if room == MAX_HOSTS:
            holder, remedy = "testbed", "ask for fewer"
        raise UsageError(f"{len(names)} hosts are asked for, but the {holder} has {room} addresses; {remedy}")
    return dict(zip(names, map(str, itertools.islice(network.hosts(), len(names))), strict=True))


def next_subnet(subnet: str) -> str:
    """Return the following subnet of the same size, for a further network. Raises UsageError after the last."""
    network = ipaddress.IPv4Network(subnet)
    try:
        return str(ipaddress.IPv4Network((int(network.network_address) + network.num_addresses, network.prefixlen)))
    except ValueError:
        raise UsageError(f"there is no subnet behind {subnet} for a further network; give a lower one") from None


class NetnsTestbed(Testbed):
    """Testbed whose hosts are network namespaces on one machine, inside a user namespace unless root."""

    backend: ClassVar[str] = "netns"

    def __init__(
        self,
        hosts: Sequence[str],
        run_id: str | None = None,
        *,
        subnet: str = SUBNET,
        private: Folders = (),
        **network: Unpack[NetworkOptions],
    ) -> None:
        """Assign addresses to the hosts. ``network``: as for ``Testbed``.

        ``subnet``: of the common network. Further networks have the subnets after it. ``private``: folders of which
        every host has its own copy. Raises UsageError for a folder that cannot be private.
        """
        super().__init__(hosts, run_id, **network)
        self.private = usable_private(private)
        self.subnet = subnet
        self._addresses = host_addresses(self._names, subnet)
        for via in self._networks:
            self.subnets[via] = subnet = next_subnet(subnet)
            self._networks[via] = host_addresses(self._names, subnet)

    def _start(self, listener: socket.socket | None) -> StartedSupervisor:
        started = self._supervisor(listener)
        prefix_length = ipaddress.IPv4Network(self.subnet).prefixlen
        try:
            asked = requests.Build(
                self._addresses, prefix_length, self.layer, dict(self._networks), self.ipv6, self.control_band,
                self.private,
            )  # fmt: skip
            built = started.client.call(asked)
        except BaseException:
            started.close()
            raise
        self.unnamed = built["unnamed"]
        return started

    def _supervisor(self, listener: socket.socket | None) -> StartedSupervisor:
        """Start and return the supervisor. The hosts run on its kernel."""
        return start_isolated(self.run_id, listener)

    def outbox(self, folder: Path) -> Path:
        """Return ``folder``. Raises UsageError if ``folder`` is in a folder of which every host has its own copy."""
        if own := next((own for own in self.private if within(os.path.realpath(folder), own)), None):
            raise UsageError(
                f"{folder} is in {own}, of which each host has its own (private), so what hosts write there would be"
                f" lost; write it elsewhere (--out), or leave {own} out"
            )
        return folder
