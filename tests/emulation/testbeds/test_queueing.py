"""Queues of links under TCP flows: pings beside flows, on a testbed and through a router that is made by hand.

The router is three namespaces with ``ip`` and ``tc``, with the same htb class and fifo on its way to the receiver. Both
are measured at the same time, so that other work of the machine affects both.

``pytest --size long -s`` prints all rows: 1, 4 and 16 flows, of cubic and of BBR, at 1, 10 and 100 Mbit/s.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from patience import patience

from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.wan import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.timed, pytest.mark.program("ip", "tc", "ping", "iperf3", "unshare")]
QUEUES_MS = {1: 500, 10: 200, 100: 100}  # by Mbit/s
BEGIN_S = 6  # until the flows are at their pace
SPARE_S = 3  # for which they go on behind the last ping
EVERY_S = 0.05  # a ping

ROUTER = """
set -e
mount -t tmpfs none /run
mkdir -p /run/netns
for host in a r b; do ip netns add $host; ip -n $host link set lo up; done
ip -n a link add eth0 type veth peer name ra netns r
ip -n b link add eth0 type veth peer name rb netns r
ip -n a addr add 10.1.0.1/24 dev eth0; ip -n r addr add 10.1.0.2/24 dev ra
ip -n b addr add 10.2.0.1/24 dev eth0; ip -n r addr add 10.2.0.2/24 dev rb
for one in "a eth0" "r ra" "r rb" "b eth0"; do set -- $one; ip -n $1 link set $2 up gso_max_segs $SEGMENTS; done
ip -n a route add default via 10.1.0.2; ip -n b route add default via 10.2.0.2
ip netns exec r sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
for side in ra rb; do
  ip netns exec r tc qdisc add dev $side root handle 1: htb default 1
  ip netns exec r tc class add dev $side parent 1: classid 1:1 htb rate ${RATE}bit burst $BURST cburst $BURST
  ip netns exec r tc qdisc add dev $side parent 1:1 handle 2: bfifo limit $LIMIT
done
echo up
read over
"""


class Pings(NamedTuple):
    """Mean and longest round trip in milliseconds, and the number of segments that the flows sent again."""

    mean_ms: float
    longest_ms: float
    again: int

    def __str__(self) -> str:
        return f"{self.mean_ms:7.1f} / {self.longest_ms:6.1f} ms, {self.again:5d} again"


class Ends(NamedTuple):
    """Prefixes of commands that run at the two ends, and the receiver's address."""

    sender: list[str]
    receiver: list[str]
    address: str


