"""``thalweg testbed`` and ``thalweg doctor`` as a user meets them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from beds import need_own_folders
from fake_apt import fake_apt
from hidden import hide
from patience import patience
from terminals import CTRL_C, CTRL_Z, Terminal
from typer import Exit, Typer
from typer.testing import CliRunner

from thalweg.emulation.capabilities import Capability
from thalweg.emulation.proofs.proof import LinkProof
from thalweg.emulation.supervisor.client import Command
from thalweg.emulation.testbeds import detached, known
from thalweg.experiments.cli import doctor as doctor_module
from thalweg.experiments.cli import execution
from thalweg.experiments.cli.doctor import doctor
from thalweg.experiments.cli.testbed import verify
from thalweg.experiments.cli.testbed.app import app
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError


@pytest.fixture(autouse=True)
def folder(runtime_folder: Path) -> Iterator[Path]:
    yield runtime_folder / "thalweg"
    detached.take_down()


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def call_json(*arguments: str, status: int = 0) -> Any:
    return json.loads(call(*arguments, "--json", status=status).splitlines()[-1])


def refused(says: str, *words: str) -> None:
    """Assert that the verb is refused in one line, with a usage error or an error of the testbed."""
    with pytest.raises((UsageError, TestbedError), match=says) as caught:
        call(*words)
    assert "\n" not in str(caught.value)


def kill(process: psutil.Process) -> None:
    process.kill()
    assert not psutil.wait_procs([process], 5)[1]


def run_exec(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "thalweg", "testbed", "exec", *arguments]
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=patience(30))


@pytest.mark.timed
@pytest.mark.netns
def test_a_testbed_is_set_up_verified_reported_and_removed(folder: Path, tmp_path: Path) -> None:
    created = call_json("up", "--hosts", "3", "--rate", "5mbit")
    assert created["hosts"] == {"client": "10.77.0.1", "h1": "10.77.0.2", "h2": "10.77.0.3"}
    assert created["links"] == 6
    assert created["delay_emulated"] is False
    (row,) = call_json("status")["testbeds"]
    assert (row["id"], row["alive"], row["links"], row["processes"]) == (created["id"], True, 6, [])
    done = run_exec("h1", "--", "sh", "-c", "cat; ip -o -4 address show dev eth0 >&2; exit 7", stdin="typed")
    assert (done.returncode, done.stdout) == (7, "typed")
    assert "10.77.0.2/16" in done.stderr
    assert run_exec("h1", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    proven = call_json("verify")
    assert proven["links"]["checked"] == 6
    assert proven["links"]["worst_rate_error"] < 0.05
    assert all(abs(proof["tcp_bps"] / 5e6 - 1) < 0.05 for proof in proven["proofs"])
    assert proven["links"]["stalled"] == max(proof["stalled"] for proof in proven["proofs"]) < 0.35
    report = call_json("report", "--out", str(tmp_path / "report"), "--last", "1h")
    assert report["size_bytes"] == Path(report["report"]).stat().st_size > 10_000
    assert [Path(table).stem for table in report["tables"]] == [
        "changes", "counters", "cuts", "events", "host_rates", "processes"
    ]  # fmt: skip
    assert f"testbed {created['id']}" in Path(report["report"]).read_text().lower()
    (tmp_path / "report/other.parquet").touch()
    assert "and 6 tables beside it" in call("report", "--out", str(tmp_path / "report"))
    assert call_json("down") == {"removed": [created["id"]]}
    assert call_json("down") == {"removed": []}
    assert call_json("status") == {"testbeds": []}
    assert list(folder.iterdir()) == []


@pytest.mark.netns
def test_links_of_a_running_testbed_are_changed(tmp_path: Path) -> None:
    call("up", "--hosts", "3", "--rate", "10mbit")
    (row,) = call_json("set", "client", "h1", "--rate", "2mbit")["links"]
    assert (row["src"], row["dst"], row["rate_bps"]) == ("client", "h1", 2e6)
    assert call("cut", "client", "h1", "--both") == "client → h1: cut\nh1 → client: cut\n"
    assert "client → h1: 2.00 Mbit/s\n" in call("restore")
    (tmp_path / "t.csv").write_text("time_s,bandwidth_bps\n0,1000000\n1000,3000000\n")
    assert call("play", str(tmp_path / "t.csv"), "h1", "h2") == "h1 → h2: 1.00 Mbit/s\n"
    assert call_json("status")["testbeds"][0]["replaying"]
    call("play", "--stop")
    assert not call_json("status")["testbeds"][0]["replaying"]
    refused("FILE to play, or --stop", "play")
    assert call("set", "h1", "h2", "--mtu", "1400,silent") == "h1 → h2: 1.00 Mbit/s, MTU 1400 silent\n"
    call("set", "h1", "--carrier", "down")
    assert "no carrier: h1\n" in call("status")
    assert call_json("status")["testbeds"][0]["unplugged"] == ["h1"]
    call("set", "h1", "--carrier", "up")
    assert "no carrier" not in call("status")
    assert call_json("reset", "h1", "h2")["reset"] == 0
    assert call("reset") == "0 connections reset\n"


@pytest.mark.netns
@pytest.mark.program("ping", "getent", "hostname")
def test_hosts_reach_other_hosts_by_name(folder: Path) -> None:
    up = call("up", "--hosts", "2", "--name", "lab")
    if by_address := re.search(r"note: (hosts know each other by address only, because .*)", up):
        pytest.skip(by_address[1])
    asked = "hostname; ping -4 -c1 -q client | head -1; ping -6 -c1 -q client | head -1; getent hosts h1 localhost"
    done = run_exec("h1", "--", "sh", "-c", asked)
    hostname, ping, ping_6, *addresses = done.stdout.splitlines()
    assert hostname == "h1"
    assert "(10.77.0.1) " in ping  # without a name, if it has addresses of both families
    assert re.match(r"PING client(\(client| ) ?\(fd74:6877:a4d::a4d:1\)", ping_6)  # as Debian 12 or 13 print it
    names = {name: line.split()[0] for line in addresses for name in line.split()[1:]}
    assert names["h1"] == "fd74:6877:a4d::a4d:2"
    assert ip_address(names["localhost"]).is_loopback
    assert "h1" not in Path("/etc/hosts").read_text().split()


@pytest.mark.netns
def test_testbeds_are_chosen_by_name_or_prefix(folder: Path) -> None:
    up = call("up", "--hosts", "2", "--name", "lab")
    assert up.startswith("testbed lab: 2 hosts, 0 shaped links")
    assert "\nclient 10.77.0.1, h1 10.77.0.2\n" in up
    assert run_exec("--id", "la", "h1", "--", "echo", "here").stdout == "here\n"
    call("up", "--hosts", "1", "--name", "lab2")
    assert [row["hosts"]["client"] for row in call_json("status")["testbeds"]] == ["10.77.0.1"] * 2
    refused("testbed 'lab' is up already", "up", "--name", "lab")
    refused("'a/b' is no name", "up", "--name", "a/b")
    refused("2 testbeds are up, say which with --id: lab, lab2", "exec", "--id", "la", "h1", "true")
    refused("no testbed 'x' is up; there is lab, lab2", "set", "--id", "x", "--rate", "1mbit")
    refused("'la' may be any of lab, lab2", "down", "la")
    refused("2 testbeds are up: lab, lab2; name the one to take down, or give --all", "down")
    refused("--all takes all testbeds down; leave it out for 'lab' alone", "down", "lab", "--all")
    assert run_exec("h1", "--id", "lab", "--", "echo", "here").stdout == "here\n"
    missing = run_exec("h1", "--id", "lab")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == "thalweg: the command is missing: thalweg testbed exec h1 -- CMD…\n"
    kill(psutil.Process(known.known_testbeds()[1].pid))
    call("up", "--hosts", "1", "--name", "lab2")  # the one that crashed is cleared away
    assert call_json("down", "lab") == {"removed": ["lab"]}
    assert call_json("down", "l") == {"removed": ["lab2"]}
    for name in ("lab3", "lab4"):
        call("up", "--hosts", "1", "--name", name)
    assert call_json("down", "--all") == {"removed": ["lab3", "lab4"]}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("h1 -- ls -l", execution.Asked("h1", ["ls", "-l"])),
        ("h1 ls -l", execution.Asked("h1", ["ls", "-l"])),
        ("--id a h1 -- ls", execution.Asked("h1", ["ls"], "a")),
        ("h1 --id a -- ls", execution.Asked("h1", ["ls"], "a")),
        ("h1 -d --id=a ls --all", execution.Asked("h1", ["ls", "--all"], "a", True)),
        ("--all -- ls", execution.Asked(None, ["ls"])),
        ("--all --id a ls", execution.Asked(None, ["ls"], "a")),
        ("", None),
        ("h1 --help", None),
        ("--unknown h1 -- ls", None),
    ],
)
def test_options_of_exec_stand_before_the_command(words: str, found: execution.Asked | None) -> None:
    assert execution.parse(words.split()) == found


@pytest.mark.parametrize(
    ("words", "says"), [("h1 --id a", "exec h1 -- CMD"), ("h1 --", "exec h1"), ("--all", "name a")]
)
def test_a_host_without_a_command_is_refused(words: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        execution.parse(words.split())


@pytest.mark.netns
def test_a_shell_on_a_terminal_has_job_control(folder: Path) -> None:
    call("up", "--hosts", "2")
    with Terminal("testbed", "exec", "h1", "--", "bash", "--norc", "--noediting", size=(40, 100)) as terminal:
        terminal.begin()
        assert terminal.ask("stty size") == ["40 100"]
        assert terminal.ask("tty")[0].startswith("/dev/pts/")
        assert "[1]+  Running" in terminal.ask("sleep 100 & jobs")[-1]
        terminal.ask("kill %1; wait")
        terminal.type("cat\nshown\n")
        terminal.until("shown\r\n")
        assert "Stopped" in "".join(terminal.ask(CTRL_Z))
        terminal.type("fg\nonce more\n")
        terminal.until("once more\r\n")
        terminal.ask(CTRL_C)
        assert terminal.ask("echo $?") == ["130"]
        terminal.resize((50, 120))
        assert terminal.ask("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.01; done") == []
        assert not terminal.restored
        terminal.type("exit 5\n")
        assert terminal.process.wait(patience(30)) == 5
        assert terminal.restored


@pytest.mark.netns
def test_a_command_runs_on_all_hosts_or_in_the_background(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call("up", "--hosts", "2")
    done = run_exec("--all", "--", "sh", "-c", 'hostname; echo no >&2; test "$(hostname)" = h1')
    assert (done.returncode, sorted(done.stdout.splitlines())) == (1, ["client  client", "h1      h1"])
    assert sorted(done.stderr.splitlines()) == ["client  no", "h1      no"]
    started = run_exec(
        "-d", "h1", "--", "sh", "-c", "trap 'echo done; exit 3' TERM; echo begun; sleep 100 & wait"
    ).stdout
    assert started.startswith("process ")
    number = started.split()[1]
    logs = [sys.executable, "-m", "thalweg", "testbed", "logs", "h1", "-f"]
    with subprocess.Popen(logs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as followed:
        assert followed.stdout is not None
        assert followed.stdout.readline() == "begun\n"
        assert run_exec("h1", "--", "kill", number).returncode == 0
        assert followed.communicate(timeout=patience(30))[0] == "done\n"
    capfd.readouterr()
    call("logs")
    assert capfd.readouterr().out == "begun\ndone\n"
    client = known.connect(known.choose(None))
    process = client.spawn("h1", Command(["sh", "-c", "echo up; exec sleep 100"], stdout=subprocess.PIPE))
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    client.close()  # which is the end of what it has spawned
    process.close()
    stop = time.monotonic() + patience(10)
    while call_json("status")["testbeds"][0]["processes"]:
        assert time.monotonic() < stop
    for wrong in (("logs", "client"), ("exec", "h9", "true"), ("exec", "h1"), ("exec", "--all")):
        with pytest.raises(
            UsageError,
            match=r"no process was launched on client|no host 'h9'|name a host and a command|command is missing",
        ):
            call(*wrong)


@pytest.mark.netns
def test_logs_of_hosts_with_private_folders_are_readable(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs are in one of the private folders."""
    monkeypatch.chdir("/")
    need_own_folders()
    runtime = os.path.realpath(folder.parent)
    call("up", "--hosts", "2", "--private", f"run,{runtime}", "--private", "/dev/shm")
    assert f"each host has its own /run, {runtime}, /dev/shm\n" in call("status")
    assert run_exec("h1", "--", "sh", "-c", "echo one >/run/file").returncode == 0
    assert run_exec("h1", "--", "cat", "/run/file").stdout == "one\n"
    assert run_exec("client", "--", "cat", "/run/file").returncode == 1
    assert run_exec("-d", "client", "--", "sh", "-c", "ls -A /run; echo said").returncode == 0
    while call_json("status")["testbeds"][0]["processes"]:
        continue
    capfd.readouterr()
    call("logs")
    assert capfd.readouterr().out.splitlines()[-1:] == ["said"]
    call("down")
    wan = tmp_path / "wan.toml"
    wan.write_text('hosts = 2\nprivate = ["run"]\n[links]\nrate = "1mbit"\n')
    refused("--private and the scenario file .* exclude each other", "up", str(wan), "--private", "run")
    assert "--private: /proc cannot be a host's own" in call("up", "--private", "run,proc", status=2)
    call("up", str(wan))
    assert call_json("status")["testbeds"][0]["private"] == ["/run"]


