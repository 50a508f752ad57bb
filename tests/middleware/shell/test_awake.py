"""A process that was stopped, or whose machine was suspended: its runs go on."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time

import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, own_environment
from thalweg.middleware.dataflow import Code
from thalweg.middleware.platform.clocks import boot_s
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.awake import SLACK_S, Awake

BLOCKS = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [1000]}), Code("runtime_codes:Mix"))
SLEEPER = """
import json, sys, time
from flows import chain
from runtime_codes import ALLOW
from thalweg import Client
from thalweg.middleware.dataflow import Code
from thalweg.middleware.protocol.limits import CoreConfig
flow = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [1000]}), Code("runtime_codes:Mix"))
limits = CoreConfig(liveness_s=3.0, ping_s=1.5)
with Client(json.loads(sys.argv[1]), name="sleeper", allow=ALLOW, limits=limits) as client:
    for each in client.run(flow, {"o": "h2"}):
        print(each.index, flush=True)
        sys.stdin.readline()
"""
SLEPT_S = 6.0


def test_the_time_of_a_stop_or_suspension_is_left_out_except_for_the_slack() -> None:
    boot = [100.0]
    awake = Awake(10.0, lambda: boot[0])
    awake.limit_s = 12.0 + SLACK_S
    assert awake.stopped(40.0) == 40.0 - 12.0 - SLACK_S
    assert 40.0 - awake.epoch == 2.0 + SLACK_S, "the host has run for that long"
    boot[0] += 30.0
    assert awake.suspended(40.0) == 0.0, "both clocks went on"
    boot[0] += 3600.0
    assert awake.suspended(40.0) == 3600.0
    assert awake.suspended(40.0) == 0.0, "it is told once"


def test_a_client_that_was_stopped_goes_on_with_the_run(cluster: LocalCluster) -> None:
    argv = [sys.executable, "-c", SLEEPER, json.dumps(dict(cluster.addresses))]
    pipe, environment = subprocess.PIPE, own_environment()
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        indices = [int(process.stdout.readline())]
        process.send_signal(signal.SIGSTOP)
        time.sleep(SLEPT_S)  # the fault itself
        process.send_signal(signal.SIGCONT)
        for _ in range(20):
            process.stdin.write("\n")
            process.stdin.flush()
            indices.append(int(process.stdout.readline() or -1))
        assert indices == list(range(21))
        process.kill()


def test_a_client_dials_again_and_goes_on_after_a_suspension_of_the_machine(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = CoreConfig(ping_s=0.2)
    with (
        caplog.at_level(logging.WARNING, "thalweg"),
        Client(cluster, allow=ALLOW, limits=limits) as client,
        client.run(BLOCKS, {"o": "h2"}) as run,
    ):
        indices = [next(run).index for _ in range(5)]
        before = set(client.shell._sockets.dealers.values())
        monkeypatch.setattr(client.shell._awake, "_boot", lambda: boot_s() + 3600.0)
        until_s = time.monotonic() + patience(20)
        while "did not run" not in caplog.text and time.monotonic() < until_s:
            indices.append(next(run).index)
        indices += [next(run).index for _ in range(20)]
        assert indices == list(range(len(indices)))
        assert "this process did not run for 3600 s (its machine was suspended); other hosts may have" in caplog.text
        after = set(client.shell._sockets.dealers.values())
        assert after and not after & before
        assert client.shell.core.coordinator.led[RunId(run.id)].slept_s == pytest.approx(3600, rel=0.01)
