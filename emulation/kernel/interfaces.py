"""Netlink messages for bridges, cables, addresses and neighbours, and dumps of interfaces by pyroute2.

Messages are sent in batches (``netlink.NetlinkSocket``), like the messages of queues (``htb``, ``netem``). Namespaces
are made and entered by system call (``world``). The import of pyroute2 takes longer than nine hosts take from up to
down. The import of its messages alone takes a fifth of a supervisor's start. So only testbeds of containers import
pyroute2, to read the existing interfaces. The tests decode with pyroute2 the messages that are encoded here.

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
    RTM_GETLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    NetlinkSocket,
    attribute,
    attributes,
    message,
    number,
    text,
)
from thalweg.emulation.links.shape import PACKET_BYTES

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 4, 10, 18, 28
IFLA_PROTINFO, IFLA_BRPORT_STATE, FORWARDS = 12, 1, b"\x03"
IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_BR_MCAST_SNOOPING, VETH_INFO_PEER = 1, 2, 23, 1
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
RTA_DST, RTA_OIF, RTA_PREFSRC, RTA_METRICS, RTA_TABLE, RTAX_MTU = 1, 4, 7, 8, 15, 2
NDA_DST, NDA_LLADDR = 1, 2
IFF_UP, IFF_PROMISC = 0x1, 0x100
AF_BRIDGE = 7  # linux/socket.h
MAIN_TABLE, STATIC, LINK_SCOPE, UNICAST, UNREACHABLE = 254, 4, 253, 1, 7
ALONE, ALONE_6 = 32, 128  # prefix lengths of a single address
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
    """Return a message that takes an interface down, so the far end of the cable loses its carrier."""
    return message(RTM_NEWLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, 0, IFF_UP))


def bridge(name: str, index: int) -> bytes:
    """Return a message that creates a bridge without multicast snooping. Until the bridge is up, it carries nothing."""
    kind = _of_kind("bridge", attribute(IFLA_BR_MCAST_SNOOPING, b"\0"))
    return _link(MAKE, index, text(IFLA_IFNAME, name), number(IFLA_MTU, PACKET_BYTES), kind)


def silent_ports(control: NetlinkSocket) -> set[int]:
    """Return the indices of the ports of bridges in a namespace that do not forward frames.

    A new port forwards frames until the kernel notices that the far end of the cable is down.
    """
    silent = set()
    for link in control.dump(RTM_GETLINK, LINK.pack(AF_BRIDGE, 0, 0, 0, 0)):
        port = attributes(attributes(link[LINK.size :]).get(IFLA_PROTINFO, b""))
        if port.get(IFLA_BRPORT_STATE, FORWARDS) != FORWARDS:
            silent.add(LINK.unpack_from(link)[2])
    return silent


def detach_senders(bridge: int) -> bytes:
    """Return a message that makes a bridge promiscuous, so that the bridge forwards copies of frames.

    A frame is charged to its sender's socket until it is freed, also in a queue behind a veth pair and a bridge. TCP
    small queues would then keep that queue empty. A promiscuous bridge forwards a clone, which is charged to no socket,
    and frees the original (net/bridge/br_input.c, br_handle_frame_finish; br_forward.c, deliver_clone).
    """
    return message(RTM_NEWLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, bridge, IFF_PROMISC, IFF_PROMISC))


class Peer(NamedTuple):
    """Far end of a cable: name, number and hardware address. ``namespace_fd``: its namespace, None for this one."""

    name: str
    number: int
    mac: str
    namespace_fd: int | None = None


def cable(name: str, index: int, peer: Peer, master: int | None = None) -> bytes:
    """Return a message that creates a veth pair: the end here is up, and a port of ``master`` if given.

    The peer is down, since it cannot come up before the pair is complete.
    """
    peer_attributes = [text(IFLA_IFNAME, peer.name), number(IFLA_MTU, PACKET_BYTES), _hardware(IFLA_ADDRESS, peer.mac)]
    if peer.namespace_fd is not None:
        peer_attributes.append(number(IFLA_NET_NS_FD, peer.namespace_fd))
    whole = LINK.pack(socket.AF_UNSPEC, 0, peer.number, 0, 0) + b"".join(peer_attributes)
    kind = _of_kind("veth", attribute(VETH_INFO_PEER, whole))
    port = [] if master is None else [number(IFLA_MASTER, master)]
    return _link(MAKE, index, text(IFLA_IFNAME, name), number(IFLA_MTU, PACKET_BYTES), kind, *port, up=True)


def ifb(name: str) -> bytes:
    """Return a message that creates an ifb device that is up. It returns redirected frames to their path, later."""
    return _link(MAKE, 0, text(IFLA_IFNAME, name), _of_kind("ifb"), up=True)


def remove(index: int) -> bytes:
    """Return a message that removes an interface."""
    return message(RTM_DELLINK, 0, LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0))


def _address(action: int, how: int, index: int, ip: str, prefix_length: int, *attributes: bytes) -> bytes:
    body = _ADDRESS.pack(_family(ip), prefix_length, 0, 0, index)
    own = (_ip(IFA_ADDRESS, ip),) if ":" in ip else (_ip(IFA_LOCAL, ip), _ip(IFA_ADDRESS, ip))
    return message(action, how, body + b"".join((*own, *attributes)))


def address(index: int, ip: str, prefix_length: int) -> bytes:
    """Return a message that adds an address to an interface. IPv6 does not check first if the address is in use."""
    flags = [number(IFA_FLAGS, IFA_F_NODAD)] if ":" in ip else []
    return _address(RTM_NEWADDR, MAKE, index, ip, prefix_length, *flags)


def _route(ip: str, length: int, kind: int, scope: int, *attributes: bytes) -> bytes:
    """Return a message for the route to an address or prefix. The route replaces an existing route."""
    body = ROUTE.pack(_family(ip), length, 0, 0, MAIN_TABLE, STATIC, scope, kind, 0)
    ways = (_ip(RTA_DST, ip), *attributes, number(RTA_TABLE, MAIN_TABLE))
    return message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body + b"".join(ways))


@cache
def groups(index: int) -> tuple[bytes, ...]:
    """Return routes out of this interface for broadcasts and IPv4 multicast, for a host without a default route.

    IPv6 has a route to its groups by default.
    """
    everything = (("224.0.0.0", 4), ("255.255.255.255", ALONE))
    return tuple(_route(ip, length, UNICAST, LINK_SCOPE, number(RTA_OIF, index)) for ip, length in everything)


def alone(index: int, ip: str, prefix_length: int) -> Iterator[bytes]:
    """Return messages that take an interface's IPv4 address out of its subnet.

    Until routes are added, the interface leads nowhere. An interface with a default route does not lead to the subnet
    either.
    """
    yield _address(RTM_DELADDR, 0, index, ip, prefix_length)
    yield address(index, ip, ALONE)
    subnet = ip_interface(f"{ip}/{prefix_length}").network.network_address
    yield _route(str(subnet), prefix_length, UNREACHABLE, 0)


def alone_6(index: int, ip: str) -> Iterator[bytes]:
    """Return messages that take an interface's IPv6 address out of its subnet."""
    yield _address(RTM_DELADDR, 0, index, ip, SUBNET_6)
    yield address(index, ip, ALONE_6)


