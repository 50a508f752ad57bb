"""Connection of a launcher to a supervisor: start of the supervisor, calls, and processes on hosts."""

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
MAX_ANSWER_BYTES = 4 << 30  # longest line of the trusted supervisor: samples of a whole run

Redirect = int | IO[Any] | None
"""A descriptor, an open file, ``subprocess.DEVNULL``, ``PIPE`` or ``STDOUT`` (stderr only). None: inherited."""


class Command(NamedTuple):
    """Command for a host, as for ``subprocess.Popen``. ``env`` and ``cwd`` None: the launcher's own.

    ``terminal``: lines and columns, if the three streams are a terminal that is to control the process.
    ``own_folders``: the process has its host's own folders. Otherwise it has the machine's folders at the same paths.
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
        """Return the words of the command. Raise UsageError if there are none."""
        if not self.argv:
            raise UsageError(f"no command to run on host {host!r}")
        return [os.fspath(word) for word in self.argv]


class _Talk(threading.Thread):
    """Thread that reads a pipe to its end into ``found``, or writes ``written`` into it and closes the pipe."""

    def __init__(self, file: IO[bytes], written: bytes | None = None) -> None:
        super().__init__(name="testbed-pipe", daemon=True)
        self.found = b""
        self._file, self._written = file, written
        self.start()

    def run(self) -> None:
        with suppress(OSError, ValueError):  # the process has ended, or its pipes are closed
            if self._written is None:
                self.found = self._file.read()
            else:
                self._file.write(self._written)
                self._file.close()


class TestbedProcess:
    """Process on a host. Thread-safe. ``returncode`` is negative for a signal, as in ``subprocess``.

    ``pid`` is the number of the process in the caller's namespace. It is None if the system cannot translate the
    number. ``stdin``, ``stdout`` and ``stderr`` are binary files if the command asked for ``PIPE``.
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
        """Number of the process in the caller's namespace. None: the system cannot translate the number."""
        return self._pid

    @property
    def inner_pid(self) -> int:
        """Number of the process inside the testbed. 0: the testbed's supervisor has not started it."""
        return self._inner_pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal. None: the process runs."""
        return self._status

    def poll(self) -> int | None:
        """Return the exit status. None: the process runs."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Return its exit status. Raise TimeoutError after ``timeout`` seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.args[0]!r} on {self.host!r} still runs after {timeout:g} s")
        assert self._status is not None
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal. If the process has ended, nothing happens."""
        if self._status is None:
            with suppress(TestbedError):  # the testbed has ended, and the process with it
                self._client.call(requests.Signal(self._inner_pid, int(number)))

    def resize(self, size: tuple[int, int]) -> None:
        """Set the lines and columns of the terminal that controls the process."""
        with suppress(TestbedError):
            self._client.call(requests.Resize(self._inner_pid, size))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _keep(self, ours: Mapping[int, int]) -> None:
        """Open the launcher's ends of the pipes to the process as files."""
        for position, descriptor in ours.items():
            setattr(self, ("stdin", "stdout", "stderr")[position], os.fdopen(descriptor, "rb" if position else "wb"))

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Write ``input`` to stdin, wait until the process ends, and return its whole stdout and stderr.

        None stands for a stream that is no pipe. Raises TimeoutError after ``timeout`` seconds. The process then
        continues, and another call reads the rest of its output.
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
        outputs = {name: talk.found for name, talk in self._talking.items()}
        return outputs.get("stdout"), outputs.get("stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End a running process with SIGTERM, and after ``END_S`` with SIGKILL. Close the launcher's ends of pipes."""
        self.terminate()
        try:
            self.wait(END_S)
        except TimeoutError:
            self.kill()
            self.wait()
        self.close()

    def close(self) -> None:
        """Close the launcher's ends of the pipes to the process."""
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _end(self, status: int) -> None:
        self._status = status
        self._ended.set()


class SupervisorClient:
    """Connection to a supervisor. Calls are thread-safe. A thread reads answers and notices."""

    def __init__(self, sock: socket.socket, lost: Callable[[], str] = lambda: "") -> None:
        """Start to read from a connected socket. ``lost`` returns the reason if the supervisor ends unexpectedly."""
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
        """Return whether the supervisor has started. The result is False as soon as the connection is closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._hello or self._closed, timeout_s)
            return self._hello

    def call(self, request: Request, descriptors: Sequence[int] = (), timeout_s: float = CALL_S) -> dict[str, Any]:
        """Send a request and return its result.

        Raises the error that the supervisor names. Raises TestbedError if the supervisor has ended or does not answer,
        and UsageError if the request is too large or is not UTF-8.
        """
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
        """Start a process on ``host``. Raises UsageError if the command cannot be executed."""
        words, variables, cwd = _as_here(host, command)
        with lent_streams(command) as (child_streams, pipe_ends):
            result = self.call(
                requests.Spawn(host, words, variables, cwd, command.terminal, command.own_folders), child_streams
            )
        pid = _translated(result["descriptors"][0]) if "descriptors" in result else result["pid"]
        process = TestbedProcess(self, host, words, result["pid"], pid)
        process._keep(pipe_ends)
        with self._lock:
            early = self._early.pop(result["pid"], None)
            if early is not None or self._closed:
                process._end(-signal.SIGKILL if early is None else early)
            else:
                self._processes[result["pid"]] = process
        return process

    def launch(self, host: str, command: Command) -> int:
        """Start a process that outlives this connection. Return its number.

        Raises UsageError if the command cannot be executed.
        """
        return int(self.call(requests.Launch(host, *_as_here(host, command)))["pid"])

    def launched(self) -> list[requests.LaunchedProcess]:
        """Return the launched processes, in the order of their start."""
        return msgspec.convert(self.call(requests.Launched())["launched"], list[requests.LaunchedProcess])

    def close(self) -> None:
        """Close the connection. An attached supervisor ends, with every process that it holds."""
        with suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()


def _as_here(host: str, command: Command) -> tuple[list[str], dict[str, str], str]:
    """Return a command's words, environment and folder. The environment and folder default to the launcher's own."""
    variables = os.environ if command.env is None else command.env
    return command.words(host), dict(variables), os.fspath(command.cwd or working_folder())


@contextmanager
def lent_streams(command: Command) -> Iterator[tuple[list[int], dict[int, int]]]:
    """Yield the streams for a child, and the launcher's ends of pipes by position.

    Streams opened for the child are closed at the end. The launcher's ends are closed only if the body fails.
    """
    child_streams, pipe_ends = list[int](), dict[int, int]()
    with ExitStack() as lent, ExitStack() as pipes:
        for position, wanted in enumerate((command.stdin, command.stdout, command.stderr)):
            if wanted is None:
                child_streams.append(position)
            elif wanted == subprocess.DEVNULL:
                child_streams.append(os.open(os.devnull, os.O_RDWR))
                lent.callback(os.close, child_streams[-1])
            elif wanted == subprocess.PIPE:
                read, write = os.pipe()
                child_streams.append(write if position else read)
                pipe_ends[position] = read if position else write
                lent.callback(os.close, child_streams[-1])
                pipes.callback(os.close, pipe_ends[position])
            elif wanted == subprocess.STDOUT:
                child_streams.append(child_streams[1])
            else:
                child_streams.append(wanted if isinstance(wanted, int) else wanted.fileno())
        yield child_streams, pipe_ends
        pipes.pop_all()


def _translated(handle: int) -> int | None:
    """Return a process's number in this namespace, from its descriptor (pidfd_open(2), proc_pid_fdinfo(5))."""
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
    """Supervisor that this process has started. ``mode``: isolation by ``root``, ``user`` (namespace) or ``plain``."""

    def __init__(self, process: subprocess.Popen[bytes], client: SupervisorClient, log: IO[bytes], mode: str) -> None:
        self.process, self.client, self.mode = process, client, mode
        self._log = log

    def close(self) -> None:
        """End the supervisor, and wait until everything in it is gone. Idempotent."""
        self.client.close()
        wait_ended(self.process.pid, END_S)  # returns at once, while ``Popen.wait`` polls at intervals
        try:
            self.process.wait(0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def leave(self) -> None:
        """Close the connection without ending the supervisor, which has been detached."""
        self.client.close()
        threading.Thread(target=self.process.wait, name="detached", daemon=True).start()  # avoids a zombie
        self._log.close()


NAMESPACES = ("--net", "--pid", "--fork", "--kill-child")
USER = ("--user", "--map-root-user")
PROC = ("--mount-proc",)


def start_plain(run_id: str, listener: socket.socket | None = None) -> StartedSupervisor:
    """Start a supervisor without namespaces, which only starts, watches and ends processes.

    Raises TestbedError if the supervisor does not start.
    """
    check_linux("the supervisor of a testbed needs")
    started, why = _attempt((), run_id, listener, "plain")
    if started is None:
        raise TestbedError(f"the testbed's supervisor did not start: {why}")
    return started


def start_isolated(run_id: str, listener: socket.socket | None = None, *, as_user: bool = False) -> StartedSupervisor:
    """Start a supervisor in network and process namespaces of its own. Without root it has a user namespace.

    ``as_user``: use a user namespace in any case. Raises CapabilityError, which names the missing part.
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
        for proc in (True, False):  # some containers forbid to mount /proc
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
    launcher_end, supervisor_end = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the supervisor)
    pass_fds = [end.fileno() for end in (supervisor_end, listener) if end is not None]
    argv = [*prefix, *module_command("thalweg.emulation.server.begin", run_id, *map(str, pass_fds))]
    # a session of its own: an interrupt from the terminal reaches the launcher alone, which then ends the supervisor
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds, start_new_session=True
    )
    supervisor_end.close()

    def lost() -> str:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    client = SupervisorClient(launcher_end, lost)
    greeted = False
    try:
        greeted = client.greeted()
    finally:
        if not greeted:  # also after an interrupt
            client.close()
            process.kill()
            process.wait()
    if greeted:
        return StartedSupervisor(process, client, log, mode), ""
    why = lost() or "it did not answer"
    log.close()
    return None, why
