"""What is sent to the kernel, decoded by pyroute2; the arithmetic behind it."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyroute2  # noqa: F401  (as a whole: others may have imported parts of it)
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from thalweg.emulation.kernel import htb, interfaces, netlink
from thalweg.emulation.kernel.host_space import HostSpace, Port
from thalweg.emulation.kernel.interfaces import Peer
from thalweg.emulation.kernel.world import MACHINE
from thalweg.emulation.links.shape import (
    FRAME_BYTES,
    MAX_SEGMENTS,
    PACKET_BYTES,
    RATE_FLOOR_BPS,
    LinkShape,
    Queue,
    burst_bytes,
)
from thalweg.emulation.links.units import MANAGED

RATES = st.floats(RATE_FLOOR_BPS, 2e9)
MACS = st.binary(min_size=6, max_size=6)
SOURCES = st.integers(1, 1023)


def decoded(message: bytes, kind: Any = tcmsg) -> Any:
    assert struct.unpack_from("=I", message)[0] == len(message)
    found = kind(message)
    found.decode()
    return found


def payload_of(message: bytes) -> bytes:
    """Return the raw payload of TCA_OPTIONS."""
    return netlink.attributes(message[36:])[htb.TCA_OPTIONS]


def options_of(message: bytes) -> dict[int, bytes]:
    """The same by attribute: pyroute2 reads the keys of a u32 filter from the wrong place."""
    return netlink.attributes(payload_of(message))


@given(RATES)
def test_a_class_carries_its_rate_and_burst(rate_bps: float) -> None:
    found = decoded(htb.htb_class(2, 7, rate_bps))
    parameters = found.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
    assert (found["index"], found["handle"], found["parent"]) == (2, 0x10007, htb.INTERFACE)
    assert found.get_attr("TCA_KIND") == "htb"
    assert parameters["rate"] == parameters["ceil"] == round(rate_bps / 8)
    assert parameters["rate___reserved"] == htb.LINKLAYER_ETHERNET
    burst = parameters["buffer"] * 64e-9 * parameters["rate"]
    assert burst >= burst_bytes(rate_bps) >= 2 * 1514
    assert burst <= burst_bytes(rate_bps) + 64e-9 * parameters["rate"] + 1
    assert parameters["buffer"] == parameters["cbuffer"]


def test_a_burst_of_ones_own_and_a_part_assured() -> None:
    found = decoded(htb.htb_class(2, 7, 8e6, burst=20_000, assured_bps=2e6)).get_attr("TCA_OPTIONS")
    parameters = found.get_attr("TCA_HTB_PARMS")
    assert (parameters["rate"], parameters["ceil"]) == (250_000, 1_000_000)
    assert parameters["buffer"] * 64e-9 * 250_000 == pytest.approx(20_000, abs=1)
    assert parameters["cbuffer"] * 64e-9 * 1_000_000 == pytest.approx(20_000, abs=1)
    assert LinkShape(8e6, burst_bytes=20_000).burst == 20_000
    assert LinkShape(8e6).burst == burst_bytes(8e6)


def test_an_interfaces_class_stands_above_its_links() -> None:
    unlimited, limited = (decoded(htb.interface_class(2, rate)) for rate in (None, 1e6))
    assert unlimited["handle"] == limited["handle"] == htb.INTERFACE
    assert unlimited["parent"] == htb.ROOT
    assert unlimited.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_RATE64") == 50_000_000_000
    assert limited.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"] == 125_000


def test_a_port_has_a_class_for_its_links_one_without_limit_and_one_that_swallows() -> None:
    root = decoded(htb.root(12, 3, htb.STRANGERS))
    assert (root["handle"], root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"]) == (0x10000, htb.STRANGERS)
    *classes, swallows, table, into = map(decoded, htb.port(12))
    assert [(one["handle"], one["parent"]) for one in classes] == [
        (htb.INTERFACE, 0x10000),
        (0x10000 | htb.OPEN, htb.INTERFACE),
        (0x10000 | htb.STRANGERS, 0x10000),
    ]
    assert {one.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_CEIL64") for one in classes} == {50_000_000_000}
    assert (swallows.get_attr("TCA_KIND"), swallows["parent"]) == ("blackhole", classes[2]["handle"])
    assert {one["parent"] for one in (table, into)} == {0x10000}
    assert {one["info"] for one in (table, into)} == {2 << 16 | socket.htons(0x0003)}  # of every protocol


def test_a_ports_filter_looks_at_the_last_byte_of_the_source_in_a_table_of_256() -> None:
    table, into = [*htb.port(12)][-2:]
    assert decoded(table)["handle"] == 0x0010_0000
    assert decoded(table).get_attr("TCA_OPTIONS").get_attr("TCA_U32_DIVISOR") == 256
    options = options_of(into)
    assert options[htb.TCA_U32_LINK] == struct.pack("=I", 0x0010_0000)
    selector = decoded(into).get_attr("TCA_OPTIONS").get_attr("TCA_U32_SEL")
    assert (selector["flags"], selector["nkeys"], selector["hmask"]) == (0, 0, 0xFF)
    assert selector["hoff"] == 8 - 14  # of the four bytes that end with the last of the source
    assert htb.TCA_U32_CLASSID not in options


def test_what_a_host_sends_in_all_has_one_class_whose_queue_is_that_of_its_rate() -> None:
    root = decoded(htb.root(30, 3, htb.UPLINK))
    assert root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"] == 1
    for rate_bps, set_bps, queue_bps in ((8e6, 8e6, 8e6), (None, 400e9, 2e9)):
        limited, queue = htb.uplink(30, rate_bps)
        one = decoded(limited)
        assert (one["index"], one["handle"], one["parent"]) == (30, 0x10001, 0x10000)
        options = one.get_attr("TCA_OPTIONS")
        assert (options.get_attr("TCA_HTB_RATE64") or options.get_attr("TCA_HTB_PARMS")["rate"]) == set_bps / 8
        assert (decoded(queue).get_attr("TCA_KIND"), decoded(queue)["parent"]) == ("bfifo", 0x10001)
        assert payload_of(queue) == struct.pack("=I", LinkShape(queue_bps).queue_bytes)
    _, longer = htb.uplink(30, 8e6, Queue(1.0))
    assert payload_of(longer) == struct.pack("=I", 1_000_000)


def test_all_that_enters_by_a_port_is_taken_through_a_device() -> None:
    ingress, filter_ = map(decoded, htb.through(12, 40))
    assert (ingress.get_attr("TCA_KIND"), ingress["handle"], ingress["parent"]) == ("ingress", 0xFFFF_0000, 0xFFFF_FFF1)
    assert (filter_["index"], filter_["parent"], filter_["info"]) == (12, 0xFFFF_0000, 2 << 16 | socket.htons(3))
    options = filter_.get_attr("TCA_OPTIONS")
    selector = options.get_attr("TCA_U32_SEL")
    assert (selector["flags"], selector["nkeys"]) == (htb.TC_U32_TERMINAL, 0)  # whatever it is
    action = options.get_attr("TCA_U32_ACT").get_attr("TCA_ACT_PRIO_1")
    assert action.get_attr("TCA_ACT_KIND") == "mirred"
    mirred = action.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_MIRRED_PARMS")
    assert (mirred["eaction"], mirred["action"], mirred["ifindex"]) == (1, 4, 40)  # to its egress, and no further


def test_every_queue_of_a_port_has_a_number_of_its_own() -> None:
    """A number that is taken by a queue of another kind is refused by the kernel."""
    shapes = [
        LinkShape(0.0),
        LinkShape(1e6),
        LinkShape(1e6, queue=Queue(50, "packets")),
        *(LinkShape(1e6, queue=Queue(0.1, "s", discipline)) for discipline in MANAGED),
    ]
    shapes += [one._replace(delay_s=0.1) for one in shapes[1:]]
    strangers = [decoded(one) for one in htb.port(12)][3]
    found = {strangers["handle"]: ("strangers", "blackhole")}
    for number, band, shape in itertools.product((1, 2, 3, 1022, MACHINE), (0, htb.BULK, htb.CONTROL), shapes):
        for queue in map(decoded, htb.leaf(12, number | band, shape)):
            below_netem = "netem" if shape.needs_netem and shape.passes else ""
            what = (number | band, below_netem, queue.get_attr("TCA_KIND"))
            assert found.setdefault(queue["handle"], what) == what
            assert queue["handle"] & 0xFFFF == 0


def test_a_link_has_two_bands_of_which_one_goes_first_and_neither_has_a_rate() -> None:
    found = [decoded(one) for one in htb.bands(2, 7)]
    assert [(one["handle"], one["parent"]) for one in found] == [(0x10807, 0x10007), (0x10407, 0x10007)]
    parameters = [one.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS") for one in found]
    assert [(one["rate"], one["prio"]) for one in parameters] == [(1, 0), (1, 1)]


def test_a_cut_swallows_everything() -> None:
    for shape in (LinkShape(1e6, 0.05, cut=True), LinkShape(0.0), LinkShape(1e6, cut=True, queue=Queue(9, "packets"))):
        (found,) = map(decoded, htb.leaf(2, 7, shape))
        assert found.get_attr("TCA_KIND") == "blackhole"
        assert found["parent"] == 0x10007


def test_rates_beyond_32_bits_travel_in_64() -> None:
    found = decoded(htb.htb_class(2, 1, 40e9)).get_attr("TCA_OPTIONS")
    assert found.get_attr("TCA_HTB_PARMS")["rate"] == 0xFFFF_FFFF
    assert found.get_attr("TCA_HTB_RATE64") == found.get_attr("TCA_HTB_CEIL64") == 5_000_000_000


def test_classes_queues_and_filters_are_stated_and_roots_made() -> None:
    stated = [htb.htb_class(2, 1, 1e6), *htb.leaf(2, 1, LinkShape(1e6, 0.1)), *htb.uplink(2, 1e6)]
    stated += [htb.to_class(2, 1, bytes(6), 1), *htb.port(2)]
    for message in stated:
        flags = decoded(message)["header"]["flags"]
        assert flags & netlink.NLM_F_CREATE
        assert not flags & netlink.NLM_F_EXCL
    ingress, _ = htb.through(2, 3)
    for message in (htb.root(2, 3, htb.STRANGERS), ingress):
        assert decoded(message)["header"]["flags"] & netlink.NLM_F_EXCL


# --- filters --------------------------------------------------------------------------------------------


class Chooser(NamedTuple):
    """A filter: the list of the table that it is in, its place there, its class, and its keys."""

    bucket: int
    place: int
    minor: int
    keys: Sequence[tuple[Any, ...]]  # mask, value, offset, mask of a variable offset


def chooser(message: bytes) -> Chooser:
    found, options = decoded(message), options_of(message)
    assert (found.get_attr("TCA_KIND"), found["index"], found["parent"]) == ("u32", 12, htb.ROOT)
    assert found["info"] == 2 << 16 | socket.htons(0x0003)
    (chosen,) = struct.unpack("=I", options[htb.TCA_U32_CLASSID])
    assert chosen >> 16 == 1
    (bucket,) = struct.unpack("=I", options[htb.TCA_U32_HASH])
    assert bucket & 0xFFF0_0FFF == htb.SOURCES
    assert found["handle"] & 0xFFFF_F000 == bucket
    selector = options[htb.TCA_U32_SEL]
    flags, _, count = selector[:3]
    assert flags == htb.TC_U32_TERMINAL
    assert not any(selector[3:16])
    keys = [
        (*struct.unpack_from(">II", selector, at), *struct.unpack_from("=ii", selector, at + 8))
        for at in range(16, len(selector), 16)
    ]
    assert len(keys) == count
    return Chooser(bucket >> 12 & 0xFF, found["handle"] & 0xFFF, chosen & 0xFFFF, keys)


def class_of(frame: bytes, messages: Iterable[bytes]) -> int:
    """Where the kernel sends a frame through a port with these filters (net/sched/cls_u32.c)."""
    network = 14  # a tag is looked at as if it were a network's header
    by_place = {(one.bucket, one.place): one for one in map(chooser, messages)}  # the later takes the place
    for (bucket, _), one in sorted(by_place.items()):
        if bucket == frame[11] and all(
            (struct.unpack_from(">I", frame, network + at)[0] ^ value) & mask == 0 and not varying
            for mask, value, at, varying in one.keys
        ):
            return one.minor
    return htb.STRANGERS


def frame(source: bytes, kind: int, payload: bytes) -> bytes:
    return bytes(6) + source + struct.pack(">H", kind) + payload.ljust(46, b"\0")


def test_a_filter_by_source_is_byte_for_byte_what_it_should_be() -> None:
    """As ``tc filter … u32 ht 100:5: match u32 0x0200aabb 0xffffffff at -8 match u16 0xcc05 0xffff at -4``."""
    mac = bytes.fromhex("0200aabbcc05")
    wanted = struct.pack("=BxxxiIII", 0, 12, 0x0010_5809, 0x0001_0000, 2 << 16 | socket.htons(0x0003))
    wanted += bytes.fromhex("0800010075333200")  # u32
    keys = bytes.fromhex("ffffffff0200aabbf8ffffff00000000ffff0000cc050000fcffffff00000000")
    selector = netlink.attribute(5, bytes.fromhex("01000200" + "00" * 12) + keys)
    wanted += netlink.attribute(2, netlink.number(1, 0x0001_0007) + netlink.number(2, 0x0010_5000) + selector)
    made = htb.to_class(12, 9, mac, 7)
    assert made[16:] == wanted
    assert made[:8] == struct.pack("=IHH", len(made), 44, 0x0501)


@given(st.lists(MACS, min_size=1, max_size=5, unique=True), st.integers(0, 0xFFFF), st.binary(max_size=46), st.data())
def test_whatever_the_protocol_a_frames_class_is_its_sources(
    macs: list[bytes], kind: int, payload: bytes, data: st.DataObject
) -> None:
    filters = [htb.to_class(12, number, mac, number) for number, mac in enumerate(macs, 1)]
    for number, mac in enumerate(macs, 1):
        assert class_of(frame(mac, kind, payload), filters) == number
        at, other = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 255))
        near = mac[:at] + bytes([mac[at] ^ other]) + mac[at + 1 :]
        if near not in macs:
            assert class_of(frame(near, kind, payload), filters) == htb.STRANGERS


@given(MACS, SOURCES, st.integers(0, 3), st.binary(max_size=40))
def test_what_is_urgent_goes_to_its_band_before_all_else_and_takes_no_others_place(
    mac: bytes, number: int, marked: int, rest: bytes
) -> None:
    bulk, control = number | htb.BULK, number | htb.CONTROL
    other = bytes([mac[0] ^ 2, *mac[1:]])  # in the same list of the table
    urgent = [htb.urgent_to_class(12, number, mac, control, family) for family in (4, 6)]
    filters = [htb.to_class(12, number, mac, bulk), *urgent, htb.to_class(12, number % 1023 + 1, other, htb.OPEN)]
    expedited = htb.URGENT | marked  # with whatever marks of congestion
    headers = {
        (0x0800, control): bytes([0x45, expedited]),
        (0x0800, bulk): bytes([0x45, expedited ^ 4]),
        (0x86DD, control): struct.pack(">I", 6 << 28 | expedited << 20 | 0xABCDE),
        (0x86DD, bulk): struct.pack(">I", 6 << 28 | (expedited ^ 0x80) << 20 | 0xABCDE),
    }
    for (kind, minor), header in headers.items():
        assert class_of(frame(mac, kind, header + rest), filters) == minor
        assert class_of(frame(other, kind, header + rest), filters) == htb.OPEN
        assert class_of(frame(mac, 0x0806, header + rest), filters) == bulk
    assert len({(one.bucket, one.place) for one in map(chooser, filters)}) == len(filters)


def test_a_sources_filter_takes_the_place_of_the_one_it_had() -> None:
    mac = bytes.fromhex("02000a4d0005")
    opened, shaped = htb.to_class(12, 5, mac, htb.OPEN), htb.to_class(12, 5, mac, 5 | htb.BULK)
    assert decoded(opened)["handle"] == decoded(shaped)["handle"]
    assert decoded(shaped)["header"]["flags"] & netlink.NLM_F_REPLACE
    assert class_of(frame(mac, 0x0800, b"E"), [opened, shaped]) == 5 | htb.BULK


# --- queues ---------------------------------------------------------------------------------------------


@given(RATES, st.floats(0, 2), st.floats(0, 0.5), st.floats(0, 0.9))
def test_netem_holds_what_its_delay_needs(rate_bps: float, delay: float, jitter: float, loss: float) -> None:
    """As small packets may be, and the senders faster than the link: more than is under way at its rate."""
    shape = LinkShape(rate_bps, delay, jitter, loss)
    found, *waiting = map(decoded, htb.leaf(2, 3, shape))
    options = found.get_attr("TCA_OPTIONS")
    if not (delay or jitter or loss):
        assert found.get_attr("TCA_KIND") == "bfifo"
        return
    assert found.get_attr("TCA_KIND") == "netem"
    assert options["delay"] * 64e-9 == pytest.approx(delay, abs=64e-9)
    assert options["loss"] == round(loss * 0xFFFF_FFFF)
    under_way = rate_bps / 8 * (delay + jitter) / PACKET_BYTES
    assert options["limit"] >= 4 * under_way + shape.queue_bytes / FRAME_BYTES + 1000
    assert [one.get_attr("TCA_KIND") for one in waiting] == ["bfifo"]


@pytest.mark.parametrize(
    ("queue", "kind"),
    [
        (None, "bfifo"),
        (Queue(20_000, "bytes"), "bfifo"),
        (Queue(50, "packets"), "pfifo"),
        *((Queue(0.1, "s", discipline), discipline) for discipline in MANAGED),
    ],
)
def test_below_netem_stands_the_same_queue_as_a_link_without_a_delay_has(queue: Queue | None, kind: str) -> None:
    plain = LinkShape(8e6, queue=queue)
    (alone,) = htb.leaf(2, 7, plain)
    for late in (plain._replace(delay_s=0.05), plain._replace(loss=0.1), plain):
        netem, waiting = htb.leaf(2, 7, late, "netem")
        assert decoded(netem)["parent"] == 0x10007
        assert decoded(waiting)["parent"] == decoded(netem)["handle"] | 1
        assert decoded(waiting).get_attr("TCA_KIND") == decoded(alone).get_attr("TCA_KIND") == kind
        assert payload_of(waiting) == payload_of(alone)
        assert decoded(waiting)["handle"] != decoded(alone)["handle"]


def test_layer_3_takes_the_ethernet_header_off() -> None:
    assert decoded(htb.root(2, 2, htb.STRANGERS)).get_attr("TCA_STAB") is None
    table = netlink.attributes(netlink.attributes(htb.root(2, 3, htb.STRANGERS)[36:])[htb.TCA_STAB])
    base = struct.unpack("=BBhiIIII", table[htb.TCA_STAB_BASE])
    counted = struct.unpack(f"={base[-1]}H", table[htb.TCA_STAB_DATA])
    assert not any(base[:4]) and not any(base[5:7])
    assert [counted[14 + size] for size in (20, 52, 84, 1499, 1500)] == [20, 52, 84, 1499, 1500]
    for whole, rest in ((2, 0), (3, 1), (15, 700), (MAX_SEGMENTS, 0)):  # segments of 1448 bytes, with headers of 52
        assert counted[14 + 52 + 1448 * whole + rest] == 1500 * whole + (rest + 52 if rest else 0)


@pytest.mark.parametrize(
    ("shape", "kind", "limit"),
    [
        (LinkShape(8e6), "bfifo", 100_000),  # a tenth of a second
        (LinkShape(64e3), "bfifo", 6 * 1514),  # what TCP needs
        (LinkShape(8e6, queue=Queue(0.02)), "bfifo", 20_000),
        (LinkShape(64e3, queue=Queue(65_536, "bytes")), "bfifo", 65_536),
        (LinkShape(8e6, queue=Queue(50, "packets")), "pfifo", 50),
        (LinkShape(8e6, loss=0.1, queue=Queue(50, "packets")), "netem pfifo", 50),
        (LinkShape(12e6, 0.1, queue=Queue(1514 * 5, "bytes")), "netem bfifo", 1514 * 5),  # whatever the delay holds
    ],
)
def test_queues_are_as_long_as_asked(shape: LinkShape, kind: str, limit: int) -> None:
    found = [*htb.leaf(2, 7, shape)]
    assert [decoded(one).get_attr("TCA_KIND") for one in found] == kind.split()
    assert payload_of(found[-1]) == struct.pack("=I", limit)


def test_packets_grow_with_the_rate_where_nothing_counts_them() -> None:
    rates = (64e3, 12e6, 30e6, 100e6, 1e9, 2e9)
    assert [LinkShape(rate).segments for rate in rates] == [1, 1, 2, 8, 16, 16]
    for single in ({"loss": 0.01}, {"delay_s": 0.1}, {"queue": Queue(100, "packets")}, {"burst_bytes": 1514}):
        assert LinkShape(1e9, **single).segments == 1
    link, *route = htb.segments(2, 8)
    assert decoded(link, ifinfmsg).get_attr("IFLA_GSO_MAX_SEGS") == 8
    assert [decoded(one, rtmsg)["header"]["type"] for one in route] == [24, 25]


def test_a_cable_is_one_message() -> None:
    mac = "02:00:0a:00:00:05"
    veth = decoded(interfaces.cable("to5", 15, Peer("eth0", 2, mac, 9), 2), ifinfmsg)
    assert (veth["index"], veth.get_attr("IFLA_IFNAME"), veth.get_attr("IFLA_MASTER")) == (15, "to5", 2)
    info = veth.get_attr("IFLA_LINKINFO")
    peer = info.get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    assert (peer["index"], *map(peer.get_attr, ("IFLA_IFNAME", "IFLA_ADDRESS"))) == (2, "eth0", mac)


def test_hosts_know_each_other_by_both_addresses_and_ask_nobody() -> None:
    mac = "02:00:0a:00:00:05"
    port = Port(15, None)  # type: ignore[arg-type]
    host = HostSpace("h5", 5, "10.0.0.5", mac, -1, None, 2, port, ip6="fd74::5")  # type: ignore[arg-type]
    assert host.mac_bytes == bytes.fromhex("02000a000005")
    both = [decoded(one, ndmsg) for one in interfaces.neighbours(host._replace(name="h6"), [host])]
    assert [(one.get_attr("NDA_DST"), one.get_attr("NDA_LLADDR"), one["state"]) for one in both] == [
        ("10.0.0.5", mac, 0x80),
        ("fd74::5", mac, 0x80),
    ]
    assert [one["family"] for one in both] == [socket.AF_INET, socket.AF_INET6]
    assert [*interfaces.neighbours(host, [host])] == []
    (only,) = interfaces.neighbours(host._replace(name="h6"), [host._replace(ip6="")])
    assert decoded(only, ndmsg).get_attr("NDA_DST") == "10.0.0.5"
    added = decoded(interfaces.address(2, "fd74::5", 64), ifaddrmsg)
    assert (added["family"], added["prefixlen"], added.get_attr("IFA_ADDRESS")) == (socket.AF_INET6, 64, "fd74::5")
    assert added.get_attr("IFA_FLAGS") & 0x02  # no question whether others have it, which would travel


def test_what_is_sent_to_all_and_to_groups_has_a_way() -> None:
    ways = [decoded(one, rtmsg) for one in interfaces.groups(2)]
    assert [(one.get_attr("RTA_DST"), one["dst_len"], one.get_attr("RTA_OIF")) for one in ways] == [
        ("224.0.0.0", 4, 2),
        ("255.255.255.255", 32, 2),
    ]


def test_an_ifb_device_is_made_up() -> None:
    made = decoded(interfaces.ifb("up0"), ifinfmsg)
    assert made.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_KIND") == "ifb"
    assert made.get_attr("IFLA_IFNAME") == "up0"
    assert made["flags"] & made["change"] & 1
