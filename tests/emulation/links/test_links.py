"""Effects of real links on packets: cuts, host limits, windows while rates change, and netem where available."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from random import Random
from statistics import fmean, median

import pytest
from beds import at_the_bridge
from patience import patience

from thalweg.emulation.links.shape import LinkShape, Queue, burst_bytes
from thalweg.emulation.links.units import MANAGED, Managed
from thalweg.emulation.proofs.proof import LinkProof, failures
from thalweg.emulation.proofs.windows import RateChange, Window, worst_window
from thalweg.emulation.supervisor.client import TestbedProcess
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.middleware.errors import CapabilityError, UsageError

pytestmark = [pytest.mark.netns, pytest.mark.timed]
PYTHON = sys.executable
NAMES = ["a", "b", "c"]
LINKS = list(itertools.permutations(NAMES, 2))

# Writes for every IP packet from a host when it came (Unix time, by the kernel) and its bytes, once stdin is closed.
CAPTURE = """
import array, select, socket, struct, sys
got = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
got.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
got.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
got.bind(("eth0", 0x0800))
sources = [socket.inet_aton(ip) for ip in sys.argv[1:]]
print("up", flush=True)
found, head = array.array("d"), bytearray(64)
while sys.stdin not in (ready := select.select([got, sys.stdin], [], [])[0]):
    try:
        while True:
            size, ancillary, _, _ = got.recvmsg_into([head], 64, socket.MSG_DONTWAIT | socket.MSG_TRUNC)
            if head[26:30] in sources:
                seconds, nanoseconds = struct.unpack("@ll", ancillary[0][2])
                found.extend((sources.index(head[26:30]), seconds + nanoseconds / 1e9, size - 14))
    except BlockingIOError:
        pass
sys.stdout.buffer.write(found.tobytes())
"""
SEND_UDP = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.connect((sys.argv[1], 9))
print("up", flush=True)
while True:
    try:
        out.send(bytes(1400))
    except ConnectionRefusedError:  # nobody listens there
        pass
"""
RECEIVE_TCP = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("up", flush=True)
connection, _ = server.accept()
while connection.recv(1 << 18):
    pass
"""
SEND_TCP = """
import contextlib, socket, sys
out = socket.create_connection((sys.argv[1], 5000))
with contextlib.suppress(OSError):  # others, such as BBR, fill no queue
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
print("up", flush=True)
while True:
    out.sendall(bytes(1 << 16))
"""


@pytest.fixture
def bed() -> Iterator[NetnsTestbed]:
    with NetnsTestbed(NAMES) as bed:
        yield bed


class Capture:
    """Packets that a host receives from other hosts."""

    def __init__(self, bed: NetnsTestbed, host: str, *sources: str) -> None:
        ips = [bed.hosts[source] for source in sources]
        self.process = bed.run(host, [PYTHON, "-c", CAPTURE, *ips], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout
        assert self.process.stdout.readline() == b"up\n"

    def packets(self) -> list[tuple[int, float, float]]:
        """Return the number of the source, the time and the IP bytes of every packet."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        rows = array("d", self.process.stdout.read())
        self.process.close()
        return [(int(rows[i]), rows[i + 1], rows[i + 2]) for i in range(0, len(rows), 3)]


def saturate(bed: NetnsTestbed, protocol: str, source: str, target: str) -> TestbedProcess:
    if protocol == "tcp":
        server = bed.run(target, [PYTHON, "-c", RECEIVE_TCP, bed.hosts[target]], stdout=subprocess.PIPE)
        assert server.stdout
        assert server.stdout.readline() == b"up\n"
    script = SEND_TCP if protocol == "tcp" else SEND_UDP
    sender = bed.run(source, [PYTHON, "-c", script, bed.hosts[target]], stdout=subprocess.PIPE)
    assert sender.stdout
    assert sender.stdout.readline() == b"up\n"
    return sender


def pause(seconds: float) -> None:
    """Let a phase of a measurement last for these seconds."""
    time.sleep(seconds)


