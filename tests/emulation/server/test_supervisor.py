"""The supervisor at its socket: it outlives bad requests, internal errors and clients."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from array import array
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from patience import patience

from thalweg.emulation.kernel import namespaces
from thalweg.emulation.kernel.htb import ClassCounters
from thalweg.emulation.kernel.netlink import NetlinkError
from thalweg.emulation.links.effects import Effect
from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.links.units import MANAGED
from thalweg.emulation.server import supervisor as supervisors
from thalweg.emulation.server.supervisor import Supervisor
from thalweg.emulation.supervisor import parts, requests
from thalweg.emulation.supervisor import sampler as samplers
from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.emulation.supervisor.connection import MAX_LINE_BYTES, Connection
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.network.view import NET, Link

NAMES = ("a", "b", "c")


def steps(link: tuple[str, str], times_s: Sequence[float], rates: Sequence[float], period_s: float) -> requests.Steps:
    return requests.Steps(link, array("d", times_s).tobytes(), array("d", rates).tobytes(), period_s)


class FakeWorld:
    """Links that keep their shapes. If ``broken`` is set, every request to the kernel raises that error."""

    private = ()

    def __init__(self) -> None:
        hosts = {name: SimpleNamespace(name=name, number=i, via=NET, ip6="") for i, name in enumerate(NAMES, 1)}
        self.hosts = self.ends = hosts
        self.unplugged: set[str] = set()
        self.links: dict[tuple[str, ...], Any] = {
            Link(source, target): SimpleNamespace(
                shape=LinkShape(1e6),
                base=LinkShape(1e6),
                source=hosts[source],
                target=hosts[target],
                asked_bits=lambda _: 0.0,
            )
            for source, target in (("a", "b"), ("b", "a"), ("a", "c"))
        }
        self.up_bps: dict[str, float] = {}
        self.down_bps: dict[str, float] = {}
        self.up_queues: dict[str, Queue] = {}
        self.dropped: dict[str, int] = {}
        self.gone: set[str] = set()
        self.netem_works = True
        self.broken: Exception | None = None
        self.read = 0

    def shape(self, shapes: list[tuple[Link, LinkShape]], *, replayed: bool = False) -> None:
        if self.broken is not None:
            raise self.broken
        for link, shape in shapes:
            self.links[link].shape = shape

    def counters(self, target: str) -> dict[str, ClassCounters]:
        if self.broken is not None:
            raise self.broken
        self.read += 1
        return {"a": ClassCounters(1, 1000 * self.read, 0), "x": ClassCounters(9, 1, 0)} if target == "b" else {}

    def limit_hosts(self, up_bps: dict[str, float | None], down_bps: dict[str, float | None]) -> None:
        if self.broken is not None:
            raise self.broken
        for limits, asked in ((self.up_bps, up_bps), (self.down_bps, down_bps)):
            limits |= {host: bps for host, bps in asked.items() if bps is not None}

    def strangers(self) -> dict[str, int]:
        return self.dropped

    def manages(self, discipline: str) -> bool:
        return discipline == "codel"

    def crowded(self, shapes: list[tuple[Link, LinkShape]]) -> list[Link]:
        return [link for link, shape in shapes if shape.duplicate]


class Bed:
    """A supervisor's loop in a thread of this process, over a fake world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("signal", "set_wakeup_fd"):  # belong to the main thread
            monkeypatch.setattr(supervisors.signal, name, lambda *_, **__: None)
        self.control, remote = socket.socketpair()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("")  # a name without a file, given by the kernel
        self.listener.listen()
        self.world = FakeWorld()
        self.supervisor = Supervisor(remote, self.listener)
        monkeypatch.setattr(self.supervisor, "_reap", lambda: None)  # this process has children of its own
        self.supervisor._world = self.world  # type: ignore[assignment]
        self.thread = threading.Thread(target=self.supervisor.serve)
        self.thread.start()
        self.client = SupervisorClient(self.control)

    def connect(self) -> SupervisorClient:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.listener.getsockname())
        return SupervisorClient(sock)

    def load(self, *changes: tuple[float, int, int], effects: tuple[Effect, ...] = ()) -> None:
        links = (("a", "b"), ("a", "c"))
        self.client.call(requests.Replay([steps(link, (0, 0.01), (1e6, 2e6), 0.02) for link in links]))
        if changes:
            self.change(*changes, effects=effects)

    def change(self, *changes: tuple[float, int, int], effects: tuple[Effect, ...]) -> None:
        rows = array("d", [figure for row in changes for figure in row])
        self.client.call(requests.ReplayChange([*effects], rows.tobytes()))

    def rows(self, client: SupervisorClient | None = None) -> bytes:
        """Return the samples since the last call."""
        return b64decode((client or self.client).call(requests.Samples())["rows"])

    def status(self) -> dict[str, Any]:
        return self.client.call(requests.Status())


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    bed = Bed(monkeypatch)
    yield bed
    bed.client.close()
    bed.thread.join(patience(10))
    assert not bed.thread.is_alive()
    bed.listener.close()
    os.close(bed.supervisor._wake)


