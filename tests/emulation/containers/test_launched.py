"""Shell scripts that launch and list processes in a container. Here they run without a container."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from patience import patience

from thalweg.emulation.supervisor.requests import LaunchedProcess
from thalweg.emulation.testbeds.docker import LAUNCH, LAUNCHED, LOGS, read_launched


def shell(folder: Path, script: Sequence[str], *words: str) -> str:
    command = [*script[:-1], str(folder), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=patience(10)).stdout


@pytest.mark.program("pkill", "tail")
def test_launched_processes_are_numbered_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    assert shell(folder, LAUNCHED) == ""
    pids = [int(shell(folder, LAUNCH, "sh", "-c", f"echo {n}; echo wrong >&2; exit {n}")) for n in range(11)]
    for pid in pids:  # somebody else's children by now
        subprocess.run(["tail", "-f", "/dev/null", "-s", "0.01", f"--pid={pid}"], check=True, timeout=patience(10))
    processes = read_launched("h1", shell(folder, LAUNCHED))
    assert [(process.pid, process.status) for process in processes] == [(pid, n) for n, pid in enumerate(pids)]
    script = ["echo", "10;", "echo", "wrong", ">&2;", "exit", "10"]
    assert processes[10] == LaunchedProcess(pids[10], "h1", ["sh", "-c", *script], f"{LOGS}/11.log", 10)
    assert (folder / "11.log").read_text() == "10\nwrong\n"
    sleeper = int(shell(folder, LAUNCH, "sleep", "100"))
    assert read_launched("h1", shell(folder, LAUNCHED))[11].status is None
    subprocess.run(["pkill", "-P", str(sleeper)], check=True)
