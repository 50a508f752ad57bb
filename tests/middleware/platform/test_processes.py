"""Processes on every system: limits, ends of children, and the first lines of their output."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from thalweg.middleware.platform import processes

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes that end with their standard input, and end them after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str = ECHO) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        )
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture(params=["pidfd", "threads"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[processes.Ends]:
    if request.param == "threads":
        monkeypatch.delattr(os, "pidfd_open")
    ends = processes.new_ends()
    yield ends
    ends.close()


def test_the_end_of_every_child_is_reported_once(
    ends: processes.Ends, child: Callable[..., subprocess.Popen[bytes]]
) -> None:
    there = {name: child() for name in ("a", "b", "c")}
    for name, process in there.items():
        ends.add(process, name)
    told: list[str] = []
    for name in ("b", "c", "a"):
        assert ends.waiting
        there[name].kill()
        told += ends.wait()
    assert told == ["b", "c", "a"]
    assert not ends.waiting
    assert [process.wait(20) for process in there.values()] == [-9, -9, -9]


def test_the_end_of_a_child_that_is_added_during_a_wait_is_reported(
    ends: processes.Ends, child: Callable[..., subprocess.Popen[bytes]]
) -> None:
    first, second = child(), child()
    ends.add(first, "first")
    told: list[str] = []
    waiter = threading.Thread(target=lambda: told.extend(ends.wait()))
    waiter.start()
    ends.add(second, "second")
    second.kill()
    waiter.join(20)
    assert told == ["second"]
    assert ends.waiting


@pytest.mark.parametrize("how", ["_lines_by_selector", "_lines_by_threads"])
def test_first_lines_come_whole_and_in_the_order_of_writing(
    how: str, child: Callable[..., subprocess.Popen[bytes]]
) -> None:
    there = {name: child() for name in ("slow", "quick")}
    pipes = {name: process.stdout.fileno() for name, process in there.items() if process.stdout is not None}
    lines = getattr(processes, how)(pipes, 20.0, bool)
    for name, text in (("quick", b"one\ntwo\n"), ("slow", b"three\n")):
        feed = there[name].stdin
        assert feed is not None
        feed.write(text)
        assert next(lines) == (name, text.partition(b"\n")[0])
    assert list(lines) == []


@pytest.mark.parametrize("how", ["_lines_by_selector", "_lines_by_threads"])
def test_a_closed_pipe_gives_an_empty_line_and_a_silent_pipe_gives_no_line(
    how: str, child: Callable[..., subprocess.Popen[bytes]]
) -> None:
    there = {"silent": child(), "gone": child("import sys; sys.stdout.write('half')")}
    pipes = {name: process.stdout.fileno() for name, process in there.items() if process.stdout is not None}
    assert next(getattr(processes, how)({"gone": pipes["gone"]}, 20.0, bool)) == ("gone", b"")
    asked: list[list[str]] = []

    def twice(missing: list[str]) -> bool:
        asked.append(missing)
        return len(asked) < 3

    assert list(getattr(processes, how)({"silent": pipes["silent"]}, 0.05, twice)) == []
    assert asked == [["silent"]] * 3


@pytest.mark.parametrize("missing", ["", "pidfd_open"])
def test_the_wait_for_the_end_of_a_child_stops_at_the_time_limit(
    missing: str, child: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        monkeypatch.delattr(os, missing)
    process = child()
    assert not processes.ended_within(process, 0.05)
    process.kill()
    assert processes.ended_within(process, 20.0)
    assert process.wait() == -9


def test_a_child_is_interrupted_by_a_signal_or_by_the_end_of_the_input(
    child: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint(flush=True)\n" + ECHO
    for system, status in (("linux", -2), ("win32", 0)):
        process = child(ready)
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(sys, "platform", system)
        processes.interrupt(process)
        monkeypatch.undo()
        assert process.wait(20) == status


@pytest.mark.parametrize("missing", ["", "killpg"])
def test_killing_a_child_also_ends_the_processes_of_the_child(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).pid, flush=True)\ninput()"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    assert leader.stdout is not None
    grandchild = os.pidfd_open(int(leader.stdout.readline()))
    if missing:
        monkeypatch.delattr(os, missing)
    processes.kill_group(leader)
    leader.communicate()
    assert processes.select.select([grandchild], [], [], 20.0)[0]
    os.close(grandchild)


def test_a_detached_child_is_in_a_separate_session() -> None:
    code = "import os; print(os.getsid(0) == os.getpid())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, **processes.apart())
    assert done.stdout == b"True\n"


def test_the_limit_of_descriptors_is_raised_to_the_maximum_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import resource, sys\nfrom thalweg.middleware.platform.processes import *\n"
        "_, hard = descriptor_limits()\nresource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 64), hard))\n"
        "sys.platform = sys.argv[1]\nraise_descriptor_limit()\nprint(*descriptor_limits())"
    )

    def limits(system: str) -> list[int]:
        done = subprocess.run([sys.executable, "-c", code, system], stdout=subprocess.PIPE, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert limits("linux") == [hard, hard]
    assert limits("darwin") == [min(hard, processes.OPEN_MAX), hard]
    assert limits("win32") == [-1, -1]


def test_memory_and_processor_time_are_measured_alike_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures() -> tuple[int, int, float]:
        return processes.resident_bytes(), processes.peak_bytes(), processes.processor_s(os.getpid())

    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    resident, peak, took_s = figures()
    monkeypatch.setattr(sys, "platform", "darwin")
    elsewhere = figures()
    assert elsewhere[0] == pytest.approx(resident, rel=0.2)
    assert elsewhere[1] >= 0.8 * resident
    assert elsewhere[2] == pytest.approx(took_s, rel=0.5)
    assert peak >= resident * 0.8
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert processes.processor_s(gone.pid) == 0.0
    monkeypatch.undo()
    assert processes.processor_s(gone.pid) == 0.0