def worst_while_rates_jump(
    bed: NetnsTestbed, protocol: str, rates: list[float], pauses_s: Iterable[float], delay_s: float = 0.0
) -> tuple[Window, list[RateChange], list[tuple[int, float, float]]]:
    """Change the rate of a busy link, with pauses between. Return the worst window, the changes and all packets."""
    before_s = time.time() - 1  # a window before the first packet
    bed.shape({("a", "b"): LinkShape(rates[0], delay_s), ("b", "a"): LinkShape(50e6)})
    changes = [RateChange(before_s, before_s, rates[0])]
    capture = Capture(bed, "b", "a")
    sender = saturate(bed, protocol, "a", "b")
    for rate_bps, pause_s in zip(rates[1:], pauses_s, strict=False):
        pause(pause_s)
        asked_s = time.time()
        bed.shape({("a", "b"): LinkShape(rate_bps, delay_s)})
        changes.append(RateChange(asked_s, time.time(), rate_bps))
    pause(0.5)
    sender.kill()
    packets = capture.packets()
    times, sizes = [at_s for _, at_s, _ in packets], [size for _, _, size in packets]
    return worst_window(times, sizes, changes, granularity_bytes=1500 + burst_bytes(min(rates))), changes, packets


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_no_window_exceeds_the_asked_rate_while_rates_jump(bed: NetnsTestbed, protocol: str) -> None:
    random = Random(1)
    rates = [3e6, 50e6, 3e6, 20e6, 8e6, 50e6, 5e6]
    worst, changes, packets = worst_while_rates_jump(bed, protocol, rates, (random.uniform(0.3, 0.5) for _ in rates))
    assert worst.ratio <= 1.1, worst
    assert worst.ratio > 0.9, worst  # else it was not the link that held the sender back
    fast = [size for _, at_s, size in packets if changes[1].done_s <= at_s < changes[2].asked_s]
    assert sum(fast) * 8 > 0.7 * 50e6 * (changes[2].asked_s - changes[1].done_s)


def test_nothing_passes_a_cut_and_a_restored_link_has_the_asked_rate(bed: NetnsTestbed) -> None:
    link = ("a", "b")
    bed.shape({link: LinkShape(4e6)})
    capture = Capture(bed, "b", "a")
    sender = saturate(bed, "udp", *link)
    pause(0.4)
    asked_s = time.time()
    bed.shape({link: LinkShape(4e6, cut=True)})
    cut_s = time.time()
    pause(0.3)
    bed.shape({link: LinkShape(8e6, cut=True)})  # not back by a change of its rate
    pause(0.2)
    restored_s = time.time()
    bed.shape({link: LinkShape(8e6)})
    back_s = time.time()
    pause(0.4)
    end_s = time.time()
    sender.kill()
    packets = capture.packets()
    assert [at_s for _, at_s, _ in packets if cut_s < at_s < restored_s] == []
    for low_s, high_s, rate_bps in ((asked_s - 0.3, asked_s, 4e6), (back_s + 0.1, end_s, 8e6)):
        bits = 8 * sum(size for _, at_s, size in packets if low_s < at_s < high_s)
        assert bits == pytest.approx(rate_bps * (high_s - low_s), rel=0.1)


def test_a_cut_link_is_proven_if_nothing_arrives(bed: NetnsTestbed) -> None:
    bed.shape({("a", "b"): LinkShape(4e6, cut=True), ("b", "a"): LinkShape(4e6)})
    cut, other = sorted(bed.prove(), key=lambda one: one.src)
    assert (cut.asked_bps, cut.delivered_bps, cut.error) == (0.0, 0.0, 0.0)
    assert abs(other.error) < 0.05
    assert failures([cut, other]) == []


def rate_between(packets: list[tuple[int, float, float]], low_s: float, high_s: float, pieces: int = 5) -> float:
    """Return the median rate of the pieces in bit/s. A busy machine may delay a sender for one or two pieces."""
    sums, piece_s = [0.0] * pieces, (high_s - low_s) / pieces
    for _, at_s, size in packets:
        if low_s <= at_s < high_s:
            sums[min(int((at_s - low_s) / piece_s), pieces - 1)] += size * 8 / piece_s
    return median(sums)


