"""Rtnetlink in batches: the few kinds of message that a testbed sends, and a socket that sends many at once.

Only the standard library: the supervisor imports this at every start. pyroute2's encoders cost 0.21 ms a message and
0.14 s to import, which for 33 hosts (4,400 messages) is 1.1 s, more than the kernel takes to execute
them; the tests decode what is encoded here with pyroute2.

Source: linux/rtnetlink.h, linux/netlink.h, linux/if_link.h; RFC 3549.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_ACK_TLVS = 0x1, 0x4, 0x300, 0x200
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
RTM_NEWLINK, RTM_GETLINK, RTM_NEWADDR, RTM_NEWNEIGH = 16, 18, 20, 28
RTM_NEWQDISC, RTM_DELQDISC, RTM_NEWTCLASS, RTM_GETTCLASS, RTM_NEWTFILTER = 36, 37, 40, 42, 44

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 4, 5, 10, 18, 28
IFLA_GSO_MAX_SEGS = 40
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER, IFLA_BR_MCAST_SNOOPING = 1, 2, 1, 23
IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST = 1, 2, 4
NDA_DST, NDA_LLADDR = 1, 2
IFF_UP = 1
AF_BRIDGE = 7
NUD_NOARP, NUD_PERMANENT, NTF_MASTER = 0x40, 0x80, 0x04

SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 270, 10, 11, 12
NLMSGERR_ATTR_MSG = 1
BATCH_BYTES = 60_000  # well below the default socket buffer of 208 KB, out of which the kernel takes a batch

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


class NetlinkError(OSError):
    """The kernel refused one message of a batch; ``index`` says which, the text says why."""

    def __init__(self, code: int, why: str, index: int) -> None:
        super().__init__(code, why or os.strerror(code))
        self.index = index


def attribute(kind: int, payload: bytes) -> bytes:
    """One type-length-value attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def text(kind: int, value: str) -> bytes:
    """A string attribute, terminated as the kernel expects."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """A 32-bit unsigned attribute."""
    return attribute(kind, struct.pack("=I", value))


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of a message's tail by type; nesting is left to the caller."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def message(kind: int, flags: int, body: bytes) -> bytes:
    """A request without sequence number (the socket fills it in)."""
    return _HEADER.pack(16 + len(body), kind, flags | NLM_F_REQUEST, 0, 0) + body


def _link(index: int, flags: int, *parts: bytes) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, flags) + b"".join(parts)


def link_up(index: int) -> bytes:
    """Bring an interface up."""
    return message(RTM_NEWLINK, 0, _link(index, IFF_UP))


def single_segments(index: int) -> bytes:
    """Let an interface have one segment a packet (see ``veth_pair``)."""
    return message(RTM_NEWLINK, 0, _link(index, 0, number(IFLA_GSO_MAX_SEGS, 1)))


class Interface(NamedTuple):
    """An interface of a dump: its hardware address, and of a veth the index of its other end, where that is."""

    mac: bytes
    other_end: int | None


def interfaces(answers: Iterable[bytes]) -> dict[int, Interface]:
    """The interfaces in a dump of links, by index."""
    found = {}
    for answer in answers:
        index = struct.unpack_from("=BxHiII", answer)[2]
        parts = attributes(answer[16:])
        link = parts.get(IFLA_LINK)
        found[index] = Interface(parts.get(IFLA_ADDRESS, b""), None if link is None else struct.unpack("=I", link)[0])
    return found


def link_dump() -> bytes:
    """Body of a request for all interfaces of a namespace."""
    return _link(0, 0)


def bridge(name: str, index: int, mtu: int) -> bytes:
    """Create a bridge that is up and does not look into multicast."""
    info = text(IFLA_INFO_KIND, "bridge") + attribute(IFLA_INFO_DATA, attribute(IFLA_BR_MCAST_SNOOPING, b"\0"))
    parts = (text(IFLA_IFNAME, name), number(IFLA_MTU, mtu), attribute(IFLA_LINKINFO, info))
    return message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _link(index, IFF_UP, *parts))


def veth_pair(
    name: str, index: int, peer: str, peer_index: int, mac: bytes, mtu: int, *, master: int = 0, namespace_fd: int = -1
) -> bytes:
    """Create a veth pair: one end here, up (a port of ``master`` if given), its peer in another namespace, down.

    ``mac`` is the peer's address. The peer cannot come up before the pair is complete.
    """
    # TCP hands down super-packets whatever the interface's offloads say (Linux 4.17); a shaper would pass one at once.
    single = number(IFLA_GSO_MAX_SEGS, 1)
    there = [text(IFLA_IFNAME, peer), number(IFLA_MTU, mtu), attribute(IFLA_ADDRESS, mac), single]
    if namespace_fd >= 0:
        there.append(number(IFLA_NET_NS_FD, namespace_fd))
    data = attribute(VETH_INFO_PEER, _link(peer_index, 0, *there))
    info = text(IFLA_INFO_KIND, "veth") + attribute(IFLA_INFO_DATA, data)
    here = [text(IFLA_IFNAME, name), number(IFLA_MTU, mtu), attribute(IFLA_LINKINFO, info)]
    if master:
        here.append(number(IFLA_MASTER, master))
    return message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, _link(index, IFF_UP, *here))


def address(index: int, ip: bytes, prefix_length: int) -> bytes:
    """Give an interface an IPv4 address (four bytes)."""
    body = struct.pack("=BBBBI", socket.AF_INET, prefix_length, 0, 0, index)
    return message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body + attribute(IFA_LOCAL, ip) + attribute(IFA_ADDRESS, ip))


def neighbour(index: int, ip: bytes, mac: bytes) -> bytes:
    """A permanent ARP entry, so that no ARP travels on shaped links."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, NUD_PERMANENT, 0, 0)
    return message(
        RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body + attribute(NDA_DST, ip) + attribute(NDA_LLADDR, mac)
    )


