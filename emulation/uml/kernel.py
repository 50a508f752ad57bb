"""Commands inside a User-Mode Linux kernel, which has netem if the machine's own kernel has none.

The kernel is an ordinary program (Debian's package user-mode-linux) and needs no root. Its root is the host's own file
system (hostfs), so the same Python runs the same code on the same files. A command's streams and exit status come out
through a serial line (see ``uml.wire``). The kernel has one processor and no network except loopback.

Nothing is left on the host. The kernel writes no file, as the file of its memory has no name. The kernel is in a
process namespace that ends with the booting process. If the system permits no such namespace, the kernel powers off
when the line closes.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Self

from thalweg.emulation.uml import init, registers
from thalweg.emulation.uml.files import find_kernel, find_memory
from thalweg.emulation.uml.streams import Credit, Streams
from thalweg.emulation.uml.wire import COUNT, HEAD, LINE_WINDOW, PRIVATE, STATUS, Frames, Kind
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.platform.python import SHELL, find_program, isolated_command, module_command, working_folder

BOOT_S = 60.0  # about 3 s on an idle machine
POWER_OFF_S = 15.0
OPEN_FILES = 65_536
# The first use of a page is expensive there (a signal, a system call of the host). Keep freed memory (mallopt(3)).
MALLOC_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(4 << 20),
}
PRIVATE_VARIABLES = dict.fromkeys(("TMPDIR", "XDG_RUNTIME_DIR"), PRIVATE)  # the host's folders have no use inside


class InsideProcess(Streams):
    """Command inside the kernel. ``wait`` returns the status, negative for a signal, after the whole output."""

    def __init__(self, kernel: Kernel, number: int, stdin: int | None, stdout: int, stderr: int) -> None:
        source = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        super().__init__(kernel, number, {0: source}, {1: os.dup(stdout), 2: os.dup(stderr)})
        self._kernel, self._ended = kernel, threading.Event()
        self._status: int | None = None
        self._refused: str | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal. If the command has ended, nothing happens."""
        self._kernel.send(Kind.SIGNAL, self.number, bytes([number]))

    def wait(self) -> int:
        """Wait for the end and return the status.

        Raises UsageError if the command could not be run, TestbedError if the kernel ended first.
        """
        self._ended.wait()
        self.join()
        if self._refused is not None:
            raise UsageError(self._refused)
        if self._status is None:
            raise TestbedError(f"the User-Mode Linux kernel ended: {self._kernel.last_words()}")
        return self._status

    def hear(self, kind: int, payload: bytes) -> None:
        if kind == Kind.ENDED:
            (self._status,) = STATUS.unpack(payload)
            self.end()
        elif kind == Kind.REFUSED:
            self._refused = payload.decode()
            self.end()
        else:
            super().hear(kind, payload)

    def end(self) -> None:
        super().end()
        self._ended.set()


