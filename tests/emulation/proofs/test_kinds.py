"""Proofs with frames of every kind, over links and through cuts."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations

import pytest
from beds import at_the_bridge, use_user_namespaces
from patience import patience

from thalweg.emulation.kernel.host_space import HostSpace, Port
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs import kinds
from thalweg.emulation.proofs.proof import KindProof, LinkProof, failures
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.wan import Testbed

LINK = LinkShape(5e6)
FOREIGN = """
import socket, sys
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("eth0", 0))
frame = bytes.fromhex(sys.argv[1] + "00005e00010a" + "0800") + bytes(60)
for _ in range(7):
    sender.send(frame)
"""
RECEIVED = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 5000))
print("up", flush=True)
for _ in range(50):  # a burst, and what waits, first
    s.recv(2000)
begun, bits = time.monotonic(), 0
while (now := time.monotonic()) - begun < 1:
    bits += 8 * (len(s.recv(2000)) + 28)
print(round(bits / (now - begun)), flush=True)
"""
FLOOD = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    s.sendto(bytes(1400), (sys.argv[1], 5000))
"""
COUNT = """
import socket
got = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
got.bind(("eth0", 3))
got.settimeout(0.5)
print("up", flush=True)
found = 0
try:
    while True:
        found += bytes.fromhex("00005e00010a") in got.recv(2000)
except TimeoutError:
    print(found, flush=True)
