"""Rtnetlink in batches: a socket that sends many messages at once, and the parts of messages about queues.

Queues, classes and filters are sent by the thousand. pyroute2 takes 6 times as long for them, more than the kernel
takes to execute them. Its import takes a fifth of a supervisor's start. The tests decode the messages with pyroute2.

Source: linux/rtnetlink.h, linux/netlink.h; RFC 3549.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

NETLINK_ROUTE = 0
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_ECHO, NLM_F_DUMP, NLM_F_ACK_TLVS = 0x1, 0x4, 0x8, 0x300, 0x200
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_NEWADDR, RTM_DELADDR = 16, 17, 18, 20, 21
RTMGRP_LINK = 1  # group of the news of interfaces
RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWNEIGH = 24, 25, 28
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC, RTM_NEWTCLASS, RTM_GETTCLASS = 36, 37, 38, 40, 42
RTM_NEWTFILTER = 44

SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLMSGERR_ATTR_MSG = 1
BATCH_BYTES = 60_000  # well below the default socket buffer of 208 KB, from which the kernel takes a batch

LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, lengths of both prefixes, tos, table, protocol, scope, type, flags
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


class NetlinkError(OSError):
    """Refusal of a message by the kernel. ``index``: the message's position in the request. The text is the reason."""

    def __init__(self, code: int, why: str, index: int) -> None:
        super().__init__(code, why or os.strerror(code))
        self.index = index


def attribute(kind: int, payload: bytes) -> bytes:
    """Return a type-length-value attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def text(kind: int, value: str) -> bytes:
    """Return a string attribute, terminated as the kernel expects."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Return an attribute with a 32-bit unsigned number."""
    return attribute(kind, struct.pack("=I", value))


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes in a message's tail by type. Nested attributes are left to the caller."""
    payloads: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            break
        payloads[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return payloads


def message(kind: int, flags: int, body: bytes) -> bytes:
    """Return a request without a sequence number, which the socket fills in."""
    return _HEADER.pack(16 + len(body), kind, flags | NLM_F_REQUEST, 0, 0) + body


class NetlinkSocket:
    """Netlink socket of the network namespace in which it was opened, wherever the thread goes later.

    ``groups``: multicast groups of news (``wait_for_news``).
    """

    def __init__(self, protocol: int = NETLINK_ROUTE, groups: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, groups))
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def wait_for_news(self, within_s: float) -> bool:
        """Wait for news of the socket's groups, and drop them. Return whether there were any.

        Lost news count as news: the kernel has more than the socket holds.
        """
        if not select.select([self._socket], [], [], within_s)[0]:
            return False
        with suppress(BlockingIOError):
            while True:
                try:
                    self._socket.recv(1 << 18, socket.MSG_DONTWAIT)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
        return True

    def request(self, messages: Iterable[bytes]) -> None:
        """Execute the messages in order, many in one system call.

        Raise NetlinkError for the first message that is refused. Later messages of the same batch have been executed.
        """
        batch: list[bytes] = []
        size = done = 0
        for encoded in messages:
            if size + len(encoded) > BATCH_BYTES and batch:
                self._send(batch, done)
                done += len(batch)
                batch, size = [], 0
            batch.append(encoded)
            size += (len(encoded) + 3) & ~3
        if batch:
            self._send(batch, done)

    def _send(self, batch: Sequence[bytes], done: int) -> None:
        first = self._sequence + 1
        self._sequence = last = self._sequence + len(batch)
        out = bytearray()
        for sequence, encoded in enumerate(batch, first):
            at = len(out)
            out += encoded
            struct.pack_into("=I", out, at + 8, sequence)
            if sequence == last:  # errors are reported in any case, so one acknowledgement is enough
                struct.pack_into("=H", out, at + 6, struct.unpack_from("=H", encoded, 6)[0] | NLM_F_ACK)
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
        """Return every answer to a dump request, without headers. Raise NetlinkError if the kernel refuses."""
        return self._asked(kind, NLM_F_DUMP, body)

    def get(self, kind: int, body: bytes) -> list[bytes]:
        """Return the answers to a request for one object, without headers. Raise NetlinkError if there is none."""
        return self._asked(kind, NLM_F_ACK | NLM_F_ECHO, body)  # without ECHO, some answers go only to listeners

    def _asked(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self._sequence += 1
        out = bytearray(message(kind, flags, body))
        struct.pack_into("=I", out, 8, self._sequence)
        self._socket.send(out)
        answers: list[bytes] = []
        while True:
            for answer, flags, sequence, payload in self._receive():
                if sequence != self._sequence:
                    continue
                if answer == NLMSG_DONE:
                    return answers
                if answer == NLMSG_ERROR:
                    if code := -struct.unpack_from("=i", payload)[0]:
                        raise NetlinkError(code, _reason(flags, payload), 0)
                    return answers
                answers.append(payload)

    def _receive(self) -> Iterable[tuple[int, int, int, bytes]]:
        data = self._socket.recv(1 << 18)
        at = 0
        while at + 16 <= len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
            yield kind, flags, sequence, data[at + 16 : at + length]
            at += (length + 3) & ~3


def _reason(flags: int, body: bytes) -> str:
    """Return the kernel's explanation from its answer (extended acknowledgement), or an empty text."""
    if not flags & NLM_F_ACK_TLVS:
        return ""
    return attributes(body[20:]).get(NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode(errors="replace")
