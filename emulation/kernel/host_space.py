"""A host's end of a network, as its supervisor holds it."""

from __future__ import annotations

from typing import NamedTuple

from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.middleware.network.view import NET


class Port(NamedTuple):
    """The other end of a host's cable, a port of a bridge: the host's links are shaped here, where frames leave for it.

    ``netlink``: a socket of the namespace that the interface (an index) is in.
    """

    interface: int
    netlink: NetlinkSocket


class HostSpace(NamedTuple):
    """A host's end of a network: its namespace, its interface there, and a netlink socket that stays there.

    ``number`` counts hosts from 1; ``interface`` is that interface's index; ``port``: its cable's other end. ``via``:
    the network. ``ip6``: its IPv6 address, empty where it has none.
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
