"""Commands in the folder of another user: no code of the folder is executed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import patience

from thalweg.emulation.testbeds import detached

ROOT = Path(__file__).parents[3]
INSTALLED = Path(sys.executable).with_name("thalweg")
COMMAND = [str(INSTALLED)] if INSTALLED.exists() else [
    sys.executable, "-P", "-c", "from thalweg.experiments.cli.main import main; main()",
]  # fmt: skip
MODULES = (
    *("thalweg", "middleware", "msgspec", "psutil", "zmq", "typer", "rich", "numpy", "PIL", "pyarrow", "pyroute2"),
    *("pyspark", "py4j", "matplotlib", "scipy", "highspy", "networkx", "jinja2", "docker", "click", "simpy"),
    *("json", "string", "socket", "random", "selectors", "subprocess", "shutil", "logging", "struct", "argparse"),
    *("asyncio", "tempfile", "typing", "re", "runpy", "sitecustomize", "usercustomize", "multiprocessing", "platform"),
)
PROGRAMS = (
    *("unshare", "setpriv", "nsenter", "sh", "bash", "env", "python3", "python", "java", "cc", "gcc", "ip", "tc", "ps"),
    *(
        "iperf3",
        "apt-cache",
        "sudo",
        "modprobe",
        "mmdebstrap",
        "uname",
        "fc-list",
        "ldconfig",
        "mn",
        "true",
        "xdg-open",
    ),
)
SCRIPT = """
from thalweg import Client, Code, LocalCluster, complete_binary_tree

if __name__ == "__main__":
    scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 2, "seed": 1, "length": 2}) for i in range(2)}
    for transport in ("ipc", "curve"):
        with LocalCluster(2, transport=transport) as cluster, Client(cluster) as client:
            print(len(list(client.run(complete_binary_tree(scenes, Code("composite")), "one-shot"))))
"""
TESTBED = """
from thalweg.emulation.wan import Testbed

with Testbed.open("netns", ["a", "b"], rate="100mbit") as bed:
    print(bed.run("a", ["/bin/echo", "up"]).stdout)
"""


class Foreign(NamedTuple):
    """Folder of another user, and the file to which the folder's code writes its name when executed."""

    folder: Path
    marker: Path

    def run(self, *words: str, status: int | None = 0) -> str:
        """Run a command in the folder, and assert that no code of the folder is executed. ``status`` None: any."""
        path = os.pathsep.join(["", ".", os.environ["PATH"], ""])
        done = subprocess.run(
            words, cwd=self.folder, env=os.environ | {"PATH": path, "THALWEG_TRACES": ""},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience(240), check=False,
        )  # fmt: skip
        assert self.executed() == [], words
        assert status in (None, done.returncode), (words, done.stdout, done.stderr)
        return done.stdout

    def thalweg(self, *words: str, status: int | None = 0) -> str:
        return self.run(*COMMAND, *words, status=status)

    def executed(self) -> list[str]:
        return self.marker.read_text(encoding="utf-8").split() if self.marker.exists() else []


@pytest.fixture
def foreign(tmp_path: Path, runtime_folder: Path) -> Iterator[Foreign]:
    """Return a folder with a module, and a program, for every name that one of our processes may look up."""
    other_folder = Foreign(tmp_path / "foreign", tmp_path / "executed")
    other_folder.folder.mkdir()
    for name in MODULES:
        text = f"with open({str(other_folder.marker)!r}, 'a') as marker:\n    marker.write('{name}.py\\n')\n"
        (other_folder.folder / f"{name}.py").write_text(text, encoding="utf-8")
    for name in PROGRAMS:
        (other_folder.folder / name).write_text(
            f"#!/bin/sh\necho {name} >>'{other_folder.marker}'\nexit 1\n", encoding="utf-8"
        )
        (other_folder.folder / name).chmod(0o755)
    yield other_folder
    detached.take_down()


def test_foreign_files_are_executed_if_python_imports_from_the_working_directory(foreign: Foreign) -> None:
    """Check that the other tests would notice executed code."""
    for word, name in (("json.tool", "json.py"), ("thalweg", "thalweg.py")):
        subprocess.run([sys.executable, "-m", word], cwd=foreign.folder, capture_output=True, timeout=60, check=False)
        assert name in foreign.executed()
    subprocess.run("unshare true", shell=True, cwd=foreign.folder, env={"PATH": ":/bin"}, timeout=60, check=False)
    assert "unshare" in foreign.executed()


@pytest.mark.parametrize("word", ["-V", "--help", "doctor"])
def test_commands_about_the_machine_execute_no_foreign_code(foreign: Foreign, word: str) -> None:
    foreign.thalweg(word)


def test_python_with_the_safe_option_executes_no_foreign_code(foreign: Foreign) -> None:
    """Use the form of the command that the documentation names."""
    foreign.run(sys.executable, "-P", "-m", "thalweg", "-V")