@pytest.mark.netns
def test_a_crashed_testbed_is_removed_while_a_second_testbed_stays(folder: Path) -> None:
    first, second = (call_json("up", "--hosts", "2")["id"] for _ in range(2))
    refused("2 testbeds are up", "exec", "h1", "true")
    state = next(state for state in known.known_testbeds() if state.id == first)
    kill(psutil.Process(state.pid))
    rows = {row["id"]: row for row in call_json("status")["testbeds"]}
    assert (rows[first]["alive"], rows[second]["alive"]) == (False, True)
    assert f"testbed down {first}" in call("status")
    lost = f"testbed {first} has crashed, and its record is lost; remove it with: thalweg testbed down {first}"
    refused(lost, "report", "--id", first)
    (folder / "orphan.sock").touch()
    assert call_json("down", first) == {"removed": [first]}
    with pytest.raises(TestbedError, match=f"there is no testbed 'no-such-testbed'; there is {second}"):
        call("down", "no-such-testbed")
    assert [row["id"] for row in call_json("status")["testbeds"]] == [second]
    assert call_json("down") == {"removed": [second]}
    assert list(folder.iterdir()) == []


@pytest.mark.netns
def test_a_reused_process_number_does_not_count_as_a_supervisor(folder: Path) -> None:
    identity = call_json("up", "--hosts", "2")["id"]
    file = folder / f"{identity}.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "pid": os.getpid()}))
    assert not known.known_testbeds()[0].alive
    assert call_json("down") == {"removed": [identity]}  # and we live
    kill(psutil.Process(state["pid"]))  # the real one, orphaned by this test


