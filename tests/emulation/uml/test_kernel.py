"""Commands inside a User-Mode Linux kernel: streams, processes after a kill, and errors."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from fake_apt import fake_apt, write_program
from patience import patience

from thalweg.emulation.uml import files as uml_files
from thalweg.emulation.uml import kernel as uml
from thalweg.emulation.uml.kernel import Kernel
from thalweg.emulation.uml.wire import HEAD, Frames, Kind
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as booted:
        yield booted


def run(kernel: Kernel, *argv: str, given: bytes | None = None) -> tuple[int, bytes, bytes]:
    """Run a command inside the kernel. Return its status, output and errors."""
    with ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(open(os.memfd_create(name), "w+b")) for name in ("0", "1", "2"))
        stdin.write(given or b"")
        stdin.seek(0)
        source = None if given is None else stdin.fileno()
        process = kernel.start(argv, stdin=source, stdout=stdout.fileno(), stderr=stderr.fileno())
        status = process.wait()
        stdout.seek(0)
        stderr.seek(0)
        return status, stdout.read(), stderr.read()


@pytest.mark.uml
def test_the_streams_and_the_status_of_a_command_arrive_unchanged(kernel: Kernel) -> None:
    payload = random.Random(1).randbytes(150_000)
    status, out, err = run(kernel, "sh", "-c", "cat; head -c 300000 /dev/zero >&2; exit 7", given=payload)
    assert (status, out, err) == (7, payload, bytes(300_000))
    assert run(kernel, "sh", "-c", "kill -TERM $$") == (-signal.SIGTERM, b"", b"")
    assert run(kernel, "cat") == (0, b"", b"")
    with pytest.raises(UsageError, match=r"cannot run 'no-such-command': No such file"):
        run(kernel, "no-such-command")


@pytest.mark.uml
def test_a_command_runs_under_a_different_kernel_on_the_same_files(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THALWEG_MARK", "ä b")
    code = (
        "import os, platform, tempfile, time, thalweg.emulation.uml.files as f; from pathlib import Path;"
        "Path('made').write_text(os.environ['THALWEG_MARK']);"
        "print(platform.release(), f.inside_uml(), os.getcwd(), tempfile.gettempdir(), time.time(), oct(os.umask(0)))"
    )
    mask = os.umask(0o027)
    try:
        status, out, err = run(kernel, sys.executable, "-c", code)
    finally:
        os.umask(mask)
    assert (status, err) == (0, b"")
    release, inside, folder, temporary, at_s, inner_mask = out.decode().split()
    assert (release, inside, folder) == (uml_files.find_kernel().version, "True", str(tmp_path))
    assert temporary.startswith("/dev/shm/")
    assert abs(float(at_s) - time.time()) < 2
    assert inner_mask == "0o27"
    file = tmp_path / "made"
    assert (file.read_text(), file.stat().st_uid, file.stat().st_mode & 0o777) == ("ä b", os.getuid(), 0o640)
    assert not uml_files.inside_uml()


@pytest.mark.uml
def test_a_reader_that_waits_or_leaves_does_not_block_other_commands(kernel: Kernel) -> None:
    read, write = os.pipe()
    endless = kernel.start(["sh", "-c", "cat /dev/zero; echo $? >&2"], stdout=write, stderr=write)
    os.close(write)
    assert os.read(read, 1) == b"\0"
    assert run(kernel, "echo", "x") == (0, b"x\n", b"")  # while that one waits for us to read
    os.close(read)
    assert endless.wait() == 0  # cat got SIGPIPE, as it would have outside


@pytest.mark.uml
def test_a_signal_is_passed_on_to_the_command(kernel: Kernel) -> None:
    read, write = os.pipe()
    code = "trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    process = kernel.start(["sh", "-c", code], stdout=write)
    assert os.read(read, 100) == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 3
    assert os.read(read, 100) == b"got\n"
    os.close(read)
    os.close(write)


@pytest.mark.uml
@pytest.mark.parametrize(
    "victim", ["outer", *(pytest.param(victim, marks=pytest.mark.long) for victim in ("launcher", "kernel"))]
)
def test_no_process_stays_when_the_launcher_or_the_kernel_is_killed(victim: str) -> None:
    code = "from thalweg.emulation.uml.kernel import run_inside; run_inside(['sh', '-c', 'echo up; sleep 100'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        assert launcher.stdout.read(3) == b"up\n"
        family = psutil.Process(launcher.pid).children(recursive=True)
        kernel = next(process.pid for process in family if process.name() == "linux.uml")
        target = {"launcher": launcher.pid, "outer": family[0].pid, "kernel": kernel}[victim]
        os.kill(target, signal.SIGKILL)
        assert launcher.wait(patience(20)) == (-signal.SIGKILL if victim == "launcher" else 1)
        if victim != "launcher":
            assert b"the User-Mode Linux kernel ended" in launcher.stderr.read()
    assert not psutil.wait_procs(family, 10)[1]


def test_a_process_that_is_not_the_first_of_a_kernel_powers_nothing_off() -> None:
    code = (
        "from thalweg.emulation.uml.system import Power; power = Power.__new__(Power); power._trigger = 1; power.off()"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.uml
@pytest.mark.parametrize("victim", ["launcher", pytest.param("kernel", marks=pytest.mark.long)])
def test_no_process_stays_after_a_kill_without_a_process_namespace(victim: str, tmp_path: Path) -> None:
    go, output = tmp_path / "go", tmp_path / "said"
    code = (
        "from thalweg.emulation.uml import kernel as uml; find = uml.find_program;"
        "uml.find_program = lambda name: None if name == 'unshare' else find(name);"
        "uml.run_inside(['sh', '-c', 'echo up; until [ -e go ]; do sleep 0.05; done; echo more; touch said; sleep 99'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.read(3) == b"up\n"
        family = psutil.Process(launcher.pid).children(recursive=True)
        assert family[0].name() == "linux.uml"
        launcher.send_signal(signal.SIGSTOP)  # what the kernel says from now on stays unread
        go.touch()
        stop = time.monotonic() + patience(20)
        while not output.exists() and time.monotonic() < stop:
            time.sleep(0.02)
        assert output.exists()
        os.kill(launcher.pid if victim == "launcher" else family[0].pid, signal.SIGKILL)
        launcher.send_signal(signal.SIGCONT)
        launcher.wait(patience(20))
    assert not psutil.wait_procs(family, 20)[1]


@pytest.mark.uml
def test_the_first_interrupt_is_passed_on_and_the_second_ends_the_launcher() -> None:
    code = (
        "import signal, sys; from thalweg.emulation.uml.kernel import run_inside;"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9));"
        "sys.exit(run_inside(['sh', '-c', 'trap \"echo got\" INT; echo up; while :; do sleep 0.05; done']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.read(3) == b"up\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout.read(4) == b"got\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(patience(20)) == 9


@pytest.mark.long
@pytest.mark.uml
def test_an_interrupt_is_passed_on_as_soon_as_the_command_runs() -> None:
    code = (
        "import signal, sys; from thalweg.emulation.uml.kernel import Kernel, run_inside;"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9)); start = Kernel.start;"
        "Kernel.start = lambda *args, **more: (start(*args, **more), signal.raise_signal(signal.SIGINT))[0];"
        "sys.exit(run_inside(['sleep', '30']))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=patience(60)).returncode == 128 + signal.SIGINT


@pytest.mark.long
@pytest.mark.uml
def test_a_kernel_that_does_not_start_is_reported_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uml, "isolated_command", lambda *words: ["/bin/false", *words])
    with pytest.raises(TestbedError, match=r"did not come up: .*Attempted to kill init"):
        Kernel()
    monkeypatch.undo()
    monkeypatch.setattr(uml, "BOOT_S", 0.1)
    with pytest.raises(TestbedError, match=r"did not boot within 0.1 s: .*less busy"):
        Kernel()
    monkeypatch.undo()
    kernel_files = uml_files.find_kernel()
    monkeypatch.setattr(uml, "find_kernel", lambda: kernel_files._replace(modules=("/etc/hostname",)))
    with pytest.raises(TestbedError, match=r"did not come up: /etc/hostname: Exec format error"):
        Kernel()


def tree(folder: Path, *names: str, depends: str = "", built_in: str = "") -> Path:
    """Write the files that list the modules of a folder."""
    lines = [f"kernel/{name}.ko:" for name in names]
    (folder / "modules.dep").write_text("\n".join([*lines, depends]))
    (folder / "modules.builtin").write_text(built_in)
    return folder


def test_modules_come_after_the_dependencies(tmp_path: Path) -> None:
    further = ("kernel/veth", "kernel/sch_htb", "kernel/sch-netem")
    depends = "kernel/bridge.ko.xz: kernel/stp.ko kernel/llc.ko\nkernel/stp.ko: kernel/llc.ko\nkernel/llc.ko:"
    names = [name.removeprefix("kernel/") for name in further]
    modules = uml_files._modules(tree(tmp_path, *names, depends=depends, built_in="kernel/net/sched/cls_u32.ko\n"))
    assert [Path(path).name for path in modules[:3]] == ["llc.ko", "stp.ko", "bridge.ko.xz"]
    assert {Path(path).name for path in modules[3:]} == {"veth.ko", "sch_htb.ko", "sch-netem.ko"}
    with pytest.raises(CapabilityError, match=r"module sch_netem is not in .*user-mode-linux"):
        uml_files._modules(tree(tmp_path, "veth", "sch_htb", "cls_u32", "bridge"))


def test_a_missing_kernel_or_module_folder_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"kernel is installed; install one$"):
        uml_files.find_kernel()
    fake_apt(tmp_path, real=["user-mode-linux"])
    with pytest.raises(CapabilityError, match=r"install one .*apt-get install user-mode-linux"):
        uml_files.find_kernel()
    kernel = write_program(tmp_path / "linux.uml", "#!/bin/sh\necho 1.2.3\n")
    with pytest.raises(CapabilityError, match=r"\(1.2.3\) has no modules in .*apt-get install user-mode-linux"):
        uml_files.find_kernel()
    kernel.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(CapabilityError, match="is no kernel that runs here"):
        uml_files.find_kernel()
    monkeypatch.setattr(uml_files.platform, "machine", lambda: "aarch64")
    with pytest.raises(CapabilityError, match="needs Linux on x86-64, this is Linux on aarch64"):
        uml_files.find_kernel()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CapabilityError, match="needs Linux, and this is macOS"):
        uml_files.find_kernel()


def test_the_memory_of_a_kernel_fits_the_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uml_files.memory_for(64 << 20, 16 << 30) == 0  # the /dev/shm of a container
    assert uml_files.memory_for(1 << 40, 1 << 40) == uml_files.MEMORY_BYTES[1]
    assert uml_files.memory_for(1 << 40, 2 << 30) == 1 << 30
    monkeypatch.setattr(uml_files, "memory_for", lambda *_: 0)
    with pytest.raises(CapabilityError, match=r"no room .*/dev/shm: \d+ MiB free.*TMPDIR"):
        uml_files.find_memory()


def test_frames_are_assembled_from_pieces_of_every_size() -> None:
    sent = [(Kind.LINE, 7, b'{"id": 1}'), (Kind.READY, 0, b""), (Kind.DATA, 1, bytes(100))]
    stream = b"".join(HEAD.pack(kind, number, len(payload)) + payload for kind, number, payload in sent)
    for step in (1, 5, len(stream)):
        frames = Frames()
        got = [frame for i in range(0, len(stream), step) for frame in frames.feed(stream[i : i + step])]
        assert got == sent
