"""Real containers: set-up, delivered rates, failures, and removal."""

from __future__ import annotations

import ipaddress
import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from patience import patience

from thalweg.emulation.containers import engine, machine
from thalweg.emulation.containers.limits import Containers
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.testbeds import detached, known
from thalweg.emulation.testbeds.docker import DockerTestbed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError

pytestmark = pytest.mark.docker
NAMES = ["client", "h1", "aws:eu west"]  # a name that is no hostname
ASK = "cat; id -u; hostname; grep CapEff /proc/self/status; getent hosts h1; echo wrong >&2; exit 7"


@pytest.fixture(scope="module")
def bed(docker_image: str) -> Iterator[DockerTestbed]:
    with DockerTestbed(NAMES, subnet="10.91.0.0/24", containers=Containers(docker_image)) as bed:
        bed.shape({link: LinkShape(2e6 + 1e6 * i) for i, link in enumerate(itertools.permutations(NAMES, 2))})
        yield bed


def nothing_left(run_id: str) -> bool:
    _, client = engine.sdk()
    wanted = {"label": [f"{engine.RUN}={run_id}"]}
    return not client.api.containers(all=True, filters=wanted) and not client.api.networks(filters=wanted)


@pytest.mark.timed
def test_every_link_delivers_the_asked_rate_also_after_a_change(bed: DockerTestbed) -> None:
    bed.shape({("client", "h1"): LinkShape(20e6)})
    proofs = {(proof.src, proof.dst): proof for proof in bed.prove()}
    assert proofs.keys() == set(itertools.permutations(NAMES, 2))
    assert proofs["client", "h1"].asked_bps == 20e6
    assert max(abs(proof.error) for proof in proofs.values()) < 0.05


@pytest.mark.long
@pytest.mark.timed
def test_a_whole_interface_is_limited_in_both_directions(bed: DockerTestbed) -> None:
    targets = [name for name in NAMES if name != "h1"]
    bed.shape({link: LinkShape(40e6) for other in targets for link in ((other, "h1"), ("h1", other))})
    bed.limit_hosts({"h1": 8e6}, {"h1": 8e6})
    out = bed.prove([("h1", other) for other in targets])
    assert all(proof.delivered_bps < 8.5e6 for proof in out)
    into = bed.prove([(other, "h1") for other in targets])
    assert all(proof.delivered_bps < 8.5e6 for proof in into)
    bed.limit_hosts({"h1": None}, {"h1": None})
    assert all(abs(proof.error) < 0.05 for proof in bed.prove([("h1", other) for other in targets]))


