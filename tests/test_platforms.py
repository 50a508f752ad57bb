"""macOS and Windows, emulated on Linux: Thalweg's code sees their standard library (see ``emulated/sitecustomize``).

None of the tests has run on a real macOS or Windows. The tests show that the portable part of Thalweg uses no name that
the systems lack, and that a command that needs Linux is refused in one line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import structure
import systems
from fake_apt import write_program

from thalweg.middleware.errors import EXTRAS

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
LINUX_ONLY = {
    "emulation.containers.machine",
    "emulation.containers.process",
    "emulation.containers.world",
    "emulation.kernel.interfaces",
    "emulation.kernel.namespaces",
    "emulation.kernel.world",
    "emulation.proofs.delay",
    "emulation.proofs.kinds",
    "emulation.proofs.rate",
    "emulation.proofs.tcp",
    "emulation.recording.counting",
    "emulation.recording.recorder",
    "emulation.server.supervisor",
    "emulation.supervisor.player",
    "emulation.supervisor.sampler",
    "emulation.testbeds.docker",
    "emulation.uml.inside",
    "emulation.uml.keeper",
    "emulation.uml.kernel",
    "emulation.uml.system",
    "emulation.uml.testbed",
    "middleware.shell.guard",
}
KNOWN = {
    "darwin": {"os": {"pidfd_open", "pipe2", "sched_getaffinity"}, "select": {"epoll"}, "signal": {"pidfd_send_signal"},
               "socket": {"AF_NETLINK", "AF_PACKET", "TCP_INFO"}},
    "win32": {"os": {"fork", "geteuid", "getuid", "killpg", "pidfd_open", "pread", "pwrite", "statvfs", "WNOHANG"},
              "select": {"epoll", "poll"}, "signal": {"SIGKILL", "SIGHUP", "SIGCHLD", "setitimer"},
              "socket": {"AF_UNIX", "send_fds", "recv_fds"}, "time": {"clock_gettime"}},
}  # fmt: skip
EMULATED = [pytest.param("darwin", marks=pytest.mark.long), "win32"]  # Windows lacks more
SYSTEM = {"darwin": "macOS", "win32": "Windows"}

IMPORT_ALL = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name if name.startswith("benchmarks") else f"thalweg.{name}")
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""
VERBS = """
import json, shlex, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from thalweg.experiments.cli.main import invoke
answers = {}
for line in sys.argv[1:]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            status = invoke(shlex.split(line))
        except Exception:
            status = traceback.print_exc()
    answers[line] = status, out.getvalue(), err.getvalue()
print(json.dumps(answers))
"""
BASE = """
import thalweg
for name in thalweg.__all__:
    getattr(thalweg, name)
from thalweg import Code, Hints, LinkEstimate, NetworkView, complete_binary_tree, get_cost_model, get_planner
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning import Task, ask_planner

hosts = ("h1", "h2", "client")
scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 2, "seed": 1}) for i in range(2)}
flow = complete_binary_tree(scenes, Code("composite"))
rates = {link: 1e4 if link[:2] == ("h2", "client") else 1e6 for link in links_between(hosts)}
view = NetworkView({link: LinkEstimate(rate) for link, rate in rates.items()})
task = Task((flow,), hosts, view, Hints({node.name: 1e5 for node in flow.nodes}))
plan = ask_planner(get_planner("one-shot"), task, get_cost_model("critical-path"))
links = {link: BandwidthTrace.constant(" ".join(link), rate) for link, rate in rates.items()}
world, indices = World(hosts, links, real_code(("thalweg.operators",), 1e9)), []
world.on_delivered = lambda command, now: indices.append(command.index)
world.run(flow.validate(), plan.placement, 3)
print(plan.placement["op0"], indices)
"""
CLUSTER = """
import threading
from thalweg import Client, Code, LocalCluster, complete_binary_tree

class Ends:
    def __init__(self):
        self.fates, self.all = {}, threading.Event()
    def told(self, name, fate):
        self.fates[name] = fate
        if len(self.fates) == 2:
            self.all.set()

scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 2, "seed": 1}) for i in range(2)}
ends = Ends()
with LocalCluster(2, records=".") as cluster, Client(cluster, journal="journal") as client:
    cluster.tell_ends(ends.told)
    print(cluster.addresses["h1"].partition(":")[0])
    print([partition.index for partition in client.run(complete_binary_tree(scenes, Code("composite")), partitions=3)])
    print(cluster.drain("h2"))
    cluster.kill("h1")
    assert ends.all.wait(20)
    print(sorted(ends.fates), ends.fates["h2"])
    cluster.start("h1")
    print(cluster.poll())
