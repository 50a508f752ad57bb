"""Inside a User-Mode Linux kernel: connections from the host to a testbed's supervisor. Standard library only.

Lines of the supervisor's protocol pass unchanged. Descriptors cannot cross kernels, so what they stand for does: a
``spawn``'s three become pipes, relayed as a process's streams; any other request's one is a file, whose content goes
along with the line, and comes back with the answer if it was empty.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol

from thalweg.emulation.supervisor.connection import Connection
from thalweg.emulation.uml.wire import Kind, relayed, unrelayed


class Agent(Protocol):
    """The loop that connections hang in, and that has the streams of processes, by number (``uml.inside``)."""

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None: ...
    def watch(self, descriptor: int, events: int, act: Callable[[], None] | None = None) -> None: ...
    def lend(self, number: int) -> tuple[int, int, int]: ...
    def ended(self, number: int, status: int) -> None: ...
    def drop(self, number: int) -> None: ...


class _Connection(Connection):
    """One connection to a supervisor, and what its answers are waited for with."""

    def __init__(self, number: int, path: str) -> None:
        super().__init__(socket.socket(socket.AF_UNIX))
        self.number = number
        self.socket.connect(path)
        self.files: dict[int, int] = {}  # request → an empty file to be filled
        self.spawning: dict[int, int] = {}  # request → process
        self.processes: dict[int, int] = {}  # the supervisor's number of a process → ours


class Relay:
    """All connections of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._connections: dict[int, _Connection] = {}

    def hear(self, kind: int, number: int, payload: bytes) -> None:
        """A frame for a connection."""
        if kind == Kind.CONNECT:
            try:
                connection = _Connection(number, payload.decode())
            except OSError:
                self._agent.send(Kind.HANGUP, number)
                return
            self._connections[number] = connection
            self._agent.watch(connection.socket.fileno(), selectors.EVENT_READ, lambda: self._answer(connection))
        elif number in self._connections:
            if kind == Kind.LINE:
                self._ask(self._connections[number], *unrelayed(payload))
            else:
                self._hang_up(self._connections[number])

    def _ask(self, connection: _Connection, process: int, line: bytes, content: bytes) -> None:
        request = json.loads(line)
        given: tuple[int, ...] = ()
        if process:
            connection.spawning[request["id"]], given = process, self._agent.lend(process)
        elif request.get("fds"):
            file = os.memfd_create("content")
            os.write(file, content)
            os.lseek(file, 0, os.SEEK_SET)
            if not content:
                connection.files[request["id"]] = os.dup(file)
            given = (file,)
        connection.send(line, given)
        for descriptor in given:
            os.close(descriptor)

    def _answer(self, connection: _Connection) -> None:
        lines = connection.read()
        connection.forget_descriptors()
        if lines is None:
            self._hang_up(connection)
            self._agent.send(Kind.HANGUP, connection.number)
            return
        for line in lines:
            self._pass_on(connection, json.loads(line))

    def _pass_on(self, connection: _Connection, answer: dict[str, Any]) -> None:
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
        content = b""
        file = connection.files.pop(answer["id"], None)
        if file is not None:
            content = os.pread(file, os.fstat(file).st_size, 0)
            os.close(file)
        line = json.dumps(answer | {"fds": 0}).encode()
        self._agent.send(Kind.LINE, connection.number, relayed(0, line, content))

    def _hang_up(self, connection: _Connection) -> None:
        """The supervisor ends what this connection started."""
        del self._connections[connection.number]
        self._agent.watch(connection.socket.fileno(), 0)
        connection.close()
        for process in (*connection.processes.values(), *connection.spawning.values()):
            self._agent.drop(process)
        for file in connection.files.values():
            os.close(file)