def test_a_process_runs_without_privileges_and_the_caller_has_the_streams(bed: DockerTestbed) -> None:
    process = bed.run(
        NAMES[2], ["sh", "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"typed\n" * 30_000)
    process.stdin.close()
    *typed, uid, host, capabilities, entry = process.stdout.read().decode().splitlines()
    assert typed == ["typed"] * 30_000
    assert uid != "0"
    assert (host, capabilities.split()[1]) == ("aws-eu-west", "0" * 16)
    assert entry.split()[0] in (bed.hosts["h1"], bed.hosts_6["h1"])  # getent tells one of both families
    expected = ipaddress.IPv4Network(bed.subnet)[2]  # where another testbed holds what is wished for, it is the next
    assert (bed.hosts["h1"], int(ipaddress.IPv6Address(bed.hosts_6["h1"])) % 2**32) == (str(expected), int(expected))
    assert process.stderr.read() == b"wrong\n"
    assert process.wait(patience(10)) == 7


def test_a_signal_reaches_the_process_and_an_absent_program_or_host_is_named(bed: DockerTestbed) -> None:
    process = bed.run("h1", ["sleep", "1000"])
    assert process.pid
    process.terminate()
    assert process.wait(patience(10)) == -signal.SIGTERM
    assert process.pid is None
    missing = bed.run("h1", ["no-such-program"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert missing.stderr
    assert missing.wait(patience(10)) in (126, 127)
    error = missing.stderr.read().decode()
    assert error.startswith("thalweg: cannot run 'no-such-program' on 'h1': ")
    assert error.count("\n") == 1
    with pytest.raises(UsageError, match="unknown host 'h9'"):
        bed.run("h9", ["true"])


def test_writing_to_a_process_that_has_ended_raises_broken_pipe_error(bed: DockerTestbed) -> None:
    process = bed.run("h1", ["true"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.wait(patience(10)) == 0
    assert process.stdin

    def write_much(file: IO[bytes]) -> None:
        for _ in range(100):
            file.write(bytes(1 << 16))
            file.flush()

    with pytest.raises(BrokenPipeError):
        write_much(process.stdin)


def test_a_container_that_somebody_removed_is_named(docker_image: str) -> None:
    with DockerTestbed(["a", "b"], containers=Containers(docker_image)) as bed:
        engine.containers_of(bed.run_id)["b"].remove(force=True)
        assert bed.fate("b") == "its container has ended (removed by somebody else)"
        with pytest.raises(TestbedError, match="host 'b' has ended"):
            bed.run("b", ["true"])


def test_files_of_a_container_are_collected(bed: DockerTestbed, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    outbox = bed.outbox(folder)
    assert (
        bed.run("h1", ["sh", "-c", f"mkdir -p {outbox}/deep; echo here > {outbox}/deep/a.txt"]).wait(patience(10)) == 0
    )
    bed.collect()
    assert (folder / "deep" / "a.txt").read_text() == "here\n"


def test_a_memory_limit_ends_the_process_and_not_the_host(bed: DockerTestbed) -> None:
    greedy = bed.run("h1", [bed.python, "-c", "x = bytearray(700 << 20); print(len(x))"], stderr=subprocess.DEVNULL)
    assert greedy.wait(patience(60)) == -signal.SIGKILL
    assert bed.fate("h1") == ""  # the process was ended, not the host


@pytest.mark.timed
def test_a_subnet_in_use_is_avoided_and_a_free_subnet_is_chosen(bed: DockerTestbed, docker_image: str) -> None:
    with DockerTestbed(["a", "b"], subnet=bed.subnet, containers=Containers(docker_image)) as other:
        assert other.subnet != bed.subnet
        assert other.hosts["a"].endswith(".1")
        other.shape({("a", "b"): LinkShape(5e6)})
        assert abs(other.prove()[0].error) < 0.05
    assert nothing_left(other.run_id)


def test_a_host_that_dies_is_noticed_within_seconds_with_the_exit_status(docker_image: str) -> None:
    with DockerTestbed(["a", "b"], containers=Containers(docker_image, serve=True)) as bed:
        process = bed.run("b", ["sleep", "1000"])
        assert process.pid is not None  # it is there: before, the engine refuses to start it in a container that dies
        began = time.monotonic()
        engine.containers_of(bed.run_id)["b"].kill()
        assert process.wait(patience(5)) == -signal.SIGKILL
        assert time.monotonic() - began < 5
        assert "status 137" in bed.fate("b")
        assert bed.fate("a") == ""
        with pytest.raises(TestbedError, match=r"host 'b' has ended \(status 137"):
            bed.run("b", ["true"])
    assert nothing_left(bed.run_id)
    bed.down()


@pytest.mark.timed
def test_a_replay_goes_on_without_a_host_that_died(docker_image: str) -> None:
    names = ["a", "b", "c"]
    steps = np.arange(150) / 5
    trace = BandwidthTrace("up and down", steps, np.where(np.arange(150) % 2, 4e6, 8e6))
    with DockerTestbed(names, containers=Containers(docker_image)) as bed:
        replay = bed.replay(dict.fromkeys(itertools.permutations(names, 2), trace))
        replay.start()
        engine.containers_of(bed.run_id)["b"].kill()
        seen, stop = bed.status()["replay"]["steps"], time.monotonic() + patience(20)
        while (now := bed.status())["replay"]["steps"] < seen + 60 and time.monotonic() < stop:
            continue
        assert now["replay"]["steps"] >= seen + 60
        assert (now["replaying"], now["refusal"]) == (True, "")
        bed.samples()
        replay.stop()
        assert abs(bed.prove([("a", "c")])[0].error) < 0.05
    assert nothing_left(bed.run_id)


def test_a_held_testbed_and_a_foreign_container_survive_take_down(docker_image: str) -> None:
    _, client = engine.sdk()
    other = client.containers.create(docker_image, ["true"], labels={"io.thalweg": "image"})
    try:
        bed = DockerTestbed(["a"], containers=Containers(docker_image))
        bed.up()
        detached.take_down()  # somebody holds it: it stays
        assert not nothing_left(bed.run_id)
        bed.down()
        assert nothing_left(bed.run_id)
        other.reload()
    finally:
        other.remove(force=True)


def test_the_error_of_a_missing_image_names_the_build_command() -> None:
    with pytest.raises(CapabilityError, match="thalweg testbed build"):
        DockerTestbed(["a"], containers=Containers("thalweg:never-built")).up()


@pytest.fixture
def folder(runtime_folder: Path) -> Iterator[Path]:
    yield runtime_folder / "thalweg"
    detached.take_down()


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from thalweg.experiments.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, "testbed", *arguments], capture_output=True, text=True)


@pytest.mark.timed
def test_the_commands_from_up_to_down_work_and_leave_nothing(folder: Path, docker_image: str) -> None:
    testbed = json.loads(
        call("up", "--backend", "docker", "--image", docker_image, "--hosts", "3", "--rate", "8mbit", "--json").stdout
    )
    assert testbed["links"] == 6
    (row,) = json.loads(call("status", "--links", "--json").stdout)["testbeds"]
    assert (row["alive"], row["backend"], len(row["shapes"])) == (True, "docker", 6)
    done = call("exec", "h2", "--", "ip", "-s", "link")
    assert done.returncode == 0
    assert "eth0" in done.stdout
    assert call("exec", "h1", "--", "sh", "-c", "exit 5").returncode == 5
    assert call("exec", "-d", "h1", "--", "sh", "-c", "echo begun; exit 3").stdout.startswith("process ")
    followed = call("logs", "h1", "-f")
    assert followed.stdout == "begun\n", followed.stderr
    proven = json.loads(call("verify", "--json").stdout)
    assert proven["links"]["worst_rate_error"] < 0.05
    assert call("exec", "h1", "--", "cat", "/proc/sys/net/ipv4/ip_forward").stdout == "0\n"
    assert call("set", "--up-rate", "5mbit").returncode == 0
    assert any(name.startswith(machine.mark(testbed["id"])) for _, name in socket.if_nameindex())
    engine.containers_of(testbed["id"])["h1"].kill()
    assert call("set", "--up-rate", "6mbit").returncode == 0
    assert "h1: its container has ended (status 137" in call("status").stdout
    assert json.loads(call("down", "--json").stdout) == {"removed": [testbed["id"]]}
    assert nothing_left(testbed["id"])
    assert not any(name.startswith(machine.mark(testbed["id"])) for _, name in socket.if_nameindex())
    assert list(folder.iterdir()) == []


def test_down_removes_all_that_a_killed_supervisor_leaves(folder: Path, docker_image: str) -> None:
    testbed = json.loads(call("up", "--backend", "docker", "--image", docker_image, "--hosts", "2", "--json").stdout)
    (state,) = known.known_testbeds()
    assert call("set", "--up-rate", "5mbit").returncode == 0
    subprocess.run(["kill", "-KILL", str(state.pid)], check=True)
    assert "crashed" in call("status").stdout
    (folder / f"{testbed['id']}.json").unlink()  # as if it had never been written
    assert detached.take_down() == [testbed["id"]]
    assert nothing_left(testbed["id"])
    assert not any(name.startswith(machine.mark(testbed["id"])) for _, name in socket.if_nameindex())
    rules = subprocess.run(["iptables", "-S"], capture_output=True, text=True, check=False).stdout
    assert machine.mark(testbed["id"]) not in rules
