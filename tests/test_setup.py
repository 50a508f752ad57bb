"""The set-up of a fresh machine: one list of programs, and packages that apt can install."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from patience import patience

ROOT = Path(__file__).parents[1]
TOOLS = ("bash", "cat", "cp", "dirname", "env", "grep", "head", "mkdir", "rm", "sed", "sort", "tr", "sleep")
ESSENTIAL = {"getent", "hostname", "nsenter", "tail"}  # on every Debian: libc-bin, hostname, util-linux and coreutils

APT_CACHE = """#!/bin/sh
candidate=$(sed -n "s/^$2 //p" {folder}/candidates)
printf '%s:\\n  Installed: (none)\\n  Candidate: %s\\n' "$2" "${{candidate:-(none)}}"
for line in 1 2 3; do sleep 0.02; echo '  Version table:' || exit 141; done
"""
APT_GET = """#!/bin/sh
echo "$@" >>{folder}/calls
[ "$1" = install ] || exit 0
for word; do
  case $word in
    install|-*|DPkg::Lock::Timeout=*) ;;  # waits while another apt runs
    *) grep -q "^$word " {folder}/candidates || exit 100  # no installation candidate
       for program in $(sed -n "s/^$word //p" {folder}/brings); do
         cp {folder}/does-$program {folder}/bin/$program
       done ;;
  esac
done
"""
BRINGS = {
    "openjdk-17-jre-headless": "java",
    "openjdk-21-jre-headless": "java",
    "default-jre-headless": "java",
    "iproute2": "ip tc",
    "iputils-ping": "ping",
    "procps": "kill pkill",
    "util-linux": "unshare",
}
BOOKWORM = {name: "1" for name in BRINGS if name != "openjdk-21-jre-headless"}
TRIXIE = {name: "1" for name in BRINGS if name != "openjdk-17-jre-headless"}


class Machine:
    """Machine with only a shell and Python, on which apt can install the packages of ``candidates``."""

    def __init__(self, folder: Path, candidates: Mapping[str, str], user: int = 0) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self._program("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self._program("id", f"#!/bin/sh\necho {user}\n")
        self._program("apt-cache", APT_CACHE.format(folder=folder))
        self._program("apt-get", APT_GET.format(folder=folder))
        for name, text in {"candidates": candidates, "brings": BRINGS}.items():
            (folder / name).write_text("".join(f"{key} {value}\n" for key, value in text.items()))
        for program in " ".join(BRINGS.values()).split():
            text = "echo 'openjdk version \"21.0.1\"' >&2" if program == "java" else "exit 0"
            (folder / f"does-{program}").write_text(f"#!/bin/sh\n{text}\n")
            (folder / f"does-{program}").chmod(0o755)

    def _program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install(self, *groups: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "bash"), str(ROOT / ".ci/install"), *groups]
        environment = {"PATH": str(self.bin), "THALWEG_SBIN": str(self.bin)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=patience(20), check=False
        )

    @property
    def calls(self) -> list[str]:
        """Return the recorded calls of apt-get."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("candidates", "java"), [(BOOKWORM, "openjdk-17"), (TRIXIE, "openjdk-21")], ids=["12", "13"])
def test_the_first_package_that_apt_can_install_is_installed(
    tmp_path: Path, candidates: Mapping[str, str], java: str
) -> None:
    """Debian 13 knows openjdk-17-jre-headless as a purely virtual package, which apt-cache show finds."""
    machine = Machine(tmp_path, candidates)
    done = machine.install("needed", "wanted")
    assert (done.returncode, done.stderr) == (0, "")
    update, install = machine.calls
    assert update == "update -qq"
    assert {word for word in install.split() if word.startswith(("openjdk", "default"))} == {f"{java}-jre-headless"}
    assert machine.install("needed", "wanted").stdout == "", "nothing is missing the second time"
    assert len(machine.calls) == 2


def test_a_wanted_program_that_cannot_be_installed_does_not_end_the_set_up(tmp_path: Path) -> None:
    without = {name: "1" for name in BOOKWORM if "jre" not in name}
    done = Machine(tmp_path, without).install("needed", "wanted")
    assert done.returncode == 0
    (note,) = (line for line in done.stderr.splitlines() if line.startswith("note"))
    assert note.startswith("note: this machine lacks java, so sweeps and the analysis of several runs will not work; ")
    assert (tmp_path / "bin/ping").exists(), "what can be installed is installed all the same"


def test_a_needed_program_that_cannot_be_installed_ends_the_set_up(tmp_path: Path) -> None:
    without = {name: "1" for name in BOOKWORM if name != "util-linux"}
    done = Machine(tmp_path, without).install("needed", "wanted")
    assert done.returncode == 1
    assert "this machine lacks unshare, and Thalweg cannot be set up without it" in done.stderr
    assert "apt-get install util-linux" in done.stderr


def test_the_note_to_an_ordinary_user_names_a_package_that_apt_can_install(tmp_path: Path) -> None:
    machine = Machine(tmp_path, TRIXIE, user=1000)
    done = machine.install("wanted")
    assert done.returncode == 0
    assert machine.calls == []
    notes = done.stderr.splitlines()
    assert len(notes) == 6, "java, ip, tc, ping, kill and pkill"
    assert notes[0].endswith(
        "install the package openjdk-21-jre-headless as root (apt-get install openjdk-21-jre-headless)"
    )
    assert machine.install("needed").returncode == 1, "unshare is missing"


def test_every_program_that_a_test_needs_is_in_the_list() -> None:
    listed = {line.split()[1] for line in (ROOT / ".ci/packages").read_text().splitlines() if not line.startswith("#")}
    marked = set[str]()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.program":
                marked |= {ast.literal_eval(word) for word in node.args}
    assert {"ping", "pkill", "tc"} <= marked
    assert marked <= listed | ESSENTIAL