@pytest.mark.timed
@pytest.mark.netns
def test_traces_are_replayed_without_a_launcher(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    (pool / "a.csv").write_text("time_s,bandwidth_bps\n0,1000000\n10,3000000\n20,2000000\n")
    call("up", "--hosts", "2", "--traces", str(pool), "--time-scale", "2")
    (row,) = call_json("status")["testbeds"]
    assert row["replaying"]
    assert call_json("verify")["links"]["checked"] == 2
    assert call_json("status")["testbeds"][0]["replaying"]


@pytest.mark.netns
def test_a_failed_up_command_leaves_nothing(folder: Path) -> None:
    assert "not a rate" in call("up", "--rate", "fast", status=2)
    refused("9 hosts are asked for, but the subnet", "up", "--subnet", "10.0.0.0/29")
    refused("outside what can be emulated", "up", "--hosts", "2", "--rate", "1tbit")
    refused("exclude each other", "up", "--rate", "1mbit", "--traces", str(folder))
    refused("cannot be kept up", "up", "--backend", "loopback")
    assert not folder.exists() or list(folder.iterdir()) == []
    family = psutil.Process().children(recursive=True)
    assert not psutil.wait_procs([process for process in family if process.name() == "unshare"], 5)[1]


def test_the_exec_verb_imports_neither_numpy_nor_typer() -> None:
    """A command on a host starts fast, because no large library and no testbed is imported."""
    code = "import sys; from thalweg.experiments.cli.main import invoke"
    code += "; status = invoke(['testbed', 'exec', 'h1', 'true'])"
    code += "; print(status, {'numpy', 'typer', 'thalweg.emulation.testbeds.testbed'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(30), check=True
    )
    assert done.stdout == "2 set()\n"
    assert done.stderr.startswith("thalweg: no testbed is up; start one with")


