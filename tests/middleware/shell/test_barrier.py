"""Defects and hanging calls in a host cost one run. An error that ends a host gives status 1 and one line."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from flows import chain
from patience import patience

from thalweg.middleware.client.client import Client
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import RunError, UsageError

TESTS = Path(__file__).parents[2]
FLOW = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [100]}), Code("runtime_codes:Mix"))
HOST = """
import sys
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.measuring.prober import Prober
from thalweg.middleware.shell import daemon, shell
from thalweg.middleware.shell.shell import Shell

def raising(error):
    def call(*arguments):
        raise error
    return call

{breaks}
daemon.run()
"""


@contextmanager
def host(breaks: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a host process with a defect. Yield the process and its control endpoint."""
    command = [
        sys.executable,
        "-c",
        HOST.format(breaks=breaks),
        "--name",
        "h1",
        "--listen",
        "tcp://127.0.0.1:*",
        "--insecure",
    ]
    paths = os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    pipe = subprocess.PIPE
    more = ["--allow", "runtime_codes", *options]
    env = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen([*command, *more], stdout=pipe, stderr=pipe, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, msgspec.json.decode(line)["control"] if line else ""
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ("Shell._do_what_is_due = raising(RuntimeError('two\\nlines'))", "RuntimeError: two lines"),
        ("Shell._do_what_is_due = raising(MemoryError())", "MemoryError: "),
        ("Shell._do_what_is_due = raising(SystemExit(0))", "SystemExit: 0"),
        ("Shell._keep_house = raising(KeyboardInterrupt())", "KeyboardInterrupt: "),
        ("Shell._do_what_is_due = lambda self, now: self._sockets._context.destroy(0)", "ZMQError: "),
        ("Shell._loop = lambda self: self.no_such_thing", "AttributeError: "),
        ("Shell.__init__ = raising(OSError(24, 'Too many open files'))", "OSError: [Errno 24] Too many open files"),
        ("daemon.gc.freeze = raising(MemoryError('none'))", "MemoryError: none"),
        (
            "Shell._do_what_is_due = raising(ValueError('first')); shell.Recorder.close = raising(OSError('next'))",
            "ValueError: first",
        ),
    ],
)
def test_a_host_that_stops_with_an_error_prints_a_single_line_and_has_status_1(breaks: str, says: str) -> None:
    with host("shell.HOUSEKEEPING_S = 0.05\n" + breaks) as (process, _):
        _, error = process.communicate(timeout=patience(20))
    assert process.returncode == 1, error
    assert error.startswith("thalweg host: ") or " ERROR h1: the host 'h1' stopped: " in error, error
    assert says.strip() in error
    assert error.count("\n") == 1, error


BROKEN = [
    ("told = Flow.finished; Flow.finished = lambda self, event: self.none if {here} else told(self, event)", 1),
    ("told = Flow.demand; Flow.demand = lambda self, by, event: self.none if {here} else told(self, by, event)", 1),
    ("told = Shell._have_made; Shell._have_made = lambda self, event: self.none if {there} else told(self, event)", 1),
]


@pytest.mark.parametrize(("breaks", "lines"), BROKEN)
def test_a_defect_closes_the_broken_run_and_a_neighbour_goes_on(breaks: str, lines: int, tmp_path: Path) -> None:
    here = "self._install.label == 'broken' and event.index == 20"
    there = "event.index == 20 and self._recorder._runs[event.run][0] == 'broken'"
    records = tmp_path / "records"
    at_s: list[float] = []
    broke, went_on = threading.Event(), threading.Event()
    with host(breaks.format(here=here, there=there), "--records", str(records)) as (process, address):
        with Client({"h1": address}, insecure=True, allow=["runtime_codes"]) as client:
            neighbour = client.run(FLOW, {"o": "h1"}, label="neighbour")

            def take() -> None:
                for each in neighbour:
                    assert each.index == len(at_s)
                    at_s.append(time.monotonic())
                    if broke.is_set():
                        went_on.set()

            taker = threading.Thread(target=take)
            taker.start()
            with pytest.raises(RunError) as error:
                list(client.run(FLOW, {"o": "h1"}, label="broken"))
            broke.set()
            assert str(error.value).startswith("host 'h1': a defect of the runtime there broke the run at "), error
            assert "AttributeError" in str(error.value)
            assert "\n" not in str(error.value)
            assert [each.index for each in client.run(FLOW, {"o": "h1"}, partitions=30)] == list(range(30))
            assert went_on.wait(patience(30))
            neighbour.close()
            taker.join(patience(10))
        assert process.poll() is None
        process.terminate()
        _, log = process.communicate(timeout=patience(20))
    assert process.returncode == 0
    assert max(later - sooner for sooner, later in itertools.pairwise(at_s)) < 1.0
    assert log.count("\n") == lines, log
    rows = [msgspec.json.decode(line) for line in records.read_bytes().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "error"]
    assert row["placement"] == "broken"
    assert "AttributeError" in row["detail"]["reason"]
    assert row["detail"]["event"]


