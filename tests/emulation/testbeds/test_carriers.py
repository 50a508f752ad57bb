"""Carriers of hosts, resets of connections and MTUs of links, on namespaces."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

from thalweg import Testbed, UsageError
from thalweg.emulation.wan import TestbedProcess

pytestmark = [pytest.mark.netns, pytest.mark.program("ip", "ping")]

HOSTS = ["a", "b", "c"]


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed.open("netns", HOSTS, rate="20mbit", networks=["leased"]) as opened:
        yield opened


def comes_back(bed: Testbed, host: str, other: str, *more: str) -> bool:
    return bed.run(host, ["ping", "-c1", "-W0.5", *more, other]).returncode == 0


def interface(bed: Testbed, host: str) -> str:
    return bed.run(host, ["ip", "-o", "link", "show", "eth0"], check=True).stdout


def test_a_host_without_carrier_reaches_no_host_and_the_interface_shows_no_carrier(bed: Testbed) -> None:
    assert "NO-CARRIER" not in interface(bed, "b")
    bed.set("b", carrier="down")
    assert "NO-CARRIER" in interface(bed, "b")
    assert "NO-CARRIER" not in interface(bed, "a")
    assert "no carrier: b" in bed.condition()
    assert [comes_back(bed, *ends) for ends in ("ab", "bc", "ac")] == [False, False, True]
    with pytest.raises(UsageError, match="b has no carrier, so its links carry nothing"):
        bed.prove()
    bed.set("b", carrier="up")
    assert "NO-CARRIER" not in interface(bed, "b")
    assert all(comes_back(bed, *ends, *family) for ends in ("ab", "bc", "ba") for family in ((), ("-6",)))
    bed.prove()


def test_lost_carriers_and_resets_stand_in_the_report(bed: Testbed, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    bed.set("b", carrier="down")
    bed.set("b", carrier="up")
    bed.set("c", carrier="down")
    bed.reset("a", "b")
    page = bed.report(tmp_path / "report")
    events = [
        (row["kind"], row["note"], row["end_s"] is None)
        for row in pq.read_table(page.parent / "events.parquet").to_pylist()
    ]
    assert events == [
        ("carrier", "b", False), ("carrier", "c", True), ("reset", "0 connections of a → b", False),
    ]  # fmt: skip
    assert "c has no carrier since" in page.read_text()


def test_a_lost_carrier_in_a_network_leaves_the_other_network_alone(bed: Testbed) -> None:
    leased = bed.on("leased")
    leased.set("a", "b", rate="5mbit", both=True)
    leased.set("b", carrier="down")
    assert "no carrier: b.leased" in bed.condition()
    assert comes_back(bed, "a", "b")
    assert not comes_back(bed, "a", leased.hosts["b"])
    leased.set("b", carrier="up")
    assert comes_back(bed, "a", leased.hosts["b"])


@pytest.mark.parametrize(
    ("ends", "carrier", "says"),
    [
        (("a", "b"), "down", "carrier is of a host, not of the link to 'b'; name 'a' alone"),
        (("z",), "down", "there is no host 'z'"),
        (("a",), "off", "there is no carrier 'off'; there are up, down"),
    ],
)
def test_an_impossible_carrier_setting_is_refused(bed: Testbed, ends: tuple[str, ...], carrier: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        bed.set(*ends, carrier=carrier)  # type: ignore[arg-type]


SCENARIO = """
hosts = ["a", "b", "c"]
[links]
rate = "20mbit"
[[event]]
kind = "carrier"
at = "0s"
for = "300ms"
host = "b"
[[event]]
kind = "carrier"
at = "200ms"
for = "400ms"
host = "b"
"""


def test_carriers_are_lost_and_come_back_as_a_scenario_says(bed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    began_s = time.monotonic()
    bed.play(tmp_path / "s.toml")
    assert "NO-CARRIER" in interface(bed, "b")
    while "NO-CARRIER" in interface(bed, "b"):
        assert time.monotonic() - began_s < patience(20)
    assert time.monotonic() - began_s >= 0.6
    assert comes_back(bed, "a", "b")
    bed.play(tmp_path / "s.toml")
    bed.stop()
    assert "NO-CARRIER" in interface(bed, "b")  # as it is now
    (tmp_path / "t.toml").write_text(
        SCENARIO.partition("[[event]]")[0]
        + """