def test_a_local_cluster_of_a_script_executes_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    script = tmp_path / "application.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert foreign.run(sys.executable, str(script)) == "2\n2\n"


def test_a_run_on_loopback_executes_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    foreign.thalweg("run", "--testbed", "loopback", "--servers", "2", "--images", "2", "--out", out)


@pytest.mark.netns
def test_a_detached_testbed_executes_no_foreign_code(foreign: Foreign) -> None:
    foreign.thalweg("testbed", "up", "--hosts", "2", "--rate", "100mbit")
    assert foreign.thalweg("testbed", "exec", "h1", "--", "/bin/echo", "there") == "there\n"
    foreign.thalweg("testbed", "status")
    foreign.thalweg("testbed", "down")


@pytest.mark.long
@pytest.mark.netns
def test_all_verbs_of_testbeds_execute_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    script = tmp_path / "application.py"
    script.write_text(TESTBED, encoding="utf-8")
    foreign.run(sys.executable, str(script))
    scenario = str(ROOT / "docs/examples/rates-only.toml")
    foreign.thalweg("testbed", "plan", scenario)
    foreign.thalweg("testbed", "up", scenario, "--no-delay", "--name", "one")
    (up,) = json.loads(foreign.thalweg("testbed", "status", "--json").splitlines()[-1])["testbeds"]
    host, other = list(up["hosts"])[:2]
    foreign.thalweg("testbed", "exec", "-d", host, "--", "/bin/echo", "there")
    foreign.thalweg("testbed", "play", scenario)
    foreign.thalweg("testbed", "play", "--stop")
    for verb in (["set", host, other, "--rate", "5mbit"], ["cut", host, other], ["restore", host, other]):
        foreign.thalweg("testbed", *verb)
    foreign.thalweg("testbed", "logs", host)
    foreign.thalweg("testbed", "down")
    foreign.thalweg("testbed", "up", "--hosts", "2", "--rate", "20mbit")
    foreign.thalweg("testbed", "verify")
    foreign.thalweg("testbed", "down")


@pytest.mark.long
@pytest.mark.netns
def test_measurements_with_iperf3_execute_no_foreign_code(foreign: Foreign) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("needs iperf3")
    foreign.thalweg("testbed", "up", "--hosts", "2", "--rate", "20mbit")
    foreign.thalweg("testbed", "verify", "--with", "iperf3")


@pytest.mark.long
@pytest.mark.netns
def test_runs_reports_and_comparisons_execute_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    small = ("--servers", "2", "--images", "3", "--time-scale", "60", "--link-mean", "0.2mbit")
    netns, sim = str(tmp_path / "netns"), str(tmp_path / "sim")
    foreign.thalweg(
        "run", "--testbed", "netns", *small, "--placement", "one-shot", "--placement", "local", "--out", netns
    )
    foreign.thalweg("run", "--testbed", "sim", *small, "--out", sim)
    foreign.thalweg(
        "run", "--testbed", "sim", "--workload", "plates", "--out", str(tmp_path / "plates"), "--images", "20"
    )
    foreign.thalweg("analyze", netns)
    foreign.thalweg("report", netns, sim, "--out", str(tmp_path / "report.html"))
    compared = ("--seed", "1", "--repeats", "1", "--limit", "0.9", *small, "--out", str(tmp_path / "compared"))
    foreign.thalweg("compare", *compared, status=None)  # a busy machine differs


@pytest.mark.long
@pytest.mark.spark
def test_sweeps_and_analyses_on_spark_execute_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    runs = [str(tmp_path / name) for name in ("a", "b")]
    for seed, run in enumerate(runs):
        foreign.thalweg("run", "--testbed", "sim", "--servers", "2", "--images", "3", "--seed", str(seed), "--out", run)
    foreign.thalweg("analyze", *runs, "--master", "local[1]")
    grid = ("--configurations", "1", "--pools", "1", "--servers", "2", "--images", "3", "--master", "local[1]")
    swept = str(tmp_path / "swept")
    foreign.thalweg("sweep", *grid, "--out", swept)
    foreign.thalweg("analyze", swept, "--master", "local[1]")
    foreign.thalweg("report", swept, "--out", str(tmp_path / "report.html"))
    foreign.thalweg("sweep", "--faults", "2", "--master", "local[1]", "--out", str(tmp_path / "faults"))


PLANNERS = """
from thalweg.middleware.planning import OneShot


def Mine():
    return OneShot()
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("run", "--testbed", "loopback"), id="run"),
        pytest.param(
            ("sweep", "--configurations", "1", "--pools", "1", "--master", "local[1]"),
            id="sweep",
            marks=[pytest.mark.long, pytest.mark.spark],
        ),
    ],
)
def test_named_code_of_the_folder_does_not_hide_installed_modules(
    foreign: Foreign, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The user names one module of the folder. Other modules of the folder still hide nothing."""
    (foreign.folder / "planners_of_mine.py").write_text(PLANNERS, encoding="utf-8")
    for name in ("simpy", "docker"):  # these are not installed everywhere, and imported from there if they are not
        (foreign.folder / f"{name}.py").unlink()
    options = (
        "--placement",
        "planners_of_mine:Mine",
        "--servers",
        "2",
        "--images",
        "2",
        "--out",
        str(tmp_path / "out"),
    )
    foreign.thalweg(*words, *options)