def limited_in_turn(
    bed: NetnsTestbed, way: str, host: str, limits_bps: list[float | None], seconds: float
) -> list[tuple[float, float]]:
    """Set the limits one after the other. Return begin and end of every phase, first the phase without a change.

    ``way`` is ``up`` or ``down``.
    """
    phases, since_s = [], time.time()
    for limit_bps in limits_bps:
        pause(seconds)
        phases.append((since_s, time.time()))
        up_bps, down_bps = ({host: limit_bps} if way == direction else {} for direction in ("up", "down"))
        bed.limit_hosts(up_bps, down_bps)
        since_s = time.time()
    pause(seconds)
    return [*phases, (since_s, time.time())]


def test_the_up_rate_of_a_host_limits_the_sum_of_all_outgoing_links(bed: NetnsTestbed) -> None:
    bed.shape({("a", "b"): LinkShape(6e6), ("a", "c"): LinkShape(6e6), ("b", "c"): LinkShape(2e6)})
    captures = [Capture(bed, "b", "a"), Capture(bed, "c", "a", "b")]
    senders = [saturate(bed, "udp", *link) for link in (("a", "b"), ("a", "c"), ("b", "c"))]
    phases = limited_in_turn(bed, "up", "a", [5e6, 8e6, None], 1.0)
    for sender in senders:
        sender.kill()
    at_b, at_c = [capture.packets() for capture in captures]
    from_a = [[packet for packet in at if packet[0] == 0] for at in (at_b, at_c)]
    from_b = [packet for packet in at_c if packet[0] == 1]
    for (low_s, high_s), all_bps in zip(phases, (12e6, 5e6, 8e6, 12e6), strict=True):
        between = (low_s + 0.25, high_s)
        assert rate_between(from_a[0] + from_a[1], *between) == pytest.approx(all_bps, rel=0.06)
        for packets in from_a:  # each has its own rate at most, and neither is kept from sending
            assert 0.2 * all_bps < rate_between(packets, *between) < 6e6 * 1.06
        assert rate_between(from_b, *between) == pytest.approx(2e6, rel=0.06)  # another host's links are its own
    assert bed.status()["up_bps"] == bed.status()["down_bps"] == {}


def test_the_down_rate_of_a_host_is_shared_by_all_senders(bed: NetnsTestbed) -> None:
    bed.shape({("a", "c"): LinkShape(6e6), ("b", "c"): LinkShape(6e6), ("a", "b"): LinkShape(2e6)})
    bed.limit_hosts(down_bps={"c": 8e6})
    captures = [Capture(bed, "c", "a", "b"), Capture(bed, "b", "a")]
    senders = [saturate(bed, "udp", *link) for link in (("a", "c"), ("b", "c"), ("a", "b"))]
    phases = limited_in_turn(bed, "down", "c", [4e6, None], 1.2)
    for sender in senders:
        sender.kill()
    at_c, at_b = (capture.packets() for capture in captures)
    for (low_s, high_s), all_bps in zip(phases, (8e6, 4e6, 12e6), strict=True):
        between = (low_s + 0.25, high_s)
        assert rate_between(at_c, *between) == pytest.approx(all_bps, rel=0.06)
        for source in (0, 1):
            packets = [packet for packet in at_c if packet[0] == source]
            assert rate_between(packets, *between) == pytest.approx(all_bps / 2, rel=0.06)
        assert rate_between(at_b, *between) == pytest.approx(2e6, rel=0.06)


def test_links_of_a_limited_host_are_proven_at_the_limit(bed: NetnsTestbed) -> None:
    limits: dict[str, float | None] = {"a": 2e6, "c": 1e6}
    bed.limit_hosts(limits, limits)  # before there is a link
    bed.shape(dict.fromkeys(LINKS, LinkShape(5e6)))
    proofs = {(proof.src, proof.dst): proof for proof in bed.prove()}
    asked = {("a", "b"): 2e6, ("b", "a"): 2e6, ("a", "c"): 1e6, ("c", "a"): 1e6, ("b", "c"): 1e6, ("c", "b"): 1e6}
    assert {link: proof.asked_bps for link, proof in proofs.items()} == asked
    assert failures(proofs.values()) == []
    for up_bps, down_bps in (({"a": 1e12}, {}), ({}, {"a": 1e12})):
        with pytest.raises(UsageError, match=r"all that a sends or receives: .* outside what can be emulated"):
            bed.limit_hosts(up_bps, down_bps)
    with pytest.raises(UsageError, match="unknown host 'x'"):
        bed.limit_hosts({"x": 1e6})


