"""A supervisor by the wire: bad requests, what fails inside it, and several clients; it outlives all of them."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
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
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor import server as supervisors
from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.emulation.supervisor.connection import Connection
from thalweg.emulation.supervisor.server import Supervisor
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.network.view import NET, Link

NAMES = ("a", "b", "c")


def steps(link: tuple[str, str], times_s: Sequence[float], rates: Sequence[float], period_s: float) -> requests.Steps:
    return requests.Steps(link, array("d", times_s).tobytes(), array("d", rates).tobytes(), period_s)


class FakeWorld:
    """Links that only remember; ``broken`` is raised by whatever the kernel would be asked."""

    def __init__(self) -> None:
        hosts = {name: SimpleNamespace(name=name, number=i, via=NET) for i, name in enumerate(NAMES, 1)}
        self.ends = hosts
        self.links: dict[tuple[str, ...], Any] = {
            Link(one, other): SimpleNamespace(
                shape=LinkShape(1e6),
                base=LinkShape(1e6),
                source=hosts[one],
                target=hosts[other],
                asked_bits=lambda _: 0.0,
            )
            for one, other in (("a", "b"), ("b", "a"), ("a", "c"))
        }
        self.limits: dict[str, float] = {}
        self.netem_works = True
        self.broken: Exception | None = None
        self.read = 0

    def shape(self, shapes: list[tuple[Link, LinkShape]], *, replayed: bool = False) -> None:
        if self.broken is not None:
            raise self.broken
        for link, shape in shapes:
            self.links[link].shape = shape

    def counters(self, source: str) -> dict[str, ClassCounters]:
        if self.broken is not None:
            raise self.broken
        self.read += 1
        return {"b": ClassCounters(2, 1000 * self.read, 0), "x": ClassCounters(9, 1, 0)} if source == "a" else {}

    def crowded(self, shapes: list[tuple[Link, LinkShape]]) -> list[Link]:
        return [link for link, shape in shapes if shape.duplicate]


class Bed:
    """A supervisor's loop in a thread of this process, over a fake world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("signal", "set_wakeup_fd"):  # belong to the main thread
            monkeypatch.setattr(supervisors.signal, name, lambda *_, **__: None)
        self.control, theirs = socket.socketpair()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("")  # a name without a file, given by the kernel
        self.listener.listen()
        self.world = FakeWorld()
        self.supervisor = Supervisor(theirs, self.listener)
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
        """The samples since the last time."""
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
    for what, wrong in [
        ("ValueError", requests.Steps(("a", "b"), b"123", b"", 1.0)),
        ("KeyError", steps(("a", "x"), (0,), (1e6,), 0.0)),
    ]:
        with pytest.raises(TestbedError, match=what):
            bed.client.call(requests.Replay([wrong]))
    assert bed.status()["processes"] == []
    answers.close()
    raw[0].close()


@pytest.mark.parametrize("error", [NetlinkError(22, "no such class", 0), RuntimeError("odd"), KeyError(("a", "x"))])
def test_what_goes_wrong_in_a_replay_or_a_sample_ends_that_alone(bed: Bed, error: Exception) -> None:
    bed.load()
    bed.client.call(requests.ReplayStart())
    bed.client.call(requests.SampleStart(0.005))
    bed.world.broken = error
    while "replay" not in (said := bed.status()["refusal"]) or "sampling" not in said:
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


def test_each_client_samples_for_itself(bed: Bed) -> None:
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


def test_events_are_held_to_what_links_can_be_and_the_next_replay_begins_without(bed: Bed) -> None:
    bed.load()
    for effect, kind, says in [
        (Effect(1001.0), UsageError, r"link a → c, as an event changes it: 2002 Mbit/s"),
        (Effect(reorder=0.1), UsageError, "link a → c.*give it a delay_s"),
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


def test_a_kernel_that_refuses_second_interfaces_is_told_in_one_line(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NetlinkError(95, "Operation not supported", 3)

    monkeypatch.setattr(namespaces, "NamespaceWorld", refuse)
    asked = requests.Build({"a": "10.77.0.1"}, 16, 3, {"leased": {"a": "10.78.0.1"}})
    with pytest.raises(TestbedError, match=r"^the kernel refused the testbed second interfaces.*not supported$"):
        bed.client.call(asked)
