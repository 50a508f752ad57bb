"""Real namespaces, links and processes: set-up, delivered rates, and removal without leftovers."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from beds import at_the_bridge, use_user_namespaces
from patience import patience

from thalweg.emulation.kernel import htb, interfaces, namespaces
from thalweg.emulation.kernel.names import ipv6_beside
from thalweg.emulation.kernel.world import BANDED_HOSTS
from thalweg.emulation.links.shape import LinkShape, Queue, ShapeFigures
from thalweg.emulation.proofs.proof import failures
from thalweg.emulation.testbeds import testbed
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError

pytestmark = pytest.mark.netns
PYTHON = sys.executable
NAMES = ["client", "h1", "h2", "h3"]

RECEIVE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 5000), family=family)
print("up", flush=True)
connection, _ = server.accept()
while connection.recv(1 << 16): pass
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection: connection.sendall(bytes(int(sys.argv[2])))
"""


def pairs(names: list[str]) -> list[tuple[str, str]]:
    return list(itertools.permutations(names, 2))


@pytest.fixture(scope="module")
def bed() -> Iterator[NetnsTestbed]:
    with NetnsTestbed(NAMES) as bed:
        bed.shape({link: LinkShape(1e6 + 0.3e6 * i) for i, link in enumerate(pairs(NAMES))})
        yield bed


def transfer(bed: NetnsTestbed, source: str, target: str, size_bytes: int, ip: str | None = None) -> float:
    """Send bytes by TCP to an address of the target. Return the seconds until all bytes have arrived."""
    ip = ip or bed.hosts[target]
    receiver = bed.run(target, [PYTHON, "-c", RECEIVE, ip], stdout=subprocess.PIPE)
    assert receiver.stdout
    assert receiver.stdout.readline() == b"up\n"
    begun_s = time.monotonic()
    assert bed.run(source, [PYTHON, "-c", SEND, ip, str(size_bytes)]).wait(patience(30)) == 0
    assert receiver.wait(patience(30)) == 0
    took_s = time.monotonic() - begun_s
    receiver.close()
    return took_s