@pytest.mark.parametrize(("up_bps", "down_bps"), [(3e6, None), (None, 2e6), (3e6, 2e6)])
def test_up_and_down_rates_of_a_host_are_limited_separately(
    bed: NetnsTestbed, up_bps: float | None, down_bps: float | None
) -> None:
    bed.shape(dict.fromkeys(LINKS, LinkShape(8e6)))
    bed.limit_hosts({"a": up_bps}, {"a": down_bps})
    captures = [Capture(bed, "b", "a"), Capture(bed, "a", "b")]
    senders = [saturate(bed, "udp", *link) for link in (("a", "b"), ("b", "a"))]
    pause(0.5)
    since_s = time.time()
    pause(1.0)
    until_s = time.time()
    for sender in senders:
        sender.kill()
    sent, received = (rate_between(capture.packets(), since_s, until_s) for capture in captures)
    assert sent == pytest.approx(up_bps or 8e6, rel=0.06)
    assert received == pytest.approx(down_bps or 8e6, rel=0.06)


# Says how long questions took to be answered, ten that are not urgent and three that are.
PING = """
import itertools, socket, sys, time
if sys.argv[1] == "answer":
    there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    there.bind((sys.argv[2], 7000))
    print("up", flush=True)
    while True:
        there.sendto(*there.recvfrom(64))
for urgent, times in ((0, 10), (0xB8, 3)):
    here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, urgent)
    here.settimeout(2)
    took_s = []
    for number in itertools.count():
        began_s = time.monotonic()
        here.sendto(b"%d" % number, (sys.argv[2], 7000))
        try:
            while here.recv(64) != b"%d" % number:
                pass
            took_s.append(time.monotonic() - began_s)
        except TimeoutError:  # the queue was full
            continue
        if len(took_s) == times:
            break
    print(*took_s)
"""


def asked_beside_tcp(bed: NetnsTestbed, source: str, target: str, begin_s: float = 1.5) -> list[list[float]]:
    """Return the seconds until answers of usual and of urgent questions beside a TCP flow."""
    sender = saturate(bed, "tcp", source, target)
    answerer = bed.run(target, [PYTHON, "-c", PING, "answer", bed.hosts[target]], stdout=subprocess.PIPE)
    assert answerer.stdout
    assert answerer.stdout.readline() == b"up\n"
    pause(begin_s)
    here = bed.run(source, [PYTHON, "-c", PING, "ask", bed.hosts[target]], stdout=subprocess.PIPE)
    assert here.stdout
    took_s = [[float(word) for word in here.stdout.readline().split()] for _ in range(2)]
    for process in (sender, answerer):
        process.kill()
    assert [*map(len, took_s)] == [10, 3]
    return took_s


@pytest.mark.parametrize("control_band", [False, True])
def test_a_queue_has_the_asked_length_and_urgent_messages_wait_unless_there_is_a_control_band(
    *, control_band: bool
) -> None:
    with NetnsTestbed(NAMES, control_band=control_band) as bed:
        bed.shape({("a", "b"): LinkShape(2e6, queue=Queue(0.3)), ("b", "a"): LinkShape(2e6)})
        usual, urgent = asked_beside_tcp(bed, "a", "b")
    assert 0.12 < max(usual) < 0.35, usual
    if control_band:
        assert max(urgent) < 0.06, urgent
    else:
        assert 0.1 < max(urgent) < 0.35, urgent


