"""Reset of the TCP connections between two hosts, as by a middlebox.

The kernel destroys the sockets of one end, whose program gets ECONNABORTED. It sends a reset to the far end, whose
program gets ECONNRESET. The reset travels over the link like an ordinary packet.

Source: sock_diag(7), linux/inet_diag.h, net/ipv4/tcp_diag.c (CONFIG_INET_DIAG_DESTROY).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from contextlib import closing
from errno import ENOENT

from thalweg.emulation.kernel.netlink import NetlinkError, NetlinkSocket

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT, LAST_ACK, CLOSING = 1, 2, 3, 4, 5, 8, 9, 11
CONNECTED = sum(
    1 << state for state in (ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT_1, FIN_WAIT_2, CLOSE_WAIT, LAST_ACK, CLOSING)
)
MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address within an IPv6 address (RFC 4291, section 2.5.5.2)

_REQUEST = struct.Struct("=BBBxI48s")
_ANSWER = struct.Struct("=BBxx48s")
_SOURCE_AT, _TARGET_AT = 4, 20  # addresses in a socket's identity of 48 bytes, which begins with both ports


Connection = frozenset[bytes]
"""Both ends of a connection, each as its port and address."""


def reset(addresses: Collection[str]) -> set[Connection]:
    """Reset the TCP connections to these addresses from this thread's namespace. Return the connections.

    Raise NetlinkError if the kernel cannot.
    """
    wanted = {packed(address) for address in addresses}
    connections = set[Connection]()
    with closing(NetlinkSocket(NETLINK_SOCK_DIAG)) as asking:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, CONNECTED, bytes(48))
            for answer in asking.dump(SOCK_DIAG_BY_FAMILY, request):
                _, state, identity = _ANSWER.unpack_from(answer)
                length = 4 if family == socket.AF_INET else 16
                source, target = (identity[at : at + length].removeprefix(MAPPED) for at in (_SOURCE_AT, _TARGET_AT))
                if target not in wanted:
                    continue
                try:
                    asking.get(SOCK_DESTROY, _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << state, identity))
                except NetlinkError as error:
                    if error.errno != ENOENT:  # the connection has just ended by itself
                        raise
                else:
                    connections.add(frozenset((identity[:2] + source, identity[2:4] + target)))
    return connections


def packed(address: str) -> bytes:
    """Return the bytes of an IPv4 or IPv6 address."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