def test_verify_reports_stalls_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    right = LinkProof("a", "b", 1e6, 1e6, 0.0, 0.3, 9000, "udp", stalled=0.07)
    verify._report("bed", [right], None, as_json=False, delay_emulated=False)
    assert "the machine let nothing pass for up to 7% of the time (a → b): it is busy" in capsys.readouterr().out
    held_up = msgspec.structs.replace(right, stalled=0.5)
    with pytest.raises(Exit):
        verify._report("bed", [held_up], None, as_json=False, delay_emulated=False)
    assert "is kept waiting by this machine for 50% of the time; make the machine less busy" in capsys.readouterr().err


def test_verbs_explain_that_no_testbed_is_up() -> None:
    for verb in (("exec", "h1", "true"), ("verify",), ("report",)):
        with pytest.raises(UsageError, match="thalweg testbed up"):
            call(*verb)
    assert "no testbed is up" in call("status")
    assert "nothing to remove" in call("down")


def test_a_run_folder_that_is_not_private_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o777)
    refused("private", "status")
    folder.chmod(0o700)


def test_a_testbed_without_hosts_is_refused() -> None:
    refused("at least one", "up", "--hosts", "0")


def test_the_doctor_lists_all_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java() -> tuple[str, int]:
        raise CapabilityError("no Java; install it")

    monkeypatch.setattr("thalweg.experiments.cli.doctor.find_java", no_java)
    single = Typer()
    single.command()(doctor)
    output = json.loads(CliRunner().invoke(single, ["--json"]).output)
    names = "netns netem managed_queues host_rates user_namespaces docker user_mode_linux records analysis java"
    assert set(output["capabilities"]) == set(names.split())
    assert output["capabilities"]["java"] == {"works": False, "detail": "no Java; install it"}
    shown = CliRunner().invoke(single, []).output
    assert "no Java; install it" in shown
    assert "processors" in shown


