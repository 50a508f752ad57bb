"""Limits that libzmq lacks: endless messages and too many connections are cut, and honest peers never are."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq
from flows import chain
from patience import patience

from benchmarks.attackers import endless, parts
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.dataflow import Code
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.guard import LARGEST_BYTES, Guard
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.transfers import MAX_CHUNK_BYTES

LOOPBACK = "tcp://127.0.0.1:*"


@pytest.fixture
def host() -> Iterator[Shell]:
    shell = Shell(ShellConfig("a", listen=LOOPBACK, insecure=True, core=CoreConfig(max_connections=20)))
    yield shell
    shell.close()


def guard_of(shell: Shell) -> Guard:
    guard = shell._sockets.guard
    assert guard is not None
    return guard


def asks(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a host answers."""
    socket.send(frames.encode(m.Hello()))
    return isinstance(frames.decode_control(socket.recv()), m.Welcome)


@pytest.mark.parametrize(("count", "size"), [(20_000_000, 0), (20_000_000, 1), (4000, 1024 * 1024)])
def test_an_endless_message_is_cut_before_the_memory_is_full(
    host: Shell, dial: Callable[..., zmq.Socket[bytes]], count: int, size: int
) -> None:
    honest, process = dial(host.me.control), psutil.Process()
    assert asks(honest)
    before, most = process.memory_info().rss, 0
    for number, end in enumerate((host.me.control, host.me.bulk), 1):
        attacker = threading.Thread(target=parts, args=(end, count, size))
        attacker.start()
        while attacker.is_alive():
            most = max(most, process.memory_info().rss - before)
            attacker.join(0.005)
        assert guard_of(host).cut == number
    assert most < 300_000_000  # of gigabytes; the figure itself is the benchmark's
    assert asks(honest)


@pytest.mark.parametrize(("count", "size"), [(20_000_000, 0), (20_000, 60_000)])
def test_a_dialled_program_cannot_answer_without_end(
    host: Shell, dial: Callable[..., zmq.Socket[bytes]], count: int, size: int
) -> None:
    """A program that a host dials sends without end. It is cut, and dialled once more. Honest peers are answered."""
    with socket.create_server(("127.0.0.1", 0)) as hostile:
        honest, process, most = dial(host.me.control), psutil.Process(), 0
        assert asks(honest)
        before = process.memory_info().rss
        hostile.settimeout(10)
        there = f"tcp://127.0.0.1:{hostile.getsockname()[1]}"
        probe = m.Probe(BEFORE_RUNS, 0, m.Peer("evil", there, there), False)
        bulk = dial(host.me.bulk, b"evil/1")
        bulk.send_multipart([frames.encode(m.Chunk(1, 1, 0, probe, "|u1", (1,))), b"x"])
        for number in (1, 2):
            raw, _ = hostile.accept()
            with raw:
                attacker = threading.Thread(target=endless, args=(raw, count, size))
                attacker.start()
                while attacker.is_alive():
                    most = max(most, process.memory_info().rss - before)
                    assert asks(honest)
            assert guard_of(host).cut == number
        assert most < 150_000_000


def is_closed(raw: socket.socket, wait_s: float) -> bool:
    """Return whether the other end closes a connection within ``wait_s``. Greetings are read and ignored."""
    raw.settimeout(wait_s)
    try:
        while raw.recv(1024):
            pass
    except (TimeoutError, BlockingIOError):
        return False
    except ConnectionError:
        pass
    return True


def test_the_connections_silent_for_longest_are_cut_and_honest_peers_are_answered(
    host: Shell, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    honest = dial(host.me.control)
    assert asks(honest)
    address, port = host.me.control.removeprefix("tcp://").split(":")
    idle = []
    for _ in range(60):
        idle.append(socket.create_connection((address, int(port))))
        assert asks(honest)
    until_s = time.monotonic() + patience(10)
    while guard_of(host).cut < 41:
        assert time.monotonic() < until_s
        assert asks(honest)
    assert guard_of(host).cut == 41
    assert all(is_closed(raw, patience(10)) for raw in idle[:41])
    assert not any(is_closed(raw, 0.0) for raw in idle[41:])
    for raw in idle:
        raw.close()


def test_large_partitions_over_tcp_are_not_cut() -> None:
    """The chunks have the largest size, and the receiving process is slow."""
    size = 3 * MAX_CHUNK_BYTES
    source = Code("benchmarks.workload:FixedSource", {"site": 0, "size_bytes": size})
    allow = ("benchmarks",)
    with LocalCluster(1, allow=allow, transport="tcp") as cluster, Client(cluster, allow=allow) as client:
        run = client.run(chain(source), {}, partitions=60)
        for delivered in run:
            assert delivered.size_bytes == size
            if delivered.index % 10 == 0:
                until_s = time.perf_counter() + 0.1
                while time.perf_counter() < until_s:
                    sum(range(100_000))
        assert guard_of(client.shell).cut == 0
        assert size > LARGEST_BYTES


def test_a_glance_after_the_end_of_a_calm_starts_no_new_calm(
    host: Shell, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    guard, honest, until_s = guard_of(host), dial(host.me.control), time.monotonic() + patience(10)
    for calm in (True, False):
        while guard.calm is not calm:
            assert not calm or asks(honest)
            assert time.monotonic() < until_s
    guard.glance(time.monotonic())
    assert not guard.calm


def test_a_calm_that_ends_while_a_host_computes_a_sleep_does_not_end_the_host(
    monkeypatch: pytest.MonkeyPatch, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    said = itertools.cycle((True, False))
    monkeypatch.setattr(Guard, "calm", property(lambda self: next(said), lambda self, value: None), raising=False)
    with contextlib.closing(Shell(ShellConfig("a", listen=LOOPBACK, insecure=True))) as shell:
        honest = dial(shell.me.control)
        assert all(asks(honest) for _ in range(20))
        assert not shell.failure


def test_a_guard_leaves_no_thread_and_no_descriptor() -> None:
    def open_now() -> int:
        return len(os.listdir("/proc/self/fd"))

    Shell(ShellConfig("a", listen=LOOPBACK, insecure=True)).close()
    before = open_now(), threading.active_count()
    for _ in range(3):
        Shell(ShellConfig("a", listen=LOOPBACK, insecure=True)).close()
    assert (open_now(), threading.active_count()) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before[0]
