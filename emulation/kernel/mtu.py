"""Netlink messages for the MTU of a link: longer packets are dropped at the port towards the receiver.

A classic BPF filter compares the length and the source address of a frame. It comes before the filters that lead to the
classes of links, and leads to a class that swallows packets. Unless the link is silent, the source learns the MTU by a
route to the target (``interfaces.path_mtu``), as it would from a router's message (RFC 1191, RFC 8201).

Source: tc-bpf(8), net/sched/cls_bpf.c, linux/pkt_cls.h, linux/filter.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from thalweg.emulation.kernel import htb
from thalweg.emulation.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_REPLACE,
    RTM_NEWTFILTER,
    attribute,
    message,
    number,
)
from thalweg.emulation.links.shape import LinkShape

ANY_LENGTH = 0xFFFF  # the greatest length of a packet
TOO_LONG = 0xC04  # a class beside ``htb.STRANGERS``
FIRST = 1  # preference: before the filters of u32
TCA_BPF_CLASSID, TCA_BPF_OPS_LEN, TCA_BPF_OPS = 3, 4, 5
LOAD_WORD, LOAD_HALF, LOAD_LENGTH, JUMP_IF_EQUAL, JUMP_IF_ABOVE, RETURN = 0x20, 0x28, 0x80, 0x15, 0x25, 0x06
SOURCE_AT = 6  # position in an Ethernet frame
MATCHES, PASSES = 0xFFFF_FFFF, 0


def too_long(index: int) -> Iterator[bytes]:
    """Return messages that create the class of a port that swallows packets. An existing class stays."""
    yield htb.htb_class(index, TOO_LONG, htb.UNLIMITED_BPS, parent=htb.ROOT)
    yield from htb.leaf(index, TOO_LONG, LinkShape(0.0))


def most(index: int, source: int, mac: bytes, mtu: int) -> bytes:
    """Return a message that drops packets longer than ``mtu`` bytes from a hardware address.

    ``source`` numbers the address. The filter replaces the old filter of the address.
    """
    program = (
        (LOAD_WORD, 0, 0, SOURCE_AT),
        (JUMP_IF_EQUAL, 0, 5, int.from_bytes(mac[:4], "big")),
        (LOAD_HALF, 0, 0, SOURCE_AT + 4),
        (JUMP_IF_EQUAL, 0, 3, int.from_bytes(mac[4:], "big")),
        (LOAD_LENGTH, 0, 0, 0),
        (JUMP_IF_ABOVE, 0, 1, mtu + htb.ETHERNET_HEADER_BYTES),
        (RETURN, 0, 0, MATCHES),
        (RETURN, 0, 0, PASSES),
    )
    options = number(TCA_BPF_CLASSID, htb.ROOT | TOO_LONG) + attribute(TCA_BPF_OPS_LEN, struct.pack("=H", len(program)))
    options += attribute(TCA_BPF_OPS, b"".join(struct.pack("=HBBI", *step) for step in program))
    body = htb.filter_body(index, source, htb.ROOT, FIRST, "bpf", options)
    return message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, body)


def alone(index: int) -> Iterator[bytes]:
    """Return messages for a filter on an unused interface, to test whether the kernel has filters by length."""
    yield htb.root(index, 2, 0)
    yield from htb.port(index)
    yield from too_long(index)
    yield most(index, 1, bytes(6), 1400)