def test_the_doctor_names_absent_libraries_as_pip_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_module._extra("records") == Capability("records", True, "its libraries are installed")
    hide(monkeypatch, ["pyarrow", "PIL", "networkx"])
    records, analysis = doctor_module._extra("records"), doctor_module._extra("analysis")
    assert (records.works, records.detail) == (False, "pyarrow not installed; pip install 'thalweg[records]'")
    assert analysis.detail == "pyarrow, pillow, networkx not installed; pip install 'thalweg[analysis]'"


IPERF = """#!/bin/sh
case "$*" in
*-s*) echo "Server listening"; exec sleep 30 ;;
*-u*) echo '{"end": {"sum": {"bits_per_second": 980000}}}' ;;
*) echo '{"end": {"sum_received": {"bits_per_second": 1448000}}}' ;;
esac
"""


@pytest.mark.netns
def test_verify_measures_links_with_iperf3_if_installed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("up", "--hosts", "2", "--rate", "1.5mbit")
    nowhere = CliRunner().invoke(app, ["verify", "--with", "iperf2"])
    assert str(nowhere.exception) == "--with is 'iperf2'; there is iperf3"
    with monkeypatch.context() as without:
        fake_apt(tmp_path, real=["iperf3"])
        without.setenv("PATH", str(tmp_path))
        assert "apt-get install iperf3`" in str(CliRunner().invoke(app, ["verify", "--with", "iperf3"]).exception)
    tool = tmp_path / "iperf3"
    tool.write_text(IPERF)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = CliRunner().invoke(app, ["verify", "--with", "iperf3", "--json"])
    assert done.exit_code == 1
    (link, _) = json.loads(done.stdout)["links"]
    assert link["tcp_bps"] == link["tcp4_bps"] == pytest.approx(1.5e6)  # with headers
    assert link["udp_bps"] == pytest.approx(0.98e6 * 1428 / 1400)
    assert "link client → h1 at 1.50 Mbit/s is off by iperf3: UDP -33.4%" in done.stderr
    call("down")
