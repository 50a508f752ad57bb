"""First process inside a User-Mode Linux kernel, which starts commands and relays their streams.

It exchanges frames (``uml.wire``) over the serial line, the only connection of the two kernels. If the line closes, the
kernel's owner has ended. Then everything is written back and the kernel powers off. Standard library only, because the
kernel starts this process without site-packages.

Lines of a supervisor's protocol pass unchanged. Descriptors cannot cross kernels. The three descriptors of a ``spawn``
become pipes, relayed as a process's streams.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import subprocess
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.emulation.supervisor.connection import Connection
from thalweg.emulation.supervisor.processes import drain, ended_children, signal_pipe
from thalweg.emulation.uml import system
from thalweg.emulation.uml.streams import Streams
from thalweg.emulation.uml.wire import COUNT, HEAD, LINE_WINDOW, PRIVATE, PROCESS, STATUS, Frames, Kind

LINE = "/dev/ttyS0"
MAX_ANSWER_BYTES = 4 << 30  # longest line of the trusted supervisor


class _Connection(Connection):
    """Connection to a supervisor, with the processes that await an answer or run."""

    def __init__(self, number: int, path: str) -> None:
        super().__init__(socket.socket(socket.AF_UNIX), MAX_ANSWER_BYTES)
        self.number = number
        self.socket.connect(path)
        self.spawning: dict[int, int] = {}  # number of a request → number of its process here
        self.processes: dict[int, int] = {}  # number of a process at the supervisor → its number here


class Relay:
    """Connections of clients on the host to a testbed's supervisor."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._connections: dict[int, _Connection] = {}

    def hear(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame for a connection."""
        if kind == Kind.CONNECT:
            try:
                connection = _Connection(number, payload.decode())
            except OSError:
                self._agent.send(Kind.HANGUP, number)
                return
            self._connections[number] = connection
            self._agent.watch(connection.socket.fileno(), lambda: self._answer(connection))
        elif number in self._connections:
            connection = self._connections[number]
            if kind == Kind.LINE:
                connection.send(payload)
            elif kind == Kind.SPAWN:
                self._spawn(connection, payload)
            else:
                self._hang_up(connection)

    def _spawn(self, connection: _Connection, payload: bytes) -> None:
        (process,), line = PROCESS.unpack_from(payload), payload[PROCESS.size :]
        request = json.loads(line)
        connection.spawning[request["id"]] = process
        lend = self._agent.lend if request.get("terminal") is None else self._agent.lend_terminal
        streams = lend(process)
        connection.send(line, streams)
        for descriptor in {*streams}:
            os.close(descriptor)

    def _answer(self, connection: _Connection) -> None:
        lines = connection.read()
        connection.forget_descriptors()
        if lines is None:
            self._hang_up(connection)
            self._agent.send(Kind.HANGUP, connection.number)
            return
        for line in lines:
            self._pass_on(connection, line)

    def _pass_on(self, connection: _Connection, line: bytes) -> None:
        answer = json.loads(line)
        if "exit" in answer:
            process = connection.processes.pop(answer["exit"]["pid"], None)
            if process is not None:
                self._agent.ended(process, answer["exit"]["status"])
            return
        process = connection.spawning.pop(answer["id"], None)
        if process is not None and "error" in answer:
            self._agent.drop(process)
        elif process is not None:
            connection.processes[answer["result"]["pid"]] = process
            line = json.dumps(answer | {"fds": 0}).encode()  # the process descriptor has no use outside
        self._agent.send(Kind.LINE, connection.number, line)

    def _hang_up(self, connection: _Connection) -> None:
        """Close a connection. The supervisor then ends the processes that the connection started."""
        del self._connections[connection.number]
        self._agent.forget(connection.socket.fileno())
        connection.close()
        for process in (*connection.processes.values(), *connection.spawning.values()):
            self._agent.drop(process)


class Agent:
    """Event loop of the first process."""

    def __init__(self, line: int) -> None:
        self._line, self._sending = line, threading.Lock()
        self._frames = Frames()
        self._selector = selectors.DefaultSelector()
        self.watch(line, self._hear)
        wake = signal_pipe()
        self.watch(wake, lambda: drain(wake))
        self._commands: dict[int, subprocess.Popen[bytes]] = {}
        self._streams: dict[int, Streams] = {}
        self._relay = Relay(self)
        self._over = False

    def serve(self) -> None:
        """Run the event loop until the line closes."""
        self.send(Kind.HELLO)
        while not self._over:
            for key, _ in self._selector.select():
                if key.fd in self._selector.get_map():  # an earlier action may have removed it
                    key.data()
            self._reap()

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        data = memoryview(HEAD.pack(kind, number, len(payload)) + payload)
        with self._sending:
            while data:
                data = data[os.write(self._line, data) :]

    def watch(self, descriptor: int, act: Callable[[], None]) -> None:
        """Register ``act``, which the loop calls whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def _hear(self) -> None:
        try:
            data = os.read(self._line, LINE_WINDOW)
        except OSError:
            data = b""
        if not data:
            self._over = True
            return
        self.send(Kind.RECEIVED, 0, COUNT.pack(0, len(data)))
        for kind, number, payload in self._frames.feed(data):
            if kind == Kind.SETUP:
                self._setup(json.loads(payload))
            elif kind == Kind.START:
                self._start(number, json.loads(payload))
            elif kind == Kind.SIGNAL:
                if number in self._commands:
                    self._commands[number].send_signal(payload[0])
            elif kind in (Kind.CONNECT, Kind.LINE, Kind.SPAWN, Kind.HANGUP):
                self._relay.hear(kind, number, payload)
            elif number in self._streams:
                self._streams[number].hear(kind, payload)

    def _setup(self, given: dict[str, Any]) -> None:
        try:
            socket.sethostname(given["name"])
            system.loopback_up()
            for path in given["modules"]:
                system.load_module(path)
            resource.setrlimit(resource.RLIMIT_NOFILE, (given["limit"], given["limit"]))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self.send(Kind.FAILED, 0, f"{where}{error.strerror or error}".encode())
            return
        self.send(Kind.READY)

    # --- processes ------------------------------------------------------------------------------------

    def _start(self, number: int, job: dict[str, Any]) -> None:
        stdin, stdout, stderr = streams = self.lend(number, job["terminals"])
        try:
            self._commands[number] = subprocess.Popen(
                job["argv"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=job["env"],
                cwd=job["cwd"],
                umask=job["umask"],
                start_new_session=True,
            )
        except OSError as error:
            self.drop(number)
            self.send(Kind.REFUSED, number, f"cannot run {job['argv'][0]!r}: {error.strerror}".encode())
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def lend(self, number: int, terminals: Sequence[tuple[int, int] | None] = (None, None)) -> tuple[int, int, int]:
        """Return the standard streams of a process that is to be started.

        ``terminals``: lines and columns of outputs that go to a terminal.
        """
        (stdin, feed), (out, stdout), (err, stderr) = os.pipe(), *map(_outlet, terminals)
        self._streams[number] = streams = Streams(self, number, {1: out, 2: err}, {0: feed})
        streams.begin()
        return stdin, stdout, stderr

    def lend_terminal(self, number: int) -> tuple[int, int, int]:
        """Return a terminal for a process that is to be started, three times."""
        controller, terminal = os.openpty()
        self._streams[number] = streams = Streams(self, number, {1: controller}, {0: os.dup(controller)})
        streams.begin()
        return terminal, terminal, terminal

    def ended(self, number: int, status: int) -> None:
        """Handle the end of a process. It is reported after the process's output has been sent."""
        if (streams := self._streams.get(number)) is not None:
            threading.Thread(target=self._report, args=(streams, status), daemon=True).start()

    def _report(self, streams: Streams, status: int) -> None:
        streams.read_out()
        self.drop(streams.number)
        os.sync()
        self.send(Kind.ENDED, streams.number, STATUS.pack(status))

    def drop(self, number: int) -> None:
        """End the streams of a process and forget the process."""
        if (streams := self._streams.pop(number, None)) is not None:
            streams.end()

    def _reap(self) -> None:
        """Handle the ends of commands, and wait for the orphans that the first process inherits."""
        for pid in ended_children():
            number = next((number for number, command in self._commands.items() if command.pid == pid), None)
            if number is None:
                os.waitpid(pid, 0)
            else:
                self.ended(number, self._commands.pop(number).wait())


def _outlet(terminal: tuple[int, int] | None) -> tuple[int, int]:
    """Return a pipe, or a pseudo-terminal that passes bytes on unchanged. The host's terminal converts them."""
    if terminal is None:
        return os.pipe()
    controller, attached = os.openpty()
    tty.setraw(attached)
    termios.tcsetwinsize(attached, terminal)
    return controller, attached


def main() -> None:
    """Set up the system, and serve until the line closes."""
    os.umask(0o022)
    system.mount_all(PRIVATE)
    power = system.Power()
    line = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    try:
        Agent(line).serve()
    finally:
        power.off()
