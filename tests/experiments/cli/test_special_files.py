"""Every verb that takes a file promptly refuses a pipe, a device, a socket, a folder or an oversized file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from patience import patience

from thalweg.emulation.testbeds import detached, known
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.papers.study import FORMAT
from thalweg.experiments.records.records import EVENTS
from thalweg.middleware.shell.security import read_members

LIMIT_S = 20.0
LARGE_BYTES = 5 << 30


class Late(BaseException):
    """Exception of a passed time limit, which no verb mistakes for an error of a file."""


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise Late in a block that takes longer than the limit, even if the block waits for a file to open."""

    def late(_: int, __: FrameType | None) -> None:
        raise Late(f"it still waits after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGE_BYTES)  # it takes no room on the disk


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # the name remains


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a pipe, which may never end; save its content in a file, and name the file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device; name a regular file"),
    "terminal": (lambda path: path.symlink_to("/dev/ptmx"), "it is a device; name a regular file"),
    "socket": (listening, "it is a socket; name a regular file"),
    "folder": (Path.mkdir, ""),  # several verbs take a folder as well, and say what it lacks
    "large": (large, ""),
}
VERBS = (
    "place",
    "place --compare",
    "provision",
    "testbed plan",
    "testbed up",
    "testbed verify",
    "run --testbed sim --scenario",
    "run --testbed sim --placement fixed --plan",
    "run --testbed sim --traces",
    "compare --traces",
    "sweep --figure 6 --configurations 1 --pool",
    "sweep --replay-faults",
    "traces describe",
    "traces list",
    "traces import --out made",
    "keys allow",
    "host --listen ipc:///tmp/never --keys",
    "doctor --to tcp://127.0.0.1:1 --keys",
)
OF_NAMES = "sweep --figure 6 --configurations 1 --pool"  # a pool is a name, or a folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_special_or_oversized_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, expected = KINDS[kind]
    name = f"{kind}.csv" if "trace" in verb else f"{kind}.toml"
    make(Path(name))
    with within(patience(LIMIT_S)):
        assert invoke([*verb.split(), name]) == 2
    err = capsys.readouterr().err
    assert err.startswith("thalweg: ")
    assert (err.count(name), err.count("\n")) == (1, 1), err
    if verb != OF_NAMES:
        assert expected in err


@pytest.mark.parametrize("word", ["/dev/stdin", "/dev/fd/0"])
def test_a_pipe_of_a_shell_is_refused(word: str) -> None:
    """The result of ``thalweg testbed plan <(…)`` would depend on the duration of the other program."""
    code = "import sys; from thalweg.experiments.cli.main import invoke; sys.exit(invoke(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", code, "testbed", "plan", word],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as done:  # fmt: skip
        try:
            assert done.wait(patience(LIMIT_S)) == 2  # while the pipe is open
        finally:
            done.kill()
        assert done.stderr is not None
        assert f"cannot read {word}: it is a pipe" in done.stderr.read()