@pytest.mark.program("tc", "nsenter")
def test_the_length_of_a_queue_is_proven_and_a_wrong_length_is_detected(bed: NetnsTestbed) -> None:
    queues = {
        ("a", "b"): (LinkShape(8e6), 0.1),
        ("b", "a"): (LinkShape(8e6, queue=Queue(0.3)), 0.3),
        ("a", "c"): (LinkShape(8e6, queue=Queue(50_000, "bytes")), 0.05),
        ("c", "b"): (LinkShape(8e6, queue=Queue(40, "packets")), None),  # of the proof's own size
    }
    bed.shape({link: shape for link, (shape, _) in queues.items()})
    proofs = {(proof.src, proof.dst): proof for proof in bed.prove()}
    assert failures(proofs.values()) == []
    for link, (_, queue_s) in queues.items():
        proof = proofs[link]
        assert proof.asked_queue_s == (pytest.approx(queue_s) if queue_s else pytest.approx(40 * proof.queue_step_s))
        assert proof.delivered_queue_s == pytest.approx(
            proof.asked_queue_s, rel=0.05, abs=1.5 * proof.queue_step_s + 0.001
        )
    change = "tc qdisc change dev to1 parent 1:2 handle 1002: bfifo limit 200000"
    at_the_bridge(bed, *change.split())
    (wrong,) = bed.prove([("b", "a")])
    assert (wrong.rate_ok, wrong.queue_ok) == (True, False)
    (line,) = failures([wrong])
    assert re.fullmatch(r"link b → a queues for (19|20|21)\d instead of 300 ms", line)


def test_a_burst_passes_at_once_after_idling(bed: NetnsTestbed) -> None:
    bed.shape({("a", "b"): LinkShape(1e6, burst_bytes=30_000)})
    capture = Capture(bed, "b", "a")
    sender = saturate(bed, "udp", "a", "b")
    pause(0.6)
    sender.kill()
    packets = capture.packets()
    first_s = packets[0][1]
    at_once = sum(size for _, at_s, size in packets if at_s < first_s + 0.05)
    assert 30_000 <= at_once <= 30_000 + 0.05 * 1e6 / 8 + 2 * 1500
    assert 8 * sum(size for _, at_s, size in packets if 0.2 < at_s - first_s < 0.5) == pytest.approx(3e5, rel=0.06)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (LinkShape(1e6, distribution="gamma"), "no distribution 'gamma'; there are uniform"),
        (LinkShape(1e6, delay_s=1, jitter_s=3), "jitter_s is 3"),
        (LinkShape(1e6, corrupt=1.5), "corrupt is 1.5; it is a share"),
        (LinkShape(1e6, duplicate=float("nan")), "duplicate is nan"),
        (LinkShape(1e6, reorder=0.1), "give the link a delay_s"),
        (LinkShape(1e6, burst_bytes=100), "burst_bytes is 100"),
        (LinkShape(1e6, queue=Queue(100, "bytes")), "queue is 100 bytes; it must lie between 1514 bytes"),
        (LinkShape(float("nan")), "outside what can be emulated"),
        (LinkShape(1e6, delay_s=-1), "delay_s is -1"),
        (LinkShape(1e6, loss=1.0), "loss is 1; it is a share"),
    ],
)
def test_an_impossible_shape_has_an_objection(shape: LinkShape, says: str) -> None:
    assert says in shape.objection()


# --- with netem ------------------------------------------------------------------------------------------


def proven(bed: NetnsTestbed, link: tuple[str, str], shape: LinkShape) -> LinkProof:
    bed.shape({link: shape})
    (proof,) = bed.prove([link])
    return proof


@pytest.mark.netem
def test_delays_jitters_and_losses_are_proven(bed: NetnsTestbed) -> None:
    kinds = itertools.cycle(["uniform", "normal", "pareto", "paretonormal"])
    shapes = {
        link: LinkShape(1e6 + 0.2e6 * i, 0.01 * (i + 1), 0.004 * (i % 2), 0.01 * (i % 3), distribution=next(kinds))
        for i, link in enumerate(LINKS)
    }
    bed.shape(shapes)
    assert bed.delay_emulated
    proofs = bed.prove()
    assert failures(proofs) == []
    for proof in proofs:
        shape = shapes[proof.src, proof.dst]
        assert (proof.asked_delay_s, proof.asked_jitter_s, proof.asked_loss) == (
            shape.delay_s,
            shape.jitter_s,
            shape.loss,
        )
        assert proof.sent >= 100
        assert (proof.delivered_jitter_s is not None) == (shape.jitter_s > 0)


