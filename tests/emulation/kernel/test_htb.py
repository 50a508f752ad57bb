"""Messages to the kernel about htb, decoded by pyroute2, and the arithmetic behind the messages."""

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
    result = kind(message)
    result.decode()
    return result


def payload_of(message: bytes) -> bytes:
    """Return the raw payload of TCA_OPTIONS."""
    return netlink.attributes(message[36:])[htb.TCA_OPTIONS]


def options_of(message: bytes) -> dict[int, bytes]:
    """Return the attributes of TCA_OPTIONS. pyroute2 reads the keys of a u32 filter from the wrong place."""
    return netlink.attributes(payload_of(message))


@given(RATES)
def test_a_class_carries_its_rate_and_burst(rate_bps: float) -> None:
    class_ = decoded(htb.htb_class(2, 7, rate_bps))
    parameters = class_.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
    assert (class_["index"], class_["handle"], class_["parent"]) == (2, 0x10007, htb.INTERFACE)
    assert class_.get_attr("TCA_KIND") == "htb"
    assert parameters["rate"] == parameters["ceil"] == round(rate_bps / 8)
    assert parameters["rate___reserved"] == htb.LINKLAYER_ETHERNET
    burst = parameters["buffer"] * 64e-9 * parameters["rate"]
    assert burst >= burst_bytes(rate_bps) >= 2 * 1514
    assert burst <= burst_bytes(rate_bps) + 64e-9 * parameters["rate"] + 1
    assert parameters["buffer"] == parameters["cbuffer"]


def test_a_class_carries_an_explicit_burst_and_an_assured_rate() -> None:
    options = decoded(htb.htb_class(2, 7, 8e6, burst=20_000, assured_bps=2e6)).get_attr("TCA_OPTIONS")
    parameters = options.get_attr("TCA_HTB_PARMS")
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