class Kernel:
    """Booted kernel, which must be closed. ``with`` closes the kernel. Thread-safe.

    The kernel ends with the *thread* that booted the kernel, so boot it from the main thread.
    """

    def __init__(self, relay: Callable[[int, int, bytes], None] | None = None) -> None:
        """Boot. Raises CapabilityError if this machine cannot, TestbedError if the kernel does not start.

        ``relay`` is called with frames (kind, number, payload) for connections, and with HANGUP 0 when the kernel ends.
        """
        self._relay = relay
        files = find_kernel()
        folder, memory_bytes = find_memory()
        library = registers.library()
        self._frames, self._line = Frames(), Credit(LINE_WINDOW)
        self._send_lock, self._lock = threading.Lock(), threading.Lock()
        self._processes: dict[int, InsideProcess] = {}
        self._number, self._down = 0, False
        self._failed, self._said = "", b""
        self._ready = threading.Event()
        self._modules = files.modules
        # Two pairs, each for one direction. With one pair, if a peer ends with unread data, the kernel reads ECONNRESET
        # instead of the end of the line, and never powers off. (Only an end hangs up, arch/um/drivers/chan_kern.c.)
        (self._to, their_in), (self._from, their_out) = socket.socketpair(), socket.socketpair()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the kernel)
        line = (their_in.fileno(), their_out.fileno())
        python, *options, first = isolated_command("-S", str(Path(init.__file__).absolute()))
        arguments = (
            *(files.binary, f"mem={memory_bytes >> 20}M", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"),
            *("con=null", "con0=null,fd:1", "ssl=null", f"ssl0=fd:{line[0]},fd:{line[1]}"),
            "uml_dir=/dev/null",  # no folder can be created there, so the kernel keeps no files of its own
            *(f'init="{python}"', "--", *options, f'"{first}"'),
        )
        variables, passed = {"TMPDIR": folder, "PATH": os.defpath}, [*line]
        with their_in, their_out, ExitStack() as until_started:
            if library:
                loaded = registers.in_memory(library)
                until_started.callback(os.close, loaded)
                variables["LD_PRELOAD"], passed = f"/proc/self/fd/{loaded}", [*line, loaded]
            self._process = subprocess.Popen(
                [*_contained(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=variables,
                pass_fds=passed,
                restore_signals=False,  # SIGPIPE stays ignored. It would end the kernel, but not its processes
                start_new_session=True,  # this process passes an interrupt from the terminal on
            )
        self._reader = threading.Thread(target=self._read, name="uml", daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._await_end, name="uml", daemon=True)
        self._waiter.start()
        try:
            if not self._ready.wait(BOOT_S):
                raise TestbedError(
                    f"the User-Mode Linux kernel did not boot within {BOOT_S:g} s: {self.last_words()};"
                    " try again when the machine is less busy"
                )
            if self._failed:
                raise TestbedError(f"the User-Mode Linux kernel did not come up: {self._failed}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def last_words(self) -> str:
        """Return why the kernel ended, from its console."""
        if not self._log.closed:
            self._said = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        panics = [line for line in lines if "Kernel panic" in line]
        return (panics or lines or ["it printed nothing"])[-1]

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | None = None,
        stdout: int = 1,
        stderr: int = 2,
    ) -> InsideProcess:
        """Start a command, with its streams relayed from and to the descriptors. ``stdin`` None: no input.

        Environment, folder and umask are those of this process, but temporary files are in the kernel's memory.
        """
        mask = os.umask(0)
        os.umask(mask)
        variables = {**MALLOC_VARIABLES, **(os.environ if env is None else env), **PRIVATE_VARIABLES}
        job = {
            "argv": list(argv),
            "env": variables,
            "cwd": os.fspath(cwd or working_folder()),
            "umask": mask,
            "terminals": [
                tuple(os.get_terminal_size(stream))[::-1] if os.isatty(stream) else None for stream in (stdout, stderr)
            ],
        }
        process = self.expect(stdin, stdout, stderr)
        self.send(Kind.START, process.number, json.dumps(job).encode())
        process.begin()
        return process

    def expect(self, stdin: int | None, stdout: int, stderr: int) -> InsideProcess:
        """Return a process whose streams are relayed from and to the descriptors after the start.

        Raises TestbedError if the kernel has ended.
        """
        with self._lock:
            if self._down:
                raise TestbedError(f"the User-Mode Linux kernel has ended: {self.last_words()}")
            self._number += 1
            process = self._processes[self._number] = InsideProcess(self, self._number, stdin, stdout, stderr)
        return process

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame, at the pace of the line. If the kernel has ended, nothing happens."""
        data = memoryview(HEAD.pack(kind, number, len(payload)) + payload)
        with self._send_lock, suppress(OSError):
            while data and (count := self._line.take(len(data))):
                self._to.sendall(data[:count])
                data = data[count:]

    def _read(self) -> None:
        while True:
            try:
                data = self._from.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            for kind, number, payload in self._frames.feed(data):
                self._hear(kind, number, payload)
        self._line.close()
        with self._lock:
            self._down = True
            left = list(self._processes.values())
        for process in left:
            process.end()
        if self._relay is not None:
            self._relay(Kind.HANGUP, 0, b"")
        if not self._ready.is_set():
            self._failed = self._failed or self.last_words()
            self._ready.set()

    def _hear(self, kind: int, number: int, payload: bytes) -> None:
        if kind == Kind.RECEIVED:
            self._line.give(COUNT.unpack(payload)[1])
        elif kind == Kind.HELLO:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
            setup = {"modules": self._modules, "limit": limit, "name": platform.node()}
            threading.Thread(
                target=self.send, args=(Kind.SETUP, 0, json.dumps(setup).encode()), name="uml", daemon=True
            ).start()  # a new thread, as this one must handle the answers
        elif kind in (Kind.READY, Kind.FAILED):
            self._failed = payload.decode(errors="replace")
            self._ready.set()
        elif kind in (Kind.LINE, Kind.HANGUP):
            if self._relay is not None:
                self._relay(kind, number, payload)
        elif number in self._processes:
            process = self._processes[number]
            if kind in (Kind.ENDED, Kind.REFUSED):
                with self._lock:
                    del self._processes[number]
            process.hear(kind, payload)

    def close(self) -> None:
        """Power the kernel off, with every file written back, and wait for its end. Idempotent."""
        with suppress(OSError):
            self._to.shutdown(socket.SHUT_RDWR)
        self._waiter.join(POWER_OFF_S)
        if self._process.returncode is None:
            self._kill()
            self._waiter.join()
            self._process.wait()
        self._reader.join()
        self._to.close()
        self._from.close()
        self.last_words()
        self._log.close()

    def _await_end(self) -> None:
        """Wait for the end of the kernel, then kill processes left by a crash, which hold the line open."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # needs no descriptor
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _contained() -> tuple[str, ...]:
    """Return words that, before the kernel's command line, make its processes end with this process.

    If a process namespace is forbidden, the words only prevent core files.
    """
    unshare, setpriv = find_program("unshare"), find_program("setpriv")
    if unshare is not None and setpriv is not None:
        users = () if os.geteuid() == 0 else ("--user", "--map-current-user")
        # a kernel that panics ends itself by signals. A first process ignores signals, so the first process is a shell
        first = (SHELL, "-c", 'ulimit -c 0; "$@"; exit $?', "sh")
        words = (setpriv, "--pdeathsig", "KILL", unshare, *users, "--pid", "--fork", "--kill-child", *first)
        tried = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if tried.returncode == 0:
            return words
    return (SHELL, "-c", 'ulimit -c 0; exec "$@"', "sh")


def run_inside(argv: Sequence[str], *, stdin: int | None = None) -> int:
    """Boot a kernel, run a command in it, and return its exit status (128 + n for signal n).

    The command shares this process's streams, environment, folder and umask. The first SIGINT or SIGTERM is passed on
    to the command, the second has its usual effect. Call it from the main thread. Raises CapabilityError, TestbedError,
    and UsageError if there is no such command.
    """
    with Kernel() as kernel:
        sys.stdout.flush()
        sys.stderr.flush()
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        process: InsideProcess | None = None
        early: list[int] = []  # signals during the start of the command

        def pass_on(number: int, _: FrameType | None) -> None:
            for handled, handler in previous.items():
                signal.signal(handled, handler)  # a second signal ends this process, as the kernel may hang
            if process is None:
                early.append(number)
            else:
                process.send_signal(number)

        try:
            for number in previous:
                signal.signal(number, pass_on)
            process = kernel.start(argv, stdin=stdin)
            for missed in early:
                process.send_signal(missed)
            status = process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def own_command_line() -> list[str]:
    """Return the ``thalweg`` command line of this process."""
    return module_command("thalweg", *sys.argv[1:])


def run_thalweg_inside() -> int:
    """Run the ``thalweg`` command line of this process inside a kernel. Return its exit status."""
    return run_inside(own_command_line())