BAD = [
    b"no JSON", b"\xff\xfe", b"[1, 2]", b"null", b"{}", b'{"id": 1}', b'{"id": 1, "op": "status", "fds": 3}',
    b'{"id": 1, "op": "status", "fds": "many"}', b'{"id": 1, "op": ["down"]}', b'{"id": 1, "op": "status", "x": 1}',
    b'{"id": 1, "op": "replay", "schedules": [["a"]]}', b'{"id": 1, "op": "replay_start"}',
    b'{"id": 1, "op": "sample_start", "interval_s": "often"}', b'{"id": 1, "op": "sample_start", "interval_s": -1}',
    b'{"id": 1, "op": "shape", "links": [["a"]]}', b'{"id": 1, "op": "prove", "links": 5, "seconds": null}',
]  # fmt: skip


def test_bad_requests_are_answered_and_leave_no_descriptor(bed: Bed) -> None:
    raw = socket.socketpair()
    bed.supervisor._admit(Connection(raw[1]))
    bed.status()  # the loop has it from now on
    answers = raw[0].makefile("rb")
    before = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryFile() as file:
        for line in BAD:
            socket.send_fds(raw[0], [line + b"\n"], [file.fileno()] * 2)
            answer = json.loads(answers.readline())
            assert answer["error"], line
            assert "\n" not in answer["error"]
            socket.send_fds(raw[0], [b"x\n"], [])  # what was not claimed is closed by the next that is malformed
            assert "bad request" in json.loads(answers.readline())["error"]
    assert len(os.listdir("/proc/self/fd")) == before
    for says, wrong in [
        ("ValueError", requests.Steps(("a", "b"), b"123", b"", 1.0)),
        ("it has 1 times and 0 rates", requests.Steps(("a", "b"), bytes(8), b"", 1.0)),
        ("its period is 1e-300 s for 2 steps", steps(("a", "b"), (0, 1e-301), (1e6, 2e6), 1e-300)),
        ("its times do not begin with 0, or do not increase", steps(("a", "b"), (0, 2, 1), (1e6,) * 3, 9.0)),
        ("its times do not begin with 0", steps(("a", "b"), (1, 2), (1e6,) * 2, 9.0)),
        ("a rate is outside 0 to 2e", steps(("a", "b"), (0, 1), (1e6, 1e30), 9.0)),
        ("a rate is outside 0 to 2e", steps(("a", "b"), (0, 1), (1e6, float("nan")), 9.0)),
        ("KeyError", steps(("a", "x"), (0,), (1e6,), 0.0)),
    ]:
        with pytest.raises((TestbedError, UsageError), match=says):
            bed.client.call(requests.Replay([wrong]))
    assert bed.status()["processes"] == []
    answers.close()
    raw[0].close()


@pytest.mark.parametrize("error", [NetlinkError(22, "no such class", 0), RuntimeError("odd"), KeyError(("a", "x"))])
def test_an_error_stops_the_replay_and_the_sampling_and_both_can_start_again(bed: Bed, error: Exception) -> None:
    bed.load()
    bed.client.call(requests.ReplayStart())
    bed.client.call(requests.SampleStart(0.005))
    bed.world.broken = error
    while "replay" not in (refusal := bed.status()["refusal"]) or "sampling" not in refusal:
        assert bed.thread.is_alive()
    assert not bed.status()["replaying"]
    with pytest.raises(TestbedError, match="the replay has stopped"):
        bed.client.call(requests.ReplayStatistics())
    with suppress(TestbedError):  # what there was until then, if there was
        assert bed.rows()
    with pytest.raises(TestbedError, match="the sampling of links has stopped"):
        bed.rows()
    bed.world.broken = None
    bed.client.call(requests.ReplayStart())
    bed.client.call(requests.SampleStart(0.005))
    while not bed.rows():
        assert bed.status()["refusal"] == ""


