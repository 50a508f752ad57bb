"""The launcher's side of a supervisor: starting it, calling it, and the processes it runs for us."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import msgspec

from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.connection import MAX_LINE_BYTES, Connection
from thalweg.emulation.supervisor.processes import wait_ended
from thalweg.emulation.supervisor.requests import Request
from thalweg.middleware.errors import CapabilityError, TestbedError, UsageError
from thalweg.middleware.platform import check_linux
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.python import find_program, module_command, working_folder

START_S = 20.0
CALL_S = 60.0
END_S = 10.0
MAX_ANSWER_BYTES = 4 << 30  # of a line of the supervisor, which is ours: samples of a whole run

Redirect = int | IO[Any] | None
"""A descriptor, an open file, ``subprocess.DEVNULL``, ``PIPE`` or ``STDOUT`` (stderr only); None inherits."""


class Command(NamedTuple):
    """What is to run on a host, as for ``subprocess.Popen``; ``env`` and ``cwd`` None: our own.

    ``terminal``: lines and columns of the terminal that all three streams are, which is to control it. ``own_folders``:
    it has the folders of its host's own; otherwise those of the machine in their place.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    stdin: Redirect = None
    stdout: Redirect = None
    stderr: Redirect = None
    terminal: tuple[int, int] | None = None
    own_folders: bool = True

    def words(self, host: str) -> list[str]:
        """Raises UsageError for none."""
        if not self.argv:
            raise UsageError(f"no command to run on host {host!r}")
        return [os.fspath(word) for word in self.argv]


class _Talk(threading.Thread):
    """Thread that reads a pipe to its end into ``found``, or writes ``written`` into it and closes it."""

    def __init__(self, file: IO[bytes], written: bytes | None = None) -> None:
        super().__init__(name="testbed-pipe", daemon=True)
        self.found = b""
        self._file, self._written = file, written
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):  # the process has ended, or its pipes were closed
            if self._written is None:
                self.found = self._file.read()
            else:
                self._file.write(self._written)
                self._file.close()


class TestbedProcess:
    """A process on a host. Thread-safe; ``returncode`` is negative for a signal, as in ``subprocess``.

    ``pid`` is the process's number as this process sees it, None when the system cannot translate it. ``stdin``,
    ``stdout`` and ``stderr`` are binary files where ``PIPE`` was asked.
    """

    __test__ = False

    def __init__(self, client: SupervisorClient, host: str, argv: Sequence[str], inner_pid: int, pid: int | None):
        self._prepare(host, argv)
        self._pid, self._client, self._inner_pid = pid, client, inner_pid

    def _prepare(self, host: str, argv: Sequence[str]) -> None:
        self.host, self.args = host, tuple(argv)
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._ended = threading.Event()
        self._status: int | None = None
        self._talking: dict[str, _Talk] = {}
        self._inner_pid = 0

    def __repr__(self) -> str:
        return f"<TestbedProcess {self.args[0]!r} on {self.host}, pid {self.pid}, status {self._status}>"

    @property
    def pid(self) -> int | None:
        """The process's number as this process sees it, None if the system cannot translate it."""
        return self._pid

    @property
    def inner_pid(self) -> int:
        """The process's number inside the testbed; 0 if the testbed's supervisor has not started it."""
        return self._inner_pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._status

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises ``TimeoutError`` after ``timeout`` seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.args[0]!r} on {self.host!r} still runs after {timeout:g} s")
        assert self._status is not None
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self._status is None:
            with suppress(TestbedError):  # the testbed is gone, and the process with it
                self._client.call(requests.Signal(self._inner_pid, int(number)))

    def resize(self, size: tuple[int, int]) -> None:
        """Tell the terminal that controls it its lines and columns."""
        with suppress(TestbedError):
            self._client.call(requests.Resize(self._inner_pid, size))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _keep(self, ours: Mapping[int, int]) -> None:
        """Have our ends of its pipes as files."""
        for which, descriptor in ours.items():
            setattr(self, ("stdin", "stdout", "stderr")[which], os.fdopen(descriptor, "rb" if which else "wb"))

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Write ``input`` to stdin, wait until the process ends, and return all of its stdout and stderr.

        None stands for a stream that is no pipe. Raises TimeoutError after ``timeout`` seconds; the process goes on,
        and another call reads the rest of its output.
        """
        limit_s = None if timeout is None else time.monotonic() + timeout
        if not self._talking:
            self._talking = {name: _Talk(file) for name in ("stdout", "stderr") if (file := getattr(self, name))}
            if self.stdin is not None:
                self._talking["stdin"] = _Talk(self.stdin, input or b"")
        for talk in self._talking.values():
            talk.join(None if limit_s is None else max(0.0, limit_s - time.monotonic()))
            if talk.is_alive():
                raise TimeoutError(f"{self.args[0]!r} on {self.host!r} still runs after {timeout:g} s")
        self.wait(None if limit_s is None else max(0.0, limit_s - time.monotonic()))
        found = {name: talk.found for name, talk in self._talking.items()}
        return found.get("stdout"), found.get("stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process if it still runs: with SIGTERM, and after ``END_S`` with SIGKILL. Close our ends of pipes."""
        self.terminate()
        try:
            self.wait(END_S)
        except TimeoutError:
            self.kill()
            self.wait()
        self.close()

    def close(self) -> None:
        """Close our ends of its pipes."""
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _end(self, status: int) -> None:
        self._status = status
        self._ended.set()


