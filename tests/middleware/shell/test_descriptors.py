"""Descriptors and threads of hosts after many runs: within ``idle_s`` there are as many as at the start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest
from patience import patience
from runtime_codes import ALLOW, blocks

from thalweg import Failover
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, own_environment
from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.planning.registry import RandomMoves

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts what /proc shows")
LIMITS = {"idle_s": 2.0, "lease_s": 4.0}
FLOW = complete_binary_tree(blocks(), Code("running"))  # sources on h1, h2 and h3
JEMALLOC = "jemalloc"  # numpy's and pyarrow's allocators have a thread of their own, once they are used
DOOMED = """
import json, sys
from runtime_codes import ALLOW, blocks
from thalweg import Client, Failover
from thalweg.middleware.dataflow import Code, complete_binary_tree
hosts, keys = json.loads(sys.argv[1])
flow = complete_binary_tree(blocks(), Code("running"))
with Client(hosts, allow=ALLOW, keys=keys, insecure=keys is None) as client:
    for each in client.run(flow, "one-shot", failover=Failover()):
        print(each.index, flush=True)
"""


def counted(pid: int) -> tuple[int, int]:
    """Return how many descriptors and threads a process has."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            names.append(task.joinpath("comm").read_text())
    return len(os.listdir(f"/proc/{pid}/fd")), sum(not name.startswith(JEMALLOC) for name in names)


def at_rest(cluster: LocalCluster) -> dict[str, tuple[int, int]]:
    """Return the figures of hosts that have answered, once they stay the same for a second."""
    Client(cluster, allow=ALLOW).close()
    before: dict[str, tuple[int, int]] = {}
    while (now := {name: counted(pid) for name, pid in cluster.pids.items()}) != before:
        before = now
        time.sleep(1.0)
    return now


def churn(cluster: LocalCluster, rounds: int) -> None:
    """Begin and end runs whose operators move, kill and start a host, and kill a client in mid-stream."""
    for number in range(rounds):
        with Client(cluster, allow=ALLOW) as client:
            for again in range(2):
                with client.run(FLOW, "one-shot", failover=Failover(every=4)) as run:
                    mover = RandomMover(RandomMoves(4, 2 * number + again), run, lambda: client.hosts)
                    for partition in run:
                        mover.on_delivered()
                        if again and partition.index == 10:
                            cluster.kill("h4")
                            client.add_host("h4", cluster.start("h4"))
                        if partition.index == 30:
                            break
        keys = cluster.certificate("client")
        argv = [sys.executable, "-c", DOOMED, json.dumps([dict(cluster.addresses), keys and str(keys)])]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=own_environment()) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(5)] == [f"{index}\n" for index in range(5)]
            process.kill()


@pytest.mark.parametrize(
    ("transport", "rounds"),
    [("ipc", 1), pytest.param("ipc", 30, marks=pytest.mark.long), pytest.param("curve", 10, marks=pytest.mark.long)],
)
def test_hosts_free_the_descriptors_and_threads_of_runs_within_idle_s_of_the_last_run(
    transport: Literal["ipc", "curve"], rounds: int
) -> None:
    with LocalCluster(4, allow=ALLOW, limits=LIMITS, transport=transport) as cluster:
        before = at_rest(cluster)
        churn(cluster, rounds)
        most = {name: counted(pid) for name, pid in cluster.pids.items()}
        assert max(most.values()) > max(before.values()), "they had dialled each other"
        until_s = time.monotonic() + 1.5 * LIMITS["lease_s"] + LIMITS["idle_s"] + patience(20)
        while True:
            now = {name: counted(pid) for name, pid in cluster.pids.items()}
            more = {name: now[name] for name in now if now[name] > before[name] or now[name][1] > before[name][1]}
            if not more:
                break
            assert time.monotonic() < until_s, (before, most, more)
            time.sleep(0.2)
