"""The record of a testbed: changes and their causes, bounded lists, and true counters on real links."""

from __future__ import annotations

import math
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from patience import patience

from thalweg import Testbed
from thalweg.emulation.kernel.htb import ClassCounters
from thalweg.emulation.kernel.netlink import NetlinkError
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.recording import counting, recorder
from thalweg.emulation.recording.counting import Counting
from thalweg.emulation.recording.entries import Head
from thalweg.emulation.recording.recorder import Recorder
from thalweg.emulation.recording.recording import Recording
from thalweg.emulation.recording.samples import WIDTH, Samples
from thalweg.emulation.supervisor import requests
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link

LINK, BACK = Link("a", "b"), Link("b", "a")


class FakeWorld:
    """Two hosts with counters that a test sets. Readings are counted."""

    def __init__(self) -> None:
        self.hosts = self.ends = {name: SimpleNamespace(name=name, number=i) for i, name in enumerate("ab", 1)}
        self.links: dict[Link, Any] = {}
        self.up_bps: dict[Any, float] = {}
        self.down_bps: dict[Any, float] = {}
        self.gone: set[Any] = set()
        self.changed: Any = None
        self.sent = {"a": 0, "b": 0}
        self.dumps = self.readings = 0
        self.error: Exception | None = None

    def passed(self, target: str) -> tuple[int, int, int]:
        self.readings += 1
        if self.error is not None:
            raise self.error
        return self.sent[target], 0, 0

    def counters(self, target: str) -> dict[str, ClassCounters]:
        self.dumps += 1
        source = "b" if target == "a" else "a"
        return {source: ClassCounters(self.hosts[source].number, self.sent[target], 0, self.sent[target] // 100)}

    def shape(self, link: Link, shape: LinkShape) -> None:
        """Change a link and report the change, as a world does."""
        state = self.links.get(link)
        before = None if state is None else state.shape
        if state is None:
            state = self.links[link] = SimpleNamespace(asked_bits=lambda now_s: 1e6 * now_s)
        state.shape = shape
        self.changed(link, before, state)


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def record(world: FakeWorld) -> Recorder:
    recorder_ = Recorder()
    recorder_.watch(world)  # type: ignore[arg-type]
    return recorder_


def test_recorded_changes_name_the_request_behind_the_change(world: FakeWorld, record: Recorder) -> None:
    record.begin("shape", [LINK, BACK])
    for link in (LINK, BACK):
        world.shape(link, LinkShape(1e6))
    record.begin("cut", [LINK])
    world.shape(LINK, LinkShape(1e6, cut=True))
    record.begin("set", [LINK])
    world.shape(LINK, LinkShape(1e6, cut=True))  # it is so already
    record.begin("play", events={BACK})
    world.shape(LINK, LinkShape(2e6))
    world.shape(BACK, LinkShape(0.0))
    changes = record.snapshot().head.changes
    assert [(change.by, change.link, change.number) for change in changes] == [
        ("shape", 0, 1), ("shape", 1, 1), ("cut", 0, 2), ("play", 0, 4), ("event", 1, 4)
    ]  # fmt: skip
    assert [change.opens_or_closes for change in changes] == [False, False, True, True, True]


def test_a_full_record_drops_steps_of_traces_before_other_changes(
    world: FakeWorld, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_CHANGES", 100)
    record.begin("cut", [BACK])
    world.shape(BACK, LinkShape(1e6, cut=True))
    record.begin("play")
    for step in range(1_000):
        world.shape(LINK, LinkShape(1e6 + step))
    head = record.snapshot().head
    assert len(head.changes) <= 100
    assert head.left_out == {"changes": 1_001 - len(head.changes)}
    assert head.changes[0].by == "cut"
    assert [change.after.rate_bps for change in head.changes[-40:]] == [1e6 + step for step in range(960, 1_000)]


def test_a_full_record_keeps_cuts_longer_than_other_changes(
    world: FakeWorld, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_CHANGES", 100)
    for number in range(20):
        record.begin("cut", [LINK])
        world.shape(LINK, LinkShape(1e6, cut=number % 2 == 0))
    for step in range(90):
        record.begin("set", [BACK])
        world.shape(BACK, LinkShape(1e6 + step))
    changes = record.snapshot().head.changes
    assert sum(change.by == "cut" for change in changes) == 20
    assert len(changes) <= 100


def test_a_full_record_drops_successful_processes_first(record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_PROCESSES", 100)
    record.start(1, "a", ["false"])
    record.end(1, 1, 0.5)
    record.start(2, "a", ["sleep", "1000"])
    for pid in range(3, 1_000):
        record.start(pid, "a", ["true", "x" * 5_000])
        record.end(pid, 0)
    processes = record.snapshot().head.processes
    assert len(processes) <= 100
    assert [(process.command, process.status, process.cpu_s) for process in processes[:1]] == [("false", 1, 0.5)]
    assert (processes[1].pid, processes[1].end_s) == (2, None)
    assert len(processes[-1].command) == recorder.COMMAND_CHARS


def test_an_end_of_an_unknown_process_is_no_error(record: Recorder) -> None:
    record.end(77, 0)
    assert record.snapshot().head.processes == []


def test_idle_ports_are_not_read_link_by_link(world: FakeWorld, record: Recorder) -> None:
    record.begin("shape")
    world.shape(LINK, LinkShape(1e6))
    for _ in range(5):
        record.snapshot()
    first = world.dumps
    assert first <= counting.TRIES
    world.sent["b"] = 1_000
    snapshot = record.snapshot()
    assert snapshot.head.rows == 1
    assert record.snapshot().head.rows == 1
    assert world.dumps <= first + counting.TRIES


def test_readings_keep_to_the_allowed_share_of_the_processor(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading costs a millisecond, so a share of 0.5 % allows 5 readings a second after the first moment."""
    clock = SimpleNamespace(now_s=0.0, used_s=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.used_s)
    monkeypatch.setattr(counting, "time", fake)
    passed = world.passed

    def costly(target: str) -> tuple[int, int, int]:
        clock.now_s, clock.used_s = clock.now_s + 0.001, clock.used_s + 0.001
        world.sent[target] += 100  # never idle
        return passed(target)

    monkeypatch.setattr(world, "passed", costly)
    counting_ = Counting(world, Samples())  # type: ignore[arg-type]
    counting_.know(LINK, SimpleNamespace(asked_bits=lambda _: 0.0))  # type: ignore[arg-type]
    while clock.now_s < 100:
        clock.now_s = max(clock.now_s, counting_.next_s)
        counting_.read_due()
    assert 0.004 < counting_.cost_s / clock.now_s < 0.0055


def test_an_idle_testbed_is_read_once_a_second(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0, reads=0)
    monkeypatch.setattr(counting, "time", SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: 0.0))
    counting_ = Counting(world, Samples())  # type: ignore[arg-type]
    counting_.know(LINK, SimpleNamespace(asked_bits=lambda _: 0.0))  # type: ignore[arg-type]
    times = []
    while clock.now_s < 20:
        clock.now_s = counting_.next_s
        times.append(clock.now_s)
        counting_.read_due()
    assert len([at_s for at_s in times if at_s < 4.9]) == pytest.approx(50, abs=2)
    assert len([at_s for at_s in times if at_s > 6]) == pytest.approx(14, abs=2)
    clock.now_s += 0.5
    counting_.wake()
    assert counting_.next_s == clock.now_s  # something begins: the next reading is at once


def test_a_host_that_ended_is_recorded_and_no_longer_read(world: FakeWorld, record: Recorder) -> None:
    record.begin("shape")
    world.shape(LINK, LinkShape(1e6))
    world.error = NetlinkError(19, "No such device", 0)
    assert record.next_s is not None
    threading.Event().wait(max(0.0, record.next_s - time.monotonic()))
    record.read_due()
    assert world.readings == 1
    assert [(happening.kind, happening.note) for happening in record.snapshot().head.happenings] == [("end", "b")]
    record.begin("cut", [LINK])
    world.shape(LINK, LinkShape(1e6, cut=True))
    record.snapshot()
    assert world.readings == 1
    assert record.refusal == ""


def test_a_failed_reading_ends_the_readings_and_is_reported(world: FakeWorld, record: Recorder) -> None:
    record.begin("shape")
    world.shape(LINK, LinkShape(1e6))
    world.error = OSError(5, "Input/output error")
    record.begin("cut", [LINK])
    world.shape(LINK, LinkShape(1e6, cut=True))
    head = record.snapshot().head
    assert "the recording of what links carry has stopped" in head.refusal
    assert [change.by for change in head.changes] == ["shape", "cut"]
    assert record.next_s == float("inf")


# --- on real links ------------------------------------------------------------------------------------


SEND = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    out.sendto(b"x" * 972, (sys.argv[1], 9))
    time.sleep(0.001)
"""


def recording(bed: Testbed) -> Recording:
    return bed._bed.recording()


def sums(record: Recording, link: Link) -> tuple[int, int, int]:
    """Return the bytes, packets and drops of a link."""
    own = record.column("link") == record.links.index(link)
    sent, packets, drops = (int(record.column(name)[own].sum()) for name in ("sent_bytes", "packets", "drops"))
    return sent, packets, drops


@pytest.mark.netns
def test_a_record_has_the_true_bytes_cuts_and_processes() -> None:
    with Testbed.open("netns", ["a", "b"], rate="20mbit", ipv6=False) as bed:
        send = [sys.executable, "-c", SEND, bed.hosts["b"]]
        assert bed.run("a", [*send, "300"]).returncode == 0
        assert sums(recording(bed), LINK) == (300 * 1000, 300, 0)
        before_s = recording(bed).now_s
        bed.cut("a", "b")
        assert bed.run("a", [*send, "50"]).returncode == 0
        bed.restore("a", "b")
        after_s = recording(bed).now_s
        sleeping = bed.start("b", ["sleep", "1000"])
        bed.run("b", ["sh", "-c", "exit 3"])
        asked_unix_s = time.time()
        record = recording(bed)
        assert asked_unix_s - 0.1 < record.began_unix_s + record.now_s < time.time() + 0.1
        assert sums(record, LINK) == (300 * 1000, 300, 50)
        (cut,) = record.cuts()
        assert (cut.link, cut.by) == (LINK, "cut")
        assert cut.end_s is not None
        assert before_s < cut.begin_s < cut.end_s < after_s
        assert [(process.host, process.status) for process in record.processes] == [
            ("a", 0),
            ("a", 0),
            ("b", None),
            ("b", 3),
        ]
        assert record.processes[0].cpu_s is not None
        assert 0.005 < record.processes[0].cpu_s < 5
        sleeping.kill()
        sleeping.wait(patience(10))
        assert recording(bed).processes[2].status == -9
        seconds = record.column("end_s") - record.column("begin_s")
        assert (seconds > 0).all()


@pytest.mark.netns
@pytest.mark.timed
def test_the_asked_rate_of_a_sample_is_the_mean_of_the_trace_over_the_sample(tmp_path: Any) -> None:
    trace = tmp_path / "steps.csv"
    trace.write_text("time_s,bandwidth_bps\n0,1000000\n0.3,3000000\n0.6,2000000\n")
    with Testbed.open("netns", ["a", "b"], rate="10mbit", ipv6=False) as bed:
        bed.set("b", up_rate="5mbit")
        bed.play(trace, "a", "b")
        sender = bed.start("a", [sys.executable, "-c", SEND, bed.hosts["b"], "900"])
        assert sender.wait(patience(20)) == 0
        bed.stop()
        record = recording(bed)
    limits = [(change.host, change.direction, change.rate_bps) for change in record.host_changes]
    assert limits == [("b", "up", 5e6), ("b", "up", None)]  # a trace takes the place of what hosts had
    assert [happening.kind for happening in record.happenings] == ["play"]
    assert record.happenings[0].end_s is not None
    assert {change.by for change in record.changes} == {"set", "shape", "play"}
    rates = {change.after.rate_bps for change in record.changes if change.by == "play"}
    assert rates <= {1e6, 2e6, 3e6}
    number = record.links.index(LINK)
    own = record.column("link") == number
    seconds = (record.column("end_s") - record.column("begin_s"))[own]
    asked = (record.column("asked_end_bits") - record.column("asked_begin_bits"))[own] / seconds
    late = record.column("begin_s")[own] > record.happenings[0].begin_s
    assert (asked[late] > 0.99e6).all()
    assert (asked[late] < 3.01e6).all()
    steps = [(change.at_s, change.after.rate_bps) for change in record.changes if change.link == number]
    assert len(steps) > 3
    mixed = 0
    spans = [record.column(name)[own] for name in ("begin_s", "end_s")]
    for begin_s, end_s, asked_bps in zip(*spans, asked, strict=True):
        mixed += any(begin_s < at_s < end_s for at_s, _ in steps)
        bits = sum(
            rate_bps * max(0.0, min(end_s, until_s) - max(begin_s, at_s))
            for (at_s, rate_bps), (until_s, _) in zip(steps, [*steps[1:], (math.inf, 0.0)], strict=True)
        )
        assert asked_bps * (end_s - begin_s) == pytest.approx(bits, abs=2e6 * 0.025)  # a change lasts some ms
    assert mixed


@pytest.mark.netns
def test_a_record_is_sent_in_parts_and_in_order() -> None:
    with Testbed.open("netns", ["a", "b"], rate="10mbit") as bed:
        client = bed._bed._client
        with pytest.raises(UsageError, match="part 1 of the record was asked for before part 0, or after the last one"):
            client.call(requests.Record(1))
        first = client.call(requests.Record(0))
        assert first["parts"] == 1
        with pytest.raises(UsageError, match="part 1 of the record"):
            client.call(requests.Record(1))


def test_the_parts_of_a_record_make_up_the_whole_record(
    world: FakeWorld, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "PART_BYTES", 100)
    record.begin("shape")
    world.shape(LINK, LinkShape(1e6))
    world.sent["b"] = 1_000
    snapshot = record.snapshot()
    data = b"".join(map(snapshot.part, range(snapshot.parts)))
    assert snapshot.parts > 2
    assert msgspec.json.decode(data[: snapshot.head_bytes], type=Head) == snapshot.head
    assert len(data) - snapshot.head_bytes == 8 * WIDTH * snapshot.head.rows


@pytest.mark.netns
def test_the_record_of_a_testbed_without_links_has_the_processes() -> None:
    with Testbed.open("loopback", ["a", "b"]) as bed:
        bed.run("a", ["true"])
        record = recording(bed)
    assert [(process.host, process.status) for process in record.processes] == [("a", 0)]
    assert len(record.samples) == len(record.changes) == 0
