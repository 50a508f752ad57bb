"""Bridges, cables, addresses and neighbours as netlink messages, and dumps of interfaces, which pyroute2 reads.

Messages go out in batches (``netlink.NetlinkSocket``), as those of queues do (``htb``, ``netem``). Namespaces are made
and entered by system call (``world``). pyroute2 takes longer to import than nine hosts take from up to down, its
messages alone a fifth of a supervisor's start. So only testbeds of containers import it, to read what is there. The
tests decode with pyroute2 what is encoded here.

Source: linux/if_link.h, linux/if_addr.h, linux/neighbour.h, linux/rtnetlink.h; rtnetlink(7).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import ip_interface
from typing import NamedTuple

from thalweg.emulation.kernel.host_space import HostSpace
from thalweg.emulation.kernel.names import SUBNET_6
from thalweg.emulation.kernel.netlink import (
    LINK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    ROUTE,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    attribute,
    message,
    number,
    text,
)
from thalweg.emulation.links.shape import PACKET_BYTES

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 4, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_BR_MCAST_SNOOPING, VETH_INFO_PEER = 1, 2, 23, 1
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
RTA_DST, RTA_OIF, RTA_PREFSRC, RTA_METRICS, RTA_TABLE, RTAX_MTU = 1, 4, 7, 8, 15, 2
NDA_DST, NDA_LLADDR = 1, 2
IFF_UP, IFF_PROMISC = 0x1, 0x100
AF_BRIDGE = 7  # linux/socket.h
MAIN_TABLE, STATIC, LINK_SCOPE, UNICAST, UNREACHABLE = 254, 4, 253, 1, 7
ALONE, ALONE_6 = 32, 128  # the prefixes of an address by itself
IFA_F_NODAD = 0x02
NUD_NOARP, NUD_PERMANENT, NTF_MASTER, NTF_STICKY = 0x40, 0x80, 0x04, 0x40
MAKE = NLM_F_CREATE | NLM_F_EXCL

_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, length of the prefix, flags, scope, index
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type


def _link(how: int, index: int, *attributes: bytes, up: bool = False) -> bytes:
    state = IFF_UP if up else 0
    return message(RTM_NEWLINK, how, LINK.pack(socket.AF_UNSPEC, 0, index, state, state) + b"".join(attributes))


def _of_kind(kind: str, *attributes: bytes) -> bytes:
    data = attribute(IFLA_INFO_DATA, b"".join(attributes)) if attributes else b""
    return attribute(IFLA_LINKINFO, text(IFLA_INFO_KIND, kind) + data)


def _hardware(kind: int, mac: str) -> bytes:
    return attribute(kind, bytes.fromhex(mac.replace(":", "")))


def _ip(kind: int, ip: str) -> bytes:
    return attribute(kind, socket.inet_pton(_family(ip), ip))


def _family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


@cache
def up(index: int) -> bytes:
    """Return a message that brings an interface up."""
    return _link(0, index, up=True)


def down(index: int) -> bytes:
    """Return a message that takes an interface down. The other end of its cable loses its carrier."""
    return message(RTM_NEWLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, 0, IFF_UP))


def bridge(name: str, index: int) -> bytes:
    """Return a message that creates a bridge without multicast snooping. It carries nothing until it is up."""
    kind = _of_kind("bridge", attribute(IFLA_BR_MCAST_SNOOPING, b"\0"))
    return _link(MAKE, index, text(IFLA_IFNAME, name), number(IFLA_MTU, PACKET_BYTES), kind)


def detach_senders(bridge: int) -> bytes:
    """Return a message that makes a bridge forward copies, by setting it promiscuous.

    A frame is charged to its sender's socket until it is freed, also in a queue behind a veth pair and a bridge. TCP
    small queues would then keep that queue empty. A promiscuous bridge forwards a clone, which is charged to nobody,
    and frees the original (net/bridge/br_input.c, br_handle_frame_finish; br_forward.c, deliver_clone).
    """
    return message(RTM_NEWLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, bridge, IFF_PROMISC, IFF_PROMISC))


class Peer(NamedTuple):
    """The far end of a cable: its name, number and hardware address; ``namespace_fd``: where it is, if not here."""

    name: str
    number: int
    mac: str
    namespace_fd: int | None = None


def cable(name: str, index: int, peer: Peer, master: int | None = None) -> bytes:
    """Create a veth pair: one end here, up (a port of ``master`` if given), its peer down.

    The peer cannot come up before the pair is complete.
    """
    there = [text(IFLA_IFNAME, peer.name), number(IFLA_MTU, PACKET_BYTES), _hardware(IFLA_ADDRESS, peer.mac)]
    if peer.namespace_fd is not None:
        there.append(number(IFLA_NET_NS_FD, peer.namespace_fd))
    whole = LINK.pack(socket.AF_UNSPEC, 0, peer.number, 0, 0) + b"".join(there)
    kind = _of_kind("veth", attribute(VETH_INFO_PEER, whole))
    port = [] if master is None else [number(IFLA_MASTER, master)]
    return _link(MAKE, index, text(IFLA_IFNAME, name), number(IFLA_MTU, PACKET_BYTES), kind, *port, up=True)


def ifb(name: str) -> bytes:
    """Create an ifb device that is up: what is sent to it comes back where it was taken from, later."""
    return _link(MAKE, 0, text(IFLA_IFNAME, name), _of_kind("ifb"), up=True)


def remove(index: int) -> bytes:
    """Remove an interface."""
    return message(RTM_DELLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0))


def _address(action: int, how: int, index: int, ip: str, prefix_length: int, *attributes: bytes) -> bytes:
    body = _ADDRESS.pack(_family(ip), prefix_length, 0, 0, index)
    own = (_ip(IFA_ADDRESS, ip),) if ":" in ip else (_ip(IFA_LOCAL, ip), _ip(IFA_ADDRESS, ip))
    return message(action, how, body + b"".join((*own, *attributes)))


def address(index: int, ip: str, prefix_length: int) -> bytes:
    """Give an interface an address; one of IPv6 at once, without asking whether others have it."""
    flags = [number(IFA_FLAGS, IFA_F_NODAD)] if ":" in ip else []
    return _address(RTM_NEWADDR, MAKE, index, ip, prefix_length, *flags)


def _route(ip: str, length: int, kind: int, scope: int, *attributes: bytes) -> bytes:
    """A way to an address, or to all with the same beginning, in place of the one that is there."""
    body = ROUTE.pack(_family(ip), length, 0, 0, MAIN_TABLE, STATIC, scope, kind, 0)
    ways = (_ip(RTA_DST, ip), *attributes, number(RTA_TABLE, MAIN_TABLE))
    return message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body + b"".join(ways))


@cache
def groups(index: int) -> tuple[bytes, ...]:
    """Ways for what is sent to all and to groups, where a host has no default route: out of this interface.

    IPv6 has a way to its groups by itself.
    """
    everything = (("224.0.0.0", 4), ("255.255.255.255", ALONE))
    return tuple(_route(ip, length, UNICAST, LINK_SCOPE, number(RTA_OIF, index)) for ip, length in everything)


def alone(index: int, ip: str, prefix_length: int) -> Iterator[bytes]:
    """Have an interface's IPv4 address join no subnet any more: it leads nowhere until it is given ways.

    Nor does another interface lead to that subnet, as one with a default route would.
    """
    yield _address(RTM_DELADDR, 0, index, ip, prefix_length)
    yield address(index, ip, ALONE)
    subnet = ip_interface(f"{ip}/{prefix_length}").network.network_address
    yield _route(str(subnet), prefix_length, UNREACHABLE, 0)


def alone_6(index: int, ip: str) -> Iterator[bytes]:
    """The same of an IPv6 address."""
    yield _address(RTM_DELADDR, 0, index, ip, SUBNET_6)
    yield address(index, ip, ALONE_6)


def way(host: HostSpace, other: HostSpace) -> Iterator[bytes]:
    """Let ``host`` reach one other over an interface that leads nowhere by itself."""
    for ip in filter(None, (other.ip, host.ip6 and other.ip6)):
        yield _neighbour(host.interface, ip, other.mac)
    yield from _routes(host, other)


def _routes(host: HostSpace, other: HostSpace, *attributes: bytes) -> Iterator[bytes]:
    for ours, theirs, length in ((host.ip, other.ip, ALONE), (host.ip6, other.ip6, ALONE_6)):
        if ours and theirs:
            leads = (number(RTA_OIF, host.interface), _ip(RTA_PREFSRC, ours), *attributes)
            yield _route(theirs, length, UNICAST, LINK_SCOPE if length == ALONE else 0, *leads)


def path_mtu(host: HostSpace, other: HostSpace, mtu: int | None) -> Iterator[bytes]:
    """Let ``host`` know the MTU of the path to another, by a route to it alone. None: that of the interface."""
    metrics = [] if mtu is None else [attribute(RTA_METRICS, number(RTAX_MTU, mtu))]
    yield from _routes(host, other, *metrics)


def neighbours(host: HostSpace, hosts: Iterable[HostSpace]) -> Iterator[bytes]:
    """Permanent entries for all other hosts, so that no questions for addresses travel on shaped links."""
    for other in hosts:
        if other is not host:
            yield _neighbour(host.interface, other.ip, other.mac)
            if other.ip6:
                yield _neighbour(host.interface, other.ip6, other.mac)


@cache  # most hosts' interfaces have the same number
def _neighbour(index: int, ip: str, mac: str) -> bytes:
    body = _NEIGHBOUR.pack(_family(ip), index, NUD_PERMANENT, 0, 0) + _ip(NDA_DST, ip) + _hardware(NDA_LLADDR, mac)
    return message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)


def bridge_entry(port: int, mac: str) -> bytes:
    """A forwarding entry that stays: the bridge never floods, and no host gets another's frames by its address."""
    body = _NEIGHBOUR.pack(AF_BRIDGE, port, NUD_NOARP, NTF_MASTER | NTF_STICKY, 0) + _hardware(NDA_LLADDR, mac)
    return message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)


class Interface(NamedTuple):
    """An interface of a namespace: its hardware address; of a veth the index of its other end, where that is; of a
    bridge's port the index of the bridge; its name and kind.
    """

    mac: str
    other_end: int | None
    bridge: int | None
    name: str
    kind: str


def present() -> dict[int, Interface]:
    """The interfaces of the namespace that this thread is in, by index."""
    from pyroute2 import IPRoute  # the whole, which only testbeds of containers need

    with IPRoute() as here:
        found = {one["index"]: one for one in here.get_links()}
    return {
        index: Interface(
            one.get_attr("IFLA_ADDRESS") or "", one.get_attr("IFLA_LINK"), one.get_attr("IFLA_MASTER"),
            one.get_attr("IFLA_IFNAME") or "", one.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
        )
        for index, one in found.items()
    }  # fmt: skip
