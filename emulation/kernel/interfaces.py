"""Bridges, cables, addresses and neighbours as netlink messages, which pyroute2 encodes, and its dumps of interfaces.

Messages go out in batches (``netlink.NetlinkSocket``), as those of queues do, which ``htb`` and ``netem`` encode
themselves. Namespaces are made and entered by system call (``world``), because pyroute2 keeps them under /run.

pyroute2 as a whole takes 0.12 s to import, longer than nine hosts take from up to down; its messages alone take a
quarter of that. So only what builds a testbed imports this, and this only the messages.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from ipaddress import ip_interface
from typing import Any, NamedTuple

from thalweg.emulation.kernel.names import SUBNET_6
from thalweg.emulation.kernel.world import HostSpace
from thalweg.emulation.links.shape import PACKET_BYTES
from thalweg.middleware.network.view import NET


@contextmanager
def _modules_alone(package: str) -> Iterator[None]:
    """Inside, a package's modules can be imported without all that the package itself imports."""
    if package in sys.modules or (spec := importlib.util.find_spec(package)) is None:
        yield
        return
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[package]  # who imports it later gets the whole


with _modules_alone("pyroute2"):
    from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, nlmsg
    from pyroute2.netlink.rtnl import (
        RTM_DELADDR,
        RTM_DELLINK,
        RTM_DELROUTE,
        RTM_NEWADDR,
        RTM_NEWLINK,
        RTM_NEWNEIGH,
        RTM_NEWROUTE,
    )
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import IFF_PROMISC, IFF_UP, ifinfmsg
    from pyroute2.netlink.rtnl.ndmsg import NTF_MASTER, NUD_NOARP, NUD_PERMANENT, ndmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

AF_BRIDGE = 7  # linux/socket.h
MAIN_TABLE, STATIC, LINK_SCOPE, UNICAST, UNREACHABLE = 254, 4, 253, 1, 7  # linux/rtnetlink.h
ALONE, ALONE_6 = 32, 128  # the prefixes of an address by itself
IFA_F_NODAD = 0x02  # linux/if_addr.h
NTF_STICKY = 0x40  # linux/neighbour.h
MAKE = NLM_F_CREATE | NLM_F_EXCL


def _encoded(message: nlmsg, kind: int, how: int, attributes: Any = (), **fields: Any) -> bytes:
    """A request without sequence number; ``attributes`` as pyroute2 names and nests them."""
    message.update(header={"type": kind, "flags": how | NLM_F_REQUEST}, attrs=[*attributes], **fields)
    message.encode()
    return bytes(message.data)


def _link(how: int, index: int, *attributes: Any, up: bool = False) -> bytes:
    state = IFF_UP if up else 0
    return _encoded(ifinfmsg(), RTM_NEWLINK, how, attributes, index=index, flags=state, change=state)


def _of_kind(kind: str, *attributes: Any) -> Any:
    data = [("IFLA_INFO_DATA", {"attrs": [*attributes]})] if attributes else []
    return "IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind), *data]}


@cache
def up(index: int) -> bytes:
    """Return a message that brings an interface up."""
    return _link(0, index, up=True)


def down(index: int) -> bytes:
    """Return a message that takes an interface down. The other end of its cable loses its carrier."""
    return _encoded(ifinfmsg(), RTM_NEWLINK, 0, index=index, flags=0, change=IFF_UP)


def bridge(name: str, index: int) -> bytes:
    """Return a message that creates a bridge without multicast snooping. It carries nothing until it is up."""
    kind = _of_kind("bridge", ("IFLA_BR_MCAST_SNOOPING", 0))
    return _link(MAKE, index, ("IFLA_IFNAME", name), ("IFLA_MTU", PACKET_BYTES), kind)


def detach_senders(bridge: int) -> bytes:
    """Return a message that makes a bridge forward copies, by setting it promiscuous.

    A frame is charged to its sender's socket until it is freed, also in a queue behind a veth pair and a bridge. TCP
    small queues would then keep that queue empty. A promiscuous bridge forwards a clone, which is charged to nobody,
    and frees the original (net/bridge/br_input.c, br_handle_frame_finish; br_forward.c, deliver_clone).
    """
    return _encoded(ifinfmsg(), RTM_NEWLINK, 0, index=bridge, flags=IFF_PROMISC, change=IFF_PROMISC)


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
    there: list[Any] = [("IFLA_IFNAME", peer.name), ("IFLA_MTU", PACKET_BYTES), ("IFLA_ADDRESS", peer.mac)]
    if peer.namespace_fd is not None:
        there.append(("IFLA_NET_NS_FD", peer.namespace_fd))
    kind = _of_kind("veth", ("VETH_INFO_PEER", {"index": peer.number, "attrs": there}))
    port = [] if master is None else [("IFLA_MASTER", master)]
    return _link(MAKE, index, ("IFLA_IFNAME", name), ("IFLA_MTU", PACKET_BYTES), kind, *port, up=True)


def ifb(name: str) -> bytes:
    """Create an ifb device that is up: what is sent to it comes back where it was taken from, later."""
    return _link(MAKE, 0, ("IFLA_IFNAME", name), _of_kind("ifb"), up=True)


def remove(index: int) -> bytes:
    """Remove an interface."""
    return _encoded(ifinfmsg(), RTM_DELLINK, 0, index=index)