def test_the_samplings_of_two_clients_are_independent(bed: Bed) -> None:
    other = bed.connect()
    bed.client.call(requests.SampleStart(0.005))
    other.call(requests.SampleStart(1000.0))
    other.call(requests.SampleStop())
    for _ in range(3):
        while not bed.rows():
            pass
    bed.client.call(requests.SampleStop())
    assert len(bed.rows(other)) == 8 * 8  # its two, whose difference is one row
    other.close()
    while len(bed.supervisor._samplers) > 1:
        bed.status()


def test_impossible_effects_are_refused_and_the_next_replay_starts_without_effects(bed: Bed) -> None:
    bed.load()
    for effect, kind, says in [
        (Effect(1001.0), UsageError, r"link a → c, as an event changes it: 2002 Mbit/s"),
        (Effect(reorder=0.1), UsageError, "link a → c.*give the link a delay_s"),
        (Effect(distribution="gamma"), UsageError, "no distribution 'gamma'"),
        (Effect(duplicate=0.1), CapabilityError, "link a → c: this kernel duplicates"),
    ]:
        with pytest.raises(kind, match=says):
            bed.change((0.0, 1, 0), effects=(effect,))
    assert not bed.status()["replay_delays"]
    bed.change((0.0, 0, 0), (1e12, 0, 1), effects=(Effect(cut=True, delay_s=0.1), Effect()))
    assert bed.status()["replay_delays"]
    bed.client.call(requests.ReplayStart())
    assert bed.world.links["a", "b"].shape.cut
    bed.load()
    assert bed.world.links["a", "b"].shape[1:] == LinkShape(0.0)[1:]
    assert not bed.status()["replay_delays"]