def bridge_entry(port: int, mac: bytes) -> bytes:
    """A static forwarding entry, so that the bridge never floods."""
    body = struct.pack("=BxxxiHBB", AF_BRIDGE, port, NUD_NOARP, NTF_MASTER, 0)
    return message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body + attribute(NDA_LLADDR, mac))


class NetlinkSocket:
    """A NETLINK_ROUTE socket of the network namespace it was opened in, wherever the thread goes later."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def request(self, messages: Iterable[bytes]) -> None:
        """Execute the messages in order, many to a system call.

        Raises NetlinkError for the first that was refused; those after it in the same batch were executed.
        """
        batch: list[bytes] = []
        size = done = 0
        for one in messages:
            if size + len(one) > BATCH_BYTES and batch:
                self._send(batch, done)
                done += len(batch)
                batch, size = [], 0
            batch.append(one)
            size += (len(one) + 3) & ~3
        if batch:
            self._send(batch, done)

    def _send(self, batch: Sequence[bytes], done: int) -> None:
        first = self._sequence + 1
        self._sequence = last = self._sequence + len(batch)
        out = bytearray()
        for sequence, one in enumerate(batch, first):
            at = len(out)
            out += one
            struct.pack_into("=I", out, at + 8, sequence)
            if sequence == last:  # errors come unasked; one acknowledgement says that the batch is through
                struct.pack_into("=H", out, at + 6, struct.unpack_from("=H", one, 6)[0] | NLM_F_ACK)
        self._socket.send(out)
        failure: NetlinkError | None = None
        while True:
            for kind, flags, sequence, body in self._receive():
                if kind != NLMSG_ERROR or sequence < first:
                    continue
                code = -struct.unpack_from("=i", body)[0]
                if code and failure is None:
                    failure = NetlinkError(code, _reason(flags, body), done + sequence - first)
                if sequence == last:
                    if failure is not None:
                        raise failure
                    return

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """All answers to a dump request, without their headers."""
        self._sequence += 1
        out = bytearray(message(kind, NLM_F_DUMP, body))
        struct.pack_into("=I", out, 8, self._sequence)
        self._socket.send(out)
        found: list[bytes] = []
        while True:
            for answer, flags, sequence, payload in self._receive():
                if sequence != self._sequence:
                    continue
                if answer == NLMSG_DONE:
                    return found
                if answer == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", payload)[0]
                    raise NetlinkError(code, _reason(flags, payload), 0)
                found.append(payload)

    def _receive(self) -> Iterable[tuple[int, int, int, bytes]]:
        data = self._socket.recv(1 << 18)
        at = 0
        while at + 16 <= len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
            yield kind, flags, sequence, data[at + 16 : at + length]
            at += (length + 3) & ~3


def _reason(flags: int, body: bytes) -> str:
    """The kernel's own words, when its answer has any (extended acknowledgement)."""
    if not flags & NLM_F_ACK_TLVS:
        return ""
    return attributes(body[20:]).get(NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode(errors="replace")
