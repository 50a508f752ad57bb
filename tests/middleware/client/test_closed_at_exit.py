"""Clients and clusters that are open when an application ends or forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import patience
from runtime_codes import ALLOW

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, own_environment
from thalweg.middleware.errors import UsageError

FORKING = "ignore:This process:DeprecationWarning"  # since 3.12 Python warns of every fork beside threads
FORKS_AND_LEAVES = """
import os, sys
from flows import chain
from runtime_codes import ALLOW, MIX, blocks
from thalweg import Client, LocalCluster, RunError

FLOW = chain(blocks()["h1"], MIX)
cluster = LocalCluster(2, allow=ALLOW)
client = Client(cluster, allow=ALLOW)
run = client.run(FLOW, {"o": "h2"})
next(run)
if (child := os.fork()) == 0:
    for call in (lambda: next(run), lambda: client.run(FLOW, {"o": "h2"})):
        try:
            call()
        except RunError as error:
            print(error)
    with Client(cluster, name="second", allow=ALLOW) as second:
        print(len(list(second.run(FLOW, {"o": "h2"}, partitions=3))), flush=True)
    client.close()
    cluster.close()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cluster.poll(), next(run).index)
print(len(list(client.run(FLOW, {"o": "h2"}, partitions=3))))
print(*cluster.pids.values(), os.path.dirname(cluster.addresses["h1"].removeprefix("ipc://")), flush=True)
"""


def test_a_fork_harms_no_run_and_open_clusters_are_closed_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-W", FORKING, "-c", FORKS_AND_LEAVES],
        env=own_environment(), capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    refused = "the client 'client' belongs to the process that this process was forked from; make a client here"
    *said, left = done.stdout.splitlines()
    assert said == [refused, refused, "3", "7 {} 1", "3"]
    *pids, folder = left.split()
    assert not Path(folder).exists()
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


STARTS_IN_A_THREAD = """
import os, sys, threading
from flows import chain
from runtime_codes import ALLOW, MIX, blocks
from thalweg import Client, LocalCluster
from thalweg.middleware.client import cluster as module

steps = threading.Semaphore(0)
spawn = module.LocalCluster._spawn

def spawned(self, *words):
    spawn(self, *words)
    steps.release()

module.LocalCluster._spawn = spawned

def work():
    with LocalCluster(3, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        while True:
            for _ in client.run(chain(blocks()["h1"], MIX), {"o": "h2"}):
                steps.release()

threading.Thread(target=work, daemon=True).start()
for _ in range(int(sys.argv[1])):
    steps.acquire()
"""


@pytest.mark.parametrize("steps", [0, *(pytest.param(steps, marks=pytest.mark.long) for steps in (1, 2, 3)), 4])
def test_a_daemon_thread_that_starts_a_cluster_as_the_interpreter_ends_prints_nothing(steps: int) -> None:
    """The process ends with none, one or all of three hosts started, or with a run that has delivered a partition."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS_IN_A_THREAD, str(steps)],
        env=own_environment(), capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_cluster_that_is_closed_starts_no_host() -> None:
    cluster = LocalCluster(1)
    cluster.close()
    with pytest.raises(UsageError, match="the cluster is closed; make another one"):
        cluster.start("h2")


def test_an_interrupted_close_still_closes_the_client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client = Client(cluster, allow=ALLOW)
    monkeypatch.setattr(client._registry.news, "wait_for", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert not client.shell.alive