print([thread.name for thread in threading.enumerate() if thread.name.startswith("thalweg")])
"""

WORKS = {  # the command line, and a part of its output
    "--version": "thalweg ",
    "--help": "Usage: thalweg",
    "doctor": "netns",
    f"place {EXAMPLES / 'placement.toml'}": "critical-path:",
    "traces generate --count 2 --seed 1 --out traces": "",
    "traces list traces": "",
    "keys new h1 --role host --out keys": "keep it to yourself",
    "keys list --members keys": "h1",
    "testbed status": "no testbed is up",
}
WORKS_WITH_EXTRAS = {
    "run --testbed sim --servers 4 --images 4 --placement one-shot --placement global --seed 1 --out a": "virtual time",
    f"testbed plan {EXAMPLES / 'campus.toml'} --out plan.png": "drawn: plan.png",
}
NAMESPACES, KERNEL = "network namespaces need Linux", "a User-Mode Linux kernel needs Linux"
REFUSED = {
    "testbed up --hosts 2 --rate 10mbit": NAMESPACES,
    "testbed up --hosts 2 --backend docker": "testbeds of containers need Linux",
    "testbed up --hosts 2 --kernel uml": KERNEL,
    "run --servers 2 --images 2 --testbed netns --out b": NAMESPACES,
    "run --servers 2 --images 2 --testbed docker --out b": "testbeds of containers need Linux",
    "run --servers 2 --images 2 --testbed loopback --out b": "the loopback testbed needs Linux",
    "run --servers 2 --images 2 --kernel uml --out b": KERNEL,
    "compare --servers 2 --images 2 --out b": NAMESPACES,
    f"testbed verify {EXAMPLES / 'campus.toml'} --kernel uml": KERNEL,
    "bench move --size 1 --moves 1": "the loopback testbed needs Linux",
    "bench attack": "the bounds of a host that is attacked need Linux",
    "host --name h1 --listen tcp://0.0.0.0:7800 --insecure": "to listen at tcp://0.0.0.0:7800",
}


class Answer(NamedTuple):
    """Result of a command line."""

    status: int | None  # None: it ended in a traceback
    out: str
    err: str


class Answers(NamedTuple):
    """Answers of all command lines on a system, and the names of the files left behind."""

    system: str
    lines: dict[str, Answer]
    left: set[str]


@pytest.fixture(scope="module", params=EMULATED)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp(request.param)
    done = systems.run(request.param, VERBS, *WORKS, *WORKS_WITH_EXTRAS, *REFUSED, folder=folder)
    assert done.returncode == 0, done.stderr
    lines = {line: Answer(*answer) for line, answer in json.loads(done.stdout.splitlines()[-1]).items()}
    return Answers(request.param, lines, {path.name for path in folder.iterdir()})


@pytest.mark.parametrize("system", EMULATED)
def test_the_emulated_systems_lack_names_that_only_linux_has(system: str, tmp_path: Path) -> None:
    for module, names in KNOWN[system].items():
        assert names <= systems.missing(module, system)
    code = "import thalweg.middleware.platform as p; print(p.sys.platform, hasattr(p.os, 'pidfd_open'))"
    assert systems.run(system, code, folder=tmp_path).stdout == f"{system} False\n"


@pytest.mark.parametrize("system", EMULATED)
def test_all_modules_except_linux_only_modules_are_imported(system: str, tmp_path: Path) -> None:
    portable = [name for name in structure.modules() if name not in LINUX_ONLY]
    done = systems.run(system, IMPORT_ALL, *portable, folder=tmp_path)
    assert json.loads(done.stdout) == {}, done.stderr


@pytest.mark.parametrize("system", EMULATED)
def test_the_install_line_names_a_program_and_no_package_without_apt(system: str, tmp_path: Path) -> None:
    write_program(tmp_path / "apt-cache", "#!/bin/sh\nprintf 'made:\\n  Candidate: 1.0\\n'\n")
    code = "import os; os.environ['PATH'] = '.'; from thalweg.middleware.platform.packages import install_line as line"
    done = systems.run(system, f"{code}; print(line('Java', 'made'))", folder=tmp_path)
    assert done.stdout == "install Java\n", done.stderr


def test_the_list_of_linux_only_modules_names_modules_that_exist() -> None:
    assert structure.modules().keys() >= LINUX_ONLY


@pytest.mark.parametrize("system", EMULATED)
def test_the_base_install_imports_all_public_names_plans_and_simulates(system: str, tmp_path: Path) -> None:
    extras = [module for modules in EXTRAS.values() for module in modules]
    done = systems.run(system, BASE, folder=tmp_path, absent=extras)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "h1 [0, 1, 2]\n"


@pytest.mark.parametrize("line", [*WORKS, *WORKS_WITH_EXTRAS])
def test_commands_without_a_testbed_work(answers: Answers, line: str) -> None:
    status, out, err = answers.lines[line]
    assert status == 0, err
    assert {**WORKS, **WORKS_WITH_EXTRAS}[line] in " ".join(out.split())


@pytest.mark.parametrize("line", REFUSED)
def test_commands_that_need_linux_are_refused_in_one_line(answers: Answers, line: str) -> None:
    status, out, err = answers.lines[line]
    assert (status, out) == (2, ""), err
    assert re.fullmatch(rf"thalweg: {re.escape(REFUSED[line])}.*, and this is {SYSTEM[answers.system]}; .*\n", err)
    assert "b" not in answers.left


def test_doctor_names_the_system_as_the_reason_against_every_testbed(answers: Answers) -> None:
    rows = " ".join(answers.lines["doctor"].out.split())
    assert rows.count(f"this is {SYSTEM[answers.system]}") == 7
    assert "sysctl" not in rows


@pytest.mark.parametrize(("system", "transport"), [("darwin", "ipc"), ("win32", "tcp")])
def test_a_cluster_on_loopback_runs_and_all_hosts_end(system: str, transport: str, tmp_path: Path) -> None:
    """The hosts' processes see the same system. On Windows a closed pipe or a message asks a host to end."""
    done = systems.run(system, CLUSTER, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        transport, "[0, 1, 2]", "0", "['h1', 'h2'] ended with status 0", "{'h2': 0}", "[]"
    ]  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"h1.jsonl", "h2.jsonl", "journal"}
    assert "Traceback" not in done.stderr


def test_no_file_of_the_portable_part_asks_for_the_system() -> None:
    """Differences of systems are in ``middleware.platform`` alone."""
    asks = re.compile(r"\bsys\.platform\b|\bos\.name\b|\bplatform\.system\(")
    asking = {name for name, path in structure.modules().items() if asks.search(path.read_text(encoding="utf-8"))}
    assert {name for name in asking if not name.startswith("middleware.platform")} <= LINUX_ONLY