"""


def end(number: int, ip6: str = "") -> HostSpace:
    """Return a host without a namespace."""
    mac = f"02:00:0a:4d:00:{number:02x}"
    return HostSpace(f"h{number}", number, f"10.77.0.{number}", mac, -1, None, 2, Port(3, None), ip6=ip6)  # type: ignore[arg-type]


def test_the_frames_of_a_proof_have_the_headers_of_the_protocols() -> None:
    source, target = end(1, "fd00::1"), end(2, "fd00::2")
    frames = {kind: kinds.frame(kind, source, target, b"mark") for kind in kinds.KINDS}
    assert all(frame[6:12] == source.mac_bytes and frame.endswith(b"mark") for frame in frames.values())
    assert [frame[:6].hex() for frame in frames.values()] == [
        "02000a4d0002", "02000a4d0002", "01005e7f4d07", "ffffffffffff", "02000a4d0002", "02000a4d0002",
    ]  # fmt: skip
    assert [frame[12:14].hex() for frame in frames.values()] == ["0800", "86dd", "0800", "0800", "0800", "8100"]
    assert frames["VLAN"][14:18].hex() == "004d0800"
    for kind, frame in frames.items():
        if kind != "IPv6":
            header = frame[-32:-12]
            total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2))
            assert (total & 0xFFFF) + (total >> 16) == 0xFFFF  # the checksum holds: RFC 1071
    assert frames["a second address"][30:34] not in (bytes((10, 77, 0, 1)), bytes((10, 77, 0, 2)))
    assert frames["IPv6"][22:54] == bytes.fromhex("fd00" + "00" * 13 + "01" + "fd00" + "00" * 13 + "02")


def test_a_leak_is_named() -> None:
    proof = LinkProof("a", "b", 1e6, 1e6, 0.0, 1.0, 1, "udp")
    passes = KindProof("IPv4", 25, 25, 25, 25, 0)
    rows = (KindProof("IPv6", 25, 25, 25, 25, 3), KindProof("VLAN", 25, 25, 0, 25, 0), passes)
    leaking = LinkProof("a", "b", 1e6, 1e6, 0.0, 1.0, 1, "udp", kinds=rows, unshaped=4)
    assert proof.kinds_ok
    assert not leaking.kinds_ok
    (line,) = failures([proof, leaking])
    assert line == (
        "link a → b lets IPv6 through a cut: 3 of 25 frames come; loses VLAN: 0 of 25 frames come;"
        " lets 4 frames pass unshaped"
    )


@pytest.mark.netns
@pytest.mark.parametrize("as_user", [False, True])
def test_frames_of_every_kind_pass_a_link_and_no_frame_passes_a_cut(
    as_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if as_user:
        use_user_namespaces(monkeypatch)
    with NetnsTestbed(["a", "b", "c"]) as bed:
        bed.shape({("a", "b"): LINK, ("b", "a"): LINK, ("a", "c"): LINK._replace(rate_bps=1e6)})
        proofs = bed.prove(every_kind=True)
        assert failures(proofs) == []
        for proof in proofs:
            assert [kind.kind for kind in proof.kinds] == [*kinds.KINDS]
            assert all(kind.came == kind.sent >= 1 and kind.cut_sent == 25 for kind in proof.kinds)
        assert bed.status()["strangers"] == {}
        assert all(not shape.cut for shape in bed.shapes.values())


@pytest.mark.netns
@pytest.mark.program("tc", "nsenter")
def test_a_port_that_has_lost_the_filters_is_found() -> None:
    with NetnsTestbed(["a", "b"]) as bed:
        bed.shape({("a", "b"): LINK, ("b", "a"): LINK})
        at_the_bridge(bed, *["tc", "filter", "del", "dev", "to2", "parent", "1:"])
        stranger = {proof.link: proof for proof in bed.prove([("a", "b")], every_kind=True)}
        (line,) = failures(stranger.values())
        assert "loses IPv4: 0 of" in line
        assert bed.status()["strangers"]["b"] > 0


@pytest.mark.netns
def test_frames_from_an_unknown_address_are_dropped_and_counted() -> None:
    with Testbed.open("netns", ["a", "b", "c"], rate="10mbit") as bed:
        assert bed._bed.status()["strangers"] == {}
        counting = bed.start("b", [sys.executable, "-c", COUNT], stdout=subprocess.PIPE)
        assert counting.stdout is not None
        assert counting.stdout.readline() == b"up\n"
        bed.run("a", [sys.executable, "-c", FOREIGN, "ffffffffffff"], check=True, timeout_s=patience(10))
        assert counting.stdout.readline() == b"0\n"
        assert bed._bed.status()["strangers"] == {"b": 7, "c": 7}


@pytest.mark.netns
def test_a_proof_succeeds_after_a_flow_has_filled_the_queue_of_a_slow_link() -> None:
    with NetnsTestbed(["a", "b"]) as bed:
        bed.shape(dict.fromkeys((("a", "b"), ("b", "a")), LinkShape(128e3)))
        proofs = bed.prove(flows=True, every_kind=True)
        assert failures(proofs) == []
        assert sorted((proof.src, proof.dst) for proof in proofs) == [("a", "b"), ("b", "a")]
        assert all(proof.tcp_bps for proof in proofs)
        assert all(kind.came == kind.sent >= 1 for proof in proofs for kind in proof.kinds)
        assert {len(proof.kinds) for proof in proofs} == {len(kinds.KINDS)}


@pytest.mark.netns
def test_links_that_share_the_rate_of_a_host_are_proven_without_failures() -> None:
    with NetnsTestbed(["a", "b", "c", "d"]) as bed:
        bed.shape(dict.fromkeys(permutations("abcd", 2), LinkShape(1e6)))
        bed.limit_hosts({"a": 64e3}, {"b": 200e3})
        proofs = bed.prove(every_kind=True)
        assert failures(proofs) == []
        least = {(a, b): min(64e3 if a == "a" else 1e6, 200e3 if b == "b" else 1e6) for a, b in permutations("abcd", 2)}
        assert {(proof.src, proof.dst): proof.asked_bps for proof in proofs} == least
        assert all(kind.came == kind.sent >= 1 for proof in proofs for kind in proof.kinds)
        assert {len(proof.kinds) for proof in proofs} == {len(kinds.KINDS)}


@pytest.mark.netns
def test_a_hosts_down_rate_holds_for_links_that_have_no_rate() -> None:
    with Testbed.open("netns", ["a", "b", "c"]) as bed:
        bed.set("a", down_rate="1mbit")
        receiving = bed.start("a", [sys.executable, "-c", RECEIVED, bed.hosts["a"]], stdout=subprocess.PIPE)
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == b"up\n"
        sending = bed.start("b", [sys.executable, "-c", FLOOD, bed.hosts["a"]])
        bits = int(receiving.stdout.readline())
        sending.kill()
        assert bits == pytest.approx(1e6, rel=0.1)


@pytest.mark.netns
@pytest.mark.program("ping")
def test_a_host_that_forges_an_address_does_not_divert_the_frames_of_the_owner() -> None:
    with Testbed.open("netns", ["a", "b", "c"], rate="10mbit") as bed:
        forged = FOREIGN.replace("00005e00010a", "02000a4d0002")  # that of b
        bed.run("a", [sys.executable, "-c", forged, "ffffffffffff"], check=True, timeout_s=patience(10))
        assert bed.run("c", ["ping", "-c1", "-W2", bed.hosts["b"]], timeout_s=patience(10)).returncode == 0