def hanging(at: int) -> Dataflow:
    return chain(FLOW.by_name["s"].code, Code("runtime_codes:Hangs", {"at": at}))


def test_a_hanging_call_costs_only_the_run_that_made_the_call() -> None:
    with host("", "--limit", "max_threads=12") as (process, address):
        with Client({"h1": address}, insecure=True, allow=["runtime_codes"]) as client:
            neighbour = client.run(FLOW, {"o": "h1"})
            next(neighbour)
            for at, says in (
                (0, "combine() of partition 0 has not"),
                (30, "combine() of partition 30 has not"),  # it has proved quick before
                (60, "combine() of partition 60 has not"),
                (-1, "loading its code has not"),
            ):
                with pytest.raises(RunError) as error:
                    list(client.run(hanging(at), {"o": "h1"}, call_timeout_s=0.3))
                assert f"node 'o' on host 'h1': {says} returned within 0.3 s (call_timeout_s)" in str(error.value)
                assert next(neighbour)
            for at in (0, 30, -1):  # without a limit they hang until closed
                run = client.run(hanging(at), {"o": "h1"})
                for _ in range(at):
                    next(run)
                begun_s = time.monotonic()
                assert len([next(neighbour) for _ in range(50)]) == 50
                assert time.monotonic() - begun_s < 5.0
                run.close()
            assert [each.index for each in client.run(FLOW, {"o": "h1"}, partitions=30)] == list(range(30))
        begun_s = time.monotonic()
        process.terminate()
        _, log = process.communicate(timeout=patience(20))
    assert process.returncode == 0
    assert log.count("\n") == log.count("has not returned within 0.3 s") == 4, log
    assert time.monotonic() - begun_s < 5.0


@pytest.mark.parametrize("limit_s", [0, -1.0, math.inf, math.nan])
def test_an_invalid_call_timeout_is_a_usage_error(limit_s: float, client: Client) -> None:
    with pytest.raises(UsageError, match=r"^call_timeout_s is .*; give seconds above 0"):
        client.run(FLOW, {"o": "h1"}, call_timeout_s=limit_s)


def test_a_full_disk_costs_records_and_no_run(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    records = tmp_path / "records"
    with host(limit, "--records", str(records)) as (process, address):
        with Client({"h1": address}, insecure=True, allow=["runtime_codes"]) as client:
            for _ in range(2):
                assert [each.index for each in client.run(FLOW, {"o": "h1"}, partitions=400)] == list(range(400))
        process.terminate()
        _, log = process.communicate(timeout=patience(20))
    assert process.returncode == 0
    assert "the records " in log and " cannot be written: " in log
    assert log.count("\n") == 1
    rows = [msgspec.json.decode(line) for line in records.read_bytes().splitlines()]
    (missing,) = [row for row in rows if row["kind"] == "missing"]
    assert missing["detail"]["rows"] > 100
    assert missing["detail"]["reason"] == "File too large"


NO_WAKING = """
import os, signal, sys, threading
from thalweg.middleware.shell import daemon

def kill():
    os.read({fd}, 1)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=kill, daemon=True).start()
status = daemon.main(sys.argv[1:])
os._exit(status)
"""


def test_a_signal_ends_a_host_even_if_the_wait_of_the_main_thread_goes_on(tmp_path: Path) -> None:
    """Such a signal comes before the main thread waits, or a different thread takes it."""
    ends, begins = os.pipe()
    options = ["--name", "h1", "--listen", f"ipc://{tmp_path}/h1"]
    command = [sys.executable, "-c", NO_WAKING.format(fd=ends), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(ends,)) as process:
        os.close(ends)
        assert process.stdout is not None
        assert process.stdout.readline()
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)  # it does something before it waits
        os.write(begins, b"x")
        os.close(begins)
        try:
            assert process.wait(patience(10)) == 0
        finally:
            process.kill()