@pytest.mark.long
def test_verbs_for_traces_keys_and_plans_execute_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    traces, keys = tmp_path / "traces", tmp_path / "keys"
    foreign.thalweg("traces", "generate", "--count", "2", "--duration", "600", "--out", str(traces))
    (first, _) = sorted(traces.glob("*.csv"))
    for words in (
        ("list", str(traces)),
        ("describe", str(first)),
        ("import", str(first), "--out", str(tmp_path / "again")),
    ):
        foreign.thalweg("traces", *words)
    foreign.thalweg("keys", "new", "h1", "--out", str(keys))
    members = ("--members", str(keys / "members"))
    for words in (("allow", str(keys / "h1.key")), ("list",), ("revoke", "h1")):
        foreign.thalweg("keys", *words, *members)
    examples = ROOT / "docs/examples"
    foreign.thalweg("place", str(examples / "placement.toml"), "--cost", "period", "--bound")
    foreign.thalweg("place", str(examples / "optimal.toml"), "--planner", "odp")
    foreign.thalweg("provision", str(examples / "provision.toml"), "--heuristic", "subtree-bottom-up")


@pytest.mark.long
def test_a_host_executes_no_foreign_code(foreign: Foreign) -> None:
    words = [*COMMAND, "host", "--name", "h1", "--listen", "tcp://127.0.0.1:*", "--insecure"]
    with subprocess.Popen(words, cwd=foreign.folder, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            control = json.loads(host.stdout.readline())["control"]
            foreign.thalweg("doctor", "--to", f"h1={control}")
        finally:
            host.send_signal(signal.SIGTERM)
        assert host.wait(patience(30)) == 0
    assert foreign.executed() == []


BENCHES = {
    "tree": ("--sources", "2", "--partitions", "4", "--rounds", "1"),
    "graph": ("--partitions", "4", "--rounds", "1"),
    "failover": ("--partitions", "8", "--rounds", "1"),
    "link": ("--rounds", "1"),
    "records": ("--rows", "100", "--batches", "256", "--rounds", "1"),
    "plan": ("--servers", "2", "--problems", "1"),
    "cost-space": ("--rounds", "1", "--queries", "2"),
    "odp": ("--rounds", "1", "--only", "first", "--time-limit", "5"),
    "provision": ("--rounds", "1", "--largest", "10", "--time-limit", "5"),
    "bimodal": ("--hosts", "10", "--links", "9", "--rounds", "1"),
    "sim": ("--servers", "2", "--images", "3", "--rounds", "1", "--memory", "20"),
    "attack": ("--frames", "100", "--only", "mutated"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(BENCHES))
def test_benchmarks_execute_no_foreign_code(foreign: Foreign, name: str) -> None:
    foreign.thalweg("bench", name, *BENCHES[name])


@pytest.mark.long
@pytest.mark.netns
@pytest.mark.parametrize(
    "words", [("testbed", "--network", "2", "--hosts", "2", "--idle", "1"), ("move", "--size", "16", "--moves", "4")]
)
def test_benchmarks_on_links_execute_no_foreign_code(foreign: Foreign, words: tuple[str, ...]) -> None:
    foreign.thalweg("bench", *words)


@pytest.mark.long
@pytest.mark.uml
def test_the_uml_kernel_executes_no_foreign_code(foreign: Foreign, tmp_path: Path) -> None:
    foreign.thalweg("testbed", "up", "--hosts", "2", "--rate", "10mbit", "--delay", "5ms", "--kernel", "uml")
    assert foreign.thalweg("testbed", "exec", "h1", "--", "/bin/echo", "there") == "there\n"
    foreign.thalweg("testbed", "down")
    small = (
        "--servers",
        "2",
        "--images",
        "2",
        "--link-mean",
        "0.2mbit",
        "--time-scale",
        "60",
        "--out",
        str(tmp_path / "run"),
    )
    foreign.thalweg("run", "--testbed", "netns", "--kernel", "uml", *small)
    script = tmp_path / "application.py"
    script.write_text(TESTBED.replace('rate="100mbit"', 'rate="10mbit", delay="5ms", kernel="uml"'), encoding="utf-8")
    foreign.run(sys.executable, str(script))


@pytest.mark.long
@pytest.mark.docker
def test_containers_execute_no_foreign_code(foreign: Foreign) -> None:
    foreign.thalweg("testbed", "up", "--backend", "docker", "--hosts", "2", "--rate", "10mbit", "--no-delay")
    assert foreign.thalweg("testbed", "exec", "h1", "--", "echo", "there") == "there\n"
    foreign.thalweg("testbed", "down")