def test_standard_input_from_a_file_is_accepted(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "docs/examples/placement.toml"
    code = "import sys; from thalweg.experiments.cli.main import invoke; sys.exit(invoke(sys.argv[1:]))"
    with example.open() as file:
        subprocess.run(
            [sys.executable, "-c", code, "place", "/dev/stdin"],
            stdin=file, stdout=subprocess.DEVNULL, timeout=patience(60), check=True,
        )  # fmt: skip


# --- files that are found, and not named ---------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with within(patience(LIMIT_S)):
        assert invoke([*words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("thalweg: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("key", ["traces", "latency", "throughput", "trace"])
def test_a_pipe_as_a_data_set_of_a_scenario_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("found.csv")
    rate = 'rate = "1mbit"' if key == "latency" else ""
    Path("s.toml").write_text(f'hosts = ["a", "b"]\n[links]\n{rate}\n{key} = "found.csv"\n', encoding="utf-8")
    assert "found.csv" in refused(capsys, "testbed", "plan", "s.toml")


def test_a_pipe_in_a_folder_of_traces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pool").mkdir()
    for name in ("a.csv", "b.mahi"):
        os.mkfifo(f"pool/{name}")
        assert f"{name}: it is a pipe" in refused(capsys, "traces", "list", "pool")
        Path("pool", name).unlink()


@pytest.mark.parametrize("key", ["catalogue", "egress"])
@pytest.mark.parametrize("ending", ["csv", "toml"])
def test_a_pipe_as_a_file_of_a_provisioning_problem_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, ending: str
) -> None:
    examples = Path(__file__).parents[3] / "docs/examples"
    text = (examples / "provision.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith(key)]
    named = [f'{key} = "found.{ending}"', *lines]
    (tmp_path / "p.toml").write_text("\n".join(named).replace('"machines.csv"', f'"{examples}/machines.csv"'))
    os.mkfifo(tmp_path / f"found.{ending}")
    assert f"found.{ending} cannot be read: it is a pipe" in refused(capsys, "provision", str(tmp_path / "p.toml"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["run.toml", EVENTS, "comparison.json", "plots/hosts.png", "images/sheet.png"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_special_file_in_a_run_folder_is_refused_or_ignored(
    tmp_path: Path, new_run: Any, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    run = new_run(tmp_path / "run")
    run.flow("one-shot", 8.0, link_rows=8)
    run.write()
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    KINDS[kind][0](file)
    words = ("report", "--out", str(tmp_path / "page.html"), str(tmp_path / "run"))
    if (name, kind) == ("plots/hosts.png", "pipe"):
        assert f"{name} is damaged or too large" in refused(capsys, *words)
        return
    if name not in ("run.toml", EVENTS):  # a report does without the others. The device is older than the records
        with within(patience(LIMIT_S)):
            assert invoke([*words]) == 0
        return
    for verb in (words, ("analyze", "--no-plots", str(tmp_path / "run"))):
        assert name in refused(capsys, *verb)


@pytest.mark.parametrize(
    ("name", "says"), [("sweep.toml", "nor a sweep (no sweep.toml)"), ("figures.json", "has no results yet")]
)
def test_a_pipe_in_the_folder_of_a_sweep_counts_as_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    from thalweg import __version__

    (tmp_path / "sweep.toml").touch()
    (tmp_path / "figures.json").write_text(f'{{"format": {FORMAT}, "version": "{__version__}"}}')
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    error = refused(capsys, "report", "--out", str(tmp_path / "page.html"), str(tmp_path))
    assert says in error


def test_a_pipe_among_pictures_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for site in ("a", "b"):
        (tmp_path / "pictures" / site).mkdir(parents=True)
        os.mkfifo(tmp_path / "pictures" / site / "1.png")
    words = ("run", "--testbed", "sim", "--servers", "2", "--images", "2", "--folder", str(tmp_path / "pictures"))
    refused(capsys, *words, "--out", str(tmp_path / "out"))


def test_a_pipe_in_the_members_folder_does_not_exclude_valid_members(tmp_path: Path) -> None:
    """A host reads the folder at every handshake."""
    assert invoke(["keys", "new", "h1", "--out", str(tmp_path)]) == 0
    os.mkfifo(tmp_path / "h2.key")
    large(tmp_path / "h3.key")
    with within(patience(LIMIT_S)):
        members, wrong = read_members(tmp_path)
    assert [member.name for member in members] == ["h1"]
    assert ["h2.key" in line for line in wrong] == [True, False]
    assert ["h3.key" in line for line in wrong] == [False, True]


def test_a_pipe_among_the_states_of_testbeds_is_ignored(runtime_folder: Path) -> None:
    known.run_folder().mkdir(parents=True, exist_ok=True)
    os.mkfifo(known.run_folder() / "x.json")
    with within(patience(LIMIT_S)):
        assert known.known_testbeds() == []
        detached.take_down()


def test_a_pipe_for_the_records_of_a_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "records")
    words = ("host", "--name", "h1", "--listen", "tcp://127.0.0.1:*", "--insecure", "--records")
    err = refused(capsys, *words, str(tmp_path / "records"))
    assert f"the records {tmp_path / 'records'} cannot be written: it is a pipe or a socket; name a regular file" in err
