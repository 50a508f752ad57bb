"""A testbed that stays up in a User-Mode Linux kernel and is used from the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from patience import patience
from terminals import CTRL_C, Terminal

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import Command, SupervisorClient
from thalweg.emulation.testbeds import detached, known
from thalweg.emulation.uml import keeper as uml_keeper
from thalweg.emulation.uml.wire import PRIVATE
from thalweg.emulation.wan import Testbed

pytestmark = [pytest.mark.uml, pytest.mark.usefixtures("folder")]
THALWEG = (sys.executable, "-m", "thalweg")


@pytest.fixture
def folder(runtime_folder: Path) -> Iterator[Path]:
    yield runtime_folder / "thalweg"
    detached.take_down()


def up(*more: str) -> known.TestbedState:
    assert uml_keeper.launch([*THALWEG, "testbed", "up", "--hosts", "3", *more]) == 0
    (state,) = known.known_testbeds()
    assert state.alive
    return state


@pytest.mark.timed
@pytest.mark.program("ip", "ping")
def test_a_testbed_in_a_user_mode_kernel_is_used_from_the_machine_and_removed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = up("--rate", "2mbit", "--delay", "0.02", "--private", "run")
    assert state.id in capfd.readouterr().out
    keeper = psutil.Process(state.pid)
    family = [keeper, *keeper.children(recursive=True)]
    testbed = detached.attach(state)
    assert testbed.shapes["client", "h1"] == LinkShape(2e6, 0.02)
    script = "cat; ip -o -4 address show dev eth0 >&2; exit 7"
    process = testbed.run(
        "h1", ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    payload = os.urandom(40_000)
    process.stdin.write(payload)
    process.stdin.close()
    assert process.stdout.read() == payload
    assert b"10.77.0.2/16" in process.stderr.read()
    assert process.wait(patience(20)) == 7
    record = testbed.recording()
    assert [(entry.host, entry.status) for entry in record.processes] == [("h1", 7)]
    assert abs(record.began_unix_s + record.now_s - time.time()) < patience(10)
    for host in ("h1", "h2"):  # names and files stay on their host, and the machine gets none
        words = ["sh", "-c", "ip netns add blue && echo one >/run/thalweg-own && ls -A /run"]
        process = testbed.run(host, words, stdout=subprocess.PIPE)
        assert process.communicate(timeout=patience(20))[0] == b"netns\nthalweg-own\n"
    assert not {"/run/netns/blue", "/run/thalweg-own"} & {*map(str, Path("/run").rglob("*"))}
    sleeper = testbed.run("h2", ["sleep", "100"])
    sleeper.terminate()
    assert sleeper.wait(patience(20)) == -signal.SIGTERM
    with Terminal("testbed", "exec", "h1", "--", "bash", "--norc", "--noediting", size=(40, 100)) as terminal:
        terminal.begin()
        answers = terminal.ask("hostname; getent ahostsv4 client; getent hosts client; stty size")
        assert [answers[0], answers[1].split()[0], answers[-1]] == ["h1", "10.77.0.1", "40 100"]
        assert answers[-2].split() == [testbed.hosts_6.get("client", "10.77.0.1"), "client"]
        terminal.type("cat\nshown\n")
        terminal.until("shown\r\n")
        terminal.ask(CTRL_C)
        assert terminal.ask("echo $?") == ["130"]
        terminal.resize((50, 120))
        terminal.ask("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.1; done")
        terminal.type("exit 5\n")
        assert terminal.process.wait(patience(30)) == 5
    client = known.connect(state)
    client.launch("h2", Command(["sh", "-c", "echo $TMPDIR"]))
    (left,) = client.launched()
    assert client.spawn("h2", Command(["grep", "-qx", PRIVATE, left.log])).wait(patience(20)) == 0
    client.close()
    testbed.shape({("client", "h1"): LinkShape(1e6, 0.05)})
    (proof,) = testbed.prove([("client", "h1")])
    assert abs(proof.delivered_bps / 1e6 - 1) < 0.05
    assert proof.delivered_delay_s == pytest.approx(0.05, abs=0.005)
    testbed.down()
    client = known.connect(state)
    client.call(requests.SampleStart(0.05))
    while not client.call(requests.Samples())["rows"]:
        _ping(client)
    client.close()
    assert detached.take_down() == [state.id]
    assert not psutil.wait_procs(family, 10)[1]
    assert list(folder.iterdir()) == []


def _ping(client: SupervisorClient) -> None:
    assert (
        client.spawn("client", Command(["ping", "-c1", "-q", "10.77.0.2"], stdout=-3, stderr=-3)).wait(patience(20))
        == 0
    )


@pytest.mark.parametrize(
    "victim",
    ["keeper", *(pytest.param(victim, marks=pytest.mark.long) for victim in ("kernel", "a process of the kernel's"))],
)
def test_a_killed_testbed_is_cleared_away(folder: Path, victim: str) -> None:
    state = up()
    keeper = psutil.Process(state.pid)
    family = [keeper, *keeper.children(recursive=True)]
    kernel = next(process for process in family if process.name() == "linux.uml")
    {"keeper": keeper, "kernel": kernel}.get(victim, family[-1]).kill()
    if victim in ("keeper", "kernel"):  # without one of its processes a kernel may hang
        assert not psutil.wait_procs(family, 20)[1]
        assert not state.alive
    assert detached.take_down() == [state.id]
    assert not psutil.wait_procs(family, 20)[1]
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_a_testbed_that_cannot_start_leaves_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert uml_keeper.launch([*THALWEG, "testbed", "up", "--hosts", "0"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "--hosts is 0" in err
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_launcher_that_is_killed_leaves_nothing(folder: Path) -> None:
    code = "from thalweg.emulation.uml import keeper; keeper.launch(['sh', '-c', 'echo up >&2; sleep 100'])"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as launcher:
        assert launcher.stderr is not None
        assert launcher.stderr.read(3) == b"up\n"
        family = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    assert len(family) >= 3
    assert not psutil.wait_procs(family, 20)[1]
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.long
@pytest.mark.program("ping")
def test_a_testbed_that_a_program_opens_ends_with_the_with_block(folder: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with Testbed.open("netns", ["a", "b"], kernel="uml", rate="2mbit", delay="30ms") as bed:
        family = set(psutil.Process().children(recursive=True)) - before
        output = bed.run("a", ["ping", "-c1", "b"], check=True).stdout
        assert 59 < float(output.rpartition("=")[2].split("/")[1]) < 90
        bed.set("a", "b", delay="10ms", loss="1%")
        assert bed.links["a", "b"] == LinkShape(2e6, 0.01, loss=0.01)  # type: ignore[index]
        assert len(family) > 2
    assert not psutil.wait_procs(family, 20)[1]
    assert not folder.exists() or list(folder.iterdir()) == []
