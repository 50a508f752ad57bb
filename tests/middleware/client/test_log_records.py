"""Log records for applications and operators, from host processes and from a client in this process."""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Iterator

import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg import Client, Failover, LocalCluster
from thalweg.middleware import logbook
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.dataflow import Code
from thalweg.middleware.planning.planners.planner import Planner
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.shell import daemon, shell

FLOW = chain(blocks()["h1"], MIX)
LIMIT = 5_000  # partitions that are taken while something is waited for


class Heard(logging.Handler):
    """Log handler that collects the records of one event."""

    def __init__(self, event: str) -> None:
        super().__init__(logging.DEBUG)
        self.event, self.come = event, threading.Event()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == self.event:
            self.records.append(record)
            self.come.set()


@pytest.fixture
def hear() -> Iterator[type[Heard]]:
    """Yield a function: ``hear("host-lost")`` collects the records of that event from now on."""
    log, made = logging.getLogger("thalweg"), list[Heard]()
    before = log.level
    log.setLevel(logging.DEBUG)

    def new(event: str) -> Heard:
        made.append(Heard(event))
        log.addHandler(made[-1])
        return made[-1]

    yield new  # type: ignore[misc]
    log.setLevel(before)
    for each in made:
        log.removeHandler(each)


class Fails:
    """A planner that raises."""

    def plan(self, task: object, model: object) -> Plan:
        raise KeyError("nowhere")


def take_until(run: Iterator[object], come: threading.Event) -> None:
    for _ in itertools.islice(run, LIMIT):
        if come.is_set():
            return
    raise AssertionError(f"not after {LIMIT} partitions")


def test_lost_and_recovered_hosts_are_logged(hear: type[Heard]) -> None:
    begun, lost, recovered, joined = map(hear, ("run-begun", "host-lost", "run-recovered", "host-joined"))
    with LocalCluster(3, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(FLOW, {"o": "h2"}, failover=Failover())
        got = [next(run).value for _ in range(3)]
        cluster.kill("h2")
        while not recovered.come.is_set() and len(got) < LIMIT:
            got.append(next(run).value)
        client.add_host("h2", cluster.start("h2"))
        while not joined.come.is_set() and len(got) < LIMIT:
            got.append(next(run).value)
        assert_reference(got, FLOW, len(got))
        assert begun.records[0].run == run.id  # type: ignore[attr-defined]
    (away,), (again,), (there,) = lost.records, recovered.records, joined.records
    assert (away.peer, away.host, away.levelno) == ("h2", "client", logging.WARNING)  # type: ignore[attr-defined]
    assert re.match(r"host 'h2' ended with status -9 \(SIGKILL\); the run begins anew", away.getMessage())
    assert again.getMessage().startswith("the run goes on after ")
    assert (there.peer, there.levelno) == ("h2", logging.INFO)  # type: ignore[attr-defined]


def test_a_planner_that_raises_is_logged_every_time_and_the_run_goes_on(hear: type[Heard]) -> None:
    failed = hear("planner-failed")
    planner: Planner = Fails()
    with LocalCluster(2, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(FLOW, {"o": "h2"}, adaptation=GlobalMoves(period_s=0.05), planning=Planning(planner=planner))
        take_until(run, failed.come)
        failed.come.clear()
        take_until(run, failed.come)
    line = failed.records[0]
    assert "KeyError: 'nowhere'" in line.getMessage()
    assert ":Fails failed" in line.reason  # type: ignore[attr-defined]
    assert line.levelno == logging.WARNING


def test_an_application_that_takes_no_partitions_is_logged_as_slow(
    hear: type[Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "HOUSEKEEPING_S", 0.05)
    monkeypatch.setattr(logbook, "SLOW_S", 0.1)
    slow = hear("consumer-slow")
    with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(FLOW, {"o": "h1"})
        first = next(run).index
        assert slow.come.wait(patience(20))
        line = slow.records[0]
        assert (line.node, line.run, line.host) == ("t", run.id, "client")  # type: ignore[attr-defined]
        assert f"the application has not taken partition {first + 1} of 't'" in line.getMessage()


def test_hosts_write_log_lines_with_time_level_and_name(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(1, allow=ALLOW) as cluster:
        address = cluster.start("h2", "--log-level", "info")
        with Client({**cluster.addresses, "h2": address}, allow=ALLOW) as client:
            assert len(list(client.run(chain(blocks()["h1"], MIX, host="h2"), {"o": "h1"}, partitions=3))) == 3
    lines = capfd.readouterr().err.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO h2: run ", line) for line in lines), lines
    assert "begins, with 's' here" in lines[0]
    assert lines[-1].endswith("is over here")


def test_late_rows_are_logged_by_the_host_of_the_operator(capfd: pytest.CaptureFixture[str]) -> None:
    count = Code("window", {"window_s": 2, "time": "t", "aggregates": {"n": "count"}})
    flow = chain(Code("runtime_codes:LateRows"), count)
    with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        list(client.run(flow, {"o": "h1"}, partitions=6))
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(r" WARNING h1: \d rows of 'o' are left out of partition \d: they came after the watermark", line)


def test_unread_log_lines_do_not_block_the_writer() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb"), os.fdopen(write, "w", encoding="utf-8") as nobody:
        lines = daemon._Lines(nobody)
        record = logging.makeLogRecord({"msg": "x" * 1_000})
        for _ in range(1_000):
            lines.emit(record)  # more than any pipe holds
        os.set_blocking(read, False)
        assert 1_000 < len(os.read(read, 1 << 20)) < 1_000_000
        lines.emit(record)
        assert len(os.read(read, 1 << 20)) >= 1_000, "it goes on when there is room again"
    lines.emit(record)  # the stream is closed