def output(bed: NetnsTestbed, host: str, *argv: str, status: int = 0) -> str:
    process = bed.run(host, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    text = process.stdout.read().decode()
    assert process.wait(patience(10)) == status, text
    process.close()
    return text


def port(bed: NetnsTestbed, host: str) -> str:
    """Return the name of the bridge port through which all frames to a host leave."""
    return f"to{[*bed.hosts].index(host) + 1}"


def classes(bed: NetnsTestbed) -> dict[str, set[str]]:
    """Return the classes of the port of every host."""
    return {
        host: set(re.findall(r"class htb (\S+)", at_the_bridge(bed, "tc", "class", "show", "dev", port(bed, host))))
        for host in bed.hosts
    }


def test_very_many_links_are_set_in_batches(bed: NetnsTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.emulation.testbeds.testbed.AT_ONCE", 5)
    counts: list[int] = []
    bed.shape(dict(bed.shapes), counts.append)
    assert counts == [5, 10, 12]


BRIDGED = """
from thalweg.emulation.kernel import interfaces
from thalweg.emulation.kernel.netlink import RTMGRP_LINK, NetlinkSocket
control, news = NetlinkSocket(), NetlinkSocket(groups=RTMGRP_LINK)
far = interfaces.Peer("eth0", 12, "02:00:0a:00:00:01")
control.request([interfaces.bridge("links", 2), interfaces.cable("to1", 11, far, 2), interfaces.up(2)])
while not interfaces.silent_ports(control):
    assert news.wait_for_news(30)
print(interfaces.silent_ports(control))
control.request([interfaces.up(12)])
while interfaces.silent_ports(control):
    assert news.wait_for_news(30)
print(interfaces.silent_ports(control), news.wait_for_news(0) and news.wait_for_news(0))
"""


def test_a_port_of_a_bridge_is_silent_until_its_cable_has_a_carrier() -> None:
    """A testbed is ready only when no port is silent, or else its first packets are lost."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    told = subprocess.run(
        ["unshare", "--net", *user, PYTHON, "-c", BRIDGED], capture_output=True, text=True, timeout=patience(60)
    )
    assert (told.returncode, told.stdout) == (0, "{11}\nset() False\n"), told.stderr


def test_a_testbed_is_ready_when_every_port_forwards_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    states, waits = [{12}, {12, 13}, {12}, set[int]()], []
    monkeypatch.setattr(interfaces, "silent_ports", lambda _: states.pop(0))
    monkeypatch.setattr(namespaces.NetlinkSocket, "wait_for_news", lambda _, within_s: waits.append(within_s))
    world = namespaces.NamespaceWorld.__new__(namespaces.NamespaceWorld)
    monkeypatch.setattr(world, "_own", SimpleNamespace(request=list), raising=False)
    world._bring_up_bridges(1)
    assert not states
    assert len(waits) == 3
    assert namespaces.PORTS_READY_S >= waits[0] >= waits[2] > 0


@pytest.mark.timed
def test_every_link_delivers_the_asked_rate(bed: NetnsTestbed) -> None:
    proofs = bed.prove()
    assert {(proof.src, proof.dst) for proof in proofs} == set(pairs(NAMES))
    for proof in proofs:
        assert abs(proof.error) < 0.05, proof
        assert proof.method == "udp"
        assert proof.size_bytes == pytest.approx(proof.delivered_bps * proof.seconds / 8, rel=1e-6)


@pytest.mark.timed
@pytest.mark.program("tc", "nsenter")
def test_changes_are_made_in_place_and_hold(bed: NetnsTestbed) -> None:
    before = classes(bed)
    numbers, of_port = {1, 2, 3, 4}, {htb.INTERFACE_MINOR, htb.OPEN, htb.STRANGERS}
    for number, host in enumerate(NAMES, 1):  # one for each source, and the port's three
        assert before[host] == {f"1:{minor:x}" for minor in numbers - {number} | of_port}
    bed.shape({("h1", "h2"): LinkShape(7e6), ("h2", "h1"): LinkShape(32e3), ("h2", "h3"): LinkShape(0.0)})
    proofs = {(proof.src, proof.dst): proof for proof in bed.prove([("h1", "h2"), ("h2", "h1"), ("h2", "h3")])}
    assert proofs["h1", "h2"].asked_bps == 7e6
    assert proofs["h2", "h1"].asked_bps == 32e3
    assert (proofs["h2", "h3"].asked_bps, proofs["h2", "h3"].delivered_bps) == (0.0, 0.0)
    assert failures(proofs.values()) == []
    bed.shape(dict.fromkeys([("h2", "h1"), ("h2", "h3")], LinkShape(2e6)))
    assert classes(bed) == before


@pytest.mark.timed
def test_the_counters_of_a_link_prove_that_a_tcp_flow_is_shaped(bed: NetnsTestbed) -> None:
    bed.shape({("h1", "h3"): LinkShape(4e6), ("h3", "h1"): LinkShape(4e6)})
    bed.samples()
    bed.start_sampling(0.1)
    transfer(bed, "h1", "h3", 600_000)
    bed.start_sampling(3600)
    bed.shape({("h1", "h3"): LinkShape(8e6)})
    bed.start_sampling(0.1)
    transfer(bed, "h1", "h3", 600_000)
    busy = [sample for sample in bed.samples() if sample.src == "h1" and sample.backlogged]
    assert {sample.dst for sample in busy} == {"h3"}
    assert [sample.asked_bps for sample in busy] == pytest.approx([8e6] * len(busy))
    assert sum(sample.delivered_bps for sample in busy) / sum(sample.asked_bps for sample in busy) == pytest.approx(
        1, abs=0.1
    )


OFFLOADS = """
import ctypes, fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    for command in (0x1E, 0x23, 0x2B):  # linux/ethtool.h: ETHTOOL_GTSO, ETHTOOL_GGSO, ETHTOOL_GGRO
        value = ctypes.create_string_buffer(struct.pack("=II", command, 9))
        fcntl.ioctl(asking, 0x8946, struct.pack("16sP16x", sys.argv[1].encode(), ctypes.addressof(value)))
        print(*struct.unpack_from("=I", value, 4))
"""


@pytest.mark.program("ip", "tc", "nsenter")
def test_a_host_sees_only_lo_and_eth0_and_links_are_shaped_at_the_bridge_without_offloads(
    bed: NetnsTestbed,
) -> None:
    links = output(bed, "h2", "ip", "-o", "address")
    assert f"inet {bed.hosts['h2']}/16" in links
    assert set(re.findall(r"^\d+: (\S+)", links, re.M)) <= {"lo", "eth0"}
    neighbours = output(bed, "h2", "ip", "-4", "neighbour")
    assert neighbours.count("PERMANENT") == len(NAMES) - 1
    assert output(bed, "h2", "tc", "qdisc", "show", "dev", "eth0").split()[:3] == ["qdisc", "noqueue", "0:"]
    assert output(bed, "h2", "tc", "class", "show", "dev", "eth0") == ""
    details = at_the_bridge(bed, "tc", "-s", "qdisc", "show", "dev", port(bed, "h2"))
    assert details.count("bfifo") == len(NAMES) - 1
    assert at_the_bridge(bed, PYTHON, "-c", OFFLOADS, port(bed, "h2")).split() == ["0"] * 3


@pytest.mark.timed
@pytest.mark.program("tc")
def test_a_queue_that_a_host_adds_to_eth0_leaves_the_links_unchanged(bed: NetnsTestbed) -> None:
    bed.shape({("h1", "h2"): LinkShape(3e6)})
    output(bed, "h1", "tc", "qdisc", "del", "dev", "eth0", "root", status=2)  # there is none
    for words in ("qdisc add dev eth0 root handle 1: htb default 2", "class add dev eth0 classid 1:2 htb rate 1gbit"):
        output(bed, "h1", "tc", *words.split())
    (proof,) = bed.prove([("h1", "h2")])
    assert (proof.asked_bps, failures([proof])) == (3e6, [])
    bed.shape({("h1", "h2"): LinkShape(5e6)})  # it is no obstacle either
    (proof,) = bed.prove([("h1", "h2")])
    assert (proof.asked_bps, failures([proof])) == (5e6, [])
    output(bed, "h1", "tc", "qdisc", "del", "dev", "eth0", "root")


def test_a_process_has_different_numbers_inside_and_outside_the_namespace(bed: NetnsTestbed) -> None:
    process = bed.run("h1", ["sh", "-c", "echo $$; read line; exit 9"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdin
    inner = int(process.stdout.readline())
    assert process.pid is not None
    assert psutil.Process(process.pid).cmdline()[0] == "sh"
    assert inner != process.pid or os.getpid() == 1
    process.stdin.close()
    assert process.wait(patience(10)) == 9


@pytest.mark.timed
def test_traces_are_replayed_on_time_and_again(bed: NetnsTestbed) -> None:
    trace = BandwidthTrace("t", np.array([0.0, 20.0, 40.0]), np.array([2e5, 0.0, 3e5]), 60.0)
    replay = bed.replay(dict.fromkeys([("h1", "h2"), ("h2", "h3")], trace), time_scale=100)
    with pytest.raises(UsageError, match="time scale"):
        bed.replay({("h1", "h2"): trace}, time_scale=0)
    for _ in range(2):
        bed.samples()
        start_s = replay.start()
        bed.start_sampling(0.05)
        assert 0 <= time.monotonic() - start_s < 1
        with pytest.raises(UsageError, match="stop the replay"):
            bed.prove()
        transfer(bed, "h1", "h2", 600_000)  # 0.2 s at 20 Mbit/s, the outage, then 30 Mbit/s
        assert time.monotonic() - start_s > 0.4
        replay.stop()
        bed.stop_sampling()
        rows = [sample for sample in bed.samples() if (sample.src, sample.dst) == ("h1", "h2")]
        assert all(sample.asked_bps == pytest.approx(20e6) for sample in rows if sample.at_s < start_s + 0.15)
        # nothing passes an outage
        assert not [sample for sample in rows if start_s + 0.27 < sample.at_s < start_s + 0.38]
        statistics = replay.statistics()
        assert statistics.t0_s == start_s
        assert statistics.steps >= 2
        assert statistics.lag_p50_s < 0.05


def test_impossible_rates_hosts_and_links_are_refused(bed: NetnsTestbed) -> None:
    with pytest.raises(UsageError, match=r"link h1 → h2: .* outside what can be emulated"):
        bed.shape({("h1", "h2"): LinkShape(1e12)})
    with pytest.raises(UsageError, match="unknown host 'x'"):
        bed.shape({("h1", "x"): LinkShape(1e6)})
    with pytest.raises(UsageError, match="no link to itself"):
        bed.shape({("h1", "h1"): LinkShape(1e6)})
    with pytest.raises(UsageError, match="not shaped"):
        bed.prove([("h1", "x")])


def test_delays_are_refused_without_netem_and_real_with_netem(bed: NetnsTestbed) -> None:
    from thalweg.emulation.capabilities import probe

    shapes = dict.fromkeys([("h1", "h2"), ("h2", "h1")], LinkShape(5e6, delay_s=0.05))
    if not probe().netem.works:
        with pytest.raises(CapabilityError, match=r"no netem.*rates only.*netem"):
            bed.shape(shapes)
        assert not bed.delay_emulated
        bed.shape({("h1", "h2"): LinkShape(5e6)})  # it was refused whole
        return
    bed.shape(shapes)
    assert bed.delay_emulated
    started = time.monotonic()
    transfer(bed, "h1", "h2", 1)
    assert time.monotonic() - started > 0.15  # connect, data, end


@pytest.mark.timed
def test_layer_2_counts_frames() -> None:
    with NetnsTestbed(["a", "b"], layer=2) as bed:
        bed.shape(dict.fromkeys(pairs(["a", "b"]), LinkShape(3e6)))
        for proof in bed.prove():
            assert abs(proof.error) < 0.05, proof


@pytest.mark.timed
def test_a_user_namespace_is_enough_for_a_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    use_user_namespaces(monkeypatch)
    with NetnsTestbed(["a", "b"]) as bed:
        assert bed.supervisor is not None
        assert bed.supervisor.mode.startswith("user")
        bed.shape(dict.fromkeys(pairs(["a", "b"]), LinkShape(3e6)))
        for proof in bed.prove():
            assert abs(proof.error) < 0.05, proof
        assert output(bed, "a", "cat", "/proc/self/uid_map").split()[1] == str(os.getuid())


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_killed_launcher(sign: signal.Signals) -> None:
    script = """
        import signal, sys
        from thalweg.emulation.links.shape import LinkShape
        from thalweg.emulation.testbeds.open import open_testbed
        bed = open_testbed("netns", ["a", "b"])
        bed.up()
        hide = "import os, signal; os.setsid() if os.fork() == 0 else 0; signal.pause()"
        process = bed.run("a", [sys.executable, "-c", hide])
        print(bed.supervisor.process.pid, process.pid, flush=True)
        signal.pause()
    """
    launcher = subprocess.Popen([PYTHON, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    family = {*map(psutil.Process, pids), *psutil.Process(pids[0]).children(recursive=True)}
    assert len(family) >= 3
    handles = [os.pidfd_open(process.pid) for process in family]
    launcher.send_signal(sign)
    launcher.wait()
    launcher.stdout.close()
    for handle in handles:
        assert select.select([handle], [], [], 5)[0]
        os.close(handle)


def test_an_interrupt_ends_a_running_proof() -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with NetnsTestbed(NAMES) as bed:
            bed.shape(dict.fromkeys(pairs(NAMES), LinkShape(1e6)))
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupt):
                bed.prove(seconds=2)  # three rounds
            started = time.monotonic()
        assert time.monotonic() - started < 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.timed
@pytest.mark.program("ip")
def test_a_host_that_lost_eth0_leaves_the_links_of_other_hosts_working() -> None:
    with NetnsTestbed(NAMES) as bed:
        bed.shape(dict.fromkeys(pairs(NAMES), LinkShape(5e6)))
        output(bed, "h1", "ip", "link", "delete", "eth0")
        bed.shape(dict.fromkeys(pairs(NAMES), LinkShape(8e6)))
        trace = BandwidthTrace("up and down", np.array([0.0, 0.1]), np.array([8e6, 6e6]), 0.2)
        replay = bed.replay(dict.fromkeys(pairs(NAMES), trace))
        replay.start()
        bed.start_sampling(0.05)
        stop = time.monotonic() + patience(10)
        while bed.status()["replay"]["steps"] < 60 and time.monotonic() < stop:
            continue
        assert bed.status()["replaying"]
        assert replay.statistics().steps >= 60
        replay.stop()
        bed.stop_sampling()
        (proof,) = bed.prove([("client", "h3")])
        assert abs(proof.error) < 0.05


@pytest.mark.timed
@pytest.mark.program("tc", "nsenter")
def test_a_partial_refusal_spares_the_other_hosts_and_the_next_attempt_succeeds() -> None:
    with NetnsTestbed(NAMES) as bed:
        device, first = port(bed, "h2"), ("client", "h2")
        bed.shape({first: LinkShape(1e6)})
        obstacle = f"qdisc add dev {device} parent 1:77 handle 1002: pfifo"  # where the queue of h1 → h2 is to be
        for words in (f"class add dev {device} parent 1: classid 1:77 htb rate 1mbit", obstacle):
            at_the_bridge(bed, "tc", *words.split())
        everything = dict.fromkeys(pairs(NAMES), LinkShape(5e6))
        for _ in range(2):
            with pytest.raises(TestbedError, match="the kernel refused a link's shape"):
                bed.shape(everything)
        bed.status()
        assert set(bed.shapes) == {first, *(link for link in everything if link[1] != "h2")}
        bed.start_sampling(0.05)  # reads classes of which it knows no link
        at_the_bridge(bed, "tc", "qdisc", "del", "dev", device, "parent", "1:77")
        bed.shape(everything)
        assert set(bed.shapes) == set(everything)
        bed.shape({("h1", "h2"): LinkShape(5e6, cut=True)})
        at_the_bridge(bed, "tc", *obstacle.split())  # in the way again, now of a change
        with pytest.raises(TestbedError, match="refused"):
            bed.shape({("h1", "h2"): LinkShape(6e6)})
        at_the_bridge(bed, "tc", "qdisc", "del", "dev", device, "parent", "1:77")
        bed.shape({("h1", "h2"): LinkShape(6e6)})
        for proof in bed.prove([("h1", "h2"), ("h2", "h1"), first]):
            assert abs(proof.error) < 0.05, proof
            assert proof.asked_bps == (6e6 if proof.link[:2] == ("h1", "h2") else 5e6)
        assert bed.status()["refusal"] == ""


CLASSES = """
import socket, sys
from thalweg.emulation.kernel import htb, netlink
index = socket.if_nametoindex(sys.argv[1])
with_statistics = netlink.NetlinkSocket().dump(netlink.RTM_GETTCLASS, htb.class_dump(index))
print(*sorted(one.minor for one in map(htb.class_counters, with_statistics) if one))
"""


@pytest.mark.timed
@pytest.mark.program("nsenter")
@pytest.mark.parametrize(
    ("hosts", "control_band", "bands"),
    [(2, False, ()), (2, True, (htb.BULK, htb.CONTROL)), (BANDED_HOSTS + 1, True, ())],
)
def test_links_have_bands_only_with_a_control_band_and_few_hosts(
    hosts: int, control_band: bool, bands: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed, "PROVEN_AT_ONCE", 1)
    counts: list[int] = []
    with NetnsTestbed([f"h{number}" for number in range(1, hosts + 1)], control_band=control_band) as many:
        forth, back = ("h1", "h2"), ("h2", "h1")
        many.shape({forth: LinkShape(2e6, queue=Queue(50, "packets")), back: LinkShape(4e6)})
        minors = at_the_bridge(many, PYTHON, "-c", CLASSES, "to2").split()
        assert [int(word) for word in minors] == [1, *(1 + band for band in bands), htb.OPEN, htb.STRANGERS]
        assert not failures(many.prove([forth, back], tell=counts.append))
        assert counts == [1, 2]
        many.alter([forth], ShapeFigures(rate_bps=1e6))
        many.alter([back], ShapeFigures(cut=True))
        rates = {(proof.src, proof.dst): proof for proof in many.prove([forth, back])}
        assert rates[forth].asked_bps == 1e6
        assert rates[back].delivered_bps == 0.0
        assert not failures(rates.values())


@pytest.mark.parametrize("control_band", [False, True])
@pytest.mark.parametrize("queue", [Queue(50, "packets"), Queue(50_000, "bytes"), None])
def test_links_of_every_source_accept_every_kind_of_queue(queue: Queue | None, *, control_band: bool) -> None:
    names = [f"h{number}" for number in range(1, 6)]
    with NetnsTestbed(names, control_band=control_band) as many:
        shapes = dict.fromkeys(pairs(names), LinkShape(2e6, queue=queue))
        many.shape(shapes)
        many.shape({link: shape._replace(cut=True) for link, shape in shapes.items()})
        many.shape(shapes)
        many.status()
        assert many.shapes == shapes


def test_a_rate_below_the_least_is_raised_to_the_least_with_a_warning(bed: NetnsTestbed) -> None:
    links = [("h1", "h2"), ("h2", "h1"), ("h3", "h1")]
    with pytest.warns(
        UserWarning,
        match=r"^link h1 → h2 is set to 8.00 kbit/s, the least there is, instead of 100 bit/s \(and 1 more\)$",
    ):
        bed.shape({links[0]: LinkShape(100.0), links[1]: LinkShape(7_999.0), links[2]: LinkShape(8_000.0)})
    assert [bed.shapes[link].rate_bps for link in links] == [8_000.0] * 3
    bed.status()
    assert [bed.shapes[link].rate_bps for link in links] == [8_000.0] * 3
    with pytest.warns(UserWarning, match=r"^link h1 → h2 is set to 8.00 kbit/s, .* instead of 1.00 kbit/s$"):
        bed.alter([links[0]], ShapeFigures(rate_bps=1_000.0))
    with pytest.warns(UserWarning, match=r"^what h1 receives is set to 8.00 kbit/s, .* instead of 1.00 kbit/s$"):
        bed.limit_hosts({"h1": 9_000.0}, {"h1": 1_000.0})
    assert (bed.status()["up_bps"], bed.status()["down_bps"]) == ({"h1": 9_000.0}, {"h1": 8_000.0})
    bed.limit_hosts({"h1": None}, {"h1": None})
    assert bed.status()["up_bps"] == bed.status()["down_bps"] == {}
    bed.shape(dict.fromkeys(links, LinkShape(0.0)))  # nothing passes, which is what was asked
    assert [bed.shapes[link].rate_bps for link in links] == [0.0] * 3


# --- more than IPv4 from the address that a host was given -----------------------------------------------


@pytest.fixture(scope="module")
def trio() -> Iterator[NetnsTestbed]:
    with NetnsTestbed(["a", "b", "c"]) as trio:
        yield trio


@pytest.fixture
def whole(trio: NetnsTestbed) -> NetnsTestbed:
    """Three hosts with links of 4 Mbit/s."""
    trio.shape(dict.fromkeys(pairs(["a", "b", "c"]), LinkShape(4e6)))
    return trio


@pytest.fixture
def six(whole: NetnsTestbed) -> NetnsTestbed:
    if not whole.hosts_6:
        pytest.skip("this kernel has no IPv6")
    return whole


@pytest.mark.program("ip")
def test_hosts_have_an_ipv6_address_and_permanent_ipv6_neighbours(six: NetnsTestbed) -> None:
    assert six.hosts_6 == {name: ipv6_beside(ip, 16) for name, ip in six.hosts.items()}
    assert f"inet6 {six.hosts_6['b']}/64 scope global" in output(six, "b", "ip", "-o", "-6", "address")
    (own,) = (line for line in output(six, "b", "ip", "-o", "-6", "address").splitlines() if six.hosts_6["b"] in line)
    assert "tentative" not in own
    neighbours = output(six, "b", "ip", "-6", "neighbour", "show", "nud", "permanent")
    assert set(re.findall(r"^(fd\S+)", neighbours, re.M)) == {six.hosts_6["a"], six.hosts_6["c"]}


@pytest.mark.program("ping")
def test_a_ping_by_name_goes_by_ipv6_or_ipv4_and_a_cut_stops_both(six: NetnsTestbed) -> None:
    if six.unnamed:
        pytest.skip(f"hosts do not know each other by name: {six.unnamed}")
    for option, addresses in (("-6", six.hosts_6), ("-4", six.hosts)):
        assert f"({addresses['b']})" in output(six, "a", "ping", option, "-c1", "-W2", "b")
        assert "1 received" in output(six, "c", "ping", option, "-c1", "-W2", "a")
    for cut in (("a", "b"), ("b", "a")):
        six.shape({cut: LinkShape(4e6, cut=True)})
        for option in ("-6", "-4"):
            assert "0 received" in output(six, "a", "ping", option, "-c1", "-W1", "b", status=1)
            assert "1 received" in output(six, "a", "ping", option, "-c1", "-W2", "c")
        six.shape({cut: LinkShape(4e6)})
    assert "1 received" in output(six, "a", "ping", "-6", "-c1", "-W2", "b")


@pytest.mark.program("ip", "ping")
def test_hosts_have_only_ipv4_if_ipv6_is_off() -> None:
    with NetnsTestbed(["a", "b"], ipv6=False) as bed:
        assert bed.hosts_6 == {}
        assert output(bed, "a", "ip", "-o", "-6", "address", "show", "dev", "eth0") == ""
        assert bed.run("a", ["ping", "-6", "-c1", "-W1", ipv6_beside(bed.hosts["b"], 16)]).wait(patience(10)) != 0
        output(bed, "a", "ping", "-c5", "-i0.2", "-W2", bed.hosts["b"])  # the first may come before a bridge is ready


@pytest.mark.timed
@pytest.mark.program("ip")
@pytest.mark.parametrize("kind", ["IPv6", "a second address"])
def test_a_link_shapes_flows_to_every_address_of_the_target(six: NetnsTestbed, kind: str) -> None:
    ip = six.hosts_6["b"] if kind == "IPv6" else "10.77.99.1"
    if kind != "IPv6":
        output(six, "b", "ip", "address", "replace", f"{ip}/16", "dev", "eth0")
    bits = 8 * 600_000
    assert 0.9 * bits / 4e6 < transfer(six, "a", "b", 600_000, ip) < 1.3 * bits / 4e6 + 0.3
    six.shape({("a", "b"): LinkShape(20e6)})
    assert transfer(six, "a", "b", 600_000, ip) < 0.7 * bits / 4e6


HEAR = """
import socket, struct, sys
heard = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
heard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
heard.bind(("::", 6000))
interface = socket.if_nametoindex("eth0")
group = socket.inet_aton("239.255.7.7") + struct.pack("=4si", bytes(4), interface)
heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
group_6 = socket.inet_pton(socket.AF_INET6, "ff15::77") + struct.pack("=I", interface)
heard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group_6)
print("up", flush=True)
while (said := heard.recv(64).decode()) != "end":
    print(said, flush=True)
"""
SAY = """
import socket, sys
moment, *ends = sys.argv[1:]
four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
four.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
interface = socket.if_nametoindex("eth0")
if ends:
    for ip in ends:
        four.sendto(b"end", (ip, 6000))
else:
    for what, ip in (("group", "239.255.7.7"), ("all", "255.255.255.255"), ("subnet", "10.77.255.255")):
        four.sendto(f"{moment} {what}".encode(), (ip, 6000))
    for what, ip in (("group 6", "ff15::77"), ("all 6", "ff02::1")):
        six.sendto(f"{moment} {what}".encode(), (ip, 6000, 0, interface))
"""
KINDS = ("group", "all", "subnet", "group 6", "all 6")


def test_multicasts_and_broadcasts_reach_every_host_except_through_a_cut(six: NetnsTestbed) -> None:
    ears = {host: six.run(host, [PYTHON, "-c", HEAR], stdout=subprocess.PIPE) for host in ("b", "c")}
    for ear in ears.values():
        assert ear.stdout
        assert ear.stdout.readline() == b"up\n"

    def say(*words: str) -> None:
        assert six.run("a", [PYTHON, "-c", SAY, *words]).wait(patience(30)) == 0

    say("whole")
    six.shape({("a", "b"): LinkShape(4e6, cut=True), ("c", "b"): LinkShape(4e6, cut=True)})
    say("cut")
    six.shape({("a", "b"): LinkShape(4e6)})
    say("back")
    say("", six.hosts["b"], six.hosts["c"])  # after all that has passed: a link keeps the order
    lines = {}
    for host, ear in ears.items():
        assert ear.stdout
        lines[host] = ear.stdout.read().decode().splitlines()
        assert ear.wait(patience(10)) == 0
        ear.close()
    assert lines["b"] == [f"{moment} {kind}" for moment in ("whole", "back") for kind in KINDS]
    assert lines["c"] == [f"{moment} {kind}" for moment in ("whole", "cut", "back") for kind in KINDS]


FRAMES = """
import socket, struct, sys
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("eth0", 0))
to, *sources = (bytes.fromhex(mac.replace(":", "")) for mac in sys.argv[1:])
for source in sources:
    for kind in (0x0806, 0x8100, 0x88B5):  # ARP, a tagged frame, an experiment's: bridges look into none of them
        out.send(to + source + struct.pack(">H", kind) + bytes(46))
