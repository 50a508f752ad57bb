"""What is sent to the kernel, decoded by pyroute2; the arithmetic behind it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from thalweg.emulation.kernel import htb, interfaces, netlink
from thalweg.emulation.kernel.interfaces import Peer
from thalweg.emulation.kernel.world import HostSpace
from thalweg.emulation.links.shape import FRAME_BYTES, MAX_SEGMENTS, RATE_FLOOR_BPS, LinkShape, Queue, burst_bytes

RATES = st.floats(RATE_FLOOR_BPS, 2e9)


def decoded(message: bytes, kind: Any = tcmsg) -> Any:
    assert struct.unpack_from("=I", message)[0] == len(message)
    found = kind(message)
    found.decode()
    return found


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


def test_a_port_has_one_class_for_all_that_leaves_through_it() -> None:
    root = decoded(htb.root(12, 3, htb.PORT_MINOR | htb.BULK))
    assert (root["handle"], root.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"]) == (0x10000, 0x401)
    changed = list(htb.port(12, None))
    assert [decoded(one)["handle"] for one in changed] == [0x10001, 0x10801, 0x10401, 0x1401_0000, 0x8000_0001]
    assert netlink.attributes(changed[3][36:])[htb.TCA_OPTIONS] == struct.pack("=I", LinkShape(2e9).queue_bytes)


def test_a_link_has_two_bands_of_which_one_goes_first_and_neither_has_a_rate() -> None:
    found = [decoded(one) for one in htb.bands(2, 7)]
    assert [(one["handle"], one["parent"]) for one in found] == [(0x10807, 0x10007), (0x10407, 0x10007)]
    parameters = [one.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS") for one in found]
    assert [(one["rate"], one["prio"]) for one in parameters] == [(1, 0), (1, 1)]


def test_a_cut_swallows_everything() -> None:
    found = decoded(htb.leaf(2, 7, LinkShape(1e6, 0.05, cut=True)))
    assert found.get_attr("TCA_KIND") == "blackhole"
    assert found["parent"] == 0x10007


def test_rates_beyond_32_bits_travel_in_64() -> None:
    found = decoded(htb.htb_class(2, 1, 40e9)).get_attr("TCA_OPTIONS")
    assert found.get_attr("TCA_HTB_PARMS")["rate"] == 0xFFFF_FFFF
    assert found.get_attr("TCA_HTB_RATE64") == found.get_attr("TCA_HTB_CEIL64") == 5_000_000_000


def test_classes_and_queues_are_stated_and_roots_and_filters_made() -> None:
    for message in (htb.htb_class(2, 1, 1e6), htb.leaf(2, 1, LinkShape(1e6))):
        flags = decoded(message)["header"]["flags"]
        assert flags & netlink.NLM_F_CREATE
        assert not flags & netlink.NLM_F_EXCL
    assert decoded(htb.root(2, 3))["header"]["flags"] & netlink.NLM_F_EXCL


@given(st.ip_addresses(v=4), st.integers(1, 1023))
def test_a_filter_matches_the_destination_address(ip: Any, minor: int) -> None:
    wanted = tcmsg()
    wanted["header"] |= {"type": netlink.RTM_NEWTFILTER, "flags": 0x501}
    wanted["index"], wanted["parent"], wanted["info"], wanted["handle"] = 2, 0x10000, 0x10008, 0x8000_0009
    options = [("TCA_U32_CLASSID", 0x10000 | minor), ("TCA_U32_SEL", {"keys": [f"{int(ip):#x}/0xffffffff+16"]})]
    wanted["attrs"] = [("TCA_KIND", "u32"), ("TCA_OPTIONS", {"attrs": options})]
    wanted.encode()
    assert htb.to_class(2, 9, minor, ip.packed) == bytes(wanted.data)
    both = htb.to_class(2, 9, minor, ip.packed, urgent=True)
    assert both.endswith(bytes.fromhex("00fc000000b80000") + bytes(8) + bytes(wanted.data)[-16:])


@given(RATES, st.floats(0, 2), st.floats(0, 0.5), st.floats(0, 0.9))
def test_netem_holds_what_its_delay_needs(rate_bps: float, delay: float, jitter: float, loss: float) -> None:
    shape = LinkShape(rate_bps, delay, jitter, loss)
    found = decoded(htb.leaf(2, 3, shape))
    options = found.get_attr("TCA_OPTIONS")
    if not (delay or jitter or loss):
        assert found.get_attr("TCA_KIND") == "bfifo"
        return
    assert found.get_attr("TCA_KIND") == "netem"
    assert options["delay"] * 64e-9 == pytest.approx(delay, abs=64e-9)
    assert options["loss"] == round(loss * 0xFFFF_FFFF)
    assert options["limit"] * FRAME_BYTES >= rate_bps / 8 * delay + shape.queue_bytes


def test_layer_3_takes_the_ethernet_header_off() -> None:
    assert decoded(htb.root(2, 2)).get_attr("TCA_STAB") is None
    table = netlink.attributes(netlink.attributes(htb.root(2, 3)[36:])[htb.TCA_STAB])
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
        (LinkShape(8e6, loss=0.1, queue=Queue(50, "packets")), "netem", 50),
        (LinkShape(12e6, 0.1, queue=Queue(1514 * 5, "bytes")), "netem", 205),  # twice what the delay holds
    ],
)
def test_queues_are_as_long_as_asked(shape: LinkShape, kind: str, limit: int) -> None:
    found = decoded(htb.leaf(2, 7, shape))
    options = found.get_attr("TCA_OPTIONS")
    assert found.get_attr("TCA_KIND") == kind
    if kind == "netem":
        assert options["limit"] == limit
    else:
        assert netlink.attributes(htb.leaf(2, 7, shape)[36:])[htb.TCA_OPTIONS] == struct.pack("=I", limit)


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
    host = HostSpace("h5", 5, "10.0.0.5", mac, -1, netlink=None, interface=2)  # type: ignore[arg-type]
    (entry,) = (decoded(one, ndmsg) for one in interfaces.neighbours(host._replace(name="h6"), [host]))
    assert (entry.get_attr("NDA_DST"), entry.get_attr("NDA_LLADDR"), entry["state"]) == ("10.0.0.5", mac, 0x80)