@pytest.mark.netem
def test_losses_come_in_bursts_of_the_length_asked(bed: NetnsTestbed) -> None:
    link, asked = ("a", "b"), LinkShape(20e6, 0.01, loss=0.1, loss_burst=6.0)
    in_bursts = proven(bed, link, asked)
    assert failures([in_bursts]) == []
    assert in_bursts.asked_burst == 6.0
    assert in_bursts.lost / in_bursts.bursts == pytest.approx(6.0, rel=0.5)
    at_the_bridge(
        bed,
        *[
            "tc",
            "qdisc",
            "change",
            "dev",
            "to2",
            "parent",
            "1:1",
            "handle",
            "4001:",
            "netem",
            "delay",
            "10ms",
            "loss",
            "10%",
        ],
    )
    (independent,) = bed.prove([link])
    assert not independent.bursts_ok
    assert "bursts" in failures([independent])[0]
    again = proven(bed, link, LinkShape(20e6, 0.01, loss=0.1))
    assert (failures([again]), again.asked_burst) == ([], 0.0)


@pytest.mark.netem
def test_a_change_removes_the_figures_that_are_no_longer_asked(bed: NetnsTestbed) -> None:
    """The kernel keeps figures that a change leaves out, so a change states all figures."""
    link, base = ("a", "b"), LinkShape(2e6, 0.02)
    everything = LinkShape(2e6, 0.05, 0.02, 0.3, "pareto", reorder=0.3, corrupt=0.2)
    assert proven(bed, link, everything).lost > 0
    again = proven(bed, link, base)
    assert failures([again]) == []
    assert (again.lost, again.duplicates) == (0, 0)
    assert again.delivered_delay_s == pytest.approx(0.02, abs=0.002)
    uniform = proven(bed, link, LinkShape(2e6, 0.05, 0.02))  # no longer Pareto, whose median lies 6 ms lower
    assert failures([uniform]) == []
    assert uniform.delivered_jitter_s == pytest.approx(0.02, rel=0.25)
    none = proven(bed, link, LinkShape(2e6))  # keeps its netem, with no delay
    assert failures([none]) == []
    assert none.delivered_delay_s is None


@pytest.mark.netem
def test_a_change_to_no_delay_loses_no_packet(bed: NetnsTestbed) -> None:
    link = ("a", "b")
    bed.shape({link: LinkShape(20e6, 0.3)})
    capture = Capture(bed, "b", "a")
    script = "import socket, sys\nout = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    script += "for _ in range(20): out.sendto(bytes(100), (sys.argv[1], 9))"
    assert bed.run("a", [PYTHON, "-c", script, bed.hosts["b"]]).wait(patience(30)) == 0
    bed.shape({link: LinkShape(20e6)})
    assert bed.run("a", [PYTHON, "-c", script, bed.hosts["b"]]).wait(patience(30)) == 0
    pause(0.4)
    times = [at_s for _, at_s, _ in capture.packets()]
    assert len(times) == 40
    assert min(times) < max(times) - 0.01


@pytest.mark.netem
def test_a_cut_loses_the_packets_under_way(bed: NetnsTestbed) -> None:
    link = ("a", "b")
    bed.shape({link: LinkShape(4e6, 0.2)})
    capture = Capture(bed, "b", "a")
    sender = saturate(bed, "udp", *link)
    pause(0.5)
    bed.shape({link: LinkShape(4e6, 0.2, cut=True)})
    cut_s = time.time()
    pause(0.4)
    restored_s = time.time()
    bed.shape({link: LinkShape(4e6, 0.2)})
    pause(0.5)
    sender.kill()
    times = [at_s for _, at_s, _ in capture.packets()]
    assert any(at_s < cut_s for at_s in times)
    assert [at_s for at_s in times if cut_s < at_s < restored_s + 0.2] == []
    assert any(at_s >= restored_s + 0.2 for at_s in times)


