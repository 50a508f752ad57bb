"""What an application leaves open when it ends, or has when it forks, is nobody's harm."""

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


def test_a_fork_harms_nothing_and_what_is_left_open_is_closed_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-W", FORKING, "-c", FORKS_AND_LEAVES],
        env=own_environment(), capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    refused = "the client 'client' is that of the process that was forked; make one here"
    *said, left = done.stdout.splitlines()
    assert said == [refused, refused, "3", "7 {} 1", "3"]
    *pids, folder = left.split()
    assert not Path(folder).exists()
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_a_client_whose_closing_is_interrupted_is_closed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client = Client(cluster, allow=ALLOW)
    monkeypatch.setattr(client._roster.news, "wait_for", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert not client.shell.alive