def test_a_kernel_that_refuses_second_interfaces_is_reported_in_a_single_line(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NetlinkError(95, "Operation not supported", 3)

    monkeypatch.setattr(namespaces, "NamespaceWorld", refuse)
    asked = requests.Build({"a": "10.77.0.1"}, 16, 3, {"leased": {"a": "10.78.0.1"}})
    with pytest.raises(TestbedError, match=r"^the kernel refused the testbed second interfaces.*not supported$"):
        bed.client.call(asked)


def test_up_and_down_limits_of_hosts_are_separate_and_stand_in_the_status(bed: Bed) -> None:
    bed.client.call(requests.LimitHosts({"a": 1e6}, {"b": 2e6}))
    bed.world.dropped = {"c": 3}
    status = bed.status()
    assert (status["up_bps"], status["down_bps"], status["strangers"]) == ({"a": 1e6}, {"b": 2e6}, {"c": 3})
    bed.world.broken = NetlinkError(95, "Operation not supported", 0)
    with pytest.raises(CapabilityError, match=r"Operation not supported; .* takes the modules ifb, sch_ingress"):
        bed.client.call(requests.LimitHosts({"a": 1e6}, {"b": 2e6}))
    with pytest.raises(CapabilityError, match=r"Operation not supported$"):
        bed.client.call(requests.LimitHosts({"a": None}, {"b": 2e6}))


def test_a_discipline_that_the_kernel_lacks_is_refused_and_a_supported_discipline_is_set(bed: Bed) -> None:
    before = {link: state.shape for link, state in bed.world.links.items()}
    shapes = [(("a", "b"), LinkShape(1e6, queue=Queue(0.1, "s", discipline))) for discipline in MANAGED]
    for link, shape in shapes:
        assert shape.queue is not None
        if shape.queue.discipline != "codel":
            with pytest.raises(CapabilityError, match=f"no {shape.queue.discipline}: .*sch_{shape.queue.discipline}"):
                bed.client.call(requests.ShapeLinks([(link, shape)]))
            assert {link: state.shape for link, state in bed.world.links.items()} == before
        else:
            bed.client.call(requests.ShapeLinks([(link, shape)]))
            before[Link(*link)] = shape
    assert before["a", "b"].queue == Queue(0.1, "s", "codel")


# --- limits -----------------------------------------------------------------------------------------

HOST = {"host": "a", "env": {}, "cwd": "/"}
BEYOND: list[dict[str, Any]] = [
    *({"op": "sample_start", "interval_s": interval_s} for interval_s in (1e-300, 0.0, -1.0, 1e300, None)),
    *({"op": "prove", "links": [["a", "b"]], "seconds": seconds} for seconds in (0, -1, 1e9)),
    {"op": "build", "hosts": {"a": "10.0.0.1"}, "prefix_length": 0, "layer": 3},
    {"op": "build", "hosts": {"a": "10.0.0.1"}, "prefix_length": 64, "layer": 3},
    {"op": "build", "hosts": {"a": "10.0.0.1"}, "prefix_length": 24, "layer": 7},
    {"op": "build", "hosts": {f"h{i}": "10.0.0.1" for i in range(1024)}, "prefix_length": 16, "layer": 3},
    {"op": "attach", "hosts": [["a", 0, []]], "prefix_length": 24, "layer": 3},
    {"op": "spawn", "argv": [], **HOST},
    {"op": "spawn", "argv": ["true"], "terminal": [-1, 70_000], **HOST},
    {"op": "launch", "argv": [], **HOST},
    {"op": "resize", "pid": 1, "size": [65_536, 1]},
    *({"op": "signal", "pid": 1, "signal": number} for number in (0, -9, 65, 10**30)),
    {"op": "shape", "links": [[["a", "b"], [1e300]]]},
    {"op": "shape", "links": [[["a", "b"], [1e6, 1e9]]]},
    *({"op": "limit_hosts", way: {"a": bps}} for way in ("up_bps", "down_bps") for bps in (-1.0, 1e300)),
    {"op": "status", "id": -1},
    {"op": "status", "id": 10**30},
    {"op": "status", "fds": -1},
    {"op": "status", "fds": 10**9},
]


@pytest.mark.parametrize("request_", BEYOND, ids=lambda one: json.dumps(one)[:60])
def test_a_figure_beyond_its_limits_is_refused(bed: Bed, request_: dict[str, Any]) -> None:
    local, remote = socket.socketpair()
    bed.supervisor._admit(Connection(remote))
    bed.status()  # the loop has it from now on
    with local, local.makefile("rb") as answers:
        local.sendall(json.dumps({"id": 1} | request_).encode() + b"\n")
        answer = json.loads(answers.readline())
    assert "\n" not in answer["error"]
    assert all(link.shape == LinkShape(1e6) for link in bed.world.links.values())
    assert bed.supervisor._samplers == {}
    assert bed.world.up_bps == bed.world.down_bps == {}


@pytest.mark.parametrize("row", [(-1.0, 0, 0), (float("inf"), 0, 0), (1.0, 7, 0), (1.0, 0, -1), (1.0, 0, float("nan"))])
def test_a_change_beyond_its_limits_is_refused(bed: Bed, row: tuple[float, int, int]) -> None:
    bed.load()
    with pytest.raises((UsageError, TestbedError)):
        bed.change(row, effects=(Effect(factor=0.5),))
    with pytest.raises(UsageError, match="a changed link's loss is 7"):
        bed.change((1.0, 0, 0), effects=(Effect(loss=7.0),))
    assert bed.supervisor._player is not None
    assert not any(bed.supervisor._player._changes)


def test_an_endless_request_line_ends_the_connection_and_not_the_supervisor(bed: Bed) -> None:
    local, remote = socket.socketpair()
    bed.supervisor._admit(connection := Connection(remote))
    bed.status()
    text = b""
    with local, local.makefile("rb") as answers:
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(50):
                local.sendall(b"x" * (1 << 20))
        with suppress(ConnectionResetError):
            text = answers.read()  # to the end
    assert text == b"" or f"a request has more than {MAX_LINE_BYTES} bytes; the connection" in json.loads(text)["error"]
    assert len(connection._pending) <= MAX_LINE_BYTES
    assert connection not in bed.supervisor._connections
    assert bed.status()["processes"] == []


def test_unclaimed_descriptors_are_closed_and_end_the_connection(bed: Bed) -> None:
    local, remote = socket.socketpair()
    bed.supervisor._admit(connection := Connection(remote))
    bed.status()
    before = len(os.listdir("/proc/self/fd"))
    with local, local.makefile("rb") as answers, suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(50):
            socket.send_fds(local, [b"x"], [local.fileno()] * 8)
        assert b"descriptors wait for a request" in answers.readline()
    bed.status()
    assert connection not in bed.supervisor._connections
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_request_that_cannot_be_sent_is_refused_by_the_client(bed: Bed) -> None:
    with pytest.raises(UsageError, match=r"a request to the testbed's supervisor has \d+ bytes, over 16777216"):
        bed.client.call(requests.Spawn("a", ["x" * MAX_LINE_BYTES], {}, "/"))
    with pytest.raises(UsageError, match=r"a request to the testbed's supervisor has 'caf\\udce9', which is not UTF-8"):
        bed.client.call(requests.Spawn("a", ["cat", os.fsdecode(b"caf\xe9")], {}, "/"))
    assert bed.status()["processes"] == []


def test_the_sampling_stops_when_no_client_fetches_the_samples(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MAX_ROWS", 2)
    bed.client.call(requests.SampleStart(0.005))
    stop = time.monotonic() + patience(10)
    while not (refusal := bed.status()["refusal"]) and time.monotonic() < stop:
        pass
    assert refusal == "the sampling of links has stopped (ValueError no client has fetched the last 2 rows)"
    assert len(bed.rows()) == 3 * 64


# --- requests in parts --------------------------------------------------------------------------------


def test_a_replay_and_the_changes_of_a_replay_are_sent_in_parts(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 48)  # two rows of changes
    monkeypatch.setattr(parts, "EFFECTS", 2)
    times = [0.01 * i for i in range(20)]
    schedules = [steps(("a", "b"), times, [1e6 + i for i in range(20)], 1.0), steps(("a", "c"), (0,), (2e6,), 0.0)]
    sent = list(parts.replays(schedules))
    assert [part.more for part in sent] == [True] * (len(sent) - 1) + [False]
    assert len(sent) > 4
    for part in sent:
        bed.client.call(part)
    player = bed.supervisor._player
    assert player is not None
    received = [
        (schedule.link[:2], list(schedule.times_s), list(schedule.rates_bps), schedule.period_s)
        for schedule in player._schedules
    ]
    assert received == [(("a", "b"), times, [1e6 + i for i in range(20)], 1.0), (("a", "c"), [0.0], [2e6], 0.0)]
    effects = [Effect(factor=0.1 * i) for i in range(1, 6)]
    rows = array("d", [figure for i in range(5) for figure in (1.0 + i, 0, i)]).tobytes()
    sent_changes = list(parts.changes(effects, rows))
    assert [len(part.effects) for part in sent_changes] == [2, 2, 1, 0, 0]
    assert [len(part.rows) // 24 for part in sent_changes] == [0, 0, 2, 2, 1]
    for change in sent_changes:
        assert player._changes[0] == []
        bed.client.call(change)
    assert player._changes[0] == [(1.0 + i, effect) for i, effect in enumerate(effects)]
    assert [len(part.rows) for part in parts.changes([], b"")] == [0]


def test_the_parts_of_a_replay_are_bounded_in_sum_and_dropped_with_the_connection(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_GIVEN_BYTES", 1_000)
    other = bed.connect()
    other.call(requests.Replay([steps(("a", "b"), (0, 1), (1e6, 2e6), 2.0)], more=True))
    bed.client.call(requests.Replay([steps(("a", "c"), (0,), (1e6,), 0.0)]))  # each client's own
    many = [steps(("a", "b"), range(50), (1e6,) * 50, 99.0)] * 2
    with pytest.raises(UsageError, match="a replay has more than 1000 bytes of figures; replay fewer links"):
        other.call(requests.Replay(many, more=True))
    other.call(requests.Replay([steps(("a", "b"), (0,), (1e6,), 0.0)], more=True))  # begins anew
    assert len(bed.supervisor._parts) == 1
    other.close()
    bed.status()
    assert bed.supervisor._parts == {}