def address(index: int, ip: str, prefix_length: int) -> bytes:
    """Give an interface an address; one of IPv6 at once, without asking whether others have it."""
    both = (("IFA_LOCAL", ip), ("IFA_ADDRESS", ip))
    if ":" in ip:
        flags = (("IFA_ADDRESS", ip), ("IFA_FLAGS", IFA_F_NODAD))
        return _encoded(
            ifaddrmsg(), RTM_NEWADDR, MAKE, flags, family=socket.AF_INET6, prefixlen=prefix_length, index=index
        )
    return _encoded(ifaddrmsg(), RTM_NEWADDR, MAKE, both, family=socket.AF_INET, prefixlen=prefix_length, index=index)


@cache
def groups(index: int) -> tuple[bytes, ...]:
    """Ways for what is sent to all and to groups, where a host has no default route: out of this interface.

    IPv6 has a way to its groups by itself.
    """
    return tuple(
        _encoded(
            rtmsg(), RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE,
            (("RTA_DST", ip), ("RTA_OIF", index), ("RTA_TABLE", MAIN_TABLE)),
            family=socket.AF_INET, dst_len=length, table=MAIN_TABLE, proto=STATIC, scope=LINK_SCOPE, type=UNICAST,
        )
        for ip, length in (("224.0.0.0", 4), ("255.255.255.255", ALONE))
    )  # fmt: skip


def alone(index: int, ip: str, prefix_length: int) -> Iterator[bytes]:
    """Have an interface's IPv4 address join no subnet any more: it leads nowhere until it is given ways.

    Nor does another interface lead to that subnet, as one with a default route would.
    """
    both = (("IFA_LOCAL", ip), ("IFA_ADDRESS", ip))
    yield _encoded(ifaddrmsg(), RTM_DELADDR, 0, both, family=socket.AF_INET, prefixlen=prefix_length, index=index)
    yield address(index, ip, ALONE)
    subnet = ip_interface(f"{ip}/{prefix_length}").network.network_address
    fields = {"family": socket.AF_INET, "dst_len": prefix_length, "table": MAIN_TABLE, "proto": STATIC}
    nowhere = (("RTA_DST", str(subnet)), ("RTA_TABLE", MAIN_TABLE))
    yield _encoded(rtmsg(), RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, nowhere, **fields, type=UNREACHABLE)


def alone_6(index: int, ip: str) -> Iterator[bytes]:
    """The same of an IPv6 address."""
    known = (("IFA_ADDRESS", ip),)
    fields = {"family": socket.AF_INET6, "prefixlen": SUBNET_6, "index": index}
    yield _encoded(ifaddrmsg(), RTM_DELADDR, 0, known, **fields)
    yield address(index, ip, ALONE_6)


def way(host: HostSpace, other: HostSpace) -> Iterator[bytes]:
    """Let ``host`` reach one other over an interface that leads nowhere by itself."""
    how = NLM_F_CREATE | NLM_F_REPLACE
    for ours, theirs, length in ((host.ip, other.ip, ALONE), (host.ip6, other.ip6, ALONE_6)):
        if not (ours and theirs):
            continue
        yield _neighbour(host.interface, theirs, other.mac)
        leads = (("RTA_DST", theirs), ("RTA_OIF", host.interface), ("RTA_PREFSRC", ours), ("RTA_TABLE", MAIN_TABLE))
        fields = {"family": _family(theirs), "dst_len": length, "table": MAIN_TABLE, "proto": STATIC}
        scope = LINK_SCOPE if length == ALONE else 0
        yield _encoded(rtmsg(), RTM_NEWROUTE, how, leads, **fields, scope=scope, type=UNICAST)


def path_mtu(host: HostSpace, other: HostSpace, mtu: int | None) -> Iterator[bytes]:
    """Let ``host`` know the MTU of the path to another, by a route of its own. None removes the MTU.

    The route goes where all hosts of the network join, and stays where it is the only one.
    """
    joined = host.via == NET
    kind, how = RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE
    if mtu is None and joined:
        kind, how = RTM_DELROUTE, 0
    for ours, theirs, length in ((host.ip, other.ip, ALONE), (host.ip6, other.ip6, ALONE_6)):
        if not (ours and theirs):
            continue
        leads: list[Any] = [("RTA_DST", theirs), ("RTA_OIF", host.interface), ("RTA_TABLE", MAIN_TABLE)]
        if not joined:
            leads.append(("RTA_PREFSRC", ours))
        if mtu is not None:
            leads.append(("RTA_METRICS", {"attrs": [("RTAX_MTU", mtu)]}))
        fields = {"family": _family(theirs), "dst_len": length, "table": MAIN_TABLE, "proto": STATIC}
        scope = LINK_SCOPE if length == ALONE else 0
        yield _encoded(rtmsg(), kind, how, leads, **fields, scope=scope, type=UNICAST)


def neighbours(host: HostSpace, hosts: Iterable[HostSpace]) -> Iterator[bytes]:
    """Permanent entries for all other hosts, so that no questions for addresses travel on shaped links."""
    for other in hosts:
        if other is not host:
            yield _neighbour(host.interface, other.ip, other.mac)
            if other.ip6:
                yield _neighbour(host.interface, other.ip6, other.mac)


def _family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


@cache  # most hosts' interfaces have the same number
def _neighbour(index: int, ip: str, mac: str) -> bytes:
    entry = (("NDA_DST", ip), ("NDA_LLADDR", mac))
    fields = {"family": _family(ip), "ifindex": index, "state": NUD_PERMANENT}
    return _encoded(ndmsg(), RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, entry, **fields)


def bridge_entry(port: int, mac: str) -> bytes:
    """A forwarding entry that stays: the bridge never floods, and no host gets another's frames by its address."""
    fields = {"family": AF_BRIDGE, "ifindex": port, "state": NUD_NOARP, "flags": NTF_MASTER | NTF_STICKY}
    return _encoded(ndmsg(), RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, (("NDA_LLADDR", mac),), **fields)


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
