"""Real namespaces, links and processes: what is built, what it delivers, and that nothing stays."""

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

import numpy as np
import psutil
import pytest
from patience import patience

from thalweg.emulation.kernel import htb
from thalweg.emulation.kernel.world import BANDED_HOSTS
from thalweg.emulation.links.shape import LinkShape, Queue
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
server = socket.create_server((sys.argv[1], 5000))
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


def transfer(bed: NetnsTestbed, source: str, target: str, size_bytes: int) -> None:
    receiver = bed.run(target, [PYTHON, "-c", RECEIVE, bed.hosts[target]], stdout=subprocess.PIPE)
    assert receiver.stdout
    assert receiver.stdout.readline() == b"up\n"
    assert bed.run(source, [PYTHON, "-c", SEND, bed.hosts[target], str(size_bytes)]).wait(patience(30)) == 0
    assert receiver.wait(patience(30)) == 0
    receiver.close()


def output(bed: NetnsTestbed, host: str, *argv: str) -> str:
    process = bed.run(host, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    text = process.stdout.read().decode()
    assert process.wait(patience(10)) == 0, text
    process.close()
    return text


def test_of_very_many_links_some_are_set_at_a_time(bed: NetnsTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.emulation.testbeds.testbed.AT_ONCE", 5)
    told: list[int] = []
    bed.shape(dict(bed.shapes), told.append)
    assert told == [5, 10, 12]


@pytest.mark.timed
def test_every_link_delivers_what_was_asked(bed: NetnsTestbed) -> None:
    proofs = bed.prove()
    assert {(one.src, one.dst) for one in proofs} == set(pairs(NAMES))
    for one in proofs:
        assert abs(one.error) < 0.05, one
        assert one.method == "udp"
        assert one.size_bytes == pytest.approx(one.delivered_bps * one.seconds / 8, rel=1e-6)


@pytest.mark.timed
@pytest.mark.program("tc")
def test_changes_are_made_in_place_and_hold(bed: NetnsTestbed) -> None:
    before = set(re.findall(r"class htb (\S+)", output(bed, "h1", "tc", "class", "show", "dev", "eth0")))
    assert len(before) == 3 * 3 + 1  # one for each link and its two bands, and the interface's
    bed.shape({("h1", "h2"): LinkShape(7e6), ("h2", "h1"): LinkShape(32e3), ("h2", "h3"): LinkShape(0.0)})
    proofs = {(one.src, one.dst): one for one in bed.prove([("h1", "h2"), ("h2", "h1"), ("h2", "h3")])}
    assert proofs["h1", "h2"].asked_bps == 7e6
    assert proofs["h2", "h1"].asked_bps == 32e3
    assert (proofs["h2", "h3"].asked_bps, proofs["h2", "h3"].delivered_bps) == (0.0, 0.0)
    assert failures(proofs.values()) == []
    bed.shape(dict.fromkeys([("h2", "h1"), ("h2", "h3")], LinkShape(2e6)))
    assert set(re.findall(r"class htb (\S+)", output(bed, "h1", "tc", "class", "show", "dev", "eth0"))) == before


@pytest.mark.timed
def test_a_tcp_flow_is_shaped_and_its_counters_prove_it(bed: NetnsTestbed) -> None:
    bed.shape({("h1", "h3"): LinkShape(4e6), ("h3", "h1"): LinkShape(4e6)})
    bed.samples()
    bed.start_sampling(0.1)
    transfer(bed, "h1", "h3", 600_000)
    bed.start_sampling(3600)
    bed.shape({("h1", "h3"): LinkShape(8e6)})
    bed.start_sampling(0.1)
    transfer(bed, "h1", "h3", 600_000)
    busy = [one for one in bed.samples() if one.src == "h1" and one.backlogged]
    assert {one.dst for one in busy} == {"h3"}
    assert [one.asked_bps for one in busy] == pytest.approx([8e6] * len(busy))
    assert sum(one.delivered_bps for one in busy) / sum(one.asked_bps for one in busy) == pytest.approx(1, abs=0.1)


@pytest.mark.program("ip", "tc")
def test_a_host_is_alone_with_its_interfaces_and_offloads_are_off(bed: NetnsTestbed) -> None:
    links = output(bed, "h2", "ip", "-o", "address")
    assert f"inet {bed.hosts['h2']}/16" in links
    assert set(re.findall(r"^\d+: (\S+)", links, re.M)) <= {"lo", "eth0"}
    neighbours = output(bed, "h2", "ip", "neighbour")
    assert neighbours.count("PERMANENT") == len(NAMES) - 1
    details = output(bed, "h2", "tc", "-s", "qdisc", "show", "dev", "eth0")
    assert details.count("bfifo") == 2 * (len(NAMES) - 1)  # a link has two bands


def test_processes_see_their_own_numbers_and_we_see_ours(bed: NetnsTestbed) -> None:
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
        rows = [one for one in bed.samples() if (one.src, one.dst) == ("h1", "h2")]
        assert all(one.asked_bps == pytest.approx(20e6) for one in rows if one.at_s < start_s + 0.15)
        assert not [one for one in rows if start_s + 0.27 < one.at_s < start_s + 0.38]  # nothing passes an outage
        told = replay.statistics()
        assert told.t0_s == start_s
        assert told.steps >= 2
        assert told.lag_p50_s < 0.05


def test_ways_to_ask_for_too_much(bed: NetnsTestbed) -> None:
    with pytest.raises(UsageError, match=r"link h1 → h2: .* outside what can be emulated"):
        bed.shape({("h1", "h2"): LinkShape(1e12)})
    with pytest.raises(UsageError, match="unknown host 'x'"):
        bed.shape({("h1", "x"): LinkShape(1e6)})
    with pytest.raises(UsageError, match="no link to itself"):
        bed.shape({("h1", "h1"): LinkShape(1e6)})
    with pytest.raises(UsageError, match="not shaped"):
        bed.prove([("h1", "x")])


def test_delays_are_refused_or_real(bed: NetnsTestbed) -> None:
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
        for one in bed.prove():
            assert abs(one.error) < 0.05, one


@pytest.mark.timed
def test_a_user_namespace_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.emulation.supervisor.client import start_isolated
    from thalweg.emulation.testbeds import netns

    try:
        start_isolated("probe", as_user=True).close()
    except CapabilityError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(netns, "start_isolated", lambda run, listener=None: start_isolated(run, listener, as_user=True))
    with NetnsTestbed(["a", "b"]) as bed:
        assert bed.supervisor is not None
        assert bed.supervisor.mode.startswith("user")
        bed.shape(dict.fromkeys(pairs(["a", "b"]), LinkShape(3e6)))
        for one in bed.prove():
            assert abs(one.error) < 0.05, one
        assert output(bed, "a", "cat", "/proc/self/uid_map").split()[1] == str(os.getuid())


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_launcher(sign: signal.Signals) -> None:
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


def test_an_interrupt_in_the_middle_of_a_proof_ends_it() -> None:
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
def test_a_host_that_lost_its_interface_leaves_the_others_their_links() -> None:
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
@pytest.mark.program("tc")
def test_a_refusal_halfway_spares_the_other_hosts_and_is_made_good_by_the_next_attempt() -> None:
    obstacle = "qdisc add dev eth0 parent 1:77 handle 1403: pfifo"
    with NetnsTestbed(NAMES) as bed:
        for words in (
            "qdisc add dev eth0 root handle 1: htb",
            "class add dev eth0 parent 1: classid 1:77 htb rate 1mbit",
            obstacle,
        ):  # where the queue of h1 → h2 is to be
            output(bed, "h1", "tc", *words.split())
        everything = dict.fromkeys(pairs(NAMES), LinkShape(5e6))
        for _ in range(2):
            with pytest.raises(TestbedError, match="the kernel refused a link's shape"):
                bed.shape(everything)
        bed.status()
        assert set(bed.shapes) == {link for link in everything if link[0] != "h1"}
        bed.start_sampling(0.05)  # reads classes of which it knows no link
        output(bed, "h1", "tc", "qdisc", "del", "dev", "eth0", "parent", "1:77")
        bed.shape(everything)
        assert set(bed.shapes) == set(everything)
        bed.shape({("h1", "h2"): LinkShape(5e6, cut=True)})
        output(bed, "h1", "tc", *obstacle.split())  # in the way again, now of a change
        with pytest.raises(TestbedError, match="refused"):
            bed.shape({("h1", "h2"): LinkShape(6e6)})
        output(bed, "h1", "tc", "qdisc", "del", "dev", "eth0", "parent", "1:77")
        bed.shape({("h1", "h2"): LinkShape(6e6)})
        for proof in bed.prove([("h1", "h2"), ("h2", "h1")]):
            assert abs(proof.error) < 0.05, proof
        assert bed.status()["refusal"] == ""


CLASSES = """
from thalweg.emulation.kernel import htb, netlink
with_statistics = netlink.NetlinkSocket().dump(netlink.RTM_GETTCLASS, htb.class_dump(2))
print(*sorted(one.minor for one in map(htb.class_counters, with_statistics) if one))
"""


@pytest.mark.timed
@pytest.mark.parametrize(("hosts", "bands"), [(2, (htb.BULK, htb.CONTROL)), (BANDED_HOSTS + 1, ())])
def test_links_of_very_many_hosts_have_one_class_each_that_shapes_them(
    hosts: int, bands: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed, "PROVEN_AT_ONCE", 1)
    told: list[int] = []
    with NetnsTestbed([f"h{number}" for number in range(1, hosts + 1)]) as many:
        there, back = ("h1", "h2"), ("h2", "h1")
        many.shape({there: LinkShape(2e6, queue=Queue(50, "packets")), back: LinkShape(4e6)})
        process = many.run("h1", [PYTHON, "-c", CLASSES], stdout=subprocess.PIPE)
        assert process.stdout
        assert [int(word) for word in process.stdout.read().split()] == [2, *(2 + band for band in bands)]
        assert not failures(many.prove([there, back], tell=told.append))
        assert told == [1, 2]
        many.alter([there], {"rate_bps": 1e6})
        many.alter([back], {"cut": True})
        rates = {(one.src, one.dst): one for one in many.prove([there, back])}
        assert rates[there].asked_bps == 1e6
        assert rates[back].delivered_bps == 0.0
        assert not failures(rates.values())