def way(host: HostSpace, other: HostSpace) -> Iterator[bytes]:
    """Return messages with which ``host`` reaches ``other`` over an interface without a subnet."""
    for ip in filter(None, (other.ip, host.ip6 and other.ip6)):
        yield _neighbour(host.interface, ip, other.mac)
    yield from _routes(host, other)


def _routes(host: HostSpace, other: HostSpace, *attributes: bytes) -> Iterator[bytes]:
    for own_ip, target_ip, length in ((host.ip, other.ip, ALONE), (host.ip6, other.ip6, ALONE_6)):
        if own_ip and target_ip:
            leads = (number(RTA_OIF, host.interface), _ip(RTA_PREFSRC, own_ip), *attributes)
            yield _route(target_ip, length, UNICAST, LINK_SCOPE if length == ALONE else 0, *leads)


def path_mtu(host: HostSpace, other: HostSpace, mtu: int | None) -> Iterator[bytes]:
    """Return routes by which ``host`` knows the MTU of the path to ``other``. None: the MTU of the interface."""
    metrics = [] if mtu is None else [attribute(RTA_METRICS, number(RTAX_MTU, mtu))]
    yield from _routes(host, other, *metrics)


def neighbours(host: HostSpace, hosts: Iterable[HostSpace]) -> Iterator[bytes]:
    """Return permanent entries for the remaining hosts. So no requests for addresses travel on shaped links."""
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
    """Return a message for a permanent forwarding entry of a bridge.

    With these entries the bridge never floods, and a host gets only the frames for its own address.
    """
    body = _NEIGHBOUR.pack(AF_BRIDGE, port, NUD_NOARP, NTF_MASTER | NTF_STICKY, 0) + _hardware(NDA_LLADDR, mac)
    return message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body)


class Interface(NamedTuple):
    """Interface of a namespace: hardware address, name and kind.

    ``other_end``: for a veth, the index of the far end in the far end's namespace. ``bridge``: for a bridge's port, the
    index of the bridge.
    """

    mac: str
    other_end: int | None
    bridge: int | None
    name: str
    kind: str


def present() -> dict[int, Interface]:
    """Return the interfaces of this thread's namespace, by index."""
    from pyroute2 import IPRoute  # the whole package, which only testbeds of containers need

    with IPRoute() as here:
        links = {link["index"]: link for link in here.get_links()}
    return {
        index: Interface(
            link.get_attr("IFLA_ADDRESS") or "", link.get_attr("IFLA_LINK"), link.get_attr("IFLA_MASTER"),
            link.get_attr("IFLA_IFNAME") or "", link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
        )
        for index, link in links.items()
    }  # fmt: skip
