"""Launchers killed with SIGKILL at random moments. Afterwards ``down`` removes all testbeds and nothing else.

THALWEG_KILLS=100 kills a hundred launchers of each kind instead of a few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import patience

from thalweg.emulation.containers import engine
from thalweg.emulation.containers.limits import Containers
from thalweg.emulation.testbeds.docker import DockerTestbed

KILLS = int(os.environ.get("THALWEG_KILLS", "3"))
CLI = [sys.executable, "-c", "from thalweg.experiments.cli.main import main; main()"]
UP_S = {"netns": 1.2, "docker": 4.0}  # a launcher needs about so long; it is killed earlier, later or just then


def interfaces() -> set[str]:
    return set(psutil.net_if_addrs())


def namespaces() -> set[str]:
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def ours(folder: Path) -> list[psutil.Process]:
    """Processes that work in this test's run folder, other than this one."""
    processes = []
    for process in psutil.process_iter(["environ", "pid"]):
        if (process.info["environ"] or {}).get("XDG_RUNTIME_DIR") == str(folder) and process.pid != os.getpid():
            processes.append(process)
    return processes


def kill_launchers(backend: str, folder: Path, command: list[str], seed: int) -> None:
    chance = random.Random(seed)
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(temporary)}
    before = interfaces(), namespaces()
    for _ in range(KILLS):
        launcher = subprocess.Popen(
            [*CLI, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            launcher.wait(chance.uniform(0.0, UP_S[backend]))
        except subprocess.TimeoutExpired:
            os.kill(launcher.pid, signal.SIGKILL)
            launcher.wait()
        down = [*CLI, "testbed", "down", "--all", "--json"]
        done = subprocess.run(down, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)) == {"removed"}
    _, alive = psutil.wait_procs(ours(folder), timeout=patience(15))
    assert not alive, alive
    state = folder / "thalweg"
    assert not state.exists() or list(state.iterdir()) == []
    assert (interfaces(), namespaces()) == before
    assert list(temporary.iterdir()) == []


@pytest.mark.netns
def test_down_clears_all_that_killed_netns_launchers_leave(short_folder: Path) -> None:
    kill_launchers("netns", short_folder, ["testbed", "up", "--hosts", "9", "--rate", "10mbit"], 1)


@pytest.mark.long
@pytest.mark.docker
def test_down_clears_all_that_killed_docker_launchers_leave_and_nothing_else(
    short_folder: Path, docker_image: str
) -> None:
    _, client = engine.sdk()
    other = client.containers.create(docker_image, ["true"])
    network = client.networks.create("not-of-a-testbed")
    living = DockerTestbed(["x"], containers=Containers(docker_image))
    try:
        living.up()
        seen = {item["Id"] for item in (*client.api.containers(all=True), *client.api.networks())}
        command = ["testbed", "up", "--backend", "docker", "--image", docker_image, "--hosts", "4", "--rate", "10mbit"]
        kill_launchers("docker", short_folder, command, 2)
        assert {item["Id"] for item in (*client.api.containers(all=True), *client.api.networks())} == seen
    finally:
        living.down()
        other.remove(force=True)
        network.remove()