class SupervisorClient:
    """A connection to a supervisor. Calls are thread-safe; a thread reads answers and notices."""

    def __init__(self, sock: socket.socket, lost: Callable[[], str] = lambda: "") -> None:
        """``lost``: asked for the reason when the supervisor ends unexpectedly."""
        self._connection, self._lost = Connection(sock, MAX_ANSWER_BYTES), lost
        self._lock, self._send_lock = threading.Condition(), threading.Lock()
        self._number = 0
        self._answers: dict[int, tuple[dict[str, Any], tuple[int, ...]]] = {}
        self._processes: dict[int, TestbedProcess] = {}
        self._early: dict[int, int] = {}
        self._hello = self._closed = False
        self._reader = threading.Thread(target=self._read, name="testbed", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while (lines := self._connection.read()) is not None:
            with self._lock:
                for line in lines:
                    answer = json.loads(line)
                    self._take(answer, self._connection.claim(answer.get("fds", 0)))
                self._lock.notify_all()
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process._end(-signal.SIGKILL)
            self._lock.notify_all()

    def _take(self, answer: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        if "exit" in answer:
            pid, status = answer["exit"]["pid"], answer["exit"]["status"]
            process = self._processes.pop(pid, None)
            if process is None:
                self._early[pid] = status
            else:
                process._end(status)
        elif "hello" in answer:
            self._hello = True
        else:
            self._answers[answer["id"]] = (answer, descriptors)

    def greeted(self, timeout_s: float = START_S) -> bool:
        """Whether the supervisor has come up; False as soon as it is known that it will not."""
        with self._lock:
            self._lock.wait_for(lambda: self._hello or self._closed, timeout_s)
            return self._hello

    def call(self, request: Request, descriptors: Sequence[int] = (), timeout_s: float = CALL_S) -> dict[str, Any]:
        """One request; its result. Raises the error the supervisor names, TestbedError when it is gone."""
        with self._lock:
            self._number += 1
            number = self._number
        asked = msgspec.structs.replace(request, id=number, fds=len(descriptors))
        try:
            line = msgspec.json.encode(asked)
        except UnicodeEncodeError as error:  # an argument or a variable of bytes that are not UTF-8
            raise UsageError(
                f"a request to the testbed's supervisor has {error.object!r}, which is not UTF-8"
            ) from None
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"a request to the testbed's supervisor has {len(line)} bytes, over {MAX_LINE_BYTES}")
        with self._send_lock:
            self._connection.send(line, descriptors)
        with self._lock:
            self._lock.wait_for(lambda: number in self._answers or self._closed, timeout_s)
            if number not in self._answers:
                why = self._lost() if self._closed else f"it has not answered within {timeout_s:g} s"
                state = "has ended" if self._closed else "hangs"
                op = request.__struct_config__.tag
                raise TestbedError(f"the testbed's supervisor {state} ({op}){': ' + why if why else ''}")
            answer, received = self._answers.pop(number)
        if "error" in answer:
            raise requests.ERRORS[answer["kind"]](answer["error"])
        result: dict[str, Any] = answer["result"]
        if received:
            result["descriptors"] = received
        return result

    def spawn(self, host: str, command: Command) -> TestbedProcess:
        """Start a process on ``host``; raises UsageError when it cannot be executed."""
        words, variables, cwd = _as_here(host, command)
        with lent_streams(command) as (theirs, ours):
            result = self.call(
                requests.Spawn(host, words, variables, cwd, command.terminal, command.own_folders), theirs
            )
        pid = _translated(result["descriptors"][0]) if "descriptors" in result else result["pid"]
        process = TestbedProcess(self, host, words, result["pid"], pid)
        process._keep(ours)
        with self._lock:
            early = self._early.pop(result["pid"], None)
            if early is not None or self._closed:
                process._end(-signal.SIGKILL if early is None else early)
            else:
                self._processes[result["pid"]] = process
        return process

    def launch(self, host: str, command: Command) -> int:
        """Start a process that stays when we hang up; its number. Raises UsageError when it cannot be executed."""
        return int(self.call(requests.Launch(host, *_as_here(host, command)))["pid"])

    def launched(self) -> list[requests.LaunchedProcess]:
        """All of these, in the order in which they were started."""
        return msgspec.convert(self.call(requests.Launched())["launched"], list[requests.LaunchedProcess])

    def close(self) -> None:
        """Hang up: an attached supervisor ends, and all its processes with it."""
        with suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()


def _as_here(host: str, command: Command) -> tuple[list[str], dict[str, str], str]:
    """A command's words, environment and folder, which are ours where it does not say them."""
    variables = os.environ if command.env is None else command.env
    return command.words(host), dict(variables), os.fspath(command.cwd or working_folder())


@contextmanager
def lent_streams(command: Command) -> Iterator[tuple[list[int], dict[int, int]]]:
    """What a child gets for streams, inside, and our ends of pipes by position, which are closed if it fails."""
    theirs, ours = list[int](), dict[int, int]()
    with ExitStack() as lent, ExitStack() as kept:
        for which, wanted in enumerate((command.stdin, command.stdout, command.stderr)):
            if wanted is None:
                theirs.append(which)
            elif wanted == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                lent.callback(os.close, theirs[-1])
            elif wanted == subprocess.PIPE:
                read, write = os.pipe()
                theirs.append(write if which else read)
                ours[which] = read if which else write
                lent.callback(os.close, theirs[-1])
                kept.callback(os.close, ours[which])
            elif wanted == subprocess.STDOUT:
                theirs.append(theirs[1])
            else:
                theirs.append(wanted if isinstance(wanted, int) else wanted.fileno())
        yield theirs, ours
        kept.pop_all()


def _translated(handle: int) -> int | None:
    """The process's number in our namespace, from a descriptor of it (pidfd_open(2), proc_pid_fdinfo(5))."""
    try:
        with suppress(OSError):
            for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
                if line.startswith("Pid:"):
                    return int(line.split()[1]) if int(line.split()[1]) > 0 else None
        return None
    finally:
        os.close(handle)


# --- starting ---------------------------------------------------------------------------------------


class StartedSupervisor:
    """A supervisor that we started. ``mode`` says how it was isolated: ``root``, ``user`` (namespace) or ``plain``."""

    def __init__(self, process: subprocess.Popen[bytes], client: SupervisorClient, log: IO[bytes], mode: str) -> None:
        self.process, self.client, self.mode = process, client, mode
        self._log = log

    def close(self) -> None:
        """End it and wait until it, and everything in it, is gone. Idempotent."""
        self.client.close()
        wait_ended(self.process.pid, END_S)  # to the moment: ``Popen.wait`` looks at intervals
        try:
            self.process.wait(0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def leave(self) -> None:
        """Forget it without ending it (it has been detached)."""
        self.client.close()
        threading.Thread(target=self.process.wait, name="detached", daemon=True).start()  # no zombie if we live longer
        self._log.close()


NAMESPACES = ("--net", "--pid", "--fork", "--kill-child")
USER = ("--user", "--map-root-user")
PROC = ("--mount-proc",)


def start_plain(run_id: str, listener: socket.socket | None = None) -> StartedSupervisor:
    """A supervisor without namespaces: it only starts, watches and ends processes. Raises TestbedError when it does not
    start."""
    check_linux("the supervisor of a testbed needs")
    started, why = _attempt((), run_id, listener, "plain")
    if started is None:
        raise TestbedError(f"the testbed's supervisor did not start: {why}")
    return started


def start_isolated(run_id: str, listener: socket.socket | None = None, *, as_user: bool = False) -> StartedSupervisor:
    """A supervisor in network and process namespaces of its own, in a user namespace unless root.

    ``as_user``: in a user namespace in any case. Raises CapabilityError naming what is missing.
    """
    check_linux("network namespaces need")
    if not os.path.exists("/proc/self/ns/net"):
        raise CapabilityError("/proc is not mounted here; mount it (mount -t proc proc /proc)")
    unshare = find_program("unshare")
    if unshare is None:
        install = install_line("util-linux", "util-linux")
        raise CapabilityError(f"'unshare' is missing; {install}, or use --testbed loopback")
    users = [True] if as_user or os.geteuid() != 0 else [False, True]
    reasons = []
    for user in users:
        for proc in (True, False):  # some containers forbid mounting /proc
            options = (*NAMESPACES, *(PROC if proc else ()), *(USER if user else ()))
            mode = f"{'user' if user else 'root'}{'' if proc else ', without /proc'}"
            started, why = _attempt((unshare, *options), run_id, listener, mode)
            if started is not None:
                return started
            reasons.append(why)
    raise CapabilityError(
        f"no permission for network namespaces ({reasons[0]}); run as root, or allow unprivileged user namespaces"
        " (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0), or use --testbed loopback"
    )


def _attempt(
    prefix: tuple[str, ...], run_id: str, listener: socket.socket | None, mode: str
) -> tuple[StartedSupervisor | None, str]:
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the supervisor)
    pass_fds = [one.fileno() for one in (theirs, listener) if one is not None]
    argv = [*prefix, *module_command("thalweg.emulation.server.begin", run_id, *map(str, pass_fds))]
    # a session of its own: an interrupt from the terminal is for the launcher, which then ends us in order
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds, start_new_session=True
    )
    theirs.close()

    def lost() -> str:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    client = SupervisorClient(ours, lost)
    greeted = False
    try:
        greeted = client.greeted()
    finally:
        if not greeted:  # or interrupted
            client.close()
            process.kill()
            process.wait()
    if greeted:
        return StartedSupervisor(process, client, log, mode), ""
    why = lost() or "it did not answer"
    log.close()
    return None, why