@pytest.mark.netem
def test_copies_and_reordering_are_proven(bed: NetnsTestbed) -> None:
    link = ("a", "b")
    doubled = proven(bed, link, LinkShape(2e6, 0.01, duplicate=0.2))
    assert failures([doubled]) == []
    assert 0.1 * doubled.sent < doubled.duplicates < 0.3 * doubled.sent
    with_netem = {link: LinkShape(2e6, 0.01, duplicate=0.2), ("a", "c"): LinkShape(2e6, 0.01)}
    bed.shape(with_netem)  # at another port
    assert failures(bed.prove()) == []
    with suppress(CapabilityError):  # by the kernel's version, in which case nothing changes
        bed.shape({("c", "b"): LinkShape(2e6, 0.01)})
        assert failures(bed.prove()) == []
    early = proven(bed, link, LinkShape(2e6, 0.05, reorder=0.2))
    assert failures([early]) == []
    assert early.delivered_delay_s == pytest.approx(0.05, abs=0.003)
    assert early.duplicates == 0


@pytest.mark.netem  # which says that it is a kernel with more than one discipline
@pytest.mark.parametrize(
    ("discipline", "delay_s"),
    [
        ("fq_codel", 0.0),
        ("red", 0.02),
        *(pytest.param(discipline, 0.0, marks=pytest.mark.long) for discipline in MANAGED if discipline != "fq_codel"),
        *(pytest.param(discipline, 0.02, marks=pytest.mark.long) for discipline in MANAGED if discipline != "red"),
    ],
)
def test_a_discipline_keeps_a_queue_short_and_lets_the_rate_pass(
    bed: NetnsTestbed, discipline: Managed, delay_s: float
) -> None:
    shape = LinkShape(4e6, delay_s, queue=Queue(0.1, "s", discipline))
    try:
        bed.shape({("a", "b"): shape, ("b", "a"): LinkShape(4e6)})
    except CapabilityError as error:
        pytest.skip(str(error))
    bed.status()
    assert bed.shapes["a", "b"] == shape
    (proof,) = bed.prove([("a", "b")])
    assert failures([proof]) == []
    assert proof.delivered_queue_s is None
    proof = proven(bed, ("a", "b"), LinkShape(4e6, delay_s, queue=Queue(0.3)))  # in place of it, and back
    assert failures([proof]) == []
    assert proof.asked_queue_s == pytest.approx(0.3)
    assert failures([proven(bed, ("a", "b"), shape)]) == []
    usual, _ = asked_beside_tcp(bed, "a", "b", 3.0)
    assert median(usual) < delay_s + 0.07, usual


@pytest.mark.netem
@pytest.mark.program("tc", "nsenter")
def test_a_link_with_a_wrong_delay_and_loss_is_detected(bed: NetnsTestbed) -> None:
    """The shape is changed behind the testbed's back, at the bridge's port towards b."""
    link = ("a", "b")
    right = proven(bed, link, LinkShape(2e6, 0.03))
    assert failures([right]) == []
    change = "tc qdisc change dev to2 parent 1:1 handle 4001: netem delay 40ms loss 5% limit 256"
    at_the_bridge(bed, *change.split())
    (wrong,) = bed.prove([link])
    assert not wrong.delay_ok
    assert not wrong.loss_ok
    (line,) = failures([wrong])
    assert line.startswith("link a → b delays by 40")
    assert "and a loss of 0, as asked, explains" in line


@pytest.mark.netem
def test_no_window_exceeds_the_asked_rate_on_a_link_with_a_delay(bed: NetnsTestbed) -> None:
    worst, _, packets = worst_while_rates_jump(bed, "udp", [2e6, 10e6, 4e6], (0.5, 0.5), delay_s=0.03)
    assert worst.ratio <= 1.1, worst
    assert fmean(size for _, _, size in packets) == 1428


@pytest.mark.netem
def test_rates_change_in_place_beside_delays(bed: NetnsTestbed) -> None:
    shapes = dict.fromkeys(LINKS, LinkShape(2e6, 0.02, 0.002, 0.0, "normal"))
    bed.shape(shapes)
    bed.shape({link: shape._replace(rate_bps=2.5e6) for link, shape in shapes.items()})
    proofs = bed.prove()
    assert failures(proofs) == []
    assert {proof.asked_bps for proof in proofs} == {2.5e6}
    assert all(math.isfinite(proof.delivered_delay_s or math.inf) for proof in proofs)