"""


def test_frames_of_an_address_that_no_host_has_are_dropped_and_counted() -> None:
    with NetnsTestbed(["a", "b", "c"]) as bed:
        bed.shape(dict.fromkeys(pairs(["a", "b", "c"]), LinkShape(4e6)))
        assert bed.status()["strangers"] == {}
        to, own = "02:00:0a:4d:00:02", "02:00:0a:4d:00:01"
        near = ("06:00:0a:4d:00:01", "02:00:0a:4d:00:05", "02:00:0a:4d:01:01", "02:00:0a:4e:00:01")
        assert bed.run("a", [PYTHON, "-c", FRAMES, to, own, *near]).wait(patience(30)) == 0
        stop = time.monotonic() + patience(10)
        while (strangers := bed.status()["strangers"]) != {"b": 12} and time.monotonic() < stop:
            continue
        assert strangers == {"b": 12}


@pytest.mark.timed
def test_a_source_without_a_shaped_link_passes_at_full_speed_beside_a_shaped_link() -> None:
    with NetnsTestbed(["a", "b", "c"]) as bed:
        bed.shape({("a", "b"): LinkShape(1e6)})
        assert transfer(bed, "c", "b", 3_000_000) < 12  # which would take 24 s at that rate
        assert bed.status()["strangers"] == {}
        bed.shape({("c", "b"): LinkShape(4e6)})
        assert transfer(bed, "c", "b", 600_000) > 1.0


@pytest.mark.timed
def test_up_and_down_rates_of_a_host_are_limited_separately(whole: NetnsTestbed) -> None:
    whole.limit_hosts({"a": 2e6})
    proofs = {(proof.src, proof.dst): proof for proof in whole.prove()}
    assert {link: proof.asked_bps for link, proof in proofs.items()} == {
        link: 2e6 if link[0] == "a" else 4e6 for link in pairs(["a", "b", "c"])
    }
    assert failures(proofs.values()) == []
    whole.limit_hosts({"a": None}, {"a": 1e6})
    proofs = {(proof.src, proof.dst): proof for proof in whole.prove()}
    assert {link: proof.asked_bps for link, proof in proofs.items()} == {
        link: 1e6 if link[1] == "a" else 4e6 for link in pairs(["a", "b", "c"])
    }
    assert failures(proofs.values()) == []
    assert (whole.status()["up_bps"], whole.status()["down_bps"]) == ({}, {"a": 1e6})
    whole.limit_hosts(down_bps={"a": None})
    assert failures(whole.prove()) == []