[[event]]
kind = "outage"
at = "1h"
from = "a"
to = "b"
"""
    )
    bed.play(tmp_path / "t.toml")  # undoes what the former replay has done
    assert comes_back(bed, "a", "b")


ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
with socket.socket(family) as one:
    if sys.argv[1] == "serve":
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((sys.argv[2], 7777))
        one.listen()
        print("ready", flush=True)
        one, _ = one.accept()
    else:
        one.connect((sys.argv[2], 7777))
    one.sendall(b"x")
    assert one.recv(1) == b"x"
    print("connected", flush=True)
    try:
        one.recv(1)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def connection(bed: Testbed, source: str, target: str, address: str) -> tuple[TestbedProcess, TestbedProcess]:
    """Return the processes at both ends of a connection, which wait for bytes."""

    def start(host: str, what: str) -> TestbedProcess:
        return bed.start(host, [sys.executable, "-c", ECHO, what, address], stdout=subprocess.PIPE)

    server = start(target, "serve")
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    client = start(source, "connect")
    for process in (server, client):
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
    return client, server


@pytest.mark.parametrize("version", [4, 6])
def test_a_reset_ends_connections_between_two_hosts_and_spares_all_other_connections(
    bed: Testbed, version: int
) -> None:
    addresses = bed.hosts if version == 4 else bed.hosts_6
    ended, stays = connection(bed, "a", "b", addresses["b"]), connection(bed, "a", "c", addresses["c"])
    with ended[0], ended[1], stays[0], stays[1]:
        assert bed.reset("a", "b") == 1
        assert [process.communicate(timeout=patience(10))[0] for process in ended] == [
            b"ConnectionAbortedError\n", b"ConnectionResetError\n",
        ]  # fmt: skip
        assert [process.poll() for process in stays] == [None, None]
        assert bed.reset("a", "b") == 0
        assert bed.reset("c") == 1  # of a host, whatever the other end
        assert stays[0].communicate(timeout=patience(10))[0] == b"ConnectionResetError\n"
    again = connection(bed, "a", "b", addresses["b"])
    with again[0], again[1]:
        assert bed.reset() == 1, "both ends are reset, and the connection counts once"


def test_a_reset_does_not_pass_a_cut(bed: Testbed) -> None:
    client, server = connection(bed, "a", "b", bed.hosts["b"])
    with client, server:
        bed.cut("a", "b")
        assert bed.reset("a", "b") == 1
        assert client.communicate(timeout=patience(10))[0] == b"ConnectionAbortedError\n"
        bed.restore()
        assert bed.reset() == 1  # the half that has heard nothing
        assert server.communicate(timeout=patience(10))[0] == b"ConnectionAbortedError\n"


def fits(bed: Testbed, size: int, *more: str) -> bool:
    """Return whether an IP packet of a size gets from a to b and back, unfragmented."""
    headers = 48 if "-6" in more else 28
    done = bed.run("a", ["ping", "-c1", "-W0.5", "-M", "do", "-s", str(size - headers), *(more or ["-4"]), "b"])
    return done.returncode == 0


@pytest.mark.parametrize("family", [(), ("-6",)])
def test_the_source_of_a_link_learns_the_mtu(bed: Testbed, family: tuple[str, ...]) -> None:
    assert fits(bed, 1500, *family)
    bed.set("a", "b", mtu=1400, both=True)
    assert [fits(bed, size, *family) for size in (1400, 1401)] == [True, False]
    address = (bed.hosts_6 if family else bed.hosts)["b"]
    assert "mtu 1400" in bed.run("a", ["ip", *family, "route", "get", address], check=True).stdout
    assert "a → b, b → a: 20.0 Mbit/s, MTU 1400" in bed.condition()
    bed.run("a", ["ip", *family, "route", "del", address], check=True)  # root on a host may
    bed.set("a", "b", mtu=1500, both=True)
    assert fits(bed, 1500, *family)


def test_a_silent_mtu_is_a_black_hole_for_longer_packets(bed: Testbed) -> None:
    bed.set("a", "b", mtu={"bytes": 1400, "silent": True})
    assert [fits(bed, size) for size in (1400, 1401)] == [True, False]
    ping = bed.run("a", ["ping", "-c1", "-W0.5", "-M", "do", "-s", "1472", "-4", "b"])
    assert "100% packet loss" in ping.stdout
    assert "mtu" not in ping.stdout + ping.stderr
    bed.set("a", "b", mtu="1450,silent")
    assert [fits(bed, size) for size in (1450, 1451)] == [True, False]
    proofs = {(proof.src, proof.dst): proof for proof in bed._bed.prove(flows=True, every_kind=True)}
    kinds = {kind.kind: kind for kind in proofs["a", "b"].kinds}
    assert kinds["as long as the MTU"].came == kinds["as long as the MTU"].sent > 0
    assert proofs["a", "b"].longer == 0
    assert all(proof.kinds_ok for proof in proofs.values())
    assert (proofs["a", "b"].tcp_bps or 0) > 10e6  # its segments fit


@pytest.mark.timed
def test_tcp_passes_a_smaller_mtu_at_the_full_rate_and_stalls_at_a_silent_mtu(bed: Testbed) -> None:
    bed.set("a", "b", mtu=1000)
    (proof,) = bed._bed.prove([("a", "b")], flows=True)
    assert proof.rate_ok
    assert proof.tcp_ok
    assert proof.tcp_bps is not None
    script = "import socket, sys; one = socket.create_connection((sys.argv[1], 7778), 5); one.settimeout(1)\n"
    script += "one.sendall(bytes(100_000)); one.shutdown(socket.SHUT_WR); print(len(one.recv(1)))"
    serve = "import socket\nwith socket.create_server(('', 7778)) as s:\n print('ready', flush=True)\n"
    serve += " while True:\n  c, _ = s.accept(); n = 0\n  while block := c.recv(65536): n += len(block)\n"
    serve += "  c.sendall(b'x'); c.close()"
    with bed.start("b", [sys.executable, "-c", serve], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert bed.run("a", [sys.executable, "-c", script, bed.hosts["b"]]).stdout == "1\n"
        bed.set("a", "b", mtu={"bytes": 1000, "silent": True})
        assert "timed out" in bed.run("a", [sys.executable, "-c", script, bed.hosts["b"]]).stderr
        server.kill()


def test_links_of_further_networks_have_mtus_too(bed: Testbed) -> None:
    leased = bed.on("leased")
    leased.set("a", "b", rate="5mbit", mtu=1300)
    leased.set("b", "a", rate="5mbit")
    size = ["ping", "-c1", "-W0.5", "-M", "do", "-s"]
    sizes = [bed.run("a", [*size, str(bytes - 28), leased.hosts["b"]]).returncode for bytes in (1300, 1301)]
    assert sizes == [0, 1]
    assert fits(bed, 1500)
    leased.set("a", "b", mtu=1500)
    assert bed.run("a", [*size, "1472", leased.hosts["b"]]).returncode == 0


@pytest.mark.parametrize(
    ("mtu", "says"),
    [
        (100, "the MTU is 100 bytes; it must lie between 576 and 1500"),
        ("1400,loud", "'1400,loud' is not an MTU"),
        ({"bytes": 1400, "silence": True}, "is not an MTU; write it as 1400"),
        (1400.5, "1400.5 is not an MTU in bytes"),
    ],
)
def test_an_impossible_mtu_is_refused(bed: Testbed, mtu: object, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        bed.set("a", "b", mtu=mtu)  # type: ignore[arg-type]
