"""``from thalweg import Testbed``, the fixture ``wan``, and the example that uses it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from patience import patience

from thalweg import CapabilityError, CommandError, LinkShape, Testbed, TestbedError, UsageError
from thalweg.emulation.links.shape import Queue
from thalweg.emulation.proofs import proof as proofs

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/redis_replica"
MBIT = 1e6


@pytest.fixture(scope="module")
def up() -> Iterator[Testbed]:
    with Testbed.open("netns", ["a", "b", "c"], rate="10mbit") as bed:
        yield bed


@pytest.fixture
def bed(up: Testbed) -> Iterator[Testbed]:
    yield up
    up.stop()
    up.restore()
    up.set(rate="10mbit")


def rate_of(bed: Testbed, source: str, target: str) -> float:
    return bed.links[source, target].rate_bps  # type: ignore[index]


@pytest.mark.netns
@pytest.mark.program("ping")
def test_links_are_set_cut_and_restored_in_a_single_direction_or_both(bed: Testbed) -> None:
    bed.set("a", "b", rate="2mbit")
    assert (rate_of(bed, "a", "b"), rate_of(bed, "b", "a")) == (2 * MBIT, 10 * MBIT)
    bed.set("c", rate=3 * MBIT)
    assert sorted(link for link, shape in bed.links.items() if shape.rate_bps == 3 * MBIT) == [
        ("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")
    ]  # fmt: skip
    ping = ["ping", "-c1", "-W1", bed.hosts["b"]]
    assert bed.run("a", ping).returncode == 0
    bed.cut("b", "a")
    assert bed.run("a", ping).returncode == 1
    bed.cut("a", "b", both=True)
    bed.restore("b", "a")
    assert bed.links["a", "b"] == LinkShape(2 * MBIT, cut=True)  # type: ignore[index]
    bed.restore()
    assert not any(shape.cut for shape in bed.links.values())
    assert bed.run("a", ping).returncode == 0


@pytest.mark.netns
def test_a_rate_below_the_least_is_raised_with_a_warning(bed: Testbed) -> None:
    with pytest.warns(
        UserWarning, match=r"^link a → b is set to 8.00 kbit/s, the least there is, instead of 1.00 kbit"
    ):
        bed.set("a", "b", rate="1kbit")
    assert rate_of(bed, "a", "b") == 8_000
    bed.set("a", "b", rate="8kbit")


@pytest.mark.netns
def test_up_and_down_limits_of_a_host_are_set_reported_and_lifted(bed: Testbed) -> None:
    bed.set("a", up_rate="2mbit", down_rate="3mbit")
    bed.set(up_rate="4mbit")
    status = bed._bed.status()
    assert status["up_bps"] == dict.fromkeys(("a", "b", "c"), 4 * MBIT)
    assert status["down_bps"] == {"a": 3 * MBIT}
    with pytest.raises(UsageError, match="of a host, not of the link to 'b'; name 'a' alone"):
        bed.set("a", "b", up_rate="1mbit")
    bed.set(up_rate="unlimited", down_rate="unlimited")
    assert bed._bed.status()["up_bps"] == bed._bed.status()["down_bps"] == {}
    assert {shape.rate_bps for shape in bed.links.values()} == {10 * MBIT}


@pytest.mark.netns
def test_a_preset_sets_the_access_line_of_a_host_and_explicit_figures_win() -> None:
    rates_only: dict[str, float] = {"delay": 0, "jitter": 0}
    with Testbed.open("netns", ["a", "b", "c"], preset="4g", **rates_only) as bed:  # type: ignore[arg-type]
        assert set(bed.links.values()) == {LinkShape(7.6 * MBIT, queue=Queue(0.2))}
        bed.set("a", preset="starlink", queue="50ms", up_rate="20mbit", **rates_only)  # type: ignore[arg-type]
        assert bed.links["a", "b"] == LinkShape(13.89 * MBIT, queue=Queue(0.05))  # type: ignore[index]
        assert rate_of(bed, "b", "a") == 7.6 * MBIT
        status = bed._bed.status()
        assert status["lines"] == {"a": "starlink", "b": "4g", "c": "4g"}
        assert status["up_bps"] == {"a": 20 * MBIT, "b": 7.6 * MBIT, "c": 7.6 * MBIT}
        assert status["down_bps"] == {"a": 97.23 * MBIT, "b": 29.5 * MBIT, "c": 29.5 * MBIT}
        bed.set("b", "c", preset="transatlantic", delay=0, both=True)
        assert rate_of(bed, "c", "b") == 287 * MBIT
        with pytest.raises(UsageError, match="preset '4g' is the line of a host, not of a link to 'b'; name 'a' alone"):
            bed.set("a", "b", preset="4g")
        with pytest.raises(UsageError, match="there is no preset '6g'; did you mean"):
            bed.set("a", preset="6g")
        before = bed.links, bed._bed.status()["up_bps"]
        with pytest.raises(UsageError, match="'fast' is not a rate"):
            bed.set("a", preset="adsl", up_rate="fast", **rates_only)  # type: ignore[arg-type]
        assert (bed.links, bed._bed.status()["up_bps"]) == before


@pytest.mark.netns
@pytest.mark.timed
@pytest.mark.program("ping")
def test_packets_of_an_access_line_wait_in_the_queue_of_the_line() -> None:
    """The full queue drops four of five packets, so many are sent."""
    flood = "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    flood += "for i in range(60_000): s.sendto(bytes(1400), ('{}', 9)); time.sleep(0.001); i == 500 and print('full')"
    with Testbed.open("netns", ["a", "b"], rate="20mbit") as bed:
        bed.set("a", preset="wifi", up_rate="2mbit", queue="400ms", delay=0)
        words = [sys.executable, "-u", "-c", flood.format(bed.hosts["b"])]
        sender = bed.start("a", words, stdout=subprocess.PIPE)
        assert sender.stdout is not None
        assert sender.stdout.readline() == b"full\n"
        output = bed.run("a", ["ping", "-n", "-c", "60", "-i", "0.05", "-W", "5", bed.hosts["b"]]).stdout
        sender.kill()
    assert max(float(ms) for ms in re.findall(r"time=([\d.]+)", output)) == pytest.approx(400, rel=0.1)


@pytest.mark.timed
@pytest.mark.netns
def test_a_link_without_a_rate_is_proven_only_while_the_link_is_cut(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.set("a", "b", rate="2mbit")
    (proof,) = bed.prove("a", "b")
    assert proof.asked_bps == 2 * MBIT
    with monkeypatch.context() as strict:
        strict.setattr(proofs, "RATE_ERROR", -1.0)
        with pytest.raises(TestbedError, match=r"^link a → b delivers .* instead of 2 Mbit/s"):
            bed.prove("a", "b")
        assert len(bed.prove("a", "b", check=False)) == 1
    with Testbed.open("netns", ["a", "b"]) as plain:
        assert plain.links == {}
        plain.cut("a", "b")
        assert [proof.delivered_bps for proof in plain.prove()] == [0.0]
        plain.restore()
        assert plain.prove() == []


@pytest.mark.netns
def test_a_scenario_with_refused_links_limits_no_host(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CapabilityError("this kernel has no netem")

    file = tmp_path / "slow.toml"
    file.write_text('hosts = ["a", "b"]\ninterface_rate = "5mbit"\n[links]\nrate = "1mbit"\ndelay = "20ms"\n')
    monkeypatch.setattr(bed._bed, "shape", refuse)
    with pytest.raises(CapabilityError):
        bed.play(file)
    status = bed._bed.status()
    assert (status["up_bps"], status["down_bps"]) == ({}, {})


@pytest.mark.netns
def test_a_played_trace_or_scenario_sets_rates_and_played_links_can_be_cut(bed: Testbed, tmp_path: Path) -> None:
    trace, wan = tmp_path / "one.csv", tmp_path / "wan.toml"
    trace.write_text("time_s,bandwidth_bps\n0,1000000\n1000,2000000\n")
    bed.play(trace, "a", "b")
    assert (rate_of(bed, "a", "b"), rate_of(bed, "b", "a")) == (MBIT, 10 * MBIT)
    with pytest.raises(UsageError, match=r"a → b follows a scenario or trace; first stop the play"):
        bed.set("a", "b", rate="2mbit")
    bed.cut("a", "b")
    bed.set("b", "a", rate="3mbit")
    assert bed.links["a", "b"] == LinkShape(MBIT, cut=True)  # type: ignore[index]
    wan.write_text(
        'hosts = ["a", "b"]\n[links]\nrate = "4mbit"\n[[event]]\nkind = "outage"\nfrom = "b"\nto = "a"\nat = 0\n'
    )
    bed.play(wan)
    assert bed.links["a", "b"] == LinkShape(4 * MBIT)  # type: ignore[index]
    assert bed.links["b", "a"].cut  # type: ignore[index]
    assert bed._bed.status()["up_bps"] == bed._bed.status()["down_bps"] == {}
    wan.write_text('hosts = ["a", { name = "b", up_rate = "1mbit", down_rate = "2mbit" }]\n[links]\nrate = "4mbit"\n')
    bed.play(wan)
    status = bed._bed.status()
    assert (status["up_bps"], status["down_bps"]) == ({"b": MBIT}, {"b": 2 * MBIT})
    wan.write_text('hosts = ["a", "b"]\n[links]\nrate = "4mbit"\n')
    bed.play(wan)  # takes the place of what was played before
    assert bed._bed.status()["up_bps"] == bed._bed.status()["down_bps"] == {}
    bed.cut("b", "a")
    trace.write_text("time_s,loss\n0,1\n1000,0\n")
    bed.play(trace, "a", "c")
    assert bed.links["a", "c"] == LinkShape(10 * MBIT, cut=True)  # type: ignore[index]
    bed.stop()
    bed.restore("b", "a")
    assert not bed.links["b", "a"].cut  # type: ignore[index]
    bed.set("a", "b", rate="5mbit")
    wan.write_text('layer = 2\nhosts = ["a", "d"]\n[links]\nrate = "4mbit"\n')
    with pytest.raises(UsageError, match="at layer 2, this testbed at layer 3"):
        bed.play(wan)
    wan.write_text('hosts = ["a", "d"]\n[links]\nrate = "4mbit"\n')
    with pytest.raises(UsageError, match=r"has a host 'd', which this testbed has not; known are a, b, c"):
        bed.play(wan)


@pytest.mark.netns
def test_a_command_runs_to_its_end_or_in_the_background(bed: Testbed) -> None:
    done = bed.run("b", ["sh", "-c", "cat; echo no >&2; exit 3"], input="typed\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "typed\n", "no\n")
    with pytest.raises(TestbedError, match=r"^'sh' on 'b' has ended with 3: no$"):
        bed.run("b", ["sh", "-c", "echo no >&2; exit 3"], check=True)
    with pytest.raises(TestbedError, match=r"^'sleep' on 'b' still runs after 0.1 s"):
        bed.run("b", ["sleep", "100"], timeout_s=0.1)
    server = bed.start("a", ["sh", "-c", "echo up; exec sleep 100"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"
    server.terminate()
    assert server.wait(patience(10)) == -15


@pytest.mark.netns
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda bed: bed.set("a", "x", rate=1), "there is no host 'x'; known are a, b, c"),
        (lambda bed: bed.set("a", "a", rate=1), "host 'a' has no link to itself"),
        (lambda bed: bed.set(target="a", rate=1), "name it"),
        (lambda bed: bed.set("a", "b"), "no setting of the link is given"),
        (lambda bed: bed.set("a", "b", rate="fast"), "'fast' is not a rate"),
        (lambda bed: bed.set("a", "b", delay="1d"), "delay_s is 86400"),
        (lambda bed: bed.run("a", "ls -l"), r"a list of words, not the text 'ls -l'; write \['ls -l'\]"),
        (lambda bed: bed.run("a", ["no-such-program"]), "cannot run 'no-such-program' on 'a': No such file"),
        (lambda bed: bed.play("no.toml", "a"), "names its links itself"),
        (lambda bed: bed.play("no.toml"), "no.toml"),
        (lambda _: Testbed.open("netns", "ab"), "hosts is a list of words"),
        (lambda _: Testbed.open("nets", ["a"]), "unknown testbed 'nets'"),  # type: ignore[arg-type]
        (lambda _: Testbed.open("netns", ["a"], rat="1mbit"), "takes no 'rat'; did you mean 'rate'?"),  # type: ignore[call-arg]
        (lambda _: Testbed.open("netns", ["a"], kernel="linux"), "no kernel 'linux'; there are host, uml"),  # type: ignore[arg-type]
        (lambda _: Testbed.open("docker", ["a"], kernel="uml"), "goes with netns, and this testbed is docker"),
        (lambda _: Testbed.open("netns", ["a", "b"], loss="1%"), "has no rate yet; give it one too"),
        (lambda _: Testbed.open("loopback", ["a", "b"], rate="1mbit"), "this testbed has no links"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_in_one_line(up: Testbed, wrong, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=says) as error:
        wrong(up)
    assert "\n" not in str(error.value)


@pytest.mark.netem
@pytest.mark.timed
def test_delays_are_set_and_proven(tmp_path: Path) -> None:
    with Testbed.open("netns", ["a", "b"], rate="2mbit", delay="20ms") as bed:
        bed.set("a", "b", delay="50ms")
        delays_s = {proof.src: proof.delivered_delay_s for proof in bed.prove()}
        assert delays_s == {"a": pytest.approx(0.05, abs=0.005), "b": pytest.approx(0.02, abs=0.005)}
        (tmp_path / "owd.csv").write_text("time_s,delay_s,loss\n0,0.08,0.1\n1000,0.01,0\n")
        bed.play(tmp_path / "owd.csv", "a", "b")
        (proof,) = bed.prove("a", "b")
        assert (proof.asked_bps, proof.asked_delay_s, proof.asked_loss) == (2 * MBIT, 0.08, 0.1)


@pytest.mark.netem
@pytest.mark.timed
def test_the_delays_and_rates_of_a_preset_are_set_and_proven() -> None:
    with Testbed.open("netns", ["home", "server"]) as bed:
        bed.set("home", preset="adsl", jitter="5ms")
        proofs_by_source = {proof.src: proof for proof in bed.prove()}
    assert [proofs_by_source[host].asked_bps for host in ("home", "server")] == [460e3, 5.6 * MBIT]
    assert {(proof.asked_delay_s, proof.asked_jitter_s) for proof in proofs_by_source.values()} == {(0.025, 0.005)}


TESTS = """
def test_skipped(wan, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("THALWEG_REQUIRE", raising=False)
    wan(["a"])

def test_required(wan, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("THALWEG_REQUIRE", "docker, netns")
    wan(["a"])

beds = []

def test_up(wan):
    beds.append(wan(["a", "b"], rate="1mbit"))
    assert beds[0].run("a", ["true"]).returncode == 0

def test_gone():
    import pytest, thalweg
    with pytest.raises(thalweg.TestbedError, match="taken down"):
        beds[0].run("a", ["true"])
"""


@pytest.mark.netns
def test_the_fixture_skips_or_fails_without_a_wan_and_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    options = f"-qp no:cacheprovider -p thalweg.emulation.pytest_plugin -c {EXAMPLE / 'pytest.ini'}".split()
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, str(tmp_path), str(EXAMPLE)],
        capture_output=True, text=True, timeout=patience(100), check=False,
    )  # fmt: skip
    assert "\nTHALWEG_REQUIRE names 'netns', but: 'unshare' is missing" in done.stdout
    assert ": 'unshare' is missing; install util-linux" in done.stdout
    passed, skipped = (5, 1) if shutil.which("redis-server") else (2, 4)
    assert f"1 failed, {passed} passed, {skipped} skipped" in done.stdout, done.stdout


def test_importing_the_testbed_class_loads_no_needless_library() -> None:
    needless = "{'numpy', 'psutil', 'zmq', 'pyspark', 'scipy', 'typer', 'docker'}"
    code = f"import sys; from thalweg import Testbed; print(*{needless} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- what a failed test tells ---------------------------------------------------------------------------

FAILING = """
import subprocess, sys
import pytest
from thalweg import CommandError

def test_the_client_gets_its_answer(wan):
    bed = wan(["a", "b"], rate="10mbit")
    bed.set("a", "b", rate="2mbit")
    server = bed.start("b", [sys.executable, "-c", "print('serving'); raise SystemExit(3)"])
    server.wait(30)
    bed.cut("b", "a")
    bed.run("a", ["sh", "-c", "echo half an answer; exit 4"], check=True)
"""


@pytest.mark.netns
def test_the_report_of_a_failed_test_has_the_state_of_its_testbeds(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["-q", "-p", "no:cacheprovider", "-p", "thalweg.emulation.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, str(tmp_path)],
        capture_output=True, text=True, timeout=patience(100), check=False,
    )  # fmt: skip
    text = done.stdout
    assert done.returncode == 1
    assert "CommandError: 'sh' on 'a' has ended with 4: half an answer" in text
    assert "thalweg/emulation/wan.py" not in text.partition("test_it.py:")[0]  # the traceback is that of the test
    assert "b | serving" in text
    _, _, state = text.partition("- testbed ")
    assert "hosts: a 10.77.0.1, b 10.77.0.2" in state
    assert "a → b: 2.00 Mbit/s" in state
    assert "cut: b → a" in state
    assert re.search(r"b: .*python.* -c .*: has ended with 3\n    b \| serving", state)
    assert state.count("cut: ") == 1


UNDERSTOOD = """
import sys
import pytest

LONG = "import sys\\n" + "sys.stderr.write('why\\\\n')\\n" * 30 + "sys.exit(7)"

@pytest.fixture
def bed(wan):
    bed = wan(["a", "b"])
    bed.start("b", ["sh", "-c", "echo early; exec sleep 100"])
    return bed

def test_it(bed):
    for status in range(1, 7):
        bed.run("a", ["sh", "-c", f"exit {status}"])
    assert bed.run("a", ["echo", "fine"]).returncode == 0
    bed.run("a", [sys.executable, "-c", LONG])
    bed.run("b", ["sh", "-c", "echo begun; sleep 100"], timeout_s=0.2)

def test_no_program(bed):
    bed.run("a", ["no-such-program"])

@pytest.fixture
def broken(bed):
    raise AssertionError("broken")

def test_broken(broken):
    pass
"""


@pytest.mark.netns
def test_the_output_of_a_failed_test_lists_failed_commands_and_process_output(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(UNDERSTOOD)
    options = ["-q", "-p", "no:cacheprovider", "-p", "thalweg.emulation.pytest_plugin"]
    done, whole = (
        subprocess.run(
            [sys.executable, "-B", "-m", "pytest", *options, *more, str(tmp_path)],
            capture_output=True, text=True, timeout=patience(100), check=False, cwd=tmp_path,
        )
        for more in ([], ["--full-trace", "-k", "no_program"])
    )  # fmt: skip
    text = done.stdout
    assert text.splitlines()[0].split()[0] == "FFE", text  # no output of processes between phases
    first = text.partition("test_no_program ___")[0]
    assert "TestbedError: 'sh' on 'b' still runs after 0.2 s" in first
    assert "b: sh -c echo begun; sleep 100: was ended by SIGKILL\n    b | begun\n" in first
    assert first.count("    a | why\n") == 20
    assert len(re.findall(r"^a: python.* -c import sys sys.stderr.*…: has ended with 7$", first, re.M)) == 1
    assert re.findall(r"exit (\d): has ended", first) == ["4", "5", "6"]  # five are kept with the two that came later
    assert "3 commands that failed before are left out" in first
    assert "echo fine:" not in first
    assert "cannot run 'no-such-program' on 'a': No such file or directory" in text
    assert "supervisor/client.py" not in text
    assert "supervisor/client.py" in whole.stdout


@pytest.mark.netns
def test_held_output_is_printed_on_release(up: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = Testbed(up._bed).follow_outputs()
    process = up.start("a", ["sh", "-c", "echo one; echo two"], stdout=subprocess.PIPE)
    outputs.hold()
    outputs.add(process, read=True)
    assert process.wait(patience(20)) == 0
    assert [lines for _, lines in outputs.last_lines()] == [("one", "two")]
    assert capsys.readouterr().out == ""
    outputs.release()
    assert capsys.readouterr().out == "a | one\na | two\n"
    outputs.close()


@pytest.mark.netns
def test_the_plugin_is_switched_off_by_its_short_name(tmp_path: Path) -> None:
    (entry,) = entry_points(group="pytest11", name="thalweg")
    assert entry.value == "thalweg.emulation.pytest_entry"
    (tmp_path / "test_it.py").write_text("def test_it(wan): pass\n")
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    on, off = (
        subprocess.run([*command, *more, str(tmp_path)], capture_output=True, text=True, check=False).stdout
        for more in ([], ["-p", "no:thalweg"])
    )
    assert "1 passed" in on
    assert "fixture 'wan' not found" in off


@pytest.mark.netns
def test_the_error_of_a_failed_command_has_the_output(bed: Testbed) -> None:
    with pytest.raises(CommandError, match="'sh' on 'a' has ended with 3: wrong") as caught:
        bed.run("a", ["sh", "-c", "echo right; echo wrong >&2; exit 3"], check=True)
    error = caught.value
    assert (error.returncode, error.stdout, error.stderr) == (3, "right\n", "wrong\n")


@pytest.mark.netns
def test_a_process_communicates_and_ends_with_the_with_block(bed: Testbed) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    size = 1 << 20  # more than pipes hold, both ways
    with bed.start("a", ["sh", "-c", "cat; echo done >&2"], **pipes) as process:  # type: ignore[arg-type]
        assert process.communicate(b"x" * size, timeout=patience(20)) == (b"x" * size, b"done\n")
        assert process.returncode == 0
    sleeping = bed.start("a", ["sleep", "1000"], stdout=subprocess.PIPE)
    with sleeping, pytest.raises(TimeoutError, match=r"'sleep' on 'a' still runs after 0\.1 s"):
        sleeping.communicate(timeout=0.1)
    assert sleeping.returncode == -15


@pytest.mark.netns
def test_opening_a_testbed_accepts_the_up_and_down_rates_of_set() -> None:
    with Testbed.open("netns", ["a", "b"], rate="10mbit", up_rate="5mbit", down_rate="4mbit") as bed:
        status = bed._bed.status()
        assert (status["up_bps"], status["down_bps"]) == (dict.fromkeys("ab", 5e6), dict.fromkeys("ab", 4e6))
