"""Routes that carry control messages and no partitions, with real sockets: messages to the user and their times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import one_stream
import pytest
from patience import patience

from thalweg import Testbed
from thalweg.emulation.supervisor.client import TestbedProcess

STREAM = Path(one_stream.__file__)
PORT, PARTITIONS, FIRST = 7800, 120, 20
SLOW_BYTES = int(os.environ.get("THALWEG_SLOW_BYTES", "50000"))  # of each partition at 8 kbit/s
NO_BULK = ["-p", "tcp", "--dport", str(PORT + 1), "-j", "DROP"]  # as a firewall that opens one port of the two
NO_LARGE = ["-m", "length", "--length", "701:65535", "-j", "DROP"]  # as a path of a smaller MTU, of which nobody hears
WHY = (
    "node 's' on host 'h1': nothing has got through to host 'h2' for {} s: control messages pass, partitions do not;"
    f" is port {PORT + 1} open? is the path MTU smaller?"
)


class Read(NamedTuple):
    """Output of an application: indices, the error, the log, and the longest wait after the fault."""

    indices: list[int]
    error: str
    logged: str
    longest_s: float


class Hosts:
    """Three host processes on a testbed, and applications beside them, one after the other."""

    def __init__(self, bed: Testbed, limits: dict[str, float]) -> None:
        self.bed, self.limits = bed, limits
        self.hosts = {name: f"tcp://{bed.hosts[name]}:{PORT}" for name in ("h1", "h2", "h3")}
        options = [f"--limit={name}={value}" for name, value in limits.items()]
        daemon = [sys.executable, "-m", "thalweg.middleware.shell.daemon", "--insecure", *options]
        started = [
            bed.start(name, [*daemon, "--name", name, "--listen", end], stdout=subprocess.PIPE)
            for name, end in self.hosts.items()
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline()

    def stream(self, fault: Callable[[], None], **asked: Any) -> Read:
        """Run a stream from h1 over h2 to the application, in which ``fault`` comes after some partitions."""
        words = {"source": "h1", "operator": "h2", "partitions": PARTITIONS, "mean_bytes": 20_000, **asked}
        listen = f"tcp://{self.bed.hosts['c']}:{PORT}"
        asked_stream = one_stream.Asked(hosts=self.hosts, listen=listen, limits=self.limits, **words)
        argv = [sys.executable, str(STREAM), msgspec.json.encode(asked_stream).decode()]
        application = self.bed.start("c", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            return self._read(application, fault)
        finally:
            application.kill()
            application.wait()

    def _read(self, application: TestbedProcess, fault: Callable[[], None]) -> Read:
        indices, error, longest_s, last_s = list[int](), "", 0.0, 0.0
        assert application.stdout is not None
        assert application.stderr is not None
        for line in application.stdout:
            row = json.loads(line)
            if last_s:
                longest_s = max(longest_s, time.monotonic() - last_s)
                last_s = time.monotonic()
            if "index" in row:
                indices.append(row["index"])
            error = row.get("error", "")
            if indices and indices[-1] == FIRST and not last_s:
                fault()
                last_s = time.monotonic()
        return Read(indices, error, application.stderr.read().decode(), longest_s)


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed.open("netns", ["h1", "h2", "h3", "c"], rate="8mbit", control_band=True) as bed:
        yield bed


@pytest.fixture(scope="module")
def hosts(bed: Testbed) -> Hosts:
    return Hosts(bed, {"stall_s": 4.0})


@pytest.fixture
def drop(bed: Testbed) -> Iterator[Callable[[list[str]], None]]:
    """Drop packets that arrive at h2 until the test is over."""
    yield lambda rule: bed.run("h2", ["iptables", "-A", "INPUT", *rule], check=True) and None
    bed.run("h2", ["iptables", "-F"], check=True)


pytestmark = [pytest.mark.netns, pytest.mark.program("iptables")]


@pytest.mark.parametrize("rule", [NO_BULK, pytest.param(NO_LARGE, marks=pytest.mark.long)], ids=["bulk port", "MTU"])
def test_a_stream_over_a_dead_route_ends_with_the_direction_and_the_likely_cause(
    hosts: Hosts, drop: Callable[[list[str]], None], rule: list[str]
) -> None:
    read = hosts.stream(lambda: drop(rule))
    assert read.error == WHY.format(4)
    assert read.longest_s < patience(10)


@pytest.mark.parametrize("rule", [pytest.param(NO_BULK, marks=pytest.mark.long), NO_LARGE], ids=["bulk port", "MTU"])
def test_a_stream_with_failover_logs_the_dead_route_and_continues(
    hosts: Hosts, drop: Callable[[list[str]], None], rule: list[str]
) -> None:
    read = hosts.stream(lambda: drop(rule), failover=True)
    assert (read.error, read.indices) == ("", [*range(PARTITIONS)])
    assert f"host 'h2' and host 'h1' do not reach each other: {WHY.format(4)}" in read.logged
    assert read.longest_s < patience(10)


@pytest.mark.long
@pytest.mark.parametrize("failover", [False, True])
@pytest.mark.parametrize("rule", [NO_BULK, NO_LARGE], ids=["bulk port", "MTU"])
def test_a_dead_route_is_noticed_within_20_s_by_default(rule: list[str], failover: bool) -> None:
    with Testbed.open("netns", ["h1", "h2", "h3", "c"], rate="8mbit", control_band=True) as own:
        read = Hosts(own, {}).stream(
            lambda: own.run("h2", ["iptables", "-A", "INPUT", *rule], check=True) and None, failover=failover
        )
    assert read.longest_s < 20
    print(f"\n{read.longest_s:.1f} s: {read.error or read.logged.strip()}")
    assert WHY.format(12) in (read.logged if failover else read.error)


@pytest.mark.long
@pytest.mark.timeout(120 + SLOW_BYTES / 100)
def test_a_route_of_8_kbit_s_does_not_count_as_dead() -> None:
    """A partition of 50 KB takes 53 s to the operator and 53 s more to the application, or half as long again with BBR.

    Control messages have a band. Without one they share a queue of 9 s with partitions, and lose packets there. TCP
    then waits for longer than a host may be silent.
    """
    with Testbed.open("netns", ["h1", "h2", "h3", "c"], rate="8kbit", control_band=True) as slow:
        read = Hosts(slow, {"patience": 4.0}).stream(lambda: None, partitions=2, mean_bytes=SLOW_BYTES)
    assert (read.error, read.indices, read.logged) == ("", [0, 1], "")


DOCTOR = [sys.executable, "-m", "thalweg.experiments.cli.main", "doctor", "--to"]


@pytest.mark.long
def test_doctor_reports_which_kinds_of_messages_pass(
    hosts: Hosts, drop: Callable[[list[str]], None], bed: Testbed
) -> None:
    def told(rule: list[str] | None) -> tuple[int, list[str]]:
        if rule is not None:
            drop(rule)
        done = bed.run("c", [*DOCTOR, hosts.hosts["h2"]])
        bed.run("h2", ["iptables", "-F"], check=True)
        lines = [re.sub(r", tcp\S+:(\d+)|\d+ ms", r" \1", line) for line in done.stdout.splitlines()]
        return done.returncode, lines

    control = "control 7800: passes, host 'h2' answers after  "
    passes = ["large control 7800", "partitions 7801", "large partitions 7801"]
    no_answer = "does not pass, no answer within 5 s"
    assert told(None) == (0, [control, *(f"{kind}: passes, answered after  " for kind in passes)])
    assert told(NO_BULK) == (
        1,
        [
            control,
            "large control 7800: passes, answered after  ",
            f"partitions 7801: {no_answer}; is port 7801 open?",
        ],
    )
    cause = f"{no_answer}; smaller messages pass; is the path MTU smaller?"
    assert told(NO_LARGE) == (
        1,
        [
            control,
            f"large control 7800: {cause}",
            "partitions 7801: passes, answered after  ",
            f"large partitions 7801: {cause}",
        ],
    )


# --- cuts ---------------------------------------------------------------------------------------------


@pytest.fixture
def whole(bed: Testbed) -> Iterator[None]:
    """Restore all links when the test is over."""
    yield
    bed.restore()


@pytest.mark.long  # beside other work answers vary by a factor of a thousand, and more time is given
@pytest.mark.timed
@pytest.mark.usefixtures("whole")
def test_a_cut_of_a_single_direction_is_noticed_within_6_s(bed: Testbed, hosts: Hosts) -> None:
    read = hosts.stream(lambda: bed.cut("h1", "h2"), failover=True)
    assert (read.error, read.indices) == ("", [*range(PARTITIONS)])
    assert "host 'h1', which holds 's', has not answered it for 3 s; is a way cut?" in read.logged
    assert read.longest_s < patience(6)


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("failover", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_source_on_a_host_that_was_cut_off_continues_soon_after_the_cut(
    bed: Testbed, hosts: Hosts, failover: bool
) -> None:
    """The cut lasts 8 s. TCP alone would try again 5 s after the cut."""
    healed = list[threading.Timer]()

    def cut() -> None:
        bed.cut("h1", both=True)
        healed.append(threading.Timer(8.0, bed.restore))
        healed[0].start()

    read = hosts.stream(cut, failover=failover)
    healed[0].join()
    assert (read.error, read.indices) == ("", [*range(PARTITIONS)])
    assert read.longest_s < patience(8 + 4)
