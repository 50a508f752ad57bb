"""Supervisor's view of a host's end of a network."""

from __future__ import annotations

from typing import NamedTuple

from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.middleware.network.view import NET


class Port(NamedTuple):
    """Bridge port at the far end of a host's cable. Links to the host are shaped here, where frames leave the bridge.

    ``netlink``: a socket of the namespace that contains the interface, an index.
    """

    interface: int
    netlink: NetlinkSocket


class HostSpace(NamedTuple):
    """Host's end of a network: the host's namespace, its interface there, and a netlink socket that stays there.

    ``number`` counts hosts from 1. ``interface``: index of the interface. ``port``: far end of the cable. ``via``: the
    network. ``ip6``: IPv6 address, empty if the host has none.
    """

    name: str
    number: int
    ip: str
    mac: str
    namespace_fd: int
    netlink: NetlinkSocket
    interface: int
    port: Port
    via: str = NET
    ip6: str = ""

    @property
    def mac_bytes(self) -> bytes:
        return bytes.fromhex(self.mac.replace(":", ""))
