"""The testbed interface, mostly on the loopback backend: processes, their ends, and refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import patience

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import TestbedError, UsageError

PYTHON = sys.executable
FOREVER = "import signal; print('up', flush=True); signal.pause()"


def test_a_process_gets_its_arguments_environment_folder_and_streams(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['X'], sys.stdin.read()); os.write(2, b'e'); sys.exit(3)"
    with open_testbed("loopback", ["client", "h1"]) as bed:
        assert dict(bed.hosts) == {"client": "127.0.0.1", "h1": "127.0.0.1"}
        pipe = subprocess.PIPE
        process = bed.run(
            "h1", [PYTHON, "-c", code], env={"X": "y"}, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"in")
        process.stdin.close()
        assert process.wait(patience(10)) == 3
        assert process.stdout.read().decode().split() == [str(tmp_path), "y", "in"]
        assert process.stderr.read() == b"e"


def test_a_signal_ends_a_process_and_the_status_is_reported() -> None:
    with open_testbed("loopback", ["h1"]) as bed:
        process = bed.run("h1", [PYTHON, "-c", FOREVER], stdout=subprocess.PIPE)
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        assert process.pid is not None
        assert psutil.Process(process.pid).is_running()
        with pytest.raises(TimeoutError, match="still runs"):
            process.wait(0.01)
        process.terminate()
        assert process.wait(patience(10)) == process.returncode == -signal.SIGTERM
        process.kill()  # too late: nothing happens
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("backend", ["loopback", pytest.param("netns", marks=pytest.mark.netns)])
def test_down_ends_processes_that_hid_in_a_new_session(backend: str) -> None:
    hide = (
        f"import os, sys; os.fork() or (os.setsid(), os.execv({PYTHON!r}, [{PYTHON!r}, '-c', sys.argv[1]])); os.wait()"
    )
    bed = open_testbed(backend, ["h1"])
    bed.up()
    bed.up()
    process = bed.run("h1", [PYTHON, "-c", hide, FOREVER], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"up\n"
    assert bed.supervisor is not None
    family = psutil.Process(bed.supervisor.process.pid).children(recursive=True)
    assert {process.pid, *(member.pid for member in psutil.Process(process.pid).children())} <= {
        member.pid for member in family
    }
    assert len(family) >= 2
    bed.down()
    bed.down()
    assert not psutil.wait_procs(family, timeout=patience(5))[1]
    assert process.poll() == -signal.SIGKILL
    with pytest.raises(TestbedError, match="taken down"):
        bed.run("h1", ["true"])
    with pytest.raises(TestbedError, match="open another"):
        bed.up()


def test_grace_lets_a_process_end_by_itself() -> None:
    polite = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print(flush=True); signal.pause()"
    bed = open_testbed("loopback", ["h1"])
    bed.up()
    process = bed.run("h1", [PYTHON, "-c", polite], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline()
    bed.down(grace_s=10)
    assert process.returncode == 5


def test_processes_end_with_the_supervisor() -> None:
    with open_testbed("loopback", ["h1"]) as bed:
        process = bed.run("h1", [PYTHON, "-c", FOREVER], stdout=subprocess.PIPE)
        assert process.pid is not None
        psutil.Process(process.pid).parent().kill()
        assert process.wait(patience(10)) == -signal.SIGKILL
        with pytest.raises(TestbedError, match="has ended"):
            bed.run("h1", ["true"])
        os.kill(process.pid, signal.SIGKILL)  # without a process namespace nobody else could


@pytest.mark.parametrize(
    ("backend", "hosts", "options", "says"),
    [
        ("mininet", ["a"], {}, "unknown testbed 'mininet'"),
        ("loopback", ["a"], {"layer": 2}, "no option 'layer'"),
        ("loopback", [], {}, "at least one host"),
        ("loopback", ["a", "a"], {}, "given twice"),
        (
            "netns",
            ["a", "b", "c"],
            {"subnet": "10.0.0.0/30"},
            "3 hosts are asked for, but the subnet 10.0.0.0/30 has 2",
        ),
        ("netns", [f"h{i}" for i in range(1024)], {}, "1024 hosts are asked for, but the testbed has 1023"),
        ("netns", ["a", "localhost"], {}, "'localhost' is the name of every host for itself"),
        ("netns", ["a", "1"], {}, "'1' is an address"),
        ("netns", ["h1", "H1"], {}, "both 'h1' as hostnames"),
        ("netns", ["a", "a-b"], {"networks": ["b"]}, "'a.b' and 'a-b' are both 'a-b' as hostnames"),
        ("netns", ["a"], {"subnet": "ten"}, "bad subnet"),
        ("netns", ["a"], {"layer": 4}, "layer 2 or 3"),
    ],
)
def test_an_impossible_testbed_is_refused_before_the_build(backend, hosts, options, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=says):
        open_testbed(backend, hosts, **options)


def test_a_loopback_testbed_has_no_links_and_refuses_to_shape_links() -> None:
    with open_testbed("loopback", ["a", "b"]) as bed:
        with pytest.raises(UsageError, match="no links to shape"):
            bed.shape({("a", "b"): LinkShape(1e6)})
        with pytest.raises(UsageError, match="cannot replay"):
            bed.replay({})
        with pytest.raises(UsageError, match="unknown host 'c'"):
            bed.run("c", ["true"])
        with pytest.raises(UsageError, match="cannot run 'no-such-program'"):
            bed.run("a", ["no-such-program"])
        with pytest.raises(UsageError, match="no command"):
            bed.run("a", [])
        assert bed.prove() == []
        assert bed.samples() == []
        assert not bed.delay_emulated
        assert isinstance(bed, Testbed)


def test_a_testbed_of_an_earlier_version_has_no_ipv6_addresses() -> None:
    class Earlier:
        """Connection to the supervisor of an earlier version."""

        def call(self, _: object) -> dict[str, Any]:
            return {"shapes": [], "limits": {}, "replaying": False}

    bed = open_testbed("netns", ["a"])
    bed.attach(Earlier())  # type: ignore[arg-type]
    assert bed.status() == {"limits": {}, "replaying": False}
    assert dict(bed.hosts_6) == {}