@contextmanager
def router(rate_bps: float, shape: LinkShape) -> Iterator[Ends]:
    """Make a router by hand, with the same rate in both directions."""
    environment = os.environ | {
        "RATE": f"{rate_bps:.0f}", "LIMIT": f"{shape.queue_bytes}", "BURST": f"{shape.burst}",
        "SEGMENTS": f"{shape.segments}",
    }  # fmt: skip
    words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
    process = subprocess.Popen([*words, ROUTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"up\n":
            pytest.skip("namespaces cannot be made by hand here")
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        inside = ["nsenter", "--user", "--net", "--mount", "--preserve-credentials", "--target", f"{child}"]
        yield Ends(*([*inside, "ip", "netns", "exec", host] for host in ("a", "b")), "10.2.0.1")  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def on_a_testbed(rate_bps: float, shape: LinkShape) -> Iterator[Ends]:
    """Open a testbed with the same link in both directions."""
    with Testbed.open("netns", ["a", "b"], rate=rate_bps) as bed:
        assert shape.queue is not None
        bed.set(queue=f"{shape.queue.size * 1e3}ms")
        pid = bed.start("a", ["sleep", "1d"]).pid, bed.start("b", ["sleep", "1d"]).pid
        inside = {host: ["nsenter", "--user", "--net", "--preserve-credentials", "--target", f"{number}"]
                  for host, number in zip(("a", "b"), pid, strict=True)}  # fmt: skip
        if os.geteuid() == 0:
            inside = {host: [word for word in words if word not in ("--user", "--preserve-credentials")]
                      for host, words in inside.items()}  # fmt: skip
        yield Ends(inside["a"], inside["b"], bed.hosts["b"])


class Measuring:
    """Flows and pings between two ends. Both start at once, and ``result`` waits for the end of both."""

    def __init__(self, ends: Ends, flows: int, control: str, seconds: int) -> None:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._server = subprocess.Popen([*ends.receiver, "iperf3", "-s", "-1", "--forceflush"], **quiet)  # type: ignore[call-overload]
        self._said = self._server.stdout.readline() + self._server.stdout.readline()
        length = f"{BEGIN_S + seconds + SPARE_S}"
        flow = ["iperf3", "-c", ends.address, "-C", control, "-P", f"{flows}", "-t", length, "-f", "k"]
        self._flow = subprocess.Popen([*ends.sender, *flow], **quiet)  # type: ignore[call-overload]
        self._skipped = round(BEGIN_S / EVERY_S)
        ping = ["ping", "-n", "-i", f"{EVERY_S}", "-w", f"{BEGIN_S + seconds}", ends.address]
        self._ping = subprocess.Popen([*ends.sender, *ping], **quiet)  # type: ignore[call-overload]
        self._limit_s = patience(BEGIN_S + seconds + 30)

    def result(self) -> Pings:
        """Return the measurement of the time after the flows have reached their full rate."""
        output, _ = self._ping.communicate(timeout=self._limit_s)
        flow, _ = self._flow.communicate(timeout=self._limit_s)
        self._server.communicate(timeout=self._limit_s)
        assert self._flow.returncode == 0, flow
        times_ms = [(int(number), float(ms)) for number, ms in re.findall(r"icmp_seq=(\d+) .*time=([\d.]+)", output)]
        later = [ms for number, ms in times_ms if number > self._skipped]
        again = [int(count) for count in re.findall(r"bits/sec\s+(\d+)\s+sender", flow)]
        return Pings(fmean(later), max(later), again[-1])


def beside(mbit: int, flows: int, control: str, seconds: int) -> tuple[Pings, Pings]:
    """Return the times of pings beside flows: on the testbed, and through the router."""
    shape = LinkShape(mbit * 1e6, queue=Queue(QUEUES_MS[mbit] / 1e3))
    with router(mbit * 1e6, shape) as by_hand, on_a_testbed(mbit * 1e6, shape) as emulated:
        measuring = [Measuring(ends, flows, control, seconds) for ends in (emulated, by_hand)]
        ours_found, by_hand_found = (measurement.result() for measurement in measuring)
    print(
        f"\n{mbit:3d} Mbit/s, {QUEUES_MS[mbit]} ms, {flows:2d} {control:5s}: testbed {ours_found};"
        f" router {by_hand_found}", end="",
    )  # fmt: skip
    return ours_found, by_hand_found


def test_a_flow_fills_the_queue_of_a_link_like_the_queue_of_a_router() -> None:
    emulated, by_hand = beside(10, 4, "cubic", 8)
    assert 0.55 * 200 < emulated.mean_ms < 1.1 * 200
    assert emulated.mean_ms == pytest.approx(by_hand.mean_ms, rel=0.25)  # in so short a time
    assert emulated.again > 0


@pytest.mark.long
@pytest.mark.parametrize("mbit", QUEUES_MS)
@pytest.mark.parametrize("flows", [1, 4, 16])
def test_pings_beside_cubic_flows_wait_as_behind_a_router(mbit: int, flows: int) -> None:
    emulated, by_hand = beside(mbit, flows, "cubic", 60 if flows == 1 else 30)
    assert emulated.mean_ms == pytest.approx(by_hand.mean_ms, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("mbit", QUEUES_MS)
@pytest.mark.parametrize("flows", [1, 4, 16])
def test_pings_beside_bbr_flows_wait_as_behind_a_router(mbit: int, flows: int) -> None:
    if "bbr" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split():
        pytest.skip("this kernel has no BBR")
    emulated, by_hand = beside(mbit, flows, "bbr", 60 if flows == 1 else 30)
    # one flow keeps next to nothing waiting, and how little varies from run to run behind the same router
    assert emulated.mean_ms == pytest.approx(by_hand.mean_ms, rel=0.2, abs=0.05 * QUEUES_MS[mbit])


def test_datagrams_at_more_than_the_rate_fill_the_queue_to_its_length() -> None:
    with Testbed.open("netns", ["a", "b"], rate="10mbit", queue="200ms") as bed:
        (proof,) = bed.prove("a", "b")
        assert proof.delivered_queue_s == pytest.approx(0.2, rel=0.05)
        bed.set("a", "b", queue="50ms")
        (proof,) = bed.prove("a", "b")
        assert proof.delivered_queue_s == pytest.approx(0.05, rel=0.05, abs=0.002)


@pytest.mark.long
@pytest.mark.uml
@pytest.mark.parametrize(("queue", "shortest_ms", "longest_ms"), [("200ms", 110, 220), ("fq_codel", 0, 40)])
def test_a_flow_meets_the_asked_queue_in_a_user_mode_kernel(queue: str, shortest_ms: float, longest_ms: float) -> None:
    """This kernel has no bridge netfilter, which elsewhere hides whether frames stay charged to the sender."""
    with Testbed.open("netns", ["a", "b"], rate="5mbit", kernel="uml") as bed:
        bed.set(queue=queue)
        server = bed.start("b", ["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE)
        assert server.stdout is not None
        while b"listening" not in server.stdout.readline():
            pass
        flow = bed.start("a", ["iperf3", "-c", bed.hosts["b"], "-C", "cubic", "-t", "12"], stdout=subprocess.DEVNULL)
        output = bed.run("a", ["ping", "-n", "-i", "0.1", "-w", "10", bed.hosts["b"]], check=True).stdout
        assert flow.wait(patience(60)) == 0
    times_ms = [float(ms) for ms in re.findall(r"time=([\d.]+)", output)]
    assert shortest_ms <= fmean(times_ms[40:]) <= longest_ms