def test_a_port_has_classes_for_links_for_unlimited_sources_and_for_strangers() -> None:
    root = decoded(htb.root(12, 3, htb.STRANGERS))
    assert (root["handle"], root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"]) == (0x10000, htb.STRANGERS)
    *classes, swallows, table, into = map(decoded, htb.port(12))
    assert [(class_["handle"], class_["parent"]) for class_ in classes] == [
        (htb.INTERFACE, 0x10000),
        (0x10000 | htb.OPEN, htb.INTERFACE),
        (0x10000 | htb.STRANGERS, 0x10000),
    ]
    assert {class_.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_CEIL64") for class_ in classes} == {50_000_000_000}
    assert (swallows.get_attr("TCA_KIND"), swallows["parent"]) == ("blackhole", classes[2]["handle"])
    assert {filter_["parent"] for filter_ in (table, into)} == {0x10000}
    assert {filter_["info"] for filter_ in (table, into)} == {2 << 16 | socket.htons(0x0003)}  # of every protocol


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


def test_the_uplink_of_a_host_has_a_single_class_with_the_queue_of_the_rate() -> None:
    root = decoded(htb.root(30, 3, htb.UPLINK))
    assert root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"] == 1
    for rate_bps, set_bps, queue_bps in ((8e6, 8e6, 8e6), (None, 400e9, 2e9)):
        limited, queue = htb.uplink(30, rate_bps)
        class_ = decoded(limited)
        assert (class_["index"], class_["handle"], class_["parent"]) == (30, 0x10001, 0x10000)
        options = class_.get_attr("TCA_OPTIONS")
        assert (options.get_attr("TCA_HTB_RATE64") or options.get_attr("TCA_HTB_PARMS")["rate"]) == set_bps / 8
        assert (decoded(queue).get_attr("TCA_KIND"), decoded(queue)["parent"]) == ("bfifo", 0x10001)
        assert payload_of(queue) == struct.pack("=I", LinkShape(queue_bps).queue_bytes)
    _, longer = htb.uplink(30, 8e6, Queue(1.0))
    assert payload_of(longer) == struct.pack("=I", 1_000_000)


def test_every_frame_that_enters_a_port_is_redirected_through_a_device() -> None:
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


def test_every_queue_of_a_port_has_a_unique_number() -> None:
    """The kernel refuses a number that a queue of a different kind has."""
    shapes = [
        LinkShape(0.0),
        LinkShape(1e6),
        LinkShape(1e6, queue=Queue(50, "packets")),
        *(LinkShape(1e6, queue=Queue(0.1, "s", discipline)) for discipline in MANAGED),
    ]
    shapes += [shape._replace(delay_s=0.1) for shape in shapes[1:]]
    strangers = [decoded(message) for message in htb.port(12)][3]
    kinds = {strangers["handle"]: ("strangers", "blackhole")}
    for number, band, shape in itertools.product((1, 2, 3, 1022, MACHINE), (0, htb.BULK, htb.CONTROL), shapes):
        for queue in map(decoded, htb.leaf(12, number | band, shape)):
            below_netem = "netem" if shape.needs_netem and shape.passes else ""
            kind = (number | band, below_netem, queue.get_attr("TCA_KIND"))
            assert kinds.setdefault(queue["handle"], kind) == kind
            assert queue["handle"] & 0xFFFF == 0


def test_a_link_has_two_bands_without_a_rate_and_the_control_band_goes_first() -> None:
    bands = [decoded(message) for message in htb.bands(2, 7)]
    assert [(band["handle"], band["parent"]) for band in bands] == [(0x10807, 0x10007), (0x10407, 0x10007)]
    parameters = [band.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS") for band in bands]
    assert [(figures["rate"], figures["prio"]) for figures in parameters] == [(1, 0), (1, 1)]


def test_a_cut_link_has_a_blackhole_queue() -> None:
    for shape in (LinkShape(1e6, 0.05, cut=True), LinkShape(0.0), LinkShape(1e6, cut=True, queue=Queue(9, "packets"))):
        (queue,) = map(decoded, htb.leaf(2, 7, shape))
        assert queue.get_attr("TCA_KIND") == "blackhole"
        assert queue["parent"] == 0x10007


def test_rates_beyond_32_bits_are_sent_in_64_bits() -> None:
    options = decoded(htb.htb_class(2, 1, 40e9)).get_attr("TCA_OPTIONS")
    assert options.get_attr("TCA_HTB_PARMS")["rate"] == 0xFFFF_FFFF
    assert options.get_attr("TCA_HTB_RATE64") == options.get_attr("TCA_HTB_CEIL64") == 5_000_000_000


def test_classes_queues_and_filters_may_exist_already_and_roots_must_be_new() -> None:
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
    """A filter: its list in the table, its place in the list, its class and its keys."""

    bucket: int
    place: int
    minor: int
    keys: Sequence[tuple[Any, ...]]  # mask, value, offset, mask of a variable offset


def chooser(message: bytes) -> Chooser:
    filter_, options = decoded(message), options_of(message)
    assert (filter_.get_attr("TCA_KIND"), filter_["index"], filter_["parent"]) == ("u32", 12, htb.ROOT)
    assert filter_["info"] == 2 << 16 | socket.htons(0x0003)
    (chosen,) = struct.unpack("=I", options[htb.TCA_U32_CLASSID])
    assert chosen >> 16 == 1
    (bucket,) = struct.unpack("=I", options[htb.TCA_U32_HASH])
    assert bucket & 0xFFF0_0FFF == htb.SOURCES
    assert filter_["handle"] & 0xFFFF_F000 == bucket
    selector = options[htb.TCA_U32_SEL]
    flags, _, count = selector[:3]
    assert flags == htb.TC_U32_TERMINAL
    assert not any(selector[3:16])
    keys = [
        (*struct.unpack_from(">II", selector, at), *struct.unpack_from("=ii", selector, at + 8))
        for at in range(16, len(selector), 16)
    ]
    assert len(keys) == count
    return Chooser(bucket >> 12 & 0xFF, filter_["handle"] & 0xFFF, chosen & 0xFFFF, keys)


def class_of(frame: bytes, messages: Iterable[bytes]) -> int:
    """Return the class that the filters of a port give a frame, as in net/sched/cls_u32.c."""
    network = 14  # a tag is looked at as if it were a network's header
    # a later filter replaces an earlier one in its place
    by_place = {(chooser_.bucket, chooser_.place): chooser_ for chooser_ in map(chooser, messages)}
    for (bucket, _), chooser_ in sorted(by_place.items()):
        if bucket == frame[11] and all(
            (struct.unpack_from(">I", frame, network + at)[0] ^ value) & mask == 0 and not varying
            for mask, value, at, varying in chooser_.keys
        ):
            return chooser_.minor
    return htb.STRANGERS


def frame(source: bytes, kind: int, payload: bytes) -> bytes:
    return bytes(6) + source + struct.pack(">H", kind) + payload.ljust(46, b"\0")


def test_a_filter_by_source_equals_the_bytes_of_tc() -> None:
    """Equal to ``tc filter … u32 ht 100:5: match u32 0x0200aabb 0xffffffff at -8 match u16 0xcc05 0xffff at -4``."""
    mac = bytes.fromhex("0200aabbcc05")
    wanted = struct.pack("=BxxxiIII", 0, 12, 0x0010_5809, 0x0001_0000, 2 << 16 | socket.htons(0x0003))
    wanted += bytes.fromhex("0800010075333200")  # u32
    keys = bytes.fromhex("ffffffff0200aabbf8ffffff00000000ffff0000cc050000fcffffff00000000")
    selector = netlink.attribute(5, bytes.fromhex("01000200" + "00" * 12) + keys)
    wanted += netlink.attribute(2, netlink.number(1, 0x0001_0007) + netlink.number(2, 0x0010_5000) + selector)
    message = htb.to_class(12, 9, mac, 7)
    assert message[16:] == wanted
    assert message[:8] == struct.pack("=IHH", len(message), 44, 0x0501)


@given(st.lists(MACS, min_size=1, max_size=5, unique=True), st.integers(0, 0xFFFF), st.binary(max_size=46), st.data())
def test_a_frame_of_every_protocol_gets_the_class_of_the_source(
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
def test_urgent_frames_go_to_the_control_band_and_filters_do_not_collide(
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
    assert len({(chooser_.bucket, chooser_.place) for chooser_ in map(chooser, filters)}) == len(filters)


def test_a_new_filter_of_a_source_replaces_the_old_filter() -> None:
    mac = bytes.fromhex("02000a4d0005")
    opened, shaped = htb.to_class(12, 5, mac, htb.OPEN), htb.to_class(12, 5, mac, 5 | htb.BULK)
    assert decoded(opened)["handle"] == decoded(shaped)["handle"]
    assert decoded(shaped)["header"]["flags"] & netlink.NLM_F_REPLACE
    assert class_of(frame(mac, 0x0800, b"E"), [opened, shaped]) == 5 | htb.BULK


# --- queues ---------------------------------------------------------------------------------------------


@given(RATES, st.floats(0, 2), st.floats(0, 0.5), st.floats(0, 0.9))
def test_the_limit_of_netem_suffices_for_the_packets_under_way(
    rate_bps: float, delay: float, jitter: float, loss: float
) -> None:
    """The limit exceeds the packets under way, as packets may be small and senders faster than the link."""
    shape = LinkShape(rate_bps, delay, jitter, loss)
    netem, *waiting = map(decoded, htb.leaf(2, 3, shape))
    options = netem.get_attr("TCA_OPTIONS")
    if not (delay or jitter or loss):
        assert netem.get_attr("TCA_KIND") == "bfifo"
        return
    assert netem.get_attr("TCA_KIND") == "netem"
    assert options["delay"] * 64e-9 == pytest.approx(delay, abs=64e-9)
    assert options["loss"] == round(loss * 0xFFFF_FFFF)
    under_way = rate_bps / 8 * (delay + jitter) / PACKET_BYTES
    assert options["limit"] >= 4 * under_way + shape.queue_bytes / FRAME_BYTES + 1000
    assert [queue.get_attr("TCA_KIND") for queue in waiting] == ["bfifo"]


@pytest.mark.parametrize(
    ("queue", "kind"),
    [
        (None, "bfifo"),
        (Queue(20_000, "bytes"), "bfifo"),
        (Queue(50, "packets"), "pfifo"),
        *((Queue(0.1, "s", discipline), discipline) for discipline in MANAGED),
    ],
)
def test_the_queue_below_netem_equals_the_queue_of_a_link_without_a_delay(queue: Queue | None, kind: str) -> None:
    plain = LinkShape(8e6, queue=queue)
    (alone,) = htb.leaf(2, 7, plain)
    for late in (plain._replace(delay_s=0.05), plain._replace(loss=0.1), plain):
        netem, waiting = htb.leaf(2, 7, late, "netem")
        assert decoded(netem)["parent"] == 0x10007
        assert decoded(waiting)["parent"] == decoded(netem)["handle"] | 1
        assert decoded(waiting).get_attr("TCA_KIND") == decoded(alone).get_attr("TCA_KIND") == kind
        assert payload_of(waiting) == payload_of(alone)
        assert decoded(waiting)["handle"] != decoded(alone)["handle"]


def test_layer_3_does_not_count_the_ethernet_header() -> None:
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
    queues = [*htb.leaf(2, 7, shape)]
    assert [decoded(queue).get_attr("TCA_KIND") for queue in queues] == kind.split()
    assert payload_of(queues[-1]) == struct.pack("=I", limit)


def test_segments_per_packet_grow_with_the_rate_unless_packets_are_counted() -> None:
    rates = (64e3, 12e6, 30e6, 100e6, 1e9, 2e9)
    assert [LinkShape(rate).segments for rate in rates] == [1, 1, 2, 8, 16, 16]
    for single in ({"loss": 0.01}, {"delay_s": 0.1}, {"queue": Queue(100, "packets")}, {"burst_bytes": 1514}):
        assert LinkShape(1e9, **single).segments == 1
    link, *route = htb.segments(2, 8)
    assert decoded(link, ifinfmsg).get_attr("IFLA_GSO_MAX_SEGS") == 8
    assert [decoded(message, rtmsg)["header"]["type"] for message in route] == [24, 25]


def test_a_cable_is_made_by_a_single_message() -> None:
    mac = "02:00:0a:00:00:05"
    veth = decoded(interfaces.cable("to5", 15, Peer("eth0", 2, mac, 9), 2), ifinfmsg)
    assert (veth["index"], veth.get_attr("IFLA_IFNAME"), veth.get_attr("IFLA_MASTER")) == (15, "to5", 2)
    info = veth.get_attr("IFLA_LINKINFO")
    peer = info.get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    assert (peer["index"], *map(peer.get_attr, ("IFLA_IFNAME", "IFLA_ADDRESS"))) == (2, "eth0", mac)


def test_hosts_have_permanent_neighbour_entries_for_both_addresses() -> None:
    mac = "02:00:0a:00:00:05"
    port = Port(15, None)  # type: ignore[arg-type]
    host = HostSpace("h5", 5, "10.0.0.5", mac, -1, None, 2, port, ip6="fd74::5")  # type: ignore[arg-type]
    assert host.mac_bytes == bytes.fromhex("02000a000005")
    both = [decoded(message, ndmsg) for message in interfaces.neighbours(host._replace(name="h6"), [host])]
    assert [(entry.get_attr("NDA_DST"), entry.get_attr("NDA_LLADDR"), entry["state"]) for entry in both] == [
        ("10.0.0.5", mac, 0x80),
        ("fd74::5", mac, 0x80),
    ]
    assert [entry["family"] for entry in both] == [socket.AF_INET, socket.AF_INET6]
    assert [*interfaces.neighbours(host, [host])] == []
    (only,) = interfaces.neighbours(host._replace(name="h6"), [host._replace(ip6="")])
    assert decoded(only, ndmsg).get_attr("NDA_DST") == "10.0.0.5"
    added = decoded(interfaces.address(2, "fd74::5", 64), ifaddrmsg)
    assert (added["family"], added["prefixlen"], added.get_attr("IFA_ADDRESS")) == (socket.AF_INET6, 64, "fd74::5")
    assert added.get_attr("IFA_FLAGS") & 0x02  # no question whether others have it, which would travel


def test_broadcasts_and_multicasts_have_routes() -> None:
    ways = [decoded(message, rtmsg) for message in interfaces.groups(2)]
    assert [(way.get_attr("RTA_DST"), way["dst_len"], way.get_attr("RTA_OIF")) for way in ways] == [
        ("224.0.0.0", 4, 2),
        ("255.255.255.255", 32, 2),
    ]


def test_an_ifb_device_is_made_and_set_up() -> None:
    device = decoded(interfaces.ifb("up0"), ifinfmsg)
    assert device.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_KIND") == "ifb"
    assert device.get_attr("IFLA_IFNAME") == "up0"
    assert device["flags"] & device["change"] & 1
